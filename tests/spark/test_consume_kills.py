"""Many messages, a hundredth failing, drivers killed: nothing is lost, and the same is dead.

``CONSUME_MESSAGES`` says how many (20,000).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rocketstream import PushConsumer
from rocketstream.client.blocking import BlockingAdminClient
from rocketstream.errors import BrokerError
from rocketstream.model import ConsumeFromWhere, MessageQueue
from rocketstream.server.embedded import EmbeddedCluster
from tests.spark.outcomes import (
    RETRIES,
    expected,
    noted,
    outcome_listener,
    poison,
    table_of,
)
from tests.spark.support import numbered, send
from tests.unit.spark.consumer.test_returning import pulled

ROOT = Path(__file__).resolve().parents[2]
MESSAGES = int(os.environ.get("CONSUME_MESSAGES", "20000"))
QUEUES = 4
KILLS = 2
DELAY_MS = 1_000
WAIT_S = 540.0

pytestmark = [
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.chaos,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """A cluster of its own that delays every retry by a second."""
    with EmbeddedCluster(delay_levels=" ".join(["1s"] * 18)) as running:
        running.create_topic("table", queues=QUEUES)
        each = MESSAGES // QUEUES
        for queue_id in range(QUEUES):
            send(running, "table", queue_id, numbered(queue_id * each, each))
        yield running


@pytest.fixture
def admin(cluster: EmbeddedCluster) -> Iterator[BlockingAdminClient]:
    with BlockingAdminClient(cluster.namesrv_addr, timeout_ms=20_000) as client:
        yield client


def wait(until: Callable[[], bool], what: Callable[[], str]) -> None:
    pause = threading.Event()
    for _ in range(int(WAIT_S / 0.2)):
        if until():
            return
        pause.wait(0.2)
    raise AssertionError(what())


def start_driver(cluster: EmbeddedCluster, root: Path) -> subprocess.Popen[bytes]:
    """Start the consumer in a process group of its own, with its JVM."""
    program = [sys.executable, "-m", "tests.spark.listener_program"]
    return subprocess.Popen(
        [*program, cluster.namesrv_addr, "table", str(root)],
        cwd=ROOT,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=(root / "driver.log").open("ab"),
    )


def calls(folder: Path) -> int:
    """How often a listener was called; quick, unlike reading the notes."""
    return sum(path.read_bytes().count(b"\n") for path in folder.iterdir())


def dead_letters(admin: BlockingAdminClient, group: str) -> set[int]:
    queue = MessageQueue(f"%DLQ%{group}", "broker-a", 0)
    found: set[int] = set()
    try:
        end = admin.max_offset(queue)
    except BrokerError:
        return found
    at = 0
    while at < end:
        messages = pulled(admin, queue, at)
        found.update(int(message.body) for message in messages)
        at += len(messages)
    return found


def all_consumed(admin: BlockingAdminClient, group: str) -> bool:
    """Whether the group's offsets stand at the ends of its topic and its retry topic."""
    for topic in ("table", f"%RETRY%{group}"):
        for queue in admin.subscribe_queues(topic):
            if admin.query_consumer_offset(group, queue) != admin.max_offset(queue):
                return False
    return True


def finished(admin: BlockingAdminClient, group: str, folder: Path) -> bool:
    return dead_letters(admin, group) == poison(MESSAGES) and table_of(folder) == expected(MESSAGES)


def difference(folder: Path) -> str:
    got, wanted = table_of(folder), expected(MESSAGES)
    wrong = {n: (got.get(n), wanted[n]) for n in wanted if got.get(n) != wanted[n]}
    return f"{len(wrong)} messages differ, among them {dict(list(wrong.items())[:5])}"


def test_drivers_killed_lose_nothing_and_the_outcome_is_a_push_consumers(
    cluster: EmbeddedCluster, admin: BlockingAdminClient, tmp_path: Path
) -> None:
    """Each failure is tried again not before its delay, poison is dead after the last try."""
    notes = tmp_path / "notes"
    notes.mkdir()
    for kill in range(KILLS):
        driver = start_driver(cluster, tmp_path)
        enough = calls(notes) + MESSAGES // (KILLS + 1)

        def reached(driver: subprocess.Popen[bytes] = driver, enough: int = enough) -> bool:
            assert driver.poll() is None, (tmp_path / "driver.log").read_text()[-3_000:]
            return calls(notes) >= enough

        wait(reached, lambda: f"only {calls(notes)} calls before kill {kill}")  # noqa: B023
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(30)
    driver = start_driver(cluster, tmp_path)
    wait(lambda: finished(admin, "killed", notes), lambda: difference(notes))
    (tmp_path / "stop").touch()
    assert driver.wait(120) == 0, (tmp_path / "driver.log").read_text()[-3_000:]
    assert all_consumed(admin, "killed")
    for tries in noted(notes).values():
        for number in range(1, len(tries)):
            assert tries[number] - tries[number - 1] >= DELAY_MS

    push = tmp_path / "push"
    push.mkdir()
    consumer = PushConsumer(
        "push",
        namesrv_addr=cluster.namesrv_addr,
        listener=outcome_listener(str(push)),
        subscription={"table": "*"},
        max_reconsume_times=RETRIES,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    )
    with consumer:
        consumer.start()
        wait(lambda: finished(admin, "push", push), lambda: difference(push))
    assert table_of(push) == table_of(notes)
    assert dead_letters(admin, "push") == dead_letters(admin, "killed")
