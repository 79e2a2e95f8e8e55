"""Every workload of the simulator does what it is for, and calm runs keep every promise."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from rocketstream.testing.history.events import (
    CommitSeen,
    Event,
    GroupDeclared,
    ListenerReturned,
    MessageDelivered,
    SendAcknowledged,
    SendFailed,
    SendInvoked,
    TransactionDecided,
)
from rocketstream.testing.sim.cluster import Cluster
from rocketstream.testing.sim.consuming import Manners, SimGroup
from rocketstream.testing.sim.options import Options
from rocketstream.testing.sim.producing import SimProducer, delay_of_level
from rocketstream.testing.sim.runs import run_world, simulated
from rocketstream.testing.sim.workload import TOPIC, BaseWorkload
from tests.kits.stores import put
from tests.scenarios.draws import draw_options
from tests.scenarios.workloads import SCENARIOS

ALL = sorted(SCENARIOS)


def calm_run(scenario: str, options: Options) -> list[Event]:
    """Run a workload without faults; return its history."""
    with simulated(options.seed, options) as world:
        Cluster(world)
        result = run_world(world, SCENARIOS[scenario](world))
        assert result.ok, result.report()
        assert result.messages > 0
        return world.history


@pytest.mark.parametrize("seed", [2, 3])  # between them they draw all that 0 to 3 do
@pytest.mark.parametrize("scenario", ALL)
def test_a_calm_run_keeps_every_promise(scenario: str, seed: int) -> None:
    options = draw_options(seed, scenario)
    # A busy broker refuses sends, and not all are tried again.
    few = min(options.messages, 40)
    options = replace(
        options, faults=(), fault_ms=5_000, like_apache=False, strange=False, messages=few
    )
    history = calm_run(scenario, options)
    kinds = Counter(type(event) for event in history)
    # One-way messages are acknowledged by nobody, and some sends have no time.
    unsure = kinds[SendFailed] if scenario == "sending" else 0
    assert kinds[SendInvoked] == kinds[SendAcknowledged] + unsure
    assert kinds[SendAcknowledged] > 0
    assert kinds[MessageDelivered] >= kinds[ListenerReturned] > 0  # a poll may be cut off
    assert kinds[CommitSeen] > 0


def test_a_run_is_the_same_again() -> None:
    """The digest covers every event, so a failing seed can be looked into."""
    from tests.scenarios.campaign import run_seed

    first, second = run_seed(7, "clustering"), run_seed(7, "clustering")
    assert first.digest == second.digest


def test_the_delayed_workload_delays() -> None:
    options = replace(draw_options(1, "delayed"), faults=(), fault_ms=5_000)
    history = calm_run("delayed", options)
    assert any(isinstance(event, SendInvoked) and event.due_ms for event in history)


def test_the_transactional_workload_commits_and_rolls_back() -> None:
    options = replace(draw_options(1, "transactions"), faults=(), fault_ms=5_000)
    decided = [e for e in calm_run("transactions", options) if isinstance(e, TransactionDecided)]
    assert {decision.commit for decision in decided} == {True, False}


def test_the_clustering_workload_fails_messages() -> None:
    """Some seed has listeners that fail; what failed comes again from the retry topic."""
    failed = []
    for seed in range(6):
        options = replace(draw_options(seed, "clustering"), faults=(), fault_ms=5_000)
        failed += [
            event
            for event in calm_run("clustering", options)
            if isinstance(event, MessageDelivered) and event.queue.topic == "%RETRY%crowd"
        ]
    assert failed


def test_the_clustering_workload_selects_batches_compresses_and_acknowledges_in_part() -> None:
    """Each of its ways comes in some of a few seeds."""
    groups: dict[str, GroupDeclared] = {}
    partly = batched = compressed = False
    for seed in range(12):
        options = replace(draw_options(seed, "clustering"), faults=(), fault_ms=1_000, messages=5)
        with simulated(seed, options) as world:
            Cluster(world)
            workload = SCENARIOS["clustering"](world)
            groups |= {group.manners.group: group.declared for group in workload.groups}
            partly |= any(group.manners.partly for group in workload.groups)
            for producer in workload.producers:
                if not isinstance(producer, SimProducer):
                    continue
                batched |= producer.habits.batched > 0
                compressed |= producer.habits.compressed
    assert groups["tagged"].tags == {"Aa"}
    assert groups["northern"].where == ("shop", "north")
    assert partly
    assert batched
    assert compressed


def test_the_asking_workload_gets_replies() -> None:
    options = replace(draw_options(1, "asking"), faults=(), fault_ms=5_000)
    with simulated(1, options) as world:
        Cluster(world)
        workload = SCENARIOS["asking"](world)
        result = run_world(world, workload)
        assert result.ok, result.report()
        replies = sum(int(each.node.kept.get("replies", 0)) for each in workload.producers)
        assert replies == result.messages


def test_every_member_of_the_broadcasting_workload_gets_everything() -> None:
    options = replace(draw_options(2, "broadcasting"), faults=(), fault_ms=5_000, members=2)
    history = calm_run("broadcasting", options)
    sent = {event.key for event in history if isinstance(event, SendInvoked)}
    for member in ("viewers-0", "viewers-1"):
        seen = {e.key for e in history if isinstance(e, MessageDelivered) and e.member == member}
        assert seen == sent


@pytest.mark.parametrize(
    ("level", "expected"), [(1, 500), (2, 1_000), (3, 300_000), (4, 7_200_000)]
)
def test_delay_levels_are_read_as_the_broker_reads_them(level: int, expected: float) -> None:
    assert delay_of_level("500ms 1s 5m 2h", level) == expected


class _Tagged(BaseWorkload):
    """One group that selects by tag, and nobody who sends."""

    def build(self) -> None:
        manners = Manners("tagged", TOPIC, 1, tags=frozenset({"a"}))
        self.groups.append(SimGroup(self.world, manners))


def test_a_run_goes_on_until_a_group_has_what_was_stored_and_not_acknowledged() -> None:
    """The checker asks for it; without a tag the offset to be committed says the same."""
    with simulated(1, Options(seed=1, flush="async")) as world:
        cluster, workload = Cluster(world), _Tagged(world)
        for node in world.nodes.values():
            node.start()
        assert world.run(20, lambda: cluster.is_ready and workload.is_done())
        (broker,) = cluster.brokers
        for tag in ("a", "b"):
            put(broker.running.store, topic=TOPIC, tags=tag, keys=f"unsure-{tag}")
        assert workload.unfinished() == "tagged has not consumed ['unsure-a'] (1 in all)"
        assert world.run(20, workload.is_done)
