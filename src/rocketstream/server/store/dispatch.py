"""The facts in a stored record that queues and indexes need: queue, tags code, keys.

Queues and indexes are rebuilt from the log with them.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.crc import crc32
from rocketstream.protocol.names import SCHEDULE_TOPIC
from rocketstream.protocol.record import (
    DELETION_QUEUE,
    HEAD_V4,
    MAGIC_V1,
    RECORD_BYTES_MIN,
    Draft,
    RecordHead,
    new_draft,
    seal_fits,
    sealable,
)
from rocketstream.protocol.record import index_keys as words_of
from rocketstream.protocol.tag_hash import tags_code
from rocketstream.server.store.files import FileMap


class DispatchEntry(NamedTuple):
    """One record of the log, as far as queues and indexes need it."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    sys_flag: int
    store_timestamp: int
    properties: bytes


_SHORT = struct.Struct(">h")
_V6_HOSTS = MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6


@lru_cache(maxsize=4096)
def _topic(data: bytes) -> str | None:
    try:
        return data.decode() if b"\0" not in data else None
    except UnicodeDecodeError:
        return None


def plain_entry(data: memoryview, position: int, base: int, crc: bool) -> DispatchEntry | None:
    """Read a usual record (V1, IPv4 hosts) in one step; None for any other, or in any doubt.

    Recovery walks millions of them; ``check_record`` gives the same result five times as slowly.
    """
    if len(data) - position < RECORD_BYTES_MIN:
        return None
    (size, magic, body_crc, queue_id, _, queue_offset, physical, sys_flag, _, _, stored, _, _, _,
     body_size) = HEAD_V4.unpack_from(data, position)  # fmt: skip
    body_at = position + HEAD_V4.size
    topic_at = body_at + body_size
    end = position + size
    if (
        magic != MAGIC_V1
        or sys_flag & _V6_HOSTS
        or physical != base + position
        or body_size < 0
        or queue_offset < 0
        or queue_id < 0
        or end > len(data)
        or topic_at + 3 > end
    ):
        return None
    properties_at = topic_at + 1 + data[topic_at]
    if properties_at + 2 > end:
        return None
    (properties_size,) = _SHORT.unpack_from(data, properties_at)
    if properties_size < 0 or properties_at + 2 + properties_size != end:
        return None
    if crc:
        if body_size and crc32(data[body_at:topic_at]) & 0x7FFFFFFF != body_crc:
            return None
        if seal_fits(data[position:body_at], data[topic_at:end], physical) is False:
            return None
    topic = _topic(bytes(data[topic_at + 1 : properties_at]))
    if topic is None:
        return None
    properties = bytes(data[properties_at + 2 : end])
    return DispatchEntry(
        topic, queue_id, queue_offset, physical, size, sys_flag, stored, properties
    )


def dispatch_entry(buffer: FileMap | memoryview, position: int, head: RecordHead) -> DispatchEntry:
    """Return the fields of a checked record that queues and indexes need."""
    start = position + head.properties_start
    return DispatchEntry(
        head.topic,
        head.queue_id,
        head.queue_offset,
        head.physical_offset,
        head.total_size,
        head.sys_flag,
        head.store_timestamp,
        bytes(buffer[start : start + head.properties_size]),
    )


def enters_queue(sys_flag: int) -> bool:
    """Return whether a record gets a unit: PREPARED and ROLLBACK records do not."""
    return not sys_flag & MessageSysFlag.TRANSACTION_PREPARED


def deletion_draft(topic: str, timestamp: int) -> Draft:
    """Return the draft of the record that says where in the log a topic was deleted.

    Every reader skips it, upstream's too: as a prepared half message it enters no queue and, having
    no keys, no index.
    """
    prepared, host = MessageSysFlag.TRANSACTION_PREPARED, bytes(8)
    properties = sealable(b"")
    return new_draft(topic, DELETION_QUEUE, 0, prepared, timestamp, host, host, b"", properties)


def is_deletion(entry: DispatchEntry) -> bool:
    """Return whether a record says that its topic was deleted there."""
    return entry.queue_id == DELETION_QUEUE and not enters_queue(entry.sys_flag)


def property_of(properties: bytes, name: bytes) -> bytes | None:
    """Return one value of the property text without decoding the rest."""
    mark = name + b"\x01"
    if properties.startswith(mark):
        start = len(mark)
    else:
        start = properties.find(b"\x02" + mark) + len(mark) + 1
        if start == len(mark):
            return None
    end = properties.find(b"\x02", start)
    return properties[start:] if end < 0 else properties[start:end]


@lru_cache(maxsize=4096)
def _tags_code(tags: bytes) -> int:
    return tags_code(tags.decode("utf-8", "replace"))


def queue_code(entry: DispatchEntry, delay_levels_ms: tuple[int, ...]) -> int:
    """Return the tagsCode of a record's unit; the delivery time in the schedule topic."""
    if entry.topic == SCHEDULE_TOPIC:
        level = property_of(entry.properties, b"DELAY")
        if level is not None and level.isdigit() and int(level) > 0:
            index = min(int(level), len(delay_levels_ms)) - 1
            return entry.store_timestamp + delay_levels_ms[index]
    tags = property_of(entry.properties, b"TAGS")
    return _tags_code(tags) if tags else 0


def index_keys(entry: DispatchEntry) -> tuple[str, ...]:
    """Return the keys that find a record."""
    if entry.sys_flag & MessageSysFlag.TRANSACTION_MASK == MessageSysFlag.TRANSACTION_ROLLBACK:
        return ()
    unique = property_of(entry.properties, b"UNIQ_KEY")
    words = property_of(entry.properties, b"KEYS")
    return tuple(words_of(_text(unique), _text(words)))


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")
