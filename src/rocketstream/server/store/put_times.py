"""Durations of puts: the last minute's distribution, and the longest ever.

Pure: durations and counts come in. Upstream: StoreStatsService (putMessageDistributeTime and
putLatency99 of code 28).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

SPAN_LABELS = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]",
    "[1~2s]", "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip
_SPAN_ENDS = (1, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
_STEPS = ((1, 20), (2, 15), (5, 10), (10, 10), (50, 6), (100, 5), (1_000, 9))


def _ends() -> tuple[int, ...]:
    ends, end = [], 0
    for width, count in _STEPS:
        for _ in range(count):
            end += width
            ends.append(end)
    return tuple(ends)


_ENDS = _ends()
"""Upstream's fine buckets: each holds durations up to this many ms and above the previous one."""


class PutTimes:
    """Durations of puts in whole ms; those below 1 ms, nearly all, are not recorded singly."""

    def __init__(self) -> None:
        self.longest_ms: int = 0
        self._puts = 0
        self._slow: list[int] = []
        self._last: tuple[int, list[int]] | None = None

    def slow(self, spent_ms: int, puts: int = 1) -> None:
        """Record puts that took 1 ms or more."""
        self.longest_ms = max(self.longest_ms, spent_ms)
        self._slow.extend([spent_ms] * puts)

    def roll(self, puts_total: int) -> None:
        """End a minute.

        Args:
            puts_total: how many puts there were since the start.
        """
        quick = max(puts_total - self._puts - len(self._slow), 0)
        self._last = quick, sorted(self._slow)
        self._puts, self._slow = puts_total, []

    def distribution(self) -> str:
        """Return the last minute's puts by duration, as text; ``null`` in the first minute."""
        if self._last is None:
            return "null"
        quick, slow = self._last
        counts = [0] * len(SPAN_LABELS)
        counts[0] = quick
        for spent_ms in slow:
            counts[bisect_right(_SPAN_ENDS, spent_ms)] += 1
        return "".join(
            f"{label}:{count} " for label, count in zip(SPAN_LABELS, counts, strict=True)
        )

    def percentile_ms(self, share: float) -> float:
        """Return the time within which a share of the last whole minute's puts was done, in ms.

        As upstream, puts count as spread evenly within a bucket; 0 without any puts.
        """
        if self._last is None:
            return 0.0
        quick, slow = self._last
        wanted = int((quick + len(slow)) * share)
        counts = [0] * (len(_ENDS) + 1)
        counts[0] = quick
        for spent_ms in slow:
            counts[bisect_left(_ENDS, spent_ms)] += 1
        passed = 0
        for place, count in enumerate(counts[:-1]):
            if wanted <= passed + count:
                begin = _ENDS[place - 1] if place else 0
                return begin + ((_ENDS[place] - begin) * (wanted - passed) / count if count else 0)
            passed += count
        return float(_ENDS[-1])
