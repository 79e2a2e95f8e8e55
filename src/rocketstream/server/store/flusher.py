"""Flushing of the commit log: one worker, group commit (C-434).

Law: a failed fsync is final. Two callables say what to sync; the flusher decides when, and reports
it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from rocketstream._util.workers import Worker, Workers
from rocketstream.errors import FlushFailedError

_log = logging.getLogger(__name__)
FlushCallback = Callable[[Exception | None], None]


class LogFlusher:
    """Syncs the log at each interval, or at once for waiters; all waiters share one fsync.

    Args:
        written: returns (end offset, store timestamp) of the log written so far.
        sync: syncs a range of the log to the disk; raises OSError.
        at_once: whether a waiter wakes the worker (sync flush) or waits for the timer.
        workers: runs the worker.
    """

    def __init__(
        self,
        written: Callable[[], tuple[int, int]],
        sync: Callable[[int, int], None],
        *,
        interval_ms: int,
        at_once: bool,
        workers: Workers,
    ) -> None:
        self._written = written
        self._sync = sync
        self._interval_s = interval_ms / 1000
        self._at_once = at_once
        self._workers = workers
        self._guard = threading.Lock()
        self._one_sync = threading.Lock()
        self._waiters: deque[tuple[int, FlushCallback]] = deque()
        self._wanted = False
        self._stopping = False
        self._worker: Worker | None = None
        self.flushed_offset: int = 0
        self.flushed_timestamp: int = 0
        self.error: FlushFailedError | None = None

    def start(self, flushed_offset: int, flushed_timestamp: int) -> None:
        """Start the worker; everything before the offset is on the disk already."""
        self.flushed_offset = flushed_offset
        self.flushed_timestamp = flushed_timestamp
        self._wanted = self._stopping = False
        self.error = None
        self._worker = self._workers.start("store-flusher", self._step, first_s=self._interval_s)

    def when_flushed(self, end_offset: int, callback: FlushCallback) -> None:
        """Call back once the log is on the disk up to an offset, or can never be.

        Called at once when that is known; otherwise from the flusher's worker.
        """
        with self._guard:
            if self.error is None and end_offset > self.flushed_offset and not self._stopping:
                self._waiters.append((end_offset, callback))
                if self._at_once and not self._wanted and self._worker is not None:
                    self._wanted = True
                    self._worker.wake()
                return
        if self.error is None and end_offset > self.flushed_offset:
            callback(FlushFailedError("the store was closed before the flush", end=end_offset))
            return
        callback(self.error if end_offset > self.flushed_offset else None)

    def flush(self) -> None:
        """Sync everything written so far and tell the waiters; blocks.

        Raises:
            FlushFailedError: a sync failed, now or before.
        """
        with self._one_sync:
            if self.error is not None:
                raise self.error
            end, timestamp = self._written()
            if end > self.flushed_offset:
                try:
                    self._sync(self.flushed_offset, end)
                except Exception as error:  # for any error: no later sync can be trusted
                    raise self.fail(error) from error
            with self._guard:
                self.flushed_timestamp = timestamp
                self.flushed_offset = end
        self._tell(None)

    def fail(self, error: Exception) -> FlushFailedError:
        """Make an error, from here or elsewhere in the store, final; returns the first one."""
        if self.error is not None:
            return self.error
        failure = FlushFailedError(
            f"fsync of the store failed: {error}; messages from offset {self.flushed_offset} "
            "on may be lost; the store takes no more writes: check the disk, then restart",
            flushed_offset=self.flushed_offset,
        )
        with self._guard:
            self.error = failure
        _log.error("condition=%s %s", failure.condition, failure)
        self._tell(failure)
        return failure

    def _tell(self, failure: FlushFailedError | None) -> None:
        # Callbacks run without the lock: they may call when_flushed again.
        ready: list[FlushCallback] = []
        with self._guard:
            waiters = self._waiters
            if failure is not None or (waiters and waiters[0][0] <= self.flushed_offset):
                keep: deque[tuple[int, FlushCallback]] = deque()
                for end, callback in waiters:
                    if failure is None and end > self.flushed_offset:
                        keep.append((end, callback))
                    else:
                        ready.append(callback)
                self._waiters = keep
        for callback in ready:
            callback(failure)

    def _step(self) -> float | None:
        with self._guard:
            # Cleared before the flush reads the log's end: later waiters wake the worker again.
            self._wanted = False
        try:
            self.flush()
        except FlushFailedError:
            return None
        return self._interval_s

    def stop(self) -> None:
        """End the worker; the caller must flush once more, before or after."""
        with self._guard:
            self._stopping = True
        if self._worker is not None:
            self._worker.stop()
            self._worker = None
