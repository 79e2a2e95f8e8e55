"""Walks over the commit log, record by record, and the search for a record in it.

Law: a walk ends at the first bytes that are not a whole record at its own offset; it changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rocketstream.protocol.record import (
    MAGIC_V1,
    MAGIC_V2,
    RecordCheck,
    RecordHead,
    RecordState,
    check_record,
)
from rocketstream.server.store.commit_log import CommitLog
from rocketstream.server.store.dispatch import (
    DispatchEntry,
    dispatch_entry,
    index_keys,
    plain_entry,
)
from rocketstream.server.store.key_index import Pending
from rocketstream.server.store.mapped_file import MappedFile

Counts = Callable[[RecordHead], bool]
_MAGICS = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))


@dataclass(slots=True)
class WalkEnd:
    """Where the run of complete records ends, and why."""

    offset: int
    reason: str = ""
    records: int = 0
    last_timestamp: int = 0
    last: DispatchEntry | None = None

    def step_back(self, reason: str) -> None:
        """Leave out the last record."""
        assert self.last is not None
        self.offset = self.last.physical_offset
        self.records -= 1
        self.reason = reason
        self.last = None


def walk(log: CommitLog, end: WalkEnd, *, crc: bool = True) -> Iterator[DispatchEntry]:
    """Yield every complete record from ``end.offset`` on; afterwards ``end`` is the end of the run.

    Args:
        crc: check bodies too; not needed when they were checked before.
    """
    while (segment := log.segment_at(end.offset)) is not None:
        yield from _walk_file(segment, end, crc)
        if end.offset < segment.base + segment.size:
            return


def _walk_file(segment: MappedFile, end: WalkEnd, crc: bool) -> Iterator[DispatchEntry]:
    """Walk within one file; ``end`` is at the file's end when a blank marker closes it."""
    base = segment.base
    position = end.offset - base
    with memoryview(segment.map) as data:
        while True:
            entry = plain_entry(data, position, base, crc)
            if entry is None:
                check = check_record(data, position, crc=crc)
                if check.state is RecordState.BLANK and position + check.size == segment.size:
                    end.offset = base + segment.size
                    return
                entry = _checked_entry(data, position, base, check, end)
                if entry is None:
                    return
            position += entry.size
            end.records += 1
            end.offset = base + position
            end.last_timestamp = entry.store_timestamp
            end.last = entry
            yield entry


def _checked_entry(
    data: memoryview, position: int, base: int, check: RecordCheck, end: WalkEnd
) -> DispatchEntry | None:
    """Return the entry of a checked record, or None with the reason in ``end``."""
    if check.state is RecordState.BLANK:
        end.reason = f"a blank marker of {check.size} bytes that does not end the file"
    elif check.head is None:
        end.reason = check.reason
    elif check.head.physical_offset != base + position:
        end.reason = f"a record that says it belongs at {check.head.physical_offset}"
    elif check.head.queue_offset < 0 or check.head.queue_id < 0 or "\0" in check.head.topic:
        head = check.head
        end.reason = f"a record of {head.topic!r}/{head.queue_id} number {head.queue_offset}"
    else:
        return dispatch_entry(data, position, check.head)
    return None


def record_at(log: CommitLog, offset: int) -> RecordHead | None:
    """Return the head of the complete record at an offset; None when there is none."""
    segment = log.segment_at(offset)
    if segment is None:
        return None
    with memoryview(segment.map) as data:
        check = check_record(data, offset - segment.base)
    if check.head is None or check.head.physical_offset != offset:
        return None
    return check.head


def find_record_after(
    log: CommitLog, offset: int, timestamp: int, sure_before: int, counts: Counts | None = None
) -> int | None:
    """Return the offset of a complete record behind an offset; None when there is none.

    From ``sure_before`` on, records older than ``timestamp`` do not count: a store truncated by
    upstream keeps stale bytes behind its end, which can hold complete former records. Nor do those
    that ``counts`` does not take.
    """

    def is_wanted(head: RecordHead) -> bool:
        is_new = head.store_timestamp >= timestamp or head.physical_offset < sure_before
        return is_new and (counts is None or counts(head))

    for segment in log.segments:
        if segment.base + segment.size <= offset:
            continue
        start = max(offset - segment.base, 0)
        for low, high in segment.data_chunks(start):
            found = [
                place
                for magic in _MAGICS
                if (
                    place := _find_in_chunk(
                        log, segment, max(low, start + 1), high, magic, is_wanted
                    )
                )
                is not None
                and place > offset
            ]
            if found:
                return min(found)
    return None


def _find_in_chunk(
    log: CommitLog,
    segment: MappedFile,
    low: int,
    high: int,
    magic: bytes,
    is_wanted: Counts,
) -> int | None:
    position = segment.map.find(magic, low, min(high + 8, segment.size))
    while position >= 0:
        start = segment.base + position - 4
        head = record_at(log, start) if position >= 4 else None
        if head is not None and is_wanted(head):
            return start
        position = segment.map.find(magic, position + 1, min(high + 8, segment.size))
    return None


def index_backlog(log: CommitLog, indexed_offset: int, *, again: bool) -> Iterator[Pending]:
    """Yield the records the key index lacks: those behind an offset up to the log's present end.

    Args:
        log: the log.
        indexed_offset: the offset of the last record that is indexed.
        again: whether to yield that one too.
    """
    offset = log.min_offset
    if indexed_offset >= offset:
        head = record_at(log, indexed_offset)
        if head is not None:
            offset = indexed_offset if again else indexed_offset + head.total_size
    return _pending_between(log, offset, log.end)


def _pending_between(log: CommitLog, offset: int, stop: int) -> Iterator[Pending]:
    while offset < stop:
        segment = log.segment_at(offset)
        if segment is None:
            if offset >= log.min_offset:
                return
            offset = log.min_offset  # the walk's file was removed meanwhile
            continue
        with memoryview(segment.map) as data:
            check = check_record(data, offset - segment.base, crc=False)
        if check.state is RecordState.BLANK:
            offset = segment.base + segment.size
            continue
        if check.head is None:
            return
        entry = dispatch_entry(segment.map, offset - segment.base, check.head)
        yield offset, entry.store_timestamp, entry.topic, index_keys(entry)
        offset += check.size
