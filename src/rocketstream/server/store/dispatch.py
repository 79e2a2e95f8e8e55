"""What a stored record says about itself: its queue, its tags code, its keys.

Law: bytes in, values out; used when queues and indexes are built from the log again.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.names import SCHEDULE_TOPIC
from rocketstream.protocol.record import RecordHead
from rocketstream.protocol.tag_hash import tags_code


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


def dispatch_entry(buffer: bytes, position: int, head: RecordHead) -> DispatchEntry:
    """Pick the fields out of a checked record."""
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
    """Tell whether a record gets a unit: PREPARED and ROLLBACK records do not (W 5.3)."""
    return not sys_flag & MessageSysFlag.TRANSACTION_PREPARED


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
    """Return the tagsCode of a record's unit; the delivery time in the schedule topic (W 4.4)."""
    if entry.topic == SCHEDULE_TOPIC:
        level = property_of(entry.properties, b"DELAY")
        if level is not None and level.isdigit() and int(level) > 0:
            index = min(int(level), len(delay_levels_ms)) - 1
            return entry.store_timestamp + delay_levels_ms[index]
    tags = property_of(entry.properties, b"TAGS")
    return _tags_code(tags) if tags else 0


def index_keys(entry: DispatchEntry) -> tuple[str, ...]:
    """Return the keys a record is found by: UNIQ_KEY first, then each word of KEYS (W 5.4)."""
    if entry.sys_flag & MessageSysFlag.TRANSACTION_MASK == MessageSysFlag.TRANSACTION_ROLLBACK:
        return ()
    unique = property_of(entry.properties, b"UNIQ_KEY")
    words = property_of(entry.properties, b"KEYS")
    keys = [unique.decode("utf-8", "replace")] if unique else []
    if words:
        keys += [word for word in words.decode("utf-8", "replace").split(" ") if word]
    return tuple(keys)
