"""A loop that calls what it is given when a test says so, and timers a test lets come.

Law: time stands still until a test sets it; nothing is called by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any


class Timer:
    """One call for later; a test reads after how long, at what time, and whether it was cancelled.

    ``call`` makes the call.
    """

    def __init__(self, pause_s: float, at_s: float, call: Callable[[], object]) -> None:
        self.pause_s = pause_s
        self.at_s = at_s
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class LoopByHand:
    """As much of an event loop as the ways to and from it need.

    Attributes:
        due: what the next turn calls.
        timers: every timer there was, in its order.
        closed: whether it takes calls of other threads no more.
        now_s: its time.
    """

    def __init__(self) -> None:
        self.due: list[Callable[[], object]] = []
        self.timers: list[Timer] = []
        self.closed = False
        self.now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)  # type: ignore[arg-type]

    def get_debug(self) -> bool:
        return False

    def call_soon(self, call: Callable[..., object], *args: Any, context: Any = None) -> None:
        self.due.append(partial(call, *args) if args else call)

    def call_soon_threadsafe(self, call: Callable[[], object]) -> None:
        if self.closed:
            raise RuntimeError("Event loop is closed")
        self.due.append(call)

    def call_later(self, pause_s: float, call: Callable[[], object]) -> Timer:
        return self._timer(Timer(pause_s, self.now_s + pause_s, call))

    def call_at(self, at_s: float, call: Callable[[], object]) -> Timer:
        return self._timer(Timer(at_s - self.now_s, at_s, call))

    def _timer(self, timer: Timer) -> Timer:
        self.timers.append(timer)
        return timer

    def is_closed(self) -> bool:
        return self.closed

    def turn(self) -> int:
        """Make the calls that are due; return how many there were."""
        due, self.due = self.due, []
        for call in due:
            call()
        return len(due)

    def waiting(self) -> list[Timer]:
        """Return the timers that were not cancelled."""
        return [timer for timer in self.timers if not timer.is_cancelled]
