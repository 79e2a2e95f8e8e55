"""One table of a server on disk, written soon after it changed.

Law: a table is never written ahead of the log it refers to. Only its owner knows what a table
means.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from rocketstream._util.workers import Workers
from rocketstream.errors import StoreError
from rocketstream.server.store import ConfigFile, MessageStore

logger: logging.Logger = logging.getLogger("rocketstream.server")
T = TypeVar("T")

SOON_S = 0.1
"""A change after a quiet time is written this soon."""
PAUSE_PER_COST = 50
"""The pause between two writes is this many times the duration of the last one: a table that
changes all the time takes a fiftieth of the time. No pause is longer than the table's interval,
though: what a kill takes back counts more than a tenth of the time, for half a million offsets."""


class Encodable(Protocol):
    """A body with a pretty form."""

    def encode(self, *, pretty: bool = False) -> bytes:
        """Return the text."""
        ...


Barrier = Callable[[Callable[[Exception | None], None]], None]


def log_barrier(store: MessageStore) -> Barrier:
    """Return a function that calls back once the log, as written now, is on the disk.

    The messages a snapshot counts as consumed or delivered stand in the log before this point. If a
    power failure took them from the log but not from the file, the messages stored there next would
    be skipped.
    """
    return lambda done: store.when_flushed(store.physical_max_offset, done)


class StateFile(Generic[T]):
    """A table and its file; belongs to one loop, writes on a worker.

    Args:
        generation: returns a number that grows with every change of the table.
        snapshot: returns a copy of the table that is not changed any more.
        interval_ms: the longest time between a change and the next write.
        barrier: calls back when everything the snapshot refers to in the log is on the disk; None
            when the table does not refer to the log.
        is_exact: an outdated file would be worse than none, so the file is removed if the table
            cannot be written.
    """

    def __init__(
        self,
        file: ConfigFile[T],
        generation: Callable[[], int],
        snapshot: Callable[[], Encodable],
        workers: Workers,
        interval_ms: int,
        barrier: Barrier | None = None,
        *,
        is_exact: bool = False,
    ) -> None:
        self._file = file
        self._is_exact = is_exact
        self._is_removed = False
        self._generation = generation
        self._snapshot = snapshot
        self._workers = workers
        self._interval_s = interval_ms / 1000
        self._barrier = barrier
        self._on_disk = generation()
        self._guard = threading.Lock()
        self._not_before_s = 0.0
        self._is_writing = False
        self._is_failing = False
        self._error: BaseException | None = None
        self._closed = False
        self._waiting: list[tuple[int, asyncio.Future[bool]]] = []

    @property
    def is_saved(self) -> bool:
        """Whether the file holds the present table."""
        return self._on_disk == self._generation()

    def is_known(self, generation: int) -> bool:
        """Whether a restart finds this generation of the table, or finds that it is unknown."""
        return generation <= self._on_disk or self._is_removed

    @property
    def needs_log(self) -> bool:
        """Whether the table refers to the log, and must not be ahead of it."""
        return self._barrier is not None

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self._file.path

    def load(self) -> T | None:
        """Return the content of the file; see :meth:`ConfigFile.load`."""
        return self._file.load()

    def loaded(self) -> None:
        """Note that the table now holds the content of the file, which may have to be mended."""
        self._on_disk = self._generation() - self._file.needs_saving

    def tick(self, now_s: float) -> None:
        """Begin to write when something changed and it is time; called often."""
        if not self._is_writing and now_s >= self._not_before_s and not self.is_saved:
            self._begin()

    def written(self) -> asyncio.Future[bool]:
        """Write the present table now; the result is True once it is on the disk, False on failure.

        Also True when the file of an exact table was removed instead.
        """
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        generation = self._generation()
        if self.is_known(generation) or self._closed:
            future.set_result(self.is_known(generation))
            return future
        self._waiting.append((generation, future))
        if not self._is_writing:
            self._begin()
        return future

    def saved(self) -> asyncio.Future[None]:
        """Write as :meth:`written` does; the future raises the StoreError of a failure."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(written: asyncio.Future[bool]) -> None:
            if future.done():
                return
            if written.result():
                future.set_result(None)
            else:
                error = self._error
                if not isinstance(error, StoreError):
                    error = StoreError(f"{self.path} cannot be written now: {error or 'closing'}")
                future.set_exception(error)

        self.written().add_done_callback(done)
        return future

    def save(self) -> None:
        """Write at once, on this thread, without waiting for the log.

        Raises:
            StoreError: the table was not written; it will be tried again.
        """
        self._save(self._generation(), self._snapshot())

    def _save(self, generation: int, snapshot: Encodable) -> None:
        text = snapshot.encode(pretty=True).decode()
        with self._guard:
            # Another thread may have written a newer version meanwhile.
            if generation <= self._on_disk:
                return
            try:
                self._file.save(text)
            except StoreError:
                if self._is_exact:
                    self._file.remove()
                    self._is_removed = True
                raise
            self._on_disk = generation

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._is_writing = True
        # Changes from now on are not in the version being written.
        self._is_removed = False
        generation = self._generation()
        # The snapshot is taken here, on the table's own loop; the rest runs elsewhere.
        snapshot = self._snapshot()
        if self._barrier is None:
            self._write(loop, generation, snapshot)
            return

        def flushed(error: Exception | None) -> None:
            try:
                loop.call_soon_threadsafe(self._flushed, loop, generation, snapshot, error)
            except RuntimeError:
                logger.info("a flush ended after the server's loop did")

        self._barrier(flushed)

    def _flushed(
        self,
        loop: asyncio.AbstractEventLoop,
        generation: int,
        snapshot: Encodable,
        error: Exception | None,
    ) -> None:
        if error is None and not self._closed:
            self._write(loop, generation, snapshot)
        else:
            self._done(loop, loop.time(), error)

    def _write(self, loop: asyncio.AbstractEventLoop, generation: int, snapshot: Encodable) -> None:
        began_s = loop.time()
        future = self._workers.submit(lambda: self._save(generation, snapshot))
        future.add_done_callback(
            lambda done: self._done(
                loop, began_s, asyncio.CancelledError() if done.cancelled() else done.exception()
            )
        )

    def _done(
        self, loop: asyncio.AbstractEventLoop, began_s: float, error: BaseException | None
    ) -> None:
        self._is_writing = False
        self._error = error
        now_s = loop.time()
        pause_s = max((now_s - began_s) * PAUSE_PER_COST, SOON_S)
        if error is not None:
            pause_s = self._interval_s
        self._not_before_s = now_s + min(pause_s, self._interval_s)
        self._tell(error)
        waiting, self._waiting = self._waiting, []
        for generation, future in waiting:
            if future.done():
                continue
            if self.is_known(generation) or error is not None or self._closed:
                future.set_result(self.is_known(generation))
            else:
                self._waiting.append((generation, future))
        if self._waiting:
            self._begin()

    def _tell(self, error: BaseException | None) -> None:
        """Log one line when writing begins to fail, and one when it works again."""
        if error is not None and not self._is_failing and not self._closed:
            logger.error("cannot write %s, trying again: %s", self._file.path, error)
        if error is None and self._is_failing:
            logger.info("%s is written again", self._file.path)
        self._is_failing = error is not None

    def close(self) -> None:
        """Write unsaved changes; the log must be on the disk already; blocks.

        Raises:
            StoreError: the table cannot be written.
        """
        self.stop()
        if not self.is_saved:
            self.save()

    def stop(self) -> None:
        """Begin no further write."""
        self._closed = True
        for _, future in self._waiting:
            if not future.done():
                future.set_result(False)
        self._waiting.clear()
