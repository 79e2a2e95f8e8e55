"""Sending over sockets, to brokers that answer what a test wants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from rocketstream import limits
from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream._util.loops import LoopThread
from rocketstream.client.producer.settings import ProducerSettings
from rocketstream.errors import RouteNotFoundError, SendError, SendOutcome
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import SendMessageRequestHeader, SendMessageResponseHeader
from rocketstream.protocol.sends import PreparedSend
from rocketstream.spark.connections import new_pool
from rocketstream.spark.options import WriteOptions, write_options
from rocketstream.spark.patience import Patience
from rocketstream.spark.sink.routes import Routes
from rocketstream.spark.sink.sender import Sender
from rocketstream.testing.clock import ManualClock
from rocketstream.testing.proxy import FaultProxy
from rocketstream.transport.connection import Connection
from rocketstream.transport.server import RemotingServer
from tests.plugins.waiting import wait_until

A0, A1, B0 = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1), MessageQueue("T", "b", 0)
REQUESTS = ProducerSettings("group").requests()


class FakeBroker:
    """Stores bodies by queue; holds answers back until ``waits_for`` sends are waiting."""

    def __init__(self) -> None:
        self.stored: list[tuple[int, bytes]] = []
        self.refuse: Callable[[bytes], int] = lambda body: 0
        self.statuses: list[int] = []
        self.waits_for = 1
        self.most_held = 0
        self.dies_at: bytes | None = None
        self._held: list[tuple[Connection, RemotingCommand]] = []
        self.address = ""

    def handle(self, connection: Connection, request: RemotingCommand) -> None:
        header = SendMessageRequestHeader.from_ext_v2(request.ext_fields or {})
        body = bytes(request.body)
        if body == self.dies_at:
            self.dies_at = None
            self._held.clear()
            connection.close("killed by the test")
            return
        code = self.refuse(body)
        if code:
            connection.reply(request, RemotingCommand.response(code, "no"))
            return
        self.stored.append((header.queue_id, body))
        self._held.append((connection, request))
        self.most_held = max(self.most_held, len(self._held))
        if len(self._held) >= self.waits_for:
            self.answer_all()

    def answer_all(self) -> None:
        """Answer what is held, the last one first."""
        while self._held:
            connection, request = self._held.pop()
            header = SendMessageResponseHeader("0" * 32, 0, 0)
            status = self.statuses.pop(0) if self.statuses else 0
            connection.reply(request, RemotingCommand.response(status, None, header))

    def bodies(self, queue_id: int | None = None) -> list[bytes]:
        return [body for at, body in self.stored if queue_id in (None, at)]


class FakeRoutes(Routes):
    """Queues and addresses as a test has them."""

    def __init__(self, queues: Sequence[MessageQueue], addresses: dict[str, str]) -> None:
        self.all = queues
        self.addresses = addresses

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        return self.all

    def address(self, broker_name: str, *, refresh: bool = False) -> str:
        if broker_name not in self.addresses:
            raise RouteNotFoundError(f"broker {broker_name!r} has no master at the moment")
        return self.addresses[broker_name]

    def look_again(self, broker_name: str) -> None:
        pass


def run_broker() -> Iterator[FakeBroker]:
    broker = FakeBroker()
    with LoopThread("fake-broker") as loop:
        server = RemotingServer(broker.handle)
        loop.run(server.start())
        broker.address = server.address
        yield broker
        loop.run(server.close())


@pytest.fixture
def a() -> Iterator[FakeBroker]:
    yield from run_broker()


@pytest.fixture
def b() -> Iterator[FakeBroker]:
    yield from run_broker()


def options(**given: str) -> WriteOptions:
    return write_options(
        {"nameServer": "127.0.0.1:1", "topic": "T", "connectTimeoutMs": "500"} | given, "batch"
    )


def send(
    parcels: Sequence[tuple[bytes, MessageQueue | None]],
    routes: Routes,
    clock: Clock = SYSTEM_CLOCK,
    count: int = 1,
    **given: str,
) -> int:
    """Send, wait for all, return how many messages are acknowledged."""
    chosen = options(**given)
    with new_pool(chosen) as pool, Sender(chosen, pool, routes, clock=clock) as sender:
        for body, queue in parcels:
            sender.send(PreparedSend(REQUESTS, "T", body, "", "", 0), queue, count)
        sender.finish()
        return sender.acknowledged


def numbered(count: int, queue: MessageQueue | None = None) -> list[tuple[bytes, Any]]:
    return [(b"%d" % number, queue) for number in range(count)]


@pytest.fixture
def flying(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many requests are under way after each that is sent."""
    flying: list[int] = []
    submit = Sender._submit

    def submitted(sender: Sender, parcel: Any) -> None:
        submit(sender, parcel)
        flying.append(len(sender._flying))

    monkeypatch.setattr(Sender, "_submit", submitted)
    return flying


def test_requests_overlap_up_to_the_bound(a: FakeBroker, flying: list[int]) -> None:
    """The broker answers only when four are waiting, so fewer under way would hang."""
    a.waits_for = 4
    assert send(numbered(20), FakeRoutes([A0, A1], {"a": a.address}), sendsInFlight="4") == 20
    assert max(flying) == 4
    assert (a.most_held, sorted(a.bodies())) == (4, sorted(b"%d" % n for n in range(20)))
    assert Counter(queue_id for queue_id, _ in a.stored) == {0: 10, 1: 10}


def test_a_message_is_on_its_way_when_send_returns(a: FakeBroker) -> None:
    """A task that computes for minutes between two record batches does not hold it back."""
    chosen = options()
    routes = FakeRoutes([A0], {"a": a.address})
    with new_pool(chosen) as pool, Sender(chosen, pool, routes) as sender:
        sender.send(PreparedSend(REQUESTS, "T", b"x", "", "", 0), None, 1)
        wait_until(lambda: a.bodies() == [b"x"], "the message at the broker")
        sender.finish()


def test_messages_under_way_are_bounded_too(a: FakeBroker, flying: list[int]) -> None:
    """The answer to a batch names each message; a client that only sends would fill the buffers."""
    a.waits_for = 2
    half = limits.SENDS_MESSAGES_MAX // 2
    sent = send(numbered(10), FakeRoutes([A0], {"a": a.address}), count=half)
    assert (sent, max(flying)) == (10 * half, 2)


def test_an_ordered_queue_has_one_request_under_way(a: FakeBroker) -> None:
    """Brokers handle requests of one connection side by side; other queues need not wait."""
    a.waits_for = 2
    mixed = [(body, (A0, A1)[at % 2]) for at, (body, _) in enumerate(numbered(20))]
    assert send(mixed, FakeRoutes([A0, A1], {"a": a.address})) == 20
    assert a.most_held == 2
    assert a.bodies(0) == [b"%d" % n for n in range(0, 20, 2)]
    assert a.bodies(1) == [b"%d" % n for n in range(1, 20, 2)]


def test_nothing_is_lost_and_order_is_kept_when_the_connection_breaks(a: FakeBroker) -> None:
    """What was under way is sent again before what follows it."""
    a.dies_at = b"7"
    assert send(numbered(20, A0), FakeRoutes([A0], {"a": a.address})) == 20
    assert list(dict.fromkeys(a.bodies())) == [b"%d" % n for n in range(20)]


def test_all_that_was_under_way_on_a_broken_connection_is_sent_again(
    a: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four stored, none answered: all of them once more."""
    a.waits_for, a.dies_at = 5, b"4"
    routes = FakeRoutes([A0], {"a": a.address})
    monkeypatch.setattr(routes, "look_again", lambda broker_name: setattr(a, "waits_for", 1))
    assert send(numbered(10), routes) == 10
    assert Counter(a.bodies()) == {b"%d" % n: 2 if n < 4 else 1 for n in range(10)}


def test_another_broker_takes_what_one_cannot(a: FakeBroker, b: FakeBroker) -> None:
    """One is away, then it refuses; only ordered messages wait for their own."""
    away = FakeRoutes([A0, B0], {"b": b.address})
    assert send(numbered(6), away) == 6
    assert sorted(b.bodies()) == sorted(b"%d" % n for n in range(6))
    busy = [
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
    ]
    a.refuse = lambda body: busy.pop() if busy else 0
    both = FakeRoutes([A0, B0], {"a": a.address, "b": b.address})
    assert send([(b"x", A0)], both) == 1
    assert (a.bodies(), b"x" in b.bodies(), busy) == ([b"x"], False, [])


def test_only_a_message_that_can_go_nowhere_else_waits_for_its_next_try(
    a: FakeBroker, b: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ordered one, for its own broker."""
    waited: list[Patience] = []
    monkeypatch.setattr(Patience, "pause", lambda patience: waited.append(patience))
    busy: list[ResponseCode] = []
    a.refuse = lambda body: busy.pop() if busy else 0
    routes = FakeRoutes([A0, B0], {"a": a.address, "b": b.address})
    for body, queue, waits in ((b"x", None, 0), (b"y", A0, 1)):
        busy.append(ResponseCode.SYSTEM_BUSY)
        assert send([(body, queue)], routes) == 1
        assert len(waited) == waits
    assert (a.bodies(), b.bodies()) == ([b"y"], [b"x"])


def test_a_broker_that_moved_is_found_at_its_new_address(
    a: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure is the reason to look; messages of an ordered queue have nobody else to go to."""
    routes = FakeRoutes([A0], {"a": "127.0.0.1:1"})
    monkeypatch.setattr(
        routes, "look_again", lambda name: routes.addresses.update({name: a.address})
    )
    monkeypatch.setattr(Patience, "pause", pause)
    assert send([(b"x", A0)], routes, ManualClock()) == 1
    assert a.bodies() == [b"x"]


def test_a_broker_that_takes_messages_again_is_no_longer_passed_over(
    a: FakeBroker, b: FakeBroker
) -> None:
    """A moment of overload is over with the first acknowledgement."""
    busy = [ResponseCode.SYSTEM_BUSY]
    a.refuse = lambda body: busy.pop() if busy else 0
    chosen = options()
    routes = FakeRoutes([A0, B0], {"a": a.address, "b": b.address})
    with new_pool(chosen) as pool, Sender(chosen, pool, routes) as sender:
        for body, queue in [(b"x", A0), *numbered(4)]:
            sender.send(PreparedSend(REQUESTS, "T", body, "", "", 0), queue, 1)
            sender.finish()
    assert (len(a.bodies()), len(b.bodies())) == (3, 2)


def test_an_idle_connection_the_broker_closed_is_replaced_unnoticed(a: FakeBroker) -> None:
    """Between two record batches a task may compute for minutes: nothing is sent twice."""
    chosen = options(retryTimeoutMs="0")
    with FaultProxy(a.address) as proxy, new_pool(chosen) as pool:
        routes = FakeRoutes([A0], {"a": proxy.address})
        with Sender(chosen, pool, routes) as sender:
            for body in (b"before", b"after"):
                sender.send(PreparedSend(REQUESTS, "T", body, "", "", 0), None, 1)
                sender.finish()
                proxy.cut()
            assert (sender.acknowledged, proxy.connections_total) == (2, 2)
    assert a.bodies() == [b"before", b"after"]


def test_the_next_task_of_a_worker_sends_over_the_connection_of_the_one_before(
    a: FakeBroker,
) -> None:
    """Each micro-batch would connect anew, to each broker."""
    chosen = options()
    with FaultProxy(a.address) as proxy, new_pool(chosen) as pool:
        for body in (b"one", b"two"):
            with Sender(chosen, pool, FakeRoutes([A0], {"a": proxy.address})) as sender:
                sender.send(PreparedSend(REQUESTS, "T", body, "", "", 0), None, 1)
                sender.finish()
        assert proxy.connections_total == 1
    assert a.bodies() == [b"one", b"two"]


@pytest.mark.parametrize(
    ("code", "outcome", "tries"),
    [
        (ResponseCode.MESSAGE_ILLEGAL, SendOutcome.REJECTED, 1),
        (ResponseCode.NO_PERMISSION, SendOutcome.REJECTED, 6),
        (ResponseCode.TOPIC_NOT_EXIST, SendOutcome.REJECTED, 6),
    ],
)
def test_a_refusal_that_does_not_pass_ends_the_task(
    a: FakeBroker,
    code: ResponseCode,
    outcome: SendOutcome,
    tries: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At once, or after a few tries where the code may also mean something that passes."""
    monkeypatch.setattr(Patience, "pause", lambda patience: None)
    asked: list[bytes] = []

    def refuse(body: bytes) -> int:
        asked.append(body)
        return code if body == b"3" else 0

    a.refuse = refuse
    with pytest.raises(
        SendError, match=rf"1 messages for topic 'T' are not acknowledged after {tries} tries"
    ) as told:
        send(numbered(4, A0), FakeRoutes([A0], {"a": a.address}))
    assert told.value.outcome is outcome
    assert asked.count(b"3") == tries
    assert "3 of this task are; Spark sends all of its rows again" in str(told.value)


UNSAFE = [
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
]


@pytest.mark.parametrize("status", UNSAFE)
def test_stored_but_not_safe_is_no_acknowledgement(
    a: FakeBroker, b: FakeBroker, status: ResponseCode
) -> None:
    """Covers C-473: sent once more, to another broker where its queue is nobody's wish."""
    a.statuses = [status]
    assert send([(b"x", A0)], FakeRoutes([A0], {"a": a.address})) == 1
    assert a.bodies() == [b"x", b"x"]
    a.statuses = [status]
    assert send([(b"y", None)], FakeRoutes([A0, B0], {"a": a.address, "b": b.address})) == 1
    assert (a.bodies()[2:], b.bodies()) == ([b"y"], [b"y"])


@pytest.mark.parametrize("status", UNSAFE)
def test_messages_never_called_safe_fail_the_task_after_a_few_copies(
    a: FakeBroker, status: ResponseCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try stores them once more, so it is not for retryTimeoutMs that they are sent again."""
    monkeypatch.setattr(Patience, "pause", lambda patience: None)
    a.statuses = [status] * 99
    with pytest.raises(SendError, match=rf"after 6 tries .*{status.name} for .* is stored") as no:
        send([(b"x", A0)], FakeRoutes([A0], {"a": a.address}))
    assert no.value.outcome is SendOutcome.UNKNOWN
    assert len(a.stored) == 6


def pause(patience: Patience) -> None:
    """Stand in for waiting: ten seconds on a clock set by hand."""
    clock = patience._clock
    assert isinstance(clock, ManualClock)
    clock.advance(10_000)


def test_a_broker_that_stays_away_ends_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """After retryTimeoutMs; nothing ever left this process."""
    monkeypatch.setattr(Patience, "pause", pause)
    clock = ManualClock()
    with pytest.raises(SendError, match=r"after 4 tries \(retryTimeoutMs 30000\)") as told:
        send(numbered(1), FakeRoutes([A0], {"a": "127.0.0.1:1"}), clock)
    assert told.value.outcome is SendOutcome.NOT_SENT


def test_a_broker_that_does_not_answer_leaves_the_outcome_open(a: FakeBroker) -> None:
    """It may have stored them."""
    a.waits_for = 99
    with pytest.raises(SendError, match=r"after 1 tries .*: no answer from .* in time") as told:
        send(
            numbered(3),
            FakeRoutes([A0], {"a": a.address}),
            retryTimeoutMs="0",
            requestTimeoutMs="50",
        )
    assert told.value.outcome is SendOutcome.UNKNOWN
    assert len(a.stored) == 3


def test_an_answer_that_makes_no_sense_is_no_acknowledgement(a: FakeBroker) -> None:
    """Sent again: a success without an offset says nothing of a message."""
    real, odd = a.handle, [True]

    def handle(connection: Connection, request: RemotingCommand) -> None:
        if odd:
            odd.pop()
            connection.reply(request, RemotingCommand.response(0, None))
        else:
            real(connection, request)

    with LoopThread("odd-broker") as loop:
        server = RemotingServer(handle)
        loop.run(server.start())
        assert send(numbered(1), FakeRoutes([A0], {"a": server.address})) == 1
        loop.run(server.close())
    assert a.bodies() == [b"0"]
