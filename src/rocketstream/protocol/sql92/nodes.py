"""The parts of a compiled condition: each a function of a message's properties.

Pure: checks that need no message are made when a node is built (C-388, C-389) and raise
``CheckError``, to which the parser adds the position.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rocketstream.protocol.sql92.values import (
    EvaluationError,
    Kind,
    compare_doubles,
    comparer,
    parse_double,
)

__all__ = ["CheckError", "EvaluationError", "Node"]

Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Any]

_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1
_TEXT_TEST_WEIGHT = 32
"""Cost of a search through a property of 32 KB."""
_SIGNS: dict[str, Callable[[int], bool]] = {
    ">": lambda sign: sign > 0,
    ">=": lambda sign: sign >= 0,
    "<": lambda sign: sign < 0,
    "<=": lambda sign: sign <= 0,
}
_TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": str.__contains__,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


class CheckError(Exception):
    """The operands of an operator do not go together; the text says why."""


@dataclass(slots=True, eq=False)
class Node:
    """A part of a condition.

    Attributes:
        kind: Java type of what it evaluates to, when that is not null.
        evaluate: its value for a message's properties; None is null.
        text: its text in errors.
        is_constant: whether it is a literal, of this ``value``.
        height: how deeply its parts are nested.
        weight: the cost of evaluating it without its parts, in comparisons of two numbers.

    Nodes are never changed; the class is not frozen because frozen objects take three times as long
    to make.
    """

    kind: Kind
    evaluate: Evaluate
    text: str
    is_constant: bool = False
    value: Any = None
    height: int = 1
    weight: int = 1


# --- operands -------------------------------------------------------------------------------------


def property_node(name: str) -> Node:
    """The text of a property; null when the message has no such property."""
    return Node(Kind.PROPERTY, lambda properties: properties.get(name), name)


def constant(kind: Kind, value: Any, text: str) -> Node:
    """A literal."""
    return Node(kind, lambda _: value, text, is_constant=True, value=value)


def integer_node(text: str) -> Node:
    """An integer literal, of 32 bits if it fits, else of 64 (C-388)."""
    digits = text.rstrip("lL")
    if len(digits) > len(str(_LONG_MAX)) or (value := int(digits)) > _LONG_MAX:
        raise CheckError(f"the integer is greater than {_LONG_MAX}")
    return constant(Kind.INTEGER if value <= _INT_MAX else Kind.LONG, value, str(value))


def float_node(text: str) -> Node:
    """A floating point literal; 0.0 is accepted, unlike in the original (C-388, C-583)."""
    try:
        value = parse_double(text)
    except EvaluationError:
        raise CheckError(f"a number of {len(text)} characters is too long") from None
    if math.isinf(value):
        raise CheckError(f"{text} is greater than the greatest double, 1.7976931348623157E308")
    if value == 0 and text.lower().partition("e")[0].strip("0."):
        raise CheckError(f"{text} is less than the least double above zero, 4.9E-324")
    return constant(Kind.DOUBLE, value, text)


def string_node(value: str) -> Node:
    """A text literal."""
    quoted = value.replace("'", "''")
    return constant(Kind.STRING, value, f"'{quoted}'")


def boolean_node(value: bool) -> Node:
    """TRUE or FALSE."""
    return constant(Kind.BOOLEAN, value, "TRUE" if value else "FALSE")


NULL = Node(Kind.NULL, lambda _: None, "NULL", is_constant=True)


# --- unary ----------------------------------------------------------------------------------------


def as_boolean(node: Node) -> Node:
    """The node as a condition; a property becomes one that never holds (C-389, C-391)."""
    if node.kind is Kind.BOOLEAN or node is NULL:
        return node
    if node.kind is not Kind.PROPERTY:
        raise CheckError(f"{node.text} is not a condition; compare it with something")
    read = node.evaluate
    return _boolean(lambda properties: None if read(properties) is None else False, node)


def negate(node: Node) -> Node:
    """Minus a number; null for a value that is not a number."""
    read = node.evaluate
    if not node.kind.is_number:
        return Node(Kind.NULL, lambda _: None, f"(- {node.text})", height=node.height + 1)
    return Node(node.kind, lambda p: -read(p), f"(- {node.text})", height=node.height + 1)


def negation(node: Node) -> Node:
    """NOT, for a condition."""
    read = as_boolean(node).evaluate

    def evaluate(properties: Properties) -> bool | None:
        value = read(properties)
        return None if value is None else not value

    return _boolean(evaluate, node)


def _boolean(evaluate: Evaluate, *parts: Node, weight: int = 1) -> Node:
    height = 1 + max([part.height for part in parts])
    return Node(Kind.BOOLEAN, evaluate, "a condition", height=height, weight=weight)


# --- logic ----------------------------------------------------------------------------------------


def junction(parts: Sequence[Node], decisive: bool) -> Node:
    """OR of conditions if ``decisive`` is True, AND if it is False; SQL's three values (C-392)."""
    reads = [as_boolean(part).evaluate for part in parts]

    def evaluate(properties: Properties) -> bool | None:
        result: bool | None = not decisive
        for read in reads:
            value: bool | None = read(properties)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    return _boolean(evaluate, *parts)


# --- comparisons ----------------------------------------------------------------------------------


def equality(left: Node, right: Node) -> Node:
    """``=``; two missing sides are equal, a missing left side alone gives unknown (C-391)."""
    for node in (left, right):
        if node is NULL:
            raise CheckError("'NULL' cannot be compared; write IS NULL")
    constants = left.is_constant and right.is_constant
    if constants and left.kind is Kind.BOOLEAN and right.kind is not Kind.BOOLEAN:
        raise CheckError(f"'{left.text}' cannot be compared with '{right.text}'")
    return _equal(left, right)


def _equal(left: Node, right: Node) -> Node:
    read_left, read_right = left.evaluate, right.evaluate
    compare = comparer(left.kind, right.kind)

    def evaluate(properties: Properties) -> bool | None:
        a, b = read_left(properties), read_right(properties)
        if a is None:
            return True if b is None else None
        return b is not None and compare(a, b) == 0

    return _boolean(evaluate, left, right)


def is_null(node: Node) -> Node:
    """IS NULL."""
    read = node.evaluate
    return _boolean(lambda properties: read(properties) is None, node)


def ordering(left: Node, symbol: str, right: Node) -> Node:
    """``<``, ``<=``, ``>``, ``>=``; two properties compare as doubles (C-391)."""
    for node in (left, right):
        if node.kind is Kind.BOOLEAN or (node.is_constant and not node.kind.is_number):
            raise CheckError(f"Value '{node.text}' cannot be compared.")
    read_left, read_right, holds = left.evaluate, right.evaluate, _SIGNS[symbol]
    compare = comparer(left.kind, right.kind)
    if left.kind.is_text and right.kind.is_text:
        compare = _as_doubles

    def evaluate(properties: Properties) -> bool | None:
        a = read_left(properties)
        if a is None:
            return None
        b = read_right(properties)
        return None if b is None else holds(compare(a, b))

    return _boolean(evaluate, left, right)


def _as_doubles(left: str, right: str) -> int:
    return compare_doubles(parse_double(left), parse_double(right))


def between(node: Node, low: Node, high: Node) -> Node:
    """BETWEEN; literals must be in order (C-389)."""
    if low.is_constant and high.is_constant:
        if low is NULL or high is NULL:
            raise CheckError("Illegal values of between, values can not be null!")
        numbers = low.kind.is_number and high.kind.is_number
        if numbers and comparer(high.kind, low.kind)(high.value, low.value) < 0:
            raise CheckError(
                f"Illegal values of between, left value({low.text}) must less than or equal to "
                f"right value({high.text})"
            )
    return junction([ordering(node, ">=", low), ordering(node, "<=", high)], decisive=False)


def not_between(node: Node, low: Node, high: Node) -> Node:
    """NOT BETWEEN."""
    return junction([ordering(node, "<", low), ordering(node, ">", high)], decisive=True)


def inclusion(node: Node, values: Sequence[str], negated: bool) -> Node:
    """[NOT] IN, for properties."""
    if node.kind is not Kind.PROPERTY:
        raise CheckError(f"Expected a property for In expression, got: {node.text}")
    read, wanted = node.evaluate, frozenset(values)

    def evaluate(properties: Properties) -> bool | None:
        value = read(properties)
        return None if value is None else (value in wanted) is not negated

    return _boolean(evaluate, node)


def text_test(node: Node, word: str, part: str, negated: bool) -> Node:
    """[NOT] CONTAINS, STARTSWITH, ENDSWITH of 5.x: false for non-text and for an empty part."""
    read, test = node.evaluate, _TEXT_TESTS[word]
    if not part or not node.kind.is_text:
        return _boolean(lambda _: False, node)

    def evaluate(properties: Properties) -> bool:
        value = read(properties)
        return value is not None and test(value, part) is not negated

    return _boolean(evaluate, node, weight=_TEXT_TEST_WEIGHT)
