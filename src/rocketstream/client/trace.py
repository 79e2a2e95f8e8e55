"""Message trace: what producers and consumers did, sent to a topic of its own (C-541 to C-546).

Hooks make the records; a dispatcher gathers them and sends them with a sender of its own
(upstream's AsyncTraceDispatcher). No caller waits for it and no call fails by it: records that
cannot be kept are dropped and counted.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rocketstream import limits
from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.client.config import ClientConfig, unique_ids
from rocketstream.client.hooks import (
    CONSUME_CONTEXT_TYPE,
    ConsumeHooks,
    ConsumeMessageContext,
    ConsumeReturnType,
    EndTransactionContext,
    EndTransactionHooks,
    MessageType,
    SendMessageContext,
    SendMessageHook,
)
from rocketstream.client.instance.engine import Engine, threaded_engine
from rocketstream.client.producer.async_sender import AsyncSender, plain_sender
from rocketstream.client.producer.message import MessagePreparer
from rocketstream.client.producer.policy import ANY_QUEUE
from rocketstream.client.producer.settings import ProducerSettings
from rocketstream.errors import RocketMQError, SendError
from rocketstream.model import Message, SendResult, SendStatus
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import TRACE_TOPIC
from rocketstream.protocol.namespace import without_any_namespace, without_namespace
from rocketstream.protocol.properties import (
    PROPERTY_MSG_REGION,
    PROPERTY_TRACE_ON,
    encode_properties,
)
from rocketstream.protocol.record import BATCH_RECORD_BYTES
from rocketstream.protocol.trace import (
    CLOUD,
    CLOUD_TOPIC_PREFIX,
    DEFAULT_REGION,
    TraceEndTransaction,
    TracePub,
    TraceRecord,
    TraceSubAfter,
    TraceSubBefore,
    encode_record,
    record_keys,
)
from rocketstream.settings import check_values

logger: logging.Logger = logging.getLogger("rocketstream.client")

PRODUCE = "PRODUCE"
CONSUME = "CONSUME"
GROUP_PREFIX = "_INNER_TRACE_PRODUCER"
INSTANCE_PREFIX = "PID_CLIENT_INNER_TRACE_PRODUCER"
SEND_TIMEOUT_MS = 5_000
FLUSH_AFTER_MS = 500
DRAIN_AFTER_S = 0.02
SHUTDOWN_FLUSH_MS = 500
_CODES = {kind.name: kind.value for kind in ConsumeReturnType}
_GROUP_CHARS_MAX = limits.GROUP_CHARS_MAX - 40

_numbers = itertools.count(1)


# --- the dispatcher -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Segment:
    """Records for the next message of one trace topic."""

    texts: list[str] = field(default_factory=list)
    keys: dict[str, None] = field(default_factory=dict)
    text_bytes: int = 0
    key_bytes: int = 0

    def has_room(self, text_bytes: int, keys: Mapping[str, int]) -> bool:
        """Whether a message holds a record besides these; with its keys, and their sizes."""
        new_bytes = sum(size for key, size in keys.items() if key not in self.keys)
        return (
            self.text_bytes + text_bytes <= limits.TRACE_MESSAGE_BYTES_MAX
            and self.key_bytes + new_bytes <= limits.TRACE_KEYS_BYTES_MAX
        )

    def add(self, text: str, text_bytes: int, keys: Mapping[str, int]) -> None:
        """Take a record; it is found by as many of its keys as fit."""
        self.texts.append(text)
        self.text_bytes += text_bytes
        for key, size in keys.items():
            if key not in self.keys and self.key_bytes + size <= limits.TRACE_KEYS_BYTES_MAX:
                self.keys[key] = None
                self.key_bytes += size


class AsyncTraceDispatcher:
    """Collects trace records of one client and sends them with a producer of its own.

    The producer lives on a thread of its own, which all tracing clients of a process that use the
    same name servers share.

    Args:
        group: group of the traced client.
        kind: PRODUCE or CONSUME.
        config: the traced client's; addresses, credentials and channel are taken from it.
        trace_topic: where to; None takes RMQ_SYS_TRACE_TOPIC.
        clock: where time comes from.
    """

    def __init__(
        self,
        group: str,
        kind: str,
        config: ClientConfig,
        trace_topic: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.group: str = f"{GROUP_PREFIX}-{group[:_GROUP_CHARS_MAX]}-{kind}-{next(_numbers)}"
        self.trace_topic: str = trace_topic if trace_topic and trace_topic.strip() else TRACE_TOPIC
        self.clock = clock
        self.is_cloud: bool = config.access_channel == CLOUD
        self.dropped: int = 0
        """Records thrown away because too many were waiting."""
        servers = ";".join(config.name_servers()) if _has_servers(config) else ""
        self._config = replace(
            config,
            instance_name=f"{INSTANCE_PREFIX}_{servers}",
            namespace=None,
            unit_mode=False,
            vip_channel_enabled=False,
        )
        self._settings = ProducerSettings(
            self.group,
            send_msg_timeout_ms=SEND_TIMEOUT_MS,
            max_message_size=limits.TRACE_MESSAGE_BYTES_MAX,
        )
        self._preparer = MessagePreparer(self._settings, clock)
        self._queue: deque[tuple[str, Sequence[TraceRecord]]] = deque()
        self._is_due = False
        self._is_urgent = False
        self._drain_timer: asyncio.TimerHandle | None = None
        self._segments: dict[str, _Segment] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._engine: Engine | None = None
        self._sender: AsyncSender | None = None
        self._on_way = 0
        self._all_answered: asyncio.Event | None = None

    # --- life cycle -------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to send; does nothing when started. Blocks shortly, without any network."""
        if self._engine is not None:
            return
        engine = threaded_engine(self._config, self.clock)
        try:
            engine.run(self._open(engine))
        except BaseException:
            engine.leave()
            raise
        self._engine = engine
        atexit.register(self._flush_at_exit)

    async def _open(self, engine: Engine) -> None:
        engine.instance.groups.add_producer(self.group, [self._settings.create_topic_key])
        self._sender = plain_sender(engine.instance, self._settings)
        self._all_answered = asyncio.Event()
        self._drain()

    def flush(self, timeout_ms: float = SHUTDOWN_FLUSH_MS) -> None:
        """Send what is collected and wait until it is stored, at most this long.

        Raises:
            ForkedClientError: called in a forked child.
        """
        if self._engine is not None:
            self._engine.run(self._flush(timeout_ms))

    async def _flush(self, timeout_ms: float) -> None:
        self._drain()
        self._send_all()
        if self._on_way and self._all_answered is not None:
            self._all_answered.clear()
            try:
                await asyncio.wait_for(self._all_answered.wait(), timeout_ms / 1000)
            except TimeoutError:
                logger.info("trace: %d messages are not confirmed yet", self._on_way)

    def shutdown(self) -> None:
        """Send what is left for at most half a second, then end. Does nothing unless started."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        engine.check_process()
        atexit.unregister(self._flush_at_exit)
        try:
            engine.run(self._close(engine))
        finally:
            engine.leave()

    async def _close(self, engine: Engine) -> None:
        await self._flush(SHUTDOWN_FLUSH_MS)
        for timer in (self._timer, self._drain_timer):
            if timer is not None:
                timer.cancel()
        self._sender = None
        await engine.instance.unregister_producer(self.group)

    def _flush_at_exit(self) -> None:
        try:
            self.flush()
        except Exception as error:
            logger.info("trace: the records that are left are not sent: %s", error)

    # --- collecting -------------------------------------------------------------------------------

    def append(self, region_id: str | None, records: Sequence[TraceRecord]) -> bool:
        """Take records to send; from any thread. Return whether there was room."""
        engine = self._engine
        if engine is None or len(self._queue) >= limits.TRACE_CONTEXTS_MAX:
            self._drop(len(records))
            return False
        topic = f"{CLOUD_TOPIC_PREFIX}{region_id}" if self.is_cloud else self.trace_topic
        queue = self._queue
        queue.append((topic, records))
        # Waking the loop costs more than all the rest: once for what comes within some ms, and
        # once more when half of the room is taken before that.
        if not self._is_due:
            self._is_due = True
            return self._wake(engine, self._drain_soon)
        if len(queue) >= limits.TRACE_CONTEXTS_MAX // 2 and not self._is_urgent:
            self._is_urgent = True
            return self._wake(engine, self._drain)
        return True

    @staticmethod
    def _wake(engine: Engine, call: Callable[[], object]) -> bool:
        try:
            engine.call_soon(call)
        except (RocketMQError, RuntimeError):  # ended meanwhile, or a forked child
            return False
        return True

    def _drain_soon(self) -> None:
        self._drain_timer = asyncio.get_running_loop().call_later(DRAIN_AFTER_S, self._drain)

    def _drop(self, records: int) -> None:
        if self.dropped == 0:
            logger.warning(
                "trace of group %s: too many records wait, further ones are dropped", self.group
            )
        self.dropped += records

    def _drain(self) -> None:
        self._is_due = self._is_urgent = False
        while self._queue:
            topic, records = self._queue.popleft()
            for record in records:
                self._collect(topic, record)
        if self._segments and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(FLUSH_AFTER_MS / 1000, self._flush_late)

    def _collect(self, topic: str, record: TraceRecord) -> None:
        text = encode_record(record, cloud=self.is_cloud)
        text_bytes = _bytes_of(text)
        keys = {key: _bytes_of(key) + 1 for key in record_keys(record)}
        segment = self._segments.get(topic)
        if segment is not None and not segment.has_room(text_bytes, keys):
            self._send(topic)
            segment = None
        if segment is None:
            segment = self._segments[topic] = _Segment()
        segment.add(text, text_bytes, keys)
        if (
            segment.text_bytes >= limits.TRACE_FLUSH_BYTES
            or segment.key_bytes >= limits.TRACE_KEYS_BYTES
        ):
            self._send(topic)

    def _flush_late(self) -> None:
        self._timer = None
        self._send_all()

    def _send_all(self) -> None:
        for topic in list(self._segments):
            self._send(topic)

    # --- sending ----------------------------------------------------------------------------------

    def _send(self, topic: str) -> None:
        segment = self._segments.pop(topic)
        sender = self._sender
        if sender is None or self._on_way >= limits.TRACE_MESSAGES_ON_WAY_MAX:
            self._drop(len(segment.texts))
            return
        body = "".join(segment.texts).encode("utf-8", "replace")
        try:
            prepared = self._preparer.one(Message(topic, body, keys=segment.keys))
        except RocketMQError as error:
            logger.warning("trace: %d records are lost: %s", len(segment.texts), error)
            return
        self._on_way += 1
        sender.send(prepared, ANY_QUEUE, SEND_TIMEOUT_MS, self._answered)

    def _answered(self, _: SendResult | None, error: SendError | None) -> None:
        self._on_way -= 1
        outages = None if self._engine is None else self._engine.instance.outages
        if error is None:
            if outages:
                outages.worked("sending trace to", self.trace_topic)
        elif outages is not None:
            outages.failed(("sending trace to", self.trace_topic), error)
        if self._on_way == 0 and self._all_answered is not None:
            self._all_answered.set()


def _bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def _has_servers(config: ClientConfig) -> bool:
    try:
        return bool(config.name_servers())
    except RocketMQError:
        return False  # told by start(), not when tracing is set up


# --- hooks ----------------------------------------------------------------------------------------


class SendMessageTraceHook:
    """One Pub record per send that was answered."""

    name = "SendMessageTraceHook"

    def __init__(self, dispatcher: AsyncTraceDispatcher) -> None:
        self._dispatcher = dispatcher

    def send_message_before(self, context: SendMessageContext) -> None:
        """Note when the send began; trace itself is not traced."""
        if not _topic_of(context.message).startswith(self._dispatcher.trace_topic):
            context.trace = self._dispatcher.clock.now_ms()

    def send_message_after(self, context: SendMessageContext) -> None:
        """Make the record, unless the broker has tracing switched off (C-546)."""
        began_ms, result = context.trace, context.send_result
        if not isinstance(began_ms, int) or result is None or not result.trace_on:
            return
        message = context.message
        single = message if isinstance(message, Message) else None
        record = TracePub(
            timestamp=began_ms,
            region_id=result.region_id,
            group_name=without_namespace(context.producer_group, context.namespace),
            topic=without_namespace(_topic_of(message), context.namespace),
            msg_id=result.msg_id,
            tags=single.tags if single else None,
            keys=single.keys if single else None,
            store_host=context.broker_address,
            body_length=_body_length(message),
            cost_time=int(self._dispatcher.clock.now_ms() - began_ms),
            msg_type=context.msg_type.value,
            offset_msg_id=result.offset_msg_id,
            success=result.send_status is SendStatus.SEND_OK,
        )
        self._dispatcher.append(result.region_id, [record])


@dataclass(slots=True)
class _Traced:
    """The messages of a listener call, between before and after."""

    began_ms: int
    request_id: str
    region_id: str | None
    messages: list[tuple[str, str | None]]


class ConsumeMessageTraceHook:
    """A SubBefore and a SubAfter record per message of a listener call."""

    name = "ConsumeMessageTraceHook"

    def __init__(self, dispatcher: AsyncTraceDispatcher) -> None:
        self._dispatcher = dispatcher

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        """Make the first records; messages whose TRACE_ON is false are left out (C-546)."""
        traced = [m for m in context.messages if m.properties.get(PROPERTY_TRACE_ON) != "false"]
        if not traced:
            return
        now_ms = self._dispatcher.clock.now_ms()
        region_id = traced[-1].properties.get(PROPERTY_MSG_REGION)
        request_id = unique_ids().next(now_ms)
        group = without_namespace(context.consumer_group, context.namespace)
        records = [
            TraceSubBefore(
                now_ms, region_id, group, request_id, m.msg_id, m.reconsume_times, m.keys
            )
            for m in traced
        ]
        named = [(m.msg_id, m.keys) for m in traced]
        context.trace = _Traced(now_ms, request_id, region_id, named)
        self._dispatcher.append(region_id, records)

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        """Make the second ones; the time the call took is shared out evenly (C-545)."""
        before = context.trace
        if not isinstance(before, _Traced):
            return
        now_ms = self._dispatcher.clock.now_ms()
        cost_ms = int((now_ms - before.began_ms) // max(len(context.messages), 1))
        group = without_namespace(context.consumer_group, context.namespace)
        code = _context_code(context)
        records = [
            TraceSubAfter(
                before.request_id, msg_id, cost_ms, context.success, keys, code, now_ms, group
            )
            for msg_id, keys in before.messages
        ]
        self._dispatcher.append(before.region_id, records)


class EndTransactionTraceHook:
    """One EndTransaction record per end told to a broker."""

    name = "EndTransactionTraceHook"

    def __init__(self, dispatcher: AsyncTraceDispatcher) -> None:
        self._dispatcher = dispatcher

    def end_transaction(self, context: EndTransactionContext) -> None:
        """Make the record."""
        message = context.message
        if message.topic.startswith(self._dispatcher.trace_topic):
            return
        region_id = message.properties.get(PROPERTY_MSG_REGION) or DEFAULT_REGION
        record = TraceEndTransaction(
            timestamp=self._dispatcher.clock.now_ms(),
            region_id=region_id,
            group_name=without_any_namespace(context.producer_group),
            topic=without_any_namespace(message.topic),
            msg_id=context.msg_id,
            tags=message.tags,
            keys=message.keys,
            store_host=context.broker_address,
            msg_type=MessageType.TRANS_MSG_COMMIT.value,
            transaction_id=context.transaction_id,
            transaction_state=context.transaction_state,
            from_transaction_check=context.from_transaction_check,
        )
        self._dispatcher.append(region_id, [record])


def _context_code(context: ConsumeMessageContext) -> int:
    return _CODES.get(context.properties.get(CONSUME_CONTEXT_TYPE, ""), 0)


def _topic_of(message: Message | MessageExt | Sequence[Message]) -> str:
    return message[0].topic if isinstance(message, Sequence) else message.topic


def _body_length(message: Message | Sequence[Message]) -> int:
    """Return the size of what was sent; a batch's body holds properties too."""
    if isinstance(message, Message):
        return len(message.body)
    return sum(
        BATCH_RECORD_BYTES + len(each.body) + len(encode_properties(each.properties).encode())
        for each in message
    )


# --- of one client --------------------------------------------------------------------------------


class Tracing:
    """The message trace of one client; false when it is off."""

    def __init__(self, dispatcher: AsyncTraceDispatcher | None = None) -> None:
        self.dispatcher = dispatcher

    def __bool__(self) -> bool:
        return self.dispatcher is not None

    def observe_sends(self, register: Callable[[SendMessageHook], object]) -> None:
        """Trace the sends of a producer."""
        if self.dispatcher is not None:
            register(SendMessageTraceHook(self.dispatcher))

    def observe_ends(self, hooks: EndTransactionHooks) -> None:
        """Trace the ends of a producer's transactions."""
        if self.dispatcher is not None:
            hooks.register(EndTransactionTraceHook(self.dispatcher))

    def observe_consumption(self, hooks: ConsumeHooks) -> None:
        """Trace a consumer's listener calls or polls."""
        if self.dispatcher is not None:
            hooks.register(ConsumeMessageTraceHook(self.dispatcher))

    def start(self) -> None:
        """Begin to send; a failure is only logged. Blocks shortly, without any network."""
        if self.dispatcher is None:
            return
        try:
            self.dispatcher.start()
        except RocketMQError as error:
            logger.warning("trace dispatcher start failed, nothing is traced: %s", error)

    async def stop(self) -> None:
        """Send what is left, for at most half a second, and end; a failure is only logged."""
        if self.dispatcher is None:
            return
        try:
            # The dispatcher has a loop of its own, on another thread.
            await asyncio.to_thread(self.dispatcher.shutdown)
        except RocketMQError as error:
            logger.warning("trace dispatcher shutdown failed: %s", error)


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """Settings of a client's message trace.

    Attributes:
        enable_msg_trace: tell the trace topic of every send, consumption and end of a transaction.
        customized_trace_topic: that topic; None takes the brokers' own, RMQ_SYS_TRACE_TOPIC.
    """

    enable_msg_trace: bool = False
    customized_trace_topic: str | None = None


TRACE_SETTINGS = ("enable_msg_trace", "customized_trace_topic")


def tracing_of(
    settings: dict[str, Any], group: str, kind: str, config: ClientConfig, clock: Clock
) -> Tracing:
    """Return what ``enable_msg_trace`` and ``customized_trace_topic`` of a client ask for.

    Args:
        settings: keywords of the client; the two are taken out.
        group: the client's group.
        kind: PRODUCE or CONSUME.
        config: the client's configuration.
        clock: where time comes from.

    Raises:
        ConfigurationError: not a flag, or not a topic.
    """
    asked = TraceSettings(
        **{each: settings.pop(each) for each in TRACE_SETTINGS if each in settings}
    )
    check_values(asked)
    if not asked.enable_msg_trace:
        return Tracing()
    topic = asked.customized_trace_topic
    return Tracing(AsyncTraceDispatcher(group, kind, config, topic, clock))
