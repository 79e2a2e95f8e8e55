"""The admission of waiting rows to the next micro-batch: how many go into it.

The decision needs counts, a clock and samples, which the sampling function asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from rocketstream._util.clock import Clock
from rocketstream.model import MessageQueue
from rocketstream.spark.driver.planning import admit
from rocketstream.spark.options import TriggerLimits

Ends = dict[MessageQueue, int]
Sample = Callable[[Mapping[MessageQueue, int]], Mapping[MessageQueue, int]]

SAMPLED_AT: Final = (0.0, 0.5, 1.0)
"""The places among a queue's waiting messages where sizes are sampled: first, middle, last."""


class Admission:
    """Applies the limits of a stream; used by one thread.

    Args:
        limits: the user's limits.
        sample: returns the stored bytes of the messages at some offsets, without deleted ones; may
            block.
        clock: measures how long rows have waited.
    """

    def __init__(self, limits: TriggerLimits, sample: Sample, clock: Clock) -> None:
        self._limits = limits
        self._sample = sample
        self._clock = clock
        self._triggered_at = float("-inf")
        self.holds_back = False
        """Whether rows were made to wait for more rows the last time."""

    def admitted(self, begins: Mapping[MessageQueue, int], ends: Ends, *, final: bool) -> Ends:
        """Return new ends within the limits; the beginnings if rows must wait for more.

        Args:
            begins: the offset at which each queue continues.
            ends: where each queue ends.
            final: whether no more rows will come, so that none need to wait.
        """
        waiting = {queue: max(0, end - begins[queue]) for queue, end in ends.items()}
        rows = sum(waiting.values())
        self.holds_back = not final and self._is_too_little(rows)
        if self.holds_back:
            return {queue: begins[queue] for queue in ends}
        limits = [rows for rows in (self._limits.rows_max,) if rows is not None]
        if self._limits.bytes_max is not None and rows:
            size = self._row_bytes(begins, waiting) * rows
            if size:
                limits.append(int(rows * self._limits.bytes_max / size))
        return admit(begins, ends, min(limits)) if limits else ends

    def triggered(self) -> None:
        """Note that a batch begins."""
        self._triggered_at = self._clock.monotonic_ms()

    def _is_too_little(self, rows: int) -> bool:
        least = self._limits.rows_min
        if least is None or not 0 < rows < least:
            return False
        return self._clock.monotonic_ms() - self._triggered_at < self._limits.delay_max_ms

    def _row_bytes(
        self, begins: Mapping[MessageQueue, int], waiting: Mapping[MessageQueue, int]
    ) -> float:
        """Return roughly how many bytes a waiting row has, weighting queues by their rows."""
        weighed: dict[MessageQueue, list[int]] = {}
        for part in SAMPLED_AT:
            places = {
                # Not the very last: a record of 5.x that holds several rows is known by the next.
                queue: begins[queue] + min(int((count - 1) * part), max(0, count - 2))
                for queue, count in waiting.items()
                if count
            }
            for queue, size in self._sample(places).items():
                weighed.setdefault(queue, []).append(size)
        rows = sum(waiting[queue] for queue in weighed)
        total = sum(waiting[queue] * sum(sizes) / len(sizes) for queue, sizes in weighed.items())
        return total / rows if rows else 0.0
