"""The Java programs as benchmarks use them: round after round in one JVM, each told on stdin."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from benchmarks.java import JavaTold
from benchmarks.sides import Worker
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.apache.cluster import JavaPrograms, committed_offsets
from tests.kits.apache.jvm import Jvm
from tests.plugins.waiting import wait_until

pytestmark = pytest.mark.interop
COUNT = 400


@pytest.fixture
def embedded() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster:
        cluster.create_topic("orders", queues=4)
        yield cluster


def started(java: JavaPrograms, cluster: EmbeddedCluster, program: str, **more: object) -> Jvm:
    where: dict[str, Any] = {
        "namesrv": cluster.namesrv_addr,
        "topic": "orders",
        "group": "first",
        "count": COUNT,
    }
    return java.start(program, rounds=True, **where | more)


def stored(cluster: EmbeddedCluster) -> int:
    with BlockingAdminClient(cluster.namesrv_addr) as client:
        return sum(client.max_offsets(client.subscribe_queues("orders")).values())


def committed(cluster: EmbeddedCluster, group: str) -> int:
    return sum(committed_offsets(cluster.store_dir, "orders", group).values())


def test_a_java_producer_sends_a_round_for_each_line_and_ends_with_the_input(
    java: JavaPrograms, embedded: EmbeddedCluster
) -> None:
    with started(java, embedded, "JavaProducer") as jvm:
        told = JavaTold(jvm)
        first = told.round()
        assert (first["count"], stored(embedded)) == (COUNT, COUNT)
        second = told.round(count=50, size=10)
        assert (second["count"], stored(embedded)) == (50, COUNT + 50)
        assert told.round(mode="sync", count=5)["rate"] > 0
        assert min(first["cpu_us"], first["seconds"], first["rate"]) > 0
        jvm.end_input()
        assert jvm.wait() == 0


@pytest.mark.parametrize(
    "program", ["JavaPushConsumer", "JavaLitePullConsumer", "JavaOrderlyDrain"]
)
def test_each_round_of_a_java_consumer_begins_at_the_first_message(
    java: JavaPrograms, embedded: EmbeddedCluster, program: str
) -> None:
    with Worker("fill", namesrv=embedded.namesrv_addr, topic="orders", count=COUNT) as worker:
        worker.round()
    with started(java, embedded, program, track=False) as jvm:
        told = JavaTold(jvm)
        for group in ("one", "two"):
            assert told.round(group=group)["count"] == COUNT
            wait_until(partial(committed, embedded, group), f"offsets of {group}")
        jvm.end_input()
        assert jvm.wait() == 0


def test_latency_is_measured_anew_each_round(java: JavaPrograms, embedded: EmbeddedCluster) -> None:
    with started(java, embedded, "JavaLatency", rate=1_000) as jvm:
        told = JavaTold(jvm)
        for count in (COUNT, 100):
            found = told.round(count=count)
            assert found["count"] == count
            assert 0 < found["p50_us"] <= found["p99_us"] <= found["max_us"]
        jvm.end_input()
        assert jvm.wait() == 0


def test_a_round_that_fails_ends_the_program_with_what_happened(
    java: JavaPrograms, embedded: EmbeddedCluster
) -> None:
    with started(java, embedded, "JavaPushConsumer", timeout=1) as jvm:
        with pytest.raises(RuntimeError, match="exit code 1") as caught:
            JavaTold(jvm).round(group="nothing-there")
        assert f"consumed 0 of {COUNT}" in str(caught.value)
