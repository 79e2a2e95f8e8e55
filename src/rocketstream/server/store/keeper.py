"""The background work of a store: syncing queues, checkpoints, spare files, indexing.

Law: never on the path of a put; a checkpoint is written after the data it describes is on the disk.
"""

from __future__ import annotations

import dataclasses
import errno
import logging
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable

from rocketstream._util.workers import Worker, Workers
from rocketstream.errors import FlushFailedError
from rocketstream.server.store.checkpoint import Checkpoint, crc_of_bounds, write_checkpoint
from rocketstream.server.store.commit_log import CommitLog
from rocketstream.server.store.consume_queue import ConsumeQueue
from rocketstream.server.store.files import Files
from rocketstream.server.store.flusher import LogFlusher
from rocketstream.server.store.key_index import KeyIndex
from rocketstream.server.store.results import StoreConfig

_log = logging.getLogger(__name__)
_INDEX_RECORDS = 64
"""Records indexed at a time: few enough not to keep the interpreter from the server's loop."""
_INDEX_PAUSE_MS = 1
_SYNC_QUEUES = 4
"""Queues synced at a time: a thousand in a row would hold up the server's loop for a second."""
_SYNC_STEPS_MAX = 600
"""Steps of a round, which take a minute: of very many queues more are synced at a time."""


class Keeper:
    """One worker for the background work, which can also be done on request.

    Args:
        timestamp: returns the store timestamp of the newest record whose unit is written.
    """

    def __init__(
        self,
        timestamp: Callable[[], int],
        config: StoreConfig,
        log: CommitLog,
        flusher: LogFlusher,
        index: KeyIndex | None,
        files: Files,
        workers: Workers,
    ) -> None:
        self.queues_guard: threading.Lock = threading.Lock()
        """Held while queues are synced, and while queue files are removed."""
        self._timestamp = timestamp
        self._checkpoint_path = log.directory.parent / "checkpoint"
        self._interval_ms = config.keep_interval_ms
        self._poll_ms = min(config.poll_interval_ms, config.keep_interval_ms)
        self._log = log
        self._flusher = flusher
        self._index = index
        self._files = files
        self._dirty: deque[ConsumeQueue] = deque()
        self._last_marks = Checkpoint()
        self._log_min = 0
        self._workers = workers
        self._worker: Worker | None = None
        self._pause_ms = self._poll_ms
        self._waited_ms = 0
        self._round: Generator[None, None, None] | None = None
        self._synced_ms = 0
        """How long ago the round under way did something."""
        self._logics_timestamp = 0
        self._between = b""

    @property
    def kept_offset(self) -> int:
        """The log offset before which records and their units are on the disk."""
        return self._last_marks.flushed_offset

    def mark_dirty(self, queue: ConsumeQueue) -> None:
        """Remember that a queue has units that are not on the disk."""
        queue.dirty = True
        self._dirty.append(queue)

    def start(self, marks: Checkpoint) -> None:
        """Start with this checkpoint; units of records behind it must be synced first."""
        self._logics_timestamp = marks.logics_msg_timestamp
        self._between = marks.between
        self._last_marks, self._log_min = marks, self._log.min_offset
        self._waited_ms, self._pause_ms = 0, self._poll_ms
        first_s = self._poll_ms / 1000
        self._worker = self._workers.start("store-keeper", self._step, first_s=first_s)

    def stop(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.stop()
            self._worker = None
        self._round = None

    def _step(self) -> float | None:
        try:
            return self._work()
        except FlushFailedError:
            return None
        except Exception as error:
            # Without this worker no checkpoint is written: continuing silently would be worse.
            _log.exception("INTERNAL the keeper of the store failed")
            self._flusher.fail(error)
            return None

    def _work(self) -> float:
        self._waited_ms += self._pause_ms
        self._synced_ms += self._pause_ms
        self._log.prepare_ahead()
        more = self._index is not None and self._index.step(_INDEX_RECORDS)
        if self._round is None and self._waited_ms >= self._interval_ms:
            self._waited_ms, self._synced_ms = 0, self._poll_ms
            if self._index is not None:
                self._index.resume()
            self._round = self._keeping(_SYNC_QUEUES)
        if self._round is not None and self._synced_ms >= self._poll_ms:
            self._guarded(self._go_on)
        self._pause_ms = _INDEX_PAUSE_MS if more else self._poll_ms
        return self._pause_ms / 1000

    def keep(self) -> None:
        """Sync the queues and write the checkpoint; blocks.

        Raises:
            FlushFailedError: a sync failed, which is final for the store.
        """
        self._guarded(self._keep)

    def _guarded(self, work: Callable[[], None]) -> None:
        if self._flusher.error is not None:
            raise self._flusher.error
        try:
            with self.queues_guard:
                work()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                # No failed sync, no false claim: the next round tries again.
                _log.warning("queues could not be synced now: %s", error)
                return
            raise self._flusher.fail(error) from error

    def _keep(self) -> None:
        self._round = None  # what it has not synced is dirty still
        for _ in self._keeping(len(self._dirty)):
            pass

    def _go_on(self) -> None:
        """Do the next step of the round under way."""
        self._synced_ms = 0
        under_way, self._round = self._round, None
        for _ in under_way or ():
            self._round = under_way
            return

    def _keeping(self, at_once: int) -> Generator[None, None, None]:
        # Taken before syncing: a unit written meanwhile is not covered by the marks.
        timestamp = self._timestamp()
        flushed_offset = self._flusher.flushed_offset
        flushed_timestamp = self._flusher.flushed_timestamp
        # Queues that become dirty meanwhile stand behind the others, for the next round.
        dirty = len(self._dirty)
        at_once = max(at_once, dirty // _SYNC_STEPS_MAX, 1)
        while dirty > at_once:
            self._sync_some(at_once)
            dirty -= at_once
            yield
        self._sync_some(dirty)
        self._logics_timestamp = timestamp
        index_timestamp = 0
        if self._index is not None:
            index_timestamp = self._index.full_timestamp
            self._index.sync()
        self._log.release_before(flushed_offset)
        marks = Checkpoint(
            flushed_timestamp,
            self._logics_timestamp,
            index_timestamp,
            flushed_offset,
            log_min=self._log_min,
            between=self._between,
        )
        self._write(marks)

    def _sync_some(self, count: int) -> None:
        """Sync the units of so many dirty queues, and the names of their new files."""
        queues: list[ConsumeQueue] = []
        created: list[ConsumeQueue] = []
        try:
            # Flags are cleared first: a unit or a file made from here on sets them again.
            for _ in range(count):
                queue = self._dirty.popleft()
                queues.append(queue)
                queue.dirty = False
                queue.sync()
                if queue.created:
                    created.append(queue)
                    queue.created = False
            # Queues share most of these directories.
            for directory in dict.fromkeys(each for queue in created for each in queue.directories):
                self._files.sync_directory(directory)
        except OSError:
            for queue in created:
                queue.created = True
            for queue in queues:
                if not queue.dirty:
                    self.mark_dirty(queue)
            raise

    def _write(self, marks: Checkpoint) -> None:
        if marks != self._last_marks:
            write_checkpoint(self._checkpoint_path, marks, self._files)
            self._last_marks = marks

    def closed(self, queues: Iterable[ConsumeQueue]) -> None:
        """Put on the disk which queues there are, after the last flush."""
        self._write(dataclasses.replace(self._last_marks, queues_crc=crc_of_bounds(queues)))

    def log_will_begin(self, offset: int) -> None:
        """Put on the disk that the log begins later, before its first files are removed.

        A start takes files that are missing otherwise for lost.

        Raises:
            OSError: the checkpoint cannot be written; no file may be removed.
        """
        with self.queues_guard:
            self._write(dataclasses.replace(self._last_marks, log_min=offset))
            self._log_min = offset
