"""Times and spans as people write them: one reading for every face."""

from __future__ import annotations

import datetime

import pytest

from rocketstream._util.when import moment_ms, span_ms
from rocketstream.admin.core import words

NOON_MS = 1_777_636_800_000


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("500ms", 500), ("90s", 90_000), ("5m", 300_000), ("5min", 300_000), ("5 minutes", 300_000),
        ("2h30m", 9_000_000), (" 2h 30m ", 9_000_000), ("1d", 86_400_000), ("1 week", 604_800_000),
        ("", None), ("5", None), ("m", None), ("5 moons", None), ("5m!", None), ("-5m", None),
    ],
)  # fmt: skip
def test_spans_are_read_as_people_write_them(text: str, milliseconds: int | None) -> None:
    assert span_ms(text) == milliseconds


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("12.3 s", 12_300), ("1.5h", 5_400_000), ("0.5 ms", 0), ("1.5.2 s", None), (".5 s", None)],
)
def test_a_span_may_have_a_fraction(text: str, milliseconds: int | None) -> None:
    assert span_ms(text) == milliseconds


@pytest.mark.parametrize(
    "milliseconds",
    [0, 1, 850, 999, 1_000, 12_300, 59_900, 60_000, 245_000, 11_400_000, 187_200_000, 172_800_000],
)
def test_printed_spans_can_be_typed_back(milliseconds: int) -> None:
    assert span_ms(words.span(milliseconds)) == milliseconds


@pytest.mark.parametrize("text", ["2026-05-01T12:00:00Z", "2026-05-01T14:00+02:00", str(NOON_MS)])
def test_moments_can_be_said_in_many_ways(text: str) -> None:
    assert moment_ms(text) == moment_ms(text, needs_zone=True) == NOON_MS


def test_a_moment_can_be_so_long_ago() -> None:
    assert moment_ms("-15m", NOON_MS) == moment_ms("15m", NOON_MS) == NOON_MS - 900_000
    with pytest.raises(ValueError):
        moment_ms("15m")


@pytest.mark.parametrize("text", ["2024-05-01T12:00:00", "20240501120000"])
def test_a_time_without_a_zone_is_this_machines_or_refused(text: str) -> None:
    """Fourteen digits are upstream's form, and no milliseconds of the year 2611."""
    local_ms = datetime.datetime(2024, 5, 1, 12).timestamp() * 1_000
    assert moment_ms(text, NOON_MS) == local_ms
    with pytest.raises(ValueError, match="names no zone"):
        moment_ms(text, NOON_MS, needs_zone=True)


@pytest.mark.parametrize(
    "text",
    [
        "1", "1700000000", "2024050112", "202405011200", "202412312359", "999999999999",
        "4102444800000", "9999999999999", "1700000000000000", "1700000000000000000",
    ],
)  # fmt: skip
def test_numbers_that_mean_another_time_are_not_taken_for_milliseconds(text: str) -> None:
    """Seconds, a date with its hour, micro- and nanoseconds, and what is on the edges."""
    with pytest.raises(ValueError):
        moment_ms(text, NOON_MS)


@pytest.mark.parametrize("text", ["", "soon", "-5", "12", "2024-13-01", "99999999999999", "12:00"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        moment_ms(text, NOON_MS)
