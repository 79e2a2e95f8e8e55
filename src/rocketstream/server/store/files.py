"""Files of fixed size: space really reserved, written by offset, read through a map, synced.

Law: the only module of the store that makes system calls on message files; knows no formats.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rocketstream.errors import DiskFullError, StoreDamagedError, StoreError

_ZEROS = bytes(1024 * 1024)
_BINARY = getattr(os, "O_BINARY", 0)
_FULL = (errno.ENOSPC, errno.EDQUOT) if hasattr(errno, "EDQUOT") else (errno.ENOSPC,)


def _pwrite_by_seek(fd: int, data: bytes | bytearray, position: int) -> int:
    os.lseek(fd, position, os.SEEK_SET)
    return os.write(fd, data)


class Files:
    """The system calls of the store, in one place so that tests can make them fail."""

    def pwrite(self, fd: int, data: bytes | bytearray, position: int) -> int:
        """Write at a position; may write less, as os.pwrite does."""
        if hasattr(os, "pwrite"):
            return os.pwrite(fd, data, position)
        return _pwrite_by_seek(fd, data, position)

    def reserve(self, fd: int, start: int, size: int) -> None:
        """Make the range exist with space of its own, zero where nothing was written."""
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(fd, start, size)
                return
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                    raise
        if sys.platform == "win32":
            # NTFS gives a file that is not marked sparse its clusters when it is extended.
            os.ftruncate(fd, max(start + size, os.fstat(fd).st_size))
            return
        self._reserve_by_writing(fd, start, size)

    def _reserve_by_writing(self, fd: int, start: int, size: int) -> None:
        position = max(start, os.fstat(fd).st_size)
        while position < start + size:
            chunk = _ZEROS[: start + size - position]
            position += self.pwrite(fd, chunk, position)

    def sync(self, fd: int) -> None:
        """Put the data of the file on the disk; blocks, without the GIL."""
        if hasattr(os, "fdatasync"):
            os.fdatasync(fd)
        else:
            os.fsync(fd)

    def sync_directory(self, path: Path) -> None:
        """Put the names in a directory on the disk (not needed and not possible on Windows)."""
        if sys.platform == "win32":
            return
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class MappedFile:
    """One file of fixed size, mapped; ``base`` is the logical offset of its first byte."""

    __slots__ = ("_files", "base", "fd", "map", "path", "size")

    def __init__(self, path: Path, base: int, size: int, files: Files, fd: int) -> None:
        self.path = path
        self.base = base
        self.size = size
        self._files = files
        self.fd = fd
        if sys.version_info >= (3, 13) and sys.platform != "win32":
            # Without it every map keeps a descriptor: a broker of many queues would run out.
            self.map = mmap.mmap(fd, size, trackfd=False)
        else:
            self.map = mmap.mmap(fd, size)

    @classmethod
    def open(cls, path: Path, base: int, size: int, files: Files) -> MappedFile:
        """Map an existing file.

        Raises:
            StoreDamagedError: its size is not the configured one (W 5.1).
        """
        fd = os.open(path, os.O_RDWR | _BINARY)
        actual = os.fstat(fd).st_size
        if actual != size:
            os.close(fd)
            raise size_error(path, actual, size)
        return cls(path, base, size, files, fd)

    @classmethod
    def create(
        cls,
        path: Path,
        base: int,
        size: int,
        files: Files,
        *,
        via: Path,
        reserve: int | None = None,
    ) -> MappedFile:
        """Make a file of zeros that appears under its name only when it is complete.

        Args:
            via: where it is built; same file system, outside the directories upstream lists.
            reserve: bytes from the start that get space of their own now; all by default.

        Raises:
            DiskFullError: no room; nothing is left behind.
            StoreError: it cannot be made for another reason.
        """
        fd = -1
        try:
            fd = os.open(via, os.O_RDWR | os.O_CREAT | os.O_TRUNC | _BINARY, 0o644)
            if reserve is not None:
                os.ftruncate(fd, size)
            files.reserve(fd, 0, size if reserve is None else reserve)
            path.parent.mkdir(parents=True, exist_ok=True)
            if sys.platform == "win32":
                os.close(fd)
                os.replace(via, path)
                fd = os.open(path, os.O_RDWR | _BINARY)
            else:
                os.replace(via, path)
            return cls(path, base, size, files, fd)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            via.unlink(missing_ok=True)
            raise no_room(path, size, error) from error

    def write(self, position: int, data: bytes | bytearray) -> None:
        """Write all of the data at a position of the file."""
        done = 0
        while done < len(data):
            done += self._files.pwrite(self.fd, data[done:] if done else data, position + done)

    def sync(self) -> None:
        """Put the file's data on the disk, whether it was written by offset or through the map."""
        if sys.platform != "linux":
            self.map.flush()
        with self.opened() as fd:
            self._files.sync(fd)

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Lend a descriptor: the kept one, or one opened for the time being."""
        if self.fd >= 0:
            yield self.fd
            return
        fd = os.open(self.path, os.O_RDWR | _BINARY)
        try:
            yield fd
        finally:
            os.close(fd)

    def release_fd(self) -> None:
        """Give the descriptor back; the map stays, :meth:`sync` opens the file when needed."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def data_chunks(self, start: int) -> list[tuple[int, int]]:
        """Return the ranges from ``start`` on, at most 1 MiB each, that are not all zero."""
        chunks = []
        for low, high in self._extents(start):
            for position in range(low, high, len(_ZEROS)):
                end = min(position + len(_ZEROS), high)
                if self.map[position:end] != _ZEROS[: end - position]:
                    chunks.append((position, end))
        return chunks

    def _extents(self, start: int) -> list[tuple[int, int]]:
        """Return where the file system has data; all at once, for reading makes more of it."""
        if not hasattr(os, "SEEK_DATA"):
            return [(start, self.size)]
        extents = []
        with self.opened() as fd:
            position = start
            while position < self.size:
                try:
                    position = os.lseek(fd, position, os.SEEK_DATA)
                except OSError:  # ENXIO: no data behind this
                    break
                end = min(os.lseek(fd, position, os.SEEK_HOLE), self.size)
                extents.append((position, end))
                position = end
        return extents

    def data_end(self, start: int) -> int:
        """Return where the last non-zero byte at or after ``start`` ends, ``start`` if none."""
        chunks = self.data_chunks(start)
        if not chunks:
            return start
        low, high = chunks[-1]
        return low + len(self.map[low:high].rstrip(b"\0"))

    def zero_from(self, start: int) -> int:
        """Zero everything from ``start`` on; returns how many bytes up to the last data there were.

        From the end backwards, so that a crash in between leaves a shorter tail of the same kind.
        """
        end = self.data_end(start)
        with self.opened() as fd:
            for low, high in reversed(self.data_chunks(start)):
                position = low
                while position < high:
                    position += self._files.pwrite(fd, _ZEROS[: high - position], position)
        return end - start

    def close(self) -> None:
        """Unmap and close."""
        self.map.close()
        self.release_fd()


def size_error(path: Path, actual: int, size: int) -> StoreDamagedError:
    """The error for a file whose size is not the configured one."""
    return StoreDamagedError(
        f"{path} has {actual} bytes where {size} are configured: set the file size the store was "
        "written with, or restore the file",
        path=str(path),
        actual=actual,
        configured=size,
    )


def no_room(path: Path, size: int, error: OSError) -> StoreError:
    """The error for a file that could not be made: DiskFullError when that is why."""
    if error.errno in _FULL:
        return DiskFullError(
            f"no room for {path} ({size} bytes): free space on that disk; the store goes on "
            "serving reads and takes writes again once there is room",
            path=str(path),
            size=size,
        )
    return StoreError(f"cannot make {path} ({size} bytes): {error}", path=str(path), size=size)


def list_based_files(directory: Path) -> list[tuple[int, Path]]:
    """Return the files of a directory whose names are their starting offsets, in order.

    Raises:
        StoreDamagedError: a name that is not 20 digits.
    """
    found = []
    for path in directory.iterdir() if directory.is_dir() else ():
        if not path.is_file():
            continue
        if len(path.name) != 20 or not path.name.isdigit():
            raise StoreDamagedError(
                f"{path} does not belong there: file names are 20 digits; move it away",
                path=str(path),
            )
        found.append((int(path.name), path))
    return sorted(found)


def based_name(base: int) -> str:
    """Return the file name that stands for a starting offset."""
    return f"{base:020d}"
