"""Values of conditions: how texts become numbers and how two values compare, as Java does it.

Pure: a text that is not a number raises EvaluationError (C-390).
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable
from typing import Any

_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1
_INTEGER = re.compile(r"[+-]?\d+")
_DOUBLE = re.compile(
    r"[+-]?(?:NaN|Infinity"
    r"|(?:(?P<decimal>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
    r"|(?P<hex>0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+))[fFdD]?)"
)
_JAVA_SPACE = "".join(map(chr, range(0x21)))
_DIGITS_MAX = 19
_NUMBER_CHARS_MAX = 400
"""A longer text does not count as a number; the greatest double has 309 digits."""

Comparer = Callable[[Any, Any], int]


class EvaluationError(Exception):
    """A value cannot be compared: the whole condition does not match."""


class Kind(enum.Enum):
    """Java type of a value; a property is a string that may be missing."""

    PROPERTY = "property"
    STRING = "string"
    INTEGER = "integer"
    LONG = "long"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    NULL = "null"

    @property
    def is_text(self) -> bool:
        """Whether a value is a string."""
        return self is Kind.PROPERTY or self is Kind.STRING

    @property
    def is_number(self) -> bool:
        """Whether a value is a number."""
        return self in (Kind.INTEGER, Kind.LONG, Kind.DOUBLE)


def parse_integer(text: str) -> int:
    """Read a 32-bit integer as ``Integer.valueOf`` does: no spaces."""
    return _parse_within(text, _INT_MAX)


def parse_long(text: str) -> int:
    """Read a 64-bit integer as ``Long.valueOf`` does: no spaces."""
    return _parse_within(text, _LONG_MAX)


def _parse_within(text: str, high: int) -> int:
    if len(text) > _NUMBER_CHARS_MAX:
        raise EvaluationError
    if not _INTEGER.fullmatch(text) or len(text.lstrip("+-").lstrip("0")) > _DIGITS_MAX:
        raise EvaluationError
    value = int(text)
    if not -high - 1 <= value <= high:
        raise EvaluationError
    return value


def parse_double(text: str) -> float:
    """Read a double as ``Double.valueOf`` does: spaces around it, suffixes and hex included."""
    if len(text) > _NUMBER_CHARS_MAX:
        raise EvaluationError
    text = text.strip(_JAVA_SPACE)
    match = _DOUBLE.fullmatch(text)
    if match is None:
        raise EvaluationError
    sign = -1.0 if text[0] == "-" else 1.0
    if match["decimal"]:
        return sign * float(match["decimal"])
    if match["hex"]:
        try:
            return sign * float.fromhex(match["hex"])
        except OverflowError:
            return sign * math.inf
    return math.nan if text.endswith("NaN") else sign * math.inf


def parse_boolean(text: str) -> bool:
    """Read a boolean as ``Boolean.valueOf`` does: ``true`` in any case, all else is false."""
    return text.lower() == "true"


_PARSERS: dict[Kind, Callable[[str], Any]] = {
    Kind.INTEGER: parse_integer,
    Kind.LONG: parse_long,
    Kind.DOUBLE: parse_double,
    Kind.BOOLEAN: parse_boolean,
}


def compare_doubles(left: float, right: float) -> int:
    """Compare as ``Double.compare`` does: NaN is above all, and -0.0 below 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    return _compare(_rank(left), _rank(right))


def _rank(value: float) -> tuple[bool, float]:
    """Tell NaN from a number, and the two zeros from each other."""
    is_nan = math.isnan(value)
    return is_nan, math.inf if is_nan else math.copysign(math.inf, value)


def _compare(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


def _never(_left: Any, _right: Any) -> int:
    return -1


def _fails(_left: Any, _right: Any) -> int:
    raise EvaluationError


def comparer(left: Kind, right: Kind) -> Comparer:
    """Return the function that compares two present values (``ComparisonExpression.__compare``)."""
    if left is Kind.BOOLEAN:
        if right.is_text:
            return _fails  # upstream casts the wrong operand and fails
        return _compare if right is Kind.BOOLEAN else _never
    if left.is_number:
        if right.is_number:
            return _numbers(left, right)
        return _with_text(_numbers(left, left), left, False) if right.is_text else _never
    if not left.is_text or right.is_text:
        return _compare
    if right is Kind.BOOLEAN:
        return _with_text(_compare, right, True)
    return _with_text(_numbers(right, right), right, True) if right.is_number else _never


def _numbers(left: Kind, right: Kind) -> Comparer:
    if left is Kind.DOUBLE or right is Kind.DOUBLE:
        # Both become doubles first: Java compares a rounded long, Python would compare exactly.
        return lambda a, b: compare_doubles(float(a), float(b))
    return _compare


def _with_text(compare: Comparer, kind: Kind, text_left: bool) -> Comparer:
    parser = _PARSERS[kind]
    if text_left:
        return lambda text, value: compare(parser(text), value)
    return lambda value, text: compare(value, parser(text))
