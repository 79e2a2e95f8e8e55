"""Ending a blocking call from another thread, where it would next ask a peer.

Law: never interrupts anything; a call ends between two requests, or not at all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

R = TypeVar("R")


class Stop:
    """One call's order to end; set by any thread, obeyed by the thread that runs the call."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._obeyed = False

    def ask(self) -> None:
        """Have the call end where it would next ask a peer; has no effect on one that ended."""
        self._asked.set()

    def wait(self, seconds: float) -> None:
        """Wait so long, or until asked to end."""
        self._asked.wait(seconds)

    def obey(self) -> None:
        """Raise if asked to, once: what cleans up after it may ask peers again."""
        if self._asked.is_set() and not self._obeyed:
            self._obeyed = True
            # No Exception: whoever goes on where a peer does not answer must not go on here.
            import asyncio  # takes long, and few calls are ever ended

            raise asyncio.CancelledError("the call was cancelled")


class _Present:
    """The order to end of the call this thread is in; begins anew where it is unpickled.

    Modules that travel to Spark's tasks by value take along what they refer to, and a
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
        asyncio.CancelledError: it was ended.
    """
    token = _STOP.set(stop)
    try:
        stop.obey()
        return call()
    finally:
        _STOP.reset(token)


def check_stop() -> None:
    """Raise ``asyncio.CancelledError`` if the call this thread is in was told to end."""
    stop = _STOP.get()
    if stop is not None:
        stop.obey()


def wait_unless_stopped(seconds: float) -> None:
    """Wait so long; raise ``asyncio.CancelledError`` as soon as the call is told to end."""
    stop = _STOP.get()
    if stop is None:
        threading.Event().wait(seconds)
    else:
        stop.wait(seconds)
        stop.obey()
