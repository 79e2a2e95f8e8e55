"""Both languages in one group of work: Java sends and Python consumes, and the other way round."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.apache.cluster import SHORT_DELAYS, ApacheCluster, JavaPrograms
from tests.kits.apache.messages import Received, read_received, read_sent
from tests.kits.apache.ours import Collector, push_consumer, send_many
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

COUNT = 2_000
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Place:
    """A cluster, whoever wrote it, with a fresh topic and group."""

    namesrv_addr: str
    broker_addr: str
    topic: str
    group: str
    embedded: bool = False


@pytest.fixture(params=["apache", "embedded"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "apache":
        cluster: ApacheCluster = request.getfixturevalue("apache_cluster")
        topic = cluster.create_topic(cluster.unique("mixed"), queues=4)
        yield Place(cluster.namesrv_addr, cluster.broker_addr, topic, cluster.unique("mixed-group"))
        return
    with EmbeddedCluster(delay_levels=SHORT_DELAYS) as ours:
        ours.create_topic("mixed", queues=4)
        yield Place(ours.namesrv_addr, ours.broker_addr, "mixed", "mixed-group", embedded=True)


@pytest.mark.parametrize("size", [100, 20_000])
def test_python_consumes_what_java_sends(
    java: JavaPrograms, place: Place, tmp_path: Path, size: int
) -> None:
    """Small and deflated bodies, tags, keys and properties cross as they are."""
    out = tmp_path / "sent"
    collector = Collector()
    with push_consumer(place.namesrv_addr, place.group, place.topic, collector):
        java.produce(
            namesrv=place.namesrv_addr,
            topic=place.topic,
            group="till",
            count=COUNT,
            size=size,
            tags="A,红",
            out=out,
        )
        collector.wait(COUNT)

    assert Counter(each.sent for each in collector.consumed()) == Counter(read_sent(out))


@pytest.mark.parametrize("size", [100, 20_000])
def test_java_consumes_what_python_sends(
    java: JavaPrograms, place: Place, tmp_path: Path, size: int
) -> None:
    """The same the other way round."""
    stored = send_many(place.namesrv_addr, place.topic, COUNT, size=size, tags=("A", "红"))

    received = consume(java, place, tmp_path / "received", COUNT)

    assert Counter(each.sent for each in received) == Counter(stored)


def test_python_retries_what_java_gave_back(
    java: JavaPrograms, place: Place, tmp_path: Path
) -> None:
    """A member that leaves with failures leaves them to another language's member.

    Apache's broker has a thread for each request, so the offset that a pull carries may be stored
    after the newer one the member commits as it leaves: the other then consumes a queue's tail
    again, for the first time by its count. Ours takes requests in their order.
    """
    failed = set(range(0, 100, 10))
    send_many(place.namesrv_addr, place.topic, 100)
    consume(java, place, tmp_path / "received", 90, failmodulo=10, failtimes=99)
    collector = Collector()

    def retried() -> set[int]:
        return {int(each.index) for each in collector.consumed() if each.reconsume_times >= 1}

    with push_consumer(place.namesrv_addr, place.group, place.topic, collector):
        wait_until(lambda: retried() >= failed, "what was given back", timeout_s=60)

    again = collector.consumed()
    assert retried() == failed
    assert {each.topic for each in again} == {place.topic}
    if place.embedded:
        assert {int(each.index) for each in again} == failed


@pytest.mark.parametrize("victim", ["java", "python"])
def test_a_killed_member_is_replaced_by_the_other_language(
    java: JavaPrograms, place: Place, tmp_path: Path, victim: str
) -> None:
    """Covers C-155, C-548: one group of both; kill -9 loses nothing, whichever stays."""
    rows, log = tmp_path / "rows", tmp_path / "log"
    where: dict[str, Any] = {
        "namesrv": place.namesrv_addr,
        "topic": place.topic,
        "group": place.group,
    }
    with java.start("JavaPushConsumer", **where, out=rows) as theirs:
        theirs.wait_event("ready")
        with python_member(place, log) as ours:
            send_until(place, lambda: min(len(places(rows)), len(places(log))) >= 50)
            if victim == "java":
                send_many(place.namesrv_addr, place.topic, 200, size=100)
                theirs.stop(kill=True)
            else:
                send_many(place.namesrv_addr, place.topic, 200, size=100)
                ours.kill()
            send_many(place.namesrv_addr, place.topic, 200, size=100)
            with BlockingAdminClient(place.namesrv_addr) as admin:
                queues = admin.subscribe_queues(place.topic)
                ends = {mq.queue_id: admin.max_offset(mq) for mq in queues}
                everything = {(queue, n) for queue, end in ends.items() for n in range(end)}
                wait_until(
                    lambda: places(rows) | places(log) >= everything,
                    "everything to be consumed by one or the other",
                    timeout_s=60,
                )
                committed = [(admin.query_consumer_offset(place.group, mq) or 0) for mq in queues]
    assert all(offset <= ends[mq.queue_id] for mq, offset in zip(queues, committed, strict=True))


@contextmanager
def python_member(place: Place, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a member of ours in a process of its own; it writes down what it consumes."""
    command = [sys.executable, "-m", "tests.consuming.consuming_process"]
    with subprocess.Popen(
        [*command, place.namesrv_addr, place.group, place.topic, str(log), "0"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def send_until(place: Place, condition: Callable[[], bool]) -> None:
    """Send messages until both members consume."""
    for _ in range(100):
        send_many(place.namesrv_addr, place.topic, 40, size=100)
        if condition():
            return
    wait_until(condition, "both members to consume")


def places(file: Path) -> set[tuple[int, int]]:
    """Return queue and offset of each whole line of either member's record."""
    if not file.exists():
        return set()
    lines = [line.split() for line in file.read_text().split("\n")[:-1]]
    return {(int(w[3]), int(w[4])) if w[0] == "OK" else (int(w[0]), int(w[1])) for w in lines}


def consume(
    java: JavaPrograms, place: Place, out: Path, count: int, **arguments: Any
) -> list[Received]:
    """Run a Java push consumer until it consumed ``count`` messages; return its deliveries."""
    with java.start(
        "JavaPushConsumer",
        namesrv=place.namesrv_addr,
        topic=place.topic,
        group=place.group,
        count=count,
        out=out,
        **arguments,
    ) as consumer:
        consumer.wait_event("done")
        consumer.end_input()
        consumer.wait_event("closed")
        assert consumer.wait() == 0
    return read_received(out)
