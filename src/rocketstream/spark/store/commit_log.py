"""The commit log as arrays of bytes: one per file, mapped.

Law: read-only. Records are found and walked here, not decoded.
"""

from __future__ import annotations

import bisect
import mmap
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from rocketstream.protocol.record import RecordCheck, RecordHead, RecordState, check_record
from rocketstream.spark.arrow.layout import Array
from rocketstream.spark.store.directory import BasedFile, based_files

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
        self.files = sorted(file for d in directories for file in based_files(d))
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
