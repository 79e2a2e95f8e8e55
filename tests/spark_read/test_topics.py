"""Which queues a read is of: patterns and assignments, asked of a real name server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketstream.errors import ConfigurationError, RouteNotFoundError
from rocketstream.model import MessageQueue
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark.driver.cluster import Cluster
from rocketstream.spark.driver.offsets import StreamOffset
from rocketstream.spark.driver.streaming import StreamSource
from rocketstream.spark.options import read_options
from rocketstream.spark.options.reading import matching
from tests.kits.spark.support import numbered, send

LISTED = [
    "orders-eu", "orders-us", "%RETRY%orders", "%DLQ%orders", "TBW102", "broker-a", "cluster",
    "cluster_REPLY_TOPIC", "rmq_sys_wheel_timer", "RMQ_SYS_TRACE_TOPIC", "SCHEDULE_TOPIC_XXXX",
]  # fmt: skip


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        (".*", ["orders-eu", "orders-us"]),
        ("orders-.*", ["orders-eu", "orders-us"]),
        ("%DLQ%.*", ["%DLQ%orders"]),
        ("(%DLQ%|%RETRY%).*", ["%DLQ%orders", "%RETRY%orders"]),
        ("orders-eu|%DLQ%orders", ["%DLQ%orders", "orders-eu"]),
        ("RMQ_SYS_.*", ["RMQ_SYS_TRACE_TOPIC"]),
        ("SCHEDULE_TOPIC_XXXX", ["SCHEDULE_TOPIC_XXXX"]),
        ("broker-a", ["broker-a"]),
        ("orders", []),
    ],
)
def test_a_pattern_is_about_what_somebody_sent(pattern: str, topics: list[str]) -> None:
    """Not about what the system keeps in topics, unless it spells that."""
    assert matching(pattern, LISTED, {"broker-a", "cluster"}) == topics


@pytest.fixture
def embedded() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as running:
        running.create_topic("orders-eu", queues=2)
        running.create_topic("orders-us", queues=1)
        running.create_topic("%DLQ%g", queues=1)
        yield running


@pytest.fixture
def open_clusters() -> Iterator[list[Cluster]]:
    opened: list[Cluster] = []
    yield opened
    for each in opened:
        each.close()


def driver(embedded: EmbeddedCluster, opened: list[Cluster], **given: str) -> Cluster:
    options = {"nameServer": embedded.namesrv_addr} | given
    opened.append(Cluster(read_options(options, "stream")))
    return opened[-1]


def test_a_pattern_finds_the_queues_of_the_topics_there_are(
    embedded: EmbeddedCluster, open_clusters: list[Cluster]
) -> None:
    """Those made later too; a pattern without topics has no queues, and is no error."""
    every = driver(embedded, open_clusters, topicPattern=".*")
    assert {queue.topic for queue in every.queues()} == {"orders-eu", "orders-us"}
    assert len(every.queues()) == 3
    embedded.create_topic("other", queues=1)
    assert {queue.topic for queue in every.queues()} == {"orders-eu", "orders-us", "other"}
    dead = driver(embedded, open_clusters, topicPattern="%DLQ%.*")
    assert [queue.topic for queue in dead.queues()] == ["%DLQ%g"]
    assert driver(embedded, open_clusters, topicPattern="none").queues() == []


def test_queues_assigned_are_the_ones_read(
    embedded: EmbeddedCluster, open_clusters: list[Cluster]
) -> None:
    """One that is not there is a typing error; one that was there is waited for elsewhere."""
    one = driver(embedded, open_clusters, assign='{"orders-eu":{"broker-a":[1]}}')
    assert one.queues() == [MessageQueue("orders-eu", "broker-a", 1)]
    strange = driver(embedded, open_clusters, assign='{"orders-eu":{"broker-a":[1,7]}}')
    with pytest.raises(ConfigurationError, match="do not exist: orders-eu/broker-a/7; there are"):
        strange.queues()
    assert strange.queues(held={"orders-eu"}) == one.queues()
    with pytest.raises(RouteNotFoundError):
        driver(embedded, open_clusters, assign='{"no":{"broker-a":[1]}}').queues()


def test_a_stream_of_a_pattern_takes_up_topics_made_under_way(
    embedded: EmbeddedCluster, open_clusters: list[Cluster]
) -> None:
    """From their first message, whatever it began with."""
    given = {"topicPattern": "orders-.*", "queueRefreshMs": "0"}
    cluster = driver(embedded, open_clusters, **given)
    options = read_options({"nameServer": embedded.namesrv_addr} | given, "stream")
    source = StreamSource(options, cluster)
    start = source.initial()
    embedded.create_topic("orders-asia", queues=1)
    send(embedded, "orders-asia", 0, numbered(0, 3))
    end = source.latest(start, False)
    ranges = source.ranges(start, StreamOffset.from_json(end.to_json()))
    assert [(span.queue.topic, span.begin, span.end) for span in ranges] == [("orders-asia", 0, 3)]
