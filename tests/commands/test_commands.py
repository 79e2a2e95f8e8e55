"""The tree of commands: what is imported when, what is refused in which words, what help shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from rocketstream.cli import app as command_line
from rocketstream.cli.commands import Commands, pairs, with_seconds
from tests.plugins.commands import Quick, environment

NOWHERE = Quick("127.0.0.1:1")


def everything(group: Commands) -> list[tuple[Commands, str, click.Command]]:
    found = [(group, name, command) for name, command in group.made().items()]
    for _, _, command in list(found):
        if isinstance(command, Commands):
            found += everything(command)
    return found


def test_a_command_that_runs_imports_no_other() -> None:
    """Importing all of them takes longer than most commands."""
    modules = {place.partition(":")[0] for place in command_line.COMMANDS.values()} - {"app"}
    code = (
        "import sys; from rocketstream.cli.main import main; main(['dashboard', '--help']); "
        f"print([m for m in {sorted(modules)!r} if f'rocketstream.cli.{{m}}' in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=60, check=True, env=environment(),
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "['dashboard']"


def test_a_command_is_called_as_it_is_listed() -> None:
    for _, name, command in everything(command_line.app):
        assert command.name == name


def test_names_like_an_unknown_one_are_said() -> None:
    line = NOWHERE("group", "lagg").failed(2)
    assert "No such command 'lagg'. Did you mean 'lag'?" in line
    assert "Did you mean 'group'?" in NOWHERE("grup").failed(2)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("group lag --max x", "'x' is given; accepted is a whole number of at least 0"),
        ("group lag --max -1", "'-1' is given; accepted is a whole number of at least 0"),
        ("message search t --max 5000", "accepted is a whole number from 1 to 1000"),
        ("group list --watch=0.1", "'0.1' is given; accepted is a number of at least 0.5"),
        ("group lag --max-age soon", "'soon' is not a span of time; give one like 500ms"),
        ("dlq list g --since xx", "'xx' is given; it takes 2024-05-01T12:00:00Z"),
        ("topic create t --perm x", "'x' is not one of 'rw', 'r', 'w'"),
        ("topic update t --attribute x", "--attribute is 'x'; accepted is NAME=VALUE"),
        ("topic status", "Missing argument 'TOPIC'"),
        ("topic list --nope", "No such option '--nope'"),
    ],
)
def test_a_wrong_word_is_named_with_what_is_accepted(words: str, told: str) -> None:
    assert told in NOWHERE(*words.split()).failed(2)


def test_help_tells_arguments_bounds_defaults_and_variables() -> None:
    text = " ".join(NOWHERE("message", "query", "--help").worked().out.split())
    assert "KEY One key of the messages." in text
    assert "--max N Show this many at most. [default: 32; 1<=x<=1000]" in text
    assert "[env var: NAMESRV_ADDR; default: 127.0.0.1:9876]" in text
    assert "[GROUP] The group; all groups when left out." in " ".join(
        NOWHERE("group", "lag", "--help").worked().out.split()
    )


@pytest.mark.parametrize("before", [True, False])
def test_a_key_file_that_cannot_be_read_ends_the_command(before: bool, tmp_path: Path) -> None:
    option, words = ["--key-file", str(tmp_path / "no")], ["topic", "list"]
    line = NOWHERE(*([*option, *words] if before else [*words, *option])).failed()
    assert f"the key file '{tmp_path / 'no'}' cannot be read: No such file" in line


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["--watch"], ["--watch=2"]),
        (["--watch", "5"], ["--watch", "5"]),
        (["--watch", "0.5", "g"], ["--watch", "0.5", "g"]),
        (["--watch", "billing"], ["--watch=2", "billing"]),
        (["--watch=7"], ["--watch=7"]),
        (["t", "--", "--watch"], ["t", "--", "--watch"]),
    ],
)
def test_the_seconds_of_watch_may_be_left_out(given: list[str], expected: list[str]) -> None:
    assert with_seconds(given) == expected


def test_every_command_that_watches_reads_its_seconds() -> None:
    for _, name, command in everything(command_line.app):
        watches: Any = [p for p in command.params if "--watch" in p.opts]
        assert bool(watches) is (type(command).__name__ == "Watched"), name


def test_pairs_keep_what_stands_behind_the_first_equals() -> None:
    assert pairs("--set", ["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
