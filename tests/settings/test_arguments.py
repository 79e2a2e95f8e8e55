"""What arguments are declared with is what calls accept."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pytest

from rocketstream.checks import checked
from rocketstream.errors import ConfigurationError
from rocketstream.model import Message

if TYPE_CHECKING:
    from rocketstream.client.config import ClientConfig  # known here by its name only


class Colour(Enum):
    RED = 1
    BLUE = 2


class CanClose(Protocol):
    def close(self) -> None: ...


class URLTable:
    """Of a name that is spelled."""


@checked
def takes(  # type: ignore[no-untyped-def]
    text: str = "",
    count: int = 0,
    ratio: float = 0.0,
    flag: bool = False,
    raw: bytes = b"",
    names: Collection[str] = (),
    pair: Sequence[int] | None = None,
    once: Iterable[str] = (),
    table: Mapping[str, int | None] | None = None,
    anything: Mapping[str, Any] | None = None,
    path: str | os.PathLike[str] = "",
    call: Callable[[int], str] | None = None,
    colour: Colour = Colour.RED,
    word: Literal["a", "b"] = "a",
    message: Message | None = None,
    config: ClientConfig | None = None,
    urls: URLTable | None = None,
    closes: CanClose | None = None,
    secret_key: str | None = None,
    numbers: tuple[int, ...] = (),
    unsaid=5,
    *,
    own: dict[str, str] | None = None,
) -> str:
    return text


ACCEPTED: list[dict[str, Any]] = [
    {"text": "x", "count": -5, "ratio": 5, "flag": True, "raw": b"x"},
    {"names": {"a", "b"}, "pair": (1, 2), "once": iter("ab"), "table": {"a": 1, "b": None}},
    {"ratio": 0.5, "anything": {"a": object()}, "path": Path("x"), "call": len},
    {"colour": Colour.BLUE, "word": "b", "message": Message("T", b""), "unsaid": object()},
    {"closes": object(), "secret_key": "k", "numbers": (1, 2), "own": {"a": "b"}, "pair": [1]},
]
REFUSED: list[tuple[str, Any, str]] = [
    ("text", 5, "text must be a str, not 5"),
    ("text", None, "text must be a str, not None"),
    ("count", "5", "count must be a whole number, not '5'"),
    ("count", True, "count must be a whole number, not True"),
    ("count", 5.0, "count must be a whole number, not 5.0"),
    ("ratio", float("nan"), "ratio must be a number, not nan"),
    ("flag", 1, "flag must be True or False, not 1"),
    ("raw", "x", "raw must be bytes, not 'x'"),
    ("names", "ab", "names must be a list, tuple or set of str, not 'ab': give ['ab']"),
    ("names", ["a", 5], "names must be a list, tuple or set of str, not ['a', 5]"),
    ("pair", 5, "pair must be a list or tuple of whole numbers, or None, not 5"),
    ("pair", "5", "pair must be a list or tuple of whole numbers, or None, not '5'"),
    ("once", "ab", "once must be an iterable of str, not 'ab': give ['ab']"),
    ("once", [5], "once must be an iterable of str, not [5]"),
    ("table", [1], "table must be a mapping of str to whole numbers or None, or None, not [1]"),
    ("table", {"a": "b"}, "table must be a mapping of str to whole numbers or None, or None"),
    ("table", {5: 5}, "table must be a mapping of str to whole numbers or None, or None"),
    ("anything", 5, "anything must be a mapping of str or None, not 5"),
    ("path", 5, "path must be a str or a path, not 5"),
    ("call", 5, "call must be a function or None, not 5"),
    ("colour", "RED", "colour must be a Colour (RED, BLUE), not 'RED'"),
    ("word", "c", "word must be 'a' or 'b', not 'c'"),
    ("message", "x", "message must be a Message or None, not 'x'"),
    ("config", {}, "config must be a ClientConfig or None, not {}"),
    ("urls", 5, "urls must be a URLTable or None, not 5"),
    ("secret_key", b"hush", "secret_key must be a str or None, not bytes"),
    ("numbers", [1], "numbers must be a tuple of whole numbers, not [1]"),
    ("numbers", ("x",), "numbers must be a tuple of whole numbers, not ('x',)"),
    ("own", {"a": 5}, "own must be a dict of str to str or None, not {'a': 5}"),
]


@pytest.mark.parametrize("given", ACCEPTED)
def test_what_is_declared_is_accepted(given: dict[str, Any]) -> None:
    assert takes(**given) == given.get("text", "")


@pytest.mark.parametrize(("name", "value", "said"), REFUSED)
def test_what_is_not_is_named(name: str, value: Any, said: str) -> None:
    """What was given, and what is accepted."""
    with pytest.raises(ConfigurationError) as raised:
        takes(**{name: value})
    assert str(raised.value).startswith(said)
    assert "hush" not in str(raised.value)
    assert raised.value.parameters == {"argument": name}


@checked
def takes_more(
    wait_ms: float = 0,
    groups: Collection[str] | None = None,
    call: Callable = len,  # type: ignore[type-arg]
    table: dict = {},  # type: ignore[type-arg]  # noqa: B006
    items: list = [],  # type: ignore[type-arg]  # noqa: B006
    names: Mapping = {},  # type: ignore[type-arg]
) -> None: ...


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("wait_ms", "5", "wait_ms must be a number of milliseconds, not '5'"),
        (
            "groups",
            "billing",
            "groups must be a list, tuple or set of str, or None, not 'billing': give ['billing']",
        ),
        ("groups", 5, "groups must be a list, tuple or set of str, or None, not 5"),
        ("call", 5, "call must be a function, not 5"),
        ("table", [], "table must be a dict, not []"),
        ("items", (), "items must be a list, not ()"),
        ("names", "x", "names must be a mapping, not 'x'"),
    ],
)
def test_times_and_kinds_without_more_are_named_too(name: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        takes_more(**{name: value})
    assert str(raised.value) == said
    takes_more(5.5, ["a"], print, {"a": 1}, [1], {2: 3})


def test_what_can_be_gone_through_once_is_left_whole() -> None:
    """The function gets all of it."""

    @checked
    def first(words: Iterable[str]) -> list[str]:
        return list(words)

    assert first(iter(["a", "b"])) == ["a", "b"]


def test_a_long_value_is_shown_in_part() -> None:
    with pytest.raises(ConfigurationError) as raised:
        takes(count="x" * 10_000)  # type: ignore[arg-type]
    assert len(str(raised.value)) < 300


def test_the_configuration_by_its_name() -> None:
    """Its module is not imported for it, and a class made from it is one too."""
    from rocketstream.client.config import ClientConfig

    class Own(ClientConfig):
        """A user's."""

    takes(config=ClientConfig())
    takes(config=Own())


def test_a_missing_or_unknown_argument_is_python_s_own_error() -> None:
    @checked
    def one(text: str) -> str:
        return text

    call: Any = one
    with pytest.raises(TypeError, match="unexpected keyword argument 'nothing'"):
        call("a", nothing=1)
    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
        call("a", "b")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'text'"):
        call()


def test_a_coroutine_is_checked_when_it_is_awaited() -> None:
    @checked
    async def later(count: int) -> int:
        return count

    waiting = later("x")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="count must be a whole number, not 'x'"):
        asyncio.run(waiting)
    assert asyncio.run(later(5)) == 5
