"""Drafts: records that lack only the fields the store assigns.

Pure: bytes in and out. Drafts are plain tuples, since there is one for each message.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from rocketstream.errors import LocalProtocolError
from rocketstream.limits import PROPERTIES_BYTES_MAX
from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.crc import crc32
from rocketstream.protocol.record import (
    HEADS,
    HOSTS_MASK,
    MAGIC_V1,
    MAGIC_V2,
    NO_SEAL,
    pack_host,
    sealed_tail,
)

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

SHORT_TOPIC_BYTES_MAX: Final = 127
"""Longest topic of a record of the first kind (``MAGIC_V1``)."""
_TOPIC_BYTES_MAX: Final = 0x7FFF


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
    if size > PROPERTIES_BYTES_MAX:
        raise _too_long("properties", size, PROPERTIES_BYTES_MAX)
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
