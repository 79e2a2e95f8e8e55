"""One client instance against a broker that does what the test says (section 2.5 to 2.7)."""

from __future__ import annotations

import asyncio
import gc
import http.server
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from rocketstream import ClientConfig, Message, Producer, PushConsumer, limits
from rocketstream.client.instance import engine as engines
from rocketstream.client.instance.api import MQClientAPI, fetch_name_servers, vip_address
from rocketstream.client.instance.groups import Groups
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.client.instance.outage_log import OutageLog
from rocketstream.errors import (
    ClientStateError,
    ConnectError,
    RequestTimeoutError,
    TopicNotExistError,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import ConsumerData, SubscriptionData
from rocketstream.protocol.codes import VERSION, RequestCode, version_ordinal, version_text
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    GetMaxOffsetResponseHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetResponseHeader,
)
from rocketstream.testing import ManualClock
from rocketstream.transport.connection import DEFAULT_LIMITS
from tests.kits.client.fake_broker import GROUP, TOPIC, FakeBroker, found, ok
from tests.kits.listeners import Seen
from tests.plugins.waiting import wait_until

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
BEAT = RequestCode.HEART_BEAT
GOODBYE = RequestCode.UNREGISTER_CLIENT


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        running.offsets[0] = 0
        yield running


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Return a loopback port that refuses connections: bound, never listening."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def push(broker: FakeBroker, group: str = GROUP, **settings: Any) -> PushConsumer:
    made = PushConsumer(group, namesrv_addr=broker.address, listener=Seen(), **settings)
    made.subscribe(TOPIC)
    return made


# --- sharing --------------------------------------------------------------------------------------


def test_clients_of_one_id_share_connections_and_the_settings_of_the_first(
    broker: FakeBroker,
) -> None:
    """Covers C-18, C-127, C-132, C-598: the last one to leave closes the instance."""
    config = ClientConfig(namesrv_addr=broker.address, instance_name="shared", api_timeout_ms=77)
    with Producer("one", config=config) as one:
        two = Producer("two", namesrv_addr="127.0.0.1:1", instance_name="shared")
        two.start()
        two.send(Message(TOPIC, b"x"))  # by the first one's name server
        assert one.client_id == two.client_id
        assert len(engines._engines) == 1
        (shared,) = engines._engines.values()
        assert shared.instance.config.api_timeout_ms == 77
        two.shutdown()
        assert list(engines._engines.values()) == [shared]
        one.send(Message(TOPIC, b"y"))
    assert not engines._engines


def test_namespace_and_unit_mode_are_each_clients_own(broker: FakeBroker) -> None:
    """Covers C-11, C-18: clients that differ in them have the id in common, not the instance."""
    config = ClientConfig(namesrv_addr=broker.address, instance_name="shared")
    with (
        Producer("p", config=config) as one,
        Producer("p", config=config, namespace="ns") as two,
        Producer("p", config=config, unit_mode=True) as three,
    ):
        assert one.client_id == two.client_id == three.client_id
        assert len(engines._engines) == 3


def test_clients_with_default_names_have_an_instance_each(broker: FakeBroker) -> None:
    """Covers C-115, C-597: one consumer group may live twice in a process."""
    with push(broker) as one, push(broker) as two:
        assert one.client_id != two.client_id
        assert len(engines._engines) == 2


def test_a_group_is_unique_within_an_instance(broker: FakeBroker) -> None:
    """Covers C-116, C-446: what cannot start leaves nothing and may try again under another id."""
    with push(broker, instance_name="i") as one:
        two = push(broker, instance_name="i")
        with pytest.raises(ClientStateError, match=f"a consumer of group '{GROUP}' already"):
            two.start()
        one.shutdown()
        two.start()
        two.shutdown()


# --- life of an instance --------------------------------------------------------------------------


def make_instance(broker: FakeBroker, **settings: Any) -> MQClientInstance:
    config = ClientConfig(namesrv_addr=broker.address, instance_name="own", **settings)
    return MQClientInstance(config, config.client_id(), ManualClock())


def test_an_instance_starts_once_and_never_again(broker: FakeBroker) -> None:
    """Covers C-128: started however often, it runs one set of timers; once closed, never."""

    async def run() -> None:
        instance = make_instance(broker)
        await instance.start()
        tasks = list(instance.background.timers)
        await instance.start()
        assert instance.background.timers == tasks
        assert {task.get_name() for task in tasks} == {
            "rocketstream-routes",
            "rocketstream-heartbeat",
            "rocketstream-offsets",
            "rocketstream-stats",
            "rocketstream-rebalance",
        }
        await instance.close()
        assert all(task.done() for task in tasks)
        with pytest.raises(ClientStateError, match=r"client instance .*@own was shut down"):
            await instance.start()

    broker.thread.run(run())


def test_a_failed_start_is_remembered(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers C-128: and nothing of it is left."""

    async def run() -> None:
        instance = make_instance(broker)

        async def fail() -> None:
            raise OSError("no threads left")

        monkeypatch.setattr(instance, "fetch_name_servers", fail)
        with pytest.raises(OSError, match="no threads left"):
            await instance.start()
        with pytest.raises(ClientStateError, match="was shut down or did not start"):
            await instance.start()
        assert not instance.background.timers
        await instance.close()

    broker.thread.run(run())


def test_routes_offsets_and_heartbeats_are_renewed_by_timers(broker: FakeBroker) -> None:
    """Covers C-7 to C-9, C-129: each by its own interval."""
    config: dict[str, Any] = {
        "poll_name_server_interval_ms": 20,
        "heartbeat_broker_interval_ms": 20,
        "persist_consumer_offset_interval_ms": 20,
    }
    with push(broker, **config):
        broker.reply(broker.wait_pull(0), found([0]))
        for code in (ROUTE, BEAT):
            broker.wait_for(code, 8)
        broker.wait_for(RequestCode.UPDATE_CONSUMER_OFFSET, 1)


def test_one_slow_timer_does_not_delay_the_others(broker: FakeBroker) -> None:
    """Covers C-129, where upstream has one thread for all."""
    routed = threading.Event()

    def hold(command: RemotingCommand) -> RemotingCommand | None:
        # The periodic look-ups hang; the ones of the start were answered.
        return None if routed.is_set() else broker._route(command)

    broker.on[ROUTE] = hold
    config: dict[str, Any] = {
        "poll_name_server_interval_ms": 10,
        "heartbeat_broker_interval_ms": 10,
    }
    with push(broker, **config):
        routed.set()
        asked = len(broker.asked(BEAT))
        broker.wait_for(BEAT, asked + 5)


class Group:
    """A consumer whose rebalance and commits the test decides."""

    consume_type = "CONSUME_PASSIVELY"

    def __init__(self, group: str, work: Callable[[], Awaitable[bool]]) -> None:
        self.group = group
        self._work = work

    def subscribed_topics(self) -> list[str]:
        return []

    def heartbeat_data(self) -> ConsumerData:
        return ConsumerData(self.group)

    async def rebalance(self) -> bool:
        return await self._work()

    async def persist_offsets(self) -> None:
        await self._work()

    def connection_lost(self, address: str) -> None:
        pass

    def connection_made(self, address: str) -> None:
        pass


@pytest.mark.parametrize("name", ["rebalance", "persist_offsets"])
def test_a_group_that_waits_or_fails_holds_up_no_other(name: str) -> None:
    """Covers C-129, C-149: each in a try of its own, and all at once."""
    done: list[str] = []

    async def run() -> None:
        may_go = asyncio.Event()

        async def wait() -> bool:
            await may_go.wait()
            done.append("waiting")
            return True

        async def fail() -> bool:
            raise ValueError("a store of the user's own")

        async def work() -> bool:
            done.append("working")
            may_go.set()
            return True

        groups = Groups()
        for group, doing in (("a", wait), ("b", fail), ("c", work)):
            groups.add_consumer(Group(group, doing))  # type: ignore[arg-type]
        assert await getattr(groups, name)() in (False, None)

    asyncio.run(run())
    assert done == ["working", "waiting"]


# --- the address server ---------------------------------------------------------------------------


class AddressServer:
    """An HTTP server that tells name server addresses."""

    def __init__(self) -> None:
        self.answer = b""
        self.status = 200
        self.paths: list[str] = []
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.paths.append(self.path)
                self.send_response(owner.status)
                self.end_headers()
                self.wfile.write(owner.answer)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.domain = f"127.0.0.1:{self.server.server_address[1]}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))

    def __enter__(self) -> AddressServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.fixture
def address_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[AddressServer]:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with AddressServer() as running:
        yield running


def test_name_servers_are_looked_up_when_none_is_given(
    broker: FakeBroker, address_server: AddressServer
) -> None:
    """Covers C-1, C-12, C-128, C-130: the first line of the answer is the list."""
    address_server.answer = f"{broker.address}\r\nsomething else\n".encode()
    with Producer("p", namesrv_domain=address_server.domain, unit_name="u1") as producer:
        producer.send(Message(TOPIC, b"x"))
    assert address_server.paths == ["/rocketmq/nsaddr-u1?nofix=1"]


def test_a_list_that_changes_is_taken_over(
    broker: FakeBroker, address_server: AddressServer
) -> None:
    """Covers C-130, C-139: asked again every two minutes; the same list changes nothing."""
    address_server.answer = b"10.0.0.1:9876"

    async def run() -> None:
        config = ClientConfig(namesrv_domain=address_server.domain)
        instance = MQClientInstance(config, "id", ManualClock())
        await instance.start()
        assert list(instance.api.name_servers.addresses) == ["10.0.0.1:9876"]
        assert "rocketstream-address-server" in {
            task.get_name() for task in instance.background.timers
        }
        address_server.answer = f"{broker.address};10.0.0.1:9876".encode()
        await instance.fetch_name_servers()
        assert set(instance.api.name_servers.addresses) == {broker.address, "10.0.0.1:9876"}
        assert not instance.api.set_name_servers(["10.0.0.1:9876", broker.address])
        address_server.status = 503
        await instance.fetch_name_servers()
        assert len(instance.api.name_servers.addresses) == 2
        await instance.close()

    broker.thread.run(run())


def test_until_the_address_server_answers_sends_say_so(address_server: AddressServer) -> None:
    """Covers C-130: a start without it goes on, and asks again."""
    address_server.status = 404
    with (
        Producer("p", namesrv_domain=address_server.domain) as producer,
        pytest.raises(ConnectError, match="address server has not named any name server yet"),
    ):
        producer.send(Message(TOPIC, b"x"), timeout_ms=500)


@pytest.mark.parametrize("answer", [b"", b"\n\n", b"not an address", b"\xff\xfe"])
def test_an_answer_without_addresses_is_none(
    address_server: AddressServer, answer: bytes, closed_port: int
) -> None:
    """Covers C-130."""
    address_server.answer = answer
    assert fetch_name_servers(f"http://{address_server.domain}/x") == []
    assert fetch_name_servers(f"http://127.0.0.1:{closed_port}/x", 200) == []


# --- heartbeats -----------------------------------------------------------------------------------


def test_a_heartbeat_tells_unit_mode_and_all_groups(broker: FakeBroker) -> None:
    """Covers C-11, C-143: one beat for every consumer and producer of the instance."""
    config = ClientConfig(namesrv_addr=broker.address, instance_name="i", unit_mode=True)
    consumer = PushConsumer(GROUP, config=config, listener=Seen())
    consumer.subscribe(TOPIC)
    with consumer, Producer("p", config=config):
        beat = wait_until(
            lambda: next(
                (
                    each
                    for each in broker.heartbeats
                    if each.consumer_data_set and len(each.producer_data_set) == 2
                ),
                None,
            ),
            "a beat with both",
        )
    assert {each.group_name for each in beat.producer_data_set} == {"p", "CLIENT_INNER_PRODUCER"}
    (data,) = beat.consumer_data_set
    assert (data.group_name, data.unit_mode) == (GROUP, True)


def test_the_version_of_a_heartbeats_answer_is_kept(broker: FakeBroker) -> None:
    """Covers C-140, C-143."""

    def versioned(command: RemotingCommand) -> RemotingCommand:
        response = ok()
        response.version = 435
        return response

    broker.on[BEAT] = versioned

    async def run() -> None:
        instance = make_instance(broker)
        instance.groups.add_producer("p", [TOPIC])
        await instance.route_updates.refresh()
        assert instance.heartbeats.broker_version(broker.address) == 0
        await instance.heartbeats.send()
        assert instance.heartbeats.broker_version(broker.address) == 435
        await instance.close()

    broker.thread.run(run())


def test_an_instance_without_groups_sends_no_heartbeat(broker: FakeBroker) -> None:
    """Covers C-143."""

    async def run() -> None:
        instance = make_instance(broker)
        await instance.route_updates.update(TOPIC)
        await instance.heartbeats.send()
        await instance.close()

    broker.thread.run(run())
    assert not broker.heartbeats


def test_a_failed_heartbeat_harms_nobody(broker: FakeBroker) -> None:
    """Covers C-143: it is logged, the other brokers hear of us all the same."""
    with FakeBroker(name="broker-b") as other:
        broker.others.append(other)
        broker.on[BEAT] = lambda _: RemotingCommand.response(1, "no")

        async def run() -> None:
            instance = make_instance(broker)
            instance.groups.add_producer("p", [TOPIC])
            await instance.route_updates.refresh()
            await instance.heartbeats.send()
            await instance.close()

        broker.thread.run(run())
        assert other.heartbeats


async def idle() -> bool:
    """Have nothing to divide and nothing to commit."""
    return True


async def passed(instance: MQClientInstance, address: str) -> None:
    """Return when the broker has taken whatever was sent to it until now, and a turn later too."""
    for _ in range(2):
        await instance.api.max_offset(address, MessageQueue(TOPIC, "broker-a", 0))


async def greeted(
    broker: FakeBroker, timeout_ms: int = 60_000
) -> tuple[MQClientInstance, asyncio.Task[None]]:
    """Return an instance with consumer g, and its heartbeat that the broker has not answered."""
    broker.on[BEAT] = lambda _: None
    instance = make_instance(broker)
    instance.groups.add_consumer(Group(GROUP, idle))  # type: ignore[arg-type]
    instance.groups.add_producer("p", [TOPIC])
    await instance.route_updates.refresh()
    instance.api._timeout_ms = timeout_ms
    beat = asyncio.create_task(instance.heartbeats.send())
    await passed(instance, broker.address)
    assert len(broker.asked(BEAT)) == 1
    return instance, beat


@pytest.mark.parametrize("cancelled", [False, True])
def test_no_goodbye_overtakes_a_heartbeat(broker: FakeBroker, cancelled: bool) -> None:
    """Covers C-119, C-143: a broker may do the later first, and keep a member that has left.

    The queues of such a ghost are nobody's until the broker forgets it, after two minutes.
    """

    async def run() -> None:
        instance, beat = await greeted(broker)
        if cancelled:  # nobody waits for the answer, the broker works on it all the same
            beat.cancel()
        leaving = asyncio.create_task(instance.unregister_consumer(GROUP))
        await passed(instance, broker.address)
        assert beat.cancelled() == cancelled
        assert not broker.asked(GOODBYE)
        (asked,) = broker.asked(BEAT)
        asked.connection.reply(asked.command, ok())
        await leaving
        assert [each.ext["consumerGroup"] for each in broker.asked(GOODBYE)] == [GROUP]
        await instance.close()

    broker.thread.run(run())


def test_a_heartbeat_without_answer_holds_a_goodbye_up_until_its_timeout(
    broker: FakeBroker,
) -> None:
    """Covers C-119: a broker that answers nothing must not keep a client from ending."""

    async def run() -> None:
        instance, _ = await greeted(broker, timeout_ms=50)
        await instance.unregister_consumer(GROUP)
        await passed(instance, broker.address)
        assert broker.asked(GOODBYE)
        await instance.close()

    broker.thread.run(run())


def test_a_heartbeat_nobody_waits_for_fails_quietly(broker: FakeBroker) -> None:
    """Covers C-143: it was cancelled, and the instance closed before there was an answer."""
    errors: list[dict[str, Any]] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, error: errors.append(error))
        instance, beat = await greeted(broker)
        beat.cancel()
        await asyncio.wait([beat])
        await instance.close()

    broker.thread.run(run())
    gc.collect()
    assert not errors


def test_a_heartbeat_that_waited_for_its_connection_names_nobody_who_left(
    broker: FakeBroker,
) -> None:
    """Covers C-119, C-143: nothing was sent yet, so there is no goodbye to take it back."""

    async def run() -> None:
        instance = make_instance(broker)
        instance.groups.add_consumer(Group(GROUP, idle))  # type: ignore[arg-type]
        instance.groups.add_producer("p", [TOPIC])
        await instance.route_updates.refresh()
        (await instance.remoting.connection(broker.address)).close("to be made again")
        beat = asyncio.create_task(instance.heartbeats.send())
        for _ in range(2):
            await asyncio.sleep(0)
        assert broker.address in instance.remoting._connecting
        await instance.unregister_consumer(GROUP)
        await beat
        await instance.close()

    broker.thread.run(run())
    assert broker.heartbeats
    assert not any(each.consumer_data_set for each in broker.heartbeats)
    assert not broker.asked(GOODBYE)


# --- routes ---------------------------------------------------------------------------------------


def test_a_missing_topic_is_no_error_of_the_updater(broker: FakeBroker) -> None:
    """Covers C-134: code 17 means no route; asking twice at once asks once."""

    async def run() -> None:
        instance = make_instance(broker)
        assert not await instance.route_updates.update("nowhere")
        assert await instance.route_updates.update(TOPIC)
        await instance.close()

    broker.thread.run(run())


def test_a_broker_that_left_every_route_is_left_alone(broker: FakeBroker) -> None:
    """Covers C-142: the next heartbeat goes to the others only; what is under way there goes on."""
    with FakeBroker(name="broker-b") as other:
        broker.others.append(other)

        async def run() -> None:
            instance = make_instance(broker)
            instance.groups.add_producer("p", [TOPIC])
            await instance.route_updates.refresh()
            await instance.heartbeats.send()
            assert instance.remoting.connected(other.address) is not None
            broker.others.clear()
            await instance.route_updates.refresh()
            await instance._beat()
            assert instance.remoting.connected(other.address) is not None
            assert instance.routes.masters.get("broker-b") is None
            await instance.close()

        broker.thread.run(run())
        assert (len(broker.heartbeats), len(other.heartbeats)) == (2, 1)


def test_a_name_server_is_kept_while_it_answers(broker: FakeBroker, closed_port: int) -> None:
    """Covers C-139: one that does not is passed over, and not tried first again."""
    dead = f"127.0.0.1:{closed_port}"

    async def run() -> None:
        instance = make_instance(broker)
        api = instance.api
        api.name_servers.replace([dead, broker.address])  # whatever the shuffle made of it
        for _ in range(3):
            await api.route(TOPIC)
        assert api.name_servers._preferred == 1
        api.set_name_servers([dead])
        with pytest.raises(ConnectError, match=rf"no name server answered for .* \({dead}: "):
            await api.route(TOPIC)
        await instance.close()

    broker.thread.run(run())
    assert len(broker.asked(ROUTE)) == 3


def test_a_name_server_that_knows_no_topic_yet_does_not_speak_for_the_others(
    broker: FakeBroker,
) -> None:
    """One that was just started has no topics: what another one knows is there."""
    fresh = FakeBroker(routes=False)

    async def run() -> None:
        instance = make_instance(broker)
        api = instance.api
        api.name_servers.replace([fresh.address, broker.address])  # whatever the shuffle made of it
        assert (await api.route(TOPIC)).queue_datas
        with pytest.raises(TopicNotExistError):
            await api.route("nobody knows it")
        await instance.close()

    with fresh:
        broker.thread.run(run())
    assert len(fresh.asked(ROUTE)) == 2


def test_look_ups_at_one_time_each_go_round_by_themselves(
    broker: FakeBroker, closed_port: int
) -> None:
    """Covers C-139: together they fail at the dead name server, and none of them asks it twice."""
    dead = f"127.0.0.1:{closed_port}"

    async def run() -> None:
        instance = make_instance(broker)
        api = instance.api
        api.name_servers.replace([dead, broker.address])  # whatever the shuffle made of it
        await asyncio.gather(*(api.route(topic) for topic in broker.topics))
        assert api.name_servers._preferred == 1
        await instance.close()

    broker.thread.run(run())


def test_look_ups_with_other_templates_are_others(broker: FakeBroker) -> None:
    """Two producers of one client, each with its own ``create_topic_key``."""
    broker.topics["template"] = 5

    async def run() -> None:
        instance = make_instance(broker)
        await asyncio.gather(
            *(
                instance.route_updates.update("new", (template, 8))
                for template in ("TBW102", "template")
            )
        )
        await instance.close()

    broker.thread.run(run())
    asked = [each.ext["topic"] for each in broker.asked(ROUTE)]
    assert sorted(asked) == ["TBW102", "new", "new", "template"]


# --- the VIP channel ------------------------------------------------------------------------------


class Recorder:
    """Stands for the connections: notes addresses, answers plausibly."""

    def __init__(self) -> None:
        self.asked: dict[int, str] = {}

    async def request(
        self, address: str, command: RemotingCommand, timeout_ms: float
    ) -> RemotingCommand:
        self.asked[command.code] = address
        headers = {
            RequestCode.QUERY_CONSUMER_OFFSET: QueryConsumerOffsetResponseHeader(1),
            RequestCode.GET_MAX_OFFSET: GetMaxOffsetResponseHeader(1),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: SearchOffsetResponseHeader(1),
        }
        bodies = {RequestCode.GET_CONSUMER_LIST_BY_GROUP: b'{"consumerIdList":[]}'}
        code = RequestCode(command.code)
        return RemotingCommand.response(0, None, headers.get(code), bodies.get(code, b""))


@pytest.mark.parametrize("enabled", [True, False])
def test_what_is_asked_of_brokers_but_goodbyes_uses_the_vip_channel(
    broker: FakeBroker, enabled: bool
) -> None:
    """Covers C-13: port - 2."""
    recorder = Recorder()
    config = ClientConfig(namesrv_addr="n:1", vip_channel_enabled=enabled)

    async def run() -> None:
        api = MQClientAPI(recorder, config, OutageLog(ManualClock(), "me", Groups()))  # type: ignore[arg-type]
        mq, address = MessageQueue("T", "b", 0), "b:10911"
        await api.unregister(address, "id", producer=None, consumer="g")
        await api.query_consumer_offset(address, "g", mq)
        await api.update_consumer_offset(address, "g", mq, 1)
        await api.max_offset(address, mq)
        await api.search_offset(address, mq, 1)
        await api.consumer_ids(address, "g")
        await api.check_client(address, "id", "g", SubscriptionData("T"))

    broker.thread.run(run())
    fast = "b:10909" if enabled else "b:10911"
    assert recorder.asked.pop(GOODBYE) == "b:10911"
    assert recorder.asked == dict.fromkeys(recorder.asked, fast)
    assert len(recorder.asked) == 6
    assert vip_address("[::1]:10911") == "[::1]:10909"


def test_heartbeats_do_not_use_the_vip_channel(broker: FakeBroker) -> None:
    """Covers C-13."""

    async def run() -> None:
        instance = make_instance(broker, vip_channel_enabled=True)
        instance.groups.add_producer("p", [TOPIC])
        await instance.route_updates.refresh()
        await instance.heartbeats.send()
        await instance.close()

    broker.thread.run(run())
    assert broker.heartbeats


# --- checking subscriptions -----------------------------------------------------------------------


def test_a_broker_that_cannot_be_asked_is_named_with_the_reason(broker: FakeBroker) -> None:
    """Covers C-118: any failure but a refusal says what it may mean."""
    broker.on[RequestCode.CHECK_CLIENT_CONFIG] = lambda _: None

    async def run() -> None:
        instance = make_instance(broker, api_timeout_ms=50)
        await instance.route_updates.update(TOPIC)
        subscription = SubscriptionData(TOPIC, "a > 1", expression_type="SQL92")
        with pytest.raises(RequestTimeoutError, match="maybe because you use SQL92 to filter"):
            await instance.heartbeats.check_subscription(GROUP, subscription)
        await instance.close()

    broker.thread.run(run())


# --- limits and names -----------------------------------------------------------------------------


def test_the_bounds_of_connections_are_upstreams() -> None:
    """Covers C-20."""
    assert DEFAULT_LIMITS.requests_in_flight_max == 65_535
    assert DEFAULT_LIMITS.idle_close_ms == 120_000
    assert limits.CONNECT_TIMEOUT_MS == ClientConfig().connect_timeout_ms == 3_000


def test_a_version_is_named_as_upstream_names_it() -> None:
    """Covers C-540: PROP_CLIENT_VERSION."""
    assert version_text(version_ordinal(4, 9, 8)) == "V4_9_8"
    assert version_text(version_ordinal(5, 3, 3)) == "V5_3_3"
    assert version_text(version_ordinal(4, 0, 0) - 1) == "V4_0_0_SNAPSHOT"
    assert version_text(100) == "100"
    assert version_text(VERSION) == "V4_9_8"
