"""Whether the values of a settings class are of the kinds its fields are declared with.

Law: pure; ranges and meanings are checked by the settings themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from rocketstream.errors import ConfigurationError


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def _is_several(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes)


_KINDS: dict[str, tuple[str, Callable[[object], bool]]] = {
    "int": ("a whole number", _is_whole),
    "float": ("a number", _is_number),
    "bool": ("True or False", lambda value: isinstance(value, bool)),
    "str": ("a str", lambda value: isinstance(value, str)),
    "str | None": ("a str or None", lambda value: value is None or isinstance(value, str)),
    "frozenset[int]": ("a set of numbers", _is_several),
    "tuple[int, ...]": ("a tuple of numbers", _is_several),
    "tuple[str, ...]": ("a tuple of str", _is_several),
    "Collection[str]": ("a set of str", _is_several),
}
"""By annotation as it is written; fields of other kinds have checks of their own."""

_SECRET = frozenset({"access_key", "secret_key", "security_token"})


def check_whole(name: str, value: object) -> None:
    """Check a number of something.

    Raises:
        ConfigurationError: it is no whole number.
    """
    if not _is_whole(value):
        raise ConfigurationError(f"{name} must be a whole number, not {value!r}")


def check_offset(name: str, offset: object) -> None:
    """Check an offset.

    Raises:
        ConfigurationError: it is none.
    """
    if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
        raise ConfigurationError(f"{name} must be a whole number from 0 on, not {offset!r}")


def check_time(name: str, time_ms: object) -> None:
    """Check a time in milliseconds.

    Raises:
        ConfigurationError: it is no number.
    """
    if not _is_number(time_ms):
        raise ConfigurationError(f"{name} must be a number of milliseconds, not {time_ms!r}")


def check_kinds(settings: Any) -> None:
    """Check every value against the annotation of its field.

    Raises:
        ConfigurationError: a value of another kind; the text names setting, kind and value.
    """
    for field in fields(settings):
        expected, fits = _KINDS.get(str(field.type), ("", None))
        value = getattr(settings, field.name)
        if fits is not None and not fits(value):
            shown = type(value).__name__ if field.name in _SECRET else repr(value)
            raise ConfigurationError(f"{field.name} must be {expected}, not {shown}")
