"""One sweep over all groups: what is known as rows, what is not known with its reason."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from rocketstream import ConsumeConcurrentlyStatus, Message, Producer, PushConsumer
from rocketstream.admin import Admin, ProgressRow
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.errors import ConnectError
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import (
    BrokerData,
    Connection,
    ConsumerConnection,
    SubscriptionData,
)
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.server.embedded import EmbeddedCluster
from tests.progress import faults


@pytest.fixture
def admin(rocketmq_cluster: EmbeddedCluster) -> Iterator[Admin]:
    with Admin(rocketmq_cluster.namesrv_addr) as admin:
        yield admin


@pytest.fixture
def behind(rocketmq_cluster: EmbeddedCluster, admin: Admin) -> None:
    """Group ``billing`` has consumed 2 of 5 orders and given one up; ``audit`` all of them."""
    admin.topics.create("orders", 1)
    admin.topics.create("%RETRY%billing", 1)
    admin.topics.create("%DLQ%billing", 1)
    with Producer("progress-test", namesrv_addr=rocketmq_cluster.namesrv_addr) as producer:
        for number in range(5):
            producer.send(Message("orders", f"{number}"))
        producer.send(Message("%RETRY%billing", "again"))
        producer.send(Message("%DLQ%billing", "dead"))
    commit(rocketmq_cluster, "billing", "orders", 2)
    commit(rocketmq_cluster, "billing", "%RETRY%billing", 0)
    commit(rocketmq_cluster, "audit", "orders", 5)


def commit(cluster: EmbeddedCluster, group: str, topic: str, offset: int) -> None:
    with BlockingAdminClient(cluster.namesrv_addr) as client:
        client.update_consumer_offset(group, MessageQueue(topic, "broker-a", 0), offset)


def brief(row: ProgressRow) -> tuple[Any, ...]:
    return row.group, row.topic, row.kind, row.committed_offset, row.lag


@pytest.mark.usefixtures("behind")
def test_every_group_is_told_with_its_retries_and_its_dead_letters(admin: Admin) -> None:
    rows = admin.groups.progress()
    assert [brief(row) for row in rows] == [
        ("audit", "orders", "topic", 5, 0),
        ("billing", "%DLQ%billing", "dead letter", None, None),
        ("billing", "%RETRY%billing", "retry", 0, 1),
        ("billing", "orders", "topic", 2, 3),
    ]
    assert {row.error for row in rows} == {None}
    assert {(row.cluster, row.broker_name) for row in rows} == {("DefaultCluster", "broker-a")}
    audit, dead, _, orders = rows
    assert (audit.time_lag_ms, audit.members) == (0, 0)
    assert (dead.min_offset, dead.max_offset) == (0, 1)
    assert (orders.min_offset, orders.max_offset) == (0, 5)
    assert orders.time_lag_ms is not None
    assert orders.last_consumed_ms is not None


@pytest.mark.usefixtures("behind")
def test_groups_are_chosen_by_name_by_pattern_and_by_topic(admin: Admin) -> None:
    assert {row.group for row in admin.groups.progress(["audit"])} == {"audit"}
    assert {row.group for row in admin.groups.progress(group_pattern="a.*")} == {"audit"}
    assert {row.group for row in admin.groups.progress(group_pattern="aud")} == set()
    assert [row.topic for row in admin.groups.progress(topics=["orders"])] == ["orders", "orders"]
    with pytest.raises(re.error):
        admin.groups.progress(group_pattern="(")


@pytest.mark.usefixtures("behind")
def test_a_group_nobody_knows_gets_a_row_that_says_so(admin: Admin) -> None:
    (row,) = admin.groups.progress(["bililng"])
    assert row.lag is None
    assert row.error is not None
    assert "no broker knows group bililng" in row.error


def test_nothing_committed_is_unknown_and_not_zero(
    rocketmq_cluster: EmbeddedCluster, admin: Admin
) -> None:
    admin.topics.create("orders", 2)
    with Producer("progress-test", namesrv_addr=rocketmq_cluster.namesrv_addr) as producer:
        for queue in (0, 1):
            producer.send(
                Message("orders", "x"), message_queue=MessageQueue("orders", "broker-a", queue)
            )
    commit(rocketmq_cluster, "billing", "orders", 0)
    first, second = admin.groups.progress(["billing"])
    assert (first.committed_offset, first.lag) == (0, 1)
    assert (second.committed_offset, second.lag, second.time_lag_ms) == (None, None, None)


@pytest.mark.usefixtures("behind")
def test_a_broker_that_is_down_is_named_for_each_group_and_the_others_are_told(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    info = admin._wire.cluster_info()
    info.broker_addr_table["broker-b"] = BrokerData("C", "broker-b", {0: f"127.0.0.1:{port}"})
    info.broker_addr_table["broker-c"] = BrokerData("C", "broker-c", {1: f"127.0.0.1:{port}"})
    monkeypatch.setattr(admin._wire, "cluster_info", lambda: info)
    rows = admin.groups.progress(["billing", "audit"], topics=["orders"])
    told = {(row.group, row.broker_name): row for row in rows}
    assert told["billing", "broker-a"].lag == 3
    for group in ("billing", "audit"):
        down, slave = told[group, "broker-b"], told[group, "broker-c"]
        assert down.lag is None
        assert down.error is not None
        assert "broker broker-b at" in down.error
        assert slave.error == "broker broker-c has no master at the moment"


@pytest.mark.usefixtures("behind")
def test_a_broker_that_stops_answering_is_asked_once(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = faults.silence(monkeypatch, RequestCode.GET_TOPIC_STATS_INFO)
    rows = admin.groups.progress(topics=["orders"])
    assert len(asked) == 1
    assert {row.group for row in rows} == {"audit", "billing"}
    for row in rows:
        assert row.lag is None
        assert row.error is not None
        assert "does not answer: no answer" in row.error


@pytest.mark.usefixtures("behind")
def test_what_one_question_would_have_told_is_missing_alone(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.refuse(monkeypatch, RequestCode.QUERY_CONSUME_TIME_SPAN)
    (row,) = admin.groups.progress(["billing"], topics=["orders"])
    assert (row.lag, row.time_lag_ms) == (3, None)
    assert row.error is not None
    assert "lag in time is not known" in row.error


@pytest.mark.usefixtures("behind")
def test_queues_a_broker_does_not_tell_of_leave_a_row_that_says_so(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.refuse(monkeypatch, RequestCode.GET_TOPIC_STATS_INFO)
    (row,) = admin.groups.progress(["billing"], topics=["orders"])
    assert (row.topic, row.kind, row.lag, row.queue_id) == ("orders", "topic", None, None)
    assert "queues are not known" in str(row.error)


@pytest.mark.usefixtures("behind")
def test_without_stored_offsets_it_is_not_known_whether_zero_was_committed(
    rocketmq_cluster: EmbeddedCluster, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topics of the group are then those code 208 tells of."""
    commit(rocketmq_cluster, "billing", "orders", 0)
    faults.refuse(monkeypatch, RequestCode.GET_ALL_CONSUMER_OFFSET)
    row = next(row for row in admin.groups.progress(["billing"]) if row.topic == "orders")
    assert (row.committed_offset, row.lag) == (None, None)
    assert "whether 0 is a committed offset is not known" in str(row.error)
    commit(rocketmq_cluster, "billing", "orders", 2)
    row = next(row for row in admin.groups.progress(["billing"]) if row.topic == "orders")
    assert (row.committed_offset, row.lag, row.error) == (2, 3, None)


def test_members_and_the_owner_of_a_queue_are_told(
    rocketmq_cluster: EmbeddedCluster, admin: Admin
) -> None:
    admin.topics.create("orders", 1)
    consumer = PushConsumer("readers", namesrv_addr=rocketmq_cluster.namesrv_addr)
    consumer.subscribe("orders")
    consumer.register_message_listener(lambda messages: ConsumeConcurrentlyStatus.CONSUME_SUCCESS)
    with consumer:
        (row,) = admin.groups.progress(["readers"], topics=["orders"])
    assert (row.client_id, row.members) == (consumer.client_id, 1)


@pytest.mark.usefixtures("behind")
def test_members_that_do_not_say_what_they_hold_are_named(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = ConsumerConnection(
        [Connection("one"), Connection("two")], {"orders": SubscriptionData("orders")}
    )

    def told(command: RemotingCommand) -> RemotingCommand | None:
        if command.code == RequestCode.GET_CONSUMER_CONNECTION_LIST:
            return RemotingCommand.response(0, body=two.encode())
        return None

    faults.answer(monkeypatch, told)
    (row,) = admin.groups.progress(["billing"], topics=["orders"])
    assert (row.client_id, row.members, row.lag) == (None, 2, 3)
    assert str(row.error).startswith("owners are not known: one, two did not say: ")
    (row,) = admin.groups.progress(["billing"], topics=["orders"], owners=False)
    assert row.error is None


def test_without_a_name_server_there_is_nothing_to_tell() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Admin(f"127.0.0.1:{port}") as admin, pytest.raises(ConnectError):
        admin.groups.progress()
