"""Checks of arguments and settings: a call accepts the values its annotations describe.

Pure: types and values in, an error out. An error names the argument, the accepted values and the
given one. Annotations are read at the first call of a function, so that importing it costs nothing.
"""

from __future__ import annotations

import builtins
import collections.abc
import enum
import functools
import inspect
import math
import reprlib
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from rocketstream.errors import ConfigurationError

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

_SECRETS: Final = {"access_key", "secret_key", "security_token"}
"""Arguments whose values no error shows."""
_SHORTENED: Final = reprlib.Repr()
_SHORTENED.maxstring = _SHORTENED.maxother = 200
_SEVERAL: Final[dict[Any, str]] = {
    collections.abc.Iterable: "an iterable",
    collections.abc.Collection: "a list, tuple or set",
    collections.abc.Sequence: "a list or tuple",
    list: "a list",
    tuple: "a tuple",
    set: "a set",
    frozenset: "a frozenset",
}
_WORDS: Final[dict[Any, str]] = {
    types.NoneType: "None",
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a str",
    bytes: "bytes",
    Any: "anything",
    object: "anything",
    collections.abc.Callable: "a function",
    collections.abc.Mapping: "a mapping",
    dict: "a dict",
}


# --- values and types -----------------------------------------------------------------------------


def is_whole(value: object) -> bool:
    """Whether it is a whole number; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether it is a number that can be counted with."""
    return is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def fits(value: object, hint: Any) -> bool:
    """Whether a value is of a type.

    Args:
        value: what was given.
        hint: an evaluated annotation. A hint that cannot be checked (a Protocol, a type variable)
            accepts everything.
    """
    if type(value) is hint and hint is not float:
        return True
    if hint is int:
        return is_whole(value)
    if hint is float:
        return is_number(value)
    kind, inner = _parts(hint)
    if kind in (types.UnionType, typing.Union):
        return any(fits(value, each) for each in inner)
    if kind is typing.Literal:
        return value in inner
    if kind is None:
        return value is None
    if kind is Any or not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    if not isinstance(value, kind):
        return False
    if kind in _SEVERAL:
        if isinstance(value, str | bytes):
            return False
        # An iterator is not gone through here: the call could not do it again.
        again = isinstance(value, collections.abc.Collection)
        return not again or all(
            fits(each, _element(inner)) for each in typing.cast("Collection[Any]", value)
        )
    if inner and isinstance(value, Mapping):
        return all(fits(key, inner[0]) and fits(each, inner[1]) for key, each in value.items())
    return True


@functools.cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the parts of a type: its class, or the kind of union, and the types inside."""
    return typing.get_origin(hint) or hint, typing.get_args(hint)


def _element(inner: tuple[Any, ...]) -> Any:
    """Return the one type that the elements of a collection have."""
    kinds = {*inner} - {...}
    return kinds.pop() if len(kinds) == 1 else Any


@dataclass(frozen=True, slots=True)
class Bounds:
    """Numbers that are accepted.

    Attributes:
        low: smallest value accepted.
        high: largest value accepted.
        above: what a value must be greater than.
        also: the one number accepted outside of the bounds, which switches something off.
    """

    low: int | None = None
    high: int | None = None
    above: int | None = None
    also: int | None = None

    def has(self, value: Any) -> bool:
        """Whether a value is accepted; None is, where there are no bounds."""
        return (self.also is not None and value == self.also) or (
            (self.low is None or value >= self.low)
            and (self.high is None or value <= self.high)
            and (self.above is None or value > self.above)
        )

    def __str__(self) -> str:
        """Return them in words; empty where there are none."""
        text = ""
        if self.above is not None:
            text = f"greater than {self.above}"
        elif self.low is not None:
            text = f"from {self.low} on" if self.high is None else f"from {self.low} to {self.high}"
        elif self.high is not None:
            text = f"up to {self.high}"
        return f"{text}, or {self.also}" if text and self.also is not None else text


_NO_BOUNDS: Final = Bounds()


# --- words ----------------------------------------------------------------------------------------


def accepted(hint: Any, bounds: Bounds = _NO_BOUNDS) -> str:
    """Return the accepted values in words, as an error says them behind "must be".

    Args:
        hint: an evaluated annotation.
        bounds: of its numbers.
    """
    kind, inner = _parts(hint)
    if kind in (types.UnionType, typing.Union):
        *first, last = (accepted(each, bounds) for each in inner)
        comma = "," if len(first) > 1 or " or " in first[0] else ""
        return f"{', '.join(first)}{comma} or {last}"
    if kind is typing.Literal:
        return " or ".join(map(repr, inner))
    if kind in (int, float):
        return f"{_WORDS[kind]} {bounds}".rstrip()
    words = _SEVERAL.get(kind) or _WORDS.get(kind) or _instance(kind)
    if kind in _SEVERAL and _element(inner) not in (Any, object):
        words += f" of {_plural(_element(inner))}"
    elif kind in (collections.abc.Mapping, dict) and inner:
        words += f" of {_plural(inner[0])}"
        words += "" if inner[1] in (Any, object) else f" to {_plural(inner[1])}"
    return words


def _plural(hint: Any) -> str:
    words = accepted(hint).removeprefix("a ").removeprefix("an ")
    return words.replace("number", "numbers", 1)


def _instance(kind: Any) -> str:
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return "anything"
    name = kind.__name__
    if name == "PathLike":
        return "a path"
    spelled = name[:2].isupper()  # as in SSLContext, said letter by letter
    article = "an" if name[0] in ("AEFHILMNORSX" if spelled else "AEIO") else "a"
    members = f" ({', '.join(each.name for each in kind)})" if issubclass(kind, enum.Enum) else ""
    return f"{article} {name}{members}"


# --- checks ---------------------------------------------------------------------------------------


def check_range(
    name: str, value: Any, low: int | None = None, high: int | None = None, *, hint: Any = int
) -> None:
    """Check that an argument is a whole number, and neither too small nor too large.

    Args:
        name: the argument.
        value: what was given.
        low: smallest number accepted.
        high: largest number accepted.
        hint: ``float`` where it need not be whole.

    Raises:
        ConfigurationError: it is not such a number.
    """
    bounds = Bounds(low, high)
    if not fits(value, hint) or not bounds.has(value):
        raise refused(name, value, accepted(hint, bounds))


def refused(name: str, value: object, words: str) -> ConfigurationError:
    """Return the error for an argument that cannot be used.

    Args:
        name: the argument.
        value: what was given.
        words: what is accepted.
    """
    shown = type(value).__name__ if name in _SECRETS else _SHORTENED.repr(value)
    if name.endswith("_ms"):
        words = words.replace("number", "number of milliseconds")
    return ConfigurationError(f"{name} must be {words}, not {shown}", argument=name)


def check_call(function: Callable[..., Any], args: Any, kwargs: Mapping[str, Any]) -> None:
    """Check the arguments of one call against the function's annotations.

    Args:
        function: the function; an argument that is missing or unknown is its own to refuse.
        args: those given by their place, ``self`` among them.
        kwargs: those given by name.

    Raises:
        ConfigurationError: one is of another type; the text names it, the accepted values and the
            given one.
    """
    hints, places = arguments_of(function)
    # Not by Signature.bind, which takes ten times as long.
    for name, value in (*zip(places, args, strict=False), *kwargs.items()):
        hint = hints.get(name, Any)
        if not fits(value, hint):
            error = refused(name, value, accepted(hint))
            if isinstance(value, str) and fits([value], hint):
                error = type(error)(f"{error.message}: give [{value!r}]", argument=name)
            raise error


@functools.cache
def arguments_of(function: Callable[..., Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return the types of a function's arguments by name, and the names of those with a place."""
    code = inspect.unwrap(function).__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    hints = hints_of(function)
    return {each: hints[each] for each in names if each in hints}, names[: code.co_argcount]


def checked(function: F) -> F:
    """Check the arguments of every call against their annotations before anything else happens.

    An ``async def`` is checked when it is awaited, as all its errors are raised then. The function
    itself checks facts that no type can say (bounds, names of topics).

    Returns:
        The function; a call raises ConfigurationError where an argument is of another type, and
        Python's own TypeError where one is missing or unknown.
    """
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_later(*args: Any, **kwargs: Any) -> Any:
            check_call(function, args, kwargs)
            return await function(*args, **kwargs)

        call_later.unchecked = function  # type: ignore[attr-defined]
        return typing.cast(F, call_later)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        check_call(function, args, kwargs)
        return function(*args, **kwargs)

    call.unchecked = function  # type: ignore[attr-defined]
    return typing.cast(F, call)


def unchecked(function: F) -> F:
    """Return the function that ``checked`` wraps; any other function itself."""
    return typing.cast(F, getattr(function, "unchecked", function))


def checks_calls(*besides: str) -> Callable[[C], C]:
    """Return a decorator that has a class's own public methods ``checked``.

    Args:
        *besides: methods that are called for each message, and check by hand what they must.
    """

    def decorate(cls: C) -> C:
        for name, method in list(vars(cls).items()):
            if name.startswith("_") or name in besides or not inspect.isfunction(method):
                continue
            # Not its signature: that would be made at every import.
            code = inspect.unwrap(method).__code__
            if code.co_argcount + code.co_kwonlyargcount > 1:
                setattr(cls, name, checked(method))
        return cls

    return decorate


# --- annotations ----------------------------------------------------------------------------------


@functools.cache
def hints_of(declared: Callable[..., Any] | type) -> Mapping[str, Any]:
    """Return the types that a function's arguments, or a class's attributes, are declared with.

    A class that is imported for type checkers only is known by its name.
    """
    hints: dict[str, Any] = {}
    own = (
        (inspect.unwrap(declared),) if not isinstance(declared, type) else inspect.getmro(declared)
    )
    for each in reversed(own):
        names = _Names(vars(typing) | vars(collections.abc) | vars(builtins))
        # A function that travels by value has no module where it arrives, but its names.
        names.update(
            each.__globals__ if inspect.isfunction(each) else vars(inspect.getmodule(each))
        )
        hints |= inspect.get_annotations(each, eval_str=True, locals=names)
    return hints


class _Names(dict[str, Any]):
    """Names in annotations, and what they mean."""

    def __missing__(self, name: str) -> Any:
        return _KnownByName(name, (), {})


class _KnownByName(type):
    """A class that is not imported; its instances are recognised by the name of their class."""

    def __instancecheck__(cls, instance: object) -> bool:
        return any(each.__name__ == cls.__name__ for each in type(instance).__mro__)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return _KnownByName(name, (), {})

    def __getitem__(cls, _inner: object) -> Any:
        return cls
