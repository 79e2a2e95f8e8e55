"""Typed functions as commands: what arrives, what is refused, what help shows."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import click
import pytest

from rocketstream.cli.declare import Argument, BadParameter, Commands, Context, Option


class Flush(enum.StrEnum):
    ASYNC = "async"
    SYNC = "sync"


def span(text: str) -> int:
    if not text.endswith("s"):
        raise BadParameter(f"{text!r} is no span")
    return int(text[:-1])


def ran(function: Any, *words: str) -> Any:
    """What the function returns for these words."""
    commands = Commands("program", "A program.")
    commands.add(function, "run")
    with commands.make_context("program", ["run", *words]) as context:
        return commands.invoke(context)


def many(
    topics: Annotated[list[str], Argument(metavar="TOPIC", help="Topics.")],
    tags: Annotated[list[str] | None, Option(help="Tags.")] = None,
    count: Annotated[int, Option("--count", min=1, max=9, help="How many.")] = 3,
    auto: Annotated[bool, Option(help="By itself.")] = True,
    order: Annotated[bool | None, Option("--order/--no-order", help="In order.")] = None,
    file: Annotated[Path | None, Option("--file", dir_okay=False, help="A file.")] = None,
    flush: Annotated[Flush, Option(help="When.")] = Flush.ASYNC,
    age: Annotated[int | None, Option("--age", parser=span, help="How old.")] = None,
) -> tuple[object, ...]:
    """Do many things."""
    return topics, tags, count, auto, order, file, flush, age


def test_defaults_arrive_as_the_function_has_them() -> None:
    assert ran(many, "a") == (["a"], None, 3, True, None, None, Flush.ASYNC, None)


def test_values_arrive_as_their_types() -> None:
    words = "a b --tags x --tags y --count 9 --no-auto --no-order --file f --flush sync --age 5s"
    found = ran(many, *words.split())
    assert found == (["a", "b"], ["x", "y"], 9, False, False, Path("f"), Flush.SYNC, 5)
    assert found[6] is Flush.SYNC


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", "TOPIC"),
        ("a --count 10", "'--count'"),
        ("a --count x", "'--count'"),
        ("a --flush never", "'--flush'"),
        ("a --age 5", "'5' is no span"),
        ("a --nope", "--nope"),
    ],
)
def test_what_is_wrong_is_named(words: str, told: str) -> None:
    with pytest.raises(click.UsageError) as refused:
        ran(many, *words.split())
    assert told in refused.value.format_message()


def test_a_parameter_that_is_neither_is_the_programmer_s_mistake() -> None:
    def forgotten(name: str) -> None:
        """Do."""

    with pytest.raises(TypeError, match="name is neither"):
        ran(forgotten)


def test_help_tells_arguments_bounds_defaults_and_whole_sentences() -> None:
    def one(
        group: Annotated[str | None, Argument(metavar="GROUP", help="All when left out.")] = None,
        n: Annotated[int, Option("--max", min=1, envvar="MOST", help="The most.")] = 7,
    ) -> None:
        """Show how far behind a group is, and who of its members has which of the many queues.

        More of it.
        """

    commands = Commands("program", "A program.")
    commands.add(one, epilog="Example: `program one`")
    with commands.make_context("program", [], resilient_parsing=True) as context:
        assert "of the\n       many queues." in commands.get_help(context)
        command = commands.get_command(context, "one")
        assert command is not None
        text = command.get_help(context)
    assert "[GROUP]  All when left out." in text
    assert "--max N  The most.  [env var: MOST; default: 7; x>=1]" in text
    assert "More of it." in text
    assert "Example: `program one`" in text


def test_a_command_is_made_when_it_is_asked_for_and_in_its_place() -> None:
    made: list[str | None] = []

    def first() -> None:
        """Do."""

    commands = Commands("program", "A program.")
    commands.view = lambda command: made.append(command.name)
    commands.add_later({"lag": "group_lag"})
    commands.add(first)
    assert commands.list_commands(None) == ["lag", "first"]
    assert made == []
    commands.get_command(None, "lag")
    assert made == ["lag"]
    assert commands.list_commands(None) == ["lag", "first"]
    assert commands.get_command(None, "none") is None


def test_a_callback_runs_before_the_command_and_knows_which() -> None:
    told: list[object] = []

    def before(context: Context, name: Annotated[str, Option("--name", help="Who.")] = "-") -> None:
        """Look."""
        told.append((context.invoked_subcommand, name))

    def below() -> None:
        """Do."""
        told.append("below")

    commands = Commands("program", "A program.", callback=before, invoke_without_command=True)
    commands.add(below)
    for words in (["--name", "n"], ["below"]):
        with commands.make_context("program", words) as context:
            commands.invoke(context)
    assert told == [(None, "n"), ("below", "-"), "below"]
