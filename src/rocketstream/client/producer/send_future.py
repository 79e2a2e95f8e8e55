"""Futures of messages on their way, the thread their callbacks run on, and how many there may be.

Law: threads and locks only; nothing of the protocol.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from rocketstream._util.waiting import wait_until
from rocketstream.client.core.begun import Begun
from rocketstream.errors import SendError, SendOutcome, TooManyRequestsError
from rocketstream.model import SendResult

logger = logging.getLogger("rocketstream.client")

# The names the base class and concurrent.futures.wait compare with.
_RUNNING: Final = "RUNNING"
_FINISHED: Final = "FINISHED"

NO_ROOM: Final = -1

Call = tuple[Callable[[Any], object], "SendFuture"]


class CallbackThread:
    """Runs user callbacks off the network thread; started when first needed.

    What is handed over within one pass of the loop goes over as one item, so that a burst of
    answers wakes the thread once.
    """

    def __init__(self) -> None:
        self.guard = threading.Lock()
        """Held for a few steps wherever a future of this thread's producer changes."""
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[list[Call] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._collected: list[Call] = []

    @property
    def is_current(self) -> bool:
        """Whether the caller is running on this thread."""
        thread = self._thread
        return thread is not None and threading.get_ident() == thread.ident

    def collect(self, loop: asyncio.AbstractEventLoop, calls: Sequence[Call]) -> None:
        """Take callbacks over, in their order; on the loop's thread only."""
        if not self._collected:
            loop.call_soon(self.hand_over)
        self._collected += calls

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
            call_each(calls)

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
            call_each(calls)


def call_each(calls: Sequence[Call]) -> None:
    """Run callbacks; what they raise is logged."""
    for function, future in calls:
        try:
            function(future)
        except Exception:
            logger.exception("a callback of send_async raised")


class SendFuture(concurrent.futures.Future[SendResult]):
    """The result of one ``send_async``; cannot be cancelled, since it is on its way.

    There is one for every message, so the condition that waiting needs, the larger part of a
    future's cost, is made by the first who waits. The state changes under the callback thread's
    guard: whoever made the condition before is woken, whoever makes it later sees the end.
    """

    def __init__(
        self, callbacks: CallbackThread, loop: asyncio.AbstractEventLoop, loop_thread_id: int
    ) -> None:
        # Not the base's initialiser: it makes the condition.
        self._callbacks = callbacks
        self._loop = loop
        self._loop_thread_id = loop_thread_id

    def __repr__(self) -> str:
        if self._state is not _FINISHED:
            return "SendFuture(running)"
        return f"SendFuture(finished, {self._exception or self._result!r})"

    # What a future begins with: shared, until one of them has its own.
    _state = _RUNNING
    _result: SendResult | None = None
    _exception: BaseException | None = None
    _done_callbacks: Sequence[Callable[[Any], object]] = ()
    _made_condition: threading.Condition | None = None
    _made_waiters: list[Any] | None = None

    if not TYPE_CHECKING:  # there they stay the plain attributes that concurrent.futures asks for

        @property
        def _waiters(self) -> list[Any]:
            """Who waits for several futures; touched with the condition held."""
            if self._made_waiters is None:
                self._made_waiters = []
            return self._made_waiters

        @property
        def _condition(self) -> threading.Condition:
            """What the base class and ``concurrent.futures.wait`` lock and wait on."""
            with self._callbacks.guard:
                condition = self._made_condition
                if condition is None:
                    condition = self._made_condition = threading.Condition()
                return condition

    def done(self) -> bool:
        """Whether the result or error is there."""
        return self._state is _FINISHED

    def result(self, timeout: float | None = None) -> SendResult:
        """Return the result, waiting for it up to ``timeout`` seconds.

        Raises:
            SendError: the message was not sent, refused, or nobody knows.
            TimeoutError: not known after ``timeout``.
        """
        if self._state is _FINISHED and self._exception is None and self._result is not None:
            return self._result
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error or None, waiting for either up to ``timeout`` seconds."""
        if self._state is _FINISHED:
            return self._exception
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call ``fn(future)`` when it is done, never on the network thread."""
        with self._callbacks.guard:
            if self._state is not _FINISHED:
                self._done_callbacks = (*self._done_callbacks, fn)
                return
        self._call((fn,))

    def set_result(self, result: SendResult) -> None:
        """End with a result."""
        self._finish(result, None)

    def set_exception(self, exception: BaseException | None) -> None:
        """End with an error."""
        self._finish(None, exception)

    def _finish(self, result: SendResult | None, error: BaseException | None) -> None:
        guard = self._callbacks.guard
        with guard:
            condition = self._made_condition
            if condition is None:
                self._end(result, error)
        if condition is not None:
            with condition:
                with guard:
                    self._end(result, error)
                for waiter in self._waiters:
                    (waiter.add_result if error is None else waiter.add_exception)(self)
                condition.notify_all()
        functions = self._done_callbacks
        if functions:
            self._call(functions)

    def _end(self, result: SendResult | None, error: BaseException | None) -> None:
        if self._state is _FINISHED:
            raise concurrent.futures.InvalidStateError("the future has its result or error already")
        self._result, self._exception = result, error
        self._state = _FINISHED

    def _call(self, functions: Sequence[Callable[[Any], object]]) -> None:
        calls = [(function, self) for function in functions]
        if threading.get_ident() == self._loop_thread_id and not self._loop.is_closed():
            self._callbacks.collect(self._loop, calls)
        else:
            call_each(calls)


def end_all(
    callbacks: CallbackThread,
    loop: asyncio.AbstractEventLoop,
    futures: Sequence[SendFuture],
    ends: Sequence[SendResult | SendError],
) -> None:
    """End futures of one producer together; on the loop's thread only."""
    waited_for: list[tuple[SendFuture, SendResult | SendError]] = []
    calls: list[Call] = []
    with callbacks.guard:
        for future, end in zip(futures, ends, strict=True):
            if future._made_condition is not None:
                waited_for.append((future, end))
                continue
            if type(end) is SendResult:
                future._result = end
                future._state = _FINISHED
            else:
                future._end(None, end)  # type: ignore[arg-type]
            if future._done_callbacks:
                calls += [(function, future) for function in future._done_callbacks]
    if calls:
        callbacks.collect(loop, calls)
    for future, end in waited_for:
        if isinstance(end, SendError):
            future.set_exception(end)
        else:
            future.set_result(end)


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
        self._begun = Begun()
        self._flushed = threading.Condition(self._lock)

    def enter(self, size: int, timeout_ms: float, *, waits: bool = True) -> int:
        """Count one message in; blocks while the window is full, unless ``waits`` is off.

        Returns:
            What ``leave`` is to be told of when it began.

        Raises:
            SendError: still full after ``timeout_ms``; nothing was sent.
        """
        with self._lock:
            if waits and self._full():
                self._wait_for_room(timeout_ms)
            self._count += 1
            self._bytes += size
            return self._begun.now

    def try_enter(self, size: int) -> int:
        """Count one message in if there is room, as ``enter`` does; NO_ROOM if there is none."""
        with self._lock:
            if self._full():
                return NO_ROOM
            self._count += 1
            self._bytes += size
            return self._begun.now

    def leave(self, size: int, begun: int) -> None:
        """Count a message out, once its future has ended.

        Args:
            size: its bytes.
            begun: what it was told when it entered.
        """
        with self._lock:
            self._count -= 1
            self._bytes -= size
            if self._begun.waits and self._begun.ended(begun):
                self._flushed.notify_all()
            if self._waiting and (not self._count or not self._full()):
                self._changed.notify_all()

    def leave_together(self, size: int, begun: Sequence[int]) -> None:
        """Count several messages out, as ``leave``; ``size`` is that of all of them."""
        with self._lock:
            self._count -= len(begun)
            self._bytes -= size
            if self._begun.waits:
                ended = [self._begun.ended(each) for each in begun]
                if any(ended):
                    self._flushed.notify_all()
            if self._waiting and (not self._count or not self._full()):
                self._changed.notify_all()

    def wait_empty(self, timeout_ms: float) -> bool:
        """Wait until nothing is on its way; return whether that came in time."""
        return self._wait(lambda: not self._count, timeout_ms)

    def flush(self, timeout_ms: float | None) -> int:
        """Wait until what is on its way now has left; return how many have not in time."""
        with self._flushed:
            begun = self._begun
            flush = begun.flush(self._count)
            wait_until(self._flushed, lambda: not begun.left(flush), timeout_ms)
            return begun.left(flush)

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
