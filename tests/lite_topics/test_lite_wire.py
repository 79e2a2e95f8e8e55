"""Lite topics on the wire: names, queues and headers as Apache's 5.5.0 classes make them."""

from __future__ import annotations

import pytest

from rocketstream.protocol.headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    Header,
    NotifyUnsubscribeLiteRequestHeader,
    PopLiteMessageRequestHeader,
    PopLiteMessageResponseHeader,
)
from rocketstream.protocol.lite import lite_queue_index, lite_queue_name, order_counts, receipt

RECEIPT = "7 1700000000000 60000 999 0 broker-a 0 7"

HEADERS: list[tuple[Header, dict[str, str]]] = [
    (
        PopLiteMessageRequestHeader("c@1", "g", "T", 32, 60_000, 15_000, 1_700_000_000_000),
        {
            "bornTime": "1700000000000", "clientId": "c@1", "consumerGroup": "g",
            "invisibleTime": "60000", "maxMsgNum": "32", "pollTime": "15000", "topic": "T",
        },
    ),
    (
        PopLiteMessageResponseHeader(1, 60_000, 999, order_count_info="0;1"),
        {"invisibleTime": "60000", "orderCountInfo": "0;1", "popTime": "1", "reviveQid": "999"},
    ),
    (
        AckMessageRequestHeader("g", "T", 0, RECEIPT, 7, "a"),
        {
            "consumerGroup": "g", "extraInfo": RECEIPT, "liteTopic": "a", "offset": "7",
            "queueId": "0", "topic": "T",
        },
    ),
    (
        ChangeInvisibleTimeRequestHeader("g", "T", 0, "x", 7, 5_000, "a"),
        {
            "consumerGroup": "g", "extraInfo": "x", "invisibleTime": "5000", "liteTopic": "a",
            "offset": "7", "queueId": "0", "topic": "T",
        },
    ),
    (
        ChangeInvisibleTimeResponseHeader(1, 2, 999),
        {"invisibleTime": "2", "popTime": "1", "reviveQid": "999"},
    ),
    (
        NotifyUnsubscribeLiteRequestHeader("a", "g", "c"),
        {"clientId": "c", "consumerGroup": "g", "liteTopic": "a"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("header", "ext"), HEADERS, ids=lambda one: type(one).__name__)
def test_a_header_is_what_javas_class_writes(header: Header, ext: dict[str, str]) -> None:
    """Java also writes ``suspend=false`` where a message is hidden longer; it may be left out."""
    assert header.to_ext() == ext
    assert type(header).from_ext(ext) == header


def test_a_receipt_is_what_java_builds() -> None:
    """``ExtraInfoUtil.buildExtraInfo`` of 5.5.0 wrote the text."""
    assert receipt("broker-a", 7, 1_700_000_000_000, 60_000) == RECEIPT


def test_the_queue_of_a_lite_topic_is_named_after_its_parent() -> None:
    assert lite_queue_name("agents", "a-1") == "%LMQ%$agents$a-1"


@pytest.mark.parametrize(
    ("name", "count", "index"),
    [
        ("a0", 1, 0), ("a0", 16, 7), ("a0", 1000, 777), ("agent-7", 16, 2), ("agent-7", 1000, 552),
        ("x", 16, 12), ("x", 1000, 36), ("session_42|b", 1000, 87), ("agent-99999", 1000, 532),
        ("Z" * 22, 16, 1), ("Z" * 22, 1000, 590),
    ],
)  # fmt: skip
def test_a_lite_topic_belongs_to_the_queue_brokers_look_for_it_in(
    name: str, count: int, index: int
) -> None:
    """Guava's ``Hashing.consistentHash(name.hashCode(), count)`` gave the numbers."""
    assert lite_queue_index(name, count) == index


def test_receptions_before_are_told_by_message_or_not_at_all() -> None:
    """5.5.0 writes bare zeros for first ones, else those that were received with their offsets."""
    assert order_counts("0;0", [4, 5]) == [0, 0]
    assert order_counts("0 qo0%1 2;0 qo0%2 1;0", [1, 2, 9]) == [2, 1, 0]
    assert order_counts("0 qo0%2 1;0", [2, 3, 8]) == [1, 0, 0]
    assert order_counts(f"0 qo0%2 {'9' * 5_000};0", [2, 3]) == [0, 0]
    assert order_counts("0 qo0%12 1", [2, 12]) == [0, 1]
    assert order_counts(None, [1, 2]) == [0, 0]
    assert order_counts("x", [1]) == [0]
    assert order_counts("0", [7, 8]) == [0, 0]
    assert order_counts("0 qo0%7 x;0 qo0%8 3", [7, 8]) == [0, 3]
    assert order_counts("0 qo0%17 2", [7, 17]) == [0, 2]
    assert order_counts("", [1]) == [0]
