"""Keeping many pulls of one queue under way: what to ask next, what the answers make whole.

Law: pure; no sockets, no time. A broker answers a pull with as many messages as it likes (32 or
256 KiB by default, C-370), so the next offset is not known before the answer. Waiting for it would
cost a round trip per 32 messages; instead each pull owns a guessed stretch of offsets, answers are
put in order, and what a pull left of its stretch is asked for again.
"""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

from rocketstream.spark.scan import QueueRange

FIRST_STRIDE: Final = 32
"""Apache's transferCountOnMessageInMemory default."""
_FULL_ANSWERS_TO_GROW: Final = 16


class Ask(NamedTuple):
    """One pull: from ``begin``, and whose offsets up to ``end`` are this pull's to bring."""

    begin: int
    end: int
    full: bool
    """Whether the stretch is as long as the guess, so that the answer says something about it."""


class Part(NamedTuple):
    """Offsets ``begin`` to ``end`` are settled: by messages in ``body``, or empty."""

    begin: int
    end: int
    body: bytes | memoryview


class QueuePull:
    """One queue range being pulled.

    Invariant: what was given out (``position``), what is settled and waits for its turn, what
    pulls under way own, and what is still to be asked for, together make the range exactly.

    Args:
        span: what to pull.
        stride_max: most messages to ask for in one pull.
    """

    def __init__(self, span: QueueRange, stride_max: int) -> None:
        self.span = span
        self.position = span.begin
        self.in_flight = 0
        self._stride_max = stride_max
        self._stride = min(FIRST_STRIDE, stride_max)
        self._blind = True
        self._learning = True
        self._full_answers = 0
        self._open = [(span.begin, span.end)] if span.begin < span.end else []
        self._settled: dict[int, Part] = {}

    @property
    def done(self) -> bool:
        """Whether every offset was given out."""
        return self.position >= self.span.end

    @property
    def settled(self) -> int:
        """How many answers wait for their turn."""
        return len(self._settled)

    def next_ask(self) -> Ask | None:
        """Return the next pull to send, None while there is nothing to ask or guess from."""
        if not self._open or (self._blind and self.in_flight):
            return None
        begin, end = heapq.heappop(self._open)
        cut = min(end, begin + self._stride)
        if cut < end:
            heapq.heappush(self._open, (cut, end))
        self.in_flight += 1
        return Ask(begin, cut, cut - begin == self._stride)

    def answered(self, ask: Ask, next_offset: int, body: bytes | memoryview = b"") -> None:
        """Take the answer to ``ask``: everything before ``next_offset`` is in ``body`` or is not.

        ``next_offset`` is beyond ``ask.begin``; ``body`` may hold messages of other offsets.
        """
        self.in_flight -= 1
        end = self._extend(ask.end, next_offset) if next_offset > ask.end else next_offset
        self._settled[ask.begin] = Part(ask.begin, end, body)
        if end < ask.end:
            self._reopen(end, ask.end)
        self._learn(ask, next_offset)

    def failed(self, ask: Ask) -> None:
        """Take ``ask`` back: it will be asked again."""
        self.in_flight -= 1
        self._reopen(ask.begin, ask.end)

    def take(self) -> list[Part]:
        """Return what is settled and next in order."""
        parts = []
        while (part := self._settled.pop(self.position, None)) is not None:
            parts.append(part)
            self.position = part.end
        return parts

    def _extend(self, end: int, next_offset: int) -> int:
        """Return how much of an answer beyond its stretch nobody else was asked for."""
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
            # Not below half: one short answer at the end of an index file is no new rule.
            self._stride = min(self._stride, max(got, self._stride // 2, 1))
        elif ask.full:
            self._full_answers += 1
            if self._learning or self._full_answers >= _FULL_ANSWERS_TO_GROW:
                self._full_answers = 0
                self._stride = min(self._stride_max, self._stride * 2)
