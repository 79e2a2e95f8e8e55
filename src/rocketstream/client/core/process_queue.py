"""The messages of one queue that were pulled and are not finished, and the offset to commit.

Law: pure; the owner serialises the calls. The offset to commit is the smallest unfinished one,
so it never passes an unconsumed message (C-241).
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterable
from typing import Protocol, TypeVar

from rocketstream.client.core.queue_state import Change, Standing, after
from rocketstream.model import MessageQueue

PULL_MAX_IDLE_MS = 120_000
"""A queue not pulled for longer is taken as stuck and assigned anew (C-176)."""


class Queued(Protocol):
    """What a process queue needs to know of a message."""

    @property
    def queue_offset(self) -> int:
        """Place in the queue."""
        ...

    @property
    def body_size(self) -> int:
        """Length of the stored body in bytes; fixed, whatever a listener does (C-593)."""
        ...


M = TypeVar("M", bound=Queued)


class ProcessQueue:
    """What was pulled of one assigned queue and is not finished (C-235 to C-248, concurrent part).

    Attributes:
        message_queue: the queue.
        generation: number of this assignment, for whoever has only the queue's name.
        dropped: no longer ours: no result counts any more (C-549). Each assignment has a process
            queue of its own, so whatever comes late carries a dropped one.
        leaving: about to be given up: nothing new is pulled or handed to a listener, but what a
            running listener finishes still counts (C-556).
        body_bytes: sum of the cached messages' stored body lengths.
        queue_offset_max: offset put in last (C-239).
        passed_to: up to here the queue was looked through; what is not cached was filtered out.
        backlog: how far the newest cached message is behind the queue's end (C-237).
        last_pull_ms: monotonic time of the last pull sent.
        last_consume_ms: monotonic time of the last finished message.
        flow_controlled: the next pull waits for messages to be finished.

    ``dropped``, ``leaving`` and ``flow_controlled`` are to be read; ``queue_state`` says how they
    change, by ``leave``, ``drop``, ``hold_pull`` and ``release_pull``.
    """

    __slots__ = (
        "_messages",
        "_order",
        "_standing",
        "backlog",
        "body_bytes",
        "dropped",
        "flow_controlled",
        "generation",
        "last_consume_ms",
        "last_pull_ms",
        "leaving",
        "message_queue",
        "passed_to",
        "queue_offset_max",
    )

    def __init__(self, message_queue: MessageQueue, generation: int, now_ms: float) -> None:
        self.message_queue = message_queue
        self.generation = generation
        self._become(Standing.PULLED)
        self.body_bytes = 0
        self.queue_offset_max = 0
        self.passed_to = 0
        self.backlog = 0
        self.last_pull_ms = now_ms
        self.last_consume_ms = now_ms
        self._messages: dict[int, Queued] = {}
        # Ascending offsets; finished ones leave lazily from the front, so the smallest is O(1).
        self._order: deque[int] = deque()

    def leave(self) -> None:
        """Be given up once its listeners have returned; see ``leaving``."""
        self._become(after(self._standing, Change.LEAVE))

    def drop(self) -> None:
        """Be no longer ours; see ``dropped``."""
        self._become(after(self._standing, Change.DROP))

    def hold_pull(self) -> None:
        """Have the next pull wait for messages to be finished; see ``flow_controlled``."""
        self._become(after(self._standing, Change.HOLD))

    def release_pull(self) -> None:
        """Let the next pull go; see ``flow_controlled``."""
        self._become(after(self._standing, Change.RELEASE))

    def _become(self, standing: Standing) -> None:
        """Keep what readers ask for with every message as plain attributes."""
        self._standing = standing
        self.dropped = standing is Standing.DROPPED
        self.leaving = standing is Standing.LEAVING
        self.flow_controlled = standing is Standing.HELD

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
    def first(self) -> Queued | None:
        """The message with the smallest offset."""
        return self._messages[self._order[0]] if self._messages else None

    def put(self, messages: Iterable[M], max_offset: int = 0) -> list[M]:
        """Take in pulled messages; return those that were not cached already (C-237)."""
        added = list(messages)
        offsets = [message.queue_offset for message in added]
        in_order = self._follow(offsets)
        if not in_order:
            added = self._new(added)
            offsets = [message.queue_offset for message in added]
        if added:
            self._messages.update(zip(offsets, added, strict=True))
            self._append(offsets, in_order)
            self.body_bytes += sum([message.body_size for message in added])
            self.backlog = max(max_offset - self.queue_offset_max, 0)
        return added

    def _follow(self, offsets: list[int]) -> bool:
        """Whether these ascend and begin behind all that is cached: none can be there already."""
        order = self._order
        if not offsets or (order and offsets[0] <= order[-1]):
            return False
        return all(map(operator.lt, offsets, offsets[1:]))

    def _new(self, messages: Iterable[M]) -> list[M]:
        """Return those that are not cached, of each offset the first one."""
        found: dict[int, M] = {}
        for message in messages:
            if message.queue_offset not in self._messages:
                found.setdefault(message.queue_offset, message)
        return list(found.values())

    def remove(self, messages: Iterable[Queued], now_ms: float = 0.0) -> int:
        """Finish messages; return the next offset to commit, -1 if nothing was cached (C-240).

        Messages that are not cached (expired and sent back meanwhile) are passed over.
        """
        cached = self._messages
        self.last_consume_ms = now_ms
        if not cached:
            return -1
        size = 0
        for message in messages:
            if cached.pop(message.queue_offset, None) is not None:
                size += message.body_size
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

    def __contains__(self, message: Queued) -> bool:
        return message.queue_offset in self._messages

    def is_pull_expired(self, now_ms: float) -> bool:
        """Whether the pull loop has died: silent for too long without a reason (C-176)."""
        return not self.flow_controlled and now_ms - self.last_pull_ms > PULL_MAX_IDLE_MS

    def clear(self) -> None:
        """Forget everything cached (C-247)."""
        self._messages.clear()
        self._order.clear()
        self.body_bytes = 0
        self.queue_offset_max = 0
        self.passed_to = 0

    def _append(self, offsets: list[int], in_order: bool) -> None:
        if in_order:
            self._order.extend(offsets)
        else:
            # A broker that answers out of order is odd but must not break the commit point.
            self._order = deque(sorted(self._messages))
        self.queue_offset_max = offsets[-1]
