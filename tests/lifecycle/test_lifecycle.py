"""The four states of a client, and what a start does in which order (section 2.1 to 2.3)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rocketstream
from rocketstream import (
    ConsumeConcurrentlyStatus,
    LocalFileOffsetStore,
    Message,
    MessageModel,
    Producer,
    PushConsumer,
    aio,
)
from rocketstream.client.instance import engine as engines
from rocketstream.client.instance.life_cycle import ServiceState
from rocketstream.errors import BrokerError, ClientStateError, ConnectError
from rocketstream.protocol.bodies import CheckClientRequestBody
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from tests.kits.client.fake_broker import (
    GROUP,
    TOPIC,
    FakeBroker,
    Handler,
    found,
    ok,
    refusal,
)
from tests.kits.listeners import Seen
from tests.plugins.waiting import wait_until

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
BEAT = RequestCode.HEART_BEAT
CHECK = RequestCode.CHECK_CLIENT_CONFIG
MEMBERS = RequestCode.GET_CONSUMER_LIST_BY_GROUP


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        running.offsets[0] = 0
        yield running


def push(broker: FakeBroker, **settings: Any) -> PushConsumer:
    settings.setdefault("listener", Seen())
    made = PushConsumer(GROUP, namesrv_addr=broker.address, **settings)
    made.subscribe(TOPIC)
    return made


def producer(broker: FakeBroker, **settings: Any) -> Producer:
    return Producer("p", namesrv_addr=broker.address, **settings)


KINDS = pytest.mark.parametrize(
    ("make", "name"), [(push, "PushConsumer"), (producer, "producer")], ids=["push", "producer"]
)


def state(client: Any) -> ServiceState:
    """Return a client's state now; the checker must not remember it."""
    now: ServiceState = client.state
    return now


# --- states ---------------------------------------------------------------------------------------


@KINDS
def test_a_client_runs_once(broker: FakeBroker, make: Any, name: str) -> None:
    """Covers C-106 to C-108: started twice it says so, shut down twice it does nothing."""
    client = make(broker)
    assert state(client) is ServiceState.CREATE_JUST
    client.shutdown()
    assert state(client) is ServiceState.CREATE_JUST
    client.start()
    assert state(client) is ServiceState.RUNNING
    with pytest.raises(ClientStateError, match=rf"this {name} was started before \(RUNNING"):
        client.start()
    client.shutdown()
    client.shutdown()
    assert state(client) is ServiceState.SHUTDOWN_ALREADY
    with pytest.raises(ClientStateError, match=r"was started before \(SHUTDOWN_ALREADY"):
        client.start()


def test_the_asyncio_clients_have_the_same_states(broker: FakeBroker) -> None:
    """Covers C-106 to C-109 for ``rocketstream.aio``."""

    async def listener(messages: list[Any]) -> ConsumeConcurrentlyStatus:
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    async def run() -> None:
        consumer = aio.PushConsumer(GROUP, namesrv_addr=broker.address, listener=listener)
        await consumer.subscribe(TOPIC)
        sender = aio.Producer("p", namesrv_addr=broker.address)
        for client in (consumer, sender):
            await client.shutdown()
            assert state(client) is ServiceState.CREATE_JUST
            await client.start()
            with pytest.raises(ClientStateError, match=r"was started before \(RUNNING"):
                await client.start()
            await client.shutdown()
            await client.shutdown()
            assert state(client) is ServiceState.SHUTDOWN_ALREADY
            with pytest.raises(ClientStateError, match="SHUTDOWN_ALREADY"):
                await client.start()
        with pytest.raises(ClientStateError, match=r"producer is not running \(SHUTDOWN"):
            await sender.send(Message(TOPIC, b"x"))

    asyncio.run(run())


def test_what_needs_a_running_client_says_its_state(broker: FakeBroker) -> None:
    """Covers C-109."""
    with pytest.raises(ClientStateError, match=r"this producer is not running \(CREATE_JUST"):
        producer(broker).send(Message(TOPIC, b"x"))
    consumer = push(broker)
    for call in (consumer.suspend, consumer.resume, consumer.assigned_queues):
        with pytest.raises(ClientStateError, match=r"PushConsumer is not running \(CREATE_JUST"):
            call()


# --- a start that fails ---------------------------------------------------------------------------


def test_while_it_starts_a_client_counts_as_failed(broker: FakeBroker) -> None:
    """Covers C-106: so that whatever happens in between is not taken for a running client."""
    states: list[ServiceState] = []
    made = push(broker)

    def route(command: RemotingCommand) -> RemotingCommand:
        states.append(made.state)
        return broker._route(command)

    broker.on[ROUTE] = route
    with made:
        assert states[0] is ServiceState.START_FAILED
        assert state(made) is ServiceState.RUNNING


def test_a_start_without_name_server_leaves_nothing_and_may_be_repeated(
    broker: FakeBroker,
) -> None:
    """Covers C-117, C-595, C-596: no thread, no socket, no registration; see the leak check."""
    name_server = broker.on[ROUTE]
    broker.on[ROUTE] = lambda _: None
    made = push(broker, api_timeout_ms=30)
    with pytest.raises(ConnectError, match=broker.address):
        made.start()
    assert state(made) is ServiceState.CREATE_JUST
    assert not engines._engines
    broker.on[ROUTE] = name_server
    with made:
        broker.wait_pull(0)


def test_a_producer_starts_without_name_server(broker: FakeBroker) -> None:
    """Covers C-596, C-448: what it lacks is said when it sends."""
    broker.on[ROUTE] = lambda _: None
    with (
        producer(broker, api_timeout_ms=30) as made,
        pytest.raises(ConnectError, match=broker.address),
    ):
        made.send(Message(TOPIC, b"x"))


# --- the order of a start -------------------------------------------------------------------------


def test_a_push_consumer_starts_in_upstreams_order(broker: FakeBroker) -> None:
    """Covers C-111, C-112, C-118: routes, the check at a broker, heartbeat, rebalance."""
    order: list[int] = []

    def noted(code: int) -> Any:
        inner: Handler = broker.on.get(code) or (lambda _: ok())

        def handle(command: RemotingCommand) -> RemotingCommand | None:
            order.append(command.code)
            return inner(command)

        return handle

    for code in (ROUTE, BEAT, CHECK, MEMBERS):
        broker.on[code] = noted(code)
    made = PushConsumer(GROUP, namesrv_addr=broker.address, listener=Seen())
    made.subscribe(TOPIC, "a > 1", expression_type="SQL92")
    with made:
        broker.wait_for(MEMBERS)
        (check,) = broker.asked(CHECK)
    assert order[:3] == [ROUTE, CHECK, BEAT]
    assert order.index(MEMBERS) > order.index(BEAT)
    body = CheckClientRequestBody.decode(check.command.body)
    assert (body.client_id, body.group) == (made.client_id, GROUP)
    subscription = body.subscription_data
    assert (subscription.topic, subscription.sub_string) == (TOPIC, "a > 1")
    assert subscription.expression_type == "SQL92"


def test_a_broker_that_refuses_a_subscription_fails_the_start(broker: FakeBroker) -> None:
    """Covers C-118, C-595: with the broker's code; nothing is left."""
    broker.on[CHECK] = refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "no such condition")
    made = PushConsumer(GROUP, namesrv_addr=broker.address, listener=Seen())
    made.subscribe(TOPIC, "a > 1", expression_type="SQL92")
    with pytest.raises(BrokerError, match="no such condition") as failure:
        made.start()
    assert failure.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert state(made) is ServiceState.CREATE_JUST
    assert not engines._engines
    assert not broker.heartbeats
    broker.on[CHECK] = lambda _: ok()
    with made:
        assert state(made) is ServiceState.RUNNING


def test_tags_are_not_checked_at_a_broker(broker: FakeBroker) -> None:
    """Covers C-118."""
    with push(broker):
        broker.wait_pull(0)
    assert not broker.asked(CHECK)


# --- namespaces -----------------------------------------------------------------------------------


def test_groups_and_topics_have_the_namespace_at_the_servers(broker: FakeBroker) -> None:
    """Covers C-110, C-148: heartbeats, look-ups and goodbyes."""
    broker.topics.update({f"ns%{TOPIC}": 1, f"%RETRY%ns%{GROUP}": 1})
    with push(broker, namespace="ns") as made:
        assert made.group == GROUP
        beat = broker.heartbeats[0]
    (data,) = beat.consumer_data_set
    assert data.group_name == f"ns%{GROUP}"
    assert {each.topic for each in data.subscription_data_set} == {
        f"ns%{TOPIC}",
        f"%RETRY%ns%{GROUP}",
    }
    (goodbye,) = broker.asked(RequestCode.UNREGISTER_CLIENT)
    assert goodbye.ext["consumerGroup"] == f"ns%{GROUP}"
    asked = {each.ext["topic"] for each in broker.asked(ROUTE)}
    assert asked == {f"ns%{TOPIC}", f"%RETRY%ns%{GROUP}"}


def test_a_producer_sends_to_the_topic_of_its_namespace(broker: FakeBroker) -> None:
    """Covers C-110, C-148: the result names the user's topic."""
    broker.topics[f"ns%{TOPIC}"] = 1
    message = Message(TOPIC, b"x")
    with producer(broker, namespace="ns") as made:
        result = made.send(message)
        beat = wait_until(lambda: broker.heartbeats, "a heartbeat")[0]
    assert result.message_queue.topic == message.topic == TOPIC
    (sent,) = broker.asked(RequestCode.SEND_MESSAGE_V2)
    assert (sent.ext["b"], sent.ext["a"]) == (f"ns%{TOPIC}", "ns%p")
    assert beat.producer_data_set[0].group_name == "ns%p"


# --- broadcasting ---------------------------------------------------------------------------------


def test_broadcasting_consumers_with_default_names_share_an_instance(
    broker: FakeBroker, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-114, C-115: the path of their offsets must not change with every start."""
    monkeypatch.setenv("ROCKETMQ_LOCAL_OFFSET_STORE_DIR", str(tmp_path))
    broadcast: dict[str, Any] = {"message_model": MessageModel.BROADCASTING, "subscription": {}}
    one = PushConsumer("one", namesrv_addr=broker.address, listener=Seen(), **broadcast)
    two = PushConsumer("two", namesrv_addr=broker.address, listener=Seen(), **broadcast)
    with one, two:
        assert one.client_id == two.client_id
        assert one.client_id.endswith("@DEFAULT")
        assert len(engines._engines) == 1


# --- every way a start can fail -------------------------------------------------------------------


class Unreadable(LocalFileOffsetStore):
    """A store whose file cannot be read, until it can."""

    broken = True

    def load(self) -> None:
        if self.broken:
            raise OSError("no such disk")


def _consumer(kind: str, broker: FakeBroker, **settings: Any) -> Any:
    """Return a consumer of either face that has a topic."""
    face, _, name = kind.partition(".")
    if name == "PushConsumer":
        settings["listener"] = _async_listener if face == "aio" else Seen()
    return getattr(aio if face == "aio" else rocketstream, name)(
        GROUP, namesrv_addr=broker.address, api_timeout_ms=50, **settings
    )


async def _async_listener(messages: list[Any]) -> None:
    """Consume nothing."""


async def _each(kind: str, client: Any, name: str, *arguments: Any) -> None:
    """Call a method of either face."""
    if kind.startswith("aio"):
        result = getattr(client, name)(*arguments)
        if inspect.isawaitable(result):
            await result
    else:
        await asyncio.to_thread(getattr(client, name), *arguments)


CONSUMERS = [
    f"{face}.{name}"
    for face in ("sync", "aio")
    for name in ("PushConsumer", "PullConsumer", "LitePullConsumer")
]


@pytest.mark.parametrize("kind", CONSUMERS)
def test_a_store_that_cannot_be_loaded_fails_the_start_and_leaves_nothing(
    broker: FakeBroker, kind: str, tmp_path: Path
) -> None:
    """Covers C-111 (step 9), C-116, C-125, C-595: the start may be tried again."""
    store = Unreadable("client", GROUP, directory=tmp_path)

    async def run() -> None:
        made = _consumer(kind, broker, offset_store=store)
        if not kind.endswith(".PullConsumer"):
            await _each(kind, made, "subscribe", TOPIC)
        with pytest.raises(OSError, match="no such disk"):
            await _each(kind, made, "start")
        assert state(made) is ServiceState.CREATE_JUST
        assert not engines._engines
        Unreadable.broken = False
        await _each(kind, made, "start")
        assert state(made) is ServiceState.RUNNING
        await _each(kind, made, "shutdown")
        assert not engines._engines

    try:
        asyncio.run(run())
    finally:
        Unreadable.broken = True


@pytest.mark.parametrize("kind", CONSUMERS)
def test_a_group_that_exists_fails_the_start_and_leaves_the_other_alone(
    broker: FakeBroker, kind: str
) -> None:
    """Covers C-116, C-125: the first one's registration stays."""

    async def run() -> None:
        one, two = (_consumer(kind, broker, instance_name="i") for _ in range(2))
        await _each(kind, one, "start")
        with pytest.raises(ClientStateError, match="already; give this one another group"):
            await _each(kind, two, "start")
        assert (state(one), state(two)) == (ServiceState.RUNNING, ServiceState.CREATE_JUST)
        (engine,) = engines._engines.values()
        assert engine.users == 1
        assert engine.instance.groups.consumers.get(GROUP) is not None
        await _each(kind, one, "shutdown")
        await _each(kind, two, "start")
        await _each(kind, two, "shutdown")
        assert not engines._engines

    asyncio.run(run())


# --- ends that meet a start, or another end (asyncio) ---------------------------------------------


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "cancelled"])
@pytest.mark.parametrize("kind", ["Producer", "PushConsumer", "LitePullConsumer", "PullConsumer"])
def test_an_asyncio_client_shut_down_while_it_starts_ends(
    broker: FakeBroker, kind: str, waits: bool
) -> None:
    """It ran on, though shutdown() had returned; also where whoever asked waits no more."""

    async def main() -> None:
        more: dict[str, Any] = {}
        if kind in ("PushConsumer", "LitePullConsumer"):
            more["subscription"] = {TOPIC: "*"}
        if kind == "PushConsumer":
            more["listener"] = _async_listener
        client: Any = getattr(aio, kind)(GROUP, namesrv_addr=broker.address, **more)
        starting = asyncio.create_task(client.start())
        await asyncio.sleep(0)
        ending = asyncio.create_task(client.shutdown())
        await asyncio.sleep(0)
        if waits:
            await ending
        else:
            ending.cancel()
        await starting
        assert client.state is ServiceState.SHUTDOWN_ALREADY
        assert not engines._engines
        await asyncio.gather(ending, return_exceptions=True)
        assert ending.cancelled() is not waits

    asyncio.run(main())


def test_a_failed_start_is_not_tried_again_while_it_cleans_up(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who had asked for the end of the first waited for ever: the second start hid it."""
    leave, cleaning, go_on = engines.Engine.leave_here, asyncio.Event(), asyncio.Event()

    async def leave_late(engine: engines.Engine) -> None:
        cleaning.set()
        await go_on.wait()
        await leave(engine)

    async def fail(_: engines.Engine) -> None:
        raise LookupError("no")

    async def main() -> None:
        client: Any = aio.Producer(GROUP, namesrv_addr=broker.address)
        make, client._make = client._make, fail
        first = asyncio.create_task(client.start())
        await cleaning.wait()
        ending = asyncio.create_task(client.shutdown())
        await asyncio.sleep(0)
        client._make = make
        with pytest.raises(ClientStateError, match="was started before"):
            await client.start()
        go_on.set()
        with pytest.raises(LookupError):
            await first
        await ending
        await client.start()
        await client.shutdown()
        assert not engines._engines

    monkeypatch.setattr(engines.Engine, "leave_here", leave_late)
    asyncio.run(main())


def test_a_second_end_waits_for_the_first_unless_that_waits_for_its_caller(
    broker: FakeBroker,
) -> None:
    """Covers C-120: a listener that asks for it again goes on, and counts."""

    async def main() -> None:
        entered, asked = asyncio.Event(), asyncio.Event()
        done: list[str] = []

        async def listener(_: list[Any]) -> ConsumeConcurrentlyStatus:
            entered.set()
            await asked.wait()
            await asyncio.create_task(consumer.shutdown())
            done.append("listener")
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        async def end(name: str) -> None:
            await consumer.shutdown()
            done.append(name)

        consumer = aio.PushConsumer(
            GROUP, namesrv_addr=broker.address, listener=listener, subscription={TOPIC: "*"}
        )
        await consumer.start()
        broker.reply(await asyncio.to_thread(broker.wait_pull, 0), found([0]))
        await entered.wait()
        first = asyncio.create_task(end("first"))
        await asyncio.sleep(0)
        second = asyncio.create_task(end("second"))
        await asyncio.sleep(0)
        asked.set()
        await asyncio.gather(first, second)
        assert done[0] == "listener"
        assert sorted(done[1:]) == ["first", "second"]
        assert consumer._started is None

    asyncio.run(main())
