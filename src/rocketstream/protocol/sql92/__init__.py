"""Conditions on message properties: SQL92 subscriptions, compiled and evaluated.

Pure: a condition that both this and the original's filter accept selects the same messages (C-383
to C-392, C-583; upstream's ``filter`` module).
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
"""A compiled condition of 64 KB of text takes megabytes."""


class Expression:
    """A compiled condition; immutable, usable from any thread.

    Attributes:
        text: the text it was compiled from.
        parts: the highest cost of evaluating it, in comparisons of two numbers.
    """

    __slots__ = ("_evaluate", "parts", "text")

    def __init__(self, text: str, root: Node, parts: int) -> None:
        self.text: str = text
        self.parts: int = parts
        self._evaluate = root.evaluate

    def evaluate(self, properties: Mapping[str, str]) -> bool | None:
        """Return whether the condition holds; None when the result is unknown.

        The result of a comparison is unknown when the property is missing and also, as in the
        original, when a number is compared with a property that is not a number of that kind
        (C-390, C-392).
        """
        try:
            result = self._evaluate(properties)
        except EvaluationError:
            return None
        return result if isinstance(result, bool) else None

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether the message is selected; an unknown result does not select it."""
        return self.evaluate(properties) is True

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


def compile_expression(text: str) -> Expression:
    """Return the compiled form of a condition.

    Args:
        text: the condition, such as ``price > 5 AND kind IN ('a', 'b') OR note IS NOT NULL``.

    Raises:
        SubscriptionError: the text is not a condition; ``parameters["position"]`` is the character
            it goes wrong at, counted from 0.
    """
    return _compile_long(text) if len(text) > _SHORT_CHARS_MAX else _compile_short(text)


def property_names(text: str) -> tuple[str, ...]:
    """Return the properties a condition names, in their order.

    Raises:
        SubscriptionError: the text is not a condition.
    """
    found = [token.text for token in tokens_of(text) if token.kind is TokenKind.IDENTIFIER]
    return tuple(dict.fromkeys(name for name in found if name.upper() not in TEXT_TESTS))


@lru_cache(maxsize=_COMPILED_MAX)
def _compile_short(text: str) -> Expression:
    return Expression(text, *parse(text))


@lru_cache(maxsize=_LONG_COMPILED_MAX)
def _compile_long(text: str) -> Expression:
    return Expression(text, *parse(text))
