"""``rocketmq-progress``: who falls behind, as a table, as a history, and from a broker's files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.model import MessageQueue
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.spark.support import numbered, run_to_end, send

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

FORMAT = "rocketmq-progress"


@pytest.fixture
def behind(shared_cluster: EmbeddedCluster, new_topic: Callable[..., str]) -> str:
    """A topic of which group ``slow`` has consumed 3 of 10 messages and ``quick`` all."""
    topic = new_topic(queues=1)
    send(shared_cluster, topic, 0, numbered(0, 10))
    commit(shared_cluster, "slow", topic, 3)
    commit(shared_cluster, "quick", topic, 10)
    return topic


def commit(cluster: EmbeddedCluster, group: str, topic: str, offset: int) -> None:
    with BlockingAdminClient(cluster.namesrv_addr) as client:
        client.update_consumer_offset(group, MessageQueue(topic, "broker-a", 0), offset)


def test_which_groups_fall_behind_is_a_query(
    spark: Any, shared_cluster: EmbeddedCluster, behind: str
) -> None:
    reader = spark.read.format(FORMAT).option("nameServer", shared_cluster.namesrv_addr)
    reader.options(topic=behind).load().createOrReplaceTempView("progress")
    rows = spark.sql(
        "SELECT group, SUM(lag) AS behind, MAX(timeLagMs) > 0 AS waits, COUNT(error) AS errors, "
        "COUNT(DISTINCT observedAt) AS moments FROM progress GROUP BY group ORDER BY behind DESC"
    ).collect()
    assert [tuple(row) for row in rows] == [("slow", 7, True, 0, 1), ("quick", 0, False, 0, 1)]


def test_a_schema_and_a_view_in_sql_choose_columns_and_groups(
    spark: Any, shared_cluster: EmbeddedCluster, behind: str
) -> None:
    reader = spark.read.format(FORMAT).option("nameServer", shared_cluster.namesrv_addr)
    frame = reader.schema("lag BIGINT, group STRING").options(topic=behind, groups="slow").load()
    assert [tuple(row) for row in frame.collect()] == [(7, "slow")]


class Histories:
    """Runs the stream of one test into one table."""

    def __init__(self, spark: Any, cluster: EmbeddedCluster, root: Path) -> None:
        self._spark = spark
        self._cluster = cluster
        self._root = root

    def run(self, topic: str) -> None:
        """Take what is due and end."""
        reader = self._spark.readStream.format(FORMAT).options(topic=topic, groups="slow")
        frame = reader.option("nameServer", self._cluster.namesrv_addr).load()
        writer = frame.writeStream.format("parquet").option("path", str(self._root / "history"))
        writer = writer.option("checkpointLocation", str(self._root / "checkpoint"))
        run_to_end(writer.trigger(availableNow=True))

    def lags(self) -> list[tuple[int, int]]:
        """Number of the moment, and the lag at it."""
        rows = self._spark.read.parquet(str(self._root / "history")).orderBy("observedAt").collect()
        moments = sorted({row.observedAt for row in rows})
        return [(moments.index(row.observedAt), row.lag) for row in rows]

    def forget_commit(self, batch: int) -> None:
        """Do as if the driver had died before this batch was done."""
        for suffix in ("", ".crc"):
            name = f".{batch}.crc" if suffix else str(batch)
            (self._root / "checkpoint" / "commits" / name).unlink(missing_ok=True)


def test_a_stream_is_a_history_that_goes_on_after_a_restart(
    spark: Any, shared_cluster: EmbeddedCluster, behind: str, tmp_path: Path
) -> None:
    """A batch that was not committed is taken again at its own time, and nothing is there twice."""
    histories = Histories(spark, shared_cluster, tmp_path)
    histories.run(behind)
    commit(shared_cluster, "slow", behind, 8)
    histories.run(behind)
    assert histories.lags() == [(0, 7), (1, 2)]
    histories.forget_commit(1)
    commit(shared_cluster, "slow", behind, 10)
    histories.run(behind)
    # Batch 1 is in the table already, whose log knows it; the run goes on with batch 2.
    assert histories.lags() == [(0, 7), (1, 2), (2, 0)]


def test_the_offsets_in_a_brokers_file_are_rows(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_bytes(b'{"offsetTable":{"orders@billing":{0:2,1:5}}}')
    frame = spark.read.format(FORMAT).load(str(path))
    assert [(r.group, r.topic, r.queueId, r.committedOffset) for r in frame.collect()] == [
        ("billing", "orders", 0, 2),
        ("billing", "orders", 1, 5),
    ]
    assert frame.first().file == str(path)


def test_a_file_that_is_none_and_a_stream_of_files_are_refused(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_bytes(b"{")
    with pytest.raises(Exception, match="holds no offsets"):
        spark.read.format(FORMAT).load(str(path)).collect()
    writer = spark.readStream.format(FORMAT).load(str(path)).writeStream.format("noop")
    with pytest.raises(Exception, match="offset files are read in batch"):
        writer.start().awaitTermination(60)
