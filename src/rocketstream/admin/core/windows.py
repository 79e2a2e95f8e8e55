"""The facts about each queue in a window of states: how long it stands, how old messages are.

Pure: arithmetic over ``GroupState`` values; ``View`` is what the rules of verdicts ask. Spans are
measured by one clock, that of the asking process, so that differing clocks change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from rocketstream.admin.core.words import plural, span
from rocketstream.admin.state import (
    GroupState,
    GroupVerdict,
    PinnedMessage,
    QueueKind,
    QueueState,
    Verdict,
)
from rocketstream.model import MessageQueue

STEADY_MS = 60_000
"""Messages younger than this are still on their way: commits are late by up to 10 s, filtered ones
by 20 s, and a queue that changes hands waits for the next rebalance, every 20 s.
"""
HANDFUL_PER_MEMBER = 20
"""This many messages may all be with the listeners of one member (20 threads by default)."""
CONSUME_TIMEOUT_MS = 15 * 60_000
"""RocketMQ itself gives a listener this long for one message."""
PATIENCE = 2.5
"""The longest pause seen between commits may be exceeded by this factor."""
SHORT_MARGIN = 1.3
"""The factor by which one rate must exceed another in a short window, which blurs both."""
REDELIVERY_MS = 90_000
"""An offset that goes back by the messages consumed in this span is redelivery: a queue that
changed hands continues at the offset stored last (5 s old), and a broker that was killed knows
offsets some 10 s old.
"""
RATE_MIN_MS = 10_000
"""Offsets are committed every 5 s: over a shorter span than this there is no rate."""
APART_MS = 15_000
"""The usual time between two states, and a little more."""
LINGERING_MOVES = 3
LINGERING_MS = 60_000
MATCH_ALL = frozenset({"", "*"})


class Point(NamedTuple):
    """One queue at one moment, with all figures known."""

    taken_ms: int
    committed: int
    end: int
    waiting: int
    consumed_ms: int | None


@dataclass(frozen=True, slots=True)
class Track:
    """One queue over a window.

    Attributes:
        queue: its newest state.
        points: oldest first: only moments with all figures known, and only since the queue was
            made, or made again; the last is of the newest state.
        unsure: why the number of waiting messages is unknown, although the broker answered
            everything.
    """

    queue: QueueState
    points: tuple[Point, ...]
    unsure: str | None = None

    @property
    def known(self) -> bool:
        """Whether the newest state has the number of waiting messages."""
        return self.unsure is None and bool(self.points)

    @property
    def last(self) -> Point:
        """The newest point."""
        return self.points[-1]

    @property
    def is_waiting(self) -> bool:
        """Whether messages wait now."""
        return self.known and self.last.waiting > 0

    def stands_since_ms(self) -> int | None:
        """Return since when messages wait and none was finished; None when none waits.

        This is the first moment it was seen; the queue may have stood still for longer.
        """
        if not self.is_waiting:
            return None
        since = self.last.taken_ms
        for point in reversed(self.points):
            if point.committed != self.last.committed or point.waiting <= 0:
                break
            since = point.taken_ms
        return since

    def moved_ms(self) -> int | None:
        """Return when its committed offset was last seen to move; None if it never was."""
        for older, newer in _backwards(self.points):
            if newer.committed > older.committed:
                return newer.taken_ms
        return None

    def age_ms(self) -> int:
        """Return how many ms at least the next message has waited; 0 when none waits."""
        if not self.is_waiting:
            return 0
        now, at = self.last.taken_ms, max(self.last.committed, self.queue.min_offset or 0)
        seen = now
        for point in reversed(self.points):
            if point.end <= at:
                break
            seen = point.taken_ms
        return now - seen

    def waits_ms(self) -> list[int]:
        """Return how many ms it stood each time before it moved on, while messages waited.

        Counts only times whose beginning was seen: the first time may have begun before the window.
        """
        found: list[int] = []
        since: int | None = None
        seen = False
        for older, newer in pairwise(self.points):
            waits = older.waiting > 0
            since = (older.taken_ms if since is None else since) if waits else None
            seen = seen or not waits
            if newer.committed != older.committed:
                if seen and since is not None and newer.committed > older.committed:
                    found.append(_stood_ms(since, older.taken_ms, newer.taken_ms))
                since, seen = None, True
        return found

    def lingers(self) -> bool:
        """Whether it was repeatedly seen to wait for messages and to take them as they came.

        A job that takes everything there is and ends never takes messages that came after its first
        ones.
        """
        moves = [
            newer for older, newer in pairwise(self.points) if newer.committed > older.committed
        ]
        kept_up = [newer for older, newer in pairwise(moves) if newer.committed >= older.end > 0]
        return (
            len(kept_up) >= LINGERING_MOVES
            and kept_up[-1].taken_ms - kept_up[0].taken_ms >= LINGERING_MS
        )


@dataclass(frozen=True, slots=True)
class View:
    """A window as the rules of verdicts see it.

    Attributes:
        before: the previous verdict; None where there was none.
    """

    window: Sequence[GroupState]
    tracks: Sequence[Track]
    before: GroupVerdict | None

    @property
    def now(self) -> GroupState:
        """The newest state."""
        return self.window[-1]

    @property
    def behind(self) -> list[Track]:
        """The queues in which messages wait."""
        return [track for track in self.tracks if track.is_waiting]

    @property
    def waiting(self) -> int:
        """How many messages wait."""
        return sum(track.last.waiting for track in self.behind)

    @property
    def unknown(self) -> list[Track]:
        """The queues nothing is known of."""
        return [track for track in self.tracks if not track.known]

    @property
    def span_ms(self) -> int:
        """How long it was watched."""
        return self.now.taken_ms - self.window[0].taken_ms

    @property
    def age_ms(self) -> int:
        """How many ms the oldest message has waited: as watched, or as stored if that says more.

        Store times compare the brokers' clock with ours, so they count only until the queue has
        been watched long enough.
        """
        seen = max((track.age_ms() for track in self.tracks), default=0)
        return seen if self.span_ms >= STEADY_MS else max(seen, self.stored_age_ms)

    @property
    def stored_age_ms(self) -> int:
        """How many ms ago the oldest waiting message was stored, by the brokers' clock."""
        return stored_age_ms(self.now).oldest_ms

    @property
    def age_is_known(self) -> bool:
        """Whether ``age_ms`` covers all queues."""
        return self.span_ms >= STEADY_MS or all(
            track.queue.next_stored_ms is not None for track in self.behind
        )

    @property
    def oldest(self) -> Track:
        """The queue whose message has waited longest."""
        return max(self.behind, key=lambda track: track.age_ms())

    def was(self, verdict: Verdict) -> bool:
        """Return whether the previous verdict was this one."""
        return self.before is not None and self.before.verdict is verdict

    def verdict(
        self, verdict: Verdict, text: str, track: Track | None = None, since_ms: int | None = None
    ) -> GroupVerdict:
        """Return a verdict; ``track`` is the queue that decided it, if one did."""
        found = GroupVerdict(self.now.group, verdict, text, since_ms=since_ms)
        if track is None:
            return found
        topic, broker_name, queue_id = track.queue.key
        return replace(found, topic=topic, broker_name=broker_name, queue_id=queue_id)

    def unknown_for(self, text: str) -> GroupVerdict:
        """Return UNKNOWN with its reason."""
        return self.verdict(Verdict.UNKNOWN, text)

    def maybe_in_work(self, stood_ms: int) -> GroupVerdict:
        """Return UNKNOWN where so few messages wait that listeners may work on all of them."""
        members = len(self.now.members or ())
        return self.unknown_for(
            f"{plural(self.waiting, 'message')} not finished for {span(stood_ms)} although "
            f"{plural(members, 'member')} {'is' if members == 1 else 'are'} connected: they may be "
            "in work, RocketMQ gives a listener 15 min; `rocketstream group why` asks them."
        )


class StoredAge(NamedTuple):
    """How old waiting messages are by their store times.

    Attributes:
        oldest_ms: the oldest of them; 0 where none waits.
        all_told: whether each queue with waiting messages told.
    """

    oldest_ms: int
    all_told: bool


def stored_age_ms(state: GroupState) -> StoredAge:
    """Return how long the oldest waiting message has been stored."""
    ages = [
        queue.time_lag_ms(state.taken_ms)
        for queue in state.queues
        if relevant(state, queue) and (queue.waiting or 0) > 0
    ]
    told = [age for age in ages if age is not None]
    return StoredAge(max(told, default=0), len(told) == len(ages))


def members_changed_ms(window: Sequence[GroupState]) -> int:
    """Return when the members were seen to change last; 0 if never."""
    ids: frozenset[str] | None = None
    changed = 0
    for state in window:
        if state.members is None:
            continue
        found = frozenset(member.client_id for member in state.members)
        if ids is not None and found != ids:
            changed = state.taken_ms
        ids = found
    return changed


def queue_name(queue: QueueState | PinnedMessage) -> str:
    """Return how a sentence names a queue."""
    return f"queue {queue.queue_id} of {queue.topic} at {queue.broker_name}"


@dataclass(frozen=True, slots=True)
class Rewind:
    """A committed offset that went back further than redelivery does, and is not back yet.

    Attributes:
        at_ms: when it was seen to have gone back.
        before: the committed offset before it went back.
        after: the committed offset right after it went back.
        left: how many messages are consumed again until it is back.
    """

    track: Track
    at_ms: int
    before: int
    after: int
    left: int


_Place = tuple[str, str, int]
_place: Callable[[QueueState], _Place] = attrgetter("topic", "broker_name", "queue_id")
"""The names of a queue: windows of great groups hold it so often that ``key`` takes too long."""


def relevant(state: GroupState, queue: QueueState) -> bool:
    """Return whether a queue counts in the judgement of a group.

    A topic its members no longer subscribe keeps its committed offset for ever, and falls behind.
    """
    if queue.kind is QueueKind.DEAD_LETTER:
        return False
    if queue.kind is QueueKind.RETRY or not state.members or not state.subscriptions:
        return True
    return any(each.topic == queue.topic for each in state.subscriptions)


def is_filtered(state: GroupState, topic: str) -> bool:
    """Return whether the members want only some of a topic's messages."""
    return any(
        each.topic == topic and each.expression.strip() not in MATCH_ALL
        for each in state.subscriptions
    )


def tracks_of(window: Sequence[GroupState]) -> list[Track]:
    """Return a track of each queue that counts in the newest state; ``window`` is oldest first."""
    newest = window[-1]
    wanted = {_place(queue): queue for queue in newest.queues if relevant(newest, queue)}
    points: dict[_Place, list[Point]] = {key: [] for key in wanted}
    for state in window:
        taken_ms = state.taken_ms
        for queue in state.queues:
            found = points.get(_place(queue))
            point = None if found is None else _point(taken_ms, queue)
            if found is None or point is None:
                continue
            if found and (point.end < found[-1].end or found[-1].committed > found[-1].end):
                found.clear()  # fewer messages than before: another queue of the same name
            found.append(point)
    return [_track(newest, queue, points[key]) for key, queue in wanted.items()]


def stands_ms_of(window: Sequence[GroupState]) -> dict[MessageQueue, int]:
    """Return for how long each queue with waiting messages was seen standing still, in ms."""
    if not window:
        return {}
    now_ms = window[-1].taken_ms
    found: dict[MessageQueue, int] = {}
    for track in tracks_of(window):
        since = track.stands_since_ms()
        if since is not None:
            found[track.queue.key] = now_ms - since
    return found


def group_stands_since_ms(tracks: Sequence[Track]) -> int | None:
    """Return since when messages wait and none of any queue was finished; None when none wait."""
    standing = [since for track in tracks if (since := track.stands_since_ms()) is not None]
    if not standing:
        return None
    moves = [moved for track in tracks if (moved := track.moved_ms()) is not None]
    return max(min(standing), *moves) if moves else min(standing)


def queue_cadence_ms(tracks: Sequence[Track]) -> int:
    """Return the longest time any queue stood before it moved on, in ms; 0 when none did."""
    return max((wait for track in tracks for wait in track.waits_ms()), default=0)


def cadence_ms(tracks: Sequence[Track]) -> int:
    """Return the longest time in which messages waited and nothing was committed, in ms.

    Of any queue: where a few threads take the messages of many queues in turn, each queue stands
    for minutes and the group commits all the time. Counts only times whose both ends were seen.
    """
    moments: dict[int, tuple[bool, bool]] = {}
    for track in tracks:
        before: Point | None = None
        for point in track.points:
            moved = before is not None and point.committed > before.committed
            before = point
            any_moved, any_waits = moments.get(point.taken_ms, (False, False))
            moments[point.taken_ms] = (any_moved or moved, any_waits or point.waiting > 0)
    longest, seen = 0, False
    since: int | None = None
    before_ms = 0
    for at_ms, (moved, waits) in sorted(moments.items()):
        if moved and seen and since is not None:
            longest = max(longest, _stood_ms(since, before_ms, at_ms))
        before_ms = at_ms
        seen = seen or moved or not waits
        if not waits:
            since = None
        elif moved or since is None:
            since = at_ms
    return longest


def _stood_ms(since_ms: int, still_ms: int, moved_ms: int) -> int:
    """Return how long something stood that was seen to stand, and to have moved on.

    Older states of a window are a minute apart: it may have moved right after the former of them.
    """
    return still_ms - since_ms + min(moved_ms - still_ms, APART_MS)


def rewinds_of(tracks: Sequence[Track]) -> list[Rewind]:
    """Return the queues that were set back and are not back where they were."""
    return [rewind for track in tracks if (rewind := _rewind(track)) is not None]


def rates_of(tracks: Sequence[Track], span_ms: int | None = None) -> tuple[float, float] | None:
    """Return messages consumed and arrived a second; None where moments are too close to tell.

    Args:
        span_ms: only the last so many ms; None takes the whole window.
    """
    consumed = arrived = 0.0
    told = False
    for track in tracks:
        points = _since(track.points, span_ms)
        took_ms = points[-1].taken_ms - points[0].taken_ms if points else 0
        if took_ms < RATE_MIN_MS:
            continue
        told = True
        gained = sum(max(b.committed - a.committed, 0) for a, b in pairwise(points))
        consumed += gained * 1_000 / took_ms
        arrived += (points[-1].end - points[0].end) * 1_000 / took_ms
    return (consumed, arrived) if told else None


class Failures(NamedTuple):
    """The failures of a window, which no lag shows.

    Attributes:
        finished: messages of its topics whose offset was committed.
        retried: messages that came to its retry topic for another try.
        given_up: messages that became dead letters.
        expired: messages that were deleted before they were consumed.
        over_ms: how long it was watched.
    """

    finished: int = 0
    retried: int = 0
    given_up: int = 0
    expired: int = 0
    over_ms: int = 0


def failures_of(window: Sequence[GroupState], span_ms: int | None = None) -> Failures:
    """Return what failed over a window, or over its last ``span_ms``; oldest state first."""
    newest = window[-1]
    since_ms = window[0].taken_ms if span_ms is None else newest.taken_ms - span_ms
    oldest = next(state for state in window if state.taken_ms >= since_ms)
    first = _first_told([state for state in window if state.taken_ms >= oldest.taken_ms])
    # Of a queue nothing was committed of at first, only what came after counts.
    begun: dict[_Place, QueueState] = {}
    missing = {_place(each) for each in newest.queues if each.committed_offset is not None}
    for state in window:
        if not missing:
            break
        if state.taken_ms >= oldest.taken_ms:
            for queue in state.queues:
                if queue.committed_offset is not None and (place := _place(queue)) in missing:
                    begun[place] = queue
                    missing.discard(place)
    finished = retried = letters = expired = 0
    for queue in newest.queues:
        place = _place(queue)
        if queue.kind is QueueKind.TOPIC:
            old = begun.get(place)
            if old is not None and relevant(newest, queue):
                finished += _gain(old.committed_offset, queue.committed_offset)
                expired += _gain(old.expired, queue.expired)
            continue
        # The topic is made with the first message: before that its queues count as empty, but only
        # once the broker told of the group at all.
        told = first.get(queue.broker_name, {})
        more = _gain(told[place].max_offset if place in told else 0, queue.max_offset)
        if queue.kind is QueueKind.RETRY:
            retried += more
        else:
            letters += more
    return Failures(finished, retried, letters, expired, newest.taken_ms - oldest.taken_ms)


def _first_told(states: Sequence[GroupState]) -> dict[str, dict[_Place, QueueState]]:
    """Return the queues each broker told of first, by its name."""
    found: dict[str, dict[_Place, QueueState]] = {}
    missing = {queue.broker_name for queue in states[-1].queues}
    for state in states:
        if not missing:
            break
        here = {q.broker_name for q in state.queues if q.max_offset is not None} & missing
        for queue in state.queues:
            if queue.broker_name in here:
                found.setdefault(queue.broker_name, {})[_place(queue)] = queue
        missing -= here
    return found


def _gain(before: int | None, now: int | None) -> int:
    return 0 if before is None or now is None else max(now - before, 0)


def waiting_after_commits(tracks: Sequence[Track]) -> list[tuple[int, int]]:
    """Return when anything was finished and how many messages waited then, where all is known.

    Between commits the number of waiting messages grows in any case; these are the low points.
    """
    if not tracks or not all(track.known for track in tracks):
        return []
    moments: dict[int, list[Point]] = {}
    for track in tracks:
        for point in track.points:
            moments.setdefault(point.taken_ms, []).append(point)
    whole = [moments[at] for at in sorted(moments) if len(moments[at]) == len(tracks)]
    return [
        (newer[0].taken_ms, sum(max(point.waiting, 0) for point in newer))
        for older, newer in pairwise(whole)
        if any(b.committed > a.committed for a, b in zip(older, newer, strict=True))
    ]


def _point(taken_ms: int, queue: QueueState) -> Point | None:
    lag, end = queue.lag, queue.max_offset
    if end is None or lag is None:
        return None
    waiting = lag if queue.matching is None else queue.matching
    return Point(taken_ms, queue.committed_offset or 0, end, waiting, queue.last_consumed_ms)


def _track(newest: GroupState, queue: QueueState, points: list[Point]) -> Track:
    if not points or points[-1].taken_ms != newest.taken_ms:
        return Track(queue, (), queue.error or _why_unknown(queue))
    last = points[-1]
    unsure = None
    if last.end < last.committed:
        unsure = (
            f"the committed offset {last.committed:,} lies behind the end of the queue "
            f"({last.end:,}): was the topic made anew?"
        )
    elif (
        last.waiting > 0
        and queue.matching is None
        and newest.consume_type == "CONSUME_ACTIVELY"
        and is_filtered(newest, queue.topic)
    ):
        # A pull consumer's offset stays before messages its filter refuses (C-569).
        unsure = "how many of its messages the group's filter wants was not counted"
    elif not last.waiting and not queue.matching_is_exact and (queue.lag or 0) > 0:
        unsure = "how many of its messages the group's filter wants was only estimated"
    return Track(queue, tuple(points), unsure)


def _why_unknown(queue: QueueState) -> str:
    if queue.max_offset is None:
        return "no broker told where the queue ends"
    return "nothing was committed yet"


def _rewind(track: Track) -> Rewind | None:
    points = track.points
    for index in range(1, len(points)):
        before, after = points[index - 1], points[index]
        if after.committed >= before.committed or _is_redelivery(points[:index], after):
            continue
        left = before.committed - track.last.committed
        if track.known and left > 0:
            return Rewind(track, after.taken_ms, before.committed, after.committed, left)
    return None


def _is_redelivery(points: Sequence[Point], after: Point) -> bool:
    """Return whether a committed offset went back only to where it was a short time before."""
    before = points[-1]
    # While it stood still nothing was consumed that could be repeated.
    moves = [b.taken_ms for a, b in pairwise(points) if b.committed > a.committed]
    since = (moves[-1] if moves else after.taken_ms) - REDELIVERY_MS
    recent = [point for point in points if point.taken_ms >= since]
    if recent and after.committed >= min(point.committed for point in recent):
        return True
    if len(recent) < len(points):
        # It was watched for longer than that, and had been higher all the time.
        return after.committed >= points[-len(recent) - 1].committed
    if after.consumed_ms is not None and before.consumed_ms is not None:
        return 0 <= before.consumed_ms - after.consumed_ms <= REDELIVERY_MS
    took_ms = before.taken_ms - points[0].taken_ms
    gained = before.committed - points[0].committed
    pace = gained / took_ms if took_ms > 0 else 0.0
    return before.committed - after.committed <= pace * REDELIVERY_MS


def _since(points: Sequence[Point], span_ms: int | None) -> Sequence[Point]:
    if span_ms is None or not points:
        return points
    since = points[-1].taken_ms - span_ms
    return [point for point in points if point.taken_ms >= since]


def _backwards(points: Sequence[Point]) -> Iterator[tuple[Point, Point]]:
    for index in range(len(points) - 1, 0, -1):
        yield points[index - 1], points[index]
