"""Futures of messages on their way, the thread their callbacks run on, and how many there may be.

Threads and locks only; nothing of the protocol.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from rocketstream._util.executors import CallbackExecutor
from rocketstream._util.waiting import Latch, Locks, interrupting, wait_until
from rocketstream.client.producer.gathering import Begun
from rocketstream.errors import ClientStateError, SendError, SendOutcome, TooManyRequestsError
from rocketstream.model import SendResult

logger: logging.Logger = logging.getLogger("rocketstream.client")

# The names the base class and concurrent.futures.wait compare with.
_RUNNING: Final = "RUNNING"
_FINISHED: Final = "FINISHED"

NO_ROOM: Final = -1
_THREAD_AGAIN_S: Final = 1.0

Call = tuple[Callable[[Any], object], "SendFuture"]


class CallbackThread:
    """Runs user callbacks off the network thread; started when first needed.

    What is handed over within one pass of the loop goes over as one item, so that a burst of
    answers wakes the thread once.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, loop_thread_id: int, locks: Locks | None = None
    ) -> None:
        self._loop = loop
        self._loop_thread_id = loop_thread_id
        self.locks: Locks = locks or Locks()
        self.guard: Any = self.locks.make()
        """Held for a few steps wherever a future of this thread's producer changes."""
        self._executor = CallbackExecutor(1, "rocketstream-callbacks")
        self._collected: list[Call] = []

    @property
    def is_current(self) -> bool:
        """Whether the caller is running on this thread."""
        return self._executor.is_current

    def call(self, calls: Sequence[Call]) -> None:
        """Have callbacks called, in their order: never on the network thread."""
        if threading.get_ident() != self._loop_thread_id or self._loop.is_closed():
            call_each(calls)
            return
        if not self._collected:
            self._loop.call_soon(self.hand_over)
        self._collected += calls

    def hand_over(self) -> None:
        """Give the thread what was collected; on the loop's thread, or once the loop is closed."""
        calls, self._collected = self._collected, []
        if not calls:
            return
        may_wait = threading.get_ident() != self._loop_thread_id or self._loop.is_closed()
        try:
            try:
                self._executor.submit(self._call_each, calls)
            except ClientStateError:  # closed meanwhile
                if may_wait:
                    call_each(calls)
                    return
                # Of a producer that ended while others of its instance go on, which a callback that
                # waits would hold up.
                name = "rocketstream-callbacks-late"
                late = threading.Thread(target=self._call_each, args=(calls,), name=name)
                late.daemon = True
                late.start()
        except RuntimeError as error:  # the system has no thread left
            if may_wait:
                call_each(calls)
                return
            logger.warning("callbacks of send_async are called a second later: %s", error)
            self._collected[:0] = calls
            self._loop.call_later(_THREAD_AGAIN_S, self.hand_over)

    @staticmethod
    def _call_each(calls: Sequence[Call]) -> None:
        for call in calls:
            try:
                call_each((call,))
            except BaseException:  # such as SystemExit, which ends no thread but the main one's
                logger.exception("a callback of send_async raised")

    def close(self) -> None:
        """Run what is left, then end the thread and wait for it; after the loop was closed."""
        self.hand_over()
        self._executor.close()
        self._executor.join()


def call_each(calls: Sequence[Call]) -> None:
    """Run callbacks; what they raise is logged."""
    for function, future in calls:
        try:
            function(future)
        except Exception:
            logger.exception("a callback of send_async raised")


class SendFuture(concurrent.futures.Future[SendResult]):
    """The result of one ``send_async``; cannot be cancelled, since it is on its way.

    There is one for every message, so what waiting needs, the larger part of a future's cost, is
    made by the first who waits: a latch, or for ``concurrent.futures.wait`` a condition. With the
    base's own the whole of a send costs 1.4 times as much (docs/performance.md). The state changes
    under the callback thread's guard: whoever made them before is woken, whoever makes them later
    sees the end.
    """

    def __init__(self, callbacks: CallbackThread) -> None:
        # Not the base's initialiser: it makes the condition.
        self._callbacks = callbacks

    def __repr__(self) -> str:
        if self._state is not _FINISHED:
            return "SendFuture(running)"
        return f"SendFuture(finished, {self._exception or self._result!r})"

    # Values a future begins with: shared, until one of them has its own.
    _state = _RUNNING
    _result: SendResult | None = None
    _exception: BaseException | None = None
    _done_callbacks: Sequence[Callable[[Any], object]] = ()
    _is_waited_for = False
    _made_latch: Latch | None = None
    _made_condition: threading.Condition | None = None
    _made_waiters: list[Any] | None = None

    if not TYPE_CHECKING:  # there they stay the plain attributes that concurrent.futures asks for

        @property
        def _waiters(self) -> list[Any]:
            """Waiters for several futures; touched with the condition held."""
            if self._made_waiters is None:
                self._made_waiters = []
            return self._made_waiters

        @property
        def _condition(self) -> threading.Condition:
            """The condition the base class and ``concurrent.futures.wait`` lock and wait on."""
            locks = self._callbacks.locks
            locks.check(of_many=False)  # whoever waits for several holds those of the others
            with self._callbacks.guard:
                condition = self._made_condition
                if condition is None:
                    condition = threading.Condition(locks.make_one_of_many())
                    self._made_condition, self._is_waited_for = condition, True
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
        if self._state is not _FINISHED:
            self._wait(timeout)
        if self._exception is not None:
            try:
                raise self._exception
            finally:
                del self  # it holds the error, whose traceback would hold it
        return cast("SendResult", self._result)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error or None, waiting for either up to ``timeout`` seconds."""
        if self._state is not _FINISHED:
            self._wait(timeout)
        return self._exception

    def _wait(self, timeout: float | None) -> None:
        self._callbacks.locks.check()
        with self._callbacks.guard:
            if self._state is _FINISHED:
                return
            latch = self._made_latch
            if latch is None:
                latch = self._made_latch = Latch()
                self._is_waited_for = True
        if not latch.wait(None if timeout is None else timeout * 1000):
            raise TimeoutError

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call ``fn(future)`` when it is done, never on the network thread."""
        with self._callbacks.guard:
            if self._state is not _FINISHED:
                self._done_callbacks = (*self._done_callbacks, fn)
                return
        self._callbacks.call([(fn, self)])

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
        if self._made_latch is not None:
            self._made_latch.open()
        functions = self._done_callbacks
        if functions:
            self._callbacks.call([(function, self) for function in functions])

    def _end(self, result: SendResult | None, error: BaseException | None) -> None:
        if self._state is _FINISHED:
            raise concurrent.futures.InvalidStateError("the future has its result or error already")
        self._result, self._exception = result, error
        self._state = _FINISHED


def end_all(
    callbacks: CallbackThread,
    futures: Sequence[SendFuture],
    ends: Sequence[SendResult | SendError],
) -> None:
    """End futures of one producer together; on the loop's thread only."""
    waited_for: list[tuple[SendFuture, SendResult | SendError]] = []
    calls: list[Call] = []
    with callbacks.guard:
        for future, end in zip(futures, ends, strict=True):
            if future._is_waited_for:
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
        callbacks.call(calls)
    for future, end in waited_for:
        if isinstance(end, SendError):
            future.set_exception(end)
        else:
            future.set_result(end)


class SendWindow:
    """Bounds messages on their way by number and bytes; thread safe.

    Attributes:
        failures: how many of those that left it had failed.
    """

    def __init__(self, count_max: int, bytes_max: int, locks: Locks | None = None) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._locks = locks or Locks()
        self._lock = self._locks.make()
        self._changed = threading.Condition(self._lock)
        self._count = 0
        self._bytes = 0
        self.failures = 0
        self._waiting = 0
        self._begun = Begun()
        self._flushed = threading.Condition(self._lock)

    def enter(self, size: int, timeout_ms: float, *, waits: bool = True) -> int:
        """Count one message in; blocks while the window is full, unless ``waits`` is off.

        Returns:
            The number ``leave`` is to be called with.

        Raises:
            SendError: still full after ``timeout_ms``; nothing was sent.
            ClientStateError: a signal handler interrupted who was counting.
        """
        if self._lock._is_owned():  # by this thread, which a signal handler interrupted
            raise interrupting()
        if waits and self._full():
            self._locks.check()
        begun = NO_ROOM
        try:
            with self._lock:
                if waits and self._full():
                    self._wait_for_room(timeout_ms)
                begun = self._begun.now
                # Without a call, in which a signal handler might raise.
                self._count += 1
                self._bytes += size
        except BaseException:
            self._take_back(size, begun)
            raise
        return begun

    def try_enter(self, size: int) -> int:
        """Count one message in if there is room, as ``enter`` does; NO_ROOM if there is none."""
        begun = NO_ROOM
        try:
            with self._lock:
                if not self._full():
                    begun = self._begun.now
                    self._count += 1
                    self._bytes += size
        except BaseException:
            self._take_back(size, begun)
            raise
        return begun

    def _take_back(self, size: int, begun: int) -> None:
        """Count out what a signal handler kept from being sent by raising."""
        if begun != NO_ROOM:
            self.leave(size, begun)

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
        self._locks.check()
        return self._wait(lambda: not self._count, timeout_ms)

    @property
    def count(self) -> int:
        """How many are on their way."""
        return self._count

    def flush(self, timeout_ms: float | None) -> int:
        """Wait until what is on its way now has left; return how many have not in time."""
        self._locks.check()
        with self._flushed:
            begun = self._begun
            # Full meanwhile: what a signal handler sends now would be in no count.
            most, self._count_max = self._count_max, 0
            try:
                flush = begun.flush(self._count)
            finally:
                self._count_max = most
            wait_until(self._flushed, lambda: not begun.left(flush), timeout_ms)
            return begun.left(flush)

    def _wait_for_room(self, timeout_ms: float) -> None:
        self._waiting += 1
        try:
            if wait_until(self._changed, lambda: not self._full(), timeout_ms):
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
                return wait_until(self._changed, done, timeout_ms)
            finally:
                self._waiting -= 1

    def _full(self) -> bool:
        return self._count >= self._count_max or self._bytes >= self._bytes_max
