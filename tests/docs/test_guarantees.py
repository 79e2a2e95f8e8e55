"""The page of guarantees names tests that exist, and says something in every column."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT, functions_of

PAGE = ROOT / "docs/guarantees.md"
TEXT = PAGE.read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)))
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith("| Promise ")
]


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_named_test_exists(file: str, name: str) -> None:
    assert (ROOT / file).is_file(), f"{file} is no file"
    assert not name or name in functions_of(ROOT / file), f"{file} has no {name}"


def test_every_promise_has_a_setting_a_test_and_a_limit() -> None:
    assert len(ROWS) >= 25
    for row in ROWS:
        assert len(row) == 4, row
        assert all(row), row
        assert "`tests/" in row[2] or "simulated" in row[2], f"nothing shows: {row[0]}"


def test_every_promise_of_the_readme_is_kept_here() -> None:
    """The tests the README names for its promises are named here too."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    promises = readme.split("## What it promises")[1].split("\n## ")[0]
    missing = [
        file
        for file in re.findall(r"`(tests/[\w/]+\.py)`", promises)
        if file not in {named for named, _ in NAMED}
    ]
    assert missing == []
