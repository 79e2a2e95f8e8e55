"""Measured jobs on an embedded cluster: what a round counts is what was sent, and arrived."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import consuming, work
from benchmarks.broker_suites import written
from benchmarks.crowd import QUEUES, crowd
from benchmarks.jobs import Options
from rocketstream.server.embedded import EmbeddedCluster

COUNT = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as made:
        yield made


def options(cluster: EmbeddedCluster, *words: str) -> Options:
    where = ["--namesrv", cluster.namesrv_addr, "--broker", cluster.broker_addr]
    return work.arguments().parse_args([*where, "--count", str(COUNT), "--timeout", "30", *words])


def test_every_message_of_a_crowd_arrives_in_its_round(cluster: EmbeddedCluster) -> None:
    cluster.create_topic("Crowd", queues=QUEUES)
    told = options(cluster, "--topic", "Crowd", "--size", "100")
    with crowd(told) as once:
        for _ in range(2):
            found = once(told)
            assert found["count"] == COUNT
            assert 0 < found["p50_us"] <= found["p99_us"]
        paced = once(options(cluster, "--topic", "Crowd", "--size", "100", "--rate", "600"))
        assert paced["seconds"] >= COUNT / 600, "no faster than it was told"


def test_groups_and_members_begin_together_and_count_all_they_read(
    cluster: EmbeddedCluster,
) -> None:
    told = options(cluster, "--topic", "Filled")
    cluster.create_topic("Filled", queues=4)
    with work.fill(told) as fill:
        assert fill(told)["count"] == COUNT
    with consuming.drain(told) as drain:
        assert drain(options(cluster, "--topic", "Filled", "--group", "alone"))["count"] == COUNT
        many = ["--topic", "Filled", "--group", "many", "--groups", "2", "--members", "2"]
        assert drain(options(cluster, *many))["count"] == 2 * COUNT


def test_a_log_is_as_great_as_its_records_not_as_its_file(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes((10).to_bytes(4, "big") + bytes(6) + (20).to_bytes(4, "big") + bytes(996))
    assert written(file) == 30
