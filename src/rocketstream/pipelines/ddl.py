"""Spark DDL for columns, checked without Spark.

Pure: a text that Spark would refuse half a minute later is refused, with the place. Spark still
parses the texts that pass.
"""

from __future__ import annotations

import re
from typing import Final

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


def check_ddl(text: str) -> list[str]:
    """Return the names of the columns a text declares, as in ``id INT, name STRING NOT NULL``.

    Raises:
        ConfigurationError: the text declares no columns; the error names the mistake and its place.
    """
    parser = _Parser(text)
    names = parser.struct() or parser.columns(end="")
    twice = sorted({name for name in names if [n.lower() for n in names].count(name.lower()) > 1})
    if twice:
        raise ConfigurationError(f"schema {text!r} names {', '.join(twice)} twice", schema=text)
    return names


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [
            (str(kind), match.group(kind), match.start(kind))
            for match in _TOKEN.finditer(text)
            if (kind := match.lastgroup) is not None
        ]
        self._at = 0

    def columns(self, end: str) -> list[str]:
        """Read ``name[:] type [NOT NULL] [COMMENT 'x']``, separated by commas, up to ``end``."""
        names = [self._column()]
        while self._taken(","):
            names.append(self._column())
        if end:
            self._need(end)
        elif self._at < len(self._tokens):
            raise self._wrong("a comma before the next column")
        return names

    def struct(self) -> list[str]:
        """Read ``STRUCT<…>`` if that is the whole text; otherwise read nothing."""
        if self._word() != "struct" or [sign for _, sign, _ in self._tokens[1:2]] != ["<"]:
            return []
        self._at = 2
        return self.columns(end=">")

    def _column(self) -> str:
        kind, name, _ = self._next("the name of a column")
        if kind not in ("word", "quoted"):
            self._at -= 1
            raise self._wrong("the name of a column (in backticks if it has other characters)")
        self._taken(":")
        self._type()
        while self._word() in ("not", "comment", "default", "collate"):
            word = self._next("")[1].lower()
            if word == "not":
                if self._word() != "null":
                    raise self._wrong("NOT NULL")
                self._at += 1
            else:
                self._next(f"something after {word.upper()}")
        return name.strip("`").replace("``", "`")

    def _type(self) -> None:
        kind, name, _ = self._next("a type after the column's name")
        word = name.lower()
        if kind == "word" and word == "array":
            self._need("<")
            self._type()
            self._need(">")
        elif kind == "word" and word == "map":
            self._need("<")
            self._type()
            self._need(",")
            self._type()
            self._need(">")
        elif kind == "word" and word == "struct":
            self._need("<")
            if not self._taken(">"):
                self.columns(end=">")
        elif kind == "word" and word == "interval":
            self._interval()
        elif kind == "word" and word in _WITH_NUMBERS and self._peek() == "(":
            self._numbers(_WITH_NUMBERS[word])
        elif kind != "word" or word not in _PLAIN | {"decimal", "dec", "numeric"}:
            self._at -= 1
            raise self._wrong(_TYPES)

    def _interval(self) -> None:
        while self._word() in _UNITS | {"to"}:
            self._at += 1

    def _numbers(self, count_max: int) -> None:
        self._need("(")
        for index in range(count_max):
            if not self._next("a number")[1].isalnum():
                self._at -= 1
                raise self._wrong("a number")
            if index + 1 == count_max or not self._taken(","):
                break
        self._need(")")

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
