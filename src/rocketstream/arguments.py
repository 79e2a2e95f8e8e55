"""Arguments of calls, checked against the kinds they are declared with.

Law: pure. The annotations of a function are the table; they are read at its first call, so that
importing it costs nothing. A class that is imported for type checkers only is known by its name.
"""

from __future__ import annotations

import ast
import collections.abc
import enum
import functools
import inspect
import reprlib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from rocketstream.errors import ConfigurationError, InternalError
from rocketstream.late import dataclass
from rocketstream.settings import is_number, is_whole

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)

_SECRETS: Final = {"access_key", "secret_key", "security_token"}
"""Arguments whose values no error shows."""
_SHOWN_CHARS_MAX: Final = 200
_SHORTENED: Final = reprlib.Repr()
_SHORTENED.maxstring = _SHORTENED.maxother = _SHOWN_CHARS_MAX


def checked(function: F) -> F:
    """Check the arguments of every call against their annotations before anything else happens.

    An ``async def`` is checked when it is awaited, as all its errors are raised then. What no kind
    can say (bounds, names of topics) is for the function itself.

    Returns:
        The function; a call raises ConfigurationError where an argument is of another kind, and
        Python's own TypeError where one is missing or unknown.
    """
    declared = Declared(function)
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_later(*args: Any, **kwargs: Any) -> Any:
            declared.check(args, kwargs)
            return await function(*args, **kwargs)

        return typing.cast(F, call_later)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        declared.check(args, kwargs)
        return function(*args, **kwargs)

    return typing.cast(F, call)


def checks_calls(*besides: str) -> Callable[[C], C]:
    """Return a decorator that has a class's own public methods ``checked``.

    Args:
        *besides: methods that are called for each message, and check by hand what they must.
    """

    def decorate(cls: C) -> C:
        for name, method in list(vars(cls).items()):
            if name.startswith("_") or name in besides or not inspect.isfunction(method):
                continue
            code = method.__code__  # not its signature: that would be made at every import
            if code.co_argcount + code.co_kwonlyargcount > 1:
                setattr(cls, name, checked(method))
        return cls

    return decorate


class Declared:
    """What a function is declared to take.

    Args:
        function: the function; its first argument is not looked at when it is ``self``.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @functools.cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self._function)

    @functools.cached_property
    def kinds(self) -> dict[str, Kind]:
        """The kind of each argument that has an annotation."""
        names = _Names(inspect.unwrap(self._function))
        return {
            each.name: kind_of(names.meaning(each.annotation))
            for each in self._signature.parameters.values()
            if isinstance(each.annotation, str) and each.kind in _SINGLE
        }

    @functools.cached_property
    def _in_order(self) -> list[tuple[str, Kind]]:
        """Names and kinds of the arguments that can be given by their place."""
        by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return [
            (each.name, self.kinds.get(each.name, _ANYTHING))
            for each in self._signature.parameters.values()
            if each.kind in by_place
        ]

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Check the arguments of one call; one that is missing or unknown is the call's to refuse.

        Raises:
            ConfigurationError: one is of another kind; the text names it, what is accepted and
                what was given.
        """
        # Not by Signature.bind, which takes ten times as long.
        for (name, kind), value in zip(self._in_order, args, strict=False):
            if not kind.fits(value):
                raise refused(name, kind, value)
        for name, value in kwargs.items():
            found = self.kinds.get(name)
            if found is not None and not found.fits(value):
                raise refused(name, found, value)


_SINGLE: Final = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)


def refused(name: str, kind: Kind, value: object) -> ConfigurationError:
    """Return the error for an argument of another kind.

    Args:
        name: the argument.
        kind: what it is declared with.
        value: what was given.
    """
    shown = type(value).__name__ if name in _SECRETS else _SHORTENED.repr(value)
    unit = " of milliseconds" if name.endswith("_ms") else ""
    text = f"{name} must be {kind.words.replace('number', f'number{unit}')}, not {shown}"
    if isinstance(value, str) and kind.several and kind.fits([value]):
        text += f": give [{shown}]"
    return ConfigurationError(text, argument=name)


# --- kinds ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """Values that an argument may have.

    Attributes:
        words: what they are, as an error says it.
        fits: whether a value is one of them.
        several: whether they are collections.
    """

    words: str
    fits: Callable[[object], bool]
    several: bool = False


_ANYTHING: Final = Kind("anything", lambda value: True)
_PLAIN: Final[dict[object, Kind]] = {
    None: Kind("None", lambda value: value is None),
    types.NoneType: Kind("None", lambda value: value is None),
    bool: Kind("True or False", lambda value: isinstance(value, bool)),
    int: Kind("a whole number", is_whole),
    float: Kind("a number", is_number),
    str: Kind("a str", lambda value: isinstance(value, str)),
    bytes: Kind("bytes", lambda value: isinstance(value, bytes)),
    Any: _ANYTHING,
    object: _ANYTHING,
}
_SEVERAL: Final[dict[type, str]] = {
    collections.abc.Iterable: "an iterable",
    collections.abc.Collection: "a list, tuple or set",
    collections.abc.Sequence: "a list or tuple",
    list: "a list",
    tuple: "a tuple",
    set: "a set",
    frozenset: "a frozenset",
}
_MAPPINGS: Final[dict[type, str]] = {collections.abc.Mapping: "a mapping", dict: "a dict"}


def kind_of(annotation: Any) -> Kind:
    """Return the kind that an evaluated annotation describes.

    Args:
        annotation: a class, None, or what ``|`` and ``[...]`` made of some. What it is not known
            how to check (a Protocol, a type variable) accepts everything.
    """
    plain = _PLAIN.get(annotation) if isinstance(annotation, collections.abc.Hashable) else None
    if plain is not None:
        return plain
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union):
        return _either([kind_of(each) for each in inner])
    if origin in _MAPPINGS or annotation in _MAPPINGS:
        return _mapping(origin or annotation, inner)
    if origin in _SEVERAL or annotation in _SEVERAL:
        return _several(origin or annotation, inner)
    if origin is collections.abc.Callable or annotation is collections.abc.Callable:
        return Kind("a function", callable)
    if origin is typing.Literal:
        return Kind(" or ".join(repr(each) for each in inner), lambda value: value in inner)
    base = origin or annotation
    return _instance(base) if isinstance(base, type) else _ANYTHING


def _either(kinds: list[Kind]) -> Kind:
    *first, last = (each.words for each in kinds)
    comma = "," if len(first) > 1 or " or " in first[0] else ""
    text = f"{', '.join(first)}{comma} or {last}"
    return Kind(
        text,
        lambda value: any(each.fits(value) for each in kinds),
        any(each.several for each in kinds),
    )


def _several(base: type, inner: tuple[Any, ...]) -> Kind:
    inner = tuple(each for each in inner if each is not ...)
    kind = kind_of(inner[0]) if len(set(inner)) == 1 else _ANYTHING
    # What can be gone through only once is not gone through here.
    looks = base is not collections.abc.Iterable

    def fits(value: object) -> bool:
        if isinstance(value, str | bytes) or not isinstance(value, base):
            return False
        again = looks or isinstance(value, collections.abc.Collection)
        return not again or all(kind.fits(each) for each in typing.cast("Iterable[Any]", value))

    return Kind(_SEVERAL[base] + _of(kind), fits, several=True)


def _mapping(base: type, inner: tuple[Any, ...]) -> Kind:
    key, item = (kind_of(each) for each in inner or (Any, Any))

    def fits(value: object) -> bool:
        return isinstance(value, base) and all(
            key.fits(name) and item.fits(each)
            for name, each in typing.cast("Mapping[Any, Any]", value).items()
        )

    to = "" if item is _ANYTHING else f" to {_plural(item)}"
    return Kind(_MAPPINGS[base] + _of(key) + to, fits)


def _of(kind: Kind) -> str:
    return "" if kind is _ANYTHING else f" of {_plural(kind)}"


def _plural(kind: Kind) -> str:
    words = kind.words.removeprefix("a ").removeprefix("an ")
    return words.replace("number", "numbers", 1)


def _instance(cls: type) -> Kind:
    if getattr(cls, "_is_protocol", False):
        return _ANYTHING
    if cls.__name__ == "PathLike":
        return Kind("a path", lambda value: isinstance(value, cls))
    spelled = cls.__name__[:2].isupper()  # as in SSLContext, said letter by letter
    article = "an" if cls.__name__[0] in ("AEFHILMNORSX" if spelled else "AEIO") else "a"
    words = f"{article} {cls.__name__}"
    if issubclass(cls, enum.Enum):
        words += f" ({', '.join(each.name for each in cls)})"
    return Kind(words, lambda value: isinstance(value, cls))


# --- names in annotations -------------------------------------------------------------------------


class _KnownByName(type):
    """A class that is not imported; its instances are told by the name of their class."""

    def __instancecheck__(cls, instance: object) -> bool:
        return any(each.__name__ == cls.__name__ for each in type(instance).__mro__)


class _Names:
    """What the names in a function's annotations mean."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._places: tuple[Mapping[str, Any], ...] = (
            function.__globals__,
            function.__globals__["__builtins__"],
            vars(collections.abc),
            vars(typing),
        )

    def meaning(self, annotation: str) -> Any:
        """Return what an annotation stands for, as ``kind_of`` takes it."""
        return self._of(ast.parse(annotation, mode="eval").body)

    def _of(self, node: ast.expr) -> Any:
        match node:
            case ast.Name(name):
                return self._named(name)
            case ast.Attribute(whole, name):
                return getattr(self._of(whole), name)
            case ast.Constant(value):
                return value
            case ast.BinOp(left, ast.BitOr(), right):
                return self._of(left) | self._of(right)
            case ast.Subscript(whole, inner):
                return self._of(whole)[self._of(inner)]
            case ast.Tuple(elements):
                return tuple(self._of(each) for each in elements)
            case ast.List(elements):
                return [self._of(each) for each in elements]
        raise InternalError(f"no kind is known for {ast.unparse(node)!r}")

    def _named(self, name: str) -> Any:
        for place in self._places:
            if name in place:
                return place[name]
        return _KnownByName(name, (), {})
