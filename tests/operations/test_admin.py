"""The admin client against an embedded cluster: rows for what is there, errors for what is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from rocketstream import ConsumeConcurrentlyStatus, Message, Producer, PushConsumer
from rocketstream.admin import Admin
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.errors import ConfigurationError, ConnectError, RouteNotFoundError
from rocketstream.model import MessageQueue
from rocketstream.server.embedded import EmbeddedCluster


@pytest.fixture
def admin(rocketmq_cluster: EmbeddedCluster) -> Iterator[Admin]:
    with Admin(rocketmq_cluster.namesrv_addr) as admin:
        yield admin


def test_cluster_info_names_the_master(rocketmq_cluster: EmbeddedCluster, admin: Admin) -> None:
    (row,) = admin.brokers.all()
    assert (row.broker_name, row.broker_id) == ("broker-a", 0)
    assert row.address == rocketmq_cluster.broker_addr


def test_created_topic_is_routed_when_create_returns(admin: Admin) -> None:
    (row,) = admin.topics.create("orders", 3)
    assert (row.read_queues, row.write_queues, row.permission) == (3, 3, "RW")
    assert len(admin.topics.status("orders")) == 3


def test_creating_again_changes_the_queues(admin: Admin) -> None:
    admin.topics.create("orders", 3)
    admin.topics.create("orders", 5)
    assert len(admin.topics.status("orders")) == 5


def test_topic_list_tells_the_kinds_apart(admin: Admin) -> None:
    admin.topics.create("orders", 1)
    kinds = {row.topic: row.kind for row in admin.topics.all()}
    assert kinds["orders"] == "normal"
    assert kinds["SCHEDULE_TOPIC_XXXX"] == "system"
    assert [topic for topic, kind in kinds.items() if kind == "normal"] == ["orders"]


def test_empty_queue_has_no_last_update(admin: Admin) -> None:
    admin.topics.create("orders", 1)
    (row,) = admin.topics.status("orders")
    assert (row.min_offset, row.max_offset, row.last_update_ms) == (0, 0, None)


def test_unknown_topic_is_a_route_error(admin: Admin) -> None:
    with pytest.raises(RouteNotFoundError, match="nowhere"):
        admin.topics.status("nowhere")


@pytest.mark.parametrize(
    ("name", "queues", "perm"), [("bad name!", 8, 6), ("", 8, 6), ("fine", 0, 6), ("fine", 8, 9)]
)
def test_bad_topic_settings_are_refused_before_asking(
    admin: Admin, name: str, queues: int, perm: int
) -> None:
    """Covers C-95."""
    with pytest.raises(ConfigurationError):
        admin.topics.create(name, queues, perm)


def test_group_that_only_committed_offsets_can_be_examined(
    rocketmq_cluster: EmbeddedCluster, admin: Admin
) -> None:
    """Upstream needs a route of the retry topic (C-526); a Spark query's group never has one."""
    admin.topics.create("orders", 2)
    with BlockingAdminClient(rocketmq_cluster.namesrv_addr) as client:
        client.update_consumer_offset("reader", MessageQueue("orders", "broker-a", 1), 0)
    rows = admin.groups.lag("reader")
    assert [(row.queue_id, row.committed_offset, row.lag) for row in rows] == [
        (0, None, 0),
        (1, 0, 0),
    ]
    (group,) = admin.groups.all()
    assert (group.group, group.member_count, group.topics) == ("reader", 0, ("orders",))


def test_unknown_group_is_refused_by_name(admin: Admin) -> None:
    with pytest.raises(ConfigurationError, match="nobody"):
        admin.groups.lag("nobody")


def test_lag_of_an_unknown_topic_is_a_route_error(admin: Admin) -> None:
    with pytest.raises(RouteNotFoundError):
        admin.groups.lag("reader", "nowhere")


def test_no_name_server_is_a_connect_error(free_port: Callable[[], int]) -> None:
    with Admin(f"127.0.0.1:{free_port()}") as admin, pytest.raises(ConnectError):
        admin.topics.all()


@pytest.fixture
def free_port() -> Callable[[], int]:
    import socket

    def find() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return int(probe.getsockname()[1])

    return find


def send(cluster: EmbeddedCluster, topic: str, count: int) -> None:
    with Producer("admin-test", namesrv_addr=cluster.namesrv_addr) as producer:
        for number in range(count):
            producer.send(Message(topic, f"{number}"))


def test_group_can_begin_after_the_newest_message(
    rocketmq_cluster: EmbeddedCluster, admin: Admin
) -> None:
    """A broker would answer 0 to a new group of a young topic (C-195)."""
    admin.topics.create("orders", 1)
    send(rocketmq_cluster, "orders", 3)
    queue = MessageQueue("orders", "broker-a", 0)
    assert admin.groups.begin("late", "orders") == {queue: 3}
    (row,) = admin.groups.lag("late")
    assert (row.committed_offset, row.lag) == (3, 0)
    assert admin.groups.begin("late", "orders") == {}


def test_group_can_begin_at_a_moment(rocketmq_cluster: EmbeddedCluster, admin: Admin) -> None:
    """Beyond the newest message a search finds that message, not the end (C-372)."""
    admin.topics.create("orders", 1)
    send(rocketmq_cluster, "orders", 3)
    queue = MessageQueue("orders", "broker-a", 0)
    (status,) = admin.topics.status("orders")
    assert status.last_update_ms is not None
    assert admin.groups.begin("old", "orders", 0) == {queue: 0}
    assert admin.groups.begin("future", "orders", status.last_update_ms + 1) == {queue: 3}


def test_only_connected_member_is_named_as_owner(
    rocketmq_cluster: EmbeddedCluster, admin: Admin
) -> None:
    admin.topics.create("orders", 2)
    consumer = PushConsumer("readers", namesrv_addr=rocketmq_cluster.namesrv_addr)
    consumer.subscribe("orders")
    consumer.register_message_listener(lambda messages: ConsumeConcurrentlyStatus.CONSUME_SUCCESS)
    with consumer:
        (member,) = admin.groups.members("readers")
        assert member.client_id == consumer.client_id
        rows = admin.groups.lag("readers", "orders")
        assert [(row.queue_id, row.client_id) for row in rows] == [
            (0, consumer.client_id),
            (1, consumer.client_id),
        ]
        (group,) = admin.groups.all()
        assert (group.member_count, group.message_model) == (1, "CLUSTERING")
    assert admin.groups.members("readers") == []
