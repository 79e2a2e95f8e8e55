"""The grammar of conditions: OR, AND, equality, comparison, unary, primary (C-384).

Pure: tokens in, one node out.

Law: the whole text must be used up, unlike in the original (C-386, C-583).
"""

from __future__ import annotations

from collections.abc import Callable

from rocketstream.errors import SubscriptionError
from rocketstream.limits import SQL_DEPTH_MAX, SQL_PARTS_MAX
from rocketstream.protocol.sql92 import nodes
from rocketstream.protocol.sql92.nodes import CheckError, Node
from rocketstream.protocol.sql92.tokens import (
    TEXT_TESTS,
    Token,
    TokenKind,
    tokens_of,
    wrong,
)

_ORDERINGS = frozenset({">", ">=", "<", "<="})
_SIGNS = frozenset({"+", "-", "NOT"})
_COMPARISONS = _ORDERINGS | TEXT_TESTS | {"NOT", "BETWEEN", "IN"}


def parse(text: str) -> tuple[Node, int]:
    """Return the condition a text describes, and the number of its parts.

    Raises:
        SubscriptionError: it does not describe one; the error text names the place and the mistake.
    """
    parser = _Parser(text)
    return parser.whole(), parser.parts


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokens_of(text)
        self._words = [token.word for token in self._tokens]
        self._next = 0
        self._depth = 0
        self.parts = 0

    # --- tokens -----------------------------------------------------------------------------------

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _is(self, text: str, ahead: int = 0) -> bool:
        return self._words[self._next + ahead] == text

    def _take(self, text: str) -> bool:
        if self._is(text):
            self._next += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise self._wrong(f"{text} is expected")

    def _wrong(self, why: str) -> SubscriptionError:
        return wrong(self._text, self._token.start, why)

    def _built(self, start: int, build: Callable[[], Node]) -> Node:
        try:
            node = build()
        except CheckError as failure:
            raise wrong(self._text, start, str(failure)) from None
        if node.height > SQL_DEPTH_MAX:
            raise self._too_deep()
        self.parts += node.weight
        if self.parts > SQL_PARTS_MAX:
            raise self._wrong(f"a condition may have {SQL_PARTS_MAX} parts")
        return node

    def _too_deep(self) -> SubscriptionError:
        return self._wrong(f"conditions may be nested {SQL_DEPTH_MAX} levels deep")

    # --- grammar ----------------------------------------------------------------------------------

    def whole(self) -> Node:
        node = self._or()
        if self._token.kind is not TokenKind.END:
            raise self._wrong("the condition is complete here; AND, OR or nothing may follow")
        return self._built(0, lambda: nodes.as_boolean(node))

    def _or(self) -> Node:
        return self._junction("OR", self._and, decisive=True)

    def _and(self) -> Node:
        return self._junction("AND", self._equality, decisive=False)

    def _junction(self, word: str, part: Callable[[], Node], *, decisive: bool) -> Node:
        start = self._token.start
        first = part()
        if not self._is(word):
            return first
        parts = [first]
        while self._take(word):
            parts.append(part())
        return self._built(start, lambda: nodes.junction(parts, decisive))

    def _equality(self) -> Node:
        start = self._token.start
        left = self._comparison()
        while True:
            if self._take("="):
                left = self._pair(start, nodes.equality, left, self._comparison())
            elif self._take("<>"):
                left = self._pair(start, _inequality, left, self._comparison())
            elif self._take("IS"):
                left = self._null_test(start, left)
            else:
                return left

    def _pair(
        self, start: int, build: Callable[[Node, Node], Node], left: Node, right: Node
    ) -> Node:
        return self._built(start, lambda: build(left, right))

    def _null_test(self, start: int, left: Node) -> Node:
        build = _is_not_null if self._take("NOT") else nodes.is_null
        self._expect("NULL")
        return self._built(start, lambda: build(left))

    def _comparison(self) -> Node:
        start = self._token.start
        left = self._unary()
        while True:
            symbol = self._words[self._next]
            if symbol not in _COMPARISONS:
                return left
            if symbol in _ORDERINGS:
                self._next += 1
                left = self._ordering(start, left, symbol)
                continue
            negated = self._is("NOT")
            found = self._word_comparison(start, left, negated)
            if found is None:
                return left
            left = found

    def _ordering(self, start: int, left: Node, symbol: str) -> Node:
        right = self._unary()
        return self._built(start, lambda: nodes.ordering(left, symbol, right))

    def _word_comparison(self, start: int, left: Node, negated: bool) -> Node | None:
        ahead = 1 if negated else 0
        if self._is("BETWEEN", ahead):
            self._next += ahead + 1
            return self._between(start, left, negated)
        if self._is("IN", ahead):
            self._next += ahead + 1
            values = self._strings()
            return self._built(start, lambda: nodes.inclusion(left, values, negated))
        for word in TEXT_TESTS:
            if self._is(word, ahead):
                self._next += ahead + 1
                return self._text_test(start, left, word, negated)
        return None

    def _text_test(self, start: int, left: Node, word: str, negated: bool) -> Node:
        part = self._string()
        return self._built(start, lambda: nodes.text_test(left, word, part, negated))

    def _between(self, start: int, left: Node, negated: bool) -> Node:
        low = self._unary()
        self._expect("AND")
        high = self._unary()
        build = nodes.not_between if negated else nodes.between
        return self._built(start, lambda: build(left, low, high))

    def _strings(self) -> list[str]:
        self._expect("(")
        values = [self._string()]
        while self._take(","):
            values.append(self._string())
        self._expect(")")
        return values

    def _string(self) -> str:
        token = self._token
        if token.kind is not TokenKind.STRING:
            raise self._wrong("a text in single quotes is expected")
        self._next += 1
        return token.text

    def _unary(self) -> Node:
        start = self._token.start
        signs: list[str] = []
        while self._words[self._next] in _SIGNS:
            signs.append(self._token.text)
            self._next += 1
        node = self._primary()
        for sign in reversed(signs):
            node = self._signed(start, sign, node)
        return node

    def _signed(self, start: int, sign: str, node: Node) -> Node:
        if sign == "+":
            return node
        build = nodes.negate if sign == "-" else nodes.negation
        return self._built(start, lambda: build(node))

    def _primary(self) -> Node:
        token = self._token
        if self._take("("):
            if self._depth >= SQL_DEPTH_MAX:
                raise self._too_deep()
            self._depth += 1
            node = self._or()
            self._depth -= 1
            self._expect(")")
            return node
        node = self._built(token.start, lambda: _operand(token))
        self._next += 1
        return node


def _inequality(left: Node, right: Node) -> Node:
    return nodes.negation(nodes.equality(left, right))


def _is_not_null(node: Node) -> Node:
    return nodes.negation(nodes.is_null(node))


def _operand(token: Token) -> Node:
    match token.kind, token.text:
        case TokenKind.IDENTIFIER, name:
            return nodes.property_node(name)
        case TokenKind.STRING, text:
            return nodes.string_node(text)
        case TokenKind.DECIMAL, text:
            return nodes.integer_node(text)
        case TokenKind.FLOAT, text:
            return nodes.float_node(text)
        case TokenKind.KEYWORD, ("TRUE" | "FALSE") as word:
            return nodes.boolean_node(word == "TRUE")
        case TokenKind.KEYWORD, "NULL":
            return nodes.NULL
    raise CheckError("a property, a literal or ( is expected")
