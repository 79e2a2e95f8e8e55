"""A consumer killed in the middle: another goes on, nothing is lost, no commit runs ahead."""

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

ROOT = Path(__file__).resolve().parents[2]
QUEUES = 4
MESSAGES = 20_000
KILLS = 5

Consumed = set[tuple[int, int]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with embedded(tmp_path) as running:
        yield running


@contextmanager
def consumer(cluster: Cluster, log: Path, most: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """Run a consumer process that gets stuck after ``most`` messages; killed at the end."""
    command = [sys.executable, "-m", "tests.consuming.consuming_process"]
    with subprocess.Popen(
        [*command, cluster.namesrv_addr, "killed", "Kill", str(log), str(most)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def consumed(logs: list[Path]) -> Consumed:
    """Return (queue, offset) of every whole line; a kill may cut the last one."""
    found: Consumed = set()
    for log in logs:
        if log.exists():
            lines = log.read_bytes().split(b"\n")[:-1]
            found |= {(int(q), int(o)) for q, o in (line.split() for line in lines)}
    return found


def _lines(log: Path) -> int:
    return log.read_bytes().count(b"\n")


def check_commits(cluster: Cluster, logs: list[Path]) -> list[int]:
    """Every message below a committed offset is in a log; return the commits."""
    committed = cluster.committed("killed", "Kill", QUEUES)
    seen = consumed(logs)
    for queue, offset in enumerate(committed):
        missing = [o for o in range(max(offset, 0)) if (queue, o) not in seen]
        assert not missing, f"queue {queue}: {offset} is committed, {missing[:5]} never consumed"
    return committed


def kill_in_the_middle(cluster: Cluster, logs: list[Path], most: int) -> None:
    """Run a victim until it is stuck, every second time until it has committed, and kill it."""
    log = logs[-1]
    before = sum(max(offset, 0) for offset in cluster.committed("killed", "Kill", QUEUES))
    with consumer(cluster, log, most) as victim:
        wait_until(lambda: log.exists() and _lines(log) == most, "a stuck victim")
        if most % 2:
            wait_until(
                lambda: sum(cluster.committed("killed", "Kill", QUEUES)) > before,
                "a commit of the victim",
            )
        victim.kill()


@pytest.mark.chaos
def test_a_killed_consumer_loses_nothing_and_never_commits_ahead(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Covers C-121, C-241, C-265, C-548: kill -9 five times, then let one finish."""
    cluster.create_topic("Kill", QUEUES)
    with Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer:
        for queue in producer.fetch_publish_message_queues("Kill"):
            producer.send(numbered("Kill", range(MESSAGES // QUEUES)), message_queue=queue)
    logs: list[Path] = []
    for number in range(KILLS):
        logs.append(tmp_path / f"log{number}")
        kill_in_the_middle(cluster, logs, MESSAGES // (2 * KILLS) + number)
        check_commits(cluster, logs)
    assert len(consumed(logs)) < MESSAGES, "the victims were to be killed in the middle"
    logs.append(tmp_path / "last")
    with consumer(cluster, logs[-1]) as last:
        wait_until(lambda: len(consumed(logs)) >= MESSAGES, "everything consumed")
        assert last.stdin is not None
        last.stdin.close()
        assert last.wait(30) == 0
    assert check_commits(cluster, logs) == [MESSAGES // QUEUES] * QUEUES


@pytest.mark.chaos
def test_a_living_member_takes_the_queues_of_a_killed_one(cluster: Cluster, tmp_path: Path) -> None:
    """Covers C-343, C-344: the broker sees the connection end and tells the others."""
    cluster.create_topic("Kill", QUEUES)
    logs = [tmp_path / "one", tmp_path / "two"]
    with (
        Producer("pg", namesrv_addr=cluster.namesrv_addr) as producer,
        consumer(cluster, logs[0]) as victim,
        consumer(cluster, logs[1]) as heir,
    ):
        sent = 0

        def both_consume() -> bool:
            nonlocal sent
            producer.send(numbered("Kill", [sent]), message_queue=queues[sent % QUEUES])
            sent += 1
            return all(log.exists() and log.stat().st_size for log in logs)

        queues = producer.fetch_publish_message_queues("Kill")
        wait_until(both_consume, "both members consuming")
        victim.kill()
        victim.wait(30)
        for queue in queues:
            producer.send(numbered("Kill", range(100)), message_queue=queue)
        total = sent + 100 * QUEUES
        wait_until(lambda: len(consumed(logs)) >= total, "everything consumed")
        assert heir.stdin is not None
        heir.stdin.close()
        assert heir.wait(30) == 0
    assert sum(check_commits(cluster, logs)) == total
