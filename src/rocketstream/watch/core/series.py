"""Figures over time, reduced to the number of points asked for.

Pure: points in, fewer points out. Of points that are merged the worst lag is kept, so that no peak
gets lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Level:
    """One resolution of the history.

    Attributes:
        step_ms: from one point to the next.
        keep_ms: how far back it reaches.
    """

    step_ms: int
    keep_ms: int


@dataclass(frozen=True, slots=True)
class Point:
    """The figures of a group, or of one of its topics, in one stretch of time.

    Attributes:
        at_ms: when the stretch begins, ms since 1970.
        lag: the highest number of waiting messages; None when not known, for example in an outage.
        time_lag_ms: the longest time the oldest of them had waited.
        consume_rate: messages consumed a second, the mean.
        arrival_rate: messages that arrived a second, the mean.
        retrying: the highest number of messages due for another try; None for a topic.
        dead_letters: the highest number of dead letters; None for a topic.
        queues_unknown: the highest number of queues not counted in ``lag``.
    """

    at_ms: int
    lag: int | None = None
    time_lag_ms: int | None = None
    consume_rate: float | None = None
    arrival_rate: float | None = None
    retrying: int | None = None
    dead_letters: int | None = None
    queues_unknown: int = 0


def thinned(found: Sequence[Point], since_ms: int, until_ms: int, points: int) -> list[Point]:
    """Return at most ``points`` points, merging those found where there are more.

    Points before the first known figure are left out.
    """
    first = next((n for n, point in enumerate(found) if not _is_blank(point)), len(found))
    if len(found) - first <= points:
        return list(found[first:])
    width = (until_ms - since_ms) / points
    stretches: dict[int, list[Point]] = {}
    for point in found[first:]:
        stretches.setdefault(int((point.at_ms - since_ms) // width), []).append(point)
    return [_merged(each, since_ms + int(n * width)) for n, each in sorted(stretches.items())]


def with_breaks(found: Sequence[Point], steps_ms: Sequence[int]) -> list[Point]:
    """Return the points with an empty point (all None) wherever three steps or more are missing.

    Args:
        steps_ms: the step of the level each point comes from.
    """
    whole: list[Point] = []
    for index, point in enumerate(found):
        if whole:
            gap = point.at_ms - whole[-1].at_ms
            step = max(steps_ms[index], steps_ms[index - 1])
            if gap > 3 * step and gap > BREAK_MS and not _is_blank(whole[-1]):
                whole.append(Point(whole[-1].at_ms + step))
        whole.append(point)
    return whole


BREAK_MS = 150_000
"""Sweeps may be further apart than a step; a gap shorter than this is not a break."""


def _is_blank(point: Point) -> bool:
    return point == Point(point.at_ms)


def _merged(points: Sequence[Point], at_ms: int) -> Point:
    if len(points) == 1:
        return points[0]
    return Point(
        at_ms,
        _most(p.lag for p in points),
        _most(p.time_lag_ms for p in points),
        _mean(p.consume_rate for p in points),
        _mean(p.arrival_rate for p in points),
        _most(p.retrying for p in points),
        _most(p.dead_letters for p in points),
        max(p.queues_unknown for p in points),
    )


def _most(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
