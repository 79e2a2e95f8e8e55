"""The actions of clients in a simulated run, by name, and how the run is judged.

Law: the world is a workload's only source of chance.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from rocketstream.model import MessageQueue
from rocketstream.protocol.names import TRANS_CHECK_MAX_TIME_TOPIC
from rocketstream.testing.history import Anomaly, AnomalyKind, Rules, check
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
from rocketstream.testing.sim.administering import Accountant, Registrar
from rocketstream.testing.sim.auditing import Auditor, Bungler
from rocketstream.testing.sim.consuming import (
    PROBES,
    Manners,
    SimAnsweringGroup,
    SimBroadcastGroup,
    SimGroup,
    SimLiteGroup,
    SimPullGroup,
)
from rocketstream.testing.sim.operating import Operator, Stranger
from rocketstream.testing.sim.options import (
    ADMINISTERING,
    FAILOVER,
    OPERATING,
    REMADE,
    RETENTION,
    SLOW_DISK,
)
from rocketstream.testing.sim.postscript import Postscript
from rocketstream.testing.sim.producing import Habits, SimAsker, SimProducer
from rocketstream.testing.sim.reading import (
    SimAllottedGroup,
    SimReaderGroup,
    SimScheduledGroup,
)
from rocketstream.testing.sim.remaking import WAYS, SimRemaker, SimReuser
from rocketstream.testing.sim.sending import SimVariedProducer
from rocketstream.testing.sim.world import START_MS, Node, World

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
        self._committed: dict[tuple[str, MessageQueue], int] = {}
        self._begins: dict[MessageQueue, int] = {}
        self._decided: dict[str, bool] = {}
        self.build()
        if world.options.accounts:
            self.producers.append(Stranger(world, TOPIC))
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
        cluster = self.world.cluster
        for queue in cluster.logs(TOPIC) if self.world.options.retention_ms else ():
            begin = cluster.store(queue).min_offset(queue.topic, queue.queue_id)
            if begin > self._begins.get(queue, 0):
                self._begins[queue] = begin
                self._record(LogTrimmed(self.world.now_ms, queue, begin))

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
        undecided = self.world.cluster.undecided_transactions
        if undecided:
            found.append(f"{undecided} transactions are undecided")
        for group in self.groups:
            found += self._group_missing(group, due)
        if not found and self.world.power_lost and not self.world.may_lose:
            # A commit that was not flushed is made again after the broker has asked the producer.
            lacking = {sent.key for sent in due} - {
                message.keys for message in self.world.cluster.stored(TOPIC)
            }
            if lacking:
                found.append(f"the log does not hold {sorted(lacking)[:5]}")
        return found

    def _due(self) -> list[SendInvoked]:
        """Return the sends that must be consumed: acknowledged, committed, and not removed."""
        sent: dict[str, SendInvoked] = {}
        acknowledged: set[str] = set()
        commits: set[str] = set()
        for event in self.world.history:
            if isinstance(event, SendInvoked):
                sent[event.key] = event
            elif isinstance(event, SendAcknowledged):
                if event.queue is None or event.offset >= self._begins.get(event.queue, 0):
                    acknowledged.add(event.key)
            elif isinstance(event, TransactionDecided) and event.commit:
                commits.add(event.key)
        return [sent[key] for key in acknowledged if not sent[key].transactional or key in commits]

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
        lacking = {sent.key for sent in due if declared.selects(sent.tags, sent.content)} - done
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
        found = check(self.world.history, self.rules())
        if self.world.may_lose:
            # Offsets of lost messages are assigned again; a consumer that had passed them skips
            # them.
            found = [anomaly for anomaly in found if anomaly.kind not in _FOLLOWS_DAMAGE]
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
        given_up = self.world.cluster.stored(TRANS_CHECK_MAX_TIME_TOPIC)
        keys = frozenset(message.keys for message in given_up)
        self._record(TransactionsGivenUp(now, keys))
        self._record(RunEnded(now))

    def _topics(self) -> Iterable[str]:
        topics = {TOPIC} | {group.manners.topic for group in self.groups}
        for group in self.groups:
            topics |= {group.retry_topic, f"%DLQ%{group.manners.group}"}
        return sorted(topics)

    def _read_topic(self, topic: str) -> None:
        now, cluster = self.world.now_ms, self.world.cluster
        for message in cluster.stored(topic):
            at = min(max(float(message.store_ms - START_MS), 0.0), now)
            content = Content.of(message.body, message.properties)
            place = message.queue, message.queue_offset
            self._record(MessageStored(at, message.keys, *place, message.tags, content))
        for queue in cluster.logs(topic):
            store, queue_id = cluster.store(queue), queue.queue_id
            begin, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            self._record(LogRead(now, queue, begin, end))

    def rules(self) -> Rules:
        """Return the rules this run is judged by."""
        options = self.world.options
        settle = options.persist_interval_ms + MARGIN_MS
        if not _UNSETTLED.isdisjoint(options.faults):
            settle = _NEVER_SETTLED_MS
        rebalance: float = 2 * options.rebalance_ms + options.heartbeat_ms
        rebalance += options.register_interval_ms + MARGIN_MS
        untold = TOLD_WITHIN_MS if _UNTOLD.isdisjoint(options.faults) else math.inf
        return Rules(
            unflushed_ms=0.0 if options.flush == "sync" else None,
            settle_ms=settle,
            rebalance_ms=rebalance,
            takeover_ms=rebalance if options.apart_ms else None,
            kept_ms=options.retention_ms,
            untold_ms=untold if options.like_apache else None,
        )


class Clustering(BaseWorkload):
    """Concurrent groups with retries and dead letters, some selecting by tag or by condition."""

    def build(self) -> None:
        """Add producers and two groups."""
        chance, options = self.chance, self.world.options
        count = chance.choice((1, 2))
        ways = self.world.random("ways of sending")
        self.add_producers(
            count,
            pause_ms=self.pace_ms(count),
            at_once=chance.choice((1, 4)),
            batched=ways.choice((0.0, 0.0, 0.5)),
            compressed=ways.choice((False, True)),
            gathered=self.world.random("gathering").choice((False, False, True)),
        )
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
                    partly=ways.choice((False, False, True)),
                    settings=ways.choice(((), (("pull_threshold_for_queue", 4),))),
                    timeout_ms=ways.choice((0.0, 0.0, 300.0)),
                ),
            )
        )
        if chance.random() < 0.4:
            tagged = Manners("tagged", TOPIC, 1, tags=frozenset({"Aa"}), late_ms=late_ms)
            self.groups.append(SimGroup(self.world, tagged))
        if ways.random() < 0.3:
            northern = Manners("northern", TOPIC, 1, where=("shop", "north"), late_ms=late_ms)
            self.groups.append(SimGroup(self.world, northern))


class Orderly(BaseWorkload):
    """A group in order whose members join and leave, and messages by sharding key."""

    def build(self) -> None:
        """Add producers with sharding keys and the group."""
        chance, options = self.chance, self.world.options
        count = chance.choice((1, 2))
        # Messages that a loss of power takes away commit nothing that was kept before them.
        by_hand = self.world.random("by hand").choice((False, False, True))
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
                    by_hand=options.flush == "sync" and by_hand,
                    work_ms=chance.choice((5.0, 50.0, 1_000.0)),
                    stay_ms=chance.choice((0.0, 3_000.0, 8_000.0)),
                    settings=(("suspend_current_queue_time_ms", chance.choice((50, 500))),),
                ),
            )
        )


class Failover(BaseWorkload):
    """Two brokers and two name servers, of which one is always there: every send succeeds."""

    def build(self) -> None:
        """Add producers and two groups, one in order."""
        chance, options = self.chance, self.world.options
        count = chance.choice((1, 2))
        pause_ms = 2 * options.fault_ms * count / options.messages
        self.add_producers(
            count, pause_ms=pause_ms, at_once=chance.choice((1, 4)),
            batched=chance.choice((0.0, 0.0, 0.5)),
        )  # fmt: skip
        crowd = Manners("crowd", TOPIC, options.members, failing=chance.choice((0.0, 0.2)))
        self.groups.append(SimGroup(self.world, crowd))
        queue = Manners("queue", TOPIC, options.members, orderly=True, retries=None)
        self.groups.append(SimGroup(self.world, queue))


class Retention(BaseWorkload):
    """Groups that fall behind what the brokers keep, and go on where it begins."""

    def build(self) -> None:
        """Add a producer, a slow group that comes late, one that polls, and a puller."""
        chance, options = self.chance, self.world.options
        self.add_producers(1, pause_ms=2 * options.fault_ms / options.messages)
        late_ms = chance.choice((0.0, options.fault_ms / 2))
        slow = Manners(
            "slow", TOPIC, options.members, work_ms=chance.choice((20.0, 200.0)),
            late_ms=late_ms, orderly=chance.choice((False, True)),
            settings=(("pull_threshold_for_queue", 4),),
        )  # fmt: skip
        self.groups.append(SimGroup(self.world, slow))
        lite = Manners("lite", TOPIC, 1, late_ms=late_ms, stay_ms=chance.choice((0.0, 3_000.0)))
        self.groups.append(SimLiteGroup(self.world, lite))
        self.groups.append(SimPullGroup(self.world, Manners("puller", TOPIC, 1, late_ms=late_ms)))
        self.producers.append(Operator(self.world, TOPIC, self.groups, ["clean"], 1_000.0))


class Operating(BaseWorkload):
    """Offsets that are reset or queues taken away, members asked, and messages looked for."""

    def build(self) -> None:
        """Add a producer, groups of each kind that an operator can turn to, and the operator."""
        chance, options = self.chance, self.world.options
        self.add_producers(1, pause_ms=self.pace_ms(1), batched=chance.choice((0.0, 0.3)))
        crowd = Manners("crowd", TOPIC, options.members, failing=chance.choice((0.0, 0.1)))
        queue = Manners("queue", TOPIC, options.members, orderly=True, retries=None, work_ms=50.0)
        lite = Manners("lite", TOPIC, 1, settings=(("auto_commit_interval_ms", 1_000),))
        self.groups += [SimGroup(self.world, crowd), SimGroup(self.world, queue)]
        self.groups.append(SimLiteGroup(self.world, lite))
        # No member has a queue that is taken away: nobody goes back in it.
        deeds = [self.world.random("operator").choice(("reset", "resize"))]
        deeds += ["ask", "probe", "remake"]
        self.producers.append(Operator(self.world, TOPIC, self.groups, deeds, 3_000.0, finds=True))


class Administering(BaseWorkload):
    """Accounts, settings of name servers and figures: changed, asked for, and asked for wrongly."""

    def build(self) -> None:
        """Add a producer, two groups, and those who administer."""
        options = self.world.options
        self.add_producers(1, pause_ms=self.pace_ms(1))
        self.groups.append(SimGroup(self.world, Manners("crowd", TOPIC, options.members)))
        queue = Manners("queue", TOPIC, 1, orderly=True, retries=None)
        self.groups.append(SimGroup(self.world, queue))
        if options.accounts:
            self.producers.append(Accountant(self.world))
        self.producers.append(Registrar(self.world, TOPIC))
        self.producers.append(Auditor(self.world, TOPIC, ["crowd", "queue"]))
        self.producers.append(Bungler(self.world, TOPIC))


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
        seeking = self.world.random("seeks").choice((0.0, 0.1))
        lite = Manners(
            "lite", TOPIC, options.members, stay_ms=stay_ms, settings=settings, seeking=seeking
        )
        self.groups.append(SimLiteGroup(self.world, lite))
        self.groups.append(SimPullGroup(self.world, Manners("puller", TOPIC, 1)))


class Broadcasting(BaseWorkload):
    """Members that each get everything, with offsets of their own, beside a group that shares."""

    def build(self) -> None:
        """Add producers and both groups."""
        chance, options = self.chance, self.world.options
        self.add_producers(1, pause_ms=self.pace_ms(1), batched=chance.choice((0.0, 0.5)))
        viewers = Manners("viewers", TOPIC, options.members, late_ms=chance.choice((0.0, 1_000.0)))
        self.groups.append(SimBroadcastGroup(self.world, viewers))
        self.groups.append(SimGroup(self.world, Manners("sharers", TOPIC, 1)))


class Asking(BaseWorkload):
    """Requests that wait for replies, and a group that answers."""

    def build(self) -> None:
        """Add processes that ask and a group that answers."""
        chance, options = self.chance, self.world.options
        count = chance.choice((1, 2))
        self.add_producers(
            count, SimAsker, pause_ms=self.pace_ms(count), at_once=chance.choice((1, 4))
        )
        manners = Manners("answerers", TOPIC, options.members)
        self.groups.append(SimAnsweringGroup(self.world, manners))


class Reading(BaseWorkload):
    """Groups that divide their queues by any strategy, and read in every way there is."""

    def build(self) -> None:
        """Add a producer, push consumers, lite pull consumers, and schedules."""
        chance, members = self.chance, self.world.options.members
        self.add_producers(1, pause_ms=self.pace_ms(1), batched=chance.choice((0.0, 0.3)))
        stay_ms = chance.choice((0.0, 0.0, 4_000.0))
        crowd = Manners("crowd", TOPIC, members, failing=0.1, stay_ms=stay_ms)
        readers = Manners("readers", TOPIC, members, stay_ms=stay_ms, seeking=0.05)
        tags = chance.choice((frozenset(), frozenset(), frozenset({"Aa"})))
        planners = Manners("planners", TOPIC, members, tags=tags, stay_ms=stay_ms)
        self.groups.append(SimAllottedGroup(self.world, crowd))
        self.groups.append(SimScheduledGroup(self.world, planners))
        assigned = chance.random() < 0.4
        by_hand = chance.random() < 0.5
        self.groups.append(SimReaderGroup(self.world, readers, assigned=assigned, by_hand=by_hand))


class Remade(BaseWorkload):
    """A topic that is deleted and made anew under groups of each kind, beside one that stays."""

    def build(self) -> None:
        """Add a producer and a group for the topic that stays, and all for the other."""
        chance, options = self.chance, self.world.options
        self.add_producers(1, pause_ms=self.pace_ms(1))
        self.groups.append(SimGroup(self.world, Manners("crowd", TOPIC, options.members)))
        reusers = [SimReuser(self.world, way) for way in WAYS]
        self.producers.append(SimRemaker(self.world, reusers, chance.choice((500.0, 2_000.0))))


class Sending(BaseWorkload):
    """Messages sent by every call there is, with settings that are drawn, and a group."""

    def build(self) -> None:
        """Add producers and a group."""
        chance, options = self.chance, self.world.options
        count = chance.choice((1, 2))
        self.add_producers(
            count,
            SimVariedProducer,
            pause_ms=self.pace_ms(count),
            at_once=chance.choice((1, 4)),
            retries=chance.choice((0, 2)),
        )
        self.groups.append(SimGroup(self.world, Manners("crowd", TOPIC, options.members)))


WORKLOADS: dict[str, type[BaseWorkload]] = {
    ADMINISTERING: Administering,
    "asking": Asking,
    "broadcasting": Broadcasting,
    "clustering": Clustering,
    "delayed": Delayed,
    FAILOVER: Failover,
    OPERATING: Operating,
    "orderly": Orderly,
    "pulling": Pulling,
    "reading": Reading,
    REMADE: Remade,
    RETENTION: Retention,
    "sending": Sending,
    "transactions": Transactions,
}


def names() -> Sequence[str]:
    """Return the names of all workloads."""
    return sorted(WORKLOADS)
