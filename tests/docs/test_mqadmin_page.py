"""docs/mqadmin.md has every command of mqadmin, and names only commands of ours that exist."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rocketstream.cli import app as command_line
from rocketstream.cli.commands import Commands
from tests.docs.mqadmin_commands import OF_4_9, OF_5_5
from tests.tidy.source import ROOT

PAGE = (ROOT / "docs" / "mqadmin.md").read_text(encoding="utf-8")

ROWS = re.findall(r"^\| (`[^|]+`) \| ([0-9. ]+) \| (.+) \|$", PAGE, re.MULTILINE)


def listed(version: str) -> list[str]:
    """The page's commands of a version."""
    return [
        name for names, of, _ in ROWS if version in of for name in re.findall(r"`(\w+)`", names)
    ]


@pytest.mark.parametrize(("version", "there"), [("4.9", OF_4_9), ("5.5", OF_5_5)])
def test_every_command_of_mqadmin_is_on_the_page_once(version: str, there: set[str]) -> None:
    found = listed(version)
    assert sorted(found) == sorted(set(found))
    assert set(found) ^ there == set()


def our_commands(command: Any, path: str = "") -> set[str]:
    """Every command of ours, by its words."""
    found = set()
    for name, below in (command.made() if isinstance(command, Commands) else {}).items():
        found |= {f"{path}{name}"} | our_commands(below, f"{path}{name} ")
    return found


def test_every_command_of_ours_the_page_names_exists_with_its_options() -> None:
    tree = command_line.app
    there = our_commands(tree)
    named = [span for *_, here in ROWS for span in re.findall(r"`([a-z][^`]*)`", here)]
    named = [span for span in named if span.split()[0] in command_line.COMMANDS]
    assert len(named) > 40
    for span in named:
        words = [word for word in span.split() if not word.startswith("-") and word.islower()]
        assert " ".join(words) in there, span
        command: Any = tree
        for word in words:
            command = command.get_command(None, word)
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in span.split() if word.startswith("-")} <= options, span


def test_what_nothing_stands_in_for_has_its_reason() -> None:
    for names, _, here in ROWS:
        spans = re.findall(r"`([a-z][^`]*)`", here)
        has_command = any(span.split()[0] in command_line.COMMANDS for span in spans)
        assert has_command or "*server*" in here or len(here) > 30, names
