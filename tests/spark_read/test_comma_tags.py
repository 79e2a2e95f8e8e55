"""A comma in option ``tags`` is told by whatever plans a read, where its user can see it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark.driver.runner import WARNINGS
from rocketstream.spark.options import read_options, store_options
from rocketstream.spark.reader import RocketMQReader, RocketMQStreamReader, StoreReader
from rocketstream.spark.scan import new_scan
from rocketstream.spark.store.rows import new_store_scan
from rocketstream.spark.worker import close_pools
from tests.kits.spark.support import numbered, send

TOLD = "option 'tags': the comma in 'a,b' is taken for a part of a tag's name; several tags are"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path / "store") as running:
        running.create_topic("T", queues=1)
        send(running, "T", 0, numbered(0, 2))
        yield running
    close_pools()


def options(cluster: EmbeddedCluster, mode: Any, tags: str) -> Any:
    given = {"nameServer": cluster.namesrv_addr, "topic": "T", "tags": tags}
    return read_options(given | {"startingOffsets": "earliest"}, mode)


@pytest.mark.parametrize(("tags", "told"), [("a,b", 1), ("a || b", 0)])
def test_a_batch_read_warns(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture, tags: str, told: int
) -> None:
    RocketMQReader(new_scan(options(cluster, "batch", tags), ())).partitions()
    assert sum(TOLD in each.getMessage() for each in caplog.records) == told


def test_a_read_of_a_store_warns(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    given = {"storePath": str(tmp_path / "store"), "topic": "T", "tags": "a,b"}
    StoreReader(new_store_scan(store_options(given), ())).partitions()
    assert TOLD in caplog.text


def test_a_stream_tells_the_users_own_process(cluster: EmbeddedCluster) -> None:
    """By what it reports as the latest offset, as all its warnings go."""
    reader = RocketMQStreamReader(new_scan(options(cluster, "stream", "a,b"), ()))
    try:
        start = reader.initialOffset()
        reader.latestOffset(start)
        reported = reader.reportLatestOffset()
        assert reported is not None
        (warning,) = reported[WARNINGS]
    finally:
        reader.stop()
    assert warning[1].startswith(TOLD)
