"""The ``checkpoint``, ``abort`` and ``lock`` files of a store (W 5.5).

Law: these three files only; a checkpoint is written after what it describes is on the disk.
"""

from __future__ import annotations

import os
import struct
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from rocketstream.errors import StoreError, StoreLockedError
from rocketstream.server.store.files import Files

CHECKPOINT_BYTES = 4096
_MARKS = struct.Struct(">qqqq")
_BINARY = getattr(os, "O_BINARY", 0)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Store timestamps of what is on the disk, and the log offset up to which it is.

    ``flushed_offset`` is the field 5.x appends (masterFlushedOffset); 4.9 leaves it zero.
    """

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    flushed_offset: int = 0


def read_checkpoint(path: Path) -> Checkpoint:
    """Return the file's marks; zeros when there is no file or it is too short to hold them."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Checkpoint()
    if len(data) < _MARKS.size:
        return Checkpoint()
    return Checkpoint(*_MARKS.unpack_from(data))


def write_checkpoint(path: Path, marks: Checkpoint, files: Files) -> None:
    """Write and sync the marks; 32 bytes inside one sector, so a reader sees old or new."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | _BINARY, 0o644)
    try:
        if os.fstat(fd).st_size < CHECKPOINT_BYTES:
            os.ftruncate(fd, CHECKPOINT_BYTES)
        files.pwrite(
            fd,
            _MARKS.pack(
                marks.physic_msg_timestamp,
                marks.logics_msg_timestamp,
                marks.index_msg_timestamp,
                marks.flushed_offset,
            ),
            0,
        )
        files.sync(fd)
    finally:
        os.close(fd)


def abort_present(root: Path) -> bool:
    """Tell whether the last user of the store did not close it."""
    return (root / "abort").exists()


def create_abort(root: Path, files: Files) -> None:
    """Mark the store as in use."""
    (root / "abort").touch()
    files.sync_directory(root)


def remove_abort(root: Path, files: Files) -> None:
    """Mark the store as closed: everything in it is on the disk."""
    (root / "abort").unlink(missing_ok=True)
    files.sync_directory(root)


_held: set[Path] = set()
_held_guard = threading.Lock()


class StoreLock:
    """Holds a store directory: byte 0 of ``lock``, as upstream, plus a list for this process.

    The list is needed because POSIX record locks do not keep a process out of its own files.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._path = root / "lock"
        self._fd = -1

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            StoreLockedError: another process, or another store of this one, has it.
        """
        with _held_guard:
            if self._root in _held:
                raise self._error("this process")
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | _BINARY, 0o644)
            try:
                _lock_first_byte(fd)
            except OSError:
                os.close(fd)
                raise self._error("another process") from None
            os.write(fd, b"lock")
            self._fd = fd
            _held.add(self._root)

    def _error(self, holder: str) -> StoreLockedError:
        return StoreLockedError(
            f"{self._root} is in use by {holder}: stop that broker, or give this one another "
            "store directory",
            directory=str(self._root),
        )

    def release(self) -> None:
        """Give the lock back; harmless when it is not held."""
        with _held_guard:
            if self._fd >= 0:
                _unlock_first_byte(self._fd)
                os.close(self._fd)
                self._fd = -1
                _held.discard(self._root)


if sys.platform == "win32":
    import msvcrt

    def _lock_first_byte(fd: int) -> None:
        os.lseek(fd, 0, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

    def _unlock_first_byte(fd: int) -> None:
        os.lseek(fd, 0, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock_first_byte(fd: int) -> None:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, os.SEEK_SET)

    def _unlock_first_byte(fd: int) -> None:
        fcntl.lockf(fd, fcntl.LOCK_UN, 1, 0, os.SEEK_SET)


def prepare_root(root: Path) -> None:
    """Make the directories of a store.

    Raises:
        StoreError: they cannot be made.
    """
    try:
        for name in ("commitlog", "consumequeue", "index", "config"):
            (root / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot make the store directory {root}: {error}; give one that can be written",
            directory=str(root),
        ) from error
