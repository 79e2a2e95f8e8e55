"""Consuming: everything once, tags, retries, dead letters, offsets, where to begin."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import datetime, timedelta

import pytest

from rocketstream import (
    ClientConfig,
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    Message,
    MessageExt,
)
from rocketstream.admin import Admin
from rocketstream.client.consumer.consume import concurrent
from rocketstream.errors import ClientStateError, ConnectError, RocketMQError
from tests.kits.cluster import Cluster
from tests.kits.faces import Producer, PushConsumer
from tests.kits.listeners import (
    LATER,
    SUCCESS,
    WAIT_S,
    Gate,
    Seen,
    consumer_of,
    numbered,
    send_all,
)
from tests.plugins.clusters import Names
from tests.plugins.waiting import wait_until

pytestmark = pytest.mark.usefixtures("face")


@pytest.mark.parametrize("batch", [1, 7])
def test_every_message_is_consumed_once_and_committed(
    cluster: Cluster, names: Names, batch: int
) -> None:
    """Covers C-224, C-260, C-265, C-303, C-321: after shutdown the commit is the end."""
    cluster.create_topic(names.topic, 4)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(1000)))
    seen = Seen()
    with consumer_of(
        cluster.namesrv_addr,
        names.group,
        names.topic,
        seen,
        consume_message_batch_max_size=batch,
    ):
        seen.wait_consumed(1000)
    assert sorted(map(int, seen.bodies)) == list(range(1000))
    assert cluster.committed(names.group, names.topic, 4) == cluster.ends(names.topic, 4)


def test_messages_sent_later_arrive_too(cluster: Cluster, names: Names) -> None:
    """Covers C-225: the broker holds the pull until something comes."""
    cluster.create_topic(names.topic, 2)
    seen = Seen()
    with (
        consumer_of(cluster.namesrv_addr, names.group, names.topic, seen),
        Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer,
    ):
        for number in range(20):
            producer.send(Message(names.topic, str(number)))
            seen.wait_consumed(number + 1)
    assert seen.bodies == [str(n) for n in range(20)]


def test_only_matching_tags_are_delivered(cluster: Cluster, names: Names) -> None:
    """Covers C-99, C-220, C-226: what does not match is passed over and still committed."""
    cluster.create_topic(names.topic, 1)
    messages = [
        Message(names.topic, f"{tag}{n}", tags=tag or None)
        for n in range(10)
        for tag in ("A", "B", "C", "")
    ]
    seen = Seen()
    with consumer_of(cluster.namesrv_addr, names.group, names.topic, seen, "A || B"):
        send_all(cluster.namesrv_addr, messages)
        # Alone: those above reach the broker in any order, and what comes behind the last match
        # may be filtered out, and committed, only after the shutdown.
        send_all(cluster.namesrv_addr, [Message(names.topic, "last", tags="A")])
        seen.wait_consumed(21)
    assert sorted(seen.bodies) == sorted([f"{t}{n}" for n in range(10) for t in "AB"] + ["last"])
    assert cluster.committed(names.group, names.topic, 1) == [41]


def test_tags_of_equal_hash_are_told_apart(cluster: Cluster, names: Names) -> None:
    """Covers C-220: "Aa" and "BB" have one hash, so the broker lets both pass."""
    cluster.create_topic(names.topic, 1)
    seen = Seen()
    send_all(
        cluster.namesrv_addr,
        [Message(names.topic, tag, tags=tag) for tag in ("Aa", "BB", "Aa", "BB")],
    )
    with consumer_of(cluster.namesrv_addr, names.group, names.topic, seen, "Aa"):
        seen.wait_consumed(2)
    assert seen.delivered == ["Aa", "Aa"]


def test_a_failed_message_comes_back_and_succeeds(cluster: Cluster, names: Names) -> None:
    """Covers C-256, C-270, C-276, C-277: original topic, same id and body, one more retry."""
    cluster.create_topic(names.topic, 2)
    first_seen: set[str] = set()

    def verdict(message: MessageExt) -> ConsumeConcurrentlyStatus:
        if int(message.body) % 5 == 0 and message.msg_id not in first_seen:
            first_seen.add(message.msg_id)
            return LATER
        return SUCCESS

    seen = Seen(verdict)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(50), tags="A", keys="k"))
    with consumer_of(cluster.namesrv_addr, names.group, names.topic, seen):
        seen.wait_consumed(50)
    assert sorted(map(int, seen.bodies)) == list(range(50))
    retried = [m for m in seen.consumed if m.reconsume_times]
    assert sorted(int(m.body) for m in retried) == list(range(0, 50, 5))
    for message in retried:
        assert (message.topic, message.tags, message.keys) == (names.topic, "A", "k")
        assert message.reconsume_times == 1
        assert message.properties["RETRY_TOPIC"] == names.topic
        assert message.properties["REAL_TOPIC"] == f"%RETRY%{names.group}"
        assert "ORIGIN_MESSAGE_ID" in message.properties
    assert cluster.committed(names.group, names.topic, 2) == cluster.ends(names.topic, 2)


class Whim(BaseException):
    """Not even an Exception."""


@pytest.mark.parametrize(
    "answer", [None, "CONSUME_SUCCESS", Exception("no"), Whim("no"), KeyboardInterrupt()]
)
def test_whatever_is_no_status_means_later(
    cluster: Cluster, names: Names, answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-261: None, a wrong type, any exception; the log names queue, offset and id."""
    cluster.create_topic(names.topic, 1)
    seen = Seen()

    def listener(messages: list[MessageExt]) -> object:
        if messages[0].reconsume_times == 0:
            if isinstance(answer, BaseException):
                raise answer
            return answer
        return seen(messages)

    send_all(cluster.namesrv_addr, numbered(names.topic, range(3)))
    with consumer_of(cluster.namesrv_addr, names.group, names.topic, listener):
        seen.wait_consumed(3)
    assert {m.reconsume_times for m in seen.consumed} == {1}
    lines = [r.getMessage() for r in caplog.records if "RECONSUME_LATER" in r.getMessage()]
    assert len(lines) == 3
    assert all(f"topic={names.topic}" in line and "msgId=" in line for line in lines)


def test_a_hopeless_message_becomes_a_dead_letter(
    cluster: Cluster, names: Names, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-274, C-275, C-399: N = 2 gives three deliveries, then %DLQ% with the count 3."""
    cluster.create_topic(names.topic, 1)
    seen = Seen(lambda message: LATER if message.body == b"1" else SUCCESS)
    dead = Seen()
    send_all(cluster.namesrv_addr, numbered(names.topic, range(3)))
    undertaker = consumer_of(
        cluster.namesrv_addr, f"{names.group}-dead", f"%DLQ%{names.group}", dead
    )
    with consumer_of(cluster.namesrv_addr, names.group, names.topic, seen, max_reconsume_times=2):
        seen.wait_deliveries(5)
        with undertaker:
            dead.wait_consumed(1)
    deliveries = [m.reconsume_times for m in seen.deliveries if m.body == b"1"]
    assert deliveries == [0, 1, 2]
    (letter,) = dead.consumed
    assert (letter.body, letter.reconsume_times) == (b"1", 3)
    (told,) = [each for each in caplog.messages if "is given up" in each]
    assert f"of topic {names.topic} is given up by group {names.group} after 3 tries" in told
    assert letter.msg_id in told
    assert letter.properties["RETRY_TOPIC"] == names.topic


def test_level_minus_one_gives_up_at_once(cluster: Cluster, names: Names) -> None:
    """Covers C-264, C-276."""
    cluster.create_topic(names.topic, 1)
    dead = Seen()

    def listener(
        messages: list[MessageExt], context: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus:
        context.delay_level_when_next_consume = -1
        return LATER

    send_all(cluster.namesrv_addr, numbered(names.topic, [7]))
    with (
        consumer_of(cluster.namesrv_addr, names.group, names.topic, listener),
        consumer_of(cluster.namesrv_addr, f"{names.group}-dead", f"%DLQ%{names.group}", dead),
    ):
        dead.wait_consumed(1)
    assert (dead.consumed[0].body, dead.consumed[0].reconsume_times) == (b"7", 1)


def test_ack_index_fails_only_the_rest_of_a_batch(cluster: Cluster, names: Names) -> None:
    """Covers C-262: the front is done, the rest comes back."""
    cluster.create_topic(names.topic, 1)
    batches: list[list[str]] = []
    seen = Seen()

    def listener(
        messages: list[MessageExt], context: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus:
        batches.append([m.body.decode() for m in messages])
        if messages[0].reconsume_times == 0:
            context.ack_index = 3
        messages.clear()  # the list is the listener's own
        return SUCCESS

    def remember(
        messages: list[MessageExt], context: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus:
        assert context.message_queue.broker_name == messages[0].broker_name
        copied = list(messages)
        status = listener(messages, context)
        seen(copied[: context.ack_index + 1])
        return status

    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        producer.send(numbered(names.topic, range(10)))
    with consumer_of(
        cluster.namesrv_addr,
        names.group,
        names.topic,
        remember,
        consume_message_batch_max_size=10,
    ):
        seen.wait_consumed(10)
    counts = Counter(body for batch in batches for body in batch)
    assert counts == {str(n): 1 if n < 4 else 2 for n in range(10)}
    assert cluster.committed(names.group, names.topic, 1) == [10]


def test_one_slow_message_holds_the_commit_back_and_nothing_else(
    cluster: Cluster, names: Names
) -> None:
    """Covers C-241, C-265: others of its queue are consumed; the commit waits at the slow one."""
    cluster.create_topic(names.topic, 1)
    gate = Gate(lambda message: message.body == b"3")
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        producer.send(numbered(names.topic, range(100)))
    with consumer_of(cluster.namesrv_addr, names.group, names.topic, gate) as consumer:
        gate.seen.wait_consumed(99)
        assert gate.entered.is_set()
        consumer.shutdown(await_ms=0)
    assert cluster.committed(names.group, names.topic, 1) == [3]
    gate.opened.set()


def test_shutdown_lets_running_listeners_finish(cluster: Cluster, names: Names) -> None:
    """Covers C-119 to C-121: what was begun is finished and committed, the rest is left."""
    cluster.create_topic(names.topic, 1)
    gate = Gate(lambda message: True)
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        producer.send(numbered(names.topic, range(20)))
    consumer = consumer_of(
        cluster.namesrv_addr, names.group, names.topic, gate, consume_thread_min=1,
        consume_thread_max=1,
    )  # fmt: skip
    consumer.start()
    assert gate.entered.wait(30)
    closing = threading.Thread(target=consumer.shutdown)
    closing.start()
    gate.opened.set()
    closing.join(30)
    assert not closing.is_alive()
    finished = len(gate.seen.consumed)
    assert 1 <= finished <= 20
    assert cluster.committed(names.group, names.topic, 1) == [finished]

    rest = Seen()
    with consumer_of(cluster.namesrv_addr, names.group, names.topic, rest):
        rest.wait_consumed(20 - finished)
    # In any order: the rest is consumed by several threads.
    assert sorted(map(int, rest.bodies)) == list(range(finished, 20)), "nothing is repeated"


def test_a_listener_may_shut_its_own_consumer_down(
    cluster: Cluster, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-119: it does not wait for itself; its own batch is the next owner's."""
    # Nothing is entered before the end.
    monkeypatch.setattr(concurrent, "FLUSH_INTERVAL_MS", 60_000)
    cluster.create_topic(names.topic, 1)
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        producer.send(numbered(names.topic, range(10)))
    done = threading.Event()
    before: list[str] = []

    def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        if messages[0].body == b"4":
            consumer.shutdown()
            done.set()
        before.append(messages[0].body.decode())
        return SUCCESS

    consumer = consumer_of(
        cluster.namesrv_addr, names.group, names.topic, listener, consume_thread_min=1,
        consume_thread_max=1,
    )  # fmt: skip
    consumer.start()
    assert done.wait(20)
    assert cluster.committed(names.group, names.topic, 1) == [4]
    rest = Seen()
    with consumer_of(cluster.namesrv_addr, names.group, names.topic, rest):
        rest.wait_consumed(6)
    assert sorted(map(int, rest.bodies)) == list(range(4, 10))  # by several threads


def test_shutdown_loses_no_failed_message(cluster: Cluster, names: Names) -> None:
    """Covers C-266: each failed message is either back at the broker or not committed."""
    cluster.create_topic(names.topic, 1)
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        producer.send(numbered(names.topic, range(200)))
    failing = Seen(lambda message: LATER)
    with consumer_of(cluster.namesrv_addr, names.group, names.topic, failing):
        failing.wait_deliveries(100)
    rest = Seen()
    with consumer_of(cluster.namesrv_addr, names.group, names.topic, rest):
        rest.wait_consumed(200)
    assert sorted(map(int, set(rest.bodies))) == list(range(200))


def test_a_restarted_consumer_continues_where_it_stopped(cluster: Cluster, names: Names) -> None:
    """Covers C-190: once there is an offset, where to begin does not matter."""
    cluster.create_topic(names.topic, 2)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(100)))
    first, second = Seen(), Seen()
    with consumer_of(cluster.namesrv_addr, names.group, names.topic, first):
        first.wait_consumed(100)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(100, 150)))
    with consumer_of(
        cluster.namesrv_addr,
        names.group,
        names.topic,
        second,
        consume_from_where=ConsumeFromWhere.LAST_OFFSET,
    ):
        second.wait_consumed(50)
    assert sorted(map(int, second.bodies)) == list(range(100, 150))


def test_first_offset_begins_at_the_beginning(cluster: Cluster, names: Names) -> None:
    """Covers C-189."""
    cluster.create_topic(names.topic, 1)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(5)))
    seen = Seen()
    with consumer_of(cluster.namesrv_addr, names.group, names.topic, seen):
        seen.wait_consumed(5)


@pytest.mark.parametrize("where", [ConsumeFromWhere.LAST_OFFSET, ConsumeFromWhere.TIMESTAMP])
def test_a_new_group_on_a_young_topic_begins_at_the_beginning(
    cluster: Cluster, names: Names, where: ConsumeFromWhere
) -> None:
    """Covers C-195, C-566: the broker answers offset 0, so the setting is not asked."""
    cluster.create_topic(names.topic, 1)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(8)))
    seen = Seen()
    with consumer_of(
        cluster.namesrv_addr, names.group, names.topic, seen, consume_from_where=where
    ):
        seen.wait_consumed(8)


def test_a_topic_created_after_the_start_is_consumed(cluster: Cluster, names: Names) -> None:
    """Covers C-117, C-159: an unknown topic is no error, its route is asked for again."""
    seen = Seen()
    with consumer_of(cluster.namesrv_addr, names.group, names.topic, seen):
        send_all(cluster.namesrv_addr, numbered(names.topic, range(10)))
        seen.wait_consumed(10)


def test_subscribing_and_unsubscribing_while_running(cluster: Cluster, names: Names) -> None:
    """Covers C-103, C-104, C-554: an unsubscribed topic's offsets are stored."""
    other = f"{names.topic}Other"
    cluster.create_topic(names.topic, 1)
    cluster.create_topic(other, 1)
    seen = Seen()
    with consumer_of(cluster.namesrv_addr, names.group, names.topic, seen) as consumer:
        send_all(cluster.namesrv_addr, numbered(names.topic, range(5)))
        seen.wait_consumed(5)
        consumer.subscribe(other)
        send_all(cluster.namesrv_addr, numbered(other, range(5, 10)))
        seen.wait_consumed(10)
        consumer.unsubscribe(names.topic)
        send_all(cluster.namesrv_addr, numbered(other, range(10, 12)))
        seen.wait_consumed(12)
    assert cluster.committed(names.group, names.topic, 1) == [5]
    assert cluster.committed(names.group, other, 1) == [7]


def test_a_suspended_consumer_pulls_nothing_until_resumed(cluster: Cluster, names: Names) -> None:
    """Covers C-203 step 4, C-151."""
    cluster.create_topic(names.topic, 1)
    seen = Seen()
    with consumer_of(cluster.namesrv_addr, names.group, names.topic, seen) as consumer:
        send_all(cluster.namesrv_addr, numbered(names.topic, [0]))
        seen.wait_consumed(1)
        consumer.suspend()
        send_all(cluster.namesrv_addr, numbered(names.topic, range(1, 5)))
        consumer.resume()
        seen.wait_consumed(5)


def test_a_second_consumer_of_the_group_in_one_instance_is_refused(
    cluster: Cluster, names: Names
) -> None:
    """Covers C-107, C-116: the refused one leaves no trace and the first goes on."""
    from rocketstream import ClientConfig

    config = ClientConfig(namesrv_addr=cluster.namesrv_addr, instance_name=names.group)
    cluster.create_topic(names.topic, 1)
    seen = Seen()
    start = ConsumeFromWhere.FIRST_OFFSET  # the messages below may come before the first look
    first = PushConsumer(
        names.group,
        config=config,
        listener=seen,
        consume_from_where=start,
        subscription={names.topic: "*"},
    )
    first.start()
    with first:
        second = PushConsumer(names.group, config=config, listener=Seen())
        with pytest.raises(ClientStateError, match="already; give this one another group"):
            second.start()
        with pytest.raises(ClientStateError, match=r"was started before \(RUNNING"):
            first.start()
        send_all(cluster.namesrv_addr, numbered(names.topic, range(3)))
        seen.wait_consumed(3)
    with pytest.raises(ClientStateError, match=r"was started before \(SHUTDOWN_ALREADY"):
        first.start()


def test_an_unreachable_name_server_fails_the_start_and_leaves_nothing(
    closed_port: int, names: Names
) -> None:
    """Covers C-458, C-595, C-596: every address is named, threads and sockets are gone."""
    consumer = PushConsumer(names.group, namesrv_addr=f"127.0.0.1:{closed_port}", listener=Seen())
    consumer.subscribe(names.topic)
    for _ in range(2):  # a failed start may be tried again
        with pytest.raises(ConnectError, match=f"127.0.0.1:{closed_port}"):
            consumer.start()


def test_timestamp_and_last_offset_matter_once_the_beginning_is_gone(
    cluster: Cluster, names: Names
) -> None:
    """Covers C-24: a timestamp in the past is accepted in upstream's format."""
    cluster.create_topic(names.topic, 1)
    yesterday = (datetime.now() - timedelta(days=1)).strftime("%Y%m%d%H%M%S")
    send_all(cluster.namesrv_addr, numbered(names.topic, range(3)))
    seen = Seen()
    with consumer_of(
        cluster.namesrv_addr,
        names.group,
        names.topic,
        seen,
        consume_from_where=ConsumeFromWhere.TIMESTAMP,
        consume_timestamp=yesterday,
    ):
        seen.wait_consumed(3)


def test_a_group_that_hangs_on_its_first_message_has_all_of_it_as_lag(
    cluster: Cluster, names: Names
) -> None:
    """Covers C-318: where a member begins is committed, though it has finished nothing yet."""
    cluster.create_topic(names.topic, 1)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(30)))
    gate = Gate(lambda message: True)
    config = ClientConfig(namesrv_addr=cluster.namesrv_addr, persist_consumer_offset_interval_ms=50)
    with consumer_of(cluster.namesrv_addr, names.group, names.topic, gate, config=config):
        assert gate.entered.wait(WAIT_S)
        with Admin(cluster.namesrv_addr) as admin:

            def rows() -> list[tuple[int | None, int | None]]:
                try:
                    found = admin.groups.lag(names.group, names.topic)
                except RocketMQError:
                    return []
                return [(row.committed_offset, row.lag) for row in found]

            wait_until(lambda: rows() == [(0, 30)], "the start in the broker's table")
        gate.opened.set()
        gate.seen.wait_consumed(30)
