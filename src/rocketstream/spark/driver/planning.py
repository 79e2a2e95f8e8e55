"""The plan of a read: which queue offsets go into a micro-batch, and which into one partition.

Pure: arithmetic on offsets; deterministic, so that a replay plans the same. ``Admission`` is handed
the clock and the sizes of messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from rocketstream.columns.table import described
from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.spark.options import ReadOptions, TriggerLimits
from rocketstream.spark.scan import PartitionPlan, QueueRange

if TYPE_CHECKING:
    from rocketstream._util.clock import Clock

ROWS_WORTH_A_PARTITION: Final = 25_000
"""A task costs 10 to 60 ms before its first row; below this many rows that is most of its time."""
ROWS_WORTH_ALL_CORES: Final = 2_000
SAMPLED_AT: Final = (0.0, 0.5, 1.0)
"""The places among a queue's waiting messages where sizes are sampled: first, middle, last."""

Ends = dict[MessageQueue, int]
Sample = Callable[[Mapping[MessageQueue, int]], Mapping[MessageQueue, int]]


def admit(
    begins: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int], rows_max: int
) -> dict[MessageQueue, int]:
    """Return new ends that admit ``rows_max`` offsets, in proportion to the waiting rows.

    Every queue gets its share rounded down; the remaining offsets go one by one to the queues with
    the largest remainders, so that together exactly ``rows_max`` (or all there is) are admitted. A
    queue that holds something gets at least one offset, taken from the largest shares; otherwise it
    would starve beside queues that grow as fast as they are read. With more such queues than
    ``rows_max`` each gets one, which is then more than ``rows_max`` in all.
    """
    waiting = {queue: max(0, end - begins[queue]) for queue, end in ends.items()}
    total = sum(waiting.values())
    if total <= rows_max:
        return {queue: begins[queue] + count for queue, count in waiting.items()}
    shares = {queue: divmod(count * rows_max, total) for queue, count in waiting.items()}
    left = rows_max - sum(share for share, _ in shares.values())
    favoured = set(sorted(shares, key=lambda queue: (-shares[queue][1], queue))[:left])
    granted = {queue: shares[queue][0] + (queue in favoured) for queue in ends}
    _feed_the_starving(granted, waiting)
    return {queue: begins[queue] + granted[queue] for queue in ends}


def _feed_the_starving(
    granted: dict[MessageQueue, int], waiting: Mapping[MessageQueue, int]
) -> None:
    """Give one row to each queue with rows but no share, taking it from the largest shares."""
    starving = [queue for queue, count in waiting.items() if count and not granted[queue]]
    givers = [(-share, queue) for queue, share in granted.items() if share > 1]
    heapify(givers)
    for queue in starving:
        granted[queue] = 1
        if givers:
            share, giver = heappop(givers)
            granted[giver] -= 1
            if granted[giver] > 1:
                heappush(givers, (share + 1, giver))


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
        self.holds_back: bool = False
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


def partition_count(ranges: Sequence[QueueRange], cores: int, minimum: int | None) -> int:
    """Return how many partitions to plan for ``ranges``.

    Without ``minimum`` no queue is split, so a partition keeps each queue's order; small ranges
    share a partition.
    """
    rows = sum(span.count for span in ranges)
    if minimum is not None:
        return max(1, min(minimum, rows))
    wanted = -(-rows // ROWS_WORTH_A_PARTITION)
    if rows >= ROWS_WORTH_ALL_CORES:
        wanted = max(wanted, cores)
    return max(1, min(wanted, len(ranges)))


def plan(
    ranges: Sequence[QueueRange],
    cores: int,
    minimum: int | None = None,
    rows_max: int | None = None,
    chosen: int | None = None,
) -> list[tuple[QueueRange, ...]]:
    """Distribute ranges over partitions of about the same number of rows.

    Each offset is in exactly one partition. Without anything to read there is no partition.

    Args:
        ranges: what to read.
        cores: how many tasks run at a time.
        minimum: the least number of partitions, if there are enough rows; None for as many as are
            worth their cost.
        rows_max: how many offsets one partition has at most, None for any number.
        chosen: the ``partition_count`` an earlier plan of these ranges chose without ``minimum``,
            on whatever machine.
    """
    ranges = [span for span in ranges if span.count > 0]
    if not ranges:
        return []
    rows = sum(span.count for span in ranges)
    count = chosen if chosen and minimum is None else partition_count(ranges, cores, minimum)
    largest = rows if minimum is None else rows // count
    if rows_max is not None:
        count, largest = max(count, -(-rows // rows_max)), min(largest, rows_max)
    return _pack(_split(ranges, largest), count, rows_max)


def partition_plans(
    options: ReadOptions,
    ranges: Sequence[QueueRange],
    cores: int,
    addresses: Mapping[str, str],
    chosen: int | None = None,
) -> list[PartitionPlan]:
    """Return one plan per Spark partition; an empty plan where there is nothing to read.

    Args:
        options: of the read.
        ranges: what to read.
        cores: how many tasks run at a time.
        addresses: ``host:port`` of each broker.
        chosen: how many partitions were chosen when the ranges were first planned.
    """
    least, rows_max = options.min_partitions, options.max_records_per_partition
    planned = plan(ranges, cores, least, rows_max, chosen)
    return [
        PartitionPlan(spans, {s.queue.broker_name: addresses[s.queue.broker_name] for s in spans})
        for spans in planned
    ] or [PartitionPlan((), {})]


def _split(ranges: Sequence[QueueRange], largest: int) -> list[QueueRange]:
    """Cut ranges into even pieces of at most ``largest`` rows."""
    pieces: list[QueueRange] = []
    for span in ranges:
        cuts = -(-span.count // largest)
        edges = [span.begin + span.count * cut // cuts for cut in range(cuts + 1)]
        pieces += [QueueRange(span.queue, low, high) for low, high in pairwise(edges)]
    return pieces


def _pack(
    pieces: Sequence[QueueRange], count: int, rows_max: int | None
) -> list[tuple[QueueRange, ...]]:
    """Put the largest remaining piece into the emptiest bin, or a new one if that overflows."""
    bins: list[list[QueueRange]] = [[] for _ in range(count)]
    fill = [(0, index) for index in range(count)]
    for piece in sorted(pieces, key=lambda piece: (-piece.count, piece)):
        rows, index = fill[0]
        if rows_max is not None and rows + piece.count > rows_max:
            rows, index = 0, len(bins)
            bins.append([])
        else:
            heappop(fill)
        bins[index].append(piece)
        heappush(fill, (rows + piece.count, index))
    return [tuple(sorted(filled)) for filled in bins if filled]


def refuse_reversed(queue: MessageQueue, begin: int, end: int, low: int, high: int) -> None:
    """Refuse an end before a beginning: the queue would silently be left out.

    An end before the oldest existing row is not refused, because rows expire; a beginning after the
    last row is a loss.

    Args:
        queue: the queue.
        begin: where its read begins.
        end: where its read ends.
        low: its oldest offset.
        high: its end.

    Raises:
        ConfigurationError: the read ends before it begins.
    """
    if end < begin and low < begin <= high:
        raise ConfigurationError(
            f"the read of {described(queue)} begins at offset {begin} and ends at {end}: give "
            "'startingOffsets', or a starting time, before the end",
            queue=tuple(queue),
        )


def first_at(low: int, high: int, hint: int, reached: Callable[[int], bool]) -> int:
    """Return the smallest offset from ``low`` on for which ``reached`` is true; ``high`` if none.

    Args:
        low: first candidate.
        high: one past the last candidate.
        hint: where the search begins; the nearer to the result, the fewer calls of ``reached``.
        reached: a monotonic predicate: once true, it is true for all larger offsets.
    """
    probe, step, answers = min(max(hint, low), high - 1), 1, set[bool]()
    while low < high:
        is_reached = reached(probe)
        if is_reached:
            high = probe
        else:
            low = probe + 1
        answers.add(is_reached)
        if len(answers) == 2:  # it lies between two offsets that were asked about
            probe = (low + high) // 2
        else:
            probe = max(low, high - step) if is_reached else min(high - 1, low + step - 1)
            step *= 2
    return min(low, high)
