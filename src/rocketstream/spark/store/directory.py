"""The files of a store directory, and the index of each queue.

Other modules decide what entries mean for a read.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final, NamedTuple

import numpy as np

from rocketstream.errors import ConfigurationError, NotSupportedError
from rocketstream.spark.arrow.layout import Array

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
