"""What is read and from where, said to a real Spark: patterns, assignments, groups, times."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.model import MessageQueue
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.spark.support import numbered, send

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

NewTopic = Callable[..., str]


def numbers(spark: Any, cluster: EmbeddedCluster, **options: Any) -> list[int]:
    """The numbers in the bodies of a batch, sorted; repeats stay."""
    reader = spark.read.format("rocketmq").schema("body BINARY")
    rows = reader.options(nameServer=cluster.namesrv_addr, **options).load().collect()
    return sorted(int(bytes(row.body)) for row in rows)


@pytest.mark.core
def test_a_batch_is_of_a_pattern_or_of_queues(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic
) -> None:
    """The pattern crosses into Spark's processes as it was written."""
    topic = new_topic(queues=2)
    send(shared_cluster, topic, 0, numbered(0, 5))
    send(shared_cluster, topic, 1, numbered(5, 5))
    assert numbers(spark, shared_cluster, topicPattern=f"{topic[:-1]}[{topic[-1]}]") == list(
        range(10)
    )
    assigned = json.dumps({topic: {"broker-a": [1]}})
    assert numbers(spark, shared_cluster, assign=assigned) == list(range(5, 10))


@pytest.mark.core
def test_a_batch_is_what_a_group_has_left(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic
) -> None:
    """Its backlog; the group is not moved by it. Then what came in the last day: everything."""
    topic = new_topic(queues=2)
    send(shared_cluster, topic, 0, numbered(0, 5))
    send(shared_cluster, topic, 1, numbered(5, 5))
    queue = MessageQueue(topic, "broker-a", 0)
    with BlockingAdminClient(shared_cluster.namesrv_addr) as client:
        client.update_consumer_offset("backlog", queue, 3)
        options = {"topic": topic, "group": "backlog", "startingOffsets": "group"}
        assert numbers(spark, shared_cluster, **options) == [3, 4, 5, 6, 7, 8, 9]
        assert client.query_consumer_offset("backlog", queue) == 3
    assert numbers(spark, shared_cluster, topic=topic, startingTimestamp="-1d") == list(range(10))
    assert numbers(spark, shared_cluster, topic=topic, endingTimestamp="-1d") == []


def test_spark_hands_every_limit_back(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic, stream: Any, tmp_path: Path
) -> None:
    """Bytes and company, through availableNow to the end; partitions hold what they may."""
    topic = new_topic(queues=2)
    send(shared_cluster, topic, 0, numbered(0, 300))
    send(shared_cluster, topic, 1, numbered(300, 300))

    def run(**options: Any) -> list[int]:
        """The sizes of the batches of a query over everything."""
        writer = (
            stream(topic, "body BINARY", **options)
            .writeStream.format("noop")
            .trigger(availableNow=True)
        )
        place = str(tmp_path / next(iter(options)))
        query = writer.option("checkpointLocation", place).start()
        query.awaitTermination()
        sizes = [progress["numInputRows"] for progress in query.recentProgress]
        return [size for size in sizes if size]

    by_bytes = run(maxBytesPerTrigger=30_000)
    assert sum(by_bytes) == 600
    assert len(by_bytes) > 1
    assert run(minOffsetsPerTrigger=1_000, maxTriggerDelay="1h") == [600]
