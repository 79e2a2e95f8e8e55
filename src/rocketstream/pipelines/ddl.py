"""Spark DDL for columns, checked without Spark.

Pure: a text that Spark would refuse half a minute later is refused, with the place. Spark still
parses the texts that pass.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rocketstream.errors import ConfigurationError

_PLAIN: Final = frozenset(
    {
        "boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long",
        "float", "real", "double", "date", "timestamp", "timestamp_ntz", "timestamp_ltz", "time",
        "string", "binary", "interval", "void", "variant",
    }
)  # fmt: skip
_WITH_NUMBERS: Final = {"decimal": 2, "dec": 2, "numeric": 2, "char": 1, "character": 1,
                        "varchar": 1, "time": 1, "geometry": 1, "geography": 1}  # fmt: skip
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<word>[A-Za-z0-9_]+)|(?P<quoted>`(?:[^`]|``)+`)"
    r"|(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<sign>[<>(),:])|(?P<strange>\S))"
)
_TYPES: Final = (
    "a Spark type, such as INT, BIGINT, DOUBLE, STRING, TIMESTAMP, DECIMAL(10,2), ARRAY<INT>, "
    "MAP<STRING,INT> or STRUCT<a:INT>"
)
_UNITS: Final = frozenset({"year", "month", "day", "hour", "minute", "second"})

_SAME: Final = {
    "byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float",
    "dec": "decimal", "numeric": "decimal", "character": "char", "timestamp_ltz": "timestamp",
}  # fmt: skip


def columns_of_json(tree: Mapping[str, Any]) -> dict[str, str]:
    """Return the columns of Spark's schema JSON, spelled as :func:`check_ddl` spells them."""
    return {str(field["name"]): _spelled(field["type"]) for field in tree["fields"]}


def _spelled(kind: Any) -> str:
    if isinstance(kind, str):
        return kind.replace(" ", "") if "(" in kind else _SAME.get(kind, kind)
    if kind["type"] == "array":
        return f"array<{_spelled(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_spelled(kind['keyType'])},{_spelled(kind['valueType'])}>"
    return _struct(list(columns_of_json(kind).items()))


def _struct(columns: Sequence[tuple[str, str]]) -> str:
    return f"struct<{','.join(f'{name}:{kind}' for name, kind in columns)}>"


def check_ddl(text: str) -> dict[str, str]:
    """Return the columns a text declares, as in ``id INT, name STRING NOT NULL``, in order.

    Each name leads to its type in one spelling, such as ``struct<a:int,b:array<string>>``: two
    texts that mean the same columns give equal answers.

    Raises:
        ConfigurationError: the text declares no columns; the error names the mistake and its place.
    """
    parser = _Parser(text)
    columns = parser.struct() or parser.columns(end="")
    names = [name.lower() for name, _ in columns]
    twice = sorted({name for name, _ in columns if names.count(name.lower()) > 1})
    if twice:
        raise ConfigurationError(f"schema {text!r} names {', '.join(twice)} twice", schema=text)
    return dict(columns)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [
            (str(kind), match.group(kind), match.start(kind))
            for match in _TOKEN.finditer(text)
            if (kind := match.lastgroup) is not None
        ]
        self._at = 0

    def columns(self, end: str) -> list[tuple[str, str]]:
        """Read ``name[:] type [NOT NULL] [COMMENT 'x']``, separated by commas, up to ``end``."""
        found = [self._column()]
        while self._taken(","):
            found.append(self._column())
        if end:
            self._need(end)
        elif self._at < len(self._tokens):
            raise self._wrong("a comma before the next column")
        return found

    def struct(self) -> list[tuple[str, str]]:
        """Read ``STRUCT<…>`` if that is the whole text; otherwise read nothing."""
        if self._word() != "struct" or [sign for _, sign, _ in self._tokens[1:2]] != ["<"]:
            return []
        self._at = 2
        return self.columns(end=">")

    def _column(self) -> tuple[str, str]:
        kind, name, _ = self._next("the name of a column")
        if kind not in ("word", "quoted"):
            self._at -= 1
            raise self._wrong("the name of a column (in backticks if it has other characters)")
        self._taken(":")
        spelled = self._type()
        while self._word() in ("not", "comment", "default", "collate"):
            word = self._next("")[1].lower()
            if word == "not":
                if self._word() != "null":
                    raise self._wrong("NOT NULL")
                self._at += 1
            else:
                self._next(f"something after {word.upper()}")
        return name.strip("`").replace("``", "`"), spelled

    def _type(self) -> str:
        kind, name, _ = self._next("a type after the column's name")
        word = name.lower()
        if kind == "word" and word in ("array", "map"):
            self._need("<")
            inner = [self._type()]
            if word == "map":
                self._need(",")
                inner.append(self._type())
            self._need(">")
            return f"{word}<{','.join(inner)}>"
        if kind == "word" and word == "struct":
            self._need("<")
            return _struct([] if self._taken(">") else self.columns(end=">"))
        if kind == "word" and word == "interval":
            return self._interval()
        if kind == "word" and word in _WITH_NUMBERS and self._peek() == "(":
            return f"{_SAME.get(word, word)}({self._numbers(_WITH_NUMBERS[word])})"
        if kind != "word" or word not in _PLAIN | {"decimal", "dec", "numeric"}:
            self._at -= 1
            raise self._wrong(_TYPES)
        word = _SAME.get(word, word)
        return "decimal(10,0)" if word == "decimal" else word

    def _interval(self) -> str:
        words = ["interval"]
        while self._word() in _UNITS | {"to"}:
            words.append(self._next("")[1].lower())
        return " ".join(words)

    def _numbers(self, count_max: int) -> str:
        self._need("(")
        numbers = []
        for index in range(count_max):
            numbers.append(self._next("a number")[1])
            if not numbers[-1].isalnum():
                self._at -= 1
                raise self._wrong("a number")
            if index + 1 == count_max or not self._taken(","):
                break
        self._need(")")
        return ",".join([*numbers, "0"] if len(numbers) < count_max else numbers)

    def _peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def _word(self) -> str:
        return self._peek().lower()

    def _taken(self, sign: str) -> bool:
        if self._peek() == sign:
            self._at += 1
            return True
        return False

    def _need(self, sign: str) -> None:
        if not self._taken(sign):
            raise self._wrong(f"{sign!r}")

    def _next(self, wanted: str) -> tuple[str, str, int]:
        if self._at >= len(self._tokens):
            raise self._wrong(wanted)
        self._at += 1
        return self._tokens[self._at - 1]

    def _wrong(self, wanted: str) -> ConfigurationError:
        found = "it ends"
        if self._at < len(self._tokens):
            _, text, place = self._tokens[self._at]
            found = f"{text!r} stands at character {place + 1}"
        return ConfigurationError(
            f"schema {self._text[:200]!r} is not Spark DDL like 'id INT, name STRING': {found} "
            f"where {wanted} should be",
            schema=self._text,
        )
