"""A write far larger than what may be under way at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.model import MessageQueue
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark import worker
from rocketstream.spark.options import write_options
from rocketstream.spark.sink.columns import Identity
from rocketstream.spark.sink.writer import Sink, write_rows

ROWS, ROW_BYTES = 100, 15_000


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """A topic of one queue."""
    with EmbeddedCluster() as running:
        running.create_topic("T", queues=1)
        yield running
    worker.close_pools()


def test_far_more_than_may_be_under_way_is_written(cluster: EmbeddedCluster) -> None:
    """A hundred times as much, one request at a time: sending waits for answers."""
    address = cluster.namesrv_addr
    small = {"sendsInFlight": "1", "sendBatchBytes": "16384"}
    options = write_options({"nameServer": address, "topic": "T"} | small, "batch")
    rows = pa.record_batch({"body": pa.array([bytes(ROW_BYTES)] * ROWS, pa.binary())})
    sink = Sink(options, {"body": 0}, "job")
    assert write_rows(sink, [rows], Identity("job", 0, 0)) == ROWS
    with BlockingAdminClient(address) as client:
        assert client.max_offset(MessageQueue("T", "broker-a", 0)) == ROWS
