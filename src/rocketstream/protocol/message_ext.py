"""A received message: a lazy view of one stored record inside the buffer it came in.

Law: decoding only, no I/O; this is the consumer's hot path, so one unpack per message and
everything else (body, properties, hosts, ids) on first use.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final
from zlib import crc32

from rocketstream.errors import DamagedMessageError, LocalProtocolError, RemoteProtocolError
from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.compression import decompress
from rocketstream.protocol.properties import (
    PROPERTY_CONSUME_START_TIME,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_TAGS,
    PROPERTY_TRAN_MSG,
    PROPERTY_UNIQ_KEY,
    decode_properties,
    encode_properties,
)
from rocketstream.protocol.record import (
    HEAD_V4,
    HEADS,
    HOSTS_MASK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    body_crc,
    unpack_host,
)

_unpack_v4 = HEAD_V4.unpack_from
_HEAD_V4_BYTES: Final = HEAD_V4.size
_unpack_short = struct.Struct(">h").unpack_from

# Places in the tuple of a record head.
_TOTAL_SIZE, _CRC, _QUEUE_ID, _FLAG, _QUEUE_OFFSET, _PHYSICAL_OFFSET = 0, 2, 3, 4, 5, 6
_SYS_FLAG, _BORN_TIMESTAMP, _BORN_HOST, _STORE_TIMESTAMP, _STORE_HOST = 7, 8, 9, 10, 11
_RECONSUME_TIMES, _PREPARED_OFFSET, _BODY_SIZE = 12, 13, 14

_COPIED_BYTES_MAX: Final = 8_192
"""A shorter body is copied out to be checked, and kept; a longer one is looked at in its place."""
_TOPICS_MAX: Final = 4096
_NO_HOST: Final = bytes(8)
_PROPERTIES_BYTES_MAX: Final = 0xFFFF
_topics: dict[bytes, str] = {}


class MessageExt:
    """A message as a consumer gets it.

    Attributes:
        topic: settable, since messages of a retry topic get their original one back.
        queue_offset: position in its queue.
        reconsume_times: how often it was sent back; settable.
        broker_name: broker it came from; settable.
        consume_start_ms: when it was given to a listener, ms since 1970; 0 before. Becomes the
            property CONSUME_START_TIME when the properties are read afterwards (C-233).
        store_size: bytes of the stored record.
    """

    __slots__ = (
        "_body",
        "_body_start",
        "_buffer",
        "_extra",
        "_head",
        "_properties",
        "_properties_start",
        "broker_name",
        "consume_start_ms",
        "queue_offset",
        "reconsume_times",
        "store_size",
        "topic",
    )

    _buffer: bytes
    _head: tuple[Any, ...]
    _body_start: int
    _properties_start: int
    _extra: Mapping[str, str] | None
    _properties: dict[str, str] | None
    _body: bytes | None
    topic: str
    broker_name: str
    consume_start_ms: int
    queue_offset: int
    reconsume_times: int
    store_size: int

    def __init__(self) -> None:
        raise TypeError("messages come from decode_messages")

    @property
    def body_crc(self) -> int:
        """CRC of the stored, possibly compressed, body."""
        return self._head[_CRC]  # type: ignore[no-any-return]

    @property
    def queue_id(self) -> int:
        """Queue it was read from."""
        return self._head[_QUEUE_ID]  # type: ignore[no-any-return]

    @property
    def flag(self) -> int:
        """The sender's own 32-bit flag."""
        return self._head[_FLAG]  # type: ignore[no-any-return]

    @property
    def commit_log_offset(self) -> int:
        """Where the broker stores it, in bytes."""
        return self._head[_PHYSICAL_OFFSET]  # type: ignore[no-any-return]

    @property
    def sys_flag(self) -> int:
        """Bits of ``MessageSysFlag``."""
        return self._head[_SYS_FLAG]  # type: ignore[no-any-return]

    @property
    def born_timestamp(self) -> int:
        """When the sender made it, ms since 1970."""
        return self._head[_BORN_TIMESTAMP]  # type: ignore[no-any-return]

    @property
    def store_timestamp(self) -> int:
        """When the broker stored it, ms since 1970."""
        return self._head[_STORE_TIMESTAMP]  # type: ignore[no-any-return]

    @property
    def born_host(self) -> str:
        """Address of the sender, ``ip:port``."""
        return _host_text(self._head[_BORN_HOST])

    @property
    def store_host(self) -> str:
        """Address of the broker that stored it, ``ip:port``."""
        return _host_text(self._head[_STORE_HOST])

    @property
    def prepared_transaction_offset(self) -> int:
        """Commit log offset of the half message of a committed transaction."""
        return self._head[_PREPARED_OFFSET]  # type: ignore[no-any-return]

    @property
    def body_size(self) -> int:
        """Length of the stored body in bytes."""
        return self._head[_BODY_SIZE]  # type: ignore[no-any-return]

    @property
    def stored_record(self) -> bytes:
        """The whole record as stored."""
        start = self._body_start - HEADS[self._head[_SYS_FLAG] & HOSTS_MASK].size
        return self._buffer[start : start + self.store_size]

    @property
    def stored_body(self) -> bytes:
        """The body as stored: still compressed if it was sent so."""
        start = self._body_start
        return self._buffer[start : start + self._head[_BODY_SIZE]]

    @property
    def body(self) -> bytes:
        """The payload, inflated on first use.

        Raises:
            RemoteProtocolError: a compressed body that is damaged, too large, or of no known type.
            NotSupportedError: compressed by a codec that is not installed.
        """
        body = self._body
        if body is None:
            start = self._body_start
            head = self._head
            body = self._buffer[start : start + head[14]]
            if head[7] & 1:
                body = decompress(body, head[7])
            self._body = body
        return body

    @property
    def properties(self) -> dict[str, str]:
        """All properties by name; read on first use, changes stay with this object.

        Raises:
            RemoteProtocolError: not UTF-8.
        """
        properties = self._properties
        if properties is None:
            properties = decode_properties(self.properties_bytes)
            if self._extra:
                properties.update(self._extra)
            if self.consume_start_ms:
                properties[PROPERTY_CONSUME_START_TIME] = str(self.consume_start_ms)
            self._properties = properties
        return properties

    @property
    def properties_bytes(self) -> bytes:
        """The properties as stored."""
        start = self._properties_start
        buffer = self._buffer
        return buffer[start : start + (buffer[start - 2] << 8 | buffer[start - 1])]

    def get_property(self, name: str) -> str | None:
        """Return one property, or None."""
        return self.properties.get(name)

    @property
    def tags(self) -> str | None:
        """The tag, or None."""
        return self.properties.get(PROPERTY_TAGS)

    @property
    def keys(self) -> str | None:
        """The keys as one string separated by spaces, or None."""
        return self.properties.get(PROPERTY_KEYS)

    @property
    def delay_level(self) -> int:
        """Delay level it was sent with, 0 for none or when it is no number."""
        level = self.properties.get(PROPERTY_DELAY, "0")
        return int(level) if level.isdecimal() and len(level) < 10 else 0

    @property
    def msg_id(self) -> str:
        """The sender's id of the message (UNIQ_KEY); the broker's where the sender set none."""
        return self.properties.get(PROPERTY_UNIQ_KEY) or self.offset_msg_id

    @property
    def transaction_id(self) -> str | None:
        """The id of the transaction it was sent in, None if it was sent in none (C-220)."""
        properties = self.properties
        in_one = properties.get(PROPERTY_TRAN_MSG) == "true"
        return properties.get(PROPERTY_UNIQ_KEY) if in_one else None

    @property
    def offset_msg_id(self) -> str:
        """The broker's id: its address and the commit log offset, 32 or 56 hex digits."""
        head = self._head
        offset: int = head[6]
        stored: bytes = head[11]
        return stored.hex().upper() + f"{offset & 0xFFFFFFFFFFFFFFFF:016X}"

    @property
    def message_queue(self) -> MessageQueue:
        """The queue it was read from, under its current topic."""
        return MessageQueue(self.topic, self.broker_name, self._head[_QUEUE_ID])

    def check_crc(self) -> None:
        """Compare the stored body with its CRC.

        Raises:
            RemoteProtocolError: they differ.
        """
        actual = body_crc(self.stored_body)
        if actual != self._head[_CRC]:
            raise RemoteProtocolError(
                f"body CRC of {self.offset_msg_id} is {actual}, stored is {self._head[_CRC]}"
            )

    def __repr__(self) -> str:
        return (
            f"MessageExt(topic={self.topic!r}, broker_name={self.broker_name!r}, "
            f"queue_id={self.queue_id}, queue_offset={self.queue_offset}, "
            f"reconsume_times={self.reconsume_times}, store_size={self.store_size})"
        )


def _host_text(data: bytes) -> str:
    host, port = unpack_host(data)
    return f"{host}:{port}"


def decode_messages(
    buffer: bytes | bytearray | memoryview,
    broker_name: str = "",
    *,
    check_crc: bool = False,
    extra_properties: Mapping[str, str] | None = None,
) -> list[MessageExt]:
    """Read all records of a pull reply; the messages keep the whole buffer alive.

    Args:
        buffer: records back to back.
        broker_name: broker the reply came from.
        check_crc: also compare every body with its CRC.
        extra_properties: added to each message's properties when they are first read (MIN_OFFSET
            and MAX_OFFSET of the pull); shared, not copied.

    Raises:
        RemoteProtocolError: a record that is not whole and consistent.
    """
    data = buffer if type(buffer) is bytes else bytes(buffer)
    size = len(data)
    messages: list[MessageExt] = []
    position = 0
    topic, topic_bytes = "", 0
    topic_key: bytes | tuple[bytes, ...] = ()
    while position < size:
        if size - position < RECORD_BYTES_MIN:
            raise RemoteProtocolError(f"{size - position} bytes at {position} are no whole record")
        head = _unpack_v4(data, position)
        body_start = position + _HEAD_V4_BYTES
        if head[7] & 0x30:
            head, body_start = _wide_head(data, position, head[7] & 0x30)
        end = position + head[0]
        topic_at = body_start + head[14]
        if head[14] < 0 or end > size or topic_at + 3 > end:
            raise RemoteProtocolError(f"the record at {position} is longer than its buffer")
        # A pull is of one topic: compare with the last one before reading it anew.
        if not (head[1] == MAGIC_V1 and data.startswith(topic_key, topic_at)):
            topic, topic_bytes, topic_key = _read_topic(data, topic_at, head[1])
        properties_start = topic_at + topic_bytes + 2
        if (
            properties_start > end
            or properties_start + (data[properties_start - 2] << 8 | data[properties_start - 1])
            != end
        ):
            raise RemoteProtocolError(f"lengths of the record at {position} do not add up")
        # In line rather than in __init__: a third of the cost of a message.
        message = _new_message(MessageExt)
        message._buffer = data
        message._head = head
        message._body_start = body_start
        message._properties_start = properties_start
        message._extra = extra_properties
        message._properties = message._body = None
        message.topic = topic
        message.broker_name = broker_name
        message.consume_start_ms = 0
        message.queue_offset = head[5]
        message.reconsume_times = head[12]
        message.store_size = head[0]
        messages.append(message)
        position = end
    if check_crc:
        for message in messages:
            message.check_crc()
    return messages


def decode_message(buffer: bytes | bytearray | memoryview, broker_name: str = "") -> MessageExt:
    """Read exactly one record.

    Raises:
        RemoteProtocolError: no record, or more than one.
    """
    messages = decode_messages(buffer, broker_name)
    if len(messages) != 1:
        raise RemoteProtocolError(f"expected one message, found {len(messages)}")
    return messages[0]


_new_message = object.__new__


def assemble_message(
    queue: MessageQueue,
    queue_offset: int,
    body: bytes,
    properties: Mapping[str, str],
    *,
    commit_log_offset: int,
    reconsume_times: int,
    flag: int = 0,
    sys_flag: int = 0,
    born_timestamp: int = 0,
    born_host: bytes = _NO_HOST,
    store_timestamp: int = 0,
    store_host: bytes = _NO_HOST,
) -> MessageExt:
    """Return a message put together from values that were read before, as from a row of a table.

    The body is plain whatever ``sys_flag`` says: its compression bits are taken off. Times are ms
    since 1970; hosts are packed as ``record.pack_host`` does.

    Raises:
        LocalProtocolError: properties that are longer than a record can hold.
    """
    text = encode_properties(properties).encode()
    if len(text) > _PROPERTIES_BYTES_MAX:
        raise LocalProtocolError(
            f"the properties of offset {queue_offset} of {queue} have {len(text)} bytes; "
            f"a record holds {_PROPERTIES_BYTES_MAX}"
        )
    sys_flag &= ~(MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_MASK)
    size = RECORD_BYTES_MIN + len(body) + len(queue.topic) + len(text)
    message = _new_message(MessageExt)
    message._buffer = body + len(text).to_bytes(2) + text
    message._head = (
        size, MAGIC_V1, body_crc(body), queue.queue_id, flag, queue_offset, commit_log_offset,
        sys_flag, born_timestamp, born_host, store_timestamp, store_host, reconsume_times, 0,
        len(body),
    )  # fmt: skip
    message._body_start = 0
    message._properties_start = len(body) + 2
    message._extra = None
    message._properties = dict(properties)
    message._body = body
    message.topic = queue.topic
    message.broker_name = queue.broker_name
    message.consume_start_ms = 0
    message.queue_offset = queue_offset
    message.reconsume_times = reconsume_times
    message.store_size = size
    return message


def reassembled(message: MessageExt, queue: MessageQueue) -> MessageExt:
    """Return an assembled message as it was before its holder changed anything of it."""
    head = message._head
    return assemble_message(
        queue,
        head[_QUEUE_OFFSET],
        message.stored_body,
        decode_properties(message.properties_bytes),
        commit_log_offset=head[_PHYSICAL_OFFSET],
        reconsume_times=head[_RECONSUME_TIMES],
        flag=head[_FLAG],
        sys_flag=head[_SYS_FLAG],
        born_timestamp=head[_BORN_TIMESTAMP],
        born_host=head[_BORN_HOST],
        store_timestamp=head[_STORE_TIMESTAMP],
        store_host=head[_STORE_HOST],
    )


def _wide_head(data: bytes, position: int, hosts: int) -> tuple[tuple[Any, ...], int]:
    head = HEADS[hosts]
    if position + head.size > len(data):
        raise RemoteProtocolError(f"the record at {position} is longer than its buffer")
    return head.unpack_from(data, position), position + head.size


def _read_topic(data: bytes, at: int, magic: int) -> tuple[str, int, bytes | tuple[bytes, ...]]:
    """Return the topic, its size with its length field, and what another V1 record starts with."""
    if magic == MAGIC_V1:
        key = data[at : at + 1 + data[at]]
        return _topics.get(key) or _new_topic(key, key[1:]), len(key), key
    if magic != MAGIC_V2:
        raise RemoteProtocolError(f"record magic {magic:#x} is unknown")
    (size,) = _unpack_short(data, at)
    if size < 0:
        raise RemoteProtocolError(f"a topic length of {size} is impossible")
    key = data[at : at + 2 + size]
    return _topics.get(key) or _new_topic(key, key[2:]), len(key), ()


def _new_topic(key: bytes, data: bytes) -> str:
    try:
        topic = data.decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"topic of a message is not UTF-8: {error}") from None
    if len(_topics) >= _TOPICS_MAX:
        _topics.clear()
    _topics[key] = topic
    return topic


def undamaged(messages: Sequence[MessageExt]) -> int:
    """Return how many messages, from the first on, have bodies that match their CRC."""
    if not messages:
        return 0
    buffer = messages[0]._buffer
    whole = 0
    for message in messages:
        head, start = message._head, message._body_start
        end = start + head[14]
        if end - start < _COPIED_BYTES_MAX and message._buffer is buffer:
            body = buffer[start:end]
            if not head[7] & 1:
                message._body = body
            actual = crc32(body)
        else:
            actual = crc32(memoryview(message._buffer)[start:end])
        if actual & 0x7FFFFFFF != head[2]:
            break
        whole += 1
    return whole


def check_bodies(messages: list[MessageExt], queue: MessageQueue) -> list[MessageExt]:
    """Return the messages before the first whose body does not match its CRC, mostly all.

    Raises:
        DamagedMessageError: the first one does not.
    """
    whole = undamaged(messages)
    if whole == len(messages):
        return messages
    if whole:
        return messages[:whole]
    bad = messages[0]
    raise DamagedMessageError(
        f"the body of message {bad.offset_msg_id}, offset {bad.queue_offset} of {queue}, does not "
        f"match its CRC: {body_crc(bad.stored_body)}, stored is {bad.body_crc}. It may be damaged "
        "on its way, so it is pulled again; if it stays so, the broker's disk is damaged: skip it "
        "(rocketstream group reset), or take it as it is (check_crc=False)",
        queue=queue,
        offset=bad.queue_offset,
    )


def is_compressed(message: MessageExt) -> bool:
    """Tell whether the stored body is compressed."""
    return message.sys_flag & MessageSysFlag.COMPRESSED != 0
