"""Samples of many counters, taken at the last ticks of three paces.

Pure: totals and times come in. Upstream: StatsItem and StatsItemSet (code 315).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable
from enum import IntEnum
from typing import Any, NamedTuple


class Pace(IntEnum):
    """The lengths of windows: minute, hour and day."""

    MINUTE = 0
    HOUR = 1
    DAY = 2


INTERVALS_MS = (10_000, 600_000, 3_600_000)
"""The interval between samples, of each pace."""
SAMPLES = (7, 7, 25)
"""The number of samples in a window, of each pace."""


STEP = 500
"""How many things are examined in one step."""


class Totals(NamedTuple):
    """The counts of one thing since the broker started.

    ``calls`` is how many requests it took: a batch is one.
    """

    nums: int = 0
    bytes: int = 0
    calls: int = 0
    spent_ms: int = 0


NOTHING = Totals()


class Window(NamedTuple):
    """The growth of totals over a window, and its length; 0 ms before a first sample."""

    grown: Totals
    span_ms: float


class _Samples:
    """One pace: the times of its ticks, and the ticks at which each thing had changed."""

    def __init__(self, pace: Pace) -> None:
        self._interval_ms = INTERVALS_MS[pace]
        self._ticks = 0
        self._most = SAMPLES[pace]
        self._times: deque[float] = deque(maxlen=self._most)
        self._tracks: dict[Hashable, list[tuple[int, Totals]]] = {}

    def taking(
        self, now_ms: float, counted: Iterable[tuple[Hashable, Totals]]
    ) -> Generator[None, None, None]:
        self._ticks += 1
        self._times.append(now_ms)
        oldest = self._oldest
        tracks = self._tracks
        for number, (key, totals) in enumerate(counted, 1):
            track = tracks.setdefault(key, [])
            if not track or track[-1][1] != totals:
                track.append((self._ticks, totals))
            while len(track) > 1 and track[1][0] <= oldest:
                del track[0]
            if number % STEP == 0:
                yield

    @property
    def _oldest(self) -> int:
        return self._ticks - len(self._times) + 1

    def forget(self, is_gone: Callable[[Any], bool]) -> None:
        for key in [key for key in self._tracks if is_gone(key)]:
            del self._tracks[key]

    def drop(self, key: Hashable) -> None:
        self._tracks.pop(key, None)

    def window(self, keys: Iterable[Hashable]) -> Window:
        tracks = [self._tracks[key] for key in keys if key in self._tracks]
        if not tracks:
            return Window(NOTHING, 0.0)
        born = min(track[0][0] for track in tracks)
        if born > self._ticks - self._most + 1:
            # Before its first sample a thing counts as 0: upstream begins one interval earlier.
            first, began_ms = born - 1, self._time(born) - self._interval_ms
        else:
            first, began_ms = self._oldest, self._times[0]
        before = [_at(track, first) for track in tracks]
        now = [track[-1][1] for track in tracks]
        grown = (
            sum(after) - sum(early)
            for after, early in zip(zip(*now, strict=True), zip(*before, strict=True), strict=True)
        )
        return Window(Totals(*grown), self._times[-1] - began_ms)

    def _time(self, tick: int) -> float:
        return self._times[tick - self._oldest]


def _at(track: list[tuple[int, Totals]], tick: int) -> Totals:
    """Return the totals at a tick; zeros before the first one."""
    for changed, totals in reversed(track):
        if changed <= tick:
            return totals
    return NOTHING


class SampledTotals:
    """The samples of all paces.

    A thing that does not change costs only the check; one that changes keeps at most as many
    samples as its windows have.
    """

    def __init__(self) -> None:
        self._paces = [_Samples(pace) for pace in Pace]

    def taking(
        self, pace: Pace, now_ms: float, counted: Iterable[tuple[Hashable, Totals]]
    ) -> Generator[None, None, None]:
        """Take a sample of all counters in steps; to be called every ``INTERVALS_MS`` of the pace.

        Args:
            now_ms: reading of a clock that only grows.
        """
        return self._paces[pace].taking(now_ms, counted)

    def window(self, pace: Pace, keys: Iterable[Hashable]) -> Window:
        """Return the common growth of the things with these keys up to the last sample."""
        return self._paces[pace].window(keys)

    def forget(self, is_gone: Callable[[Any], bool]) -> None:
        """Drop things that no longer exist, by their keys; counted again, they begin at 0."""
        for samples in self._paces:
            samples.forget(is_gone)

    def drop(self, key: Hashable) -> None:
        """Drop one thing; counted again, it begins at 0."""
        for samples in self._paces:
            samples.drop(key)
