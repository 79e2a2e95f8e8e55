"""SQL92 conditions: the reference's table, a small model, and texts that are none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstream.errors import SubscriptionError
from rocketstream.limits import (
    SQL_DEPTH_MAX,
    SQL_EXPRESSION_CHARS_MAX,
    SQL_PARTS_MAX,
    SQL_TOKENS_MAX,
)
from rocketstream.protocol.sql92 import compile_expression, property_names
from rocketstream.protocol.sql92.tokens import tokens_of
from rocketstream.protocol.sql92.values import (
    EvaluationError,
    compare_doubles,
    parse_double,
    parse_integer,
    parse_long,
)
from tests.filters.conditions import TABLE, TABLE_5, TRAILING, WRONG, messages

A_VALUES = ["5", "5.5", "abc", "true", "TRUE", "-3", "9999999999", " 5 ", "2"]
MESSAGES = {value: {"a": value} for value in A_VALUES}
MESSAGES |= {"ab": {"a": "5", "b": "10"}, "none": {}}
EVERYTHING = set(MESSAGES)


def selected(condition: str) -> set[str]:
    expression = compile_expression(condition)
    return {name for name, properties in MESSAGES.items() if expression.matches(properties)}


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("a = 5", {"5", "ab"}),
        ("5 = a", {"5", "ab"}),
        ("a = 5L", {"5", "ab"}),
        ("a = '5'", {"5", "ab"}),
        ("a IN ('5')", {"5", "ab"}),
        ("a <> 5", {"-3", "2"}),
        ("a > 3", {"5", "ab"}),
        ("a > 3.0", {"5", "5.5", "9999999999", " 5 ", "ab"}),
        ("a = 5e0", {"5", " 5 ", "ab"}),
        ("a BETWEEN 2 AND 6", {"5", "2", "ab"}),
        ("a NOT BETWEEN 2 AND 6", {"-3"}),
        ("a NOT IN ('5')", EVERYTHING - {"5", "ab", "none"}),
        ("a IS NULL", {"none"}),
        ("a IS NOT NULL", EVERYTHING - {"none"}),
        ("a = TRUE", {"true", "TRUE"}),
        ("TRUE = a", set()),
        ("TRUE", EVERYTHING),
        ("1 = 1", EVERYTHING),
        ("a", set()),
        ("a < b", {"ab"}),
        ("a = b", {"none"}),
        ("(a=5) = TRUE", {"5", "ab"}),
        ("a is null or a = 5 -- c", {"none", "5", "ab"}),
        ("NOT a = 5", set()),
        ("NOT (a = 5)", {"-3", "2"}),
        ("NOT a IS NULL", {"none"}),
        ("a /* five */ = /**/ 5", {"5", "ab"}),
    ],
)
def test_table_of_the_reference(condition: str, wanted: set[str]) -> None:
    """Covers C-385, C-387, C-390, C-391."""
    assert selected(condition) == wanted


def test_failed_parse_ends_the_whole_condition() -> None:
    """Covers C-390, C-583 (kept): even under NOT, even with an alternative that follows."""
    for condition in ("a > 3", "NOT (a > 3)", "a > 3 OR TRUE", "a > 3 IS NULL"):
        assert compile_expression(condition).evaluate({"a": "abc"}) is None
    # What is decided before it is reached stands.
    assert compile_expression("TRUE OR a > 3").matches({"a": "abc"})
    assert compile_expression("FALSE AND a > 3").evaluate({"a": "abc"}) is False


@pytest.mark.parametrize("condition", TABLE + TABLE_5)
def test_conditions_compile_and_evaluate(condition: str) -> None:
    """Covers C-384: evaluation of any message gives true, false or unknown, and raises nothing."""
    expression = compile_expression(condition)
    assert {expression.evaluate(message) for message in messages()} <= {True, False, None}


@pytest.mark.parametrize("condition", WRONG)
def test_wrong_conditions_are_refused_with_their_place(condition: str) -> None:
    """Covers C-388, C-389."""
    with pytest.raises(SubscriptionError) as caught:
        compile_expression(condition)
    position = caught.value.parameters["position"]
    assert 0 <= position <= len(condition)
    assert caught.value.parameters["expression"] == condition


@pytest.mark.parametrize("condition", TRAILING)
def test_trailing_text_is_refused(condition: str) -> None:
    """Covers C-386, C-583 (fixed): the original ignores it."""
    with pytest.raises(SubscriptionError):
        compile_expression(condition)


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        ("a > 'b'", "Value ''b'' cannot be compared."),
        ("a = NULL", "'NULL' cannot be compared"),
        ("a BETWEEN 6 AND 2", r"left value\(6\) must less than or equal to right value\(2\)"),
        ("5 IN ('a')", "Expected a property for In expression, got: 5"),
        ("a + 1 = 6", r"at character 2, '\+ 1 = 6': the condition is complete here"),
        ("a != 5", "!= is not known; write <>"),
        ("a = 'x", "has no end; close it with '"),
        ("a = 1 /* x", "has no end; close it with"),
        ("a = 9223372036854775808", "greater than 9223372036854775807"),
        ("a = 1e400", "greater than the greatest double"),
        ("a = 1e-400", "less than the least double"),
        ("a = 5 AND", "at its end"),
        ("a", None),
    ],
)
def test_errors_say_what_is_wrong(condition: str, text: str | None) -> None:
    """Covers C-389: upstream's words where it has some."""
    if text is None:
        assert compile_expression(condition).text == condition
        return
    with pytest.raises(SubscriptionError, match=text):
        compile_expression(condition)


def test_zero_point_zero_is_a_number() -> None:
    """Covers C-388, C-583 (fixed): the original refuses it."""
    assert compile_expression("a > 0.0").matches({"a": "1e-300"})
    assert not compile_expression("a > 0e0").matches({"a": "-1"})


def test_words_of_5_are_names_elsewhere() -> None:
    """Covers C-384: 4.9 knows properties of these names."""
    assert compile_expression("contains = 'x'").matches({"contains": "x"})
    assert compile_expression("startswith STARTSWITH 'x'").matches({"startswith": "xy"})
    assert not compile_expression("a NOT ENDSWITH 'c'").matches({"a": "abc"})


# --- hostile texts ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "condition",
    [
        "(" * 100_000,
        "(" * (SQL_DEPTH_MAX + 1) + "a = 1" + ")" * (SQL_DEPTH_MAX + 1),
        "NOT " * (SQL_DEPTH_MAX + 1) + "a",
        "- " * 30_000 + "5 = a",
        "- " * (SQL_DEPTH_MAX + 1) + "5 = a",
        "- " * (SQL_DEPTH_MAX + 1) + "a = 5",
        "a" + " = a" * 20_000,
        "a" + " IS NULL" * (SQL_DEPTH_MAX + 1),
        "a = 1" + " OR a = 1" * 10_000,
        "'" * 65_535,
        "/*" * 30_000,
        "x" * (SQL_EXPRESSION_CHARS_MAX + 1),
        "a = " + "9" * 10_000,
        "a = 1e" + "9" * 10_000,
    ],
)
def test_deep_and_long_texts_are_refused(condition: str) -> None:
    """Hostile input ends with an error, neither in a RecursionError nor after minutes."""
    with pytest.raises(SubscriptionError):
        compile_expression(condition)


def test_parentheses_nest_as_deep_as_is_said() -> None:
    assert compile_expression("(" * 64 + "a = 1" + ")" * 64).matches({"a": "1"})
    with pytest.raises(SubscriptionError, match="nested 64 levels deep"):
        compile_expression("(" * 65 + "a = 1" + ")" * 65)
    beside = " AND ".join("(" * 60 + "a = 1" + ")" * 60 for _ in range(5))
    assert compile_expression(beside).matches({"a": "1"})


def test_long_but_flat_conditions_are_taken() -> None:
    """AND and OR do not nest, however many parts they join; neither do long lists."""
    many = " OR ".join(f"a = '{number}'" for number in range(2_000))
    assert compile_expression(many).matches({"a": "1999"})
    listed = ", ".join(f"'{number}'" for number in range(5_000))
    assert compile_expression(f"a IN ({listed})").matches({"a": "4999"})
    deep = "(" * (SQL_DEPTH_MAX - 1) + "NOT (a = 1)" + ")" * (SQL_DEPTH_MAX - 1)
    assert compile_expression(deep).matches({"a": "2"})


WORDS = [
    "a", "b", "AND", "OR", "NOT", "IS", "NULL", "IN", "BETWEEN", "TRUE", "=", "<>", "<", ">=", "(",
    ")", ",", "-", "+", "5", "5.5", ".5", "'x'", "''", "CONTAINS", "/*", "*/", "--", "\n", "'", ".",
]  # fmt: skip


@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(WORDS), max_size=20).map(" ".join)))
def test_any_text_compiles_or_is_refused(text: str) -> None:
    """Nothing but SubscriptionError comes out of a text, and evaluation raises nothing."""
    try:
        expression = compile_expression(text)
    except SubscriptionError:
        return
    for properties in ({}, {"a": "5", "b": "x"}, {"a": "1e999", "x": "-"}):
        assert expression.evaluate(properties) in (True, False, None)


# --- a model ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """A condition with what a plain reading of it says."""

    text: str
    value: Callable[[dict[str, str]], bool | None]


class FailedError(Exception):
    """The model's evaluation ends: a property is no number."""


SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def integer_of(text: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or not -(2**31) <= int(text) < 2**31:
        raise FailedError
    return int(text)


def compared(name: str, sign: str, number: int) -> Made:
    def value(properties: dict[str, str]) -> bool | None:
        text = properties.get(name)
        return None if text is None else SIGNS[sign](integer_of(text), number)

    return Made(f"{name} {sign} {number}" if number >= 0 else f"{name} {sign} - {-number}", value)


def listed(name: str, texts: list[str], negated: bool) -> Made:
    def value(properties: dict[str, str]) -> bool | None:
        text = properties.get(name)
        return None if text is None else (text in texts) is not negated

    quoted = ", ".join("'" + text.replace("'", "''") + "'" for text in texts)
    return Made(f"{name} {'NOT ' if negated else ''}IN ({quoted})", value)


def null_test(name: str, negated: bool) -> Made:
    text = f"{name} IS {'NOT ' if negated else ''}NULL"
    return Made(text, lambda properties: (name in properties) is negated)


def inverted(inner: Made) -> Made:
    def value(properties: dict[str, str]) -> bool | None:
        known = inner.value(properties)
        return None if known is None else not known

    return Made(f"NOT ({inner.text})", value)


def joined(word: str, left: Made, right: Made) -> Made:
    decisive = word == "OR"

    def value(properties: dict[str, str]) -> bool | None:
        first = left.value(properties)
        if first is decisive:
            return decisive
        second = right.value(properties)
        if second is decisive:
            return decisive
        return None if first is None or second is None else not decisive

    return Made(f"({left.text}) {word} ({right.text})", value)


NAMES = st.sampled_from(["a", "b", "c"])
TEXTS = st.sampled_from(["5", "-3", "0", "x", "it's", "2147483648", "7"])
LEAVES = st.one_of(
    st.builds(compared, NAMES, st.sampled_from(list(SIGNS)), st.integers(-9, 9)),
    st.builds(listed, NAMES, st.lists(TEXTS, min_size=1, max_size=6), st.booleans()),
    st.builds(null_test, NAMES, st.booleans()),
)
CONDITIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(inverted, inner),
        st.builds(joined, st.sampled_from(["AND", "OR"]), inner, inner),
    ),
    max_leaves=12,
)
PROPERTIES = st.dictionaries(NAMES, TEXTS)


@given(CONDITIONS, PROPERTIES)
def test_evaluation_is_the_models(made: Made, properties: dict[str, str]) -> None:
    """Covers C-384, C-390, C-392: SQL's three values, and failures that end the evaluation."""
    try:
        wanted = made.value(properties)
    except FailedError:
        wanted = None
    assert compile_expression(made.text).evaluate(properties) is wanted


# --- values -------------------------------------------------------------------------------------


@given(st.integers(-(2**70), 2**70))
def test_integers_are_read_within_their_range(number: int) -> None:
    """Covers C-390."""
    for reader, bits in ((parse_integer, 32), (parse_long, 64)):
        if -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
            assert reader(str(number)) == number
        else:
            with pytest.raises(EvaluationError):
                reader(str(number))


@given(st.floats(allow_nan=False))
def test_doubles_are_read_exactly(number: float) -> None:
    """Covers C-390."""
    text = repr(number).replace("inf", "Infinity")
    assert parse_double(f" {text} ") == number
    if number not in (float("inf"), float("-inf")):
        assert parse_double(number.hex()) == number


@pytest.mark.parametrize("text", ["", " ", "5_0", "abc", "inf", "nan", "0x10", "1e", "--5", "5 5"])
def test_texts_that_are_no_numbers_are_refused(text: str) -> None:
    with pytest.raises(EvaluationError):
        parse_double(text)


@given(st.floats(), st.floats())
def test_doubles_have_javas_total_order(left: float, right: float) -> None:
    """``Double.compare``: antisymmetric, NaN equal to itself and above all."""
    assert compare_doubles(left, right) == -compare_doubles(right, left)
    assert compare_doubles(left, left) == 0
    assert compare_doubles(0.0, -0.0) == 1
    if right == right:
        assert compare_doubles(float("nan"), right) == 1


@pytest.mark.parametrize(("reader", "bits"), [(parse_integer, 32), (parse_long, 64)])
def test_integers_end_where_javas_end(reader: Callable[[str], int], bits: int) -> None:
    high = 2 ** (bits - 1) - 1
    assert reader(f"+00{high}") == high
    assert reader(str(-high - 1)) == -high - 1
    for beyond in (high + 1, -high - 2, 10**19, -(10**19)):
        with pytest.raises(EvaluationError):
            reader(str(beyond))


@pytest.mark.parametrize("text", ["0e5", "0.0E-9", "00.0e0", "0.e1"])
def test_zero_has_any_exponent(text: str) -> None:
    """It is no number that is too small; 1e-999 is one."""
    assert compile_expression(f"a = {text}").matches({"a": "0"})
    with pytest.raises(SubscriptionError, match="less than the least double"):
        compile_expression("a = 1e-999")


def test_a_search_through_a_text_counts_for_thirty_two_parts() -> None:
    """One more for the property: 186 of them are as many as a condition may have parts."""
    assert compile_expression(" OR ".join(["a CONTAINS 'x'"] * 186)).matches({"a": "x"})
    with pytest.raises(SubscriptionError, match="may have 6144 parts"):
        compile_expression(" OR ".join(["a CONTAINS 'x'"] * 187))


# --- edges --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "value", "wanted"),
    [
        ("a <= 2147483647", "2147483647", True),
        ("a > 2147483647", "2147483648", None),
        ("a > 2147483648", "2147483649", True),
        ("a < 2147483648", "2147483647", True),
        ("a = 9223372036854775807", "9223372036854775807", True),
        ("a <= 9223372036854775807", "9223372036854775808", None),
        ("a < 2147483648.0", "2147483647", True),
    ],
)
def test_a_literal_has_32_bits_if_it_fits_and_else_64(
    condition: str, value: str, wanted: bool | None
) -> None:
    """Covers C-388 and C-390: a property is read as a number of the literal's size, or not."""
    assert compile_expression(condition).evaluate({"a": value}) is wanted


@pytest.mark.parametrize(
    ("before", "condition", "after", "most"),
    [
        ("- ", "5 = a", "", SQL_DEPTH_MAX - 2),
        ("- ", "'x' = a", "", SQL_DEPTH_MAX - 2),
        ("NOT ", "(a = 5)", "", SQL_DEPTH_MAX - 2),
        ("", "a", " IS NULL", SQL_DEPTH_MAX - 1),
        ("", "a", " = a", SQL_DEPTH_MAX - 1),
        ("", "TRUE", " = (a > 1)", SQL_DEPTH_MAX - 2),
    ],
)
def test_operators_nest_as_deep_as_is_said(
    before: str, condition: str, after: str, most: int
) -> None:
    compile_expression(before * most + condition + after * most)
    with pytest.raises(SubscriptionError, match=f"nested {SQL_DEPTH_MAX} levels deep"):
        compile_expression(before * (most + 1) + condition + after * (most + 1))


@pytest.mark.parametrize("pair", ["1 AND 'x'", "'x' AND 1", "TRUE AND 1", "1 AND FALSE"])
@pytest.mark.parametrize("word", ["BETWEEN", "NOT BETWEEN"])
def test_what_has_no_order_bounds_nothing(pair: str, word: str) -> None:
    """Covers C-389."""
    with pytest.raises(SubscriptionError, match="cannot be compared"):
        compile_expression(f"a {word} {pair}")


def test_a_condition_has_as_many_words_and_characters_as_it_may() -> None:
    listed = ", ".join(["'x'"] * ((SQL_TOKENS_MAX - 4) // 2))
    condition = f"a IN ({listed})"
    words = 4 + 2 * ((SQL_TOKENS_MAX - 4) // 2) - 1
    full = "+" * (SQL_TOKENS_MAX - words)
    assert compile_expression(condition).matches({"a": "x"})
    assert tokens_of(full + condition)[-2].text == ")"
    with pytest.raises(SubscriptionError, match=f"may have {SQL_TOKENS_MAX} words"):
        tokens_of(full + "+" + condition)
    longest = "a = 1".ljust(SQL_EXPRESSION_CHARS_MAX)
    assert compile_expression(longest).matches({"a": "1"})
    with pytest.raises(SubscriptionError, match=f"MAX: {SQL_EXPRESSION_CHARS_MAX}") as caught:
        compile_expression(longest + " ")
    assert caught.value.parameters["position"] == SQL_EXPRESSION_CHARS_MAX


@pytest.mark.parametrize(
    ("condition", "position"),
    [
        ("a = 1 /* x", 6),
        ("a = 'x", 4),
        ("a = 1 ? b", 6),
        ("a != 5", 2),
        ("a = 1 b = 2", 6),
        ("a = 1 b = 'a text of more than twenty characters'", 6),
        ("a = 1 /*/ b", 6),
        ("a = 1 AND 5", 0),
        ("b = 1 AND (a > 'b')", 11),
        ("a IN ('x' 'y')", 10),
        ("a IN (5)", 6),
        ("a BETWEEN 1 OR 2", 12),
        ("a IS 5", 5),
        ("a IS NOT 5", 9),
        ("a = ", 4),
        ("a CONTAINS b", 11),
    ],
)
def test_an_error_names_the_place_of_the_mistake(condition: str, position: int) -> None:
    with pytest.raises(SubscriptionError) as caught:
        compile_expression(condition)
    assert caught.value.parameters["position"] == position
    where = f"at character {position}, {condition[position:][:20]!r}"
    assert (where if condition[position:] else "at its end") in caught.value.message


def test_a_condition_has_as_many_parts_as_it_may() -> None:
    """Two operands and a comparison three times, what joins them, and the whole."""
    many = " OR ".join(["a = 1"] * ((SQL_PARTS_MAX - 3) // 3))
    assert compile_expression(many + " OR TRUE").parts == SQL_PARTS_MAX
    with pytest.raises(SubscriptionError, match=f"may have {SQL_PARTS_MAX} parts"):
        compile_expression(many + " OR TRUE OR TRUE")


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("9007199254740993 = 9007199254740992", False),
        ("9007199254740993 > 9007199254740992", True),
        ("9007199254740993 = 9007199254740992.0", True),
        ("9007199254740992.0 = 9007199254740993", True),
        ("a = 9007199254740992", False),
        ("a > 9007199254740992", True),
        ("a = 9007199254740992.0", True),
        ("9007199254740992.0 < a", False),
        ("TRUE = 1", None),
        ("a = TRUE", False),
    ],
)
def test_whole_numbers_are_compared_exactly_and_others_as_doubles(
    condition: str, wanted: bool | None
) -> None:
    """Covers C-390: a long and a double compare as Java's do, which round the long."""
    if wanted is None:
        with pytest.raises(SubscriptionError, match="cannot be compared with"):
            compile_expression(condition)
    else:
        assert compile_expression(condition).evaluate({"a": "9007199254740993"}) is wanted


@pytest.mark.parametrize(
    ("condition", "properties", "wanted"),
    [
        ("a BETWEEN 5 AND 5", {"a": "5"}, True),
        ("a BETWEEN 5 AND 6", {"a": "6"}, True),
        ("a BETWEEN 5 AND 6", {"a": "7"}, False),
        ("a NOT BETWEEN 5 AND 6", {"a": "5"}, False),
        ("a NOT BETWEEN 5 AND 6", {"a": "6"}, False),
        ("a NOT BETWEEN 5 AND 6", {"a": "7"}, True),
        ("a NOT BETWEEN 5 AND 6", {"a": "4"}, True),
        ("a BETWEEN b AND 6", {"a": "5"}, None),
        ("a BETWEEN b AND 6", {"a": "7"}, False),
        ("a = b", {}, True),
        ("a = b", {"a": "5"}, False),
        ("a = b", {"b": "5"}, None),
        ("a = b", {"a": "5", "b": "5.0"}, False),
        ("a < b", {"a": "9", "b": "10"}, True),
        ("a <= b", {"a": "5", "b": " 5.0d "}, True),
        ("a < b", {"a": "5"}, None),
        ("a < b", {"b": "5"}, None),
        ("- a = 5", {"a": "5"}, None),
        ("- a IS NULL", {"a": "5"}, True),
        ("a = - 5", {"a": "-5"}, True),
        ("- - 5 = a", {"a": "5"}, True),
        ("+ a = + 5", {"a": "5"}, True),
        ("1 = TRUE", {}, False),
        ("TRUE = TRUE", {}, True),
        ("TRUE <> FALSE", {}, True),
        ("(a = 5) = 5", {"a": "5"}, False),
        ("(a = 5) = (b = 6)", {"a": "5", "b": "6"}, True),
        ("(a = 5) = (b = 6)", {"a": "5", "b": "7"}, False),
        ("(a = 5) = 'true'", {"a": "5"}, None),
        ("a = 'it''s'", {"a": "it's"}, True),
        ("a CONTAINS 'x'", {}, False),
        ("a NOT CONTAINS 'x'", {}, False),
        ("a NOT CONTAINS 'x'", {"a": "y"}, True),
        ("a CONTAINS ''", {"a": "y"}, False),
        ("a NOT CONTAINS ''", {"a": "y"}, False),
        ("5 CONTAINS '5'", {}, False),
        ("NULL", {}, None),
        ("NOT a", {"a": "true"}, True),
        ("NOT a", {}, None),
    ],
)
def test_operators_say_what_the_originals_say(
    condition: str, properties: dict[str, str], wanted: bool | None
) -> None:
    """Covers C-389 to C-392 and C-583."""
    assert compile_expression(condition).evaluate(properties) is wanted


@pytest.mark.parametrize("pair", ["NULL AND 5", "5 AND NULL", "NULL AND NULL"])
def test_null_bounds_nothing(pair: str) -> None:
    with pytest.raises(SubscriptionError, match="values can not be null"):
        compile_expression(f"a BETWEEN {pair}")


@pytest.mark.parametrize("pair", ["6 AND 5", "5.5 AND 5", "2147483648 AND 5", "1e9 AND 5L"])
def test_bounds_of_any_kind_are_in_order(pair: str) -> None:
    with pytest.raises(SubscriptionError, match="must less than or equal to right value"):
        compile_expression(f"a BETWEEN {pair}")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5f", 5.0), ("5.D", 5.0), (".5e1F", 5.0), ("+5", 5.0), ("-Infinity", float("-inf")),
        ("+Infinity", float("inf")), ("0x1p3", 8.0), ("-0X.8P1d", -1.0), ("0x1p9999", float("inf")),
        ("-0x1p9999", float("-inf")), ("\x00 5\x1f", 5.0), ("0" * 399 + "5", 5.0),
    ],
)  # fmt: skip
def test_a_double_is_whatever_java_takes_for_one(text: str, number: float) -> None:
    """``Double.valueOf``: suffixes, hexadecimal digits, and what ``String.trim`` takes away."""
    assert parse_double(text) == number
    for beyond in ("!" + text, text + "!", "\xa0" + text, text + "ff"):
        with pytest.raises(EvaluationError):
            parse_double(beyond)


def test_not_a_number_is_one_of_them() -> None:
    for text in ("NaN", "-NaN", "+NaN", " NaN "):
        assert parse_double(text) != parse_double(text)
    assert compare_doubles(float("nan"), -float("nan")) == 0
    assert compare_doubles(float("inf"), float("nan")) == -1
    assert compare_doubles(-0.0, 0.0) == -1
    assert compare_doubles(-5.0, -5.0) == 0


@pytest.mark.parametrize("reader", [parse_integer, parse_long, parse_double])
def test_a_longer_text_is_no_number(reader: Callable[[str], float]) -> None:
    assert reader("0" * 399 + "5") == 5
    with pytest.raises(EvaluationError):
        reader("0" * 400 + "5")


def test_the_properties_of_a_condition_are_told_in_their_order() -> None:
    text = "b = 1 AND a IS NULL OR (b > 2 AND c CONTAINS 'd') OR e IN ('f') OR TRUE"
    assert property_names(text) == ("b", "a", "c", "e")
    assert property_names("TRUE") == ()
    assert repr(compile_expression("a = 'x'")) == """Expression("a = 'x'")"""
    with pytest.raises(SubscriptionError):
        property_names("a = 'x")
