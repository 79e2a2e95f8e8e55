"""The causes why a group is behind: who has which queue, what is wanted and kept, and the ranking.

Pure: evidence in, causes out, the most telling first. A cause is named only on evidence that
healthy groups do not give; a question without an answer is not evidence, and is reported beside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from rocketstream.admin.core.evidence import Evidence, FilterSeen, Look
from rocketstream.admin.core.held import (
    NAMED_MAX,
    WAITED_MS,
    find_pinned,
    held_causes,
    needs_help,
    readable,
    told,
    waits_ms,
    where,
)
from rocketstream.admin.core.verdicts import judge
from rocketstream.admin.core.windows import is_filtered, relevant, stands_ms_of
from rocketstream.admin.core.words import named, plural, some, span, waits, word
from rocketstream.admin.rows import SubscriptionRow
from rocketstream.admin.state import (
    Cause,
    CauseKind,
    GroupState,
    PinnedMessage,
    QueueKind,
    QueueState,
    WhyReport,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol import names

RANK = tuple(CauseKind)
YOUNG_MS = 30_000
"""The time a member is given to divide the queues."""
FLAPPING_MS = 600_000
FLAPPING_MIN = 3
"""A member that connected this often in that time comes and goes; a deploy restarts it once."""
LETTERS_MIN = 3
LETTERS_MS = 600_000
"""Fewer dead letters than this in that time are single messages."""
EXAMINED_MIN = 50
"""With fewer messages than this nothing is concluded about a filter."""
EVALUATED_MIN = 1_000
"""How many messages a condition must reject, if the properties it names exist: some are strict."""
EXPRESSION_CHARS_MAX = 200
"""A sentence quotes no expression that is longer."""


def explain(evidence: Evidence, window: Sequence[GroupState]) -> WhyReport:
    """Return why a group is behind; ``window`` has its states, oldest first, the newest too."""
    pinned = find_pinned(evidence, stands_ms_of(window))
    causes = find_causes(evidence, pinned, window)
    verdict = judge(window, pinned, causes)
    group = evidence.state.group
    return WhyReport(
        group, verdict, causes, evidence.unknown, pinned=tuple(pinned), state=evidence.state
    )


def find_causes(
    evidence: Evidence, pinned: Sequence[PinnedMessage], window: Sequence[GroupState] = ()
) -> tuple[Cause, ...]:
    """Return the causes the evidence shows, ranked.

    Args:
        pinned: the pinned messages among them.
        window: the group's states before and with the evidence, oldest first.
    """
    found = [
        *_silent(evidence),
        *_no_members(evidence),
        *_shared_id(evidence),
        *_group_paused(evidence),
        *held_causes(evidence, pinned, window),
        *_ownership(evidence),
        *_flapping(evidence, window),
        *_idle(evidence),
        *_permissions(evidence),
        *_letters(evidence),
        *_mismatch(evidence),
        *_expired(evidence),
        *_filtered(evidence),
    ]
    return tuple(sorted(found, key=lambda cause: RANK.index(cause.kind)))


# --- who has which queue --------------------------------------------------------------------------


def _silent(evidence: Evidence) -> Iterator[Cause]:
    """Brokers that answered nothing about any queue of the group."""
    state = evidence.state
    answered = {q.broker_name for q in state.queues if q.max_offset is not None}
    reasons = {q.broker_name: q.error for q in state.queues if q.error}
    for name in sorted(set(reasons) - answered):
        number = sum(q.broker_name == name for q in state.queues)
        yield Cause(
            CauseKind.BROKER_SILENT,
            f"Broker {name} does not answer: how the group does in {plural(number, 'queue')} there "
            "is not known, and nothing of them is consumed while it hangs.",
            (str(reasons[name]),),
            "`rocketstream broker list` shows who answers; look at its process, its disk and the "
            "network to it. It goes on where it was: nothing is to be reset",
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
            f"{number} are connected as one member, {named(member.client_id, 'of a strange id')}: "
            "each is given the same queues, so that messages are consumed twice, or half of "
            "the queues by nobody.",
            (f"connected from {some([member.address, *member.twins])}",),
            "give each an instance name of its own (instance_name, instanceName), or none, where "
            "the client makes one of its process; containers may share address and process id",
            is_latent=True,
        )


def _group_paused(evidence: Evidence) -> Iterator[Cause]:
    """Brokers refuse the group's pulls because of its settings; its members are not the cause."""
    state, closed = evidence.state, evidence.paused_at
    if not closed:
        return
    waiting = sum(
        q.waiting or 0 for q in state.queues if q.broker_name in closed and relevant(state, q)
    )
    brokers = some(sorted(closed))
    tells = f"{waits(waiting)} there" if waiting else "what is sent from now on will wait"
    yield Cause(
        CauseKind.PAUSED,
        f"The group is paused: {brokers} gives it nothing; {tells}.",
        (f"consumeEnable=false in the group's settings at {brokers}",),
        f"`rocketstream group resume {word(state.group)}` lets it go on",
        is_latent=not waiting,
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
        who = sorted({named(client, "a member") for each in came for client in each})
        yield Cause(
            CauseKind.FLAPPING,
            f"{some(who, 1)} comes and goes: members at {named(host, 'one address')} connected "
            f"{plural(number, 'time')} in {span(FLAPPING_MS)}. Each time queues "
            "change hands, wait for it, and what was in hand is consumed again.",
            (f"{len(seen)} looks; connected in {sum(host in at for at in seen)} of them",),
            "see in its log why it restarts or loses its connection: an error at its start, its "
            "memory limit, a health check, long pauses of its process",
            is_latent=True,
        )


def _ownership(evidence: Evidence) -> Iterator[Cause]:
    """Queues no member has, or none may consume for want of the broker's lock."""
    state, looks = evidence.state, told(evidence)
    if state.message_model != "CLUSTERING" or not looks:
        return
    locked_out = set(_unlocked(evidence))
    nobody: list[QueueState] = []
    if state.consume_type == "CONSUME_PASSIVELY" and _have_divided(evidence, looks):
        both = [look for member in evidence.members for look in (member.first, member.second)]
        had = {at for look in both if look is not None for at in look.queues}
        youngest_ms = min((k.ran_ms for k in looks.values() if k.ran_ms is not None), default=0)
        for queue in _subscribed(evidence, looks):
            left = waits_ms(evidence, queue) >= WAITED_MS
            if queue.committed_offset is None and queue.max_offset is not None:
                # It holds messages of which none was ever committed: members are there for long.
                left = queue.max_offset > (queue.min_offset or 0) and youngest_ms >= WAITED_MS
            if queue.key not in had and left and readable(evidence, queue):
                nobody.append(queue)
    orderly = any(look.is_orderly for look in looks.values())
    if orderly and all(look.divides_averagely for look in looks.values()):
        # These strategies leave no queue without a member: its owner was refused the lock.
        locked_out |= {queue.key for queue in nobody}
        nobody = []
    if locked_out:
        yield _locked_out(evidence, sorted(locked_out))
    if nobody:
        yield _unowned(nobody, looks)


def _unlocked(evidence: Evidence) -> Iterator[MessageQueue]:
    """Yield queues an orderly member has but may not consume, for want of the broker's lock."""
    queues = {q.key: q for q in evidence.state.queues}
    for member in evidence.members:
        first, second = member.first, member.second
        if first is None or second is None or not second.is_orderly:
            continue
        for at, held in second.queues.items():
            before, queue = first.queues.get(at), queues.get(at)
            if before is None or queue is None or waits_ms(evidence, queue) < WAITED_MS:
                continue
            if not before.locked and not held.locked and not held.dropped:
                yield at


def _have_divided(evidence: Evidence, looks: Mapping[str, Look]) -> bool:
    """Whether every member told what it has, and ran long enough to divide the queues."""
    members = evidence.state.members
    if members is None or {m.client_id for m in members} - set(looks):
        return False
    return all(look.ran_ms is None or look.ran_ms >= YOUNG_MS for look in looks.values())


def _subscribed(evidence: Evidence, looks: Mapping[str, Look]) -> list[QueueState]:
    topics = {s.topic for look in looks.values() for s in look.subscriptions}
    return [q for q in evidence.state.of_kind(QueueKind.TOPIC) if q.topic in topics]


def _locked_out(evidence: Evidence, queues: list[MessageQueue]) -> Cause:
    others = " and others" if len(queues) > 1 else ""
    return Cause(
        CauseKind.DEAD_LOCK_OWNER,
        f"No member has the lock of {plural(len(queues), 'queue')} consumed in order "
        f"({where(queues[0])}{others}): a client that is not a member holds it.",
        (
            f"the {plural(len(evidence.members), 'member')} of {evidence.state.group} told which "
            "queues they have locked; none has these",
            "a broker gives a lock to another member 60 s after its holder renewed it last",
        ),
        "look for a process of this group that lost its connection and still runs (it renews the "
        "lock every 20 s), and stop it; a crashed one's lock ends by itself within 60 s",
    )


def _unowned(queues: list[QueueState], looks: Mapping[str, Look]) -> Cause:
    strategies = {
        look.properties.get("allocateMessageQueueStrategy", "unknown") for look in looks.values()
    }
    kept = ((q.max_offset or 0) - (q.min_offset or 0) for q in queues if q.waiting is None)
    waiting = sum(q.waiting or 0 for q in queues) + sum(kept)
    return Cause(
        CauseKind.UNOWNED_QUEUE,
        f"No member has {plural(len(queues), 'queue')} in which messages wait: "
        f"{some([where(queue) for queue in queues])}.",
        (
            f"{plural(len(looks), 'member')} told which queues they have; {waits(waiting)} in "
            "those nobody has",
            f"strategy of dividing queues: {some(sorted(strategies))}",
        ),
        "give all members the same strategy and one that leaves no queue out; where members came "
        "or went just now, ask again in 20 s",
    )


def _idle(evidence: Evidence) -> Iterator[Cause]:
    """More members than queues: some get no queue. Reported only where help is needed."""
    state, looks = evidence.state, told(evidence)
    if state.message_model != "CLUSTERING" or state.consume_type != "CONSUME_PASSIVELY":
        return
    if not _have_divided(evidence, looks) or not needs_help(evidence):
        return
    queues = _subscribed(evidence, looks)
    idle = sorted(
        client
        for client, look in looks.items()
        if all(at.topic.startswith(names.RETRY_PREFIX) for at in look.queues)
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


# --- what is wanted, and what is kept -------------------------------------------------------------


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
            f"The subscription{_quoted(seen)} of {topic} matches nothing: none of the newest "
            f"{plural(seen.examined, 'message')} is for this group.",
            (
                f"tags of the newest messages: {some(dict.fromkeys(tags)) or 'unknown'}",
                *((idle,) if looks else ()),
            ),
            "compare the expression with what senders write: tags match exactly, case too",
        )


def _quoted(seen: FilterSeen) -> str:
    text = repr(seen.expression)
    return f" {text}" if len(text) <= EXPRESSION_CHARS_MAX and "`" not in text else ""


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
        f"The condition{_quoted(seen)} of {topic} matches nothing: the broker finds none of "
        f"the newest {plural(seen.examined, 'message')} for this group.",
        (
            *((f"no message that was read has {some(absent)}",) if absent else ()),
            f"properties of the newest messages: {has}",
            idle,
        ),
        "compare the condition with the properties senders set: names match exactly, case too; a "
        "comparison with a property that is missing, or is not a number, never holds",
    )


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


def _letters(evidence: Evidence) -> Iterator[Cause]:
    """Messages the group gave up in the last minutes, by the reason their listener gave."""
    number = sum(each.count for each in evidence.letters)
    if number < LETTERS_MIN:
        return
    group, worst = evidence.state.group, evidence.letters[0]
    kind = named(worst.cause.partition(":")[0])  # its text is of whoever wrote the message
    lines = [
        f"{plural(each.count, 'message')}: {each.cause}"
        f"{f' at {each.where}' if each.where else ''}"
        f"{f', the newest with key {each.example_key}' if each.example_key else ''}"
        for each in evidence.letters[:NAMED_MAX]
    ]
    yield Cause(
        CauseKind.DEAD_LETTERS,
        f"{group} gives messages up: {number:,} of its newest became dead letters in the last "
        f"{span(LETTERS_MS)}{f', most of them for {kind}' if kind else ''}.",
        tuple(lines),
        f"mend the listener, then `rocketstream dlq redrive {word(group)} --cause {worst.id}` "
        f"sends them again; `rocketstream dlq causes {word(group)}` counts all",
    )


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


def _is_retry(topic: str) -> bool:
    return topic.startswith(names.RETRY_PREFIX)
