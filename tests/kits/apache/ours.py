"""Our client as the suites drive it: send many, collect many.

Law: no assertions about meaning; it counts and remembers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from rocketstream import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
    SendResult,
    SendStatus,
)
from tests.kits.apache.messages import Received, Sent, digest, message_of, received

IN_FLIGHT = 256
WAIT_S = 100.0


class RefusedError(Exception):
    """Raised by a listener on purpose."""


class Collector:
    """A listener that remembers every delivery and can wait for a number of distinct messages.

    ``fails`` says which deliveries the listener refuses by raising.
    """

    def __init__(self, fails: Callable[[MessageExt], bool] | None = None) -> None:
        self.deliveries: list[Received] = []
        self._fails = fails
        self._consumed: set[str] = set()
        self._changed = threading.Condition()

    def __call__(self, messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        refused = self._fails is not None and any(self._fails(message) for message in messages)
        seen = [received(message, "FAIL" if refused else "OK") for message in messages]
        with self._changed:
            self.deliveries += seen
            if not refused:
                self._consumed.update(each.msg_id for each in seen)
            self._changed.notify_all()
        if refused:
            raise RefusedError(f"refused {[each.keys for each in seen]}")
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    def wait(self, count: int, timeout_s: float = WAIT_S) -> None:
        """Return when ``count`` distinct messages were consumed."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._consumed) >= count, timeout_s):
                raise TimeoutError(f"consumed {len(self._consumed)} of {count} in {timeout_s} s")

    def wait_deliveries(self, count: int, timeout_s: float = WAIT_S) -> None:
        """Return when there were ``count`` deliveries, refused ones included."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.deliveries) >= count, timeout_s):
                raise TimeoutError(f"{len(self.deliveries)} of {count} deliveries in {timeout_s} s")

    def consumed(self) -> list[Received]:
        """The deliveries the listener accepted."""
        with self._changed:
            return [each for each in self.deliveries if each.outcome == "OK"]


def push_consumer(
    namesrv_addr: str,
    group: str,
    topic: str,
    listener: Callable[..., Any],
    expression: str = "*",
    **settings: Any,
) -> PushConsumer:
    """A running push consumer that begins at the first offset; leaving it shuts it down."""
    consumer = PushConsumer(
        group,
        namesrv_addr=namesrv_addr,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        **settings,
    )
    consumer.subscribe(topic, expression)
    consumer.register_message_listener(listener)
    consumer.start()
    return consumer


def send_many(
    namesrv_addr: str, topic: str, count: int, *, prefix: str = "m", **message: Any
) -> list[Sent]:
    """Send numbered messages with ``IN_FLIGHT`` under way; return what was acknowledged."""
    with Producer(f"{topic}-producer", namesrv_addr=namesrv_addr) as producer:
        return send_all(
            producer,
            (message_of(topic, prefix, index, **message) for index in range(count)),
        )


def send_all(producer: Producer, messages: Iterable[Message]) -> list[Sent]:
    """Send messages asynchronously; every one must be acknowledged."""
    room = threading.Semaphore(IN_FLIGHT)
    under_way: list[tuple[Message, Future[SendResult]]] = []
    for message in messages:
        room.acquire()
        future = producer.send_async(message, timeout_ms=30_000)
        future.add_done_callback(lambda _: room.release())
        under_way.append((message, future))
    return [sent(message, future.result(timeout=60)) for message, future in under_way]


def sent(message: Message, result: SendResult) -> Sent:
    """What was acknowledged, in the form the Java producer writes."""
    if result.send_status is not SendStatus.SEND_OK:
        raise AssertionError(f"{message!r} answered {result}")
    return Sent(
        result.message_queue.queue_id,
        result.queue_offset,
        result.msg_id,
        message.keys or "",
        message.tags or "",
        digest(message.body),
    )
