"""What ``send_async`` hands from users' threads to the loop, and how it comes back.

Law: any thread may put; the loop takes. Bounded by number and bytes; nothing of the protocol.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rocketstream import limits
from rocketstream.client.engine import Engine
from rocketstream.client.producer.async_sender import AsyncSender, SendTarget
from rocketstream.client.producer.send_future import CallbackThread, SendFuture, SendWindow
from rocketstream.client.producer.sending import PreparedSend
from rocketstream.errors import SendError, SendOutcome
from rocketstream.model import SendResult


class Outbox:
    """Messages on their way from ``put`` to their futures."""

    def __init__(self, engine: Engine, sender: AsyncSender) -> None:
        self._engine = engine
        self._sender = sender
        self._callbacks = CallbackThread()
        self._window = SendWindow(
            limits.ASYNC_SENDS_IN_FLIGHT_MAX, limits.ASYNC_SEND_BYTES_IN_FLIGHT_MAX
        )
        self._waiting: deque[tuple[PreparedSend, SendTarget, float, SendFuture]] = deque()
        self._due = False

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
        engine = self._engine
        # A callback that waited for room would wait for answers only its own thread can take.
        self._window.enter(len(prepared.body), timeout_ms, waits=not self._callbacks.is_current)
        future = SendFuture(self._callbacks, engine.loop, engine.loop_thread_id)
        if callback is not None:
            future.add_done_callback(callback)
        self._waiting.append((prepared, target, timeout_ms, future))
        if not self._due:
            # One wake-up of the loop for all that is appended until it gets to them.
            self._due = True
            try:
                engine.loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # shut down by another thread meanwhile: the loop is closed
                self._give_up()
        return future

    def wait_empty(self, timeout_ms: float) -> None:
        """Wait until nothing is on its way, or the time is over."""
        self._window.wait_empty(timeout_ms)

    def close(self) -> None:
        """Fail what was not sent and end the callback thread; once the loop takes no more."""
        self._give_up()
        self._callbacks.close()

    def _drain(self) -> None:
        self._due = False
        waiting = self._waiting
        while waiting:
            prepared, target, timeout_ms, future = waiting.popleft()
            self._sender.send(
                prepared, target, timeout_ms, _Completion(self._window, prepared, future)
            )

    def _give_up(self) -> None:
        while self._waiting:
            prepared, _, _, future = self._waiting.popleft()
            text = "the producer was shut down before the message was sent"
            error = SendError(text, SendOutcome.NOT_SENT, topic=prepared.topic)
            _Completion(self._window, prepared, future)(None, error)


class _Completion:
    """What to do when a message of ``send_async`` is answered, on the loop."""

    __slots__ = ("_future", "_prepared", "_window")

    def __init__(self, window: SendWindow, prepared: PreparedSend, future: SendFuture) -> None:
        self._window = window
        self._prepared = prepared
        self._future = future

    def __call__(self, result: SendResult | None, error: SendError | None) -> None:
        self._window.leave(len(self._prepared.body))
        if error is not None:
            self._future.set_exception(error)
        elif result is not None:
            self._future.set_result(result)
