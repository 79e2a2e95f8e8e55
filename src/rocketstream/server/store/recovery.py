"""Recovery of a store to a state that can be appended to: torn tails, damage, lost queue units.

Law: nothing that follows damage is ever deleted; an unclear state is refused.
"""

from __future__ import annotations

import itertools
import logging
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rocketstream.errors import StoreDamagedError
from rocketstream.protocol.codes import MessageSysFlag
from rocketstream.protocol.names import SCHEDULE_TOPIC
from rocketstream.protocol.record import (
    MAGIC_BLANK,
    RECORD_BYTES_MIN,
    SECTOR_BYTES,
    RecordHead,
    has_seal,
    new_draft,
    record_of,
)
from rocketstream.server.store.checkpoint import Checkpoint, crc_of_bounds
from rocketstream.server.store.commit_log import BLANK, CommitLog
from rocketstream.server.store.consume_queue import ConsumeQueue, is_filler
from rocketstream.server.store.dispatch import (
    DispatchEntry,
    enters_queue,
    is_deletion,
    queue_code,
)
from rocketstream.server.store.files import Files
from rocketstream.server.store.log_walk import Counts, WalkEnd, find_record_after, walk
from rocketstream.server.store.mapped_file import MappedFile
from rocketstream.server.store.queue_file import UNIT_BYTES
from rocketstream.server.store.queues import ConsumeQueues, FoundUnits
from rocketstream.server.store.reading import store_timestamp_at
from rocketstream.server.store.results import StoreConfig
from rocketstream.server.store.units import is_unit_of

_log = logging.getLogger(__name__)
_MARGIN_MS = 3000
"""Upstream trusts a checkpoint up to this long before its timestamps."""
_BRIDGE_TOPIC = "DAMAGED"
_BRIDGE_BYTES_MIN = RECORD_BYTES_MIN + 1
_BRIDGE_BYTES_MAX = 1024 * 1024
_GROUPED_RECORDS = 32_768
_PASSED_NAMED_MAX = 20
_UNGROUPED_QUEUES_MAX = 64
_queue_of = operator.attrgetter("topic", "queue_id")


@dataclass(slots=True)
class Outcome:
    """The findings and actions of recovery, for the report."""

    end: WalkEnd
    dispatched: int = 0
    entries_dropped: int = 0
    rebuilt: bool = False
    torn_bytes: int = 0
    quarantined: list[Path] = field(default_factory=list)


class _UnitsLostError(Exception):
    """A record's unit is missing where it must be: the queues must be rebuilt."""


def is_pointed_at(queues: Mapping[tuple[str, int], ConsumeQueue], head: RecordHead) -> bool:
    """Whether the unit that a record names points back to it.

    Bytes in a message's body can be a whole record, with the log offset where they lie: their
    sender knows it beforehand. No unit points there.
    """
    queue = queues.get((head.topic, head.queue_id))
    return queue is not None and queue.points_at(
        head.queue_offset, head.physical_offset, head.total_size
    )


# --- where to begin -------------------------------------------------------------------------------


def start_after_crash(log: CommitLog, queues: ConsumeQueues, marks: Checkpoint) -> int:
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


def start_after_close(
    log: CommitLog, queues: ConsumeQueues, marks: Checkpoint, config: StoreConfig
) -> int:
    """Return a record boundary that leaves about ``verify_bytes_max`` of the log to check."""
    ends = [unit[0] + unit[1] for queue in queues.values() if (unit := queue.last_unit())]
    log_end = marks.flushed_offset if marks.own else max(ends, default=0)
    target = log_end - config.verify_bytes_max
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
    if is_filler(size) or physical <= best or not is_unit_of(log, queue, offset):
        return best
    return physical


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


def _bridge_record(offset: int, size: int, timestamp: int) -> bytes:
    topic = _BRIDGE_TOPIC[: size - RECORD_BYTES_MIN]
    body = bytes(size - RECORD_BYTES_MIN - len(topic))
    prepared, host = MessageSysFlag.TRANSACTION_PREPARED, bytes(8)
    draft = new_draft(topic, 0, 0, prepared, timestamp, host, host, body, b"")
    return record_of(draft, 0, offset, timestamp)


class Recovery:
    """One recovery of a store whose files are mapped and whose lock is held."""

    def __init__(
        self,
        root: Path,
        log: CommitLog,
        queues: ConsumeQueues,
        config: StoreConfig,
        marks: Checkpoint,
        files: Files,
    ) -> None:
        self._root = root
        self._log = log
        self._queues = queues
        self._config = config
        self._marks = marks
        self._files = files
        self._dispatched = 0
        self._rebuilding = False
        self._kept: set[tuple[str, int]] = set()
        """Queues that are built anew, and have no unit yet but those of removed records."""
        self._deleted: dict[str, int] = {}
        """Where in the log topics were deleted, the last time: what they had before stays gone."""
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
        if not repair:
            self._check_begin()
        outcome = self._walk_and_mend(clean_exit)
        self._log.set_end(outcome.end.offset)
        if not clean_exit and self._marks.own:
            self._log.write_again(self._marks.flushed_offset)
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
        for queue in self._queues.values():
            queue.correct_min(self._log.min_offset)
        if self._marks.queues_crc not in (0, crc_of_bounds(self._queues.values())):
            raise _UnitsLostError  # of messages older than what is checked below
        end = WalkEnd(start_after_close(self._log, self._queues, self._marks, self._config))
        for entry in self._grouped(walk(self._log, end)):
            self._check_unit(entry)
        outcome = self._mend_tail(end)
        if any(queue.end_in_log > end.offset for queue in self._queues.values()):
            raise _UnitsLostError  # the log is whole, so the units are not
        return outcome

    def _dispatch_after_crash(self) -> Outcome:
        start = start_after_crash(self._log, self._queues, self._marks)
        found = FoundUnits(self._config.delay_levels_ms)
        end = WalkEnd(start)
        self._walk_checked(end, found)
        outcome = self._mend_tail(end)
        for queue in self._queues.values():
            outcome.entries_dropped += queue.truncate_physical(start)
        self._remove_deleted()
        found.leave_out_deleted(self._deleted)
        if found.fit(self._queues):
            self._add(found)
        else:
            self._dispatch_from(start)
        return outcome

    def _add(self, found: FoundUnits) -> None:
        """Append the units that a walk found."""
        for key, units in found.items():
            queue = self._queues.get(key) or self._queues.make(*key)
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
        self._remove_deleted()
        for queue in self._queues.values():
            # Its next offset stands nowhere else when retention has removed all its records.
            queue.correct_min(start)
            queue.truncate(queue.min_offset)
        self._kept = set(self._queues)
        self._dispatch_from(start)
        return outcome

    def _remove_deleted(self) -> None:
        """Remove the queues that topics had before they were deleted, as the deletion did."""
        left: dict[str, list[int]] = {}
        for (topic, queue_id), queue in self._queues.items():
            if topic in self._deleted and queue.end_in_log <= self._deleted[topic]:
                left.setdefault(topic, []).append(queue_id)
        for topic, queue_ids in left.items():
            self._queues.remove(topic, queue_ids)

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
        counts = self._counts_behind_damage()
        while (follower := self._follower(end, counts)) is not None:
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
                "follows is kept; passed: %s",
                self._root,
                offset,
                follower,
                end.reason or "zeros",
                ", ".join(map(str, copies)),
                self._passed(offset, follower),
            )
            quarantined += copies
            self._walk_checked(end)
        return quarantined

    def _passed(self, low: int, high: int) -> str:
        """Name the messages between two log offsets, by the units of the queues."""
        found = [
            (topic, queue_id, queue.offsets_within(low, high))
            for (topic, queue_id), queue in sorted(self._queues.items())
        ]
        names = [
            f"{topic}/{queue_id} {'-'.join(str(each) for each in sorted({gone[0], gone[-1]}))}"
            for topic, queue_id, gone in found
            if gone
        ]
        more = [] if len(names) <= _PASSED_NAMED_MAX else [f"and {len(names)} queues in all"]
        return "; ".join(names[:_PASSED_NAMED_MAX] + more) or "messages that no queue knows"

    def _checked_end_after_crash(self, start: int) -> WalkEnd:
        end = WalkEnd(start)
        self._walk_checked(end)
        return end

    def _walk_checked(self, end: WalkEnd, found: FoundUnits | None = None) -> None:
        """Walk, and detect unflushed records that are torn where no body's CRC covers them.

        A kill or a power failure leaves zeros in whole sectors, and at the end of the last record
        anywhere. A record with a seal is known to be whole (``record.sealable``).
        """
        flushed = self._marks.flushed_offset
        for entry in walk(self._log, end):
            text = entry.properties
            if b"\0" in text and end.offset > flushed and self._lost_sector(entry):
                end.step_back("a record whose properties were not written whole")
                return
            if is_deletion(entry):
                self._deleted[entry.topic] = entry.physical_offset
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
        return any(not any(sector) for sector in sectors) and not has_seal(
            text, entry.physical_offset
        )

    # --- queues -------------------------------------------------------------------------------

    def _check_unit(self, entry: DispatchEntry) -> None:
        """Compare a record with its unit after a clean shutdown."""
        if not enters_queue(entry.sys_flag):
            return
        queue = self._queues.get((entry.topic, entry.queue_id))
        if queue is None:
            # By their checksum no queue is lost: this one was deleted. Without it, a deleted topic
            # has no queue at all, and a lost queue has siblings.
            is_known = self._marks.queues_crc != 0
            if not is_known and any(topic == entry.topic for topic, _ in self._queues):
                raise _UnitsLostError
            return
        offset = entry.queue_offset
        physical, size, code = queue.unit(min(offset, queue.max_offset - 1))
        if (physical, size) == (entry.physical_offset, entry.size):
            # By its code a filter passes a message; due times are the broker's to judge.
            is_ours = self._marks.own and entry.topic != SCHEDULE_TOPIC
            if is_ours and code != queue_code(entry, self._config.delay_levels_ms):
                raise _UnitsLostError
            return
        # A unit that points further into the log is that of a topic created again later.
        if physical <= entry.physical_offset or (
            offset < queue.max_offset and not is_unit_of(self._log, queue, offset)
        ):
            raise _UnitsLostError

    def _dispatch(self, entry: DispatchEntry) -> None:
        """Append a record's unit again."""
        is_deleted = entry.physical_offset < self._deleted.get(entry.topic, 0)
        if is_deleted or not enters_queue(entry.sys_flag):
            return
        key = entry.topic, entry.queue_id
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues.make(*key)
        offset = entry.queue_offset
        # At 0 the topic was deleted and created again: the later unit counts.
        if (offset == 0 or key in self._kept) and offset != queue.max_offset:
            queue.truncate(0)
        self._kept.discard(key)
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
        if follower is not None and not (self._repair or self._is_unflushed(end.offset)):
            raise self._damage(end, follower)
        known_end, witness = self._known_end(end.offset)
        if end.offset < known_end and not self._repair:
            raise self._shortened(end, known_end, witness)
        if follower is not None or end.offset < known_end:
            outcome.quarantined = self._quarantine(end.offset)
        if follower is not None and not self._repair:
            self._log_hole(end, follower, outcome.quarantined)
        if end.offset < known_end:
            _log.error(
                "condition=LOG_SHORTENED store=%s the log ends at %d, though it reached %d: %s; "
                "new messages get the offsets of those that are gone, of which nothing is left but "
                "%s",
                self._root,
                end.offset,
                known_end,
                witness,
                ", ".join(map(str, outcome.quarantined)) or "what the disk has lost",
            )
        for segment in self._log.segments:
            start = max(end.offset - segment.base, 0)
            if start < segment.size:
                outcome.torn_bytes += segment.zero_from(start)
                with segment.opened() as fd:
                    self._files.sync(fd)
        return outcome

    def _known_end(self, end: int) -> tuple[int, str]:
        """Return an offset up to which the log certainly reached, and how that is known.

        An older copy of a log file, or the loss of the newest ones, leaves nothing but whole
        records: without a witness it would be a log like any other, and the offsets of the lost
        messages would be given a second time.
        """
        if self._marks.own:
            return self._marks.flushed_offset, f"{self._root / 'checkpoint'} has it as flushed"
        if self._clean_exit:
            last = max(self._queues.values(), key=lambda queue: queue.end_in_log, default=None)
            if last is not None:
                return last.end_in_log, f"{last.directory} refers to its messages"
        return end, ""

    def _check_begin(self) -> None:
        """Refuse a log whose first files are missing; those retention removed are accounted for."""
        known, begin = self._marks.log_min, self._log.min_offset
        if known is not None and begin > known and self._log.segments:
            raise StoreDamagedError(
                f"{self._log.directory} begins at log offset {begin}, though nothing but {known} "
                "bytes of it were ever removed: files are missing. Nothing was changed. Restore "
                "them from a copy, or open the store with repair to go on without what is lost",
                path=str(self._log.directory),
                offset=begin,
            )

    def _shortened(self, end: WalkEnd, known_end: int, witness: str) -> StoreDamagedError:
        segment = self._log.segment_at(end.offset)
        path = segment.path if segment is not None else self._log.directory
        return StoreDamagedError(
            f"the commit log {self._log.directory} ends at log offset {end.offset} in {path.name} "
            f"({end.reason or 'zeros'}), though it reached {known_end}: {witness}. A file is an "
            "older copy, missing or damaged. Nothing was changed. Restore the log from a copy, or "
            "open the store with repair to go on without those messages: what is left of them is "
            f"set aside in {self._root / 'quarantine'}, and new messages get their offsets",
            path=str(path),
            offset=end.offset,
            known_end=known_end,
        )

    def _follower(self, end: WalkEnd, counts: Counts | None = None) -> int | None:
        # A store that no other program wrote to has no stale bytes behind its end.
        alone = self._marks.own and not self._clean_exit
        sure_before = self._log.last_offset if alone else self._marks.flushed_offset
        return find_record_after(self._log, end.offset, end.last_timestamp, sure_before, counts)

    def _counts_behind_damage(self) -> Counts:
        """Return the test of records with which repair goes on: a body's bytes must not become a
        record.

        As far as the queues reach, a record has a unit; behind that (units were lost) its own bytes
        must do.
        """
        units = (queue.last_unit() for queue in self._queues.values())
        reach = max((unit[0] for unit in units if unit is not None), default=-1)
        return lambda head: head.physical_offset > reach or is_pointed_at(self._queues, head)

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
