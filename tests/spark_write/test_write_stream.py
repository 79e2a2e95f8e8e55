"""Writing a stream: what a replay leaves in a topic, and the recipe by which no reader sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark.sink.columns import IDENTITY_PROPERTIES
from rocketstream.spark.sink.writer import StreamArrowWriter
from tests.kits.spark.support import numbered, numbers, page_example, run_to_end, send, stored

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

ROOT = Path(__file__).resolve().parents[2]
NewTopic = Callable[..., str]
Read = Callable[..., Any]


def copy(frame: Any, cluster: EmbeddedCluster, sink: str, checkpoint: Path) -> None:
    """Write what a stream holds to a topic."""
    writer = frame.select("body", "keys").writeStream.format("rocketmq")
    writer = writer.option("nameServer", cluster.namesrv_addr).option("topic", sink)
    writer = writer.option("checkpointLocation", str(checkpoint))
    run_to_end(writer.trigger(availableNow=True))


def identity(row: Any) -> tuple[str, ...]:
    return tuple(row.properties[name] for name in IDENTITY_PROPERTIES)


def test_a_replayed_batch_is_seen_once_by_a_reader_with_the_recipe(
    spark: Any,
    shared_cluster: EmbeddedCluster,
    new_topic: NewTopic,
    read: Read,
    stream: Any,
    tmp_path: Path,
) -> None:
    """The last commit is lost, as when the driver dies before it is written."""
    source, sink = new_topic(queues=1), new_topic(queues=2)
    send(shared_cluster, source, 0, numbered(0, 60))
    checkpoint = tmp_path / "checkpoint"
    copy(stream(source, maxOffsetsPerTrigger=20), shared_cluster, sink, checkpoint)
    first = read(sink).collect()
    assert sorted(int(row.body) for row in first) == list(range(60))
    assert len({identity(row) for row in first}) == 60
    for name in ("2", ".2.crc"):
        (checkpoint / "commits" / name).unlink()
    copy(stream(source, maxOffsetsPerTrigger=20), shared_cluster, sink, checkpoint)

    rows = read(sink).collect()
    assert Counter(int(row.body) for row in rows) == Counter([*range(60), *range(40, 60)])
    same = {(identity(row), bytes(row.body)) for row in rows}
    assert len(same) == 60, "a repeat must say it is one, and of which row"
    text = page_example("exactly_once").replace("127.0.0.1:9876", shared_cluster.namesrv_addr)
    text = text.replace('"Orders"', repr(sink)).replace("/tables/orders", str(tmp_path / "table"))
    text = text.replace("/checkpoints/orders", str(tmp_path / "other"))
    exec(compile(text, "docs/spark-writing.md", "exec"), {"spark": spark})  # noqa: S102
    table = spark.read.parquet(str(tmp_path / "table"))
    assert sorted(int(row.body) for row in table.select("body").collect()) == list(range(60))


@pytest.mark.core
@pytest.mark.long
def test_a_stream_is_written_where_spark_can(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic, read: Read, stream: Any, tmp_path: Path
) -> None:
    """From 4.1 on; 4.0 is told what to do instead."""
    source, sink = new_topic(queues=1), new_topic(queues=2)
    send(shared_cluster, source, 0, numbered(0, 30))
    if StreamArrowWriter is None:
        with pytest.raises(Exception, match=r"needs Spark 4\.1.*in foreachBatch"):
            copy(stream(source), shared_cluster, sink, tmp_path)
        return
    copy(stream(source), shared_cluster, sink, tmp_path)
    rows = read(sink).collect()
    assert sorted((int(row.body), row.keys) for row in rows) == [(n, f"k{n}") for n in range(30)]


def test_a_mistake_ends_the_query_with_its_text(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Before the first send: columns, options, output mode."""
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load()
    bodies = stream.selectExpr("string(value) AS body")

    def run(frame: Any, number: int, mode: str = "append", **options: Any) -> None:
        writer = frame.writeStream.format("rocketmq").option(
            "nameServer", shared_cluster.namesrv_addr
        )
        writer = writer.option("checkpointLocation", str(tmp_path / str(number))).outputMode(mode)
        writer.options(topic="T", **options).start().processAllAvailable()

    with pytest.raises(Exception, match="no column 'value'"):
        run(stream, 1)
    with pytest.raises(Exception, match="'writeId' is for batch writes"):
        run(bodies, 2, writeId="mine")
    with pytest.raises(Exception, match="a topic is only appended to"):
        run(bodies.groupBy("body").count().select("body"), 3, "complete")


@pytest.mark.core
@pytest.mark.long
def test_a_batch_inside_foreach_batch_is_named_by_the_user(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic, read: Read, stream: Any, tmp_path: Path
) -> None:
    """Spark 4.0's way. Two writes of one micro-batch must not pass for repeats of each other."""
    source, sink = new_topic(queues=1), new_topic(queues=1)
    send(shared_cluster, source, 0, numbered(0, 4))

    def write(frame: Any, batch_id: int) -> None:
        for name in ("one", "two", None):
            writer = frame.select("body").write.format("rocketmq").mode("append")
            writer = writer.option("nameServer", shared_cluster.namesrv_addr).option("topic", sink)
            (writer if name is None else writer.option("writeId", f"{name}-{batch_id}")).save()

    writer = (
        stream(source).writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path))
    )
    run_to_end(writer.trigger(availableNow=True))
    rows = read(sink).collect()
    assert len(rows) == len({identity(row) for row in rows}) == 12
    assert {"one-0", "two-0"} < {row.properties["SPARK_QUERY_ID"] for row in rows}


@pytest.mark.long
def test_a_declarative_pipeline_writes_into_its_sink(
    shared_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """The page's flow, run by Spark's own runner over Connect."""
    for package in ("grpc", "yaml"):
        pytest.importorskip(package, reason="pipelines need pyspark[pipelines]")
    shared_cluster.create_topic("Orders", queues=1)
    send(shared_cluster, "Orders", 0, numbered(0, 50))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.spark_write.pipeline_program",
            shared_cluster.namesrv_addr,
            str(tmp_path),
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), *sys.path])},
        timeout=150,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3_000:]
    assert sorted(numbers(stored(shared_cluster, "Billed"))) == list(range(50))
