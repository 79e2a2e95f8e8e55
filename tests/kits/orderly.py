"""An orderly listener that remembers, per queue, and finds out what is out of order.

Law: no assertions; waits end with an error that says what was seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rocketstream import ConsumeFromWhere, ConsumeOrderlyContext, ConsumeOrderlyStatus, MessageExt
from tests.kits.faces import PushConsumer
from tests.kits.listeners import WAIT_S

SUCCESS = ConsumeOrderlyStatus.SUCCESS
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
COMMIT = ConsumeOrderlyStatus.COMMIT
ROLLBACK = ConsumeOrderlyStatus.ROLLBACK

Verdict = Callable[[list[MessageExt], ConsumeOrderlyContext], object]


class Ordered:
    """An orderly listener; what its verdict answers, or SUCCESS.

    Attributes:
        deliveries: every message of every call, in the order of the calls.
        batches: the offsets of every call.
        consumed: messages of calls that were answered with SUCCESS or COMMIT.
        overlaps: queues that were in two calls at once.
    """

    def __init__(self, verdict: Verdict | None = None) -> None:
        self._verdict = verdict
        self._changed = threading.Condition()
        self._running: set[int] = set()
        self.deliveries: list[MessageExt] = []
        self.batches: list[list[int]] = []
        self.consumed: list[MessageExt] = []
        self.overlaps: list[int] = []

    def __call__(self, messages: list[MessageExt], context: ConsumeOrderlyContext) -> object:
        queue = messages[0].queue_id
        with self._changed:
            if queue in self._running:
                self.overlaps.append(queue)
            self._running.add(queue)
            self.deliveries += messages
            self.batches.append([message.queue_offset for message in messages])
            self._changed.notify_all()
        try:
            status = SUCCESS if self._verdict is None else self._verdict(messages, context)
        finally:
            with self._changed:
                self._running.discard(queue)
        if status in (SUCCESS, COMMIT):
            with self._changed:
                self.consumed += messages
                self._changed.notify_all()
        return status

    def offsets(self, queue: int) -> list[int]:
        """Return the consumed offsets of a queue in the order of consumption."""
        with self._changed:
            return [m.queue_offset for m in self.consumed if m.queue_id == queue]

    @property
    def bodies(self) -> list[str]:
        """Bodies of what was consumed."""
        with self._changed:
            return [message.body.decode() for message in self.consumed]

    def tries(self, body: bytes) -> list[int]:
        """Return the reconsume_times of each delivery of a message, as they were... counted now."""
        with self._changed:
            return [m.reconsume_times for m in self.deliveries if m.body == body]

    def wait(self, condition: Callable[[Ordered], bool]) -> None:
        """Wait until ``condition(self)``; looked at after each change."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self), WAIT_S):
                raise TimeoutError(
                    f"delivered {len(self.deliveries)}, consumed {len(self.consumed)}: "
                    f"{[m.body for m in self.deliveries][-20:]}"
                )

    def wait_consumed(self, count: int) -> None:
        """Wait until ``count`` different messages are consumed."""
        self.wait(lambda seen: len({m.msg_id for m in seen.consumed}) >= count)

    def wait_deliveries(self, count: int) -> None:
        """Wait until there were ``count`` deliveries."""
        self.wait(lambda seen: len(seen.deliveries) >= count)


def orderly_consumer(
    namesrv_addr: str, group: str, topic: str, listener: Any, **settings: Any
) -> PushConsumer:
    """Return an orderly consumer from the first offset on, not started."""
    settings.setdefault("consume_from_where", ConsumeFromWhere.FIRST_OFFSET)
    settings.setdefault("suspend_current_queue_time_ms", 50)
    consumer = PushConsumer(group, namesrv_addr=namesrv_addr, **settings)
    consumer.register_message_listener(listener, orderly=True)
    consumer.subscribe(topic)
    return consumer
