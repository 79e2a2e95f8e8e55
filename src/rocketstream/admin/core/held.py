"""Why messages that members hold are not finished: pinned, starved, slow, poisoned, held back.

Pure: evidence in, causes out. Each rule names a cause only where healthy members could not look the
same: two looks half a second apart show little, so it says for how long a thing must have lasted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rocketstream.admin.core.evidence import (
    Evidence,
    Look,
    Member,
    MessageFacts,
    ThreadStack,
    TopicRates,
    busy_listeners,
    is_same_time,
    places,
)
from rocketstream.admin.core.words import (
    named,
    plural,
    rate,
    some,
    span,
    waits,
    with_key,
    word,
)
from rocketstream.admin.rows import RunningQueueRow
from rocketstream.admin.state import (
    Cause,
    CauseKind,
    GroupState,
    PinnedMessage,
    QueueKind,
    QueueState,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol import names

HELD_MS = 30_000
"""A message in a listener's hands for less than this is being worked on."""
SLOWER = 3
"""A message in a listener's hands for less than this many mean calls is being worked on, too."""
MINUTE_MS = 60_000
"""Members report how many messages they pulled and finished over a minute."""
ROUNDING = 1.1
"""A member's minute may be up to ten seconds longer."""
ONE_PULL = 32
SPAN_MAX = 2_000
"""The span of held offsets at which a member stops pulling until the first one is finished."""
STEADY = (0.3, 2.0)
"""A member that finishes this many times the arriving messages neither falls behind nor catches up.
"""
WAITED_MS = 45_000
"""Messages that have waited for less may be waiting for the next rebalance or for a lock."""
SOON_MS = 300_000
"""A backlog that is worked off within this is not a slow listener's."""
BUSY_SHARE = 0.8
QUICKER = 5
"""Threads that could finish this many times what is finished and arrives are not slow."""
POISON_TIMES = 3
"""A message given back this often is not a passing fault."""
SKEW_MS = 300_000
NAMED_MAX = 8
"""At most this many causes of one kind are reported."""


def held_causes(
    evidence: Evidence, pinned: Sequence[PinnedMessage], window: Sequence[GroupState]
) -> Iterator[Cause]:
    """Yield what the threads and process queues of members show, one cause a member at most."""
    for each in pinned[:NAMED_MAX]:
        yield _pinned_cause(evidence, each)
    pinning = {each.client_id for each in pinned}
    for member in evidence.members:
        for rule in (_starved, _fails_in_order, _slow, _paused, _flow_controlled):
            cause = rule(evidence, member)
            if cause is None:
                continue
            # A pause of the group explains that of its members, a pin that pulls are held back.
            told_already = (rule is _paused and evidence.paused_at) or (
                rule is _flow_controlled and member.client_id in pinning
            )
            if not told_already:
                yield cause
            break
    yield from _poison(evidence)
    yield from _skewed(evidence, window)


# --- shared facts ---------------------------------------------------------------------------------


def waits_ms(evidence: Evidence, queue: QueueState) -> int:
    """Return how long the next message of a queue has waited, in ms; 0 when none waits."""
    if not queue.waiting or queue.waiting <= 0:
        return 0
    return queue.time_lag_ms(evidence.state.taken_ms) or 0


def where(queue: QueueState | PinnedMessage | MessageQueue) -> str:
    """Return how causes name a queue."""
    return f"{queue.topic} queue {queue.queue_id} at {queue.broker_name}"


def told(evidence: Evidence) -> Mapping[str, Look]:
    """Return the newest look into each member that answered."""
    return {m.client_id: m.look for m in evidence.members if m.look is not None}


def needs_help(evidence: Evidence) -> bool:
    """Return whether the group is behind, and will be for some time at its members' pace."""
    state = evidence.state
    waiting = state.of_kind(QueueKind.TOPIC, QueueKind.RETRY)
    if max((waits_ms(evidence, queue) for queue in waiting), default=0) < WAITED_MS:
        return False
    own = state.of_kind(QueueKind.TOPIC)
    topics = {queue.topic for queue in own}
    rates = [(topic, r) for look in told(evidence).values() for topic, r in look.rates.items()]
    gains = sum(r.ok_tps for topic, r in rates if topic in topics)
    gains -= sum(_arrives(evidence, topic) for topic in topics)
    return gains <= 0 or sum(q.waiting or 0 for q in own) * 1_000 / gains >= SOON_MS


def _arrives(evidence: Evidence, topic: str) -> float:
    """Return messages a second that arrive in a topic, estimated cautiously.

    Few messages arrive between two looks, so that figure is rough; the waiting messages all arrived
    since the oldest of them.
    """
    queues = (q for q in evidence.state.of_kind(QueueKind.TOPIC) if q.topic == topic)
    ages = [(q.lag or 0, age_ms) for q in queues if (age_ms := waits_ms(evidence, q))]
    lately = evidence.arrival_tps.get(topic, 0.0)
    return min(sum(lag * 1_000 / age_ms for lag, age_ms in ages), lately)


# --- pinned ---------------------------------------------------------------------------------------


def find_pinned(
    evidence: Evidence, stands_ms: Mapping[MessageQueue, int] | None = None
) -> list[PinnedMessage]:
    """Return messages that never leave a process queue while others go on, longest held first.

    Args:
        evidence: two looks into members; members that answered fewer are left out.
        stands_ms: for how long each watched queue was seen standing still, in ms.
    """
    queues = {queue.key: queue for queue in evidence.state.queues}
    found: list[PinnedMessage] = []
    for member in evidence.members:
        first, second = member.first, member.second
        if first is None or second is None or second.is_orderly:
            continue
        stack = _stuck_stack(evidence.state.group, first, second)
        for at, held in second.queues.items():
            queue, before = queues.get(at), first.queues.get(at)
            if queue is None or before is None or not _is_held(queue, before, held):
                continue
            case = _Case(evidence, queue, second, before, held)
            stood_ms = (stands_ms or {}).get(at, 0) if queue.committed_offset == held.oldest else 0
            held_ms = case.held_ms(stood_ms)
            if held_ms is None:
                continue
            assert held.oldest is not None
            message = _message_at(evidence, at, held.oldest)
            found.append(
                PinnedMessage(
                    *(at.topic, at.broker_name, at.queue_id, held.oldest),
                    *(member.client_id, held_ms, case.behind),
                    message.msg_id if message else None,
                    message.keys if message else None,
                    stack,
                )
            )
    return sorted(found, key=lambda each: -each.held_ms)


def _is_held(queue: QueueState, before: RunningQueueRow, held: RunningQueueRow) -> bool:
    """Whether the same message was the first at both looks, and holds the offset back."""
    if held.oldest is None or held.oldest != before.oldest or held.dropped:
        return False
    return queue.committed_offset is not None and queue.committed_offset <= held.oldest


def _message_at(evidence: Evidence, at: MessageQueue, offset: int) -> MessageFacts | None:
    """Return the message a queue stands at; None where that one has expired, or was not read."""
    message = evidence.messages.get(at)
    return message if message is not None and message.queue_offset == offset else None


@dataclass(frozen=True, slots=True)
class _Case:
    """A queue whose first message was the same at both looks."""

    evidence: Evidence
    queue: QueueState
    look: Look
    before: RunningQueueRow
    held: RunningQueueRow

    @property
    def rates(self) -> TopicRates:
        return self.look.rates.get(self.queue.topic) or TopicRates()

    def held_ms(self, stood_ms: int) -> int | None:
        """Return how many ms at least a listener has had the message; None if not proven."""
        rates = self.rates
        if not rates.consume_ms and not rates.ok_tps and not self.behind:
            return None  # nothing shows that listeners return sooner than that
        enough = max(HELD_MS, SLOWER * rates.consume_ms)
        held = sum(each.cached for each in self.look.queues.values())
        # A thread must have it: others behind it were finished, or all held ones are in hand.
        busy = busy_listeners(self.look.threads, self.evidence.state.group)
        if not self.behind and min(held, len(busy)) >= self.look.pool_size:
            # It may have waited for the thread that finished something last.
            stood_ms = min(stood_ms, self.look.finished_ago_ms)
        if stood_ms >= enough and (self.behind > 0 or held <= self._hands):
            return stood_ms
        if (quiet_ms := self._quiet_ms(held)) >= enough:
            return quiet_ms
        since_ms = self.queue.time_lag_ms(self.evidence.state.taken_ms) or 0
        if self.look.ran_ms is not None:
            since_ms = min(since_ms, self.look.ran_ms)
        if enough > MINUTE_MS or since_ms < MINUTE_MS:
            return None  # members tell their rates over a minute
        idle = not (rates.pull_tps or rates.ok_tps or rates.failed_tps) and rates.consume_ms > 0
        alone = idle and self._all_in_hand and self._has_run_long
        passed_ms = MINUTE_MS if alone else min(self._passed_ms(), MINUTE_MS)
        if passed_ms < enough:
            return None
        return since_ms if self._all_pulled else round(passed_ms)

    @property
    def behind(self) -> int:
        """The least number of messages behind the first that were pulled and finished."""
        held, queue = self.held, self.queue
        if (held.oldest or 0) < (queue.min_offset or 0):
            return 0  # a gap of messages that were deleted looks like finished ones
        unread = 0 if self._pull_waits else ONE_PULL
        if any(s.topic == queue.topic and s.expression != "*" for s in self.look.subscriptions):
            # Gaps of a filter look like finished messages; wanted ones may have been counted.
            if queue.matching is None or not queue.matching_is_exact or not self._all_pulled:
                return 0
            return max(queue.matching - held.cached - unread, 0)
        if not self._all_pulled or queue.max_offset is None:
            return held.finished_behind
        pulled = queue.max_offset - (held.oldest or 0) - unread
        return max(held.finished_behind, pulled - held.cached)

    def _quiet_ms(self, in_hand: int) -> int:
        """Return how many ms nothing of the queue was finished, although something behind it was.

        The messages finished behind it were handed out later; so it was in a listener's hands when
        the last of them was finished. Where a thread is free, it does not wait for others.
        """
        if not self.behind or in_hand >= self.look.pool_size or not self._all_in_hand:
            return 0
        last_ms, now_ms = self.held.last_consume_ms, self.look.now_ms
        return 0 if last_ms is None or now_ms is None else now_ms - last_ms

    def _passed_ms(self) -> float:
        """Return how many ms it takes to finish as many messages as were finished behind it.

        Messages of a queue are handed out in order, so all of them were finished since it was. The
        member tells its rate for the whole topic: a queue has its share of it, up to twice that, or
        as many as arrive there.
        """
        if not self.behind:
            return 0.0
        queue, earlier = self.queue, self.evidence.earlier
        finished = (self.rates.ok_tps + self.rates.failed_tps) * ROUNDING
        share = min(finished, 2 * finished / max(self._owned, 1))
        if earlier is not None and (took_ms := self.evidence.state.taken_ms - earlier.taken_ms):
            before = next((q for q in earlier.queues if q.key == queue.key), None)
            came = (queue.max_offset or 0) - ((before.max_offset if before else None) or 0)
            share = min(finished, max(share, came * 1_000 / took_ms)) if before else share
        return self.behind * 1_000 / share if share else float(MINUTE_MS)

    @property
    def _all_pulled(self) -> bool:
        """Whether the member takes messages as they come, and all it has are in its hands."""
        held = self.held
        full = held.cached_mib >= self.look.threshold_mib > 0 or held.cached >= self.look.threshold
        if not self._all_in_hand or full or (held.newest or 0) - (held.oldest or 0) >= SPAN_MAX:
            return False
        if self._pull_waits:
            return True
        age_ms = self.queue.time_lag_ms(self.evidence.state.taken_ms) or 0
        if age_ms < HELD_MS or not self._has_run_long:
            return False
        arrives = (self.queue.lag or 0) * 1_000 / age_ms * self._owned
        low, high = STEADY
        return low * arrives <= self.rates.ok_tps <= high * arrives

    @property
    def _owned(self) -> int:
        return sum(at.topic == self.queue.topic for at in self.look.queues)

    @property
    def _hands(self) -> int:
        return self.look.pool_size * self.look.batch_size

    @property
    def _all_in_hand(self) -> bool:
        return max(self.before.cached, self.held.cached) <= self._hands

    @property
    def _pull_waits(self) -> bool:
        """Whether its pull waits at the broker, so that there is nothing more to pull."""
        return is_same_time(self.before.last_pull_ms, self.held.last_pull_ms)

    @property
    def _has_run_long(self) -> bool:
        """Whether the member has run for longer than its figures reach back."""
        return (self.look.ran_ms or 0) > MINUTE_MS


def _stuck_stack(group: str, first: Look, second: Look) -> str | None:
    """Return the stack of the listener thread that stood at the same place at both looks."""
    before = {t.name: t.listener for t in busy_listeners(first.threads, group)}
    stuck = [t for t in busy_listeners(second.threads, group) if before.get(t.name) == t.listener]
    at = [thread.place for thread in stuck]
    # The thread whose place is the rarest: the others may only be slow.
    return min(stuck, key=lambda t: (at.count(t.place), t.name)).text() if stuck else None


def _pinned_cause(evidence: Evidence, each: PinnedMessage) -> Cause:
    what = f"message {each.msg_id}" if named(each.msg_id) else "the message"
    who = named(each.client_id, "a member")
    later = f", {plural(each.finished_behind, 'later message')} finished meanwhile"
    view = _view(each.topic, each)
    if each.msg_id is None:
        view = _running(evidence, each.client_id)
    return Cause(
        CauseKind.PINNED_MESSAGE,
        f"One message is pinned: {what}{with_key(each.keys)}, offset {each.queue_offset:,} of "
        f"{where(each)}, never leaves the hands of {who}.",
        (
            f"{who} holds offset {each.queue_offset:,} of {where(each)}; the group's "
            "committed offset stands there",
            f"held for {span(each.held_ms)} at least{later if each.finished_behind else ''}",
        ),
        f"{'see what the listener waits for (stack), ' if each.stack else ''}look at the message "
        f"with {view}, then restart that member; what is behind the message is consumed again",
        each.stack,
    )


def _view(topic: str, at: PinnedMessage | MessageFacts) -> str:
    """Return the command that shows a message, by its place where its id could be a command."""
    if named(at.msg_id) and named(topic):
        return f"`rocketstream message view {topic} {at.msg_id}`"
    return (
        f"`rocketstream message search {word(at.topic)} --broker {word(at.broker_name)} "
        f"--queue {at.queue_id} --offset {at.queue_offset} --oldest-first`"
    )


def _running(evidence: Evidence, client_id: str) -> str:
    """Return the command that shows what a member does, or all where its id could be one."""
    who = f" {client_id}" if named(client_id) else ""
    return f"`rocketstream group running-info {word(evidence.state.group)}{who} --stack`"


# --- threads --------------------------------------------------------------------------------------


def _who(member: Member) -> str:
    return named(member.client_id, "a member")


def _starved(evidence: Evidence, member: Member) -> Cause | None:
    """Every thread is inside a listener, and none has returned for long."""
    first, second = member.first, member.second
    if first is None or second is None or not second.queues:
        return None
    busy = busy_listeners(second.threads, evidence.state.group)
    idle_ms = _nothing_finished_ms(first, second)
    usual_ms = max((r.consume_ms for r in second.rates.values()), default=0.0)
    held = sum(queue.cached for queue in second.queues.values())
    if idle_ms is not None:
        # A pool that had nothing to do is not stuck, so messages it holds must have waited this
        # long.
        own = [q for q in evidence.state.queues if q.key in second.queues]
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
        f"The pool of {_who(member)} is starved: all {plural(len(busy), f'listener {kind}')} "
        f"are inside a listener that does not return; {waits(held)} for a {kind}.",
        (f"nothing was finished for {span(idle_ms)}", *_stand(busy)),
        "see what they wait for (stack): a lock, a pool of connections, a service that does "
        "not answer and has no timeout; then restart the member",
        _most_common(busy),
    )


def _nothing_finished_ms(first: Look, second: Look) -> int | None:
    """Return how many ms of the member's clock nothing was finished; None if something was."""
    latest = second.finished_ms
    if not latest or not is_same_time(latest, first.finished_ms):
        return None
    return second.finished_ago_ms


def _slow(evidence: Evidence, member: Member) -> Cause | None:
    """All threads are busy and messages are finished, but more slowly than they arrive."""
    look = member.look
    if look is None:
        return None
    busy = busy_listeners(look.threads, evidence.state.group)
    held = sum(queue.cached for queue in look.queues.values())
    rates = [r for t, r in look.rates.items() if not t.startswith(names.RETRY_PREFIX)]
    usual_ms = max((r.consume_ms for r in rates), default=0.0)
    lanes = look.pool_size
    if look.is_orderly:  # at most one call per queue at a time
        lanes = max(min(lanes, len(look.queues)), 1)
    if len(busy) < max(BUSY_SHARE * lanes, 1) or not usual_ms:
        return None
    if held <= len(busy) * look.batch_size or not needs_help(evidence):
        return None
    finished = sum(r.ok_tps + r.failed_tps for r in rates)
    arriving = sum(evidence.arrival_tps.values())
    pace = lanes * look.batch_size * 1_000 / usual_ms
    if pace > QUICKER * max(finished, arriving):
        return None  # calls as long as the usual ones do not keep its threads busy
    kind = _kind(busy)
    come = rate(arriving) if evidence.arrival_tps else "it is not known how many"
    return Cause(
        CauseKind.SLOW_LISTENER,
        f"The listener of {_who(member)} is slow: a call takes {span(usual_ms)}, so its "
        f"{plural(lanes, kind)} {'finishes' if lanes == 1 else 'finish'} about {rate(pace)}.",
        (
            f"{len(busy)} of {lanes} {kind}s are inside the listener, "
            f"{plural(held, 'message')} held",
            f"{rate(finished)} finished in the last minute; {come} arrive",
            *_stand(busy),
        ),
        "make the listener faster where it stands, or add members, or threads or tasks "
        "(consumeThreadMin)",
        _most_common(busy),
    )


def _stand(busy: Sequence[ThreadStack]) -> tuple[str, ...]:
    """Return evidence lines that say where threads or tasks stand."""
    found = [f"{number} at {place}" for place, number in places(busy)]
    return (f"{_kind(busy)}s stand: {some(found)}",) if found else ()


def _kind(busy: Sequence[ThreadStack]) -> str:
    """Return the callers of the listener: threads, or the tasks of a coroutine."""
    return "task" if busy and busy[0].is_task else "thread"


def _most_common(busy: Sequence[ThreadStack]) -> str | None:
    found = places(busy)
    return next(t.text() for t in busy if t.place == found[0][0]) if found else None


# --- held back ------------------------------------------------------------------------------------


def _paused(evidence: Evidence, member: Member) -> Cause | None:
    """Messages wait, the member holds none and gets none: its consumption is suspended."""
    first, second = member.first, member.second
    if first is None or second is None:
        return None
    waiting: list[QueueState] = []
    for queue in evidence.state.of_kind(QueueKind.TOPIC, QueueKind.RETRY):
        held, before = second.queues.get(queue.key), first.queues.get(queue.key)
        if held is None or before is None or waits_ms(evidence, queue) < HELD_MS:
            continue
        done = queue.max_offset is not None and held.commit_offset >= queue.max_offset
        if done or not readable(evidence, queue):  # all of it is consumed, and not yet committed
            continue
        moved = before.cached or held.cached or before.commit_offset != held.commit_offset
        if moved or not is_same_time(before.last_consume_ms, held.last_consume_ms):
            return None
        if held.dropped or (second.is_orderly and not held.locked):
            return None  # the member waits for its lock
        waiting.append(queue)
    if not waiting:
        return None
    return Cause(
        CauseKind.PAUSED,
        f"{_who(member)} is paused: {waits(sum(q.waiting or 0 for q in waiting))} in "
        f"{plural(len(waiting), 'queue')} of its own, it holds none and takes none.",
        (
            f"the oldest waits for {span(max(waits_ms(evidence, q) for q in waiting))}, "
            "nothing was pulled, nothing is in a listener's hands",
        ),
        "let it go on (`resume` of the client), or restart it",
    )


def readable(evidence: Evidence, queue: QueueState) -> bool:
    """Return whether members may pull of a queue."""
    return "R" in evidence.permissions.get((queue.topic, queue.broker_name), "R")


def _flow_controlled(evidence: Evidence, member: Member) -> Cause | None:
    """A member holds as many messages as it may; named only where nothing else explains why."""
    look = member.look
    if look is None or not needs_help(evidence):
        return None
    full = {
        at: held
        for at, held in look.queues.items()
        if held.cached > look.threshold or held.cached_mib >= look.threshold_mib > 0
    }
    if not full:
        return None
    at, held = max(full.items(), key=lambda each: each[1].cached)
    return Cause(
        CauseKind.FLOW_CONTROLLED,
        f"{_who(member)} is flow-controlled: it holds as many messages as it may in "
        f"{plural(len(full), 'queue')} and pulls no more until its listener is done with some.",
        (
            f"{plural(held.cached, 'message')}, {held.cached_mib} MiB of {at.topic} queue "
            f"{at.queue_id} are held; it may hold {look.threshold:,} messages, "
            f"{look.threshold_mib} MiB (pullThresholdForQueue, pullThresholdSizeForQueue)",
        ),
        f"{_running(evidence, member.client_id)} shows what the listener does; raise the "
        "thresholds if messages are just big",
    )


def _skewed(evidence: Evidence, window: Sequence[GroupState]) -> Iterator[Cause]:
    """One queue gets most messages, and its owner alone cannot do them while others are idle."""
    looks = told(evidence)
    orderly = any(look.is_orderly for look in looks.values())
    if not looks or not (orderly or len(looks) > 1) or not needs_help(evidence):
        return
    state = evidence.state
    first = next((s for s in window if state.taken_ms - s.taken_ms <= SKEW_MS), state)
    before = {queue.key: queue.max_offset for queue in first.queues}
    watched = state.taken_ms - first.taken_ms >= WAITED_MS
    for topic in sorted({each.topic for look in looks.values() for each in look.subscriptions}):
        queues = [q for q in state.of_kind(QueueKind.TOPIC) if q.topic == topic]
        if len(queues) < 2:
            continue
        came = [
            (q.max_offset or 0) - ((before.get(q.key) if watched else q.min_offset) or 0)
            for q in queues
        ]
        worst = queues[came.index(max(came))]
        share = max(came) / max(sum(came), 1)
        ages = [waits_ms(evidence, q) >= WAITED_MS for q in queues if q is not worst]
        if share < 0.5 + 0.5 / len(queues) or any(ages) or waits_ms(evidence, worst) < WAITED_MS:
            continue
        how = "came there while it was watched" if watched else "kept lie there"
        yield Cause(
            CauseKind.SKEWED_QUEUE,
            f"One queue is skewed: {where(worst)} gets {share:.0%} of the messages of "
            f"{len(queues)} queues; {waits(worst.waiting or 0)} there, and nobody but its owner "
            "may help.",
            (
                f"{max(came):,} of {sum(came):,} messages {how}",
                f"{named(worst.client_id, 'its member')} has it; the other queues keep up",
                *(("in order: one message of a queue at a time",) if orderly else ()),
            ),
            "spread the messages: a sharding key with more values, or a second part of it for the "
            "value that is so frequent; more members or queues do not help that one",
        )


# --- poison ---------------------------------------------------------------------------------------


def _fails_in_order(evidence: Evidence, member: Member) -> Cause | None:
    """An orderly listener gives the same message back again and again: its queue stands."""
    first, second = member.first, member.second
    if first is None or second is None or not second.is_orderly:
        return None
    queues = {q.key: q for q in evidence.state.queues}
    for at, held in second.queues.items():
        queue, before = queues.get(at), first.queues.get(at)
        rates = second.rates.get(at.topic)
        if queue is None or before is None or rates is None or not rates.failed_tps:
            continue
        stands = before.commit_offset == held.commit_offset == queue.committed_offset
        if not stands or not held.cached or waits_ms(evidence, queue) < HELD_MS:
            continue
        message = _message_at(evidence, at, held.commit_offset)
        what = "The message"
        if message is not None:
            what = f"{f'Message {message.msg_id}' if named(message.msg_id) else what}"
            what += with_key(message.keys)
        return Cause(
            CauseKind.POISON_MESSAGE,
            f"{what} at offset {held.commit_offset:,} of {where(at)} fails again and again; "
            "consumed in order, nothing behind it is consumed.",
            (
                f"{_who(member)} fails {rate(rates.failed_tps)} of {at.topic}, "
                f"{plural(rates.failed_hour, 'message')} in the last hour",
                f"the committed offset stands, {waits(queue.waiting or 0)} behind",
            ),
            "mend the listener, or stop the members and skip the message: `rocketstream group "
            f"reset {evidence.state.group} {at.topic} --queue {at.broker_name}:{at.queue_id} "
            f"--to-offset {held.commit_offset + 1}`",
        )
    return None


def _poison(evidence: Evidence) -> Iterator[Cause]:
    """Messages that fail again and again, seen in the retry topic."""
    state = evidence.state
    rates: Iterable[TopicRates] = (r for k in told(evidence).values() for r in k.rates.values())
    unknown = state.delayed is None and any(r.failed_tps > 0 for r in rates)
    if not state.retrying and not state.delayed and not unknown:
        return
    by_id: dict[str, MessageFacts] = {}
    for message in sorted(evidence.failed, key=lambda each: each.reconsume_times):
        by_id[message.msg_id] = message
    poison = sorted(
        (m for m in by_id.values() if m.reconsume_times >= POISON_TIMES),
        key=lambda message: (-message.reconsume_times, message.msg_id),
    )
    if not poison:
        return
    worst = poison[0]
    more = f", and {plural(len(poison) - 1, 'other')}" if len(poison) > 1 else ""
    topic = named(worst.origin_topic) or worst.topic
    what = f"Message {worst.msg_id}" if named(worst.msg_id) else "A message"
    yield Cause(
        CauseKind.POISON_MESSAGE,
        f"{what}{with_key(worst.keys)} of {topic} fails again and again{more}.",
        (
            *(
                f"{m.msg_id}{f' (key {m.keys})' if m.keys else ''} was given back "
                f"{plural(m.reconsume_times, 'time')}"
                for m in poison[:3]
            ),
            f"{plural(state.retrying or 0, 'message')} due in the retry topic",
        ),
        f"{_view(topic, worst)} shows it; mend the listener: after "
        "its last try it becomes a dead letter (`rocketstream dlq`)",
    )
