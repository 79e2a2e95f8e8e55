"""Apache's own tools look into a Python consumer and make it act, through Apache's broker."""

from __future__ import annotations

import re
import threading

import pytest

from rocketstream import (
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
)
from tests.kits.apache.cluster import ApacheCluster
from tests.kits.apache.messages import per_queue
from tests.kits.apache.ours import Collector, push_consumer, send_many
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

COUNT = 60


def test_consumer_status_shows_offsets_rates_and_python_stacks(
    apache_cluster: ApacheCluster,
) -> None:
    """Covers C-133, C-540: mqadmin consumerStatus with its jstack, as for a Java consumer."""
    topic = apache_cluster.create_topic(apache_cluster.unique("status"), queues=2)
    group = apache_cluster.unique("status-group")
    address = apache_cluster.namesrv_addr
    stored = send_many(address, topic, COUNT)
    collector = Collector()
    with push_consumer(address, group, topic, collector) as consumer:
        collector.wait(COUNT)
        text = apache_cluster.mqadmin(
            "consumerStatus", "-g", group, "-i", consumer.client_id, "-s", "true"
        )
    for title in (
        "#Consumer Properties#",
        "#Consumer Subscription#",
        "#Consumer Offset#",
        "#Consumer MQ Detail#",
        "#Consumer RT&TPS#",
        "#Consumer jstack#",
    ):
        assert title in text
    for name, value in (
        ("PROP_CLIENT_VERSION", "V4_9_8"),
        ("PROP_CONSUME_TYPE", "CONSUME_PASSIVELY"),
        ("consumerGroup", group),
        ("messageModel", "CLUSTERING"),
    ):
        assert re.search(rf"{name}\s+: {re.escape(value)}", text), (name, text)
    for queue_id, count in per_queue(stored).items():
        assert re.search(rf"{topic}\s+\S+\s+{queue_id}\s+{count}\b", text), text
    assert "rocketstream-" in text
    assert "_worker" in text or "run_forever" in text
    assert ".py:" in text


def test_consumer_connection_names_the_language(apache_cluster: ApacheCluster) -> None:
    """Covers C-16, C-143."""
    topic = apache_cluster.create_topic(apache_cluster.unique("language"), queues=1)
    group = apache_cluster.unique("language-group")
    with push_consumer(apache_cluster.namesrv_addr, group, topic, Collector()) as consumer:
        text = wait_until(
            lambda: apache_cluster.mqadmin("consumerConnection", "-g", group), "the connection"
        )
        client_id = consumer.client_id
    assert re.search(rf"{re.escape(client_id)}\s+\S+\s+PYTHON\s+V4_9_8", text), text


@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
def test_a_message_is_consumed_on_request(apache_cluster: ApacheCluster, orderly: bool) -> None:
    """Covers C-133, C-269, C-295: mqadmin queryMsgById with group and client."""
    topic = apache_cluster.create_topic(apache_cluster.unique("directly"), queues=1)
    group = apache_cluster.unique("directly-group")
    seen: list[bytes] = []
    arrived = threading.Event()

    def in_order(messages: list[MessageExt]) -> ConsumeOrderlyStatus:
        seen.extend(message.body for message in messages)
        arrived.set()
        return ConsumeOrderlyStatus.SUCCESS

    def listener(messages: list[MessageExt]) -> None:
        seen.extend(message.body for message in messages)
        arrived.set()
        raise ValueError("not this one")

    consumer = PushConsumer(
        group,
        namesrv_addr=apache_cluster.namesrv_addr,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    )
    consumer.register_message_listener(in_order if orderly else listener, orderly=orderly)  # type: ignore[call-overload]
    consumer.subscribe(topic)
    with consumer:
        with Producer("senders", namesrv_addr=apache_cluster.namesrv_addr) as producer:
            sent = producer.send(Message(topic, b"on request"))
        assert arrived.wait(60)
        before = len(seen)
        command = ["queryMsgById", "-i", sent.offset_msg_id, "-g", group, "-d", consumer.client_id]
        if apache_cluster.referee.version.startswith("5"):
            command += ["-t", topic]
        text = apache_cluster.mqadmin(*command)
    assert len(seen) > before
    if orderly:
        assert "order=true" in text
        assert "consumeResult=CR_SUCCESS" in text
    else:
        assert "order=false" in text
        assert "consumeResult=CR_THROW_EXCEPTION" in text
        assert "not this one" in text


def test_a_reset_by_time_reaches_the_member(apache_cluster: ApacheCluster) -> None:
    """Covers C-531 to C-533, C-572: mqadmin resetOffsetByTime; everything comes again."""
    topic = apache_cluster.create_topic(apache_cluster.unique("reset"), queues=2)
    group = apache_cluster.unique("reset-group")
    address = apache_cluster.namesrv_addr
    collector = Collector()
    with push_consumer(address, group, topic, collector, persist_consumer_offset_interval_ms=50):
        stored = send_many(address, topic, COUNT)
        collector.wait(COUNT)
        expected = per_queue(stored)
        wait_until(
            lambda: apache_cluster.committed(topic, group) == expected, "the commits", timeout_s=60
        )
        text = apache_cluster.mqadmin(
            "resetOffsetByTime", "-g", group, "-t", topic, "-s", "1", "-f", "true"
        )
        collector.wait_deliveries(2 * COUNT)
        wait_until(
            lambda: apache_cluster.committed(topic, group) == expected, "the commits", timeout_s=60
        )
    assert topic in text
    assert len(collector.deliveries) == 2 * COUNT


def test_the_vip_channel_carries_sends_offsets_and_send_backs(
    apache_cluster: ApacheCluster,
) -> None:
    """Covers C-13: Apache's broker listens two ports below for them."""
    topic = apache_cluster.create_topic(apache_cluster.unique("vip"), queues=2)
    group = apache_cluster.unique("vip-group")
    address = apache_cluster.namesrv_addr
    failed: set[str] = set()

    def first_time(message: MessageExt) -> bool:
        key = message.msg_id
        return key not in failed and not failed.add(key)  # type: ignore[func-returns-value]

    collector = Collector(fails=first_time)
    with (
        Producer("vip-senders", namesrv_addr=address, vip_channel_enabled=True) as producer,
        push_consumer(
            address,
            group,
            topic,
            collector,
            vip_channel_enabled=True,
            persist_consumer_offset_interval_ms=50,
        ),
    ):
        for number in range(5):
            producer.send(Message(topic, str(number)))
        collector.wait(5)
        wait_until(
            lambda: sum(apache_cluster.committed(topic, group).values()) == 5,
            "the commits",
            timeout_s=60,
        )
