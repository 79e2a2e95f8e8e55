"""Undecided transactions in a store that changes hands, both ways, also after kill -9.

Only with 4.9: 5.x writes ends seconds later and in groups, so that with checks as quick as these it
asks again about what was answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rocketstream.transport.blocking_connection import BlockingConnection
from tests.kits.apache.cluster import ApacheCluster, JavaPrograms
from tests.kits.apache.ours import Collector, push_consumer
from tests.kits.apache.referee import Referee
from tests.kits.apache.wire import max_offset
from tests.plugins.apache import prepared
from tests.plugins.waiting import wait_until
from tests.transactions.java_producers import TOPIC, begin, bodies, close, embedded, keys, undecided

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

CHECKS = {
    "transactionCheckInterval": "1000",
    "transactionTimeOut": "500",
    # Checks without a producer count there, and a JVM may take a while to start.
    "transactionCheckMax": "1000",
}


@pytest.fixture
def apache() -> Referee:
    return prepared("4.9.7")


@contextmanager
def apache_on(referee: Referee, root: Path, store: Path) -> Iterator[ApacheCluster]:
    """Apache's servers on a store, with checks every second; killed at the end."""
    cluster = ApacheCluster(referee, root, store_dir=store, broker_settings=CHECKS)
    try:
        yield cluster.start()
    finally:
        cluster.stop(kill=True)


def test_half_messages_we_hold_are_ended_on_apache(
    apache: Referee, java: JavaPrograms, tmp_path: Path
) -> None:
    """Covers C-412, C-417, C-418: Apache goes on where we stopped, and repeats nothing of ours.

    Where an answer takes longer than a second Apache asks again, and stores each commit's message.
    """
    store = tmp_path / "store"
    with embedded(store) as ours:
        ours.create_topic(TOPIC, queues=4)
        with begin(
            java, ours.namesrv_addr, count=60, decide="CRU", check="U", prefix="a"
        ) as producer:
            producer.wait_event("done")
            producer.wait_event("checked")
            close(producer)
        wait_until(lambda: undecided(ours) == 20, "all ends sent one-way")
    collector = Collector()
    wanted = set(bodies("a", [i for i in range(60) if i % 3 != 1]) + bodies("b", [0, 2]))
    with apache_on(apache, tmp_path / "apache", store) as theirs:
        with (
            push_consumer(theirs.namesrv_addr, "fresh", TOPIC, collector),
            begin(
                java, theirs.namesrv_addr, count=3, decide="CRU", check="C", prefix="b"
            ) as producer,
        ):
            producer.wait_event("done")
            wait_until(lambda: wanted <= set(keys(collector)), f"{len(wanted)} messages")
            close(producer)
        seen, asked = keys(collector), Counter(each["index"] for each in producer.said("checked"))
        assert set(seen) == wanted
        assert {k for k in seen if seen[k] > max(1, asked[int(k.split("-")[1])])} == set()


def ends(cluster: ApacheCluster) -> int:
    """How many ends the broker has written down."""
    with BlockingConnection(cluster.broker_addr) as connection:
        return max_offset(connection, "RMQ_SYS_TRANS_OP_HALF_TOPIC")


def test_half_messages_apache_holds_are_ended_on_ours(
    apache: Referee, java: JavaPrograms, tmp_path: Path
) -> None:
    """Covers C-412, C-417, C-418: after kill -9 of Apache's broker."""
    store = tmp_path / "store"
    with apache_on(apache, tmp_path / "apache", store) as theirs:
        theirs.create_topic(TOPIC, queues=4)
        with begin(
            java, theirs.namesrv_addr, count=60, decide="CRU", check="U", prefix="a"
        ) as producer:
            producer.wait_event("done")
            producer.wait_event("checked")
            wait_until(lambda: ends(theirs) >= 40, "all ends sent one-way")
            close(producer)
    collector = Collector()
    with embedded(store) as ours:
        assert undecided(ours) == 20
        with (
            push_consumer(ours.namesrv_addr, "fresh", TOPIC, collector),
            begin(
                java, ours.namesrv_addr, count=3, decide="CRU", check="C", prefix="b"
            ) as producer,
        ):
            producer.wait_event("done")
            collector.wait(20 + 20 + 2)
            wait_until(lambda: undecided(ours) == 0, "decisions")
            close(producer)
        rest = [i for i in range(60) if i % 3 != 1]
        assert keys(collector) == bodies("a", rest) + bodies("b", [0, 2])
