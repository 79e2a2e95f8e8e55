"""Why a message was sent back: what its copy says of it, and what is read of that."""

from __future__ import annotations

import pytest

from rocketstream import limits
from rocketstream.protocol.cause import SendBackCause, cause_of, one_line

WHOLE = SendBackCause("shop.Refused", "card 7: no", "shop/pay.py:3 pay", 2)


def test_a_cause_is_three_properties_and_read_from_them() -> None:
    told = WHOLE.properties()
    assert told == {
        "SEND_BACK_CAUSE": "shop.Refused: card 7: no",
        "SEND_BACK_WHERE": "shop/pay.py:3 pay",
        "SEND_BACK_TRY": "2",
    }
    assert cause_of(told) == WHOLE
    least = SendBackCause("TIME_OUT")
    assert least.properties() == {"SEND_BACK_CAUSE": "TIME_OUT"}
    assert cause_of(least.properties()) == least
    first = SendBackCause("TIME_OUT", tries=0)
    assert first.properties() == {"SEND_BACK_CAUSE": "TIME_OUT", "SEND_BACK_TRY": "0"}
    assert cause_of(first.properties()) == first


@pytest.mark.parametrize(
    ("text", "tries"),
    [("0", 0), ("999999999", 999_999_999), ("1000000000", None), ("-1", None), ("²", None)],
)
def test_a_try_is_a_number_of_nine_digits_or_not_known(text: str, tries: int | None) -> None:
    """Anybody may have written it."""
    read = cause_of({"SEND_BACK_CAUSE": "E", "SEND_BACK_TRY": text})
    assert read == SendBackCause("E", tries=tries)


def test_a_cause_is_read_no_longer_than_ours_are() -> None:
    """Whoever looks for patterns in a megabyte of a sender's stops everything else."""
    read = cause_of({"SEND_BACK_CAUSE": "a-" * 500_000, "SEND_BACK_WHERE": "b" * 1_000_000})
    assert read is not None
    assert len(read.kind) == limits.SEND_BACK_CAUSE_CHARS_MAX
    assert len(read.where or "") == limits.SEND_BACK_WHERE_CHARS_MAX


@pytest.mark.parametrize("properties", [{}, {"SEND_BACK_CAUSE": ""}, {"SEND_BACK_TRY": "1"}])
def test_without_its_text_there_is_no_cause(properties: dict[str, str]) -> None:
    assert cause_of(properties) is None


def test_a_cause_is_as_long_as_it_may_be() -> None:
    most, where = limits.SEND_BACK_CAUSE_CHARS_MAX, limits.SEND_BACK_WHERE_CHARS_MAX
    for more, ending in ((0, "x"), (1, "…")):
        text = "x" * (most - len("E: ") + more)
        told = SendBackCause("E", text, "y" * (where + more)).properties()
        assert [len(told["SEND_BACK_CAUSE"]), len(told["SEND_BACK_WHERE"])] == [most, where]
        assert told["SEND_BACK_CAUSE"][-1] == ending


def test_a_text_becomes_one_line_of_what_can_be_shown() -> None:
    assert one_line("a\n\tb\x00 \x01c ", 20) == "a b c"
    assert one_line("abcde", 5) == "abcde"
    assert one_line("abcdef", 5) == "abcd…"
    assert one_line("a  \n" * 3, 5) == "a a a"
    assert one_line(" " * 9 + "b", 5) == "b"
    assert one_line(" " * 10 + "b", 5) == ""  # twice as much as is kept is looked at
