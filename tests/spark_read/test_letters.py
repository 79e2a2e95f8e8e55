"""Dead letters as rows: where they came from, how often they were tried, since when given up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from rocketstream import ConsumeConcurrentlyStatus, ConsumeFromWhere, PushConsumer
from rocketstream.admin import Admin
from rocketstream.errors import ConfigurationError
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark import dead_letters
from tests.kits.spark.support import BORN_MS, Sent, send

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]


def give_up_all(cluster: EmbeddedCluster, group: str, topic: str, count: int) -> None:
    """Have a group fail each message of a topic once and for all."""
    seen = threading.Semaphore(0)

    def fail(messages: Any, context: Any) -> ConsumeConcurrentlyStatus:
        context.delay_level_when_next_consume = -1
        seen.release()
        return ConsumeConcurrentlyStatus.RECONSUME_LATER

    consumer = PushConsumer(
        group,
        namesrv_addr=cluster.namesrv_addr,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        consume_message_batch_max_size=1,
        send_back_cause=True,
    )
    consumer.subscribe(topic)
    consumer.register_message_listener(fail)
    with consumer:
        for _ in range(count):
            assert seen.acquire(timeout=60)


def test_dead_letters_tell_their_origin_and_their_tries(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(queues=1)
    body = Sent(b"rotten", {"KEYS": "k1", "TAGS": "fruit", "price": "5", "UNIQ_KEY": "A1"})
    send(shared_cluster, topic, 0, [body])
    give_up_all(shared_cluster, "letters", topic, 1)
    with Admin(shared_cluster.namesrv_addr) as admin:
        (original,) = admin.messages.query(topic, "k1")
    (row,) = dead_letters(spark, "letters", nameServer=shared_cluster.namesrv_addr).collect()
    assert row.cause == "RECONSUME_LATER"
    assert row.raisedAt.endswith("fail")
    assert (row.group, row.originTopic) == ("letters", topic)
    assert row.originMsgId == original.offset_msg_id
    assert (row.msgId, row.tags, row.keys, bytes(row.body)) == ("A1", "fruit", "k1", b"rotten")
    assert (row.reconsumeTimes, row.properties["price"]) == (1, "5")
    assert row.bornTimestamp.timestamp() * 1000 == BORN_MS
    assert row.deadTimestamp.timestamp() * 1000 >= original.store_timestamp
    assert (row.brokerName, row.queueId, row.queueOffset) == ("broker-a", 0, 0)


def test_several_groups_are_read_at_once_and_an_unknown_origin_is_null(
    spark: Any, shared_cluster: EmbeddedCluster
) -> None:
    for group in ("one", "two"):
        shared_cluster.create_topic(f"%DLQ%{group}", queues=1)
    send(shared_cluster, "%DLQ%one", 0, [Sent(b"a", {"DLQ_ORIGIN_TOPIC": "t", "RETRY_TOPIC": "u"})])
    send(shared_cluster, "%DLQ%two", 0, [Sent(b"b")])
    frame = dead_letters(spark, "one", "two", nameServer=shared_cluster.namesrv_addr).orderBy(
        "group"
    )
    assert [
        (row.group, row.originTopic, row.originMsgId, row.cause) for row in frame.collect()
    ] == [
        ("one", "t", None, None),
        ("two", None, None, None),
    ]


def test_dead_letters_are_a_stream_too(spark: Any, shared_cluster: EmbeddedCluster) -> None:
    frame = dead_letters(spark, "letters", stream=True, nameServer=shared_cluster.namesrv_addr)
    assert frame.isStreaming
    assert frame.columns[:3] == ["group", "originTopic", "originMsgId"]


@pytest.mark.parametrize(
    ("groups", "options", "said"),
    [
        ((), {}, "name at least one consumer group"),
        (("bad name!",), {}, "illegal characters"),
        (("g",), {"Topic": "t"}, "option 'Topic' does not go with dead_letters"),
    ],
)
def test_what_cannot_be_read_as_dead_letters_is_refused(
    spark: Any, groups: tuple[str, ...], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        dead_letters(spark, *groups, nameServer="h:1", **options)
