"""Sending, in every form, to a running cluster."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from rocketstream import Message, MessageQueue, SendResult, SendStatus
from rocketstream.admin import Admin
from rocketstream.errors import (
    ConfigurationError,
    ConnectError,
    MessageInvalidError,
    RouteNotFoundError,
    SendError,
    SendOutcome,
)
from tests.kits.cluster import Cluster
from tests.kits.faces import Producer
from tests.kits.listeners import WAIT_S, Seen, consumer_of, numbered
from tests.plugins.clusters import Names
from tests.plugins.waiting import wait_until

pytestmark = pytest.mark.usefixtures("face")


def raising(queues: object, message: object, arg: object) -> MessageQueue:
    raise LookupError("no queue for it")


choosing_nothing: Any = lambda queues, message, arg: None  # noqa: E731


def consumed(cluster: Cluster, names: Names, count: int) -> Seen:
    """Consume ``count`` messages of the topic with a group of its own."""
    seen = Seen()
    with consumer_of(cluster.namesrv_addr, names.group, names.topic, seen):
        seen.wait_consumed(count)
    return seen


def test_a_sent_message_arrives_as_it_was_sent(cluster: Cluster, names: Names) -> None:
    """Covers C-449, C-450, C-452, C-223, C-233."""
    cluster.create_topic(names.topic, 1)
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        message = Message(
            names.topic, b"\x00body", tags="A", keys=["k1", "k2"], properties={"p": "v"}, flag=5
        )
        result = producer.send(message)
    assert result.send_status is SendStatus.SEND_OK
    assert result.msg_id == message.msg_id
    assert result.message_queue.topic == names.topic
    (got,) = consumed(cluster, names, 1).consumed
    assert (got.body, got.tags, got.keys, got.flag) == (b"\x00body", "A", "k1 k2", 5)
    assert got.get_property("p") == "v"
    assert (got.msg_id, got.offset_msg_id) == (result.msg_id, result.offset_msg_id)
    assert (got.queue_offset, got.topic, got.reconsume_times) == (
        result.queue_offset,
        names.topic,
        0,
    )
    assert int(got.properties["MAX_OFFSET"]) == 1
    assert int(got.properties["CONSUME_START_TIME"]) > 0


def test_messages_spread_over_all_queues(cluster: Cluster, names: Names) -> None:
    """Covers C-460."""
    cluster.create_topic(names.topic, 4)
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        queues = Counter(
            producer.send(message).message_queue.queue_id
            for message in numbered(names.topic, range(8))
        )
    assert queues == {0: 2, 1: 2, 2: 2, 3: 2}


def test_a_sharding_key_keeps_order_in_one_queue(cluster: Cluster, names: Names) -> None:
    """Covers C-470, C-471."""
    cluster.create_topic(names.topic, 4)
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        results: dict[str, list[SendResult]] = {}
        for number in range(40):
            key = f"key{number % 5}"
            message = Message(names.topic, f"{key}:{number}")
            results.setdefault(key, []).append(producer.send(message, sharding_key=key))
            assert results[key][0].message_queue == producer.queue_of(names.topic, key)
    for sent in results.values():
        assert len({result.message_queue for result in sent}) == 1
        offsets = [result.queue_offset for result in sent]
        assert offsets == sorted(offsets)


def test_selector_and_fixed_queue_are_honoured(cluster: Cluster, names: Names) -> None:
    """Covers C-469, C-470."""
    cluster.create_topic(names.topic, 4)
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        queues = producer.fetch_publish_message_queues(names.topic)
        assert [queue.queue_id for queue in queues] == [0, 1, 2, 3]
        message = Message(names.topic, b"x")
        assert producer.send(message, message_queue=queues[2]).message_queue == queues[2]
        picked = producer.send(message, selector=lambda mqs, m, arg: mqs[arg], arg=3)
        assert picked.message_queue == queues[3]
        with pytest.raises(MessageInvalidError, match="give a queue of the message's topic"):
            producer.send(message, message_queue=MessageQueue("Other", "broker-a", 0))
        with pytest.raises(SendError, match=r"The broker\[broker-x\] not exist") as raised:
            producer.send(message, message_queue=MessageQueue(names.topic, "broker-x", 0))
        assert raised.value.outcome is SendOutcome.NOT_SENT
        with pytest.raises(SendError, match="the selector of the queue raised"):
            producer.send(message, selector=raising)
        with pytest.raises(SendError, match="the selector returned None"):
            producer.send(message, selector=choosing_nothing)
        with pytest.raises(
            ConfigurationError, match="one of message_queue, selector, sharding_key"
        ):
            producer.send(message, message_queue=queues[0], sharding_key="k")


def test_a_batch_goes_to_one_queue_in_order(cluster: Cluster, names: Names) -> None:
    """Covers C-476, C-478."""
    cluster.create_topic(names.topic, 4)
    messages = numbered(names.topic, range(100), tags="T")
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        result = producer.send(messages)
    assert result.msg_id.split(",") == [message.msg_id for message in messages]
    assert len(result.offset_msg_id.split(",")) == 100
    seen = consumed(cluster, names, 100)
    by_offset = sorted(seen.consumed, key=lambda m: m.queue_offset)
    assert [m.body.decode() for m in by_offset] == [str(n) for n in range(100)]
    assert {m.queue_id for m in by_offset} == {result.message_queue.queue_id}
    assert by_offset[0].queue_offset == result.queue_offset


def test_a_batch_over_the_limit_is_split_and_kept_in_order(cluster: Cluster, names: Names) -> None:
    """Covers C-477, C-478: 5 x 1 MiB need two requests."""
    cluster.create_topic(names.topic, 4)
    bodies = [bytes([65 + n]) * (1024 * 1024) for n in range(5)]
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        results = producer.send_batch([Message(names.topic, body) for body in bodies])
        assert [len(result.msg_id.split(",")) for result in results] == [3, 2]
        assert len({result.message_queue for result in results}) == 1
        joined = producer.send([Message(names.topic, body) for body in bodies])
        assert len(joined.msg_id.split(",")) == 5
        later = producer.send_async([Message(names.topic, body) for body in bodies]).result(WAIT_S)
        assert len(later.msg_id.split(",")) == 5
    seen = consumed(cluster, names, 15)
    queue = [m for m in seen.consumed if m.queue_id == results[0].message_queue.queue_id]
    queue.sort(key=lambda m: m.queue_offset)
    assert [m.body[:1] for m in queue][:5] == [b"A", b"B", b"C", b"D", b"E"]


def test_large_bodies_are_compressed_on_the_way(cluster: Cluster, names: Names) -> None:
    """Covers C-454."""
    cluster.create_topic(names.topic, 1)
    body = b"0123456789" * 10_000
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        producer.send(Message(names.topic, body))
    (got,) = consumed(cluster, names, 1).consumed
    assert got.body == body
    assert got.body_size < len(body) // 10


def test_a_body_at_the_limit_goes_and_one_over_it_does_not(cluster: Cluster, names: Names) -> None:
    """Covers C-86, C-453."""
    cluster.create_topic(names.topic, 1)
    with Producer(
        "pg", namesrv_addr=cluster.namesrv_addr, compress_msg_body_over_howmuch=1 << 30
    ) as producer:
        limit = 4 * 1024 * 1024
        assert producer.send(Message(names.topic, b"x" * limit)).send_status is SendStatus.SEND_OK
        with pytest.raises(MessageInvalidError, match="over max value, MAX: 4194304") as raised:
            producer.send(Message(names.topic, b"x" * (limit + 1)))
    assert raised.value.outcome is SendOutcome.NOT_SENT


def test_many_threads_send_through_one_producer(cluster: Cluster, names: Names) -> None:
    """Thread safety: nothing lost, every result its own message's."""
    cluster.create_topic(names.topic, 4)
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:

        def work(thread: int) -> list[tuple[str, str | None]]:
            sent = []
            for number in range(50):
                message = Message(names.topic, f"{thread}-{number}")
                sent.append((producer.send(message).msg_id, message.msg_id))
            return sent

        with ThreadPoolExecutor(16) as pool:
            sent = [pair for pairs in pool.map(work, range(16)) for pair in pairs]
    assert all(result == own for result, own in sent)
    assert len({result for result, _ in sent}) == 800
    wait_until(lambda: sum(cluster.ends(names.topic, 4)) == 800, "everything stored")


def test_futures_resolve_and_callbacks_run_off_the_network_thread(
    cluster: Cluster, names: Names
) -> None:
    """A callback may block, and may send again."""
    cluster.create_topic(names.topic, 4)
    done = threading.Event()
    names_of_threads: list[str] = []
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:

        def again(future: Future[SendResult]) -> None:
            names_of_threads.append(threading.current_thread().name)
            if len(names_of_threads) == 20:
                done.set()
            else:
                producer.send(Message(names.topic, b"from a callback"))
                producer.send_async(Message(names.topic, b"next")).add_done_callback(again)

        producer.send_async(Message(names.topic, b"first"), callback=again)
        assert done.wait(WAIT_S)
        futures = [producer.send_async(m) for m in numbered(names.topic, range(500))]
        results = [future.result(WAIT_S) for future in futures]
        assert {result.send_status for result in results} == {SendStatus.SEND_OK}
        future = producer.send_async(Message(names.topic, b"x"), sharding_key="k")
        assert future.result(WAIT_S).message_queue == producer.queue_of(names.topic, "k")
    assert not any("callbacks" not in name and "Main" not in name for name in names_of_threads)


def test_shutdown_waits_for_what_is_on_its_way(cluster: Cluster, names: Names) -> None:
    """Covers C-448: every future of a producer that was shut down is resolved."""
    cluster.create_topic(names.topic, 4)
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        futures = [producer.send_async(m) for m in numbered(names.topic, range(300))]
    assert all(future.done() for future in futures)
    wait_until(lambda: sum(cluster.ends(names.topic, 4)) == 300, "everything stored")


def test_oneway_messages_arrive(cluster: Cluster, names: Names) -> None:
    """Covers C-472."""
    cluster.create_topic(names.topic, 2)
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        for message in numbered(names.topic, range(20)):
            producer.send_oneway(message)
        assert set(consumed(cluster, names, 20).bodies) == {str(n) for n in range(20)}


def test_an_unknown_topic_is_created_from_the_template(cluster: Cluster, names: Names) -> None:
    """Covers C-138, C-422: four queues although the template has eight."""
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        queues = {producer.send(m).message_queue.queue_id for m in numbered(names.topic, range(8))}
        assert queues == {0, 1, 2, 3}
        fetched = producer.fetch_publish_message_queues(names.topic)
        assert len(fetched) == 4


def test_a_topic_nobody_can_create_has_no_route(cluster: Cluster, names: Names) -> None:
    """Covers C-457: the text names topic and name server; the error is a SendError as well."""
    with Producer(
        "pg", namesrv_addr=cluster.namesrv_addr, create_topic_key="NoSuchTemplate"
    ) as producer:
        with pytest.raises(
            RouteNotFoundError,
            match=f"No route info of this topic: {names.topic}.*{cluster.namesrv_addr}",
        ) as raised:
            producer.send(Message(names.topic, b"x"))
        assert isinstance(raised.value, SendError)
        assert raised.value.outcome is SendOutcome.NOT_SENT
        with pytest.raises(RouteNotFoundError):
            producer.send_async(Message(names.topic, b"x")).result(WAIT_S)
        with pytest.raises(RouteNotFoundError):
            producer.fetch_publish_message_queues(names.topic)


def test_a_topic_that_may_not_be_written_is_not_to_be_created(
    cluster: Cluster, names: Names
) -> None:
    """Covers C-136, C-457: it has no route for a send, and making it anew would not help."""
    cluster.create_topic(names.topic, 1)
    with Admin(cluster.namesrv_addr) as admin:
        admin.changes.apply(admin.changes.topic_update_plan(names.topic, perm=4))
    with (
        Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer,
        pytest.raises(
            RouteNotFoundError, match=f"topic is there.*topic update {names.topic} --perm rw"
        ),
    ):
        producer.send(Message(names.topic, b"x"))


def test_an_unreachable_name_server_is_named(closed_port: int) -> None:
    """Covers C-458: a defined error with every address tried."""
    addresses = f"127.0.0.1:{closed_port};localhost:{closed_port}"
    with Producer("pg", namesrv_addr=addresses) as producer:
        for form in (producer.send, lambda m: producer.send_async(m).result(WAIT_S)):
            with pytest.raises(ConnectError) as raised:
                form(Message("T", b"x"))
            assert isinstance(raised.value, SendError)
            assert raised.value.outcome is SendOutcome.NOT_SENT
            assert f"127.0.0.1:{closed_port}" in str(raised.value)
            assert f"localhost:{closed_port}" in str(raised.value)


def test_one_dead_name_server_among_two_does_no_harm(
    cluster: Cluster, names: Names, closed_port: int
) -> None:
    """Covers C-139."""
    cluster.create_topic(names.topic, 1)
    addresses = f"127.0.0.1:{closed_port};{cluster.namesrv_addr}"
    for _ in range(4):  # the order is shuffled per client
        with Producer("pg", namesrv_addr=addresses) as producer:
            assert producer.send(Message(names.topic, b"x")).send_status is SendStatus.SEND_OK


def test_a_refused_message_says_so(cluster: Cluster, names: Names) -> None:
    """Covers C-461: a queue that does not exist is refused by the broker, not stored."""
    cluster.create_topic(names.topic, 1)
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        broker = producer.fetch_publish_message_queues(names.topic)[0].broker_name
        far = MessageQueue(names.topic, broker, 99)
        forms: list[Any] = [
            lambda m: producer.send(m, message_queue=far),
            lambda m: producer.send_async(m, message_queue=far).result(WAIT_S),
        ]
        for form in forms:
            with pytest.raises(SendError, match=r"queueId\[99\] is illegal") as raised:
                form(Message(names.topic, b"x"))
            assert raised.value.outcome is SendOutcome.REJECTED
