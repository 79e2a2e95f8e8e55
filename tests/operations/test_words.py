"""Counts, spans, rates, sizes and moments, one way for every face: unknown is never zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rocketstream.admin.core import words


@pytest.mark.parametrize(
    "render", [words.number, words.span, words.per_second, words.percent, words.size]
)
def test_unknown_is_never_shown_as_zero(render: Callable[[Any], str]) -> None:
    assert render(None) == "unknown"
    assert render(0) in ("0", "0 s", "0%", "0 B")


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0 s"),
        (0.3, "0.3 ms"),
        (0.001, "0.1 ms"),
        (850, "850 ms"),
        (999.7, "1 s"),
        (12_340, "12.3 s"),
        (12_000, "12 s"),
        (59_960, "1 min"),
        (240_000, "4 min"),
        (245_000, "4 min 05 s"),
        (3_599_700, "1 h"),
        (11_400_000, "3 h 10 min"),
        (187_200_000, "2 d 4 h"),
    ],
)
def test_a_span_has_two_units_at_most_and_is_zero_only_for_zero(
    milliseconds: float, text: str
) -> None:
    assert words.span(milliseconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.04, "0.04"), (0.4, "0.4"), (3.21, "3.2"), (1250.4, "1,250")]
)
def test_a_rate_keeps_what_can_be_read(value: float, text: str) -> None:
    assert words.per_second(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0/s"), (1_234.4, "1,234/s"), (1.5, "1.5/s"), (0.2, "12/min"), (0.001, "3.6/h")],
)
def test_a_rate_in_a_sentence_names_the_unit_that_fits(value: float, text: str) -> None:
    assert words.rate(value) == text


def test_plural_agrees_with_the_count() -> None:
    told = [words.plural(n, "queue") for n in (0, 1, 8_000)]
    assert told == ["0 queues", "1 queue", "8,000 queues"]


@pytest.mark.parametrize(
    ("count", "text"), [(512, "512 B"), (1_536, "1.5 KiB"), (21_796_939_366, "20.3 GiB")]
)
def test_sizes_have_units_of_1024(count: int, text: str) -> None:
    assert words.size(count) == text


def test_a_moment_before_or_after_now_is_told_apart() -> None:
    assert words.ago(1_000, 13_000) == "12 s ago"
    assert words.ago(13_000, 1_000) == "in 12 s"
    assert words.ago(1_000, 1_500) == "just now"


def test_a_moment_may_be_none_or_one_that_no_calendar_has() -> None:
    assert words.moment(None) == "-"
    assert words.moment(10**18) == f"{10**18} ms since 1970"
    assert words.moment(1_777_636_800_123, exact=True)[-9:-5] == ".123"


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("billing", "billing"),
        ("billing|reboot", "'billing|reboot'"),
        ("$(reboot)", "'$(reboot)'"),
        ("a\x1b[2J", r"'a\x1b[2J'"),
    ],
)
def test_a_name_is_one_word_of_a_command_that_is_printed(name: str, word: str) -> None:
    """Whoever pastes the command runs nothing else; a name of anybody's may have a bar in it."""
    assert words.word(name) == word
