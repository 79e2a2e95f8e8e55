"""Our admin operations on Apache's cluster, beside what its own tools and files say."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from rocketstream import ConsumeConcurrentlyStatus, ConsumeFromWhere, PushConsumer
from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.admin import Admin
from rocketstream.errors import ClientStateError
from tests.kits.apache.cluster import BROKER_NAME, CLUSTER_NAME, ApacheCluster, JavaPrograms
from tests.kits.apache.messages import per_queue
from tests.kits.apache.ours import Collector, push_consumer, send_many
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

COUNT = 400


def test_topics_are_created_listed_and_counted(apache_cluster: ApacheCluster) -> None:
    """create, list, route and status agree with what was done and sent."""
    name = apache_cluster.unique("admin")
    with Admin(apache_cluster.namesrv_addr) as admin:
        (broker,) = admin.brokers.all()
        (route,) = admin.topics.create(name, queues=3)
        stored = send_many(apache_cluster.namesrv_addr, name, COUNT)
        expected = per_queue(stored)
        wait_until(
            lambda: {r.queue_id: r.max_offset for r in admin.topics.status(name)} == expected,
            "all messages in the topic's status",
        )
        (row,) = [row for row in admin.topics.all() if row.topic == name]

    assert (broker.cluster, broker.broker_name) == (CLUSTER_NAME, BROKER_NAME)
    assert broker.address == apache_cluster.broker_addr
    assert (route.read_queues, route.write_queues, route.permission) == (3, 3, "RW")
    assert (row.kind, row.brokers, row.read_queues) == ("normal", (BROKER_NAME,), 3)


def test_lag_of_a_group_is_exact_with_and_without_members(
    apache_cluster: ApacheCluster, java: JavaPrograms
) -> None:
    """Half consumed by us, then a Java member takes over and the rest is consumed."""
    topic = apache_cluster.create_topic(apache_cluster.unique("lag"), queues=4)
    group = apache_cluster.unique("lag-group")
    address = apache_cluster.namesrv_addr
    first = send_many(address, topic, COUNT)
    collector = Collector()
    with push_consumer(address, group, topic, collector):
        collector.wait(COUNT)
    second = send_many(address, topic, COUNT, prefix="later")

    with Admin(address) as admin:
        expected = {q: per_queue(second).get(q, 0) for q in range(4)}
        wait_until(lambda: _lags(admin, group, topic) == expected, "the lag of the second half")
        rows = [row for row in admin.groups.lag(group) if row.topic == topic]
        assert {row.queue_id: row.committed_offset for row in rows} == per_queue(first)
        assert {row.client_id for row in rows} == {None}
        ages = [row.time_lag_ms(SYSTEM_CLOCK.now_ms()) for row in rows]
        assert all(age is not None and age > 0 for age in ages)
        with java.start(
            "JavaPushConsumer", namesrv=address, topic=topic, group=group, count=COUNT
        ) as consumer:
            consumer.wait_event("done")
            wait_until(lambda: set(_lags(admin, group, topic).values()) == {0}, "no lag")
            (member,) = admin.groups.members(group)
            owners = {r.client_id for r in admin.groups.lag(group) if r.topic == topic}
        (listed,) = [row for row in admin.groups.all() if row.group == group]

    assert member.language == "JAVA"
    assert owners == {member.client_id}
    assert topic in listed.topics


def test_dead_letters_go_back_to_their_origin_and_are_counted_meanwhile(
    apache_cluster: ApacheCluster,
) -> None:
    """Given up by a consumer of ours on Apache's broker, seen in a sweep, sent again once."""
    topic = apache_cluster.create_topic(apache_cluster.unique("redrive"), queues=1)
    group = apache_cluster.unique("redrive-group")
    address = apache_cluster.namesrv_addr
    send_many(address, topic, 40)
    failed = threading.Semaphore(0)

    def give_up(messages: Any, context: Any) -> ConsumeConcurrentlyStatus:
        context.delay_level_when_next_consume = -1
        for _ in messages:
            failed.release()
        return ConsumeConcurrentlyStatus.RECONSUME_LATER

    consumer = PushConsumer(
        group, namesrv_addr=address, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
    )
    consumer.subscribe(topic)
    consumer.register_message_listener(give_up)
    with consumer, Admin(address) as admin:
        for _ in range(40):
            assert failed.acquire(timeout=60)
        wait_until(lambda: _kept(admin, group) == 40, "all letters in the dead-letter topic")
    with Admin(address) as admin:
        rows = {row.kind: row for row in admin.groups.progress([group])}
        assert {"topic", "dead letter"} <= rows.keys()
        assert {row.error for row in rows.values()} == {None}
        assert (rows["topic"].min_offset, rows["topic"].max_offset) == (0, 40)
        plan = admin.letters.redrive_plan(group)
        assert plan.by_topic == {topic: 40}
        first = admin.letters.redrive(
            group, limit=15, on_sent=partial(_refuses_another, address, group)
        )
        rest = admin.letters.redrive(group)
        assert (first.sent, rest.sent, admin.letters.redrive(group).sent) == (15, 25, 0)
        (status,) = admin.topics.status(topic)
        assert status.max_offset == 80
        sent = admin.messages.view(topic, plan.shown[0].msg_id)
    assert sent.msg_id == plan.shown[0].msg_id


def _refuses_another(address: str, group: str, *_: Any) -> None:
    with Admin(address) as other, pytest.raises(ClientStateError, match="under way already"):
        other.letters.redrive(group)


def _kept(admin: Admin, group: str) -> int:
    rows = [row for row in admin.groups.progress([group]) if row.kind == "dead letter"]
    return sum((row.max_offset or 0) - (row.min_offset or 0) for row in rows)


def _lags(admin: Admin, group: str, topic: str) -> dict[int, int | None]:
    return {row.queue_id: row.lag for row in admin.groups.lag(group) if row.topic == topic}
