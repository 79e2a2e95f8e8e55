"""The causes why a group is behind, found in the evidence, the most telling cause first.

Pure: evidence in, causes out.

Law: a cause is named only on evidence that healthy groups do not give; a question without an answer
is not evidence, and is reported beside the causes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from rocketstream.admin.core import member_causes as inside
from rocketstream.admin.core.evidence import Evidence, FilterSeen, Look, MessageFacts
from rocketstream.admin.core.member_causes import WAITED_MS, YOUNG_MS, queue_of, told, waits_ms
from rocketstream.admin.core.pinned import find_pinned
from rocketstream.admin.core.verdicts import judge
from rocketstream.admin.core.windows import is_filtered, relevant, stands_ms_of
from rocketstream.admin.core.words import plural, some, span, waits
from rocketstream.admin.rows import SubscriptionRow
from rocketstream.admin.state import (
    Cause,
    CauseKind,
    GroupState,
    PinnedMessage,
    QueueKind,
    QueueState,
    Verdict,
    WhyReport,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol import names

RANK = (
    CauseKind.BROKER_SILENT,
    CauseKind.NO_MEMBERS,
    CauseKind.SHARED_ID,
    CauseKind.STARVED_POOL,
    CauseKind.PINNED_MESSAGE,
    CauseKind.DEAD_LOCK_OWNER,
    CauseKind.BROKER_READ_ONLY,
    CauseKind.UNOWNED_QUEUE,
    CauseKind.PAUSED,
    CauseKind.SUBSCRIPTION_MISMATCH,
    CauseKind.EXPIRED_OFFSET,
    CauseKind.FILTERED_TO_NOTHING,
    CauseKind.POISON_MESSAGE,
    CauseKind.DEAD_LETTERS,
    CauseKind.FLAPPING,
    CauseKind.SKEWED_QUEUE,
    CauseKind.SLOW_LISTENER,
    CauseKind.FLOW_CONTROLLED,
    CauseKind.IDLE_MEMBERS,
)
"""As the verdicts they lead to: causes that stop messages altogether, that lose some, that fail
some, that slow them.
"""
LETTERS_MIN = 3
LETTERS_MS = 600_000
"""Fewer dead letters than this in that time are single messages."""
POISON_TIMES = 3
"""A message given back this often is not a passing fault."""
EXAMINED_MIN = 50
"""With fewer messages than this nothing is concluded about a filter."""
EVALUATED_MIN = 1_000
"""How many messages a condition must reject, if the properties it names exist: some are strict."""
FLAPPING_MS = 600_000
FLAPPING_MIN = 3
"""A member that connected this often in that time comes and goes; a deploy restarts it once."""
SKEW_MS = 300_000
NAMED_MAX = 8
"""At most this many causes of one kind are reported."""


def explain(evidence: Evidence, window: Sequence[GroupState]) -> WhyReport:
    """Return why a group is behind; ``window`` has its states, oldest first, the newest too."""
    pinned = find_pinned(evidence, stands_ms_of(window))
    causes = find_causes(evidence, pinned, window)
    verdict = judge(window, pinned, causes)
    group = evidence.state.group
    return WhyReport(group, verdict, causes, evidence.unknown, pinned=tuple(pinned))


def find_causes(
    evidence: Evidence,
    pinned: Sequence[PinnedMessage] | None = None,
    window: Sequence[GroupState] = (),
) -> tuple[Cause, ...]:
    """Return the causes the evidence shows, ranked.

    Args:
        evidence: the findings.
        pinned: the pinned messages among them, where the queues were watched before; None finds
            those that the evidence alone shows.
        window: the group's states before and with the evidence, oldest first.
    """
    found: list[Cause] = []
    if pinned is None:
        pinned = find_pinned(evidence)
    found += _silent(evidence)
    found += _no_members(evidence)
    found += _flapping(evidence, window)
    found += _skewed(evidence, window)
    found += _shared_id(evidence)
    found += _paused(evidence)
    found += _pinned(evidence, pinned)
    found += _in_members(evidence, {each.client_id for each in pinned})
    found += _ownership(evidence)
    found += _permissions(evidence)
    found += _poison(evidence)
    found += _letters(evidence)
    found += _mismatch(evidence)
    found += _expired(evidence)
    found += _filtered(evidence)
    found += _idle(evidence)
    return tuple(sorted(found, key=lambda cause: RANK.index(cause.kind)))


def _pinned(evidence: Evidence, pinned: Sequence[PinnedMessage]) -> Iterator[Cause]:
    for each in pinned[:NAMED_MAX]:
        yield inside.pinned_cause(evidence, each)


def _in_members(evidence: Evidence, pinning: set[str]) -> Iterator[Cause]:
    """Return the causes a member's threads and process queues show, one cause per member."""
    for member in evidence.members:
        if (starved := inside.starved_pool(evidence, member)) is not None:
            yield starved
        elif (failing := inside.failing_in_order(evidence, member)) is not None:
            yield failing
        elif (slow := inside.slow_listener(evidence, member)) is not None:
            yield slow
        elif (paused := inside.held_up(evidence, member)) is not None:
            if not evidence.paused_at:
                yield paused
        elif member.client_id not in pinning:
            full = inside.flow_controlled(evidence, member)
            if full is not None:
                yield full


def _paused(evidence: Evidence) -> Iterator[Cause]:
    """Brokers refuse the group's pulls because of its settings; its members are not the cause."""
    state, closed = evidence.state, evidence.paused_at
    if not closed:
        return
    waiting = sum(
        q.waiting or 0 for q in state.queues if q.broker_name in closed and relevant(state, q)
    )
    where = some(sorted(closed))
    tells = f"{waits(waiting)} there" if waiting else "what is sent from now on will wait"
    yield Cause(
        CauseKind.PAUSED,
        f"The group is paused: {where} gives it nothing; {tells}.",
        (f"consumeEnable=false in the group's settings at {where}",),
        f"`rocketstream group resume {state.group}` lets it go on",
        is_latent=not waiting,
    )


def _no_members(evidence: Evidence) -> Iterator[Cause]:
    state = evidence.state
    waiting = sum(q.waiting or 0 for q in state.queues if relevant(state, q) and q.waiting)
    if state.members != () or waiting <= 0 or not state.of_kind(QueueKind.RETRY):
        return
    longest = max((waits_ms(evidence, queue) for queue in state.queues), default=0)
    yield Cause(
        CauseKind.NO_MEMBERS,
        f"Nobody consumes: no member of {state.group} is connected to any broker.",
        (
            f"{waits(waiting)}, the oldest for {span(longest)}",
            "the group had members before: its retry topic is there",
        ),
        "start its program; if it runs, it is connected to another cluster or under another group",
    )


def _shared_id(evidence: Evidence) -> Iterator[Cause]:
    """Programs with one client id: queues are divided by ids, so each takes the same ones."""
    for member in evidence.state.members or ():
        if not member.twins:
            continue
        number = plural(1 + len(member.twins), "program")
        yield Cause(
            CauseKind.SHARED_ID,
            f"{number} are connected as one member, {member.client_id}: each is given the same "
            "queues, so that messages are consumed twice, or half of the queues by nobody.",
            (f"connected from {some([member.address, *member.twins])}",),
            "give each an instance name of its own (instance_name, instanceName), or none, where "
            "the client makes one of its process; containers may share address and process id",
            is_latent=True,
        )


def _silent(evidence: Evidence) -> Iterator[Cause]:
    """Brokers that answered nothing about any queue of the group."""
    state = evidence.state
    told = {q.broker_name for q in state.queues if q.max_offset is not None}
    reasons = {q.broker_name: q.error for q in state.queues if q.error}
    for name in sorted(set(reasons) - told):
        number = sum(q.broker_name == name for q in state.queues)
        yield Cause(
            CauseKind.BROKER_SILENT,
            f"Broker {name} does not answer: how the group does in {plural(number, 'queue')} there "
            "is not known, and nothing of them is consumed while it hangs.",
            (f"{reasons[name]}",),
            "`rocketstream broker list` shows who answers; look at its process, its disk and the "
            "network to it. It goes on where it was: nothing is to be reset",
        )


def _flapping(evidence: Evidence, window: Sequence[GroupState]) -> Iterator[Cause]:
    """A member, or another program at its address, that connects again and again."""
    since_ms = evidence.state.taken_ms - FLAPPING_MS
    seen: list[dict[str, set[str]]] = []
    for state in window:
        if state.taken_ms >= since_ms and state.members is not None:
            at: dict[str, set[str]] = {}
            for member in state.members:
                at.setdefault(member.client_id.partition("@")[0], set()).add(member.client_id)
            seen.append(at)
    for host in sorted({host for at in seen for host in at}):
        came = [later.get(host, set()) - before.get(host, set())
                for before, later in pairwise(seen)]  # fmt: skip
        number = sum(map(len, came))
        if number < FLAPPING_MIN * max(len(at.get(host, ())) for at in seen):
            continue
        who = sorted({client for each in came for client in each})
        yield Cause(
            CauseKind.FLAPPING,
            f"{some(who, 1)} comes and goes: members at {host} connected {plural(number, 'time')} "
            f"in {span(FLAPPING_MS)}. Each time queues change hands, wait for it, and what was in "
            "hand is consumed again.",
            (f"{len(seen)} looks; connected in {sum(host in at for at in seen)} of them",),
            "see in its log why it restarts or loses its connection: an error at its start, its "
            "memory limit, a health check, long pauses of its process",
            is_latent=True,
        )


def _skewed(evidence: Evidence, window: Sequence[GroupState]) -> Iterator[Cause]:
    """One queue gets most messages, and its owner alone cannot do them while others are idle."""
    looks = told(evidence)
    orderly = any(look.is_orderly for look in looks.values())
    if not looks or not (orderly or len(looks) > 1) or not inside.needs_help(evidence):
        return
    state = evidence.state
    first = next((s for s in window if state.taken_ms - s.taken_ms <= SKEW_MS), state)
    before = {queue.key: queue.max_offset for queue in first.queues}
    watched = state.taken_ms - first.taken_ms >= WAITED_MS
    for topic in sorted({queue.topic for queue in _subscribed(evidence, looks)}):
        queues = [q for q in state.of_kind(QueueKind.TOPIC) if q.topic == topic]
        came = [
            (q.max_offset or 0) - ((before.get(q.key) if watched else q.min_offset) or 0)
            for q in queues
        ]
        most = max(came)
        worst = queues[came.index(most)]
        others = (waits_ms(evidence, q) for q in queues if q is not worst)
        share = most / max(sum(came), 1)
        if (
            len(queues) < 2
            or share < 0.5 + 0.5 / len(queues)
            or waits_ms(evidence, worst) < WAITED_MS
            or max(others) >= WAITED_MS
        ):
            continue
        where = f"queue {worst.queue_id} of {topic} at {worst.broker_name}"
        yield Cause(
            CauseKind.SKEWED_QUEUE,
            f"One queue is skewed: {where} gets {share:.0%} of the messages, of {len(queues)} "
            f"queues; {waits(worst.waiting or 0)} there, and nobody but its owner may help.",
            (
                f"{most:,} of {sum(came):,} messages "
                + ("came there while it was watched" if watched else "kept lie there"),
                f"{worst.client_id or 'its member'} has it; the other queues keep up",
                *(("in order: one message of a queue at a time",) if orderly else ()),
            ),
            "spread the messages: a sharding key with more values, or a second part of it for the "
            "value that is so frequent; more members or queues do not help that one",
        )


# --- owners of queues -----------------------------------------------------------------------------


def _ownership(evidence: Evidence) -> Iterator[Cause]:
    state = evidence.state
    looks = told(evidence)
    if state.message_model != "CLUSTERING" or not looks:
        return
    locked_out = {at for member in evidence.members for at in inside.unlocked(evidence, member)}
    nobody: list[QueueState] = []
    if state.consume_type == "CONSUME_PASSIVELY" and _all_told_and_run_long(evidence, looks):
        had = {
            at
            for member in evidence.members
            for look in (member.first, member.second)
            if look is not None
            for at in look.queues
        }
        nobody = [q for q in _subscribed(evidence, looks) if queue_of(q) not in had]
        nobody = [q for q in nobody if _is_left(evidence, q, looks) and _readable(evidence, q)]
    orderly = any(look.is_orderly for look in looks.values())
    if orderly and all(look.divides_averagely for look in looks.values()):
        # These strategies leave no queue without a member: its owner was refused the lock.
        locked_out |= {queue_of(queue) for queue in nobody}
        nobody = []
    if locked_out:
        yield _locked_out(evidence, sorted(locked_out))
    if nobody:
        yield _unowned(evidence, nobody, looks)


def _all_told_and_run_long(evidence: Evidence, looks: Mapping[str, Look]) -> bool:
    members = evidence.state.members
    if members is None or {m.client_id for m in members} - set(looks):
        return False
    for look in looks.values():
        if look.started_ms is None or look.now_ms is None:
            continue
        if look.now_ms - look.started_ms < YOUNG_MS:
            return False
    return True


def _is_left(evidence: Evidence, queue: QueueState, looks: Mapping[str, Look]) -> bool:
    """Return whether messages of a queue wait for longer than a rebalance takes."""
    if queue.committed_offset is not None or queue.max_offset is None:
        return waits_ms(evidence, queue) >= WAITED_MS
    # Nothing was ever committed: it holds messages, and all members have been there for long.
    youngest_ms = min(
        (
            look.now_ms - look.started_ms
            for look in looks.values()
            if look.now_ms is not None and look.started_ms is not None
        ),
        default=0,
    )
    return queue.max_offset > (queue.min_offset or 0) and youngest_ms >= WAITED_MS


def _subscribed(evidence: Evidence, looks: Mapping[str, Look]) -> Iterator[QueueState]:
    topics = {s.topic for look in looks.values() for s in look.subscriptions}
    for queue in evidence.state.of_kind(QueueKind.TOPIC):
        if queue.topic in topics:
            yield queue


def _locked_out(evidence: Evidence, queues: list[MessageQueue]) -> Cause:
    group = evidence.state.group
    first = queues[0]
    return Cause(
        CauseKind.DEAD_LOCK_OWNER,
        f"No member has the lock of {plural(len(queues), 'queue')} consumed in order "
        f"({first.topic} queue {first.queue_id} at "
        f"{first.broker_name}{' and others' if len(queues) > 1 else ''}): a client that is not a "
        "member holds it.",
        (
            f"the {plural(len(evidence.members), 'member')} of {group} told which queues they have "
            "locked; none has these",
            "a broker gives a lock to another member 60 s after its holder renewed it last",
        ),
        "look for a process of this group that lost its connection and still runs (it renews the "
        "lock every 20 s), and stop it; a crashed one's lock ends by itself within 60 s",
    )


def _unowned(evidence: Evidence, queues: list[QueueState], looks: Mapping[str, Look]) -> Cause:
    strategies = sorted(
        {look.properties.get("allocateMessageQueueStrategy", "unknown") for look in looks.values()}
    )
    shown = [f"{q.topic} queue {q.queue_id} at {q.broker_name}" for q in queues]
    return Cause(
        CauseKind.UNOWNED_QUEUE,
        f"No member has {plural(len(queues), 'queue')} in which messages wait: {some(shown)}.",
        (
            f"{plural(len(looks), 'member')} told which queues they have; "
            f"{waits(sum(_held_by(q) for q in queues))} in those nobody has",
            f"strategy of dividing queues: {some(strategies)}",
        ),
        "give all members the same strategy and one that leaves no queue out; where members came "
        "or went just now, ask again in 20 s",
    )


def _held_by(queue: QueueState) -> int:
    if queue.waiting is not None:
        return queue.waiting
    return (queue.max_offset or 0) - (queue.min_offset or 0)


def _idle(evidence: Evidence) -> Iterator[Cause]:
    """More members than queues: some get no queue. Reported only where help is needed."""
    state = evidence.state
    looks = told(evidence)
    if state.message_model != "CLUSTERING" or state.consume_type != "CONSUME_PASSIVELY":
        return
    if evidence.verdict.verdict is Verdict.OK or not _all_told_and_run_long(evidence, looks):
        return
    queues = list(_subscribed(evidence, looks))
    if not inside.needs_help(evidence):
        return
    idle = sorted(
        client
        for client, look in looks.items()
        if not any(not at.topic.startswith(names.RETRY_PREFIX) for at in look.queues)
    )
    if not idle or len(looks) <= len(queues):
        return
    yield Cause(
        CauseKind.IDLE_MEMBERS,
        f"{plural(len(looks), 'member')} share {plural(len(queues), 'queue')}: "
        f"{plural(len(idle), 'member')} can have none and do nothing.",
        (f"without any queue: {some(idle)}",),
        "give the topic more queues, or the group fewer members",
    )


# --- messages -------------------------------------------------------------------------------------


def _poison(evidence: Evidence) -> Iterator[Cause]:
    """Messages that fail again and again, seen in the retry topic."""
    state = evidence.state
    if not state.retrying and state.delayed == 0:
        return
    if not state.retrying and state.delayed is None and not _fails(evidence):
        return
    by_id: dict[str, MessageFacts] = {}
    for message in evidence.failed:
        known = by_id.get(message.msg_id)
        if known is None or known.reconsume_times < message.reconsume_times:
            by_id[message.msg_id] = message
    poison = sorted(
        (m for m in by_id.values() if m.reconsume_times >= POISON_TIMES),
        key=lambda message: (-message.reconsume_times, message.msg_id),
    )
    if not poison:
        return
    worst = poison[0]
    keys = f" (key {worst.keys})" if worst.keys else ""
    more = f", and {plural(len(poison) - 1, 'other')}" if len(poison) > 1 else ""
    topic = worst.origin_topic or worst.topic
    yield Cause(
        CauseKind.POISON_MESSAGE,
        f"Message {worst.msg_id}{keys} of {topic} fails again and again{more}.",
        (
            *(
                f"{m.msg_id}{f' (key {m.keys})' if m.keys else ''} was given back "
                f"{plural(m.reconsume_times, 'time')}"
                for m in poison[:3]
            ),
            f"{plural(state.retrying or 0, 'message')} due in the retry topic",
        ),
        f"`rocketstream message view {topic} {worst.msg_id}` shows it; mend the listener: after "
        "its last try it becomes a dead letter (`rocketstream dlq`)",
    )


def _letters(evidence: Evidence) -> Iterator[Cause]:
    """Messages the group gave up in the last minutes, by the reason their listener gave."""
    number = sum(each.count for each in evidence.letters)
    if number < LETTERS_MIN:
        return
    group, worst = evidence.state.group, evidence.letters[0]
    lines = [
        f"{plural(each.count, 'message')}: {each.cause}"
        f"{f' at {each.where}' if each.where else ''}"
        f"{f', the newest with key {each.example_key}' if each.example_key else ''}"
        for each in evidence.letters[:NAMED_MAX]
    ]
    yield Cause(
        CauseKind.DEAD_LETTERS,
        f"{group} gives messages up: {number:,} of its newest became dead letters in the last "
        f"{span(LETTERS_MS)}, most of them for: {worst.cause}.",
        tuple(lines),
        f"mend the listener, then `rocketstream dlq redrive {group} --cause {worst.id}` sends them "
        f"again; `rocketstream dlq causes {group}` counts all",
    )


def _fails(evidence: Evidence) -> bool:
    return any(r.failed_tps > 0 for look in told(evidence).values() for r in look.rates.values())


def _expired(evidence: Evidence) -> Iterator[Cause]:
    state = evidence.state
    lost = [q for q in state.queues if relevant(state, q) and (q.expired or 0) > 0]
    if not lost:
        return
    worst = max(lost, key=lambda queue: queue.expired or 0)
    yield Cause(
        CauseKind.EXPIRED_OFFSET,
        f"{plural(sum(q.expired or 0 for q in lost), 'message')} were deleted before the group "
        f"consumed them: its offset in {plural(len(lost), 'queue')} is older than what is kept.",
        (
            f"{worst.topic} queue {worst.queue_id} at {worst.broker_name}: committed "
            f"{worst.committed_offset:,}, oldest message kept {worst.min_offset:,}",
        ),
        "they are lost to the group, which goes on with the oldest kept; keep messages longer "
        "(fileReservedTime) or consume sooner",
    )


def _filtered(evidence: Evidence) -> Iterator[Cause]:
    looks = told(evidence)
    for topic, seen in sorted(evidence.filters.items()):
        called = any(
            topic in look.rates and (look.rates[topic].consume_ms or look.rates[topic].ok_tps)
            for look in looks.values()
        )
        # Its listener was called recently: some messages match, but seldom.
        if called or not is_filtered(evidence.state, topic) or not _matches_nothing(seen):
            continue
        idle = "members finished nothing of this topic in the last minute"
        if seen.expression_type == "SQL92":
            if looks:  # A condition is rarely so strict that no member reports a single call.
                yield _condition_cause(topic, seen, idle)
            continue
        tags = [tag if tag is not None else "no tag" for tag in seen.tags]
        yield Cause(
            CauseKind.FILTERED_TO_NOTHING,
            f"The subscription {seen.expression!r} of {topic} matches nothing: none of the newest "
            f"{plural(seen.examined, 'message')} is for this group.",
            (
                f"tags of the newest messages: {some(dict.fromkeys(tags)) or 'unknown'}",
                *((idle,) if looks else ()),
            ),
            "compare the expression with what senders write: tags match exactly, case too",
        )


def _matches_nothing(seen: FilterSeen) -> bool:
    enough = EXAMINED_MIN
    if seen.expression_type == "SQL92" and not _absent(seen):
        enough = EVALUATED_MIN
    return not seen.matching and seen.examined >= enough


def _absent(seen: FilterSeen) -> list[str]:
    """Return the properties a condition names that none of the messages read has."""
    return [name for name in seen.names if seen.properties and name not in seen.properties]


def _condition_cause(topic: str, seen: FilterSeen, idle: str) -> Cause:
    absent = _absent(seen)
    has = some(seen.properties) if seen.properties else "unknown"
    return Cause(
        CauseKind.FILTERED_TO_NOTHING,
        f"The condition {seen.expression!r} of {topic} matches nothing: the broker finds none of "
        f"the newest {plural(seen.examined, 'message')} for this group.",
        (
            *((f"no message that was read has {some(absent)}",) if absent else ()),
            f"properties of the newest messages: {has}",
            idle,
        ),
        "compare the condition with the properties senders set: names match exactly, case too; a "
        "comparison with a property that is missing, or is not a number, never holds",
    )


# --- settings -------------------------------------------------------------------------------------


def _mismatch(evidence: Evidence) -> Iterator[Cause]:
    """Members that subscribe differently: a broker keeps only the last heartbeat's subscription."""
    variants: dict[frozenset[tuple[str, str, str]], list[str]] = {}
    for client, look in sorted(told(evidence).items()):
        own = frozenset(_normal(s) for s in look.subscriptions if not _is_retry(s.topic))
        if own:
            variants.setdefault(own, []).append(client)
    if len(variants) < 2:
        return
    common = frozenset.intersection(*variants)
    lines = [
        f"{some(clients)}: "
        + (
            some([f"{topic} {expression}" for topic, _, expression in sorted(own - common)])
            or "nothing more than the others"
        )
        for own, clients in sorted(variants.items(), key=lambda each: each[1])
    ]
    yield Cause(
        CauseKind.SUBSCRIPTION_MISMATCH,
        f"Members of {evidence.state.group} subscribe differently: messages of queues whose member "
        "does not want them are skipped for all.",
        tuple(lines),
        "let all members of a group subscribe the same topics with the same expression; give "
        "programs that want something else a group of their own",
    )


def _normal(row: SubscriptionRow) -> tuple[str, str, str]:
    expression = row.expression.strip() or "*"
    if row.expression_type == "TAG":
        expression = " || ".join(sorted({tag.strip() for tag in expression.split("||")}))
    return row.topic, row.expression_type, expression


def _permissions(evidence: Evidence) -> Iterator[Cause]:
    state = evidence.state
    unreadable = sorted(k for k, perm in evidence.permissions.items() if "R" not in perm)
    unwritable = sorted(
        k for k, perm in evidence.permissions.items() if "R" in perm and "W" not in perm
    )
    if unreadable:
        waiting = sum(
            q.waiting or 0 for q in state.queues if (q.topic, q.broker_name) in set(unreadable)
        )
        shown = some([f"{topic} at {broker}" for topic, broker in unreadable])
        yield Cause(
            CauseKind.BROKER_READ_ONLY,
            f"Not readable: {shown}; members are not given its queues.",
            (f"{waits(waiting)} there",),
            "give back the permission to read: of the topic, or brokerPermission of the broker",
        )
    if unwritable:
        shown = some([f"{topic} at {broker}" for topic, broker in unwritable])
        back = any(_is_retry(topic) for topic, _ in unwritable)
        yield Cause(
            CauseKind.BROKER_READ_ONLY,
            f"Read-only: {shown}; nothing new is stored there.",
            (
                "what a listener fails cannot be sent back for another try there"
                if back
                else "senders are refused there",
            ),
            "give back the permission to write: of the topic, or brokerPermission of the broker",
        )


def _readable(evidence: Evidence, queue: QueueState) -> bool:
    return "R" in evidence.permissions.get((queue.topic, queue.broker_name), "R")


def _is_retry(topic: str) -> bool:
    return topic.startswith(names.RETRY_PREFIX)
