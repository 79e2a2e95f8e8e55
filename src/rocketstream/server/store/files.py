"""The disk: every file-system call of the servers, so that another disk can stand in for it.

Law: no other module under ``server`` talks to the file system. Files made here are readable for
their owner alone. Handles are ints that only the :class:`Files` they came from understands. Every
call raises OSError, as the system does, unless its docstring says otherwise.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from rocketstream.errors import StoreLockedError

_ZEROS = bytes(1024 * 1024)
_BINARY = getattr(os, "O_BINARY", 0)
_IS_WINDOWS = sys.platform == "win32"
_DEVICES = frozenset(
    ["con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))]
)
"""Names that Windows takes for a device in any directory, in upper and lower case."""


class FileMap(Protocol):
    """The bytes of a file in memory; struct and memoryview read and write it.

    Other readers of the file see written bytes at once; they are on the disk after
    :meth:`Files.sync_map`.
    """

    def __len__(self) -> int:
        """Return how many bytes there are."""
        ...

    def __getitem__(self, key: slice, /) -> bytes:
        """Return a copy of a range."""
        ...

    def find(self, sub: bytes, start: int, stop: int, /) -> int:
        """Return where the bytes begin, from ``start`` on and before ``stop``; -1 if nowhere."""
        ...

    def close(self) -> None:
        """Unmap the file; raises BufferError while a memoryview of it exists."""
        ...

    def __buffer__(self, flags: int, /) -> memoryview:
        """Return the bytes as a writable buffer."""
        ...


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file's name to an error the system raised for its handle."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


class DiskUsage(NamedTuple):
    """Bytes of the file system a path lies on.

    ``free`` is the space that may still be used; it is less than the rest where the system reserves
    some.
    """

    total: int
    used: int
    free: int


class Entry(NamedTuple):
    """An entry of a directory; neither file nor directory for a link that leads nowhere."""

    name: str
    is_directory: bool
    is_file: bool


class Files:
    """The machine's file system."""

    # --- open files ---------------------------------------------------------------------------

    def open(
        self,
        path: Path,
        *,
        create: bool = False,
        truncate: bool = False,
        exclusive: bool = False,
    ) -> int:
        """Open a file for reading and writing; returns its handle.

        Args:
            create: make it when it is missing.
            truncate: drop its content.
            exclusive: raise FileExistsError when it exists already.
        """
        flags = os.O_RDWR | _BINARY
        flags |= os.O_CREAT if create else 0
        flags |= os.O_TRUNC if truncate else 0
        flags |= os.O_EXCL if exclusive else 0
        return os.open(path, flags, 0o600)

    def close(self, handle: int) -> None:
        """Close a handle."""
        os.close(handle)

    @contextmanager
    def opened(
        self, path: Path, *, create: bool = False, truncate: bool = False, exclusive: bool = False
    ) -> Iterator[int]:
        """Open a file for the ``with`` block; arguments as for :meth:`open`."""
        handle = self.open(path, create=create, truncate=truncate, exclusive=exclusive)
        try:
            with naming(path):
                yield handle
        finally:
            self.close(handle)

    def size(self, handle: int) -> int:
        """Return how many bytes an open file has."""
        return os.fstat(handle).st_size

    def truncate(self, handle: int, size: int) -> None:
        """Set the size; new bytes are zeros without reserved space."""
        os.ftruncate(handle, size)

    def pwrite(self, handle: int, data: bytes | bytearray, position: int) -> int:
        """Write at a position; may write less than asked, returns how much."""
        if hasattr(os, "pwrite"):
            return os.pwrite(handle, data, position)
        os.lseek(handle, position, os.SEEK_SET)
        return os.write(handle, data)

    def pread(self, handle: int, count: int, position: int) -> bytes:
        """Read at a position; may return less than asked, nothing at the end."""
        if hasattr(os, "pread"):
            return os.pread(handle, count, position)
        os.lseek(handle, position, os.SEEK_SET)
        return os.read(handle, count)

    def reserve(self, handle: int, start: int, size: int) -> None:
        """Reserve space for a range of the file; unwritten bytes are zeros."""
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(handle, start, size)
                return
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                    raise
        if sys.platform == "win32":
            # NTFS gives a file that is not marked sparse its clusters when it is extended.
            os.ftruncate(handle, max(start + size, os.fstat(handle).st_size))
            return
        self._reserve_by_writing(handle, start, size)

    def _reserve_by_writing(self, handle: int, start: int, size: int) -> None:
        # A sparse file has no space where it has zeros: its content is written once more.
        position = start
        while position < start + size:
            count = min(len(_ZEROS), start + size - position)
            chunk = self.pread(handle, count, position) or _ZEROS[:count]
            position += self.pwrite(handle, chunk, position)

    def sync(self, handle: int) -> None:
        """Sync the file's data to the disk; blocks, without the GIL."""
        if _sync_through(handle):
            return
        if hasattr(os, "fdatasync"):
            os.fdatasync(handle)
        else:
            os.fsync(handle)

    def map(self, handle: int, size: int) -> FileMap:
        """Map the file's first ``size`` bytes; the handle may be closed afterwards."""
        if sys.version_info >= (3, 13) and sys.platform != "win32":
            # Otherwise every map keeps a descriptor: a broker of many queues would run out.
            return mmap.mmap(handle, size, trackfd=False)
        return mmap.mmap(handle, size)

    def expect_random(self, mapped: FileMap) -> None:
        """Tell the system that single pages will be read: reading ahead takes milliseconds."""
        if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):
            mapped.madvise(mmap.MADV_RANDOM)

    def sync_map(self, handle: int, mapped: FileMap | None) -> None:
        """Sync to the disk the bytes written by offset and those written through the map.

        Another thread may close the map meanwhile: its bytes are in the file then.
        """
        if sys.platform != "linux" and isinstance(mapped, mmap.mmap):
            with suppress(ValueError):
                mapped.flush()
        self.sync(handle)

    def extents(self, handle: int, start: int, size: int) -> list[tuple[int, int]]:
        """Return the ranges from ``start`` to ``size`` that may hold bytes other than zero.

        Returned all at once, since reading may create further ranges.
        """
        if not hasattr(os, "SEEK_DATA"):
            return [(start, size)]
        found = []
        position = start
        while position < size:
            try:
                position = os.lseek(handle, position, os.SEEK_DATA)
            except OSError:  # ENXIO: no data behind this
                break
            end = min(os.lseek(handle, position, os.SEEK_HOLE), size)
            found.append((position, end))
            position = end
        return found

    # --- names --------------------------------------------------------------------------------

    def exists(self, path: Path) -> bool:
        """Return whether a file or a directory has this name."""
        return path.exists()

    def is_file(self, path: Path) -> bool:
        """Return whether a file has this name."""
        return path.is_file()

    def is_dir(self, path: Path) -> bool:
        """Return whether a directory has this name."""
        return path.is_dir()

    def list_directory(self, path: Path) -> list[Path]:
        """Return the names in a directory, sorted; none when there is no directory."""
        try:
            return sorted(path.iterdir())
        except FileNotFoundError:
            return []

    def entries(self, path: Path) -> list[Entry]:
        """Return the entries of a directory, sorted by name; none when there is no directory.

        One call replaces an `is_file` for each name.
        """
        try:
            with os.scandir(path) as found:
                return sorted(Entry(each.name, each.is_dir(), each.is_file()) for each in found)
        except FileNotFoundError:
            return []

    def can_be_directory(self, name: str) -> bool:
        """Return whether a directory may have the name of a topic; Windows has some for devices."""
        return not _IS_WINDOWS or ("|" not in name and name.lower() not in _DEVICES)

    def make_directory(self, path: Path) -> None:
        """Make a directory and those above it, for their owner alone; harmless when it is there."""
        for above in reversed(path.parents):
            if not above.exists():
                above.mkdir(0o700, exist_ok=True)
        path.mkdir(0o700, exist_ok=True)

    def is_readable_by_others(self, path: Path) -> bool:
        """Return whether other users of the machine may read a file; not known on Windows."""
        return not _IS_WINDOWS and bool(path.stat().st_mode & 0o044)

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        path.rmdir()

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        """Remove a file's name."""
        path.unlink(missing_ok=missing_ok)

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file over another one, at once for every reader."""
        os.replace(source, target)

    def sync_directory(self, path: Path) -> None:
        """Sync the names in a directory to the disk (not needed and not possible on Windows)."""
        if sys.platform == "win32":
            return
        handle = os.open(path, os.O_RDONLY)
        try:
            if not _sync_through(handle):
                os.fsync(handle)
        finally:
            os.close(handle)

    def resolve(self, path: Path) -> Path:
        """Return the path with every link on it followed."""
        return path.resolve()

    def file_size(self, path: Path) -> int:
        """Return how many bytes a file has."""
        return path.stat().st_size

    def modified_ms(self, path: Path) -> int:
        """Return when a file was last written, in ms since 1970."""
        return path.stat().st_mtime_ns // 1_000_000

    def copy_times(self, source: Path, target: Path) -> None:
        """Copy times and access rights of one file to another."""
        shutil.copystat(source, target)

    def disk_usage(self, path: Path) -> DiskUsage:
        """Return total, used and free bytes of a path's disk."""
        usage = shutil.disk_usage(path)
        return DiskUsage(usage.total, usage.used, usage.free)

    def make_temporary_directory(self, prefix: str) -> Path:
        """Create a directory with a new name in the system's temporary directory."""
        return Path(tempfile.mkdtemp(prefix=prefix))

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and everything in it, as far as possible; raises no error."""
        shutil.rmtree(path, ignore_errors=True)

    # --- whole files --------------------------------------------------------------------------

    def read_bytes(self, path: Path) -> bytes:
        """Return all a file holds."""
        with self.opened(path) as handle:
            parts, position = [], 0
            while part := self.pread(handle, max(self.size(handle) - position, 1), position):
                parts.append(part)
                position += len(part)
        return b"".join(parts)

    def read_range(self, handle: int, count: int, position: int) -> bytes:
        """Read ``count`` bytes of an open file at a position; less only at its end."""
        data = self.pread(handle, count, position)
        while len(data) < count and (
            part := self.pread(handle, count - len(data), position + len(data))
        ):
            data += part
        return data

    def read_text(self, path: Path) -> str:
        """Return the content of a file as UTF-8 text; raises UnicodeDecodeError for other bytes."""
        return self.read_bytes(path).decode("utf-8")

    def write_bytes(self, path: Path, data: bytes) -> None:
        """Write a whole file and sync it to the disk; the caller syncs its name."""
        with self.opened(path, create=True, truncate=True) as handle:
            self.write_all(handle, data, 0)
            self.sync(handle)

    def write_secret(self, path: Path, data: bytes) -> None:
        """Write a whole file that only its owner can read, replacing any former one."""
        path.unlink(missing_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o600)
        try:
            self.write_all(handle, data, 0)
            self.sync(handle)
        finally:
            self.close(handle)

    def write_all(self, handle: int, data: bytes | bytearray, position: int) -> None:
        """Write all of the data at a position."""
        done = 0
        while done < len(data):
            done += self.pwrite(handle, data[done:] if done else data, position + done)

    # --- locks --------------------------------------------------------------------------------

    def lock(self, path: Path) -> int:
        """Lock byte 0 of a file, created when missing; returns a handle.

        The system's record locks do not exclude other users in the same process; this lock does.

        Raises:
            StoreLockedError: another process, or another user in this one, holds it.
        """
        root = path.parent.resolve()
        with _held_guard:
            if root in _held.values():
                raise _in_use(root, "this process")
            handle = self.open(path, create=True)
            try:
                _lock_first_byte(handle)
            except OSError:
                self.close(handle)
                raise _in_use(root, "another process") from None
            _held[handle] = root
            return handle

    def unlock(self, handle: int) -> None:
        """Release a lock and close its handle."""
        with _held_guard:
            _unlock_first_byte(handle)
            self.close(handle)
            _held.pop(handle, None)


_held: dict[int, Path] = {}
_held_guard = threading.Lock()


def _in_use(root: Path, holder: str) -> StoreLockedError:
    return StoreLockedError(
        f"{root} is in use by {holder}: stop that broker, or give this one another store directory",
        directory=str(root),
    )


if sys.platform == "win32":
    import msvcrt

    def _sync_through(fd: int) -> bool:
        return False

    def _lock_first_byte(fd: int) -> None:
        os.lseek(fd, 0, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

    def _unlock_first_byte(fd: int) -> None:
        os.lseek(fd, 0, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    _FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)

    def _sync_through(fd: int) -> bool:
        """Sync through the drive's cache, where fsync does not (macOS)."""
        if _FULL_SYNC is None:
            return False
        try:
            fcntl.fcntl(fd, _FULL_SYNC)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
            return False  # a file system that does not support it, such as a network's
        return True

    def _lock_first_byte(fd: int) -> None:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)

    def _unlock_first_byte(fd: int) -> None:
        fcntl.lockf(fd, fcntl.LOCK_UN, 1, 0, os.SEEK_SET)
