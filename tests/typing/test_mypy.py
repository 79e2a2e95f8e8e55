"""mypy finds the mistakes of users, on the line where they are, and nothing in proper use."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.source import ROOT

FOLDER = Path(__file__).parent
MISTAKES, PROPER = FOLDER / "mistakes.py", FOLDER / "proper.py"
MARK = "  # E: "


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], list[str]]:
    """mypy's errors in both files, by file and line; one run of it for all tests.

    In a process of its own: mypy thaws the whole heap of the process in which it runs.
    """
    settings = ["--config-file", str(ROOT / "pyproject.toml"), "--hide-error-context"]
    cache = ["--cache-dir", str(tmp_path_factory.mktemp("mypy"))]
    mypy = [sys.executable, "-m", "mypy", *settings, *cache, "--no-pretty"]
    run = subprocess.run(
        [*mypy, str(MISTAKES), str(PROPER)], capture_output=True, text=True, check=False
    )
    assert not run.stderr
    said: dict[tuple[str, int], list[str]] = {}
    for line in run.stdout.splitlines():
        match = re.match(r"(.+?):(\d+): error: (.*)", line)
        if match:
            said.setdefault((Path(match[1]).name, int(match[2])), []).append(match[3])
    return said


def marked() -> list[tuple[int, str]]:
    """The lines with a mistake, and what is expected of each."""
    lines = enumerate(MISTAKES.read_text(encoding="utf-8").splitlines(), 1)
    return [(number, line.split(MARK)[1]) for number, line in lines if MARK in line]


def test_every_mistake_is_found_where_it_is(found: dict[tuple[str, int], list[str]]) -> None:
    missed = [
        f"line {number}: expected {text!r}, mypy says {found.get((MISTAKES.name, number))}"
        for number, text in marked()
        if not any(text in each for each in found.get((MISTAKES.name, number), []))
    ]
    assert not missed, "\n".join(missed)
    assert len(marked()) > 25


def test_nothing_else_is_found(found: dict[tuple[str, int], list[str]]) -> None:
    """Neither in proper use nor on another line: an error elsewhere would hide a mistake."""
    expected = {(MISTAKES.name, number) for number, _ in marked()}
    assert {place: said for place, said in found.items() if place not in expected} == {}
