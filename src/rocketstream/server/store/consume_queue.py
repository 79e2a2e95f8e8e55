"""A consume queue: 20 bytes per message of one queue, in files of one size.

The queue gives units by logical offset; it knows nothing of records, and its owner decides when it
is synced.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rocketstream.errors import StoreDamagedError
from rocketstream.limits import SCAN_UNITS_MAX
from rocketstream.server.store.files import FileMap, Files
from rocketstream.server.store.mapped_file import (
    based_name,
    list_based_files,
    no_room,
    remove_empty,
    size_error,
)
from rocketstream.server.store.queue_file import UNIT_BYTES, QueueFile, QueueMaps, Seen

UNIT = struct.Struct(">qiq")
"""commitLogOffset, size, tagsCode."""
FILLER_SIZE = 0x7FFFFFFF
_NOWHERE = -(1 << 60)
"""An impossible first offset: no unit lies in such a file."""
_NOTHING_SEEN = Seen(0, 0, b"", is_clean=False)
_HEAD = struct.Struct(">qi")


class ConsumeQueue:
    """The index of one queue; one thread appends and reads."""

    __slots__ = (
        "_ahead",
        "_file_bytes",
        "_files",
        "_is_clean_behind",
        "_limit",
        "_maps",
        "_seen",
        "_seen_first",
        "_segments",
        "_tail_first",
        "_tail_map",
        "_via",
        "counted_batched",
        "counted_bytes",
        "counted_from",
        "created",
        "directory",
        "dirty",
        "max_offset",
        "min_offset",
        "nowhere",
        "queue_id",
        "shown_offset",
        "synced_offset",
        "told",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        queue_id: int,
        directory: Path,
        file_bytes: int,
        files: Files,
        via: Path,
        maps: QueueMaps,
    ) -> None:
        self.topic: str = topic
        self.queue_id: int = queue_id
        self.directory: Path = directory
        self.min_offset: int = 0
        self.max_offset: int = 0
        self.dirty: bool = False
        self.created: bool = False
        """Whether a file was created whose name may not be on the disk yet."""
        self.synced_offset: int = 0
        self.shown_offset: int = 0
        """Every unit before this offset is known to lie below the flushed end of the log."""
        self.told: set[int] = set()
        """Offsets whose damage the log names already."""
        self.nowhere: set[int] = set()
        """Offsets whose records were not found."""
        self.counted_from: int = 0
        """Where the queue ended when the store was opened: later units are counted."""
        self.counted_bytes: int = 0
        self.counted_batched: int = 0
        """Messages that came in a request with an earlier message."""
        self._file_bytes = file_bytes
        self._files = files
        self._via = via
        self._maps = maps
        self._segments: list[QueueFile] = []
        self._seen = b""  # the last units, as seen when the files were loaded
        self._seen_first = _NOWHERE
        self._is_clean_behind = False
        self._tail_map: FileMap | bytearray = bytearray()
        self._tail_first = _NOWHERE  # logical offset of the tail file's first unit
        self._limit = 0  # first logical offset that :meth:`reserve` has to do something for
        self._ahead: dict[int, FileMap] = {}
        """Further files of a batch, by the logical offset of their first unit."""

    def load(self) -> None:
        """List the existing files and find where the units end.

        Raises:
            StoreDamagedError: a file has a wrong size or name, or one in between is missing.
        """
        found = list_based_files(self.directory, self._files, ignore_strays=True)
        seen = self._look_at_last(found)
        for base, path in found:
            if self._segments and base != self._segments[-1].base + self._file_bytes:
                raise StoreDamagedError(
                    f"{self.directory} has no file between {self._segments[-1].path.name} and "
                    f"{path.name}: delete the directory of this queue and open with repair",
                    path=str(path),
                )
            size = self._files.file_size(path) if base != found[-1][0] else seen.size
            if size != self._file_bytes:
                raise size_error(path, size, self._file_bytes)
            self._segments.append(self._file(base))
        self._set_max(self._find_max(seen))
        if found and seen.units:
            first = (self._segments[-1].base + seen.start) // UNIT_BYTES
            self._seen_first, self._seen = first, seen.units
            self._is_clean_behind = seen.is_clean

    def _look_at_last(self, found: list[tuple[int, Path]]) -> Seen:
        """Examine the last file; an empty one is removed and does not count."""
        while found:
            seen = self._file(found[-1][0]).look(_is_unit)
            if seen.size:
                return seen
            self._files.unlink(found.pop()[1])
        return _NOTHING_SEEN

    def forget_seen(self) -> None:
        """Forget the units remembered when the files were loaded: recovery is done."""
        self._seen, self._seen_first = b"", _NOWHERE
        self._is_clean_behind = False

    def _file(self, base: int) -> QueueFile:
        path = self.directory / based_name(base)
        return QueueFile(path, base, self._file_bytes, self._files, self._maps, self)

    def unmapped(self, file: QueueFile) -> None:
        """Take note that a file was unmapped: the next unit has to map it again."""
        if file.map is self._tail_map:
            self._forget_maps()

    def _find_max(self, seen: Seen) -> int:
        if not self._segments:
            return 0
        high = self._segments[-1].base // UNIT_BYTES
        if seen.units:
            return high + (seen.start + len(seen.units)) // UNIT_BYTES
        low = self._segments[0].base // UNIT_BYTES
        return self._bisect(low, high, _is_whole)

    def _bisect(self, low: int, high: int, before: Callable[[int, int], bool]) -> int:
        """Return the first logical offset in [low, high) whose unit is not ``before``."""
        while low < high:
            middle = (low + high) // 2
            physical, size, _ = self.unit(middle)
            if before(physical, size):
                low = middle + 1
            else:
                high = middle
        return low

    @property
    def first_offset(self) -> int:
        """Logical offset of the first unit in an existing file."""
        return self._segments[0].base // UNIT_BYTES if self._segments else self.max_offset

    # --- appending ----------------------------------------------------------------------------

    def reserve(self, count: int = 1) -> None:
        """Ensure that the next ``count`` units can be written without an error.

        Raises:
            DiskFullError: another file is needed, and there is no room for it.
            StoreError: a file cannot be opened.
        """
        if self.max_offset + count > self._limit:
            self._prepare(self.max_offset + count)

    def is_ready(self, end: int) -> bool:
        """Return whether the units before ``end`` can still be written as reserved."""
        return end <= self._limit

    def _prepare(self, end: int) -> None:
        """Create and map the files of the units before ``end``, and reserve space for the units.

        All this is done before the first unit is written: otherwise a batch whose second file could
        not be mapped would be stored in part. Maps of the files after the first belong to the queue
        alone until they are written, since a shared map may be unmapped for another one at any
        time.
        """
        self._forget_maps()
        offset, per_file = self.max_offset, self._file_bytes // UNIT_BYTES
        tail, limit = self._give_space(offset, end)
        for first in range(tail.base // UNIT_BYTES + per_file, end, per_file):
            segment, _ = self._give_space(first, end)
            with _mapping(segment):
                self._ahead[first] = segment.map_apart()
        with _mapping(tail):
            self._tail_map = tail.data()
        self._tail_first = tail.base // UNIT_BYTES
        self._limit = limit

    def _give_space(self, at: int, end: int) -> tuple[QueueFile, int]:
        """Return the file of a unit, and the first unit from it on without reserved space."""
        segment = self._segment_at(at) or self._make_file(at)
        first = segment.base // UNIT_BYTES
        need = min((end - first) * UNIT_BYTES, self._file_bytes)
        return segment, first + segment.reserve((at - first) * UNIT_BYTES, need) // UNIT_BYTES

    def _forget_maps(self) -> None:
        self._ahead.clear()
        self._tail_map = bytearray()
        self._tail_first = _NOWHERE
        self._limit = 0

    def _make_file(self, at: int) -> QueueFile:
        base = at * UNIT_BYTES
        segment = self._file(base - base % self._file_bytes)
        segment.create(self._via, base - segment.base + UNIT_BYTES)
        self._segments.append(segment)
        self.created = True
        return segment

    def append(self, physical: int, size: int, tags_code: int) -> None:
        """Write the next unit; :meth:`reserve` was called before."""
        offset = self.max_offset
        position = (offset - self._tail_first) * UNIT_BYTES
        if position >= self._file_bytes:  # a batch goes on in the next file
            self._tail_map = self._ahead.pop(offset)
            self._tail_first, self._limit, position = offset, 0, 0
        UNIT.pack_into(self._tail_map, position, physical, size, tags_code)
        self.max_offset = offset + 1
        self.counted_bytes += size

    def rewrite(self, offset: int, physical: int, size: int, tags_code: int) -> None:
        """Rewrite a unit in its place; not synced, since the fault would be found again."""
        segment = self._segment_at(offset)
        assert segment is not None
        UNIT.pack_into(
            segment.data(), offset * UNIT_BYTES - segment.base, physical, size, tags_code
        )

    def extend(self, units: bytes | bytearray) -> None:
        """Write units one after another, in whole pieces of their files.

        Raises:
            DiskFullError: there is no room for a piece; the earlier ones are written.
        """
        done = 0
        while done < len(units):
            room = self._file_bytes - self.max_offset * UNIT_BYTES % self._file_bytes
            piece = units[done : done + room]
            self.reserve(len(piece) // UNIT_BYTES)
            position = (self.max_offset - self._tail_first) * UNIT_BYTES
            memoryview(self._tail_map)[position : position + len(piece)] = piece
            self.max_offset += len(piece) // UNIT_BYTES
            done += len(piece)

    def skip_to(self, offset: int) -> None:
        """Fill the units up to a logical offset with the filler upstream uses (fillPreBlank).

        The one before it stands in a file, so that the next start finds the offset.
        """
        if not self._segments:
            first_in_file = offset - 1 - (offset - 1) % (self._file_bytes // UNIT_BYTES)
            self.max_offset = self.min_offset = self.synced_offset = first_in_file
        while self.max_offset < offset:
            self.reserve()
            self.append(0, FILLER_SIZE, 0)

    def repeat_to(self, offset: int, physical: int, size: int, tags_code: int) -> None:
        """Fill the units up to a logical offset with that of the record that comes there."""
        while self.max_offset < offset:
            self.reserve()
            self.append(physical, size, tags_code)

    def truncate(self, offset: int) -> int:
        """Remove all units from a logical offset on; returns how many were removed.

        An offset before the first file empties the queue, which begins at 0 again; with no unit
        left, but removed ones before, the queue goes on where they ended.
        """
        if offset >= self.max_offset and self._is_clean_behind:
            return 0
        dropped = max(self.max_offset - offset, 0)
        keep = min(offset, self.max_offset) if offset >= self.first_offset else 0
        while self._segments and self._segments[-1].base >= max(keep * UNIT_BYTES, 1):
            self._drop_segment(-1)
        if self._segments:
            tail = self._segments[-1]
            tail.zero_from(keep * UNIT_BYTES - tail.base)
        self._set_max(keep)
        self.synced_offset = min(self.synced_offset, keep)
        if keep and not self._segments:
            self.skip_to(keep)
        return dropped

    def _drop_segment(self, index: int) -> None:
        segment = self._segments.pop(index)
        segment.unmap()
        self._files.unlink(segment.path)

    def truncate_physical(self, physical: int) -> int:
        """Remove all units that point at or beyond a log offset; returns how many were removed."""
        if self.end_in_log <= physical:  # a damaged unit would lead the search astray
            return self.truncate(self.max_offset)
        keep = self._bisect(
            self.first_offset,
            self.max_offset,
            lambda start, size: size == FILLER_SIZE or start + size <= physical,
        )
        return self.truncate(keep)

    def _set_max(self, offset: int) -> None:
        self.forget_seen()
        self.max_offset = offset
        self.min_offset = min(self.min_offset, offset)
        self._forget_maps()

    def count_anew(self) -> None:
        """Count from here on: messages, their bytes, and how many came in batches."""
        self.counted_from = self.max_offset
        self.counted_bytes = self.counted_batched = 0

    def counted(self) -> tuple[int, int, int]:
        """Return the messages put since, their bytes, and the number of requests."""
        puts = self.max_offset - self.counted_from
        return puts, self.counted_bytes, puts - self.counted_batched

    def last_unit(self) -> tuple[int, int] | None:
        """Return log offset and size of the last unit that is not a filler; None without one."""
        for offset in range(self.max_offset - 1, self.first_offset - 1, -1):
            physical, size, _ = self.unit(offset)
            if not is_filler(size):
                return physical, size
        return None

    @property
    def end_in_log(self) -> int:
        """The log offset where the record of the last unit ends; 0 without a unit."""
        unit = self.last_unit()
        return unit[0] + unit[1] if unit is not None else 0

    # --- reading ------------------------------------------------------------------------------

    def _segment_at(self, offset: int) -> QueueFile | None:
        segments = self._segments
        if not segments:
            return None
        index = (offset * UNIT_BYTES - segments[0].base) // self._file_bytes
        return segments[index] if 0 <= index < len(segments) else None

    def unit(self, offset: int) -> tuple[int, int, int]:
        """Return one unit: log offset, size, tagsCode; zeros when no file holds it."""
        unit: tuple[int, int, int]
        position = (offset - self._seen_first) * UNIT_BYTES
        if 0 <= position < len(self._seen):
            unit = UNIT.unpack_from(self._seen, position)
            return unit
        segment = self._segment_at(offset)
        if segment is None:
            return 0, 0, 0
        unit = UNIT.unpack_from(segment.data(), offset * UNIT_BYTES - segment.base)
        return unit

    def points_at(self, offset: int, physical: int, size: int) -> bool:
        """Whether the unit at an offset is that of a record at a log offset, with its size."""
        is_here = self.first_offset <= offset < self.max_offset
        return is_here and self.unit(offset)[:2] == (physical, size)

    def units(self, offset: int, count_max: int) -> bytes:
        """Return up to ``count_max`` units from one file, as bytes; empty without any."""
        segment = self._segment_at(offset)
        if segment is None:
            return b""
        position = offset * UNIT_BYTES - segment.base
        count = min(count_max, self.max_offset - offset)
        return segment.data()[position : position + count * UNIT_BYTES]

    def shown_below(self, physical: int) -> int:
        """Return the first offset whose record does not end at or before a log offset.

        ``physical`` may only grow between calls; records shown once stay shown.
        """
        if self.shown_offset < self.max_offset:
            start, size, _ = self.unit(self.max_offset - 1)
            if size == FILLER_SIZE or start + size <= physical:
                self.shown_offset = self.max_offset
            else:
                self.shown_offset = self._bisect(
                    self.shown_offset,
                    self.max_offset,
                    lambda start, size: size == FILLER_SIZE or start + size <= physical,
                )
        return self.shown_offset

    def offsets_within(self, low: int, high: int) -> range:
        """Return the offsets whose records begin between two log offsets, as the units have it."""

        def first(physical: int) -> int:
            return self._bisect(
                self.first_offset,
                self.max_offset,
                lambda start, size: size == FILLER_SIZE or start < physical,
            )

        return range(first(low), first(high))

    def next_file_offset(self, offset: int) -> int:
        """Return the first logical offset of the file after that of an offset."""
        per_file = self._file_bytes // UNIT_BYTES
        return offset - offset % per_file + per_file

    def correct_min(self, log_min: int) -> None:
        """Set the minimum to the first unit that points at or beyond the log's start (C-371)."""
        low, high = self.first_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            if self.is_gone(middle, log_min):
                low = middle + 1
            else:
                high = middle
        self.min_offset = low

    def is_gone(self, offset: int, log_min: int) -> bool:
        """Whether the record of a unit left with the first files of the log.

        A queue loses its beginning alone, and units point further and further into the log: one
        that says otherwise is damaged, as one is that was zeroed.
        """

        def left(physical: int, size: int) -> bool:
            return size == FILLER_SIZE or physical < log_min

        unit = self._whole_unit(offset)
        if unit is None or not left(*unit[1:]):
            return False
        number, physical, _ = unit
        before = self._whole_unit(number - 1)
        if before is not None and not (left(*before[1:]) and before[1] <= physical):
            return False
        first = self.unit(self.first_offset)
        return not _is_whole(*first[:2]) or left(*first[:2])

    def _whole_unit(self, offset: int) -> tuple[int, int, int] | None:
        """Return offset, log offset and size of the nearest possible unit from an offset down."""
        for number in range(offset, max(self.first_offset, offset - SCAN_UNITS_MAX) - 1, -1):
            physical, size, _ = self.unit(number)
            if _is_whole(physical, size):
                return number, physical, size
        return None

    # --- files --------------------------------------------------------------------------------

    def sync(self) -> None:
        """Sync all units appended so far (keeper thread), which syncs names too; raises OSError."""
        end = self.max_offset
        start = self.synced_offset * UNIT_BYTES
        for segment in tuple(self._segments):
            if segment.base < end * UNIT_BYTES and start < segment.base + self._file_bytes:
                segment.sync()
        self.synced_offset = end

    @property
    def directories(self) -> tuple[Path, Path, Path]:
        """The directories in which the names of its files stand."""
        topic = self.directory.parent
        return self.directory, topic, topic.parent

    def drop_before(self, log_min: int) -> int:
        """Remove files whose last unit points before the log's start, never the last file."""
        dropped = 0
        while len(self._segments) > 1:
            if not self.is_gone(self._segments[1].base // UNIT_BYTES - 1, log_min):
                break
            self._drop_segment(0)
            dropped += 1
        return dropped

    def close(self) -> None:
        """Unmap everything."""
        self._forget_maps()
        for segment in self._segments:
            segment.unmap()
        self._segments.clear()

    def remove(self) -> None:
        """Close and delete the files and the directory."""
        paths = [segment.path for segment in self._segments]
        self.close()
        self.max_offset = self.min_offset = self.synced_offset = 0
        self.created = False
        for path in paths:
            self._files.unlink(path, missing_ok=True)
        remove_empty(self.directory, self._files)


@contextmanager
def _mapping(segment: QueueFile) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise no_room(segment.path, segment.size, error) from error


def _is_unit(data: bytes) -> bool:
    """Return whether bytes begin with a unit: zeros and unwritten space do not."""
    if len(data) < UNIT_BYTES:
        return False
    return _is_whole(*_HEAD.unpack_from(data))


def _is_whole(physical: int, size: int) -> bool:
    return physical >= 0 and size > 0


def is_filler(size: int) -> bool:
    """Tell by its size whether a unit is a filler (:meth:`ConsumeQueue.skip_to`) or unwritten."""
    return size == FILLER_SIZE or size <= 0
