"""Checkpoints that Spark changes under a stream: sources by name, state in other partitions."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.spark.support import numbered, run_to_end, send

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(300)]

NewTopic = Callable[..., str]
EVOLUTION = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
STATE = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@contextmanager
def setting(spark: Any, name: str, value: str) -> Iterator[None]:
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.unset(name)


def written(frame: Any, cluster: EmbeddedCluster, sink: str, checkpoint: Path) -> None:
    """Write what a stream of bodies holds to a topic, to the end of what is there."""
    writer = frame.select("body").writeStream.format("rocketmq").option("topic", sink)
    writer = writer.option("nameServer", cluster.namesrv_addr).trigger(availableNow=True)
    run_to_end(writer.option("checkpointLocation", str(checkpoint)))


def numbers(rows: Any) -> list[int]:
    return sorted(int(bytes(row.body)) for row in rows.collect())


def test_named_sources_come_and_move_on_one_checkpoint(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, read: Any, tmp_path: Path
) -> None:
    """By its name a source finds its offsets, wherever it stands in the query."""
    orders, refunds, sink = new_topic(queues=2), new_topic(queues=1), new_topic(queues=2)
    send(shared_cluster, orders, 0, numbered(0, 10))
    send(shared_cluster, refunds, 0, numbered(100, 10))

    def named(name: str, topic: str) -> Any:
        reader = spark.readStream.format("rocketmq").option(
            "nameServer", shared_cluster.namesrv_addr
        )
        if not hasattr(reader, "name"):
            pytest.skip("sources have names from Spark 4.2 on")
        reader = reader.options(topic=topic, startingOffsets="earliest").schema("body BINARY")
        return reader.name(name).load()

    with setting(spark, EVOLUTION, "true"):
        written(named("orders", orders), shared_cluster, sink, tmp_path)
        send(shared_cluster, orders, 1, numbered(10, 3))
        both = named("orders", orders).union(named("refunds", refunds))
        written(both, shared_cluster, sink, tmp_path)
        assert numbers(read(sink)) == [*range(13), *range(100, 110)]
        send(shared_cluster, orders, 0, numbered(13, 2))
        send(shared_cluster, refunds, 0, numbered(110, 2))
        written(
            named("refunds", refunds).union(named("orders", orders)), shared_cluster, sink, tmp_path
        )
    assert numbers(read(sink)) == [*range(15), *range(100, 112)]


def test_offsets_outlive_a_repartitioning_of_the_state(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, stream: Any, read: Any,
    tmp_path: Path,
) -> None:  # fmt: skip
    """Spark logs a batch of its own with the offsets of the last one; nothing is read for it."""
    manager = getattr(spark, "_streamingCheckpointManager", None)
    if manager is None:
        pytest.skip("state is repartitioned from Spark 4.2 on")
    topic, sink = new_topic(queues=1), new_topic(queues=1)
    send(shared_cluster, topic, 0, numbered(0, 10))
    with setting(spark, STATE, ROCKSDB):
        once = stream(topic, "body BINARY").dropDuplicates(["body"])
        written(once, shared_cluster, sink, tmp_path)
        manager.repartition(str(tmp_path), 3)
        send(shared_cluster, topic, 0, numbered(5, 10))
        written(once, shared_cluster, sink, tmp_path)
    assert numbers(read(sink)) == list(range(15))


def damages(checkpoint: Path) -> Iterator[tuple[str, Path, bytes | None]]:
    """Every file of a checkpoint with a number changed, cut in half, emptied and removed."""
    for file in sorted(each for each in checkpoint.rglob("*") if each.is_file()):
        if file.suffix == ".crc":
            continue
        whole, name = file.read_bytes(), str(file.relative_to(checkpoint))
        digit = next((k for k in range(len(whole) - 1, 0, -1) if whole[k : k + 1].isdigit()), None)
        if digit is not None:
            changed = bytearray(whole)
            changed[digit] = ord("9") if whole[digit] != ord("9") else ord("8")
            yield f"changed {name}", file, bytes(changed)
        yield f"cut {name}", file, whole[: len(whole) // 2]
        yield f"emptied {name}", file, b""
        yield f"removed {name}", file, None


def test_a_damaged_checkpoint_is_refused_or_loses_nothing(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, stream: Any, tmp_path: Path
) -> None:
    """As on an object store: none of Hadoop's checksum files beside it tells that it changed."""
    topic = new_topic(queues=1)
    target, kept = tmp_path / "table", tmp_path / "kept"

    def land(at: Path) -> None:
        writer = stream(topic, "body BINARY").writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(at / "checkpoint"))
        run_to_end(writer.option("path", str(at / "rows")).trigger(availableNow=True))

    for first in (0, 10):
        send(shared_cluster, topic, 0, numbered(first, 10))
        land(target)
    send(shared_cluster, topic, 0, numbered(20, 10))
    for checksum in target.rglob(".*.crc"):
        checksum.unlink()
    shutil.copytree(target, kept)
    refused: dict[str, str] = {}
    for what, file, content in [*damages(kept / "checkpoint")]:
        shutil.rmtree(target)
        shutil.copytree(kept, target)
        there = target / "checkpoint" / file.relative_to(kept / "checkpoint")
        if content is None:
            there.unlink()
        else:
            there.write_bytes(content)
        try:
            land(target)
        except Exception as error:
            refused[what] = str(error)
            continue
        landed = {
            int(bytes(row.body)) for row in spark.read.parquet(str(target / "rows")).collect()
        }
        assert landed == set(range(30)), what
    assert "is damaged: its offset" in refused["changed offsets/1"]
