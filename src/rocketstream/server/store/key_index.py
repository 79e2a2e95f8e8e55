"""The key index: files of hash slots and chained entries, filled after the puts.

Missing entries are read from the log.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from operator import mul
from pathlib import Path

from rocketstream.errors import StoreError
from rocketstream.protocol.tag_hash import java_hash
from rocketstream.server.store.files import Files
from rocketstream.server.store.mapped_file import MappedFile

_log = logging.getLogger(__name__)
_HEADER = struct.Struct(">qqqqii")
HEADER_BYTES = 40
_SLOT = struct.Struct(">i")
_ENTRY = struct.Struct(">iqii")
ENTRY_BYTES = 20
_RESERVE_BYTES = 1024 * 1024
_LOOK_AT_ONCE = 2_048
PENDING_MAX = 20_000
"""Records that may wait for indexing; beyond this a put does some of the work itself."""

Pending = tuple[int, int, str, Sequence[str]]
"""Log offset, store timestamp, topic, keys."""


_UNITS_MAX = 256
_POWERS: tuple[int, ...] = tuple(
    pow(31, _UNITS_MAX - 1 - n, 0x1_0000_0000) for n in range(_UNITS_MAX)
)
_POWERS_BY_LENGTH = tuple(_POWERS[_UNITS_MAX - n :] for n in range(_UNITS_MAX + 1))


_ID_CHARS = 32
_ID_HEAD_CHARS = 28
_ID_HEAD_POWERS = _POWERS_BY_LENGTH[_ID_CHARS][:_ID_HEAD_CHARS]
_PAIRS = {chr(a) + chr(b): a * 31 + b for a in b"0123456789ABCDEF" for b in b"0123456789ABCDEF"}
"""The contribution of the last two hexadecimal digits of a message id to its hash."""


@lru_cache(maxsize=1024)
def _id_head_hash(topic: str, head: str) -> int:
    """Return the hash of a topic and a message id without its last four characters."""
    value: int = sum(map(mul, head.encode(), _ID_HEAD_POWERS))
    return value + _topic_hash(topic) * _POWERS[_UNITS_MAX - 1 - _ID_CHARS]


@lru_cache(maxsize=1024)
def _topic_hash(topic: str) -> int:
    return java_hash(topic + "#")


def _ascii_sum(text: str) -> int:
    total: int = sum(map(mul, text.encode(), _POWERS_BY_LENGTH[len(text)]))
    return total


def key_hash(topic: str, key: str) -> int:
    """Return the index's hash of a key of a topic: Java's, made positive, 0 for its minimum."""
    units = len(key)
    if units == _ID_CHARS and key.isascii():
        # A sender's ids end with a counter: the rest is the same for one millisecond.
        try:
            tail = _PAIRS[key[28:30]] * 961 + _PAIRS[key[30:]]
        except KeyError:  # not a message id after all
            tail = _ascii_sum(key[28:])
        value = (_id_head_hash(topic, key[:28]) + tail) & 0xFFFFFFFF
    elif units < _UNITS_MAX and key.isascii():
        # The same sum as java_hash(topic + "#" + key), without a loop in Python.
        value = (
            _ascii_sum(key) + _topic_hash(topic) * _POWERS[_UNITS_MAX - 1 - units]
        ) & 0xFFFFFFFF
    else:
        value = java_hash(f"{topic}#{key}") & 0xFFFFFFFF
    if value & 0x8000_0000:
        return (0x1_0000_0000 - value) & 0x7FFFFFFF
    return value


class IndexFile:
    """One file: header, slots, entries; entry 0 is never used."""

    def __init__(self, mapped: MappedFile, slots: int, entries: int, files: Files) -> None:
        self.mapped = mapped
        self._files = files
        self._slots = slots
        self._entries = entries
        self._entries_at = HEADER_BYTES + slots * 4
        self._reserved = 0
        self.ready: int = 0
        """Below this count an entry can be added without reserving space."""
        fields = _HEADER.unpack_from(mapped.map)
        self.begin_timestamp: int = fields[0]
        self.end_timestamp: int = fields[1]
        self.begin_offset: int = fields[2]
        self.end_offset: int = fields[3]
        self.slot_count: int = fields[4]
        self.count: int = max(fields[5], 1)

    @staticmethod
    def size(slots: int, entries: int) -> int:
        """Bytes of a file."""
        return HEADER_BYTES + slots * 4 + entries * ENTRY_BYTES

    @property
    def is_full(self) -> bool:
        """Whether no further entry fits."""
        return self.count >= self._entries

    def preset(self, timestamp: int, offset: int) -> None:
        """Begin where the previous file ended."""
        self.begin_timestamp = self.end_timestamp = timestamp
        self.begin_offset = self.end_offset = offset
        self.write_header()

    def write_header(self) -> None:
        """Update the header in the file."""
        _HEADER.pack_into(
            self.mapped.map,
            0,
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self.slot_count,
            self.count,
        )

    def reserve(self) -> None:
        """Reserve space for the slots and the next entries, so that writes by the map are safe.

        Raises:
            OSError: there is no room.
        """
        need = self._entries_at + (self.count + 1) * ENTRY_BYTES
        if need > self._reserved:
            upto = min(need + _RESERVE_BYTES, self.mapped.size)
            with self.mapped.opened() as fd:
                self._files.reserve(fd, self._reserved, upto - self._reserved)
            self._reserved = upto
        self.ready = min((self._reserved - self._entries_at) // ENTRY_BYTES, self._entries)

    def put(self, hash_value: int, offset: int, timestamp: int) -> None:
        """Add an entry; requires that :meth:`reserve` was called and the file is not full."""
        data = self.mapped.map
        slot_at = HEADER_BYTES + hash_value % self._slots * 4
        count = self.count
        (previous,) = _SLOT.unpack_from(data, slot_at)
        if previous <= 0 or previous > count:
            previous = 0
            self.slot_count += 1
        seconds = 0
        begin = self.begin_timestamp
        if 0 < begin < timestamp:
            seconds = (timestamp - begin) // 1000
            if seconds > 0x7FFFFFFF:
                seconds = 0x7FFFFFFF
        _ENTRY.pack_into(
            data, self._entries_at + count * ENTRY_BYTES, hash_value, offset, seconds, previous
        )
        _SLOT.pack_into(data, slot_at, count)
        if count <= 1:
            self.begin_offset = offset
            self.begin_timestamp = timestamp
        self.count = count + 1
        self.end_offset = offset
        if timestamp > self.end_timestamp:  # smaller after the clock was set back
            self.end_timestamp = timestamp

    def overlaps(self, begin: int, end: int) -> bool:
        """Return whether the file may have entries of a time range."""
        return begin <= self.end_timestamp and end >= self.begin_timestamp

    def find(self, hash_value: int, begin: int, end: int) -> Iterator[int | None]:
        """Yield log offsets, newest first, of entries with this hash and a time in the range.

        None is yielded now and then, however many entries do not match. The map may be gone when
        this continues, so a caller that does other work in between must check it.
        """
        data = self.mapped.map
        (number,) = _SLOT.unpack_from(data, HEADER_BYTES + hash_value % self._slots * 4)
        looked = 0
        while 0 < number < self.count:
            found, offset, seconds, previous = _ENTRY.unpack_from(
                data, self._entries_at + number * ENTRY_BYTES
            )
            if seconds < 0:
                return
            time = self.begin_timestamp + seconds * 1000
            if found == hash_value and begin <= time <= end:
                yield offset
            looked += 1
            if not looked % _LOOK_AT_ONCE:
                yield None
            if time < begin or previous >= number:
                # A chain only leads to older entries; any other link could form a loop.
                return
            number = previous


class KeyIndex:
    """All index files; puts are queued and indexed by :meth:`step`, from any thread."""

    def __init__(
        self,
        directory: Path,
        slots: int,
        entries: int,
        files: Files,
        via: Path,
        now_ms: Callable[[], int],
        records_after: Callable[[int, bool], Iterator[Pending]],
    ) -> None:
        self._directory = directory
        self._slots = slots
        self._entries = entries
        self._files = files
        self._via = via
        self._now_ms = now_ms
        self._records_after = records_after
        """Reads the records of the log behind the one at an offset, or from it on, to its end."""
        self._done_offset = -1
        self._is_done_whole = False
        """Whether every key of that record is known to be in the files."""
        self._index_files: list[IndexFile] = []
        self._lock = threading.Lock()
        self._backlog: Iterator[Pending] | None = None
        self.pending: deque[Pending] = deque()
        self.full_timestamp: int = 0
        """End timestamp of the newest full file on the disk, for the checkpoint."""
        self.failed: str | None = None
        """The reason why nothing is indexed now; :meth:`resume` tries again."""

    def load(self, *, clean_exit: bool, safe_timestamp: int, log_end: int) -> int:
        """Map the existing files; returns how many were dropped as not trustworthy.

        These are dropped and rebuilt from the log: files of another size, files that point beyond
        the log, after a crash files newer than the checkpoint, and every file after one of these.
        """
        dropped = 0
        for path in self._files.list_directory(self._directory):
            size = IndexFile.size(self._slots, self._entries)
            if len(path.name) != 17 or not path.name.isdigit():
                continue
            if dropped or self._files.file_size(path) != size:
                self._files.unlink(path)
                dropped += 1
                continue
            file = self._open(MappedFile.open(path, 0, size, self._files))
            unsafe = not clean_exit and file.end_timestamp > safe_timestamp
            if unsafe or (file.count > 1 and file.end_offset >= log_end):
                file.mapped.close()
                self._files.unlink(path)
                dropped += 1
                continue
            self._index_files.append(file)
        self.full_timestamp = safe_timestamp
        return dropped

    def _open(self, mapped: MappedFile) -> IndexFile:
        mapped.release_fd()
        return IndexFile(mapped, self._slots, self._entries, self._files)

    @property
    def indexed_offset(self) -> int:
        """Log offset of the newest indexed record; -1 without any."""
        if self._index_files and self._index_files[-1].count > 1:
            return self._index_files[-1].end_offset
        return self._index_files[-2].end_offset if len(self._index_files) > 1 else -1

    def catch_up(self) -> None:
        """Index the records of the log that the files lack, before any that is put.

        The last record once more: a file that was dropped may have had the rest of its keys. A key
        that is there twice is found once.
        """
        self._done_offset, self._is_done_whole = self.indexed_offset, False
        self._read_backlog()

    def _read_backlog(self) -> None:
        again = not self._is_done_whole
        self._backlog = self._records_after(self._done_offset, again)

    @property
    def caught_up(self) -> bool:
        """Whether no record waits to be indexed."""
        return self._backlog is None and not self.pending

    @property
    def backlog_done(self) -> bool:
        """Whether everything that was in the log when the store was opened is indexed."""
        return self._backlog is None

    def relieve(self, count: int) -> None:
        """Index up to ``count`` records if more wait than may."""
        if len(self.pending) > PENDING_MAX:
            self.step(count)

    def step(self, count: int) -> bool:
        """Index up to ``count`` records; returns whether more wait."""
        with self._lock:
            if self.failed is not None:
                self._backlog = None
                self.pending.clear()
                return False
            self._try_step(count)
        return not self.caught_up

    def _try_step(self, count: int) -> None:
        try:
            self._step(count)
        except (OSError, StoreError) as error:
            if self.failed is None:
                _log.error("condition=INDEX_STOPPED messages are not indexed for now: %s", error)
            self.failed = str(error)
            self._backlog = None
            self.pending.clear()
        else:
            if self.failed is not None:
                _log.info("condition=INDEX_RESUMED messages are indexed again")
            self.failed = None

    def resume(self) -> None:
        """Index again after a failure such as a full disk; from the log, so none is missing."""
        with self._lock:
            if self.failed is None:
                return
            # In this order: a record put meanwhile is in the log already, or waits from here on.
            self.pending.clear()
            self._read_backlog()
            self._try_step(1)

    def _step(self, count: int) -> None:
        while self._backlog is not None and count > 0:
            record = next(self._backlog, None)
            if record is None:
                self._backlog = None
                break
            self._index(*record)
            count -= 1
        pending, index = self.pending, self._index
        for _ in range(min(count, len(pending))):
            index(*pending.popleft())
        if self._index_files:
            self._index_files[-1].write_header()

    def _index(self, offset: int, timestamp: int, topic: str, keys: Sequence[str]) -> None:
        files = self._index_files
        first = file = files[-1] if files else self._writable()
        before = file.end_offset
        try:
            for key in keys:
                if not key:
                    continue
                if file.count >= file.ready:
                    file = self._writable()
                    file.reserve()
                file.put(key_hash(topic, key), offset, timestamp)
        except (OSError, StoreError):
            first.end_offset = before  # not all keys of the record are indexed
            raise
        self._done_offset, self._is_done_whole = offset, True

    def _writable(self) -> IndexFile:
        last = self._index_files[-1] if self._index_files else None
        if last is not None and not last.is_full:
            return last
        if last is not None:
            last.write_header()
            last.mapped.sync()
            self.full_timestamp = last.end_timestamp
        file = self._create()
        if last is not None:
            file.preset(last.end_timestamp, last.end_offset)
        self._index_files.append(file)
        return file

    def _create(self) -> IndexFile:
        size = IndexFile.size(self._slots, self._entries)
        now_ms = self._now_ms()
        while self._files.exists(path := self._directory / _file_name(now_ms)):
            now_ms += 1
        mapped = MappedFile.create(path, 0, size, self._files, via=self._via, reserve=HEADER_BYTES)
        file = self._open(mapped)
        file.write_header()
        return file

    def querying(
        self, topic: str, key: str, count_max: int, begin: int, end: int
    ) -> Generator[None, None, list[int]]:
        """Return log offsets of records with this key, newest first, including hash collisions.

        Done in steps: a chain of entries can be as long as the index.
        """
        hash_value = key_hash(topic, key)
        found: dict[int, None] = {}
        for file in reversed(self._index_files[:]):
            is_last = file.begin_timestamp < begin
            if file.overlaps(begin, end):
                offsets = file.find(hash_value, begin, end)
                while self._take(file, offsets, found, count_max):
                    yield
            if is_last or len(found) >= count_max:
                break
        return list(found)

    def _take(
        self,
        file: IndexFile,
        offsets: Iterator[int | None],
        found: dict[int, None],
        count_max: int,
    ) -> bool:
        """Take the offsets found without a pause; return whether there may be more."""
        with self._lock:
            if file not in self._index_files:
                return False  # removed meanwhile, together with the records it indexed
            for offset in offsets:
                if offset is None:
                    return True
                found[offset] = None
                if len(found) >= count_max:
                    return False
        return False

    @property
    def last_update(self) -> tuple[int, int]:
        """End timestamp and end offset of the newest file."""
        if not self._index_files:
            return 0, 0
        return self._index_files[-1].end_timestamp, self._index_files[-1].end_offset

    def sync(self) -> None:
        """Sync the newest file to the disk; raises OSError."""
        with self._lock:
            if self._index_files:
                self._index_files[-1].write_header()
                self._index_files[-1].mapped.sync()
                self._files.sync_directory(self._directory)

    def drop_before(self, log_min: int) -> int:
        """Remove files that point only before the log's start, but never the newest."""
        dropped = 0
        with self._lock:
            while len(self._index_files) > 1 and self._index_files[0].end_offset < log_min:
                mapped = self._index_files.pop(0).mapped
                mapped.close()
                self._files.unlink(mapped.path)
                dropped += 1
        return dropped

    def close(self) -> None:
        """Unmap everything."""
        with self._lock:
            for file in self._index_files:
                file.mapped.close()
            self._index_files.clear()
            self._backlog = None
            self.pending.clear()


def _file_name(now_ms: int) -> str:
    local = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone()
    return local.strftime("%Y%m%d%H%M%S") + f"{now_ms % 1000:03d}"
