"""A store directory as a source: the rows a broker would give, without asking it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.spark.support import Sent, numbered, send

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

Read = Callable[..., Any]
NewTopic = Callable[..., str]


def test_a_running_brokers_directory_gives_the_rows_the_broker_gives(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, read: Read
) -> None:
    """All seventeen columns, several tasks; what is sent later is not in it."""
    topic = new_topic(queues=3)
    for queue_id in range(3):
        send(shared_cluster, topic, queue_id, numbered(queue_id * 1_000, 700, TAGS=f"t{queue_id}"))
    send(shared_cluster, topic, 0, [Sent(b""), Sent(b"\xff" * 5_000, {"KEYS": "a b", "empty": ""})])
    reader = spark.read.format("rocketmq").option("storePath", str(shared_cluster.store_dir))
    stored = reader.options(topic=topic, brokerName="broker-a", minPartitions="4").load()
    expected = sorted(read(topic).collect(), key=lambda row: row.commitLogOffset)
    assert stored.rdd.getNumPartitions() >= 4
    send(shared_cluster, topic, 0, numbered(0, 1))
    assert sorted(stored.collect(), key=lambda row: row.commitLogOffset) == expected
    assert reader.options(topic=topic, tags="t1").load().count() == 700


def test_streaming_a_directory_is_refused_with_what_to_do(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic
) -> None:
    topic = new_topic()
    stream = spark.readStream.format("rocketmq").option("storePath", str(shared_cluster.store_dir))
    frame = stream.option("topic", topic).load()
    with pytest.raises(Exception, match="'storePath' is for batch reads"):
        frame.writeStream.format("noop").start().awaitTermination(60)
