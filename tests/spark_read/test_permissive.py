"""Records that cannot be decoded, through Spark: an error by default, rows in a permissive read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.spark.support import Sent, numbered, run_to_end, send

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]


@pytest.fixture
def spoiled(shared_cluster: EmbeddedCluster, new_topic: Callable[..., str]) -> str:
    """A topic of 601 messages whose 300th says that it is deflated, and is not."""
    topic = new_topic(queues=1)
    send(shared_cluster, topic, 0, numbered(0, 300))
    send(shared_cluster, topic, 0, [Sent(b"no zlib", {"KEYS": "bad"})], MessageSysFlag.COMPRESSED)
    send(shared_cluster, topic, 0, numbered(301, 300))
    return topic


def test_one_bad_record_ends_a_read_that_fails_fast(read: Callable[..., Any], spoiled: str) -> None:
    """The default: the error names the place."""
    with pytest.raises(Exception, match=r"the body at offset 300 of topic .* cannot be inflated"):
        read(spoiled).collect()


def test_a_permissive_read_keeps_every_row(read: Callable[..., Any], spoiled: str) -> None:
    """The bad record is in its place, whole, with the reason; the default schema has a column."""
    frame = read(spoiled, mode="permissive")
    assert frame.columns[-1] == "error"
    rows = frame.select("queueOffset", "body", "keys", "error").orderBy("queueOffset").collect()
    assert [row.queueOffset for row in rows] == [*range(601)]
    (bad,) = (row for row in rows if row.error is not None)
    assert (bad.queueOffset, bad["keys"]) == (300, "bad")
    assert "cannot be inflated" in bad.error
    assert b"no zlib" in bytes(bad.body)
    assert len(bytes(bad.body)) > 91
    good = [int(bytes(row.body)) for row in rows if row.error is None]
    assert good == [*range(300), *range(301, 601)]


def test_a_permissive_stream_goes_on_after_a_bad_record(
    spark: Any, shared_cluster: EmbeddedCluster, spoiled: str, tmp_path: Path
) -> None:
    """A chosen schema has the column where the user wants it; replays would write the same."""
    frame = (
        spark.readStream.format("rocketmq")
        .schema("Error STRING, queueOffset BIGINT NOT NULL, body BINARY NOT NULL")
        .options(nameServer=shared_cluster.namesrv_addr, topic=spoiled, mode="permissive")
        .options(startingOffsets="earliest")
        .load()
    )
    run_to_end(
        frame.writeStream.format("parquet")
        .option("path", str(tmp_path / "table"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    table = spark.read.parquet(str(tmp_path / "table"))
    assert table.count() == 601
    assert [row.queueOffset for row in table.where("Error IS NOT NULL").collect()] == [300]


@pytest.mark.parametrize(
    ("schema", "mode", "text"),
    [
        ("body BINARY", "permissive", r"the schema has no column 'error'.*Add 'error STRING'"),
        (None, "dropMalformed", r"'mode' is 'dropMalformed'; give failFast or permissive.*NULL"),
    ],
)
def test_a_mode_that_would_hide_rows_is_refused(
    read: Callable[..., Any], new_topic: Callable[..., str], schema: str, mode: str, text: str
) -> None:
    """Before anything is read."""
    with pytest.raises(Exception, match=text):
        read(new_topic(), schema, mode=mode).collect()
