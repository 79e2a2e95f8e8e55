"""Servers that go away and come back: clients go on by themselves."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from rocketstream import ClientConfig, Message
from rocketstream.errors import SendError
from rocketstream.server.embedded import SMALL_STORE, EmbeddedCluster
from tests.kits.faces import Producer
from tests.kits.listeners import Seen, consumer_of, numbered
from tests.plugins.waiting import wait_until

pytestmark = pytest.mark.usefixtures("face")


def test_clients_survive_a_restart_of_the_servers(tmp_path: Path) -> None:
    """Covers C-230, C-358, C-580, C-581: same ports, same store; nothing is lost."""
    store = tmp_path / "store"
    with EmbeddedCluster(store, store_config=SMALL_STORE) as cluster:
        namesrv, broker = cluster.namesrv_addr, cluster.broker_addr
        cluster.create_topic("T", queues=2)
        seen = Seen()
        consumer = consumer_of(namesrv, "g", "T", seen)
        producer = Producer("pg", namesrv_addr=namesrv)
        producer.start()
        consumer.start()
        for message in numbered("T", range(10)):
            producer.send(message)
        seen.wait_consumed(10)
    with EmbeddedCluster(
        store,
        store_config=SMALL_STORE,
        namesrv_port=int(namesrv.rpartition(":")[2]),
        broker_port=int(broker.rpartition(":")[2]),
    ):
        wait_until(lambda: _sent(producer), "a send after the restart")
        for message in numbered("T", range(10, 20)):
            producer.send(message)
        wait_until(lambda: set(map(str, range(20))) <= set(seen.bodies), "all consumed")
        consumer.shutdown()
        producer.shutdown()


def test_clients_end_in_order_when_the_servers_are_gone(tmp_path: Path) -> None:
    """Covers C-119, C-448: shutdown does not depend on anybody answering."""
    with EmbeddedCluster(tmp_path / "store", store_config=SMALL_STORE) as cluster:
        cluster.create_topic("T", queues=2)
        seen = Seen()
        consumer = consumer_of(cluster.namesrv_addr, "g", "T", seen)
        producer = Producer("pg", namesrv_addr=cluster.namesrv_addr)
        producer.start()
        consumer.start()
        producer.send(Message("T", b"x"))
        seen.wait_consumed(1)
    consumer.shutdown()
    producer.shutdown()


def _sent(producer: Producer) -> bool:
    try:
        producer.send(Message("T", b"probe"))
    except SendError:
        return False
    return True


def test_an_outage_is_told_when_it_begins_and_when_it_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-230: eight queues, heartbeats, commits and look-ups fail; two servers are told."""
    store = tmp_path / "store"
    with EmbeddedCluster(store, store_config=SMALL_STORE) as cluster:
        namesrv, broker = cluster.namesrv_addr, cluster.broker_addr
        cluster.create_topic("T", queues=8)
        seen = Seen()
        consumer = consumer_of(
            namesrv,
            "g",
            "T",
            seen,
            config=ClientConfig(
                namesrv_addr=namesrv,
                pull_time_delay_ms_when_exception=100,
                poll_name_server_interval_ms=50,
                persist_consumer_offset_interval_ms=50,
            ),
        )
        caplog.set_level(logging.WARNING, "rocketstream.client")
        consumer.start()
        with Producer("pg", namesrv_addr=namesrv) as producer:
            producer.send(Message("T", b"x"))
        seen.wait_consumed(1)
        wait_until(lambda: len(consumer.assigned_queues()) >= 8, "all queues")
        caplog.clear()
    outages = consumer._running().engine.instance.outages._open
    wait_until(lambda: sum(each.failures for each in outages.values()) > 100, "many failures")
    with EmbeddedCluster(
        store,
        store_config=SMALL_STORE,
        namesrv_port=int(namesrv.rpartition(":")[2]),
        broker_port=int(broker.rpartition(":")[2]),
    ):
        wait_until(lambda: not outages, "the end of every outage")
        consumer.shutdown()
    told = [
        each.getMessage()
        for each in caplog.records
        if each.name == "rocketstream.client" and each.levelno >= logging.WARNING
    ]
    assert sum("cannot be reached" in each for each in told) == 2, told
    assert len(told) <= 6, told
