"""Sends gathered into batches, on a running cluster: nothing a user can see is different."""

from __future__ import annotations

import threading

import pytest

from rocketstream import Message, MessageExt, MessageQueue, SendResult
from rocketstream.errors import SendError, SendOutcome
from tests.kits.cluster import Cluster
from tests.kits.faces import Producer
from tests.kits.listeners import WAIT_S, Seen, consumer_of
from tests.plugins.clusters import Names

pytestmark = pytest.mark.usefixtures("face")

COUNT = 400
NOT_KEPT = {"WAIT", "DELAY"}
"""Properties brokers take off a message: how it is stored, and when it is delivered."""

Stored = dict[tuple[int, int], tuple[Message, SendResult]]


def of_all_kinds(topic: str) -> list[Message]:
    """Messages with tags, keys, properties and flags of their own; some that go alone."""
    return [
        Message(
            topic,
            b"%d|" % n + b"x" * (5_000 if n % 50 == 49 else n % 300),
            tags=f"tag{n % 3}" if n % 4 else None,
            keys=[f"key{n}", "all"] if n % 5 else None,
            properties={"index": str(n), "text": "höhe"} if n % 2 else None,
            flag=n - 100,
            delay_level=1 if n % 80 == 7 else 0,
        )
        for n in range(COUNT)
    ]


def check_each(messages: list[Message], results: list[SendResult], seen: Seen) -> None:
    """Everything came once, as it was sent, and from where its sender was told it is."""
    told = {
        result.msg_id: (message, result) for message, result in zip(messages, results, strict=True)
    }
    assert len(told) == COUNT
    assert len(seen.consumed) == COUNT
    for got in seen.consumed:
        message, result = told.pop(got.msg_id)
        own = {n: v for n, v in message.properties.items() if n not in NOT_KEPT}
        assert {name: got.properties.get(name) for name in own} == own
        assert (got.body, got.flag, got.tags, got.keys) == (
            message.body,
            message.flag,
            message.tags,
            message.keys,
        )
        if "DELAY" not in message.properties:
            assert place_of(got) == (result.message_queue.queue_id, result.queue_offset)
            assert got.offset_msg_id == result.offset_msg_id


def place_of(message: MessageExt) -> tuple[int, int]:
    return message.queue_id, message.queue_offset


def test_gathered_messages_arrive_as_they_were_sent(cluster: Cluster, names: Names) -> None:
    cluster.create_topic(names.topic, 3)
    messages = of_all_kinds(names.topic)
    with Producer("pg", namesrv_addr=cluster.namesrv_addr, auto_batch=True) as producer:
        futures = [producer.send_async(message) for message in messages]
        results = [future.result(WAIT_S) for future in futures]
    seen = Seen()
    with consumer_of(cluster.namesrv_addr, names.group, names.topic, seen):
        seen.wait_consumed(COUNT)
    check_each(messages, results, seen)


def test_threads_that_wait_share_batches(cluster: Cluster, names: Names) -> None:
    """Each ``send`` returns its own place; the messages of one key stay in order."""
    cluster.create_topic(names.topic, 3)
    results: dict[str, list[SendResult]] = {f"key{n}": [] for n in range(8)}
    with Producer("pg", namesrv_addr=cluster.namesrv_addr, auto_batch=True) as producer:

        def send(key: str) -> None:
            for n in range(20):
                message = Message(names.topic, f"{key} {n}")
                results[key].append(producer.send(message, sharding_key=key))

        threads = [threading.Thread(target=send, args=(key,)) for key in results]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
    for key, its in results.items():
        assert len({result.message_queue for result in its}) == 1, key
        offsets = [result.queue_offset for result in its]
        assert offsets == sorted(offsets), key
    places = {(r.message_queue, r.queue_offset) for its in results.values() for r in its}
    assert len(places) == 160


def test_messages_for_one_queue_keep_their_order(cluster: Cluster, names: Names) -> None:
    """Though some of them cannot be in a batch."""
    cluster.create_topic(names.topic, 1)
    with Producer("pg", namesrv_addr=cluster.namesrv_addr, auto_batch=True) as producer:
        (queue,) = producer.fetch_publish_message_queues(names.topic)
        bodies = [b"%d|" % n + b"x" * (6_000 if n % 9 == 4 else 10) for n in range(200)]
        futures = [
            producer.send_async(Message(names.topic, b), message_queue=queue) for b in bodies
        ]
        assert [f.result(WAIT_S).queue_offset for f in futures] == list(range(200))
    seen = Seen()
    with consumer_of(cluster.namesrv_addr, names.group, names.topic, seen):
        seen.wait_consumed(200)
    arrived = sorted(seen.consumed, key=lambda message: message.queue_offset)
    assert [message.body for message in arrived] == bodies


def test_errors_are_those_of_a_send_alone(cluster: Cluster, names: Names) -> None:
    """What cannot be sent is refused; a queue that is not there, by its broker."""
    cluster.create_topic(names.topic, 1)
    with Producer("pg", namesrv_addr=cluster.namesrv_addr, auto_batch=True) as producer:
        (queue,) = producer.fetch_publish_message_queues(names.topic)
        with pytest.raises(SendError, match="body length is zero"):
            producer.send_async(Message(names.topic, b"")).result(WAIT_S)
        far = MessageQueue(names.topic, queue.broker_name, 99)
        futures = [
            producer.send_async(Message(names.topic, b"x"), message_queue=far) for _ in range(20)
        ]
        errors = [future.exception(WAIT_S) for future in futures]
        assert {e.outcome for e in errors if isinstance(e, SendError)} == {SendOutcome.REJECTED}
        assert all(isinstance(e, SendError) for e in errors)
        assert producer.send(Message(names.topic, b"y")).queue_offset == 0
