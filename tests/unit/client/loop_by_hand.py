"""A loop that calls what it is given when a test says so, and timers a test lets come."""

from __future__ import annotations

from collections.abc import Callable


class Timer:
    """One call for later; a test reads when, and whether it was cancelled."""

    def __init__(self, pause_s: float, call: Callable[[], object]) -> None:
        self.pause_s = pause_s
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
    """

    def __init__(self) -> None:
        self.due: list[Callable[[], object]] = []
        self.timers: list[Timer] = []
        self.closed = False

    def call_soon(self, call: Callable[[], object]) -> None:
        self.due.append(call)

    def call_soon_threadsafe(self, call: Callable[[], object]) -> None:
        if self.closed:
            raise RuntimeError("Event loop is closed")
        self.due.append(call)

    def call_later(self, pause_s: float, call: Callable[[], object]) -> Timer:
        timer = Timer(pause_s, call)
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
