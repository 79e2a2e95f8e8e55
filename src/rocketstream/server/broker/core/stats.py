"""Counters and the rates of the last 10 s, 1 min and 10 min.

Pure: times are of a clock that only grows. Upstream: StoreStatsService (putTps "a b c" of code 28).
"""

from __future__ import annotations

from collections import deque

WINDOWS_MS = (10_000, 60_000, 600_000)
SAMPLE_INTERVAL_MS = 1_000


class Counter:
    """A counter that only grows, with samples of the last ten minutes."""

    __slots__ = ("_samples", "total")

    def __init__(self) -> None:
        self.total: int = 0
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self, now_ms: float) -> None:
        """Record the total; called about once a second."""
        samples = self._samples
        if samples and now_ms - samples[-1][0] < SAMPLE_INTERVAL_MS // 2:
            return
        samples.append((now_ms, self.total))
        while samples and now_ms - samples[0][0] > WINDOWS_MS[-1] + SAMPLE_INTERVAL_MS:
            samples.popleft()

    def rate(self, window_ms: int, now_ms: float) -> float:
        """Return growth per second over the window, or over the known part of it."""
        start = next((s for s in self._samples if now_ms - s[0] <= window_ms), None)
        if start is None or now_ms <= start[0]:
            return 0.0
        return (self.total - start[1]) * 1000 / (now_ms - start[0])

    def text(self, now_ms: float) -> str:
        """Return the three rates as upstream prints them."""
        return " ".join(map(str, self.rates(now_ms)))

    def rates(self, now_ms: float) -> list[float]:
        """Return growth per second over each of the three windows."""
        return [self.rate(window, now_ms) for window in WINDOWS_MS]
