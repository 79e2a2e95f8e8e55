"""Queues consumed in order: which is next, which pauses, which messages had their last try.

Pure: times are monotonic ms, passed in.

Law: at most one batch of a queue is out at a time; failed messages are taken again before later
ones, so a queue never overtakes itself.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from rocketstream.client.consumer.listener import split_by_tries
from rocketstream.model import MessageQueue


class Tried(Protocol):
    """The attributes of a message that are needed here."""

    _reconsume_times: int

    @property
    def queue_offset(self) -> int:
        """Its place in its queue."""
        ...

    @property
    def reconsume_times(self) -> int:
        """How often it was tried before."""
        ...


T = TypeVar("T", bound=Tried)


@dataclass(slots=True)
class _Line(Generic[T]):
    """The waiting messages of one queue, and when it may continue."""

    waiting: deque[T] = field(default_factory=deque)
    not_before_ms: float = float("-inf")


@dataclass(frozen=True, slots=True, eq=False)
class Turn(Generic[T]):
    """A batch that is out: given to the listener and not answered yet."""

    queue: MessageQueue
    batch: tuple[T, ...]


class Turns(Generic[T]):
    """The queues of one task.

    Args:
        batch_size: how many messages one turn has at most.
        max_times: how many tries a message gets after its first.
    """

    def __init__(self, batch_size: int, max_times: int) -> None:
        self._batch_size = batch_size
        self._max_times = max_times
        self._lines: dict[MessageQueue, _Line[T]] = {}
        self._out: set[MessageQueue] = set()

    def put(self, queue: MessageQueue, messages: Iterable[T]) -> None:
        """Add messages of a queue, before its first turn; they are taken by offset."""
        line = self._lines.setdefault(queue, _Line())
        line.waiting.extend(messages)
        offsets = [message.queue_offset for message in line.waiting]
        if any(later < earlier for earlier, later in itertools.pairwise(offsets)):
            line.waiting = deque(sorted(line.waiting, key=lambda message: message.queue_offset))

    @property
    def done(self) -> bool:
        """Whether every message is finished."""
        return not self._lines

    def take(self, now_ms: float) -> Turn[T] | None:
        """Return the next batch of a queue that is neither out nor paused; None for none."""
        for queue, line in self._lines.items():
            if queue not in self._out and line.not_before_ms <= now_ms:
                count = min(self._batch_size, len(line.waiting))
                self._out.add(queue)
                return Turn(queue, tuple(line.waiting.popleft() for _ in range(count)))
        return None

    def wait_ms(self, now_ms: float) -> float | None:
        """Return in how many ms a paused queue may continue; None when none is paused."""
        paused = [
            line.not_before_ms for queue, line in self._lines.items() if queue not in self._out
        ]
        return max(0.0, min(paused) - now_ms) if paused else None

    def finished(self, turn: Turn[T]) -> None:
        """Note that every message of a turn is done."""
        self._back(turn.queue)

    def failed(self, turn: Turn[T], pause_ms: float, now_ms: float) -> list[T]:
        """Note that a turn's messages get another try after a pause (C-285, C-287).

        Returns:
            The messages that had their last try: they do not come again and must be given up. If no
            message of the turn comes again, the queue does not pause.
        """
        spent, again = split_by_tries(turn.batch, self._max_times)
        for message in again:
            message._reconsume_times += 1
        line = self._lines[turn.queue]
        line.waiting.extendleft(reversed(again))
        if again:
            line.not_before_ms = now_ms + pause_ms
        self._back(turn.queue)
        return spent

    def _back(self, queue: MessageQueue) -> None:
        self._out.remove(queue)
        if not self._lines[queue].waiting:
            del self._lines[queue]
