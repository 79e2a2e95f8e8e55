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

SOURCE = Path(rocketstream.__file__).parent
PRINTED = re.compile(r"`(rocketstream [a-z][^`]*)`")
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


def test_commands_that_are_printed_are_found_at_all() -> None:
    assert len(printed()) > 60


@pytest.mark.parametrize(
    "command",
    ["group lagg x", "group lag x --nope", "group reset G T --to-offset x", "topic status"],
)
def test_a_command_that_cannot_be_run_is_seen(command: str) -> None:
    assert refusal(f"rocketstream {command}")


def test_each_can_be_run_as_it_is_printed() -> None:
    """The names of a command alone stand for the command as such."""
    wrong = []
    for place, command in printed():
        said = refusal(command)
        if said is not None and not said.startswith(("Missing", "Usage")):
            wrong.append(f"{place}: `{command}`: {said}")
    assert not wrong, "\n".join(wrong)
