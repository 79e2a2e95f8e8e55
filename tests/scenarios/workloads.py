"""The product's own workloads by name: who is there in a seed of each.

Law: the world is a workload's only source of chance.
"""

from __future__ import annotations

from dataclasses import replace

from rocketstream.model import MessageQueue
from rocketstream.protocol.lite import LITE_QUEUE_ID
from rocketstream.testing.history import Anomaly, Rules
from rocketstream.testing.history.events import Content, LogRead, MessageStored
from rocketstream.testing.sim.consuming import Manners, SimGroup
from rocketstream.testing.sim.strange_servers import PICKY
from rocketstream.testing.sim.workload import TOPIC, BaseWorkload
from tests.scenarios.administering import Accountant, Registrar
from tests.scenarios.asking import SimAnsweringGroup, SimAsker
from tests.scenarios.auditing import Auditor, Bungler
from tests.scenarios.changing import SimChangingGroup, drawn_settings
from tests.scenarios.draws import (
    ADMINISTERING,
    DELAYED,
    FAILOVER,
    LITE_PARENT,
    LITE_TOPICS,
    NAMING,
    OPERATING,
    ORDERED,
    REMADE,
    RETENTION,
    SELECTING,
    SENDING,
    STRANGE,
    TRACED,
)
from tests.scenarios.groups import SimBroadcastGroup, SimLiteGroup, SimPullGroup
from tests.scenarios.handwriting import Scribe
from tests.scenarios.lite_topics import SimLiteProducer, SimLiteTopicsGroup, model_of
from tests.scenarios.mistakes import SimMuddler
from tests.scenarios.mistrusting import Mistrusting, half_made
from tests.scenarios.naming import Troupe
from tests.scenarios.operating import Operator, Stranger
from tests.scenarios.ordered import SimOrderer, SimTryingGroup
from tests.scenarios.reading import SimAllottedGroup, SimReaderGroup, SimScheduledGroup
from tests.scenarios.remaking import WAYS, SimRemaker, SimReuser
from tests.scenarios.selecting import Chooser
from tests.scenarios.sending import SimVariedProducer
from tests.scenarios.tracing import SimTracedGroup, SimTracedProducer, Spans

LITTLE_ROOM = (("pull_threshold_for_all", 3), ("pull_threshold_for_queue", 2))
"""Settings with which queues wait for one another."""


class Scenario(BaseWorkload):
    """A workload; where the brokers know accounts, somebody without one is there as well.

    Where they speak TLS, so is somebody who speaks none or trusts nobody.
    """

    def build(self) -> None:
        """Add those of the scenario, and the strangers."""
        self.fill()
        if self.world.options.accounts:
            self.producers.append(Stranger(self.world, TOPIC))
        if self.world.options.tls:
            self.producers.append(Mistrusting(self.world, TOPIC))

    def check(self) -> list[Anomaly]:
        """Check the run, and that no connection was left half made."""
        if left := half_made(self.world):
            self.world.fail(f"neither made nor ended for long: {', '.join(left)}")
        return super().check()

    def fill(self) -> None:
        """Add producers and groups."""
        raise NotImplementedError


class Clustering(Scenario):
    """Concurrent groups with retries and dead letters, some selecting by tag or by condition."""

    def fill(self) -> None:
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


class Orderly(Scenario):
    """A group in order whose members join and leave, and messages by sharding key."""

    def fill(self) -> None:
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


class Ordered(Scenario):
    """Groups in order that give every answer and give messages up, and a topic in order."""

    def fill(self) -> None:
        """Add producers with sharding keys, the groups, and who tells name servers the order."""
        chance, options = self.chance, self.world.options
        self.world.cluster.create_topic(TOPIC)  # the first one: faults add queues to it
        self.add_producers(1, pause_ms=self.pace_ms(1), sharded=True)
        settings = (
            ("suspend_current_queue_time_ms", chance.choice((50, 500))),
            ("consume_thread_min", 1),
            ("consume_thread_max", 1),
        )
        trying = Manners(
            "trying", TOPIC, options.members, orderly=True, retries=chance.choice((1, 2)),
            failing=0.2, poisonous=0.1, work_ms=chance.choice((5.0, 30.0)), settings=settings,
        )  # fmt: skip
        leaving = Manners(
            "leaving", TOPIC, max(2, options.members), orderly=True, retries=None,
            failing=chance.choice((0.0, 0.1)), by_hand=options.flush == "sync",
            work_ms=chance.choice((50.0, 1_500.0)), stay_ms=2_000.0, settings=settings[:1],
        )  # fmt: skip
        self.groups += [SimTryingGroup(self.world, trying), SimGroup(self.world, leaving)]
        self.producers.append(SimOrderer(self.world))


class Failover(Scenario):
    """Two brokers and two name servers, of which one is always there: every send succeeds."""

    def fill(self) -> None:
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


class Retention(Scenario):
    """Groups that fall behind what the brokers keep, and go on where it begins."""

    def fill(self) -> None:
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


class Operating(Scenario):
    """Offsets that are reset or queues taken away, members asked, and messages looked for."""

    def fill(self) -> None:
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


class Administering(Scenario):
    """Accounts, settings of name servers and figures: changed, asked for, and asked for wrongly."""

    def fill(self) -> None:
        """Add a producer, two groups, and those who administer."""
        options = self.world.options
        self.add_producers(1, pause_ms=self.pace_ms(1))
        self.groups.append(SimGroup(self.world, Manners("crowd", TOPIC, options.members)))
        queue = Manners("queue", TOPIC, 1, orderly=True, retries=None)
        self.groups.append(SimGroup(self.world, queue))
        if options.accounts:
            self.producers += [Accountant(self.world), Scribe(self.world)]
        self.producers.append(Registrar(self.world, TOPIC))
        self.producers.append(Auditor(self.world, TOPIC, ["crowd", "queue"]))
        self.producers.append(Bungler(self.world, TOPIC))


class Delayed(Scenario):
    """Delayed messages among undelayed ones."""

    def fill(self) -> None:
        """Add producers of delayed messages and a group that fails some."""
        chance, options = self.chance, self.world.options
        share = chance.choice((0.5, 1.0))
        self.add_producers(1, pause_ms=self.pace_ms(1), delayed=share)
        manners = Manners("patient", TOPIC, options.members, retries=3, failing=0.2)
        self.groups.append(SimGroup(self.world, manners))


class Transactions(Scenario):
    """Transactions: committed, rolled back, left open and asked about."""

    def fill(self) -> None:
        """Add transaction producers and a group."""
        options = self.world.options
        count = self.chance.choice((1, 2))
        # Without retries a second copy is always one too many.
        retries = self.chance.choice((0, 0, 2))
        self.add_producers(count, pause_ms=self.pace_ms(count), transactional=True, retries=retries)
        self.groups.append(SimGroup(self.world, Manners("buyers", TOPIC, options.members)))


class Pulling(Scenario):
    """Lite pull consumers that share the queues, and a pull consumer that keeps its offsets."""

    def fill(self) -> None:
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


class Broadcasting(Scenario):
    """Members that each get everything, with offsets of their own, beside a group that shares."""

    def fill(self) -> None:
        """Add producers and both groups."""
        chance, options = self.chance, self.world.options
        self.add_producers(1, pause_ms=self.pace_ms(1), batched=chance.choice((0.0, 0.5)))
        viewers = Manners("viewers", TOPIC, options.members, late_ms=chance.choice((0.0, 1_000.0)))
        self.groups.append(SimBroadcastGroup(self.world, viewers))
        self.groups.append(SimGroup(self.world, Manners("sharers", TOPIC, 1)))


class Asking(Scenario):
    """Requests that wait for replies, and a group that answers."""

    def fill(self) -> None:
        """Add processes that ask and a group that answers."""
        chance, options = self.chance, self.world.options
        count = chance.choice((1, 2))
        self.add_producers(
            count, SimAsker, pause_ms=self.pace_ms(count), at_once=chance.choice((1, 4))
        )
        manners = Manners("answerers", TOPIC, options.members)
        self.groups.append(SimAnsweringGroup(self.world, manners))


class Reading(Scenario):
    """Groups that divide their queues by any strategy, and read in every way there is."""

    def fill(self) -> None:
        """Add a producer, push consumers, lite pull consumers, and schedules."""
        chance, members = self.chance, self.world.options.members
        self.add_producers(1, pause_ms=self.pace_ms(1), batched=chance.choice((0.0, 0.3)))
        stay_ms = chance.choice((0.0, 0.0, 4_000.0))
        crowd = Manners("crowd", TOPIC, members, failing=0.1, stay_ms=stay_ms)
        readers = Manners(
            "readers", TOPIC, members, stay_ms=stay_ms, seeking=0.05,
            settings=chance.choice(((), LITTLE_ROOM)),
        )  # fmt: skip
        tags = chance.choice((frozenset(), frozenset(), frozenset({"Aa"})))
        planners = Manners("planners", TOPIC, members, tags=tags, stay_ms=stay_ms)
        self.groups.append(SimAllottedGroup(self.world, crowd))
        self.groups.append(SimScheduledGroup(self.world, planners))
        assigned = chance.random() < 0.4
        by_hand = chance.random() < 0.5
        self.groups.append(SimReaderGroup(self.world, readers, assigned=assigned, by_hand=by_hand))


class Changing(Scenario):
    """Groups at once and in order whose members change while they run, beside one that does not."""

    def fill(self) -> None:
        """Add a producer and the groups."""
        chance, members = self.chance, self.world.options.members
        self.add_producers(1, pause_ms=self.pace_ms(1), batched=chance.choice((0.0, 0.3)))
        pause_ms = chance.choice((500.0, 2_000.0, 8_000.0))
        failing = chance.choice((0.0, 0.1))
        crowd = Manners(
            "crowd", TOPIC, members, failing=failing, partly=chance.random() < 0.3,
            settings=drawn_settings(chance),
        )  # fmt: skip
        queue = Manners(
            "queue", TOPIC, members, orderly=True, retries=None, failing=failing,
            work_ms=chance.choice((5.0, 50.0, 1_000.0)),
            settings=(
                *drawn_settings(chance),
                ("suspend_current_queue_time_ms", chance.choice((50, 500))),
            ),
        )  # fmt: skip
        self.groups.append(SimChangingGroup(self.world, crowd, pause_ms))
        self.groups.append(SimChangingGroup(self.world, queue, pause_ms))
        self.groups.append(SimGroup(self.world, Manners("steady", TOPIC, 1)))


class LiteTopics(Scenario):
    """A group whose members subscribe lite topics and give them up, and who sends to these."""

    postscripts = 0.0  # nobody consumes what it would send

    def fill(self) -> None:
        """Add producers and the group."""
        chance, options = self.chance, self.world.options
        count = chance.choice((1, 2))
        self.add_producers(
            count, SimLiteProducer, pause_ms=self.pace_ms(count), at_once=chance.choice((1, 4))
        )
        failing = chance.choice((0.0, 0.1))
        manners = Manners(
            "agents", LITE_PARENT, options.members, orderly=True, retries=None, failing=failing
        )
        self._agents = SimLiteTopicsGroup(self.world, manners)
        self.groups.append(self._agents)

    def _look(self) -> None:
        super()._look()
        for broker in self.world.cluster.brokers:
            if broker.is_ready:
                for (group, queue), offset in model_of(broker).offsets.items():
                    self._saw(group, MessageQueue(queue, broker.name, LITE_QUEUE_ID), offset)

    def _missing(self) -> list[str]:
        return super()._missing() or self._agents.unfinished()

    def _read_topic(self, topic: str) -> None:
        if topic != LITE_PARENT:
            super()._read_topic(topic)
            return
        now = self.world.now_ms
        for broker in self.world.cluster.brokers:
            for name, messages in sorted(model_of(broker).messages.items()):
                queue = MessageQueue(name, broker.name, LITE_QUEUE_ID)
                for offset, each in enumerate(messages):
                    content = Content.of(each.body, each.properties)
                    stored = MessageStored(
                        now, each.keys or "", queue, offset, content.tags, content
                    )
                    self._record(stored)
                self._record(LogRead(now, queue, 0, len(messages)))

    def rules(self) -> Rules:
        """Return the rules of a run: company has rules of its own."""
        return replace(super().rules(), exclusive_ms=0.0)

    def check(self) -> list[Anomaly]:
        """Return the anomalies of the whole run."""
        return [*super().check(), *self._agents.company()]


class Mistaken(Scenario):
    """A program that makes mistakes, beside one that does not, and groups of several strategies."""

    def fill(self) -> None:
        """Add a producer, groups that divide by strategies, and who makes the mistakes."""
        self.add_producers(1, pause_ms=self.pace_ms(1))
        for name in ("crowd", "planners", "readers"):
            manners = Manners(name, TOPIC, self.world.options.members, failing=0.1)
            self.groups.append(SimAllottedGroup(self.world, manners))
        self.producers.append(SimMuddler(self.world, TOPIC))


class Strange(Scenario):
    """Servers that answer nonsense now and then, and groups that read in every way."""

    def fill(self) -> None:
        """Add a producer and groups of each kind."""
        chance, members = self.chance, self.world.options.members
        self.add_producers(1, pause_ms=self.pace_ms(1), batched=chance.choice((0.0, 0.3)))
        self.groups.append(SimGroup(self.world, Manners("crowd", TOPIC, members, failing=0.1)))
        tagged = Manners(PICKY, TOPIC, 1, tags=frozenset({"Aa"}))
        self.groups.append(SimGroup(self.world, tagged))
        queue = Manners("queue", TOPIC, members, orderly=True, retries=None)
        self.groups.append(SimGroup(self.world, queue))
        readers = Manners("readers", TOPIC, members, seeking=0.05)
        self.groups.append(SimReaderGroup(self.world, readers, assigned=False, by_hand=False))
        columns = Manners("columns", TOPIC, members, settings=LITTLE_ROOM)
        picky = Manners(f"{PICKY}_columns", TOPIC, members, tags=frozenset({"Aa"}))
        for each, assigned in ((columns, chance.random() < 0.5), (picky, False)):
            self.groups.append(
                SimReaderGroup(self.world, each, assigned=assigned, by_hand=False, in_columns=True)
            )


class Traced(Scenario):
    """Clients that OpenTelemetry traces: producers of each kind, groups at once and in order."""

    def fill(self) -> None:
        """Add the producers and the groups."""
        chance, options = self.chance, self.world.options
        for habits in (
            {"delayed": 0.3, "batched": 0.2}, {"sharded": True}, {"transactional": True}, {},
        ):  # fmt: skip
            self.add_producers(
                1, SimTracedProducer, pause_ms=self.pace_ms(4), retries=chance.choice((0, 2)),
                **habits,
            )  # fmt: skip
        for name, orderly in (("crowd", False), ("queue", True)):
            manners = Manners(
                name, TOPIC, options.members, orderly=orderly, failing=0.1,
                retries=None if orderly else 16,
            )  # fmt: skip
            self.groups.append(SimTracedGroup(self.world, manners))

    def check(self) -> list[Anomaly]:
        """Return the anomalies of the whole run; spans that tell of another one fail it."""
        producers = [each for each in self.producers if isinstance(each, SimTracedProducer)]
        groups = [each for each in self.groups if isinstance(each, SimTracedGroup)]
        Spans(self.world, producers, groups).check()
        return super().check()


class Remade(Scenario):
    """A topic that is deleted and made anew under groups of each kind, beside one that stays."""

    def fill(self) -> None:
        """Add a producer and a group for the topic that stays, and all for the other."""
        chance, options = self.chance, self.world.options
        self.add_producers(1, pause_ms=self.pace_ms(1))
        self.groups.append(SimGroup(self.world, Manners("crowd", TOPIC, options.members)))
        reusers = [SimReuser(self.world, way) for way in WAYS]
        self.producers.append(SimRemaker(self.world, reusers, chance.choice((500.0, 2_000.0))))


class Naming(Scenario):
    """Brokers that are played at the name servers, beside real ones that a group is served by."""

    def fill(self) -> None:
        """Add a producer, a group, and the process that plays."""
        self.add_producers(1, pause_ms=self.pace_ms(1))
        self.groups.append(
            SimGroup(self.world, Manners("crowd", TOPIC, self.world.options.members))
        )
        self.producers.append(Troupe(self.world))


class Selecting(Scenario):
    """Groups that select by conditions, and one whose condition changes all the time."""

    def fill(self) -> None:
        """Add producers, groups that keep their conditions, and the process that changes its."""
        chance, members = self.chance, self.world.options.members
        self.add_producers(1, pause_ms=self.pace_ms(1), batched=chance.choice((0.0, 0.3)))
        stay_ms = chance.choice((0.0, 3_000.0))
        northern = Manners(
            "northern", TOPIC, members, where=("shop", "north"), failing=0.2, stay_ms=stay_ms
        )
        self.groups.append(SimGroup(self.world, northern))
        southern = Manners("southern", TOPIC, 1, where=("shop", "south"), stay_ms=stay_ms)
        self.groups.append(SimLiteGroup(self.world, southern))
        self.producers.append(Chooser(self.world, TOPIC))


class Sending(Scenario):
    """Messages sent by every call there is, with settings that are drawn, and a group."""

    def fill(self) -> None:
        """Add producers and a group."""
        chance, options = self.chance, self.world.options
        count = 2  # their settings differ
        self.add_producers(
            count,
            SimVariedProducer,
            pause_ms=self.pace_ms(count),
            at_once=chance.choice((4, 8)),
            retries=chance.choice((0, 2)),
        )
        self.groups.append(SimGroup(self.world, Manners("crowd", TOPIC, options.members)))


SCENARIOS: dict[str, type[Scenario]] = {
    ADMINISTERING: Administering,
    "asking": Asking,
    "broadcasting": Broadcasting,
    "changing": Changing,
    "clustering": Clustering,
    DELAYED: Delayed,
    FAILOVER: Failover,
    LITE_TOPICS: LiteTopics,
    "mistaken": Mistaken,
    NAMING: Naming,
    OPERATING: Operating,
    ORDERED: Ordered,
    "orderly": Orderly,
    "pulling": Pulling,
    "reading": Reading,
    REMADE: Remade,
    RETENTION: Retention,
    SELECTING: Selecting,
    SENDING: Sending,
    STRANGE: Strange,
    TRACED: Traced,
    "transactions": Transactions,
}
