"""A cluster, a topic or a group at one moment: the values that every face renders.

Pure: frozen values. None means "not known", with the reason beside it; zero means zero.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from rocketstream.admin.rows import MemberRow, SubscriptionRow
from rocketstream.model import MessageQueue
from rocketstream.protocol import names
from rocketstream.protocol.codes import Perm


class QueueKind(StrEnum):
    """The kind of messages in a queue of a group."""

    TOPIC = "topic"
    RETRY = "retry"
    DEAD_LETTER = "dead letter"


@dataclass(frozen=True, slots=True)
class QueueState:
    """One queue of one group at one moment.

    Attributes:
        kind: a queue of a topic, of the group's retry topic, or of its dead letters (which have no
            lag).
        min_offset: offset of the oldest message kept.
        max_offset: offset the next message will get.
        committed_offset: the offset of the next message to consume; None when none is stored, or
            not known.
        matching: how many of the messages kept and not consumed the group's filter wants; None
            where it has no filter, or where they were not counted.
        matching_is_exact: False where ``matching`` was estimated from a part.
        matching_range: the bounds of ``matching`` with 95 % certainty; None where it is exact or
            not known.
        next_stored_ms: when the next message to consume was stored, ms since 1970: where
            ``matching`` is exact, the next the group will get; None when caught up, or not known.
        last_stored_ms: when the newest message was stored; None for an empty queue or unknown.
        last_consumed_ms: when the last consumed message was stored, ms since 1970; None when there
            is none.
        client_id: the member that owns the queue now; None when nobody does, or the member did not
            answer.
        error: why something is None; None where everything is known.
    """

    topic: str
    broker_name: str
    queue_id: int
    kind: QueueKind = QueueKind.TOPIC
    min_offset: int | None = None
    max_offset: int | None = None
    committed_offset: int | None = None
    matching: int | None = None
    matching_is_exact: bool = True
    next_stored_ms: int | None = None
    last_stored_ms: int | None = None
    last_consumed_ms: int | None = None
    client_id: str | None = None
    error: str | None = None
    matching_range: tuple[int, int] | None = None

    @property
    def key(self) -> MessageQueue:
        """The queue, by which it is found in another state."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    @property
    def expired(self) -> int | None:
        """Messages deleted before the group consumed them: lost to retention, and not lag."""
        if self.committed_offset is None or self.min_offset is None:
            return None
        return max(self.min_offset - self.committed_offset, 0)

    @property
    def lag(self) -> int | None:
        """Messages kept and not consumed, with any tag; never counts expired ones.

        Negative where the group is ahead of a queue that was deleted and made again. A retry queue
        without a committed offset will be consumed from its oldest message (C-195), so all of it
        waits.
        """
        end, low, committed = self.max_offset, self.min_offset or 0, self.committed_offset
        if end is None:
            return None
        if committed is None:
            if self.kind is QueueKind.RETRY and self.error is None:
                return end - low
            # A group is never behind in an empty queue, with any committed offset.
            return 0 if end == 0 else None
        return end - (committed if committed > low else low)

    @property
    def waiting(self) -> int | None:
        """Messages the group will get: those its filter wants if that is known, else ``lag``."""
        return self.lag if self.matching is None else self.matching

    def time_lag_ms(self, now_ms: int) -> int | None:
        """Return how long the next message has waited, 0 when caught up, None when not known."""
        if self.waiting is not None and self.waiting <= 0:
            return 0
        if self.next_stored_ms is None:
            return None
        return max(now_ms - self.next_stored_ms, 0)


@dataclass(frozen=True, slots=True)
class GroupState:
    """One consumer group at one moment.

    Attributes:
        taken_ms: when the brokers were asked, ms since 1970 by the asking process's clock.
        members: the connected members; None when a broker did not answer that question.
        message_model: ``CLUSTERING`` or ``BROADCASTING``; None while no member is connected.
        consume_type: ``CONSUME_PASSIVELY`` (push) or ``CONSUME_ACTIVELY`` (pull); None while no
            member is connected.
        subscriptions: what the members subscribe.
        queues: its queues, retry and dead-letter ones included, sorted.
        consume_tps: messages a second the brokers delivered to it, by topic, over a minute; a topic
            no broker reported is absent.
        delayed: messages that failed and wait for their delay to end; None when not known.
        delayed_is_exact: False where ``delayed`` is only a lower bound.
        errors: what could not be asked, and why.
    """

    group: str
    taken_ms: int
    members: tuple[MemberRow, ...] | None = None
    message_model: str | None = None
    consume_type: str | None = None
    subscriptions: tuple[SubscriptionRow, ...] = ()
    queues: tuple[QueueState, ...] = ()
    consume_tps: Mapping[str, float] = field(default_factory=dict)
    delayed: int | None = None
    delayed_is_exact: bool = True
    errors: tuple[str, ...] = ()

    def of_kind(self, *kinds: QueueKind) -> tuple[QueueState, ...]:
        """Return the queues of these kinds."""
        return tuple(queue for queue in self.queues if queue.kind in kinds)

    @property
    def consumed(self) -> tuple[QueueState, ...]:
        """The queues it consumes: all but its dead letters."""
        return self.of_kind(QueueKind.TOPIC, QueueKind.RETRY)

    @property
    def member_count(self) -> int | None:
        """How many members are connected; None when not known."""
        return None if self.members is None else len(self.members)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics it has queues in, its retry topic included."""
        return tuple(sorted({queue.topic for queue in self.consumed}))

    @property
    def lag(self) -> int | None:
        """Messages waiting in topic and retry queues; None as ``sum_of`` says."""
        return sum_of(self.consumed, [q.lag for q in self.consumed])

    @property
    def waiting(self) -> int | None:
        """Messages the group will get: as ``lag``, or those its filter wants if that is known."""
        return sum_of(self.consumed, [q.waiting for q in self.consumed])

    @property
    def ages_unknown(self) -> int:
        """How many queues do not say for how long their next message has waited."""
        return sum(q.time_lag_ms(self.taken_ms) is None for q in self.consumed)

    @property
    def queues_unknown(self) -> int:
        """How many queues have an unknown lag: of these a broker told all but a commit, or not."""
        return sum(q.lag is None for q in self.consumed)

    @property
    def expired(self) -> int | None:
        """Messages lost to retention in its topics; None when no queue's number is known."""
        known = [q.expired for q in self.of_kind(QueueKind.TOPIC) if q.expired is not None]
        return sum(known) if known else None

    @property
    def retrying(self) -> int | None:
        """Messages due for another try in its retry topic; None when not known."""
        return total([q.lag for q in self.of_kind(QueueKind.RETRY)])

    @property
    def dead_letters(self) -> int | None:
        """Messages kept in its dead-letter topic; None when not known, 0 without such a topic."""
        found = self.of_kind(QueueKind.DEAD_LETTER)
        return total(
            [
                None
                if q.max_offset is None or q.min_offset is None
                else q.max_offset - q.min_offset
                for q in found
            ]
        )

    @property
    def time_lag_ms(self) -> int | None:
        """How long its oldest waiting message has waited; None as ``longest_of`` says."""
        return longest_of(self.consumed, self.taken_ms)


@dataclass(frozen=True, slots=True, order=True)
class TopicQueue:
    """The offsets and the newest message of one queue.

    Attributes:
        min_offset: offset of the oldest message kept.
        max_offset: offset the next message will get.
        last_update_ms: when the newest message was stored; None for an empty queue.
    """

    topic: str
    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    last_update_ms: int | None

    @property
    def key(self) -> MessageQueue:
        """The queue, by which it is found in another state."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    @property
    def message_count(self) -> int:
        """Messages kept in the queue."""
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class TopicState:
    """One topic at one moment.

    Attributes:
        kind: ``normal``, ``retry``, ``dead letter`` or ``system``.
        permission: ``RW``, ``R`` or ``W``; None when no broker answered.
        queues: its queues, sorted by broker and id.
        consumers: groups with progress in it or members subscribing it; None when not known.
        errors: what could not be asked, and why.
    """

    topic: str
    kind: str
    taken_ms: int
    permission: str | None = None
    queues: tuple[TopicQueue, ...] = ()
    consumers: tuple[str, ...] | None = None
    errors: tuple[str, ...] = ()

    @property
    def messages(self) -> int | None:
        """Messages kept; None while no broker says which queues there are."""
        if self.errors and not self.queues:
            return None
        return sum(queue.message_count for queue in self.queues)


@dataclass(frozen=True, slots=True)
class ThreadPool:
    """Requests waiting for a thread pool of a broker.

    Attributes:
        waiting: how many requests wait.
        head_wait_ms: how long the first of them has waited; None when not reported.
    """

    waiting: int
    head_wait_ms: int | None


@dataclass(frozen=True, slots=True)
class BrokerFigures:
    """A broker's own figures; None where it does not report one.

    Attributes:
        version: its version as it names it (``V4_9_7``).
        booted_ms: when it started, ms since 1970.
        put_tps: messages a second stored, over the last 10 s.
        get_tps: messages a second fetched, over the last 10 s.
        put_total: messages stored since it started.
        get_total: messages fetched since it started.
        disk_used: share of the fullest disk its commit log is on, 0 to 1.
        log_bytes: bytes kept in the commit log.
        earliest_ms: store time of the oldest message kept.
        active: whether it accepts messages; reported by 5.x brokers, else None.
        pools: the waiting requests, by pool (``send``, ``pull``, ``query`` …).
        page_cache_lock_ms: how long the store has been locked for the append under way.
    """

    version: str | None = None
    booted_ms: int | None = None
    put_tps: float | None = None
    get_tps: float | None = None
    put_total: int | None = None
    get_total: int | None = None
    disk_used: float | None = None
    log_bytes: int | None = None
    earliest_ms: int | None = None
    active: bool | None = None
    pools: Mapping[str, ThreadPool] = field(default_factory=dict)
    page_cache_lock_ms: int | None = None


@dataclass(frozen=True, slots=True)
class BrokerState:
    """One broker at one moment.

    Attributes:
        addresses: ``host:port`` by broker id; 0 is the master.
        version: its version as it names it (``V4_9_7``); None when it did not answer.
        facts: its report about itself (GET_BROKER_RUNTIME_INFO), by upstream's names.
        error: why it could not be asked.
    """

    cluster: str
    broker_name: str
    taken_ms: int
    addresses: Mapping[int, str] = field(default_factory=dict)
    version: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The result of one sweep.

    Attributes:
        taken_ms: when the sweep began, ms since 1970.
        took_ms: how long it took.
        requests: how many requests it cost.
        error: why the result is empty, when no name server answered; else None.
    """

    taken_ms: int
    took_ms: int
    requests: int
    brokers: tuple[BrokerState, ...] = ()
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    groups: Mapping[str, GroupState] = field(default_factory=dict)
    error: str | None = None


class Verdict(StrEnum):
    """The state of a group, judged from a window of its states; the most urgent first."""

    PINNED = "PINNED"
    STALLED = "STALLED"
    STOPPED = "STOPPED"
    LOSING = "LOSING"
    FAILING = "FAILING"
    FALLING_BEHIND = "FALLING BEHIND"
    REWOUND = "REWOUND"
    UNKNOWN = "UNKNOWN"
    CATCHING_UP = "CATCHING UP"
    OK = "OK"


URGENCY: Final = tuple(Verdict)


@dataclass(frozen=True, slots=True)
class PinnedMessage:
    """A message that never leaves a member's process queue while those behind it are consumed.

    The committed offset stays at it meanwhile, and all messages behind it come again after a
    restart.

    Attributes:
        queue_offset: its offset, which is the smallest the member still holds and the committed
            one.
        client_id: the member that holds it.
        held_ms: how long at least it has been held.
        finished_behind: how many messages with greater offsets at least were consumed meanwhile.
        msg_id: the id the sender gave it; None when the message could not be read.
        keys: its keys; None when it has none or could not be read.
        stack: the stack of the thread that holds it; None when no member reported it.
    """

    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    client_id: str
    held_ms: int
    finished_behind: int = 0
    msg_id: str | None = None
    keys: str | None = None
    stack: str | None = None


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """A verdict and its explanation.

    Attributes:
        sentence: explains the verdict with its figures, for an operator.
        since_ms: since when it holds, as far as the window shows, ms since 1970; None when not
            known.
        eta_ms: how long until caught up at this pace; None unless catching up.
        consume_rate: messages a second by which the committed offsets advanced; None with one
            state.
        arrival_rate: messages a second that arrived; None with one state.
        topic, broker_name, queue_id: the queue that decided the verdict, if one did.
    """

    group: str
    verdict: Verdict
    sentence: str
    since_ms: int | None = None
    eta_ms: int | None = None
    consume_rate: float | None = None
    arrival_rate: float | None = None
    topic: str | None = None
    broker_name: str | None = None
    queue_id: int | None = None


def counted(verdicts: Iterable[GroupVerdict]) -> dict[Verdict, int]:
    """Return how many groups have each verdict, the most urgent first; without those none has."""
    found = Counter(each.verdict for each in verdicts)
    return {verdict: found[verdict] for verdict in URGENCY if verdict in found}


class CauseKind(StrEnum):
    """Why a group is behind, the most telling first, as the verdicts they lead to: causes that stop
    messages altogether, that lose some, that fail some, that slow them."""

    BROKER_SILENT = "broker does not answer"
    NO_MEMBERS = "no members"
    SHARED_ID = "two clients with one id"
    STARVED_POOL = "starved pool"
    PINNED_MESSAGE = "pinned message"
    DEAD_LOCK_OWNER = "lock held by a dead owner"
    BROKER_READ_ONLY = "broker not readable or writable"
    UNOWNED_QUEUE = "no member for a queue"
    PAUSED = "paused"
    SUBSCRIPTION_MISMATCH = "subscription mismatch"
    EXPIRED_OFFSET = "expired offset"
    FILTERED_TO_NOTHING = "filtered to nothing"
    POISON_MESSAGE = "poison message"
    DEAD_LETTERS = "dead letters"
    FLAPPING = "member comes and goes"
    SKEWED_QUEUE = "skewed queue"
    SLOW_LISTENER = "slow listener"
    FLOW_CONTROLLED = "flow-controlled"
    IDLE_MEMBERS = "more members than queues"


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause, with the evidence for it.

    Attributes:
        sentence: names the cause, with queue, message, key and client as far as they are known.
        evidence: the observations behind it, a line each.
        remedy: what to do, with a command if there is one.
        stack: the stacks of the listener's threads, if a member reported them.
        is_latent: whether it holds up nothing yet, but will hold up messages to come.
    """

    kind: CauseKind
    sentence: str
    evidence: tuple[str, ...] = ()
    remedy: str | None = None
    stack: str | None = None
    is_latent: bool = False


@dataclass(frozen=True, slots=True)
class WhyReport:
    """Why a group is behind, the most telling cause first.

    Attributes:
        unknown: what could not be asked, and why; further causes may be hidden there.
        took_ms: how long finding out took.
        pinned: the pinned messages among the causes, the one held longest first.
        state: the group at the moment the report is of, with the owners its members told; None
            where only the rest was kept.
    """

    group: str
    verdict: GroupVerdict
    causes: tuple[Cause, ...]
    unknown: tuple[str, ...] = ()
    took_ms: int = 0
    pinned: tuple[PinnedMessage, ...] = ()
    state: GroupState | None = None


def sum_of(queues: Sequence[QueueState], lags: Sequence[int | None]) -> int | None:
    """Return the sum of queues' lags, of those in which something was ever committed.

    None where no lag is known, or a broker did not tell of a queue: a sum of the others would look
    like all that waits. Being ahead in one queue, which was deleted and made again, does not offset
    the lag in another.
    """
    known = [max(lag, 0) for lag in lags if lag is not None]
    if not known or any(queue.max_offset is None for queue in queues):
        return None
    return sum(known)


def longest_of(queues: Sequence[QueueState], now_ms: int) -> int | None:
    """Return the longest time a message has waited; None where no queue's is known, or a broker did
    not tell of a queue."""
    known = [lag for queue in queues if (lag := queue.time_lag_ms(now_ms)) is not None]
    if not known or any(queue.max_offset is None for queue in queues):
        return None
    return max(known)


def total(values: Iterable[int | None]) -> int | None:
    """Return the sum; None where one of the values is not known."""
    found = 0
    for value in values:
        if value is None:
            return None
        found += value
    return found


# --- fields of an answer --------------------------------------------------------------------------


def topic_kind(topic: str, system: Collection[str]) -> str:
    """Return ``retry``, ``dead letter``, ``system`` or ``normal``.

    Args:
        system: the names the name server lists as system topics, which include clusters and
            brokers.
    """
    if topic.startswith(names.RETRY_PREFIX):
        return "retry"
    if topic.startswith(names.DLQ_PREFIX):
        return "dead letter"
    owner = topic.removesuffix(names.REPLY_TOPIC_SUFFIX)  # every cluster has its own reply topic
    if topic in system or names.is_system_topic(topic) or (owner != topic and owner in system):
        return "system"
    return "normal"


def permission(perm: int) -> str:
    """Return ``RW``, ``R``, ``W`` or nothing."""
    return ("R" if perm & Perm.READ else "") + ("W" if perm & Perm.WRITE else "")


def known_ms(timestamp: int) -> int | None:
    """Return a store time; None where there is none."""
    return timestamp if timestamp > 0 else None


def figures(facts: Mapping[str, str]) -> BrokerFigures:
    """Return the figures in a broker's answer, of any version from 4.0 on."""
    low, high = _integer(facts, "commitLogMinOffset"), _integer(facts, "commitLogMaxOffset")
    earliest_ms = _integer(facts, "earliestMessageTimeStamp")
    active = facts.get("brokerActive")
    return BrokerFigures(
        version=facts.get("brokerVersionDesc") or None,
        booted_ms=_integer(facts, "bootTimestamp"),
        put_tps=_latest(facts, "putTps"),
        get_tps=_latest(facts, "getTransferredTps", "getTransferedTps"),
        put_total=_integer(facts, "msgPutTotalTodayNow"),
        get_total=_integer(facts, "msgGetTotalTodayNow"),
        disk_used=_fullest(facts),
        log_bytes=high - low if low is not None and high is not None and high >= low else None,
        earliest_ms=earliest_ms if earliest_ms is not None and earliest_ms > 0 else None,
        active=active == "true" if active in ("true", "false") else None,
        pools=_pools(facts),
        page_cache_lock_ms=_integer(facts, "pageCacheLockTimeMills"),
    )


def _integer(facts: Mapping[str, str], name: str) -> int | None:
    try:
        return int(facts[name])
    except (KeyError, ValueError):
        return None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _latest(facts: Mapping[str, str], *names: str) -> float | None:
    """Return the first of the rates over 10 s, 1 min and 10 min, which come as one text."""
    for name in names:
        words = facts.get(name, "").split()
        if words:
            return _number(words[0])
    return None


def _fullest(facts: Mapping[str, str]) -> float | None:
    """Return the fullest disk; there is a figure for each path (``commitLogDiskRatio_/data1``)."""
    told = [
        ratio
        for name, text in facts.items()
        if name == "commitLogDiskRatio" or name.startswith("commitLogDiskRatio_")
        if (ratio := _number(text)) is not None
    ]
    return max(told, default=None)


def _pools(facts: Mapping[str, str]) -> dict[str, ThreadPool]:
    ending = "ThreadPoolQueueSize"
    found = {}
    for name in facts:
        waiting = _integer(facts, name) if name.endswith(ending) else None
        if waiting is not None:
            pool = name.removesuffix(ending)
            head = _integer(facts, f"{pool}ThreadPoolQueueHeadWaitTimeMills")
            found[pool] = ThreadPool(waiting, head)
    return found
