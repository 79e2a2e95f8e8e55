"""The stored message record, and the batch body that carries several messages in one send.

Pure: bytes in, bytes out; positions and checks. A message on its way to a store is a draft, which
lacks only the fields the store assigns: a plain tuple, since there is one for each message.
"""

from __future__ import annotations

import enum
import ipaddress
import operator
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from rocketstream import limits
from rocketstream.errors import LocalProtocolError, RemoteProtocolError
from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.crc import crc32
from rocketstream.protocol.properties import split_keys

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
MAGIC_BLANK: Final = 0xCBD43194
RECORD_BYTES_MIN: Final = 91
"""Size of a record with IPv4 hosts, without body, topic and properties."""

HEAD_V4: Final = struct.Struct(">iIiiiqqiq8sq8siqi")
_HEAD_BORN_V6: Final = struct.Struct(">iIiiiqqiq20sq8siqi")
_HEAD_STORE_V6: Final = struct.Struct(">iIiiiqqiq8sq20siqi")
_HEAD_BOTH_V6: Final = struct.Struct(">iIiiiqqiq20sq20siqi")
HEADS: Final = {
    0: HEAD_V4,
    MessageSysFlag.BORN_HOST_V6: _HEAD_BORN_V6,
    MessageSysFlag.STORE_HOST_V6: _HEAD_STORE_V6,
    MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6: _HEAD_BOTH_V6,
}
"""Fixed part of a record by the two host bits of its sysFlag: totalSize up to bodyLength."""
HOSTS_MASK: Final = MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6
SYS_FLAG_AT: Final = 36
SECTOR_BYTES: Final = 512
"""The smallest unit a disk writes as a whole."""
PROPERTIES_CRC: Final = b"PROPERTIES_CRC\x01"
SEAL_BYTES: Final = len(PROPERTIES_CRC) + 16
NO_SEAL: Final = PROPERTIES_CRC + b"0" * 16

DELETION_QUEUE: Final = 0x7FFF_FFFF
"""Queue id of the half message that says where in the log a topic was deleted. No message has it,
since a topic has fewer queues."""

_MARK: Final = struct.Struct(">iI")
_SYS_FLAG: Final = struct.Struct(">i")
_SHORT: Final = struct.Struct(">h")
_BATCH_HEAD: Final = struct.Struct(">iiiii")
BATCH_RECORD_BYTES: Final = _BATCH_HEAD.size + 2
"""Size of a message in a batch body without its body and properties."""
_PORT: Final = struct.Struct(">i")
SHORT_TOPIC_BYTES_MAX: Final = 127
"""Longest topic of a record of the first kind (``MAGIC_V1``)."""
_TOPIC_BYTES_MAX: Final = 0x7FFF

Draft: TypeAlias = tuple[
    tuple[str, int],
    int,
    int,
    int,
    int,
    int,
    bytes,
    bytes,
    int,
    int,
    bytes | bytearray | memoryview,
    bytes,
    int,
    Sequence[str],
]
"""Topic and queue id, size of the record in bytes, magic, flag, sysFlag (:func:`own_hosts`), born
timestamp, born host, store host, times it was consumed again, offset of its half message, body,
tail (:func:`draft_tail`), tagsCode, keys."""


def body_crc(body: bytes | memoryview) -> int:
    """Return the CRC-32 of a body with the sign bit cleared, as upstream stores it."""
    return crc32(body) & 0x7FFFFFFF


def pack_host(host: str, port: int) -> bytes:
    """Return an address as stored: 4 or 16 bytes and the port as 4.

    Raises:
        LocalProtocolError: not an IP address (a scope id is left out), or not a port number.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
        return address.packed + _PORT.pack(port)
    except (ValueError, struct.error):
        raise LocalProtocolError(
            f"{host!r}:{port!r} is not an IP address and port; records hold no host names"
        ) from None


def unpack_host(data: bytes | memoryview) -> tuple[str, int]:
    """Return the address of 8 or 20 packed bytes.

    Raises:
        RemoteProtocolError: the data has another length.
    """
    if len(data) not in (8, 20):
        raise RemoteProtocolError(f"a stored host has 8 or 20 bytes, not {len(data)}")
    raw = bytes(data)
    (port,) = _PORT.unpack_from(raw, len(raw) - 4)
    if len(raw) == 8:
        return f"{raw[0]}.{raw[1]}.{raw[2]}.{raw[3]}", port
    return str(ipaddress.IPv6Address(raw[:16])), port


# --- writing ----------------------------------------------------------------------------------


def index_keys(unique: str | None, keys: str | None) -> list[str]:
    """Return the words that find a message: its id and as many keys as are indexed."""
    found = [unique] if unique else []
    if keys:
        found.extend(split_keys(keys)[: limits.KEYS_MAX])
    return found


def sealable(text: bytes) -> bytes:
    """Return the property text with room for a seal; text too long for one stays as it is.

    A seal is a last property with the CRC of everything in a record but its body, whose own CRC is
    in it, and the low half of the record's log offset: a copy of the property in another record,
    which a broker of upstream may store, is thereby known for no seal of that record.
    """
    sealed = b"%b\x02%b" % (text, NO_SEAL) if text and text[-1] != 2 else text + NO_SEAL
    return sealed if len(sealed) <= limits.PROPERTIES_BYTES_MAX else text


def sealed_tail(head: bytes | memoryview, tail: bytes | memoryview, physical_offset: int) -> bytes:
    """Return the part of a record behind its body with the seal in the room made for it."""
    rest = tail[:-16]
    seal = b"%08x%08x" % (crc32(rest, crc32(head)), physical_offset & 0xFFFFFFFF)
    return b"".join((rest, seal))


def topic_head(topic: bytes) -> tuple[int, bytes]:
    """Return the magic of a topic's records, and the bytes by which they name the topic.

    Topics over 127 bytes are written with the V2 magic, as 5.x does.

    Raises:
        LocalProtocolError: no record can name it.
    """
    size = len(topic)
    if size <= SHORT_TOPIC_BYTES_MAX:
        return MAGIC_V1, size.to_bytes(1, "big") + topic
    if size > _TOPIC_BYTES_MAX:
        raise _too_long("topic", size, _TOPIC_BYTES_MAX)
    return MAGIC_V2, size.to_bytes(2, "big") + topic


def own_hosts(sys_flag: int, born_host: bytes, store_host: bytes) -> int:
    """Return a sysFlag with the bits of packed addresses, whatever bits a client sent."""
    if len(born_host) == 20:
        sys_flag |= MessageSysFlag.BORN_HOST_V6
    else:
        sys_flag &= ~MessageSysFlag.BORN_HOST_V6
    if len(store_host) == 20:
        return sys_flag | MessageSysFlag.STORE_HOST_V6
    return sys_flag & ~MessageSysFlag.STORE_HOST_V6


def head_bytes(sys_flag: int) -> int:
    """Return the size of a record's part before the body, which its hosts decide."""
    return HEADS[sys_flag & HOSTS_MASK].size


def draft_tail(topic: bytes, properties: bytes) -> bytes:
    """Return the part of a record that follows the body.

    Args:
        topic: the second of :func:`topic_head`.
        properties: text of the properties, made ``sealable`` if it is to have a seal.

    Raises:
        LocalProtocolError: the properties are too long for a record.
    """
    size = len(properties)
    if size > limits.PROPERTIES_BYTES_MAX:
        raise _too_long("properties", size, limits.PROPERTIES_BYTES_MAX)
    return b"%b%b%b" % (topic, size.to_bytes(2, "big"), properties)


def new_draft(
    topic: str,
    queue_id: int,
    flag: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_host: bytes,
    body: bytes | bytearray | memoryview,
    properties: bytes,
    tags_code: int = 0,
    keys: Sequence[str] = (),
    *,
    reconsume_times: int = 0,
    prepared_transaction_offset: int = 0,
) -> Draft:
    """Return the draft of any message; its bits of hosts are set from the hosts.

    Args:
        properties: as for :func:`draft_tail`.

    Raises:
        LocalProtocolError: topic or properties are too long.
    """
    magic, head = topic_head(topic.encode())
    tail, sys_flag = draft_tail(head, properties), own_hosts(sys_flag, born_host, store_host)
    return (
        (topic, queue_id), head_bytes(sys_flag) + len(body) + len(tail), magic, flag, sys_flag,
        born_timestamp, born_host, store_host, reconsume_times, prepared_transaction_offset, body,
        tail, tags_code, keys,
    )  # fmt: skip


def draft_parts(
    draft: Draft, queue_offset: int, physical_offset: int, store_timestamp: int
) -> tuple[bytes, bytes | bytearray | memoryview, bytes]:
    """Return a draft's record in three parts: before the body, the body, behind it.

    Raises:
        LocalProtocolError: a number is out of its range.
    """
    (
        key, size, magic, flag, sys_flag, born, born_host, store_host, times, half, body, tail, _, _
    ) = draft  # fmt: skip
    try:
        head = HEADS[sys_flag & HOSTS_MASK].pack(
            size, magic, crc32(body) & 0x7FFFFFFF, key[1], flag, queue_offset, physical_offset,
            sys_flag, born, born_host, store_timestamp, store_host, times, half, len(body),
        )  # fmt: skip
    except struct.error as error:
        raise LocalProtocolError(f"a record cannot carry these fields: {error}") from None
    if tail.endswith(NO_SEAL):
        tail = sealed_tail(head, tail, physical_offset)
    return head, body, tail


def record_of(draft: Draft, queue_offset: int, physical_offset: int, store_timestamp: int) -> bytes:
    """Return the record of a draft in one piece.

    Raises:
        LocalProtocolError: a number is out of its range.
    """
    return b"".join(draft_parts(draft, queue_offset, physical_offset, store_timestamp))


@dataclass(slots=True)
class RecordFields:
    """All fields of a record in readable form, for :func:`encode_record`."""

    topic: str
    queue_id: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: tuple[str, int]
    store_timestamp: int
    store_host: tuple[str, int]
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    properties: str = ""
    queue_offset: int = 0
    physical_offset: int = 0


def encode_record(fields: RecordFields) -> bytes:
    """Return a complete record; the host bits of sysFlag are set from the hosts.

    Raises:
        LocalProtocolError: the record cannot carry a field.
    """
    draft = new_draft(
        fields.topic,
        fields.queue_id,
        fields.flag,
        fields.sys_flag,
        fields.born_timestamp,
        pack_host(*fields.born_host),
        pack_host(*fields.store_host),
        fields.body,
        fields.properties.encode(),
        reconsume_times=fields.reconsume_times,
        prepared_transaction_offset=fields.prepared_transaction_offset,
    )
    return record_of(draft, fields.queue_offset, fields.physical_offset, fields.store_timestamp)


def _too_long(part: str, size: int, most: int) -> LocalProtocolError:
    return LocalProtocolError(f"{part} of {size} bytes do not fit a record (at most {most})")


def seal_fits(
    head: bytes | memoryview, tail: bytes | memoryview, physical_offset: int
) -> bool | None:
    """Return whether a record's seal is right; None where the record has no seal of its own.

    A sector that was lost together with the seal leaves zeros up to the end of the record. Records
    of upstream's brokers end so by their length of properties alone, two bytes, where they have
    none.

    Args:
        head: the record before its body.
        tail: the record behind its body.
        physical_offset: the log offset the record has.
    """
    if has_seal(tail, physical_offset):
        return bytes(tail[-16:-8]) == b"%08x" % crc32(tail[:-16], crc32(head))
    end = physical_offset + int.from_bytes(head[:4], "big")
    in_sector = (end - 1) % SECTOR_BYTES + 1
    is_lost = 2 < in_sector <= len(tail) and not any(tail[-in_sector:])
    return False if is_lost else None


def has_seal(tail: bytes | memoryview, physical_offset: int) -> bool:
    """Return whether the end of a record is a seal of its own, right or not.

    A name with a damaged letter is still one: it would be shown as a property of the message.
    """
    if tail[-8:] != b"%08x" % (physical_offset & 0xFFFFFFFF):
        return False
    name = bytes(tail[-SEAL_BYTES:-16])
    if name == PROPERTIES_CRC:
        return True
    alike: int = sum(map(operator.eq, name, PROPERTIES_CRC))
    return alike >= len(PROPERTIES_CRC) - 3


# --- reading ----------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class RecordHead:
    """The fields of a record and the positions of its parts, counted from the record's start."""

    total_size: int
    magic: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host_bytes: bytes
    store_timestamp: int
    store_host_bytes: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body_start: int
    body_size: int
    topic: str
    properties_start: int
    properties_size: int


def read_head(buffer: bytes | bytearray | memoryview, position: int = 0) -> RecordHead:
    """Read one record of a buffer, checking every length against it.

    Raises:
        RemoteProtocolError: the record is incomplete or inconsistent.
    """
    if position < 0 or len(buffer) - position < RECORD_BYTES_MIN:
        raise RemoteProtocolError(f"no whole record at {position} of {len(buffer)} bytes")
    (sys_flag,) = _SYS_FLAG.unpack_from(buffer, position + SYS_FLAG_AT)
    head = HEADS[sys_flag & 0x30]
    if len(buffer) - position < head.size + 3:
        raise RemoteProtocolError(f"no whole record at {position} of {len(buffer)} bytes")
    fields = head.unpack_from(buffer, position)
    total_size, magic, body_size = fields[0], fields[1], fields[14]
    topic_at = head.size + body_size
    topic_start = topic_at + (1 if magic == MAGIC_V1 else 2)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise RemoteProtocolError(f"record magic {magic:#x} at {position} is unknown")
    if total_size > len(buffer) - position or body_size < 0 or topic_start + 2 > total_size:
        raise RemoteProtocolError(f"record at {position} is longer than its buffer")
    if magic == MAGIC_V1:
        topic_size = buffer[position + topic_at]
    else:
        (topic_size,) = _SHORT.unpack_from(buffer, position + topic_at)
    properties_at = topic_start + topic_size
    if topic_size < 0 or properties_at + 2 > total_size:
        raise RemoteProtocolError(f"topic of the record at {position} passes the record's end")
    (properties_size,) = _SHORT.unpack_from(buffer, position + properties_at)
    if properties_at + 2 + properties_size != total_size:
        raise RemoteProtocolError(f"lengths of the record at {position} do not sum to its size")
    try:
        topic = bytes(buffer[position + topic_start : position + properties_at]).decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"topic of the record at {position}: {error}") from None
    fixed: tuple[Any, ...] = (*fields[:14], head.size, body_size)
    return RecordHead(*fixed, topic, properties_at + 2, properties_size)  # type: ignore[call-arg]


class RecordState(enum.Enum):
    """The content of a position of a commit log."""

    OK = "OK"
    BLANK = "BLANK"
    END = "END"
    BAD = "BAD"


class RecordCheck(NamedTuple):
    """Result of ``check_record``: state, bytes to step by (0 for END and BAD), why it is bad."""

    state: RecordState
    size: int = 0
    reason: str = ""
    head: RecordHead | None = None


def check_record(
    buffer: bytes | bytearray | memoryview, position: int, *, crc: bool = True
) -> RecordCheck:
    """Return the content of a position of a commit log file; never raises.

    BLANK is the filler that ends a file, END is zeroes (nothing was written there, or too few bytes
    are left for a marker), BAD is anything else that is not a complete record with the right CRC.
    """
    left = len(buffer) - position
    if left < 8:
        return RecordCheck(RecordState.END)
    size, magic = _MARK.unpack_from(buffer, position)
    if magic == MAGIC_BLANK:
        if 8 <= size <= left:
            return RecordCheck(RecordState.BLANK, size)
        return RecordCheck(RecordState.BAD, 0, f"blank marker of {size} bytes with {left} left")
    if magic == 0 and size == 0:
        return RecordCheck(RecordState.END)
    try:
        head = read_head(buffer, position)
    except RemoteProtocolError as error:
        return RecordCheck(RecordState.BAD, 0, error.message)
    if crc:
        start = position + head.body_start
        end = start + head.body_size
        with memoryview(buffer) as view:
            if head.body_size and body_crc(view[start:end]) != head.body_crc:
                text = f"body CRC of the record at {position} is wrong"
                return RecordCheck(RecordState.BAD, 0, text)
            ends = view[position:start], view[end : position + head.total_size]
            if seal_fits(*ends, head.physical_offset) is False:
                text = f"PROPERTIES_CRC of the record at {position} is wrong"
                return RecordCheck(RecordState.BAD, 0, text)
    return RecordCheck(RecordState.OK, head.total_size, "", head)


# --- batch body -------------------------------------------------------------------------------


class BatchItem(NamedTuple):
    """One message inside a batch body; properties in their text form, as bytes."""

    flag: int
    body: bytes
    properties: bytes


def encode_batch(items: Iterable[BatchItem | tuple[int, bytes, bytes]]) -> bytes:
    """Return the body of a batch send (code 320).

    Raises:
        LocalProtocolError: properties have over 32767 bytes, or a flag is out of its range.
    """
    parts: list[bytes] = []
    for flag, body, properties in items:
        try:
            size = BATCH_RECORD_BYTES + len(body) + len(properties)
            parts += (
                _BATCH_HEAD.pack(size, 0, 0, flag, len(body)),
                body,
                _SHORT.pack(len(properties)),
                properties,
            )
        except struct.error as error:
            raise LocalProtocolError(f"message does not fit a batch: {error}") from None
    return b"".join(parts)


def decode_batch(
    body: bytes | memoryview, *, messages_max: int = limits.BATCH_MESSAGES_MAX
) -> list[BatchItem]:
    """Read the body of a batch send.

    Raises:
        RemoteProtocolError: the lengths do not add up, or there are more than ``messages_max``
            messages.
    """
    data = body if isinstance(body, bytes) else bytes(body)
    total, head_size = len(data), _BATCH_HEAD.size
    unpack_head, unpack_short, new = _BATCH_HEAD.unpack_from, _SHORT.unpack_from, tuple.__new__
    items: list[BatchItem] = []
    position = 0
    while position < total:
        start = position + head_size
        if total - start < 2:
            raise RemoteProtocolError(f"batch ends inside a message at {position}")
        size, _magic, _crc, flag, body_size = unpack_head(data, position)
        end = position + size
        stop = start + body_size
        if body_size < 0 or end > total or stop + 2 > end:
            raise RemoteProtocolError(f"batch message at {position} is longer than its batch")
        (properties_size,) = unpack_short(data, stop)
        if stop + 2 + properties_size != end:
            raise RemoteProtocolError(f"lengths of the batch message at {position} do not add up")
        if len(items) >= messages_max:
            raise RemoteProtocolError(
                f"a batch has more than the maximum of {messages_max} messages; send several",
                messages_max=messages_max,
            )
        # Bypasses the constructor, which is Python code and takes twice as long.
        items.append(new(BatchItem, (flag, data[start:stop], data[stop + 2 : end])))
        position = end
    return items
