"""Clocks, which are handed in wherever time is read.

Law: no other module reads the machine's clocks.
"""

from __future__ import annotations

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
