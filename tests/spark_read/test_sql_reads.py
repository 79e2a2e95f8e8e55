"""Rows selected by a condition at a real broker, every offset of the range accounted for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketstream.columns.table import ALL_COLUMNS
from rocketstream.errors import BrokerError
from rocketstream.model import MessageQueue
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark import worker
from rocketstream.spark.executor.fetch import read_rows
from rocketstream.spark.options import read_options
from rocketstream.spark.scan import PartitionPlan, QueueRange, Scan, new_scan
from tests.kits.spark.support import Sent, send

QUEUE = MessageQueue("T", "broker-a", 0)
COUNT = 3_000


@pytest.fixture(autouse=True)
def connections_end_with_the_test() -> Iterator[None]:
    yield
    worker.close_pools()


def fill(cluster: EmbeddedCluster, *, every: int) -> None:
    """Messages of which one in ``every`` costs something."""
    cluster.create_topic("T", queues=1)
    sent = [
        Sent(b"%d" % n, {"price": str(n), "TAGS": "a"} if n % every == 0 else {"TAGS": "b"})
        for n in range(COUNT)
    ]
    send(cluster, "T", 0, sent)


def scan(cluster: EmbeddedCluster, sql: str) -> Scan:
    given = {"nameServer": cluster.namesrv_addr, "topic": "T", "sql": sql, "retryTimeoutMs": "0"}
    return new_scan(read_options(given, "batch"), ALL_COLUMNS)


def bodies(cluster: EmbeddedCluster, sql: str, begin: int, end: int) -> list[int]:
    plan = PartitionPlan((QueueRange(QUEUE, begin, end),), {"broker-a": cluster.broker_addr})
    batches = read_rows(scan(cluster, sql), plan)
    return [int(body) for batch in batches for body in batch.column("body").to_pylist()]


@pytest.mark.parametrize("every", [1, 7, 1_000])
def test_a_condition_selects_exactly(every: int) -> None:
    """Gaps are by offset, dense or wide; a range ends where it ends, between two matches too."""
    with EmbeddedCluster() as cluster:
        fill(cluster, every=every)
        wanted = [n for n in range(COUNT) if n % every == 0]
        assert bodies(cluster, "price >= 0", 0, COUNT) == wanted
        some = [n for n in wanted if 1_500 <= n < 2_001 and n > 1_600]
        assert bodies(cluster, "price > 1600 AND TAGS = 'a'", 1_500, 2_001) == some
        assert bodies(cluster, "price IS NULL AND TAGS = 'a'", 0, COUNT) == []


def test_a_broker_that_takes_no_conditions_is_quoted_with_what_to_do() -> None:
    """Upstream takes none unless told to; nobody waits for it to change its mind."""
    with EmbeddedCluster(enable_property_filter=False) as cluster:
        fill(cluster, every=1)
        with pytest.raises(BrokerError, match="does not support consumer to filter") as told:
            bodies(cluster, "price > 5", 0, COUNT)
        assert "enablePropertyFilter=true" in str(told.value)
