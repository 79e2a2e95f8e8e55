"""The states of every group over the last minutes, in bounded memory.

Pure: old and new states in, the states to keep out; equal values are kept once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final, NamedTuple

from rocketstream.admin.state import GroupState, QueueKind, QueueState

SPAN_MS: Final = 20 * 60_000
"""How far back a window reaches: older states change no verdict."""
RECENT_MS: Final = 5 * 60_000
"""The last minutes get two thirds of a window's states, the rest of the span gets the others."""
STATES_MAX: Final = 45
SLACK_MS: Final = 1_500
STATES_MIN: Final = 6
"""Every group may keep this many states, even beyond the bound of all groups together."""
QUEUES_MAX: Final = 120_000
"""Most queue states of all windows, some 300 bytes each; more queues mean fewer states.
"""


class Windows:
    """A sliding window of states per group; has one writer.

    Args:
        span_ms: how far back it reaches.
        states_max: how many states of one group are kept at most.
        queues_max: how many queue states of all groups are kept at most; in a cluster with more
            queues states are kept further apart in time, so that the span stays.

    States are closer together in the last quarter of the span than before it.
    """

    def __init__(
        self,
        *,
        span_ms: int = SPAN_MS,
        states_max: int = STATES_MAX,
        queues_max: int = QUEUES_MAX,
    ) -> None:
        self._span_ms = span_ms
        self._states_max = states_max
        self._queues_max = queues_max
        self._pace = _pace(span_ms, states_max)
        # Replaced as a whole by its writer, so that other threads may read it at any time.
        self._windows: dict[str, list[GroupState]] = {}

    def add(self, groups: Mapping[str, GroupState]) -> None:
        """Add the groups a sweep found; groups it did not find are forgotten."""
        queues = sum(len(state.queues) for state in groups.values())
        count = self._states_max
        if queues:
            count = max(min(self._queues_max // queues, count), STATES_MIN)
        self._pace = _pace(self._span_ms, count)
        self._windows = {
            name: _added(self._windows.get(name, []), state, self._pace)
            for name, state in groups.items()
        }

    def add_one(self, state: GroupState) -> None:
        """Add one group, asked by itself."""
        window = _added(self._windows.get(state.group, []), state, self._pace)
        self._windows = {**self._windows, state.group: window}

    def window(self, group: str) -> list[GroupState]:
        """Return the states of a group, oldest first; empty for an unknown group."""
        return list(self._windows.get(group, ()))

    def newest(self, group: str) -> GroupState | None:
        """Return the last state of a group; None for an unknown group."""
        window = self._windows.get(group)
        return window[-1] if window else None

    @property
    def queue_states(self) -> int:
        """How many different queue states are kept: they decide the memory of the windows."""
        return len(
            {id(queue) for w in self._windows.values() for state in w for queue in state.queues}
        )


class _Pace(NamedTuple):
    """How far back states are kept and how far apart: the recent ones, and the older ones."""

    span_ms: int
    recent_ms: int
    near_ms: float
    far_ms: float


def _pace(span_ms: int, count: int) -> _Pace:
    recent_ms = span_ms * RECENT_MS // SPAN_MS
    near = max(count * 2 // 3, 2)
    far_ms = (span_ms - recent_ms) / max(count - near, 1)
    return _Pace(span_ms, recent_ms, recent_ms / near, far_ms)


def _added(window: list[GroupState], state: GroupState, pace: _Pace) -> list[GroupState]:
    if window and state == window[-1]:
        return window  # a look found it already
    if window and state.taken_ms < window[-1].taken_ms:
        # The clock was set back: older states cannot be compared with those to come.
        window = []
    if not window:
        return [state]
    now_ms = state.taken_ms
    kept: list[GroupState] = []
    # Oldest first: a state is kept that is far enough from the one kept before it, so that the
    # choice does not depend on how many states come later. A little less is enough, because sweeps
    # are not exact to the second.
    for old in window:
        age_ms = now_ms - old.taken_ms
        distance_ms = pace.near_ms if age_ms <= pace.recent_ms else pace.far_ms
        if age_ms > pace.span_ms:
            continue
        if not kept or old.taken_ms - kept[-1].taken_ms >= distance_ms - SLACK_MS:
            kept.append(old)
    return [*kept, _sharing(state, window[-1])]


def _sharing(state: GroupState, before: GroupState) -> GroupState:
    """Return a state that reuses the values of the previous one wherever they are equal."""
    known = {(q.topic, q.broker_name, q.queue_id, q.kind): q for q in before.queues}
    queues = tuple(_same(known, queue) for queue in state.queues)
    return dataclasses.replace(
        state,
        group=before.group,
        queues=before.queues if queues == before.queues else queues,
        members=before.members if state.members == before.members else state.members,
        subscriptions=before.subscriptions
        if state.subscriptions == before.subscriptions
        else state.subscriptions,
    )


def _same(
    known: Mapping[tuple[str, str, int, QueueKind], QueueState], queue: QueueState
) -> QueueState:
    before = known.get((queue.topic, queue.broker_name, queue.queue_id, queue.kind))
    return before if before is not None and before == queue else queue
