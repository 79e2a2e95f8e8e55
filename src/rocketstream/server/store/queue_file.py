"""Files of consume queues: sparse, given space in small steps, in memory only while they are used.

Law: a file and its map; of units it knows only how long they are. One thread uses the maps; any
thread may sync.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from rocketstream.server.store.files import FileMap, Files
from rocketstream.server.store.mapped_file import make_file, no_room, zero_from

RESERVE_BYTES_MIN = 4096
"""What a queue of a few messages takes on the disk."""
RESERVE_BYTES_MAX = 64 * 1024
"""Steps grow with the file up to this: a busy queue asks for space every 3,276 messages."""


LOOK_BYTES = 4_100
"""How much a look at a file reads: a page of it, and the rest of a unit."""
UNIT_BYTES = 20
IsUnit = Callable[[bytes], bool]


class Seen(NamedTuple):
    """What a look at a queue file found.

    Attributes:
        size: of the file; nothing else is known where it is not the one expected.
        start: position of the first of the units remembered.
        units: the last units of the file.
        is_clean: whether for sure nothing but zeros comes behind them.
    """

    size: int
    start: int
    units: bytes
    is_clean: bool


def _end_of_units(is_unit_at: Callable[[int], bool], high: int) -> int:
    """Return the first position below ``high`` at which there is no unit."""
    low, count = 0, high // UNIT_BYTES
    while low < count:
        middle = (low + count) // 2
        if is_unit_at(middle * UNIT_BYTES):
            low = middle + 1
        else:
            count = middle
    return low * UNIT_BYTES


class MapUser(Protocol):
    """Who keeps the map of a file at hand."""

    max_offset: int

    def unmapped(self, file: QueueFile) -> None:
        """A file leaves the memory; its map must not be used any more."""
        ...


class QueueFile:
    """One file of fixed size, mapped when its bytes are asked for.

    Args:
        queue: told before the map is given up, whoever wanted its place.
    """

    __slots__ = (
        "_files",
        "_maps",
        "_reserved",
        "base",
        "end_seen",
        "map",
        "path",
        "queue",
        "size",
        "used",
    )

    def __init__(
        self,
        path: Path,
        base: int,
        size: int,
        files: Files,
        maps: QueueMaps,
        queue: MapUser,
    ) -> None:
        self.path = path
        self.base = base
        self.size = size
        self.map: FileMap | None = None
        self.used = False
        """Asked for since :class:`QueueMaps` last looked."""
        self.end_seen = -1
        """Where the queue ended then: appending asks for nothing."""
        self._files = files
        self._maps = maps
        self.queue = queue
        self._reserved = 0

    def create(self, via: Path, need: int) -> None:
        """Make the file, with space for its first ``need`` bytes at least.

        Raises:
            DiskFullError: no room; nothing is left behind.
        """
        reserve = min(max(need, RESERVE_BYTES_MIN), self.size)
        handle = make_file(self.path, self.size, self._files, via=via, reserve=reserve)
        self._files.close(handle)
        self._reserved = reserve

    def data(self) -> FileMap:
        """Return the file's bytes; they are in memory until others need the place.

        Raises:
            OSError: the file cannot be opened.
        """
        found = self.map
        if found is None:
            self._maps.make_place(self)
            with self._files.opened(self.path) as handle:
                found = self.map = self._files.map(handle, self.size)
            self._files.expect_random(found)
            self._maps.add(self)
            # One use, one unit appended: what the file was mapped for.
            self.used, self.end_seen = False, self.queue.max_offset + 1
        else:
            self.used = True
        return found

    def map_apart(self) -> FileMap:
        """Return a map of the caller's own: it stays, whoever needs a place.

        Raises:
            OSError: the file cannot be opened.
        """
        with self._files.opened(self.path) as handle:
            return self._files.map(handle, self.size)

    def reserve(self, start: int, end: int) -> int:
        """Give the bytes from ``start`` to ``end`` at least space of their own.

        What is written through a map where the disk has no room would kill the process.

        Args:
            start: everything before it was written.

        Returns:
            Up to where there is space now.

        Raises:
            StoreError: no room, or the file cannot be opened.
        """
        if end > self._reserved:
            step = max(RESERVE_BYTES_MIN, min(start, RESERVE_BYTES_MAX))
            low = start - start % RESERVE_BYTES_MIN
            high = min(max(low + step, end), self.size)
            try:
                with self._files.opened(self.path) as handle:
                    self._files.reserve(handle, low, high - low)
            except OSError as error:
                raise no_room(self.path, high - low, error) from error
            self._reserved = high
        return self._reserved

    def look(self, is_unit: IsUnit) -> Seen:
        """Look where the units end, without bringing the file into memory.

        Args:
            is_unit: tells whether the bytes given begin with a unit; behind the last there is none.

        Raises:
            OSError: the file cannot be read.
        """
        files = self._files
        with files.opened(self.path) as handle:
            size = files.size(handle)
            if size != self.size:
                return Seen(size, 0, b"", is_clean=False)
            # Where the file system knows of no data there is none: looking there would make some.
            extents = files.extents(handle, 0, size)
            data_end = -(-extents[-1][1] // UNIT_BYTES) * UNIT_BYTES if extents else 0
            start = max(data_end - LOOK_BYTES, 0)
            data = files.read_range(handle, data_end - start, start)
            is_clean = not start or is_unit(data)
            if not is_clean:
                end = _end_of_units(
                    lambda at: is_unit(files.read_range(handle, UNIT_BYTES, at)), start
                )
                start = max(end - LOOK_BYTES, 0)
                return Seen(size, start, files.read_range(handle, end - start, start), is_clean)
        end = _end_of_units(lambda at: is_unit(data[at : at + UNIT_BYTES]), len(data))
        is_clean = not data[end:].strip(b"\0")
        return Seen(size, start, data[:end], is_clean)

    def zero_from(self, start: int) -> None:
        """Zero everything from a position on."""
        mapped = self.data()
        with self._files.opened(self.path) as handle:
            zero_from(handle, mapped, self._files, start)

    def sync(self) -> None:
        """Put what was written through the map, this one or an earlier one, on the disk."""
        with self._files.opened(self.path) as handle:
            self._files.sync_map(handle, self.map)

    def unmap(self) -> None:
        """Give the memory back; harmless when there is none."""
        if self.map is not None:
            self._maps.remove(self)
            self.drop_map()

    def drop_map(self) -> None:
        """Give the memory back (:class:`QueueMaps` has forgotten this file already)."""
        self.queue.unmapped(self)
        found, self.map = self.map, None
        if found is not None:
            found.close()


class QueueMaps:
    """The queue files of one store that are in memory: at most ``limit``, those used of late.

    Each map keeps a descriptor of its own before Python 3.13, so there cannot be one per queue.
    """

    def __init__(self, limit: int) -> None:
        self._limit = max(limit, 2)
        self._mapped: deque[QueueFile] = deque()

    def make_place(self, wanted: QueueFile) -> None:
        """Unmap files until one more may be mapped.

        A file used since it was last looked at is spared once; so are the others of the same queue.
        """
        mapped = self._mapped
        spare = len(mapped)
        while len(mapped) >= self._limit:
            file = mapped.popleft()
            end = file.queue.max_offset
            if spare > 0 and (file.used or file.end_seen != end or file.queue is wanted.queue):
                spare -= 1
                file.used = False
                file.end_seen = end
                mapped.append(file)
                continue
            file.drop_map()

    def add(self, file: QueueFile) -> None:
        """Note a file that was mapped."""
        self._mapped.append(file)

    def remove(self, file: QueueFile) -> None:
        """Forget a file that is unmapped by its owner."""
        self._mapped.remove(file)

    def __len__(self) -> int:
        """Return how many files are in memory."""
        return len(self._mapped)
