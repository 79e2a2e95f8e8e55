"""Pulls that wait for a message: held per queue, woken by arrival, deadline, or their queue's end.

Pure: a pull is looked up and held within one step of the loop, so no message can arrive in between;
a held pull wakes at once, and its timeout is exact. Upstream: PullRequestHoldService (C-374 to
C-380) without C-582.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from rocketstream.limits import (
    HELD_PULLS_BYTES_MAX,
    HELD_PULLS_BYTES_OF_CONNECTION_MAX,
    HELD_PULLS_MAX,
    HELD_PULLS_OF_CONNECTION_MAX,
    HELD_PULLS_OF_QUEUE_MAX,
)

T = TypeVar("T")
_STALE_DEADLINES = 1_024
TagMatch = Callable[[int], bool]
OffsetAccept = Callable[[int], bool]


@dataclass(slots=True, eq=False)
class HeldPull(Generic[T]):
    """One waiting pull; ``pull`` holds everything needed to run it again.

    ``accept`` looks at the message at a queue offset, for conditions on its properties (C-375).
    ``size`` is the bytes it takes that its connection chose.
    """

    topic: str
    queue_id: int
    match: TagMatch | None
    deadline_ms: float
    owner: Hashable
    pull: T
    accept: OffsetAccept | None = None
    size: int = 0
    is_held: bool = True


class LongPolls(Generic[T]):
    """All held pulls of a broker."""

    def __init__(
        self,
        held_max: int = HELD_PULLS_MAX,
        of_owner_max: int = HELD_PULLS_OF_CONNECTION_MAX,
        of_queue_max: int = HELD_PULLS_OF_QUEUE_MAX,
        bytes_max: int = HELD_PULLS_BYTES_MAX,
        of_owner_bytes_max: int = HELD_PULLS_BYTES_OF_CONNECTION_MAX,
    ) -> None:
        self._held_max = held_max
        self._of_owner_max = of_owner_max
        self._of_queue_max = of_queue_max
        self._bytes_max = bytes_max
        self._of_owner_bytes_max = of_owner_bytes_max
        # Dicts used as ordered sets: each pull is taken out in one step.
        self._queues: dict[tuple[str, int], dict[HeldPull[T], None]] = {}
        self._owners: dict[Hashable, dict[tuple[str, int], dict[HeldPull[T], None]]] = {}
        self._counts: dict[Hashable, int] = {}
        self._sizes: dict[Hashable, int] = {}
        self._deadlines: list[tuple[float, int, HeldPull[T]]] = []
        self._order = itertools.count()
        self._count = 0
        self._bytes = 0

    def __len__(self) -> int:
        return self._count

    def hold(self, held: HeldPull[T]) -> bool:
        """Hold a pull; returns False when a bound is reached and it must be answered now."""
        key, owner = (held.topic, held.queue_id), held.owner
        count, size = self._counts.get(owner, 0), self._sizes.get(owner, 0) + held.size
        mine = self._owners.setdefault(owner, {}).setdefault(key, {})
        if (
            self._count >= self._held_max
            or count >= self._of_owner_max
            or len(mine) >= self._of_queue_max
            or size > self._of_owner_bytes_max
            or self._bytes + held.size > self._bytes_max
        ):
            self._tidy(owner, key)
            return False
        mine[held] = None
        self._queues.setdefault(key, {})[held] = None
        heapq.heappush(self._deadlines, (held.deadline_ms, next(self._order), held))
        if len(self._deadlines) > 2 * self._count + _STALE_DEADLINES:
            # Pulls answered long before their deadline are dropped, not kept until then.
            self._deadlines = [entry for entry in self._deadlines if entry[2].is_held]
            heapq.heapify(self._deadlines)
        self._counts[owner], self._sizes[owner] = count + 1, size
        self._count += 1
        self._bytes += held.size
        return True

    def is_awaited(self, topic: str, queue_id: int) -> bool:
        """Whether any pull waits for the queue."""
        return (topic, queue_id) in self._queues

    def arrived(
        self, topic: str, queue_id: int, tags_code: int, offset: int = 0
    ) -> list[HeldPull[T]]:
        """Take out the pulls that want a message that arrived at ``offset``."""
        waiting = self._queues.get((topic, queue_id))
        if not waiting:
            return []
        woken = [
            h
            for h in waiting
            if (h.match is None or h.match(tags_code)) and (h.accept is None or h.accept(offset))
        ]
        for held in woken:
            self._release(held)
        return woken

    def expired(self, now_ms: float) -> list[HeldPull[T]]:
        """Take out the pulls whose deadline has passed."""
        late = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            held = heapq.heappop(self._deadlines)[2]
            if held.is_held:
                self._release(held)
                late.append(held)
        return late

    def next_deadline_ms(self) -> float | None:
        """When ``expired`` must be called next; None without any pull."""
        while self._deadlines and not self._deadlines[0][2].is_held:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def forgetting(self, owner: Hashable) -> Generator[None, None, None]:
        """Forget the pulls of a closed connection, one per step."""
        gone = [held for queue in self._owners.get(owner, {}).values() for held in queue]
        for held in gone:
            # Between two steps a message may have arrived for it, or its deadline may have passed.
            if held.is_held:
                self._release(held)
            yield

    def of_topic(self, topic: str) -> list[HeldPull[T]]:
        """Take out the pulls of a topic (it was deleted)."""
        held = [h for key, queue in self._queues.items() if key[0] == topic for h in queue]
        for each in held:
            self._release(each)
        return held

    def take_all(self) -> list[HeldPull[T]]:
        """Take out everything (the broker is closing)."""
        held = [h for queue in self._queues.values() for h in queue]
        for each in held:
            self._release(each)
        return held

    def _release(self, held: HeldPull[T]) -> None:
        held.is_held = False
        self._count -= 1
        self._bytes -= held.size
        key, owner = (held.topic, held.queue_id), held.owner
        waiting = self._queues[key]
        del waiting[held]
        if not waiting:
            del self._queues[key]
        self._counts[owner] -= 1
        self._sizes[owner] -= held.size
        del self._owners[owner][key][held]
        self._tidy(owner, key)

    def _tidy(self, owner: Hashable, key: tuple[str, int]) -> None:
        """Remove the empty entries of an owner or a queue nothing waits for."""
        mine = self._owners[owner]
        if not mine[key]:
            del mine[key]
        if not mine:
            del self._owners[owner]
            self._counts.pop(owner, None)
            self._sizes.pop(owner, None)
