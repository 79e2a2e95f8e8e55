"""Messages of users, checked and made ready: messages, batches, and the queue they are to go to.

No I/O but a line in the log; of every producer.
"""

from __future__ import annotations

import base64
import binascii
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from rocketstream import limits
from rocketstream._util.clock import Clock
from rocketstream._util.user_code import called
from rocketstream.client.config import ClientConfig, unique_ids
from rocketstream.client.producer.policy import ANY_QUEUE, SendTarget, queue_of_key
from rocketstream.client.producer.settings import ProducerSettings
from rocketstream.errors import (
    ConfigurationError,
    LocalProtocolError,
    MessageInvalidError,
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
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.compression import compress
from rocketstream.protocol.lite import lite_queue_index, lite_queue_name
from rocketstream.protocol.names import (
    RETRY_PREFIX,
    check_topic,
    is_not_allowed_send_topic,
)
from rocketstream.protocol.properties import (
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INSTANCE_ID,
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_MSG_TYPE,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_TRAN_MSG,
    encode_properties,
)
from rocketstream.protocol.record import BATCH_RECORD_BYTES, encode_batch
from rocketstream.protocol.sends import PreparedSend, SendRequests

logger: logging.Logger = logging.getLogger("rocketstream.client")

_STATUS_ORDER = list(SendStatus)
_BODY_TYPES = (bytes, bytearray, memoryview)
_CHECKED_TOPICS_MAX = 4096
_REPLY = "reply"

QueueSelector = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]


_WAITS: Final = f"{PROPERTY_WAIT}\x01true\x02"
"""Brokers take it for granted, and leave it out where they store a message that came alone."""


class MessagePreparer:
    """Checks messages and makes them ready (C-449 to C-456, C-476, C-477). Thread safe.

    Args:
        settings: bounds and compression.
        clock: where time comes from.
        config: has the namespace, if there is one; messages go under the topic servers know then,
            and results name the user's (C-148).
    """

    def __init__(
        self, settings: ProducerSettings, clock: Clock, config: ClientConfig | None = None
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._requests = settings.requests()
        namespace = None if config is None else config.effective_namespace()
        self._namespace = _Namespace(config, namespace) if config and namespace else None
        self._unwrap = None if self._namespace is None else self._namespace.unwrap
        self._ids = unique_ids()
        self._checked_topics: set[str] = set()
        self._has_told_of_level = False

    @property
    def topics(self) -> list[str]:
        """The topics that messages were made ready for, as servers know them."""
        return list(self._checked_topics)

    def target(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        arg: Any,
        sharding_key: str | None = None,
    ) -> SendTarget:
        """Return where a message is to go; raises as ``target_of``."""
        return target_of(message, queue, selector, arg, sharding_key, self._unwrap)

    def one_to(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        arg: Any,
        sharding_key: str | None,
    ) -> tuple[PreparedSend, SendTarget]:
        """Make one message ready, and return where it goes; raises as ``target`` and ``one``."""
        target = target_of(message, queue, selector, arg, sharding_key, self._unwrap)
        return self.one(message), target

    def batches_to(
        self,
        messages: Sequence[Message],
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        arg: Any,
        sharding_key: str | None,
    ) -> tuple[list[PreparedSend], SendTarget]:
        """Make a batch ready, and return where it goes; raises as ``batches`` and ``target``."""
        parts = self.batches(messages)
        return parts, self.target(messages[0], queue, selector, arg, sharding_key)

    def one(self, message: Message) -> PreparedSend:
        """Make one message ready; gives it a UNIQ_KEY if it has none.

        Raises:
            MessageInvalidError: topic, body or properties cannot be sent.
        """
        settings, namespace = self._settings, self._namespace
        if namespace is not None:
            message = namespace.wrapped(message)
        if (
            type(message) is not Message
            or message.topic not in self._checked_topics
            or type(body := message.body) is not bytes
            or not 0 < len(body) <= settings.max_message_size
        ):
            body = self._check(message)
        now = self._clock.now_ms()
        topic, properties = message.topic, message.properties
        msg_id = properties.get(PROPERTY_UNIQ_KEY)
        if msg_id is None:
            msg_id = properties[PROPERTY_UNIQ_KEY] = self._ids.next(now)
        sys_flag = 0
        if len(body) >= settings.compress_msg_body_over_howmuch:
            body, sys_flag = compress(body, settings.compress_type, settings.compress_level)
        if not self._has_told_of_level and PROPERTY_DELAY in properties:
            self._tell_of_level(message.delay_level)
        if PROPERTY_LITE_TOPIC in properties:
            queue = lite_queue_name(topic, properties[PROPERTY_LITE_TOPIC])
            properties[PROPERTY_INNER_MULTI_DISPATCH] = queue
        text = _properties_text(properties)
        prepared = PreparedSend(
            self._requests, topic, body, text, msg_id, now, message.flag, sys_flag
        )
        prepared.message = message
        if namespace is not None:
            prepared.unwrap = self._unwrap
        if PROPERTY_MSG_TYPE in properties and properties[PROPERTY_MSG_TYPE] == _REPLY:
            prepared.code = RequestCode.SEND_REPLY_MESSAGE_V2
            prepared.is_plain = False
        if topic.startswith(RETRY_PREFIX):
            prepared.is_plain = False
            prepared.reconsume_times = int(properties.get(PROPERTY_RECONSUME_TIME, "0"))
            limit = properties.get(PROPERTY_MAX_RECONSUME_TIMES)
            prepared.max_reconsume_times = None if limit is None else int(limit)
        return prepared

    def batches(self, messages: Sequence[Message]) -> list[PreparedSend]:
        """Make a batch ready, cut into parts that each fit the size limit.

        Raises:
            MessageInvalidError: empty, or messages that cannot go together (C-476).
        """
        namespace = self._namespace
        if namespace is not None:
            messages = [namespace.wrapped(message) for message in messages]
        self._check_batch(messages)
        now = self._clock.now_ms()
        ids: list[str] = []
        items: list[tuple[int, bytes, bytes]] = []
        for message in messages:
            body = self._check(message)
            properties = message.properties
            msg_id = properties.get(PROPERTY_UNIQ_KEY)
            if msg_id is None:
                msg_id = properties[PROPERTY_UNIQ_KEY] = self._ids.next(now)
            ids.append(msg_id)
            items.append((message.flag, body, _properties_text(properties).encode()))
        sizes = [BATCH_RECORD_BYTES + len(body) + len(text) for _, body, text in items]
        bytes_max = self._settings.max_message_size
        if max(sizes) > bytes_max:
            raise _too_large(max(sizes), bytes_max)
        wait = messages[0].properties.get(PROPERTY_WAIT, "true")
        parts = [
            PreparedSend(
                self._requests,
                messages[0].topic,
                _batch_body(items[part]),
                f"{PROPERTY_WAIT}\x01{wait}",
                ",".join(ids[part]),
                now,
                code=RequestCode.SEND_BATCH_MESSAGE,
            )
            for part in split_batches(sizes, bytes_max)
        ]
        for prepared in parts:
            prepared.message = messages
            if namespace is not None:
                prepared.unwrap = namespace.unwrap
        return parts

    def topic(self, topic: str) -> str:
        """Return a topic as servers know it, once it is checked.

        Raises:
            MessageInvalidError: nobody may send to it.
        """
        return self.one(Message(topic, b"-")).topic

    def encoded(
        self,
        topic: str,
        body: bytes | memoryview,
        properties: str,
        now_ms: int,
        flag: int,
        code: RequestCode,
    ) -> PreparedSend:
        """Return the send of a body that is made, and checked, already.

        Args:
            topic: as servers know it.
            body: of one message, or of a batch.
            properties: of the message, or of the batch.
            now_ms: when it was made, ms since 1970.
            flag: the user's number on it.
            code: how it goes.
        """
        prepared = PreparedSend(
            self._requests, topic, body, properties, "", now_ms, flag, code=code
        )
        if self._namespace is not None:
            prepared.unwrap = self._unwrap
        return prepared

    def _tell_of_level(self, level: int) -> None:
        """Warn of a delay level that brokers do not have unless they are told to (C-403), once."""
        if level > limits.DELAY_LEVEL_MAX:
            self._has_told_of_level = True
            logger.warning("delay_level=%s", beyond_levels(level))

    def _check(self, message: Message) -> bytes:
        """Check topic and body in upstream's order (C-453); return the body."""
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
        body = bytes(body)
        if not body:
            raise MessageInvalidError("CODE: 13: the message body length is zero", topic=topic)
        if len(body) > self._settings.max_message_size:
            raise _too_large(len(body), self._settings.max_message_size)
        return body

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


class _Namespace:
    """Puts the user's messages under the topics of a namespace.

    The user's message keeps the topic it has; only the id and INSTANCE_ID are put into it.
    """

    def __init__(self, config: ClientConfig, name: str) -> None:
        self._config = config
        self._name = name
        self.unwrap = config.queue_without_namespace

    def wrapped(self, message: Message) -> Message:
        """Return a copy of a message with the topic that servers know."""
        # The properties are shared, so that the id given to the copy is the message's own.
        message.properties[PROPERTY_INSTANCE_ID] = self._name
        # Past the initialiser: what was assigned since is for the checks of sends to refuse.
        copy = Message.__new__(Message)
        copy.topic, copy.body = self._config.with_namespace(message.topic), message.body
        copy.flag, copy.properties = message.flag, message.properties
        return copy


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


def beyond_levels(level: int) -> str:
    """Return in words, after the name it was given by, how brokers take a level they lack."""
    return (
        f"{level} is beyond the {limits.DELAY_LEVEL_MAX} levels brokers usually have, whose "
        "longest, 2 h, they then take; a level is a number of their list (1s 5s 10s 30s 1m 2m "
        "...), not seconds"
    )


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


def split_batches(sizes: Sequence[int], bytes_max: int) -> list[slice]:
    """Cut a batch into consecutive parts of at most ``bytes_max`` encoded bytes (C-477).

    A single message over the bound gets a part of its own, which the size check refuses.
    """
    parts: list[slice] = []
    start = total = 0
    for i, size in enumerate(sizes):
        if i > start and total + size > bytes_max:
            parts.append(slice(start, i))
            start, total = i, 0
        total += size
    if sizes:
        parts.append(slice(start, len(sizes)))
    return parts


class GatheredSend(PreparedSend):
    """Messages made ready one by one, as one batch.

    Attributes:
        members: the messages, in their order.
    """

    __slots__ = ("members",)

    def __init__(self, requests: SendRequests, members: Sequence[PreparedSend], wait: str) -> None:
        first = members[0]
        super().__init__(
            requests,
            first.topic,
            encode_batch(
                [
                    (each.flag, each.body, each.properties.removeprefix(_WAITS).encode())  # type: ignore[misc]
                    for each in members
                ]
            ),
            "" if wait == "true" else f"{PROPERTY_WAIT}\x01{wait}",
            "",
            first.born_timestamp,
            code=RequestCode.SEND_BATCH_MESSAGE,
        )
        self.members: Sequence[PreparedSend] = members
        self.unwrap: Callable[[MessageQueue], MessageQueue] | None = first.unwrap

    def results(self, stored: SendResult) -> list[SendResult]:
        """Return what each of the messages would have got alone.

        Args:
            stored: what the broker answered to the batch: the offset is that of the first. Where
                the queue holds batches as they are (a 5.x topic of that kind) it names one place.
        """
        members, queue = self.members, stored.message_queue
        places = stored.offset_msg_id.split(",")
        if len(places) != len(members):
            places = [stored.offset_msg_id] * len(members)
        status, offset = stored.send_status, stored.queue_offset
        region, trace_on = stored.region_id, stored.trace_on
        return [
            SendResult(status, each.msg_id, place, queue, offset + index, region, trace_on)
            for index, (each, place) in enumerate(zip(members, places, strict=True))
        ]


# --- where messages go ----------------------------------------------------------------------------


def target_of(
    message: Message,
    queue: MessageQueue | None,
    selector: QueueSelector | None,
    arg: Any,
    sharding_key: str | None,
    unwrap: Callable[[MessageQueue], MessageQueue] | None = None,
) -> SendTarget:
    """Return where a message is to go, checking that only one way is named.

    Raises:
        ConfigurationError: more than one way, a key that is not a str, what is not a queue, or a
            way named for a message of a lite topic.
        MessageInvalidError: the queue belongs to another topic (C-469).
    """
    if queue is None and selector is None and sharding_key is None:
        if type(message) is Message and PROPERTY_LITE_TOPIC in message.properties:
            return _lite_target(message.properties[PROPERTY_LITE_TOPIC])
        return ANY_QUEUE
    if isinstance(message, Message) and message.lite_topic is not None:
        raise ConfigurationError(
            "a message of a lite topic goes to the queue its name belongs to; leave "
            "message_queue, selector and sharding_key out"
        )
    if (queue is not None) + (selector is not None) + (sharding_key is not None) > 1:
        raise ConfigurationError("give one of message_queue, selector, sharding_key, not several")
    if queue is not None:
        if not isinstance(queue, MessageQueue):
            raise ConfigurationError(
                f"message_queue must be a MessageQueue, not {queue!r}; "
                "fetch_publish_message_queues(topic) returns those of a topic"
            )
        if queue.topic != message.topic:
            raise MessageInvalidError(
                f"the message is for topic {message.topic!r} and message_queue is of "
                f"{queue.topic!r}; give a queue of the message's topic"
            )
        return SendTarget(queue=queue)
    if sharding_key is not None:
        if not isinstance(sharding_key, str):
            raise ConfigurationError(f"sharding_key must be a str, not {sharding_key!r}")
        key = sharding_key
        return SendTarget(pick=lambda queues: queue_of_key(queues, key))
    choose = selector
    if not callable(choose):
        raise ConfigurationError(
            f"selector must be a function of queues, message and arg, not {choose!r}"
        )

    def pick(queues: tuple[MessageQueue, ...]) -> MessageQueue:
        known = queues if unwrap is None else tuple(map(unwrap, queues))
        chosen: object = called(choose, known, message, arg)
        if chosen is None:
            raise ConfigurationError(
                "the selector returned None; it must return one of the queues it was given"
            )
        if not isinstance(chosen, MessageQueue):
            raise ConfigurationError(
                f"the selector returned {chosen!r}, which is not a MessageQueue"
            )
        return chosen

    return SendTarget(pick=pick)


def _lite_target(name: str) -> SendTarget:
    """Return the queue whose broker takes a lite topic for its own."""
    return SendTarget(pick=lambda queues: queues[lite_queue_index(name, len(queues))])


class SelectMessageQueueByHash:
    """The queue of ``arg``'s Java hash: the same one a Java producer takes for the same value.

    ``arg`` is a str, an int (hashed as Java's Integer or Long, by its size) or a bool.
    """

    def __call__(self, queues: Sequence[MessageQueue], message: Message, arg: Any) -> MessageQueue:
        """Return the queue; the same for equal ``arg`` as long as the queues stay the same."""
        return queue_of_key(queues, arg)


class SelectMessageQueueByRandom:
    """Any queue."""

    def __call__(self, queues: Sequence[MessageQueue], message: Message, arg: Any) -> MessageQueue:
        """Return a queue drawn at random."""
        return random.choice(queues)


# --- timed messages taken back --------------------------------------------------------------------


_VERSION = "v1"
_PARTS = 5


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """The contents of a recall handle.

    Attributes:
        topic: topic as the servers know it.
        broker_name: broker that holds the message.
        timestamp: when it is to be delivered, ms since 1970, as text.
        message_id: its UNIQ_KEY.
    """

    topic: str
    broker_name: str
    timestamp: str
    message_id: str


def decode_recall_handle(handle: str | None) -> RecallHandle:
    """Read a handle.

    Raises:
        ConfigurationError: not a handle of a known version.
    """
    try:
        text = base64.urlsafe_b64decode((handle or "").encode()).decode()
    except (binascii.Error, UnicodeError):
        text = ""
    parts = text.split(" ")
    if parts[0] != _VERSION or len(parts) < _PARTS:
        raise ConfigurationError(
            f"recall handle is invalid: {handle!r:.80}; it comes with the result of sending a "
            "timed message to a broker from 5.3.1 on"
        )
    return RecallHandle(*parts[1:_PARTS])
