"""Futures of messages on their way, the thread their callbacks run on, and how many there may be.

Law: threads and locks only; nothing of the protocol.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from rocketstream.errors import SendError, SendOutcome, TooManyRequestsError
from rocketstream.model import SendResult

logger = logging.getLogger("rocketstream.client")


Call = tuple[Callable[[Any], object], "SendFuture"]


class CallbackThread:
    """Runs user callbacks off the network thread; started when first needed.

    What is handed over within one turn of the loop goes over as one item, so that a burst of
    answers wakes the thread once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[list[Call] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._collected: list[Call] = []

    @property
    def is_current(self) -> bool:
        """Whether the caller is running on this thread."""
        return threading.current_thread() is self._thread

    def collect(self, loop: asyncio.AbstractEventLoop, call: Call) -> None:
        """Take a callback over; on the loop's thread only."""
        if not self._collected:
            loop.call_soon(self.hand_over)
        self._collected.append(call)

    def hand_over(self) -> None:
        """Give the thread what was collected; on the loop's thread, or once the loop is closed."""
        calls, self._collected = self._collected, []
        if not calls:
            return
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(
                    target=self._main, name="rocketstream-callbacks", daemon=True
                )
                self._thread.start()
            closed = self._closed
            if not closed:
                self._queue.put(calls)
        if closed:
            self._call(calls)

    def close(self) -> None:
        """Run what is left, then end the thread and wait for it; after the loop was closed."""
        self.hand_over()
        with self._lock:
            self._closed = True
            thread = self._thread
            self._queue.put(None)
        if thread is not None and not self.is_current:
            thread.join()

    def _main(self) -> None:
        while (calls := self._queue.get()) is not None:
            self._call(calls)

    @staticmethod
    def _call(calls: list[Call]) -> None:
        for function, future in calls:
            try:
                function(future)
            except Exception:
                logger.exception("a callback of send_async raised")


class SendFuture(concurrent.futures.Future[SendResult]):
    """The result of one ``send_async``; cannot be cancelled, since it is on its way."""

    def __init__(
        self, callbacks: CallbackThread, loop: asyncio.AbstractEventLoop, loop_thread_id: int
    ) -> None:
        super().__init__()
        self._callbacks = callbacks
        self._loop = loop
        self._loop_thread_id = loop_thread_id
        self.set_running_or_notify_cancel()

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call ``fn(future)`` when it is done, never on the network thread."""

        def off_loop(done: concurrent.futures.Future[SendResult]) -> None:
            if threading.get_ident() == self._loop_thread_id and not self._loop.is_closed():
                self._callbacks.collect(self._loop, (fn, self))
            else:
                fn(done)

        super().add_done_callback(off_loop)


class SendWindow:
    """Bounds messages on their way by number and bytes; thread safe."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._count = 0
        self._bytes = 0
        self._waiting = 0

    def enter(self, size: int, timeout_ms: float, *, waits: bool = True) -> None:
        """Count one message in; blocks while the window is full, unless ``waits`` is off.

        Raises:
            SendError: still full after ``timeout_ms``; nothing was sent.
        """
        with self._lock:
            if waits and self._full():
                self._wait_for_room(timeout_ms)
            self._count += 1
            self._bytes += size

    def leave(self, size: int) -> None:
        """Count one message out."""
        with self._lock:
            self._count -= 1
            self._bytes -= size
            if self._waiting and (not self._count or not self._full()):
                self._changed.notify_all()

    def wait_empty(self, timeout_ms: float) -> bool:
        """Wait until nothing is on its way; tell whether that came in time."""
        return self._wait(lambda: not self._count, timeout_ms)

    def _wait_for_room(self, timeout_ms: float) -> None:
        self._waiting += 1
        try:
            if self._changed.wait_for(lambda: not self._full(), timeout_ms / 1000):
                return
        finally:
            self._waiting -= 1
        text = (
            f"{self._count} messages of {self._bytes} bytes are on their way and none "
            f"was answered within {timeout_ms:g} ms"
        )
        error = SendError(text, SendOutcome.NOT_SENT).with_retriable(True)
        raise error from TooManyRequestsError(text)

    def _wait(self, done: Callable[[], bool], timeout_ms: float) -> bool:
        with self._changed:
            self._waiting += 1
            try:
                return self._changed.wait_for(done, timeout_ms / 1000)
            finally:
                self._waiting -= 1

    def _full(self) -> bool:
        return self._count >= self._count_max or self._bytes >= self._bytes_max
