"""Reads of a queue: the scan of C-367 to C-370 and the search by time of C-372."""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterable

from rocketstream.errors import StoreDamagedError
from rocketstream.limits import SCAN_UNITS_MAX
from rocketstream.protocol.record import RECORD_BYTES_MIN
from rocketstream.server.store.commit_log import CommitLog
from rocketstream.server.store.consume_queue import FILLER_SIZE, UNIT, ConsumeQueue
from rocketstream.server.store.results import GetMessageStatus, GetResult, StoreConfig
from rocketstream.server.store.units import QueueReader

_SCAN_UNITS_MIN = 800
"""Bytes of the index that are scanned at least (C-368)."""
_STAMP = struct.Struct(">q")
Match = Callable[[int], bool]
Accept = Callable[[bytes], bool]


def newest(
    read: Callable[[int], bytes | None], offsets: Iterable[int], bytes_max: int
) -> Generator[None, None, list[bytes]]:
    """Read the newest of some records, in steps, as many as fit; returns them oldest first.

    Args:
        read: returns the record at a log offset; None when it is gone.
        bytes_max: most bytes of all records together; one is returned, of any size.
    """
    records: list[bytes] = []
    size = 0
    for offset in sorted(offsets, reverse=True):
        record = read(offset)
        if record is None:
            continue
        size += len(record)
        if records and size > bytes_max:
            break
        records.append(record)
        yield
    records.reverse()
    return records


def get_bounds(queue: ConsumeQueue, offset: int, high: int) -> GetResult | None:
    """Answer a read outside the queue's bounds (the table of C-367); None for one inside."""
    low = queue.min_offset
    if high == 0:
        return GetResult(GetMessageStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
    if offset < low:
        return GetResult(GetMessageStatus.OFFSET_TOO_SMALL, low, low, high)
    if offset == high:
        return GetResult(GetMessageStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
    if offset > high:
        return GetResult(GetMessageStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
    return None


def get(
    queue: ConsumeQueue,
    log: CommitLog,
    config: StoreConfig,
    memory_bytes: int,
    offset: int,
    count_max: int,
    high: int,
    match: Match | None,
    accept: Accept | None = None,
    is_enough: Callable[[], bool] | None = None,
) -> GetResult:
    """Read up to ``count_max`` records from an offset on, as upstream's getMessage does.

    Args:
        high: offset where the queue ends for readers.
        is_enough: asked after each record that was tested; true ends the scan.
    """
    outside = get_bounds(queue, offset, high)
    if outside is not None:
        return outside
    count_max = max(count_max, 1)
    is_filtered = match is not None or accept is not None
    scan_max = max(_SCAN_UNITS_MIN, count_max) if is_filtered else count_max
    units = queue.units(offset, min(scan_max, high - offset, SCAN_UNITS_MAX))
    reader = QueueReader(queue, log, config.delay_levels_ms)
    low = queue.min_offset
    if not units:
        following = queue.next_file_offset(offset)
        return GetResult(GetMessageStatus.OFFSET_FOUND_NULL, following, low, high)
    result = GetResult(GetMessageStatus.NO_MATCHED_MESSAGE, offset, low, high)
    _scan(reader, units, log, config, memory_bytes, count_max, match, accept, is_enough, result)
    if result.status is GetMessageStatus.MESSAGE_WAS_REMOVING and not is_filtered:
        # Removed records are skipped as far as upstream would scan, not only count_max units.
        units = queue.units(
            offset, min(max(_SCAN_UNITS_MIN, count_max), high - offset, SCAN_UNITS_MAX)
        )
        result = GetResult(GetMessageStatus.NO_MATCHED_MESSAGE, offset, low, high)
        _scan(reader, units, log, config, memory_bytes, count_max, match, accept, is_enough, result)
    return result


def _scan(
    reader: QueueReader,
    units: bytes,
    log: CommitLog,
    config: StoreConfig,
    memory_bytes: int,
    count_max: int,
    match: Match | None,
    accept: Accept | None,
    is_enough: Callable[[], bool] | None,
    result: GetResult,
) -> None:
    on_disk_before = log.end - memory_bytes
    bytes_max = config.transfer_bytes_in_memory_max
    limit = min(count_max, config.transfer_count_in_memory_max)
    total = count = scanned = 0
    start = end = -1  # the range of neighbouring records being collected
    gone = False
    log_min, log_end = log.min_offset, log.end
    records = result.records
    for physical, size, code in UNIT.iter_unpack(units):
        if physical < on_disk_before:
            result.on_disk = True
            full = _full_on_disk(count, total + size, count_max, config)
        else:
            full = count >= limit or total + size > bytes_max
        if full and count:
            break
        scanned += 1
        wanted = match is None or match(code)
        if not wanted and _may_be(physical, size, log_min, log_end):
            continue
        number = result.next_begin_offset + scanned - 1
        try:
            place = reader.place(number, physical, size)
        except StoreDamagedError:
            if not count:
                raise
            scanned -= 1  # the records before it are served first
            break
        if place is None:
            gone = True
            continue
        is_mended = not wanted or place != (physical, size)  # it may name another tag now
        if match is not None and is_mended and not match(reader.tag_code(number)):
            continue
        physical, size = place
        if accept is not None and not accept(log.slice(physical, physical + size)):
            if is_enough is not None and is_enough():
                break
            continue
        if physical != end:
            if end >= 0:
                records.append(log.slice(start, end))
            start = end = physical
        end += size
        total += size
        count += 1
        if is_enough is not None and is_enough():
            break
    if end >= 0:
        records.append(log.slice(start, end))
        result.status = GetMessageStatus.FOUND
    elif gone:
        result.status = GetMessageStatus.MESSAGE_WAS_REMOVING
    result.total_bytes = total
    result.count = count
    result.next_begin_offset += scanned


def _may_be(physical: int, size: int, log_min: int, log_end: int) -> bool:
    """Whether a unit can be whole: then its tags code counts, without a read of the message."""
    return size == FILLER_SIZE or (
        size >= RECORD_BYTES_MIN and log_min <= physical <= log_end - size
    )


def _full_on_disk(count: int, total: int, count_max: int, config: StoreConfig) -> bool:
    return (
        count >= min(count_max, config.transfer_count_on_disk_max)
        or total > config.transfer_bytes_on_disk_max
    )


def store_timestamp_at(log: CommitLog, physical: int) -> int:
    """Return the store timestamp of the record at a log offset; -1 when it is gone."""
    fixed = log.read(physical, physical + 91)
    if fixed is None or len(fixed) < 91:
        return -1
    timestamp: int
    (timestamp,) = _STAMP.unpack_from(fixed, 68 if fixed[39] & 0x10 else 56)
    return timestamp


def offset_by_timestamp(queue: ConsumeQueue, end: int, log: CommitLog, timestamp: int) -> int:
    """Return the offset stored nearest to a time; of two as near, the earlier one (C-372).

    Args:
        queue: where it is searched for.
        end: where the queue ends for readers.
        log: has the times.
        timestamp: in ms since 1970.
    """
    low, high = queue.min_offset, end
    if low >= high:
        return 0
    last = high - 1
    while low < high:
        middle = (low + high) // 2
        if store_timestamp_at(log, queue.unit(middle)[0]) < timestamp:
            low = middle + 1
        else:
            high = middle
    if low > last:
        return last
    if low == queue.min_offset:
        return low
    after = store_timestamp_at(log, queue.unit(low)[0])
    before = store_timestamp_at(log, queue.unit(low - 1)[0])
    return low if after == timestamp or after - timestamp < timestamp - before else low - 1
