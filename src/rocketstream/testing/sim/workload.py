"""The actions of clients in a simulated run, and how the run is judged.

Law: the world is a workload's only source of chance.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Protocol

from rocketstream.limits import CLIENT_EXPIRED_MS
from rocketstream.model import MessageQueue
from rocketstream.protocol.names import TRANS_CHECK_MAX_TIME_TOPIC
from rocketstream.server.broker.broker import EXPIRE_INTERVAL_S
from rocketstream.testing.history import Anomaly, AnomalyKind, Rules, check
from rocketstream.testing.history.checker import check_logs
from rocketstream.testing.history.events import (
    CommitSeen,
    Content,
    Event,
    GroupDeclared,
    LogRead,
    LogTrimmed,
    MessageStored,
    OwnersSeen,
    RunEnded,
    SendAcknowledged,
    SendInvoked,
    TransactionDecided,
    TransactionsGivenUp,
)
from rocketstream.testing.sim.consuming import PROBES, SimGroup
from rocketstream.testing.sim.options import SLOW_DISK
from rocketstream.testing.sim.postscript import Postscript
from rocketstream.testing.sim.producing import Habits, SimProducer
from rocketstream.testing.sim.world import Node, World

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
_UNSETTLED = {
    "EIO on write",
    "EIO on sync",
    "disk full",
    "short writes",
    "clock jump",
    SLOW_DISK,
}
_STOP_FLUSHES = {"EIO on write", "EIO on sync", "disk full", SLOW_DISK}
"""The faults with which a log is flushed late, or no more."""
FLUSH_MARGIN_MS = 100.0
"""So much later than its interval says a flush may begin: background work is late by 50 ms."""
UNHEARD = frozenset({"silence", "partition", "one-sided partition"})
"""The faults with which a broker may take a connection that is no more for one of a member."""
FORGOTTEN_MS = CLIENT_EXPIRED_MS + 1_000.0 * EXPIRE_INTERVAL_S
"""How long it does so."""
_CLIENTS_END = {"client killed", "client power loss"}
"""With one of each a broker may take a client that has ended for a member until its silence has
lasted too long; other brokers know better, and members follow one list and then the other."""
_UNTOLD = {
    "delay", "stall", "silence", "partition", "one-sided partition",
    "broker paused", "client paused",
}  # fmt: skip
"""The faults with which a member may not be told that a broker has ended."""
TOLD_WITHIN_MS = 1_000.0


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

    Attributes:
        postscripts: share of the runs in which a few messages follow when all is calm.
    """

    postscripts: float = 0.3

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance: random.Random = world.random("workload")
        self.producers: list[Sends] = []
        self.groups: list[SimGroup] = []
        self._committed: dict[tuple[str, MessageQueue], tuple[int | None, float]] = {}
        """The offset of a group in a queue that was seen last, and when."""
        self._begins: dict[MessageQueue, int] = {}
        self._looked_ms: dict[MessageQueue, float] = {}
        self._decided: dict[str, bool] = {}
        self._sent: dict[str, SendInvoked] = {}
        self._acknowledged: list[SendAcknowledged] = []
        self._commits: set[str] = set()
        self._read = 0  # so much of the history is in these three
        self.build()
        self._postscript = Postscript(world, TOPIC, self.postscripts)
        for topic in sorted({group.manners.topic for group in self.groups} | {TOPIC}):
            world.cluster.create_topic(topic)
        world.scheduler.call_later(LOOK_EVERY_S, self._look)

    def build(self) -> None:
        """Add producers and groups."""
        raise NotImplementedError

    # --- for those who build ----------------------------------------------------------------------

    def add_producers(
        self, count: int, kind: type[SimProducer] = SimProducer, **habits: object
    ) -> None:
        """Add producers that share the messages of the run."""
        each = max(1, self.world.options.messages // count)
        for _ in range(count):
            name = f"producer-{len(self.producers)}"
            own = Habits(TOPIC, each, **habits)  # type: ignore[arg-type]
            self.producers.append(kind(self.world, name, own, self._decided))

    def pace_ms(self, producers: int) -> float:
        """Return a pause (ms) that spreads the sends over the time of faults, or a short one."""
        spread = 2 * self.world.options.fault_ms * producers / self.world.options.messages
        return self.chance.choice((5.0, spread / 2, spread))

    # --- watching ---------------------------------------------------------------------------------

    def _look(self) -> None:
        """Record every offset of a broker that differs from the last look."""
        self.world.scheduler.call_later(LOOK_EVERY_S, self._look)
        self._look_at_begins()
        for group in self.groups:
            for topic in (group.manners.topic, group.retry_topic):
                offsets = self.world.cluster.committed(group.manners.group, topic)
                for queue, offset in offsets.items():
                    self._saw(group.manners.group, queue, offset)

    def _look_at_begins(self) -> None:
        """Record where queues begin now, which is before what a group has committed since."""
        cluster, now_ms = self.world.cluster, self.world.now_ms
        for queue in cluster.logs(TOPIC) if self.world.options.retention_ms else ():
            begin = cluster.store(queue).min_offset(queue.topic, queue.queue_id)
            if begin > self._begins.get(queue, 0):
                self._begins[queue] = begin
                self._record(LogTrimmed(now_ms, queue, begin, self._looked_ms.get(queue, 0.0)))
            self._looked_ms[queue] = now_ms

    def _saw(self, group: str, queue: MessageQueue, offset: int) -> None:
        now_ms, key = self.world.now_ms, (group, queue)
        before, since = self._committed.get(key, (None, now_ms - LOOK_EVERY_S * 1000))
        if before != offset:
            self._record(CommitSeen(now_ms, group, queue, offset, since))
        self._committed[key] = offset, now_ms

    def _record(self, event: Event) -> None:
        self.world.history.append(event)
        self.world.trace.add(f"seen: {event!r}")

    # --- is it over? ------------------------------------------------------------------------------

    @property
    def messages(self) -> int:
        """Return how many sends were begun."""
        return sum(producer.sent for producer in self.producers)

    def is_done(self) -> bool:
        """Whether everything is consumed, committed and owned; asked once faults are over.

        Then a postscript is sent, which must be consumed as well.
        """
        return not self._missing() and self._postscript.is_over()

    def unfinished(self) -> str:
        """Return a text that says what is missing."""
        return "; ".join(self._missing()) or "nothing"

    def _missing(self) -> list[str]:
        senders = [*self.producers, *self._postscript.producers]
        busy = [producer.node.name for producer in senders if not producer.is_done]
        if busy:
            return [f"{', '.join(busy)} still send"]
        due = self._due()
        found: list[str] = []
        delayed = self.world.cluster.undelivered  # also copies of what groups have by now
        if delayed:
            found.append(f"{delayed} delayed messages wait")
        undecided = self.world.cluster.undecided_transactions
        if undecided:
            found.append(f"{undecided} transactions are undecided")
        for group in self.groups:
            found += self._group_missing(group, due)
        if not found and self.world.power_lost and not self.world.may_lose:
            # A commit that was not flushed is made again after the broker has asked the producer.
            lacking = {sent.key for sent in due if sent.topic == TOPIC} - {
                message.keys for message in self.world.cluster.stored(TOPIC)
            }
            if lacking:
                found.append(f"the log does not hold {sorted(lacking)[:5]}")
        return found

    def _due(self) -> list[SendInvoked]:
        """Return the sends that must be consumed: acknowledged, committed, and not removed.

        A transaction that was asked about in vain, as often as its broker may, is nobody's.
        """
        history = self.world.history
        for event in history[self._read :]:
            if isinstance(event, SendInvoked):
                self._sent[event.key] = event
            elif isinstance(event, SendAcknowledged):
                self._acknowledged.append(event)
            elif isinstance(event, TransactionDecided) and event.commit:
                self._commits.add(event.key)
        self._read = len(history)
        there = {
            ack.key
            for ack in self._acknowledged
            if ack.queue is None or ack.offset >= self._begins.get(ack.queue, 0)
        }
        commits = self._commits - self._given_up()
        sent = (self._sent[key] for key in there)
        return [each for each in sent if not each.transactional or each.key in commits]

    def _given_up(self) -> frozenset[str]:
        given_up = self.world.cluster.stored(TRANS_CHECK_MAX_TIME_TOPIC)
        return frozenset(message.keys for message in given_up)

    def _group_missing(self, group: SimGroup, due: list[SendInvoked]) -> list[str]:
        if group.pending:
            dead = self.world.cluster.stored(f"%DLQ%{group.manners.group}")
            group.given_up |= {message.keys for message in dead}
        found = []
        for declared, consumed in group.views:
            lacking = self._lacking(group, declared, consumed, due)
            if lacking:
                text = f"has not consumed {sorted(lacking)[:5]} ({len(lacking)} in all)"
                found.append(f"{declared.group} {text}")
        return found + self._unsettled(group) if group.at_broker else found

    def _lacking(
        self, group: SimGroup, declared: GroupDeclared, consumed: set[str], due: list[SendInvoked]
    ) -> set[str]:
        """Return the keys that one who must get everything has not consumed."""
        if self.world.may_lose:
            return set()
        done = consumed | group.given_up
        lacking = {sent.key for sent in due if declared.wants(sent)} - done
        lacking |= group.pending
        if lacking or (declared.selects_all and group.at_broker):
            return lacking
        # A message may be stored but not acknowledged: for others the broker's offset shows it.
        return {
            message.keys
            for message in self.world.cluster.stored(group.manners.topic)
            if declared.selects(message.tags, Content.of(message.body, message.properties))
        } - done

    def _unsettled(self, group: SimGroup) -> list[str]:
        """Return what the brokers' offsets and the members' queues lack."""
        name, cluster = group.manners.group, self.world.cluster
        offsets = cluster.committed(name, group.manners.topic)
        found = []
        for queue in cluster.queues(group.manners.topic):
            end = cluster.store(queue).max_offset(queue.topic, queue.queue_id)
            committed = offsets.get(queue, 0)
            if group.declared.selects_all and committed != end:
                found.append(f"{name} committed {committed} of {end} in {queue}")
            if len(group.owners(queue)) != 1:
                found.append(f"{queue} is owned by {group.owners(queue)} in {name}")
        return found

    # --- the verdict ------------------------------------------------------------------------------

    def check(self) -> list[Anomaly]:
        """Read the log, and return the anomalies of the whole run."""
        self._look_last()
        history, rules = self.world.history, self.rules()
        found = check(history, rules)
        if self.world.may_lose:
            # Offsets of lost messages are assigned again; a consumer that had passed them skips
            # them.
            found = [anomaly for anomaly in found if anomaly.kind not in _FOLLOWS_DAMAGE]
            if rules.unflushed_ms is not None and not self.world.is_damaged:
                in_logs = check_logs(history, rules)
                found += [anomaly for anomaly in in_logs if anomaly.kind in _FOLLOWS_DAMAGE]
        return [*self._probes_that_count(), *found]

    def _probes_that_count(self) -> Iterator[Anomaly]:
        """Yield the groups that committed a message which an operator had them consume."""
        for group in self.groups:
            for queue, offset in self.world.cluster.committed(group.manners.group, PROBES).items():
                text = f"{group.manners.group} committed {offset} in {queue} for a probe"
                yield Anomaly(AnomalyKind.COMMITTED_AHEAD, text)

    def _look_last(self) -> None:
        now = self.world.now_ms
        self._look_at_begins()
        for group in self.groups:
            if not group.at_broker:
                continue
            for queue in self.world.cluster.queues(group.manners.topic):
                self._record(OwnersSeen(now, group.manners.group, queue, group.owners(queue)))
        for topic in self._topics():
            self._read_topic(topic)
        self._record(TransactionsGivenUp(now, self._given_up()))
        self._record(RunEnded(now))

    def _topics(self) -> Iterable[str]:
        topics = {TOPIC} | {group.manners.topic for group in self.groups}
        for group in self.groups:
            topics |= {group.retry_topic, f"%DLQ%{group.manners.group}"}
        return sorted(topics)

    def _read_topic(self, topic: str) -> None:
        now, cluster = self.world.now_ms, self.world.cluster
        clocks = {broker.node.name: broker.node.clock for broker in cluster.brokers}
        before: dict[MessageQueue, float] = defaultdict(float)
        for message in cluster.stored(topic):
            clock = clocks[message.queue.broker_name]
            at = before[message.queue] = clock.when(message.store_ms, before[message.queue])
            content = Content.of(message.body, message.properties)
            place = message.queue, message.queue_offset
            self._record(MessageStored(at, message.keys, *place, message.tags, content))
        for queue in cluster.logs(topic):
            store, queue_id = cluster.store(queue), queue.queue_id
            begin, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            self._record(LogRead(now, queue, begin, end))

    def _unflushed_ms(self) -> float | None:
        """Return how long ago a message was acknowledged that a loss of power may take at most."""
        options = self.world.options
        if options.flush == "sync":
            return 0.0
        keeps_up = _STOP_FLUSHES.isdisjoint(options.faults)
        return options.flush_interval_ms + FLUSH_MARGIN_MS if keeps_up else None

    def rules(self) -> Rules:
        """Return the rules this run is judged by."""
        options = self.world.options
        settle = options.persist_interval_ms + MARGIN_MS
        if not _UNSETTLED.isdisjoint(options.faults):
            settle = _NEVER_SETTLED_MS
        rebalance: float = 2 * options.rebalance_ms + options.heartbeat_ms
        rebalance += options.register_interval_ms + MARGIN_MS
        takeover = rebalance if options.apart_ms else None
        faults = set(options.faults)
        if faults & UNHEARD and faults & _CLIENTS_END:
            rebalance += FORGOTTEN_MS
        untold = TOLD_WITHIN_MS if _UNTOLD.isdisjoint(options.faults) else math.inf
        return Rules(
            unflushed_ms=self._unflushed_ms(),
            settle_ms=settle,
            rebalance_ms=rebalance,
            takeover_ms=takeover,
            kept_ms=options.retention_ms,
            untold_ms=untold if options.like_apache else None,
        )
