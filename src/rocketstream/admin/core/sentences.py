"""The sentence that explains each verdict, with its figures, for an operator.

Pure: words; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Sequence

from rocketstream.admin.core.windows import Failures, Rewind, Track
from rocketstream.admin.core.words import plural, rate, some, span, waits
from rocketstream.admin.state import GroupState, PinnedMessage, QueueKind, QueueState

Rates = tuple[float, float]


def queue_name(queue: QueueState | PinnedMessage) -> str:
    """Return how a sentence names a queue."""
    return f"queue {queue.queue_id} of {queue.topic} at {queue.broker_name}"


def fine(now: GroupState, waiting: int, age_ms: int, rates: Rates | None) -> str:
    """OK."""
    pace = ""
    if rates is not None and max(rates) > 0:
        pace = f" {rate(rates[1])} arrive, {rate(rates[0])} are consumed."
    alone = " Nobody is connected now." if now.members == () and not waiting else ""
    if not waiting:
        return f"Caught up: no message waits.{pace}{alone}"
    least = f", the oldest for {span(age_ms)}" if age_ms else ""
    return f"Keeps up: {_messages(waiting)} on the way{least}.{pace}"


def failing(seen: Failures) -> str:
    """FAILING."""
    told = [_given_up(seen.given_up)] if seen.given_up else []
    if seen.retried:
        told.append(f"{_messages(seen.retried)} came for another try")
    return (
        f"Fails: {' and '.join(told)} in the last {span(seen.over_ms)}, while "
        f"{plural(seen.finished, 'message')} {'was' if seen.finished == 1 else 'were'} consumed."
    )


def losing(expired: int, over_ms: int) -> str:
    """LOSING, by retention."""
    return (
        f"Loses messages: {plural(expired, 'message')} {'was' if expired == 1 else 'were'} deleted "
        f"in the last {span(over_ms)} before the group consumed them."
    )


def tried_again(now: GroupState) -> str:
    """The messages that failed and come again, which no lag shows; empty where there are none."""
    again = (now.retrying or 0) + (now.delayed or 0)
    return f" {_messages(again)} failed and will be tried again." if again else ""


def dead_letters(now: GroupState, given_up: int, over_ms: int) -> str:
    """The dead letters; empty where there are none.

    Args:
        now: the newest state.
        given_up: how many messages became dead letters while the group was watched.
        over_ms: for how long it was watched.
    """
    kept = now.dead_letters or 0
    if given_up:
        return f" {_given_up(given_up)} in the last {span(over_ms)}."
    return f" {plural(kept, 'dead letter')} {'is' if kept == 1 else 'are'} kept." if kept else ""


def catching_up(now: GroupState, waiting: int, age_ms: int, rates: Rates, eta_ms: int) -> str:
    """CATCHING UP."""
    return (
        f"Catches up in about {span(eta_ms)}: {waits(waiting)}, the oldest for "
        f"{_aged(now, age_ms)}; {rate(rates[0])} are consumed, {rate(rates[1])} arrive."
    )


def falling(
    now: GroupState, waiting: int, age_ms: int, rates: Rates | None, *, growing: bool
) -> str:
    """FALLING BEHIND."""
    pace = f"{rate(rates[1])} arrive, only {rate(rates[0])} are consumed; " if rates else ""
    if growing:
        return f"Falls behind: {pace}{waits(waiting)}, the oldest for {_aged(now, age_ms)}."
    pace = f"{rate(rates[1])} arrive, {rate(rates[0])} are consumed; " if rates else ""
    return (
        f"Stays behind: it keeps pace and gains nothing: {pace}{waits(waiting)}, the oldest for "
        f"{_aged(now, age_ms)}."
    )


def stalled(now: GroupState, waiting: int, stood_ms: int) -> str:
    """STALLED, the whole group."""
    return (
        f"Stands: no message was finished for {span(stood_ms)} although {_connected(now)}; "
        f"{waits(waiting)}."
    )


def queue_stalled(now: GroupState, queue: QueueState, waiting: int, stood_ms: int) -> str:
    """STALLED, one queue of several."""
    owner = f"its member {queue.client_id} is connected" if queue.client_id else _connected(now)
    return (
        f"One queue stands: nothing of {queue_name(queue)} was finished for {span(stood_ms)} "
        f"although {owner} and other queues go on; {waits(waiting)} there."
    )


def stopped(now: GroupState, waiting: int, stood_ms: int, had_members: bool) -> str:
    """STOPPED."""
    long = f"nothing was consumed for {span(stood_ms)}"
    if stood_ms >= 2 * 86_400_000:
        return (
            f"Stopped long ago: nobody is connected, {long}, {waits(waiting)}. If nobody needs the "
            "group any more, delete it."
        )
    who = "nobody is connected" if had_members else "no member ever connected, and its program"
    if had_members:
        return f"Stopped: {who}, {long}, {waits(waiting)}."
    return f"Stopped: {who} (a Spark query?) was quicker before; {long}, {waits(waiting)}."


def rewound(now: GroupState, found: Sequence[Rewind], left: int, eta_ms: int | None) -> str:
    """REWOUND."""
    back = sum(each.before - each.after for each in found)
    topics = some(sorted({each.track.queue.topic for each in found}))
    where = (
        queue_name(found[0].track.queue)
        if len(found) == 1
        else f"{plural(len(found), 'queue')} of {topics}"
    )
    ago = span(now.taken_ms - min(each.at_ms for each in found))
    soon = f", about {span(eta_ms)} at this pace" if eta_ms is not None else ""
    return (
        f"Set back by {_messages(back)} in {where} {ago} ago: they are consumed again, "
        f"{left:,} still to come{soon}."
    )


def pinned(worst: PinnedMessage, held: int) -> str:
    """PINNED."""
    what = f"message {worst.msg_id}" if worst.msg_id else "the message"
    keys = f" (key {worst.keys})" if worst.keys else ""
    more = f" {plural(held - 1, 'more message')} like it." if held > 1 else ""
    behind = (
        f" while {plural(worst.finished_behind, 'later one')} were consumed"
        if worst.finished_behind > 1
        else " while a later one was consumed"
        if worst.finished_behind
        else ""
    )
    return (
        f"Pinned: {what}{keys} at offset {worst.queue_offset:,} of {queue_name(worst)} is in the "
        f"hands of {worst.client_id} for {span(worst.held_ms)}{behind}; the committed offset "
        f"stands at it, and all behind it comes again after a restart.{more}"
    )


# --- unknown --------------------------------------------------------------------------------------


def broadcasting(now: GroupState) -> str:
    """A group whose members keep the offsets."""
    return (
        f"A broadcasting group: each of its {plural(len(now.members or ()), 'member')} keeps its "
        "own progress; `rocketstream group running-info` asks them."
    )


def no_queues(now: GroupState) -> str:
    """A group that is not known to consume anything."""
    if now.errors:
        return f"Nothing could be asked: {some(now.errors)}."
    who = _connected(now) if now.members else "nobody is connected"
    return f"The group has no progress in any topic it subscribes, and {who}."


def nothing_known(now: GroupState, unknown: Sequence[Track], last: GroupState | None = None) -> str:
    """No queue with a known lag; ``last`` is the newest state that knew it."""
    reasons = sorted({track.unsure for track in unknown if track.unsure} | set(now.errors))
    text = f"How far the group is, is not known in any queue: {some(reasons)}."
    if last is None or last.waiting is None:
        return text
    ago = span(now.taken_ms - last.taken_ms)
    oldest = f", the oldest for {span(last.time_lag_ms)}" if last.time_lag_ms else ""
    known = f"{_messages(last.waiting)} waited{oldest}" if last.waiting else "no message waited"
    return f"{text} {ago} ago {known}."


def partly_known(now: GroupState, tracks: Sequence[Track], unknown: Sequence[Track]) -> str:
    """Some queues are fine, and the lag of the others is unknown."""
    reasons = sorted({track.unsure for track in unknown if track.unsure})
    fine = len(tracks) - len(unknown)
    return (
        f"{fine:,} of {plural(len(tracks), 'queue')} {'is' if fine == 1 else 'are'} fine, how the "
        "rest are is not known "
        f"({queue_name(unknown[0].queue)}{' and others' if len(unknown) > 1 else ''}): "
        f"{some(reasons)}."
    )


def nobody_yet(waiting: int, age_ms: int, had_members: bool) -> str:
    """Nobody is connected, but it is too early to call the group stopped."""
    oldest = f", the oldest for {span(age_ms)}" if age_ms else ""
    if had_members:
        return (
            f"Nobody is connected now; {waits(waiting)}{oldest}. A restart looks like this for up "
            "to 3 min."
        )
    return (
        f"No member ever connected; {waits(waiting)}{oldest}, and none was consumed while it was "
        "watched. A Spark query or a pull program commits without being a member: one that runs "
        "seldom looks like this between its runs."
    )


def members_unknown(now: GroupState, waiting: int, stood_ms: int) -> str:
    """Nothing moves, and no broker reported whether members are connected."""
    why = f" ({some(now.errors)})" if now.errors else ""
    return (
        f"Nothing was finished for {span(stood_ms)} and {waits(waiting)}; whether anybody is "
        f"connected could not be asked{why}."
    )


def maybe_in_work(now: GroupState, waiting: int, stood_ms: int) -> str:
    """So few messages wait that listeners may be working on all of them."""
    return (
        f"{_messages(waiting)} not finished for {span(stood_ms)} although {_connected(now)}: they "
        "may be in work, RocketMQ gives a listener 15 min; `rocketstream group why` asks them."
    )


def trend_unknown(now: GroupState, waiting: int, age_ms: int) -> str:
    """Behind, and too early to say whether it catches up."""
    aged = _aged(now, age_ms)
    oldest = f", the oldest for {aged}" if aged != span(0) else ""
    return (
        f"{waits(waiting)}{oldest}; whether it catches up shows when the group is watched for some "
        "minutes."
    )


# --- parts ----------------------------------------------------------------------------------------


def _messages(waiting: int) -> str:
    return plural(waiting, "message")


def _given_up(number: int) -> str:
    return f"{_messages(number)} became {'a dead letter' if number == 1 else 'dead letters'}"


def _connected(now: GroupState) -> str:
    if now.members is None:
        return "members may be connected"
    number = len(now.members)
    return f"{plural(number, 'member')} {'is' if number == 1 else 'are'} connected"


def _aged(now: GroupState, age_ms: int) -> str:
    """Return how old the oldest waiting message is; store times know more than the window."""
    told = [
        lag
        for queue in now.of_kind(QueueKind.TOPIC, QueueKind.RETRY)
        if (lag := queue.time_lag_ms(now.taken_ms))
    ]
    return span(max([age_ms, *told]))
