"""The batches that listener calls get: side by side, or one of a queue after the other.

Pure: rows, answers and the time (monotonic ms) in, batches out.

Law: at most one batch of a queue consumed in order is out at a time; failed messages are taken
again before later ones, so a queue never overtakes itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from rocketstream.client.consumer.listener import split_by_tries
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt

Rows = Iterable[tuple[MessageQueue, MessageExt]]
"""Messages, each with the queue it was read from, whose topic may differ from its own."""


def batches_of(messages: Rows, size: int) -> Iterator[tuple[MessageQueue, list[MessageExt]]]:
    """Yield batches of up to ``size`` messages of one queue (C-260).

    A batch is yielded as soon as it is full, an unfilled one at the end; at most one unfilled batch
    per queue is held.

    Args:
        messages: the messages, read one after the other.
        size: how many messages a batch holds at most.
    """
    open_batches: dict[MessageQueue, list[MessageExt]] = {}
    for queue, message in messages:
        batch = open_batches.setdefault(queue, [])
        batch.append(message)
        if len(batch) == size:
            del open_batches[queue]
            yield queue, batch
    yield from open_batches.items()


@dataclass(slots=True)
class _Line:
    """The waiting messages of one queue, and when it may continue."""

    waiting: deque[MessageExt]
    not_before_ms: float = float("-inf")


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """A batch that is out: given to the listener and not answered yet."""

    queue: MessageQueue
    batch: tuple[MessageExt, ...]


class Turns:
    """The queues of one task, whose messages are all in memory; they are taken by offset.

    Args:
        messages: all messages of the task.
        batch_size: how many messages one turn has at most.
        max_times: how many tries a message gets after its first.
    """

    def __init__(self, messages: Rows, batch_size: int, max_times: int) -> None:
        self._batch_size = batch_size
        self._max_times = max_times
        found: dict[MessageQueue, list[MessageExt]] = {}
        for queue, message in messages:
            found.setdefault(queue, []).append(message)
        by_offset = attrgetter("queue_offset")
        self._lines = {
            queue: _Line(deque(sorted(of_queue, key=by_offset)))
            for queue, of_queue in found.items()
        }
        self._out: set[MessageQueue] = set()

    @property
    def done(self) -> bool:
        """Whether every message is finished."""
        return not self._lines

    def take(self, now_ms: float) -> Turn | None:
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

    def finished(self, turn: Turn) -> None:
        """Note that every message of a turn is done, or waits again."""
        self._out.remove(turn.queue)
        if not self._lines[turn.queue].waiting:
            del self._lines[turn.queue]

    def failed(self, turn: Turn, pause_ms: float, now_ms: float) -> list[MessageExt]:
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
        self.finished(turn)
        return spent
