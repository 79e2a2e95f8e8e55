"""One sweep tells every group, topic and broker, for a bounded number of requests."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable, Iterator

import pytest

from rocketstream import Message, Producer, limits
from rocketstream.admin import Admin
from rocketstream.admin.service import SweepMemory
from rocketstream.admin.state import QueueKind
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.errors import (
    AccessDeniedError,
    ConfigurationError,
    ConnectError,
    RouteNotFoundError,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import BrokerData
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.testing.clock import ManualClock
from tests.progress import faults


@pytest.fixture
def admin(rocketmq_cluster: EmbeddedCluster) -> Iterator[Admin]:
    with Admin(rocketmq_cluster.namesrv_addr) as admin:
        yield admin


@pytest.fixture
def behind(rocketmq_cluster: EmbeddedCluster, admin: Admin) -> None:
    """Group ``billing`` has consumed 2 of 5 orders, one waits for its retry, one is given up;
    ``audit`` has consumed all of them."""
    admin.topics.create("orders", 1)
    admin.topics.create("%RETRY%billing", 1)
    admin.topics.create("%DLQ%billing", 1)
    with Producer("sweep-test", namesrv_addr=rocketmq_cluster.namesrv_addr) as producer:
        for number in range(5):
            producer.send(Message("orders", f"{number}"))
        producer.send(Message("%RETRY%billing", "again"))
        producer.send(Message("%DLQ%billing", "dead"))
    commit(rocketmq_cluster, "billing", 2)
    commit(rocketmq_cluster, "audit", 5)


def commit(cluster: EmbeddedCluster, group: str, offset: int, topic: str = "orders") -> None:
    with BlockingAdminClient(cluster.namesrv_addr) as client:
        client.update_consumer_offset(group, MessageQueue(topic, "broker-a", 0), offset)


@pytest.mark.usefixtures("behind")
def test_a_sweep_tells_lag_retries_and_dead_letters_of_every_group(admin: Admin) -> None:
    state = admin.cluster.state()
    assert state.error is None
    assert list(state.groups) == ["audit", "billing"]
    audit, billing = state.groups.values()
    assert (audit.lag, audit.time_lag_ms, audit.retrying, audit.dead_letters) == (0, 0, 0, 0)
    assert (billing.lag, billing.retrying, billing.dead_letters) == (4, 1, 1)
    (orders,) = billing.of_kind(QueueKind.TOPIC)
    assert (orders.min_offset, orders.max_offset, orders.committed_offset) == (0, 5, 2)
    assert (orders.lag, orders.waiting, orders.expired, orders.error) == (3, 3, 0, None)
    assert state.topics["orders"].consumers == ("audit", "billing")
    assert state.topics["%DLQ%billing"].kind == "dead letter"
    assert state.brokers[0].version == "V4_9_8"


@pytest.mark.usefixtures("behind")
def test_lag_in_time_is_the_age_of_the_next_message_and_not_of_the_last_poll(admin: Admin) -> None:
    (queue,) = admin.groups.state("billing", "orders").queues
    stored = [
        admin._wire.pull(
            admin._client.master("broker-a"),
            "TOOLS_CONSUMER",
            MessageQueue("orders", "broker-a", 0),
            at,
            1,
        )[0][0].store_timestamp
        for at in (1, 2, 4)
    ]
    assert queue.last_consumed_ms == stored[0]
    assert queue.next_stored_ms is not None
    assert abs(queue.next_stored_ms - stored[1]) < 1_000
    assert queue.last_stored_ms == stored[2]


@pytest.mark.usefixtures("behind")
def test_a_group_that_stands_still_is_not_asked_for_times_again(admin: Admin) -> None:
    first = admin.cluster.state()
    second = admin.cluster.state()
    assert second.requests == first.requests - 2  # its orders and its retries
    assert second.groups["billing"].queues == first.groups["billing"].queues


@pytest.mark.usefixtures("behind")
def test_a_broker_that_is_down_makes_its_part_unknown_and_not_zero(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    info = admin._wire.cluster_info()
    info.broker_addr_table["broker-b"] = BrokerData("C", "broker-b", {0: f"127.0.0.1:{port}"})
    info.broker_addr_table["broker-c"] = BrokerData("C", "broker-c", {1: f"127.0.0.1:{port}"})
    monkeypatch.setattr(admin._wire, "cluster_info", lambda: info)
    state = admin.cluster.state()
    _, down, slave = state.brokers
    assert "broker broker-b" in str(down.error)
    assert slave.error == "broker broker-c has no master at the moment"
    billing = state.groups["billing"]
    assert billing.lag == 4
    assert billing.members is None
    assert len(billing.errors) == 2


@pytest.mark.usefixtures("behind")
def test_queues_at_a_silent_broker_are_unknown_ones_by_the_route(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks for the first time remembers nothing of it."""
    info, route = admin._wire.cluster_info(), admin._wire.route("orders")
    info.broker_addr_table["broker-b"] = BrokerData("C", "broker-b", {0: "127.0.0.1:1"})
    route.queue_datas.append(dataclasses.replace(route.queue_datas[0], broker_name="broker-b"))
    monkeypatch.setattr(admin._wire, "cluster_info", lambda: info)
    monkeypatch.setattr(admin._wire, "route", lambda _: route)
    state = admin.groups.state("billing", "orders")
    known, lost = state.queues
    assert (known.broker_name, known.lag) == ("broker-a", 3)
    assert (lost.broker_name, lost.lag) == ("broker-b", None)
    assert "broker broker-b" in str(lost.error)
    assert (state.lag, state.queues_unknown) == (None, 1)


@pytest.mark.usefixtures("behind")
def test_a_broker_that_vanished_is_missed_by_who_knew_it(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert admin.cluster.state().groups["billing"].lag == 4
    info = admin._wire.cluster_info()
    info.broker_addr_table["broker-z"] = info.broker_addr_table.pop("broker-a")
    info.broker_addr_table["broker-z"].broker_addrs = {0: "127.0.0.1:1"}
    monkeypatch.setattr(admin._wire, "cluster_info", lambda: info)
    billing = admin.cluster.state().groups["billing"]
    assert billing.lag is None
    assert billing.queues_unknown == 2
    assert any("registered with the name server no more" in why for why in billing.errors)


def fall_silent(admin: Admin, patch: pytest.MonkeyPatch, *, gone: bool = False) -> None:
    """Have ``broker-b`` not answer, or the name server know it no more."""
    info = admin._wire.cluster_info()
    if gone:
        del info.broker_addr_table["broker-b"]
    else:
        info.broker_addr_table["broker-b"].broker_addrs = {0: "127.0.0.1:1"}
    patch.setattr(admin._wire, "cluster_info", lambda: info)


@pytest.fixture
def two_brokers() -> Iterator[EmbeddedCluster]:
    """Group ``billing`` has consumed all of ``broker-a`` and nothing of ``broker-b``."""
    with EmbeddedCluster(brokers=2) as cluster, Admin(cluster.namesrv_addr) as admin:
        admin.topics.create("orders", 1)
        with Producer("sweep-test", namesrv_addr=cluster.namesrv_addr) as producer:
            for broker_name in ("broker-a", "broker-b"):
                queue = MessageQueue("orders", broker_name, 0)
                producer.send(Message("orders", "x"), message_queue=queue)
                consumed = 1 if broker_name == "broker-a" else 0
                admin._client.update_consumer_offset("billing", queue, consumed)
        yield cluster


def test_queues_at_a_broker_that_was_silent_from_the_beginning_are_unknown_to_every_look(
    two_brokers: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Admin(two_brokers.namesrv_addr) as admin:
        assert admin.cluster.state().groups["billing"].lag == 1
    with Admin(two_brokers.namesrv_addr) as admin:
        fall_silent(admin, monkeypatch)
        first = admin.cluster.state()
        again = admin.cluster.state()
        assert again.requests == first.requests - 1, "the route of orders is asked for once"
        found = [first.groups["billing"], again.groups["billing"], *admin.groups.all()]
        assert [(each.lag, each.queues_unknown) for each in found] == [(None, 1)] * 3


def test_group_deleted_while_all_brokers_answer_is_not_remembered(
    two_brokers: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Admin(two_brokers.namesrv_addr) as admin:
        assert list(admin.cluster.state().groups) == ["billing"]
        admin.changes.apply(admin.changes.group_delete_plan("billing"))
        assert list(admin.cluster.state().groups) == []
        fall_silent(admin, monkeypatch)
        assert list(admin.cluster.state().groups) == []


def test_vanished_broker_is_missed_by_the_admin_that_goes_on_for_a_day(
    two_brokers: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, clock = SweepMemory(), ManualClock()
    with Admin(two_brokers.namesrv_addr, clock=clock) as admin:
        admin._remember_in(memory)
        admin.cluster.state()
    with Admin(two_brokers.namesrv_addr, clock=clock) as admin:
        admin._remember_in(memory)
        fall_silent(admin, monkeypatch, gone=True)
        clock.advance(limits.ADMIN_LOST_BROKER_S * 1_000)
        assert admin.cluster.state().groups["billing"].lag is None
        clock.advance(1)
        assert admin.cluster.state().groups["billing"].lag == 0
        assert list(memory.queues) == list(memory.brokers) == ["broker-a"]


@pytest.mark.usefixtures("behind")
def test_queues_of_a_broker_that_ends_before_it_told_offsets_are_remembered(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = admin.cluster.state().groups["billing"]
    faults.silence(monkeypatch, RequestCode.GET_ALL_CONSUMER_OFFSET)
    billing = admin.cluster.state().groups["billing"]
    assert [each.key for each in billing.queues] == [each.key for each in whole.queues]
    assert billing.lag is None


@pytest.mark.usefixtures("behind")
def test_a_topic_tells_who_consumes_it(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    state = admin.topics.state("orders")
    assert (state.kind, state.permission, state.messages) == ("normal", "RW", 5)
    assert (state.consumers, state.errors) == (("audit", "billing"), ())
    some = admin.cluster.state(["audit"])
    assert list(some.topics) == ["orders"]
    assert some.topics["orders"].consumers is None
    faults.refuse(monkeypatch, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO)
    state = admin.topics.state("orders")
    assert state.consumers is None
    assert "who consumes is not known" in state.errors[0]
    asked = faults.silence(monkeypatch, RequestCode.GET_BROKER_RUNTIME_INFO)
    state = admin.topics.state("orders")
    assert (len(asked), state.queues, state.permission) == (1, (), None)
    assert "does not answer" in state.errors[0]


DENIAL = "org.apache.rocketmq.acl.common.AclException: {}, org.apache.rocketmq.acl.P.v(P.java:663)"


def denied(said: str, *codes: RequestCode) -> Callable[[RemotingCommand], RemotingCommand | None]:
    """What a broker's access control answers, to all requests where no codes are given."""

    def told(command: RemotingCommand) -> RemotingCommand | None:
        if codes and command.code not in codes:
            return None
        return RemotingCommand.response(1, DENIAL.format(said))

    return told


@pytest.mark.usefixtures("behind")
def test_a_cluster_that_lets_nobody_in_is_not_an_empty_one(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.answer(monkeypatch, denied("No accessKey is configured"))
    for ask in (
        admin.groups.all,
        lambda: admin.groups.state("billing"),
        lambda: admin.topics.state("orders"),
    ):
        with pytest.raises(AccessDeniedError, match="refused: No accessKey is configured"):
            ask()
    state = admin.cluster.state()
    assert "refused: No accessKey is configured" in str(state.error)
    (broker,) = state.brokers
    assert "refused: No accessKey is configured" in str(broker.error)
    assert state.requests == 2, "who is let in nowhere asks once"


@pytest.mark.usefixtures("behind")
def test_a_right_that_is_missing_leaves_the_rest_known(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "No default permission for topic:orders"
    faults.answer(monkeypatch, denied(said, RequestCode.GET_TOPIC_STATS_INFO))
    state = admin.cluster.state()
    assert state.error is None
    billing = state.groups["billing"]
    assert billing.lag is None
    assert any(said in str(queue.error) for queue in billing.queues)


@pytest.mark.usefixtures("behind")
def test_a_cluster_that_is_silent_is_not_an_empty_one(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.silence(monkeypatch, RequestCode.GET_BROKER_RUNTIME_INFO)
    with pytest.raises(ConnectError, match=r"broker broker-a at .* does not answer"):
        admin.groups.all()


def delayed(admin: Admin, group: str = "billing") -> tuple[int | None, bool]:
    state = admin.cluster.state().groups[group]
    return state.delayed, state.delayed_is_exact


@pytest.mark.usefixtures("behind")
def test_messages_waiting_for_their_delay_are_counted_for_their_group_each_read_once(
    rocketmq_cluster: EmbeddedCluster, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that is sent back waits in the delay topic, as these do; covers C-270."""
    admin.topics.create("%RETRY%audit", 1)
    assert delayed(admin) == (0, True)
    with Producer("sweep-test", namesrv_addr=rocketmq_cluster.namesrv_addr) as producer:
        for topic, count in (("%RETRY%billing", 5), ("%RETRY%audit", 1), ("orders", 2)):
            for _ in range(count):
                producer.send(Message(topic, "later", delay_level=18))
    monkeypatch.setattr(limits, "ADMIN_DELAYED_READ_MAX", 3)
    assert delayed(admin) == (3, False)
    assert delayed(admin) == (5, False)
    assert delayed(admin) == (5, True)
    assert delayed(admin, "audit") == (1, True)
    requests = admin.cluster.state().requests
    assert admin.cluster.state().requests == requests
    faults.refuse(monkeypatch, RequestCode.GET_ALL_DELAY_OFFSET)
    assert delayed(admin) == (None, False)


def test_a_group_is_summed_over_its_brokers(
    rocketmq_cluster: EmbeddedCluster, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedCluster(broker_name="broker-b") as second, Admin(second.namesrv_addr) as other:
        for each, cluster, name in (
            (admin, rocketmq_cluster, "broker-a"),
            (other, second, "broker-b"),
        ):
            each.topics.create("orders", 1)
            with Producer("sweep-test", namesrv_addr=cluster.namesrv_addr) as producer:
                for _ in range(4):
                    producer.send(Message("orders", "x"))
            each._client.update_consumer_offset("billing", MessageQueue("orders", name, 0), 1)
        info = admin._wire.cluster_info()
        info.broker_addr_table |= other._wire.cluster_info().broker_addr_table
        monkeypatch.setattr(admin._wire, "cluster_info", lambda: info)
        state = admin.cluster.state()
    billing = state.groups["billing"]
    assert [(q.broker_name, q.lag) for q in billing.queues] == [("broker-a", 3), ("broker-b", 3)]
    assert (billing.lag, billing.errors, billing.delayed) == (6, (), 0)
    assert [broker.broker_name for broker in state.brokers] == ["broker-a", "broker-b"]
    assert len(state.topics["orders"].queues) == 2


def test_nobody_to_ask_is_said_and_not_an_empty_cluster() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Admin(f"127.0.0.1:{port}") as nobody:
        state = nobody.cluster.state()
    assert "no name server answered" in str(state.error)
    assert not state.groups


def test_a_group_nobody_knows_is_an_error_by_name_and_absent_from_a_sweep(admin: Admin) -> None:
    assert admin.cluster.state(["bililng"]).groups == {}
    with pytest.raises(ConfigurationError, match="bililng"):
        admin.groups.state("bililng")
    with pytest.raises(RouteNotFoundError, match="nowhere"):
        admin.topics.state("nowhere")
