"""Which queue a try of a send goes to: the one given, the one picked, or the next of the rotation.

Law: pure; chance and time are handed in (C-460, C-466, C-469, C-470).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from rocketstream.client.core.fault_latency import FaultTable
from rocketstream.client.core.send import choose_queue
from rocketstream.errors import SendError, SendOutcome
from rocketstream.late import dataclass
from rocketstream.model import MessageQueue

QueueChoice = Callable[[tuple[MessageQueue, ...]], MessageQueue]


@dataclass(slots=True)
class SendTarget:
    """Where a message goes: one fixed queue, one picked from all, or the next of the rotation."""

    queue: MessageQueue | None = None
    pick: QueueChoice | None = None

    @property
    def is_fixed(self) -> bool:
        """Whether a retry must not go elsewhere: one try only (C-469, C-470)."""
        return self.queue is not None or self.pick is not None


ANY_QUEUE = SendTarget()


class QueueRotation:
    """Chooses one queue after the other, round and round (C-460). Thread safe.

    Args:
        start: where to begin; any number, a random one so that producers do not move in step.
    """

    __slots__ = ("_counter",)

    def __init__(self, start: int) -> None:
        self._counter = itertools.count(start)

    def choose(
        self, queues: tuple[MessageQueue, ...], target: SendTarget, last_broker: str | None
    ) -> MessageQueue:
        """Return the queue of the next try.

        Args:
            queues: those of the topic.
            target: where the message is to go.
            last_broker: where the try before failed.

        Raises:
            SendError: the user's selector raised (C-470); a ``SendError`` of its own as it is.
        """
        if target.queue is not None:
            return target.queue
        if target.pick is not None:
            try:
                return target.pick(queues)
            except SendError:
                raise
            except Exception as error:
                text = f"the selector of the queue raised {error!r}"
                raise SendError(text, SendOutcome.NOT_SENT) from error
        if last_broker is None:
            return queues[next(self._counter) % len(queues)]
        return choose_queue(queues, self._counter.__next__, last_broker)


class FaultAvoidingRotation(QueueRotation):
    """A rotation that leaves out brokers in trouble while there are others (C-466).

    Args:
        start: as for ``QueueRotation``.
        table: the brokers in trouble.
        now: returns monotonic milliseconds.
    """

    __slots__ = ("_now", "_table")

    def __init__(self, start: int, table: FaultTable, now: Callable[[], float]) -> None:
        super().__init__(start)
        self._table = table
        self._now = now

    def choose(
        self, queues: tuple[MessageQueue, ...], target: SendTarget, last_broker: str | None
    ) -> MessageQueue:
        """Return the queue of the next try; raises as ``QueueRotation.choose``."""
        if target.is_fixed:
            return super().choose(queues, target, last_broker)
        now = self._now()
        next_index = self._counter.__next__
        return (
            self._table.choose(queues, next_index, now)
            or self._table.least_bad(queues, next_index, now)
            or choose_queue(queues, next_index, last_broker)
        )
