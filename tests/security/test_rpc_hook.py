"""RPC hooks, the stream mark and signatures on every path a request can take."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from rocketstream import LitePullConsumer, Message, Producer, PushConsumer, RPCHook, aio
from rocketstream.errors import SendError, SendOutcome
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.signing import sign
from tests.kits.client.fake_broker import GROUP, TOPIC, WAIT_S, FakeBroker, found
from tests.kits.listeners import Seen

SEND = RequestCode.SEND_MESSAGE_V2
PULL = RequestCode.PULL_MESSAGE


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        running.offsets[0] = 0
        yield running


class Hook:
    """Marks every request, remembers every answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.answered: list[tuple[int, int]] = []

    def before_request(self, address: str, command: RemotingCommand) -> None:
        command.ext_fields = {**(command.ext_fields or {}), "mark": "m"}

    def after_response(
        self, address: str, command: RemotingCommand, response: RemotingCommand
    ) -> None:
        with self._lock:
            self.answered.append((command.code, response.code))


def hook_of_this_module() -> RPCHook:
    return Hook()


def test_a_hook_sees_every_kind_of_send_and_its_answer(broker: FakeBroker) -> None:
    """Covers C-18: blocking, with a future, one-way and from asyncio."""
    hook = Hook()

    async def send() -> None:
        async with aio.Producer("a", namesrv_addr=broker.address, rpc_hook=hook) as producer:
            await producer.send(Message(TOPIC, b"4"))

    with Producer("p", namesrv_addr=broker.address, rpc_hook=hook) as producer:
        for body in (b"1", b"2"):  # the first learns the route, the second goes straight
            producer.send(Message(TOPIC, body))
        producer.send_async(Message(TOPIC, b"3")).result(20)
        producer.send_oneway(Message(TOPIC, b"oneway"))
        asyncio.run(send())
        sends = broker.wait_for(SEND, 5)
    assert {each.ext.get("mark") for each in sends} == {"m"}
    assert hook.answered.count((SEND, 0)) == 4
    assert (RequestCode.GET_ROUTEINFO_BY_TOPIC, 0) in hook.answered


def test_a_hook_sees_what_a_consumer_asks(broker: FakeBroker) -> None:
    """Covers C-18: pulls, heartbeats, offsets, members."""
    hook, seen = Hook(), Seen()
    made = PushConsumer(GROUP, namesrv_addr=broker.address, listener=seen, rpc_hook=hook)
    made.subscribe(TOPIC)
    with made:
        broker.reply(broker.wait_pull(0), found([0]))
        seen.wait_consumed(1)
        broker.wait_pull(1)
    asked = [each for code in (PULL, RequestCode.HEART_BEAT) for each in broker.asked(code)]
    assert {each.ext.get("mark") for each in asked} == {"m"}
    assert (PULL, 0) in hook.answered
    assert (RequestCode.QUERY_CONSUMER_OFFSET, 0) in hook.answered


class Refusing(Hook):
    """Refuses the messages that say so."""

    def before_request(self, address: str, command: RemotingCommand) -> None:
        if command.body == b"refuse":
            raise PermissionError("not today")


def send_sync(producer: Producer, message: Message) -> None:
    producer.send(message)


def send_future(producer: Producer, message: Message) -> None:
    producer.send_async(message).result(WAIT_S)


def send_oneway(producer: Producer, message: Message) -> None:
    producer.send_oneway(message)


@pytest.mark.parametrize("send", [send_sync, send_future, send_oneway])
@pytest.mark.parametrize("connected", [True, False])
def test_a_hook_that_refuses_keeps_the_message_here(
    broker: FakeBroker, send: Callable[[Producer, Message], None], connected: bool
) -> None:
    """What raises before a request is written fails it, once; those behind it are sent."""
    with Producer("p", namesrv_addr=broker.address, rpc_hook=Refusing()) as producer:
        if connected:
            send(producer, Message(TOPIC, b"1"))
        with pytest.raises(SendError, match="not today") as raised:
            send(producer, Message(TOPIC, b"refuse"))
        assert isinstance(raised.value.__cause__, PermissionError)
        assert raised.value.outcome is SendOutcome.NOT_SENT
        assert raised.value.parameters["topic"] == TOPIC
        send(producer, Message(TOPIC, b"2"))
        sends = broker.wait_for(SEND, 2 if connected else 1)
    assert [each.command.body for each in sends] == [b"1", b"2"][not connected :]


def test_a_hook_that_refuses_keeps_an_awaited_message_here(broker: FakeBroker) -> None:
    """The same, from asyncio."""

    async def scenario() -> None:
        async with aio.Producer("p", namesrv_addr=broker.address, rpc_hook=Refusing()) as producer:
            for send in (producer.send, producer.send_oneway):
                with pytest.raises(SendError, match="not today") as raised:
                    await send(Message(TOPIC, b"refuse"))
                assert isinstance(raised.value.__cause__, PermissionError)
                assert raised.value.outcome is SendOutcome.NOT_SENT
                await send(Message(TOPIC, b"2"))

    asyncio.run(scenario())
    assert [each.command.body for each in broker.wait_for(SEND, 2)] == [b"2", b"2"]


def test_a_hook_that_refuses_another_try_leaves_the_outcome_of_the_first(
    broker: FakeBroker,
) -> None:
    """What the first try may have stored is not called unsent because the second was refused."""

    class Once(Hook):
        sends = 0

        def before_request(self, address: str, command: RemotingCommand) -> None:
            self.sends += command.code == SEND
            if self.sends == 2:
                raise PermissionError("not twice")

    unflushed = RemotingCommand.response(ResponseCode.SERVICE_NOT_AVAILABLE, "not flushed")
    broker.on[SEND] = lambda _: unflushed
    with (
        Producer("p", namesrv_addr=broker.address, rpc_hook=Once()) as producer,
        pytest.raises(SendError, match="not twice") as raised,
    ):
        producer.send(Message(TOPIC, b"1"))
    assert raised.value.outcome is SendOutcome.UNKNOWN


def test_what_a_hook_raises_elsewhere_reaches_the_caller_as_it_is(broker: FakeBroker) -> None:
    class Shut(Hook):
        def before_request(self, address: str, command: RemotingCommand) -> None:
            if command.code == RequestCode.GET_MAX_OFFSET:
                raise PermissionError("not today")

    with (
        Producer("p", namesrv_addr=broker.address, rpc_hook=Shut()) as producer,
        pytest.raises(PermissionError, match="not today"),
    ):
        producer.max_offset(producer.fetch_publish_message_queues(TOPIC)[0])


def test_signatures_cover_marks_and_hooks_on_fast_paths(broker: FakeBroker) -> None:
    """Covers C-17, C-18: whichever path built the frame, the signature fits what arrived."""
    with (
        Producer(
            "p",
            namesrv_addr=broker.address,
            access_key="ak",
            secret_key="sk",
            rpc_hook=hook_of_this_module(),
            enable_stream_request_type=True,
        ) as producer,
        LitePullConsumer(
            GROUP, namesrv_addr=broker.address, access_key="ak", secret_key="sk"
        ) as consumer,
    ):
        producer.send(Message(TOPIC, b"x"))
        producer.send_async(Message(TOPIC, b"y")).result(20)
        consumer.subscribe(TOPIC)
        pull = broker.wait_pull(0)
    for asked in [*broker.asked(SEND), pull]:
        ext = dict(asked.ext)
        assert ext["ReqT"] == "0"
        signature = ext.pop("Signature")
        ext.pop("AccessKey")
        body = bytes(asked.command.body)
        assert signature == sign(ext, body, "ak", "sk", None)["Signature"]
    assert all(asked.ext["mark"] == "m" for asked in broker.asked(SEND))
