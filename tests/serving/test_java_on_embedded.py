"""The unmodified Java client and mqadmin against our embedded name server and broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.transport.blocking_connection import BlockingConnection
from tests.kits.apache.cluster import (
    SHORT_DELAYS,
    JavaPrograms,
    committed_offsets,
    create_retry_topic,
    has_route,
    run_mqadmin,
)
from tests.kits.apache.messages import per_queue, read_received, read_sent
from tests.kits.apache.referee import Referee
from tests.kits.apache.wire import members
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

MANY = 100_000
SOME = 300


@pytest.fixture
def embedded() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(delay_levels=SHORT_DELAYS) as cluster:
        cluster.create_topic("orders", queues=8)
        yield cluster


def consume(
    java: JavaPrograms, cluster: EmbeddedCluster, out: Path, count: int, **arguments: Any
) -> dict[str, Any]:
    """Run a Java push consumer until it has ``count`` messages; return its closing figures."""
    defaults: dict[str, Any] = {"topic": "orders", "group": "shop", "out": out, "count": count}
    arguments = defaults | arguments
    with java.start("JavaPushConsumer", namesrv=cluster.namesrv_addr, **arguments) as consumer:
        consumer.wait_event("done", timeout_s=120)
        consumer.end_input()
        closed = consumer.wait_event("closed")
        assert consumer.wait() == 0
    return closed


def committed(cluster: EmbeddedCluster, group: str = "shop") -> dict[int, int]:
    return committed_offsets(cluster.store_dir, "orders", group)


def test_java_sends_and_consumes_a_hundred_thousand(
    java: JavaPrograms, embedded: EmbeddedCluster, tmp_path: Path
) -> None:
    """Every message once, as it was sent, and the group's offsets in our consumerOffset.json."""
    java.produce(
        namesrv=embedded.namesrv_addr,
        topic="orders",
        group="till",
        count=MANY,
        tags="A,B,C",
        out=tmp_path / "sent",
    )
    closed = consume(java, embedded, tmp_path / "received", MANY)

    sent = read_sent(tmp_path / "sent")
    received = read_received(tmp_path / "received")
    assert len(sent) == MANY
    assert closed["unique"] == MANY
    assert Counter(each.sent for each in received) == Counter(sent)
    wait_until(lambda: committed(embedded) == per_queue(sent), "committed offsets")


def test_java_lite_pull_consumer_reads_everything(
    java: JavaPrograms, embedded: EmbeddedCluster, tmp_path: Path
) -> None:
    """5.5 pulls with code 361, 4.9 with 11 (W 2.9)."""
    address = embedded.namesrv_addr
    java.produce(namesrv=address, topic="orders", group="till", count=5_000, out=tmp_path / "sent")
    with java.start(
        "JavaLitePullConsumer",
        namesrv=address,
        topic="orders",
        group="shop",
        count=5_000,
        out=tmp_path / "received",
    ) as consumer:
        consumer.wait_event("done")
        assert consumer.wait() == 0

    sent = read_sent(tmp_path / "sent")
    assert Counter(e.sent for e in read_received(tmp_path / "received")) == Counter(sent)
    wait_until(lambda: committed(embedded) == per_queue(sent), "committed offsets")


@pytest.mark.parametrize("mode", ["sync", "batch", "oneway"])
def test_java_send_modes_arrive(
    java: JavaPrograms, embedded: EmbeddedCluster, tmp_path: Path, mode: str
) -> None:
    """Synchronous with 8 threads, batches of 32, one-way: codes 310 and 320 (W 2.2)."""
    java.produce(
        namesrv=embedded.namesrv_addr,
        topic="orders",
        group="till",
        count=3_200,
        mode=mode,
        threads=8,
        tags="A,B",
        out=tmp_path / "sent",
    )
    consume(java, embedded, tmp_path / "received", 3_200)

    received = read_received(tmp_path / "received")
    assert sorted(int(each.index) for each in received) == list(range(3_200))
    if mode != "oneway":
        assert Counter(e.sent for e in received) == Counter(read_sent(tmp_path / "sent"))


def test_java_consumer_gets_the_tags_it_asked_for(
    java: JavaPrograms, embedded: EmbeddedCluster, tmp_path: Path
) -> None:
    """TAG expression in the heartbeat, filtered by us (W 4.4)."""
    java.produce(
        namesrv=embedded.namesrv_addr, topic="orders", group="till", count=999, tags="A,B,C"
    )
    consume(java, embedded, tmp_path / "received", 666, expression="A || C")

    received = read_received(tmp_path / "received")
    assert sorted(int(e.index) for e in received) == [n for n in range(999) if n % 3 != 1]
    assert {each.tags for each in received} == {"A", "C"}


def test_java_compressed_bodies_come_back_whole(
    java: JavaPrograms, embedded: EmbeddedCluster, tmp_path: Path
) -> None:
    """Bodies over 4 KiB are deflated by the Java client (W 4.2)."""
    java.produce(
        namesrv=embedded.namesrv_addr,
        topic="orders",
        group="till",
        count=SOME,
        size=60_000,
        out=tmp_path / "sent",
    )
    consume(java, embedded, tmp_path / "received", SOME)

    received = read_received(tmp_path / "received")
    assert Counter(e.sent for e in received) == Counter(read_sent(tmp_path / "sent"))
    assert {each.digest.split(":")[0] for each in received} == {"60000"}


def test_java_retries_come_back_with_their_topic(
    java: JavaPrograms, embedded: EmbeddedCluster, tmp_path: Path
) -> None:
    """Every tenth message fails twice: send-back, delay, redelivery (W 2.4, C-332 ff.)."""
    create_retry_topic(embedded.namesrv_addr, embedded.broker_addr, "shop")
    java.produce(namesrv=embedded.namesrv_addr, topic="orders", group="till", count=SOME)
    consume(java, embedded, tmp_path / "received", SOME, failmodulo=10, failtimes=2)

    received = read_received(tmp_path / "received")
    tries = Counter(int(each.index) for each in received)
    assert tries == {n: 3 if n % 10 == 0 else 1 for n in range(SOME)}
    assert {each.topic for each in received} == {"orders"}
    last = {int(e.index): e.reconsume_times for e in received if e.outcome == "OK"}
    assert last == {n: 2 if n % 10 == 0 else 0 for n in range(SOME)}


def test_java_failures_end_as_dead_letters(
    java: JavaPrograms, embedded: EmbeddedCluster, tmp_path: Path
) -> None:
    """After max reconsume times a message lies in %DLQ% and a Java consumer can read it there."""
    create_retry_topic(embedded.namesrv_addr, embedded.broker_addr, "shop")
    java.produce(namesrv=embedded.namesrv_addr, topic="orders", group="till", count=SOME)
    good = SOME - len(range(0, SOME, 10))
    with java.start(
        "JavaPushConsumer",
        namesrv=embedded.namesrv_addr,
        topic="orders",
        group="shop",
        count=good,
        failmodulo=10,
        failtimes=99,
        maxreconsume=2,
    ) as consumer:
        consumer.wait_event("done")
        # A consumer that starts before its topic exists looks again only after 30 s.
        wait_until(
            lambda: has_route(embedded.namesrv_addr, "%DLQ%shop"), "dead letter topic", timeout_s=90
        )
        dead = tmp_path / "dead"
        consume(java, embedded, dead, SOME - good, topic="%DLQ%shop", group="undertaker")
        consumer.end_input()
        closed = consumer.wait_event("closed")

    assert closed["failures"] == 3 * (SOME - good)
    indexes = sorted(int(each.index) for each in read_received(dead))
    assert indexes == list(range(0, SOME, 10))


def test_two_java_consumers_share_the_queues(
    java: JavaPrograms, embedded: EmbeddedCluster, tmp_path: Path
) -> None:
    """Membership (38, 40) makes two members divide eight queues, each message to one of them."""
    arguments: dict[str, Any] = {"topic": "orders", "group": "shop"}
    arguments["namesrv"] = embedded.namesrv_addr
    files = [tmp_path / "first", tmp_path / "second"]
    consumers = [java.start("JavaPushConsumer", out=file, **arguments) for file in files]
    try:
        for consumer in consumers:
            consumer.wait_event("ready")
        with BlockingConnection(embedded.broker_addr) as broker:
            wait_until(lambda: len(members(broker, "shop")) == 2, "two members")
        java.produce(
            namesrv=embedded.namesrv_addr,
            topic="orders",
            group="till",
            count=SOME,
            out=tmp_path / "sent",
        )
        expected = per_queue(read_sent(tmp_path / "sent"))
        wait_until(lambda: committed(embedded) == expected, "committed offsets")
        for consumer in consumers:
            consumer.end_input()
            consumer.wait_event("closed")
    finally:
        for consumer in consumers:
            consumer.stop(kill=True)

    first, second = (read_received(file) for file in files)
    assert first
    assert second
    assert {int(each.index) for each in first + second} == set(range(SOME))


def test_mqadmin_understands_us(
    java: JavaPrograms, apache: Referee, embedded: EmbeddedCluster, tmp_path: Path
) -> None:
    """topicList, topicStatus, clusterList, consumerProgress, updateTopic, topicRoute and more."""
    address = embedded.namesrv_addr
    java.produce(namesrv=address, topic="orders", group="till", count=SOME, out=tmp_path / "sent")
    consume(java, embedded, tmp_path / "received", SOME)
    expected = per_queue(read_sent(tmp_path / "sent"))
    wait_until(lambda: committed(embedded) == expected, "committed offsets")

    commands = {
        "list": ("topicList",),
        "status": ("topicStatus", "-t", "orders"),
        "progress": ("consumerProgress", "-g", "shop"),
        "cluster": ("clusterList",),
        "key": ("queryMsgByKey", "-t", "orders", "-k", "m-7"),
        "update": ("updateTopic", "-t", "made-by-admin", "-b", embedded.broker_addr, "-r", "3"),
    }
    answers = run_together(apache, tmp_path / "admin", address, commands)

    assert "orders" in answers["list"].split()
    status = _rows(answers["status"], "broker-a")
    assert {int(row[1]): int(row[3]) for row in status} == expected
    progress = _rows(answers["progress"], "orders")
    assert {int(row[2]): (int(row[3]), int(row[4])) for row in progress} == {
        queue: (count, count) for queue, count in expected.items()
    }
    assert embedded.broker_addr in answers["cluster"]
    assert "success" in answers["update"]
    (by_key,) = [each for each in read_sent(tmp_path / "sent") if each.keys == "m-7"]
    assert by_key.msg_id in answers["key"].split()
    route = run_mqadmin(apache, tmp_path / "admin", address, "topicRoute", "-t", "made-by-admin")
    assert '"readQueueNums":3' in "".join(route.split())


def run_together(
    apache: Referee, folder: Path, namesrv_addr: str, commands: dict[str, tuple[str, ...]]
) -> dict[str, str]:
    """Run mqadmin commands side by side: each spends seconds on shutting its client down."""
    with ThreadPoolExecutor(max_workers=3) as pool:
        futures = {
            name: pool.submit(run_mqadmin, apache, folder, namesrv_addr, *command)
            for name, command in commands.items()
        }
        return {name: future.result() for name, future in futures.items()}


def _rows(text: str, word: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.startswith(word)]
