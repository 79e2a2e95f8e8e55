"""The states of every group over the last minutes: in bounded memory, and as bytes for a restart;
and the pace they come in: when the next sweep begins, which groups are looked into.

Pure: old and new states in, the states to keep out; equal values are kept once. Of bytes, fields
this release does not know are left out; bytes that were not written here give None.

Law: nothing is taken over across a gap in which nobody watched: the state within it is unknown.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple

from rocketstream.admin.core.held import HELD_MS
from rocketstream.admin.core.windows import relevant
from rocketstream.admin.rows import MemberRow, SubscriptionRow
from rocketstream.admin.state import (
    BrokerState,
    ClusterState,
    GroupState,
    GroupVerdict,
    QueueKind,
    QueueState,
)
from rocketstream.watch.series import BREAK_MS

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

    def forget(self) -> None:
        """Forget all states: nobody watched since."""
        self._windows = {}

    def window(self, group: str) -> list[GroupState]:
        """Return the states of a group, oldest first; empty for an unknown group."""
        return list(self._windows.get(group, ()))

    def newest(self, group: str) -> GroupState | None:
        """Return the last state of a group; None for an unknown group."""
        window = self._windows.get(group)
        return window[-1] if window else None


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
    known = {queue.key: queue for queue in before.queues}
    queues = tuple(
        old if (old := known.get(queue.key)) is not None and old == queue else queue
        for queue in state.queues
    )
    return dataclasses.replace(
        state,
        group=before.group,
        queues=before.queues if queues == before.queues else queues,
        members=before.members if state.members == before.members else state.members,
        subscriptions=before.subscriptions
        if state.subscriptions == before.subscriptions
        else state.subscriptions,
    )


BYTES_MAX: Final = 64 << 20
"""Most bytes that are unpacked: a damaged file must not fill the memory."""
_QUEUE: Final = tuple(each.name for each in fields(QueueState))
_MEMBER: Final = tuple(each.name for each in fields(MemberRow))
_SUBSCRIPTION: Final = tuple(each.name for each in fields(SubscriptionRow))
_GROUP: Final = tuple(
    each.name
    for each in fields(GroupState)
    if each.name not in ("members", "subscriptions", "queues")
)


@dataclass(frozen=True, slots=True)
class Moment:
    """The groups of a cluster at one moment.

    Attributes:
        taken_ms: when the groups were in these states, ms since 1970.
        groups: the groups by name.
    """

    taken_ms: int
    groups: Mapping[str, GroupState]


def encoded(state: ClusterState) -> bytes:
    """Return the groups of a sweep as bytes."""
    value = {
        "takenMs": state.taken_ms,
        "fields": {"group": _GROUP, "queue": _QUEUE, "member": _MEMBER, "sub": _SUBSCRIPTION},
        "groups": [_group(each) for each in state.groups.values()],
    }
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return zlib.compress(text.encode("ascii"), 1)


def decoded(data: bytes) -> Moment | None:
    """Return what ``encoded`` was given; None for bytes that it did not make."""
    unpack = zlib.decompressobj()
    try:
        value = json.loads(unpack.decompress(data, BYTES_MAX))
        names = value["fields"]
        groups = [_read_group(each, names) for each in value["groups"]]
        return Moment(int(value["takenMs"]), {each.group: each for each in groups})
    except (zlib.error, ValueError, TypeError, KeyError, AttributeError):
        return None


def places(brokers: tuple[BrokerState, ...]) -> frozenset[str]:
    """Return the addresses of a cluster's brokers, which tell it from another cluster."""
    return frozenset(
        f"{broker.broker_name} {address}"
        for broker in brokers
        for address in broker.addresses.values()
    )


def _group(state: GroupState) -> list[Any]:
    own = [_plain(getattr(state, name)) for name in _GROUP]
    members = None if state.members is None else [_row(each, _MEMBER) for each in state.members]
    return [
        own,
        members,
        [_row(each, _SUBSCRIPTION) for each in state.subscriptions],
        [_row(each, _QUEUE) for each in state.queues],
    ]


def _row(value: object, names: tuple[str, ...]) -> list[Any]:
    return [getattr(value, name) for name in names]


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _read_group(value: list[Any], names: Mapping[str, list[str]]) -> GroupState:
    own, members, subscriptions, queues = value
    found = _known(own, names["group"], _GROUP)
    found["errors"] = tuple(found.get("errors", ()))
    return GroupState(
        **found,
        members=None
        if members is None
        else tuple(_read_member(each, names["member"]) for each in members),
        subscriptions=tuple(
            SubscriptionRow(**_known(each, names["sub"], _SUBSCRIPTION)) for each in subscriptions
        ),
        queues=tuple(_read_queue(each, names["queue"]) for each in queues),
    )


def _read_member(value: list[Any], names: list[str]) -> MemberRow:
    found = _known(value, names, _MEMBER)
    return MemberRow(**{**found, "twins": tuple(found.get("twins", ()))})


def _read_queue(value: list[Any], names: list[str]) -> QueueState:
    found = _known(value, names, _QUEUE)
    found["kind"] = QueueKind(found["kind"])
    if found.get("matching_range") is not None:
        low, high = found["matching_range"]
        found["matching_range"] = (low, high)
    return QueueState(**found)


def _known(value: list[Any], names: list[str], known: tuple[str, ...]) -> dict[str, Any]:
    return {name: each for name, each in zip(names, value, strict=True) if name in known}


@dataclass(frozen=True, slots=True)
class Past:
    """The state the previous collection left.

    Attributes:
        swept_ms: when its last answered sweep was made, ms since 1970.
        brokers: the brokers' addresses, as ``places`` returns them.
        verdicts: the last verdict of each group, with the time since when it held.
        moments: the states of the last minutes, oldest first; empty where they were not kept.
    """

    swept_ms: int
    brokers: frozenset[str] = frozenset()
    verdicts: Mapping[str, GroupVerdict] = field(default_factory=dict)
    moments: Sequence[Moment] = ()


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which nobody watched: before a collection, or while its process, or the machine,
    stood still. The verdicts hold since its end.

    Attributes:
        from_ms: when the last sweep before the gap was made, ms since 1970.
        until_ms: when the first sweep after the gap was made, ms since 1970.
        reason: why verdicts do not go on from what was seen before.
    """

    from_ms: int
    until_ms: int
    reason: str


def gap_before(past: Past, state: ClusterState, interval_s: float) -> Gap | None:
    """Return the gap between the past and a first sweep; None where the collection continues.

    Args:
        past: the state the previous collection left.
        state: the first sweep that was answered.
        interval_s: the time from one sweep to the next, in seconds.
    """
    if (gap := gap_between(past.swept_ms, state.taken_ms, interval_s)) is not None:
        return gap
    if state.taken_ms < past.swept_ms:
        reason = "the last sweep written down lies in the future: the clock was set back"
    elif past.brokers and past.brokers.isdisjoint(places(state.brokers)):
        reason = "the brokers are others: it is the history of another cluster, or all have moved"
    else:
        return None
    return Gap(past.swept_ms, state.taken_ms, reason)


def gap_between(from_ms: int, until_ms: int, interval_s: float) -> Gap | None:
    """Return the gap between one sweep and the next; None where they are near enough.

    Args:
        from_ms: when the former was made, ms since 1970.
        until_ms: when the latter was made.
        interval_s: the time from one sweep to the next, in seconds.
    """
    if until_ms - from_ms <= max(BREAK_MS, 3_000 * interval_s):
        return None
    reason = "that is too long: what was so before may have ended and begun again"
    return Gap(from_ms, until_ms, reason)


SHARE_MAX: Final = 0.25
"""The largest share of the time spent sweeping: at least 15 s of pause follow a sweep of 5 s."""
STRETCH_MAX: Final = 4
"""While some brokers fail, the interval grows to at most this many times its length."""
OUTAGE_INTERVAL_S: Final = 30.0
"""While nothing answers, the interval grows to this, or stays as it is if it is longer."""
BETWEEN_S: Final = 1.0
"""The least time between the beginnings of two sweeps, however often a refresh is asked for."""
STANDS_MS: Final = HELD_MS
"""A queue that stood still for less is not asked about: its member may simply be working on a
message, and a look that finds nothing delays the next one.
"""
AGAIN_MS: Final = 60_000
"""The least time between two looks of the collection's own into the same group: each look makes
members dump their threads.
"""
ROUND_MAX: Final = 40
ROUND_MS: Final = 2_000
"""After each sweep this many groups are looked into at most, or as many as are begun in this time.
"""


def pause_s(
    interval_s: float, took_s: float, *, failed_sweeps: int = 0, failing_sweeps: int = 0
) -> float:
    """Return how long to wait after a sweep until the next begins.

    Args:
        interval_s: the configured time from the beginning of one sweep to that of the next.
        took_s: how long the sweep took.
        failed_sweeps: how many sweeps in a row got no answer at all.
        failing_sweeps: how many sweeps in a row found some brokers that did not answer.
    """
    interval = interval_s
    if failed_sweeps:
        interval = min(interval_s * 2 ** min(failed_sweeps, 10), max(interval_s, OUTAGE_INTERVAL_S))
    elif failing_sweeps:
        interval = interval_s * min(2 ** min(failing_sweeps, 10), STRETCH_MAX)
    resting = took_s / SHARE_MAX - took_s
    return max(interval - took_s, resting, 0.0)


def early_pause_s(since_begin_s: float, took_s: float) -> float:
    """Return how long a requested sweep still has to wait, in seconds: 0 when it may begin now.

    Args:
        since_begin_s: how long ago the last sweep began.
        took_s: how long that sweep took.
    """
    return max(BETWEEN_S - since_begin_s, took_s * 2 - since_begin_s, 0.0)


class LookTimes:
    """When each group was looked into, and which are due; not thread safe."""

    def __init__(self) -> None:
        self._looked_ms: dict[str, int] = {}

    def looked(self, group: str, now_ms: int) -> None:
        """Note a look, whether it found anything or not."""
        self._looked_ms[group] = now_ms

    def due(self, windows: Mapping[str, Sequence[GroupState]], now_ms: int) -> list[str]:
        """Return the groups to look into now: those with a queue standing still before all others,
        then those whose last look is the oldest.

        Only groups with members are looked into by the collection, each once a minute at most.
        """
        self._looked_ms = {g: at for g, at in self._looked_ms.items() if g in windows}
        due = [
            (not has_standing(window), self._looked_ms.get(group, 0), group)
            for group, window in windows.items()
            if abs(now_ms - self._looked_ms.get(group, 0)) >= AGAIN_MS and has_run(window)
        ]
        return [group for _, _, group in sorted(due)[:ROUND_MAX]]


def has_run(window: Sequence[GroupState]) -> bool:
    """Return whether members have been there for half a minute, which a rebalance takes."""
    if not window or not window[-1].members:
        return False
    now_ms = window[-1].taken_ms
    return any(state.members and now_ms - state.taken_ms >= STANDS_MS for state in window)


def has_standing(window: Sequence[GroupState]) -> bool:
    """Return whether members are there, and a queue of theirs stood still with messages waiting."""
    if not window or not window[-1].members:
        return False
    now = window[-1]
    older = next((s for s in reversed(window) if now.taken_ms - s.taken_ms >= STANDS_MS), None)
    if older is None:
        return False
    before = {queue.key: queue.committed_offset for queue in older.queues}
    return any(
        (queue.waiting or 0) > 0
        and relevant(now, queue)
        and queue.key in before
        and before[queue.key] == queue.committed_offset
        for queue in now.queues
    )
