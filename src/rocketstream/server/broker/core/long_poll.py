"""Pulls that wait for a message: held per queue, woken by arrival or by their own deadline.

Law: pure. Upstream: PullRequestHoldService (C-374 to C-380) without C-582: a pull is looked up and
held within one step of the loop, so no arrival can fall between; it wakes at once, and its timeout
is exact.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from rocketstream.limits import HELD_PULLS_MAX

T = TypeVar("T")
TagMatch = Callable[[int], bool]
OffsetAccept = Callable[[int], bool]


@dataclass(slots=True, eq=False)
class HeldPull(Generic[T]):
    """One waiting pull; ``pull`` is whatever the holder needs to run it again.

    ``accept`` looks at the message at a queue offset, for conditions on its properties (C-375).
    """

    topic: str
    queue_id: int
    match: TagMatch | None
    deadline_ms: float
    owner: Hashable
    pull: T
    accept: OffsetAccept | None = None
    is_held: bool = True


class LongPolls(Generic[T]):
    """All held pulls of a broker."""

    def __init__(self, held_max: int = HELD_PULLS_MAX) -> None:
        self._held_max = held_max
        self._queues: dict[tuple[str, int], list[HeldPull[T]]] = {}
        self._owners: dict[Hashable, set[HeldPull[T]]] = {}
        self._deadlines: list[tuple[float, int, HeldPull[T]]] = []
        self._order = itertools.count()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def hold(self, held: HeldPull[T]) -> bool:
        """Park a pull; False when the bound is reached and it must be answered now."""
        if self._count >= self._held_max:
            return False
        self._queues.setdefault((held.topic, held.queue_id), []).append(held)
        self._owners.setdefault(held.owner, set()).add(held)
        heapq.heappush(self._deadlines, (held.deadline_ms, next(self._order), held))
        self._count += 1
        return True

    def is_awaited(self, topic: str, queue_id: int) -> bool:
        """Whether any pull waits for the queue."""
        return (topic, queue_id) in self._queues

    def arrived(
        self, topic: str, queue_id: int, tags_code: int, offset: int = 0
    ) -> list[HeldPull[T]]:
        """A message came, at ``offset``: take out the pulls that want it."""
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
        """Take out the pulls whose time is up."""
        late = []
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            held = heapq.heappop(self._deadlines)[2]
            if held.is_held:
                self._release(held)
                late.append(held)
        return late

    def next_deadline_ms(self) -> float | None:
        """When ``expired`` is to be asked next, or None."""
        while self._deadlines and not self._deadlines[0][2].is_held:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def owner_gone(self, owner: Hashable) -> int:
        """Forget the pulls of a closed connection; return how many."""
        gone = list(self._owners.get(owner, ()))
        for held in gone:
            self._release(held)
        return len(gone)

    def take_all(self) -> list[HeldPull[T]]:
        """Take out everything (the broker is closing)."""
        held = [h for queue in self._queues.values() for h in queue]
        for each in held:
            self._release(each)
        return held

    def _release(self, held: HeldPull[T]) -> None:
        held.is_held = False
        self._count -= 1
        key = (held.topic, held.queue_id)
        waiting = self._queues[key]
        waiting.remove(held)
        if not waiting:
            del self._queues[key]
        mine = self._owners[held.owner]
        mine.discard(held)
        if not mine:
            del self._owners[held.owner]
