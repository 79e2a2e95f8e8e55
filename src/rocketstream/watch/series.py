"""Figures over time: those of a sweep, rates of topics, points reduced to the number asked for.

Pure: sweeps in, points out; points in, fewer points out. An unknown figure is None. Of points
that are merged the worst lag is kept, so that no peak gets lost.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rocketstream.admin.state import (
    ClusterState,
    GroupState,
    QueueKind,
    QueueState,
    longest_of,
    sum_of,
)
from rocketstream.model import MessageQueue

WHOLE_GROUP: Final = ""
"""Names all topics of a group together, its retry topic included."""


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
    """The figures of a group, or of one of its topics, in one stretch of time, or at one moment.

    Attributes:
        at_ms: when the stretch begins, ms since 1970.
        lag: the highest number of waiting messages; None when not known (``sum_of``), for example
            in an outage.
        time_lag_ms: the longest time the oldest of them had waited.
        consume_rate: messages a second by which the committed offsets advanced, the mean; None
            without a previous sweep, where an offset is not known, or where the group was moved
            back.
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


def points_of(state: GroupState, before: GroupState | None) -> dict[str, Point]:
    """Return the figures of a group: under ``WHOLE_GROUP`` and under each of its topics.

    Args:
        before: the same group at the previous sweep; None leaves the rates unknown.
    """
    seconds = 0.0 if before is None else (state.taken_ms - before.taken_ms) / 1000
    was = {} if before is None else _by_key(before.queues)
    waiting = state.of_kind(QueueKind.TOPIC, QueueKind.RETRY)
    at_ms = state.taken_ms
    found = {
        WHOLE_GROUP: Point(
            at_ms,
            state.lag,
            state.time_lag_ms,
            *_rates(waiting, was, seconds),
            state.retrying,
            state.dead_letters,
            state.queues_unknown,
        )
    }
    topics: defaultdict[str, list[QueueState]] = defaultdict(list)
    for queue in state.of_kind(QueueKind.TOPIC):
        topics[queue.topic].append(queue)
    for topic, queues in topics.items():
        lags = [queue.lag for queue in queues]
        found[topic] = Point(
            at_ms,
            sum_of(queues, lags),
            longest_of(queues, at_ms),
            *_rates(queues, was, seconds),
            queues_unknown=lags.count(None),
        )
    return found


def _by_key(queues: Iterable[QueueState]) -> dict[MessageQueue, QueueState]:
    return {queue.key: queue for queue in queues}


def _rates(
    queues: Iterable[QueueState], was: Mapping[MessageQueue, QueueState], seconds: float
) -> tuple[float | None, float | None]:
    """Return messages a second consumed and arrived; None where a queue's offsets are not known."""
    if seconds <= 0:
        return None, None
    consumed: int | None = 0
    arrived: int | None = 0
    asked = 0
    for queue in queues:
        old = was.get(queue.key)
        if old is None:
            consumed = arrived = None  # a new queue: nobody knows since when it has existed
            break
        asked += 1
        consumed = _plus(consumed, old.committed_offset, queue.committed_offset, queue)
        arrived = _plus(arrived, old.max_offset, queue.max_offset, None)
    if not asked:
        return None, None
    return (
        None if consumed is None else consumed / seconds,
        None if arrived is None else arrived / seconds,
    )


def _plus(
    total: int | None, before: int | None, after: int | None, empty: QueueState | None
) -> int | None:
    if empty is not None and before is None and after is None and empty.max_offset == 0:
        return total  # nothing to consume in it, so nothing was consumed
    if total is None or before is None or after is None or after < before:
        return None
    return total + after - before


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


SPAN_MS: Final = 60_000
STATES_MAX: Final = 8
Ends = dict[MessageQueue, int]


class TopicRates:
    """Rates over the last minute, or as far back as sweeps reach.

    One thread adds and others read; the values they read are replaced as a whole.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[int, Ends]] = deque()
        self._queues: dict[MessageQueue, float] = {}
        self._topics: dict[str, float] = {}

    def add(self, state: ClusterState, *, is_first: bool = False) -> None:
        """Add the result of a sweep; once more does nothing.

        Args:
            is_first: nobody swept just before it: there are no rates over what nobody watched.
        """
        if self._seen and state.taken_ms == self._seen[-1][0]:
            return  # as a look into a group found it
        ends = {
            queue.key: queue.max_offset for topic in state.topics.values() for queue in topic.queues
        }
        if is_first or (self._seen and state.taken_ms < self._seen[-1][0]):
            self._seen.clear()  # or the clock went back: earlier states give no rate
        self._seen.append((state.taken_ms, ends))
        while len(self._seen) > 2 and (
            len(self._seen) > STATES_MAX or state.taken_ms - self._seen[1][0] >= SPAN_MS
        ):
            self._seen.popleft()
        self._count(ends)

    def rate(self, topic: str) -> float | None:
        """Return messages a second of a topic; None after one sweep, or for a topic made since."""
        return self._topics.get(topic)

    def queue_rate(self, queue: MessageQueue) -> float | None:
        """Return messages a second of one queue."""
        return self._queues.get(queue)

    def total(self) -> float | None:
        """Return messages a second of all topics together; None after one sweep."""
        return sum(self._topics.values()) if len(self._seen) > 1 else None

    def _count(self, ends: Ends) -> None:
        began_ms, first = self._seen[0]
        seconds = (self._seen[-1][0] - began_ms) / 1_000
        if seconds <= 0:
            self._queues, self._topics = {}, {}
            return
        queues: dict[MessageQueue, float] = {}
        topics: dict[str, float] = {}
        for queue, high in ends.items():
            low = first.get(queue)
            if low is None:
                continue
            # The ends of a topic that was deleted and made again begin at 0.
            rate = max(high - low, 0) / seconds
            queues[queue] = rate
            topics[queue[0]] = topics.get(queue[0], 0.0) + rate
        self._queues, self._topics = queues, topics
