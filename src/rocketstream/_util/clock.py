"""Clocks, which are handed in wherever time is read.

Law: no other module reads the machine's clocks.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A wall clock and a monotonic clock; tests move a testing.ManualClock by hand."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970 UTC; may jump."""
        ...

    def monotonic_ms(self) -> float:
        """Milliseconds that only grow, from an arbitrary start."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970 UTC."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        """Milliseconds of the monotonic clock."""
        return time.monotonic_ns() / 1_000_000


SYSTEM_CLOCK: Clock = SystemClock()
