"""A task's loop over a store: entries to positions, records gathered, decoded by megabytes.

Law: every offset of the plan becomes a row, or is reported as lost or damaged.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from rocketstream.columns.decode import decode
from rocketstream.columns.layout import RECORD_START, Array, Piece, gather, spread
from rocketstream.columns.records import Checks
from rocketstream.columns.table import Column, described
from rocketstream.errors import NotSupportedError, RemoteProtocolError, StoreDamagedError
from rocketstream.model import MessageQueue
from rocketstream.protocol.record import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN
from rocketstream.protocol.subscription import build_subscription
from rocketstream.protocol.tag_hash import tags_code
from rocketstream.spark.losses import report_loss
from rocketstream.spark.options import StoreOptions
from rocketstream.spark.store.files import (
    FILLER_SIZE,
    UNIT,
    BasedFile,
    CommitLog,
    OpenFiles,
    QueueIndex,
    based_files,
    queue_directory,
)
from rocketstream.spark.store.snapshot import StorePlan, StoreSpan
from rocketstream.spark.worker import prepare

if TYPE_CHECKING:
    import pyarrow as pa

logger: logging.Logger = logging.getLogger("rocketstream.spark")

WINDOW_BYTES: Final = 64 * 1024 * 1024
"""How much of the log is handled together, which bounds how much index a task holds."""
BATCH_BYTES: Final = 2 * 1024 * 1024
NAMED_MAX: Final = 100
"""How many warnings of one task name the missing rows; later ones are details."""
_SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
_EXT_ADDRESS_MAX: Final = -(2**31) - 1
"""At or below this value an entry's tags code is the address of an extended entry (5.3)."""

_HEAD = np.dtype(list(RECORD_START))


@dataclass(frozen=True, slots=True)
class StoreScan:
    """A read of a store as it travels to the executors.

    Attributes:
        options: the user's options.
        columns: columns to decode, in order.
        tags: exact tags wanted, None for all messages.
    """

    options: StoreOptions
    columns: tuple[Column, ...]
    tags: frozenset[str] | None


def new_store_scan(options: StoreOptions, columns: tuple[Column, ...]) -> StoreScan:
    """Return the scan of some options.

    Raises:
        SubscriptionError: ``tags`` is not an expression (C-99 to C-101).
    """
    subscription = build_subscription(options.topics[0], options.tags, 0)
    return StoreScan(options, columns, frozenset(subscription.tags_set) or None)


def read_store(scan: StoreScan, plan: StorePlan | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one partition as record batches."""
    if plan is None:  # Spark passes this where there is no partition
        return
    prepare()
    yield from StoreRead(scan, plan).batches()


class _Rows(NamedTuple):
    """Entries of several queues, as arrays of equal length: span, offset, position, size."""

    span: Array
    offset: Array
    physical: Array
    size: Array

    def at(self, which: Array) -> _Rows:
        """Return the entries a mask or an index array selects."""
        return _Rows(*(column[which] for column in self))


class StoreRead:
    """Reads the spans of one plan, in the order of the commit log.

    Args:
        scan: the read, with the columns to decode.
        plan: the offsets to read.
    """

    def __init__(self, scan: StoreScan, plan: StorePlan) -> None:
        self._scan = scan
        self._spans = plan.spans
        self._log = CommitLog(scan.options.commit_log_paths)
        self._readers = OpenFiles()
        self._indexes = [self._index(span) for span in plan.spans]
        self._reports = _Reports(scan.options)
        self._checks = Checks(None, body_crc=scan.options.check_body_crc)
        self._codes: Array = None
        if scan.tags is not None:
            self._codes = np.array(sorted({tags_code(tag) for tag in scan.tags}), np.int64)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows.

        Raises:
            DataLossError: offsets no longer exist and ``failOnDataLoss`` is set.
            StoreDamagedError, RemoteProtocolError: a record is damaged and ``skipDamaged`` is not
                set.
        """
        try:
            for rows in self._windows():
                for file, part in self._by_file(self._with_tags(rows)):
                    yield from self._of_file(file, part)
        finally:
            self._readers.close()
        self._reports.sum_up()

    def _index(self, span: StoreSpan) -> QueueIndex:
        queue = span.queue
        place = queue_directory(self._scan.options.store_path, queue.topic, queue.queue_id)
        return QueueIndex(based_files(place), self._readers, span.tail_begin, span.tail)

    # --- entries --------------------------------------------------------------------------------

    def _windows(self) -> Iterator[tuple[_Rows, Array]]:
        """Yield all entries with their tags codes, those of one stretch of the log together."""
        at = [span.begin for span in self._spans]
        while True:
            open_spans = [i for i, span in enumerate(self._spans) if at[i] < span.end]
            if not open_spans:
                return
            limit = WINDOW_BYTES + min(self._indexes[i].unit(at[i])[0] for i in open_spans)
            parts = []
            for i in open_spans:
                index, begin, end = self._indexes[i], at[i], self._spans[i].end
                key = lambda offset, index=index: index.unit(offset)[0]  # noqa: E731
                at[i] = begin + bisect.bisect_left(range(begin, end), limit, key=key)
                if at[i] > begin:
                    parts.append((i, begin, index.units(begin, at[i])))
            yield _joined(parts)

    def _with_tags(self, window: tuple[_Rows, Array]) -> _Rows:
        """Leave out entries that cannot have the wanted tags, by the hashes in the index."""
        rows, codes = window
        if self._codes is None:
            return rows
        fits = np.isin(codes, self._codes) | (codes <= _EXT_ADDRESS_MAX)
        # Without an entry, or with one made up in its place, only the record itself can tell.
        fits |= codes == 0
        scheduled = [s.queue.topic == _SCHEDULE_TOPIC for s in self._spans]
        fits |= np.array(scheduled, bool)[rows.span]
        return rows.at(fits)

    def _by_file(self, rows: _Rows) -> Iterator[tuple[BasedFile, _Rows]]:
        """Yield the entries of each file of the log; report those without entry or file."""
        absent = (rows.size <= 0) | (rows.size == FILLER_SIZE) | (rows.physical < 0)
        if absent.any():
            self._missing(rows.at(absent), "the consume queue has no entry for them")
            rows = rows.at(~absent)
        rows = rows.at(np.argsort(rows.physical, kind="stable"))
        done = 0
        while done < len(rows.physical):
            physical = int(rows.physical[done])
            file = self._log.file_at(physical)
            end = file.end if file else self._log.next_base(physical)
            stop = len(rows.physical)
            if end is not None:
                stop = int(np.searchsorted(rows.physical, end))
            part = rows.at(slice(done, stop))
            if file is None:
                self._missing(part, f"the commit log file that held {physical} is not there")
            else:
                yield file, part
            done = stop

    def _missing(self, rows: _Rows, why: str) -> None:
        for queue, begin, end in self._runs(rows):
            self._reports.missing(queue, begin, end, why)

    def _runs(self, rows: _Rows) -> Iterator[tuple[MessageQueue, int, int]]:
        """Yield runs of consecutive offsets of one queue."""
        order = np.lexsort((rows.offset, rows.span))
        span, offset = rows.span[order], rows.offset[order]
        breaks = np.flatnonzero((np.diff(span) != 0) | (np.diff(offset) != 1)) + 1
        for run in np.split(np.arange(len(order)), breaks):
            if len(run):
                first, last = run[0], run[-1]
                queue = self._spans[int(span[first])].queue
                yield queue, int(offset[first]), int(offset[last]) + 1

    # --- records --------------------------------------------------------------------------------

    def _of_file(self, file: BasedFile, rows: _Rows) -> Iterator[pa.RecordBatch]:
        raw = self._log.bytes_of(file)
        if raw is None:
            self._missing(rows, f"the commit log file {file.path} was deleted meanwhile")
            return
        rows = self._sound(file, raw, rows)
        edges = np.cumsum(rows.size.astype(np.int64)) // BATCH_BYTES
        for part in np.split(np.arange(len(edges)), np.flatnonzero(np.diff(edges)) + 1):
            if len(part):
                yield from self._decoded(raw, file.base, rows.at(part))

    def _sound(self, file: BasedFile, raw: Array, rows: _Rows) -> _Rows:
        """Leave out, and report, entries that do not lead to their own record."""
        at = rows.physical - file.base
        fits = (rows.size >= RECORD_BYTES_MIN) & (at + rows.size <= len(raw))
        heads = spread(raw, _HEAD.itemsize)[np.where(fits, at, 0)].view(_HEAD)
        fits &= (heads["magic"] == MAGIC_V1) | (heads["magic"] == MAGIC_V2)
        fits &= (heads["size"] == rows.size) & (heads["commitLogOffset"] == rows.physical)
        fits &= heads["queueOffset"] == rows.offset
        if fits.all():
            return rows
        why = f"{file.path} holds no whole record of theirs where the consume queue says"
        for queue, begin, end in self._runs(rows.at(~fits)):
            self._reports.damaged(queue, begin, end, why)
        return rows.at(fits)

    def _decoded(self, raw: Array, base: int, rows: _Rows) -> Iterator[pa.RecordBatch]:
        rows = rows.at(np.argsort(rows.span, kind="stable"))
        pieces = self._pieces(raw, base, rows)
        scan = self._scan
        if not scan.options.skip_damaged:
            yield from decode(pieces, scan.columns, scan.tags, self._checks)
            return
        try:
            made = list(decode(pieces, scan.columns, scan.tags, self._checks))
        except (RemoteProtocolError, NotSupportedError) as error:
            count = len(rows.offset)
            if count > 1:
                # The sound ones on both sides of the damage are found by halving.
                for half in (slice(0, count // 2), slice(count // 2, count)):
                    yield from self._decoded(raw, base, rows.at(half))
                return
            queue, offset = self._spans[int(rows.span[0])].queue, int(rows.offset[0])
            self._reports.damaged(queue, offset, offset + 1, error.message)
            return
        yield from made

    def _pieces(self, raw: Array, base: int, rows: _Rows) -> list[Piece]:
        """Return records ordered by span, those of one span back to back."""
        if not len(rows.offset):
            return []
        records = gather(raw, rows.physical - base, rows.size)
        body = memoryview(records.buffers()[2])
        ends = np.cumsum(rows.size.astype(np.int64))
        breaks = np.flatnonzero(np.diff(rows.span)) + 1
        pieces = []
        for first, stop in zip([0, *breaks], [*breaks, len(ends)], strict=True):
            begin = int(ends[first - 1]) if first else 0
            pieces.append(
                Piece(
                    self._spans[int(rows.span[first])].queue,
                    int(rows.offset[first]),
                    int(rows.offset[stop - 1]) + 1,
                    body[begin : int(ends[stop - 1])],
                )
            )
        return pieces


def _joined(parts: Sequence[tuple[int, int, Array]]) -> tuple[_Rows, Array]:
    units = np.concatenate([part for _, _, part in parts] or [np.empty(0, UNIT)])
    counts = [len(part) for _, _, part in parts]
    span = np.repeat(np.array([i for i, _, _ in parts], np.int32), counts)
    offsets = [np.arange(begin, begin + len(part)) for _, begin, part in parts]
    rows = _Rows(
        span,
        np.concatenate(offsets or [np.empty(0, np.int64)]),
        units["physical"].astype(np.int64),
        units["size"].astype(np.int32),
    )
    return rows, units["tagsCode"].astype(np.int64)


class _Reports:
    """The offsets a task could not read: an error or a warning, as the options say."""

    def __init__(self, options: StoreOptions) -> None:
        self._options = options
        self._named = 0
        self._left_out = 0

    def missing(self, queue: MessageQueue, begin: int, end: int, why: str) -> None:
        """Report offsets that no longer exist.

        Raises:
            DataLossError: ``failOnDataLoss`` is set.
        """
        what = f"offsets {begin} to {end - 1} are gone: {why}"
        report_loss(self._options.fail_on_data_loss, queue, what, self._log(end - begin))

    def damaged(self, queue: MessageQueue, begin: int, end: int, why: str) -> None:
        """Report offsets whose records are not whole.

        Raises:
            StoreDamagedError: ``skipDamaged`` is not set.
        """
        text = f"damaged: offsets {begin} to {end - 1} of {described(queue)}: {why}"
        if not self._options.skip_damaged:
            raise StoreDamagedError(
                f"{text}. Read them from another copy of the broker's data, or set option "
                "skipDamaged=true to leave them out",
                queue=tuple(queue),
                offset=begin,
            )
        self._log(end - begin)(f"{text}. Left out (skipDamaged=true)")

    def sum_up(self) -> None:
        """Log how many offsets were left out altogether."""
        if self._left_out:
            logger.warning("%d offsets of this task were left out", self._left_out)

    def _log(self, count: int) -> Callable[[str], None]:
        self._left_out += count
        self._named += 1
        return logger.warning if self._named <= NAMED_MAX else logger.debug
