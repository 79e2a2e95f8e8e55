"""Bringing a store to a state that can be appended to: torn tails, damage, lost queue units.

Law: nothing that follows damage is ever deleted; an unclear state is refused (W 5.6).
"""

from __future__ import annotations

import itertools
import logging
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rocketstream.errors import StoreDamagedError
from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.record import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SECTOR_BYTES,
    RecordCheck,
    RecordHead,
    RecordState,
    check_record,
    is_guarded,
    new_record,
    stamp_record,
)
from rocketstream.server.store.checkpoint import Checkpoint
from rocketstream.server.store.commit_log import BLANK, CommitLog
from rocketstream.server.store.consume_queue import ConsumeQueue, is_filler
from rocketstream.server.store.dispatch import (
    DispatchEntry,
    dispatch_entry,
    enters_queue,
    index_keys,
    plain_entry,
    queue_code,
)
from rocketstream.server.store.files import Files
from rocketstream.server.store.found_units import FoundUnits
from rocketstream.server.store.key_index import Pending
from rocketstream.server.store.mapped_file import MappedFile
from rocketstream.server.store.queue_file import UNIT_BYTES
from rocketstream.server.store.reading import store_timestamp_at
from rocketstream.server.store.results import StoreConfig

_log = logging.getLogger(__name__)
_MARGIN_MS = 3000
"""Upstream trusts a checkpoint up to this long before its timestamps (W 5.6)."""
_MAGICS = tuple(magic.to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))
_BRIDGE_TOPIC = b"DAMAGED"
_BRIDGE_BYTES_MIN = RECORD_BYTES_MIN + 1
_BRIDGE_BYTES_MAX = 1024 * 1024
_GROUPED_RECORDS = 32_768
_UNGROUPED_QUEUES_MAX = 64
_queue_of = operator.attrgetter("topic", "queue_id")
Queues = dict[tuple[str, int], ConsumeQueue]
MakeQueue = Callable[[str, int], ConsumeQueue]


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


@dataclass(slots=True)
class Outcome:
    """The findings and actions of recovery, for the report."""

    end: WalkEnd
    dispatched: int = 0
    entries_dropped: int = 0
    rebuilt: bool = False
    torn_bytes: int = 0
    torn_flushed: bool = False
    quarantined: list[Path] = field(default_factory=list)


class _UnitsLostError(Exception):
    """A record's unit is missing where it must be: the queues must be rebuilt."""


# --- walking the log ------------------------------------------------------------------------------


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


def find_record_after(log: CommitLog, offset: int, timestamp: int, sure_before: int) -> int | None:
    """Return the offset of a complete record behind an offset; None when there is none.

    From ``sure_before`` on, records older than ``timestamp`` do not count: a store truncated by
    upstream keeps stale bytes behind its end, which can hold complete former records.
    """
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
                        log, segment, max(low, start + 1), high, magic, timestamp, sure_before
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
    timestamp: int,
    sure_before: int,
) -> int | None:
    position = segment.map.find(magic, low, min(high + 8, segment.size))
    while position >= 0:
        start = segment.base + position - 4
        head = record_at(log, start) if position >= 4 else None
        if head is not None and (head.store_timestamp >= timestamp or start < sure_before):
            return start
        position = segment.map.find(magic, position + 1, min(high + 8, segment.size))
    return None


def index_backlog(log: CommitLog, indexed_offset: int) -> Iterator[Pending]:
    """Yield the records the key index lacks: those behind an offset up to the log's present end."""
    offset = log.min_offset
    if indexed_offset >= offset:
        head = record_at(log, indexed_offset)
        offset = indexed_offset + head.total_size if head is not None else offset
    return _pending_between(log, offset, log.end)


def _pending_between(log: CommitLog, offset: int, stop: int) -> Iterator[Pending]:
    while offset < stop and (segment := log.segment_at(offset)) is not None:
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


# --- where to begin -------------------------------------------------------------------------------


def start_after_crash(log: CommitLog, queues: Queues, marks: Checkpoint) -> int:
    """Return a record boundary before which log and queues are certainly on the disk.

    Upstream takes the start of a file (by its first record's time); a queue's unit is as good a
    boundary and leaves less to check. Times alone are unreliable after the clock was set back; the
    offset in our own checkpoint is not.
    """
    flushed = marks.flushed_offset if marks.own else log.end
    safe = min(marks.physic_msg_timestamp, marks.logics_msg_timestamp) - _MARGIN_MS
    best = log.min_offset
    for queue in queues.values():
        low, high = queue.first_offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            physical, size, _ = queue.unit(middle)
            is_safe = physical <= flushed and 0 <= store_timestamp_at(log, physical) <= safe
            if is_filler(size) or is_safe:
                low = middle + 1
            else:
                high = middle
        best = _better_boundary(log, queue, low - 1, best)
    return best


def start_after_close(log: CommitLog, queues: Queues, config: StoreConfig) -> int:
    """Return a record boundary that leaves about ``verify_bytes_max`` of the log to check."""
    ends = [unit[0] + unit[1] for queue in queues.values() if (unit := queue.last_unit())]
    target = max(ends, default=0) - config.verify_bytes_max
    best = log.min_offset
    if target < best:
        return best
    for queue in queues.values():
        low, high = queue.first_offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            physical, size, _ = queue.unit(middle)
            if is_filler(size) or physical <= target:
                low = middle + 1
            else:
                high = middle
        best = _better_boundary(log, queue, low - 1, best)
    return best


def _better_boundary(log: CommitLog, queue: ConsumeQueue, offset: int, best: int) -> int:
    if offset < queue.first_offset:
        return best
    physical, size, _ = queue.unit(offset)
    if is_filler(size) or physical <= best:
        return best
    head = record_at(log, physical)
    belongs = (
        head is not None
        and head.topic == queue.topic
        and head.queue_id == queue.queue_id
        and head.queue_offset == offset
        and head.total_size == size
    )
    return physical if belongs else best


# --- recovering -----------------------------------------------------------------------------------


Piece = tuple[MappedFile, int, bytes | bytearray]


def bridge_pieces(log: CommitLog, offset: int, end: int, timestamp: int) -> list[Piece] | None:
    """Return the bytes to write from an offset up to a record so that every reader skips them.

    The original format has no record that is skipped, but a prepared half message enters no queue
    and no index; up to the end of a file the blank marker serves. None when the room is too small
    for either.
    """
    pieces: list[Piece] = []
    for segment in log.segments:
        low, high = max(offset, segment.base), min(end, segment.base + segment.size)
        if low >= high:
            continue
        if high == segment.base + segment.size:
            if high - low < BLANK.size:
                return None
            pieces.append((segment, low - segment.base, BLANK.pack(high - low, MAGIC_BLANK)))
            continue
        if high - low < _BRIDGE_BYTES_MIN:
            return None
        while low < high:
            size = high - low
            if size > _BRIDGE_BYTES_MAX:
                size = _BRIDGE_BYTES_MAX - _BRIDGE_BYTES_MIN
            pieces.append((segment, low - segment.base, _bridge_record(low, size, timestamp)))
            low += size
    return pieces


def _bridge_record(offset: int, size: int, timestamp: int) -> bytearray:
    topic = _BRIDGE_TOPIC[: size - RECORD_BYTES_MIN]
    body = bytes(size - RECORD_BYTES_MIN - len(topic))
    prepared, host = MessageSysFlag.TRANSACTION_PREPARED, bytes(8)
    record = new_record(topic, 0, 0, prepared, timestamp, host, host, 0, 0, body, b"")
    stamp_record(record, 0, offset, timestamp)
    return record


class Recovery:
    """One recovery of a store whose files are mapped and whose lock is held."""

    def __init__(
        self,
        root: Path,
        log: CommitLog,
        queues: Queues,
        make_queue: MakeQueue,
        config: StoreConfig,
        marks: Checkpoint,
        files: Files,
    ) -> None:
        self._root = root
        self._log = log
        self._queues = queues
        self._make_queue = make_queue
        self._config = config
        self._marks = marks
        self._files = files
        self._dispatched = 0
        self._rebuilding = False
        self._repair = False
        self._clean_exit = False

    def run(self, *, clean_exit: bool, repair: bool) -> Outcome:
        """Find the end of the log, handle the bytes behind it, and make the queues match.

        Raises:
            StoreDamagedError: complete records follow something that is not one, and no repair was
                asked for; nothing was changed.
        """
        self._repair = repair
        self._clean_exit = clean_exit
        outcome = self._walk_and_mend(clean_exit)
        self._log.set_end(outcome.end.offset)
        for queue in self._queues.values():
            outcome.entries_dropped += queue.truncate_physical(outcome.end.offset)
            queue.correct_min(self._log.min_offset)
        outcome.dispatched = self._dispatched
        outcome.rebuilt = self._rebuilding
        if outcome.end.last_timestamp == 0:
            outcome.end.last_timestamp = self._newest_timestamp()
        return outcome

    def _walk_and_mend(self, clean_exit: bool) -> Outcome:
        queues_lost = not any(queue.max_offset for queue in self._queues.values())
        if self._repair or queues_lost:
            return self._rebuild()
        try:
            if clean_exit:
                return self._check_after_close()
            return self._dispatch_after_crash()
        except _UnitsLostError:
            return self._rebuild()

    def _check_after_close(self) -> Outcome:
        end = WalkEnd(start_after_close(self._log, self._queues, self._config))
        for entry in self._grouped(walk(self._log, end)):
            self._check_unit(entry)
        return self._mend_tail(end)

    def _dispatch_after_crash(self) -> Outcome:
        start = start_after_crash(self._log, self._queues, self._marks)
        found = FoundUnits(self._config.delay_levels_ms)
        end = WalkEnd(start)
        self._walk_checked(end, found)
        outcome = self._mend_tail(end)
        for queue in self._queues.values():
            outcome.entries_dropped += queue.truncate_physical(start)
        if found.fit(self._queues):
            self._add(found)
        else:
            self._dispatch_from(start)
        return outcome

    def _add(self, found: FoundUnits) -> None:
        """Append the units that a walk found."""
        for key, units in found.items():
            queue = self._queues.get(key) or self._make_queue(*key)
            queue.extend(units)
            self._dispatched += len(units) // UNIT_BYTES

    def _rebuild(self) -> Outcome:
        start = self._log.min_offset
        end = self._checked_end_after_crash(start)
        bridged = self._bridge(end) if self._repair else []
        outcome = self._mend_tail(end)
        outcome.quarantined = bridged + outcome.quarantined
        self._rebuilding = outcome.end.records > 0
        self._dispatched = 0
        for queue in self._queues.values():
            queue.truncate(0)
        self._dispatch_from(start)
        return outcome

    def _dispatch_from(self, start: int) -> None:
        for entry in self._grouped(walk(self._log, WalkEnd(start), crc=False)):
            self._dispatch(entry)

    def _grouped(self, entries: Iterator[DispatchEntry]) -> Iterator[DispatchEntry]:
        """Yield the entries; with many queues grouped by queue, since not all files fit in memory.

        The order within a queue stays.
        """
        while block := list(itertools.islice(entries, _GROUPED_RECORDS)):
            if len(self._queues) > _UNGROUPED_QUEUES_MAX:
                block.sort(key=_queue_of)
            yield from block

    def _bridge(self, end: WalkEnd) -> list[Path]:
        """Fill a damaged range so that the complete records behind it count; ``end`` moves on.

        Returns:
            Copies of the overwritten bytes.
        """
        quarantined: list[Path] = []
        while (follower := self._follower(end)) is not None:
            offset = end.offset
            pieces = bridge_pieces(self._log, offset, follower, end.last_timestamp)
            if pieces is None:
                break
            copies = self._quarantine(offset, follower)
            for segment, position, data in pieces:
                segment.write(position, data)
            for segment in {id(segment): segment for segment, _, _ in pieces}.values():
                segment.sync()
            _log.error(
                "condition=DAMAGE_BRIDGED store=%s log offsets %d to %d: %s; set aside in %s, what "
                "follows is kept",
                self._root,
                offset,
                follower,
                end.reason or "zeros",
                ", ".join(map(str, copies)),
            )
            quarantined += copies
            self._walk_checked(end)
        return quarantined

    def _checked_end_after_crash(self, start: int) -> WalkEnd:
        end = WalkEnd(start)
        self._walk_checked(end)
        return end

    def _walk_checked(self, end: WalkEnd, found: FoundUnits | None = None) -> None:
        """Walk, and detect unflushed records that are torn where no body's CRC covers them.

        A kill or a power failure leaves zeros in whole sectors, and at the end of the last record
        anywhere. Properties that really hold so many zeros carry a guard (``guard_properties``).
        """
        flushed = self._marks.flushed_offset
        for entry in walk(self._log, end):
            text = entry.properties
            if b"\0" in text and end.offset > flushed and self._lost_sector(entry):
                end.step_back("a record whose properties were not written whole")
                return
            if found is not None:
                found.add(entry)
        if end.last is not None and end.offset > flushed and end.last.properties.endswith(b"\0"):
            end.step_back("a record whose properties were not written to their end")
            if found is not None:
                found.leave_out(end.offset)

    def _lost_sector(self, entry: DispatchEntry) -> bool:
        text = entry.properties
        end = entry.physical_offset % self._log.file_bytes + entry.size
        start = end - len(text)
        first = -start % SECTOR_BYTES
        sectors = (text[at : at + SECTOR_BYTES] for at in range(first, len(text), SECTOR_BYTES))
        return any(not any(sector) for sector in sectors) and not is_guarded(text)

    # --- queues -------------------------------------------------------------------------------

    def _check_unit(self, entry: DispatchEntry) -> None:
        """Compare a record with its unit after a clean shutdown."""
        if not enters_queue(entry.sys_flag):
            return
        queue = self._queues.get((entry.topic, entry.queue_id))
        if queue is None:
            # A deleted topic has no queue at all; for a lost queue there are sibling queues.
            if any(topic == entry.topic for topic, _ in self._queues):
                raise _UnitsLostError
            return
        physical, size, _ = queue.unit(min(entry.queue_offset, queue.max_offset - 1))
        found = (physical, size) == (entry.physical_offset, entry.size)
        # A unit that points further into the log belongs to a topic created again later.
        if not found and physical <= entry.physical_offset:
            raise _UnitsLostError

    def _dispatch(self, entry: DispatchEntry) -> None:
        """Append a record's unit again."""
        if not enters_queue(entry.sys_flag):
            return
        queue = self._queues.get((entry.topic, entry.queue_id))
        if queue is None:
            queue = self._make_queue(entry.topic, entry.queue_id)
        offset = entry.queue_offset
        if offset == 0 and queue.max_offset:
            # The topic was deleted and created again: the later unit counts.
            queue.truncate(0)
        if offset != queue.max_offset and not self._fill_gap(queue, entry):
            return
        queue.reserve()
        queue.append(
            entry.physical_offset, entry.size, queue_code(entry, self._config.delay_levels_ms)
        )
        self._dispatched += 1

    def _fill_gap(self, queue: ConsumeQueue, entry: DispatchEntry) -> bool:
        """Fill the units before a record's; False when repair leaves the record out instead."""
        if not self._rebuilding:
            raise _UnitsLostError
        units_max = self._config.consume_queue_file_bytes // 20
        gap = entry.queue_offset - queue.max_offset
        if gap > 0 and (gap <= units_max or not queue.max_offset):
            if queue.max_offset:
                # Upstream's reader fails at a unit that points nowhere, and skips the messages
                # behind it: a repeated message is better.
                code = queue_code(entry, self._config.delay_levels_ms)
                queue.repeat_to(entry.queue_offset, entry.physical_offset, entry.size, code)
            else:
                queue.skip_to(entry.queue_offset)
            return True
        text = (
            f"the record at log offset {entry.physical_offset} says it is number "
            f"{entry.queue_offset} of queue {entry.topic}/{entry.queue_id}, which has "
            f"{queue.max_offset}"
        )
        if not self._repair:
            raise StoreDamagedError(
                f"{text}: restore the file of {self._log.directory} it is in, or open the store "
                "with repair to leave the record out of its queue",
                offset=entry.physical_offset,
            )
        _log.error("condition=RECORD_LEFT_OUT %s", text)
        return False

    def _newest_timestamp(self) -> int:
        units = [unit for queue in self._queues.values() if (unit := queue.last_unit())]
        newest = max(units, default=None)
        return max(store_timestamp_at(self._log, newest[0]), 0) if newest is not None else 0

    # --- the tail -----------------------------------------------------------------------------

    def _mend_tail(self, end: WalkEnd) -> Outcome:
        """Cut a torn tail, and refuse damage that records follow, or set it aside."""
        outcome = Outcome(end)
        follower = self._follower(end)
        if follower is not None:
            if not (self._repair or self._is_unflushed(end.offset)):
                raise self._damage(end, follower)
            outcome.quarantined = self._quarantine(end.offset)
            if not self._repair:
                self._log_hole(end, follower, outcome.quarantined)
        for segment in self._log.segments:
            start = max(end.offset - segment.base, 0)
            if start < segment.size:
                outcome.torn_bytes += segment.zero_from(start)
                with segment.opened() as fd:
                    self._files.sync(fd)
        outcome.torn_flushed = outcome.torn_bytes > 0 and end.offset < self._marks.flushed_offset
        return outcome

    def _follower(self, end: WalkEnd) -> int | None:
        # A store that no other program wrote to has no stale bytes behind its end.
        alone = self._marks.own and not self._clean_exit
        sure_before = self._log.last_offset if alone else self._marks.flushed_offset
        return find_record_after(self._log, end.offset, end.last_timestamp, sure_before)

    def _is_unflushed(self, offset: int) -> bool:
        """Whether a power failure is known, not only possible, to be the cause of damage there."""
        marks = self._marks
        return not self._clean_exit and marks.own and offset >= marks.flushed_offset

    def _log_hole(self, end: WalkEnd, follower: int, quarantined: list[Path]) -> None:
        _log.error(
            "condition=UNFLUSHED_HOLE store=%s log offset %d: %s, and whole records follow from "
            "%d; nothing from there on had been flushed: it was set aside in %s, and the store "
            "goes on without it",
            self._root,
            end.offset,
            end.reason or "zeros",
            follower,
            ", ".join(map(str, quarantined)),
        )

    def _damage(self, end: WalkEnd, follower: int) -> StoreDamagedError:
        segment = self._log.segment_at(end.offset)
        path = segment.path if segment is not None else self._log.directory
        position = end.offset - segment.base if segment is not None else 0
        what = end.reason or "zeros"
        known = (
            "it had been flushed, so a disk or another program changed it"
            if end.offset < self._marks.flushed_offset or self._clean_exit
            else "it lies behind what was known to be flushed, so a power failure can explain it"
        )
        return StoreDamagedError(
            f"{path} is damaged at byte {position} (log offset {end.offset}): {what}, and whole "
            f"records follow from offset {follower}; {known}. Nothing was changed. Restore the "
            "file from a copy, or open the store with repair to set what is damaged aside in "
            f"{self._root / 'quarantine'} and go on without it",
            path=str(path),
            offset=end.offset,
            position=position,
            follower=follower,
        )

    def _quarantine(self, offset: int, end: int | None = None) -> list[Path]:
        """Copy the bytes from an offset on, up to another offset or the last non-zero byte."""
        directory = self._root / "quarantine"
        self._files.make_directory(directory)
        made = []
        for segment in self._log.segments:
            start = max(offset - segment.base, 0)
            if start >= segment.size or (end is not None and end <= segment.base):
                continue
            if end is not None and end < segment.base + segment.size:
                stop = end - segment.base
            else:
                stop = segment.data_end(start)
            if stop == start:
                continue
            path = self._free_name(directory, f"{segment.path.name}.{segment.base + start}")
            with self._files.opened(path, create=True, exclusive=True) as target:
                for position in range(start, stop, 1 << 20):
                    data = segment.map[position : min(position + (1 << 20), stop)]
                    self._files.write_all(target, data, position - start)
                self._files.sync(target)
            self._files.copy_times(segment.path, path)
            made.append(path)
        return made

    def _free_name(self, directory: Path, name: str) -> Path:
        path = directory / name
        number = 1
        while self._files.exists(path):
            number += 1
            path = directory / f"{name}.{number}"
        return path
