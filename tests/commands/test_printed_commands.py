"""Commands that texts tell people to run: each can be run as it is printed."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

import rocketstream
from rocketstream.cli.app import app
from rocketstream.cli.commands import Commands
from rocketstream.errors import RocketMQError

SOURCE = Path(rocketstream.__file__).parent
ROOT = Path(__file__).parents[2]
PRINTED = re.compile(r"`(rocketstream [a-z][^`]*)`")
IN_A_SHELL = re.compile(r"^```(?:bash|sh|shell|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CALLED = re.compile(r"(?:^|\$ |&& |; |\| )(rocketstream [a-z].*)", re.MULTILINE)
AFTER = re.compile(r" (?:#|>|2>|&|&&|<)(?: |$)")
"""What a shell takes for itself."""
VALUE = re.compile(r"(?<= )[A-Z]{2,}\b")
FILES = ("does not exist", "cannot be read", "No such file")
"""In a refusal: of a file that a page takes for granted."""
FILLED = "3"
"""In the place of a value: a name, a number and a span of each."""


@cache
def printed() -> tuple[tuple[str, str], ...]:
    """Where a command stands in backticks in the sources, and the command."""
    return tuple(
        (f"{path.relative_to(SOURCE)}:{node.lineno}", command)
        for path in sorted(SOURCE.rglob("*.py"))
        for node, text in texts(ast.parse(path.read_text()))
        for command in PRINTED.findall(text)
    )


@cache
def in_pages() -> tuple[tuple[str, str], ...]:
    """Where a command stands in a page, in backticks or in a block for a shell, and the command.

    Words in capitals stand for a value.
    """
    found = []
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ):
        text = path.read_text("utf-8")
        for block in IN_A_SHELL.finditer(text):
            lines = block[1].replace("\\\n", " ")
            found += [(path, call[1]) for call in CALLED.finditer(lines)]
        found += [(path, command) for command in PRINTED.findall(text)]
    return tuple(
        (str(path.relative_to(ROOT)), VALUE.sub(FILLED, AFTER.split(command)[0]))
        for path, command in found
    )


def texts(tree: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """The literals of a module but its docstrings; a filled one as a whole."""
    apart: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            apart.update(map(id, node.values))
        elif isinstance(node, ast.Expr):
            apart.add(id(node.value))
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield (
                node,
                "".join(
                    str(p.value) if isinstance(p, ast.Constant) else FILLED for p in node.values
                ),
            )
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in apart
        ):
            yield node, node.value


def refusal(command: str) -> str | None:
    """What the command line would say to it; None for nothing."""
    words = shlex.split(command.replace("…", FILLED).partition(" | ")[0])[1:]
    found: click.Command = app
    parent = None
    try:
        while True:
            context = found.make_context("rocketstream", list(words), parent)
            if not isinstance(found, Commands) or not (left := context._protected_args):
                return None
            words = [*left, *context.args]
            name, below, words = found.resolve_command(context, words)
            assert below is not None, name
            found, parent = below, context
    except click.exceptions.Exit:
        return None
    except click.ClickException as error:
        return error.format_message()
    except RocketMQError as error:
        return str(error)


def test_commands_that_are_printed_are_found_at_all() -> None:
    assert len(printed()) > 60
    assert len(in_pages()) > 140


@pytest.mark.parametrize(
    "command",
    ["group lagg x", "group lag x --nope", "group reset G T --to-offset x", "topic status"],
)
def test_a_command_that_cannot_be_run_is_seen(command: str) -> None:
    assert refusal(f"rocketstream {command}")


def test_each_can_be_run_as_it_is_printed() -> None:
    """The names of a command alone stand for the command as such; pages name files of their own."""
    wrong = []
    for place, command in printed() + in_pages():
        said = refusal(command)
        if said is None or said.startswith(("Missing", "Usage")):
            continue
        if not any(words in said for words in FILES):
            wrong.append(f"{place}: `{command}`: {said}")
    assert not wrong, "\n".join(wrong)
