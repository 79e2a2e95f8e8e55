"""What a cluster, a topic, a group was at one moment: the values every face of operation renders.

Law: plain frozen values. None means "not known", with the reason beside it; zero means zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from rocketstream.admin.rows import MemberRow, SubscriptionRow


class QueueKind(StrEnum):
    """Whose messages a queue of a group holds."""

    TOPIC = "topic"
    RETRY = "retry"
    DEAD_LETTER = "dead letter"


@dataclass(frozen=True, slots=True)
class QueueState:
    """One queue of one group at one moment.

    Attributes:
        kind: a topic's queue, one of the group's retry topic, or of its dead letters (nobody has a
            lag in those).
        min_offset: offset of the oldest message kept.
        max_offset: offset the next message will get.
        committed_offset: the next to be consumed; None when none is stored, or not known.
        matching: of the messages not consumed and still kept, those the group's filter wants; None
            where it has none, or where they were not counted.
        matching_is_exact: False where ``matching`` was estimated from a part.
        matching_range: the least and the most ``matching`` is, with 95 % certainty; None where it
            is exact or not known.
        next_stored_ms: when the next message to consume was stored, ms since 1970: where
            ``matching`` is exact, the next the group will get; None when caught up, or not known.
        last_stored_ms: when the newest message was stored; None for an empty queue or unknown.
        last_consumed_ms: when the last consumed message was stored; None when there is none.
        client_id: the member that owns the queue now; None when nobody does, or it did not tell.
        error: why something is None; None where all was told.
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
    def expired(self) -> int | None:
        """Messages deleted before the group consumed them: lost to retention, no lag."""
        if self.committed_offset is None or self.min_offset is None:
            return None
        return max(self.min_offset - self.committed_offset, 0)

    @property
    def lag(self) -> int | None:
        """Messages kept and not consumed, whatever their tags; never counts expired ones.

        Negative where the group is ahead of a queue that was made anew. A retry queue without a
        committed offset will be consumed from its oldest message (C-195), so all of it waits.
        """
        if self.max_offset is None:
            return None
        if self.committed_offset is None:
            if self.kind is QueueKind.RETRY and self.error is None:
                return self.max_offset - (self.min_offset or 0)
            # An empty queue has nothing to be behind of, whatever is committed.
            return 0 if self.max_offset == 0 else None
        return self.max_offset - max(self.committed_offset, self.min_offset or 0)

    @property
    def waiting(self) -> int | None:
        """Messages the group will get: those its filter wants where that is known, else ``lag``."""
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
        taken_ms: when it was asked, ms since 1970, by the clock of who asked.
        members: the connected members; None when a broker did not answer that question.
        message_model: ``CLUSTERING`` or ``BROADCASTING``; None while no member is connected.
        consume_type: ``CONSUME_PASSIVELY`` (push) or ``CONSUME_ACTIVELY`` (pull); None likewise.
        subscriptions: what the members subscribe.
        queues: its queues, retry and dead-letter ones included, sorted.
        consume_tps: messages a second the brokers gave it, by topic, over a minute; a topic
            nobody told of is absent.
        delayed: messages that failed and wait for their delay to end; None when not known.
        delayed_is_exact: False where ``delayed`` is only the least it can be.
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
    def lag(self) -> int | None:
        """Messages waiting in topic and retry queues whose lag is known; None if none is."""
        known = [q.lag for q in self.of_kind(QueueKind.TOPIC, QueueKind.RETRY) if q.lag is not None]
        # Being ahead in one queue, which was made anew, makes up for nothing in another.
        return sum(max(lag, 0) for lag in known) if known else None

    @property
    def waiting(self) -> int | None:
        """Messages it will get: as ``lag``, but those its filter wants where that is known."""
        found = self.of_kind(QueueKind.TOPIC, QueueKind.RETRY)
        known = [q.waiting for q in found if q.waiting is not None]
        return sum(max(waiting, 0) for waiting in known) if known else None

    @property
    def ages_unknown(self) -> int:
        """Queues of which it is not known how long the next message has waited."""
        found = self.of_kind(QueueKind.TOPIC, QueueKind.RETRY)
        return sum(q.time_lag_ms(self.taken_ms) is None for q in found)

    @property
    def queues_unknown(self) -> int:
        """Queues whose lag is not known, not counted in ``lag``."""
        return sum(q.lag is None for q in self.of_kind(QueueKind.TOPIC, QueueKind.RETRY))

    @property
    def expired(self) -> int | None:
        """Messages lost to retention in its topics; None when no queue told."""
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
        """How long its oldest waiting message has waited; None when no queue told."""
        found = self.of_kind(QueueKind.TOPIC, QueueKind.RETRY)
        known = [lag for q in found if (lag := q.time_lag_ms(self.taken_ms)) is not None]
        return max(known) if known else None


@dataclass(frozen=True, slots=True)
class TopicState:
    """One topic at one moment.

    Attributes:
        kind: ``normal``, ``retry``, ``dead letter`` or ``system``.
        permission: ``RW``, ``R`` or ``W``; None when no broker told.
        queues: ``(broker name, queue id, min offset, max offset, newest store time in ms or
            None)``, sorted.
        consumers: groups with progress in it or members subscribing it; None when not known.
        errors: what could not be asked, and why.
    """

    topic: str
    kind: str
    taken_ms: int
    permission: str | None = None
    queues: tuple[tuple[str, int, int, int, int | None], ...] = ()
    consumers: tuple[str, ...] | None = None
    errors: tuple[str, ...] = ()

    @property
    def messages(self) -> int:
        """Messages kept."""
        return sum(high - low for _, _, low, high, _ in self.queues)


@dataclass(frozen=True, slots=True)
class BrokerState:
    """One broker at one moment.

    Attributes:
        addresses: ``host:port`` by broker id; 0 is the master.
        version: as it names itself (``V4_9_7``); None when it did not answer.
        facts: what it tells of itself (GET_BROKER_RUNTIME_INFO), by upstream's names.
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
    """Everything one sweep found.

    Attributes:
        taken_ms: when the sweep began, ms since 1970.
        took_ms: how long it took.
        requests: how many requests it cost.
        error: why there is nothing, when no name server answered; else None.
    """

    taken_ms: int
    took_ms: int
    requests: int
    brokers: tuple[BrokerState, ...] = ()
    topics: Mapping[str, TopicState] = field(default_factory=dict)
    groups: Mapping[str, GroupState] = field(default_factory=dict)
    error: str | None = None


class Verdict(StrEnum):
    """How a group does, judged from a window of its states."""

    OK = "OK"
    CATCHING_UP = "CATCHING UP"
    FALLING_BEHIND = "FALLING BEHIND"
    STALLED = "STALLED"
    STOPPED = "STOPPED"
    REWOUND = "REWOUND"
    PINNED = "PINNED"
    UNKNOWN = "UNKNOWN"


URGENCY: Final = (
    Verdict.PINNED,
    Verdict.STALLED,
    Verdict.STOPPED,
    Verdict.FALLING_BEHIND,
    Verdict.REWOUND,
    Verdict.UNKNOWN,
    Verdict.CATCHING_UP,
    Verdict.OK,
)
"""Verdicts, the one to look at first at the head."""


@dataclass(frozen=True, slots=True)
class PinnedMessage:
    """A message that never leaves a member's process queue while those behind it are consumed.

    The committed offset stands at it meanwhile, and all behind it come again after a restart.

    Attributes:
        queue_offset: its offset: the smallest the member still holds, and the committed one.
        client_id: the member that holds it.
        held_ms: how long it has been there at least.
        finished_behind: messages with greater offsets that were consumed meanwhile, at least.
        msg_id: the id the sender gave it; None when the message could not be read.
        keys: its keys; None likewise, and where it has none.
        stack: where the thread that holds it stands; None when no member told.
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
    """A verdict and what explains it.

    Attributes:
        sentence: explains the verdict with its figures, for an operator.
        since_ms: since when, as far as the window tells; None when not known.
        eta_ms: how long until caught up at this pace; None unless catching up.
        consume_rate: messages a second the committed offsets moved on by; None with one state.
        arrival_rate: messages a second that arrived; None with one state.
        topic, broker_name, queue_id: the queue that decided it, where one did.
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


class CauseKind(StrEnum):
    """Why a group is behind."""

    PINNED_MESSAGE = "pinned message"
    POISON_MESSAGE = "poison message"
    STARVED_POOL = "starved pool"
    SLOW_LISTENER = "slow listener"
    SUBSCRIPTION_MISMATCH = "subscription mismatch"
    UNOWNED_QUEUE = "no member for a queue"
    IDLE_MEMBERS = "more members than queues"
    EXPIRED_OFFSET = "expired offset"
    PAUSED = "paused or flow-controlled"
    DEAD_LOCK_OWNER = "lock held by a dead owner"
    BROKER_READ_ONLY = "broker not readable or writable"
    FILTERED_TO_NOTHING = "filtered to nothing"
    NO_MEMBERS = "no members"


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause, with what shows it.

    Attributes:
        sentence: names the cause with queue, message, key, client as far as they are known.
        evidence: the observations it rests on, a line each.
        remedy: what to do, a command where there is one.
        stack: where the listener's threads stand, if a member told.
        is_latent: whether it holds nothing up yet, and will hold up what comes.
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
        unknown: what could not be asked, and why: causes may hide there.
        took_ms: how long finding out took.
    """

    group: str
    verdict: GroupVerdict
    causes: tuple[Cause, ...]
    unknown: tuple[str, ...] = ()
    took_ms: int = 0


def total(values: Iterable[int | None]) -> int | None:
    """Return the sum; None where one of the values is not known."""
    found = 0
    for value in values:
        if value is None:
            return None
        found += value
    return found
