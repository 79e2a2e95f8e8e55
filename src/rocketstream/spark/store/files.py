"""The files of a store directory, as arrays: the index of each queue, and the commit log.

Other modules decide what entries mean for a read.

Law: read-only. Records are found and walked here, not decoded.
"""

from __future__ import annotations

import bisect
import mmap
import os
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple

import numpy as np

from rocketstream.columns.layout import Array
from rocketstream.errors import ConfigurationError, NotSupportedError
from rocketstream.protocol.record import RecordCheck, RecordHead, RecordState, check_record

UNIT_BYTES: Final = 20
UNIT: Final = np.dtype([("physical", ">i8"), ("size", ">i4"), ("tagsCode", ">i8")])
"""An entry of a consume queue as it is stored."""
PACKED_UNIT: Final = struct.Struct(">qiq")
FILLER_SIZE: Final = 0x7FFFFFFF
"""The size in entries before a queue's first message, where that is not offset 0."""
NO_UNIT: Final = PACKED_UNIT.pack(0, 0, 0)
_OPEN_MAX: Final = 128
_BASED_NAME: Final = re.compile(r"\d{20}")


class BasedFile(NamedTuple):
    """A file that holds the bytes of something longer, from ``base`` on."""

    base: int
    path: str
    size: int

    @property
    def end(self) -> int:
        """One past its last byte."""
        return self.base + self.size


def based_files(directory: str | Path) -> list[BasedFile]:
    """Return the files of a directory named by their first byte, ascending, without empty ones.

    A file that a running broker deletes meanwhile counts as missing.
    """
    found = []
    try:
        entries = list(os.scandir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    for entry in entries:
        if not _BASED_NAME.fullmatch(entry.name):
            continue
        try:
            size = entry.stat().st_size
        except FileNotFoundError:
            continue
        if size:
            found.append(BasedFile(int(entry.name), entry.path, size))
    return sorted(found)


def queue_directory(store_path: str, topic: str, queue_id: int) -> Path:
    """Return the directory of a queue's index."""
    return Path(store_path, "consumequeue", topic, str(queue_id))


def queue_ids(store_path: str, topic: str) -> list[int]:
    """Return the queues of a topic in the store.

    Raises:
        ConfigurationError: there is no store, or no such topic in it; the error lists the
            directory's content.
        NotSupportedError: the topic is indexed in another form.
    """
    root = Path(store_path)
    if not Path(root, "consumequeue").is_dir():
        _refuse_directory(root)
    try:
        names = os.listdir(Path(root, "consumequeue", topic))
    except OSError:
        names = []
    found = sorted(int(name) for name in names if name.isascii() and name.isdigit())
    if found:
        return found
    if Path(root, "batchconsumequeue", topic).is_dir():
        raise NotSupportedError(
            f"topic {topic!r} has queue.type=BatchCQ, whose index is not read from files; read it "
            "through a broker",
            topic=topic,
        )
    there = sorted(name for name in os.listdir(Path(root, "consumequeue")))
    raise ConfigurationError(
        f"the store {store_path} holds no topic {topic!r}; it holds "
        f"{', '.join(there[:20]) or 'none'}{' and more' if len(there) > 20 else ''}",
        topic=topic,
    )


def all_queues(store_path: str) -> list[tuple[str, int]]:
    """Return topic and id of every queue in the store."""
    root = Path(store_path, "consumequeue")
    return [(t.name, i) for t in sorted(root.iterdir()) for i in _ids_of(t)]


def _ids_of(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    return sorted(int(name) for name in os.listdir(directory) if name.isdigit())


def _refuse_directory(root: Path) -> None:
    if not root.is_dir():
        raise ConfigurationError(
            f"option 'storePath' is {str(root)!r}, which is not a directory here; give the "
            "broker's storePathRootDir, under the same path on driver and executors",
            option="storePath",
        )
    if any(root.glob("*rocksdb*")):
        raise NotSupportedError(
            f"the store {root} keeps its consume queues in RocksDB (storeType=defaultRocksDB), "
            "which is not read from files; read it through a broker"
        )
    there = ", ".join(sorted(entry.name for entry in root.iterdir())[:10]) or "nothing"
    raise ConfigurationError(
        f"option 'storePath' is {str(root)!r}, which holds {there} but no 'consumequeue'; give the "
        "broker's storePathRootDir",
        option="storePath",
    )


class OpenFiles:
    """Reads files here and there, keeping the last few open; to be closed."""

    def __init__(self) -> None:
        self._streams: dict[str, IO[bytes]] = {}

    def close(self) -> None:
        """Close the files."""
        while self._streams:
            self._streams.popitem()[1].close()

    def read(self, path: str, at: int, size: int) -> bytes:
        """Return bytes of a file: fewer at its end, none where it was deleted."""
        stream = self._streams.get(path)
        if stream is None:
            while len(self._streams) >= _OPEN_MAX:
                self._streams.pop(next(iter(self._streams))).close()
            try:
                stream = self._streams[path] = open(path, "rb", buffering=0)  # noqa: SIM115 - kept
            except FileNotFoundError:
                return b""
        stream.seek(at)
        return stream.read(size) or b""


class QueueIndex:
    """The entries of one queue, by offset.

    Args:
        files: the files of the queue's directory.
        readers: reads the files.
        tail_begin: the offset from which ``tail`` replaces the files; None for no tail.
        tail: entries of consecutive offsets, as stored.
    """

    def __init__(
        self,
        files: Sequence[BasedFile],
        readers: OpenFiles,
        tail_begin: int | None = None,
        tail: bytes = b"",
    ) -> None:
        self._files = files
        self._readers = readers
        self.tail_begin = tail_begin
        self.tail = tail

    @property
    def first(self) -> int:
        """Offset of the first entry for which there is a file."""
        return self._files[0].base // UNIT_BYTES if self._files else 0

    @property
    def room_end(self) -> int:
        """One past the last entry for which the files have room."""
        return self._files[-1].end // UNIT_BYTES if self._files else 0

    def unit(self, offset: int) -> tuple[int, int, int]:
        """Return position, size and tags code of an entry; zeros where there is none."""
        found: tuple[int, int, int] = PACKED_UNIT.unpack(self._bytes(offset, offset + 1))
        return found

    def units(self, begin: int, end: int) -> Array:
        """Return entries as an array of ``UNIT``; zeros where there are none."""
        return np.frombuffer(self._bytes(begin, end), UNIT)

    def _bytes(self, begin: int, end: int) -> bytes:
        parts, at = [], begin
        while at < end:
            if self.tail_begin is not None and at >= self.tail_begin:
                skip = (at - self.tail_begin) * UNIT_BYTES
                part = self.tail[skip : skip + (end - at) * UNIT_BYTES]
                parts.append(part.ljust((end - at) * UNIT_BYTES, b"\0"))
                break
            stop = end if self.tail_begin is None else min(end, self.tail_begin)
            part = self._from_files(at, stop)
            parts.append(part)
            at += len(part) // UNIT_BYTES
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _from_files(self, begin: int, end: int) -> bytes:
        """Return entries from ``begin`` on: as many as one file has, or as no file covers."""
        position = begin * UNIT_BYTES
        for file in self._files:
            if file.base <= position < file.end:
                count = min(end, file.end // UNIT_BYTES) - begin
                size = max(1, count) * UNIT_BYTES
                found = self._readers.read(file.path, position - file.base, size)
                return found.ljust(size, b"\0")
            if file.base > position:
                return NO_UNIT * (min(end, file.base // UNIT_BYTES) - begin)
        return NO_UNIT * (end - begin)


_MAPS_MAX: Final = 2
"""How many files are mapped at a time: a task goes through them in order."""


class Stop(NamedTuple):
    """Where a walk through the log ended before the log did, and why."""

    physical: int
    reason: str


class CommitLog:
    """The files of a commit log, by physical offset.

    Args:
        directories: the directories with its files.
    """

    def __init__(self, directories: Sequence[str]) -> None:
        self.files: list[BasedFile] = sorted(file for d in directories for file in based_files(d))
        self._bases = [file.base for file in self.files]
        self._maps: dict[BasedFile, Array] = {}

    @property
    def begin(self) -> int:
        """The first physical offset for which there is a file."""
        return self._bases[0] if self._bases else 0

    def file_at(self, physical: int) -> BasedFile | None:
        """Return the file that contains a physical offset; None where it is missing."""
        index = bisect.bisect_right(self._bases, physical) - 1
        if index < 0 or physical >= self.files[index].end:
            return None
        return self.files[index]

    def next_base(self, physical: int) -> int | None:
        """Return where the first file after a physical offset begins."""
        index = bisect.bisect_right(self._bases, physical)
        return self._bases[index] if index < len(self._bases) else None

    def bytes_of(self, file: BasedFile) -> Array | None:
        """Return the mapped bytes of a file; None where it was deleted meanwhile."""
        if file not in self._maps:
            try:
                with open(file.path, "rb") as stream:
                    mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            except (FileNotFoundError, ValueError):
                return None
            while len(self._maps) >= _MAPS_MAX:
                del self._maps[next(iter(self._maps))]
            self._maps[file] = np.frombuffer(mapped, np.uint8)
        return self._maps[file]

    def check(self, physical: int) -> RecordCheck:
        """Return which kind of content a physical offset has; END where there is no file."""
        file = self.file_at(physical)
        raw = None if file is None else self.bytes_of(file)
        if file is None or raw is None:
            return RecordCheck(RecordState.END)
        return check_record(memoryview(raw), physical - file.base, crc=False)

    def store_time(self, physical: int) -> int | None:
        """Return when the record at a physical offset was stored, in ms since 1970.

        Where its file is missing, it is the time of the next file's first record, an upper bound.
        None where that is missing too.
        """
        at: int | None = physical
        while at is not None:
            found = self.check(at)
            if found.head is not None:
                return found.head.store_timestamp
            at = self.next_base(at)
        return None

    def walk(self, physical: int) -> Iterator[tuple[int, RecordHead] | Stop]:
        """Yield position and head of every record from ``physical`` on, and where the walk stopped.

        The last value is a ``Stop`` where bytes are not a record; there is none where the log
        simply ends. Missing files are skipped.
        """
        at: int | None = physical
        while at is not None:
            found = self.check(at)
            if found.head is not None:
                yield at, found.head
                at += found.size
            elif found.state is RecordState.BLANK:
                at += found.size
            elif found.state is RecordState.BAD:
                yield Stop(at, found.reason)
                return
            else:
                file = self.file_at(at)
                if file is not None and file.end - at >= 8:
                    return
                # No room for a mark, or a missing file: the walk continues in the next file.
                at = self.next_base(at)
