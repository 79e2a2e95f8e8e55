"""Queues and addresses out of a route (C-134 to C-142)."""

from __future__ import annotations

import pytest

from rocketstream import limits
from rocketstream.client.instance.routes import (
    BrokerAddress,
    RouteTable,
    check_route,
    check_sizes,
    default_topic_route,
    publish_queues,
    subscribe_queues,
)
from rocketstream.errors import RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import BrokerData, QueueData, TopicRouteData


def route(*, perm: int = 6, order: str | None = None, masters: str = "ab") -> TopicRouteData:
    return TopicRouteData(
        queue_datas=[
            QueueData("broker-b", 2, 3, perm, 0),
            QueueData("broker-a", 4, 1, perm, 0),
        ],
        broker_datas=[
            BrokerData(
                "c", f"broker-{n}", {i: f"{n}:{i}" for i in ([0, 1] if n in masters else [1])}
            )
            for n in "ab"
        ],
        order_topic_conf=order,
    )


def ids(queues: tuple[MessageQueue, ...]) -> list[tuple[str, int]]:
    return [(mq.broker_name[-1], mq.queue_id) for mq in queues]


def test_sending_uses_write_queues_of_brokers_with_a_master() -> None:
    """Covers C-136."""
    assert ids(publish_queues("T", route())) == [("a", 0), ("b", 0), ("b", 1), ("b", 2)]
    assert ids(publish_queues("T", route(masters="a"))) == [("a", 0)]
    assert ids(publish_queues("T", route(perm=4))) == []


def test_an_order_configuration_pins_the_queues() -> None:
    """Covers C-136: exactly those queues, whatever the permissions."""
    queues = publish_queues("T", route(perm=4, order="broker-a:2;broker-x:1"))
    assert ids(queues) == [("a", 0), ("a", 1), ("x", 0)]


def test_an_order_configuration_names_as_many_queues_as_a_topic_may_have() -> None:
    queues = publish_queues("T", route(order=f"broker-a:{limits.TOPIC_QUEUES_MAX}"))
    assert len(queues) == limits.TOPIC_QUEUES_MAX


@pytest.mark.parametrize(
    "conf", ["broker-a", ":3", "a:x", "a:٣", f"a:{limits.TOPIC_QUEUES_MAX + 1}", f"a:{'9' * 5_000}"]
)
def test_a_malformed_order_configuration_is_the_peers_fault(conf: str) -> None:
    with pytest.raises(RemoteProtocolError, match="order configuration"):
        publish_queues("T", route(order=conf))


def test_a_route_names_no_more_queues_than_a_client_can_make_at_once() -> None:
    """A few bytes name thousands: a short text could take all memory, and the loop's time."""
    parts = limits.ROUTE_QUEUES_MAX // limits.TOPIC_QUEUES_MAX
    ordered = route(order=f"broker-a:{limits.TOPIC_QUEUES_MAX};" * (parts + 1))
    with pytest.raises(RemoteProtocolError, match="327680 queues in all"):
        check_route("T", ordered)
    many = route()
    many.queue_datas = [QueueData("broker-a", limits.TOPIC_QUEUES_MAX, 1, 6) for _ in range(parts)]
    assert len(subscribe_queues("T", many)) == limits.ROUTE_QUEUES_MAX
    many.queue_datas.append(QueueData("broker-b", 0, 1, 6))
    with pytest.raises(RemoteProtocolError, match="262145 queues in all"):
        check_sizes("T", many)


def test_consuming_uses_read_queues_and_needs_no_master() -> None:
    """Covers C-137."""
    expected = [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("b", 0), ("b", 1)]
    assert ids(subscribe_queues("T", route(masters=""))) == expected
    assert subscribe_queues("T", route(perm=2)) == ()


def test_a_new_topic_gets_the_smaller_number_of_queues() -> None:
    """Covers C-138."""
    cut = default_topic_route(route(), 3)
    assert [(q.read_queue_nums, q.write_queue_nums) for q in cut.queue_datas] == [(2, 2), (3, 3)]


def test_the_same_route_in_another_order_is_no_change() -> None:
    """Covers C-135."""
    table = RouteTable()
    assert table.apply("T", route())
    again = route()
    again.queue_datas.reverse()
    again.broker_datas.reverse()
    assert not table.apply("T", again)
    assert table.apply("T", route(masters="a"))


def test_a_topic_without_writable_queue_is_not_in_the_publish_table() -> None:
    table = RouteTable()
    table.apply("T", route())
    assert len(table.publish_table["T"]) == 4
    table.apply("T", route(perm=4))
    assert table.publish_table == {}
    assert table.subscribe_queues("unknown") is None
    assert len(table.subscribe_queues("T") or ()) == 6


def test_reading_prefers_the_broker_asked_for_then_the_next_then_any() -> None:
    """Covers C-140, C-141."""
    table = RouteTable()
    table.apply("T", route(masters="a"))
    assert table.find_for_subscribe("broker-a", 0) == BrokerAddress("a:0", False)
    assert table.find_for_subscribe("broker-a", 1) == BrokerAddress("a:1", True)
    assert table.find_for_subscribe("broker-b", 0) == BrokerAddress("b:1", True)
    assert table.find_for_subscribe("broker-b", 0, only_this=True) is None
    assert table.find_for_subscribe("broker-x", 0) is None
    assert table.masters == {"broker-a": "a:0"}


def test_a_master_that_is_gone_is_forgotten() -> None:
    """Covers C-141, C-142: no write goes to a broker that has slaves alone, or left every route."""
    table = RouteTable()
    table.apply("T", route())
    assert table.masters == {"broker-a": "a:0", "broker-b": "b:0"}
    table.apply("T", route(masters="a"))
    assert table.masters == {"broker-a": "a:0"}
    table.apply("T", TopicRouteData([], []))
    table.forget_offline_brokers()
    assert table.masters == {}


def test_topics_with_a_route_are_told() -> None:
    table = RouteTable()
    assert table.topics() == []
    table.apply("T", route())
    assert table.topics() == ["T"]


def test_in_place_of_a_slave_that_is_gone_the_next_one_is_read() -> None:
    """Covers C-140: the next id, not the one before it."""
    table = RouteTable()
    one = route()
    one.broker_datas[0].broker_addrs = {0: "a:0", 2: "a:2", 4: "a:4"}
    table.apply("T", one)
    for only_this in (False, True):
        found = table.find_for_subscribe("broker-a", 3, only_this=only_this)
        assert found == BrokerAddress("a:4", True)
    assert table.find_for_subscribe("broker-a", 5) == BrokerAddress("a:0", False)
    assert table.find_for_subscribe("broker-a", 5, only_this=True) is None


def test_members_are_asked_of_one_address_per_broker() -> None:
    """Covers C-159."""
    table = RouteTable()
    table.apply("T", route(masters="a"))
    assert sorted(table.group_addresses("T")) == ["a:0", "b:1"]
    assert table.group_addresses("unknown") == []


def test_addresses_of_no_route_are_forgotten() -> None:
    """Covers C-142, C-143."""
    table = RouteTable()
    table.apply("T", route())
    assert sorted(table.addresses(masters_only=True)) == ["a:0", "b:0"]
    assert len(table.addresses(masters_only=False)) == 4
    table.forget_offline_brokers()
    assert len(table.addresses(masters_only=False)) == 4
    smaller = route()
    smaller.broker_datas = [smaller.broker_datas[0]]
    table.apply("T", smaller)
    table.forget_offline_brokers()
    assert table.addresses(masters_only=False) == ["a:0", "a:1"]


def test_a_route_with_impossible_queue_numbers_is_refused() -> None:
    table = RouteTable()
    huge = route()
    huge.queue_datas[0].read_queue_nums = limits.TOPIC_QUEUES_MAX + 1
    with pytest.raises(RemoteProtocolError, match="names 3 to 65537 queues"):
        table.apply("T", huge)
    huge.queue_datas[0].read_queue_nums = limits.TOPIC_QUEUES_MAX
    assert table.apply("T", huge)
