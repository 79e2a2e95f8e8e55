"""The words of a condition.

Pure: text in, tokens out; linear in the length of the text (C-387).
"""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

from rocketstream.errors import SubscriptionError
from rocketstream.limits import SQL_EXPRESSION_CHARS_MAX, SQL_TOKENS_MAX

_SHOWN_CHARS_MAX = 20


class TokenKind(enum.Enum):
    """The kinds of tokens."""

    KEYWORD = "keyword"
    IDENTIFIER = "identifier"
    STRING = "string"
    DECIMAL = "integer"
    FLOAT = "number"
    SYMBOL = "symbol"
    END = "end"


class Token(NamedTuple):
    """One word; ``text`` is upper case for keywords and decoded for strings.

    ``word`` is its name in the grammar: keywords, symbols, and names that are operators where an
    operator may stand; empty for all others.
    """

    kind: TokenKind
    text: str
    start: int
    end: int
    word: str = ""


TEXT_TESTS = frozenset({"CONTAINS", "STARTSWITH", "ENDSWITH"})
"""Operators of 5.x; 4.9 knows them as names, as this does where no operator may stand."""
KEYWORDS = frozenset({"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"})

_EXPONENT = "(?:[eE][+-]?[0-9]+)?"
# Alternatives in the order in which the longest match wins; a zero with an L is read as a number,
# while the original stops reading there (C-386).
_TOKEN = re.compile(
    rf"""
    (?P<space>[ \t\n\r\f]+|--[^\n\r]*)
    |(?P<FLOAT>[0-9]+\.[0-9]*{_EXPONENT}|\.[0-9]+{_EXPONENT}|[0-9]+[eE][+-]?[0-9]+)
    |(?P<DECIMAL>(?:0|[1-9][0-9]*)[lL]?)
    |(?P<IDENTIFIER>[A-Za-z_$][A-Za-z0-9_$]*)
    |(?P<STRING>'(?:''|[^'])*')
    |(?P<SYMBOL><>|>=|<=|[=<>(),+-])
    """,
    re.VERBOSE,
)


def tokens_of(text: str) -> list[Token]:
    """Return the tokens of a condition, an END token last.

    Raises:
        SubscriptionError: the text is too long, or a character begins no token.
    """
    if len(text) > SQL_EXPRESSION_CHARS_MAX:
        raise SubscriptionError(
            f"the SQL92 expression has {len(text)} characters, MAX: {SQL_EXPRESSION_CHARS_MAX}",
            position=SQL_EXPRESSION_CHARS_MAX,
        )
    found: list[Token] = []
    position, length = 0, len(text)
    match_at = _TOKEN.match
    while position < length:
        if text.startswith("/*", position):
            position = _comment_end(text, position)
            continue
        match = match_at(text, position)
        if match is None:
            raise _unreadable(text, position)
        position = match.end()
        if match.lastgroup != "space":
            found.append(_token(match))
            if len(found) > SQL_TOKENS_MAX:
                raise wrong(text, position, f"a condition may have {SQL_TOKENS_MAX} words")
    found.append(Token(TokenKind.END, "", length, length))
    return found


_KINDS = {kind.name: kind for kind in TokenKind}


def _token(match: re.Match[str]) -> Token:
    kind = _KINDS[str(match.lastgroup)]
    text = match.group()
    if kind is TokenKind.SYMBOL:
        return Token(kind, text, match.start(), match.end(), text)
    if kind is TokenKind.STRING:
        text = text[1:-1].replace("''", "'")
    elif kind is TokenKind.IDENTIFIER:
        upper = text.upper()
        if upper in KEYWORDS:
            return Token(TokenKind.KEYWORD, upper, match.start(), match.end(), upper)
        if upper in TEXT_TESTS:
            return Token(kind, text, match.start(), match.end(), upper)
    return Token(kind, text, match.start(), match.end())


def _comment_end(text: str, position: int) -> int:
    end = text.find("*/", position + 2)
    if end < 0:
        raise wrong(text, position, "the comment that begins here has no end; close it with */")
    return end + 2


def _unreadable(text: str, position: int) -> SubscriptionError:
    if text[position] == "'":
        why = "the string that begins here has no end; close it with ' and write '' for a quote"
    elif text.startswith("!=", position):
        why = "!= is not known; write <>"
    else:
        why = f"the character {text[position]!r} is not known here"
    return wrong(text, position, why)


def wrong(text: str, position: int, why: str) -> SubscriptionError:
    """Return the error for a place of a condition."""
    shown = text[position : position + _SHOWN_CHARS_MAX]
    where = f"at character {position}, {shown!r}" if shown else "at its end"
    return SubscriptionError(
        f"subscription exception: the SQL92 expression is wrong {where}: {why}",
        expression=text,
        position=position,
    )
