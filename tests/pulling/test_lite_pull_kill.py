"""A lite pull consumer killed in the middle: nothing is lost, no commit runs ahead."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rocketstream import Producer
from tests.kits.cluster import Cluster, embedded
from tests.kits.listeners import numbered
from tests.plugins.waiting import wait_until
from tests.pulling.polling_process import GROUP, TOPIC

ROOT = Path(__file__).resolve().parents[2]
QUEUES = 4
MESSAGES = 8_000
KILLS = 2
"""The second victim begins where the first had committed, as any later one would."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with embedded(tmp_path) as running:
        yield running


@contextmanager
def consumer(cluster: Cluster, log: Path, most: int, how: str) -> Iterator[None]:
    """Run a consumer process that gets stuck after ``most`` messages; killed at the end."""
    command = [sys.executable, "-m", "tests.pulling.polling_process"]
    with subprocess.Popen(
        [*command, cluster.namesrv_addr, str(log), str(most), how], cwd=ROOT
    ) as process:
        try:
            yield
        finally:
            process.kill()


def consumed(logs: list[Path]) -> set[tuple[int, int]]:
    """Return (queue, offset) of every whole line; a kill may cut the last one."""
    found: set[tuple[int, int]] = set()
    for log in logs:
        if log.exists():
            lines = log.read_bytes().split(b"\n")[:-1]
            found |= {(int(q), int(o)) for q, o in (line.split() for line in lines)}
    return found


def check_commits(cluster: Cluster, logs: list[Path]) -> int:
    """Every message below a committed offset is in a log; return how many are committed."""
    committed = cluster.committed(GROUP, TOPIC, QUEUES)
    seen = consumed(logs)
    for queue, offset in enumerate(committed):
        missing = [o for o in range(max(offset, 0)) if (queue, o) not in seen]
        assert not missing, f"queue {queue}: {offset} is committed, {missing[:5]} never consumed"
    return sum(max(offset, 0) for offset in committed)


@pytest.mark.chaos
@pytest.mark.parametrize("how", ["poll", "iterate", "columns"])
def test_a_killed_lite_pull_consumer_loses_nothing_and_never_commits_ahead(
    cluster: Cluster, tmp_path: Path, how: str
) -> None:
    """Covers C-515, C-516, apache/rocketmq 1470: kill -9 twice, then let one finish."""
    cluster.create_topic(TOPIC, QUEUES)
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        for queue in producer.fetch_publish_message_queues(TOPIC):
            producer.send(numbered(TOPIC, range(MESSAGES // QUEUES)), message_queue=queue)
    logs: list[Path] = []
    done = 0
    for kill in range(KILLS):
        logs.append(tmp_path / f"log{kill}")
        most = 400 + 165 * kill

        def stuck(log: Path = logs[-1], most: int = most) -> bool:
            return log.exists() and log.read_bytes().count(b"\n") == most

        with consumer(cluster, logs[-1], most, how):
            wait_until(stuck, "a stuck victim")
            wait_until(lambda: check_commits(cluster, logs) > done, "a commit of the victim")  # noqa: B023
        done = check_commits(cluster, logs)
    logs.append(tmp_path / "last")
    with consumer(cluster, logs[-1], 0, how):
        wait_until(lambda: len(consumed(logs)) == MESSAGES, "every message", timeout_s=60)
    check_commits(cluster, logs)
