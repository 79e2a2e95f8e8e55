"""The queues of a store at one moment: their bounds, what a read of them covers, a task's part.

The bounds tell the entries the index lacks, too. Offsets and positions in, ranges and plans out.

Law: everything is read once, because a broker may go on writing. Heads of records are read for the
time and place they were stored; nothing is decoded.
"""

from __future__ import annotations

import bisect
import logging
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.errors import ConfigurationError, StoreDamagedError
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.record import DELETION_QUEUE, RecordHead
from rocketstream.spark.driver.planning import first_at, refuse_reversed
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
from rocketstream.spark.store.files import (
    FILLER_SIZE,
    NO_UNIT,
    PACKED_UNIT,
    CommitLog,
    OpenFiles,
    QueueIndex,
    Stop,
    all_queues,
    based_files,
    queue_directory,
    queue_ids,
)

logger: logging.Logger = logging.getLogger("rocketstream.spark")

_MARKS: Final = struct.Struct(">qq")
_MARGIN_MS: Final = 3_000
"""Upstream trusts a checkpoint up to this long before its times."""
_BEING_WRITTEN: Final = (0.01, 0.05, 0.2)
"""How many seconds a running broker gets to finish the record it is writing."""


class Snapshot:
    """The queues of some topics as they are in a store now; to be closed.

    Args:
        options: name the store and the topics.

    Attributes:
        lows: the first offset of each queue whose record the log still has.
        highs: one past the last offset of each queue.

    Raises:
        ConfigurationError: there is no store, no commit log, or no such topic.
        NotSupportedError: the index has a form that is not read from files.
        StoreDamagedError: bytes are not a record where the index lacks entries, and ``skipDamaged``
            is not set.
    """

    def __init__(self, options: StoreOptions) -> None:
        self._options = options
        self._readers = OpenFiles()
        self.log: CommitLog = CommitLog(options.commit_log_paths)
        try:
            self._look()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the files."""
        self._readers.close()

    def _look(self) -> None:
        options = self._options
        store = options.store_path
        self.indexes: dict[MessageQueue, QueueIndex] = {
            MessageQueue(topic, options.broker_name, queue_id): QueueIndex(
                based_files(queue_directory(store, topic, queue_id)), self._readers
            )
            for topic in options.topics
            for queue_id in queue_ids(store, topic)
        }
        # After the index: records it names are then in the log, even while a broker is writing.
        ends = {queue: _end_of(index) for queue, index in self.indexes.items()}
        self.log = CommitLog(options.commit_log_paths)
        if not self.log.files:
            raise ConfigurationError(
                f"no commit log files in {', '.join(options.commit_log_paths)}; option "
                "'commitLogPath' says where they are (several separated by commas)",
                option="commitLogPath",
            )
        self.highs: dict[MessageQueue, int] = self._add_unindexed(ends)
        self.lows: dict[MessageQueue, int] = {
            queue: _begin_of(index, self.highs[queue], self.log.begin)
            for queue, index in self.indexes.items()
        }

    def first_stored_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the first offset stored at or after a time."""
        index, low, high = self.indexes[queue], self.lows[queue], self.highs[queue]
        return first_at(low, high, (low + high) // 2, self._stored_since(index, timestamp_ms))

    def _stored_since(self, index: QueueIndex, timestamp_ms: int) -> Callable[[int], bool]:
        """Return a function that tells whether an offset was stored at or after a time."""

        def ask(offset: int) -> bool:
            stored = self.log.store_time(index.unit(offset)[0])
            return stored is None or stored >= timestamp_ms

        return ask

    # --- records the index lacks --------------------------------------------------------------

    def _add_unindexed(self, ends: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Add records that a crash, or a broker just writing, left only in the log; return the
        ends.
        """
        highs = dict(ends)
        if not Path(self._options.store_path, "abort").exists():
            return highs  # the store was closed properly: the index is complete
        begin = self._trusted_end()
        found: dict[MessageQueue, dict[int, bytes]] = {}
        for physical, head in self._walk(begin):
            queue = MessageQueue(head.topic, self._options.broker_name, head.queue_id)
            if head.sys_flag & MessageSysFlag.TRANSACTION_PREPARED:
                # Of a transaction that is undecided or rolled back: in no queue.
                if head.queue_id == DELETION_QUEUE:  # what the topic had before is gone
                    found = {q: units for q, units in found.items() if q.topic != head.topic}
                continue
            if queue in ends and head.queue_offset >= ends[queue]:
                unit = PACKED_UNIT.pack(physical, head.total_size, 0)
                found.setdefault(queue, {})[head.queue_offset] = unit
        for queue, units in found.items():
            first, end = ends[queue], max(units) + 1
            index = self.indexes[queue]
            index.tail_begin = first
            index.tail = b"".join(units.get(at, NO_UNIT) for at in range(first, end))
            highs[queue] = end
            logger.info("offsets=%d..%d of %s are in the log alone", first, end - 1, queue)
        return highs

    def _trusted_end(self) -> int:
        """Return the place in the log up to which every queue's index is certainly on the disk."""
        store = self._options.store_path
        try:
            marks = Path(store, "checkpoint").read_bytes()[: _MARKS.size]
        except OSError:
            marks = b""
        physic, logics = _MARKS.unpack(marks.ljust(_MARKS.size, b"\0"))
        limit_ms = min(physic, logics) - _MARGIN_MS
        end = self.log.begin
        if limit_ms <= 0:
            return end
        for topic, queue_id in all_queues(store):
            index = QueueIndex(based_files(queue_directory(store, topic, queue_id)), self._readers)
            high = _end_of(index)
            low = _begin_of(index, high, self.log.begin)
            after = first_at(low, high, high - 1, self._stored_since(index, limit_ms))
            if after > low:
                physical, size, _ = index.unit(after - 1)
                end = max(end, physical + size)
        return end

    def _walk(self, begin: int) -> Iterator[tuple[int, RecordHead]]:
        """Yield the records of the log from a position on.

        Raises:
            StoreDamagedError: bytes are not a record, and ``skipDamaged`` is not set.
        """
        pauses = iter(_BEING_WRITTEN)
        at: int | None = begin
        while at is not None:
            stop = None
            for step in self.log.walk(at):
                if isinstance(step, Stop):
                    stop = step
                else:
                    at = step[0]
                    yield step
            if stop is None:
                return
            pause = next(pauses, None)
            if pause is None:
                self._stopped(stop)
                return
            threading.Event().wait(pause)
            at = stop.physical

    def _stopped(self, stop: Stop) -> None:
        file = self.log.file_at(stop.physical)
        text = (
            f"the commit log holds no whole record at {stop.physical} (file "
            f"{file.path if file else '?'}): {stop.reason}"
        )
        if not self._options.skip_damaged:
            raise StoreDamagedError(
                f"{text}. What was stored after it and is in no index cannot be found. Let a "
                "broker recover the store, or set option skipDamaged=true to read the rest",
                physical=stop.physical,
            )
        logger.warning("%s. What follows and is in no index is left out (skipDamaged=true)", text)


def _end_of(index: QueueIndex) -> int:
    """Return one past the last entry in the files."""

    def written(offset: int) -> bool:
        physical, size, _ = index.unit(offset)
        return physical >= 0 and size > 0

    span = range(index.first, index.room_end)
    return index.first + bisect.bisect_left(span, True, key=lambda at: not written(at))


def _begin_of(index: QueueIndex, end: int, log_begin: int) -> int:
    """Return the first entry whose record the log still has."""

    def held(offset: int) -> bool:
        physical, size, _ = index.unit(offset)
        return size != FILLER_SIZE and physical >= log_begin

    span = range(index.first, end)
    return index.first + bisect.bisect_left(span, True, key=held)


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
        ConfigurationError: an option names offsets of a queue the store does not have, or an end
            before a beginning.
        DataLossError: offsets given by the user no longer exist and ``failOnDataLoss`` is set.
    """
    now_ms = clock.now_ms()
    begins = _resolve(options.start, snapshot, "startingOffsets", snapshot.lows, now_ms)
    ends = _resolve(options.end, snapshot, "endingOffsets", snapshot.highs, now_ms)
    ranges = []
    for queue in sorted(begins):
        begin, end = begins[queue], ends[queue]
        low, high = snapshot.lows[queue], snapshot.highs[queue]
        refuse_reversed(queue, begin, end, low, high)
        if (begin < low and begin < end) or max(begin, end) > high:
            to = f"to {end - 1}" if begin < end else "and on"
            report_loss(
                options.fail_on_data_loss,
                queue,
                f"offsets {begin} {to} were asked for, but the store holds "
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
