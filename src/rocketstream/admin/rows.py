"""What the admin operations return: frozen rows, one per broker, topic, queue, group or member.

Law: plain values. None means "not known", so that zero always means zero.
"""

from __future__ import annotations

from dataclasses import dataclass


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
        read_queues: over all brokers; None when no broker told.
        write_queues: over all brokers; None when no broker told.
        permission: ``RW``, ``R`` or ``W`` (what every broker allows); None when no broker told.
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
class TopicStatusRow:
    """What one queue holds.

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
    def message_count(self) -> int:
        """Messages kept in the queue."""
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True, order=True)
class MemberRow:
    """One connected member of a consumer group."""

    client_id: str
    address: str
    language: str
    version: int


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One consumer group.

    Attributes:
        members: connected members; None when a broker did not answer the question.
        message_model: ``CLUSTERING`` or ``BROADCASTING``; None while no member is connected.
        topics: topics with committed offsets, retry topic included.
        lag: messages not yet consumed over all queues whose lag is known; None when no queue
            is known.
        queues_unknown: queues whose committed offset is not known, not counted in ``lag``.
    """

    group: str
    members: int | None
    message_model: str | None
    topics: tuple[str, ...]
    lag: int | None
    queues_unknown: int


@dataclass(frozen=True, slots=True)
class LagRow:
    """How far one group is in one queue.

    Attributes:
        broker_offset: offset the next message will get.
        consumer_offset: committed offset, the next to be consumed; None when none is stored.
        lag: ``broker_offset - consumer_offset``; None when that is not known.
        last_consumed_ms: store time of the last consumed message; None when there is none
            (never consumed, or the message is deleted).
        time_lag_ms: age of the oldest message not yet consumed, 0 when caught up; None when
            not known.
        client_id: the member that owns the queue now; None when nobody does or it did not tell.
    """

    group: str
    topic: str
    broker_name: str
    queue_id: int
    broker_offset: int
    consumer_offset: int | None
    lag: int | None
    last_consumed_ms: int | None
    time_lag_ms: int | None
    client_id: str | None
