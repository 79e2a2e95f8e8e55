"""Bounds on a loop's waits that count only the time in which the loop ran.

A process that stood still (a long collection of garbage, a stopped machine, a listener that holds
the interpreter) finds its timers due before it has looked at its sockets: uvloop runs them first,
and asyncio cancels a wait although its socket is ready in the same round. An answer that came in
meanwhile would look like a peer that did not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

__all__ = ["another_look_s", "up_to"]

_LATE_S: Final = 0.002
"""A timer so late says that the loop stood still: timers are counted in whole milliseconds."""
_LOOK_S: Final = 0.02
"""Rounds of the loop that suffice to read a socket's bytes and to wake their receiver."""
_LOOKS_MAX: Final = 3
"""A loop that has too much to do is always late: its waits must end all the same."""


def another_look_s(now: float, due: float, looks: int) -> float:
    """Return how much longer to wait, in seconds, when a timer due at ``due`` runs at ``now``.

    0.0 where the timer is on time, or ``looks`` were given already. Else as long as the loop stood
    still, so that a peer has all of its time, but at least as long as reading its bytes takes.
    """
    late = now - due
    return max(late, _LOOK_S) if late > _LATE_S and looks < _LOOKS_MAX else 0.0


@asynccontextmanager
async def up_to(seconds: float) -> AsyncIterator[None]:
    """Bound what is awaited in the block, as ``asyncio.timeout`` does.

    Raises:
        TimeoutError: the block was not done, and the loop ran when its time was over.
    """
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def over(due: float, looks: int) -> None:
        nonlocal timer
        now = loop.time()
        if more := another_look_s(now, due, looks):
            timer = loop.call_at(now + more, over, now + more, looks + 1)
        else:
            bound.reschedule(now)

    async with asyncio.timeout(None) as bound:
        due = loop.time() + seconds
        timer = loop.call_at(due, over, due, 0)
        try:
            yield
        finally:
            timer.cancel()
