"""Units and records: whether a unit points at its record, and the way back where it does not.

Law: a unit counts only where the record it points at names the same topic, queue and offset.
"""

from __future__ import annotations

import logging
import struct

from rocketstream.errors import StoreDamagedError
from rocketstream.limits import SCAN_UNITS_MAX, UNIT_SEARCH_BYTES_MAX
from rocketstream.protocol.crc import crc32
from rocketstream.protocol.names import LMQ_PREFIX
from rocketstream.protocol.record import HOSTS_MASK, MAGIC_V1, RECORD_BYTES_MIN, seal_fits
from rocketstream.server.store.commit_log import CommitLog
from rocketstream.server.store.consume_queue import FILLER_SIZE, ConsumeQueue
from rocketstream.server.store.dispatch import DispatchEntry, enters_queue, plain_entry, queue_code
from rocketstream.server.store.files import FileMap
from rocketstream.server.store.log_walk import WalkEnd, record_at, walk

_log = logging.getLogger(__name__)
_PLACE = struct.Struct(">i8xi4xqq")
"""Of any record: size, queue id, queue offset, log offset."""
_FACTS = struct.Struct(">iIIi4xqqi44xi")
"""Of a usual record: size, magic, body CRC, queue id, queue offset, log offset, sysFlag, body
size."""


def is_unit_of(log: CommitLog, queue: ConsumeQueue, offset: int) -> bool:
    """Return whether a unit points at a whole record of this topic, queue and offset."""
    physical, size, _ = queue.unit(offset)
    if size < RECORD_BYTES_MIN or not log.min_offset <= physical <= log.end - size:
        return False
    segment = log.segment_at(physical)
    assert segment is not None
    with memoryview(segment.map) as data:
        entry = plain_entry(data, physical - segment.base, segment.base, crc=True)
    if entry is not None:
        facts = entry.topic, entry.queue_id, entry.queue_offset, entry.size
    else:
        head = record_at(log, physical)
        if head is None:
            return False
        facts = head.topic, head.queue_id, head.queue_offset, head.total_size
    return facts == (queue.topic, queue.queue_id, offset, size)


class QueueReader:
    """Tells which units of one queue may be served.

    Args:
        delay_levels_ms: delays by which units of the schedule queues are made.
    """

    def __init__(
        self, queue: ConsumeQueue, log: CommitLog, delay_levels_ms: tuple[int, ...]
    ) -> None:
        self._queue = queue
        self._log = log
        self._delay_levels_ms = delay_levels_ms
        topic = queue.topic.encode()
        self._topic_head = len(topic).to_bytes(1, "big") + topic if len(topic) < 128 else b""
        self._queue_id = queue.queue_id
        self._map: FileMap | bytes = b""
        self._segment_base = self._base = self._data_end = 0
        # Units of light queues point at records of the topics they belong to.
        self._is_light = queue.topic.startswith(LMQ_PREFIX)

    def place(self, offset: int, physical: int, size: int) -> tuple[int, int] | None:
        """Return log offset and size of a unit's record, None where it is passed.

        A damaged unit is mended.

        Raises:
            StoreDamagedError: the record is damaged: an operator has to choose.
        """
        log = self._log
        if size >= RECORD_BYTES_MIN and log.min_offset <= physical <= log.end - size:
            if self._base <= physical <= self._data_end - size and _PLACE.unpack_from(
                self._map, physical - self._segment_base
            ) == (size, self._queue_id, offset, physical):
                return physical, size  # written since the store was opened: the bytes are known
            if self._is_light:
                return physical, size
            if self._is_whole(offset, physical, size):
                self._know_file(physical)
                return physical, size
        elif size == FILLER_SIZE or self._queue.is_gone(offset, log.min_offset):
            return None
        return self._mend(offset, physical, size)

    def tag_code(self, offset: int) -> int:
        """Return the code of the tag that a unit names, as it is since ``place`` mended it."""
        return self._queue.unit(offset)[2]

    def _know_file(self, physical: int) -> None:
        """Remember which part of a record's file was written since the store was opened."""
        log = self._log
        segment = log.segment_at(physical)
        if segment is not None and physical >= log.opened_end:
            self._map, self._segment_base = segment.map, segment.base
            self._base = max(segment.base, log.opened_end)
            self._data_end = min(segment.base + segment.size, log.end)

    def _is_whole(self, offset: int, physical: int, size: int) -> bool:
        """Return whether a usual record is the one asked for; ``is_unit_of``, as fast as may be."""
        segment = self._log.segment_at(physical)
        if segment is None:
            return False
        data, at = segment.map, physical - segment.base
        if at + size > segment.size:
            return False
        total, magic, body_crc, queue_id, number, place, flags, body = _FACTS.unpack_from(data, at)
        if total != size or number != offset or place != physical:
            return False
        if magic != MAGIC_V1 or flags & HOSTS_MASK:
            return is_unit_of(self._log, self._queue, offset)
        topic_at, topic = at + 88 + body, self._topic_head
        if (
            queue_id != self._queue.queue_id
            or not 0 <= body < size
            or data[topic_at : topic_at + len(topic)] != topic
        ):
            return False
        if body and crc32(data[at + 88 : topic_at]) & 0x7FFFFFFF != body_crc:
            return False
        return seal_fits(data[at : at + 88], data[topic_at : at + size], physical) is not False

    def _mend(self, offset: int, physical: int, size: int) -> tuple[int, int] | None:
        """Return the place of a record to which its unit did not point."""
        queue, log = self._queue, self._log
        if offset in queue.nowhere:
            self._say_once(offset, physical, size)
            return None
        head = record_at(log, physical) if physical >= 0 else None
        if (
            head is not None
            and (head.topic, head.queue_id) == (queue.topic, queue.queue_id)
            and offset < head.queue_offset < queue.max_offset
            and queue.unit(head.queue_offset)[:2] == (physical, size)
        ):
            return None  # a repair has put the next message in the place of one that was lost
        low, high = self._neighbours(offset)
        found, end = self._between(low, high)
        for number, entry in found.items():
            code = queue_code(entry, self._delay_levels_ms)
            if queue.unit(number) != (entry.physical_offset, entry.size, code):
                queue.rewrite(number, entry.physical_offset, entry.size, code)
                _log.error(
                    "condition=UNIT_MENDED topic=%s queue=%d offset=%d: its unit was "
                    "damaged, its record is at log offset %d",
                    queue.topic, queue.queue_id, number, entry.physical_offset,
                )  # fmt: skip
        if offset in found:
            return found[offset].physical_offset, found[offset].size
        if end is None:
            # Of its neighbours too: each search takes a part of the log, while all others wait.
            searched = range(low + 1, min(high, low + 1 + SCAN_UNITS_MAX))
            queue.nowhere.update(searched, (offset,))
            queue.nowhere.difference_update(found)
            self._say_once(offset, physical, size)
            return None
        raise self._damaged(offset, end)

    def _neighbours(self, offset: int) -> tuple[int, int]:
        """Return the offsets of the nearest good units around one."""
        queue, log = self._queue, self._log
        low, high = offset - 1, offset + 1
        while low >= queue.min_offset and not is_unit_of(log, queue, low):
            low -= 1
        while high < queue.max_offset and not is_unit_of(log, queue, high):
            high += 1
        return low, high

    def _between(self, low: int, high: int) -> tuple[dict[int, DispatchEntry], int | None]:
        """Find the records of a queue between two good units.

        Returns:
            The records by queue offset, and where the log is damaged there; None where all of it
            was read.
        """
        queue, log = self._queue, self._log
        start, stop = log.min_offset, log.end
        if low >= queue.min_offset:
            physical, size, _ = queue.unit(low)
            start = physical + size
        if high < queue.max_offset:
            stop = queue.unit(high)[0]
        found: dict[int, DispatchEntry] = {}
        end, limit = WalkEnd(start), start + UNIT_SEARCH_BYTES_MAX
        for entry in walk(log, end):
            if entry.physical_offset >= stop or end.offset > limit:
                break
            if (
                low < entry.queue_offset < high
                and (entry.topic, entry.queue_id) == (queue.topic, queue.queue_id)
                and enters_queue(entry.sys_flag)
            ):
                found[entry.queue_offset] = entry
        return found, end.offset if end.offset < stop else None

    def _say_once(self, offset: int, physical: int, size: int) -> None:
        if offset not in self._queue.told:
            self._queue.told.add(offset)
            _log.error(
                "condition=UNIT_POINTS_NOWHERE topic=%s queue=%d offset=%d: the unit names %d "
                "bytes at log offset %d, and the log has no such message; it is passed",
                self._queue.topic, self._queue.queue_id, offset, size, physical,
            )  # fmt: skip

    def _damaged(self, offset: int, end: int) -> StoreDamagedError:
        queue, segment = self._queue, self._log.segment_at(end)
        path = segment.path if segment is not None else self._log.directory
        position = end - segment.base if segment is not None else 0
        if offset not in queue.told:
            queue.told.add(offset)
            _log.error(
                "condition=RECORD_DAMAGED topic=%s queue=%d offset=%d: no whole record at byte %d "
                "of %s (log offset %d)",
                queue.topic, queue.queue_id, offset, position, path, end,
            )  # fmt: skip
        return StoreDamagedError(
            f"message {offset} of {queue.topic}/{queue.queue_id} is damaged: byte {position} of "
            f"{path} (log offset {end}). Restore that file and restart the broker; or restart it "
            "once with --repair, which sets the damage aside and names the messages it passes; or "
            f"pass it for one group: `rocketstream group reset GROUP {queue.topic} --queue "
            f"{queue.queue_id} --to-offset {offset + 1}`",
            path=str(path),
            offset=end,
        )
