"""What the sender on the loop adds to the policy of sends: connecting within the time of a send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.client.instance.routes import RouteTable
from rocketstream.client.producer import async_sender
from rocketstream.client.producer.async_sender import AsyncSender, plain_sender
from rocketstream.client.producer.message import MessagePreparer
from rocketstream.client.producer.observer import ASYNC, ONEWAY
from rocketstream.client.producer.policy import ANY_QUEUE, SendTarget
from rocketstream.client.producer.settings import ProducerSettings
from rocketstream.errors import (
    BrokerError,
    ConnectError,
    InternalError,
    RequestTimeoutError,
    RouteNotFoundError,
    SendConnectError,
    SendError,
    SendOutcome,
    SendRouteError,
)
from rocketstream.model import Message, MessageQueue, SendResult, SendStatus
from rocketstream.protocol.bodies import BrokerData, QueueData, TopicRouteData
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import SendMessageResponseHeader
from rocketstream.testing.clock import ManualClock


class Unreachable:
    """Connections that never come, which is told nobody."""

    async def connection(self, address: str) -> Any:
        await asyncio.get_running_loop().create_future()


def test_a_connection_that_takes_longer_than_the_send_is_given_up() -> None:
    """Covers C-80: nothing was sent, and the caller is not kept waiting."""
    instance = SimpleNamespace(
        remoting=Unreachable(),
        routes=RouteTable(),
        clock=SimpleNamespace(monotonic_ms=lambda: 0.0),
        config=SimpleNamespace(vip_channel_enabled=False),
    )
    sender = plain_sender(cast(MQClientInstance, instance), ProducerSettings("pg"))
    with pytest.raises(ConnectError, match=r"cannot connect to 192\.0\.2\.1:10911 within 5 ms"):
        asyncio.run(sender.connection("192.0.2.1:10911", 5))


def test_a_connection_has_all_the_time_of_the_send(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds: list[float] = []

    @asynccontextmanager
    async def up_to(seconds: float) -> AsyncIterator[None]:
        bounds.append(seconds)
        yield

    monkeypatch.setattr(async_sender, "up_to", up_to)
    bench = Bench()
    assert cast(Any, asyncio.run(bench.sender.connection(ADDRESS, 2_500))) is bench.line
    assert bounds == [2.5]


class Spoilt:
    """Look-ups of routes that fail, for a reason nobody thought of."""

    async def publish(self, topic: str, key: str, queues: int) -> None:
        raise ValueError("spoilt")


def test_a_route_that_cannot_be_used_is_the_end_of_its_send() -> None:
    """Covers C-464: whoever waits is told that nothing was sent, whatever was raised."""
    instance = SimpleNamespace(
        routes=RouteTable(),
        route_updates=Spoilt(),
        clock=SimpleNamespace(monotonic_ms=lambda: 0.0),
        config=SimpleNamespace(vip_channel_enabled=False),
    )
    sender = plain_sender(cast(MQClientInstance, instance), ProducerSettings("pg"))
    end = asyncio.run(sender.route("T"))
    assert isinstance(end, SendError)
    assert (end.outcome, end.parameters["topic"]) == (SendOutcome.NOT_SENT, "T")
    assert "the route of topic 'T' cannot be used: ValueError('spoilt')" in str(end)


# --- one message on its way -----------------------------------------------------------------------

ADDRESS = "127.0.0.1:10911"
QUEUE = MessageQueue("T", "broker-a", 0)
LONG_MS = 3_000.0
ROUTE = TopicRouteData(
    [QueueData("broker-a", 1, 1, 6)], [BrokerData("c", "broker-a", {0: ADDRESS})]
)


class Line:
    """A connection that keeps what it is given; ``refuses`` is raised instead."""

    def __init__(self) -> None:
        self.oneways: list[RemotingCommand] = []
        self.asked: list[tuple[RemotingCommand, float, Callable[[Any, Any], None]]] = []
        self.refuses: Exception | None = None

    def oneway(self, command: RemotingCommand) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.oneways.append(command)

    def request_callback(
        self, command: RemotingCommand, timeout_ms: float, on_done: Callable[[Any, Any], None]
    ) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.asked.append((command, timeout_ms, on_done))


class Watcher:
    """Notes the tries it was told of, and their ends."""

    def __init__(self) -> None:
        self.is_on = True
        self.begun: list[tuple[MessageQueue, str, str]] = []
        self.ends: list[tuple[Any, Any]] = []
        self.refuses: Exception | None = None

    def begin(self, prepared: Any, queue: MessageQueue, address: str, mode: str) -> Any:
        if self.refuses is not None:
            raise self.refuses
        self.begun.append((queue, address, mode))
        return SimpleNamespace(ended=lambda result, error: self.ends.append((result, error)))


class Bench:
    """A sender whose connections, routes, background and time are a test's.

    Attributes:
        line: the connection there is, or would be.
        is_connected: whether it is there already.
        due: background work that was begun, and what is to be called when it is dropped.
        looks: what was asked of the name server.
    """

    def __init__(self, *, observed: bool = False, routed: bool = True, **settings: Any) -> None:
        self.clock = ManualClock()
        self.settings = ProducerSettings("pg", **settings)
        self.routes = RouteTable()
        if routed:
            self.routes.apply("T", ROUTE)
        self.line = Line()
        self.is_connected = True
        self.connect_ms = 0.0
        self.no_connection: Exception | None = None
        self.no_route: Exception | None = None
        self.finds_route = True
        self.looks: list[tuple[Any, ...]] = []
        self.due: list[tuple[Coroutine[None, None, None], Callable[[], None]]] = []
        instance = SimpleNamespace(
            routes=self.routes,
            route_updates=self,
            remoting=self,
            background=self,
            clock=self.clock,
            config=SimpleNamespace(vip_channel_enabled=False),
        )
        plain = plain_sender(cast(MQClientInstance, instance), self.settings)
        self.watcher = Watcher()
        self.sender = AsyncSender(
            plain.instance, plain.policy, cast(Any, self.watcher) if observed else None
        )
        self.prepared = MessagePreparer(self.settings, self.clock).one(Message("T", b"x"))
        self.ends: list[tuple[Any, Any]] = []

    # What the sender asks of others.

    def connected(self, address: str) -> Line | None:
        assert address == ADDRESS
        return self.line if self.is_connected else None

    async def connection(self, address: str) -> Line:
        assert address == ADDRESS
        self.clock.advance(self.connect_ms)
        if self.no_connection is not None:
            raise self.no_connection
        return self.line

    def run_soon(self, work: Coroutine[None, None, None], on_dropped: Callable[[], None]) -> None:
        self.due.append((work, on_dropped))

    async def publish(self, topic: str, key: str, queue_nums: int) -> None:
        self.looks.append(("publish", topic, key, queue_nums))
        if self.no_route is not None:
            raise self.no_route
        if self.finds_route:
            self.routes.apply("T", ROUTE)

    async def renew(self, topic: str) -> None:
        self.looks.append(("renew", topic))

    # What a test does.

    def note(self, result: Any, error: Any) -> None:
        self.ends.append((result, error))

    def send(self, target: SendTarget = ANY_QUEUE) -> None:
        self.sender.send(self.prepared, target, LONG_MS, self.note)

    def work(self) -> None:
        """Do what is due in the background."""
        due, self.due = self.due, []
        for work, _ in due:
            asyncio.run(work)

    def drop(self) -> None:
        """Drop what is due in the background, as an instance that closes does."""
        due, self.due = self.due, []
        for work, on_dropped in due:
            work.close()
            on_dropped()

    def answer(self, code: int = 0) -> None:
        header = SendMessageResponseHeader("ID", 0, 7) if code in (0, 10) else None
        self.line.asked.pop(0)[2](RemotingCommand.response(code, "no", header), None)

    def fail(self, error: Exception | None) -> None:
        self.line.asked.pop(0)[2](None, error)

    def result(self) -> SendResult:
        ((result, error),) = self.ends
        assert error is None
        assert isinstance(result, SendResult)
        return result

    def error(self) -> SendError:
        ((result, error),) = self.ends
        assert result is None
        assert isinstance(error, SendError)
        return error


def test_a_message_is_written_at_once_where_there_is_a_connection() -> None:
    bench = Bench(observed=True)
    bench.send()
    ((command, timeout_ms, _),) = bench.line.asked
    assert (command.body, timeout_ms, bench.due) == (b"x", LONG_MS, [])
    assert bench.watcher.begun == [(QUEUE, ADDRESS, ASYNC)]
    assert bench.watcher.ends == bench.ends == []
    bench.answer()
    assert (bench.result().queue_offset, bench.result().msg_id) == (7, bench.prepared.msg_id)
    assert bench.watcher.ends == bench.ends


def test_each_try_is_observed_for_itself() -> None:
    bench = Bench(observed=True, retry_times_when_send_async_failed=1)
    bench.send()
    bench.fail(RequestTimeoutError("late"))
    bench.watcher.is_on = False
    bench.answer(code=1)
    assert len(bench.watcher.begun) == 2
    (_, late), (_, refused) = bench.watcher.ends
    assert isinstance(late, RequestTimeoutError)
    assert isinstance(refused, BrokerError)
    assert bench.error().outcome is SendOutcome.UNKNOWN


def test_nobody_is_told_of_what_began_unobserved() -> None:
    bench = Bench(observed=True)
    bench.watcher.is_on = False
    bench.send()
    bench.watcher.is_on = True
    bench.answer()
    assert bench.result()
    assert (bench.watcher.begun, bench.watcher.ends) == ([], [])


def test_an_observer_that_forbids_a_try_ends_the_send() -> None:
    bench = Bench(observed=True)
    bench.watcher.refuses = SendError("forbidden", SendOutcome.NOT_SENT)
    bench.send()
    assert str(bench.error()) == "forbidden"
    assert bench.line.asked == []


def test_a_request_that_ends_with_nothing_is_an_error() -> None:
    bench = Bench()
    bench.send()
    bench.fail(None)
    cause = bench.error().__cause__
    assert isinstance(cause, InternalError)
    assert "neither an answer nor an error" in str(cause)


def test_an_unknown_connection_is_made_first_and_its_time_counts() -> None:
    bench = Bench()
    bench.is_connected = False
    bench.connect_ms = 500
    bench.send()
    assert bench.line.asked == []
    bench.work()
    ((_, timeout_ms, _),) = bench.line.asked
    assert timeout_ms == LONG_MS - 500
    bench.answer()
    assert bench.result()


@pytest.mark.parametrize("late_ms", [0.0, 1.0])
def test_a_connection_made_too_late_sends_nothing(late_ms: float) -> None:
    bench = Bench()
    bench.is_connected = False
    bench.connect_ms = LONG_MS + late_ms
    bench.send()
    bench.work()
    assert bench.line.asked == []
    error = bench.error()
    assert error.outcome is SendOutcome.NOT_SENT
    assert "only after the timeout of the send; nothing was sent" in str(error)


def test_a_connection_made_in_the_last_moment_sends() -> None:
    bench = Bench()
    bench.is_connected = False
    bench.connect_ms = LONG_MS - 1
    bench.send()
    bench.work()
    assert [timeout_ms for _, timeout_ms, _ in bench.line.asked] == [1]


@pytest.mark.parametrize("is_connected", [True, False])
def test_what_cannot_be_written_ends_its_try(is_connected: bool) -> None:
    bench = Bench(retry_times_when_send_async_failed=0)
    bench.is_connected = is_connected
    bench.line.refuses = ConnectError("closed")
    bench.send()
    bench.work()
    assert isinstance(bench.error(), SendConnectError)


def test_a_connection_that_cannot_be_made_ends_its_try() -> None:
    bench = Bench(retry_times_when_send_async_failed=0)
    bench.is_connected = False
    bench.no_connection = ConnectError("refused")
    bench.send()
    bench.work()
    assert isinstance(bench.error(), SendConnectError)


@pytest.mark.parametrize("of", ["connection", "route"])
def test_an_instance_that_closes_tells_whoever_waits(of: str) -> None:
    bench = Bench(routed=of == "connection")
    bench.is_connected = False
    bench.send()
    bench.drop()
    error = bench.error()
    assert error.outcome is SendOutcome.NOT_SENT
    assert (str(error), error.parameters["topic"]) == (
        "the client was shut down before the message was sent", "T",
    )  # fmt: skip


# --- without an answer ----------------------------------------------------------------------------


@pytest.mark.parametrize("is_connected", [True, False])
def test_a_oneway_ends_when_it_is_written(is_connected: bool) -> None:
    bench = Bench(observed=True)
    bench.is_connected = is_connected
    bench.sender.oneway(bench.prepared, ANY_QUEUE, bench.note)
    assert bench.ends == ([(None, None)] if is_connected else [])
    bench.work()
    assert bench.ends == bench.watcher.ends == [(None, None)]
    assert [command.body for command in bench.line.oneways] == [b"x"]
    assert (bench.line.asked, bench.watcher.begun[0][2]) == ([], ONEWAY)


@pytest.mark.parametrize("is_connected", [True, False])
def test_a_oneway_that_cannot_be_written_is_told_once(is_connected: bool) -> None:
    bench = Bench()
    bench.is_connected = is_connected
    bench.line.refuses = ConnectError("closed")
    bench.sender.oneway(bench.prepared, ANY_QUEUE, bench.note)
    bench.work()
    assert "one-way send failed: closed" in str(bench.error())


# --- what replaces another message, and what only chooses -----------------------------------------


def test_a_copy_counts_only_when_it_is_stored_as_wished() -> None:
    bench = Bench()
    bench.sender.send_copy(bench.prepared, LONG_MS, bench.note)
    bench.answer(code=10)
    assert bench.error().outcome is SendOutcome.UNKNOWN
    bench.ends.clear()
    bench.sender.send_copy(bench.prepared, LONG_MS, bench.note)
    bench.answer()
    assert bench.result().send_status is SendStatus.SEND_OK
    bench.ends.clear()
    bench.sender.send_copy(bench.prepared, LONG_MS, bench.note)
    bench.answer(code=13)
    assert bench.error().outcome is SendOutcome.REJECTED


def test_a_chosen_queue_is_all_that_is_chosen() -> None:
    bench = Bench()
    bench.sender.choose_queue(bench.prepared, ANY_QUEUE, bench.note)
    assert bench.ends == [(QUEUE, None)]
    assert (bench.line.asked, bench.due) == ([], [])


# --- routes ---------------------------------------------------------------------------------------


def test_a_route_that_is_not_known_is_found_first() -> None:
    bench = Bench(routed=False)
    bench.send()
    assert bench.looks == []
    bench.work()
    assert bench.looks == [("publish", "T", "TBW102", 4)]
    bench.answer()
    assert bench.result()


def test_a_route_that_is_known_is_looked_at_again_when_a_broker_is_gone() -> None:
    bench = Bench()
    bench.send()
    bench.fail(ConnectError("gone"))
    bench.work()
    assert bench.looks == [("renew", "T")]
    bench.answer()
    assert bench.result()


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (RouteNotFoundError("no route", topic="T"), SendRouteError),
        (ConnectError("no name server", address="a:1"), SendConnectError),
        (BrokerError(1, "refused"), SendError),
        (SendError("already one", SendOutcome.NOT_SENT, topic="T"), SendError),
    ],
)
def test_why_there_is_no_route_is_told(raised: Exception, kind: type[SendError]) -> None:
    """With what the error knew, and its cause; nothing was sent."""
    bench = Bench(routed=False)
    bench.no_route = raised
    with pytest.raises(SendError) as caught:
        asyncio.run(bench.sender.publish_queues("T"))
    error = caught.value
    assert type(error) is kind
    assert (str(error), error.outcome) == (str(raised), SendOutcome.NOT_SENT)
    assert error is raised or error.__cause__ is raised
    if kind is not SendConnectError:
        assert error.parameters["topic"] == "T"
    else:
        assert error.parameters["address"] == "a:1"


def test_a_name_server_that_finds_nothing_is_an_error_too() -> None:
    bench = Bench(routed=False)
    bench.finds_route = False
    with pytest.raises(SendRouteError, match="No route info of this topic: T"):
        asyncio.run(bench.sender.publish_queues("T"))
    bench.finds_route = True
    assert asyncio.run(bench.sender.publish_queues("T")) == (QUEUE,)
    assert asyncio.run(bench.sender.publish_queues("T")) == (QUEUE,)
    assert len(bench.looks) == 2, "what is known is not asked for"
