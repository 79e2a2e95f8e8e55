"""The measures recorded of a sweep: a handful of figures per group, and per group and topic.

Pure: two sweeps in, rows out. An unknown figure is None.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from rocketstream.admin.state import GroupState, QueueKind, QueueState, longest_of, sum_of

WHOLE_GROUP: Final = ""
"""Names all topics of a group together, its retry topic included."""


@dataclass(frozen=True, slots=True)
class Measures:
    """The figures of one group, or of one topic of a group, at one moment.

    Attributes:
        lag: messages waiting in its queues; None where not known (``sum_of``).
        time_lag_ms: how long the oldest waiting message has waited.
        consume_rate: messages a second by which the committed offsets advanced since the previous
            sweep; None without a previous sweep, where an offset is not known, or where the group
            was moved back.
        arrival_rate: messages a second that arrived since the previous sweep.
        retrying: messages due for another try; only for the whole group.
        dead_letters: messages given up and kept; only for the whole group.
        queues_unknown: queues not counted in ``lag``.
    """

    lag: int | None
    time_lag_ms: int | None
    consume_rate: float | None
    arrival_rate: float | None
    retrying: int | None = None
    dead_letters: int | None = None
    queues_unknown: int = 0


def measures_of(state: GroupState, before: GroupState | None) -> dict[str, Measures]:
    """Return the figures of a group: under ``WHOLE_GROUP`` and under each of its topics.

    Args:
        before: the same group at the previous sweep; None leaves the rates unknown.
    """
    seconds = 0.0 if before is None else (state.taken_ms - before.taken_ms) / 1000
    was = {} if before is None else _by_key(before.queues)
    waiting = state.of_kind(QueueKind.TOPIC, QueueKind.RETRY)
    found = {
        WHOLE_GROUP: Measures(
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
        found[topic] = Measures(
            sum_of(queues, lags),
            longest_of(queues, state.taken_ms),
            *_rates(queues, was, seconds),
            queues_unknown=lags.count(None),
        )
    return found


_Key = tuple[str, str, int]


def _by_key(queues: Iterable[QueueState]) -> dict[_Key, QueueState]:
    return {queue.key: queue for queue in queues}


def _rates(
    queues: Iterable[QueueState], was: Mapping[_Key, QueueState], seconds: float
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
