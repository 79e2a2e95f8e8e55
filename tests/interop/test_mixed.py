"""Both languages in one group of work: Java sends and Python consumes, and the other way round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rocketstream.server.embedded import EmbeddedCluster
from tests.interop.cluster import SHORT_DELAYS, ApacheCluster, JavaPrograms
from tests.interop.messages import Received, read_received, read_sent
from tests.interop.ours import Collector, push_consumer, send_many

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

COUNT = 2_000


@dataclass(frozen=True)
class Place:
    """A cluster, whoever wrote it, with a fresh topic and group."""

    namesrv_addr: str
    broker_addr: str
    topic: str
    group: str


@pytest.fixture(params=["apache", "embedded"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "apache":
        cluster: ApacheCluster = request.getfixturevalue("apache_cluster")
        topic = cluster.create_topic(cluster.unique("mixed"), queues=4)
        yield Place(cluster.namesrv_addr, cluster.broker_addr, topic, cluster.unique("mixed-group"))
        return
    with EmbeddedCluster(delay_levels=SHORT_DELAYS) as ours:
        ours.create_topic("mixed", queues=4)
        yield Place(ours.namesrv_addr, ours.broker_addr, "mixed", "mixed-group")


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
    """A member that dies with failures leaves them to another language's member of the group."""
    send_many(place.namesrv_addr, place.topic, 100)
    consume(java, place, tmp_path / "received", 90, failmodulo=10, failtimes=99)
    collector = Collector()
    with push_consumer(place.namesrv_addr, place.group, place.topic, collector):
        collector.wait(10)

    again = collector.consumed()
    assert {int(each.index) for each in again} == set(range(0, 100, 10))
    assert {each.topic for each in again} == {place.topic}
    assert min(each.reconsume_times for each in again) >= 1


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
