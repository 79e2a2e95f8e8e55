"""Messages ``send_async`` hands from users' threads to the loop, and their outcomes back.

Any thread may put; the loop takes. Bounded by number and bytes; nothing of the protocol.
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import cast

from rocketstream import limits
from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream._util.waiting import interrupting, interrupts
from rocketstream.client.instance.engine import Engine
from rocketstream.client.producer.async_sender import AsyncSender, SendDone
from rocketstream.client.producer.gatherer import Ended, Gatherer, Held, end_each
from rocketstream.client.producer.message import joined
from rocketstream.client.producer.policy import SendTarget
from rocketstream.client.producer.send_future import (
    NO_ROOM,
    CallbackThread,
    SendFuture,
    SendWindow,
    end_all,
)
from rocketstream.client.producer.settings import ProducerSettings
from rocketstream.errors import ClientStateError, SendError, SendOutcome
from rocketstream.model import MessageQueue, SendResult
from rocketstream.protocol.sends import PreparedSend

logger: logging.Logger = logging.getLogger("rocketstream.client")

_SENDS_PER_PASS = 64


class Outbox:
    """Messages on their way from ``put`` to their futures."""

    def __init__(self, engine: Engine, sender: AsyncSender) -> None:
        self._engine = engine
        self._sender = sender
        locks = engine.locks
        self._callbacks = CallbackThread(engine.loop, engine.loop_thread_id, locks)
        settings = sender.policy.settings
        bytes_max = limits.ASYNC_SEND_BYTES_IN_FLIGHT_MAX
        self._gatherer: Gatherer | None = None
        if settings.auto_batch:
            bytes_max = settings.total_batch_max_bytes
            self._gatherer = Gatherer(
                sender,
                engine.loop,
                engine.loop.call_soon_threadsafe,
                self._ended,
                engine.loop_thread_id,
                locks,
            )
        self._window = SendWindow(limits.ASYNC_SENDS_IN_FLIGHT_MAX, bytes_max, locks)
        self._waiting: deque[tuple[PreparedSend, SendTarget, float, SendDone]] = deque()
        self._drains = 0
        self._woken_for = -1
        """The drain that the loop was last woken for. Noted after that, so that a signal handler
        which comes in between wakes it itself."""
        self._closed = False
        _OPEN.add(self)

    def put(
        self,
        prepared: PreparedSend,
        target: SendTarget,
        timeout_ms: float,
        callback: Callable[[SendFuture], object] | None,
    ) -> SendFuture:
        """Have a message sent; waits while too many are on their way.

        Raises:
            SendError: none of them was answered within ``timeout_ms``.
        """
        future = self._future(len(prepared.body), callback)
        self._enter(future, timeout_ms)
        # No call comes between, in which a signal handler might raise: whatever is counted is sent.
        self._waiting.append((prepared, target, timeout_ms, future))
        self._wake()
        return future

    def gather(
        self,
        prepared: PreparedSend,
        properties: dict[str, str],
        queue: MessageQueue | None,
        timeout_ms: float,
        callback: Callable[[SendFuture], object] | None,
    ) -> SendFuture:
        """Have a message sent together with others; waits while too many are on their way.

        Args:
            prepared: the message.
            properties: its properties.
            queue: where it must go; None for any queue of its topic.
            timeout_ms: for all of it.
            callback: added to the future.

        Raises:
            SendError: as ``put``.
        """
        gatherer = self._gatherer
        assert gatherer is not None
        future = self._future(len(prepared.body), callback)
        self._enter(future, timeout_ms)
        try:
            gatherer.put(prepared, properties, queue, timeout_ms, future)
        except BaseException:
            if gatherer.cut_off is not future:
                self._window.leave(future.size, future.begun)
            raise
        return future

    def failed(
        self, error: SendError, callback: Callable[[SendFuture], object] | None
    ) -> SendFuture:
        """Return the future of a message that was not sent."""
        future = SendFuture(self._callbacks)
        if callback is not None:
            future.add_done_callback(callback)
        future.set_exception(error)
        return future

    def _ended(self, held: Sequence[Held], ends: Ended, body_bytes: int) -> None:
        """Tell futures, and batches that were sent by themselves, how it ended."""
        if threading.get_ident() != self._engine.loop_thread_id or not isinstance(
            held[0][1], SendFuture
        ):
            end_each(held, ends, body_bytes)
            return
        futures = [cast("_Sent", sink) for _, sink in held]
        end_all(self._callbacks, futures, ends)
        if isinstance(ends[0], SendError):  # and so have the others: they went together
            self._window.failures += len(ends)
        # After their end: whoever flushes finds them done.
        self._window.leave_together(body_bytes, [future.begun for future in futures])

    def put_parts(
        self,
        parts: Sequence[PreparedSend],
        target: SendTarget,
        timeout_ms: float,
        callback: Callable[[SendFuture], object] | None,
    ) -> SendFuture:
        """Have the parts of a batch sent one after the other to one queue (C-477).

        Raises:
            SendError: as ``put``.
        """
        size = sum(len(part.body) for part in parts)
        future = self._future(size, callback)
        chain = _Chain(self._window, self._sender, parts, timeout_ms, future)
        gatherer = self._gatherer
        self._enter(future, timeout_ms)
        if gatherer is None or target.queue is None:
            self._waiting.append((parts[0], target, timeout_ms, chain))
            self._wake()
            return future
        try:
            gatherer.put_alone(parts[0], target.queue, timeout_ms, chain)
        except BaseException:
            if gatherer.cut_off is not chain:
                self._window.leave(size, future.begun)
            raise
        return future

    def _future(self, size: int, callback: Callable[[SendFuture], object] | None) -> _Sent:
        future = _Sent(self._callbacks)
        future.window, future.size = self._window, size
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def _enter(self, future: _Sent, timeout_ms: float) -> None:
        """Count a message in; the last step before it is handed over."""
        future.begun = self._window.try_enter(future.size)
        if future.begun == NO_ROOM:
            # A callback that waited for room would wait for answers only its own thread can take.
            waits = not self._callbacks.is_current
            future.begun = self._window.enter(future.size, timeout_ms, waits=waits)

    def _wake(self) -> None:
        """Have the loop look at what waits."""
        if self._woken_for != self._drains:
            # One wake-up of the loop for all that is appended until it gets to them.
            drain = self._drains
            try:
                self._engine.loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # shut down by another thread meanwhile: the loop is closed
                self._give_up()
            self._woken_for = drain
        if self._closed:  # and so may be the loop that was to look
            self._give_up()

    def _wake_for_cut_off(self) -> None:
        """Have what waits sent though a signal handler that raised kept it from waking the loop."""
        if self._waiting:
            self._wake()

    @property
    def settings(self) -> ProducerSettings:
        """The settings of its producer, as they are now."""
        return self._sender.policy.settings

    @property
    def is_interrupted(self) -> bool:
        """Whether the caller is a signal handler that came amid a put, which goes on after it."""
        return any(interrupts(each, self) for each in (Outbox.put, Outbox.gather, Outbox.put_parts))

    def wait_empty(self, timeout_ms: float) -> None:
        """Wait until nothing is on its way, or the time is over; what is gathered goes now."""
        self._wake_for_cut_off()
        if self._gatherer is not None:
            self._gatherer.flush()
        self._window.wait_empty(timeout_ms)

    def flush(self, timeout_ms: float | None) -> int:
        """Wait until what was put has ended; return how many have not in time.

        Raises:
            ClientStateError: a signal handler interrupted a put, which it would wait for.
        """
        if self.is_interrupted:
            raise interrupting()
        self._wake_for_cut_off()
        if self._gatherer is not None:
            self._gatherer.hurry()
        return self._window.flush(timeout_ms)

    def unsent(self, until_ms: float) -> int:
        """Wait until a time for what is on its way; return how many were not sent, or not yet."""
        self._engine.check_process()
        window, failed_before = self._window, self._window.failures
        if window.count:
            self.wait_empty(max(until_ms - SYSTEM_CLOCK.monotonic_ms(), 0))
        return window.count + window.failures - failed_before

    def close(self) -> None:
        """Fail what was not sent and end the callback thread; once the loop takes no more."""
        _OPEN.discard(self)
        self._closed = True  # before: what is appended from now on is given up by who appends it
        self._give_up()
        if self._gatherer is not None:
            self._gatherer.close()
        self._callbacks.close()

    def _drain(self) -> None:
        # A few at a time: a thread that keeps putting would keep the loop from reading answers,
        # and the whole window would be sent before the first of them is known.
        waiting = self._waiting
        for _ in range(_SENDS_PER_PASS):
            try:
                next_one = waiting.popleft()
            except IndexError:  # the last one may be given up by the thread that closes
                break
            self._sender.send(*next_one)
        else:
            self._engine.loop.call_soon(self._drain)
            return
        self._drains += 1
        if waiting:  # put between the look and the line before this one
            self._woken_for = self._drains
            self._engine.loop.call_soon(self._drain)

    def _give_up(self) -> None:
        while True:
            try:
                prepared, _, _, on_done = self._waiting.popleft()
            except IndexError:  # the last one, which several threads may be after
                return
            text = "the producer was shut down before the message was sent"
            on_done(None, SendError(text, SendOutcome.NOT_SENT, topic=prepared.topic))


_OPEN: weakref.WeakSet[Outbox] = weakref.WeakSet()


def _end_of_program() -> None:
    """Send what ``send_async`` took of producers that nobody shut down, and name what is left.

    All together wait no longer than the longest timeout of a send.
    """
    begin_ms = SYSTEM_CLOCK.monotonic_ms()
    for outbox in list(_OPEN):
        settings = outbox.settings
        try:
            unsent = outbox.unsent(begin_ms + settings.send_msg_timeout_ms)
        except ClientStateError:  # a forked child: they are its parent's
            continue
        if unsent:
            logger.error(
                "the program ends, and %d of the messages that send_async took of producer %s were "
                "not acknowledged; flush() or shutdown() before the end waits for them and tells",
                unsent,
                settings.producer_group,
            )


atexit.register(_end_of_program)


class _Sent(SendFuture):
    """The future of ``send_async``; called when its message is answered, on the loop.

    Attributes:
        window: where it counts while it is on its way.
        size: how much it counts there.
        begun: what the window said when it entered.
    """

    window: SendWindow
    size: int
    begun: int

    def __call__(self, result: SendResult | None, error: SendError | None) -> None:
        """End with a result or an error."""
        self._finish(result, error)
        if error is not None:
            self.window.failures += 1
        self.window.leave(self.size, self.begun)


class _Chain:
    """The parts of a split batch on their way, on the loop: the next goes when one is stored."""

    __slots__ = ("_future", "_left", "_results", "_sender", "_size", "_timeout_ms", "_window")

    def __init__(
        self,
        window: SendWindow,
        sender: AsyncSender,
        parts: Sequence[PreparedSend],
        timeout_ms: float,
        future: _Sent,
    ) -> None:
        self._window = window
        self._sender = sender
        self._size = sum(len(part.body) for part in parts)
        self._left = deque(parts[1:])
        self._timeout_ms = timeout_ms
        self._future = future
        self._results: list[SendResult] = []

    def __call__(self, result: SendResult | None, error: SendError | None) -> None:
        if result is not None:
            self._results.append(result)
            if self._left:
                target = SendTarget(queue=self._results[0].message_queue)
                self._sender.send(self._left.popleft(), target, self._timeout_ms, self)
                return
        if error is not None:
            error.parameters["sent"] = self._results
            self._window.failures += 1
            self._future.set_exception(error)
        else:
            self._future.set_result(joined(self._results))
        self._window.leave(self._size, self._future.begun)
