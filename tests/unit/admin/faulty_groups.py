"""Groups with one planted fault each, as a sweep every 10 s would see them, in virtual time.

Law: pure; nothing here knows how a group is judged. Members pull 32 messages of a queue at a time,
hold up to a thousand of each, and hand them to a pool of threads in the order they were pulled.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rocketstream.admin.rows import MemberRow, SubscriptionRow
from rocketstream.admin.state import GroupState, QueueKind, QueueState

T0 = 1_700_000_000_000
TICK_MS = 500
COMMIT_MS = 5_000
SWEEP_MS = 10_000
PULLED = 32
HELD_MAX = 1_000


@dataclass
class Queue:
    """One queue: messages stored (their times), pulled, finished in order, committed."""

    queue_id: int
    stored: list[int] = field(default_factory=list)
    low: int = 0
    pulled: int = 0
    done: int = 0
    committed: int = 0
    ended: set[int] = field(default_factory=set)

    def finish(self, offset: int) -> None:
        self.ended.add(offset)
        while self.done in self.ended:
            self.ended.discard(self.done)
            self.done += 1


@dataclass
class Pool:
    """A group of one member.

    Attributes:
        call_ms: how long the listener takes for a message of a queue; None: it never returns.
        rate: messages a second that arrive, of the time since the beginning in ms.
        fails: whether the listener fails a message for good: it becomes a dead letter.
        change: called at each sweep with the time; plants the fault.
        is_member: whether the member is connected.
    """

    threads: int
    call_ms: Callable[[int, int], int | None]
    rate: Callable[[int], float]
    queues: int = 4
    backlog: int = 0
    fails: Callable[[int, int], bool] = lambda queue_id, offset: False
    change: Callable[[Pool, int], None] = lambda pool, at_ms: None
    is_member: bool = True
    letters: int = 0

    def __post_init__(self) -> None:
        self.made = [Queue(k, [0] * self.backlog) for k in range(self.queues)]
        self.free = self.threads
        self.running: list[tuple[float, int, int]] = []
        self.waiting: deque[tuple[int, int]] = deque()
        self.due = 0.0

    def states(self, minutes: float) -> Iterator[GroupState]:
        for at_ms in range(0, round(minutes * 60_000), TICK_MS):
            self._arrive(at_ms)
            if self.is_member:
                self._consume(at_ms)
            if at_ms % SWEEP_MS == 0:
                self.change(self, at_ms)
                yield self.state(at_ms)

    def _arrive(self, at_ms: int) -> None:
        self.due += self.rate(at_ms) * TICK_MS / 1_000
        while self.due >= 1:
            self.due -= 1
            queue = min(self.made, key=lambda each: (len(each.stored), each.queue_id))
            queue.stored.append(at_ms)

    def _consume(self, at_ms: int) -> None:
        for queue in self.made:
            room = HELD_MAX - (queue.pulled - queue.done)
            for _ in range(min(PULLED, len(queue.stored) - queue.pulled) if room > 0 else 0):
                self.waiting.append((queue.queue_id, queue.pulled))
                queue.pulled += 1
        while self.running and self.running[0][0] <= at_ms:
            _, queue_id, offset = heapq.heappop(self.running)
            self.free += 1
            self.letters += self.fails(queue_id, offset)
            self.made[queue_id].finish(offset)
        while self.free and self.waiting:
            queue_id, offset = self.waiting.popleft()
            took = self.call_ms(queue_id, offset)
            ends = float("inf") if took is None else at_ms + took
            heapq.heappush(self.running, (ends, queue_id, offset))
            self.free -= 1
        if at_ms % COMMIT_MS == 0:
            for queue in self.made:
                queue.committed = max(queue.committed, queue.done)

    def state(self, at_ms: int) -> GroupState:
        return GroupState(
            "billing",
            T0 + at_ms,
            (MemberRow("c1", "10.0.0.1:1", "JAVA", 435),) if self.is_member else (),
            "CLUSTERING" if self.is_member else None,
            "CONSUME_PASSIVELY" if self.is_member else None,
            (SubscriptionRow("orders", "*", "TAG"),) if self.is_member else (),
            (
                *(self._queue(each) for each in self.made),
                self._other("%RETRY%billing", QueueKind.RETRY, 0),
                self._other("%DLQ%billing", QueueKind.DEAD_LETTER, self.letters),
            ),
            delayed=0,
        )

    def _queue(self, queue: Queue) -> QueueState:
        at = max(queue.committed, queue.low)
        return QueueState(
            "orders",
            "broker-a",
            queue.queue_id,
            min_offset=queue.low,
            max_offset=len(queue.stored),
            committed_offset=queue.committed,
            next_stored_ms=T0 + queue.stored[at] if at < len(queue.stored) else None,
            client_id="c1" if self.is_member else None,
        )

    def _other(self, topic: str, kind: QueueKind, end: int) -> QueueState:
        committed = None if kind is QueueKind.DEAD_LETTER else 0
        return QueueState(topic, "broker-a", 0, kind, 0, end, committed)
