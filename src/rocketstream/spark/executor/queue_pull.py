"""The pulls of one queue that are under way: the next request, and the offsets that are complete.

Pure: no sockets and no time. A broker answers a pull with as many messages as it likes (32 or 256
KiB by default, C-370), so the next offset is not known before the answer. Waiting for it would cost
a round trip per 32 messages; instead each pull owns a guessed stretch of offsets, answers are put
in order, and the part of a stretch that a pull left is asked for again.
"""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

from rocketstream.spark.scan import QueueRange

FIRST_STRIDE: Final = 32
"""Apache's transferCountOnMessageInMemory default."""
_FULL_ANSWERS_TO_GROW: Final = 16


class Ask(NamedTuple):
    """One pull from ``begin`` on; its own offsets end at ``end``."""

    begin: int
    end: int
    full: bool
    """Whether the stretch is as long as the guess, so that the answer tests the guess.
    """


class Part(NamedTuple):
    """Offsets ``begin`` to ``end`` are answered for: by the messages in ``body``, or as empty."""

    begin: int
    end: int
    body: bytes | memoryview


class QueuePull:
    """One queue range being pulled.

    Invariant: the offsets given out (up to ``position``), those of answers that wait for earlier
    ones, those owned by pulls under way, and those still to be asked for together are exactly the
    range.

    Args:
        span: the range to pull.
        stride_max: how many messages to ask for in one pull at most.
    """

    def __init__(self, span: QueueRange, stride_max: int) -> None:
        self.span = span
        self.position: int = span.begin
        self.in_flight: int = 0
        self._stride_max = stride_max
        self._stride = min(FIRST_STRIDE, stride_max)
        self._blind = True
        self._learning = True
        self._full_answers = 0
        self._open = [(span.begin, span.end)] if span.begin < span.end else []
        self._parts: dict[int, Part] = {}

    @property
    def done(self) -> bool:
        """Whether every offset was given out."""
        return self.position >= self.span.end

    @property
    def parts_waiting(self) -> int:
        """How many answers wait for earlier ones."""
        return len(self._parts)

    def next_ask(self) -> Ask | None:
        """Return the next pull to send; None while there is nothing to ask for or to guess from."""
        if not self._open or (self._blind and self.in_flight):
            return None
        begin, end = heapq.heappop(self._open)
        cut = min(end, begin + self._stride)
        if cut < end:
            heapq.heappush(self._open, (cut, end))
        self.in_flight += 1
        return Ask(begin, cut, cut - begin == self._stride)

    def answered(self, ask: Ask, next_offset: int, body: bytes | memoryview = b"") -> int:
        """Take the answer to ``ask``, and return the end of the offsets it answers for.

        All messages before ``next_offset``, which is greater than ``ask.begin``, are in ``body``;
        that may hold messages of other offsets.
        """
        self.in_flight -= 1
        end = self._extend(ask.end, next_offset) if next_offset > ask.end else next_offset
        self._parts[ask.begin] = Part(ask.begin, end, body)
        if end < ask.end:
            self._reopen(end, ask.end)
        self._learn(ask, next_offset)
        return end

    def failed(self, ask: Ask) -> None:
        """Take ``ask`` back: its offsets will be asked for again."""
        self.in_flight -= 1
        self._reopen(ask.begin, ask.end)

    def take(self) -> list[Part]:
        """Return the answered parts that are next in order."""
        parts = []
        while (part := self._parts.pop(self.position, None)) is not None:
            parts.append(part)
            self.position = part.end
        return parts

    def _extend(self, end: int, next_offset: int) -> int:
        """Return how much of an answer beyond its stretch no other pull was sent for."""
        if self._open and self._open[0][0] == end:
            _, limit = heapq.heappop(self._open)
            end = min(next_offset, limit)
            if end < limit:
                heapq.heappush(self._open, (end, limit))
        return end

    def _reopen(self, begin: int, end: int) -> None:
        if self._open and self._open[0][0] == end:
            end = heapq.heappop(self._open)[1]
        heapq.heappush(self._open, (begin, end))

    def _learn(self, ask: Ask, next_offset: int) -> None:
        got = next_offset - ask.begin
        self._blind = False
        if got < ask.end - ask.begin:
            self._learning = False
            self._full_answers = 0
            # Never below half: one short answer at the end of an index file is no new rule.
            self._stride = min(self._stride, max(got, self._stride // 2, 1))
        elif ask.full:
            self._full_answers += 1
            if self._learning or self._full_answers >= _FULL_ANSWERS_TO_GROW:
                self._full_answers = 0
                self._stride = min(self._stride_max, self._stride * 2)
