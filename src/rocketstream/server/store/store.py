"""The store a broker writes to and reads from: log, queues, index, flushing and recovery in one.

Law: one thread calls put and the readers; the workers started here only sync, index and allocate.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rocketstream import limits
from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream._util.machine import memory_bytes, open_files_max
from rocketstream._util.workers import ThreadWorkers, Workers
from rocketstream.errors import DiskFullError, FlushFailedError, StoreDamagedError, StoreError
from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.record import Draft, draft_parts
from rocketstream.server.store import log_walk, reading, recovery
from rocketstream.server.store.checkpoint import (
    Checkpoint,
    StoreLock,
    abort_present,
    create_abort,
    prepare_root,
    read_checkpoint,
    remove_abort,
    write_checkpoint,
)
from rocketstream.server.store.commit_log import CommitLog
from rocketstream.server.store.consume_queue import UNIT, ConsumeQueue
from rocketstream.server.store.dispatch import deletion_draft
from rocketstream.server.store.files import DiskUsage, Files
from rocketstream.server.store.flusher import FlushCallback, LogFlusher
from rocketstream.server.store.keeper import Keeper
from rocketstream.server.store.key_index import KeyIndex
from rocketstream.server.store.mapped_file import cannot_open
from rocketstream.server.store.put_times import PutTimes
from rocketstream.server.store.queues import ConsumeQueues
from rocketstream.server.store.results import (
    GetMessageStatus,
    GetResult,
    Place,
    QueryResult,
    RecoveryReport,
    StoreConfig,
)
from rocketstream.server.store.retention import RetentionConfig, plan_retention
from rocketstream.server.store.retention_clock import RetentionClock
from rocketstream.server.store.units import QueueReader

_log = logging.getLogger(__name__)
_MEMORY_SHARE = 0.4
"""accessMessageInMemoryMaxRatio."""
_VIA_NAMES = (".allocating-log", ".allocating-queue", ".allocating-index")
_INDEX_STEP = 16
_INDEXED_AT_ONCE = 32
"""Records one message indexes when too many wait: more than it adds, in a twentieth of a ms."""
_PREPARED = int(MessageSysFlag.TRANSACTION_PREPARED)
_BACKLOG_AT_ONCE = 20_000
"""Records a query or close indexes of a backlog after a crash; the rest is indexed later."""
OnArrival = Callable[[str, int, int, int], None]


class MessageStore:
    """Messages in RocketMQ's own files; the package's docstring says who may call what.

    Args:
        root: the store directory (storePathRootDir); made when missing.
        config: sizes, limits, flush behaviour.
        clock: gives store timestamps.
        files: the disk.
        workers: runs the flusher and the keeper; threads by default.
    """

    def __init__(
        self,
        root: Path,
        config: StoreConfig = StoreConfig(),  # noqa: B008 (frozen)
        clock: Clock = SYSTEM_CLOCK,
        files: Files | None = None,
        workers: Workers | None = None,
    ) -> None:
        self.root = root
        self.config: StoreConfig = config
        self.on_arrival: OnArrival | None = None
        """Called after a message is stored: topic, queue id, new max offset, tagsCode.

        The message can be read then; with sync flush, once it is flushed.
        """
        self.put_times: PutTimes = PutTimes()
        self.failed_puts: int = 0
        """Puts refused because the store was not writable."""
        self._shows_flushed_only = config.flush == "sync"
        self._clock = clock
        self._files = files or Files()
        workers = workers or ThreadWorkers()
        self._lock = StoreLock(root, self._files)
        via_log, via_queue, via_index = (root / name for name in _VIA_NAMES)
        self._log = CommitLog(
            root / "commitlog", config.commit_log_file_bytes, self._files, via_log
        )
        maps_max = config.queue_maps_max or min(limits.QUEUE_MAPS_MAX, open_files_max() // 4)
        self._queues = ConsumeQueues(
            root, config.consume_queue_file_bytes, self._files, via_queue, maps_max
        )
        self._index: KeyIndex | None = None
        if config.index_enabled:
            self._index = KeyIndex(
                root / "index",
                config.index_slots,
                config.index_entries,
                self._files,
                via_index,
                clock.now_ms,
                lambda offset, again: log_walk.index_backlog(self._log, offset, again=again),
            )
        self._flusher = LogFlusher(
            self._written,
            self._log.sync_between,
            interval_ms=config.flush_interval_ms,
            at_once=config.flush == "sync",
            workers=workers,
        )
        self._keeper = Keeper(
            lambda: self._last_timestamp,
            config,
            self._log,
            self._flusher,
            self._index,
            self._files,
            workers,
        )
        self._memory_bytes = config.memory_bytes or int(memory_bytes() * _MEMORY_SHARE)
        self._last_timestamp = 0
        self._retention = RetentionClock(
            root / "config" / "retentionClock.json", self._files, config.retention.file_reserved_ms
        )
        self._log.sync_failed = self._flusher.fail
        self._is_open = self._takes_writes = self._disk_too_full = False

    # --- life cycle ---------------------------------------------------------------------------

    def open(self, *, repair: bool = False) -> RecoveryReport:
        """Lock, load and recover the store; blocks while it checks the end of the log.

        Args:
            repair: open a store whose damage would be refused: damaged ranges are copied to
                ``quarantine/`` and filled, so that the complete records behind them keep their
                offsets, and all consume queues are rebuilt.

        Raises:
            StoreLockedError: another store has the directory open.
            StoreDamagedError: the store has impossible bytes, which the text describes; nothing was
                changed.
            DiskFullError: there is no room for the first file, or for the writes of opening.
            FlushFailedError: with sync flush, the recovered messages cannot be synced to the disk.
            StoreError: the disk reports an error; the text names the file.
        """
        try:
            report, marks = self._open_files(repair)
        except OSError as error:
            raise cannot_open(self.root, error) from error
        self._start_workers(report, marks)
        if self._shows_flushed_only:
            self._flush_what_was_found()
        self._is_open = self._takes_writes = True
        self._disk_too_full = False
        if not report.clean_exit or report.rebuilt:
            _log.info("store=%s recovered: %s", self.root, report)
        return report

    def _open_files(self, repair: bool) -> tuple[RecoveryReport, Checkpoint]:
        started = self._clock.monotonic_ms()
        prepare_root(self.root, self._files)
        self._lock.acquire()
        try:
            report = self._load_and_recover(repair, started)
            self._log.opened_end = self._log.end
            self._start_retention()
            marks = self._own_checkpoint()
            create_abort(self.root, self._files)
            self._log.allocate_first()
        except BaseException:
            self._close_files()
            raise
        return report, marks

    def _start_workers(self, report: RecoveryReport, marks: Checkpoint) -> None:
        self._flusher.start(marks.flushed_offset, marks.physic_msg_timestamp)
        for queue in self._queues.values():
            if report.clean_exit and not report.rebuilt:
                queue.synced_offset = queue.max_offset
            else:
                # A killed process may have left names, too, that are not on the disk yet.
                queue.created = True
                self._keeper.mark_dirty(queue)
            queue.forget_seen()
            queue.count_anew()
        self._keeper.start(marks)

    def _flush_what_was_found(self) -> None:
        """Sync the messages a killed process left behind: from now on they can be read."""
        try:
            self._flusher.flush()
        except FlushFailedError:
            self._stop_workers()
            self._close_files()
            raise
        for queue in self._queues.values():
            queue.shown_offset = queue.max_offset

    def _start_retention(self) -> None:
        written = [file.modified_ms for file in self._log.older_files()]
        known_ms = max(self._last_timestamp, *written, 0)
        self._retention.start(self._clock.now_ms(), self._clock.monotonic_ms(), known_ms)

    def _stop_workers(self) -> None:
        self._keeper.stop()
        self._flusher.stop()

    def _own_checkpoint(self) -> Checkpoint:
        """Make the checkpoint our own before anything is written, and return it.

        Writes of a killed process are complete in the files, but perhaps not on the disk: only the
        data the checkpoint covered counts as flushed.
        """
        path = self.root / "checkpoint"
        old = read_checkpoint(path, self._files)
        marks = Checkpoint(
            min(old.physic_msg_timestamp, self._last_timestamp),
            min(old.logics_msg_timestamp, self._last_timestamp),
            old.index_msg_timestamp,
            max(min(old.flushed_offset, self._log.end), self._log.min_offset),
            log_min=self._log.min_offset,
            between=old.between,
        )
        write_checkpoint(path, marks, self._files)
        return marks

    def _load_and_recover(self, repair: bool, started: float) -> RecoveryReport:
        for name in _VIA_NAMES:
            self._files.unlink(self.root / name, missing_ok=True)
        clean_exit = not abort_present(self.root, self._files)
        marks = read_checkpoint(self.root / "checkpoint", self._files)
        if not clean_exit:
            # Of a killed process not even the names of files need be on the disk, though all read
            # them: a checkpoint would cover files that the next loss of power takes away.
            for directory in (self._log.directory, self.root / "config", self.root):
                self._files.sync_directory(directory)
        self._log.load()
        self._queues.load()
        work = recovery.Recovery(
            self.root, self._log, self._queues, self.config, marks, self._files
        )
        outcome = work.run(clean_exit=clean_exit, repair=repair)
        self._last_timestamp = outcome.end.last_timestamp
        index_files_dropped = 0
        if self._index is not None:
            index_files_dropped = self._index.load(
                clean_exit=clean_exit,
                safe_timestamp=marks.index_msg_timestamp,
                log_end=self._log.end,
            )
            self._index.catch_up()
        return RecoveryReport(
            clean_exit=clean_exit,
            records_checked=outcome.end.records,
            records_dispatched=outcome.dispatched,
            log_min=self._log.min_offset,
            log_end=self._log.end,
            torn_bytes=outcome.torn_bytes,
            consume_queues=len(self._queues),
            entries_dropped=outcome.entries_dropped,
            rebuilt=outcome.rebuilt,
            index_files_dropped=index_files_dropped,
            quarantined=tuple(outcome.quarantined),
            duration_ms=self._clock.monotonic_ms() - started,
        )

    def close(self) -> None:
        """Index and flush the rest, write the checkpoint, remove ``abort``; blocks.

        Raises:
            FlushFailedError: the flush failed, now or before; ``abort`` stays.
        """
        if not self._is_open:
            return
        self._is_open = self._takes_writes = False
        self._stop_workers()
        try:
            if self._index is not None:
                self._index.resume()
            self._index_all(_BACKLOG_AT_ONCE)
            self._clear_refused()
            self.flush()
            self._retention.save(self._clock.monotonic_ms())
            self._keeper.closed(self._queues.values())
            remove_abort(self.root, self._files)
        finally:
            self._close_files()

    def _clear_refused(self) -> None:
        try:
            self._log.clear_refused()
        except OSError as error:
            raise self._flusher.fail(error) from error  # ``abort`` stays for the next start

    def abandon(self) -> None:
        """Release everything without flushing, as a crash would; for tests of recovery."""
        self._is_open = self._takes_writes = False
        self._stop_workers()
        self._close_files()

    def _close_files(self) -> None:
        for queue in self._queues.values():
            queue.close()
        self._queues.clear()
        self._log.close()
        if self._index is not None:
            self._index.close()
        self._lock.release()

    # --- writing ------------------------------------------------------------------------------

    def append(self, drafts: Sequence[Draft], *, whole: bool = False) -> list[Place]:
        """Store messages in their order with one write: those that one file of the log can hold.

        They can be read when this returns; :meth:`when_flushed` tells when they are on the disk.

        Args:
            drafts: the messages, one at least.
            whole: none is stored without the others, as the messages of a batch are.

        Returns:
            The places of the messages stored: the first ones, and one at least.

        Raises:
            DiskFullError: there is no room; nothing was stored.
            FlushFailedError: an fsync failed before; the store takes no more writes.
            StoreError: the store is not open, or no file of the log is as large.
            LocalProtocolError: a number is out of its range; nothing was stored.
        """
        if not drafts:
            raise StoreError("a batch of no records cannot be stored")
        if len(drafts) == 1:
            return [self._append_one(drafts[0])]
        log, size = self._log, sum([draft[1] for draft in drafts])
        if not whole and not log.holds(size):
            return [self._append_one(drafts[0])]
        if self._flusher.error is not None or not self._takes_writes:
            self._writable_queue(*drafts[0][0])
        began_ms = timestamp = self._clock.now_ms()
        if timestamp < self._last_timestamp:
            timestamp = self._set_back(timestamp)
        physical = log.room(size)
        ends: dict[ConsumeQueue, int] = {}
        places, parts = self._laid_out(drafts, physical, timestamp, ends)
        for queue, end in ends.items():
            queue.reserve(end - queue.max_offset)
        if len(ends) > 1 and not all(queue.is_ready(end) for queue, end in ends.items()):
            return [self._append_one(drafts[0])]  # one queue's map was given up for another's
        log.write(b"".join(parts))
        spent_ms = self._clock.now_ms() - began_ms
        if spent_ms > 0:
            self.put_times.slow(spent_ms, len(drafts))
        for draft, (at, _) in zip(drafts, places, strict=True):
            self._enter(draft, self._queues[draft[0]], at, timestamp)
        if whole:
            for queue in ends:
                queue.counted_batched += len(drafts) - len(ends)
        log.end = physical + size  # once their units are written, the records count
        for draft, (at, offset) in zip(drafts, places, strict=True):
            self._arrived(draft, at, offset, timestamp)
        if self._index is not None:
            self._index.relieve(2 * len(drafts))
        return places

    def _append_one(self, draft: Draft) -> Place:
        """Store one message, as most sends come; see :meth:`append`."""
        key, size = draft[0], draft[1]
        queue = self._queues.get(key)
        if queue is None or self._flusher.error is not None or not self._takes_writes:
            queue = self._writable_queue(*key)
        log = self._log
        began_ms = timestamp = self._clock.now_ms()
        if timestamp < self._last_timestamp:
            timestamp = self._set_back(timestamp)
        physical = log.room(size)
        offset = 0 if draft[4] & _PREPARED else queue.max_offset
        record = b"".join(draft_parts(draft, offset, physical, timestamp))
        queue.reserve()
        log.write(record)
        spent_ms = self._clock.now_ms() - began_ms
        if spent_ms > 0:
            self.put_times.slow(spent_ms)
        self._enter(draft, queue, physical, timestamp)
        log.end = physical + size  # as above
        self._arrived(draft, physical, offset, timestamp)
        if self._index is not None:
            self._index.relieve(_INDEXED_AT_ONCE)
        return physical, offset

    def _laid_out(
        self,
        drafts: Sequence[Draft],
        physical: int,
        timestamp: int,
        ends: dict[ConsumeQueue, int],
    ) -> tuple[list[Place], list[bytes | bytearray | memoryview]]:
        """Return the messages' places, and their records in parts; note where queues will end.

        A message whose transaction is undecided, or rolled back, gets no unit of its queue.
        """
        known = self._queues
        places: list[Place] = []
        parts: list[bytes | bytearray | memoryview] = []
        for draft in drafts:
            key = draft[0]
            queue = known.get(key) or self._writable_queue(*key)
            offset = 0
            if not draft[4] & _PREPARED:
                offset = ends.get(queue, queue.max_offset)
                ends[queue] = offset + 1
            parts += draft_parts(draft, offset, physical, timestamp)
            places.append((physical, offset))
            physical += draft[1]
        return places, parts

    def _enter(self, draft: Draft, queue: ConsumeQueue, physical: int, timestamp: int) -> None:
        """Write the unit of a message that is in the log."""
        if not draft[4] & _PREPARED:
            queue.append(physical, draft[1], draft[12])
            if not queue.dirty:
                self._keeper.mark_dirty(queue)
        self._last_timestamp = timestamp

    def _arrived(self, draft: Draft, physical: int, offset: int, timestamp: int) -> None:
        """Leave a message's keys to the index, and tell of it; the log's end is behind it now."""
        if self._index is not None:  # not before: `KeyIndex.resume` reads up to that end
            self._index.pending.append((physical, timestamp, draft[0][0], draft[13]))
        if self.on_arrival is not None and not draft[4] & _PREPARED:
            self.on_arrival(*draft[0], offset + 1, draft[12])

    def _set_back(self, timestamp: int) -> int:
        """Return the store timestamp for a record when the clock is behind the last record's.

        A search by time wants stamps that grow: a small step back is hidden, a great one believed.
        """
        last = self._last_timestamp
        return last if last - timestamp <= limits.STORE_STAMP_HELD_MS_MAX else timestamp

    def _writable_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        self.failed_puts += not self.is_writable
        if self._flusher.error is not None:
            raise self._flusher.error
        if not self._is_open:
            raise StoreError(f"the store {self.root} is not open")
        if self._disk_too_full:
            raise DiskFullError(
                f"the disk of {self.root} is fuller than "
                f"{self.config.retention.disk_warning_ratio:.0%}: free space there",
                directory=str(self.root),
            )
        queue = self._queues.get((topic, queue_id))
        if queue is not None:
            return queue
        return self._queues.make(topic, queue_id)

    def _written(self) -> tuple[int, int]:
        # The timestamp first: it may only be older than the messages the end covers.
        timestamp = self._last_timestamp
        return self._log.end, timestamp

    # --- flushing -----------------------------------------------------------------------------

    def when_flushed(self, end_offset: int, callback: FlushCallback) -> None:
        """Call back when the log is on the disk up to an offset, the end of what is to be safe.

        Its argument is None, or the FlushFailedError that makes it impossible. It comes at once if
        that is known, else from the flusher's worker. With sync flush all waiters share an fsync.
        """
        self._flusher.when_flushed(end_offset, callback)

    def flush(self) -> None:
        """Put everything on the disk and write the checkpoint; blocks.

        Raises:
            FlushFailedError: a sync failed, now or before; final.
        """
        self._flusher.flush()
        self._keeper.keep()

    # --- reading ------------------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int,
        match: reading.Match | None = None,
        accept: reading.Accept | None = None,
        is_enough: Callable[[], bool] | None = None,
    ) -> GetResult:
        """Read records of a queue from an offset on (C-367 to C-370); copies, safe to keep.

        Args:
            match: tests a unit's tagsCode; None accepts every record.
            accept: tests the record itself; None accepts every one (C-395).
            is_enough: asked after each record tested; true ends the scan, and the next read should
                continue behind that record.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return GetResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        return reading.get(
            queue,
            self._log,
            self.config,
            self._memory_bytes,
            offset,
            max_count,
            self._end_for_readers(queue),
            match,
            accept,
            is_enough,
        )

    def _end_for_readers(self, queue: ConsumeQueue) -> int:
        # A message that a power loss may still remove must not be read: another one would get its
        # offset, and a consumer of the first would never get the second.
        if self._shows_flushed_only:
            return queue.shown_below(self._flusher.flushed_offset)
        return queue.max_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of a queue's next message, with sync flush of the first unflushed one;
        0 for an unknown queue (C-373)."""
        queue = self._queues.get((topic, queue_id))
        return self._end_for_readers(queue) if queue is not None else 0

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of a queue's next message, whether readers may see it or not."""
        queue = self._queues.get((topic, queue_id))
        return queue.max_offset if queue is not None else 0

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of a queue's oldest message; 0 for an unknown queue (C-373)."""
        queue = self._queues.get((topic, queue_id))
        return queue.min_offset if queue is not None else 0

    def offset_by_timestamp(self, topic: str, queue_id: int, timestamp: int) -> int:
        """Return the offset stored nearest to a time in ms (C-372); 0 for an empty queue."""
        queue = self._queues.get((topic, queue_id))
        end = self.max_offset(topic, queue_id)  # who goes on behind it misses what comes next
        return reading.offset_by_timestamp(queue, end, self._log, timestamp) if queue else 0

    def store_timestamp(self, topic: str, queue_id: int, offset: int) -> int:
        """Return when a message was stored, in ms; -1 when it is gone."""
        queue = self._queues.get((topic, queue_id))
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return -1
        return reading.store_timestamp_at(self._log, queue.unit(offset)[0])

    def consume_queue_entries(
        self, topic: str, queue_id: int, offset: int, count: int
    ) -> list[tuple[int, int, int]]:
        """Return up to ``count`` units from one file: log offset, size, tagsCode."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return []
        high = self._end_for_readers(queue)
        if not 0 <= offset < high:
            return []
        return list(UNIT.iter_unpack(queue.units(offset, min(count, high - offset))))

    def mend(self, topic: str, queue_id: int, begin: int, end: int) -> None:
        """Mend the damaged units of a range, as those a consumer reads are; what cannot be is told.

        A broker reads its own queues by units alone, and takes what one does not point at for gone.
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return
        reader = QueueReader(queue, self._log, self.config.delay_levels_ms)
        for offset in range(max(begin, queue.min_offset), min(end, queue.max_offset)):
            physical, size, _ = queue.unit(offset)
            with contextlib.suppress(StoreDamagedError):
                reader.place(offset, physical, size)

    def read(self, physical_offset: int) -> bytes | None:
        """Return the record at a log offset; None when no complete record of a queue begins there.

        A record inside a message's body does not count, nor does that of a deleted topic.
        """
        head = log_walk.record_at(self._log, physical_offset)
        if head is None or not recovery.is_pointed_at(self._queues, head):
            return None
        return self._log.read(physical_offset, physical_offset + head.total_size)

    def query_by_key(self, topic: str, key: str, max_num: int, begin: int, end: int) -> QueryResult:
        """Find records by a key (UNIQ_KEY or a word of KEYS) and a time range in ms.

        Hash collisions are included: callers check topic and key of each message. While records
        wait to be indexed (a full disk, a crash) the result is marked as not complete.
        """
        for _ in self.indexing():
            pass
        steps = self.querying_by_key(topic, key, max_num, begin, end)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                result: QueryResult = done.value
                return result

    def querying_by_key(
        self, topic: str, key: str, max_num: int, begin: int, end: int
    ) -> Generator[None, None, QueryResult]:
        """Do in steps what ``query_by_key`` does, among indexed records only.

        If not all fit in one answer, the newest are returned, the oldest of them first.
        """
        index = self._index
        count_max = min(max_num, self.config.query_messages_max)
        if index is None or count_max < 1:
            return QueryResult([], 0, 0)
        offsets = yield from index.querying(topic, key, count_max, begin, end)
        records = yield from reading.newest(self.read, offsets, limits.QUERY_BYTES_MAX)
        complete = index.failed is None and index.backlog_done
        return QueryResult(records, *index.last_update, complete)

    def indexing(self) -> Generator[None, None, None]:
        """Index the waiting records in steps; of a long backlog after a crash only a part."""
        index, backlog_max = self._index, _BACKLOG_AT_ONCE
        if index is not None:
            index.resume()
        while index is not None and (index.backlog_done or backlog_max > 0):
            if not index.step(_INDEX_STEP):
                return
            if not index.backlog_done:
                backlog_max -= _INDEX_STEP
            yield

    def first_entry_in_memory(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue's first message does not count as on disk (C-333, C-334)."""
        queue = self._queues.get((topic, queue_id))
        if queue is None or queue.max_offset == 0 or queue.first_offset > 0:
            return True
        return self._log.end - queue.unit(0)[0] <= self._memory_bytes

    def _index_all(self, backlog_max: int) -> None:
        """Index the waiting records; of a long backlog after a crash only a part."""
        index = self._index
        if index is None:
            return
        while not index.backlog_done and backlog_max > 0:
            index.step(1000)
            backlog_max -= 1000
        while index.backlog_done and index.step(1000):
            pass

    # --- what there is ------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Return the names of the topics that have queues here, sorted."""
        return sorted({topic for topic, _ in self._queues})

    def queue_ids(self, topic: str) -> list[int]:
        """Return the queues of a topic that were written to, sorted."""
        return sorted(queue_id for name, queue_id in self._queues if name == topic)

    def counted(self) -> Iterator[tuple[str, int, tuple[int, int, int]]]:
        """Yield topic, queue id and counts of each queue written to since the start.

        The counts are messages, their bytes, and requests. Queues may come and go meanwhile.
        """
        for key, queue in tuple(self._queues.items()):
            if queue.max_offset != queue.counted_from:
                yield *key, queue.counted()

    def counted_in(self, topic: str, queue_id: int) -> tuple[int, int, int]:
        """Return the counts of one queue since the start; zeros for an unknown one."""
        queue = self._queues.get((topic, queue_id))
        return queue.counted() if queue is not None else (0, 0, 0)

    @property
    def dispatch_behind_bytes(self) -> int:
        """Return how many bytes of the log are not in the key index yet; the queues have them."""
        pending = self._index.pending if self._index is not None else ()
        return self._log.end - pending[0][0] if pending else 0

    def delete_topic(self, topic: str) -> None:
        """Remove a topic's queues; its records stay in the log until retention removes them.

        The log says so behind them, or the start after a crash would bring the queues back. It can
        where the disk is too full for that, or lost power before it was flushed.
        """
        queue_ids = self.queue_ids(topic)
        if queue_ids and self._flusher.error is None:
            timestamp = max(self._clock.now_ms(), self._last_timestamp)
            try:
                self._log.append(deletion_draft(topic, timestamp), timestamp)
                self._last_timestamp = timestamp
            except StoreError as error:
                _log.warning("a crash may bring back the deleted topic %s: %s", topic, error)
        with self._keeper.queues_guard:
            self._queues.remove(topic, queue_ids)

    def delete_expired(self, *, manual: bool = False, disk_used_ratio: float | None = None) -> int:
        """Remove old commit log files and their index entries; returns the number of log files.

        To be called every 10 s; blocks while some files are removed. Also decides whether the disk
        is too full to take messages.

        Args:
            manual: expired files are removed at any hour (admin code 329).
            disk_used_ratio: 0 to 1; measured when None.
        """
        if disk_used_ratio is None:
            disk_used_ratio = self.disk_used_ratio()
        wall_ms = self._clock.now_ms()
        now_ms = self.retention_now_ms()
        # The flusher must not find that a file is gone, and only its units know the next offset of
        # a queue whose last messages are in it.
        kept = self._keeper.kept_offset - self._log.file_bytes
        plan = plan_retention(
            [file for file in self._log.older_files() if file.base <= kept],
            self.config.retention,
            now_ms=now_ms,
            hour=datetime.fromtimestamp(wall_ms / 1000, UTC).astimezone().hour,
            disk_used_ratio=disk_used_ratio,
            manual=manual,
        )
        self._disk_too_full = plan.refuse_writes
        self._takes_writes = self._is_open and not plan.refuse_writes
        if plan.remove:
            self._drop_log_files(plan.remove)
        return plan.remove

    def set_retention(self, retention: RetentionConfig) -> None:
        """Keep messages by other rules from now on."""
        self.config = dataclasses.replace(self.config, retention=retention)
        self._retention.reserved_ms = retention.file_reserved_ms

    def retention_now_ms(self) -> int:
        """Return the time by which the age of messages is measured, in ms; it does not leap."""
        return self._retention.now_ms(self._clock.now_ms(), self._clock.monotonic_ms())

    def disk_usage(self) -> DiskUsage:
        """Return the size of the store's disk, and how much of it is used and free."""
        return self._files.disk_usage(self.root)

    def disk_used_ratio(self) -> float:
        """Return how full the disk of the store is, 0 to 1."""
        usage = self.disk_usage()
        return usage.used / usage.total if usage.total else 0.0

    def _drop_log_files(self, count: int) -> None:
        self._keeper.log_will_begin(self._log.segments[count].base)
        for _ in range(count):
            path = self._log.drop_first()
            _log.info("store=%s removed %s", self.root, path.name)
        log_min = self._log.min_offset
        with self._keeper.queues_guard:
            for queue in self._queues.values():
                queue.drop_before(log_min)
                queue.correct_min(log_min)
        if self._index is not None:
            self._index.drop_before(log_min)

    @property
    def physical_min_offset(self) -> int:
        """The first offset of the commit log."""
        return self._log.min_offset

    @property
    def first_timestamp(self) -> int:
        """When the first record of the commit log was stored, in ms; -1 without one."""
        head = log_walk.record_at(self._log, self._log.min_offset)
        return -1 if head is None else head.store_timestamp

    @property
    def physical_max_offset(self) -> int:
        """The end of the commit log."""
        return self._log.end

    @property
    def flushed_offset(self) -> int:
        """The log offset up to which everything is on the disk."""
        return self._flusher.flushed_offset

    @property
    def is_writable(self) -> bool:
        """Whether the store accepts messages: open, no fsync failed, the disk not too full."""
        return self._takes_writes and self._flusher.error is None
