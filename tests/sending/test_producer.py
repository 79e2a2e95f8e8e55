"""What a producer asks and does besides plain sends, on a running cluster."""

from __future__ import annotations

import time

import pytest

from rocketstream import (
    Message,
    MessageQueue,
    SelectMessageQueueByHash,
    SelectMessageQueueByRandom,
    SendMessageContext,
)
from rocketstream.errors import ConfigurationError, OffsetNotFoundError, RouteNotFoundError
from tests.kits.cluster import Cluster
from tests.kits.faces import Producer
from tests.kits.listeners import WAIT_S, Seen, consumer_of, numbered
from tests.plugins.clusters import Names
from tests.plugins.waiting import wait_until

pytestmark = pytest.mark.usefixtures("face")

FOREVER_MS = 2**62


def test_a_topic_is_created_where_the_key_topic_is(cluster: Cluster, names: Names) -> None:
    """createTopic: as many queues as asked for, usable at once after its route is known."""
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        producer.create_topic("TBW102", names.topic, 3)

        def queues() -> list[MessageQueue]:
            try:
                return producer.fetch_publish_message_queues(names.topic)
            except RouteNotFoundError:
                return []

        wait_until(lambda: len(queues()) in (3, 4), "route of the new topic")
        assert producer.send(Message(names.topic, b"x"))
        with pytest.raises(ConfigurationError, match="belongs to the brokers themselves"):
            producer.create_topic("TBW102", "SCHEDULE_TOPIC_XXXX", 1)
        with pytest.raises(RouteNotFoundError):
            producer.create_topic("NoSuchKeyTopic", names.topic, 1)


def test_offsets_of_a_queue_are_told(cluster: Cluster, names: Names) -> None:
    """maxOffset, minOffset, searchOffset, earliestMsgStoreTime."""
    cluster.create_topic(names.topic, 1)
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        (mq,) = producer.fetch_publish_message_queues(names.topic)
        assert (producer.max_offset(mq), producer.min_offset(mq)) == (0, 0)
        assert producer.earliest_msg_store_time(mq) == -1
        for message in numbered(names.topic, range(5)):
            producer.send(message)
        wait_until(lambda: producer.max_offset(mq) == 5, "the queue's end")
        assert producer.min_offset(mq) == 0
        assert producer.search_offset(mq, 0) == 0
        stored = producer.earliest_msg_store_time(mq)
        assert abs(time.time() * 1000 - stored) < 600_000
        with pytest.raises(RouteNotFoundError, match=r"broker\[nobody\] not exist"):
            producer.max_offset(MessageQueue(names.topic, "nobody", 0))


def test_a_message_is_found_by_both_ids_and_by_key(cluster: Cluster, names: Names) -> None:
    """Covers C-449, C-450: viewMessage by offset id and by UNIQ_KEY, queryMessage by key."""
    cluster.create_topic(names.topic, 1)
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        results = [
            producer.send(Message(names.topic, str(n), keys=["all", f"key{n}"])) for n in range(3)
        ]
        wanted = results[1]
        assert producer.view_message(names.topic, wanted.offset_msg_id).body == b"1"
        wait_until(
            lambda: len(producer.query_message(names.topic, "all", 32, 0, FOREVER_MS)) == 3,
            "the index of keys",
        )
        assert producer.view_message(names.topic, wanted.msg_id).body == b"1"
        (found,) = producer.query_message(names.topic, "key2", 32, 0, FOREVER_MS)
        assert (found.body, found.topic, found.msg_id) == (b"2", names.topic, results[2].msg_id)
        assert len(producer.query_message(names.topic, "all", 2, 0, FOREVER_MS)) == 2
        assert producer.query_message(names.topic, "nothing", 32, 0, FOREVER_MS) == []
        with pytest.raises(OffsetNotFoundError, match="has the id"):
            producer.view_message(names.topic, "0" * 32)


def test_ready_made_selectors_choose(cluster: Cluster, names: Names) -> None:
    """Covers C-471: one key, one queue, the one its sharding key has; random reaches all."""
    cluster.create_topic(names.topic, 4)
    by_hash, by_random = SelectMessageQueueByHash(), SelectMessageQueueByRandom()
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        for key in ("a", "order-1", "标签"):
            message = Message(names.topic, key)
            queues = {
                producer.send(message, selector=by_hash, arg=key).message_queue for _ in range(3)
            }
            assert queues == {producer.queue_of(names.topic, key)}
        number = producer.send(Message(names.topic, b"x"), selector=by_hash, arg=7).message_queue
        assert number.queue_id == 3
        drawn = {
            producer.send(Message(names.topic, b"x"), selector=by_random).message_queue.queue_id
            for _ in range(60)
        }
        assert drawn == {0, 1, 2, 3}


def test_delay_levels_hold_messages_back(cluster: Cluster, names: Names) -> None:
    """Covers C-452: and REAL_TOPIC tells where a delayed message was to go."""
    cluster.create_topic(names.topic, 1)
    seen = Seen()
    with (
        Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer,
        consumer_of(cluster.namesrv_addr, names.group, names.topic, seen),
    ):
        producer.send(Message(names.topic, b"later", delay_level=1))
        seen.wait_consumed(1)
    (got,) = seen.consumed
    assert (got.topic, got.delay_level) == (names.topic, 1)
    assert got.get_property("REAL_TOPIC") == names.topic


def test_slow_and_failing_brokers_are_noted_only_when_asked_for(
    cluster: Cluster, names: Names
) -> None:
    """Covers C-88, C-466: with one healthy broker it changes nothing; all queues get their turn."""
    cluster.create_topic(names.topic, 4)
    with Producer(
        "pg", namesrv_addr=cluster.namesrv_addr, send_latency_fault_enable=True
    ) as producer:
        results = [producer.send(m) for m in numbered(names.topic, range(16))]
    queues = {result.message_queue.queue_id for result in results}
    assert queues == {0, 1, 2, 3}


def test_hooks_see_what_is_sent(cluster: Cluster, names: Names) -> None:
    """Covers C-475."""
    cluster.create_topic(names.topic, 1)
    ended: list[SendMessageContext] = []

    class Hook:
        name = "after"

        def send_message_before(self, context: SendMessageContext) -> None:
            pass

        def send_message_after(self, context: SendMessageContext) -> None:
            ended.append(context)

    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        producer.register_send_message_hook(Hook())
        one = producer.send(Message(names.topic, b"x"))
        two = producer.send_async(Message(names.topic, b"y")).result(WAIT_S)
    assert [context.send_result for context in ended] == [one, two]


def test_a_namespace_separates_topics_and_groups(cluster: Cluster, names: Names) -> None:
    """Covers C-148: a producer and a consumer of one namespace meet; a stranger sees nothing."""
    cluster.create_topic(f"ns%{names.topic}", 1)
    seen = Seen()
    with Producer("pg", namesrv_addr=cluster.namesrv_addr, namespace="ns") as producer:
        result = producer.send(Message(names.topic, b"inside"))
        assert result.message_queue.topic == names.topic
        (mq,) = producer.fetch_publish_message_queues(names.topic)
        assert mq.topic == names.topic
        wait_until(lambda: producer.max_offset(mq) == 1, "the queue's end")
        assert producer.view_message(names.topic, result.offset_msg_id).topic == names.topic
    with consumer_of(cluster.namesrv_addr, names.group, names.topic, seen, namespace="ns"):
        seen.wait_consumed(1)
    (got,) = seen.consumed
    assert (got.topic, got.get_property("INSTANCE_ID")) == (names.topic, "ns")
