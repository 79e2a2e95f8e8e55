"""One group in order, in two languages: every queue has one owner, whoever dies is replaced."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.server.broker.core.locks import QueueLocks
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.apache.cluster import ApacheCluster, JavaPrograms
from tests.kits.apache.jvm import SMALL_JVM, Jvm
from tests.kits.apache.ours import send_many
from tests.kits.apache.referee import Referee
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

QUEUES = 4
ROOT = Path(__file__).resolve().parents[2]
# Brokers keep the lock of a dead member for a minute; shorter here, on both sides.
BROKER_LOCK_MS, CLIENT_LOCK_MS, RENEWAL_MS = 5_000, 3_000, 1_000
JAVA_LOCKS = (
    f"-Drocketmq.client.rebalance.lockMaxLiveTime={CLIENT_LOCK_MS}",
    f"-Drocketmq.client.rebalance.lockInterval={RENEWAL_MS}",
    # 4.9 keeps the lock of a queue it gave up for this long if messages were waiting (C-179).
    "-Drocketmq.client.unlockDelayTimeMills=1000",
)
TAKEOVER_S = 60.0

Row = tuple[int, int]


@dataclass(frozen=True)
class Place:
    """A cluster, whoever wrote it, with a fresh topic and group."""

    namesrv_addr: str
    topic: str
    group: str

    def ends(self) -> dict[int, int]:
        """Return the end of each queue."""
        with BlockingAdminClient(self.namesrv_addr) as admin:
            queues = admin.subscribe_queues(self.topic)
            return {mq.queue_id: admin.max_offset(mq) for mq in queues}


@pytest.fixture(scope="module")
def short_locks(
    apache: Referee, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheCluster]:
    """Apache's broker that soon gives the locks of a dead member to another."""
    options = (*SMALL_JVM, f"-Drocketmq.broker.rebalance.lockMaxLiveTime={BROKER_LOCK_MS}")
    cluster = ApacheCluster(apache, tmp_path_factory.mktemp("apache"), jvm_options=options)
    try:
        yield cluster.start()
    finally:
        cluster.stop(kill=True)


@pytest.fixture(params=["apache", "embedded"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    if request.param == "apache":
        cluster: ApacheCluster = request.getfixturevalue("short_locks")
        topic = cluster.create_topic(cluster.unique("mixed-orderly"), queues=QUEUES)
        yield Place(cluster.namesrv_addr, topic, f"{topic}-group")
        return
    with EmbeddedCluster() as ours:
        ours.broker.controller.locks = QueueLocks(BROKER_LOCK_MS)
        ours.create_topic("mixed-orderly", queues=QUEUES)
        yield Place(ours.namesrv_addr, "mixed-orderly", "mixed-orderly-group")


class Ours:
    """A member of ours in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def own(self) -> set[int]:
        """Return the queues it has."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline().strip()
        return {int(each) for each in line.split(",") if each}

    def kill(self) -> None:
        """End it without a word."""
        self._process.kill()
        self._process.wait(10)


@contextmanager
def python_member(place: Place, log: Path) -> Iterator[Ours]:
    """Run a member of ours; it writes down what it consumes."""
    command = [sys.executable, "-m", "tests.ordering.ordering_process"]
    with subprocess.Popen(
        [*command, place.namesrv_addr, place.group, place.topic, str(log)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "ROCKETMQ_REBALANCE_LOCK_INTERVAL_MS": str(RENEWAL_MS),
            "ROCKETMQ_REBALANCE_LOCK_MAX_LIVE_MS": str(CLIENT_LOCK_MS),
        },
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield Ours(process)
        finally:
            process.kill()


def java_member(java: JavaPrograms, place: Place, rows: Path) -> Jvm:
    """Start a Java member; it writes down what it consumes."""
    return java.start(
        "JavaOrderlyConsumer",
        jvm_options=(*SMALL_JVM, *JAVA_LOCKS),
        namesrv=place.namesrv_addr,
        topic=place.topic,
        group=place.group,
        out=rows,
    )


def consumed(file: Path) -> list[Row]:
    """Return queue and offset of each whole row, in the order of consumption."""
    if not file.exists():
        return []
    lines = [line.split("\t") for line in file.read_text().split("\n")[:-1]]
    return [(int(line[3]), int(line[4])) for line in lines]


def assert_in_order(ones: list[Row], twos: list[Row]) -> None:
    """Each member goes on by one in each queue, or back, or from where the other one was."""
    for rows, others in ((ones, set(twos)), (twos, set(ones))):
        last: dict[int, int] = {}
        for queue, offset in rows:
            if offset > last.get(queue, -1) + 1:
                assert (queue, offset - 1) in others, f"{queue}: {offset} after {last.get(queue)}"
            last[queue] = offset


def send_until(place: Place, condition: Callable[[], bool], what: str) -> None:
    """Send messages until both members consume."""
    for _ in range(200):
        send_many(place.namesrv_addr, place.topic, 40, size=100)
        if condition():
            return
    wait_until(condition, what, timeout_s=TAKEOVER_S)


def wait_for_everything(place: Place, *files: Path) -> None:
    """Wait until every message was consumed by somebody."""
    everything = {(queue, n) for queue, end in place.ends().items() for n in range(end)}
    wait_until(
        lambda: set().union(*map(consumed, files)) >= everything,
        "everything to be consumed",
        timeout_s=TAKEOVER_S,
    )


def test_each_queue_has_one_owner_in_either_language(
    java: JavaPrograms, place: Place, tmp_path: Path
) -> None:
    """Covers C-186, C-354, C-560: they share the queues; from then on nothing is consumed twice."""
    rows, log = tmp_path / "rows", tmp_path / "log"
    with java_member(java, place, rows) as theirs:
        theirs.wait_event("ready")
        send_many(place.namesrv_addr, place.topic, 200, size=100)
        with python_member(place, log) as ours:
            wait_until(lambda: len(ours.own()) == QUEUES // 2, "half of the queues", TAKEOVER_S)
            wait_for_everything(place, rows, log)
            before = (len(consumed(rows)), len(consumed(log)))
            at = sum(place.ends().values())
            send_many(place.namesrv_addr, place.topic, 400, size=100)
            # Apache's broker answers a send before the message counts in its queue.
            wait_until(lambda: sum(place.ends().values()) == at + 400, "all in their queues")
            wait_for_everything(place, rows, log)
            own = ours.own()
            later = consumed(rows)[before[0] :], consumed(log)[before[1] :]
            theirs.end_input()
            theirs.wait_event("closed")
            wait_until(lambda: len(ours.own()) == QUEUES, "all queues", TAKEOVER_S)
    assert {queue for queue, _ in later[1]} == own
    assert {queue for queue, _ in later[0]} == set(range(QUEUES)) - own
    together = later[0] + later[1]
    assert len(together) == len(set(together)) == 400
    assert_in_order(consumed(rows), consumed(log))


@pytest.mark.parametrize("victim", ["java", "python"])
def test_a_killed_member_is_replaced_by_the_other_language(
    java: JavaPrograms, place: Place, tmp_path: Path, victim: str
) -> None:
    """Covers C-298, C-353: its locks expire, the other goes on in order, nothing is lost."""
    rows, log = tmp_path / "rows", tmp_path / "log"
    with java_member(java, place, rows) as theirs:
        theirs.wait_event("ready")
        with python_member(place, log) as ours:
            send_until(
                place,
                lambda: min(len(consumed(rows)), len(consumed(log))) >= 50,
                "both members to consume",
            )
            send_many(place.namesrv_addr, place.topic, 200, size=100)
            if victim == "java":
                theirs.stop(kill=True)
            else:
                ours.kill()
            send_many(place.namesrv_addr, place.topic, 200, size=100)
            wait_for_everything(place, rows, log)
            if victim == "java":
                assert ours.own() == set(range(QUEUES))
    assert_in_order(consumed(rows), consumed(log))
