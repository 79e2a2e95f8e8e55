"""The actions of clients in a simulated run, by name, and how the run is judged.

Law: the world is a workload's only source of chance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

from rocketstream.model import MessageQueue
from rocketstream.testing.history import Anomaly, AnomalyKind, Rules, check
from rocketstream.testing.history.events import (
    CommitSeen,
    Event,
    LogRead,
    MessageStored,
    OwnersSeen,
    RunEnded,
    SendAcknowledged,
    SendInvoked,
    TransactionDecided,
)
from rocketstream.testing.sim.consuming import Manners, SimGroup, SimLiteGroup, SimPullGroup
from rocketstream.testing.sim.producing import Habits, SimProducer
from rocketstream.testing.sim.world import START_MS, Node, World

BROKER = "broker-a"
TOPIC = "T"
LOOK_EVERY_S = 0.1
MARGIN_MS = 5_000.0
_NEVER_SETTLED_MS = math.inf
_FOLLOWS_DAMAGE = {
    AnomalyKind.COMMITTED_AHEAD,
    AnomalyKind.LOST,
    AnomalyKind.MISPLACED,
    AnomalyKind.OFFSET_BACKWARDS,
    AnomalyKind.REORDERED,
    AnomalyKind.STORED_TWICE,
}
_UNSETTLED = {"EIO on write", "EIO on sync", "disk full", "short writes", "clock jump"}


class Sends(Protocol):
    """The part of a producer that a workload asks about."""

    node: Node

    @property
    def sent(self) -> int:
        """Return how many sends were begun."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether it will send nothing more."""
        ...


class BaseWorkload:
    """Producers, groups, a watch on the broker's offsets, and the verdict.

    Args:
        world: the world everything lives in.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = world.random("workload")
        self.producers: list[Sends] = []
        self.groups: list[SimGroup] = []
        self._committed: dict[tuple[str, MessageQueue], int] = {}
        self._acknowledged: set[str] = set()
        self._decided: dict[str, bool] = {}
        self.build()
        for topic in sorted({group.manners.topic for group in self.groups} | {TOPIC}):
            world.cluster.create_topic(topic)
        world.scheduler.call_later(LOOK_EVERY_S, self._look)

    def build(self) -> None:
        """Add producers and groups."""
        raise NotImplementedError

    # --- for those who build ----------------------------------------------------------------------

    def add_producers(self, count: int, **habits: object) -> None:
        """Add producers that share the messages of the run."""
        each = max(1, self.world.options.messages // count)
        for _ in range(count):
            name = f"producer-{len(self.producers)}"
            own = Habits(TOPIC, each, **habits)  # type: ignore[arg-type]
            self.producers.append(SimProducer(self.world, name, own, self._decided))

    def pace_ms(self, producers: int) -> float:
        """Return a pause (ms) that spreads the sends over the time of faults, or a short one."""
        spread = 2 * self.world.options.fault_ms * producers / self.world.options.messages
        return self.chance.choice((5.0, spread / 2, spread))

    # --- watching ---------------------------------------------------------------------------------

    def _look(self) -> None:
        """Record every offset of the broker that differs from the last look."""
        self.world.scheduler.call_later(LOOK_EVERY_S, self._look)
        if not self.world.cluster.is_ready:
            return
        for group in self.groups:
            for topic in (group.manners.topic, group.retry_topic):
                offsets = self.world.cluster.committed(group.manners.group, topic)
                for queue_id, offset in offsets.items():
                    self._saw(group.manners.group, MessageQueue(topic, BROKER, queue_id), offset)

    def _saw(self, group: str, queue: MessageQueue, offset: int) -> None:
        if self._committed.get((group, queue)) != offset:
            self._committed[group, queue] = offset
            self._record(CommitSeen(self.world.now_ms, group, queue, offset))

    def _record(self, event: Event) -> None:
        self.world.history.append(event)
        self.world.trace.add(f"seen: {event!r}")

    # --- is it over? ------------------------------------------------------------------------------

    @property
    def messages(self) -> int:
        """Return how many sends were begun."""
        return sum(producer.sent for producer in self.producers)

    def is_done(self) -> bool:
        """Whether everything is consumed, committed and owned; asked once faults are over."""
        return not self._missing()

    def unfinished(self) -> str:
        """Return a text that says what is missing."""
        return "; ".join(self._missing()) or "nothing"

    def _missing(self) -> list[str]:
        busy = [producer.node.name for producer in self.producers if not producer.is_done]
        if busy:
            return [f"{', '.join(busy)} still send"]
        due = self._due()
        found: list[str] = []
        for group in self.groups:
            found += self._group_missing(group, due)
        if not found and self.world.power_lost and not self._may_lose:
            # A commit that was not flushed is made again after the broker has asked the producer.
            lacking = due.keys() - {message.keys for message in self.world.cluster.stored(TOPIC)}
            if lacking:
                found.append(f"the log does not hold {sorted(lacking)[:5]}")
        return found

    def _due(self) -> dict[str, str]:
        """Return key and tags of each message that must be consumed: acknowledged and committed."""
        sent: dict[str, SendInvoked] = {}
        acknowledged: set[str] = set()
        commits: set[str] = set()
        for event in self.world.history:
            if isinstance(event, SendInvoked):
                sent[event.key] = event
            elif isinstance(event, SendAcknowledged):
                acknowledged.add(event.key)
            elif isinstance(event, TransactionDecided) and event.commit:
                commits.add(event.key)
        return {
            key: sent[key].tags
            for key in acknowledged
            if not sent[key].transactional or key in commits
        }

    def _group_missing(self, group: SimGroup, due: dict[str, str]) -> list[str]:
        name, tags = group.manners.group, group.manners.tags
        broker = self.world.cluster.broker
        wanted = {key for key, tag in due.items() if not tags or tag in tags}
        if group.pending:
            dead = self.world.cluster.stored(f"%DLQ%{name}")
            group.given_up |= {message.keys for message in dead}
        found = []
        lacking = wanted - group.consumed - group.given_up
        lacking |= group.pending
        if tags and not lacking:
            # A message may be stored but not acknowledged: for groups without tags the offset shows
            # it.
            stored = self.world.cluster.stored(group.manners.topic)
            wanted = {message.keys for message in stored if message.tags in tags}
            lacking = wanted - group.consumed - group.given_up
        if self._may_lose:
            lacking.clear()
        if lacking:
            found.append(f"{name} has not consumed {sorted(lacking)[:5]} ({len(lacking)} in all)")
        for queue in self._queues(group.manners.topic):
            end = broker.store.max_offset(queue.topic, queue.queue_id)
            committed = self.world.cluster.committed(name, queue.topic).get(queue.queue_id, 0)
            if not tags and committed != end:
                found.append(f"{name} committed {committed} of {end} in queue {queue.queue_id}")
            if len(group.owners(queue)) != 1:
                found.append(f"queue {queue.queue_id} is owned by {group.owners(queue)} in {name}")
        return found

    @property
    def _may_lose(self) -> bool:
        """Whether a fault may have taken acknowledged messages away."""
        unflushed = self.world.power_lost and self.world.options.flush == "async"
        return unflushed or self.world.faults["bit flip"] > 0

    def _queues(self, topic: str) -> list[MessageQueue]:
        config = self.world.cluster.broker.controller.topics.get(topic)
        count = 0 if config is None else config.read_queue_nums
        return [MessageQueue(topic, BROKER, queue_id) for queue_id in range(count)]

    # --- the verdict ------------------------------------------------------------------------------

    def check(self) -> list[Anomaly]:
        """Read the log, and return the anomalies of the whole run."""
        self._look_last()
        found = check(self.world.history, self.rules())
        if self._may_lose:
            # Offsets of lost messages are assigned again; a consumer that had passed them skips
            # them.
            found = [anomaly for anomaly in found if anomaly.kind not in _FOLLOWS_DAMAGE]
        return found

    def _look_last(self) -> None:
        now = self.world.now_ms
        for group in self.groups:
            for queue in self._queues(group.manners.topic):
                self._record(OwnersSeen(now, group.manners.group, queue, group.owners(queue)))
        for topic in self._topics():
            self._read_topic(topic)
        self._record(RunEnded(now))

    def _topics(self) -> Iterable[str]:
        topics = {TOPIC} | {group.manners.topic for group in self.groups}
        for group in self.groups:
            topics |= {group.retry_topic, f"%DLQ%{group.manners.group}"}
        return sorted(topics)

    def _read_topic(self, topic: str) -> None:
        now, store = self.world.now_ms, self.world.cluster.broker.store
        for message in self.world.cluster.stored(topic):
            queue = MessageQueue(topic, BROKER, message.queue_id)
            at = min(max(float(message.store_ms - START_MS), 0.0), now)
            self._record(MessageStored(at, message.keys, queue, message.queue_offset, message.tags))
        for queue_id in sorted(store.queue_ids(topic)):
            queue = MessageQueue(topic, BROKER, queue_id)
            begin, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            self._record(LogRead(now, queue, begin, end))

    def rules(self) -> Rules:
        """Return the rules this run is judged by."""
        options = self.world.options
        settle = options.persist_interval_ms + MARGIN_MS
        if not _UNSETTLED.isdisjoint(options.faults):
            settle = _NEVER_SETTLED_MS
        return Rules(
            unflushed_ms=0.0 if options.flush == "sync" else None,
            settle_ms=settle,
            rebalance_ms=2 * options.rebalance_ms
            + options.heartbeat_ms
            + options.register_interval_ms
            + MARGIN_MS,
        )


class Clustering(BaseWorkload):
    """Concurrent groups with retries and dead letters, one of them selecting by tag."""

    def build(self) -> None:
        """Add producers and two groups."""
        chance, options = self.chance, self.world.options
        count = chance.choice((1, 2))
        self.add_producers(count, pause_ms=self.pace_ms(count), at_once=chance.choice((1, 4)))
        # A member that begins beside a backlog has most to lose by a wrong start.
        late_ms = self.world.random("late members").choice((0.0, options.fault_ms / 2))
        self.groups.append(
            SimGroup(
                self.world,
                Manners(
                    "crowd",
                    TOPIC,
                    options.members,
                    retries=chance.choice((1, 2)),
                    failing=chance.choice((0.0, 0.2)),
                    poisonous=chance.choice((0.0, 0.1)),
                    stay_ms=chance.choice((0.0, 0.0, 3_000.0)),
                    late_ms=late_ms,
                ),
            )
        )
        if chance.random() < 0.4:
            tagged = Manners("tagged", TOPIC, 1, tags=frozenset({"a"}), late_ms=late_ms)
            self.groups.append(SimGroup(self.world, tagged))


class Orderly(BaseWorkload):
    """A group in order whose members join and leave, and messages by sharding key."""

    def build(self) -> None:
        """Add producers with sharding keys and the group."""
        chance, options = self.chance, self.world.options
        count = chance.choice((1, 2))
        self.add_producers(count, pause_ms=self.pace_ms(count), sharded=True)
        self.groups.append(
            SimGroup(
                self.world,
                Manners(
                    "queue",
                    TOPIC,
                    max(2, options.members),
                    orderly=True,
                    retries=None,
                    failing=chance.choice((0.0, 0.1)),
                    work_ms=chance.choice((5.0, 50.0, 1_000.0)),
                    stay_ms=chance.choice((0.0, 3_000.0, 8_000.0)),
                    settings=(("suspend_current_queue_time_ms", chance.choice((50, 500))),),
                ),
            )
        )


class Delayed(BaseWorkload):
    """Delayed messages among undelayed ones."""

    def build(self) -> None:
        """Add producers of delayed messages and a group that fails some."""
        chance, options = self.chance, self.world.options
        share = chance.choice((0.5, 1.0))
        self.add_producers(1, pause_ms=self.pace_ms(1), delayed=share)
        manners = Manners("patient", TOPIC, options.members, retries=3, failing=0.2)
        self.groups.append(SimGroup(self.world, manners))


class Transactions(BaseWorkload):
    """Transactions: committed, rolled back, left open and asked about."""

    def build(self) -> None:
        """Add transaction producers and a group."""
        options = self.world.options
        count = self.chance.choice((1, 2))
        # Without retries a second copy is always one too many.
        retries = self.chance.choice((0, 0, 2))
        self.add_producers(count, pause_ms=self.pace_ms(count), transactional=True, retries=retries)
        self.groups.append(SimGroup(self.world, Manners("buyers", TOPIC, options.members)))


class Pulling(BaseWorkload):
    """Lite pull consumers that share the queues, and a pull consumer that keeps its offsets."""

    def build(self) -> None:
        """Add producers and both kinds."""
        chance, options = self.chance, self.world.options
        self.add_producers(1, pause_ms=self.pace_ms(1), at_once=chance.choice((1, 4)))
        stay_ms = chance.choice((0.0, 4_000.0))
        settings = (("auto_commit_interval_ms", 1_000),)
        lite = Manners("lite", TOPIC, options.members, stay_ms=stay_ms, settings=settings)
        self.groups.append(SimLiteGroup(self.world, lite))
        self.groups.append(SimPullGroup(self.world, Manners("puller", TOPIC, 1)))


WORKLOADS: dict[str, type[BaseWorkload]] = {
    "clustering": Clustering,
    "delayed": Delayed,
    "orderly": Orderly,
    "pulling": Pulling,
    "transactions": Transactions,
}


def names() -> Sequence[str]:
    """Return the names of all workloads."""
    return sorted(WORKLOADS)
