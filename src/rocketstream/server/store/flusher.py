"""Flushing of the commit log: one thread, group commit, and a failed fsync that is final (C-434).

Law: decides when to sync and who is told; what is synced it gets as two callables.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from rocketstream.errors import FlushFailedError

_log = logging.getLogger(__name__)
FlushCallback = Callable[[Exception | None], None]


class LogFlusher:
    """Syncs the log each interval, or at once for waiters; all that wait share one fsync.

    Args:
        written: returns (end offset, store timestamp) of what is written so far.
        sync: puts a range of the log on the disk; raises OSError.
        at_once: whether a waiter wakes the thread (sync flush) or waits for the timer.
    """

    def __init__(
        self,
        written: Callable[[], tuple[int, int]],
        sync: Callable[[int, int], None],
        *,
        interval_ms: int,
        at_once: bool,
    ) -> None:
        self._written = written
        self._sync = sync
        self._interval_s = interval_ms / 1000
        self._at_once = at_once
        self._condition = threading.Condition()
        self._one_sync = threading.Lock()
        self._waiters: deque[tuple[int, FlushCallback]] = deque()
        self._wanted = False
        self._stopping = False
        self._thread: threading.Thread | None = None
        self.flushed_offset = 0
        self.flushed_timestamp = 0
        self.error: FlushFailedError | None = None

    def start(self, flushed_offset: int, flushed_timestamp: int) -> None:
        """Begin; everything before the offset is on the disk already."""
        self.flushed_offset = flushed_offset
        self.flushed_timestamp = flushed_timestamp
        self._wanted = self._stopping = False
        self.error = None
        self._thread = threading.Thread(target=self._run, name="store-flusher", daemon=True)
        self._thread.start()

    def when_flushed(self, end_offset: int, callback: FlushCallback) -> None:
        """Call back when the log is on the disk up to an offset, or when it will never be.

        At once when that is known; else from the flusher's thread.
        """
        with self._condition:
            if self.error is None and end_offset > self.flushed_offset and not self._stopping:
                self._waiters.append((end_offset, callback))
                if self._at_once and not self._wanted:
                    self._wanted = True
                    self._condition.notify()
                return
        if self.error is None and end_offset > self.flushed_offset:
            callback(FlushFailedError("the store was closed before the flush", end=end_offset))
            return
        callback(self.error if end_offset > self.flushed_offset else None)

    def flush(self) -> None:
        """Sync everything written so far and tell the waiters; blocks.

        Raises:
            FlushFailedError: now or before.
        """
        with self._one_sync:
            if self.error is not None:
                raise self.error
            end, timestamp = self._written()
            if end > self.flushed_offset:
                try:
                    self._sync(self.flushed_offset, end)
                except OSError as error:
                    self._fail(error)
                    raise self.error or error from error
            with self._condition:
                self.flushed_timestamp = timestamp
                self.flushed_offset = end
        self._tell(None)

    def _fail(self, error: OSError) -> None:
        failure = FlushFailedError(
            f"fsync of the commit log failed: {error}; messages from offset {self.flushed_offset} "
            "on may be lost; the store takes no more writes: check the disk, then restart",
            flushed_offset=self.flushed_offset,
        )
        with self._condition:
            self.error = failure
        _log.error("condition=%s %s", failure.condition, failure)
        self._tell(failure)

    def fail(self, error: OSError) -> None:
        """Take an fsync that failed elsewhere in the store as final too."""
        if self.error is None:
            self._fail(error)

    def _tell(self, failure: FlushFailedError | None) -> None:
        # Callbacks run without the lock: they may call when_flushed again.
        ready: list[FlushCallback] = []
        with self._condition:
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

    def _run(self) -> None:
        while True:
            with self._condition:
                if not self._wanted and not self._stopping:
                    self._condition.wait(self._interval_s)
                self._wanted = False
                if self._stopping or self.error is not None:
                    return
            try:
                self.flush()
            except FlushFailedError:
                return

    def stop(self) -> None:
        """End the thread; the caller flushes once more before or after."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
