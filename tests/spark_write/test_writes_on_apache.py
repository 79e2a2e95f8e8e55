"""Our Spark sink on Apache's broker: every row with all it has, in order, held back on time."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from rocketstream import Message, Producer, SelectMessageQueueByHash
from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.errors import MessageInvalidError
from rocketstream.spark import worker
from rocketstream.spark.options import write_options
from rocketstream.spark.sink.columns import Identity
from rocketstream.spark.sink.writer import Sink, write_rows
from tests.kits.apache.cluster import ApacheCluster
from tests.kits.spark.support import numbers, stored
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

ROWS = 6_000


@pytest.fixture(autouse=True)
def _connections_end_with_the_test() -> Iterator[None]:
    yield
    worker.close_pools()


def write(cluster: ApacheCluster, columns: dict[str, Any], **options: str) -> int:
    """A task of a write; returns how many messages it acknowledged."""
    batch = pa.record_batch(columns)
    chosen = write_options({"nameServer": cluster.namesrv_addr} | options, "batch")
    places = {name: place for place, name in enumerate(batch.schema.names)}
    return write_rows(Sink(chosen, places, "job"), [batch], Identity("job", 0, 3))


def arrived(cluster: ApacheCluster, topic: str, count: int) -> list[dict[str, Any]]:
    """The rows of a topic; its broker indexes messages some time after it acknowledged them."""

    def all_of_them() -> list[dict[str, Any]] | None:
        rows = stored(cluster.namesrv_addr, topic)
        return rows if len(rows) >= count else None

    return wait_until(all_of_them, f"{count} rows of {topic}")


def test_every_row_arrives_with_all_it_has(apache_cluster: ApacheCluster) -> None:
    """In batches, one of them a single row, one a body of 4 MiB less its properties."""
    topic = apache_cluster.create_topic(apache_cluster.unique("sink"), queues=4)
    great = b"g" * ((4 << 20) - 4_096)
    bodies = [b"\x00\xff", "ü".encode(), great, *(b"%d" % n for n in range(ROWS))]
    columns = {
        "body": pa.array(bodies),
        "tags": pa.array(["红", None, None, *("t" for _ in range(ROWS))]),
        "keys": pa.array([["a", "b"], [], None, *([f"k{n}"] for n in range(ROWS))]),
        "properties": pa.array(
            [[("p", "1 = 1")], *([] for _ in bodies[1:])], pa.map_(pa.string(), pa.string())
        ),
        "flag": pa.array([-7, None, 0, *range(ROWS)], pa.int32()),
    }
    assert write(apache_cluster, columns, topic=topic) == len(bodies)
    found = arrived(apache_cluster, topic, len(bodies))
    rows = {int(dict(row["properties"])["SPARK_SEQUENCE"]): row for row in found}
    assert len(found) == len(rows)
    assert [rows[n]["body"] for n in range(len(bodies))] == bodies
    assert [(rows[n]["tags"], rows[n]["keys"], rows[n]["flag"]) for n in range(4)] == [
        ("红", "a b", -7),
        (None, None, 0),
        (None, None, 0),
        ("t", "k0", 0),
    ]
    first = dict(rows[0]["properties"])
    assert (first["p"], first["SPARK_QUERY_ID"], first["SPARK_PARTITION"]) == ("1 = 1", "job", "3")
    assert len({row["msgId"] for row in rows.values()}) == len(bodies)


def test_equal_sharding_keys_keep_their_order(apache_cluster: ApacheCluster) -> None:
    """Its broker works on requests of one connection side by side; and its producer's queue."""
    topic = apache_cluster.create_topic(apache_cluster.unique("sink"), queues=4)
    columns = {
        "body": pa.array([b"%d" % n for n in range(ROWS)]),
        "shardingKey": pa.array([f"key-{n % 9}" for n in range(ROWS)]),
    }
    assert write(apache_cluster, columns, topic=topic, sendBatchSize="20") == ROWS
    seen: dict[int, list[int]] = {}
    queues: dict[int, set[int]] = {}
    for row in arrived(apache_cluster, topic, ROWS):
        seen.setdefault(int(row["body"]) % 9, []).append(int(row["body"]))
        queues.setdefault(int(row["body"]) % 9, set()).add(row["queueId"])
    assert seen == {key: list(range(key, ROWS, 9)) for key in range(9)}
    with Producer("sink-check", namesrv_addr=apache_cluster.namesrv_addr) as producer:
        known = producer.fetch_publish_message_queues(topic)
    choice, message = SelectMessageQueueByHash(), Message(topic, b"")
    chosen = {key: choice(known, message, f"key-{key}").queue_id for key in range(9)}
    assert queues == {key: {queue_id} for key, queue_id in chosen.items()}


def test_rows_are_held_back_until_their_time_where_the_broker_can(
    apache_cluster: ApacheCluster, apache: Any
) -> None:
    """4.9 would deliver at once, so it is refused; by level both can."""
    topic = apache_cluster.create_topic(apache_cluster.unique("sink"), queues=1)
    level = {"body": pa.array([b"1", b"2"]), "delayLevel": pa.array([1, None], pa.int32())}
    assert write(apache_cluster, level, topic=topic) == 2
    due = datetime.fromtimestamp(SYSTEM_CLOCK.now_ms() / 1000, UTC) + timedelta(seconds=3)
    timed = {"body": pa.array([b"3"]), "deliverTime": pa.array([due], pa.timestamp("us", "UTC"))}
    if apache.version.startswith("4."):
        with pytest.raises(MessageInvalidError, match=r"older than 5\.0 and would deliver at once"):
            write(apache_cluster, timed, topic=topic)
        wanted = [2, 1]
    else:
        assert write(apache_cluster, timed, topic=topic) == 1
        wanted = [2, 1, 3]
    rows = arrived(apache_cluster, topic, len(wanted))
    assert numbers(rows) == wanted
    if 3 in wanted:
        assert rows[-1]["storeTimestamp"] >= due - timedelta(seconds=1)
