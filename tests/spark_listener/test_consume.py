"""Listeners on Spark: retries come back on time, dead letters, in order, by value, claims."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rocketstream import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus
from rocketstream.admin import Admin
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.errors import ClientStateError
from rocketstream.model import ConsumeFromWhere, MessageQueue, MessageSelector
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark import SparkPushConsumer, consume
from tests.kits.spark.support import numbered, send

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER
LONG_S = 120.0
NewTopic = Callable[..., str]
Seen = list[tuple[int, int]]


@pytest.fixture(scope="module")
def soon() -> Iterator[EmbeddedCluster]:
    """A cluster whose every delay level is a second."""
    with EmbeddedCluster(delay_levels="1s 1s 1s 1s 1s 1s") as running:
        yield running


class Notes:
    """What listeners in other processes were given: a line each, ``number tries``."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "notes")
        Path(self.path).touch()

    def seen(self) -> Seen:
        lines = Path(self.path).read_text().splitlines()
        return [(int(number), int(tries)) for number, tries in map(str.split, lines)]

    def wait_for(self, count: int, query: Any) -> Seen:
        pause = threading.Event()
        for _ in range(int(LONG_S / 0.05)):
            if len(seen := self.seen()) >= count:
                return seen
            assert query.isActive, query.exception()
            pause.wait(0.05)
        raise AssertionError(f"{len(seen)} of {count}: {seen}")


@pytest.fixture
def notes(tmp_path: Path) -> Notes:
    return Notes(tmp_path)


def failing_listener(path: str, failing: dict[int, int]) -> Any:
    """A listener that fails a number as often as told, and notes every call."""

    def listener(messages: list[Any]) -> ConsumeConcurrentlyStatus:
        (message,) = messages
        number = int(message.body)
        with open(path, "a") as notes:
            notes.write(f"{number} {message.reconsume_times}\n")
        return LATER if message.reconsume_times < failing.get(number, 0) else SUCCESS

    return listener


@pytest.mark.core
def test_failures_come_back_and_poison_becomes_a_dead_letter(
    spark: Any, soon: EmbeddedCluster, notes: Notes, tmp_path: Path
) -> None:
    """The facade as a whole: claim, retries, dead letters, suspension, offsets, and goodbye."""
    soon.create_topic("orders", queues=2)
    send(soon, "orders", 0, numbered(0, 10))
    send(soon, "orders", 1, numbered(10, 10))
    consumer = SparkPushConsumer(
        "billing",
        spark,
        str(tmp_path / "checkpoint"),
        namesrv_addr=soon.namesrv_addr,
        listener=failing_listener(notes.path, {3: 1, 14: 99}),
        subscription={"orders": "*"},
        max_reconsume_times=2,
    )
    with consumer, Admin(soon.namesrv_addr) as admin:
        seen = notes.wait_for(23, consumer.query)
        assert Counter(seen) == Counter(
            [(number, 0) for number in range(20)] + [(3, 1), (14, 1), (14, 2)]
        )
        (member,) = admin.groups.connections("billing").members
        assert member.client_id == consumer.client_id
        rival = SparkPushConsumer(
            "billing", spark, str(tmp_path / "other"), namesrv_addr=soon.namesrv_addr,
            listener=failing_listener(notes.path, {}), subscription={"orders": "*"},
        )  # fmt: skip
        with pytest.raises(ClientStateError, match=f"live members: {consumer.client_id}"):
            rival.start()

        consumer.suspend()
        send(soon, "orders", 0, numbered(20, 5))
        assert not consumer.query.isActive
        assert consumer.client_id
        first = spark.read.format("rocketmq").option("nameServer", soon.namesrv_addr)
        first = first.option("topic", "orders").load().where("body = '3'").first()
        asked = admin.messages.consume("billing", consumer.client_id, "orders", first.msgId)
        assert (asked.result, asked.remark) == ("CR_LATER", None)
        assert notes.seen()[23:] == [(3, 0)]
        consumer.resume()
        assert sorted(notes.wait_for(29, consumer.query)[24:]) == [(n, 0) for n in range(20, 25)]
    assert consumer.state.name == "SHUTDOWN_ALREADY"
    with BlockingAdminClient(soon.namesrv_addr) as client:
        assert client.max_offset(MessageQueue("%DLQ%billing", "broker-a", 0)) == 1
        for topic in ("orders", "%RETRY%billing"):
            for queue in client.subscribe_queues(topic):
                assert client.query_consumer_offset("billing", queue) == client.max_offset(queue)


@pytest.mark.core
@pytest.mark.long
def test_a_condition_selects_and_every_tool_sees_it(
    spark: Any, soon: EmbeddedCluster, notes: Notes, tmp_path: Path
) -> None:
    """What fails comes again whatever the condition, as with every push consumer.

    It is started in a thread of its own, where Spark knows no session: web servers do that.
    """
    soon.create_topic("prices", queues=1)
    for number in range(4):
        send(soon, "prices", 0, numbered(number, 1, price=str(number)))
    consumer = SparkPushConsumer(
        "pricing",
        spark,
        str(tmp_path / "checkpoint"),
        namesrv_addr=soon.namesrv_addr,
        listener=failing_listener(notes.path, {3: 1}),
        subscription={"prices": MessageSelector.by_sql("price >= 2")},
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        consume_thread_max=2,
    )
    with ThreadPoolExecutor(1) as other:
        other.submit(consumer.start).result()
    with consumer, Admin(soon.namesrv_addr) as admin:
        assert sorted(notes.wait_for(3, consumer.query)) == [(2, 0), (3, 0), (3, 1)]
        seen = {each.topic: each for each in admin.groups.connections("pricing").subscriptions}
    assert seen["prices"].expression == "price >= 2"


@pytest.mark.core
@pytest.mark.long
def test_a_checkpoint_is_one_groups(
    spark: Any, soon: EmbeddedCluster, notes: Notes, tmp_path: Path
) -> None:
    """Another group would go on where the first one was, and leave its failures behind."""
    soon.create_topic("shared", queues=1)

    def consumer(group: str) -> SparkPushConsumer:
        return SparkPushConsumer(
            group, spark, str(tmp_path / "checkpoint"), namesrv_addr=soon.namesrv_addr,
            listener=failing_listener(notes.path, {}), subscription={"shared": "*"},
            trigger={"availableNow": True}, consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        )  # fmt: skip

    send(soon, "shared", 0, numbered(0, 2))
    with consumer("one") as first:
        first.await_termination()
    with (
        consumer("two") as second,
        pytest.raises(Exception, match=r"the checkpoint is of group 'one'"),
    ):
        second.await_termination()
    assert notes.seen() == [(0, 0), (1, 0)]


@pytest.mark.core
def test_a_queue_is_consumed_in_order_behind_any_transform(
    spark: Any, soon: EmbeddedCluster, tmp_path: Path
) -> None:
    """The rows are shuffled before; each queue is brought into one task and sorted."""
    soon.create_topic("bookings", queues=2)
    send(soon, "bookings", 0, numbered(0, 30))
    send(soon, "bookings", 1, numbered(30, 30))
    path = str(tmp_path / "order")

    def listener(messages: list[Any]) -> ConsumeOrderlyStatus:
        with open(path, "a") as notes:
            for message in messages:
                notes.write(f"{message.queue_id} {bytes(message.body).decode()}\n")
        return ConsumeOrderlyStatus.SUCCESS

    rows = spark.read.format("rocketmq").option("nameServer", soon.namesrv_addr)
    rows = rows.option("topic", "bookings").load().orderBy("msgId", "body").repartition(3)
    consume(
        rows, listener, orderly=True, group="booking", nameServer=soon.namesrv_addr,
        consumeMessageBatchMaxSize=4,
    ).save()  # fmt: skip
    seen: dict[str, list[int]] = {"0": [], "1": []}
    for line in Path(path).read_text().splitlines():
        queue, number = line.split()
        seen[queue].append(int(number))
    assert seen == {"0": list(range(30)), "1": list(range(30, 60))}
