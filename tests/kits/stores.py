"""Small stores, plain records, and files that fail when told to.

Law: helpers of the store tests; no tests here.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rocketstream._util.workers import Step, Worker
from rocketstream.protocol.record import (
    HEAD_V4,
    NO_SEAL,
    Draft,
    has_seal,
    new_draft,
    pack_host,
    read_head,
    record_of,
)
from rocketstream.protocol.tag_hash import tags_code
from rocketstream.server.store import GetResult, MessageStore, StoreConfig
from rocketstream.server.store.files import FileMap, Files
from rocketstream.testing.clock import ManualClock

HOST = pack_host("10.0.0.1", 10911)
TOPIC = "T1"
FOREVER_MS = 3_600_000
SMALL = {
    "commit_log_file_bytes": 4096,
    "consume_queue_file_bytes": 200,
    "index_slots": 50,
    "index_entries": 40,
    "flush_interval_ms": FOREVER_MS,
    "keep_interval_ms": FOREVER_MS,
    "poll_interval_ms": FOREVER_MS,
}


def small_config(**changes: Any) -> StoreConfig:
    """Files of a few records; nothing is flushed by a timer."""
    return StoreConfig(**{**SMALL, **changes})


def make_record(
    body: bytes = b"hello",
    *,
    topic: str = TOPIC,
    queue_id: int = 0,
    tags: str = "",
    keys: str = "",
    extra: str = "",
    sys_flag: int = 0,
    host: bytes = HOST,
) -> bytearray:
    """A record as a broker hands it to ``put``."""
    pairs = [("KEYS", keys), ("TAGS", tags)]
    text = "\x02".join(
        [f"{name}\x01{value}" for name, value in pairs if value] + [extra] * bool(extra)
    )
    draft = new_draft(
        topic, queue_id, 0, sys_flag, 1_700_000_000_000, host, host, body, text.encode()
    )
    return bytearray(record_of(draft, 0, 0, 0))


class Put(NamedTuple):
    """Where messages put together are, and when they were stored."""

    physical_offset: int
    queue_offset: int
    store_timestamp: int
    size: int
    end_offset: int
    physical_offsets: tuple[int, ...]


def draft_from(
    record: bytes | bytearray, topic: str, queue_id: int, code: int, keys: Sequence[str]
) -> Draft:
    """The draft of a record, for a queue; a seal is made anew."""
    head = read_head(record)
    properties = bytes(record[head.properties_start :])
    if has_seal(properties, 0):
        properties = properties[: -len(NO_SEAL)] + NO_SEAL
    return new_draft(
        topic,
        queue_id,
        head.flag,
        head.sys_flag,
        head.born_timestamp,
        head.born_host_bytes,
        head.store_host_bytes,
        bytes(record[head.body_start : head.body_start + head.body_size]),
        properties,
        code,
        keys,
        reconsume_times=head.reconsume_times,
        prepared_transaction_offset=head.prepared_transaction_offset,
    )


def put_records(
    store: MessageStore,
    topic: str,
    queue_id: int,
    records: Sequence[bytes | bytearray],
    codes: Sequence[int] | None = None,
    keys: Sequence[Sequence[str]] | None = None,
) -> Put:
    """Store all of a batch, or none."""
    codes, keys = codes or [0] * len(records), keys or [()] * len(records)
    drafts = [
        draft_from(record, topic, queue_id, code, words)
        for record, code, words in zip(records, codes, keys, strict=True)
    ]
    places = store.append(drafts, whole=True)
    return Put(
        *places[0],
        store._last_timestamp,
        sum(draft[1] for draft in drafts),
        store.physical_max_offset,
        tuple(physical for physical, _ in places),
    )


def put_record(
    store: MessageStore,
    topic: str,
    queue_id: int,
    record: bytes | bytearray,
    code: int = 0,
    keys: Sequence[str] = (),
) -> Put:
    """Store one record's message."""
    return put_records(store, topic, queue_id, [record], [code], [keys])


def put_record_in_body(
    store: MessageStore, topic: str, queue_offset: int, body: bytes = b"forged"
) -> int:
    """Store a message of T1 whose body is a whole record of a topic; return where that begins.

    Its sender knows beforehand where the body will lie.
    """
    at = store.physical_max_offset + HEAD_V4.size
    draft = draft_from(make_record(body, topic=topic), topic, 0, 0, ())
    inner = record_of(draft, queue_offset, at, 1_700_000_000_000)
    assert put(store, inner).physical_offset == at - HEAD_V4.size
    return at


def put(
    store: MessageStore,
    body: bytes = b"hello",
    *,
    topic: str = TOPIC,
    queue_id: int = 0,
    tags: str = "",
    keys: str = "",
) -> Put:
    """Store one plain message."""
    record = make_record(body, topic=topic, queue_id=queue_id, tags=tags, keys=keys)
    return put_record(store, topic, queue_id, record, tags_code(tags), keys.split())


def bodies(result: GetResult) -> list[bytes]:
    """The bodies of what a read brought."""
    from rocketstream.protocol.record import read_head

    found = []
    for part in result.records:
        position = 0
        while position < len(part):
            head = read_head(part, position)
            start = position + head.body_start
            found.append(bytes(part[start : start + head.body_size]))
            position += head.total_size
    return found


def all_bodies(store: MessageStore, topic: str = TOPIC, queue_id: int = 0) -> list[bytes]:
    """Every message of a queue, read by pulls from its start."""
    found: list[bytes] = []
    offset = store.min_offset(topic, queue_id)
    while offset < store.max_offset(topic, queue_id):
        result = store.get(topic, queue_id, offset, 32)
        found += bodies(result)
        assert result.next_begin_offset > offset
        offset = result.next_begin_offset
    return found


class QuickFiles(Files):
    """Files of tests that survive no power failure: nothing waits for the disk."""

    def sync(self, fd: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


@contextmanager
def opened(root: Path, config: StoreConfig | None = None, **options: Any) -> Iterator[MessageStore]:
    """A store that is closed in the end, or let go of when it cannot be closed."""
    clock = options.get("clock") or ManualClock()
    files = options.get("files") or QuickFiles()
    workers = options.get("workers")
    store = MessageStore(root, config or small_config(), clock, files, workers)
    store.open()
    try:
        yield store
        store.close()
    finally:
        store.abandon()


def tree(root: Path) -> dict[str, bytes]:
    """Every file below a directory by its path, with its bytes."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


class FaultyFiles(Files):
    """Files that fail when told to, and count what they are asked."""

    def __init__(self) -> None:
        self.fail_sync = False
        self.fail_reserve = False
        self.write_bytes_left: int | None = None
        self.unreadable: set[Path] = set()
        self.syncs = 0
        self.before_sync = threading.Event()
        self.gate: threading.Event | None = None

    def sync(self, fd: int) -> None:
        self.before_sync.set()
        if self.gate is not None:
            assert self.gate.wait(10)
        if self.fail_sync:
            raise OSError(errno.EIO, "input/output error")
        super().sync(fd)
        self.syncs += 1

    def read_bytes(self, path: Path) -> bytes:
        if path in self.unreadable:
            raise OSError(errno.EIO, "input/output error")
        return super().read_bytes(path)

    def reserve(self, fd: int, start: int, size: int) -> None:
        if self.fail_reserve:
            raise OSError(errno.ENOSPC, "no space left on device")
        super().reserve(fd, start, size)

    def pwrite(self, fd: int, data: bytes | bytearray, position: int) -> int:
        if self.write_bytes_left is not None:
            if self.write_bytes_left == 0:
                raise OSError(errno.ENOSPC, "no space left on device")
            data = data[: self.write_bytes_left]
            self.write_bytes_left -= len(data)
        return super().pwrite(fd, data, position)


class HandWorkers:
    """Workers whose steps a test calls, on its own thread; a simulation does the same by time."""

    def __init__(self) -> None:
        self.steps: dict[str, Step] = {}
        self.woken: list[str] = []

    def start(self, name: str, step: Step, *, first_s: float) -> Worker:
        self.steps[name] = step
        workers = self

        class ByHand:
            def wake(self) -> None:
                workers.woken.append(name)

            def stop(self) -> None:
                workers.steps.pop(name, None)

        return ByHand()

    def submit(self, function: Callable[[], object]) -> asyncio.Future[object]:
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        future.set_result(function())
        return future

    def close(self) -> None:
        pass


class BreakingFiles(QuickFiles):
    """Once told to count, fail some requests in a row; writes are torn before they fail."""

    def __init__(self, code: int, first: int, count: int) -> None:
        self.code, self.first, self.last = code, first, first + count - 1
        self.counts = False
        self.asked = 0

    def may_fail(self) -> bool:
        if self.counts:
            self.asked += 1
        return self.counts and self.first <= self.asked <= self.last

    def fail(self) -> OSError:
        return OSError(self.code, os.strerror(self.code))

    def open(self, path: Path, **how: bool) -> int:
        if self.may_fail():
            raise self.fail()
        return super().open(path, **how)

    def reserve(self, handle: int, start: int, size: int) -> None:
        if self.may_fail():
            raise self.fail()
        super().reserve(handle, start, size)

    def map(self, handle: int, size: int) -> FileMap:
        if self.may_fail():
            raise self.fail()
        return super().map(handle, size)

    def pwrite(self, handle: int, data: bytes | bytearray, position: int) -> int:
        if self.may_fail():
            super().pwrite(handle, data[: len(data) * 3 // 4], position)
            raise self.fail()
        return super().pwrite(handle, data, position)
