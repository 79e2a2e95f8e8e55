"""Files of fixed size, with reserved space, written by offset, read through a map, and synced."""

from __future__ import annotations

import errno
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rocketstream.errors import DiskFullError, StoreDamagedError, StoreError
from rocketstream.server.store.files import FileMap, Files, naming

_log = logging.getLogger(__name__)
_ZEROS = bytes(1024 * 1024)
FULL = (errno.ENOSPC, errno.EDQUOT) if hasattr(errno, "EDQUOT") else (errno.ENOSPC,)


class MappedFile:
    """One file of fixed size, mapped; ``base`` is the logical offset of its first byte."""

    __slots__ = ("_files", "base", "fd", "map", "path", "size")

    def __init__(self, path: Path, base: int, size: int, files: Files, fd: int) -> None:
        self.path: Path = path
        self.base: int = base
        self.size: int = size
        self._files = files
        self.fd: int = fd
        self.map: FileMap = files.map(fd, size)

    @classmethod
    def open(cls, path: Path, base: int, size: int, files: Files) -> MappedFile:
        """Map an existing file.

        Raises:
            StoreDamagedError: its size is not the configured one.
        """
        fd = files.open(path)
        try:
            with naming(path):
                actual = files.size(fd)
                if actual != size:
                    raise size_error(path, actual, size)
                return cls(path, base, size, files, fd)
        except BaseException:
            files.close(fd)
            raise

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
            reserve: bytes from the start to reserve space for now; all by default.

        Raises:
            DiskFullError: there is no room; nothing is left behind.
            StoreError: it cannot be created for another reason.
        """
        fd = make_file(path, size, files, via=via, reserve=reserve)
        try:
            return cls(path, base, size, files, fd)
        except OSError as error:
            files.close(fd)
            raise no_room(path, size, error) from error

    def write(self, position: int, data: bytes | bytearray) -> None:
        """Write all of the data at a position of the file."""
        self._files.write_all(self.fd, data, position)

    def sync(self) -> None:
        """Sync the file to the disk, whether it was written by offset or through the map."""
        with self.opened() as fd:
            self._files.sync_map(fd, self.map)

    @contextmanager
    def opened(self) -> Iterator[int]:
        """Yield a descriptor: the kept one, or one opened for the ``with`` block."""
        if self.fd >= 0:
            with naming(self.path):
                yield self.fd
            return
        with self._files.opened(self.path) as fd:
            yield fd

    def release_fd(self) -> None:
        """Close the descriptor; the map stays, and :meth:`sync` opens the file when needed."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            self._files.close(fd)

    def data_chunks(self, start: int) -> list[tuple[int, int]]:
        """Return the ranges from ``start`` on, at most 1 MiB each, that have non-zero bytes."""
        with self.opened() as fd:
            return data_chunks(fd, self.map, self._files, start)

    def data_end(self, start: int) -> int:
        """Return where the last non-zero byte from ``start`` on ends; ``start`` without any."""
        chunks = self.data_chunks(start)
        if not chunks:
            return start
        low, high = chunks[-1]
        return low + len(self.map[low:high].rstrip(b"\0"))

    def zero_from(self, start: int) -> int:
        """Zero everything from ``start`` on; returns the length up to the last non-zero byte.

        From the end backwards, so that a crash in between leaves a shorter tail of the same kind.
        """
        end = self.data_end(start)
        with self.opened() as fd:
            zero_from(fd, self.map, self._files, start)
        return end - start

    def close(self) -> None:
        """Unmap and close."""
        self.map.close()
        self.release_fd()


def data_chunks(handle: int, mapped: FileMap, files: Files, start: int) -> list[tuple[int, int]]:
    """Return the ranges of a file from ``start`` on, at most 1 MiB each, with non-zero bytes."""
    chunks = []
    for low, high in files.extents(handle, start, len(mapped)):
        for position in range(low, high, len(_ZEROS)):
            end = min(position + len(_ZEROS), high)
            if mapped[position:end] != _ZEROS[: end - position]:
                chunks.append((position, end))
    return chunks


def zero_from(handle: int, mapped: FileMap, files: Files, start: int) -> None:
    """Zero everything of a file from ``start`` on, beginning at the end."""
    for low, high in reversed(data_chunks(handle, mapped, files, start)):
        files.write_all(handle, _ZEROS[: high - low], low)


def make_file(path: Path, size: int, files: Files, *, via: Path, reserve: int | None = None) -> int:
    """Create a file of zeros and return its handle; arguments and errors as MappedFile.create."""
    fd = -1
    try:
        fd = files.open(via, create=True, truncate=True)
        if reserve is not None:
            files.truncate(fd, size)
        files.reserve(fd, 0, size if reserve is None else reserve)
        files.make_directory(path.parent)
        if sys.platform == "win32":
            files.close(fd)
            files.replace(via, path)
            fd = files.open(path)
        else:
            files.replace(via, path)
        return fd
    except OSError as error:
        if fd >= 0:
            files.close(fd)
        files.unlink(via, missing_ok=True)
        raise no_room(path, size, error) from error


def size_error(path: Path, actual: int, size: int) -> StoreDamagedError:
    """Return the error for a file whose size is not the configured one."""
    return StoreDamagedError(
        f"{path} has {actual} bytes where {size} are configured: set the file size the store was "
        "written with, or restore the file",
        path=str(path),
        actual=actual,
        configured=size,
    )


def no_room(path: Path, size: int, error: OSError) -> StoreError:
    """Return the error for a file that could not be created: DiskFullError for lack of space."""
    if error.errno in FULL:
        return DiskFullError(
            f"no room for {path} ({size} bytes): free space on that disk; the store goes on "
            "serving reads and takes writes again once there is room",
            path=str(path),
            size=size,
        )
    return StoreError(f"cannot make {path} ({size} bytes): {error}", path=str(path), size=size)


def cannot_open(root: Path, error: OSError) -> StoreError:
    """Return the error for a store whose disk failed while the store was opened."""
    where = f"{error.filename or root}: {error.strerror or error}"
    if error.errno in FULL:
        return DiskFullError(
            f"cannot open the store {root}: {where}: free space on that disk, then start again",
            directory=str(root),
            path=error.filename,
        )
    return StoreError(
        f"cannot open the store {root}: {where}: check that disk and the access rights of that "
        "path, then start again; restore from a copy what stays unreadable",
        directory=str(root),
        path=error.filename,
    )


def list_based_files(
    directory: Path, files: Files, *, ignore_strays: bool
) -> list[tuple[int, Path]]:
    """Return the files of a directory whose names are their starting offsets, in order.

    Args:
        ignore_strays: ignore files with other names; hidden files are always ignored.

    Raises:
        StoreDamagedError: a file's name is not 20 digits.
    """
    found = []
    for name, _, is_file in files.entries(directory):
        if not is_file:
            continue
        path = directory / name
        if len(name) != 20 or not name.isdigit():
            if ignore_strays or name.startswith("."):
                warn_of_stray(path)
                continue
            raise StoreDamagedError(
                f"{path} does not belong there: file names are 20 digits; move it away",
                path=str(path),
            )
        found.append((int(name), path))
    return found


def warn_of_stray(path: Path) -> None:
    """Log a file that does not belong to the store; it is left alone."""
    _log.warning("%s does not belong there; it is ignored", path)


def remove_empty(directory: Path, files: Files) -> None:
    """Remove a directory, unless it has files that do not belong to the store."""
    if not files.is_dir(directory):
        return
    try:
        files.remove_directory(directory)
    except OSError as error:
        _log.warning("%s stays: %s", directory, error)


def based_name(base: int) -> str:
    """Return the file name for a starting offset."""
    return f"{base:020d}"
