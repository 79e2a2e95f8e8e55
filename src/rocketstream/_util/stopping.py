"""The stop of a blocking call from another thread, at the point where it would next ask a peer.

Law: never interrupts anything; a call ends between two requests, or not at all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

R = TypeVar("R")


class Stop:
    """An order to end one call; given by any thread, obeyed by the thread that runs the call."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._obeyed = False

    def ask(self) -> None:
        """End the call before its next request to a peer; no effect once the call has ended."""
        self._asked.set()

    def wait(self, seconds: float) -> None:
        """Wait for ``seconds``, or until the end of the call is requested."""
        self._asked.wait(seconds)

    def obey(self) -> None:
        """Raise if the end of the call was requested, but only once: clean-up code may ask peers
        again."""
        if self._asked.is_set() and not self._obeyed:
            self._obeyed = True
            # Not a subclass of Exception: code that skips a silent peer must not swallow this
            # order.
            import asyncio  # takes long, and few calls are ever ended

            raise asyncio.CancelledError("the call was cancelled")


class _Present:
    """The ``Stop`` of the call this thread is in; empty again where it is unpickled.

    Modules that are sent to Spark's tasks by value take along the objects they refer to, and a
    ``ContextVar`` cannot be pickled.
    """

    def __init__(self) -> None:
        self._stop: ContextVar[Stop | None] = ContextVar("rocketstream_stop", default=None)
        self.get, self.set, self.reset = self._stop.get, self._stop.set, self._stop.reset

    def __reduce__(self) -> tuple[type[_Present], tuple[()]]:
        return _Present, ()


_STOP = _Present()


def call_until(stop: Stop, call: Callable[[], R]) -> R:
    """Run ``call`` so that ``stop`` ends it.

    Raises:
        asyncio.CancelledError: ``stop`` ended the call.
    """
    token = _STOP.set(stop)
    try:
        stop.obey()
        return call()
    finally:
        _STOP.reset(token)


def check_stop() -> None:
    """Raise ``asyncio.CancelledError`` if the end of this thread's call was requested."""
    stop = _STOP.get()
    if stop is not None:
        stop.obey()


def wait_unless_stopped(seconds: float) -> None:
    """Wait for ``seconds``; raise ``asyncio.CancelledError`` once the end of the call is
    requested."""
    stop = _STOP.get()
    if stop is None:
        threading.Event().wait(seconds)
    else:
        stop.wait(seconds)
        stop.obey()
