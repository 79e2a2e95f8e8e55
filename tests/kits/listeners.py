"""Listeners that remember, and short ways to send and to consume.

Law: no assertions; waits end with an error that says what was seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from rocketstream import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
)
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.protocol.names import AUTO_CREATE_TOPIC
from tests.kits.cluster import Cluster
from tests.kits.faces import PullConsumer, PushConsumer
from tests.plugins.waiting import wait_until

SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER
WAIT_S = 30.0

Verdict = Callable[[MessageExt], ConsumeConcurrentlyStatus]


class Seen:
    """A listener that remembers every delivery and lets tests wait for what they expect.

    Args:
        verdict: what to answer for a message; one that fails fails its batch.
    """

    def __init__(self, verdict: Verdict | None = None) -> None:
        self._changed = threading.Condition()
        self._verdict = verdict
        self.deliveries: list[MessageExt] = []
        self.consumed: list[MessageExt] = []

    def __call__(self, messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        with self._changed:
            self.deliveries += messages
            self._changed.notify_all()
        statuses = [SUCCESS if self._verdict is None else self._verdict(m) for m in messages]
        if LATER in statuses:
            return LATER
        with self._changed:
            self.consumed += messages
            self._changed.notify_all()
        return SUCCESS

    @property
    def bodies(self) -> list[str]:
        """Bodies of the consumed messages."""
        with self._changed:
            return [message.body.decode() for message in self.consumed]

    @property
    def delivered(self) -> list[str]:
        """Bodies of all deliveries."""
        with self._changed:
            return [message.body.decode() for message in self.deliveries]

    def wait(self, condition: Callable[[Seen], bool]) -> None:
        """Wait until ``condition(self)``; looked at after each change."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self), WAIT_S):
                raise TimeoutError(
                    f"delivered {len(self.deliveries)}, consumed {len(self.consumed)}: "
                    f"{sorted(m.body for m in self.consumed)[:20]}"
                )

    def wait_consumed(self, count: int) -> None:
        """Wait until ``count`` different messages are consumed."""
        self.wait(lambda seen: len({m.msg_id for m in seen.consumed}) >= count)

    def wait_deliveries(self, count: int) -> None:
        """Wait until there were ``count`` deliveries, failed ones included."""
        self.wait(lambda seen: len(seen.deliveries) >= count)


_IN_ORDER_MAX = 300


def broker_name(cluster: Cluster) -> str:
    """Return the name of the cluster's broker."""
    with BlockingAdminClient(cluster.namesrv_addr) as client:
        return client.route(AUTO_CREATE_TOPIC).broker_datas[0].broker_name


def numbered(topic: str, numbers: Iterable[int], **more: Any) -> list[Message]:
    """Return messages whose bodies are numbers."""
    return [Message(topic, str(number), **more) for number in numbers]


def send_all(namesrv_addr: str, messages: Iterable[Message]) -> None:
    """Send messages with a producer of their own; few of them one after another, so in order.

    A broker may store what is sent without waiting in any order. Consumers see all of them when
    this returns: Apache's brokers enter a message in its queue some ms after the answer (C-440).
    """
    todo = list(messages)
    patient_ms = int(WAIT_S * 1000)
    with Producer("senders", namesrv_addr=namesrv_addr, send_msg_timeout_ms=patient_ms) as producer:
        if len(todo) <= _IN_ORDER_MAX:
            results = [producer.send(message) for message in todo]
        else:
            futures = [producer.send_async(message) for message in todo]
            results = [future.result(WAIT_S) for future in futures]
        last: dict[MessageQueue, int] = {}
        for result in results:
            mq = result.message_queue
            last[mq] = max(last.get(mq, -1), result.queue_offset)
        wait_until(
            lambda: all(producer.max_offset(mq) > offset for mq, offset in last.items()),
            "sight of the last messages",
            interval_s=0.005,
        )


def fill(cluster: Cluster, topic: str, messages: Iterable[Message], queues: int) -> None:
    """Create a topic and send messages; consumers see them when this returns."""
    cluster.create_topic(topic, queues)
    send_all(cluster.namesrv_addr, messages)


Places = dict[tuple[int, int], MessageExt]
"""Messages by queue id and offset."""


def stored(cluster: Cluster, topic: str, count: int) -> Places:
    """The messages of a topic, once there are as many."""
    with PullConsumer("readers", namesrv_addr=cluster.namesrv_addr) as consumer:
        queues = consumer.fetch_subscribe_message_queues(topic)

        def ends() -> dict[MessageQueue, int]:
            return {queue: consumer.max_offset(queue) for queue in queues}

        wait_until(lambda: sum(ends().values()) >= count, f"{count} messages")
        found: Places = {}
        for queue, end in ends().items():
            at = 0
            while at < end:
                pulled = consumer.pull(queue, "*", at, 32)
                for message in pulled.msg_found_list or []:
                    found[queue.queue_id, message.queue_offset] = message
                at = pulled.next_begin_offset
    return found


def consumer_of(
    namesrv_addr: str,
    group: str,
    topic: str,
    listener: Callable[..., Any],
    expression: str = "*",
    **settings: Any,
) -> PushConsumer:
    """Return a consumer from the first offset on, not started."""
    settings.setdefault("consume_from_where", ConsumeFromWhere.FIRST_OFFSET)
    settings.setdefault("local_retry_delay_ms", 50)
    consumer = PushConsumer(group, namesrv_addr=namesrv_addr, listener=listener, **settings)
    consumer.subscribe(topic, expression)
    return consumer


class Gate:
    """A listener that stops at chosen messages until it is opened."""

    def __init__(self, stops: Callable[[MessageExt], bool]) -> None:
        self._stops = stops
        self.entered = threading.Event()
        self.opened = threading.Event()
        self.arrived = Seen()
        self.seen = Seen()

    def __call__(self, messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        self.arrived(messages)
        if any(self._stops(message) for message in messages):
            self.entered.set()
            self.opened.wait(WAIT_S)
        return self.seen(messages)


def own(consumer: PushConsumer, topic: str) -> list[int]:
    """Return the queue numbers of a topic a member has."""
    return [mq.queue_id for mq in consumer.assigned_queues() if mq.topic == topic]
