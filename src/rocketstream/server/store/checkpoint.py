"""The ``checkpoint``, ``abort`` and ``lock`` files of a store.

Law: a checkpoint is written after the data it describes is on the disk.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rocketstream.errors import StoreError
from rocketstream.protocol.crc import crc32
from rocketstream.server.store.consume_queue import ConsumeQueue
from rocketstream.server.store.files import Files, naming
from rocketstream.server.store.mapped_file import FULL

_log = logging.getLogger(__name__)

CHECKPOINT_BYTES = 4096
_MARKS = struct.Struct(">qqqq")
_KNOWN = struct.Struct(">qI")
_OWN_AT = 256
_OWN = b"rocketstream\0\0\0\1"
"""This tag and a copy of the marks are written behind upstream's fields, in the same sector.

Upstream changes only its own marks, so a difference shows that it wrote last."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Store timestamps of the data on the disk, and the log offset up to which it is there.

    ``flushed_offset`` is the field 5.x appends (masterFlushedOffset); 4.9 leaves it zero. ``own``
    tells that no other program used the store since: then the log *and* the queues are on the disk
    up to that offset, and the log had nothing behind its end. ``between`` holds the other bytes of
    the sector, which a later version may use: they are kept.
    """

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    flushed_offset: int = 0
    own: bool = False
    log_min: int | None = None
    queues_crc: int = 0
    between: bytes = field(default=b"", compare=False, repr=False)


def read_checkpoint(path: Path, files: Files) -> Checkpoint:
    """Return the file's marks; zeros when there is no file or it is too short to hold them."""
    try:
        data = files.read_bytes(path)
    except FileNotFoundError:
        return Checkpoint()
    if len(data) < _MARKS.size:
        return Checkpoint()
    own = data[_OWN_AT:].startswith(_OWN + data[: _MARKS.size])
    physic, logics, index, flushed = _MARKS.unpack_from(data)
    between = data[_MARKS.size : _OWN_AT]
    log_min, queues_crc = None, 0
    known_at = _OWN_AT + len(_OWN) + _MARKS.size
    if own and len(data) >= known_at + _KNOWN.size:
        # One more than the offset: zero is what earlier versions left there.
        begin, queues_crc = _KNOWN.unpack_from(data, known_at)
        log_min = begin - 1 if begin > 0 else None
    return Checkpoint(physic, logics, index, flushed, own, log_min, queues_crc, between)


def crc_of_bounds(queues: Iterable[ConsumeQueue]) -> int:
    """Return a number that tells whether queues are those that were there; never zero."""
    bounds = [
        (queue.topic, queue.queue_id, queue.first_offset, queue.max_offset)
        + (() if queue.min_offset <= queue.first_offset else (queue.min_offset,))
        for queue in queues
        if queue.max_offset
    ]
    return crc32(repr(sorted(bounds)).encode()) or 1


def write_checkpoint(path: Path, marks: Checkpoint, files: Files) -> None:
    """Write and sync the marks, all in one sector at once: a reader sees the old or the new ones.

    If only the first half were written, another program would seem to have used the store.
    """
    with files.opened(path, create=True) as handle:
        if files.size(handle) < CHECKPOINT_BYTES:
            files.truncate(handle, CHECKPOINT_BYTES)
        data = _MARKS.pack(
            marks.physic_msg_timestamp,
            marks.logics_msg_timestamp,
            marks.index_msg_timestamp,
            marks.flushed_offset,
        )
        between = marks.between.ljust(_OWN_AT - _MARKS.size, b"\0")
        begin = 0 if marks.log_min is None else marks.log_min + 1
        known = _KNOWN.pack(begin, marks.queues_crc)
        files.write_all(handle, data + between + _OWN + data + known, 0)
        files.sync(handle)


def abort_present(root: Path, files: Files) -> bool:
    """Return whether the last user of the store did not close it."""
    return files.exists(root / "abort")


def create_abort(root: Path, files: Files) -> None:
    """Mark the store as in use."""
    files.close(files.open(root / "abort", create=True))
    files.sync_directory(root)


def remove_abort(root: Path, files: Files) -> None:
    """Mark the store as closed: everything in it is on the disk."""
    files.unlink(root / "abort", missing_ok=True)
    files.sync_directory(root)


class StoreLock:
    """Holds a store directory by locking byte 0 of ``lock``, as upstream does."""

    def __init__(self, root: Path, files: Files) -> None:
        self._path = root / "lock"
        self._files = files
        self._handle = -1

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            StoreLockedError: another process, or another store of this process, holds it.
        """
        self._handle = self._files.lock(self._path)
        try:
            with naming(self._path):
                self._files.write_all(self._handle, b"lock", 0)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release the lock; harmless when it is not held."""
        if self._handle >= 0:
            handle, self._handle = self._handle, -1
            self._files.unlock(handle)


def _tell_if_open(root: Path, files: Files) -> None:
    """Log that other users can read the store: Apache's broker made it, or an earlier version."""
    logs = [each for each in files.list_directory(root / "commitlog") if files.is_file(each)]
    if files.is_readable_by_others(root) and any(map(files.is_readable_by_others, logs)):
        _log.warning(
            "other users of this machine can read the messages in %s: files made from now on are "
            "for their owner alone, those that are there stay as they are; to close them: "
            "chmod -R go-rwx %s",
            root,
            root,
        )


def prepare_root(root: Path, files: Files) -> None:
    """Make the directories of a store.

    Raises:
        StoreError: they cannot be made.
        OSError: the disk has no room for them.
    """
    try:
        made = [each for each in (root, *root.parents) if not files.exists(each)]
        for name in ("commitlog", "consumequeue", "index", "config"):
            files.make_directory(root / name)
        for directory in made:
            # Otherwise a loss of power may take the name of the new store, with everything in it.
            files.sync_directory(directory.parent)
        _tell_if_open(root, files)
    except OSError as error:
        if error.errno in FULL:
            raise
        raise StoreError(
            f"cannot make the store directory {root}: {error}; give one that can be written",
            directory=str(root),
        ) from error
