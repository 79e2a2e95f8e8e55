"""The catalogue of behaviours has each number once, and every citation leads there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from scripts import coverage_table as table

PAGE = table.ROOT / "docs" / "behaviours.md"
NUMBERS = range(1, 655)
_ENTRY = re.compile(r'^- <a id="c-(\d+)"></a>\*\*C-(\d+)\*\* (.+)$')
_PLACES = ("src", "tests", "docs", "benchmarks", "demo", "examples", "scripts")
_TEXTS = {".py", ".md", ".txt", ".java"}


def entries() -> list[tuple[int, str]]:
    """Number and text of each entry, in the page's order."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("- "):
            continue
        match = _ENTRY.match(line)
        assert match, f"not an entry: {line[:80]}"
        assert match[1] == match[2], f"the anchor names another number: {line[:80]}"
        found.append((int(match[1]), match[3]))
    return found


@cache
def sources() -> list[Path]:
    """Every text of the repository that may cite a behaviour."""
    found = [
        file
        for place in _PLACES
        for file in sorted((table.ROOT / place).rglob("*"))
        if file.suffix in _TEXTS and file != Path(__file__)
    ]
    return found + sorted(table.ROOT.glob("*.md"))


def test_each_number_has_one_entry_in_order() -> None:
    """From the first to the last, none twice."""
    assert [number for number, _ in entries()] == list(NUMBERS)


def test_each_entry_says_something_of_its_own() -> None:
    """No entry is a stub or another's copy."""
    texts = [text for _, text in entries()]
    assert [text for text in texts if len(text) < 25] == []
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("place", [*_PLACES, "."])
def test_every_citation_leads_to_an_entry(place: str) -> None:
    """A number that is cited anywhere stands in the catalogue."""
    known = {number for number, _ in entries()}
    root = table.ROOT / place
    lost = {
        f"{file.relative_to(table.ROOT)}: C-{number}"
        for file in sources()
        if (file.parent == root if place == "." else root in file.parents)
        for number in table.cited_in(file.read_text(encoding="utf-8"))
        if number not in known
    }
    assert sorted(lost) == []


def test_the_page_of_tests_leads_to_the_catalogue() -> None:
    """Whoever reads which test shows a behaviour is one step from what it says."""
    linked = re.findall(r"\[C-(\d+)\]\(behaviours\.md#c-(\d+)\)", table.page())
    in_scope = [number for section in table.SECTIONS for number in section.ids]
    assert [(int(shown), int(anchor)) for shown, anchor in linked] == [(n, n) for n in in_scope]
