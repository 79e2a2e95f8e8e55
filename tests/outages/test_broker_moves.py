"""A broker goes or comes: clients ask for the routes of its topics then, not by the clock alone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator

import pytest

from rocketstream import ClientConfig, Message, Producer, PushConsumer
from rocketstream.aio import Producer as AioProducer
from rocketstream.client.instance import links, route_updates
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.client.instance.routes import RouteTable, unknown_broker
from rocketstream.errors import SendConnectError
from rocketstream.protocol.bodies import BrokerData, QueueData, TopicRouteData
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.testing import ManualClock
from tests.kits.client.fake_broker import GROUP, TOPIC, FakeBroker, Handler, found
from tests.kits.listeners import Seen
from tests.plugins.waiting import wait_until

ROUTE, BEAT, SEND = (
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.HEART_BEAT,
    RequestCode.SEND_MESSAGE_V2,
)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look soon and often, so that a test need not wait for the pauses."""
    monkeypatch.setattr(links, "ROUTE_LOOKS_MS", (2,))
    monkeypatch.setattr(links, "RECONNECT_MS", (2,))


@pytest.fixture
def brokers() -> Iterator[tuple[FakeBroker, FakeBroker]]:
    """Return broker-a, which is the name server too, and broker-b, which it names."""
    with FakeBroker() as one, FakeBroker(name="broker-b", routes=False) as other:
        one.others.append(other)
        one.offsets[0] = other.offsets[0] = 0
        yield one, other


def go(one: FakeBroker, other: FakeBroker) -> None:
    """Have broker-b go: its name server forgets it in the moment its connections end."""
    one.others.clear()
    other.drop_connections()


def push(one: FakeBroker, listener: Seen) -> PushConsumer:
    config = ClientConfig(namesrv_addr=one.address, pull_time_delay_ms_when_exception=2)
    return PushConsumer(GROUP, config=config, listener=listener, subscription={TOPIC: "*"})


def pulled(one: FakeBroker, other: FakeBroker) -> None:
    """Have the queues that are pulled stay empty."""
    for broker in (one, other):
        broker.on[RequestCode.PULL_MESSAGE] = lambda _: None


@pytest.mark.usefixtures("quick")
def test_members_divide_what_is_left_when_a_broker_goes_and_all_when_it_is_back(
    brokers: tuple[FakeBroker, FakeBroker],
) -> None:
    """Covers C-134, C-150: with no pull that fails, and long before routes are due (30 s)."""
    one, other = brokers
    pulled(one, other)
    one.topics[TOPIC] = 2
    with push(one, Seen()) as consumer:
        one.members = other.members = [
            "!",
            consumer._machine.instance.client_id,
        ]  # we are the second
        one.notify_members_changed()

        def has() -> set[tuple[str, int]]:
            mine = (mq for mq in consumer.assigned_queues() if mq.topic == TOPIC)
            return {(mq.broker_name, mq.queue_id) for mq in mine}

        theirs = {("broker-b", 0), ("broker-b", 1)}
        wait_until(lambda: has() == theirs, "the second half")
        go(one, other)
        wait_until(lambda: ("broker-a", 1) in has(), "half of what is left")
        one.others.append(other)
        wait_until(lambda: has() == theirs, "the second half again")


@pytest.mark.usefixtures("quick")
def test_what_was_finished_of_a_broker_that_was_away_is_not_consumed_again(
    brokers: tuple[FakeBroker, FakeBroker],
) -> None:
    """It was not committed yet, which is done every 5 s, and the broker knows nothing of it."""
    one, other = brokers
    pulled(one, other)
    seen = Seen()
    with push(one, seen) as consumer:
        other.reply(other.wait_pull(0), found(range(3)))
        seen.wait(lambda s: len(s.consumed) == 3)
        go(one, other)
        instance = consumer._machine.instance
        queues = instance.routes.subscribe_queues
        wait_until(lambda: len(queues(TOPIC) or ()) == 1, "broker-b to leave the route")
        instance.groups.rebalance_soon()
        count = len(one.asked(RequestCode.GET_CONSUMER_LIST_BY_GROUP))
        one.wait_for(RequestCode.GET_CONSUMER_LIST_BY_GROUP, count + 1)
        one.others.append(other)
        wait_until(lambda: len(queues(TOPIC) or ()) == 2, "broker-b to be back")
        other.wait_pull(3)
        pulls = other.asked(RequestCode.PULL_MESSAGE)
        assert sum(each.ext["queueOffset"] == "0" for each in pulls) == 1
    said = {each.ext["commitOffset"] for each in other.asked(RequestCode.UPDATE_CONSUMER_OFFSET)}
    assert "3" in said


@pytest.mark.usefixtures("quick")
def test_queues_of_a_broker_that_stays_away_are_given_up(
    brokers: tuple[FakeBroker, FakeBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = brokers
    pulled(one, other)
    monkeypatch.setattr(links, "LOST_BROKER_TRIES_MS", 30)
    with push(one, Seen()) as consumer:

        def has() -> list[str]:
            consumer._machine.instance.groups.rebalance_soon()  # every 20 s else
            return sorted({mq.broker_name for mq in consumer.assigned_queues()})

        wait_until(lambda: has() == ["broker-a", "broker-b"], "the queues of both")
        go(one, other)
        wait_until(lambda: has() == ["broker-a"], "the queue of broker-b to be given up")


@pytest.mark.usefixtures("quick")
def test_a_producer_follows_brokers_that_go_and_come(
    brokers: tuple[FakeBroker, FakeBroker],
) -> None:
    one, other = brokers
    with Producer("pg", namesrv_addr=one.address) as producer:
        producer.send(Message(TOPIC, b"x"))
        other.wait_for(BEAT)

        def has() -> set[str]:
            return {mq.broker_name for mq in producer.fetch_publish_message_queues(TOPIC)}

        assert has() == {"broker-a", "broker-b"}
        go(one, other)
        wait_until(lambda: has() == {"broker-a"}, "broker-b to leave the route")
        one.others.append(other)
        wait_until(lambda: has() == {"broker-a", "broker-b"}, "broker-b to be back")


def test_looks_end_where_nothing_changes(
    brokers: tuple[FakeBroker, FakeBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name server still names the broker, as after a loss of power; the clock goes on alone."""
    one, other = brokers
    monkeypatch.setattr(links, "ROUTE_LOOKS_MS", (1,))
    monkeypatch.setattr(links, "LOST_BROKER_TRIES_MS", 20)
    monkeypatch.setattr(links, "RECONNECT_MS", (600_000,))

    async def run() -> None:
        config = ClientConfig(namesrv_addr=one.address)
        instance = MQClientInstance(config, "id", ManualClock())
        instance.groups.add_producer("p", [TOPIC])
        await instance.route_updates.refresh()
        connection = await instance.remoting.connection(other.address)
        before = len(one.asked(ROUTE))
        connection.close("the test ends it")
        await connection.wait_closed()
        await asyncio.gather(*instance.background.tasks)
        assert len(one.asked(ROUTE)) > before
        assert not instance.links._looking
        await instance.close()

    one.thread.run(run())


@pytest.mark.usefixtures("quick")
def test_a_broker_that_comes_back_elsewhere_is_found(
    brokers: tuple[FakeBroker, FakeBroker],
) -> None:
    """A container has another address then: nobody can be connected to it before the route says."""
    one, other = brokers
    with (
        FakeBroker(name="broker-b", routes=False) as moved,
        Producer("pg", namesrv_addr=one.address) as producer,
    ):
        producer.send(Message(TOPIC, b"x"))
        other.wait_for(BEAT)
        other.thread.run(other.server.close())
        one.others[:] = []
        routes = producer._machine.sender.instance.routes
        wait_until(lambda: not routes.is_named("broker-b"), "broker-b to leave the route")
        one.others.append(moved)
        wait_until(lambda: routes.masters.get("broker-b") == moved.address, "broker-b to be back")


def test_a_broker_without_its_master_does_not_work_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its slave is no way back for the locks that failed: told once, until the master is there."""
    master, slave = "10.0.0.1:10911", "10.0.0.2:10911"
    with FakeBroker() as broker:

        def route(addresses: dict[int, str]) -> Handler:
            data = TopicRouteData(
                [QueueData("broker-b", 1, 1, 6, 0)], [BrokerData("c", "broker-b", addresses)]
            )
            return lambda _: RemotingCommand.response(0, body=data.encode(standard=True))

        async def run() -> None:
            config = ClientConfig(namesrv_addr=broker.address)
            instance = MQClientInstance(config, "id", ManualClock())
            instance.groups.add_producer("p", [TOPIC])
            for addresses in ({1: slave}, {1: slave}, {0: master, 1: slave}):
                instance.outages.failed(("locking queues of", GROUP), unknown_broker("broker-b"))
                broker.on[ROUTE] = route(addresses)
                await instance.route_updates.refresh()
            await instance.close()

        broker.thread.run(run())
    told = [record.message for record in caplog.records if "broker-b" in record.message]
    assert len(told) == 2
    assert "broker broker-b: works again after" in told[1]


# --- sends ----------------------------------------------------------------------------------------


@pytest.fixture
def dead() -> Iterator[str]:
    """Return a loopback address that refuses connections: bound, never listening."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{holder.getsockname()[1]}"


def routes_of(*brokers: tuple[str, str]) -> Handler:
    """Return a handler that names these brokers, with one queue each, for any topic."""
    route = TopicRouteData(
        [QueueData(name, 1, 1, 6, 0) for name, _ in brokers],
        [BrokerData("c", name, {0: address}) for name, address in brokers],
    )
    return lambda _: RemotingCommand.response(0, body=route.encode(standard=True))


def send_blocking(address: str) -> None:
    with Producer("pg", namesrv_addr=address) as producer:
        producer.send(Message(TOPIC, b"x"))


def send_async(address: str) -> None:
    with Producer("pg", namesrv_addr=address) as producer:
        producer.send_async(Message(TOPIC, b"x")).result(20)


def send_awaited(address: str) -> None:
    async def main() -> None:
        async with AioProducer("pg", namesrv_addr=address) as producer:
            await producer.send(Message(TOPIC, b"x"))

    asyncio.run(main())


Send = Callable[[str], None]
SENDS = [send_blocking, send_async, send_awaited]


@pytest.mark.parametrize("send", SENDS)
def test_a_send_that_reaches_no_broker_finds_the_one_that_is_back(
    send: Send, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers restart one after the other: the route known is of the time when this was away."""
    monkeypatch.setattr(route_updates, "ROUTE_RENEWAL_INTERVAL_MS", 0)
    with FakeBroker() as broker:
        stale, fresh = routes_of(("broker-b", dead)), routes_of(("broker-a", broker.address))
        asked: list[str] = []

        def route(command: RemotingCommand) -> RemotingCommand | None:
            asked.append((command.ext_fields or {})["topic"])
            return (stale if asked.count(TOPIC) < 2 else fresh)(command)

        broker.on[ROUTE] = route
        send(broker.address)
        assert len(broker.asked(SEND)) == 1
        assert asked.count(TOPIC) == 2


@pytest.mark.parametrize("send", SENDS)
def test_sends_that_reach_no_broker_look_at_most_once_a_second(send: Send, dead: str) -> None:
    with FakeBroker() as broker:
        broker.on[ROUTE] = routes_of(("broker-b", dead))
        with pytest.raises(SendConnectError, match=r"Send \[3\] times"):
            send(broker.address)
        assert len([each for each in broker.asked(ROUTE) if each.ext["topic"] == TOPIC]) == 1


def test_a_name_server_that_does_not_answer_holds_no_send_up(
    dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of the topic holds as before."""
    monkeypatch.setattr(route_updates, "ROUTE_RENEWAL_INTERVAL_MS", 0)
    monkeypatch.setattr(route_updates, "ROUTE_RENEWAL_WAIT_MS", 1)
    with FakeBroker() as broker:
        known = routes_of(("broker-a", broker.address), ("broker-b", dead))
        broker.on[ROUTE] = lambda command: known(command) if len(broker.asked(ROUTE)) == 1 else None
        with Producer("pg", namesrv_addr=broker.address) as producer:
            for _ in range(2):  # one of them begins at the dead one
                producer.send(Message(TOPIC, b"x"))


def test_topics_are_found_by_the_address_of_a_broker() -> None:
    table = RouteTable()
    for topic, number in (("one", 1), ("two", 2)):
        table.apply(
            topic,
            TopicRouteData(
                [QueueData(f"b{n}", 1, 1, 6, 0) for n in range(number)],
                [BrokerData("c", f"b{n}", {0: f"b{n}:1", 1: f"b{n}:2"}) for n in range(number)],
            ),
        )
    assert table.topics_of("b0:2") == ["one", "two"]
    assert table.topics_of("b1:1") == ["two"]
    assert table.topics_of("b2:1") == []
