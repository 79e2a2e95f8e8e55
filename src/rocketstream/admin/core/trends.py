"""Whether a group that consumes catches up, falls behind, or was set back.

Pure: a window in, a verdict with its sentence out; None where there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from rocketstream.admin.core.windows import (
    HANDFUL_PER_MEMBER,
    PATIENCE,
    SHORT_MARGIN,
    STEADY_MS,
    View,
    cadence_ms,
    members_changed_ms,
    queue_cadence_ms,
    queue_name,
    rates_of,
    rewinds_of,
    stored_age_ms,
    tracks_of,
    waiting_after_commits,
)
from rocketstream.admin.core.words import plural, rate, some, span, waits
from rocketstream.admin.state import GroupState, GroupVerdict, Verdict

SHORT_STEADY_MS = 30_000
"""The bound of what is still on its way for a shorter window, which cannot show that offsets move.
"""
TREND_MS = 240_000
"""Growth for less than this may be a burst; no gain for less than this may be a pause."""
MARGIN = 1.05
"""The factor by which one rate must exceed the other; more in a short window, which blurs both."""
MOVES_MIN = 4
WORSE_MIN = 10
"""Where fewer messages more arrive than are consumed, chance or one long call explains them."""


def oldest_text(age_ms: int) -> str:
    """Return how a sentence tells the age of the oldest message; empty where it has none."""
    return f", the oldest for {span(age_ms)}" if age_ms else ""


def rewound(view: View) -> GroupVerdict | None:
    """Committed offsets were set back, and are not back where they were."""
    found = rewinds_of(view.tracks)
    if not found:
        return None
    left = sum(each.left for each in found)
    rates = rates_of([each.track for each in found], STEADY_MS)
    eta_ms = int(left * 1_000 / rates[0]) if rates and rates[0] > 0 else None
    worst = max(found, key=lambda each: each.left)
    at_ms = min(each.at_ms for each in found)
    topics = some(sorted({each.track.queue.topic for each in found}))
    where = queue_name(worst.track.queue)
    if len(found) > 1:
        where = f"{plural(len(found), 'queue')} of {topics}"
    soon = f", about {span(eta_ms)} at this pace" if eta_ms is not None else ""
    back = plural(sum(each.before - each.after for each in found), "message")
    text = (
        f"Set back by {back} in {where} {span(view.now.taken_ms - at_ms)} ago: they are consumed "
        f"again, {left:,} still to come{soon}."
    )
    verdict = view.verdict(Verdict.REWOUND, text, worst.track, since_ms=at_ms)
    return replace(verdict, eta_ms=eta_ms)


def trend(view: View) -> GroupVerdict | None:
    """Somebody consumes; the question is whether faster than messages arrive."""
    if not view.behind:
        return None
    if not view.age_is_known:
        return _too_early(view)
    now_ms, age_ms, cadence = view.now.taken_ms, view.age_ms, cadence_ms(view.tracks)
    steady_ms = STEADY_MS if view.span_ms >= STEADY_MS else SHORT_STEADY_MS
    changed_ms = members_changed_ms(view.window)
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
    if len(points) < MOVES_MIN:
        if view.now.members and view.waiting <= HANDFUL_PER_MEMBER:
            return view.maybe_in_work(age_ms)
        return _too_early(view)
    gain = _gain(view, max(STEADY_MS, int(PATIENCE * cadence)), points)
    if gain is not None:
        return gain
    recent = [point for point in points if point[0] >= max(now_ms - trend_ms, changed_ms)]
    watched_ms = now_ms - max(view.window[0].taken_ms, changed_ms)
    if watched_ms >= trend_ms and len(recent) >= MOVES_MIN:
        if worse_ms >= TREND_MS or _grows(recent):
            return _falling(view, recent[0][0], growing=True)
        if recent[-1][1] >= recent[0][1] / MARGIN and age_ms >= TREND_MS:
            return _falling(view, recent[0][0], growing=False)
    rates = rates_of(view.tracks)
    short = watched_ms < TREND_MS and not changed_ms
    if short and rates and age_ms >= TREND_MS and rates[1] > rates[0] * SHORT_MARGIN:
        return _falling(view, view.window[0].taken_ms, growing=True)
    return _too_early(view)


def _too_early(view: View) -> GroupVerdict:
    return view.unknown_for(
        f"{waits(view.waiting)}{oldest_text(_oldest_ms(view))}; whether it catches up shows when "
        "the group is watched for some minutes."
    )


def _oldest_ms(view: View) -> int:
    """Return how old the oldest waiting message is; store times know more than the window."""
    return max(view.age_ms, view.stored_age_ms)


def _gain(view: View, span_ms: int, points: Sequence[tuple[int, int]]) -> GroupVerdict | None:
    """Return CATCHING UP if recently more was consumed than arrived."""
    rates = rates_of(view.tracks, span_ms)
    if rates is None:
        return None
    consumed, arrived = rates
    if consumed <= arrived * (MARGIN if view.span_ms >= span_ms else SHORT_MARGIN):
        return None
    eta_ms = int(view.waiting * 1_000 / (consumed - arrived))
    text = (
        f"Catches up in about {span(eta_ms)}: {waits(view.waiting)}, the oldest for "
        f"{span(_oldest_ms(view))}; {rate(consumed)} are consumed, {rate(arrived)} arrive."
    )
    peak_ms = max(points, key=lambda point: point[1])[0]
    verdict = view.verdict(Verdict.CATCHING_UP, text, view.oldest, since_ms=peak_ms)
    return replace(verdict, eta_ms=eta_ms)


def _falling(view: View, since_ms: int, *, growing: bool) -> GroupVerdict:
    rates = rates_of(view.tracks, view.now.taken_ms - since_ms)
    only = "only " if growing else ""
    pace = f"{rate(rates[1])} arrive, {only}{rate(rates[0])} are consumed; " if rates else ""
    how = "Falls behind" if growing else "Stays behind: it keeps pace and gains nothing"
    text = f"{how}: {pace}{waits(view.waiting)}, the oldest for {span(_oldest_ms(view))}."
    return view.verdict(Verdict.FALLING_BEHIND, text, view.oldest, since_ms=since_ms)


def _worse_for_ms(view: View, span_ms: int, changed_ms: int) -> int:
    """Return for how many ms of a span more arrived than was consumed, and messages grew older.

    0 where this does not hold in each third of it, or shows for less than a minute: a burst fills
    no such span. Store times of two moments are compared, so that differing clocks do not count.
    """
    recent = _covering(view.window, max(view.now.taken_ms - span_ms, changed_ms))
    took_ms = view.now.taken_ms - recent[0].taken_ms
    if took_ms < STEADY_MS:
        return 0
    more = 0.0
    marks = [recent[0].taken_ms + took_ms * third // 3 for third in range(4)]
    for began_ms, ended_ms in pairwise(marks):
        # From the last state before it: a commit between two parts would count in neither.
        part = [state for state in _covering(recent, began_ms) if state.taken_ms <= ended_ms]
        rates = rates_of(tracks_of(part))
        if rates is None or rates[1] <= rates[0] * MARGIN:
            return 0
        more += (rates[1] - rates[0]) * (ended_ms - began_ms) / 1_000
    before, now = stored_age_ms(recent[0]), stored_age_ms(view.now)
    older = before.all_told and now.all_told and now.oldest_ms > before.oldest_ms
    return took_ms if older and more >= WORSE_MIN else 0


def _keeps_pace(view: View, span_ms: int) -> bool:
    """Whether over a span as much was consumed as arrived, and the oldest message did not age."""
    then = _covering(view.window, view.now.taken_ms - span_ms)[0]
    took_ms = view.now.taken_ms - then.taken_ms
    rates = rates_of(view.tracks, took_ms)
    before, now = stored_age_ms(then), stored_age_ms(view.now)
    if took_ms < TREND_MS or rates is None or not (before.all_told and now.all_told):
        return False
    # A message that is never finished grows older by the whole span.
    aged_ms = now.oldest_ms - before.oldest_ms
    return rates[0] * SHORT_MARGIN >= rates[1] and aged_ms < took_ms / 3


def _covering(window: Sequence[GroupState], since_ms: int) -> Sequence[GroupState]:
    """Return the states from the last before a moment on: sweeps are not exact to the second."""
    first = max((k for k, state in enumerate(window) if state.taken_ms <= since_ms), default=0)
    return window[first:]


def _grows(points: Sequence[tuple[int, int]]) -> bool:
    """Return whether the messages waiting after commits grow steadily, not in a single burst."""
    began, ended = points[0][0], points[-1][0]
    marks = [began + (ended - began) * k / 3 for k in range(1, 4)]
    levels = [points[0][1]]
    for mark in marks:
        levels.append([number for at, number in points if at <= mark][-1])
    grown = levels[-1] - levels[0]
    return grown > levels[0] * (MARGIN - 1) and all(b - a > grown / 6 for a, b in pairwise(levels))
