"""Whatever a listener does wrong: the documented result, nothing else disturbed, a line in the log.

Every case runs for plain and coroutine listeners, in order and concurrently.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from rocketstream import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    MessageExt,
)
from tests.kits.cluster import Cluster
from tests.kits.faces import PushConsumer
from tests.kits.listeners import WAIT_S, numbered, send_all
from tests.plugins.clusters import Names
from tests.plugins.waiting import wait_until

pytestmark = pytest.mark.usefixtures("face")

FAULTY = b"3"


class Whim(BaseException):
    """Not even an Exception."""


@dataclass(frozen=True)
class Kind:
    """A kind of listener."""

    orderly: bool

    def __str__(self) -> str:
        return "orderly" if self.orderly else "concurrent"

    @property
    def success(self) -> Any:
        return (ConsumeOrderlyStatus if self.orderly else ConsumeConcurrentlyStatus)(
            "SUCCESS" if self.orderly else "CONSUME_SUCCESS"
        )

    @property
    def later(self) -> Any:
        if self.orderly:
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        return ConsumeConcurrentlyStatus.RECONSUME_LATER


KINDS = [Kind(False), Kind(True)]
Fault = Callable[[list[MessageExt]], object]


@dataclass
class Listening:
    """Remembers deliveries; the first one of the faulty message goes to ``fault``."""

    kind: Kind
    fault: Fault
    deliveries: list[tuple[bytes, int, int, int]] = field(default_factory=list)
    consumed: Counter[bytes] = field(default_factory=Counter)

    def handle(self, messages: list[MessageExt]) -> object:
        self.deliveries += [
            (m.body, m.reconsume_times, m.queue_id, m.queue_offset) for m in messages
        ]
        if any(m.body == FAULTY and m.reconsume_times == 0 for m in messages):
            return self.fault(messages)
        self.consumed.update(m.body for m in messages)
        return self.kind.success

    @contextmanager
    def consuming(self, cluster: Cluster, names: Names, **settings: Any) -> Iterator[None]:
        """Consume the topic inside the block; afterwards the consumer is shut down."""
        settings |= {
            "namesrv_addr": cluster.namesrv_addr,
            "consume_from_where": ConsumeFromWhere.FIRST_OFFSET,
            "suspend_current_queue_time_ms": 20,
        }
        consumer = PushConsumer(names.group, **settings)
        consumer.register_message_listener(self.handle, orderly=self.kind.orderly)  # type: ignore[call-overload]
        consumer.subscribe(names.topic)
        with consumer:
            yield


def raising(error: BaseException) -> Fault:
    def fault(_: list[MessageExt]) -> object:
        raise error

    return fault


def stopping(_: list[MessageExt]) -> object:
    return next(iter(()))  # StopIteration, which coroutines may not raise


FAULTS: dict[str, Fault] = {
    "an Exception": raising(ValueError("no")),
    "a RecursionError": raising(RecursionError("deep")),
    "a StopIteration": stopping,
    "a BaseException": raising(Whim("no")),
    "SystemExit": raising(SystemExit(3)),
    "KeyboardInterrupt": raising(KeyboardInterrupt()),
    "GeneratorExit": raising(GeneratorExit()),
    "CancelledError": raising(asyncio.CancelledError()),
    "None": lambda _: None,
    "True": lambda _: True,
    "a name": lambda _: "CONSUME_SUCCESS",
}


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_no_status_makes_the_message_come_again(
    cluster: Cluster, names: Names, kind: Kind, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-261, C-281, C-285: RECONSUME_LATER, or SUSPEND for orderly ones; one log line each.

    The other messages are consumed once; in order, nothing overtakes the one that comes again.
    """
    cluster.create_topic(names.topic, 1)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(6)))
    listening = Listening(kind, FAULTS[fault])
    with caplog.at_level(logging.WARNING), listening.consuming(cluster, names):
        wait_until(lambda: len(listening.consumed) == 6, "everything consumed")
    assert set(listening.consumed.values()) == {1}
    tries = [times for body, times, _, _ in listening.deliveries if body == FAULTY]
    assert tries == [0, 1]
    if kind.orderly:
        offsets = [offset for *_, offset in listening.deliveries]
        assert sorted(offsets) == offsets
    first = next(offset for body, _, _, offset in listening.deliveries if body == FAULTY)
    (line,) = [r.getMessage() for r in caplog.records if "listener r" in r.getMessage()]
    assert kind.later.name in line
    assert f"topic={names.topic} " in line
    assert f"queue=0 offset={first} msgId=" in line
    assert cluster.committed(names.group, names.topic, 1) == [6]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("good", [True, False])
def test_a_listener_may_do_with_its_list_what_it_likes(
    cluster: Cluster, names: Names, kind: Kind, good: bool
) -> None:
    """Covers C-261: the list is the listener's; results count for the messages it was given."""
    cluster.create_topic(names.topic, 1)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(6)))

    def spoil(messages: list[MessageExt]) -> object:
        listening.consumed.update(m.body for m in messages if good)
        messages.clear()
        messages.extend([None] * 3)  # type: ignore[list-item]
        return kind.success if good else kind.later

    listening = Listening(kind, spoil)
    with listening.consuming(cluster, names, consume_message_batch_max_size=2):
        wait_until(lambda: len(listening.consumed) == 6, "everything consumed")
    again = [times for body, times, _, _ in listening.deliveries if body == FAULTY]
    assert again == ([0] if good else [0, 1])
    assert cluster.committed(names.group, names.topic, 1) == [6]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_listener_that_hangs_holds_up_only_its_own(
    cluster: Cluster, names: Names, kind: Kind
) -> None:
    """Covers C-267, C-286: the other queue goes on; in order, nothing overtakes in its own queue.

    The commit stays before the message until its listener returns.
    """
    cluster.create_topic(names.topic, 2)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(8)))
    entered, opened = threading.Event(), threading.Event()

    def hang(messages: list[MessageExt]) -> object:
        entered.set()
        opened.wait(WAIT_S)
        listening.consumed.update(m.body for m in messages)
        return kind.success

    listening = Listening(kind, hang)
    with listening.consuming(cluster, names):
        try:
            assert entered.wait(WAIT_S)
            ((queue, stuck),) = {
                (queue, offset) for body, _, queue, offset in listening.deliveries if body == FAULTY
            }
            ends = cluster.ends(names.topic, 2)
            expected = stuck if kind.orderly else ends[queue] - 1
            wait_until(
                lambda: len(listening.consumed) == expected + ends[1 - queue], "all that can be"
            )
        finally:
            opened.set()
        wait_until(lambda: len(listening.consumed) == 8, "everything consumed")
    assert set(listening.consumed.values()) == {1}
    if kind.orderly:
        own = [offset for _, _, q, offset in listening.deliveries if q == queue]
        assert own == list(range(ends[queue]))
    assert cluster.committed(names.group, names.topic, 2) == ends


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_shutdown_does_not_wait_for_a_listener_that_hangs(
    cluster: Cluster, names: Names, kind: Kind
) -> None:
    """Covers C-43, C-120, C-121: its message stays uncommitted and is the next owner's."""
    cluster.create_topic(names.topic, 1)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(4)))
    entered, opened = threading.Event(), threading.Event()

    def hang(messages: list[MessageExt]) -> object:
        entered.set()
        opened.wait(WAIT_S)
        return kind.success

    listening = Listening(kind, hang)
    ends = cluster.ends(names.topic, 1)
    try:
        with listening.consuming(cluster, names, await_termination_ms_when_shutdown=0):
            assert entered.wait(WAIT_S)
            stuck = next(offset for body, *_, offset in listening.deliveries if body == FAULTY)
    finally:
        opened.set()
    assert cluster.committed(names.group, names.topic, 1) == [stuck]
    assert stuck < ends[0]


def test_all_topics_of_a_group_share_one_retry_queue(cluster: Cluster, names: Names) -> None:
    """Covers C-278: retries of both topics come through %RETRY%<group>, after what was new."""
    topics = [names.topic, f"{names.topic}b"]
    for topic in topics:
        cluster.create_topic(topic, 2)
        send_all(cluster.namesrv_addr, numbered(topic, range(3, 9)))
    retried: list[MessageExt] = []

    def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        (message,) = messages
        if message.body == FAULTY and not message.reconsume_times:
            return ConsumeConcurrentlyStatus.RECONSUME_LATER
        if message.reconsume_times:
            retried.append(message)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    with PushConsumer(
        names.group,
        namesrv_addr=cluster.namesrv_addr,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        subscription=dict.fromkeys(topics, "*"),
        listener=listener,
    ):
        wait_until(lambda: len(retried) == 2, "both retries")
    assert {message.topic for message in retried} == set(topics)
    assert {(m.properties["REAL_TOPIC"], m.queue_id) for m in retried} == {
        (f"%RETRY%{names.group}", 0)
    }
    assert {message.queue_offset for message in retried} == {0, 1}
