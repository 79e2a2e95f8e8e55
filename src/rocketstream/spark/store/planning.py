"""The ranges a read of a store covers, and each task's part of them.

Offsets and positions of a snapshot in, ranges and plans out; no record is read.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.spark.losses import report_loss
from rocketstream.spark.options import (
    EARLIEST,
    LATEST,
    Position,
    QueueTable,
    StoreOptions,
    since_1970,
)
from rocketstream.spark.scan import QueueRange
from rocketstream.spark.store.files import QueueIndex
from rocketstream.spark.store.snapshot import Snapshot

_CUT_TRIES: Final = 40
ROWS_WORTH_ALL_CORES: Final = 2_000
ROWS_OF_A_PARTITION_MAX: Final = 5_000_000
"""Most rows of one partition, which are read again when its task fails."""


@dataclass(frozen=True, slots=True)
class StoreSpan:
    """Offsets ``begin`` to ``end`` of one queue, with entries its index files lack.

    Attributes:
        queue: the queue in the store.
        begin: the first offset.
        end: one past the last offset.
        tail_begin: the offset from which ``tail`` has the entries instead of the files.
        tail: the entries as stored.
    """

    queue: MessageQueue
    begin: int
    end: int
    tail_begin: int | None = None
    tail: bytes = b""


@dataclass(frozen=True, slots=True)
class StorePlan:
    """One Spark partition's part of a read: spans that are near each other in the commit log."""

    spans: tuple[StoreSpan, ...]


# --- ranges -----------------------------------------------------------------------------------


def store_ranges(
    options: StoreOptions, snapshot: Snapshot, clock: Clock = SYSTEM_CLOCK
) -> list[QueueRange]:
    """Return the ranges a read of a store covers now.

    Raises:
        ConfigurationError: an option names offsets of a queue the store does not have.
        DataLossError: offsets given by the user no longer exist and ``failOnDataLoss`` is set.
    """
    now_ms = clock.now_ms()
    begins = _resolve(options.start, snapshot, "startingOffsets", snapshot.lows, now_ms)
    ends = _resolve(options.end, snapshot, "endingOffsets", snapshot.highs, now_ms)
    ranges = []
    for queue in sorted(begins):
        begin, end = begins[queue], ends[queue]
        low, high = snapshot.lows[queue], snapshot.highs[queue]
        if begin < end and (begin < low or end > high):
            report_loss(
                options.fail_on_data_loss,
                queue,
                f"offsets {begin} to {end - 1} were asked for, but the store holds "
                + (f"{low} to {high - 1}" if low < high else "none of this queue"),
            )
        begin, end = max(begin, low), min(end, high)
        if begin < end:
            ranges.append(QueueRange(queue, begin, end))
    return ranges


def _resolve(
    position: Position,
    snapshot: Snapshot,
    option: str,
    otherwise: Mapping[MessageQueue, int],
    now_ms: int,
) -> dict[MessageQueue, int]:
    match position.kind:
        case "earliest":
            return dict(snapshot.lows)
        case "latest":
            return dict(snapshot.highs)
        case "timestamp":
            at = since_1970(position.timestamp_ms, now_ms)
            return {queue: snapshot.first_stored_at(queue, at) for queue in snapshot.indexes}
        case "offsets":
            return _named(position.table or QueueTable({}), snapshot, option, otherwise)
    raise ConfigurationError(
        f"option {option!r} cannot be {position.kind!r} with option 'storePath'; give earliest, "
        "latest, offsets or a timestamp",
        option=option,
    )


def _named(
    table: QueueTable,
    snapshot: Snapshot,
    option: str,
    otherwise: Mapping[MessageQueue, int],
) -> dict[MessageQueue, int]:
    strange = table.strangers(snapshot.indexes)
    if strange:
        there = ", ".join(f"{q.topic}/{q.broker_name}/{q.queue_id}" for q in snapshot.indexes)
        raise ConfigurationError(
            f"option {option!r} names queues the store does not have: {', '.join(strange)}. It has "
            f"{there} (option 'brokerName' says what its broker is called)",
            option=option,
        )
    marks = {EARLIEST: snapshot.lows, LATEST: snapshot.highs}
    resolved = dict(otherwise)
    for queue in snapshot.indexes:
        offset = table.of(queue)
        if offset is not None:
            resolved[queue] = marks[offset][queue] if offset in marks else offset
    return resolved


# --- partitions -------------------------------------------------------------------------------


def store_plans(
    snapshot: Snapshot, ranges: Sequence[QueueRange], partitions: int
) -> list[StorePlan]:
    """Cut ranges into about ``partitions`` partitions of equal size, each one stretch of the log.

    A task then reads its part of the log once and in order, for all queues in it.
    """
    rows = sum(span.count for span in ranges)
    begins = {span.queue: span.begin for span in ranges}
    ends = {span.queue: span.end for span in ranges}
    plans = []
    for number in range(1, partitions + 1):
        cuts = ends if number == partitions else _cut(snapshot, ranges, rows * number // partitions)
        spans = [
            _span(snapshot, queue, begins[queue], cuts[queue])
            for queue in sorted(begins)
            if begins[queue] < cuts[queue]
        ]
        begins = {queue: max(begins[queue], cuts[queue]) for queue in begins}
        if spans:
            plans.append(StorePlan(tuple(spans)))
    return plans


def _span(snapshot: Snapshot, queue: MessageQueue, begin: int, end: int) -> StoreSpan:
    """Return a range of a queue with the entries its files lack."""
    index = snapshot.indexes[queue]
    if index.tail_begin is None or end <= index.tail_begin:
        return StoreSpan(queue, begin, end)
    return StoreSpan(queue, begin, end, index.tail_begin, index.tail)


def _cut(snapshot: Snapshot, ranges: Sequence[QueueRange], wanted: int) -> dict[MessageQueue, int]:
    """Return, per queue, the first offset after the place in the log before which about ``wanted``
    rows are.
    """
    low, high = snapshot.log.begin, snapshot.log.files[-1].end
    near = max(1, wanted // 100)
    cuts: dict[MessageQueue, int] = {}
    for _ in range(_CUT_TRIES):
        middle = (low + high) // 2
        cuts = {
            span.queue: _first_behind(snapshot.indexes[span.queue], span, middle) for span in ranges
        }
        rows = sum(cuts[span.queue] - span.begin for span in ranges)
        if abs(rows - wanted) <= near or low >= high:
            break
        low, high = (middle + 1, high) if rows < wanted else (low, middle)
    return cuts


def _first_behind(index: QueueIndex, span: QueueRange, physical: int) -> int:
    offsets = range(span.begin, span.end)
    return span.begin + bisect.bisect_left(offsets, physical, key=lambda at: index.unit(at)[0])


def partition_count(rows: int, cores: int, minimum: int | None) -> int:
    """Return how many partitions to cut ``rows`` rows into."""
    if minimum is not None:
        return max(1, min(minimum, rows))
    if rows < ROWS_WORTH_ALL_CORES:
        return 1
    return max(cores, -(-rows // ROWS_OF_A_PARTITION_MAX))
