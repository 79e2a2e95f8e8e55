"""Simulated processes in one world: the product itself on virtual time, crashes, pauses, replay."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import itertools
import os
import random
import subprocess
import sys
from typing import Any

import pytest

from rocketstream import Message, aio
from rocketstream.errors import ConfigurationError, SimulationError
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import TopicConfig
from rocketstream.server.store import StoreConfig
from rocketstream.testing.history.events import Disturbed
from rocketstream.testing.sim.cluster import Cluster
from rocketstream.testing.sim.disk import Trouble
from rocketstream.testing.sim.faults import Faults
from rocketstream.testing.sim.options import FAULT_KINDS, FLIP_AT_WORK, Options
from rocketstream.testing.sim.runs import run_world, simulated
from rocketstream.testing.sim.workload import FLUSH_MARGIN_MS
from rocketstream.testing.sim.world import START_MS, Node, World
from tests.scenarios.draws import draw_options
from tests.simulation.orders import TOPIC, Orders, run_orders

QUIET = Options(seed=1, messages=30, fault_ms=12_000)


def test_cluster_and_clients_run_on_virtual_time() -> None:
    result = run_orders(QUIET)
    assert result.ok, result.report()
    assert result.messages == 30
    assert result.virtual_ms >= 12_000


@pytest.mark.parametrize("kind", [*FAULT_KINDS, FLIP_AT_WORK])
def test_everything_acknowledged_is_consumed_in_spite_of(kind: str) -> None:
    options = dataclasses.replace(
        QUIET, messages=150, fault_ms=5_000, fault_interval_ms=500, faults=(kind,)
    )
    result = run_orders(options)
    assert result.ok, result.report()
    assert result.faults[kind]


@pytest.mark.parametrize("after", range(1, 9))
def test_an_acknowledged_message_survives_a_power_loss_with_sync_flush(after: int) -> None:
    """The machine loses its power in the moment the producer hears that the broker has it."""
    options = Options(seed=after, messages=after, flush="sync", fault_ms=5_000)
    with simulated(after, options) as world:
        cluster = Cluster(world)
        cluster.create_topic(TOPIC)

        async def produce(node: Node) -> None:
            async with aio.Producer("p", **node.client()) as producer:
                for number in range(after):
                    await producer.send(Message(TOPIC, b"x", keys=f"order-{number}"))
                cluster.brokers[0].node.lose_power()
                cluster.brokers[0].node.restart_later(1.0)

        producer, node = world.add_node("producer", produce), cluster.brokers[0].node
        cluster.start()
        assert world.run(20, lambda: cluster.is_ready)
        producer.start()
        assert world.run(60, lambda: node.incarnation == 2 and cluster.is_ready)
        producer.kill()
        kept = {message.keys for message in cluster.stored(TOPIC)}
        assert kept == {f"order-{number}" for number in range(after)}


class Unlucky(random.Random):
    """Has a disk keep nothing that was not synced."""

    def choice(self, seq: Any) -> Any:
        return "none" if "none" in seq else super().choice(seq)


def longest_lost_ms(seed: int) -> float:
    """How long ago the oldest message was acknowledged that a power loss takes; 0 for none."""
    options = Options(seed, flush="async", flush_interval_ms=StoreConfig().flush_interval_ms)
    acknowledged: dict[str, float] = {}
    with simulated(seed, options) as world:
        cluster = Cluster(world)
        cluster.create_topic(TOPIC)

        async def produce(node: Node) -> None:
            producer = aio.Producer("p", **node.client())
            await producer.start()
            for number in itertools.count():
                await producer.send(Message(TOPIC, b"x", keys=f"order-{number}"))
                acknowledged[f"order-{number}"] = world.now_ms
                await asyncio.sleep(0.02)

        producer, node = world.add_node("producer", produce), cluster.brokers[0].node
        cluster.start()
        assert world.run(20, lambda: cluster.is_ready)
        producer.start()
        world.run(2 + seed / 8)
        node.disk.chance, lost_ms = Unlucky(seed), world.now_ms
        node.lose_power()
        producer.kill()
        node.restart_later(1.0)
        assert world.run(60, lambda: node.incarnation == 2 and cluster.is_ready)
        kept = {message.keys for message in cluster.stored(TOPIC)}
        return max((lost_ms - at for key, at in acknowledged.items() if key not in kept), default=0)


def test_a_power_loss_takes_no_more_than_the_last_half_second_with_async_flush() -> None:
    """By the store's own interval, whatever the moment; of the disk nothing unsynced survives."""
    lost = [longest_lost_ms(seed) for seed in range(8)]
    assert 400 < max(lost) <= 500 + FLUSH_MARGIN_MS


def test_same_seed_is_the_same_run_and_another_is_another() -> None:
    digests = {seed: run_orders(draw_options(seed, "orders")).digest for seed in range(5)}
    assert len(set(digests.values())) == 5
    for seed, digest in digests.items():
        assert run_orders(draw_options(seed, "orders"), trace=seed == 1).digest == digest


PROGRAM = """
from tests.scenarios.campaign import run_seed
runs = {
    # These come apart where connections are closed in the order of a set.
    "clustering": (0, 1), "delayed": (2,), "ordered": (2,), "reading": (2, 4),
    # And these, like the last one, where topics are told in such an order; clustering 0 speaks TLS.
    "changing": (2,), "operating": (4,), "strange": (1,),
}
print(*(run_seed(seed, name).digest for name, seeds in runs.items() for seed in seeds))
"""


def test_run_does_not_depend_on_the_process_or_its_hash_seed() -> None:
    outputs = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1


def test_simulation_leaves_nothing_behind() -> None:
    before = random.getstate()
    run_orders(draw_options(3, "orders"))
    assert random.getstate() == before
    assert gc.isenabled()


def quiet_world() -> World:
    return World(QUIET)


def test_killed_process_is_started_anew_and_its_notebook_stays() -> None:
    seen: list[tuple[int, object]] = []

    async def main(node: Node) -> None:
        seen.append((node.incarnation, node.kept.get("note")))
        node.kept["note"] = node.incarnation
        try:
            await asyncio.sleep(100)
        finally:
            node.record("never")

    world = quiet_world()
    node = world.add_node("one", main)
    node.start()
    world.run(1)
    node.kill()
    assert not node.is_alive
    node.restart_later(2)
    world.run(5)
    assert seen == [(1, None), (2, 1)]
    world.close()
    assert "never" not in world.history, "what a dead process says is not heard"


def test_process_that_ends_with_an_error_of_ours_is_started_again() -> None:
    starts: list[int] = []

    async def main(node: Node) -> None:
        starts.append(node.incarnation)
        raise ConfigurationError("no")

    world = quiet_world()
    world.add_node("one", main).start()
    world.run(1)
    assert starts[:3] == [1, 2, 3]
    assert world.failure is None
    world.close()


def test_process_that_ends_with_any_other_error_fails_the_run() -> None:
    async def main(node: Node) -> None:
        raise KeyError("mistake")

    world = quiet_world()
    world.add_node("one", main).start()
    world.run(1)
    assert world.failure is not None
    assert "mistake" in world.failure
    world.close()


def test_wall_clock_may_jump_and_the_monotonic_one_only_runs() -> None:
    async def main(node: Node) -> None:
        await asyncio.sleep(0)

    world = quiet_world()
    one, two = world.add_node("one", main), world.add_node("two", main)
    world.run(5)
    one.clock.jump(-3_600_000)
    assert one.clock.now_ms() == START_MS + 5_000 - 3_600_000
    assert two.clock.now_ms() == START_MS + 5_000
    assert one.clock.monotonic_ms() == two.clock.monotonic_ms() == 5_000


def test_clock_that_jumped_tells_when_it_showed_a_stamp() -> None:
    """What a broker stored before it was killed is told from what it stored afterwards."""

    async def main(node: Node) -> None:
        await asyncio.sleep(0)

    world = quiet_world()
    clock = world.add_node("one", main).clock
    for by_ms in (60_000, -65_000):
        world.run(5)
        clock.jump(by_ms)
    world.run(10)
    stamps = {2_000: 2_000.0, 67_000: 7_000.0, 8_000: 13_000.0, 30_000: 0.0}
    assert {stamp: clock.when(START_MS + stamp, 0.0) for stamp in stamps} == stamps
    assert clock.when(START_MS + 5_000, 9_000.0) == 10_000.0
    assert clock.when(START_MS + 2_000, 6_000.0) == 6_000.0


def test_two_processes_of_one_name_are_refused() -> None:
    async def main(node: Node) -> None:
        await asyncio.sleep(0)

    world = quiet_world()
    world.add_node("one", main)
    with pytest.raises(SimulationError, match="'one' already"):
        world.add_node("one", main)


def test_name_server_started_anew_learns_every_topic_though_a_change_comes_first() -> None:
    world = quiet_world()
    cluster = Cluster(world)
    cluster.create_topic(TOPIC)
    cluster.start()
    assert world.run(20, lambda: cluster.is_ready)
    (namesrv,), (broker,) = cluster.name_servers, cluster.brokers
    namesrv.node.kill()
    namesrv.node.start()
    world.run(1)

    async def add_topic() -> None:
        await broker.running.controller.put_topic(TopicConfig("Later"))

    task = broker.node.loop.create_task(add_topic())
    assert world.run(20, task.done)
    assert task.exception() is None
    world.run(60)
    assert namesrv.server is not None
    assert {TOPIC, "Later"} <= set(namesrv.server.routes.topics())
    world.close()


def test_cluster_is_not_ready_before_the_broker_started_anew_is() -> None:
    """Whoever reads the store then would read what a dead process had open."""
    world = quiet_world()
    cluster = Cluster(world)
    cluster.create_topic(TOPIC)
    cluster.start()
    assert world.run(20, lambda: cluster.is_ready)
    cluster.brokers[0].node.kill()
    cluster.brokers[0].node.start()
    assert not cluster.is_ready
    assert cluster.stored(TOPIC) == []
    assert world.run(20, lambda: cluster.is_ready)
    world.close()


def test_topics_are_at_every_broker_and_clients_go_on_without_one_of_them() -> None:
    """Of two brokers and two name servers one each is gone for good."""
    options = dataclasses.replace(QUIET, brokers=2, name_servers=2)
    with simulated(1, options) as world:
        cluster, orders = Cluster(world), Orders(world)
        cluster.start()
        assert world.run(20, lambda: cluster.is_ready)
        for node in world.nodes.values():
            node.start()
        assert world.run(20, lambda: len(orders.acknowledged) > 5)
        gone = {message.queue.broker_name for message in cluster.stored(TOPIC)}
        assert gone == {"broker-a", "broker-b"}
        cluster.brokers[1].node.kill()
        cluster.name_servers[0].node.kill()
        assert world.run(60, lambda: orders.messages == options.messages)
        world.run(10)
        there = {message.keys for message in cluster.stored(TOPIC)}
        assert {each for each in orders.acknowledged if each in there} <= orders.consumed
        assert len(orders.acknowledged) == options.messages


def test_servers_are_ended_one_at_a_time_where_that_is_asked_for() -> None:
    kinds = ("broker killed", "broker stopped", "name server killed")
    options = dataclasses.replace(
        QUIET, brokers=2, name_servers=2, faults=kinds, fault_interval_ms=100, apart_ms=5_000
    )
    with simulated(1, options) as world:
        Cluster(world)
        assert run_world(world, Orders(world)).ok
        ends = [
            each.at
            for each in world.history
            if isinstance(each, Disturbed) and each.what.startswith(("broker", "namesrv"))
        ]
        assert len(ends) > 1
        assert all(later - sooner >= 5_000 for sooner, later in itertools.pairwise(ends))


def test_broker_that_takes_no_writes_is_stopped_in_good_order_when_faults_are_over() -> None:
    """What a failing disk had kept from being written down is written then."""
    queue = MessageQueue(TOPIC, "broker-a", 0)
    with simulated(1, QUIET) as world:
        cluster, orders = Cluster(world), Orders(world)
        (broker,) = cluster.brokers
        faults = Faults(world)
        for node in world.nodes.values():
            node.start()
        assert world.run(20, lambda: len(orders.acknowledged) > 3)
        broker.node.disk.trouble = Trouble(eio_sync=1.0)
        old = broker.running
        assert world.run(20, lambda: not old.store.is_writable)
        old.controller.locks.lock("g", "c", [queue], old.controller.monotonic_ms())
        world.run(1)
        faults.end()
        assert world.run(20, lambda: cluster.is_ready and broker.running is not old)
        fresh = broker.running
        assert fresh.store.is_writable
        assert fresh.controller.locks.holder("g", queue, fresh.controller.monotonic_ms()) == "c"
        assert not world.internal_errors
