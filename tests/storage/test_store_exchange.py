"""One store directory, two brokers: what one writes the other opens and continues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.apache.cluster import SHORT_DELAYS, ApacheCluster, JavaPrograms, committed_offsets
from tests.kits.apache.messages import Sent, per_queue
from tests.kits.apache.ours import Collector, push_consumer, send_many
from tests.kits.apache.referee import Referee
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

FILE_BYTES = 128 * 1024 * 1024
COUNT = 3_000


@contextmanager
def killed_at_the_end(cluster: ApacheCluster) -> Iterator[None]:
    """Start a cluster and kill it afterwards: its orderly end would only cost seconds."""
    try:
        cluster.start()
        yield
    finally:
        cluster.stop(kill=True)


def consume(namesrv_addr: str, group: str, count: int) -> Counter[Sent]:
    """Consume until ``count`` distinct messages came; return what came."""
    collector = Collector()
    with push_consumer(namesrv_addr, group, "orders", collector):
        collector.wait(count)
    return Counter(each.sent for each in collector.consumed())


def fill(namesrv_addr: str, prefix: str) -> list[Sent]:
    """Messages of several shapes: small, deflated, tagged, and some of a second topic."""
    small = send_many(namesrv_addr, "orders", COUNT, prefix=prefix, tags=("A", "红"))
    large = send_many(namesrv_addr, "orders", 50, prefix=f"{prefix}-large", size=50_000)
    return small + large


def test_apache_opens_what_we_wrote(apache: Referee, java: JavaPrograms, tmp_path: Path) -> None:
    """Topics, messages, offsets written by the embedded broker serve on Apache's broker."""
    store = tmp_path / "store"
    with EmbeddedCluster(
        store, delay_levels=SHORT_DELAYS, commit_log_file_bytes=FILE_BYTES
    ) as ours:
        ours.create_topic("orders", queues=6)
        stored = fill(ours.namesrv_addr, "before")
        assert consume(ours.namesrv_addr, "done", len(stored)) == Counter(stored)
    assert committed_offsets(store, "orders", "done") == per_queue(stored)

    theirs = ApacheCluster(apache, tmp_path / "apache", store_dir=store)
    with killed_at_the_end(theirs):
        assert "orders" in theirs.topics()
        assert theirs.committed("orders", "done") == per_queue(stored)
        assert consume(theirs.namesrv_addr, "fresh", len(stored)) == Counter(stored)
        more = send_many(theirs.namesrv_addr, "orders", 600, prefix="after")
        assert consume(theirs.namesrv_addr, "done", 600) == Counter(more)
        java.produce(namesrv=theirs.namesrv_addr, topic="orders", group="till", count=600)


def test_we_open_what_apache_wrote(apache: Referee, tmp_path: Path) -> None:
    """The other way round, after kill -9; an orderly end is in test_store_files."""
    cluster = ApacheCluster(apache, tmp_path / "apache")
    try:
        cluster.start()
        cluster.create_topic("orders", queues=6)
        stored = fill(cluster.namesrv_addr, "before")
        assert consume(cluster.namesrv_addr, "done", len(stored)) == Counter(stored)
        wait_until(lambda: cluster.committed("orders", "done") == per_queue(stored), "offsets")
    finally:
        cluster.stop(kill=True)

    with EmbeddedCluster(
        cluster.store_dir, delay_levels=SHORT_DELAYS, commit_log_file_bytes=FILE_BYTES
    ) as ours:
        assert consume(ours.namesrv_addr, "fresh", len(stored)) == Counter(stored)
        more = send_many(ours.namesrv_addr, "orders", 600, prefix="after")
        assert consume(ours.namesrv_addr, "done", 600) == Counter(more)


def test_a_store_goes_there_and_back(apache: Referee, tmp_path: Path) -> None:
    """Ours, theirs, ours: offsets keep counting and nothing is lost on the way."""
    store = tmp_path / "store"
    everything: list[Sent] = []
    with EmbeddedCluster(store, commit_log_file_bytes=FILE_BYTES) as ours:
        ours.create_topic("orders", queues=4)
        everything += send_many(ours.namesrv_addr, "orders", 400, prefix="first")
    theirs = ApacheCluster(apache, tmp_path / "apache", store_dir=store, flush="SYNC_FLUSH")
    with killed_at_the_end(theirs):
        everything += send_many(theirs.namesrv_addr, "orders", 400, prefix="second")
    with EmbeddedCluster(store, commit_log_file_bytes=FILE_BYTES) as ours:
        everything += send_many(ours.namesrv_addr, "orders", 400, prefix="third")
        assert consume(ours.namesrv_addr, "fresh", 1_200) == Counter(everything)

    assert len({replace(each, msg_id="", keys="", digest="") for each in everything}) == 1_200
