"""The trace dispatcher and its hooks without a network: bounds, topics, what is left out."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rocketstream import (
    ClientConfig,
    EndTransactionContext,
    LitePullConsumer,
    MessageType,
    SendMessageContext,
    limits,
)
from rocketstream.client import trace
from rocketstream.client.instance.groups import Groups
from rocketstream.client.instance.outage_log import OutageLog
from rocketstream.client.trace import (
    CONSUME,
    INSTANCE_PREFIX,
    PRODUCE,
    AsyncTraceDispatcher,
    EndTransactionTraceHook,
    SendMessageTraceHook,
    tracing_of,
)
from rocketstream.errors import (
    ConfigurationError,
    MessageInvalidError,
    SendError,
    SendOutcome,
)
from rocketstream.model import Message, MessageQueue, SendResult, SendStatus
from rocketstream.protocol.trace import (
    CLOUD,
    TraceEndTransaction,
    TracePub,
    TraceRecord,
    TraceSubAfter,
    decode_trace,
)
from rocketstream.testing.clock import ManualClock

MQ = MessageQueue("T", "b", 0)
CONFIG = ClientConfig(namesrv_addr="127.0.0.1:1")


class Loop:
    """Stands for the dispatcher's engine and sender: nothing is sent, calls are remembered."""

    def __init__(self) -> None:
        self.instance = self
        self.outages = OutageLog(ManualClock(), "me", Groups())
        self.calls: list[Callable[[], object]] = []
        self.sent: list[Any] = []
        self.done: list[Callable[..., object]] = []

    def call_soon(self, function: Callable[[], object]) -> None:
        self.calls.append(function)

    def send(self, prepared: Any, _target: object, _timeout: float, done: Any) -> None:
        self.sent.append(prepared)
        self.done.append(done)

    def run(self, last: Callable[[], object]) -> None:
        async def drain() -> None:
            for call in [*self.calls, last]:
                call()
            self.calls.clear()

        asyncio.run(drain())


def dispatcher_of(
    loop: Loop, config: ClientConfig = CONFIG, kind: str = PRODUCE
) -> AsyncTraceDispatcher:
    dispatcher = AsyncTraceDispatcher("pg", kind, config, clock=ManualClock())
    dispatcher._engine = loop  # type: ignore[assignment]
    dispatcher._sender = loop  # type: ignore[assignment]
    return dispatcher


def after(keys: str | None = "k") -> TraceSubAfter:
    return TraceSubAfter("q", "id", 1, True, keys, 0, 5, "cg")


def text_of(prepared: Any) -> str:
    body = bytes(prepared.body)
    return (zlib.decompress(body) if prepared.sys_flag else body).decode()


def records_of(prepared: Any) -> list[TraceRecord]:
    return decode_trace(text_of(prepared))


def test_group_and_instance_are_upstreams() -> None:
    """Covers C-541."""
    dispatcher = AsyncTraceDispatcher("pg", CONSUME, CONFIG)
    assert dispatcher.group.startswith("_INNER_TRACE_PRODUCER-pg-CONSUME-")
    assert dispatcher._config.instance_name == f"{INSTANCE_PREFIX}_127.0.0.1:1"
    assert (dispatcher._config.namespace, dispatcher._config.vip_channel_enabled) == (None, False)
    assert dispatcher.trace_topic == "RMQ_SYS_TRACE_TOPIC"


def test_more_than_a_thousand_waiting_are_dropped_and_counted() -> None:
    """Covers C-541: the queue holds 1,024."""
    loop = Loop()
    dispatcher = dispatcher_of(loop)
    taken = [dispatcher.append("r", [after()]) for _ in range(limits.TRACE_CONTEXTS_MAX + 3)]
    assert taken.count(False) == dispatcher.dropped == 3
    assert len(loop.calls) == 2, "one wake-up for the first, one when half of the room is taken"


def test_a_dispatcher_that_is_not_started_drops() -> None:
    dispatcher = AsyncTraceDispatcher("pg", PRODUCE, CONFIG)
    assert not dispatcher.append("r", [after()])
    assert dispatcher.dropped == 1
    dispatcher.shutdown()


def test_a_full_text_is_sent_at_once() -> None:
    """Covers C-542: 118,000 bytes; what is left waits for its half second."""
    loop = Loop()
    dispatcher = dispatcher_of(loop)
    record = TraceSubAfter("q" * 1_000, "id", 1, True, None, 0, 5, "cg")
    for _ in range(130):
        dispatcher.append("r", [record])
    loop.run(dispatcher._drain)
    (sent,) = loop.sent
    assert limits.TRACE_FLUSH_BYTES <= len(text_of(sent)) < limits.TRACE_MESSAGE_BYTES_MAX
    assert len(records_of(sent)) < 130


def test_a_full_set_of_keys_is_sent_at_once() -> None:
    """Covers C-542, C-543: a message's properties end at 32,767 bytes."""
    loop = Loop()
    dispatcher = dispatcher_of(loop)
    for number in range(600):
        dispatcher.append("r", [after(f"{number:0>60}")])
    loop.run(dispatcher._drain)
    assert len(loop.sent) == 1
    assert len(loop.sent[0].properties.encode()) < limits.PROPERTIES_BYTES_MAX


def all_sent(*records: TraceRecord) -> list[tuple[list[TraceRecord], list[str]]]:
    """Return the records and the keys of each trace message that is made of some records."""
    loop = Loop()
    dispatcher = dispatcher_of(loop)
    for record in records:
        dispatcher.append("r", [record])
    loop.calls.append(dispatcher._drain)
    loop.run(dispatcher._send_all)
    assert all(len(each.properties.encode()) <= limits.PROPERTIES_BYTES_MAX for each in loop.sent)
    return [(records_of(each), each.message.keys.split(" ")) for each in loop.sent]


def test_a_record_with_more_keys_than_fit_leaves_its_neighbours_alone() -> None:
    """Covers C-543: it goes by itself, found by as many keys as fit; the others as before."""
    many = [f"{number:0>60}" for number in range(530)]
    small, great, last = after("k1"), after(" ".join(many)), after("k2")
    (first, second, third) = all_sent(small, great, last)
    assert first == ([small], ["id", "k1"])
    assert second == ([great], ["id", *many[: len(second[1]) - 1]])
    assert len(second[1]) > 500
    assert third == ([last], ["id", "k2"])


def test_a_key_that_does_not_fit_is_left_out() -> None:
    """Such as the ids of a batch of a thousand messages, which are one key."""
    ids = TraceSubAfter("q", ",".join(["0" * 32] * 1_000), 1, True, "k", 0, 5, "cg")
    assert all_sent(after("k1"), ids) == [([after("k1")], ["id", "k1"]), ([ids], ["k"])]


def test_a_record_too_long_for_a_message_leaves_its_neighbours_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    too_long = TraceSubAfter("q" * limits.TRACE_MESSAGE_BYTES_MAX, "x", 1, True, "k", 0, 5, "cg")
    found = all_sent(after("k1"), too_long, after("k2"))
    assert found == [([after("k1")], ["id", "k1"]), ([after("k2")], ["id", "k2"])]
    assert "trace: 1 records are lost" in caplog.text


def test_a_record_whose_id_is_no_key_is_found_by_its_words() -> None:
    odd = TraceSubAfter("q", "a b", 1, True, "k", 0, 5, "cg")
    assert all_sent(odd) == [([odd], ["a", "b", "k"])]


def test_a_message_that_cannot_be_made_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise MessageInvalidError("no")

    with monkeypatch.context() as patch:
        patch.setattr(trace, "Message", refuse)
        assert all_sent(after()) == []
    assert "trace: 1 records are lost: no" in caplog.text


def test_the_cloud_has_a_topic_per_region() -> None:
    """Covers C-544: rmq_sys_TRACE_DATA_<region>, records without time and group."""
    loop = Loop()
    config = ClientConfig(namesrv_addr="127.0.0.1:1", access_channel=CLOUD)
    dispatcher = dispatcher_of(loop, config)

    async def work() -> None:
        dispatcher.append("hz", [after()])
        dispatcher.append("sh", [after()])
        dispatcher._drain()
        dispatcher._send_all()

    asyncio.run(work())
    assert sorted(p.topic for p in loop.sent) == ["rmq_sys_TRACE_DATA_hz", "rmq_sys_TRACE_DATA_sh"]
    (record,) = records_of(loop.sent[0])
    assert isinstance(record, TraceSubAfter)
    assert (record.timestamp, record.group_name) == (0, None)


def test_unanswered_messages_are_bounded() -> None:
    """Covers C-546: a broker that does not answer costs records, not memory."""
    loop = Loop()
    dispatcher = dispatcher_of(loop)

    async def work() -> None:
        for _ in range(limits.TRACE_MESSAGES_ON_WAY_MAX + 2):
            dispatcher.append("r", [after()])
            dispatcher._drain()
            dispatcher._send_all()

    asyncio.run(work())
    assert len(loop.sent) == limits.TRACE_MESSAGES_ON_WAY_MAX
    assert dispatcher.dropped == 2
    loop.done[0](None, SendError("lost", SendOutcome.UNKNOWN))
    assert dispatcher._on_way == limits.TRACE_MESSAGES_ON_WAY_MAX - 1


# --- the send hook ------------------------------------------------------------------------------


class Taking(AsyncTraceDispatcher):
    """Keeps what it is given."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__("pg", PRODUCE, CONFIG, clock=clock)
        self.taken: list[TracePub] = []

    def append(self, region_id: str | None, records: Sequence[TraceRecord]) -> bool:
        assert region_id == "DefaultRegion"
        self.taken += [record for record in records if isinstance(record, TracePub)]
        return True


def sent(topic: str = "T", result: SendResult | None = None, **context: Any) -> list[TracePub]:
    """What the hook hands on for one send that took 7 ms."""
    clock = ManualClock()
    dispatcher = Taking(clock)
    hook = SendMessageTraceHook(dispatcher)
    given = SendMessageContext("ns%pg", Message(topic, b"abc", tags="A"), MQ, "h:1", **context)
    hook.send_message_before(given)
    clock.advance(7)
    given.send_result = result
    hook.send_message_after(given)
    return dispatcher.taken


def stored(**more: Any) -> SendResult:
    return SendResult(SendStatus.SEND_OK, "id", "offset-id", MQ, 3, **more)


def test_a_stored_send_is_one_record() -> None:
    """Covers C-545: when it began, how long it took, what was stored where."""
    (record,) = sent(result=stored(), msg_type=MessageType.DELAY_MSG)
    assert (record.cost_time, record.msg_type, record.body_length) == (7, 3, 3)
    assert record.success
    assert (record.msg_id, record.offset_msg_id, record.store_host) == ("id", "offset-id", "h:1")


def test_a_send_stored_with_a_remark_is_no_success() -> None:
    """Covers C-545."""
    result = SendResult(SendStatus.FLUSH_DISK_TIMEOUT, "id", "off", MQ, 3)
    assert not sent(result=result)[0].success


def test_some_sends_are_not_traced() -> None:
    """Covers C-546: switched off by the broker, failed, one-way, or trace itself."""
    assert sent(result=stored(trace_on=False)) == []
    assert sent(result=None) == []
    assert sent(topic="RMQ_SYS_TRACE_TOPIC", result=stored()) == []


def test_names_are_the_users() -> None:
    """Covers C-545: without their namespace."""
    (record,) = sent(topic="ns%T", result=stored(), namespace="ns")
    assert (record.group_name, record.topic) == ("pg", "T")


def test_ends_of_transactions_have_the_users_names() -> None:
    """Covers C-545: region from the message, else the default one; trace itself is left out."""
    dispatcher = AsyncTraceDispatcher("pg", PRODUCE, CONFIG, clock=ManualClock())
    loop = Loop()
    dispatcher._engine = loop  # type: ignore[assignment]
    hook = EndTransactionTraceHook(dispatcher)
    for topic in ("ns%T", dispatcher.trace_topic):
        message = Message(topic, b"x", tags="A", keys="k")
        end = EndTransactionContext("ns%pg", message, "h:1", "id", "id", "UNKNOW", True)
        hook.end_transaction(end)
    ((_, (record,)),) = dispatcher._queue
    assert isinstance(record, TraceEndTransaction)
    assert (record.group_name, record.topic, record.region_id) == ("pg", "T", "DefaultRegion")
    assert (record.transaction_state, record.from_transaction_check) == ("UNKNOW", True)


@pytest.mark.parametrize("settings", [{"enable_msg_trace": "yes"}, {"customized_trace_topic": 5}])
def test_wrong_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        tracing_of(settings, "g", PRODUCE, CONFIG, ManualClock())


def test_a_topic_alone_switches_nothing_on() -> None:
    settings: dict[str, Any] = {"customized_trace_topic": "mine"}
    assert not tracing_of(settings, "g", PRODUCE, CONFIG, ManualClock())
    assert settings == {}


def test_trace_of_a_stream_reader_is_not_sent_as_a_stream_readers() -> None:
    """Its mark is for brokers that are pulled from; upstream's trace producer has none."""
    consumer = LitePullConsumer("g", namesrv_addr="127.0.0.1:9876", enable_msg_trace=True)
    dispatcher = consumer._tracing.dispatcher
    assert dispatcher is not None
    assert consumer.client_id.endswith("@STREAM")
    assert not dispatcher._config.enable_stream_request_type
