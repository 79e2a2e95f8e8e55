"""Producers, sync, future and asyncio, against brokers that do what the test says."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rocketstream import ClientConfig, Message, Producer, SendOutcome, SendStatus, aio
from rocketstream.errors import (
    BrokerError,
    ConnectError,
    NoPermissionError,
    RequestTimeoutError,
    SendError,
)
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import SendMessageRequestHeader, SendMessageResponseHeader
from tests.kits.client.fake_broker import TOPIC, WAIT_S, FakeBroker, answer, refusal
from tests.plugins.waiting import wait_until

SEND = RequestCode.SEND_MESSAGE_V2
Sender = Callable[..., Any]


@pytest.fixture
def pair() -> Iterator[tuple[FakeBroker, FakeBroker]]:
    """Two brokers; the first also is the name server, and both hold topic T."""
    with FakeBroker() as one, FakeBroker(name="broker-b") as two:
        one.others = [two]
        yield one, two


def sync_send(address: str, message: Message, **settings: Any) -> Any:
    with Producer("pg", namesrv_addr=address, **settings) as producer:
        return producer.send(message)


def future_send(address: str, message: Message, **settings: Any) -> Any:
    with Producer("pg", namesrv_addr=address, **settings) as producer:
        return producer.send_async(message).result(WAIT_S)


def aio_send(address: str, message: Message, **settings: Any) -> Any:
    async def scenario() -> Any:
        async with aio.Producer("pg", namesrv_addr=address, **settings) as producer:
            return await producer.send(message)

    return asyncio.run(scenario())


every_form = pytest.mark.parametrize("send", [sync_send, future_send, aio_send])


def unique_keys(*brokers: FakeBroker) -> list[str]:
    """Return the UNIQ_KEY of every send the brokers got."""
    headers = [SendMessageRequestHeader.from_ext_v2(a.ext) for b in brokers for a in b.asked(SEND)]
    return [
        (header.properties or "").split("UNIQ_KEY\x01")[1].split("\x02")[0] for header in headers
    ]


@every_form
@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205, 1500])
def test_a_refusal_worth_a_retry_goes_to_the_other_broker(
    pair: tuple[FakeBroker, FakeBroker], send: Sender, code: int
) -> None:
    """Covers C-87, C-460, C-461, C-468, C-601, C-602: same key, the other broker's own queue."""
    one, two = pair
    one.on[SEND] = refusal(code)
    results = [send(one.address, Message(TOPIC, b"x")) for _ in range(4)]
    assert {result.message_queue.broker_name for result in results} == {"broker-b"}
    keys = unique_keys(one, two)
    assert len(set(keys)) == 4
    assert len(two.asked(SEND)) == 4


@every_form
def test_a_final_refusal_is_not_repeated(pair: tuple[FakeBroker, FakeBroker], send: Sender) -> None:
    """Covers C-461: REJECTED, and the broker's words are in the text."""
    one, two = pair
    one.on[SEND] = two.on[SEND] = refusal(13, "the message is illegal")
    with pytest.raises(SendError, match=r"CODE: 13.*the message is illegal") as raised:
        send(one.address, Message(TOPIC, b"x"))
    assert raised.value.outcome is SendOutcome.REJECTED
    assert isinstance(raised.value.__cause__, BrokerError)
    assert len(one.asked(SEND)) + len(two.asked(SEND)) == 1


@every_form
def test_all_tries_are_made_and_named(pair: tuple[FakeBroker, FakeBroker], send: Sender) -> None:
    """Covers C-83, C-459, C-462."""
    one, two = pair
    one.on[SEND] = two.on[SEND] = refusal(16, "no permission")
    with pytest.raises(
        SendError, match=r"Send \[3\] times, still failed, .*BrokersSent: "
    ) as raised:
        send(one.address, Message(TOPIC, b"x"))
    assert raised.value.outcome is SendOutcome.REJECTED
    assert isinstance(raised.value.__cause__, NoPermissionError)
    assert len(one.asked(SEND)) + len(two.asked(SEND)) == 3


@every_form
def test_silence_leaves_the_outcome_unknown(send: Sender) -> None:
    """Covers C-464, C-80: the budget ends the tries; the message may be stored."""
    with FakeBroker() as broker:
        broker.on[SEND] = lambda _: None
        with pytest.raises(SendError) as raised:
            send(broker.address, Message(TOPIC, b"x"), send_msg_timeout_ms=400)
    assert raised.value.outcome is SendOutcome.UNKNOWN
    assert isinstance(raised.value.__cause__, RequestTimeoutError)
    assert raised.value.retriable


@every_form
def test_a_dead_broker_is_passed_over(send: Sender) -> None:
    """Covers C-461: the living one takes everything."""
    with FakeBroker() as one:
        with FakeBroker(name="broker-b") as two:
            one.others = [two]
        for _ in range(3):
            result = send(one.address, Message(TOPIC, b"x"))
            assert result.message_queue.broker_name == "broker-a"


@every_form
def test_nothing_but_dead_brokers_means_not_sent(send: Sender, closed_port: int) -> None:
    """Covers C-462: the error is a ConnectError as well."""
    with FakeBroker() as one:
        address = one.address
        one.address = f"127.0.0.1:{closed_port}"
        with pytest.raises(ConnectError, match="BrokersSent") as raised:
            send(address, Message(TOPIC, b"x"))
    assert isinstance(raised.value, SendError)
    assert raised.value.outcome is SendOutcome.NOT_SENT


@pytest.fixture
def closed_port() -> Iterator[int]:
    import socket

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@every_form
@pytest.mark.parametrize("again", [False, True])
def test_a_stored_message_with_a_remark_is_a_result_unless_asked_otherwise(
    pair: tuple[FakeBroker, FakeBroker], send: Sender, again: bool
) -> None:
    """Covers C-85, C-461, C-473: the last result counts."""
    one, two = pair
    numbers = itertools.count()

    def first_badly(_: RemotingCommand) -> RemotingCommand:
        code = 10 if next(numbers) == 0 else 0
        return answer(code, SendMessageResponseHeader("ID", 0, 0))

    one.on[SEND] = two.on[SEND] = first_badly
    result = send(one.address, Message(TOPIC, b"x"), retry_another_broker_when_not_store_ok=again)
    expected = SendStatus.SEND_OK if again else SendStatus.FLUSH_DISK_TIMEOUT
    assert result.send_status is expected
    assert len(set(unique_keys(one, two))) == 1


@every_form
def test_an_answer_that_cannot_be_read_leaves_the_outcome_unknown(send: Sender) -> None:
    """Covers the rule that a peer's bytes are hostile: no KeyError gets out."""
    with FakeBroker() as broker:
        broker.on[SEND] = lambda _: RemotingCommand.response(0)
        with pytest.raises(SendError, match="msgId") as raised:
            send(broker.address, Message(TOPIC, b"x"))
    assert raised.value.outcome is SendOutcome.UNKNOWN


def test_a_batch_that_fails_half_way_says_what_is_stored() -> None:
    """Covers C-477: the results of the parts before are in the error."""
    numbers = itertools.count()
    with FakeBroker() as broker:
        broker.on[RequestCode.SEND_BATCH_MESSAGE] = lambda _: (
            answer(0, SendMessageResponseHeader("ID", 0, 0))
            if next(numbers) == 0
            else RemotingCommand.response(13, "no")
        )
        with (
            Producer("pg", namesrv_addr=broker.address, max_message_size=1000) as producer,
            pytest.raises(SendError) as raised,
        ):
            producer.send([Message(TOPIC, b"x" * 400) for _ in range(4)])
    assert len(raised.value.parameters["sent"]) == 1
    assert raised.value.parameters["sent"][0].msg_id.count(",") == 1


def test_the_heartbeat_names_the_group_and_shutdown_unregisters_it() -> None:
    """Covers C-446, C-448."""
    with FakeBroker() as broker:
        config = ClientConfig(namesrv_addr=broker.address, heartbeat_broker_interval_ms=20)
        with Producer("pg", config=config) as producer:
            producer.send(Message(TOPIC, b"x"))
            wait_until(lambda: broker.heartbeats, "a heartbeat")
            beat = broker.heartbeats[-1]
            assert beat.client_id == producer.client_id
            names = [data.group_name for data in beat.producer_data_set]
            assert names == ["pg", "CLIENT_INNER_PRODUCER"]
            assert not beat.consumer_data_set
        (goodbye,) = broker.asked(RequestCode.UNREGISTER_CLIENT)
    assert goodbye.ext == {"clientID": producer.client_id, "producerGroup": "pg"}


def test_two_producers_of_one_instance_share_it() -> None:
    """Covers C-18, C-127, C-132: one client id, one engine; it ends with the last of them."""
    with FakeBroker() as broker:
        config = ClientConfig(namesrv_addr=broker.address, instance_name="shared")
        with Producer("one", config=config) as one:
            with Producer("two", config=config) as two:
                assert one.client_id == two.client_id
                two.send(Message(TOPIC, b"x"))
            one.send(Message(TOPIC, b"x"))
            one.send_async(Message(TOPIC, b"x")).result(WAIT_S)
        assert len(broker.asked(SEND)) == 3


def test_requests_are_signed() -> None:
    """Covers W 6.2: every request of both paths carries key and signature, never the secret."""
    with FakeBroker() as broker:
        config = ClientConfig(namesrv_addr=broker.address, access_key="ak", secret_key="sk1234")
        with Producer("pg", config=config) as producer:
            producer.send(Message(TOPIC, b"x"))
            producer.send_async(Message(TOPIC, b"x")).result(WAIT_S)
        for code in (SEND, RequestCode.GET_ROUTEINFO_BY_TOPIC):
            for asked in broker.asked(code):
                assert asked.ext["AccessKey"] == "ak"
                assert asked.ext["Signature"]
                assert "sk1234" not in str(asked.ext)


def test_a_window_that_stays_full_is_an_error_not_a_pile() -> None:
    """Covers C-467: the bound of messages on their way holds; the refused one was not sent."""
    from rocketstream.client.producer.send_future import SendWindow

    window = SendWindow(2, 100)
    window.enter(10, 1)
    window.enter(10, 1)
    with pytest.raises(SendError, match="2 messages of 20 bytes are on their way") as raised:
        window.enter(10, 1)
    assert raised.value.outcome is SendOutcome.NOT_SENT
    window.enter(10, 1, waits=False)
    assert not window.wait_empty(1)
    for _ in range(3):
        window.leave(10, 0)
    assert window.wait_empty(1)
    window.enter(100, 1)
    with pytest.raises(SendError):
        window.enter(1, 1)
