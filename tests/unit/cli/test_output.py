"""Numbers, times and rows as people and programs read them."""

from __future__ import annotations

import pytest

from rocketstream.admin.rows import TopicStatusRow
from rocketstream.cli.output import as_json, duration, json_line, moment, number, plural


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (None, "unknown"),
        (0, "0"),
        (850, "850 ms"),
        (12_340, "12.3 s"),
        (245_000, "4 min 05 s"),
        (11_400_000, "3 h 10 min"),
        (187_200_000, "2 d 4 h"),
    ],
)
def test_durations_keep_two_units(milliseconds: int | None, text: str) -> None:
    assert duration(milliseconds) == text


def test_unknown_is_never_shown_as_zero() -> None:
    assert number(None) == "unknown"
    assert number(0) == "0"
    assert moment(None) == "-"


def test_plural_agrees_with_the_count() -> None:
    assert [plural(n, "queue") for n in (0, 1, 8_000)] == ["0 queues", "1 queue", "8,000 queues"]


def test_rows_have_rocketmq_style_names_in_json() -> None:
    row = TopicStatusRow("t", "broker-a", 0, 1, 2, None)
    assert as_json(row) == {
        "topic": "t",
        "brokerName": "broker-a",
        "queueId": 0,
        "minOffset": 1,
        "maxOffset": 2,
        "lastUpdateMs": None,
    }


def test_json_lines_keep_text_readable() -> None:
    assert json_line({"body": "é"}) == '{"body":"é"}'
