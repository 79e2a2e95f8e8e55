"""The plan of a micro-batch: which queue offsets go into it, and which into one Spark partition.

Pure: arithmetic on offsets; deterministic, so that a replay plans the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Final

from rocketstream.model import MessageQueue
from rocketstream.spark.scan import QueueRange

ROWS_WORTH_A_PARTITION: Final = 25_000
"""A task costs 10 to 60 ms before its first row; below this many rows that is most of its time."""
ROWS_WORTH_ALL_CORES: Final = 2_000


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


def partition_count(ranges: Sequence[QueueRange], cores: int | None, minimum: int | None) -> int:
    """Return how many partitions to plan for ``ranges``.

    Without ``minimum`` no queue is split, so a partition keeps each queue's order; small ranges
    share a partition. Where the number of cores is unknown there is one partition per queue, as in
    Spark's Kafka source, provided there are enough rows in all.
    """
    rows = sum(span.count for span in ranges)
    if minimum is not None:
        return max(1, min(minimum, rows))
    wanted = -(-rows // ROWS_WORTH_A_PARTITION)
    if cores is None:
        wanted = max(wanted, rows // ROWS_WORTH_ALL_CORES)
    elif rows >= ROWS_WORTH_ALL_CORES:
        wanted = max(wanted, cores)
    return max(1, min(wanted, len(ranges)))


def plan(
    ranges: Sequence[QueueRange],
    cores: int | None,
    minimum: int | None = None,
    rows_max: int | None = None,
) -> list[tuple[QueueRange, ...]]:
    """Distribute ranges over partitions of about the same number of rows.

    Each offset is in exactly one partition. Without anything to read there is no partition.

    Args:
        ranges: what to read.
        cores: how many tasks run at a time, None for unknown.
        minimum: the least number of partitions, if there are enough rows; None for as many as are
            worth their cost.
        rows_max: how many offsets one partition has at most, None for any number.
    """
    ranges = [span for span in ranges if span.count > 0]
    if not ranges:
        return []
    rows = sum(span.count for span in ranges)
    count = partition_count(ranges, cores, minimum)
    largest = rows if minimum is None else rows // count
    if rows_max is not None:
        count, largest = max(count, -(-rows // rows_max)), min(largest, rows_max)
    return _pack(_split(ranges, largest), count, rows_max)


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
