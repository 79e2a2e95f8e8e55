"""Pages over several queues, as one sequence in order of time.

Pure: decides which range of which queue is read next, which message comes next, and where another
page begins.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt

Range = tuple[int, int]
"""The first offset, and the end (exclusive)."""
_WINDOW_MAX: Final = 32
"""As many messages as one answer of an Apache broker holds."""


class Pages:
    """The messages of ranges of queues, ordered by store time.

    Args:
        ranges: the range of each queue that is still to be read.
        newest_first: whether the order is newest first.
        wanted: how many messages a page holds, so that no more than needed is read of each queue.
    """

    def __init__(
        self, ranges: Mapping[MessageQueue, Range], *, newest_first: bool, wanted: int
    ) -> None:
        self.ranges: dict[MessageQueue, Range] = {
            queue: span for queue, span in ranges.items() if span[0] < span[1]
        }
        self._newest_first = newest_first
        self._aside: dict[MessageQueue, Range] = {}
        self._read: dict[MessageQueue, deque[MessageExt]] = {}
        # How far each queue is read, which is ahead of the messages handed out.
        self._edge: dict[MessageQueue, int] = {}
        share = 2 * wanted // max(len(self.ranges), 1)
        self._window = min(max(share, 4), _WINDOW_MAX)

    def next_read(self) -> tuple[MessageQueue, Range] | None:
        """Return a range that has to be read before the next message is known."""
        for queue, (low, high) in self.ranges.items():
            if self._read.get(queue):
                continue
            edge = self._edge.get(queue)
            if self._newest_first:
                end = high if edge is None else edge
                if end > low:
                    return queue, (max(low, end - self._window), end)
            else:
                begin = low if edge is None else edge
                if begin < high:
                    return queue, (begin, min(high, begin + self._window))
        return None

    def have_read(self, queue: MessageQueue, span: Range, found: Sequence[MessageExt]) -> None:
        """Take the messages of a range that was read; offsets without a message are gone."""
        messages = [m for m in found if span[0] <= m.queue_offset < span[1]]
        if self._newest_first:
            messages.reverse()
        self._read[queue] = deque(messages)
        self._edge[queue] = span[0] if self._newest_first else span[1]

    def take(self) -> MessageExt | None:
        """Return the next message, None when none is left; call it when no range has to be read."""
        heads = {queue: read[0] for queue, read in self._read.items() if read}
        if not heads:
            self.ranges = {}
            return None
        pick = max if self._newest_first else min
        queue = pick(heads, key=lambda q: (heads[q].store_timestamp, q, heads[q].queue_offset))
        message = self._read[queue].popleft()
        low, high = self.ranges[queue]
        at = message.queue_offset
        self.ranges[queue] = (low, at) if self._newest_first else (at + 1, high)
        return message

    def finish(self, queue: MessageQueue) -> None:
        """Leave out the rest of a queue."""
        self.ranges.pop(queue, None)
        self._read.pop(queue, None)

    def put_aside(self, queue: MessageQueue) -> None:
        """Leave out a queue that could not be read; its rest is kept for another page."""
        self._aside[queue] = self.ranges[queue]
        self.finish(queue)

    def left(self) -> dict[MessageQueue, Range]:
        """Return the rest of each queue, where another page continues."""
        found = dict(self._aside)
        for queue, (low, high) in self.ranges.items():
            if not self._read.get(queue) and queue in self._edge:
                edge = self._edge[queue]
                low, high = (low, edge) if self._newest_first else (edge, high)
            if low < high:
                found[queue] = (low, high)
        return found


@dataclass(frozen=True, slots=True)
class SearchPlace:
    """The place where a search continues.

    Attributes:
        newest_first: its order.
        since_ms: its first store time, None for any.
        until_ms: its end, None for any.
        ranges: the range of each queue that is still to be read.
    """

    newest_first: bool
    since_ms: int | None
    until_ms: int | None
    ranges: Mapping[MessageQueue, Range]

    def side(self, store_ms: int) -> str | None:
        """Return whether a time is ``before`` or ``behind`` the wanted times, in this order."""
        is_early = self.since_ms is not None and store_ms < self.since_ms
        is_late = self.until_ms is not None and store_ms >= self.until_ms
        if not is_early and not is_late:
            return None
        return "behind" if is_early == self.newest_first else "before"

    def behind(self, told: Iterable[MessageExt]) -> SearchPlace:
        """Return the place after messages that were found, in this order."""
        left = dict(self.ranges)
        for message in told:
            queue = message.message_queue
            if queue in left:
                low, high = left[queue]
                at = message.queue_offset
                left[queue] = (
                    (low, min(high, at)) if self.newest_first else (max(low, at + 1), high)
                )
        return replace(self, ranges={q: span for q, span in left.items() if span[0] < span[1]})

    def word(self, topic: str) -> str:
        """Return the place as a text for the caller to hand back; it contains no message."""
        rows = [[q.broker_name, q.queue_id, *span] for q, span in sorted(self.ranges.items())]
        tree = [1, topic, self.newest_first, self.since_ms, self.until_ms, rows]
        text = json.dumps(tree, separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def of_word(cls, word: str, topic: str) -> SearchPlace:
        """Read a place from its text.

        Raises:
            ConfigurationError: the text is not a place, or is one of another topic.
        """
        try:
            tree: Any = json.loads(base64.urlsafe_b64decode(word + "=" * (-len(word) % 4)))
            version, of, newest_first, since_ms, until_ms, rows = tree
            if version != 1 or not isinstance(newest_first, bool) or not isinstance(of, str):
                raise ValueError("another version")
            ranges = {
                MessageQueue(topic, str(name), int(number)): (max(int(low), 0), int(high))
                for name, number, low, high in rows
            }
            times = [None if at is None else int(at) for at in (since_ms, until_ms)]
        except (ValueError, TypeError, binascii.Error, RecursionError):
            raise ConfigurationError(
                f"{word[:40]!r} is not a place where a search ended: give the whole word of its "
                "answer"
            ) from None
        if of != topic:
            raise ConfigurationError(f"this place is of a search in topic {of!r}, not in {topic!r}")
        return cls(newest_first, times[0], times[1], ranges)
