"""What Spark's own suites ask of its Kafka source, where Spark itself takes part."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions

from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.spark.support import numbered, run_to_end, send

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

NewTopic = Callable[..., str]
NUMBER = "CAST(CAST(body AS STRING) AS INT) AS number"


def run(frame: Any, root: Path, **trigger: Any) -> Any:
    """Run a frame into the table of a folder, to the end of what is there; the query."""
    writer = frame.writeStream.format("parquet").option("path", str(root / "table"))
    return run_to_end(
        writer.option("checkpointLocation", str(root / "checkpoint")).trigger(**trigger)
    )


def sizes(query: Any) -> list[int]:
    """Rows of each micro-batch that had any."""
    return [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]


def sources(root: Path, batch: int) -> list[Any]:
    """The offsets of all sources in the log of a checkpoint."""
    lines = (root / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()
    return [json.loads(line) for line in lines[2:]]


def test_once_reads_everything_whatever_the_limit(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic, stream: Any, tmp_path: Path
) -> None:
    """The deprecated trigger is one batch of all there is."""
    topic = new_topic(queues=2)
    send(shared_cluster, topic, 0, numbered(0, 20))
    send(shared_cluster, topic, 1, numbered(20, 5))
    frame = stream(topic, maxOffsetsPerTrigger=4).selectExpr(NUMBER)
    assert sizes(run(frame, tmp_path, once=True)) == [25]
    send(shared_cluster, topic, 1, numbered(25, 7))
    assert sizes(run(frame, tmp_path, once=True)) == [7]


def test_two_streams_in_one_query_each_keep_their_own_limit(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic, stream: Any, tmp_path: Path
) -> None:
    """One is at its end while the other goes on, over a restart too."""
    short, long = new_topic(queues=1), new_topic(queues=1)
    send(shared_cluster, short, 0, numbered(0, 4))
    send(shared_cluster, long, 0, numbered(100, 6))
    both = stream(short, maxOffsetsPerTrigger=2).union(stream(long, maxOffsetsPerTrigger=2))
    frame = both.selectExpr(NUMBER)
    assert sizes(run(frame, tmp_path, availableNow=True)) == [4, 4, 2]
    send(shared_cluster, long, 0, numbered(106, 3))
    assert sizes(run(frame, tmp_path, availableNow=True)) == [2, 1]
    assert [list(source["q"]) for source in sources(tmp_path, 4)] == [[short], [long]]


def test_a_stream_joined_with_itself_gives_every_pair(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, stream: Any, tmp_path: Path
) -> None:
    """Spark scans a Python source once for each side: both sides are in the log, and agree."""
    topic = new_topic(queues=2)
    send(shared_cluster, topic, 0, numbered(1, 3))
    send(shared_cluster, topic, 1, numbered(6, 1))
    values = stream(topic).selectExpr(NUMBER).selectExpr("number", "number % 5 AS k")
    pairs = values.join(values.withColumnRenamed("number", "other"), "k")
    run(pairs.selectExpr("number", "other"), tmp_path, availableNow=True)
    found = spark.read.parquet(str(tmp_path / "table")).collect()
    wanted = [(1, 1), (1, 6), (2, 2), (3, 3), (6, 1), (6, 6)]
    assert sorted((row.number, row.other) for row in found) == wanted
    left, right = sources(tmp_path, 0)
    assert left == right


def test_windows_over_the_stored_time_count_every_row(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, stream: Any, tmp_path: Path
) -> None:
    """A watermark on a column of ours."""
    topic = new_topic(queues=1)
    send(shared_cluster, topic, 0, numbered(0, 10))
    counts = run_to_end(
        stream(topic)
        .withWatermark("storeTimestamp", "10 seconds")
        .groupBy(functions.window("storeTimestamp", "1 hour"))
        .count()
        .writeStream.format("memory")
        .outputMode("complete")
        .queryName("watermarked")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    assert sum(row["count"] for row in spark.table("watermarked").collect()) == 10
    oldest, newest = (counts.recentProgress[0]["eventTime"][each] for each in ("min", "max"))
    assert "2020" < oldest <= newest


def test_real_time_mode_is_refused_by_spark(new_topic: NewTopic, stream: Any) -> None:
    """It keeps to sources and sinks of its own list, and says so before anything is read."""
    writer = stream(new_topic()).writeStream.format("noop").outputMode("update")
    with pytest.raises(Exception, match=r"REAL_TIME_MODE.*limitation"):
        writer.trigger(realTime="5 seconds").start()


def test_continuous_processing_is_refused_by_spark(new_topic: NewTopic, stream: Any) -> None:
    """A Python source has micro-batches only; the error says so before anything is read."""
    writer = stream(new_topic()).writeStream.format("noop").trigger(continuous="1 second")
    with pytest.raises(Exception, match="does not support continuous processing"):
        writer.start().awaitTermination(60)


@pytest.mark.core
def test_a_query_stopped_before_its_first_row_knows_where_it_began(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, stream: Any, tmp_path: Path
) -> None:
    """What came while it was stopped is read: from latest, that is everything."""
    topic = new_topic(queues=5)
    frame = stream(topic, startingOffsets="latest").selectExpr(NUMBER)
    assert sizes(run(frame, tmp_path, availableNow=True)) == []
    send(shared_cluster, topic, 3, numbered(0, 4))
    assert sizes(run(frame, tmp_path, availableNow=True)) == [4]


def test_progress_counts_the_rows_a_query_wrote(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic, stream: Any, tmp_path: Path
) -> None:
    """Spark counts them for a Python sink as for its own."""
    topic, sink = new_topic(queues=1), new_topic(queues=1)
    send(shared_cluster, topic, 0, numbered(0, 3))
    writer = stream(topic).select("body").writeStream.format("rocketmq").option("topic", sink)
    writer = writer.option("nameServer", shared_cluster.namesrv_addr)
    writer = writer.option("checkpointLocation", str(tmp_path))
    query = run_to_end(writer.trigger(availableNow=True))
    assert query.recentProgress[0]["sink"]["numOutputRows"] == 3


@pytest.mark.core
def test_one_dataframe_may_be_in_a_query_twice(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic, read: Callable[..., Any]
) -> None:
    """Two scans side by side share nothing that is used up."""
    topic = new_topic(queues=1)
    send(shared_cluster, topic, 0, numbered(0, 11))
    frame = read(topic, "body BINARY").selectExpr(NUMBER)
    assert sorted(row.number for row in frame.union(frame).collect()) == sorted([*range(11)] * 2)
