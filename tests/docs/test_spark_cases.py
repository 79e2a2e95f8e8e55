"""The page of Spark's own cases: all of them are there, with tests that exist, counted right."""

from __future__ import annotations

import re
from collections import Counter

from tests.docs.pages import ROOT, functions_of

TEXT = (ROOT / "docs/spark-cases.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)))
TWICE = "(failOnDataLoss: true, false)"
CASES = {
    "KafkaMicroBatchSourceSuite": 79,
    "KafkaRelationSuite": 25,
    "KafkaSinkSuite": 16,
    "KafkaDontFailOnDataLossSuite": 6,
}
"""How many tests each file of Spark's has, those for two values of an option counted twice."""


def cells(text: str) -> list[list[str]]:
    """The rows of all tables, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if row[0] not in ("suite", "case")]


def kind(ours: str) -> str:
    """What the last cell of a row says."""
    for answer in ("not applicable", "missing"):
        if ours.startswith(f"{answer}: "):
            return answer
    assert ours.startswith("`tests/"), ours
    return "covered"


def counted(section: str) -> list[int]:
    """Cases, covered, not applicable, missing."""
    found: Counter[str] = Counter()
    for name, _, ours in cells(section):
        found[kind(ours)] += 2 if name.endswith(TWICE) else 1
    return [found.total(), *(found[each] for each in ("covered", "not applicable", "missing"))]


INTRODUCTION, *SECTIONS = re.split(r"^## ", TEXT, flags=re.MULTILINE)
COUNTED = {section.split("\n", 1)[0]: counted(section) for section in SECTIONS}


def test_every_named_test_exists() -> None:
    functions = {file: functions_of(ROOT / file) for file, _ in NAMED}
    assert [(file, name) for file, name in NAMED if name and name not in functions[file]] == []


def test_the_counts_at_the_top_are_those_of_the_tables() -> None:
    said = {row[0]: [int(number) for number in row[1:]] for row in cells(INTRODUCTION)}
    together = [sum(column) for column in zip(*COUNTED.values(), strict=True)]
    assert said == COUNTED | {"all": together}


def test_every_case_of_sparks_is_there_once() -> None:
    assert {suite: counts[0] for suite, counts in COUNTED.items()} == CASES
    for part in re.split(r"^### ", TEXT, flags=re.MULTILINE)[1:]:
        names = [name for name, _, _ in cells(part.split("\n## ")[0])]
        assert len(set(names)) == len(names), f"twice in {part.splitlines()[0]}"
