"""Conditions on message properties: SQL92 subscriptions, compiled and evaluated.

Law: pure. What this accepts and the original's filter accepts too selects the same messages
(C-383 to C-392, C-583; upstream's ``filter`` module).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from rocketstream.protocol.sql92.nodes import EvaluationError, Node
from rocketstream.protocol.sql92.parser import parse
from rocketstream.protocol.sql92.tokens import TEXT_TESTS, TokenKind, tokens_of

__all__ = ["Expression", "compile_expression", "property_names"]

_COMPILED_MAX = 256
_SHORT_CHARS_MAX = 2_048
_LONG_COMPILED_MAX = 8
"""A compiled condition of 64 KB takes megabytes."""


class Expression:
    """A compiled condition; immutable, usable from any thread.

    Attributes:
        text: what it was compiled from.
        parts: what evaluating it costs at most, in comparisons of two numbers.
    """

    __slots__ = ("_evaluate", "parts", "text")

    def __init__(self, text: str, root: Node, parts: int) -> None:
        self.text = text
        self.parts = parts
        self._evaluate = root.evaluate

    def evaluate(self, properties: Mapping[str, str]) -> bool | None:
        """Return whether the condition holds; None when that is unknown.

        Unknown is a comparison with a property that is missing, and also, as in the original, any
        comparison of a number with a property that is no number of that kind (C-390, C-392).
        """
        try:
            result = self._evaluate(properties)
        except EvaluationError:
            return None
        return result if isinstance(result, bool) else None

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether the message is selected: unknown is not."""
        return self.evaluate(properties) is True

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


def compile_expression(text: str) -> Expression:
    """Return the compiled form of a condition.

    Args:
        text: such as ``price > 5 AND kind IN ('a', 'b') OR note IS NOT NULL``.

    Raises:
        SubscriptionError: it is not a condition; ``parameters["position"]`` says from which
            character on, counted from 0.
    """
    return _compile_long(text) if len(text) > _SHORT_CHARS_MAX else _compile_short(text)


def property_names(text: str) -> tuple[str, ...]:
    """Return the properties a condition names, in its order.

    Raises:
        SubscriptionError: it is no condition.
    """
    found = [token.text for token in tokens_of(text) if token.kind is TokenKind.IDENTIFIER]
    return tuple(dict.fromkeys(name for name in found if name.upper() not in TEXT_TESTS))


@lru_cache(maxsize=_COMPILED_MAX)
def _compile_short(text: str) -> Expression:
    return Expression(text, *parse(text))


@lru_cache(maxsize=_LONG_COMPILED_MAX)
def _compile_long(text: str) -> Expression:
    return Expression(text, *parse(text))
