"""A disk in memory that keeps synced data, and of all other data the part that chance selects.

The content of a file, the entries of a directory and the survivors of a loss of power are three
things: data is safe after ``sync``, a name after ``sync_directory``. Anything else survives in
part: whole pages, torn pages or no page; changes of names up to some point in their order.
:class:`Trouble` says which faults happen; the source of chance is handed in.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rocketstream.errors import StoreLockedError
from rocketstream.server.store.files import DiskUsage, Entry, FileMap, Files

SECTOR_BYTES = 512
"""Bytes of a sector, which is written completely or not at all."""
PAGE_BYTES = 4096
"""Bytes of a page, which is written back as one piece."""
_DISK_BYTES = 1 << 30


class Pages(bytearray):
    """The bytes of a file as every process sees them; a slice of a map returns a copy."""

    def __getitem__(self, key: Any) -> Any:
        found = bytearray.__getitem__(self, key)
        return bytes(found) if isinstance(key, slice) else found

    def close(self) -> None:
        """Do nothing: the map holds no resource."""


class Inode:
    """A file, independent of its names.

    Attributes:
        data: bytes as processes see them.
        durable: bytes on the platter; None when the file was never synced.
        room: bytes from the start for which space is reserved.
        given: size it was set to without being written; a later change of names that survives makes
            this size survive too, since file systems keep both in one journal.
        safe_size: the part of that size that survives.
        forgotten: pages as they were when a sync failed: the system takes them for written back,
            and writes them no more until they are written to.
    """

    __slots__ = (
        "data", "durable", "forgotten", "given", "modified_ms", "number", "room", "safe_size",
    )  # fmt: skip

    def __init__(self, number: int) -> None:
        self.number: int = number
        self.data: Pages = Pages()
        self.durable: bytes | None = None
        self.room: int = 0
        self.given: int = 0
        self.safe_size: int = 0
        self.modified_ms: int = 0
        self.forgotten: dict[int, bytes] = {}

    @property
    def is_clean(self) -> bool:
        """Whether the platter has the same bytes as the file."""
        held: object = self.data
        return self.durable == held

    def forget(self) -> None:
        """Take what was not written back for written: that a sync failed is told once."""
        durable = self.durable or b""
        for page in range(0, len(self.data), PAGE_BYTES):
            bytes_now = self.data[page : page + PAGE_BYTES]
            if bytes_now != durable[page : page + PAGE_BYTES]:
                self.forgotten[page] = bytes_now

    def touched(self, start: int, end: int) -> None:
        """Note that bytes were written: their pages are to be written back."""
        if self.forgotten:
            for page in range(start - start % PAGE_BYTES, end, PAGE_BYTES):
                self.forgotten.pop(page, None)

    def written_back(self) -> bytes:
        """Return what the platter has once the system has written what it knows of."""
        result, durable = bytearray(self.data), self.durable or b""
        for page, seen in self.forgotten.items():
            if result[page : page + PAGE_BYTES] == seen:
                old = durable[page : page + len(seen)]
                result[page : page + len(seen)] = old.ljust(len(seen), b"\0")
        return bytes(result)


@dataclass
class Trouble:
    """Shares of calls that fail or do less than asked, 0 to 1, and whether the disk is full.

    Attributes:
        short_write: ``pwrite`` writes a part.
        short_read: ``pread`` returns a part.
        eio_write: ``pwrite`` fails.
        eio_read: ``pread`` fails, and reading a whole file.
        eio_sync: ``sync`` fails once, and the pages that were to be written are taken for written.
        full: no file gets more space.
        slow_s: so much longer take background work, and syncs with it.
    """

    short_write: float = 0.0
    short_read: float = 0.0
    eio_write: float = 0.0
    eio_read: float = 0.0
    eio_sync: float = 0.0
    full: bool = False
    slow_s: float = 0.0


class Flip(NamedTuple):
    """A flipped bit: of which byte, and what that is since."""

    inode: Inode
    position: int
    bit: int
    seen: int


def _with_byte(data: bytes, position: int, value: int) -> bytes:
    return data[:position] + bytes((value,)) + data[position + 1 :]


_Operation = tuple[str, str, str, "Inode | None", int]
"""One change of a name: kind, name, second name, file, and the size the file had been set to."""


class Disk:
    """One machine's disk; outlives the processes that use it.

    Attributes:
        trouble: which faults happen now.
        counts: faults that happened, by kind.
        on_change: called with what a process has just done (``write``, ``sync``, ``rename``,
            ``unlink``) to which file; it may end the process there and raise.
    """

    on_change: Callable[[str, str], None] | None = None

    def __init__(self, chance: random.Random, now_ms: Callable[[], int]) -> None:
        self.trouble: Trouble = Trouble()
        self.counts: Counter[str] = Counter()
        self.chance = chance
        self.now_ms = now_ms
        self.files: dict[str, Inode] = {}
        self.directories: dict[str, None] = {"/": None}
        self._safe_files: dict[str, Inode] = {}
        self._safe_directories: dict[str, None] = {"/": None}
        self._journal: list[_Operation] = []
        self._numbers = 0

    # --- names ------------------------------------------------------------------------------------

    def new_file(self, name: str) -> Inode:
        """Return a new, empty file."""
        if _parent(name) not in self.directories:
            raise _error(errno.ENOENT, name)
        self._numbers += 1
        inode = Inode(self._numbers)
        inode.modified_ms = self.now_ms()
        self._change("link", name, "", inode)
        return inode

    def make_directory(self, name: str) -> None:
        """Make a directory and those above it."""
        if name in self.directories:
            return
        if name in self.files:
            raise _error(errno.EEXIST, name)
        self.make_directory(_parent(name))
        self._change("mkdir", name, "", None)

    def change(self, kind: str, name: str, other: str = "") -> None:
        """Remove or rename; ``kind`` is ``unlink``, ``rmdir`` or ``rename``."""
        if kind == "rmdir":
            if self.listing(name):
                raise _error(errno.ENOTEMPTY, name)
        elif name not in self.files:
            raise _error(errno.ENOENT, name)
        if kind == "rename" and _parent(other) not in self.directories:
            raise _error(errno.ENOENT, other)
        self._change(kind, name, other, self.files.get(name))

    def _change(self, kind: str, name: str, other: str, inode: Inode | None) -> None:
        operation = kind, name, other, inode, 0 if inode is None else inode.given
        _apply(operation, self.files, self.directories, files_are_safe=False)
        self._journal.append(operation)

    def listing(self, name: str) -> list[str]:
        """Return the full names of the entries of a directory, sorted."""
        if name not in self.directories:
            raise _error(errno.ENOTDIR if name in self.files else errno.ENOENT, name)
        inside = name.rstrip("/") + "/"
        skip = len(inside)
        found = [each for each in (*self.files, *self.directories) if each.startswith(inside)]
        return sorted(each for each in found if len(each) > skip and "/" not in each[skip:])

    def sync_directory(self, name: str) -> None:
        """Make the names in a directory safe."""
        if name not in self.directories:
            raise _error(errno.ENOENT, name)
        # A rename between directories also makes earlier changes in the other directory safe.
        together, safe = {name}, []
        for operation in reversed(self._journal):
            if together.intersection(_touched(operation)):
                together.update(_touched(operation))
                safe.append(operation)
        for operation in reversed(safe):
            _apply(operation, self._safe_files, self._safe_directories)
            self._journal.remove(operation)

    # --- loss of power ----------------------------------------------------------------------------

    def lose_power(self) -> None:
        """Lose power: keep safe data, and of all other data the part that chance selects."""
        self._lose_names()
        way = self.chance.choice(("none", "all", "some", "some", "some"))
        for name in sorted(self._safe_files):
            self._lose_data(self._safe_files[name], way)
        self.files = dict(self._safe_files)
        self.directories = dict(self._safe_directories)
        self._drop_orphans()

    def _lose_names(self) -> None:
        """Apply the changes of names in order, each directory's up to some point."""
        chance = self.chance
        cuts: dict[str, int] = {}
        common = chance.randint(0, len(self._journal)) if chance.random() < 0.5 else None
        lost = 0
        ended: set[str] = set()
        for position, operation in enumerate(self._journal):
            for directory in _touched(operation):
                if directory not in cuts:
                    cuts[directory] = (
                        chance.randint(0, len(self._journal)) if common is None else common
                    )
            if all(position < cuts[each] and each not in ended for each in _touched(operation)):
                if operation[1] in self._safe_files or operation[0] in ("link", "mkdir"):
                    _apply(operation, self._safe_files, self._safe_directories)
            else:
                ended.update(_touched(operation))  # later changes of these names are lost too
                lost += 1
        if lost:
            self.counts["names lost"] += lost
        self._journal = []

    def _lose_data(self, inode: Inode, way: str) -> None:
        if inode.is_clean:
            inode.data = Pages(inode.data)  # processes that died keep their own view
            return
        old, new = inode.durable or b"", inode.written_back()
        if way == "all":
            inode.durable = new
        else:
            old = old.ljust(min(inode.safe_size, len(new)), b"\0")
            inode.durable = _mixed(old, new, self.chance, way, self.counts)
        inode.data = Pages(inode.durable)
        inode.forgotten.clear()
        inode.room = min(inode.room, len(inode.data))

    def _drop_orphans(self) -> None:
        """Forget files and directories whose parent directory was lost."""
        for name in sorted(self.directories):
            if name != "/" and _parent(name) not in self.directories:
                del self.directories[name]
        for name in list(self.files):
            if _parent(name) not in self.directories:
                del self.files[name]
        self._safe_files = dict(self.files)
        self._safe_directories = dict(self.directories)

    def may_be_read_again(self, name: str, position: int) -> bool:
        """Whether the page of a byte is on the platter as it is in memory, and may leave that."""
        inode = self.files.get(name)
        if inode is None or inode.durable is None or position >= len(inode.durable):
            return False
        page = slice(position - position % PAGE_BYTES, (position // PAGE_BYTES + 1) * PAGE_BYTES)
        return bool(inode.data[page] == inode.durable[page])

    def flip_bit(self, name: str, position: int, bit: int) -> Flip | None:
        """Change one bit of a file, on the platter and in memory; None if it is gone.

        Whoever has mapped the file sees it: the page was read from the platter again.
        """
        inode = self.files.get(name)
        if inode is None or position >= len(inode.data):
            return None
        flip = Flip(inode, position, bit, inode.data[position] ^ 1 << bit)
        inode.data[position] = flip.seen
        if inode.durable is not None and position < len(inode.durable):
            inode.durable = _with_byte(inode.durable, position, inode.durable[position] ^ 1 << bit)
        self.counts["bit flipped"] += 1
        return flip

    def put_right(self, flip: Flip) -> None:
        """Flip a bit back, but where something else was written meanwhile."""
        inode, at, whole = flip.inode, flip.position, flip.seen ^ 1 << flip.bit
        if at < len(inode.data) and inode.data[at] == flip.seen:
            inode.data[at] = whole
        durable = inode.durable or b""
        if at < len(durable) and durable[at] == flip.seen:
            inode.durable = _with_byte(durable, at, whole)

    def sync(self, inode: Inode) -> None:
        """Make the data of a file safe."""
        trouble = self.trouble
        if trouble.eio_sync and self.chance.random() < trouble.eio_sync:
            self.counts["EIO on sync"] += 1
            inode.forget()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if not inode.is_clean:
            inode.durable = inode.written_back()


def _mixed(old: bytes, new: bytes, chance: random.Random, way: str, counts: Counter[str]) -> bytes:
    """Return a file of which pages were written back whole, sector by sector, or not at all."""
    if chance.random() < 0.5 and len(old) < len(new):
        size = max(len(old), chance.randint(0, len(new) // SECTOR_BYTES) * SECTOR_BYTES)
    else:
        size = len(new)
    result = bytearray(old[:size])
    result.extend(bytes(size - len(result)))
    limit = min(size, len(new))
    share = 0.0 if way == "none" else chance.random()
    for page in range(0, limit, PAGE_BYTES):
        end = min(page + PAGE_BYTES, limit)
        if result[page:end] == new[page:end]:
            continue
        if chance.random() < share:
            result[page:end] = new[page:end]
        elif way == "none" or chance.random() < 0.5:
            counts["page lost"] += 1
        else:
            counts["page torn"] += 1
            for sector in range(page, end, SECTOR_BYTES):
                if chance.random() < 0.5:
                    stop = min(sector + SECTOR_BYTES, end)
                    result[sector:stop] = new[sector:stop]
    return bytes(result)


def _apply(
    operation: _Operation,
    files: dict[str, Inode],
    directories: dict[str, None],
    *,
    files_are_safe: bool = True,
) -> None:
    kind, name, other, inode, size = operation
    if inode is not None and files_are_safe:
        inode.safe_size = max(inode.safe_size, size)
    if kind == "link" and inode is not None:
        files[name] = inode
    elif kind == "mkdir":
        directories[name] = None
    elif kind == "unlink":
        files.pop(name, None)
    elif kind == "rmdir":
        directories.pop(name, None)
    elif kind == "rename" and inode is not None:
        files.pop(name, None)
        files[other] = inode


def _touched(operation: _Operation) -> tuple[str, ...]:
    _, name, other, _, _ = operation
    return (_parent(name), _parent(other)) if other else (_parent(name),)


def _parent(name: str) -> str:
    return name.rpartition("/")[0] or "/"


def _error(number: int, name: str) -> OSError:
    return OSError(number, os.strerror(number), name)


class SimFiles(Files):
    """The file system one simulated process sees; after its end every call fails.

    Handles are this process's own. Locks are held by the process and end with it.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._open: dict[int, tuple[str, Inode]] = {}
        self._locks: dict[int, str] = {}
        self._next = 3
        self._dead = False

    def die(self) -> None:
        """The process has ended."""
        self._dead = True
        self._open.clear()

    def _check(self) -> Disk:
        if self._dead:
            raise OSError(errno.EBADF, "this simulated process has ended")
        return self._disk

    def _inode(self, handle: int) -> Inode:
        self._check()
        try:
            return self._open[handle][1]
        except KeyError:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None

    def _found(self, path: Path) -> Inode:
        name = _name(path)
        inode = self._check().files.get(name)
        if inode is None:
            raise _error(errno.EISDIR if name in self._disk.directories else errno.ENOENT, name)
        return inode

    # --- open files -------------------------------------------------------------------------------

    def open(
        self,
        path: Path,
        *,
        create: bool = False,
        truncate: bool = False,
        exclusive: bool = False,
    ) -> int:
        """See ``Files``."""
        disk, name = self._check(), _name(path)
        inode = disk.files.get(name)
        if inode is None:
            if not create or name in disk.directories:
                raise _error(errno.EISDIR if name in disk.directories else errno.ENOENT, name)
            inode = disk.new_file(name)
        elif exclusive:
            raise _error(errno.EEXIST, name)
        elif truncate and inode.data:
            inode.data.clear()
            inode.room = 0
        handle, self._next = self._next, self._next + 1
        self._open[handle] = name, inode
        return handle

    def close(self, handle: int) -> None:
        """See ``Files``."""
        if not self._dead:
            self._inode(handle)
            del self._open[handle]

    def size(self, handle: int) -> int:
        """See ``Files``."""
        return len(self._inode(handle).data)

    def truncate(self, handle: int, size: int) -> None:
        """See ``Files``."""
        inode = self._inode(handle)
        if size < len(inode.data):
            del inode.data[size:]
            inode.room = min(inode.room, size)
        else:
            inode.data.extend(bytes(size - len(inode.data)))
        inode.given = size

    def pwrite(self, handle: int, data: bytes | bytearray, position: int) -> int:
        """See ``Files``."""
        inode, disk = self._inode(handle), self._disk
        trouble, counts = disk.trouble, disk.counts
        size = len(data)
        if trouble.eio_write and disk.chance.random() < trouble.eio_write:
            counts["EIO on write"] += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if trouble.full and position + size > inode.room:
            size = max(inode.room - position, 0)
            counts["ENOSPC"] += 1
            if not size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if trouble.short_write and size > 1 and disk.chance.random() < trouble.short_write:
            counts["short write"] += 1
            size = disk.chance.randrange(1, size)
        pages = inode.data
        if position > len(pages):
            pages.extend(bytes(position - len(pages)))
        pages[position : position + size] = data if size == len(data) else data[:size]
        inode.touched(position, position + size)
        inode.room = max(inode.room, position + size)
        inode.modified_ms = disk.now_ms()
        self._done("write", self._open[handle][0])
        return size

    def _done(self, what: str, name: str) -> None:
        on_change = self._disk.on_change
        if on_change is not None:
            on_change(what, name)

    def pread(self, handle: int, count: int, position: int) -> bytes:
        """See ``Files``."""
        inode, disk = self._inode(handle), self._disk
        trouble = disk.trouble
        self._may_fail_reading()
        if trouble.short_read and count > 1 and disk.chance.random() < trouble.short_read:
            disk.counts["short read"] += 1
            count = disk.chance.randrange(1, count)
        return bytes(inode.data[position : position + count])

    def _may_fail_reading(self) -> None:
        disk = self._disk
        if disk.trouble.eio_read and disk.chance.random() < disk.trouble.eio_read:
            disk.counts["EIO on read"] += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def reserve(self, handle: int, start: int, size: int) -> None:
        """See ``Files``."""
        inode = self._inode(handle)
        end = start + size
        if self._disk.trouble.full and end > inode.room:
            self._disk.counts["ENOSPC"] += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if end > len(inode.data):
            inode.data.extend(bytes(end - len(inode.data)))
            inode.given = end
        inode.room = max(inode.room, end)

    def sync(self, handle: int) -> None:
        """See ``Files``."""
        self._disk.sync(self._inode(handle))
        self._done("sync", self._open[handle][0])

    def map(self, handle: int, size: int) -> FileMap:
        """See ``Files``."""
        inode = self._inode(handle)
        if size > len(inode.data):
            raise ValueError("mmap length is greater than file size")
        return inode.data

    def sync_map(self, handle: int, mapped: FileMap | None) -> None:
        """See ``Files``."""
        self.sync(handle)

    def extents(self, handle: int, start: int, size: int) -> list[tuple[int, int]]:
        """See ``Files``."""
        self._inode(handle)
        return [(start, size)] if start < size else []

    # --- names ------------------------------------------------------------------------------------

    def exists(self, path: Path) -> bool:
        """See ``Files``."""
        return self.is_file(path) or self.is_dir(path)

    def is_file(self, path: Path) -> bool:
        """See ``Files``."""
        return _name(path) in self._check().files

    def is_dir(self, path: Path) -> bool:
        """See ``Files``."""
        return _name(path) in self._check().directories

    def list_directory(self, path: Path) -> list[Path]:
        """See ``Files``."""
        try:
            return [Path(each) for each in self._check().listing(_name(path))]
        except FileNotFoundError:
            return []

    def entries(self, path: Path) -> list[Entry]:
        """See ``Files``."""
        return [
            Entry(each.name, self.is_dir(each), self.is_file(each))
            for each in self.list_directory(path)
        ]

    def make_directory(self, path: Path) -> None:
        """See ``Files``."""
        self._check().make_directory(_name(path))

    def remove_directory(self, path: Path) -> None:
        """See ``Files``."""
        self._check().change("rmdir", _name(path))

    def unlink(self, path: Path, *, missing_ok: bool = False) -> None:
        """See ``Files``."""
        name = _name(path)
        if missing_ok and name not in self._check().files:
            return
        self._check().change("unlink", name)
        self._done("unlink", name)

    def replace(self, source: Path, target: Path) -> None:
        """See ``Files``."""
        self._check().change("rename", _name(source), _name(target))
        self._done("rename", _name(target))

    def sync_directory(self, path: Path) -> None:
        """See ``Files``."""
        self._check().sync_directory(_name(path))

    def file_size(self, path: Path) -> int:
        """See ``Files``."""
        return len(self._found(path).data)

    def modified_ms(self, path: Path) -> int:
        """See ``Files``."""
        return self._found(path).modified_ms

    def is_readable_by_others(self, path: Path) -> bool:
        """See ``Files``; there is one user only."""
        if not self.is_dir(path):
            self._found(path)
        return False

    def copy_times(self, source: Path, target: Path) -> None:
        """See ``Files``."""
        self._found(target).modified_ms = self._found(source).modified_ms

    def disk_usage(self, path: Path) -> DiskUsage:
        """See ``Files``."""
        used = sum(inode.room for inode in self._check().files.values())
        used = _DISK_BYTES if self._disk.trouble.full else used
        return DiskUsage(_DISK_BYTES, used, _DISK_BYTES - used)

    def make_temporary_directory(self, prefix: str) -> Path:
        """See ``Files``."""
        disk = self._check()
        disk.make_directory("/temporary")
        name = f"/temporary/{prefix}{len(disk.directories)}"
        disk.make_directory(name)
        return Path(name)

    def remove_tree(self, path: Path) -> None:
        """See ``Files``."""
        disk, inside = self._check(), _name(path) + "/"
        for name in [each for each in disk.files if each.startswith(inside)]:
            disk.change("unlink", name)
        for name in sorted((d for d in disk.directories if d.startswith(inside)), reverse=True):
            disk.change("rmdir", name)
        if _name(path) in disk.directories:
            disk.change("rmdir", _name(path))

    # --- locks ------------------------------------------------------------------------------------

    def lock(self, path: Path) -> int:
        """See ``Files``."""
        name = _name(path)
        if name in self._locks.values():
            raise StoreLockedError(f"{path.parent} is in use by this process", directory=name)
        handle = self.open(path, create=True)
        self._locks[handle] = name
        return handle

    def unlock(self, handle: int) -> None:
        """See ``Files``."""
        if not self._dead:
            self._locks.pop(handle, None)
            self.close(handle)


def _name(path: Path) -> str:
    return str(path)
