"""Client instances seen from outside: names, ids, requests a broker passes on to them."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rocketstream import (
    ClientConfig,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    Message,
    MessageExt,
    MessageQueue,
)
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.errors import BrokerError, ConsumerNotOnlineError, RouteNotFoundError
from rocketstream.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
)
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerConnectionListRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    Header,
    ResetOffsetRequestHeader,
)
from tests.kits.cluster import Cluster
from tests.kits.faces import Producer, PullConsumer, PushConsumer
from tests.kits.listeners import LATER, SUCCESS, Gate, Seen, consumer_of, numbered, send_all
from tests.plugins.clusters import Names
from tests.plugins.waiting import wait_until

pytestmark = pytest.mark.usefixtures("face")

ASK_MS = 20_000


def ask(cluster: Cluster, topic: str, code: int, header: Header) -> RemotingCommand:
    """Ask the broker of a topic."""
    with BlockingAdminClient(cluster.namesrv_addr) as client:
        (broker,) = client.route(topic).broker_datas
        return client.request(broker.broker_addrs[0], RemotingCommand.request(code, header), ASK_MS)


def running_info(
    cluster: Cluster, names: Names, client_id: str, *, jstack: bool = False
) -> ConsumerRunningInfo:
    header = GetConsumerRunningInfoRequestHeader(names.group, client_id, jstack)
    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    return ConsumerRunningInfo.decode(bytes(ask(cluster, names.topic, code, header).body))


def connection_of(cluster: Cluster, topic: str, group: str) -> ConsumerConnection | None:
    header = GetConsumerConnectionListRequestHeader(group)
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    try:
        return ConsumerConnection.decode(bytes(ask(cluster, topic, code, header).body))
    except ConsumerNotOnlineError:
        return None


# --- running info ---------------------------------------------------------------------------------


def test_an_operator_sees_what_a_consumer_does(cluster: Cluster, names: Names) -> None:
    """Covers C-133, C-540: settings, subscriptions, queues with offsets, rates, stacks."""
    cluster.create_topic(names.topic, 2)
    gate = Gate(lambda message: message.body == b"3")
    with consumer_of(
        cluster.namesrv_addr,
        names.group,
        names.topic,
        gate,
        persist_consumer_offset_interval_ms=100,
    ) as consumer:
        with Producer("senders", namesrv_addr=cluster.namesrv_addr) as producer:
            for message in numbered(names.topic, range(6)):
                queues = producer.fetch_publish_message_queues(names.topic)
                producer.send(message, message_queue=queues[0])
        gate.entered.wait(30)
        gate.seen.wait_consumed(5)

        def settled() -> ConsumerRunningInfo | None:
            info = running_info(cluster, names, consumer.client_id, jstack=True)
            mine = [i for mq, i in info.mq_table.items() if mq.topic == names.topic]
            return info if sum(i.cached_msg_count for i in mine) == 1 else None

        info = wait_until(settled, "what is left behind the message that hangs")
        gate.opened.set()
    assert info.properties["consumerGroup"] == names.group
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert cluster.namesrv_addr in info.properties["PROP_NAMESERVER_ADDR"]
    assert names.topic in {each.topic for each in info.subscription_set}
    (busy,) = [
        i for mq, i in info.mq_table.items() if mq.topic == names.topic and i.cached_msg_count
    ]
    assert (busy.commit_offset, busy.cached_msg_min_offset, busy.cached_msg_max_offset) == (3, 3, 3)
    assert info.status_table[names.topic].consume_ok_tps > 0
    assert info.jstack is not None
    assert "at __call__ (" in info.jstack  # the listener that hangs


# --- consuming on request -------------------------------------------------------------------------


def consume_directly(
    cluster: Cluster, names: Names, client_id: str, offset_msg_id: str
) -> ConsumeMessageDirectlyResult:
    header = ConsumeMessageDirectlyResultRequestHeader(names.group, client_id, offset_msg_id)
    code = RequestCode.CONSUME_MESSAGE_DIRECTLY
    return ConsumeMessageDirectlyResult.decode(bytes(ask(cluster, names.topic, code, header).body))


def test_an_operator_has_one_message_consumed_again(cluster: Cluster, names: Names) -> None:
    """Covers C-133, C-269: whatever was committed; the result comes back with its time."""
    cluster.create_topic(names.topic, 1)
    turns = iter([SUCCESS, LATER, SUCCESS])
    seen: list[bytes] = []
    consumed = threading.Event()

    def listener(messages: list[MessageExt]) -> Any:
        seen.extend(message.body for message in messages)
        consumed.set()
        return next(turns)

    with consumer_of(
        cluster.namesrv_addr, names.group, names.topic, listener,
        persist_consumer_offset_interval_ms=50,
    ) as consumer:  # fmt: skip
        with Producer("senders", namesrv_addr=cluster.namesrv_addr) as producer:
            sent = producer.send(Message(names.topic, b"again"))
        assert consumed.wait(30)
        wait_until(lambda: cluster.committed(names.group, names.topic, 1) == [1], "the commit")
        later = consume_directly(cluster, names, consumer.client_id, sent.offset_msg_id)
        good = consume_directly(cluster, names, consumer.client_id, sent.offset_msg_id)
        failed = consume_directly(cluster, names, consumer.client_id, sent.offset_msg_id)
    assert (later.consume_result, good.consume_result) == ("CR_LATER", "CR_SUCCESS")
    assert (failed.consume_result, failed.order) == ("CR_THROW_EXCEPTION", False)
    assert "StopIteration" in (failed.remark or "")
    assert seen == [b"again"] * 4
    assert cluster.committed(names.group, names.topic, 1) == [1]


def test_an_orderly_listener_answers_on_request(cluster: Cluster, names: Names) -> None:
    """Covers C-133, C-295."""
    cluster.create_topic(names.topic, 1)
    consumed = threading.Event()

    def listener(messages: list[MessageExt]) -> ConsumeOrderlyStatus:
        consumed.set()
        return ConsumeOrderlyStatus.SUCCESS

    consumer = consumer_of(
        cluster.namesrv_addr, names.group, names.topic, Seen(),
        persist_consumer_offset_interval_ms=50,
    )  # fmt: skip
    consumer.register_message_listener(listener, orderly=True)
    with consumer:
        with Producer("senders", namesrv_addr=cluster.namesrv_addr) as producer:
            sent = producer.send(Message(names.topic, b"x"))
        assert consumed.wait(30)
        result = consume_directly(cluster, names, consumer.client_id, sent.offset_msg_id)
    assert (result.consume_result, result.order) == ("CR_SUCCESS", True)


# --- offsets --------------------------------------------------------------------------------------


def test_a_reset_by_time_makes_members_consume_again_at_once(
    cluster: Cluster, names: Names
) -> None:
    """Covers C-531 to C-533, C-572: all of the queue, well before upstream's ten seconds."""
    cluster.create_topic(names.topic, 2)
    seen = Seen()
    with consumer_of(
        cluster.namesrv_addr,
        names.group,
        names.topic,
        seen,
        persist_consumer_offset_interval_ms=50,
    ):
        send_all(cluster.namesrv_addr, numbered(names.topic, range(40)))
        seen.wait_consumed(40)
        wait_until(
            lambda: cluster.committed(names.group, names.topic, 2) == cluster.ends(names.topic, 2),
            "the commits",
        )
        header = ResetOffsetRequestHeader(names.topic, names.group, 0, True)
        ask(cluster, names.topic, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        seen.wait_deliveries(80)
        wait_until(
            lambda: cluster.committed(names.group, names.topic, 2) == cluster.ends(names.topic, 2),
            "the commits",
        )
    assert sorted(map(int, seen.delivered)) == sorted([*range(40), *range(40)])


def test_a_reset_of_an_orderly_group_keeps_the_order(cluster: Cluster, names: Names) -> None:
    """Covers C-532, C-533: the listener that runs is not joined by another of its queue."""
    cluster.create_topic(names.topic, 1)
    entered, leave = threading.Event(), threading.Event()
    changed = threading.Condition()
    seen: list[int] = []
    running: list[int] = []
    most = 0

    def listener(messages: list[MessageExt]) -> ConsumeOrderlyStatus:
        nonlocal most
        running.append(1)
        most = max(most, len(running))
        (number,) = (int(message.body) for message in messages)
        with changed:
            seen.append(number)
            changed.notify_all()
        if number == 5 and not leave.is_set():
            entered.set()
            leave.wait(30)
        running.pop()
        return ConsumeOrderlyStatus.SUCCESS

    with Producer("senders", namesrv_addr=cluster.namesrv_addr) as producer:
        for message in numbered(names.topic, range(20)):
            producer.send(message)
    consumer = consumer_of(
        cluster.namesrv_addr, names.group, names.topic, Seen(),
        persist_consumer_offset_interval_ms=50,
    )  # fmt: skip
    consumer.register_message_listener(listener, orderly=True)
    with consumer:
        assert entered.wait(60)
        wait_until(lambda: cluster.committed(names.group, names.topic, 1) == [5], "the commit")
        header = ResetOffsetRequestHeader(names.topic, names.group, 0, True)
        ask(cluster, names.topic, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        wait_until(lambda: cluster.committed(names.group, names.topic, 1) == [0], "the reset")
        leave.set()
        with changed:
            assert changed.wait_for(lambda: len(seen) > 20 and seen[-1] == 19, 60)
    # A 5.x broker tells of the reset with the answer to the next pull; until then it goes on.
    assert seen[-20:] == [*range(20)]
    assert seen[:-20] == [*range(len(seen) - 20)]
    assert most == 1


def test_an_operator_asks_members_for_their_offsets(cluster: Cluster, names: Names) -> None:
    """Covers C-133: 223 asks every member with 221."""
    cluster.create_topic(names.topic, 2)
    seen = Seen()
    with consumer_of(cluster.namesrv_addr, names.group, names.topic, seen) as consumer:
        send_all(cluster.namesrv_addr, numbered(names.topic, range(20)))
        seen.wait_consumed(20)
        header = GetConsumerStatusRequestHeader(names.topic, names.group)
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS

        def told() -> bool:
            body = GetConsumerStatusBody.decode(bytes(ask(cluster, names.topic, code, header).body))
            offsets = body.consumer_table.get(consumer.client_id, {})
            return sum(offsets.values()) == 20

        wait_until(told, "the offsets of the only member")


# --- ids and names --------------------------------------------------------------------------------


def test_the_id_of_a_stream_client_says_so(cluster: Cluster, names: Names) -> None:
    """Covers C-12, C-17, C-19: the broker lists it under this id, and serves it."""
    cluster.create_topic(names.topic, 1)
    seen = Seen()
    with consumer_of(
        cluster.namesrv_addr,
        names.group,
        names.topic,
        seen,
        enable_stream_request_type=True,
        unit_name="u",
    ) as consumer:
        send_all(cluster.namesrv_addr, numbered(names.topic, range(3)))
        seen.wait_consumed(3)
        found = connection_of(cluster, names.topic, names.group)
    assert found is not None
    assert [each.client_id for each in found.connection_set] == [consumer.client_id]
    assert consumer.client_id.endswith("@u@STREAM")


def test_a_namespace_stands_before_topics_and_groups(cluster: Cluster, names: Names) -> None:
    """Covers C-110, C-146 to C-148: both sides see their own names; others see all of it."""
    full = f"ns%{names.topic}"
    cluster.create_topic(full, 2)
    inside, outside = Seen(lambda m: LATER if m.reconsume_times == 0 else SUCCESS), Seen()
    with (
        consumer_of(
            cluster.namesrv_addr, names.group, names.topic, inside, namespace="ns"
        ) as member,
        consumer_of(cluster.namesrv_addr, names.group, full, outside),
    ):
        with Producer("p", namesrv_addr=cluster.namesrv_addr, namespace="ns") as producer:
            result = producer.send(Message(names.topic, b"x"))
        inside.wait_consumed(1)
        outside.wait_consumed(1)
        found = connection_of(cluster, full, f"ns%{names.group}")
        queues = {mq.topic for mq in member.assigned_queues() if "RETRY" not in mq.topic}
    assert result.message_queue.topic == names.topic
    assert {message.topic for message in inside.deliveries} == {names.topic}
    assert len(inside.deliveries) >= 2  # failed once: through %RETRY%ns%group and back
    assert {message.topic for message in outside.deliveries} == {full}
    assert found is not None
    assert set(found.subscription_table) == {full, f"%RETRY%ns%{names.group}"}
    assert queues == {names.topic}


def test_unit_mode_reaches_the_retry_topic(cluster: Cluster, names: Names) -> None:
    """Covers C-11: told in the heartbeat, kept in the flags of the topic the broker makes."""
    cluster.create_topic(names.topic, 1)
    retry = f"%RETRY%{names.group}"
    with (
        consumer_of(cluster.namesrv_addr, names.group, names.topic, Seen(), unit_mode=True),
        BlockingAdminClient(cluster.namesrv_addr) as client,
    ):

        def flags() -> list[int]:
            try:
                route = client.route(retry, refresh=True)
            except RouteNotFoundError:
                return []
            return [data.topic_sys_flag for data in route.queue_datas]

        assert wait_until(flags, "the route of the retry topic") == [2]


# --- instances ------------------------------------------------------------------------------------


def test_groups_of_one_instance_share_its_id(cluster: Cluster, names: Names) -> None:
    """Covers C-18, C-127, C-143: one connection and one heartbeat for all of them."""
    cluster.create_topic(names.topic, 2)
    config = ClientConfig(namesrv_addr=cluster.namesrv_addr, instance_name=names.topic)
    ones, twos = Seen(), Seen()
    address = cluster.namesrv_addr
    with (
        consumer_of(address, f"{names.group}a", names.topic, ones, config=config) as one,
        consumer_of(address, f"{names.group}b", names.topic, twos, config=config) as two,
        Producer("senders", config=config) as producer,
    ):
        assert one.client_id == two.client_id == producer.client_id
        for message in numbered(names.topic, range(10)):
            producer.send(message)
        ones.wait_consumed(10)
        twos.wait_consumed(10)
        one.shutdown()
        producer.send(Message(names.topic, b"10"))
        twos.wait_consumed(11)
        wait_until(
            lambda: connection_of(cluster, names.topic, f"{names.group}a") is None, "the goodbye"
        )
        assert connection_of(cluster, names.topic, f"{names.group}b") is not None


def test_who_leaves_at_once_is_no_member_any_more(cluster: Cluster, names: Names) -> None:
    """Covers C-119: a client that ends while its first heartbeat is still being worked on.

    As a ghost it would keep its share of the queues from the others for two minutes.
    """
    cluster.create_topic(names.topic, 1)
    groups = [f"{names.group}-{number}" for number in range(20)]
    for group in groups:
        with PullConsumer(group, namesrv_addr=cluster.namesrv_addr) as consumer:
            (mq,) = consumer.fetch_subscribe_message_queues(names.topic)
            consumer.pull(mq, None, 0, 1)
    assert [group for group in groups if connection_of(cluster, names.topic, group)] == []


def test_a_broker_that_refuses_a_condition_refuses_the_start(
    cluster: Cluster, names: Names
) -> None:
    """Covers C-118, C-595."""
    cluster.create_topic(names.topic, 1)
    consumer = PushConsumer(names.group, namesrv_addr=cluster.namesrv_addr, listener=Seen())
    try:
        consumer.subscribe(names.topic, "a > > 5", expression_type="SQL92")
    except ValueError:
        return  # refused before any broker was asked
    with pytest.raises(BrokerError):
        consumer.start()
    assert consumer.state.name == "CREATE_JUST"


# --- the address server ---------------------------------------------------------------------------


@contextmanager
def address_server(answer: str) -> Iterator[str]:
    """Serve name server addresses by HTTP; gives ``host:port``."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_name_servers_come_from_an_address_server(
    cluster: Cluster, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-1, C-130: for producers and consumers."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    cluster.create_topic(names.topic, 1)
    seen = Seen()
    with address_server(f"{cluster.namesrv_addr}\n") as domain:
        config = ClientConfig(namesrv_domain=domain)
        consumer = PushConsumer(
            names.group,
            config=config,
            listener=seen,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        )
        consumer.subscribe(names.topic)
        with consumer, Producer("p", config=config) as producer:
            producer.send(Message(names.topic, b"x"))
            seen.wait_consumed(1)
    assert seen.consumed[0].message_queue == MessageQueue(
        names.topic, seen.consumed[0].broker_name, 0
    )


def test_an_http_endpoint_is_an_address(cluster: Cluster, names: Names) -> None:
    """Covers C-1."""
    cluster.create_topic(names.topic, 1)
    with Producer("p", namesrv_addr=f"http://{cluster.namesrv_addr}") as producer:
        assert producer.send(Message(names.topic, b"x")).queue_offset == 0
