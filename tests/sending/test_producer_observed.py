"""Hooks, namespaces, unit mode, timed messages and recall of a producer, on the wire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rocketstream import (
    CheckForbiddenContext,
    ClientConfig,
    Message,
    MessageQueue,
    MessageType,
    Producer,
    SendError,
    SendMessageContext,
    SendOutcome,
    SendStatus,
    aio,
)
from rocketstream.errors import ConfigurationError, MessageInvalidError, NotSupportedError
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    RecallMessageRequestHeader,
    RecallMessageResponseHeader,
    SendMessageRequestHeader,
    SendMessageResponseHeader,
)
from rocketstream.protocol.properties import decode_properties
from tests.kits.client.fake_broker import TOPIC, WAIT_S, FakeBroker, answer, ok, refusal

SEND = RequestCode.SEND_MESSAGE_V2
V5_0_0 = 413
HANDLE = "djEgVG9waWMgYnJva2VyLWEgMTcwMDAwMDAwMDAwMCBVS0VZ"
"""v1 Topic broker-a 1700000000000 UKEY"""

Send = Callable[..., Any]


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(queues=4) as running:
        yield running


def sync_send(producer: Producer, message: Any, **more: Any) -> Any:
    return producer.send(message, **more)


def future_send(producer: Producer, message: Any, **more: Any) -> Any:
    return producer.send_async(message, **more).result(WAIT_S)


def oneway_send(producer: Producer, message: Any, **more: Any) -> Any:
    return producer.send_oneway(message, **more)


def send_header(broker: FakeBroker, code: int = SEND) -> SendMessageRequestHeader:
    return SendMessageRequestHeader.from_ext_v2(broker.wait_for(code)[-1].ext)


# --- hooks ----------------------------------------------------------------------------------------


class Recorder:
    """A send hook that remembers."""

    name = "recorder"

    def __init__(self) -> None:
        self.before: list[SendMessageContext] = []
        self.after: list[SendMessageContext] = []

    def send_message_before(self, context: SendMessageContext) -> None:
        assert (context.send_result, context.error) == (None, None)
        context.properties["mark"] = "seen"
        self.before.append(context)

    def send_message_after(self, context: SendMessageContext) -> None:
        self.after.append(context)
        raise LookupError("only logged")


class Forbid:
    """A check-forbidden hook that refuses messages with a tag."""

    name = "forbid"

    def __init__(self) -> None:
        self.asked: list[CheckForbiddenContext] = []

    def check_forbidden(self, context: CheckForbiddenContext) -> None:
        self.asked.append(context)
        if isinstance(context.message, Message) and context.message.tags:
            raise PermissionError("no tags on Sundays")


@pytest.mark.parametrize("auto_batch", [False, True])
def test_a_hook_registered_while_a_message_is_under_way_sees_its_tries(
    broker: FakeBroker, auto_batch: bool
) -> None:
    """Covers C-475: the message was made ready when nobody looked at sends."""
    hook = Recorder()
    message = Message(TOPIC, b"x")

    def registering(queues: Any, message: Message, arg: Any) -> MessageQueue:
        producer.register_send_message_hook(hook)
        queue: MessageQueue = queues[0]
        return queue

    with Producer("pg", namesrv_addr=broker.address, auto_batch=auto_batch) as producer:
        result = producer.send(message, selector=registering)
        assert result.send_status is SendStatus.SEND_OK
    assert [context.message for context in hook.before] == [message]


@pytest.mark.parametrize(
    ("send", "mode"), [(sync_send, "SYNC"), (future_send, "ASYNC"), (oneway_send, "ONEWAY")]
)
def test_send_hooks_see_each_try(broker: FakeBroker, send: Send, mode: str) -> None:
    """Covers C-475: group, mode, broker, message, queue, kind, and how it ended."""
    hook = Recorder()
    message = Message(TOPIC, b"x", delay_level=2)
    with Producer("pg", namesrv_addr=broker.address) as producer:
        producer.register_send_message_hook(hook)
        result = send(producer, message)
    (context,) = hook.after
    assert hook.before == [context]
    assert (context.producer_group, context.communication_mode) == ("pg", mode)
    assert (context.message, context.broker_address) == (message, broker.address)
    assert context.msg_type is MessageType.DELAY_MSG
    assert context.message_queue.topic == TOPIC
    assert context.properties == {"mark": "seen"}
    assert context.born_host
    assert (context.send_result, context.error) == (result, None)


@pytest.mark.parametrize("send", [sync_send, future_send])
def test_send_hooks_see_failures_and_retries(broker: FakeBroker, send: Send) -> None:
    """Covers C-475: a hook before and after each of the three tries."""
    broker.on[SEND] = refusal(1, "busy")
    hook = Recorder()
    with Producer("pg", namesrv_addr=broker.address) as producer:
        producer.register_send_message_hook(hook)
        with pytest.raises(SendError):
            send(producer, Message(TOPIC, b"x"))
    assert len(hook.before) == len(hook.after) == 3
    assert all("busy" in str(context.error) for context in hook.after)


def test_a_batch_is_one_context(broker: FakeBroker) -> None:
    """Covers C-475."""
    hook = Recorder()
    batch = [Message(TOPIC, b"a"), Message(TOPIC, b"b")]
    with Producer("pg", namesrv_addr=broker.address) as producer:
        producer.register_send_message_hook(hook)
        broker.on[RequestCode.SEND_BATCH_MESSAGE] = broker.on[SEND]
        producer.send(batch)
    assert [context.message for context in hook.after] == [batch]


@pytest.mark.parametrize("send", [sync_send, future_send, oneway_send])
def test_a_check_forbidden_hook_stops_a_send(broker: FakeBroker, send: Send) -> None:
    """Covers C-475: nothing leaves, and the error says what the hook said."""
    hook = Forbid()
    with Producer("pg", namesrv_addr=broker.address) as producer:
        producer.register_check_forbidden_hook(hook)
        with pytest.raises(SendError, match="no tags on Sundays") as raised:
            send(producer, Message(TOPIC, b"x", tags="A"))
        assert raised.value.outcome is SendOutcome.NOT_SENT
        send(producer, Message(TOPIC, b"y"))
        broker.wait_for(SEND)
    assert len(broker.asked(SEND)) == 1
    assert [context.group for context in hook.asked] == ["pg", "pg"]


def test_a_forbidden_retry_leaves_the_first_try_in_doubt(broker: FakeBroker) -> None:
    """Covers C-475, C-464: the refusal is of the second try only."""
    hook = Forbid()
    broker.on[SEND] = refusal(1, "busy")
    with Producer("pg", namesrv_addr=broker.address) as producer:
        producer.register_check_forbidden_hook(hook)
        message = Message(TOPIC, b"x")
        check = hook.check_forbidden

        def second_time(context: CheckForbiddenContext) -> None:
            check(context)
            message.properties["TAGS"] = "A"

        hook.check_forbidden = second_time  # type: ignore[method-assign]
        with pytest.raises(SendError, match="no tags") as raised:
            producer.send(message)
    assert raised.value.outcome is SendOutcome.REJECTED


class Leaving:
    """A hook of every kind that wants to end the thread which calls it."""

    name = "leaving"

    def __init__(self, kind: type[BaseException], code: int | None = None) -> None:
        self.kind = kind
        self.code = code
        self.called = 0
        self.stays = False

    def leave(self, *_: object) -> Any:
        self.called += 1
        raise self.kind

    send_message_before = send_message_after = leave

    def check_forbidden(self, context: CheckForbiddenContext) -> None:
        if not self.stays:
            self.leave()

    def before_request(self, address: str, command: RemotingCommand) -> None:
        if command.code == self.code and not self.stays:
            self.leave()

    def after_response(
        self, address: str, command: RemotingCommand, response: RemotingCommand
    ) -> None:
        if command.code == self.code:
            self.leave()


LEAVES = pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
BATCHES = pytest.mark.parametrize("auto_batch", [False, True], ids=["alone", "gathered"])


@LEAVES
@BATCHES
def test_a_send_hook_that_exits_is_passed_over(
    broker: FakeBroker, kind: type[BaseException], auto_batch: bool
) -> None:
    """The network thread goes on, and sends of the next call, too."""
    hook = Leaving(kind)
    with Producer("pg", namesrv_addr=broker.address, auto_batch=auto_batch) as producer:
        producer.register_send_message_hook(hook)
        for body in (b"x", b"y"):
            assert producer.send_async(Message(TOPIC, body)).result(WAIT_S).msg_id
    assert hook.called == 4


@LEAVES
@BATCHES
def test_a_hook_that_exits_refuses_the_message_alone(
    broker: FakeBroker, kind: type[BaseException], auto_batch: bool
) -> None:
    """Whether asked before the send or before the request; others are sent as before."""
    check, rpc = Leaving(kind), Leaving(kind, SEND)
    config = ClientConfig(namesrv_addr=broker.address, rpc_hook=rpc)
    with Producer("pg", config=config, auto_batch=auto_batch) as producer:
        for _ in range(2):
            with pytest.raises(SendError, match=rf"an RPC hook .*{kind.__name__}") as raised:
                producer.send_async(Message(TOPIC, b"x")).result(WAIT_S)
            assert raised.value.outcome is SendOutcome.NOT_SENT
        producer.register_check_forbidden_hook(check)
        for _ in range(2):
            with pytest.raises(SendError, match=rf"a check-forbidden hook .*{kind.__name__}"):
                producer.send_async(Message(TOPIC, b"x")).result(WAIT_S)
        check.stays = rpc.stays = True
        assert producer.send_async(Message(TOPIC, b"y")).result(WAIT_S).msg_id
    assert (check.called, rpc.called) == (2, 3)


@pytest.mark.parametrize("send", [sync_send, future_send, oneway_send])
def test_a_selector_that_says_it_was_cancelled_fails_its_message(
    broker: FakeBroker, send: Send
) -> None:
    selector = Leaving(asyncio.CancelledError).leave
    with Producer("pg", namesrv_addr=broker.address) as producer:
        for _ in range(2):
            with pytest.raises(SendError, match=r"the selector of .*CancelledError"):
                send(producer, Message(TOPIC, b"x"), selector=selector)


def test_hooks_work_in_the_asyncio_face(broker: FakeBroker) -> None:
    """Covers C-475."""
    hook, forbid = Recorder(), Forbid()

    async def scenario() -> None:
        async with aio.Producer("pg", namesrv_addr=broker.address) as producer:
            producer.register_send_message_hook(hook)
            producer.register_check_forbidden_hook(forbid)
            await producer.send(Message(TOPIC, b"x"))
            await producer.send_oneway(Message(TOPIC, b"x"))
            with pytest.raises(SendError, match="no tags"):
                await producer.send(Message(TOPIC, b"x", tags="A"))
            with pytest.raises(SendError, match="no tags"):
                await producer.send_oneway(Message(TOPIC, b"x", tags="A"))

    asyncio.run(scenario())
    assert [c.communication_mode for c in hook.after] == ["ASYNC", "ONEWAY"]


def test_what_is_no_hook_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="send_message_before"):
        Producer("pg").register_send_message_hook(object())  # type: ignore[arg-type]


# --- namespace and unit mode ----------------------------------------------------------------------


@pytest.mark.parametrize("send", [sync_send, future_send])
def test_a_namespace_is_put_on_and_taken_off(broker: FakeBroker, send: Send) -> None:
    """Covers C-148: group and topic on the wire; the user sees neither."""
    broker.topics["ns%T"] = 4
    seen: list[MessageQueue] = []

    def select(queues: Any, message: Message, arg: Any) -> MessageQueue:
        seen.extend(queues)
        chosen: MessageQueue = queues[1]
        return chosen

    message = Message("T", b"x")
    with Producer("pg", namesrv_addr=broker.address, namespace="ns") as producer:
        assert producer.group == "pg"
        result = send(producer, message)
        header = send_header(broker)
        assert (header.producer_group, header.topic) == ("ns%pg", "ns%T")
        assert decode_properties(header.properties or "")["INSTANCE_ID"] == "ns"
        assert result.message_queue.topic == message.topic == "T"
        assert result.msg_id == message.msg_id
        assert send(producer, message, selector=select).message_queue.topic == "T"
        assert {queue.topic for queue in seen} == {"T"}
        (queue, *_) = producer.fetch_publish_message_queues("T")
        assert queue.topic == "T"
        assert send(producer, Message("T", b"x"), message_queue=queue).message_queue.topic == "T"
        broker.on[RequestCode.SEND_BATCH_MESSAGE] = broker.on[SEND]
        batch = producer.send([Message("T", b"x"), Message("T", b"y")])
        assert batch.message_queue.topic == "T"
        assert send_header(broker, RequestCode.SEND_BATCH_MESSAGE).topic == "ns%T"


def test_unit_mode_is_told(broker: FakeBroker) -> None:
    """Covers C-11."""
    with Producer("pg", config=ClientConfig(broker.address, unit_mode=True)) as producer:
        producer.send(Message(TOPIC, b"x"))
    assert broker.asked(SEND)[0].ext["k"] == "true"


# --- timed messages -------------------------------------------------------------------------------


def of_version(version: int) -> Callable[[RemotingCommand], RemotingCommand]:
    def heartbeat(_: RemotingCommand) -> RemotingCommand:
        response = ok()
        response.version = version
        return response

    return heartbeat


def aio_send(producer: Producer, message: Any, **more: Any) -> Any:
    async def scenario() -> Any:
        config = ClientConfig(producer.config.namesrv_addr)
        async with aio.Producer("pg", config=config) as own:
            return await own.send(message, **more)

    return asyncio.run(scenario())


@pytest.mark.parametrize("send", [sync_send, future_send, oneway_send, aio_send])
def test_an_old_broker_is_not_given_a_timed_message(broker: FakeBroker, send: Send) -> None:
    """It would deliver it at once: NOT_SENT, and the text says what to do."""
    with Producer("pg", namesrv_addr=broker.address) as producer:
        with pytest.raises(MessageInvalidError, match=r"older than 5\.0.*delay_level") as raised:
            send(producer, Message(TOPIC, b"x", delay_time_ms=500))
        assert raised.value.outcome is SendOutcome.NOT_SENT
    assert not broker.asked(SEND)


@pytest.mark.parametrize("send", [sync_send, future_send, oneway_send, aio_send])
def test_a_broker_of_5_takes_timed_messages(broker: FakeBroker, send: Send) -> None:
    broker.on[RequestCode.HEART_BEAT] = of_version(V5_0_0)

    def stored(_: RemotingCommand) -> RemotingCommand:
        response = answer(0, SendMessageResponseHeader("ID", 0, 0))
        response.ext_fields = {
            "msgId": "ID", "queueId": "0", "queueOffset": "0", "recallHandle": HANDLE,
        }  # fmt: skip
        return response

    broker.on[SEND] = stored
    with Producer("pg", namesrv_addr=broker.address) as producer:
        result = send(producer, Message(TOPIC, b"x", delay_time_sec=5))
        assert decode_properties(send_header(broker).properties or "")["TIMER_DELAY_SEC"] == "5"
        assert send is oneway_send or result.recall_handle == HANDLE


def test_brokers_that_say_nothing_get_no_timed_message(broker: FakeBroker) -> None:
    broker.on[RequestCode.HEART_BEAT] = refusal(1)
    with Producer("pg", namesrv_addr=broker.address) as producer:
        with pytest.raises(
            MessageInvalidError, match="no broker of the topic told its version"
        ) as raised:
            producer.send(Message(TOPIC, b"x", deliver_time_ms=1_900_000_000_000))
        assert raised.value.retriable
    with pytest.raises(ValueError, match="delayed messages are not supported in a batch"):
        producer.send([Message(TOPIC, b"x", delay_time_ms=1)])


def test_recall_asks_the_broker_of_the_handle(broker: FakeBroker) -> None:
    """The id of the message comes back; an old broker cannot, and a handle is checked first."""
    broker.topics["Topic"] = 1
    code = RequestCode.RECALL_MESSAGE
    broker.on[code] = lambda _: answer(0, RecallMessageResponseHeader("UKEY"))

    async def recall() -> str:
        async with aio.Producer("pg", namesrv_addr=broker.address) as producer:
            return await producer.recall_message("Topic", HANDLE)

    with Producer("pg", namesrv_addr=broker.address) as producer:
        assert producer.recall_message("Topic", HANDLE) == "UKEY"
        header = RecallMessageRequestHeader.from_ext(broker.asked(code)[0].ext)
        assert (header.topic, header.recall_handle) == ("Topic", HANDLE)
        assert (header.producer_group, header.bname) == ("pg", "broker-a")
        assert asyncio.run(recall()) == "UKEY"
        broker.on[code] = refusal(3, "request type 370 not supported")
        with pytest.raises(NotSupportedError, match=r"cannot recall messages"):
            producer.recall_message("Topic", HANDLE)
        for topic, handle in (("Topic", "junk"), ("%RETRY%g", HANDLE)):
            with pytest.raises(ConfigurationError):
                producer.recall_message(topic, handle)


# --- stored, but not as wished --------------------------------------------------------------------


@pytest.mark.parametrize("send", [sync_send, future_send])
def test_a_message_stored_somehow_is_a_result_in_the_end(broker: FakeBroker, send: Send) -> None:
    """Covers C-85, C-461, C-473: tried elsewhere; the last result counts, not a later error."""
    answers = [
        answer(10, SendMessageResponseHeader("first", 0, 0)),
        answer(12, SendMessageResponseHeader("second", 0, 1)),
        RemotingCommand.response(13, "illegal"),
    ]
    broker.on[SEND] = lambda _: answers.pop(0)
    with Producer(
        "pg",
        namesrv_addr=broker.address,
        retry_another_broker_when_not_store_ok=True,
        retry_times_when_send_failed=5,
        retry_times_when_send_async_failed=5,
    ) as producer:
        result = send(producer, Message(TOPIC, b"x"))
    assert (result.offset_msg_id, result.send_status) == ("second", SendStatus.FLUSH_SLAVE_TIMEOUT)
    assert not answers


@pytest.mark.parametrize("send", [sync_send, future_send])
def test_a_selector_without_an_answer_is_an_error(broker: FakeBroker, send: Send) -> None:
    """Covers C-470."""
    with (
        Producer("pg", namesrv_addr=broker.address) as producer,
        pytest.raises(SendError, match="the selector returned None") as raised,
    ):
        send(producer, Message(TOPIC, b"x"), selector=lambda *_: None)
    assert raised.value.outcome is SendOutcome.NOT_SENT


def no_queue_wanted(*_: Any) -> MessageQueue:
    raise SendError("the selector wants none of them", SendOutcome.NOT_SENT)


@pytest.mark.parametrize("auto_batch", [False, True])
@pytest.mark.parametrize("send", [sync_send, future_send, oneway_send])
def test_a_selectors_own_send_error_passes_as_it_is(
    broker: FakeBroker, send: Send, auto_batch: bool
) -> None:
    """Covers C-470: in every form; anything else it raises is told as the selector's failure."""
    with Producer("pg", namesrv_addr=broker.address, auto_batch=auto_batch) as producer:
        with pytest.raises(SendError, match=r"^the selector wants none"):
            send(producer, Message(TOPIC, b"x"), selector=no_queue_wanted)
        with pytest.raises(SendError, match=r"^the selector of the queue raised ZeroDiv"):
            send(producer, Message(TOPIC, b"x"), selector=lambda *_: 1 // 0)
    assert not broker.asked(SEND)


@pytest.mark.parametrize("auto_batch", [False, True])
@pytest.mark.parametrize("form", ["send", "send_oneway"])
def test_a_selectors_own_send_error_passes_the_asyncio_face(
    broker: FakeBroker, form: str, auto_batch: bool
) -> None:
    """Covers C-470: as the other face."""

    async def scenario() -> None:
        settings: dict[str, Any] = {"namesrv_addr": broker.address, "auto_batch": auto_batch}
        async with aio.Producer("pg", **settings) as producer:
            send = getattr(producer, form)
            with pytest.raises(SendError, match=r"^the selector wants none"):
                await send(Message(TOPIC, b"x"), selector=no_queue_wanted)
            with pytest.raises(SendError, match=r"^the selector of the queue raised ZeroDiv"):
                await send(Message(TOPIC, b"x"), selector=lambda *_: 1 // 0)

    asyncio.run(scenario())
    assert not broker.asked(SEND)


@pytest.mark.parametrize("send", [sync_send, future_send])
def test_a_split_batch_that_fails_tells_what_was_stored(broker: FakeBroker, send: Send) -> None:
    """Covers C-477: three parts to one queue, one after the other; the second is refused."""
    code = RequestCode.SEND_BATCH_MESSAGE
    answers = [
        answer(0, SendMessageResponseHeader("first", 3, 0)),
        RemotingCommand.response(13, "illegal"),
    ]
    broker.on[code] = lambda _: answers.pop(0)
    batch = [Message(TOPIC, bytes([65 + n]) * 300) for n in range(3)]
    with (
        Producer("pg", namesrv_addr=broker.address, max_message_size=400) as producer,
        pytest.raises(SendError, match="illegal") as raised,
    ):
        send(producer, batch)
    (stored,) = raised.value.parameters["sent"]
    assert stored.offset_msg_id == "first"
    assert raised.value.outcome is SendOutcome.REJECTED
    first, second = broker.asked(code)
    assert second.ext["e"] == "3"
    assert (first.ext["n"], second.ext["n"]) == ("broker-a", "broker-a")
