"""Standard JSON, written and read by orjson where it is installed, else by Python's own ``json``.

Pure: both ways write the same bytes and accept the same texts. orjson is several times faster, but
a free-threaded Python may have none: it has no wheels for such Pythons.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

DEPTH_MAX: Final = 1024
"""Nesting that orjson reads; more is an error in both ways."""

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKETS = re.compile(r"[\[\]{}]")
_INTEGER_CHARS_MAX = 20
_INTEGER_MIN, _INTEGER_MAX = -(1 << 63), (1 << 64) - 1
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def dumps_without_orjson(value: object) -> bytes:
    """Write a value as orjson does, floats apart: they may have another exponent.

    Raises:
        TypeError: it has something that orjson does not write either.
    """
    try:
        return _encode(_written(value)).encode()
    except UnicodeEncodeError as error:
        raise TypeError(f"str is not valid UTF-8: {error}") from None


def loads_without_orjson(data: bytes | bytearray | memoryview | str) -> Any:
    """Read a text as orjson does.

    Raises:
        json.JSONDecodeError: it is not standard JSON in UTF-8, has half of a surrogate pair or a
            number beyond a double, or is nested deeper than ``DEPTH_MAX``.
    """
    try:
        text = data if isinstance(data, str) else str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise json.JSONDecodeError(f"str is not valid UTF-8: {error}", "", 0) from None
    if text.count("[") + text.count("{") > DEPTH_MAX and _depth(text) > DEPTH_MAX:
        raise json.JSONDecodeError("depth limit exceeded", text, 0)
    try:
        # No decoder is kept: this module is sent to Spark's executors by value, which it cannot be.
        value = json.loads(text, parse_float=_float, parse_int=_integer, parse_constant=_constant)
        if isinstance(data, str) or "\\u" in text:
            _encode(value).encode()  # which half of a surrogate pair fails
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise json.JSONDecodeError(str(error), text, 0) from None
    return value


def _written(value: object) -> object:
    """Return the text ``json`` writes, as orjson writes it; ``json`` takes more values than
    orjson."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        if not _INTEGER_MIN <= value <= _INTEGER_MAX:
            raise TypeError("Integer exceeds 64-bit range")
        return value
    if isinstance(value, float):
        return value if value - value == 0 else None  # NaN and infinity: null
    if isinstance(value, dict):
        if any(type(key) is not str for key in value):
            raise TypeError("Dict key must be str")
        return {key: _written(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_written(item) for item in value]
    raise TypeError(f"Type is not JSON serializable: {type(value).__name__}")


def _depth(text: str) -> int:
    depth = deepest = 0
    for bracket in _BRACKETS.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _integer(text: str) -> int | float:
    if len(text) <= _INTEGER_CHARS_MAX:
        value = int(text)
        # As orjson: one beyond 64 bits is a double.
        if _INTEGER_MIN <= value <= _INTEGER_MAX:
            return value
    return _float(text)


def _float(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise ValueError("number is infinity when parsed as double")
    return value


def _constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


if TYPE_CHECKING:
    from orjson import JSONDecodeError, JSONEncodeError, dumps, loads
else:
    try:
        from orjson import JSONDecodeError, JSONEncodeError, dumps, loads
    except ImportError:
        JSONDecodeError, JSONEncodeError = json.JSONDecodeError, TypeError
        dumps, loads = dumps_without_orjson, loads_without_orjson

__all__ = ["JSONDecodeError", "JSONEncodeError", "dumps", "loads"]
