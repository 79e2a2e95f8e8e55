"""Every small case of a process queue: whatever the order of events, up to eight of them.

A state that came about twice is looked at once, so that all orders are, in a few seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from functools import cache

import pytest

from rocketstream.client.consumer.process_queue import ProcessQueue
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt
from tests.kits.client.queued import queued

DEPTH = 8
QUEUE = MessageQueue("T", "broker-a", 0)
BYTES = 10

Offsets = tuple[int, ...]
Step = Callable[["Pulled"], None]


@cache
def _message(offset: int) -> MessageExt:
    return queued(offset, BYTES)


class Pulled:
    """A process queue, and what it should hold, worked out the slow way."""

    def __init__(self) -> None:
        self.queue = ProcessQueue(QUEUE, now_ms=0)
        self.open: set[int] = set()
        self.pulled_to = 0
        self.committed = 0

    def pull(self, offsets: Offsets) -> None:
        """Take in an answer; what is cached already, or comes twice, is not taken again."""
        before = set(self.open)
        taken = [m.queue_offset for m in self.queue.put([_message(o) for o in offsets])]
        assert taken == [offset for offset in dict.fromkeys(offsets) if offset not in before]
        self.open |= set(offsets)
        self.pulled_to = max(self.pulled_to, offsets[-1] + 1)
        self._agrees()

    def finish(self, offsets: Iterable[int]) -> None:
        """Finish messages; the offset to commit passes none that is open, and never falls."""
        had = bool(self.open)
        told = self.queue.remove([_message(offset) for offset in offsets])
        self.open -= set(offsets)
        if not had:
            assert told == -1
        else:
            assert told == min(self.open, default=self.pulled_to)
            assert told >= self.committed
            self.committed = told
        self._agrees()

    def _agrees(self) -> None:
        queue, held = self.queue, self.open
        assert queue.message_count == len(held)
        assert queue.body_bytes == BYTES * len(held)
        assert queue.min_offset == min(held, default=-1)
        assert queue.max_span == (max(held) - min(held) if held else 0)

    def __copy__(self) -> Pulled:
        other = Pulled()
        for name in ProcessQueue.__slots__:
            setattr(other.queue, name, copy(getattr(self.queue, name)))
        other.open, other.pulled_to = set(self.open), self.pulled_to
        other.committed = self.committed
        return other

    @property
    def state(self) -> object:
        """Everything that decides what may come."""
        queue = self.queue
        order = tuple(queue._order)
        return order, frozenset(queue._messages), queue.queue_offset_max, self.committed


def _steps(pulled: Pulled) -> Iterator[Step]:
    at, held = pulled.pulled_to, sorted(pulled.open)
    yield lambda one: one.pull((at,))
    yield lambda one: one.pull((at, at + 1))
    yield lambda one: one.pull((at + 1, at + 3))  # some were filtered out
    if held:
        last, middle = held[-1], held[len(held) // 2]
        yield lambda one: one.pull((last, at))  # the last one is answered again
        yield lambda one: one.finish((held[0],))
        yield lambda one: one.finish((last,))
        yield lambda one: one.finish((middle,))
        yield lambda one: one.finish(held)
    yield lambda one: one.finish((at,))  # sent back meanwhile, and not cached any more


@pytest.mark.timeout(600)  # it computes, and other processes may hold it up
def test_no_order_of_pulls_and_ends_commits_an_unfinished_message() -> None:
    """Covers C-237, C-240, C-241, C-242, C-246: all orders of up to eight events."""
    seen: set[object] = set()
    last = [Pulled()]
    for _ in range(DEPTH):
        now: list[Pulled] = []
        for before in last:
            for step in _steps(before):
                after = copy(before)
                step(after)
                if after.state not in seen:
                    seen.add(after.state)
                    now.append(after)
        last = now
    assert len(seen) > 1_000
