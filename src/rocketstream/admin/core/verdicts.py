"""The verdict on a group and the sentence that explains it, from a window of its states.

Pure: states in, a verdict out.

Law: the behaviour of healthy groups (commit every few seconds, hand queues over, restart one by
one, work off a burst, run now and then) is never called a fault. Where the window cannot tell a
fault from such behaviour, the verdict is UNKNOWN and says what would decide it. Thresholds are not
settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from rocketstream.admin.core.trends import oldest_text, rewound, trend
from rocketstream.admin.core.windows import (
    CONSUME_TIMEOUT_MS,
    HANDFUL_PER_MEMBER,
    PATIENCE,
    SHORT_MARGIN,
    STEADY_MS,
    Failures,
    Track,
    View,
    cadence_ms,
    failures_of,
    group_stands_since_ms,
    members_changed_ms,
    queue_cadence_ms,
    queue_name,
    rates_of,
    tracks_of,
)
from rocketstream.admin.core.words import named, plural, rate, some, span, waits, with_key
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
from rocketstream.model import MessageQueue

WINDOW_MS = 20 * 60_000
"""A window this long shows everything; states older than this change no verdict."""
STALL_MS = 120_000
"""A group stands that finished nothing for this long, with members and many messages waiting.
"""
HELD_PER_QUEUE = 1_000
"""A member holds this many messages of a queue before it pulls no more of it, by default."""
STOP_MS = 180_000
"""A group without members for this long is not restarting."""
DAILY_MS = 26 * 3_600_000
"""The interval of a job that runs once a day, and may be late."""
LONG_AGO_MS = 2 * 86_400_000
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
    now = states[-1]
    since_ms = now.taken_ms - WINDOW_MS
    kept = [s for s in states if s.group == now.group and s.taken_ms >= since_ms]
    verdict = _with_causes(_went_on(_by_offsets(kept, pinned, before), before), causes)
    verdict = _went_on(_with_failures(verdict, kept, causes, before), before)
    # A group that fails every message has no lag: its sentence must not sound as if all were well.
    more = ""
    if again := (now.retrying or 0) + (now.delayed or 0):
        more = f" {plural(again, 'message')} failed and will be tried again."
    if verdict.verdict is not Verdict.FAILING:
        seen, letters = failures_of(kept), now.dead_letters or 0
        if seen.given_up:
            more += f" {_given_up(seen.given_up)} in the last {span(seen.over_ms)}."
        elif letters:
            more += f" {plural(letters, 'dead letter')} {'is' if letters == 1 else 'are'} kept."
    return replace(verdict, sentence=verdict.sentence + more) if more else verdict


def _went_on(verdict: GroupVerdict, before: GroupVerdict | None) -> GroupVerdict:
    """Keep the time since when a verdict holds if the previous verdict was the same."""
    if before is None or before.verdict is not verdict.verdict or before.since_ms is None:
        return verdict
    if verdict.since_ms is None or verdict.since_ms <= before.since_ms:
        return verdict
    return replace(verdict, since_ms=before.since_ms)


# --- what a look found, and what fails ------------------------------------------------------------


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
    lately, seen = (failures_of(window, span_ms) for span_ms in FAILING_MS)
    losing = next((cause for cause in causes if cause.kind in SKIPPING), None)
    failed_before = before is not None and before.verdict is Verdict.FAILING
    if losing is not None:
        kind, text = Verdict.LOSING, f"Loses messages: {losing.sentence}"
    elif seen.expired and window[-1].members:
        kind = Verdict.LOSING
        lost = f"{plural(seen.expired, 'message')} {'was' if seen.expired == 1 else 'were'} deleted"
        text = f"Loses messages: {lost} in the last {span(seen.over_ms)} before the group consumed "
        text += f"them. {verdict.sentence}"
    elif _fails(lately, still=False) or _fails(seen, still=failed_before):
        told = [_given_up(seen.given_up)] if seen.given_up else []
        if seen.retried:
            told.append(f"{plural(seen.retried, 'message')} came for another try")
        done = f"{plural(seen.finished, 'message')} {'was' if seen.finished == 1 else 'were'}"
        kind, text = Verdict.FAILING, f"Fails: {' and '.join(told)} in the last "
        text += f"{span(seen.over_ms)}, while {done} consumed. {verdict.sentence}"
    else:
        return verdict
    return replace(verdict, verdict=kind, sentence=text, since_ms=None)


def _fails(seen: Failures, *, still: bool) -> bool:
    """Whether so many of the messages fail that somebody must look; ``still`` asks for less."""
    if still:
        return seen.given_up > 0 or seen.retried * 4 >= max(seen.finished, 1)
    letters = seen.given_up >= LETTERS_MIN and seen.given_up * 20 >= seen.finished
    return letters or (seen.retried >= RETRIES_MIN and seen.retried * 2 >= seen.finished)


def _given_up(number: int) -> str:
    return (
        f"{plural(number, 'message')} became {'a dead letter' if number == 1 else 'dead letters'}"
    )


# --- by the offsets -------------------------------------------------------------------------------


def _by_offsets(
    kept: Sequence[GroupState], pinned: Sequence[PinnedMessage], before: GroupVerdict | None
) -> GroupVerdict:
    if not pinned and (fine := _plainly_fine(kept)) is not None:
        return fine
    view = View(kept, tracks_of(kept), before)
    verdict = _decide(view, pinned)
    rates = rates_of(view.tracks)
    if rates is None:
        return verdict
    return replace(verdict, consume_rate=rates[0], arrival_rate=rates[1])


def _plainly_fine(window: Sequence[GroupState]) -> GroupVerdict | None:
    """Return OK where a part of the window shows it, as for most groups most of the time.

    This saves examining the whole window, and agrees with the rules below.
    """
    now = window[-1]
    tracks = tracks_of([now])
    if now.message_model == "BROADCASTING" or not tracks or not all(t.known for t in tracks):
        return None
    if any(track.is_waiting for track in tracks):
        recent = _recent_if_steady(window)
        if recent is None:
            return None
        tracks = recent
    ends = tracks_of([window[0], now])
    if not all(len(track.points) == 2 for track in ends):
        # A group that first committed within the window has queues its beginning does not know.
        ends = tracks_of(window)
    rates = rates_of(ends) or rates_of(tracks)
    consumed, arrived = rates or (None, None)
    text = _fine(View(window, tracks, None), rates)
    return GroupVerdict(now.group, Verdict.OK, text, consume_rate=consumed, arrival_rate=arrived)


def _recent_if_steady(window: Sequence[GroupState]) -> list[Track] | None:
    """Return the last minutes if members in them consumed everything older than a minute."""
    now = window[-1]
    if not now.members:
        return None
    since_ms = now.taken_ms - 2 * STEADY_MS
    recent = tracks_of([state for state in window if state.taken_ms >= since_ms])
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


def _fine(view: View, rates: tuple[float, float] | None) -> str:
    pace = ""
    if rates is not None and max(rates) > 0:
        pace = f" {rate(rates[1])} arrive, {rate(rates[0])} are consumed."
    if not view.waiting:
        alone = " Nobody is connected now." if view.now.members == () else ""
        return f"Caught up: no message waits.{pace}{alone}"
    aged = oldest_text(max(track.age_ms() for track in view.tracks))
    return f"Keeps up: {plural(view.waiting, 'message')} on the way{aged}.{pace}"


def _decide(view: View, pinned: Sequence[PinnedMessage]) -> GroupVerdict:
    now = view.now
    if now.message_model == "BROADCASTING":
        number = plural(len(now.members or ()), "member")
        return view.unknown_for(
            f"A broadcasting group: each of its {number} keeps its own progress; "
            "`rocketstream group running-info` asks them."
        )
    if not view.tracks:
        who = _connected(now) if now.members else "nobody is connected"
        return view.unknown_for(
            f"Nothing could be asked: {some(now.errors)}."
            if now.errors
            else f"The group has no progress in any topic it subscribes, and {who}."
        )
    if not any(track.known for track in view.tracks):
        return view.unknown_for(_nothing_known(view))
    held = _still_pinned(view, pinned)
    if held:
        return _pinned(view, held)
    for rule in (_standing, rewound, _one_stands, trend):
        found = rule(view)
        if found is not None:
            return found
    if view.unknown:
        return view.unknown_for(_partly_known(view))
    return view.verdict(Verdict.OK, _fine(view, rates_of(view.tracks)))


def _nothing_known(view: View) -> str:
    """Tell how it was when it was known last."""
    now = view.now
    reasons = sorted({track.unsure for track in view.unknown if track.unsure} | set(now.errors))
    text = f"How far the group is, is not known in any queue: {some(reasons)}."
    last = next((s for s in reversed(view.window) if s.waiting is not None), None)
    if last is None or last.waiting is None:
        return text
    known = f"{plural(last.waiting, 'message')} waited{oldest_text(last.time_lag_ms or 0)}"
    ago = span(now.taken_ms - last.taken_ms)
    return f"{text} {ago} ago {known if last.waiting else 'no message waited'}."


def _partly_known(view: View) -> str:
    """Tell which queues are fine, and why the lag of the others is unknown."""
    reasons = sorted({track.unsure for track in view.unknown if track.unsure})
    fine = len(view.tracks) - len(view.unknown)
    others = " and others" if len(view.unknown) > 1 else ""
    return (
        f"{fine:,} of {plural(len(view.tracks), 'queue')} {'is' if fine == 1 else 'are'} fine, how "
        f"the rest are is not known ({queue_name(view.unknown[0].queue)}{others}): {some(reasons)}."
    )


def _still_pinned(view: View, pinned: Sequence[PinnedMessage]) -> list[PinnedMessage]:
    """Return the findings whose queue still stands at that message."""
    at = {track.queue.key: track for track in view.tracks if track.known}
    return [
        each
        for each in pinned
        if (track := at.get(MessageQueue(each.topic, each.broker_name, each.queue_id))) is not None
        and track.last.waiting > 0
        and track.last.committed <= each.queue_offset
    ]


def _pinned(view: View, held: Sequence[PinnedMessage]) -> GroupVerdict:
    worst = max(held, key=lambda each: each.held_ms)
    what = f"message {worst.msg_id}" if named(worst.msg_id) else "the message"
    more = f" {plural(len(held) - 1, 'more message')} like it." if len(held) > 1 else ""
    behind = ""
    if worst.finished_behind:
        later = plural(worst.finished_behind, "later one")
        behind = f" while {'a later one was' if worst.finished_behind == 1 else f'{later} were'} "
        behind += "consumed"
    return GroupVerdict(
        view.now.group,
        Verdict.PINNED,
        f"Pinned: {what}{with_key(worst.keys)} at offset {worst.queue_offset:,} of "
        f"{queue_name(worst)} is in the hands of {named(worst.client_id, 'a member')} for "
        f"{span(worst.held_ms)}{behind}; the committed offset stands at it, and all "
        f"behind it comes again after a restart.{more}",
        since_ms=view.now.taken_ms - worst.held_ms,
        topic=worst.topic,
        broker_name=worst.broker_name,
        queue_id=worst.queue_id,
    )


# --- standing -------------------------------------------------------------------------------------


def _standing(view: View) -> GroupVerdict | None:
    """No queue finishes anything: stopped without members, stalled with members."""
    since_ms = group_stands_since_ms(view.tracks)
    if since_ms is None:
        return None
    now = view.now
    if now.members is None:
        return _stands_members_unknown(view, since_ms)
    if now.members:
        # Where the figures of some queues are unknown, each queue is judged alone.
        return None if view.unknown else _stands_with_members(view, since_ms)
    return _stands_alone(view, since_ms)


def _stands_alone(view: View, since_ms: int) -> GroupVerdict | None:
    now = view.now
    stood_ms = now.taken_ms - since_ms
    before_window = since_ms <= view.window[0].taken_ms
    had_members = any(state.members for state in view.window) or bool(
        now.of_kind(QueueKind.RETRY)  # a broker creates it when the first member connects
    )
    cadence = cadence_ms(view.tracks)
    # Waits from before the window began are by the brokers' clock, and count only where they are
    # long.
    long_ms = max(stood_ms, view.stored_age_ms) if before_window else 0
    if view.was(Verdict.STOPPED) and before_window:
        stopped = True
    elif had_members:
        gone_ms, longest_ms = _absences(view.window)
        enough = gone_ms <= view.window[0].taken_ms and long_ms >= STOP_MS
        # A program that comes and goes is given its time; how slow its listener was says nothing.
        away_ms = now.taken_ms - gone_ms
        stopped = enough or (away_ms >= max(STOP_MS, PATIENCE * longest_ms) and stood_ms >= STOP_MS)
    elif any(track.lingers() for track in view.tracks):
        stopped = stood_ms >= max(STOP_MS, PATIENCE * cadence)
    else:
        stopped = long_ms >= DAILY_MS
    if stopped:
        text = _stopped(view.waiting, max(stood_ms, long_ms), had_members)
        return view.verdict(Verdict.STOPPED, text, since_ms=since_ms)
    if not had_members and view.age_is_known and view.age_ms < max(STEADY_MS, PATIENCE * cadence):
        return None
    aged = oldest_text(max(view.age_ms, view.stored_age_ms))
    if had_members:
        return view.unknown_for(
            f"Nobody is connected now; {waits(view.waiting)}{aged}. A restart looks like this for "
            "up to 3 min."
        )
    return view.unknown_for(
        f"No member ever connected; {waits(view.waiting)}{aged}, and none was consumed while it "
        "was watched. A Spark query or a pull program commits without being a member: one that "
        "runs seldom looks like this between its runs."
    )


def _stopped(waiting: int, stood_ms: int, had_members: bool) -> str:
    long = f"nothing was consumed for {span(stood_ms)}, {waits(waiting)}."
    if stood_ms >= LONG_AGO_MS:
        return (
            f"Stopped long ago: nobody is connected, {long} If nobody needs the group any more, "
            "delete it."
        )
    if had_members:
        return f"Stopped: nobody is connected, {long}"
    return (
        "Stopped: no member ever connected, and its program (a Spark query?) was quicker before; "
        f"{long}"
    )


def _stands_members_unknown(view: View, since_ms: int) -> GroupVerdict | None:
    stood_ms = view.now.taken_ms - since_ms
    cadence = cadence_ms(view.tracks)
    if cadence and stood_ms >= max(STALL_MS, PATIENCE * cadence):
        return _stalled(view, since_ms)
    if stood_ms < STEADY_MS:
        return None
    why = f" ({some(view.now.errors)})" if view.now.errors else ""
    return view.unknown_for(
        f"Nothing was finished for {span(stood_ms)} and {waits(view.waiting)}; whether anybody is "
        f"connected could not be asked{why}."
    )


def _stands_with_members(view: View, since_ms: int) -> GroupVerdict | None:
    now = view.now
    assert now.members
    # A member that came or went makes all members wait: for queues, locks and first commits.
    since_ms = max(since_ms, members_changed_ms(view.window))
    stood_ms = now.taken_ms - since_ms
    patience = max(float(STALL_MS), PATIENCE * cadence_ms(view.tracks))
    if view.waiting > HANDFUL_PER_MEMBER * len(now.members):
        return _stalled(view, since_ms) if stood_ms >= patience else None
    # Listeners may be working on all of them, and nothing shows how long that takes.
    aged = max(stood_ms, view.stored_age_ms) if stood_ms >= STALL_MS else stood_ms
    still = view.was(Verdict.STALLED) and since_ms <= view.window[0].taken_ms
    if aged >= max(CONSUME_TIMEOUT_MS, patience) or still:
        return _stalled(view, since_ms)
    return view.maybe_in_work(stood_ms) if stood_ms >= STALL_MS else None


def _one_stands(view: View) -> GroupVerdict | None:
    """One queue stands still while others go on."""
    now = view.now
    if not now.members:
        return None
    patience = max(float(STALL_MS), PATIENCE * queue_cadence_ms(view.tracks))
    changed_ms = members_changed_ms(view.window)
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
    if worst is None:
        return None
    stood_ms, track = worst
    owner = track.queue.client_id
    who = f"its member {owner} is connected" if named(owner) else _connected(now)
    text = (
        f"One queue stands: nothing of {queue_name(track.queue)} was finished for {span(stood_ms)} "
        f"although {who} and other queues go on; {waits(track.last.waiting)} there."
    )
    return view.verdict(Verdict.STALLED, text, track, since_ms=now.taken_ms - stood_ms)


def _queued_ms(view: View, own: Track) -> float:
    """Return how long a queue may wait behind the messages members hold of others, in ms.

    A member's threads take messages in the order they were pulled, of all queues.
    """
    rates = rates_of(view.tracks)
    if rates is None or not rates[0]:
        return 0.0
    others = (track.last.waiting for track in view.behind if track is not own)
    return SHORT_MARGIN * sum(min(each, HELD_PER_QUEUE) for each in others) * 1_000 / rates[0]


def _stalled(view: View, since_ms: int) -> GroupVerdict:
    text = (
        f"Stands: no message was finished for {span(view.now.taken_ms - since_ms)} although "
        f"{_connected(view.now)}; {waits(view.waiting)}."
    )
    track = view.behind[0] if len(view.behind) == 1 else None
    return view.verdict(Verdict.STALLED, text, track, since_ms=since_ms)


def _absences(window: Sequence[GroupState]) -> tuple[int, int]:
    """Return since when no state had a member, and the longest absence before, in ms."""
    gone_ms, longest = window[-1].taken_ms, 0
    since: int | None = None
    for state in window:
        if state.members:
            longest = max(longest, 0 if since is None else state.taken_ms - since)
            since = None
        elif state.members is not None and since is None:
            since = state.taken_ms
    for state in reversed(window):
        if state.members:
            break
        gone_ms = state.taken_ms
    return gone_ms, longest


def _connected(now: GroupState) -> str:
    if now.members is None:
        return "members may be connected"
    number = len(now.members)
    return f"{plural(number, 'member')} {'is' if number == 1 else 'are'} connected"
