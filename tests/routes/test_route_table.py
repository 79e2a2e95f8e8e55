"""The routing table without a name server."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NoReturn

import pytest

from rocketstream.errors import BrokerError
from rocketstream.limits import BROKER_EXPIRED_MS
from rocketstream.protocol.bodies import (
    DataVersion,
    KVConfigSerializeWrapper,
    QueueData,
    TopicConfig,
)
from rocketstream.protocol.names import ORDER_NAMESPACE
from rocketstream.server.nameserver.core.routes import (
    TOPICS_PER_STEP,
    BrokerIdentity,
    KeyValueTable,
    Registered,
    RouteTable,
)
from tests.plugins.steps import drained

NOW = 1_700_000_000_000


def registering(
    table: RouteTable,
    *topics: str,
    name: str = "a",
    cluster: str = "C1",
    broker_id: int = 0,
    counter: int = 1,
    channel: str = "ch",
    opened: int = 1,
    servers: tuple[str, ...] = (),
    now_ms: int = NOW,
    address: str = "",
) -> Generator[None, None, Registered]:
    return table.registering(
        BrokerIdentity(cluster, name, broker_id, address or f"{name}{broker_id}:1"),
        ha_server_address=f"{name}{broker_id}:2",
        topics={topic: TopicConfig(topic) for topic in topics},
        data_version=DataVersion(counter, 1),
        filter_servers=servers,
        channel=channel,
        opened=opened,
        now_ms=now_ms,
    )


def register(table: RouteTable, *topics: str, **given: Any) -> Registered:
    return drained(registering(table, *topics, **given))[0]


def brokers(table: RouteTable, topic: str) -> set[str]:
    route = table.route(topic)
    return {data.broker_name for data in route.broker_datas} if route else set()


def test_route_lists_every_broker_of_the_topic() -> None:
    """Covers C-441, C-443."""
    table = RouteTable()
    register(table, "T1", name="a")
    register(table, "T1", "T2", name="b", channel="ch2")
    assert brokers(table, "T1") == {"a", "b"}
    assert brokers(table, "T2") == {"b"}
    assert table.route("T3") is None


def test_one_brokers_end_leaves_the_other() -> None:
    """Covers C-442."""
    table = RouteTable()
    register(table, "T1", name="a")
    register(table, "T1", "T2", name="b", channel="ch2")
    gone = table.channel_closed("ch2")
    assert [identity.name for identity in gone] == ["b"]
    assert brokers(table, "T1") == {"a"}
    assert table.route("T2") is None
    assert table.cluster_info().cluster_addr_table == {"C1": ["a"]}
    assert table.channel_closed("ch2") == []


def test_reconnected_broker_is_not_removed_by_its_old_channel() -> None:
    """A broker that registered anew over another connection belongs to that one."""
    table = RouteTable()
    register(table, "T1", channel="old")
    register(table, "T1", channel="new")
    assert table.channel_closed("old") == []
    assert brokers(table, "T1") == {"a"}


def test_a_registration_that_comes_late_does_not_end_with_its_earlier_connection() -> None:
    """The broker was forgotten then, until it registered again half a minute later."""
    table = RouteTable()
    register(table, "T1", channel="later", opened=2)
    register(table, "T2", channel="earlier", opened=1, counter=2)
    assert table.is_late("a0:1", 1)
    assert not table.is_late("a0:1", 2)
    assert table.channel_closed("earlier") == []
    assert brokers(table, "T1") == brokers(table, "T2") == {"a"}
    assert [gone.name for gone in table.channel_closed("later")] == ["a"]
    register(table, "T1", channel="earlier", opened=1)
    assert [gone.name for gone in table.channel_closed("earlier")] == ["a"]


@pytest.mark.parametrize("now", [{"name": "b"}, {"cluster": "C2"}, {"name": "b", "cluster": "C2"}])
def test_an_address_under_another_name_leaves_its_former_one(now: dict[str, str]) -> None:
    """Nobody was left to end the former one: its routes led to the address for ever."""
    table = RouteTable()
    register(table, "T1", "T2", channel="before", address="h:1")
    register(table, "T1", channel="after", opened=2, counter=2, address="h:1", **now)
    name, cluster = now.get("name", "a"), now.get("cluster", "C1")
    assert brokers(table, "T1") == {name}
    assert table.route("T2") is None
    assert table.cluster_info().cluster_addr_table == {cluster: [name]}
    assert table.channel_closed("before") == []
    assert [identity.name for identity in table.channel_closed("after")] == [name]
    assert table.topics() == []
    assert table.cluster_info().cluster_addr_table == {}


def test_topics_stay_while_a_slave_serves_them() -> None:
    """Covers W 2.7: with the master gone the slave's address remains in the route."""
    table = RouteTable()
    register(table, "T1", channel="m")
    assert register(table, "T1", broker_id=1, channel="s") == Registered("a0:1", "a0:2")
    table.channel_closed("m")
    route = table.route("T1")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {1: "a1:1"}
    assert register(table, "T1", broker_id=1, channel="s") == Registered()


def test_silence_from_before_the_server_was_at_work_does_not_count() -> None:
    table = RouteTable()
    register(table, "T1", channel="x")
    assert table.expire(NOW + 400_000, NOW + 300_000) == []
    assert table.expire(NOW + 420_001, NOW + 300_000) == ["x"]


def test_expiry_is_strictly_after_120_s_without_a_sign() -> None:
    """Covers C-442."""
    table = RouteTable()
    register(table, "T1", channel="x")
    assert table.expire(NOW + 120_000) == []
    table.refresh("a0:1", NOW + 1)
    assert table.expire(NOW + 120_001) == []
    assert table.expire(NOW + 120_002) == ["x"]
    assert table.route("T1") is None


def test_filter_servers_are_part_of_the_route() -> None:
    table = RouteTable()
    register(table, "T1", servers=("f:1",))
    route = table.route("T1")
    assert route is not None
    assert route.filter_server_table == {"a0:1": ["f:1"]}
    register(table, "T1")
    route = table.route("T1")
    assert route is not None
    assert route.filter_server_table == {}


def test_registrations_have_bounds() -> None:
    """What is known may be told again; what is new is refused, with the number kept."""
    table = RouteTable(brokers_max=1, topics_max=2)
    register(table, "T1", "T2")
    register(table, "T1", counter=2)
    with pytest.raises(BrokerError, match=r"1 new topics of broker a .* keeps 2 topics"):
        register(table, "T3", counter=3)
    with pytest.raises(BrokerError, match="keeps 1 brokers"):
        register(table, name="b")
    assert table.topics() == ["T1", "T2"]


def test_a_broker_with_topics_there_is_no_room_for_stays_with_those_that_are_known() -> None:
    """It was refused whole: after two minutes it and all its routes were dropped."""
    table = RouteTable(topics_max=2)
    register(table, "T1", "old")
    later_ms = NOW + BROKER_EXPIRED_MS
    for counter in (2, 3):
        with pytest.raises(BrokerError, match=r"1 new topics"):
            register(table, "T1", "new", counter=counter, now_ms=later_ms)
    assert table.expire(later_ms + BROKER_EXPIRED_MS) == []
    assert brokers(table, "T1") == {"a"}
    assert brokers(table, "new") == set()


def test_a_broker_whose_topics_had_no_room_tells_them_until_they_are_taken() -> None:
    """A topic made meanwhile, which it tells alone, is no reason to end that."""
    table, version = RouteTable(topics_max=2), DataVersion(2, 1)
    register(table, "other", name="b")
    for _ in range(2):
        with pytest.raises(BrokerError, match=r"1 new topics"):
            register(table, "T1", "T2", counter=2)
        assert table.is_changed("a0:1", version)
    table.delete_topic("other")
    register(table, "T1", counter=2)
    assert table.is_changed("a0:1", version)
    register(table, "T1", "T2", counter=2)
    assert not table.is_changed("a0:1", version)
    assert table.topics() == ["T1", "T2"]


def test_long_registration_is_taken_over_in_its_last_step() -> None:
    """20,000 topics at once held everybody up; half of them are no route for anybody."""
    table = RouteTable()
    topics = [f"T{number}" for number in range(4 * TOPICS_PER_STEP + 1)]
    steps = registering(table, *topics)
    for _ in range(4):
        next(steps)
        assert table.topics() == []
    with pytest.raises(StopIteration):
        next(steps)
    assert table.topics() == topics


def test_registration_given_up_halfway_leaves_no_trace() -> None:
    table = RouteTable()
    steps = registering(table, *[f"T{number}" for number in range(TOPICS_PER_STEP)])
    next(steps)
    steps.close()
    assert table.topics() == []
    assert table.cluster_info().broker_addr_table == {}


def test_registrations_side_by_side_do_not_pass_the_bound() -> None:
    table = RouteTable(topics_max=TOPICS_PER_STEP)
    topics = [f"T{number}" for number in range(TOPICS_PER_STEP)]
    first, second = registering(table, *topics), registering(table, *topics, "more", name="b")
    next(first)
    next(second)
    with pytest.raises(StopIteration):
        next(first)
    with pytest.raises(BrokerError, match=r"500 topics; delete some first"):
        next(second)
    assert table.topics() == topics


def test_end_of_a_broker_looks_at_its_own_topics_only() -> None:
    """A thousand brokers that left together looked at the topics of all for each of them."""
    table = RouteTable()
    register(table, "T1", "T2", name="a")
    register(table, "T2", "T3", name="b")
    looked: list[str] = []

    class Watched(dict[str, dict[str, QueueData]]):
        def __getitem__(self, topic: str) -> dict[str, QueueData]:
            looked.append(topic)
            return super().__getitem__(topic)

        def items(self) -> NoReturn:
            raise AssertionError("looked at every topic")

    table._queues = Watched(table._queues)
    table.unregister(BrokerIdentity("C1", "b", 0, "b0:1"))
    assert sorted(looked) == ["T2", "T3"]
    assert table.topics() == ["T1", "T2"]


def test_deleted_topic_is_no_topic_of_its_brokers_any_more() -> None:
    table = RouteTable()
    register(table, "T1", "T2", name="a")
    register(table, "T2", name="b", cluster="C2")
    table.delete_topic("T2", "C2")
    assert (table.wipe_write_permission("b"), table.wipe_write_permission("a")) == (0, 2)
    table.delete_topic("T1")
    assert table.add_write_permission("a") == 1
    table.unregister(BrokerIdentity("C1", "a", 0, "a0:1"))
    assert table.topics() == []


def test_an_address_that_leaves_under_other_names_stays() -> None:
    """It was forgotten but for its place in the routes, which nothing ended any more."""
    table = RouteTable()
    register(table, "T", name="a")
    table.unregister(BrokerIdentity("C1", "a", 1, "a0:1"))
    table.unregister(BrokerIdentity("C1", "b", 0, "a0:1"))
    assert table.topics() == ["T"]
    table.expire(NOW + BROKER_EXPIRED_MS + 1)
    assert table.topics() == []
    assert table.cluster_info().broker_addr_table == {}


def test_a_master_and_a_slave_that_move_to_a_cluster_are_in_no_other() -> None:
    """They were in both, and when they had left, the first cluster still had them."""
    table = RouteTable()
    register(table, "T", name="a")
    register(table, name="a", broker_id=1)
    register(table, "T", name="a", cluster="C2")
    register(table, name="a", cluster="C2", broker_id=1)
    info = table.cluster_info()
    assert info.cluster_addr_table == {"C2": ["a"]}
    assert info.broker_addr_table["a"].cluster == "C2"
    assert table.topics_of_cluster("C2") == ["T"]
    for broker_id in (0, 1):
        table.unregister(BrokerIdentity("C2", "a", broker_id, f"a{broker_id}:1"))
    assert table.cluster_info().cluster_addr_table == {}


def test_settings_have_bounds() -> None:
    table = KeyValueTable(count_max=2, chars_max=20)
    assert table.put("n", "k", "v") is None
    assert "20 characters" in (table.put("n", "k", "v" * 19) or "")
    assert table.put("n", "k", "v" * 10) is None
    assert table.put("n", "l", "v") is None
    assert "keeps 2 settings" in (table.put("n", "m", "v") or "")
    table.delete("n", "l")
    assert table.put("n", "m", "v") is None
    restored = KeyValueTable(count_max=2, chars_max=20)
    restored.load(table.snapshot())
    assert restored.namespace("n") == {"k": "v" * 10, "m": "v"}
    assert "keeps 2 settings" in (restored.put("n", "o", "v") or "")


def test_settings_of_a_namespace_are_a_copy() -> None:
    table = KeyValueTable()
    assert table.namespace("n") is None
    table.put("n", "k", "v")
    found = table.namespace("n")
    assert found == {"k": "v"}
    table.delete("n", "k")
    table.delete("other", "k")
    assert table.namespace("n") is None
    assert found == {"k": "v"}


def test_namespaces_end_with_their_last_setting() -> None:
    """They stayed for ever, in memory and in the file, beside all bounds."""
    table = KeyValueTable(count_max=1)
    for number in range(3):
        assert table.put(f"n{number}", "k", "v") is None
        table.delete(f"n{number}", "k")
    assert table.snapshot().config_table == {}
    table.load(KVConfigSerializeWrapper({"of an earlier version": {}}))
    assert table.snapshot().config_table == {}


def test_that_no_topic_is_ordered_any_more_is_no_absence_of_an_answer() -> None:
    """Brokers of upstream keep the order of a topic until they are told the table without it."""
    table = KeyValueTable()
    assert table.namespace(ORDER_NAMESPACE) is None
    table.put(ORDER_NAMESPACE, "T1", "a:4")
    table.delete(ORDER_NAMESPACE, "T1")
    assert table.namespace(ORDER_NAMESPACE) == {}
    restored = KeyValueTable()
    restored.load(table.snapshot())
    assert restored.namespace(ORDER_NAMESPACE) == {}
