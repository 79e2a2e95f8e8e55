"""Conditions and messages to try filters with: a table by hand and any number made at random.

Law: no pytest and no RocketMQ here; the same seed gives the same conditions.
"""

from __future__ import annotations

import random

TABLE = [
    "a = 5", "5 = a", "a = 5L", "a = '5'", "a IN ('5')", "a <> 5", "5 <> a", "a > 3", "3 < a",
    "a > 3.0", "a >= 5", "a <= 5", "a < 5", "a = 5e0", "a = 5.", "a > .5", "a = 5E+0", "a = 0L",
    "a BETWEEN 2 AND 6", "a NOT BETWEEN 2 AND 6", "a between 2.5 and 6", "a BETWEEN b AND 10",
    "a BETWEEN -5 AND -1", "a NOT IN ('5')", "a in ('5', 'abc', '''', '2', 'true', 'x')",
    "a NOT IN ('5', 'abc', '''', '2', 'true', 'x')", "a IS NULL", "a IS NOT NULL",
    "NOT a IS NULL", "NOT (a IS NULL)", "NOT a", "NOT a = 5", "NOT (a = 5)", "NOT a <> 5",
    "a = TRUE", "a = false", "TRUE = a", "a <> TRUE", "TRUE", "FALSE", "NULL", "1 = 1", "1 <> 1",
    "5 = TRUE", "a", "NOT NULL", "a < b", "a >= b", "a = b", "a <> b", "(a=5) = TRUE",
    "(a = 5) = (b = 10)", "(a = 5) = 'true'", "'true' = (a = 5)", "(a = 5) = 5",
    "a is null or a = 5 -- c\n", "a /* the first */ = /**/ 5", "-a = 5", "- -5 = a", "+a = '5'",
    "a = -3", "a > -9223372036854775807", "a = 9223372036854775807", "a > 2147483647",
    "a < 2147483648", "a = 9999999999", "a = 9999999999.0", "a > 1e300", "a = 5 AND b = 10",
    "a = 5 OR b = 'x'", "b = 'x' OR a = 5", "a > 3 AND b IS NULL", "a > 3 OR TRUE", "TRUE OR a > 3",
    "a > 3 AND FALSE", "FALSE AND a > 3", "a = 5 AND b = 10 OR c = 'it''s'", "c = 'it''s'",
    "c = ''", "c IS NULL = TRUE", "a = b = TRUE", "$x_1 = 1", "_ = '标签'", "TAGS = 'x'",
    "a = 'abc' AND NOT (b > 3)", "(a IS NULL) IS NULL", "a > 3 IS NULL", "a in ('5') = TRUE",
    "1 BETWEEN 0 AND 2", "a BETWEEN 1 AND 1", "a BETWEEN 1 AND 9999999999", "a > b AND b > a",
    "TRUE = TRUE", "TRUE <> FALSE", "'x' = 'x'", "'x' = 5", "5 = 'x'", "'5' = 5", "1.5 = '1.5'",
    "- a IS NULL", "-TRUE IS NULL", "-'x' IS NULL", "a = -'x'",
]  # fmt: skip
"""Conditions both sides know (C-385 to C-391)."""

TABLE_5 = [
    "a CONTAINS 'b'", "a NOT CONTAINS 'b'", "a STARTSWITH 'a'", "a NOT STARTSWITH 'a'",
    "a ENDSWITH 'c'", "a not endswith 'c'", "a contains ''", "a NOT CONTAINS ''", "zz CONTAINS 'b'",
    "zz NOT CONTAINS 'b'", "'abc' CONTAINS 'b'", "5 CONTAINS '5'", "(a CONTAINS 'b') = TRUE",
    "a CONTAINS 'b' OR a STARTSWITH '5'", "NOT a CONTAINS 'b'", "NOT (a CONTAINS 'b')",
]  # fmt: skip
"""Conditions only 5.x knows (C-384)."""

WRONG = [
    "", "a =", "= 5", "a > 'b'", "'b' < a", "a = NULL", "NULL = a", "a <> NULL", "a > TRUE",
    "a > NULL", "(a = 5) > 3", "a BETWEEN 'b' AND 'c'", "a BETWEEN 6 AND 2",
    "a BETWEEN NULL AND 2", "a BETWEEN 2.5 AND 1", "5 IN ('a')", "a IN (5)", "a IN ()",
    "a IN ('x',)", "a IN 'x'", "5", "'x'", "-a", "NOT 5", "NOT -a", "a AND 5", "5 OR a",
    "TRUE = 5", "a = 9223372036854775808", "a = -9223372036854775808", "a = 1e400", "a = 1e-400",
    "(a = 5", "a = 5 AND", "a IS 5", "a IS NOT 5", "a NOT 5 = 3 NOT", "a.b = 5", "a = 'x",
    "a @ 5", "a BETWEEN 1", "a BETWEEN 1 OR 2", "AND a", "a = BETWEEN", "/* a = 5",
    "a = 5 NOT", "a = 5;", "a = 5 = ", "a != 5",
]  # fmt: skip
"""What neither side takes (C-388, C-389)."""

TRAILING = [
    "a + 1 = 6", "a LIKE '5'", "a=05", "a = 5 b", "a = 5)", "a 5", "a = 5 'x'", "a = 1.5.5",
    "a = 5abc", "a IS NULL NULL", "TRUE FALSE",
]  # fmt: skip
"""What the original reads the beginning of and takes (C-386), and we refuse."""

VALUES = [
    "5", "5.5", "abc", "true", "TRUE", "false", "-3", "+5", "9999999999", " 5 ", "2", "05", "", " ",
    "0", "-0", "0.0", "-0.0", "1e3", "5d", "5.0F", "0x10", "0x1p3", "NaN", "-NaN", "Infinity",
    "-Infinity", "2147483647", "2147483648", "-2147483648", "9223372036854775807",
    "9223372036854775808", "9007199254740993", "1e400", "1_000", "٥", "５", "5\n", "it's", "标签",
    "x", "null", "5L", ".5", "5.", "+", "-", "e5", "1e-400", "--5", "true ",
]  # fmt: skip


def messages() -> list[dict[str, str]]:
    """Properties of the messages every condition is tried on."""
    found: list[dict[str, str]] = [{}, {"b": "10"}, {"a": "5", "b": "10"}, {"a": "10", "b": "5"}]
    found += [{"a": value} for value in VALUES]
    found += [{"a": value, "b": "5", "c": "it's", "$x_1": "1"} for value in VALUES[:20]]
    found += [{"a": "5", "b": value} for value in VALUES[:12]]
    return [*found, {"TAGS": "x", "_": "标签", "c": ""}, {"a": "abc", "b": "abc", "TAGS": "y"}]


class Conditions:
    """Makes conditions that mostly compile, of every part of the grammar."""

    _LITERALS = [
        "5", "0", "3", "5L", "2147483648", "9999999999", "5.5", ".5", "5e0", "3.0", "'5'", "'abc'",
        "'it''s'", "''", "TRUE", "FALSE", "NULL", "9007199254740993", "9007199254740992.0",
    ]  # fmt: skip
    _NAMES = ["a", "b", "c", "zz", "TAGS", "$x_1", "_"]

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def one(self, depth: int = 3) -> str:
        """Return a condition."""
        if depth == 0 or self._random.random() < 0.2:
            return self._comparison(depth)
        left, right = self.one(depth - 1), self.one(depth - 1)
        kinds = [
            f"{left} AND {right}", f"{left} OR {right}", f"({left}) AND ({right})",
            f"({left}) or ({right})", f"NOT ({left})", f"({left}) = ({right})",
            f"({left}) IS NULL", f"({left}) IS NOT NULL", f"({left}) <> ({right})", f"NOT {left}",
        ]  # fmt: skip
        return self._random.choice(kinds)

    def _comparison(self, depth: int) -> str:
        pick = self._random.choice
        left, right = self._operand(), self._operand()
        symbol = pick(["=", "<>", ">", ">=", "<", "<="])
        negated = pick(["", "NOT "])
        kinds = [f"{left} {symbol} {right}"] * 6 + [
            f"{left} IS {negated}NULL",
            f"{left} {negated}BETWEEN {right} AND {self._operand()}",
            f"{pick(self._NAMES)} {negated}IN ('5', 'abc', '{depth}')",
            f"{left}",
        ]
        return pick(kinds)

    def _operand(self) -> str:
        pick = self._random.choice
        text = pick(self._NAMES if self._random.random() < 0.6 else self._LITERALS)
        return pick(["", "", "", "", "", "-", "+", "- -", "NOT "]) + text
