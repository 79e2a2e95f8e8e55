"""A received message: a lazy view of one stored record inside the buffer it came in.

Pure: this is the consumer's hot path, so there is one unpack per message, and everything else
(body, properties, hosts, ids) is read on first use.
"""

from __future__ import annotations

import reprlib
import struct
from collections.abc import Mapping
from typing import Any, Final

from rocketstream.errors import DamagedMessageError, LocalProtocolError, RemoteProtocolError
from rocketstream.model import MessageQueue, shown_body
from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.compression import decompress
from rocketstream.protocol.crc import crc32
from rocketstream.protocol.properties import (
    PROPERTY_CONSUME_START_TIME,
    PROPERTY_CRC32,
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_LITE_TOPIC,
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
    decode_batch,
    unpack_host,
)

_unpack_v4 = HEAD_V4.unpack_from
_HEAD_V4_BYTES: Final = HEAD_V4.size
_unpack_needed = struct.Struct(">iIii4xq8xi32xi8xi").unpack_from
"""The fields of the fixed part that every message needs: totalSize, magic, CRC, queueId,
queueOffset, sysFlag, reconsumeTimes, bodyLength. The other fields are read on first use."""
_unpack_short = struct.Struct(">h").unpack_from

# Positions in the tuple of a record head.
_TOTAL_SIZE, _CRC, _QUEUE_ID, _FLAG, _QUEUE_OFFSET, _PHYSICAL_OFFSET = 0, 2, 3, 4, 5, 6
_SYS_FLAG, _BORN_TIMESTAMP, _BORN_HOST, _STORE_TIMESTAMP, _STORE_HOST = 7, 8, 9, 10, 11
_RECONSUME_TIMES, _PREPARED_OFFSET, _BODY_SIZE = 12, 13, 14

_COPIED_BYTES_MAX: Final = 8_192
"""A shorter body is copied out to be checked, and kept; a longer one is checked in place."""
_TOPICS_MAX: Final = 4096
_NO_HOST: Final = bytes(8)
_PAIR_END: Final = 2
_PAIR_ENDS: Final = b"\x02"
_TAGS_MARK: Final = b"%b\x01" % PROPERTY_TAGS.encode()
_KEYS_MARK: Final = b"%b\x01" % PROPERTY_KEYS.encode()
_UNIQ_KEY_MARK: Final = b"%b\x01" % PROPERTY_UNIQ_KEY.encode()
_PROPERTIES_BYTES_MAX: Final = 0xFFFF
_RECORD_CRC: Final = b"__CRC32#\x01"
_RECORD_CRC_BYTES: Final = len(_RECORD_CRC) + 11
"""Brokers of 5.x with ``enabledAppendPropCRC`` end a record with such a property: the CRC of all
before it in ten digits, the last one first, and the mark that ends a pair."""
_WRAPPED: Final = MessageSysFlag.INNER_BATCH | MessageSysFlag.NEED_UNWRAP
_INNER_MESSAGES_MAX: Final = 32_767  # a broker's queue counts them in 16 bits
_topics: dict[bytes, str] = {}


class MessageExt:
    """A message as a consumer gets it.

    It is a view of the answer it came in, and keeps that whole answer alive: some 32 messages, as
    many as the broker put together. To keep one message for long without its neighbours, keep
    ``body`` and ``properties``, or a ``copy.copy`` of the message, which has a record of its own,
    as a pickled message has. Two messages are equal only if they are the same object. Any thread
    may read a message. Nothing of it can be assigned: the client finds a message by its queue and
    offset, and counts its tries; entries of ``properties`` may change, for this object only.
    """

    __slots__ = (
        "_body",
        "_body_size",
        "_body_start",
        "_broker_name",
        "_buffer",
        "_consume_start_ms",
        "_extra",
        "_head",
        "_properties",
        "_properties_start",
        "_queue_offset",
        "_reconsume_times",
        "_topic",
    )

    _buffer: bytes
    _head: tuple[Any, ...] | None
    _body_start: int
    _body_size: int
    _properties_start: int
    _extra: Mapping[str, str] | None
    _properties: dict[str, str] | None
    _body: bytes | None
    _topic: str
    _broker_name: str
    _consume_start_ms: int
    _queue_offset: int
    _reconsume_times: int

    def __init__(self) -> None:
        raise TypeError(
            "received messages come from a consumer; for a listener's unit test "
            "rocketstream.testing.received_message makes one"
        )

    @property
    def _fields(self) -> tuple[Any, ...]:
        """The fixed part of the record, read on first use."""
        head = self._head
        if head is None:
            head = self._head = _unpack_v4(self._buffer, self._body_start - _HEAD_V4_BYTES)
        return head

    @property
    def topic(self) -> str:
        """Its topic; in a listener that it was first sent to, for one of a retry topic too."""
        return self._topic

    @property
    def broker_name(self) -> str:
        """The broker it came from."""
        return self._broker_name

    @property
    def queue_offset(self) -> int:
        """Its place in its queue."""
        return self._queue_offset

    @property
    def reconsume_times(self) -> int:
        """How often it was tried before."""
        return self._reconsume_times

    @property
    def consume_start_ms(self) -> int:
        """When it was given to a listener, ms since 1970; 0 before.

        Becomes the property CONSUME_START_TIME when the properties are read afterwards (C-233).
        """
        return self._consume_start_ms

    @property
    def store_size(self) -> int:
        """Bytes of the stored record."""
        return self._fields[_TOTAL_SIZE]  # type: ignore[no-any-return]

    @property
    def body_crc(self) -> int:
        """CRC of the stored, possibly compressed, body."""
        return self._fields[_CRC]  # type: ignore[no-any-return]

    @property
    def queue_id(self) -> int:
        """Queue it was read from."""
        return self._fields[_QUEUE_ID]  # type: ignore[no-any-return]

    @property
    def flag(self) -> int:
        """The sender's own 32-bit flag."""
        return self._fields[_FLAG]  # type: ignore[no-any-return]

    @property
    def commit_log_offset(self) -> int:
        """Where the broker stores it, in bytes."""
        return self._fields[_PHYSICAL_OFFSET]  # type: ignore[no-any-return]

    @property
    def sys_flag(self) -> int:
        """Bits of ``MessageSysFlag``."""
        return self._fields[_SYS_FLAG]  # type: ignore[no-any-return]

    @property
    def born_timestamp(self) -> int:
        """When the sender made it, ms since 1970."""
        return self._fields[_BORN_TIMESTAMP]  # type: ignore[no-any-return]

    @property
    def store_timestamp(self) -> int:
        """When the broker stored it, ms since 1970."""
        return self._fields[_STORE_TIMESTAMP]  # type: ignore[no-any-return]

    @property
    def born_host(self) -> str:
        """Address of the sender, ``ip:port``."""
        return _host_text(self._fields[_BORN_HOST])

    @property
    def store_host(self) -> str:
        """Address of the broker that stored it, ``ip:port``."""
        return _host_text(self._fields[_STORE_HOST])

    @property
    def prepared_transaction_offset(self) -> int:
        """Commit log offset of the half message of a committed transaction."""
        return self._fields[_PREPARED_OFFSET]  # type: ignore[no-any-return]

    @property
    def body_size(self) -> int:
        """Length of the stored body in bytes."""
        return self._body_size

    @property
    def stored_record(self) -> bytes:
        """The whole record as stored."""
        head = self._fields
        start = self._body_start - HEADS[head[_SYS_FLAG] & HOSTS_MASK].size
        return self._buffer[start : start + head[_TOTAL_SIZE]]

    @property
    def stored_body(self) -> bytes:
        """The body as stored: still compressed if it was sent so."""
        start = self._body_start
        return self._buffer[start : start + self._body_size]

    @property
    def body(self) -> bytes:
        """The payload, inflated on first use.

        Raises:
            RemoteProtocolError: a compressed body is damaged, too large, or of an unknown type.
            NotSupportedError: the body is compressed by a codec that is not installed.
        """
        body = self._body
        if body is None:
            start = self._body_start
            body = self._buffer[start : start + self._body_size]
            flags = self._fields[_SYS_FLAG]
            if flags & 1:
                body = decompress(body, flags)
            self._body = body
        return body

    @property
    def properties(self) -> dict[str, str]:
        """All properties by name, read on first use; changes affect this object only.

        Raises:
            RemoteProtocolError: the properties are not UTF-8.
        """
        properties = self._properties
        if properties is None:
            properties = decode_properties(self.properties_bytes)
            properties.pop(PROPERTY_CRC32, None)  # of the record, not of the message
            if self._extra:
                properties.update(self._extra)
            if self._consume_start_ms:
                properties[PROPERTY_CONSUME_START_TIME] = str(self._consume_start_ms)
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

    def _found(self, name: str, mark: bytes) -> str | None:
        """Return one property without reading the others, unless there is any doubt."""
        properties, extra = self._properties, self._extra
        if properties is not None or (extra and name in extra):
            return self.properties.get(name)
        buffer, start = self._buffer, self._properties_start
        end = start + (buffer[start - 2] << 8 | buffer[start - 1])
        at = buffer.find(mark, start, end)
        if at < 0:
            return None
        begin = at + len(mark)
        if (at != start and buffer[at - 1] != _PAIR_END) or buffer.find(mark, begin, end) >= 0:
            return self.properties.get(name)  # within another property's value, or a second time
        stop = buffer.find(_PAIR_ENDS, begin, end)
        return buffer[begin : end if stop < 0 else stop].decode("utf-8", "replace") or None

    @property
    def tags(self) -> str | None:
        """The tag, or None."""
        return self._found(PROPERTY_TAGS, _TAGS_MARK)

    @property
    def keys(self) -> str | None:
        """The keys as one string separated by spaces, or None."""
        return self._found(PROPERTY_KEYS, _KEYS_MARK)

    @property
    def lite_topic(self) -> str | None:
        """The lite topic it was sent to, or None."""
        return self.properties.get(PROPERTY_LITE_TOPIC)

    @property
    def delay_level(self) -> int:
        """Delay level it was sent with; 0 for none, or when it is not a number."""
        level = self.properties.get(PROPERTY_DELAY, "0")
        return int(level) if level.isdecimal() and len(level) < 10 else 0

    @property
    def msg_id(self) -> str:
        """The sender's id of the message (UNIQ_KEY), or the broker's id if the sender set none."""
        return self._found(PROPERTY_UNIQ_KEY, _UNIQ_KEY_MARK) or self.offset_msg_id

    @property
    def transaction_id(self) -> str | None:
        """The id of the transaction it was sent in; None without a transaction (C-220)."""
        properties = self.properties
        in_one = properties.get(PROPERTY_TRAN_MSG) == "true"
        return properties.get(PROPERTY_UNIQ_KEY) if in_one else None

    @property
    def offset_msg_id(self) -> str:
        """The broker's id: its address and the commit log offset, 32 or 56 hex digits."""
        head = self._fields
        offset: int = head[6]
        stored: bytes = head[11]
        return stored.hex().upper() + f"{offset & 0xFFFFFFFFFFFFFFFF:016X}"

    @property
    def message_queue(self) -> MessageQueue:
        """The queue it was read from, under its current topic."""
        return MessageQueue(self.topic, self.broker_name, self._fields[_QUEUE_ID])

    def check_crc(self) -> None:
        """Compare the stored body with its CRC, and the record with its own where it has one.

        Raises:
            RemoteProtocolError: they differ.
        """
        actual = body_crc(self.stored_body)
        if actual != self.body_crc:
            raise RemoteProtocolError(
                f"body CRC of {self.offset_msg_id} is {actual}, stored is {self.body_crc}"
            )
        if not self._is_as_stored():
            raise RemoteProtocolError(
                f"the record of {self.offset_msg_id} does not match the CRC at its end"
            )

    def _is_as_stored(self) -> bool:
        """Whether the whole record matches the CRC at its end, if it has one."""
        if not self._body_start:  # assembled: there is no record
            return True
        end = self._properties_start + len(self.properties_bytes)
        if not self._buffer.startswith(_RECORD_CRC, end - _RECORD_CRC_BYTES):
            return True
        return _record_crc_fits(self._buffer, end - self.store_size, end)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to copy or pickle: the values, and only this record of the buffer."""
        state = {name: getattr(self, name) for name in self.__slots__}
        start = self._body_start
        begin = 0 if start == 0 else start - HEADS[self.sys_flag & HOSTS_MASK].size
        size = self._properties_start + len(self.properties_bytes) - begin
        state["_buffer"] = self._buffer[begin : begin + size]
        state["_body_start"] -= begin
        state["_properties_start"] -= begin
        if self._properties is not None:
            state["_properties"] = dict(self._properties)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        body, tags, keys = self._body, self.tags, self.keys
        if body is None and is_compressed(self):  # not inflated: it may be damaged, or large
            shown = f"{self._body_size} bytes, compressed"
        else:
            shown = shown_body(self.stored_body if body is None else body)
        words = "" if tags is None else f", tags={reprlib.repr(tags)}"
        words += "" if keys is None else f", keys={reprlib.repr(keys)}"
        return (
            f"MessageExt(topic={self.topic!r}, broker_name={self.broker_name!r}, "
            f"queue_id={self.queue_id}, queue_offset={self.queue_offset}, "
            f"reconsume_times={self.reconsume_times}, msg_id={self.msg_id!r}{words}, body={shown})"
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
        RemoteProtocolError: a record is incomplete or inconsistent.
    """
    messages, whole, _ = decode_pulled(
        buffer,
        MessageQueue("", broker_name, 0),
        check_crc=check_crc,
        extra_properties=extra_properties,
    )
    if not whole:
        for message in messages:
            message.check_crc()
    return messages


def decode_pulled(
    buffer: bytes | bytearray | memoryview,
    queue: MessageQueue,
    *,
    check_crc: bool,
    extra_properties: Mapping[str, str] | None = None,
) -> tuple[list[MessageExt], bool, bool]:
    """Read all records as ``decode_messages`` does, and compare them with their CRCs.

    Returns:
        The messages; whether each matches its CRC (``check_bodies`` finds the one that does not);
        and whether each says that it is of ``queue``.

    Raises:
        RemoteProtocolError: a record is incomplete or inconsistent.
    """
    data = buffer if type(buffer) is bytes else bytes(buffer)
    messages: list[MessageExt] = []
    whole, own, position, size = True, True, 0, len(data)
    wanted, wanted_id, broker_name = queue.topic, queue.queue_id, queue.broker_name
    topic, topic_bytes = "", 0
    topic_key: bytes | tuple[bytes, ...] = ()
    begins = data.startswith
    body: bytes | None = None
    while position < size:
        if size - position < RECORD_BYTES_MIN:
            raise RemoteProtocolError(
                f"{size - position} bytes at {position} are not a whole record"
            )
        total, magic, crc, queue_id, offset, flags, times, body_bytes = _unpack_needed(
            data, position
        )
        head, body_start = None, position + _HEAD_V4_BYTES
        if flags & 0xF0:
            # Other hosts, or a batch: taken_apart looks for the head that is there already.
            head, body_start = _wide_head(data, position, flags & 0x30)
            times, body_bytes = head[_RECONSUME_TIMES], head[_BODY_SIZE]
        end = position + total
        topic_at = body_start + body_bytes
        if body_bytes < 0 or end > size or topic_at + 3 > end:
            raise RemoteProtocolError(f"the record at {position} is longer than its buffer")
        # All messages of a pull share a topic: compare with the last one before decoding it again.
        if not (magic == MAGIC_V1 and begins(topic_key, topic_at)):
            topic, topic_bytes, topic_key = _read_topic(data, topic_at, magic)
            own &= topic == wanted
        if queue_id != wanted_id:
            own = False
        properties_start = topic_at + topic_bytes + 2
        if (
            properties_start > end
            or properties_start + (data[properties_start - 2] << 8 | data[properties_start - 1])
            != end
        ):
            raise RemoteProtocolError(f"lengths of the record at {position} do not add up")
        if check_crc:
            small = body_bytes < _COPIED_BYTES_MAX
            stored = (data if small else memoryview(data))[body_start:topic_at]
            whole &= crc32(stored) & 0x7FFFFFFF == crc
            if data[end - 1] == _PAIR_END and begins(_RECORD_CRC, end - _RECORD_CRC_BYTES):
                whole &= _record_crc_fits(data, position, end)
            body = None if flags & 1 or type(stored) is not bytes else stored
        # Inlined instead of calling __init__, which is a third of the cost of a message.
        message = _new_message(MessageExt)
        message._buffer = data
        message._head = head
        message._body_start = body_start
        message._body_size = body_bytes
        message._properties_start = properties_start
        message._extra = extra_properties
        message._properties = None
        message._body = body
        message._topic = topic
        message._broker_name = broker_name
        message._consume_start_ms = 0
        message._queue_offset = offset
        message._reconsume_times = times
        messages.append(message)
        position = end
    return messages, whole, own


def decode_message(buffer: bytes | bytearray | memoryview, broker_name: str = "") -> MessageExt:
    """Read exactly one record.

    Raises:
        RemoteProtocolError: the bytes hold no record, or more than one.
    """
    messages = decode_messages(buffer, broker_name)
    if len(messages) != 1:
        raise RemoteProtocolError(f"expected one message, found {len(messages)}")
    return messages.pop()


_new_message = object.__new__


def _record_crc_fits(data: bytes, start: int, end: int) -> bool:
    """Whether a text that ends in the CRC of a whole record matches it."""
    told = end - _RECORD_CRC_BYTES
    crc = crc32(memoryview(data)[start:told]) & 0x7FFFFFFF
    return data[told + len(_RECORD_CRC) : end] == (b"%010d" % crc)[::-1] + _PAIR_ENDS


def assemble_message(
    queue: MessageQueue,
    queue_offset: int,
    body: bytes,
    properties: Mapping[str, str] | bytes,
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
    """Return a message made from values that were read before, such as a row of a table.

    The body is plain whatever ``sys_flag`` says: its compression bits are taken off. Properties may
    be given as they are stored, and are then read on first use. Times are ms since 1970; hosts are
    packed as ``record.pack_host`` does.

    Raises:
        LocalProtocolError: the properties are longer than a record can hold.
    """
    read: dict[str, str] | None = None
    if isinstance(properties, bytes):
        text = properties
    else:
        read = dict(properties)
        text = encode_properties(read).encode()
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
    message._body_size = len(body)
    message._properties_start = len(body) + 2
    message._extra = None
    message._properties = read
    message._body = body
    message._topic = queue.topic
    message._broker_name = queue.broker_name
    message._consume_start_ms = 0
    message._queue_offset = queue_offset
    message._reconsume_times = reconsume_times
    return message


def taken_apart(
    messages: list[MessageExt], first: int, *, check_crc: bool = False
) -> list[MessageExt]:
    """Return the messages of an answer; a batch stored as one record becomes single messages.

    Topics of 5.x with ``queue.type=BatchCQ`` have such records, and clients take them apart
    (upstream's ``MessageDecoder.decodeMessage``): message i has the record's offset plus i, and
    properties, flag and body of its own. An answer begins with the record that holds the offset
    asked for: its messages before that offset are left out.

    Args:
        messages: those of a pull; returned unchanged where there is no such record.
        first: the offset that was asked for.
        check_crc: compare the bodies of such records with their CRCs.

    Raises:
        RemoteProtocolError: such a record holds no messages, or its body does not match its CRC.
    """
    # The head of other records is read on first use: reading it for each here would cost more.
    wide = [message for message in messages if message._head is not None]
    if not any(map(_is_wrapped, wide)):
        return messages
    found: list[MessageExt] = []
    for message in messages:
        if not _is_wrapped(message):
            found.append(message)
            continue
        if check_crc:
            message.check_crc()
        found += [each for each in _inner(message) if each.queue_offset >= first]
    return found


def _is_wrapped(message: MessageExt) -> bool:
    return message.sys_flag & _WRAPPED == _WRAPPED


def _inner(message: MessageExt) -> list[MessageExt]:
    head, extra = message._fields, message._extra or {}
    queue = message.message_queue
    items = decode_batch(message.body, messages_max=_INNER_MESSAGES_MAX)
    if not items:
        raise RemoteProtocolError(
            f"the batch stored as one record at offset {message.queue_offset} of {queue} is empty"
        )
    return [
        assemble_message(
            queue,
            message.queue_offset + place,
            item.body,
            {**decode_properties(item.properties), **extra},
            commit_log_offset=head[_PHYSICAL_OFFSET],
            reconsume_times=head[_RECONSUME_TIMES],
            flag=item.flag,
            sys_flag=head[_SYS_FLAG] & ~_WRAPPED,
            born_timestamp=head[_BORN_TIMESTAMP],
            born_host=head[_BORN_HOST],
            store_timestamp=head[_STORE_TIMESTAMP],
            store_host=head[_STORE_HOST],
        )
        for place, item in enumerate(items)
    ]


def reassembled(message: MessageExt, queue: MessageQueue) -> MessageExt:
    """Return an assembled message as it was before its holder changed it."""
    head = message._fields
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
    """Return the topic, its size with its length field, and the start of other V1 records of it."""
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


def read_pulled(
    buffer: bytes | bytearray | memoryview,
    queue: MessageQueue,
    first: int,
    *,
    check_crc: bool,
    extra_properties: Mapping[str, str],
) -> tuple[list[MessageExt], bool, bool]:
    """Read the answer to a pull: all records, with batch records split into messages.

    Args:
        buffer, check_crc, extra_properties: as ``decode_messages`` has them.
        queue: the queue that was pulled.
        first: the offset that was asked for.

    Returns:
        As ``decode_pulled``; ``before_damage`` finds the message that does not match its CRC.

    Raises:
        RemoteProtocolError: a record, or a batch in one, is incomplete or inconsistent.
    """
    messages, whole, own = decode_pulled(
        buffer, queue, check_crc=check_crc, extra_properties=extra_properties
    )
    return taken_apart(messages, first, check_crc=not whole), whole, own


def before_damage(
    messages: list[MessageExt], queue: MessageQueue, next_offset: int
) -> tuple[list[MessageExt], int]:
    """Return the messages before the first damaged one, and its offset, to pull it again.

    Args:
        messages: some of a pull, in order.
        next_offset: where to pull next if none of them is damaged.

    Raises:
        DamagedMessageError: the first message is damaged.
    """
    whole = check_bodies(messages, queue)
    return whole, next_offset if whole is messages else messages[len(whole)].queue_offset


def check_bodies(messages: list[MessageExt], queue: MessageQueue) -> list[MessageExt]:
    """Return the messages before the first that does not match its CRC.

    Raises:
        DamagedMessageError: the first message does not match.
    """
    for number, message in enumerate(messages):
        if body_crc(message.stored_body) != message.body_crc or not message._is_as_stored():
            if not number:
                raise _damaged(message, queue)
            return messages[:number]
    return messages


def _damaged(bad: MessageExt, queue: MessageQueue) -> DamagedMessageError:
    actual, stored = body_crc(bad.stored_body), bad.body_crc
    part, figures = "body", f": {actual}, stored is {stored}"
    if actual == stored:
        part, figures = "record", ""
    return DamagedMessageError(
        f"the {part} of message {bad.offset_msg_id}, offset {bad.queue_offset} of {queue}, does "
        f"not match its CRC{figures}. It may be damaged "
        "on its way, so it is pulled again; if it stays so, the broker's disk is damaged: skip it "
        "(rocketstream group reset), or take it as it is (check_crc=False)",
        queue=queue,
        offset=bad.queue_offset,
    )


def is_compressed(message: MessageExt) -> bool:
    """Return whether the stored body is compressed."""
    return message.sys_flag & MessageSysFlag.COMPRESSED != 0
