"""Evidence for tests: a healthy group, and small changes that make it a faulty one.

Law: pure; plain values as brokers and members would tell them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rocketstream.admin.core.causes import find_causes
from rocketstream.admin.core.evidence import (
    Evidence,
    FilterSeen,
    Look,
    Member,
    MessageFacts,
    ThreadStack,
    TopicRates,
)
from rocketstream.admin.core.held import find_pinned
from rocketstream.admin.rows import MemberRow, RunningQueueRow, SubscriptionRow
from rocketstream.admin.state import Cause, GroupState, QueueKind, QueueState
from rocketstream.model import MessageQueue

NOW = 1_700_000_000_000
APART = 500
GROUP, TOPIC, BROKER = "billing", "orders", "broker-a"
RETRY = f"%RETRY%{GROUP}"
AVERAGELY = "org.apache.rocketmq.client.consumer.allocate.AllocateMessageQueueAveragely@1b2c"


def at(queue_id: int, topic: str = TOPIC) -> MessageQueue:
    return MessageQueue(topic, BROKER, queue_id)


def thread(number: int, place: str | None = None) -> ThreadStack:
    """A thread of the pool, inside a listener at ``place`` or idle."""
    frames: tuple[str, ...] = ("jdk.internal.misc.Unsafe.park(Native Method)",)
    inside = (*frames, place) if place else ()
    return ThreadStack(
        f"ConsumeMessageThread_{GROUP}_{number}", inside or frames, "WAITING", inside
    )


@dataclass
class Scene:
    """A group at two looks; a test changes what it is about.

    Attributes:
        queues: of the topic, as the later state tells them.
        held: of each member, what it has of each queue: at the first and the second look.
    """

    queues: list[QueueState] = field(default_factory=list)
    members: dict[str, dict[MessageQueue, tuple[RunningQueueRow, RunningQueueRow]]] = field(
        default_factory=dict
    )
    properties: dict[str, str] = field(default_factory=dict)
    threads: list[ThreadStack] = field(default_factory=list)
    rates: TopicRates = field(default_factory=lambda: TopicRates(20.0, 5.0, 20.0))
    expressions: dict[str, str] = field(default_factory=dict)
    started_ms: int = NOW - 3_600_000
    arrival_tps: float = 20.0
    more: dict[str, Any] = field(default_factory=dict)
    state_more: dict[str, Any] = field(default_factory=dict)

    def look(self, client: str, which: int) -> Look:
        told = {
            "PROP_CONSUMEORDERLY": "false",
            "PROP_THREADPOOL_CORE_SIZE": "4",
            "consumeMessageBatchMaxSize": "1",
            "pullThresholdForQueue": "1000",
            "pullThresholdSizeForQueue": "100",
            "allocateMessageQueueStrategy": AVERAGELY,
            "PROP_CONSUMER_START_TIMESTAMP": str(self.started_ms),
        }
        return Look(
            NOW - APART * (1 - which),
            told | self.properties,
            (
                SubscriptionRow(RETRY, "*", "TAG"),
                SubscriptionRow(TOPIC, self.expressions.get(client, "*"), "TAG"),
            ),
            {queue: each[which] for queue, each in self.members[client].items()},
            {TOPIC: self.rates},
            tuple(self.threads),
        )

    def state(self, taken_ms: int = NOW) -> GroupState:
        first = next(iter(self.members), None)
        told: dict[str, Any] = {
            "members": tuple(MemberRow(c, f"{c}:1", "JAVA", 409) for c in sorted(self.members)),
            "message_model": "CLUSTERING" if self.members else None,
            "consume_type": "CONSUME_PASSIVELY" if self.members else None,
            "subscriptions": (
                SubscriptionRow(TOPIC, self.expressions.get(first or "", "*"), "TAG"),
            ),
            "queues": (*self.queues, RETRY_QUEUE),
        }
        return GroupState(GROUP, taken_ms, **(told | self.state_more))

    def evidence(self) -> Evidence:
        state = self.state()
        told: dict[str, Any] = {
            "earlier": self.state(NOW - APART),
            "members": tuple(
                Member(client, self.look(client, 0), self.look(client, 1))
                for client in sorted(self.members)
            ),
            "permissions": {(TOPIC, BROKER): "RW", (RETRY, BROKER): "RW"},
            "arrival_tps": {TOPIC: self.arrival_tps},
        }
        return Evidence(state, **(told | self.more))


RETRY_QUEUE = QueueState(RETRY, BROKER, 0, QueueKind.RETRY, 0, 0, 0)


def queue(
    queue_id: int, committed: int | None, end: int, waited_ms: int | None = None, **more: Any
) -> QueueState:
    """A queue of the topic; its next message has waited so long."""
    return replace(
        QueueState(
            TOPIC,
            BROKER,
            queue_id,
            QueueKind.TOPIC,
            0,
            end,
            committed,
            next_stored_ms=None if waited_ms is None else NOW - waited_ms,
            last_stored_ms=NOW - 100,
        ),
        **more,
    )


def moving(commit: int, held: int = 3, moved: int = 10) -> tuple[RunningQueueRow, RunningQueueRow]:
    """A queue of a member whose messages are finished as they come."""
    return (
        _held(commit - moved, held, NOW - APART - 40, NOW - APART - 10),
        _held(commit, held, NOW - 40, NOW - 10),
    )


def still(
    commit: int,
    held: int,
    *,
    span: int | None = None,
    finished_ago_ms: int = 3_600_000,
    pulled_ago_ms: int | None = 100,
    **more: Any,
) -> tuple[RunningQueueRow, RunningQueueRow]:
    """A queue of a member that does not move between the looks."""
    pulled = None if pulled_ago_ms is None else NOW - pulled_ago_ms
    one = _held(commit, held, pulled, NOW - finished_ago_ms, span)
    one = replace(one, **more)
    return one, one


def _held(
    commit: int, held: int, pulled_ms: int | None, finished_ms: int, span: int | None = None
) -> RunningQueueRow:
    last = commit + (held if span is None else span) - 1
    return held_queue(
        commit,
        held,
        commit if held else None,
        last if held else None,
        last_pull_ms=pulled_ms,
        last_consume_ms=finished_ms,
    )


def held_queue(
    commit: int, held: int = 0, first: int | None = None, last: int | None = None, **more: Any
) -> RunningQueueRow:
    """What a member tells of a queue, without its name: a look has it beside."""
    return RunningQueueRow("", "", 0, commit, held, oldest=first, newest=last, **more)


def healthy() -> Scene:
    """Two members, four queues, some messages on their way."""
    return Scene(
        queues=[queue(k, 1_000 + k, 1_010 + k, 3_000) for k in range(4)],
        members={
            "c1": {at(0): moving(1_003), at(1): moving(1_004)},
            "c2": {at(2): moving(1_005), at(3): moving(1_006)},
        },
        threads=[thread(1, "com.acme.Orders.save(Orders.java:42)"), *map(thread, range(2, 5))],
    )


def facts(queue_id: int, offset: int, key: str, times: int = 0, topic: str = TOPIC) -> MessageFacts:
    return MessageFacts(
        topic, BROKER, queue_id, offset, f"AC{offset}", key, "paid", NOW - 60_000, times, TOPIC
    )


def tags(expression: str, examined: int, matching: int, *seen: str) -> Mapping[str, FilterSeen]:
    return {TOPIC: FilterSeen(TOPIC, expression, examined, matching, tuple(seen))}


def causes_of(evidence: Evidence, window: Sequence[GroupState] = ()) -> tuple[Cause, ...]:
    """Return the causes evidence shows, pinned messages too."""
    return find_causes(evidence, find_pinned(evidence), window)


def kinds(causes: Sequence[Any]) -> list[str]:
    return [cause.kind.value for cause in causes]
