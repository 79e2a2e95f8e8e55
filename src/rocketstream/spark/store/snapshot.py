"""The queues of a store at one moment: their bounds, and the entries their index lacks.

Law: everything is read once, because a broker may go on writing. Heads of records are read for the
time and place they were stored; nothing is decoded.
"""

from __future__ import annotations

import bisect
import logging
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from rocketstream.errors import ConfigurationError, StoreDamagedError
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.record import RecordHead
from rocketstream.spark.driver.planning import first_at
from rocketstream.spark.options import StoreOptions
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

logger = logging.getLogger("rocketstream.spark")

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
        self.log = CommitLog(options.commit_log_paths)
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
        self.indexes = {
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
        self.highs = self._add_unindexed(ends)
        self.lows = {
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
                continue  # of a transaction that is undecided or rolled back: in no queue
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
