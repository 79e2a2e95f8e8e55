"""Failed messages on their way back: they count once a copy is stored, whoever still waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketstream import MessageExt, MessageQueue
from rocketstream.client.consumer import send_back
from rocketstream.client.consumer.consume.failure_cause import has_cause, tell_cause
from rocketstream.client.consumer.process_queue import ProcessQueue, Thresholds
from rocketstream.client.consumer.queue import AssignedQueue, QueueLinks
from rocketstream.client.consumer.send_back import DroppedMessages, FailedMessages, SendBack
from rocketstream.errors import BrokerError, RouteNotFoundError, SendError, SendOutcome
from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import ConsumerSendMsgBackRequestHeader
from rocketstream.protocol.message_ext import decode_messages
from rocketstream.protocol.record import RecordFields, encode_record
from rocketstream.testing import received_message
from tests.kits.client.fake_broker import GROUP, TOPIC
from tests.kits.client.model_cluster import StillLoop
from tests.kits.client.queued import queued


class SlowBroker:
    """A send-back whose broker answers when the test says so."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.stored = asyncio.Event()
        self.tasks: list[asyncio.Task[Any]] = []

    def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        self.tasks.append(asyncio.get_running_loop().create_task(work))
        return self.tasks[-1]

    async def give_back(self, message: MessageExt, level: int) -> None:
        self.asked.set()
        await self.stored.wait()

    async def drain(self) -> None:
        await asyncio.gather(*self.tasks)


class Offsets:
    """Takes the offset to commit."""

    def __init__(self) -> None:
        self.noted: list[int] = []

    def update_offset(self, mq: object, offset: int) -> None:
        self.noted.append(offset)


def queue_with(message: MessageExt, offsets: Offsets) -> AssignedQueue:
    clock = SimpleNamespace(monotonic_ms=lambda: 0.0)
    links = QueueLinks(cast(Any, offsets), cast(Any, None), cast(Any, None), cast(Any, clock))
    queue = AssignedQueue(ProcessQueue(message.message_queue, 0.0), 0, Thresholds(), links)
    queue.put([message], message.queue_offset + 1)
    return queue


def test_a_queue_is_not_free_while_an_expired_message_of_it_is_sent_back() -> None:
    """Covers C-248, C-556: its next owner would consume the message, and its copy."""

    async def run() -> None:
        message, broker, offsets = received_message("T", b"x"), SlowBroker(), Offsets()
        failed = FailedMessages(cast(Any, broker), 0, tells_cause=False)
        queue = queue_with(message, offsets)
        scan = asyncio.get_running_loop().create_task(failed.expire(queue, message))
        await broker.asked.wait()
        assert not queue.is_free
        assert offsets.noted == []
        broker.stored.set()
        assert await scan
        assert queue.is_free
        assert offsets.noted == [message.queue_offset + 1]

    asyncio.run(run())


def test_a_send_back_goes_on_when_the_scan_that_began_it_is_cancelled() -> None:
    """Covers C-119, C-248: the shutdown cancels the scan and waits for what it has begun."""

    async def run() -> None:
        message, broker, offsets = received_message("T", b"x"), SlowBroker(), Offsets()
        failed = FailedMessages(cast(Any, broker), 0, tells_cause=False)
        queue = queue_with(message, offsets)
        scan = asyncio.get_running_loop().create_task(failed.expire(queue, message))
        await broker.asked.wait()
        scan.cancel()
        await asyncio.gather(scan, return_exceptions=True)
        broker.stored.set()
        await failed.drain()
        assert offsets.noted == [message.queue_offset + 1]

    asyncio.run(run())


# --- one message ----------------------------------------------------------------------------------


class World:
    """A send-back with its instance; brokers and the sender of copies answer as the test says.

    Attributes:
        refusal: of the next send-backs.
        unsent: the error of the next copies.
        backs: what was asked for: address, fields of the request, timeout.
        copies: what was sent anew, with its timeout.
        said: what was said of outages.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **how: Any) -> None:
        self.loop = StillLoop()
        self.refusal: Exception | None = None
        self.unsent: SendError | None = None
        self.backs: list[tuple[str, ConsumerSendMsgBackRequestHeader, float]] = []
        self.copies: list[tuple[Any, float]] = []
        self.said: list[tuple[object, ...]] = []
        self.made: list[str] = []
        self.is_connected = True
        self.masters: dict[str, str] = {"broker-a": "a:1", "broker-b": "b:1"}
        self.answered: Callable[..., None] | None = None
        self.holds = False
        instance = SimpleNamespace(
            config=SimpleNamespace(effective_namespace=lambda: how.pop("namespace", None)),
            clock=SimpleNamespace(monotonic_ms=lambda: round(self.loop.now_s * 1000, 3)),
            outages=self, routes=self, remoting=self, api=self,
        )  # fmt: skip
        monkeypatch.setattr(send_back, "plain_sender", lambda *_: self)

        async def make() -> SendBack:
            kept = {"unit_mode": False, **{k: v for k, v in how.items() if k != "namespace"}}
            return SendBack(cast(Any, instance), GROUP, 16, **kept)

        self.send_back = self.run(make())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def turn(self, ms: float = 0) -> None:
        self.loop.now_s += ms / 1000
        for _ in range(6):
            self.run(asyncio.sleep(0))

    def known_master(self, broker: str) -> str:
        if broker not in self.masters:
            raise RouteNotFoundError(f"no {broker}")
        return self.masters[broker]

    def channel(self, address: str) -> str:
        return f"vip {address}"

    def connected(self, address: str) -> Any:
        return SimpleNamespace(request_future=self._asker(address)) if self.is_connected else None

    async def connection(self, address: str) -> Any:
        self.made.append(address)
        return SimpleNamespace(request_future=self._asker(address))

    def _asker(self, address: str) -> Any:
        async def ask(command: RemotingCommand, timeout_ms: float) -> RemotingCommand:
            header = command.header(ConsumerSendMsgBackRequestHeader)
            self.backs.append((address, header, timeout_ms))
            return RemotingCommand.response(0)

        return ask

    def successful(self, address: str, answer: RemotingCommand, code: int) -> None:
        assert (address[:3], answer.code, code) == ("vip", 0, 36)
        if self.refusal is not None:
            raise self.refusal

    def failed(self, subject: tuple[object, ...], error: Exception) -> None:
        self.said.append(("failed", *subject))

    def worked(self, *subject: object) -> None:
        self.said.append(("worked", *subject))

    def send_copy(self, copy: Any, timeout_ms: float, sent: Callable[..., None]) -> None:
        self.copies.append((copy, timeout_ms))
        if self.holds:
            self.answered = sent
        else:
            sent(None, self.unsent)

    def give_back(self, message: MessageExt, level: int = 0, **how: Any) -> None:
        self.run(self.send_back.give_back(message, level, **how))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(monkeypatch)
    yield made
    made.loop.close()


def failed_one(offset: int = 5, **fields: Any) -> MessageExt:
    message = queued(offset)
    message._topic, message._broker_name = TOPIC, "broker-a"
    for name, value in fields.items():
        setattr(message, f"_{name}", value)
    return message


BACK = ("sending back failed messages of group", GROUP)
ANEW = ("sending anew what could not be sent back, kept here meanwhile, of group", GROUP)
REFUSED = BrokerError(1, "no")


def test_a_message_goes_back_to_the_broker_that_stored_it(world: World) -> None:
    """Covers C-264, C-270: over the connection there is, and with this group's limit."""
    world.give_back(failed_one(), 4)
    ((address, header, timeout_ms),) = world.backs
    assert (address, timeout_ms) == ("vip a:1", 5_000)
    assert (header.group, header.delay_level, header.origin_topic) == (GROUP, 4, TOPIC)
    assert (header.max_reconsume_times, header.unit_mode, header.bname) == (16, False, "broker-a")
    assert (world.copies, world.made) == ([], [])
    assert world.said == [("worked", *BACK), ("worked", *ANEW)]


@pytest.mark.parametrize(
    ("given", "kept", "address", "bname"),
    [
        ("broker-b", "broker-a", "vip b:1", "broker-b"),
        (None, "broker-b", "vip b:1", "broker-b"),
        (None, "", "vip 127.0.0.1:10911", ""),
    ],
)
def test_the_broker_may_be_named(
    world: World, given: str | None, kept: str, address: str, bname: str
) -> None:
    """Covers C-270, C-400, C-498: without a name it is the host the message was stored at."""
    message = failed_one(broker_name=kept)
    host = message.store_host
    world.give_back(message, broker_name=given)
    ((asked, header, _),) = world.backs
    assert asked == (address if bname else f"vip {host}")
    assert (header.bname or "") == bname


def test_a_broker_without_a_connection_is_connected(world: World) -> None:
    world.is_connected = False
    world.give_back(failed_one())
    assert world.made == ["vip a:1"]
    assert len(world.backs) == 1


def test_the_group_may_be_named(world: World) -> None:
    """Covers C-498."""
    world.give_back(failed_one(), group="other")
    assert world.backs[0][1].group == "other"
    assert world.said[0] == ("worked", BACK[0], "other")


@pytest.mark.parametrize("refusal", ["broker", "route"])
def test_what_cannot_be_sent_back_is_sent_anew(world: World, refusal: str) -> None:
    """Covers C-271: to the retry topic, with the stored body, within 3 s."""
    if refusal == "broker":
        world.refusal = REFUSED
    else:
        world.masters.clear()
    world.give_back(failed_one(reconsume_times=2), 5)
    ((copy, timeout_ms),) = world.copies
    assert (copy.topic, timeout_ms) == (f"%RETRY%{GROUP}", 3_000)
    assert (copy.reconsume_times, copy.max_reconsume_times) == (3, 17)
    assert world.said == [("failed", *BACK), ("worked", *ANEW)]


def test_a_copy_keeps_how_its_body_is_compressed_and_nothing_else(world: World) -> None:
    """Covers C-271."""
    world.refusal = REFUSED
    fields = RecordFields(
        topic=TOPIC, queue_id=0, flag=0, sys_flag=0x0F | MessageSysFlag.COMPRESSION_MASK,
        born_timestamp=1, born_host=("127.0.0.1", 1), store_timestamp=2,
        store_host=("127.0.0.1", 2), reconsume_times=0, prepared_transaction_offset=0, body=b"x",
        properties="UNIQ_KEY\x01U", queue_offset=0, physical_offset=0,
    )  # fmt: skip
    (message,) = decode_messages(bytes(encode_record(fields)), "broker-a")
    world.give_back(message)
    copy = world.copies[0][0]
    assert copy.sys_flag == MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_MASK


def test_a_message_nobody_takes_is_an_error(world: World) -> None:
    """Covers C-271: both failures are told."""
    world.refusal, world.unsent = REFUSED, SendError("no", SendOutcome.NOT_SENT)
    with pytest.raises(SendError, match="no"):
        world.give_back(failed_one())
    assert world.said == [("failed", *BACK), ("failed", *ANEW)]


def test_a_message_that_is_spoilt_is_an_error_too(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(name: str) -> str:
        raise TypeError(name)

    monkeypatch.setattr(world, "known_master", breaks)
    with pytest.raises(SendError, match="cannot be sent back") as raised:
        world.give_back(failed_one())
    assert raised.value.outcome is SendOutcome.NOT_SENT
    assert "its contents are not valid" in caplog.text


@pytest.mark.parametrize(
    ("level", "times", "is_dead"), [(0, 15, False), (0, 16, True), (-1, 0, True), (1, 0, False)]
)
def test_who_gives_a_message_up_says_so(
    world: World, caplog: pytest.LogCaptureFixture, level: int, times: int, is_dead: bool
) -> None:
    """Covers C-401: the broker has it among the dead letters."""
    world.give_back(failed_one(reconsume_times=times), level)
    assert ("is given up by group g" in caplog.text) is is_dead
    assert (f"after {times + 1} tries" in caplog.text) is is_dead


def test_a_dead_letter_is_sent_to_its_topic(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Covers C-289: to the end, though nobody waits; or it is consumed again."""
    assert world.run(world.send_back.give_up(failed_one(reconsume_times=3), 3)) is True
    ((copy, _),) = world.copies
    assert copy.topic == f"%RETRY%{GROUP}" or copy.topic == f"%DLQ%{GROUP}"
    assert copy.reconsume_times >= 3
    assert "is given up by group g after 4 tries" in caplog.text
    world.unsent = SendError("no", SendOutcome.NOT_SENT)
    assert world.run(world.send_back.give_up(failed_one(), 3)) is False
    assert "could not be sent to the dead-letter topic" in caplog.text
    assert caplog.text.count("is given up") == 1


def test_what_was_begun_is_done_to_the_end(world: World) -> None:
    """Covers C-119: whoever waited for it was cancelled; the shutdown waits."""
    world.holds = True
    waiting = world.loop.create_task(world.send_back.give_up(failed_one(), 3))
    world.turn()
    waiting.cancel()
    world.turn()
    assert waiting.cancelled()
    draining = world.loop.create_task(world.send_back.drain())
    world.turn()
    assert not draining.done()
    assert world.answered is not None
    world.answered(None, None)
    world.turn()
    assert draining.done()
    assert not world.send_back._tasks


def test_an_answer_that_comes_twice_or_too_late_harms_nobody(world: World) -> None:
    world.holds = True
    task = world.loop.create_task(world.send_back.give_up(failed_one(), 3))
    world.turn()
    assert world.answered is not None
    world.answered(None, None)
    world.answered(None, SendError("no", SendOutcome.NOT_SENT))
    world.turn()
    assert task.result() is True


# --- messages that say why they failed ------------------------------------------------------------


@pytest.fixture
def telling(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(monkeypatch, tells_cause=True)
    yield made
    made.loop.close()


def caused() -> MessageExt:
    message = failed_one()
    assert message.properties is not None
    tell_cause([message], "TIMEOUT", "too long", None)
    assert has_cause(message)
    return message


def test_a_message_that_says_why_it_failed_is_sent_anew(telling: World) -> None:
    """The broker would copy what it stores; one that says nothing is sent back."""
    telling.give_back(caused(), 2)
    assert (len(telling.copies), telling.backs) == (1, [])
    telling.give_back(failed_one(), 2)
    assert (len(telling.copies), len(telling.backs)) == (1, 1)


def test_nobody_sends_causes_unless_told_to(world: World) -> None:
    world.give_back(caused())
    assert (world.copies, len(world.backs)) == ([], 1)


@pytest.mark.parametrize(
    ("outcome", "next_copies"), [(SendOutcome.NOT_SENT, 2), (SendOutcome.UNKNOWN, 1)]
)
def test_a_cause_that_cannot_be_sent_is_left_out(
    telling: World, outcome: SendOutcome, next_copies: int
) -> None:
    """For a minute, where the copy may be stored all the same: each failure would leave two."""
    telling.unsent = SendError("no", outcome)
    telling.give_back(caused())
    assert (len(telling.copies), len(telling.backs)) == (1, 1)
    telling.unsent = None
    telling.turn(59_999)
    telling.give_back(caused())
    assert len(telling.copies) == next_copies
    assert len(telling.backs) == (1 if next_copies == 2 else 2)
    telling.turn(1)
    telling.give_back(caused())
    assert len(telling.copies) == next_copies + 1


def test_a_mistake_while_a_cause_is_sent_leaves_it_out_once(
    telling: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: Any, **more: Any) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(send_back, "fallback_message", broken)
        telling.give_back(caused())
    assert (telling.copies, len(telling.backs)) == ([], 1)
    telling.give_back(caused())
    assert len(telling.copies) == 1


def test_the_first_failure_of_a_process_may_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the first moments of the clock."""
    world = World(monkeypatch, tells_cause=True)
    world.loop.now_s = 0.0
    world.give_back(caused())
    assert len(world.copies) == 1
    world.loop.close()


# --- what a listener failed -----------------------------------------------------------------------


class Back:
    """Takes single messages back, as the test says.

    Attributes:
        refuses: whether they cannot be given back.
        given: offsets and levels.
    """

    def __init__(self) -> None:
        self.refuses = False
        self.given: list[tuple[int, int]] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.opened: asyncio.Event | None = None

    def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        self.tasks.append(asyncio.get_running_loop().create_task(work))
        return self.tasks[-1]

    async def give_back(self, message: MessageExt, level: int) -> None:
        self.given.append((message.queue_offset, level))
        if self.opened is not None:
            await self.opened.wait()
        if self.refuses:
            raise SendError("no", SendOutcome.NOT_SENT)

    async def drain(self) -> None:
        await asyncio.gather(*self.tasks)


class Failing:
    """Failed messages of a queue, and what becomes of them."""

    def __init__(self, *, tells_cause: bool = False) -> None:
        self.loop = StillLoop()
        self.back = Back()
        self.noted: list[int] = []
        self.again: list[list[int]] = []
        links = QueueLinks(
            cast(Any, SimpleNamespace(update_offset=lambda mq, offset: self.noted.append(offset))),
            lambda _: None,
            lambda _, messages: self.again.append([each.queue_offset for each in messages]),
            cast(Any, SimpleNamespace(monotonic_ms=lambda: 0.0)),
        )
        held = ProcessQueue(MessageQueue(TOPIC, "broker-a", 0), 0)
        self.queue = AssignedQueue(held, 0, Thresholds(), links)
        self.messages = [queued(offset) for offset in range(4)]
        self.queue.put(self.messages, 4)

        async def make() -> FailedMessages:
            return FailedMessages(cast(Any, self.back), 1_500, tells_cause=tells_cause)

        self.failed = self.loop.run_until_complete(make())

    def turn(self, ms: float = 0) -> None:
        self.loop.now_s += ms / 1000
        for _ in range(6):
            self.loop.run_until_complete(asyncio.sleep(0))

    def submit(self, *offsets: int, level: int = 0) -> None:
        self.failed.submit(self.queue, [self.messages[each] for each in offsets], level)


@pytest.fixture
def failing() -> Iterator[Failing]:
    made = Failing()
    yield made
    made.loop.close()


def test_failed_messages_are_done_once_they_are_back(
    failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-264, C-270: with their level; the queue is not free before."""
    failing.back.opened = asyncio.Event()
    failing.submit(0, 1, level=3)
    wakes: list[object] = []
    monkeypatch.setattr(failing.loop, "call_soon_threadsafe", wakes.append)
    failing.submit(2)
    monkeypatch.undo()
    assert (failing.back.given, failing.queue.is_free) == ([], False)
    assert wakes == [], "the loop looks once for all that comes before it does"
    failing.turn()
    assert failing.back.given == [(0, 3), (1, 3), (2, 0)]
    assert (failing.noted, failing.queue.is_free) == ([], False)
    failing.back.opened.set()
    failing.turn()
    assert (failing.noted[-1], failing.queue.is_free) == (3, True)
    failing.submit(3)
    failing.turn()
    assert failing.noted[-1] == 4


def test_what_cannot_be_given_back_is_consumed_again_here(failing: Failing) -> None:
    """Covers C-266, C-267: each after its own pause, one try later; together what failed together.

    A message that failed while another waited came again with that one, in no time.
    """
    failing.back.refuses = True
    failing.submit(0, 1)
    failing.turn()
    assert failing.queue.is_free
    assert [message.reconsume_times for message in failing.messages] == [1, 1, 0, 0]
    failing.turn(1_000)
    failing.submit(2)
    failing.turn()
    assert len(failing.failed._timers) == 1
    failing.turn(499)
    assert failing.again == []
    failing.turn(2)
    assert failing.again == [[0, 1]]
    assert len(failing.failed._timers) == 1
    failing.turn(1_000)
    assert failing.again == [[0, 1], [2]]
    assert (failing.noted, failing.failed._timers, failing.failed._later) == ([], set(), {})
    failing.submit(3)
    failing.turn()
    failing.turn(1_502)
    assert failing.again == [[0, 1], [2], [3]]


def test_what_waits_here_is_forgotten_with_its_queue(failing: Failing) -> None:
    """Covers C-268, C-549: whether it was dropped before or after it was refused."""
    failing.back.refuses = True
    failing.submit(0)
    failing.turn()
    failing.back.opened = asyncio.Event()
    failing.submit(1)
    failing.turn()
    failing.queue.drop()
    failing.back.opened.set()
    failing.turn()
    failing.turn(1_502)
    assert failing.again == []
    assert failing.messages[1].reconsume_times == 0
    failing.submit(2)
    failing.turn()
    assert failing.back.given == [(0, 0), (1, 0)]
    assert failing.queue.is_free


def test_what_was_sent_back_meanwhile_is_not_sent_back_again(failing: Failing) -> None:
    """Covers C-251: the others are."""
    failing.queue.finish(failing.messages[0])
    failing.submit(0, 1)
    failing.turn()
    assert failing.back.given == [(1, 0)]
    assert failing.queue.is_free


@pytest.mark.parametrize("refuses", [False, True])
def test_an_expired_message_is_sent_back_with_a_level_of_its_own(
    failing: Failing, refuses: bool
) -> None:
    """Covers C-248: or it stays with its listener, and is consumed nowhere else."""
    failing.back.refuses = refuses
    work = failing.failed.expire(failing.queue, failing.messages[0])
    assert failing.loop.run_until_complete(work) is not refuses
    assert failing.back.given == [(0, 3)]
    assert failing.queue.is_free
    failing.turn(1_502)
    assert failing.again == []
    assert failing.messages[0].reconsume_times == 0
    assert not has_cause(failing.messages[0])


def test_a_message_that_waits_here_is_with_no_listener_that_takes_too_long(
    failing: Failing,
) -> None:
    """A second send-back would count a try it has not had: it would be dead one too early."""
    failing.back.refuses = True
    failing.submit(0)
    failing.turn()
    failing.back.refuses = False
    work = failing.failed.expire(failing.queue, failing.messages[0])
    assert not failing.loop.run_until_complete(work)
    assert failing.back.given == [(0, 0)]
    failing.turn(1_502)
    assert failing.again
    work = failing.failed.expire(failing.queue, failing.messages[0])
    assert failing.loop.run_until_complete(work), "it is with a listener again"
    assert failing.back.given == [(0, 0), (0, 3)]


def test_an_expired_message_says_that_it_took_too_long() -> None:
    failing = Failing(tells_cause=True)
    failing.loop.run_until_complete(failing.failed.expire(failing.queue, failing.messages[0]))
    assert has_cause(failing.messages[0])
    failing.loop.close()


def test_the_end_waits_for_what_was_submitted_and_retries_nothing(failing: Failing) -> None:
    """Covers C-119, C-268: though it has just come, or waits already."""
    failing.back.refuses = True
    failing.submit(0)
    failing.turn()
    (timer,) = failing.failed._timers
    failing.failed._inbox_due = True  # the loop has not looked yet
    failing.submit(1)
    failing.loop.run_until_complete(failing.failed.drain())
    assert failing.back.given == [(0, 0), (1, 0)]
    assert failing.queue.is_free
    assert timer.cancelled()
    failing.turn(1_502)
    assert failing.again == []
    failing.submit(2)
    failing.turn()
    assert failing.back.given[-1] == (2, 0)
    assert failing.messages[2].reconsume_times == 0, "what comes after the end waits for nothing"


def test_what_fails_in_broadcasting_counts_as_done(
    failing: Failing, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-249, C-263, C-585: told; one that takes long is left to its listener."""
    dropped = DroppedMessages()
    with caplog.at_level(logging.WARNING):
        dropped.submit(failing.queue, failing.messages[:2], 0)
    assert failing.noted == [2]
    assert len(caplog.records) == 2
    assert (
        failing.loop.run_until_complete(dropped.expire(failing.queue, failing.messages[2])) is False
    )
    failing.loop.run_until_complete(dropped.drain())
