"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading

START_MS = 1_700_000_000_000


class ManualClock:
    """Time under the control of a test. Thread safe."""

    def __init__(self, now_ms: int = START_MS) -> None:
        self._lock = threading.Lock()
        self._now_ms = float(now_ms)
        self._monotonic_ms = 0.0

    def __repr__(self) -> str:
        return f"ManualClock(now_ms={self._now_ms:.0f}, monotonic_ms={self._monotonic_ms:g})"

    def now_ms(self) -> int:
        """Wall-clock milliseconds since 1970 UTC."""
        with self._lock:
            return int(self._now_ms)

    def monotonic_ms(self) -> float:
        """Milliseconds since this clock was made; grows only by ``advance``."""
        with self._lock:
            return self._monotonic_ms

    def advance(self, ms: float) -> None:
        """Move both readings on by ``ms`` milliseconds.

        Raises:
            ValueError: ``ms`` is negative; ``jump`` moves the wall clock back.
        """
        if ms < 0:
            raise ValueError(f"time does not go back: advance({ms}); use jump() for the wall clock")
        with self._lock:
            self._now_ms += ms
            self._monotonic_ms += ms

    def jump(self, ms: float) -> None:
        """Move only the wall clock, forwards or back, as an operator or NTP does."""
        with self._lock:
            self._now_ms += ms
