"""Rows as programs read them."""

from __future__ import annotations

from rocketstream.admin.state import TopicQueue
from rocketstream.cli.output import json_line, json_of


def test_rows_have_rocketmq_style_names_in_json() -> None:
    row = TopicQueue("t", "broker-a", 0, 1, 2, None)
    assert json_of(row) == {
        "topic": "t",
        "brokerName": "broker-a",
        "queueId": 0,
        "minOffset": 1,
        "maxOffset": 2,
        "lastUpdateMs": None,
    }


def test_json_lines_keep_text_readable() -> None:
    assert json_line({"body": "é"}) == '{"body":"é"}'
