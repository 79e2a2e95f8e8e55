"""Clocks, which are handed in wherever time is read.

Law: no other module reads the machine's clocks.
"""

from __future__ import annotations

import math
import sys
import time
from typing import Final, Protocol

if sys.platform == "win32":
    _elapsed_ns: Final = time.monotonic_ns
else:
    # Linux' monotonic clock stands still while the machine is suspended, and so would every lease.
    # Elsewhere the clock of that name goes on; Python's own monotonic clock does not on a Mac.
    _CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def _elapsed_ns() -> int:
        return time.clock_gettime_ns(_CLOCK)


class Clock(Protocol):
    """A wall clock and a monotonic clock; tests move a testing.ManualClock by hand."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970 UTC; may jump."""
        ...

    def monotonic_ms(self) -> float:
        """Milliseconds that only grow, also while the machine sleeps, from an arbitrary start."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970 UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        """Milliseconds of the clock that counts what a suspended machine missed."""
        return _elapsed_ns() / 1_000_000


SYSTEM_CLOCK: Clock = SystemClock()


# --- standing still -------------------------------------------------------------------------------

LOOKS_MISSED: Final = 3
"""A look that is late by as many intervals was not late by work."""


class Attention:
    """The attention of a server: since when it has heard its peers without a break.

    Pure, and used by one thread. A process that was stopped, or whose machine slept, heard nobody,
    and on a machine that slept the peers slept as well: silence is counted from when it went on.

    Args:
        interval_ms: from one look to the next.

    Attributes:
        since_ms: since when there is no break in them, by a clock that only grows; minus infinity
            where there was none.
    """

    def __init__(self, interval_ms: float) -> None:
        self._late_ms = (1 + LOOKS_MISSED) * interval_ms
        self._looked_ms: float | None = None
        self.since_ms: float = -math.inf

    def look(self, now_ms: float) -> float:
        """Note a look, and return ``since_ms``."""
        if self._looked_ms is not None and now_ms - self._looked_ms > self._late_ms:
            self.since_ms = now_ms
        self._looked_ms = now_ms
        return self.since_ms
