"""Write docs/coverage.md: which test shows which numbered behaviour (C-n) of the reference.

A test shows a behaviour when its docstring, a comment in or directly above it, or a table it is
fed with cites the number. Run `python -m scripts.coverage_table` after adding tests (a test fails
when the page is stale), with `--missing` for the numbers nothing cites yet.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "coverage.md"
REASONS = ROOT / "docs" / "coverage-reasons.txt"
SHARE_MIN = 0.95
"""Least share of the behaviours that tests must cite."""

HEAD = """# Behaviours and the tests that show them

Each numbered behaviour (C-n) of [the catalogue](behaviours.md) that is in scope, with the tests
that cite it, or the reason why none does. Generated from the tests by
`python -m scripts.coverage_table`.
"""


@dataclass(frozen=True)
class Section:
    """A run of numbered behaviours."""

    number: str
    title: str
    first: int
    last: int

    @property
    def ids(self) -> range:
        """The numbers in it."""
        return range(self.first, self.last + 1)


SECTIONS = [
    Section(*row)
    for row in (
        ("1.1", "Settings of every client", 1, 20),
        ("1.2", "Settings of the push consumer", 21, 47),
        ("1.3", "Settings of the pull consumer", 48, 58),
        ("1.4", "Settings of the lite-pull consumer", 59, 76),
        ("1.5", "Settings of producers", 77, 93),
        ("1.6", "Names", 94, 98),
        ("1.7", "Subscription expressions", 99, 105),
        ("2.1", "States of a client", 106, 110),
        ("2.2", "Start of the push consumer", 111, 118),
        ("2.3", "Shutdown of the push consumer", 119, 122),
        ("2.4", "Start and shutdown of pull consumers", 123, 126),
        ("2.5", "The client instance", 127, 133),
        ("2.6", "Routes", 134, 142),
        ("2.7", "Heartbeats", 143, 145),
        ("2.8", "Namespaces", 146, 148),
        ("3.1", "What triggers a rebalance", 149, 155),
        ("3.2", "A rebalance", 156, 164),
        ("3.3", "Allocation strategies", 165, 174),
        ("3.4", "Changes of the process queue table", 175, 182),
        ("3.5", "After a change", 183, 185),
        ("3.6", "Queue locks, client side", 186, 188),
        ("3.7", "Where to start", 189, 198),
        ("4.1", "Pull requests", 199, 202),
        ("4.2", "Decisions before a pull", 203, 210),
        ("4.3", "A pull on the wire", 211, 219),
        ("4.4", "Answers to a pull", 220, 223),
        ("4.5", "After an answer, by status", 224, 231),
        ("4.6", "Hooks and properties", 232, 234),
        ("5", "Process queues", 235, 253),
        ("6.1", "Consume services", 254, 259),
        ("6.2", "Concurrent consumption", 260, 269),
        ("6.3", "Send-back", 270, 273),
        ("6.4", "Retry schedule", 274, 278),
        ("6.5", "Orderly consumption", 279, 298),
        ("7.1", "Offset stores", 299, 303),
        ("7.2", "The local offset store", 304, 312),
        ("7.3", "The remote offset store", 313, 322),
        ("9.1", "Life of a producer", 446, 448),
        ("9.2", "Messages and ids", 449, 456),
        ("9.3", "Sync send", 457, 464),
        ("9.4", "Fault latency", 465, 466),
        ("9.5", "Other forms of sending", 467, 475),
        ("9.6", "Batches", 476, 478),
        ("9.7", "Request and reply", 479, 482),
        ("9.8", "Transactions", 483, 487),
        ("9.9", "Kinds of errors", 488, 489),
        ("10.1", "The pull consumer", 490, 499),
        ("10.2", "The pull schedule service", 500, 503),
        ("10.3", "The lite-pull consumer", 504, 524),
        ("10.4", "Administration of progress", 525, 539),
        ("10.5", "Running info", 540, 540),
        ("10.6", "Message trace", 541, 547),
    )
]

_CITED = re.compile(r"C-(\d+)(?:\s*(?:to|-|\u2013|\.\.)\s*C-(\d+))?")


def cited_in(text: str) -> set[int]:
    """Return the numbers a text cites; ``C-12 to C-15`` means all four."""
    found: set[int] = set()
    for match in _CITED.finditer(text):
        first = int(match[1])
        found.update(range(first, int(match[2] or first) + 1))
    return found


def citations(file: Path) -> Iterator[tuple[str, int]]:
    """Yield (place, number) of one test file; a place is ``file::test`` or the file."""
    text = file.read_text(encoding="utf-8")
    if not cited_in(text):
        return
    lines = text.splitlines()
    name = file.relative_to(ROOT / "tests").as_posix()
    owner = [name] * (len(lines) + 2)
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if not (node.name.startswith("test_") or isinstance(node, ast.ClassDef)):
            continue
        start = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        while start > 1 and lines[start - 2].lstrip().startswith("#"):
            start -= 1
        for number in range(start, (node.end_lineno or node.lineno) + 1):
            owner[number] = f"{name}::{node.name}"
    blocks: dict[str, list[str]] = defaultdict(list)
    for number, line in enumerate(lines, 1):
        blocks[owner[number]].append(line)
    for place, block in blocks.items():
        for number in sorted(cited_in("\n".join(block))):
            yield place, number


@cache
def tests_by_behaviour() -> dict[int, list[str]]:
    """Return the places that cite each number, sorted."""
    places: dict[int, set[str]] = defaultdict(set)
    for file in sorted((ROOT / "tests").rglob("*.py")):
        for place, number in citations(file):
            places[number].add(place)
    return {number: sorted(found) for number, found in places.items()}


def reasons() -> dict[int, str]:
    """Return why a behaviour has no test, from the hand-written list."""
    found: dict[int, str] = {}
    if REASONS.exists():
        for line in REASONS.read_text(encoding="utf-8").splitlines():
            match = re.fullmatch(r"C-(\d+): (.+)", line.strip())
            if match:
                found[int(match[1])] = match[2]
    return found


def share(tests: dict[int, list[str]]) -> float:
    """Return the share of the behaviours in scope that tests cite."""
    ids = [number for section in SECTIONS for number in section.ids]
    return sum(number in tests for number in ids) / len(ids)


def missing(tests: dict[int, list[str]]) -> list[int]:
    """Return the numbers without a test and without a reason."""
    known = reasons()
    ids = (number for section in SECTIONS for number in section.ids)
    return [number for number in ids if number not in tests and number not in known]


def page() -> str:
    """Return the text the page must have."""
    tests, known = tests_by_behaviour(), reasons()
    total = sum(len(section.ids) for section in SECTIONS)
    count = round(share(tests) * total)
    parts = [HEAD, f"{count} of {total} behaviours are cited by tests ({count / total:.1%}).\n"]
    for section in SECTIONS:
        parts += [f"## {section.number} {section.title}", "", "| | tests |", "|---|---|"]
        for number in section.ids:
            shown = "<br>".join(f"`{place}`" for place in tests.get(number, []))
            label = f"[C-{number}](behaviours.md#c-{number})"
            parts.append(f"| {label} | {shown or 'no test: ' + known.get(number, '')} |")
        parts.append("")
    return "\n".join(parts)


def _main(arguments: list[str]) -> None:
    if "--missing" in arguments:
        tests = tests_by_behaviour()
        gaps = set(missing(tests))
        for section in SECTIONS:
            own = [f"C-{number}" for number in section.ids if number in gaps]
            if own:
                print(f"{section.number:5} {section.title}: {' '.join(own)}")
        print(f"cited: {share(tests):.1%}; neither cited nor explained: {len(gaps)}")
        return
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    _main(sys.argv[1:])
