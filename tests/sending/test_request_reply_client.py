"""Requests and replies against a broker that does what the test says (C-479 to C-482)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import pickle
import queue
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from rocketstream import (
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    ReplyTimeoutError,
    SendOutcome,
    aio,
    create_reply_message,
)
from rocketstream._util.executors import CallbackExecutor
from rocketstream.client.instance.background import call_back
from rocketstream.errors import (
    ClientStateError,
    MessageInvalidError,
    RequestTimeoutError,
    SendError,
    SendRouteError,
)
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.compression import compress
from rocketstream.protocol.headers import (
    ReplyMessageRequestHeader,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
)
from rocketstream.protocol.properties import decode_properties
from tests.kits.client.fake_broker import TOPIC, WAIT_S, Asked, FakeBroker, answer, refusal

SEND = RequestCode.SEND_MESSAGE_V2
PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as running:
        yield running


def request_properties(asked: Asked) -> dict[str, str]:
    return decode_properties(SendMessageRequestHeader.from_ext_v2(asked.ext).properties or "")


def push_reply(
    broker: FakeBroker, asked: Asked, body: bytes = b"pong", *, sys_flag: int = 0, **changes: Any
) -> RemotingCommand:
    """Push a reply over the connection the client announced itself on; return its answer."""
    properties = request_properties(asked)
    header = ReplyMessageRequestHeader(
        "responders", "c_REPLY_TOPIC", "TBW102", 4, 0, sys_flag, 1, 0,
        changes.get("born_host", "127.0.0.1:5000"), "127.0.0.1:10911", 2,
        "\x02".join(
            f"{name}\x01{value}"
            for name, value in {
                "CORRELATION_ID": changes.get("correlation_id", properties["CORRELATION_ID"]),
                "MSG_TYPE": "reply",
                "PUSH_REPLY_TIME": "3",
                "UNIQ_KEY": "U",
            }.items()
        ),
    )  # fmt: skip
    command = RemotingCommand.request(PUSH, header, body)
    beats = broker.wait_for(RequestCode.HEART_BEAT)

    async def push() -> RemotingCommand:
        return await beats[-1].connection.request(command, 5_000)

    return broker.thread.run(push())


def replying(broker: FakeBroker, **how: Any) -> threading.Thread:
    """Answer the next request from a thread."""

    def main() -> None:
        push_reply(broker, broker.wait_for(SEND)[-1], **how)

    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    return thread


def sync_request(address: str, message: Message, **more: Any) -> MessageExt:
    with Producer("pg", namesrv_addr=address) as producer:
        return producer.request(message, **more)


def future_request(address: str, message: Message, **more: Any) -> MessageExt:
    with Producer("pg", namesrv_addr=address) as producer:
        return producer.request_async(message, **more).result(WAIT_S)


def callback_request(address: str, message: Message, **more: Any) -> MessageExt:
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with Producer("pg", namesrv_addr=address) as producer:
        producer.request_async(message, callback=done.put, **more)
        future: concurrent.futures.Future[MessageExt] = done.get(timeout=WAIT_S)
        return future.result(0)


def aio_request(address: str, message: Message, **more: Any) -> MessageExt:
    async def scenario() -> MessageExt:
        async with aio.Producer("pg", namesrv_addr=address) as producer:
            return await producer.request(message, **more)

    return asyncio.run(scenario())


every_form = pytest.mark.parametrize(
    "ask", [sync_request, future_request, callback_request, aio_request]
)
Ask = Callable[..., MessageExt]


@every_form
def test_the_reply_comes_back_to_who_asked(broker: FakeBroker, ask: Ask) -> None:
    """Covers C-479, C-482: correlation id, client id, time to live; and the reply's properties."""
    thread = replying(broker)
    message = Message(TOPIC, b"ping")
    reply = ask(broker.address, message, timeout_ms=20_000)
    thread.join(WAIT_S)

    assert (reply.body, reply.topic) == (b"pong", "c_REPLY_TOPIC")
    assert reply.get_property("MSG_TYPE") == "reply"
    assert int(reply.get_property("ARRIVE_TIME") or 0) > 0
    (asked,) = broker.asked(SEND)
    properties = request_properties(asked)
    assert properties["TTL"] == "20000"
    assert properties["REPLY_TO_CLIENT"] == broker.heartbeats[0].client_id
    assert len(properties["CORRELATION_ID"]) == 36
    assert properties["CORRELATION_ID"] == reply.get_property("CORRELATION_ID")


@pytest.mark.parametrize("form", ["request", "request_async", "send_async"])
def test_a_selector_runs_on_the_callers_thread(broker: FakeBroker, form: str) -> None:
    """Covers C-470: one that blocks keeps no heartbeat and no pull of the process waiting."""
    threads: list[int] = []

    def selector(queues: Sequence[MessageQueue], message: Message, arg: Any) -> MessageQueue:
        threads.append(threading.get_ident())
        return queues[int(arg)]

    thread = replying(broker) if form != "send_async" else None
    with Producer("pg", namesrv_addr=broker.address) as producer:
        answer = getattr(producer, form)(Message(TOPIC, b"ping"), selector=selector, arg=0)
        if form != "request":
            answer.result(WAIT_S)
    if thread is not None:
        thread.join(WAIT_S)
    assert threads == [threading.get_ident()]


@pytest.mark.parametrize("form", ["request", "request_async", "send_async"])
def test_a_selector_that_raises_fails_what_it_was_for(broker: FakeBroker, form: str) -> None:
    def selector(queues: Sequence[MessageQueue], message: Message, arg: Any) -> MessageQueue:
        raise LookupError("no queue")

    with Producer("pg", namesrv_addr=broker.address) as producer:
        if form == "request":
            with pytest.raises(SendError, match="no queue"):
                producer.request(Message(TOPIC, b"ping"), selector=selector)
        else:
            answer = getattr(producer, form)(Message(TOPIC, b"ping"), selector=selector)
            with pytest.raises(SendError, match="no queue"):
                answer.result(WAIT_S)
    assert broker.asked(SEND) == []


@every_form
def test_no_reply_in_time_is_a_timeout(broker: FakeBroker, ask: Ask) -> None:
    """Covers C-479: the request is stored; the error says so and may be caught in three ways."""
    error: SendError | None = None
    for timeout_ms in (150, 1_000, 10_000):
        with pytest.raises(SendError) as raised:
            ask(broker.address, Message(TOPIC, b"ping"), timeout_ms=timeout_ms)
        error = raised.value
        if error.outcome is not SendOutcome.NOT_SENT:  # else a busy machine had no time to send
            break
    assert isinstance(error, ReplyTimeoutError)
    assert re.search("no reply within .* topic 'T' was stored", str(error))
    assert error.sent
    assert error.outcome is SendOutcome.UNKNOWN
    assert isinstance(error, RequestTimeoutError)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (copy.sent, copy.outcome, str(copy)) == (True, SendOutcome.UNKNOWN, str(error))


def test_a_broker_that_stays_silent_is_a_timeout_too(broker: FakeBroker) -> None:
    """Covers C-479: nobody knows whether the request is stored."""
    broker.on[SEND] = lambda _: None
    with pytest.raises(SendError) as raised:
        sync_request(broker.address, Message(TOPIC, b"ping"), timeout_ms=150)
    assert raised.value.outcome is SendOutcome.UNKNOWN


@every_form
def test_a_request_that_is_refused_fails_at_once(broker: FakeBroker, ask: Ask) -> None:
    """Covers C-479: the send's own error."""
    broker.on[SEND] = refusal(13, "illegal")
    with pytest.raises(SendError, match="illegal") as raised:
        ask(broker.address, Message(TOPIC, b"ping"), timeout_ms=20_000)
    assert raised.value.outcome is SendOutcome.REJECTED


@every_form
def test_a_request_without_route_or_body_is_not_sent(broker: FakeBroker, ask: Ask) -> None:
    broker.topics.clear()
    with pytest.raises(SendRouteError):
        ask(broker.address, Message("Nowhere", b"ping"), timeout_ms=20_000)
    with pytest.raises(MessageInvalidError):
        ask(broker.address, Message(TOPIC, b""), timeout_ms=20_000)


def test_a_compressed_reply_is_inflated(broker: FakeBroker) -> None:
    """Covers C-482."""
    body, sys_flag = compress(b"x" * 10_000)
    thread = replying(broker, body=body, sys_flag=sys_flag)
    reply = sync_request(broker.address, Message(TOPIC, b"ping"), timeout_ms=20_000)
    thread.join(WAIT_S)
    assert reply.body == b"x" * 10_000


def test_late_and_strange_replies_are_dropped(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-482: answered, logged, and the request that waits is not disturbed."""
    with Producer("pg", namesrv_addr=broker.address) as producer:
        future = producer.request_async(Message(TOPIC, b"ping"), timeout_ms=20_000)
        (asked,) = broker.wait_for(SEND)
        with caplog.at_level(logging.WARNING):
            assert push_reply(broker, asked, correlation_id="nobody").code == 0
            assert push_reply(broker, asked, born_host="rubbish").code == 1
            assert push_reply(broker, asked, body=b"\x00", sys_flag=0x301).code == 1
        assert not future.done()
        assert push_reply(broker, asked, b"late?").code == 0
        assert future.result(WAIT_S).body == b"late?"
        assert push_reply(broker, asked, b"twice").code == 0
    assert "correlation id nobody" in caplog.text


def test_many_requests_wait_at_once(broker: FakeBroker) -> None:
    """Covers C-482: replies in another order find their requests."""
    with Producer("pg", namesrv_addr=broker.address) as producer:
        futures = [
            producer.request_async(Message(TOPIC, str(n)), timeout_ms=20_000) for n in range(20)
        ]
        for asked in reversed(broker.wait_for(SEND, 20)):
            push_reply(broker, asked, b"re:" + bytes(asked.command.body))
        assert [f.result(WAIT_S).body for f in futures] == [b"re:%d" % n for n in range(20)]


def test_shutdown_ends_what_waits(broker: FakeBroker) -> None:
    """Covers C-448."""
    producer = Producer("pg", namesrv_addr=broker.address)
    producer.start()
    future = producer.request_async(Message(TOPIC, b"ping"), timeout_ms=20_000)
    broker.wait_for(SEND)
    producer.shutdown()
    with pytest.raises((ClientStateError, concurrent.futures.CancelledError)):
        future.result(WAIT_S)


def test_a_callback_that_raises_is_logged_and_one_too_late_still_called(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing a callback does reaches the network thread; closing loses no callback."""
    future: concurrent.futures.Future[MessageExt] = concurrent.futures.Future()
    callbacks = CallbackExecutor(1)
    callbacks.close()
    called: list[object] = []

    def callback(done: object) -> None:
        called.append(done)
        raise LookupError("in a callback")

    call_back(callbacks, "request_async", callback, future)
    assert called == [future]
    assert "a callback of request_async raised" in caplog.text


def test_a_request_announces_the_client_first(broker: FakeBroker) -> None:
    """Covers C-446, C-479: the broker can only push to a client it knows; once is enough."""
    with Producer("pg", namesrv_addr=broker.address) as producer:
        for _ in range(2):
            thread = replying_once(broker)
            producer.request(Message(TOPIC, b"ping"), timeout_ms=20_000)
            thread.join(WAIT_S)
        assert broker.asked(RequestCode.HEART_BEAT)
        names = [each.code for each in broker._asked]
        assert names.index(RequestCode.HEART_BEAT) < names.index(SEND)


def test_a_broker_that_has_gone_is_not_remembered_as_dead(broker: FakeBroker) -> None:
    """A client that lives for months meets many addresses."""
    with Producer("pg", namesrv_addr=broker.address) as producer:
        dead = producer._machine.requests._dead
        dead["10.0.0.9:10911"] = 0.0
        thread = replying_once(broker)
        producer.request(Message(TOPIC, b"ping"), timeout_ms=20_000)
        thread.join(WAIT_S)
        assert dead == {}


def replying_once(broker: FakeBroker) -> threading.Thread:
    count = len(broker.asked(SEND)) + 1

    def main() -> None:
        push_reply(broker, broker.wait_for(SEND, count)[-1])

    thread = threading.Thread(target=main, daemon=True)
    thread.start()
    return thread


# --- the other side -------------------------------------------------------------------------------


def test_a_reply_carries_what_the_broker_needs(broker: FakeBroker) -> None:
    """Covers C-480, C-456: the reply topic of the cluster, copied properties, code 325."""
    request = Message("T", b"ping")
    request.properties |= {
        "CLUSTER": "c", "CORRELATION_ID": "id", "REPLY_TO_CLIENT": "client", "TTL": "3000",
    }  # fmt: skip
    reply = create_reply_message(request, "pong")
    assert (reply.topic, reply.body) == ("c_REPLY_TOPIC", b"pong")
    assert reply.properties == {
        "WAIT": "true", "MSG_TYPE": "reply", "CORRELATION_ID": "id", "REPLY_TO_CLIENT": "client",
        "TTL": "3000",
    }  # fmt: skip

    broker.topics["c_REPLY_TOPIC"] = 1
    code = RequestCode.SEND_REPLY_MESSAGE_V2
    broker.on[code] = lambda _: answer(0, SendMessageResponseHeader("0", 0, 0))
    with Producer("pg", namesrv_addr=broker.address) as producer:
        assert producer.send(reply).offset_msg_id == "0"
        producer.send_oneway(reply)
        broker.wait_for(code, 2)
    assert not broker.asked(SEND)
    header = SendMessageRequestHeader.from_ext_v2(broker.asked(code)[0].ext)
    assert header.topic == "c_REPLY_TOPIC"


def test_only_a_request_from_a_broker_can_be_replied_to() -> None:
    """Covers C-480, C-489: code 10007."""
    with pytest.raises(MessageInvalidError, match=r"its property CLUSTER is missing"):
        create_reply_message(Message("T", b"ping"), b"pong")


def test_a_reply_nobody_waits_for_is_refused(broker: FakeBroker) -> None:
    """Covers C-481: the broker could not push it; the sender learns that."""
    broker.topics["c_REPLY_TOPIC"] = 1
    broker.on[RequestCode.SEND_REPLY_MESSAGE_V2] = refusal(1, "push reply message fail")
    request = Message("T", b"ping")
    request.properties["CLUSTER"] = "c"
    with (
        Producer("pg", namesrv_addr=broker.address, retry_times_when_send_failed=0) as producer,
        pytest.raises(SendError, match="push reply message fail") as raised,
    ):
        producer.send(create_reply_message(request, b"pong"))
    assert raised.value.outcome is SendOutcome.REJECTED
