"""Pure: the messages of one queue that were pulled and are not finished, and the offset to commit.

Offsets and sizes are read without their properties, which would be calls for each message. The
owner serialises the calls, but for ``leave`` and ``drop``: what they set only rises,
so no other thread can undo it. The offset to commit is the smallest unfinished one, so it never
passes an unconsumed message (C-241).
"""

from __future__ import annotations

import enum
import operator
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt

MIB = 1024 * 1024
PULL_MAX_IDLE_MS = 120_000
"""A queue not pulled for longer is taken as stuck and assigned anew (C-176)."""


class FlowControl(enum.Enum):
    """The bound that holds a pull back."""

    COUNT = "COUNT"
    SIZE = "SIZE"
    SPAN = "SPAN"


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The bounds of one queue (C-30 to C-34)."""

    count: int = 1_000
    size_mib: int = 100
    span: int = 2_000

    def shared(self, topic_count: int, topic_size_mib: int, queues: int) -> Thresholds:
        """Divide per-topic bounds (-1 = off) among all queues in the table (C-183, C-184)."""
        if queues == 0:
            return self
        count = self.count if topic_count == -1 else max(1, topic_count // queues)
        size_mib = self.size_mib if topic_size_mib == -1 else max(1, topic_size_mib // queues)
        return replace(self, count=count, size_mib=size_mib)


class ProcessQueue:
    """The messages pulled of one assigned queue and not finished (C-235 to C-248, concurrent part).

    Attributes:
        message_queue: the queue.
        dropped: no longer ours: no result counts any more (C-549). Each assignment has a process
            queue of its own, so a listener's result that comes late carries a dropped one.
        leaving: about to be given up, or dropped: nothing new is pulled or handed to a listener,
            but until it is dropped what a running listener finishes still counts (C-556).
        body_bytes: sum of the cached messages' stored body lengths.
        queue_offset_max: offset put in last (C-239).
        passed_to: up to here the queue was looked through; what is not cached was filtered out.
        last_pull_ms: monotonic time of the last pull sent.
        last_consume_ms: monotonic time of the last finished message.
        flow_controlled: the next pull waits for messages to be finished.

    ``dropped`` and ``leaving`` are to be read: ``leave`` and ``drop`` set them, for good.
    """

    __slots__ = (
        "_messages",
        "_order",
        "body_bytes",
        "dropped",
        "flow_controlled",
        "last_consume_ms",
        "last_pull_ms",
        "leaving",
        "message_queue",
        "passed_to",
        "queue_offset_max",
    )

    flow_controlled: bool
    leaving: bool
    dropped: bool

    def __init__(self, message_queue: MessageQueue, now_ms: float) -> None:
        self.message_queue: MessageQueue = message_queue
        self.leaving = self.dropped = self.flow_controlled = False
        self.body_bytes: int = 0
        self.queue_offset_max: int = 0
        self.passed_to: int = 0
        self.last_pull_ms: float = now_ms
        self.last_consume_ms: float = now_ms
        self._messages: dict[int, MessageExt] = {}
        # Ascending offsets; finished ones leave lazily from the front, so the smallest is O(1).
        self._order: deque[int] = deque()

    def leave(self) -> None:
        """Be given up once its listeners have returned; see ``leaving``."""
        self.leaving = True

    def drop(self) -> None:
        """Be no longer ours; see ``dropped``."""
        self.leaving = True
        self.dropped = True

    @property
    def message_count(self) -> int:
        """Messages cached: waiting, being consumed, or waiting for a local retry."""
        return len(self._messages)

    @property
    def max_span(self) -> int:
        """Largest minus smallest cached offset, 0 when empty (C-246)."""
        return self._order[-1] - self._order[0] if self._messages else 0

    @property
    def min_offset(self) -> int:
        """Smallest cached offset, -1 when empty."""
        return self._order[0] if self._messages else -1

    @property
    def first(self) -> MessageExt | None:
        """The message with the smallest offset."""
        return self._messages[self._order[0]] if self._messages else None

    def put(self, messages: Iterable[MessageExt]) -> list[MessageExt]:
        """Take in pulled messages; return those that were not cached already (C-237)."""
        added = list(messages)
        offsets = [message._queue_offset for message in added]
        in_order = self._follow(offsets)
        if not in_order:
            added = self._new(added)
            offsets = [message._queue_offset for message in added]
        if added:
            self._messages.update(zip(offsets, added, strict=True))
            self._append(offsets, in_order)
            self.body_bytes += sum([message._body_size for message in added])
        return added

    def _follow(self, offsets: list[int]) -> bool:
        """Whether these ascend and begin behind all that is cached: none can be there already."""
        order = self._order
        if not offsets or (order and offsets[0] <= order[-1]):
            return False
        return all(map(operator.lt, offsets, offsets[1:]))

    def _new(self, messages: Iterable[MessageExt]) -> list[MessageExt]:
        """Return those that are not cached, of each offset the first one."""
        found: dict[int, MessageExt] = {}
        for message in messages:
            if message._queue_offset not in self._messages:
                found.setdefault(message._queue_offset, message)
        return list(found.values())

    def remove(self, messages: Iterable[MessageExt], now_ms: float = 0.0) -> int:
        """Finish messages; return the next offset to commit, -1 if nothing was cached (C-240).

        Messages that are not cached (expired and sent back meanwhile) are passed over.
        """
        cached = self._messages
        self.last_consume_ms = now_ms
        if not cached:
            return -1
        size = 0
        for message in messages:
            if cached.pop(message._queue_offset, None) is not None:
                size += message._body_size
        self.body_bytes -= size
        if not cached:
            self._order.clear()
            return max(self.queue_offset_max + 1, self.passed_to)
        order = self._order
        while order[0] not in cached:
            order.popleft()
        while order[-1] not in cached:
            order.pop()
        return order[0]

    def held_by(self, thresholds: Thresholds) -> FlowControl | None:
        """Return what holds the next pull back, None when it may go (C-203, C-204)."""
        if self.message_count > thresholds.count:
            return FlowControl.COUNT
        if self.body_bytes // MIB > thresholds.size_mib:
            return FlowControl.SIZE
        if self.max_span > thresholds.span:
            return FlowControl.SPAN
        return None

    def __contains__(self, message: MessageExt) -> bool:
        return message._queue_offset in self._messages

    def is_pull_expired(self, now_ms: float) -> bool:
        """Whether the pull loop has died: silent for too long without a reason (C-176)."""
        return not self.flow_controlled and now_ms - self.last_pull_ms > PULL_MAX_IDLE_MS

    def _append(self, offsets: list[int], in_order: bool) -> None:
        if in_order:
            self._order.extend(offsets)
        else:
            # A broker that answers out of order is odd but must not break the commit point.
            self._order = deque(sorted(self._messages))
        self.queue_offset_max = offsets[-1]
