"""A listener on Spark as a consumer of Apache's broker: retries, dead letters, and its tools."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rocketstream import ConsumeConcurrentlyStatus, ConsumeFromWhere, ConsumeOrderlyStatus
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.model import MessageQueue
from rocketstream.spark import SparkPushConsumer
from tests.kits.apache.cluster import ApacheCluster
from tests.kits.apache.messages import Sent, per_queue
from tests.kits.apache.ours import send_many
from tests.kits.spark.broker_contents import pulled
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.timeout(600)]

COUNT = 40
ONCE, ALWAYS = "m-7", "m-14"
RETRIES = 2
TRIES = Counter([(f"m-{number}", 0) for number in range(COUNT)]) + Counter(
    [(ONCE, 1), (ALWAYS, 1), (ALWAYS, 2)]
)
"""How often each try of each message happens: one fails once, one until it is a dead letter."""
Status = ConsumeConcurrentlyStatus | ConsumeOrderlyStatus


def fails(key: str, tries: int) -> bool:
    return key == ALWAYS or (key == ONCE and tries == 0)


def noting(path: str, orderly: bool) -> Callable[[list[Any]], Status]:
    """A listener that notes queue, key and tries of each call."""
    good: Status = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
    bad: Status = ConsumeConcurrentlyStatus.RECONSUME_LATER
    if orderly:
        good = ConsumeOrderlyStatus.SUCCESS
        bad = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT

    def listener(messages: list[Any]) -> Status:
        (message,) = messages
        with open(path, "a") as notes:
            notes.write(f"{message.queue_id} {message.keys} {message.reconsume_times}\n")
        return bad if fails(message.keys, message.reconsume_times) else good

    return listener


def calls(path: Path) -> list[tuple[int, str, int]]:
    """Queue, key and tries of each call, in the order of the calls."""
    lines = path.read_text().splitlines()
    return [(int(queue), key, int(tries)) for queue, key, tries in map(str.split, lines)]


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrently", "orderly"])
def test_apaches_broker_and_tools_take_a_listener_on_spark_for_a_consumer(
    spark: Any, apache_cluster: ApacheCluster, tmp_path: Path, orderly: bool
) -> None:
    """Covers C-133, C-143, C-270, C-289, C-540: delays, %DLQ%, consumerProgress and the others."""
    address = apache_cluster.namesrv_addr
    topic = apache_cluster.create_topic(apache_cluster.unique("listened"), queues=2)
    group = apache_cluster.unique("on-spark")
    stored = send_many(address, topic, COUNT)
    assert {each.keys for each in stored} >= {ONCE, ALWAYS}
    notes = tmp_path / "notes"
    notes.touch()
    consumer = SparkPushConsumer(
        group,
        spark,
        str(tmp_path / "checkpoint"),
        namesrv_addr=address,
        subscription={topic: "*"},
        max_reconsume_times=RETRIES,
        suspend_current_queue_time_ms=50,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    )
    listener: Any = noting(str(notes), orderly)
    consumer.register_message_listener(listener, orderly=orderly)
    with consumer:
        wait_until(lambda: len(calls(notes)) >= TRIES.total(), "every try", timeout_s=120)
        consumer.query.processAllAvailable()
        check_tools(apache_cluster, group, topic, str(consumer.client_id), stored)
        check_on_request(apache_cluster, group, topic, str(consumer.client_id), orderly)
        assert len(calls(notes)) == TRIES.total() + 1
    seen = calls(notes)[: TRIES.total()]
    assert Counter((key, tries) for _, key, tries in seen) == TRIES
    if orderly:
        for queue_id in range(2):
            mine = sorted((e.queue_offset, e.keys) for e in stored if e.queue_id == queue_id)
            tries = [
                (key, number) for _, key in mine for number in range(3) if (key, number) in TRIES
            ]
            assert [(key, number) for queue, key, number in seen if queue == queue_id] == tries
    with BlockingAdminClient(address) as admin:
        dead = f"%DLQ%{group}"
        wait_until(
            lambda: admin.max_offset(MessageQueue(dead, "broker-a", 0)) == 1, "the dead letter"
        )
    wait_until(
        lambda: apache_cluster.committed(topic, group) == per_queue(stored),
        "the group's offsets in consumerOffset.json",
    )


def check_tools(
    cluster: ApacheCluster, group: str, topic: str, client_id: str, stored: list[Sent]
) -> None:
    """What an operator sees of it, and a message it is made to consume."""
    connection = cluster.mqadmin("consumerConnection", "-g", group)
    assert re.search(rf"{re.escape(client_id)}\s+\S+\s+PYTHON\s+V4_9_8", connection), connection
    for subscribed in (topic, f"%RETRY%{group}"):
        assert re.search(rf"{re.escape(subscribed)}\s+\*", connection), connection
    look = partial(cluster.mqadmin, "consumerProgress", "-g", group)
    progress = wait_until(look, "no lag", fits=re.compile(r"Diff Total: 0\b").search)
    assert topic in progress
    status = cluster.mqadmin("consumerStatus", "-g", group, "-i", client_id)
    assert "PROP_CLIENT_VERSION" in status
    for queue_id, count in per_queue(stored).items():
        assert re.search(rf"{topic}\s+\S+\s+{queue_id}\s+{count}\b", status), status


def check_on_request(
    cluster: ApacheCluster, group: str, topic: str, client_id: str, orderly: bool
) -> None:
    """An operator has the member consume the first message of a queue."""
    with BlockingAdminClient(cluster.namesrv_addr) as admin:
        (first, *_) = pulled(admin, MessageQueue(topic, "broker-a", 0), 0)
    command = ["queryMsgById", "-i", first.offset_msg_id, "-g", group, "-d", client_id]
    if cluster.referee.version.startswith("5"):
        command += ["-t", topic]
    text = cluster.mqadmin(*command)
    assert f"order={str(orderly).lower()}" in text, text
    assert "consumeResult=CR_SUCCESS" in text, text
