"""Reading over TLS, driver's questions and executors' pulls alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rocketstream.columns.table import Column
from rocketstream.errors import ConfigurationError, ConnectError
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark import worker
from rocketstream.spark.connections import tls_context
from rocketstream.spark.driver.cluster import Cluster
from rocketstream.spark.driver.positions import batch_ranges
from rocketstream.spark.executor.fetch import read_rows
from rocketstream.spark.options import ReadOptions, read_options
from rocketstream.spark.scan import PartitionPlan, QueueRange, new_scan
from rocketstream.transport.tls import server_context
from tests.kits.spark.support import numbered, send
from tests.kits.threaded_server import CERT, KEY


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """A cluster that speaks TLS and plain text, with one topic."""
    with EmbeddedCluster(ssl_context=server_context(str(CERT), str(KEY))) as running:
        running.create_topic("T", queues=2)
        send(running, "T", 0, numbered(0, 30))
        send(running, "T", 1, numbered(30, 30))
        yield running
        worker.close_pools()


def options_of(cluster: EmbeddedCluster, **given: Any) -> ReadOptions:
    base = {"nameServer": cluster.namesrv_addr, "topic": "T", "retryTimeoutMs": "0"}
    return read_options(base | given, "batch")


def everything(options: ReadOptions) -> list[int]:
    """All bodies: ranges from the driver's side, rows from the executors'."""
    scan = new_scan(options, (Column("body", "body"),))
    driver = Cluster(options)
    try:
        ranges: list[QueueRange] = batch_ranges(options, driver)
        plan = PartitionPlan(tuple(ranges), driver.addresses(span.queue for span in ranges))
    finally:
        driver.close()
    return sorted(int(body) for b in read_rows(scan, plan) for body in b["body"].to_pylist())


def test_a_topic_is_read_over_tls(cluster: EmbeddedCluster) -> None:
    """With the certificate trusted, its address checked."""
    trusting = options_of(cluster, useTls="true", tlsCaFile=str(CERT), tlsCheckHostname="true")
    assert everything(trusting) == list(range(60))
    assert everything(options_of(cluster, useTls="true", tlsVerify="false")) == list(range(60))


def test_a_server_that_is_not_trusted_is_not_read(cluster: EmbeddedCluster) -> None:
    """Which also proves that nothing went in plain text."""
    with pytest.raises(ConnectError, match="certificate"):
        everything(options_of(cluster, useTls="true"))


def test_connections_of_other_tls_settings_are_not_borrowed(cluster: EmbeddedCluster) -> None:
    """A plain connection must not serve a read that asked for TLS."""
    plain = options_of(cluster)
    secure = options_of(cluster, useTls="true", tlsCaFile=str(CERT))
    assert worker.pool(plain) is not worker.pool(secure)
    assert worker.pool(secure) is worker.pool(secure)


def test_files_that_cannot_be_read_are_named(cluster: EmbeddedCluster) -> None:
    """They must be on every executor, under the same path."""
    with pytest.raises(ConfigurationError, match=r"no-such\.pem"):
        tls_context(options_of(cluster, useTls="true", tlsCaFile="no-such.pem"))
    with pytest.raises(ConfigurationError, match=r"no-such\.pem"):
        tls_context(options_of(cluster, useTls="true", tlsCertFile="no-such.pem"))
