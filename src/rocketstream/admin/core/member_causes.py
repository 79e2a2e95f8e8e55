"""Causes that show inside members: in their threads, process queues and locks.

Pure: evidence in, causes out.

Law: each rule names a cause only where healthy members could not look the same; the spans below
separate the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rocketstream.admin.core.evidence import Evidence, HeldQueue, Look, Member, is_same_time
from rocketstream.admin.core.pinned import HELD_MS, SLOWER
from rocketstream.admin.core.stacks import ThreadStack, busy_listeners, places
from rocketstream.admin.core.words import plural, rate, some, span, waits
from rocketstream.admin.state import Cause, CauseKind, PinnedMessage, QueueKind, QueueState
from rocketstream.model import MessageQueue
from rocketstream.protocol import names

WAITED_MS = 45_000
"""Messages that have waited for less may be waiting for the next rebalance or for a lock."""
YOUNG_MS = 30_000
"""The time a member is given to divide the queues."""
SOON_MS = 300_000
"""A backlog that is worked off within this is not a slow listener's."""
BUSY_SHARE = 0.8
QUICKER = 5
"""Threads that could finish this many times what is finished and arrives are not slow."""


def waits_ms(evidence: Evidence, queue: QueueState) -> int:
    """Return how long the next message of a queue has waited, in ms; 0 when none waits."""
    if not queue.waiting or queue.waiting <= 0:
        return 0
    return queue.time_lag_ms(evidence.state.taken_ms) or 0


def queue_of(queue: QueueState) -> MessageQueue:
    """Return the message queue a state belongs to."""
    return MessageQueue(queue.topic, queue.broker_name, queue.queue_id)


def pinned_cause(evidence: Evidence, each: PinnedMessage) -> Cause:
    """Return the cause for a pinned message."""
    what = f"message {each.msg_id}" if each.msg_id else "the message"
    keys = f" (key {each.keys})" if each.keys else ""
    where = f"{each.topic} queue {each.queue_id} at {each.broker_name}"
    lines = [
        f"{each.client_id} holds offset {each.queue_offset:,} of {where}; the group's committed "
        "offset stands there",
        f"held for {span(each.held_ms)} at least"
        + (
            f", {plural(each.finished_behind, 'later message')} finished meanwhile"
            if each.finished_behind
            else ""
        ),
    ]
    view = (
        f"rocketstream message view {each.topic} {each.msg_id}"
        if each.msg_id
        else f"rocketstream group running-info {evidence.state.group} {each.client_id} --stack"
    )
    return Cause(
        CauseKind.PINNED_MESSAGE,
        f"One message is pinned: {what}{keys}, offset {each.queue_offset:,} of {where}, never "
        f"leaves the hands of {each.client_id}.",
        tuple(lines),
        f"see what the listener waits for (stack), look at the message with `{view}`, then restart "
        "that member; what is behind the message is consumed again",
        each.stack,
    )


def starved_pool(evidence: Evidence, member: Member) -> Cause | None:
    """Every thread is inside a listener, and none has returned for long."""
    first, second = member.first, member.second
    if first is None or second is None or not second.queues:
        return None
    busy = busy_listeners(second.threads, evidence.state.group)
    idle_ms = _nothing_finished_ms(first, second)
    usual_ms = max((r.consume_ms for r in second.rates.values()), default=0.0)
    held = sum(queue.held for queue in second.queues.values())
    if idle_ms is not None:
        # A pool that had nothing to do is not stuck, so messages it holds must have waited this
        # long.
        own = [q for q in evidence.state.queues if queue_of(q) in second.queues]
        idle_ms = min(idle_ms, max((waits_ms(evidence, queue) for queue in own), default=0))
    if (
        len(busy) < second.pool_size
        or idle_ms is None
        or idle_ms < max(HELD_MS, SLOWER * usual_ms)
        or held <= len(busy) * second.batch_size
    ):
        return None
    kind = _kind(busy)
    return Cause(
        CauseKind.STARVED_POOL,
        f"The pool of {member.client_id} is starved: all {plural(len(busy), f'listener {kind}')} "
        f"are inside a listener that does not return; {waits(held)} for a {kind}.",
        (f"nothing was finished for {span(idle_ms)}", *_where(busy)),
        "see what they wait for (stack): a lock, a pool of connections, a service that does "
        "not answer and has no timeout; then restart the member",
        _most_common(busy),
    )


def slow_listener(evidence: Evidence, member: Member) -> Cause | None:
    """All threads are busy and messages are finished, but more slowly than they arrive."""
    second = member.second or member.first
    if second is None:
        return None
    group = evidence.state.group
    busy = busy_listeners(second.threads, group)
    held = sum(queue.held for queue in second.queues.values())
    rates = {t: r for t, r in second.rates.items() if not t.startswith(names.RETRY_PREFIX)}
    usual_ms = max((r.consume_ms for r in rates.values()), default=0.0)
    if len(busy) < max(BUSY_SHARE * _lanes(second), 1) or not usual_ms:
        return None
    if held <= len(busy) * second.batch_size or not needs_help(evidence):
        return None
    finished = sum(r.ok_tps + r.failed_tps for r in rates.values())
    pace = _lanes(second) * second.batch_size * 1_000 / usual_ms
    if pace > QUICKER * max(finished, sum(evidence.arrival_tps.values())):
        return None  # calls as long as the usual ones do not keep its threads busy
    return Cause(
        CauseKind.SLOW_LISTENER,
        f"The listener of {member.client_id} is slow: a call takes {span(usual_ms)}, so its "
        f"{plural(_lanes(second), _kind(busy))} {'finishes' if _lanes(second) == 1 else 'finish'} "
        f"about {rate(pace)}.",
        (
            f"{len(busy)} of {_lanes(second)} {_kind(busy)}s are inside the listener, "
            f"{plural(held, 'message')} held",
            f"{rate(finished)} finished in the last minute; {_arriving(evidence)} arrive",
            *_where(busy),
        ),
        "make the listener faster where it stands, or add members, or threads or tasks "
        "(consumeThreadMin)",
        _most_common(busy),
    )


def failing_in_order(evidence: Evidence, member: Member) -> Cause | None:
    """An orderly listener gives the same message back again and again: its queue stands."""
    first, second = member.first, member.second
    if first is None or second is None or not second.is_orderly:
        return None
    queues = {queue_of(q): q for q in evidence.state.queues}
    for at, held in second.queues.items():
        queue, before = queues.get(at), first.queues.get(at)
        rates = second.rates.get(at.topic)
        if queue is None or before is None or rates is None or not rates.failed_tps:
            continue
        stands = before.commit_offset == held.commit_offset == queue.committed_offset
        if not stands or not held.held or waits_ms(evidence, queue) < HELD_MS:
            continue
        message = evidence.messages.get(at)
        if message is not None and message.queue_offset != held.commit_offset:
            message = None  # the oldest that is kept, where the failing one has expired
        named = f"message {message.msg_id}" if message else "the message"
        keys = f" (key {message.keys})" if message and message.keys else ""
        return Cause(
            CauseKind.POISON_MESSAGE,
            f"{named[0].upper()}{named[1:]}{keys} at offset {held.commit_offset:,} of {at.topic} "
            f"queue {at.queue_id} at {at.broker_name} fails again and again; consumed in order, "
            "nothing behind it is consumed.",
            (
                f"{member.client_id} fails {rate(rates.failed_tps)} of {at.topic}, "
                f"{plural(rates.failed_hour, 'message')} in the last hour",
                f"the committed offset stands, {waits(queue.waiting or 0)} behind",
            ),
            "mend the listener, or stop the members and skip the message: `rocketstream group "
            f"reset {evidence.state.group} {at.topic} --queue {at.broker_name}:{at.queue_id} "
            f"--to-offset {held.commit_offset + 1}`",
        )
    return None


def held_up(evidence: Evidence, member: Member) -> Cause | None:
    """Messages wait, the member holds none and gets none: its consumption is suspended."""
    first, second = member.first, member.second
    if first is None or second is None:
        return None
    waiting = [
        (queue, second.queues[at])
        for queue in evidence.state.of_kind(QueueKind.TOPIC, QueueKind.RETRY)
        if (at := queue_of(queue)) in second.queues
        and at in first.queues
        and waits_ms(evidence, queue) >= HELD_MS
        and "R" in evidence.permissions.get((queue.topic, queue.broker_name), "R")
        and not _is_done(queue, second.queues[at])
    ]
    if not waiting or any(held.dropped or not _was_still(first, second, q, held)
                          for q, held in waiting):  # fmt: skip
        return None
    if second.is_orderly and any(not held.locked for _, held in waiting):
        return None  # the member waits for locks
    held = sum(held.held for _, held in waiting)
    lag = sum(queue.waiting or 0 for queue, _ in waiting)
    if held:
        return None
    return Cause(
        CauseKind.PAUSED,
        f"{member.client_id} is paused: {waits(lag)} in "
        f"{plural(len(waiting), 'queue')} of its own, it holds none and takes none.",
        (
            f"the oldest waits for {span(max(waits_ms(evidence, q) for q, _ in waiting))}, "
            "nothing was pulled, nothing is in a listener's hands",
        ),
        "let it go on (`resume` of the client), or restart it",
    )


def _is_done(queue: QueueState, held: HeldQueue) -> bool:
    """Whether the member consumed everything, and only has not committed it yet."""
    return queue.max_offset is not None and held.commit_offset >= queue.max_offset


def flow_controlled(evidence: Evidence, member: Member) -> Cause | None:
    """A member holds as many messages as it may; named only where nothing else explains why."""
    second = member.second or member.first
    if second is None or not needs_help(evidence):
        return None
    full = {
        at: held
        for at, held in second.queues.items()
        if held.held > second.threshold or held.held_mib >= second.threshold_mib > 0
    }
    if not full:
        return None
    at, held = max(full.items(), key=lambda each: each[1].held)
    return Cause(
        CauseKind.FLOW_CONTROLLED,
        f"{member.client_id} is flow-controlled: it holds as many messages as it may in "
        f"{plural(len(full), 'queue')} and pulls no more until its listener is done with some.",
        (
            f"{plural(held.held, 'message')}, {held.held_mib} MiB of {at.topic} queue "
            f"{at.queue_id} are held; it may hold {second.threshold:,} messages, "
            f"{second.threshold_mib} MiB (pullThresholdForQueue, pullThresholdSizeForQueue)",
        ),
        f"`rocketstream group running-info {evidence.state.group} {member.client_id} --stack` "
        "shows what the listener does; raise the thresholds if messages are just big",
    )


def unlocked(evidence: Evidence, member: Member) -> Iterable[MessageQueue]:
    """Yield queues an orderly member has but may not consume, for want of the broker's lock."""
    first, second = member.first, member.second
    if first is None or second is None or not second.is_orderly:
        return
    queues = {queue_of(q): q for q in evidence.state.queues}
    for at, held in second.queues.items():
        before, queue = first.queues.get(at), queues.get(at)
        if before is None or queue is None or waits_ms(evidence, queue) < WAITED_MS:
            continue
        if not before.locked and not held.locked and not held.dropped:
            yield at


def told(evidence: Evidence) -> Mapping[str, Look]:
    """Return the newest look into each member that answered."""
    return {m.client_id: m.look for m in evidence.members if m.look is not None}


# --- parts ----------------------------------------------------------------------------------------


def _lanes(look: Look) -> int:
    """Return how many calls a member can make at once: in order, at most one per queue."""
    if look.is_orderly:
        return max(min(look.pool_size, len(look.queues)), 1)
    return look.pool_size


def _nothing_finished_ms(first: Look, second: Look) -> int | None:
    """Return how many ms of the member's clock nothing was finished; None if something was."""
    latest = max((q.last_consume_ms or 0 for q in second.queues.values()), default=0)
    before = max((q.last_consume_ms or 0 for q in first.queues.values()), default=0)
    if not latest or not is_same_time(latest, before) or second.now_ms is None:
        return None
    return second.now_ms - latest


def _was_still(first: Look, second: Look, queue: QueueState, held: HeldQueue) -> bool:
    """Return whether no message entered or left a queue between the looks."""
    before = first.queues[queue_of(queue)]
    return (
        before.held == held.held == 0
        and before.commit_offset == held.commit_offset
        and is_same_time(before.last_consume_ms, held.last_consume_ms)
    )


def needs_help(evidence: Evidence) -> bool:
    """Return whether the group is behind and will be for some time."""
    return _oldest_ms(evidence) >= WAITED_MS and _drained_ms(evidence) >= SOON_MS


def _oldest_ms(evidence: Evidence) -> int:
    found = evidence.state.of_kind(QueueKind.TOPIC, QueueKind.RETRY)
    return max((waits_ms(evidence, queue) for queue in found), default=0)


def _drained_ms(evidence: Evidence) -> float:
    """Return how long the waiting messages take at the members' pace, less the arriving ones, in
    ms."""
    looks = told(evidence).values()
    topics = {q.topic for q in evidence.state.of_kind(QueueKind.TOPIC)}
    pace = sum(r.ok_tps for look in looks for topic, r in look.rates.items() if topic in topics)
    arriving = sum(_arrives(evidence, topic) for topic in topics)
    waiting = sum(q.waiting or 0 for q in evidence.state.of_kind(QueueKind.TOPIC))
    return waiting * 1_000 / (pace - arriving) if pace > arriving else float("inf")


def _arrives(evidence: Evidence, topic: str) -> float:
    """Return messages a second that arrive in a topic, estimated cautiously.

    Few messages arrive between two looks, so that figure is rough; the waiting messages all arrived
    since the oldest of them.
    """
    since_ms = [
        (queue.lag or 0, age_ms)
        for queue in evidence.state.of_kind(QueueKind.TOPIC)
        if queue.topic == topic and (age_ms := waits_ms(evidence, queue))
    ]
    lately = evidence.arrival_tps.get(topic, 0.0)
    return min(sum(lag * 1_000 / age_ms for lag, age_ms in since_ms), lately)


def _arriving(evidence: Evidence) -> str:
    if not evidence.arrival_tps:
        return "it is not known how many"
    return rate(sum(evidence.arrival_tps.values()))


def _where(busy: Iterable[ThreadStack]) -> tuple[str, ...]:
    """Return evidence lines that say where threads or tasks stand."""
    threads = tuple(busy)
    found = [f"{number} at {place}" for place, number in places(threads)]
    return (f"{_kind(threads)}s stand: {some(found)}",) if found else ()


def _kind(busy: Sequence[ThreadStack]) -> str:
    """Return the callers of the listener: threads, or the tasks of a coroutine."""
    return "task" if busy and busy[0].is_task else "thread"


def _most_common(busy: Iterable[ThreadStack]) -> str | None:
    threads = tuple(busy)
    if not threads:
        return None
    (place, _), *_ = places(threads)
    return next(thread for thread in threads if thread.place == place).text()
