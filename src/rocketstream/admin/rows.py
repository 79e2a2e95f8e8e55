"""The results of admin operations: frozen rows, one per broker, topic, queue, group or member.

Pure: values. None means "not known", so that zero always means zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class BrokerRow:
    """One broker process as the name server knows it.

    Attributes:
        broker_id: 0 is the master.
        address: ``host:port`` clients connect to.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str


@dataclass(frozen=True, slots=True, order=True)
class TopicRow:
    """One topic.

    Attributes:
        kind: ``normal``, ``retry``, ``dead letter`` or ``system``.
        brokers: names of the brokers that hold it.
        read_queues: read queues over all brokers; None when no broker answered.
        write_queues: write queues over all brokers; None when no broker answered.
        permission: ``RW``, ``R`` or ``W`` (what every broker allows); None when no broker answered.
    """

    topic: str
    kind: str
    brokers: tuple[str, ...]
    read_queues: int | None
    write_queues: int | None
    permission: str | None


@dataclass(frozen=True, slots=True, order=True)
class RouteRow:
    """One broker's part of a topic.

    Attributes:
        address: the master's ``host:port``; None while the broker has no master.
    """

    topic: str
    broker_name: str
    address: str | None
    read_queues: int
    write_queues: int
    permission: str


@dataclass(frozen=True, slots=True, order=True)
class MemberRow:
    """One connected member of a consumer group.

    Attributes:
        address: where it is connected from, ``host:port``.
        twins: where others are connected from, at the same broker, under the same client id: they
            are programs of their own, and are given the same queues.
    """

    client_id: str
    address: str
    language: str
    version: int
    twins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProgressRow:
    """One queue of one group at one moment, or what could not be asked and why.

    Attributes:
        cluster: name of the cluster the broker belongs to.
        broker_name: None where no broker could be asked.
        group: the consumer group; None where its broker's groups are not known.
        topic: None where ``error`` tells why there are no queues.
        kind: ``topic``, ``retry`` (the group's own retry topic) or ``dead letter`` (the messages
            the group gave up: nobody has a lag in them).
        min_offset: offset of the oldest message kept.
        max_offset: offset the next message will get.
        committed_offset: the offset of the next message to consume; None when none is stored, or
            not known.
        lag: messages kept and not consumed; None when not known. Negative where the group is ahead
            of a queue that was deleted and made again.
        time_lag_ms: how long the oldest message not consumed has been stored, 0 when caught up.
        last_consumed_ms: store time of the last consumed message, ms since 1970.
        client_id: the member that owns the queue now.
        members: connected members of the group at this broker.
        consume_tps: messages a second the broker delivered to the group in this topic, over a
            minute; the same for all queues of the topic at the broker.
        error: why something is None; None where everything is known.
        expired: messages deleted before the group consumed them; they are not lag.
    """

    cluster: str | None
    broker_name: str | None
    group: str | None
    topic: str | None = None
    kind: str | None = None
    queue_id: int | None = None
    min_offset: int | None = None
    max_offset: int | None = None
    committed_offset: int | None = None
    lag: int | None = None
    time_lag_ms: int | None = None
    last_consumed_ms: int | None = None
    client_id: str | None = None
    members: int | None = None
    consume_tps: float | None = None
    error: str | None = None
    expired: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class SubscriptionRow:
    """The members' subscription of one topic."""

    topic: str
    expression: str
    expression_type: str


@dataclass(frozen=True, slots=True)
class ConnectionRow:
    """The connected members of a group and how they consume.

    Attributes:
        consume_type: ``CONSUME_PASSIVELY`` (push) or ``CONSUME_ACTIVELY`` (pull).
        message_model: ``CLUSTERING`` or ``BROADCASTING``.
    """

    group: str
    consume_type: str
    message_model: str
    consume_from_where: str
    members: tuple[MemberRow, ...]
    subscriptions: tuple[SubscriptionRow, ...]


@dataclass(frozen=True, slots=True, order=True)
class TimeSpanRow:
    """The store times between which a group stands in one queue, in ms since 1970.

    Attributes:
        min_store_ms: when the oldest message kept was stored; None for an empty queue.
        max_store_ms: when the newest one was stored; None for an empty queue.
        consumed_ms: when the last consumed one was stored; None when there is none.
        delay_ms: age of the oldest message not yet consumed, 0 when caught up.
    """

    topic: str
    broker_name: str
    queue_id: int
    min_store_ms: int | None
    max_store_ms: int | None
    consumed_ms: int | None
    delay_ms: int


@dataclass(frozen=True, slots=True, order=True)
class TrackRow:
    """The fate of one message in one group.

    Attributes:
        status: ``CONSUMED``, ``CONSUMED_BUT_FILTERED``, ``RETRYING`` (sent back, and waiting for
            its next try), ``DEAD_LETTERED``, ``NOT_CONSUME_YET``, ``NOT_ONLINE``, ``PULL`` or
            ``UNKNOWN``.
        description: the reason of the status; for ``UNKNOWN``, what is missing. None where there is
            nothing to add.
        tries: how often it was sent back; None where it was not sent back, or the number is not
            known.
        since_ms: when its last copy was stored, ms since 1970; None without one.
        due_ms: when the next try is due, by the usual delays; None where none waits.
    """

    group: str
    status: str
    description: str | None = None
    tries: int | None = None
    since_ms: int | None = None
    due_ms: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class RunningQueueRow:
    """One queue inside a running member.

    Attributes:
        commit_offset: the member's own progress.
        cached: messages it holds: waiting for a thread, or in a listener's hands.
        cached_mib: the size of their bodies together, in whole MiB.
        locked: whether an orderly member holds the broker's lock.
        last_pull_ms: when the member last asked for messages of it, ms since 1970 by its clock.
        last_consume_ms: when its listener last finished messages of it.
        oldest: offset of the oldest message it holds; None while it holds none.
        newest: offset of the newest message it holds; None while it holds none.
        last_lock_ms: when an orderly member last got the lock.
    """

    topic: str
    broker_name: str
    queue_id: int
    commit_offset: int
    cached: int = 0
    cached_mib: int = 0
    locked: bool = False
    dropped: bool = False
    last_pull_ms: int | None = None
    last_consume_ms: int | None = None
    oldest: int | None = None
    newest: int | None = None
    last_lock_ms: int | None = None

    @property
    def finished_behind(self) -> int:
        """Messages behind the oldest that are finished; with a filter, an upper bound."""
        if self.oldest is None or self.newest is None:
            return 0
        return max(self.newest - self.oldest + 1 - self.cached, 0)


@dataclass(frozen=True, slots=True)
class RunningInfoRow:
    """The state of one member, as it reported itself (C-540).

    Attributes:
        properties: its settings by upstream's names.
        rates: by topic: pullRT, pullTPS, consumeRT, consumeOKTPS, consumeFailedTPS,
            consumeFailedMsgs.
        stacks: stacks of its threads, when asked for.
    """

    group: str
    client_id: str
    properties: dict[str, str]
    subscriptions: tuple[SubscriptionRow, ...]
    queues: tuple[RunningQueueRow, ...]
    rates: dict[str, dict[str, float]] = field(default_factory=dict)
    stacks: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumePlan:
    """The plan of making one member consume one message.

    Attributes:
        keys: the message's keys, as its sender set them; None without keys.
        queue_offset: its offset in its queue.
        stored_ms: when it was stored, ms since 1970.
    """

    group: str
    client_id: str
    topic: str
    msg_id: str
    keys: str | None
    broker_name: str
    queue_id: int
    queue_offset: int
    stored_ms: int


@dataclass(frozen=True, slots=True)
class ConsumedRow:
    """The outcome of a message that a member was made to consume.

    Attributes:
        result: ``CR_SUCCESS``, ``CR_LATER``, ``CR_ROLLBACK``, ``CR_COMMIT``,
            ``CR_THROW_EXCEPTION`` or ``CR_RETURN_NULL``.
        remark: the exception of the listener, if it raised one.
    """

    client_id: str
    result: str
    order: bool
    auto_commit: bool
    spent_ms: int
    remark: str | None
