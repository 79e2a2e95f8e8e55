"""``--from`` values: what is accepted, and what they become."""

from __future__ import annotations

import datetime

import pytest

from rocketstream.cli.commands import parse_start, upstream_timestamp
from rocketstream.errors import ConfigurationError


@pytest.mark.parametrize("word", ["earliest", "latest", " earliest "])
def test_words_are_taken_as_they_are(word: str) -> None:
    start = parse_start(word)
    assert start.name == word.strip()
    assert start.timestamp_ms is None


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1714564800000", 1_714_564_800_000),
        ("2024-05-01T12:00:00Z", 1_714_564_800_000),
        ("2024-05-01T14:00:00+02:00", 1_714_564_800_000),
    ],
)
def test_moments_become_milliseconds(text: str, milliseconds: int) -> None:
    assert parse_start(text).timestamp_ms == milliseconds


def test_moment_without_zone_is_local_time() -> None:
    local = datetime.datetime(2024, 5, 1, 12).timestamp() * 1000
    assert parse_start("2024-05-01T12:00:00").timestamp_ms == local
    assert parse_start("20240501120000").timestamp_ms == local


def test_upstream_form_is_local_time_to_the_second() -> None:
    """Covers C-33: yyyyMMddHHmmss."""
    assert upstream_timestamp(parse_start("20240501120000").timestamp_ms or 0) == "20240501120000"


@pytest.mark.parametrize("text", ["", "soon", "-5", "2024-13-01", "99999999999999", "12:00"])
def test_anything_else_names_what_is_accepted(text: str) -> None:
    with pytest.raises(ConfigurationError, match="accepted are earliest, latest"):
        parse_start(text)
