"""Files of consume queues: sparse, space reserved in small steps, mapped only while in use.

Law: one thread uses the maps; any thread may sync.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from rocketstream.server.store.files import FileMap, Files
from rocketstream.server.store.mapped_file import make_file, no_room, zero_from

RESERVE_BYTES_MIN = 4096
"""Space that the file of a queue with few messages takes."""
RESERVE_BYTES_MAX = 64 * 1024
"""Reserved steps grow with the file up to this: busy queues ask for space every 3,276 messages."""


LOOK_BYTES = 4_100
"""Bytes read at a time when a file is examined: a page of it, and the rest of a unit."""
UNIT_BYTES = 20
IsUnit = Callable[[bytes], bool]


class Seen(NamedTuple):
    """The result of examining a queue file.

    Attributes:
        size: size of the file; if it is not the expected one, the other fields are unknown.
        start: position of the first remembered unit.
        units: the last units of the file.
        is_clean: whether it is certain that only zeros follow them.
    """

    size: int
    start: int
    units: bytes
    is_clean: bool


def _end_of_units(is_unit_at: Callable[[int], bool], high: int) -> int:
    """Return the first position below ``high`` without a unit."""
    low, count = 0, high // UNIT_BYTES
    while low < count:
        middle = (low + count) // 2
        if is_unit_at(middle * UNIT_BYTES):
            low = middle + 1
        else:
            count = middle
    return low * UNIT_BYTES


class MapUser(Protocol):
    """An object that keeps the map of a file at hand."""

    max_offset: int

    def unmapped(self, file: QueueFile) -> None:
        """Take note that a file is unmapped; its map must not be used any more."""
        ...


class QueueFile:
    """One file of fixed size, mapped when its bytes are asked for.

    Args:
        queue: is told before the file is unmapped, for whichever reason.
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
        self.path: Path = path
        self.base: int = base
        self.size: int = size
        self.map: FileMap | None = None
        self.used: bool = False
        """Whether the bytes were used since :class:`QueueMaps` last examined the file."""
        self.end_seen: int = -1
        """End of the queue at that look: a queue that grew since counts as used."""
        self._files = files
        self._maps = maps
        self.queue: MapUser = queue
        self._reserved = 0

    def create(self, via: Path, need: int) -> None:
        """Create the file, with space for at least its first ``need`` bytes.

        Raises:
            DiskFullError: there is no room; nothing is left behind.
        """
        reserve = min(max(need, RESERVE_BYTES_MIN), self.size)
        handle = make_file(self.path, self.size, self._files, via=via, reserve=reserve)
        self._files.close(handle)
        self._reserved = reserve

    def data(self) -> FileMap:
        """Return the file's bytes, mapped until another file needs the place.

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
            # The first use and the first appended unit are expected: the file was mapped for them.
            self.used, self.end_seen = False, self.queue.max_offset + 1
        else:
            self.used = True
        return found

    def map_apart(self) -> FileMap:
        """Return a map that belongs to the caller: it stays even if others need a place.

        Raises:
            OSError: the file cannot be opened.
        """
        with self._files.opened(self.path) as handle:
            return self._files.map(handle, self.size)

    def reserve(self, start: int, end: int) -> int:
        """Reserve space for at least the bytes from ``start`` to ``end``.

        A write through a map where the disk has no room would kill the process.

        Args:
            start: everything before this position was written.

        Returns:
            The position up to which there is space now.

        Raises:
            StoreError: there is no room, or the file cannot be opened.
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
        """Find where the units end, without mapping the file.

        Args:
            is_unit: tells whether bytes begin with a unit; after the last unit it is never true.

        Raises:
            OSError: the file cannot be read.
        """
        files = self._files
        with files.opened(self.path) as handle:
            size = files.size(handle)
            if size != self.size:
                return Seen(size, 0, b"", is_clean=False)
            # Where the file system knows of no data there is none: reading there would allocate
            # some.
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
        """Sync to the disk everything written through this or an earlier map."""
        with self._files.opened(self.path) as handle:
            self._files.sync_map(handle, self.map)

    def unmap(self) -> None:
        """Unmap the file; harmless when it is not mapped."""
        if self.map is not None:
            self._maps.remove(self)
            self.drop_map()

    def drop_map(self) -> None:
        """Unmap the file (:class:`QueueMaps` has removed it already)."""
        self.queue.unmapped(self)
        found, self.map = self.map, None
        if found is not None:
            found.close()


class QueueMaps:
    """The mapped queue files of one store: at most ``limit``, those used lately.

    Each map keeps a descriptor of its own before Python 3.13, so there cannot be one for every
    queue.
    """

    def __init__(self, limit: int) -> None:
        self._limit = max(limit, 2)
        self._mapped: deque[QueueFile] = deque()

    def make_place(self, wanted: QueueFile) -> None:
        """Unmap files until one more may be mapped.

        A file used since it was last examined is spared once, and so are the others of its queue.
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
        """Remove a file that its owner has unmapped."""
        self._mapped.remove(file)

    def __len__(self) -> int:
        """Return how many files are mapped."""
        return len(self._mapped)
