"""The verdict on a group and the sentence that explains it, from a window of its states.

Pure: states in, a verdict out.

Law: the behaviour of healthy groups (commit every few seconds, hand queues over, restart one by
one, work off a burst, run now and then) is never called a fault. Where the window cannot tell a
fault from such behaviour, the verdict is UNKNOWN and says what would decide it. Thresholds are not
settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from rocketstream.admin.core import sentences
from rocketstream.admin.core.windows import (
    Failures,
    Rewind,
    Track,
    cadence_ms,
    failures_of,
    group_stands_since_ms,
    queue_cadence_ms,
    rates_of,
    relevant,
    rewinds_of,
    tracks_of,
    waiting_after_commits,
)
from rocketstream.admin.state import (
    URGENCY,
    Cause,
    CauseKind,
    GroupState,
    GroupVerdict,
    PinnedMessage,
    QueueKind,
    Verdict,
)

WINDOW_MS = 20 * 60_000
"""A window this long shows everything; states older than this change no verdict."""
STEADY_MS = 60_000
"""Messages younger than this are still on their way: commits are late by up to 10 s, filtered ones
by 20 s, and a queue that changes hands waits for the next rebalance, every 20 s.
"""
SHORT_STEADY_MS = 30_000
"""The same bound for a shorter window, which cannot show that the offsets move."""
STALL_MS = 120_000
"""A group stands that finished nothing for this long, with members and many messages waiting.
"""
HANDFUL_PER_MEMBER = 20
"""This many messages may all be with the listeners of one member (20 threads by default)."""
HELD_PER_QUEUE = 1_000
"""A member holds this many messages of a queue before it pulls no more of it, by default."""
CONSUME_TIMEOUT_MS = 15 * 60_000
"""RocketMQ itself gives a listener this long for one message."""
STOP_MS = 180_000
"""A group without members for this long is not restarting."""
DAILY_MS = 26 * 3_600_000
"""The interval of a job that runs once a day, and may be late."""
PATIENCE = 2.5
"""The longest pause seen between commits may be exceeded by this factor."""
TREND_MS = 240_000
"""Growth for less than this may be a burst; no gain for less than this may be a pause."""
FAILING_MS = (60_000, 300_000)
"""Failures are counted over these spans: one that tells soon, one that is long enough for a share
of few messages, and is soon over.
"""
LETTERS_MIN = 3
RETRIES_MIN = 10
"""Fewer dead letters, or tries that failed, are single messages; more fail the group, where they
are a twentieth, or half, of what is consumed.
"""
STALLING = frozenset(
    {
        CauseKind.STARVED_POOL,
        CauseKind.DEAD_LOCK_OWNER,
        CauseKind.UNOWNED_QUEUE,
        CauseKind.PAUSED,
    }
)
"""Causes that keep messages from being finished at all."""
SKIPPING = frozenset({CauseKind.SUBSCRIPTION_MISMATCH, CauseKind.FILTERED_TO_NOTHING})
"""Causes that have messages passed which somebody wants."""
MARGIN = 1.05
SHORT_MARGIN = 1.3
"""The factor by which one rate must exceed the other; more in a short window, which blurs both."""
MOVES_MIN = 4
WORSE_MIN = 10
"""Where fewer messages more arrive than are consumed, chance or one long call explains them."""


@dataclass(frozen=True, slots=True)
class _View:
    """The window as the rules below see it."""

    window: Sequence[GroupState]
    tracks: Sequence[Track]
    before: GroupVerdict | None

    @property
    def now(self) -> GroupState:
        return self.window[-1]

    @property
    def waiting(self) -> int:
        return sum(track.last.waiting for track in self.tracks if track.is_waiting)

    @property
    def behind(self) -> list[Track]:
        return [track for track in self.tracks if track.is_waiting]

    @property
    def unknown(self) -> list[Track]:
        return [track for track in self.tracks if not track.known]

    @property
    def span_ms(self) -> int:
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
        ages = [track.queue.time_lag_ms(self.now.taken_ms) for track in self.behind]
        return max((age for age in ages if age is not None), default=0)

    @property
    def age_is_known(self) -> bool:
        return self.span_ms >= STEADY_MS or all(
            track.queue.next_stored_ms is not None for track in self.behind
        )

    @property
    def oldest(self) -> Track:
        return max(self.behind, key=lambda track: track.age_ms())


def judge(
    window: Sequence[GroupState],
    pinned: Sequence[PinnedMessage] = (),
    causes: Sequence[Cause] = (),
    *,
    before: GroupVerdict | None = None,
) -> GroupVerdict:
    """Judge how a group does.

    Args:
        window: its states, in any order. The more of the last 20 minutes they cover, the more the
            verdict can say; one state shows only whether the group is behind, not whether it
            catches up.
        pinned: messages the last look into its members found to be pinned; outdated findings are
            ignored.
        causes: the causes that look found.
        before: the previous verdict: a fault that began before the window keeps its beginning.
    """
    states = sorted(window, key=lambda state: state.taken_ms)
    if not states:
        return GroupVerdict("", Verdict.UNKNOWN, "Nothing was asked about the group yet.")
    since_ms = states[-1].taken_ms - WINDOW_MS
    kept = [s for s in states if s.group == states[-1].group and s.taken_ms >= since_ms]
    verdict = _with_causes(_judged(kept, pinned, before), causes)
    verdict = _went_on(_with_failures(verdict, kept, causes, before), before)
    # A group that fails every message has no lag: its sentence must not sound as if all were well.
    more = sentences.tried_again(kept[-1])
    if verdict.verdict is not Verdict.FAILING:
        seen = failures_of(kept)
        more += sentences.dead_letters(kept[-1], seen.given_up, seen.over_ms)
    return replace(verdict, sentence=verdict.sentence + more) if more else verdict


def _with_causes(verdict: GroupVerdict, causes: Sequence[Cause]) -> GroupVerdict:
    """Return a verdict that was too early to give, as decided by the causes found.

    Members report how long they have been idle, which two states do not show.
    """
    if verdict.verdict not in {Verdict.UNKNOWN, Verdict.OK}:
        return verdict
    stalling = next((c for c in causes if c.kind in STALLING and not c.is_latent), None)
    if stalling is None:
        # Nothing is held up yet: this is no fault, and still the first thing to know.
        latent = "".join(f" {cause.sentence}" for cause in causes if cause.is_latent)
        return replace(verdict, sentence=verdict.sentence + latent)
    return replace(verdict, verdict=Verdict.STALLED, sentence=f"Stands: {stalling.sentence}")


def _with_failures(
    verdict: GroupVerdict,
    window: Sequence[GroupState],
    causes: Sequence[Cause],
    before: GroupVerdict | None,
) -> GroupVerdict:
    """Return LOSING or FAILING where messages are skipped or fail, whatever the lag."""
    if URGENCY.index(verdict.verdict) < URGENCY.index(Verdict.LOSING):
        return verdict
    losing = next((cause for cause in causes if cause.kind in SKIPPING), None)
    if losing is not None:
        text = f"Loses messages: {losing.sentence}"
        return replace(verdict, verdict=Verdict.LOSING, sentence=text, since_ms=None)
    lately, seen = (failures_of(window, span_ms) for span_ms in FAILING_MS)
    if seen.expired and window[-1].members:
        text = f"{sentences.losing(seen.expired, seen.over_ms)} {verdict.sentence}"
        return replace(verdict, verdict=Verdict.LOSING, sentence=text, since_ms=None)
    failed_before = before is not None and before.verdict is Verdict.FAILING
    if _fails(lately, still=False) or _fails(seen, still=failed_before):
        text = f"{sentences.failing(seen)} {verdict.sentence}"
        return replace(verdict, verdict=Verdict.FAILING, sentence=text, since_ms=None)
    return verdict


def _fails(seen: Failures, *, still: bool) -> bool:
    """Whether so many of the messages fail that somebody must look; ``still`` asks for less."""
    if still:
        return seen.given_up > 0 or seen.retried * 4 >= max(seen.finished, 1)
    letters = seen.given_up >= LETTERS_MIN and seen.given_up * 20 >= seen.finished
    return letters or (seen.retried >= RETRIES_MIN and seen.retried * 2 >= seen.finished)


def _judged(
    kept: Sequence[GroupState], pinned: Sequence[PinnedMessage], before: GroupVerdict | None
) -> GroupVerdict:
    if not pinned and (fine := _plainly_fine(kept)) is not None:
        return _went_on(fine, before)
    view = _View(kept, tracks_of(kept), before)
    verdict = _decide(view, pinned)
    rates = rates_of(view.tracks)
    if rates is not None:
        verdict = replace(verdict, consume_rate=rates[0], arrival_rate=rates[1])
    return _went_on(verdict, before)


def _plainly_fine(window: Sequence[GroupState]) -> GroupVerdict | None:
    """Return OK where a part of the window shows it, as for most groups most of the time.

    This saves examining the whole window, and agrees with the rules below.
    """
    now = window[-1]
    if now.message_model == "BROADCASTING":
        return None
    tracks = tracks_of([now])
    if not tracks or not all(track.known for track in tracks):
        return None
    if any(track.is_waiting for track in tracks):
        recent = _recent_if_steady(window)
        if recent is None:
            return None
        tracks = recent
    rates = _rates_over(window) or rates_of(tracks)
    waiting = sum(track.last.waiting for track in tracks if track.is_waiting)
    age_ms = max(track.age_ms() for track in tracks)
    text = sentences.fine(now, waiting, age_ms, rates)
    consumed, arrived = rates or (None, None)
    return GroupVerdict(now.group, Verdict.OK, text, consume_rate=consumed, arrival_rate=arrived)


def _rates_over(window: Sequence[GroupState]) -> tuple[float, float] | None:
    """Return the rates of the whole window, from its two ends if both know all queues."""
    ends = tracks_of([window[0], window[-1]])
    if all(len(track.points) == 2 for track in ends):
        return rates_of(ends)
    # A group that first committed within the window has queues that its beginning does not know.
    return rates_of(tracks_of(window))


def _recent_if_steady(window: Sequence[GroupState]) -> list[Track] | None:
    """Return the last minutes if members in them consumed everything older than a minute."""
    now = window[-1]
    since_ms = now.taken_ms - 2 * STEADY_MS
    recent = tracks_of([state for state in window if state.taken_ms >= since_ms])
    if not now.members:
        return None
    for track in recent:
        began_ms = track.points[0].taken_ms if track.points else now.taken_ms
        if (
            not track.known
            or (track.is_waiting and now.taken_ms - began_ms < STEADY_MS)
            or track.age_ms() >= STEADY_MS
            or any(newer.committed < older.committed for older, newer in pairwise(track.points))
        ):
            return None
    return recent


def _decide(view: _View, pinned: Sequence[PinnedMessage]) -> GroupVerdict:
    now = view.now
    if now.message_model == "BROADCASTING":
        return _unknown(view, sentences.broadcasting(now))
    if not view.tracks:
        return _unknown(view, sentences.no_queues(now))
    if not any(track.known for track in view.tracks):
        last = next((s for s in reversed(view.window) if s.waiting is not None), None)
        return _unknown(view, sentences.nothing_known(now, view.unknown, last))
    held = _still_pinned(view, pinned)
    if held:
        return _pinned(view, held)
    for rule in (_standing, _rewound, _one_stands, _trend):
        found = rule(view)
        if found is not None:
            return found
    if view.unknown:
        return _unknown(view, sentences.partly_known(now, view.tracks, view.unknown))
    rates = rates_of(view.tracks)
    return GroupVerdict(
        now.group, Verdict.OK, sentences.fine(now, view.waiting, view.age_ms, rates)
    )


# --- pinned ---------------------------------------------------------------------------------------


def _still_pinned(view: _View, pinned: Sequence[PinnedMessage]) -> list[PinnedMessage]:
    """Return the findings whose queue still stands at that message."""
    at = {(t.queue.topic, t.queue.broker_name, t.queue.queue_id): t for t in view.tracks if t.known}
    return [
        each
        for each in pinned
        if (track := at.get((each.topic, each.broker_name, each.queue_id))) is not None
        and track.last.waiting > 0
        and track.last.committed <= each.queue_offset
    ]


def _pinned(view: _View, held: Sequence[PinnedMessage]) -> GroupVerdict:
    worst = max(held, key=lambda each: each.held_ms)
    return GroupVerdict(
        view.now.group,
        Verdict.PINNED,
        sentences.pinned(worst, len(held)),
        since_ms=view.now.taken_ms - worst.held_ms,
        topic=worst.topic,
        broker_name=worst.broker_name,
        queue_id=worst.queue_id,
    )


# --- standing -------------------------------------------------------------------------------------


def _standing(view: _View) -> GroupVerdict | None:
    """No queue finishes anything: stopped without members, stalled with members."""
    since_ms = group_stands_since_ms(view.tracks)
    if since_ms is None:
        return None
    now = view.now
    stood_ms = now.taken_ms - since_ms
    if now.members is None:
        return _stands_members_unknown(view, since_ms, stood_ms)
    if now.members:
        # Where the figures of some queues are unknown, each queue is judged alone.
        return None if view.unknown else _stands_with_members(view, since_ms)
    return _stands_alone(view, since_ms, stood_ms)


def _stands_alone(view: _View, since_ms: int, stood_ms: int) -> GroupVerdict | None:
    now = view.now
    gone_ms = _nobody_since_ms(view.window)
    had_members = any(state.members for state in view.window) or bool(
        now.of_kind(QueueKind.RETRY)  # a broker creates it when the first member connects
    )
    cadence = cadence_ms(view.tracks)
    # Waits from before the window began are by the brokers' clock, and count only where they are
    # long.
    long_ms = max(stood_ms, view.stored_age_ms) if since_ms <= view.window[0].taken_ms else 0
    if _was(view, Verdict.STOPPED) and since_ms <= view.window[0].taken_ms:
        stopped = True
    elif had_members:
        away_ms = now.taken_ms - gone_ms
        enough = gone_ms <= view.window[0].taken_ms and long_ms >= STOP_MS
        # A program that comes and goes is given its time; how slow its listener was says nothing.
        usual_ms = PATIENCE * _longest_absence_ms(view.window)
        stopped = enough or (away_ms >= max(STOP_MS, usual_ms) and stood_ms >= STOP_MS)
    elif any(track.lingers() for track in view.tracks):
        stopped = stood_ms >= max(STOP_MS, PATIENCE * cadence)
    else:
        stopped = long_ms >= DAILY_MS
    if stopped:
        text = sentences.stopped(now, view.waiting, max(stood_ms, long_ms), had_members)
        return GroupVerdict(now.group, Verdict.STOPPED, text, since_ms=since_ms)
    if not had_members and view.age_is_known and view.age_ms < max(STEADY_MS, PATIENCE * cadence):
        return None
    age_ms = max(view.age_ms, view.stored_age_ms)
    return _unknown(view, sentences.nobody_yet(view.waiting, age_ms, had_members))


def _stands_members_unknown(view: _View, since_ms: int, stood_ms: int) -> GroupVerdict | None:
    cadence = cadence_ms(view.tracks)
    if cadence and stood_ms >= max(STALL_MS, PATIENCE * cadence):
        return _stalled(view, since_ms, None)
    if stood_ms < STEADY_MS:
        return None
    return _unknown(view, sentences.members_unknown(view.now, view.waiting, stood_ms))


def _stands_with_members(view: _View, since_ms: int) -> GroupVerdict | None:
    now = view.now
    assert now.members
    # A member that came or went makes all members wait: for queues, locks and first commits.
    since_ms = max(since_ms, _members_changed_ms(view.window))
    stood_ms = now.taken_ms - since_ms
    patience = max(float(STALL_MS), PATIENCE * cadence_ms(view.tracks))
    if view.waiting <= HANDFUL_PER_MEMBER * len(now.members):
        # Listeners may be working on all of them, and nothing shows how long that takes.
        aged = max(stood_ms, view.stored_age_ms) if stood_ms >= STALL_MS else stood_ms
        if aged >= max(CONSUME_TIMEOUT_MS, patience) or (
            _was(view, Verdict.STALLED) and since_ms <= view.window[0].taken_ms
        ):
            return _stalled(view, since_ms, None)
        if stood_ms >= STALL_MS:
            return _unknown(view, sentences.maybe_in_work(now, view.waiting, stood_ms))
        return None
    if stood_ms >= patience:
        return _stalled(view, since_ms, None)
    return None


def _one_stands(view: _View) -> GroupVerdict | None:
    """One queue stands still while others go on."""
    now = view.now
    if not now.members:
        return None
    patience = max(float(STALL_MS), PATIENCE * queue_cadence_ms(view.tracks))
    changed_ms = _members_changed_ms(view.window)
    worst: tuple[int, Track] | None = None
    for track in view.behind:
        since = track.stands_since_ms()
        assert since is not None
        stood_ms = now.taken_ms - max(since, changed_ms)
        few = track.last.waiting <= HANDFUL_PER_MEMBER
        usual_ms = max(patience, _queued_ms(view, track))
        enough = stood_ms >= (max(CONSUME_TIMEOUT_MS, usual_ms) if few else usual_ms)
        if enough and (worst is None or stood_ms > worst[0]):
            worst = (stood_ms, track)
    return None if worst is None else _stalled(view, now.taken_ms - worst[0], worst[1])


def _queued_ms(view: _View, own: Track) -> float:
    """Return how long a queue may wait behind the messages members hold of others, in ms.

    A member's threads take messages in the order they were pulled, of all queues.
    """
    rates = rates_of(view.tracks)
    if rates is None or not rates[0]:
        return 0.0
    others = (track.last.waiting for track in view.behind if track is not own)
    return SHORT_MARGIN * sum(min(each, HELD_PER_QUEUE) for each in others) * 1_000 / rates[0]


def _stalled(view: _View, since_ms: int, track: Track | None) -> GroupVerdict:
    now = view.now
    stood_ms = now.taken_ms - since_ms
    if track is None:
        text = sentences.stalled(now, view.waiting, stood_ms)
        track = view.behind[0] if len(view.behind) == 1 else None
    else:
        text = sentences.queue_stalled(now, track.queue, track.last.waiting, stood_ms)
    return _of_queue(GroupVerdict(now.group, Verdict.STALLED, text, since_ms=since_ms), track)


# --- set back, and trend --------------------------------------------------------------------------


def _rewound(view: _View) -> GroupVerdict | None:
    found: list[Rewind] = rewinds_of(view.tracks)
    if not found:
        return None
    left = sum(each.left for each in found)
    rates = rates_of([each.track for each in found], STEADY_MS)
    pace = rates[0] if rates else 0.0
    eta_ms = int(left * 1_000 / pace) if pace > 0 else None
    worst = max(found, key=lambda each: each.left)
    text = sentences.rewound(view.now, found, left, eta_ms)
    at_ms = min(each.at_ms for each in found)
    verdict = GroupVerdict(view.now.group, Verdict.REWOUND, text, since_ms=at_ms, eta_ms=eta_ms)
    return _of_queue(verdict, worst.track)


def _trend(view: _View) -> GroupVerdict | None:
    """Somebody consumes; the question is whether faster than messages arrive."""
    if not view.behind:
        return None
    cadence = cadence_ms(view.tracks)
    age_ms = view.age_ms
    if not view.age_is_known:
        return _unknown(view, sentences.trend_unknown(view.now, view.waiting, age_ms))
    steady_ms = STEADY_MS if view.span_ms >= STEADY_MS else SHORT_STEADY_MS
    changed_ms = _members_changed_ms(view.window)
    # A query that commits every few minutes shows a trend only over several commits.
    trend_ms = max(TREND_MS, 4 * cadence)
    worse_ms = _worse_for_ms(view, trend_ms, changed_ms) if age_ms >= steady_ms else 0
    # Where listeners may have all of them in hand, each queue stands as long as a call takes.
    in_hand = view.waiting <= HANDFUL_PER_MEMBER * max(len(view.now.members or ()), 1)
    usual_ms = queue_cadence_ms(view.tracks) if in_hand else cadence
    if not worse_ms and (
        age_ms < max(steady_ms, PATIENCE * usual_ms) or (in_hand and _keeps_pace(view, trend_ms))
    ):
        return None
    points = waiting_after_commits(view.tracks)
    if len(points) < MOVES_MIN and view.now.members and view.waiting <= HANDFUL_PER_MEMBER:
        return _unknown(view, sentences.maybe_in_work(view.now, view.waiting, age_ms))
    if len(points) < MOVES_MIN:
        return _unknown(view, sentences.trend_unknown(view.now, view.waiting, age_ms))
    gain = _gain(view, max(STEADY_MS, int(PATIENCE * cadence)))
    if gain is not None:
        return gain
    since_ms = view.now.taken_ms - trend_ms
    recent = [point for point in points if point[0] >= max(since_ms, changed_ms)]
    watched_ms = view.now.taken_ms - max(view.window[0].taken_ms, changed_ms)
    if watched_ms >= trend_ms and len(recent) >= MOVES_MIN:
        if worse_ms >= TREND_MS or _grows(recent):
            return _falling(view, recent[0][0], age_ms, growing=True)
        if recent[-1][1] >= recent[0][1] / MARGIN and age_ms >= TREND_MS:
            return _falling(view, recent[0][0], age_ms, growing=False)
    rates = rates_of(view.tracks)
    short = watched_ms < TREND_MS and not changed_ms
    if short and rates and age_ms >= TREND_MS and rates[1] > rates[0] * SHORT_MARGIN:
        return _falling(view, view.window[0].taken_ms, age_ms, growing=True)
    return _unknown(view, sentences.trend_unknown(view.now, view.waiting, age_ms))


def _worse_for_ms(view: _View, span_ms: int, changed_ms: int) -> int:
    """Return for how many ms of a span more arrived than was consumed, and messages grew older.

    0 where this does not hold in each third of it, or shows for less than a minute: a burst fills
    no such span. Store times of two moments are compared, so that differing clocks do not count.
    """
    since_ms = max(view.now.taken_ms - span_ms, changed_ms)
    recent = [state for state in view.window if state.taken_ms >= since_ms]
    took_ms = view.now.taken_ms - recent[0].taken_ms
    if took_ms < STEADY_MS:
        return 0
    more = 0.0
    marks = [recent[0].taken_ms + took_ms * third // 3 for third in range(4)]
    for began_ms, ended_ms in pairwise(marks):
        part = tracks_of([state for state in recent if began_ms <= state.taken_ms <= ended_ms])
        rates = rates_of(part)
        if rates is None or rates[1] <= rates[0] * MARGIN:
            return 0
        more += (rates[1] - rates[0]) * (ended_ms - began_ms) / 1_000
    if more < WORSE_MIN:
        return 0
    before_ms, now_ms = _stored_age_ms(recent[0]), _stored_age_ms(view.now)
    older = before_ms is not None and now_ms is not None and now_ms > before_ms
    return took_ms if older else 0


def _keeps_pace(view: _View, span_ms: int) -> bool:
    """Whether over a span as much was consumed as arrived, and the oldest message did not age."""
    then = next(s for s in view.window if s.taken_ms >= view.now.taken_ms - span_ms)
    took_ms = view.now.taken_ms - then.taken_ms
    rates = rates_of(view.tracks, took_ms)
    before_ms, now_ms = _stored_age_ms(then), _stored_age_ms(view.now)
    if took_ms < TREND_MS or rates is None or before_ms is None or now_ms is None:
        return False
    # A message that is never finished grows older by the whole span.
    return rates[0] * SHORT_MARGIN >= rates[1] and now_ms - before_ms < took_ms / 3


def _stored_age_ms(state: GroupState) -> int | None:
    """Return how long the oldest message has been stored; None where a queue does not tell."""
    ages = [
        queue.time_lag_ms(state.taken_ms)
        for queue in state.queues
        if relevant(state, queue) and (queue.waiting or 0) > 0
    ]
    told = [age for age in ages if age is not None]
    return max(told, default=0) if len(told) == len(ages) else None


def _gain(view: _View, span_ms: int) -> GroupVerdict | None:
    """Return CATCHING UP if recently more was consumed than arrived."""
    rates = rates_of(view.tracks, span_ms)
    if rates is None:
        return None
    consumed, arrived = rates
    margin = MARGIN if view.span_ms >= span_ms else SHORT_MARGIN
    if consumed <= arrived * margin:
        return None
    eta_ms = int(view.waiting * 1_000 / (consumed - arrived))
    text = sentences.catching_up(view.now, view.waiting, view.age_ms, rates, eta_ms)
    verdict = GroupVerdict(view.now.group, Verdict.CATCHING_UP, text, eta_ms=eta_ms)
    return _of_queue(replace(verdict, since_ms=_peak_ms(view)), view.oldest)


def _falling(view: _View, since_ms: int, age_ms: int, *, growing: bool) -> GroupVerdict:
    rates = rates_of(view.tracks, view.now.taken_ms - since_ms)
    text = sentences.falling(view.now, view.waiting, age_ms, rates, growing=growing)
    verdict = GroupVerdict(view.now.group, Verdict.FALLING_BEHIND, text, since_ms=since_ms)
    return _of_queue(verdict, view.oldest)


def _grows(points: Sequence[tuple[int, int]]) -> bool:
    """Return whether the messages waiting after commits grow steadily, not in a single burst."""
    began, ended = points[0][0], points[-1][0]
    marks = [began + (ended - began) * k / 3 for k in range(1, 4)]
    levels = [points[0][1]]
    for mark in marks:
        levels.append([number for at, number in points if at <= mark][-1])
    grown = levels[-1] - levels[0]
    return grown > levels[0] * (MARGIN - 1) and all(b - a > grown / 6 for a, b in pairwise(levels))


def _peak_ms(view: _View) -> int | None:
    points = waiting_after_commits(view.tracks)
    return max(points, key=lambda point: point[1])[0] if points else None


# --- parts ----------------------------------------------------------------------------------------


def _unknown(view: _View, text: str) -> GroupVerdict:
    return GroupVerdict(view.now.group, Verdict.UNKNOWN, text)


def _of_queue(verdict: GroupVerdict, track: Track | None) -> GroupVerdict:
    if track is None:
        return verdict
    queue = track.queue
    return replace(
        verdict, topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id
    )


def _was(view: _View, verdict: Verdict) -> bool:
    return view.before is not None and view.before.verdict is verdict


def _went_on(verdict: GroupVerdict, before: GroupVerdict | None) -> GroupVerdict:
    """Keep the time since when a verdict holds if the previous verdict was the same."""
    if before is None or before.verdict is not verdict.verdict or before.since_ms is None:
        return verdict
    if verdict.since_ms is None or verdict.since_ms <= before.since_ms:
        return verdict
    return replace(verdict, since_ms=before.since_ms)


def _nobody_since_ms(window: Sequence[GroupState]) -> int:
    """Return the first moment after which no state had a member."""
    since = window[-1].taken_ms
    for state in reversed(window):
        if state.members:
            break
        since = state.taken_ms
    return since


def _longest_absence_ms(window: Sequence[GroupState]) -> int:
    """Return the longest time nobody was connected before somebody was again, in ms."""
    longest = 0
    since: int | None = None
    for state in window:
        if state.members:
            longest = max(longest, 0 if since is None else state.taken_ms - since)
            since = None
        elif state.members is not None and since is None:
            since = state.taken_ms
    return longest


def _members_changed_ms(window: Sequence[GroupState]) -> int:
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
