"""A message made ready to send, the command for a queue, and the answer read back.

Law: no I/O; shared by the sync, future and asyncio producers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

from rocketstream import limits
from rocketstream._util.clock import Clock
from rocketstream.client.config import unique_ids
from rocketstream.client.core.producer_settings import ProducerSettings
from rocketstream.client.core.send import split_batches
from rocketstream.errors import (
    ConfigurationError,
    LocalProtocolError,
    MessageInvalidError,
    broker_error,
)
from rocketstream.model import (
    PROPERTY_DELAY,
    PROPERTY_LITE_TOPIC,
    PROPERTY_UNIQ_KEY,
    PROPERTY_WAIT,
    Message,
    MessageQueue,
    SendResult,
    SendStatus,
)
from rocketstream.protocol.answer_form import StoredForm, StoredValues
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.compression import compress
from rocketstream.protocol.headers import SendMessageRequestHeader, SendMessageResponseHeader
from rocketstream.protocol.lite import lite_queue_name
from rocketstream.protocol.names import (
    DEFAULT_REGION,
    RETRY_PREFIX,
    check_topic,
    is_not_allowed_send_topic,
)
from rocketstream.protocol.properties import (
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_MSG_REGION,
    PROPERTY_MSG_TYPE,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_TRACE_ON,
    PROPERTY_TRAN_MSG,
    encode_properties,
)
from rocketstream.protocol.record import encode_batch
from rocketstream.protocol.send_request import SendPlan, SendRequest

SendPlans = dict[MessageQueue, SendPlan]

_STATUS = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}
_STATUS_ORDER = list(SendStatus)
_SEND_OK = SendStatus.SEND_OK
_BODY_TYPES = (bytes, bytearray, memoryview)
_CHECKED_TOPICS_MAX = 4096
_PLANS_MAX = 4096
_BATCH_RECORD_BYTES = 22
_RECALL_HANDLE = "recallHandle"
_REPLY = "reply"


def new_result(
    send_status: SendStatus,
    msg_id: str,
    offset_msg_id: str,
    message_queue: MessageQueue,
    queue_offset: int,
    region_id: str,
    trace_on: bool,
    transaction_id: str | None = None,
    recall_handle: str | None = None,
) -> SendResult:
    """Return a ``SendResult``; past its initialiser, which takes four times as long.

    There is one for every message.
    """
    draft = _Draft()
    draft.send_status = send_status
    draft.msg_id = msg_id
    draft.offset_msg_id = offset_msg_id
    draft.message_queue = message_queue
    draft.queue_offset = queue_offset
    draft.region_id = region_id
    draft.trace_on = trace_on
    draft.transaction_id = transaction_id
    draft.recall_handle = recall_handle
    result: Any = draft
    result.__class__ = SendResult
    return cast("SendResult", result)


class _Draft:
    """A ``SendResult`` in the making: laid out alike, and written to freely until it is one."""

    __slots__ = SendResult.__slots__
    send_status: SendStatus
    msg_id: str
    offset_msg_id: str
    message_queue: MessageQueue
    queue_offset: int
    region_id: str
    trace_on: bool
    transaction_id: str | None
    recall_handle: str | None


class PreparedSend:
    """One message, or one batch, ready for any queue and any number of tries."""

    __slots__ = (
        "_settings", "body", "born_timestamp", "code", "flag", "max_reconsume_times", "message",
        "msg_id", "plans", "properties", "reconsume_times", "sys_flag", "topic",
    )  # fmt: skip
    message: Message | Sequence[Message]
    """What the user gave; set only when something observes sends."""
    plans: SendPlans | None
    """Prepared headers of the producer, for messages that are nothing special."""

    def __init__(
        self,
        settings: ProducerSettings,
        topic: str,
        body: bytes | memoryview,
        properties: str,
        msg_id: str,
        born_timestamp: int,
        flag: int = 0,
        sys_flag: int = 0,
        code: int = RequestCode.SEND_MESSAGE_V2,
    ) -> None:
        self._settings = settings
        self.plans = None
        self.topic = topic
        self.body = body
        self.properties = properties
        self.msg_id = msg_id
        self.born_timestamp = born_timestamp
        self.flag = flag
        self.sys_flag = sys_flag
        self.code = code
        self.reconsume_times = 0
        self.max_reconsume_times: int | None = None

    def command(self, mq: MessageQueue) -> RemotingCommand:
        """Return the request that stores it in ``mq``."""
        plans = self.plans
        if plans is not None and mq.topic == self.topic:  # a selector may name any queue it likes
            plan = plans.get(mq)
            if plan is None:
                plan = self._new_plan(plans, mq)
            return SendRequest(
                plan,
                self.body,
                self.properties,
                self.born_timestamp,
                self.sys_flag,
                self.flag,
            )
        command = RemotingCommand(self.code)
        command.ext_fields = self._header(mq).to_ext_v2()
        command.body = self.body
        return command

    def frame(self, mq: MessageQueue, opaque: int) -> bytes:
        """Return the frame of ``command``, for what has plans.

        Raises:
            LocalProtocolError: it is over the maximum.
        """
        plans = self.plans
        assert plans is not None
        plan = plans.get(mq)
        if plan is None:
            plan = self._new_plan(plans, mq)
        return plan.frame(
            self.body, self.properties, self.born_timestamp, self.sys_flag, self.flag, opaque
        )

    def _header(self, mq: MessageQueue) -> SendMessageRequestHeader:
        settings = self._settings
        return SendMessageRequestHeader(
            settings.producer_group,
            self.topic,
            settings.create_topic_key,
            settings.default_topic_queue_nums,
            mq.queue_id,
            self.sys_flag,
            self.born_timestamp,
            self.flag,
            self.properties,
            self.reconsume_times,
            settings.unit_mode,
            self.max_reconsume_times,
            self.code == RequestCode.SEND_BATCH_MESSAGE,
            mq.broker_name,
        )

    def _new_plan(self, plans: SendPlans, mq: MessageQueue) -> SendPlan:
        if len(plans) >= _PLANS_MAX:
            plans.clear()
        plan = plans[mq] = SendPlan(self._header(mq))
        return plan

    def result(self, answer: RemotingCommand, mq: MessageQueue, address: str) -> SendResult:
        """Read the broker's answer.

        Raises:
            BrokerError: it did not store the message.
            RemoteProtocolError: the answer cannot be read.
        """
        status = _STATUS.get(answer.code)
        if status is None:
            raise broker_error(answer.code, answer.remark, address)
        ext = answer.ext_fields or {}
        try:
            queue_id, queue_offset = int(ext["queueId"]), int(ext["queueOffset"])
            offset_msg_id = ext["msgId"]
        except (KeyError, ValueError):
            answer.header(SendMessageResponseHeader)  # says what is wrong
            raise
        if not (0 <= queue_id <= 0x7FFF_FFFF and 0 <= queue_offset <= 0x7FFF_FFFF_FFFF_FFFF):
            answer.header(SendMessageResponseHeader)
        if queue_id != mq.queue_id:
            mq = MessageQueue(mq.topic, mq.broker_name, queue_id)
        get = ext.get
        return new_result(
            status,
            self.msg_id,
            offset_msg_id,
            mq,
            queue_offset,
            get(PROPERTY_MSG_REGION) or DEFAULT_REGION,
            get(PROPERTY_TRACE_ON) != "false",
            get("transactionId"),
            get(_RECALL_HANDLE),
        )

    def stored(self, form: StoredForm, values: StoredValues, mq: MessageQueue) -> SendResult:
        """Return what ``result`` would make of the usual answer."""
        queue_id, offset, msg_id, transaction_id = values
        number = int(queue_id)
        if number != mq.queue_id:
            mq = MessageQueue(mq.topic, mq.broker_name, number)
        return new_result(
            _SEND_OK,
            self.msg_id,
            msg_id.decode(),
            mq,
            int(offset),
            form.region_id,
            form.trace_on,
            transaction_id.decode() if form.names_transactions else None,
        )


class MessagePreparer:
    """Checks messages and makes them ready (C-449 to C-456, C-476, C-477). Thread safe."""

    prepared_type = PreparedSend

    def __init__(self, settings: ProducerSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._ids = unique_ids()
        self._checked_topics: set[str] = set()
        self._plans: SendPlans = {}

    @property
    def topics(self) -> list[str]:
        """The topics that messages were made ready for, as servers know them."""
        return list(self._checked_topics)

    def one(self, message: Message) -> PreparedSend:
        """Make one message ready; gives it a UNIQ_KEY if it has none.

        Raises:
            MessageInvalidError: topic, body or properties cannot be sent.
        """
        settings = self._settings
        if (
            type(message) is not Message
            or message.topic not in self._checked_topics
            or type(body := message.body) is not bytes
            or not 0 < len(body) <= settings.max_message_size
        ):
            self._check(message)
            body = bytes(message.body)
        now = self._clock.now_ms()
        topic, properties = message.topic, message.properties
        msg_id = properties.get(PROPERTY_UNIQ_KEY)
        if msg_id is None:
            msg_id = properties[PROPERTY_UNIQ_KEY] = self._ids.next(now)
        sys_flag = 0
        if len(body) >= settings.compress_msg_body_over_howmuch:
            body, sys_flag = compress(body, settings.compress_type, settings.compress_level)
        if PROPERTY_LITE_TOPIC in properties:
            queue = lite_queue_name(topic, properties[PROPERTY_LITE_TOPIC])
            properties[PROPERTY_INNER_MULTI_DISPATCH] = queue
        text = _properties_text(properties)
        prepared = self.prepared_type(
            settings, topic, body, text, msg_id, now, message.flag, sys_flag
        )
        prepared.plans = self._plans
        if PROPERTY_MSG_TYPE in properties and properties[PROPERTY_MSG_TYPE] == _REPLY:
            prepared.code = RequestCode.SEND_REPLY_MESSAGE_V2
            prepared.plans = None
        if topic.startswith(RETRY_PREFIX):
            prepared.plans = None
            prepared.reconsume_times = int(properties.get(PROPERTY_RECONSUME_TIME, "0"))
            limit = properties.get(PROPERTY_MAX_RECONSUME_TIMES)
            prepared.max_reconsume_times = None if limit is None else int(limit)
        return prepared

    def batches(self, messages: Sequence[Message]) -> list[PreparedSend]:
        """Make a batch ready, cut into parts that each fit the size limit.

        Raises:
            MessageInvalidError: empty, or messages that cannot go together (C-476).
        """
        self._check_batch(messages)
        now = self._clock.now_ms()
        ids: list[str] = []
        items: list[tuple[int, bytes, bytes]] = []
        for message in messages:
            self._check(message)
            properties = message.properties
            msg_id = properties.get(PROPERTY_UNIQ_KEY)
            if msg_id is None:
                msg_id = properties[PROPERTY_UNIQ_KEY] = self._ids.next(now)
            ids.append(msg_id)
            items.append((message.flag, message.body, _properties_text(properties).encode()))
        sizes = [_BATCH_RECORD_BYTES + len(body) + len(text) for _, body, text in items]
        bytes_max = self._settings.max_message_size
        if max(sizes) > bytes_max:
            raise _too_large(max(sizes), bytes_max)
        wait = messages[0].properties.get(PROPERTY_WAIT, "true")
        return [
            self.prepared_type(
                self._settings,
                messages[0].topic,
                _batch_body(items[part]),
                f"{PROPERTY_WAIT}\x01{wait}",
                ",".join(ids[part]),
                now,
                code=RequestCode.SEND_BATCH_MESSAGE,
            )
            for part in split_batches(sizes, bytes_max)
        ]

    def _check(self, message: Message) -> None:
        """Check topic and body in upstream's order (C-453)."""
        if not isinstance(message, Message):
            raise no_message(message)
        topic = message.topic
        if topic not in self._checked_topics:
            self._check_topic(topic)
        body = message.body
        if body is None:
            raise MessageInvalidError("CODE: 13: the message body is null", topic=topic)
        if type(body) is not bytes and not isinstance(body, _BODY_TYPES):
            raise MessageInvalidError(
                f"the message body must be bytes, not {type(body).__name__}", topic=topic
            )
        if not body:
            raise MessageInvalidError("CODE: 13: the message body length is zero", topic=topic)
        if len(body) > self._settings.max_message_size:
            raise _too_large(len(body), self._settings.max_message_size)

    def _check_topic(self, topic: str) -> None:
        try:
            check_topic(topic)
        except ConfigurationError as error:
            raise MessageInvalidError(str(error), topic=topic) from None
        if is_not_allowed_send_topic(topic):
            raise MessageInvalidError(
                f"topic {topic!r} is the brokers' own; messages cannot be sent to it", topic=topic
            )
        if len(self._checked_topics) < _CHECKED_TOPICS_MAX:
            self._checked_topics.add(topic)

    @staticmethod
    def _check_batch(messages: Sequence[Message]) -> None:
        if not messages:
            raise _bad_batch("it is empty")
        for message in messages:
            if not isinstance(message, Message):
                raise no_message(message)
        first = messages[0]
        wait = first.properties.get(PROPERTY_WAIT)
        for message in messages:
            if message.topic != first.topic:
                raise _bad_batch("the topic of its messages must be the same")
            if message.properties.get(PROPERTY_WAIT) != wait:
                raise _bad_batch("wait_store_msg_ok of its messages must be the same")
            if message.properties.get(PROPERTY_DELAY, "0") != "0" or message.is_timed:
                raise _bad_batch("delayed messages are not supported in a batch")
            if PROPERTY_LITE_TOPIC in message.properties:
                raise _bad_batch("messages of lite topics are not supported in a batch")
            if message.properties.get(PROPERTY_TRAN_MSG) is not None:
                raise _bad_batch("transactional messages are not supported in a batch")
        if first.topic.startswith(RETRY_PREFIX):
            raise _bad_batch("a retry topic is not supported in a batch")


def _properties_text(properties: dict[str, str]) -> str:
    text = encode_properties(properties)
    count = len(properties)
    if text.count("\x01") != count or text.count("\x02") != (count - 1 if count else 0):
        raise MessageInvalidError(
            "a property name or value contains the separator U+0001 or U+0002"
        )
    if len(text) > limits.PROPERTIES_BYTES_MAX or not text.isascii():
        try:
            size = len(text.encode())
        except UnicodeEncodeError as error:
            raise MessageInvalidError(f"a property cannot be written as UTF-8: {error}") from None
        if size > limits.PROPERTIES_BYTES_MAX:
            raise MessageInvalidError(
                f"the properties take {size} bytes as text, MAX: {limits.PROPERTIES_BYTES_MAX}"
            )
    return text


def _batch_body(items: Sequence[tuple[int, bytes, bytes]]) -> bytes:
    try:
        return encode_batch(items)
    except LocalProtocolError as error:
        raise MessageInvalidError(str(error)) from None


def several(messages: object) -> list[Message]:
    """Return what was given for several messages as a list.

    Raises:
        MessageInvalidError: it is nothing that could hold messages, or one message.
    """
    if isinstance(messages, Message):
        raise MessageInvalidError(
            f"messages must be a list of messages, not one: give [message], or call send(); "
            f"given is {messages!r}"
        )
    if isinstance(messages, str | bytes) or not isinstance(messages, Iterable):
        raise no_message(messages)
    return list(messages)


def no_message(given: object) -> MessageInvalidError:
    """Return the error about something that is not a message."""
    received = "; to send a received message m on, send Message(m.topic, m.body, ...)"
    hint = received if hasattr(given, "queue_offset") else ""
    return MessageInvalidError(f"message must be a rocketstream.Message, not {given!r}{hint}")


def _too_large(size: int, bytes_max: int) -> MessageInvalidError:
    return MessageInvalidError(
        f"CODE: 13: the message body size over max value, MAX: {bytes_max}; this one has {size} "
        "bytes: split it, or store it elsewhere and send where it is",
        size=size,
        max_bytes=bytes_max,
    )


def _bad_batch(why: str) -> MessageInvalidError:
    return MessageInvalidError(f"these messages cannot go as one batch: {why}")


def joined(results: Sequence[SendResult]) -> SendResult:
    """Return one result for the parts of a split batch: ids joined, the worst status (C-478)."""
    first = results[0]
    if len(results) == 1:
        return first
    return replace(
        first,
        send_status=max((r.send_status for r in results), key=_STATUS_ORDER.index),
        msg_id=",".join(r.msg_id for r in results),
        offset_msg_id=",".join(r.offset_msg_id for r in results),
    )
