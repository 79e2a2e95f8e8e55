"""The commit log: records back to back in files of one size, rolled with the blank marker.

The log gives bytes by offset; it knows the blank marker but not the content of records, and syncs
nothing itself.
"""

from __future__ import annotations

import errno
import logging
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from rocketstream.errors import (
    FlushFailedError,
    RecordTooLargeError,
    StoreDamagedError,
    StoreError,
)
from rocketstream.limits import COMMIT_LOG_END_BLANK_BYTES
from rocketstream.protocol.record import MAGIC_BLANK, Draft, record_of
from rocketstream.server.store.files import Files
from rocketstream.server.store.mapped_file import (
    MappedFile,
    based_name,
    list_based_files,
    no_room,
)
from rocketstream.server.store.retention import LogFile

_log = logging.getLogger(__name__)
BLANK = struct.Struct(">iI")
RESERVE_STEP_BYTES = 16 * 1024 * 1024
"""Files have their full size at once, but space is reserved in steps: small stores take little.

Records are written by offset, so missing space is an error, never a signal.
"""


_WRITE_STEP_BYTES = 1024 * 1024


def _not_synced(error: OSError) -> StoreError:
    return FlushFailedError(f"the directory of the commit log cannot be synced: {error}")


class CommitLog:
    """The commit log: one thread appends and reads; another may allocate files."""

    def __init__(self, directory: Path, file_bytes: int, files: Files, via: Path) -> None:
        self.directory = directory
        self.file_bytes = file_bytes
        self.end: int = 0
        """Offset the next record gets, before a roll; earlier bytes can be read and flushed."""
        self.opened_end = 0
        """Where the log ended when it was opened: later records were written since, by this
        process."""
        self.sync_failed: Callable[[OSError], StoreError] = _not_synced
        """Called with the error of a failed sync; returns the error to raise."""
        self._files = files
        self._via = via
        self._segments: list[MappedFile] = []
        self._active: MappedFile | None = None
        self._reserved_end = 0  # offset up to which the active file's space is reserved
        self._limit = 0  # records end at or before this offset without anything to be done
        self._refused_end = 0  # bytes of a refused write may lie behind the end, up to here
        self._allocation = threading.Lock()

    def load(self) -> None:
        """Map the existing files; until :meth:`set_end` all their bytes can be read.

        Raises:
            StoreDamagedError: a file has a wrong size or name, or one in between is missing.
        """
        found = list_based_files(self.directory, self._files, ignore_strays=False)
        if found and self._files.file_size(found[-1][1]) == 0:
            # Upstream 5.x does the same: the file was being created when the machine stopped.
            self._files.unlink(found.pop()[1])
        for base, path in found:
            if self._segments and base != self._segments[-1].base + self.file_bytes:
                raise StoreDamagedError(
                    f"{self.directory} has no file between {self._segments[-1].path.name} and "
                    f"{path.name}: restore it",
                    path=str(path),
                )
            self._segments.append(MappedFile.open(path, base, self.file_bytes, self._files))
        if self._segments:
            self.end = self._segments[-1].base + self.file_bytes

    @property
    def segments(self) -> tuple[MappedFile, ...]:
        """The files in order; the last one may be an empty spare."""
        return tuple(self._segments)

    @property
    def min_offset(self) -> int:
        """The first offset in the log."""
        return self._segments[0].base if self._segments else 0

    @property
    def last_offset(self) -> int:
        """The offset where the last file ends."""
        return self._segments[-1].base + self.file_bytes if self._segments else 0

    def segment_at(self, offset: int) -> MappedFile | None:
        """Return the file an offset lies in; None when there is none."""
        segments = self._segments
        if not segments:
            return None
        index = (offset - segments[0].base) // self.file_bytes
        return segments[index] if 0 <= index < len(segments) else None

    def set_end(self, offset: int) -> None:
        """Set the offset to continue appending at (after recovery, after a roll)."""
        with self._allocation:  # prepare_ahead must not combine values of two files
            self.end = offset
            self._active = self.segment_at(offset)
            self._reserved_end = offset
            self._limit = 0

    # --- appending ----------------------------------------------------------------------------

    def holds(self, size: int) -> bool:
        """Return whether ``size`` bytes fit in the rest of the active file."""
        active = self._active
        if active is None:
            return False
        return self.end + size + COMMIT_LOG_END_BLANK_BYTES <= active.base + self.file_bytes

    def room(self, size: int) -> int:
        """Return the offset that a record, or an undivided batch, of this size will get.

        Rolls to the next file when needed: 8 bytes always stay for the blank marker.

        Raises:
            DiskFullError: there is no space for it; nothing changed.
            RecordTooLargeError: it is larger than a file.
        """
        if self.end + size <= self._limit:
            return self.end
        return self._make_room(size)

    def _make_room(self, size: int) -> int:
        if size + COMMIT_LOG_END_BLANK_BYTES > self.file_bytes:
            raise RecordTooLargeError(
                f"{size} bytes do not fit a commit log file of {self.file_bytes}: send less at "
                "once, or configure larger files",
                size=size,
                file_bytes=self.file_bytes,
            )
        active = self._active
        if active is None:
            self.set_end(self._file_from(self.end).base)
            return self._make_room(size)
        last = active.base + self.file_bytes - COMMIT_LOG_END_BLANK_BYTES
        if self.end + size > last:
            self._roll(active, size)
            return self._make_room(size)
        with self._allocation:
            if self.end + size > self._reserved_end:
                self._reserve(active, self.end + size)
            self._limit = min(self._reserved_end, last)
        return self.end

    def _roll(self, active: MappedFile, size: int) -> None:
        following = self._file_from(active.base + self.file_bytes)
        # Reserve space first: a full disk must be noticed before the marker closes this file.
        self._reserve_range(following, following.base, following.base + size)
        remaining = active.base + self.file_bytes - self.end
        if remaining >= COMMIT_LOG_END_BLANK_BYTES:
            self._write(active, self.end, BLANK.pack(remaining, MAGIC_BLANK))
        self.set_end(following.base)

    def _reserve(self, segment: MappedFile, need: int) -> None:
        upto = min(need + RESERVE_STEP_BYTES, segment.base + self.file_bytes)
        self._reserve_range(segment, self._reserved_end, upto)
        self._reserved_end = upto

    def _reserve_range(self, segment: MappedFile, start: int, end: int) -> None:
        try:
            with segment.opened() as fd:
                self._files.reserve(fd, start - segment.base, end - start)
        except OSError as error:
            raise no_room(segment.path, end - start, error) from error

    def write(self, data: bytes | bytearray) -> None:
        """Write at :attr:`end`, after :meth:`room`; the caller moves the end afterwards.

        Not moved here: a flush must not cover a record whose queue does not have its unit yet.

        Raises:
            DiskFullError: the file system did not provide the space it had reserved; the end stays.
            StoreError: writing failed otherwise, or the remains of an earlier failure cannot be
                cleared; the end stays.
        """
        active = self._active
        assert active is not None
        end = self.end
        try:
            if self._refused_end > end:
                self.clear_refused()
            if self._files.pwrite(active.fd, data, end - active.base) != len(data):
                active.write(end - active.base, data)
        except OSError as error:
            self._refuse(active, end + len(data))
            raise no_room(active.path, len(data), error) from error

    def append(self, draft: Draft, timestamp: int) -> None:
        """Append the record of a draft that enters no queue.

        Raises:
            StoreError: as :meth:`room` and :meth:`write` raise it; nothing was appended.
        """
        physical = self.room(draft[1])
        self.write(record_of(draft, 0, physical, timestamp))
        self.end = physical + draft[1]

    def write_again(self, start: int) -> None:
        """Write the bytes from an offset up to the end once more: the next sync has to sync them.

        A system that failed to write pages tells it once, and takes them for written from then on.

        Raises:
            OSError: the disk does not take them.
        """
        for segment in self._between(start, self.end):
            low, high = max(start - segment.base, 0), min(self.end - segment.base, segment.size)
            with segment.opened() as fd:
                for position in range(low, high, _WRITE_STEP_BYTES):
                    end = min(position + _WRITE_STEP_BYTES, high)
                    self._files.write_all(fd, segment.map[position:end], position)

    def _refuse(self, segment: MappedFile, end: int) -> None:
        self._refused_end = max(end, self._refused_end)
        try:
            self.clear_refused()
        except OSError:
            _log.warning("a refused record stays behind the end of %s for now", segment.path)

    def clear_refused(self) -> None:
        """Zero the bytes that a failed write left behind the end, if there are any.

        All of them: the next start could find complete records of a refused batch there, behind a
        hole or right behind a shorter record that was written in their place.

        Raises:
            OSError: the disk refuses this too; nothing may be written before it succeeds.
        """
        active = self._active
        size = self._refused_end - self.end
        if size > 0 and active is not None:
            active.write(self.end - active.base, bytes(size))
        self._refused_end = 0

    def _write(self, segment: MappedFile, offset: int, data: bytes | bytearray) -> None:
        try:
            segment.write(offset - segment.base, data)
        except OSError as error:
            raise no_room(segment.path, len(data), error) from error

    def _file_from(self, base: int) -> MappedFile:
        with self._allocation:
            found = self.segment_at(base)
            if found is not None:
                return found
            base -= base % self.file_bytes
            path = self.directory / based_name(base)
            segment = MappedFile.create(
                path,
                base,
                self.file_bytes,
                self._files,
                via=self._via,
                reserve=min(RESERVE_STEP_BYTES, self.file_bytes),
            )
            try:
                self._files.sync_directory(self.directory)
            except OSError as error:
                segment.close()
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise no_room(path, self.file_bytes, error) from error
                # The file's name may be lost, with all messages acknowledged in the file.
                raise self.sync_failed(error) from error
            self._segments.append(segment)
            return segment

    def allocate_first(self) -> None:
        """Make the first file of an empty log.

        Raises:
            DiskFullError: there is no room.
        """
        if not self._segments:
            self.set_end(self._file_from(0).base)

    def prepare_ahead(self) -> None:
        """Make the next file, and reserve more of the active one, before they are needed.

        May run on any thread. A full disk is not an error here: it becomes one when the space is
        needed.
        """
        active = self._active
        if active is None:
            return
        try:
            if self.segment_at(active.base + self.file_bytes) is None:
                self._file_from(active.base + self.file_bytes)
            with self._allocation:
                low = self._reserved_end - self.end < RESERVE_STEP_BYTES // 2
                file_end = active.base + self.file_bytes
                if low and self._active is active and self._reserved_end < file_end:
                    self._reserve(active, self._reserved_end)
        except StoreError as error:
            _log.warning("space for the commit log could not be prepared ahead: %s", error)

    # --- reading ------------------------------------------------------------------------------

    def read(self, start: int, end: int) -> bytes | None:
        """Return a copy of the range, which lies in one file; None when it is not in the log."""
        segment = self.segment_at(start)
        if segment is None or end > self.end or start > end:
            return None
        base = segment.base
        return segment.map[start - base : end - base]

    def slice(self, start: int, end: int) -> bytes:
        """Return a copy of a range that lies between the minimum and :attr:`end`, in one file."""
        active = self._active
        if active is None or start < active.base:
            active = self.segment_at(start)
        assert active is not None
        base = active.base
        return active.map[start - base : end - base]

    # --- files --------------------------------------------------------------------------------

    def sync_between(self, start: int, end: int) -> None:
        """Sync a range to the disk (flusher thread); raises OSError when that fails."""
        for segment in self._between(start, end):
            segment.sync()

    def _between(self, start: int, end: int) -> Iterator[MappedFile]:
        """Yield the files a range lies in; those there were when it began."""
        for segment in self.segments:
            if segment.base < end and start < segment.base + self.file_bytes:
                yield segment

    def release_before(self, offset: int) -> None:
        """Close the descriptors of synced files that end before an offset."""
        with self._allocation:
            for segment in self._segments:
                if segment.base + self.file_bytes <= offset:
                    segment.release_fd()

    def older_files(self) -> list[LogFile]:
        """Return the files before the active one, oldest first."""
        active = self._active
        if active is None:
            return []
        return [
            LogFile(segment.base, self._files.modified_ms(segment.path))
            for segment in self._segments
            if segment.base < active.base
        ]

    def drop_first(self) -> Path:
        """Remove the oldest file (retention), but never the active or an unflushed one.

        Its memory is freed when nobody uses it any more: the index may be reading it just now.
        """
        with self._allocation:
            segment = self._segments[0]
            assert segment is not self._active
            # A new list: another thread may be between two looks at this one.
            self._segments = self._segments[1:]
            segment.release_fd()
        path = segment.path
        del segment
        self._files.unlink(path)
        return path

    def close(self) -> None:
        """Unmap everything."""
        for segment in self._segments:
            segment.close()
        self._segments.clear()
        self._active = None
        self._limit = 0
