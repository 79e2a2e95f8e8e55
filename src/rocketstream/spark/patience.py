"""The bound on how long a failure that may pass is waited for.

Callers know which step is tried again, and which failures may pass.
"""

from __future__ import annotations

import threading

from rocketstream._util.clock import Clock


class Patience:
    """Bounds how long a failure that may pass is waited for.

    Args:
        timeout_ms: from the first failure after a success.
        clock: measures the time.
    """

    def __init__(self, timeout_ms: float, clock: Clock) -> None:
        self._timeout_ms = timeout_ms
        self._clock = clock
        self._since: float | None = None
        self._pause_ms = 0.0
        self._never = threading.Event()

    def succeeded(self) -> None:
        """Count from zero at the next failure."""
        self._since = None
        self._pause_ms = 0.0

    def exhausted(self) -> bool:
        """Note a failure; return True when there were only failures for ``timeout_ms``."""
        now = self._clock.monotonic_ms()
        if self._since is None:
            self._since = now
        return now - self._since >= self._timeout_ms

    def pause(self) -> None:
        """Wait a little, longer each time: 50 ms to 1 s."""
        self._pause_ms = min(1_000.0, self._pause_ms * 2 or 50.0)
        self._never.wait(self._pause_ms / 1000)
