"""Drafts: records of usual messages that lack only the fields the store assigns.

Pure: bytes in and out. A draft holds the arguments of ``record.new_record``, and its record has the
same bytes. Drafts are plain tuples, since there is one for each message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.crc import crc32
from rocketstream.protocol.record import (
    HEAD_V4,
    HOSTS_MASK,
    MAGIC_V1,
    PROPERTIES_CRC,
    SEAL_BYTES,
    sealable,
    sealed_tail,
)

Draft: TypeAlias = tuple[
    tuple[str, int],
    int,
    int,
    int,
    bytes,
    bytes,
    bytes | bytearray | memoryview,
    bytes,
    int,
    Sequence[str],
]
"""Topic and queue id, flag, sysFlag, born timestamp, born host, store host, body, tail
(:func:`draft_tail`), tagsCode, keys. :func:`may_be_draft` tells which messages are usual."""

TOPIC_BYTES_MAX: Final = 127
_ODD_FLAGS: Final = MessageSysFlag.TRANSACTION_MASK | HOSTS_MASK
_HEAD_BYTES: Final = HEAD_V4.size
_pack_head = HEAD_V4.pack


def may_be_draft(topic: bytes, sys_flag: int, born_host: bytes, store_host: bytes) -> bool:
    """Return whether messages of this origin can be drafts: IPv4 hosts, and no half messages."""
    return (
        0 < len(topic) <= TOPIC_BYTES_MAX
        and not sys_flag & _ODD_FLAGS
        and len(born_host) == len(store_host) == 8
    )


def topic_head(topic: bytes) -> bytes:
    """Return the bytes by which a record names its topic."""
    return len(topic).to_bytes(1, "big") + topic


def draft_tail(topic: bytes, properties: bytes) -> bytes:
    """Return the part of a record that follows the body.

    Args:
        topic: the result of :func:`topic_head`.
        properties: text of the properties, without a NUL, at most ``PROPERTIES_BYTES_MAX`` bytes.
    """
    properties = sealable(properties)
    return b"%b%b%b" % (topic, len(properties).to_bytes(2, "big"), properties)


def draft_size(draft: Draft) -> int:
    """Return the size of a draft's record in bytes."""
    return _HEAD_BYTES + len(draft[6]) + len(draft[7])


def record_sizes(drafts: Iterable[Draft]) -> list[int]:
    """Return the size of each draft's record in bytes."""
    return [_HEAD_BYTES + len(draft[6]) + len(draft[7]) for draft in drafts]


def draft_parts(
    draft: Draft, size: int, queue_offset: int, physical_offset: int, store_timestamp: int
) -> tuple[bytes, bytes | bytearray | memoryview, bytes]:
    """Return a draft's record in three parts: before the body, the body, behind it.

    Args:
        size: size of the record.
    """
    key, flag, sys_flag, born, born_host, store_host, body, tail, _, _ = draft
    head = _pack_head(
        size, MAGIC_V1, crc32(body) & 0x7FFFFFFF, key[1], flag, queue_offset, physical_offset,
        sys_flag, born, born_host, store_timestamp, store_host, 0, 0, len(body),
    )  # fmt: skip
    if tail[-SEAL_BYTES:-16] == PROPERTIES_CRC:
        tail = sealed_tail(head, tail, physical_offset)
    return head, body, tail
