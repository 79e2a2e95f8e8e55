"""What a store promised to keep is there after a loss of power, on a disk that keeps no more."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest

from rocketstream.errors import FlushFailedError
from rocketstream.server.store import MessageStore, StoreConfig
from rocketstream.testing.clock import ManualClock
from rocketstream.testing.sim.disk import Disk, SimFiles, Trouble
from rocketstream.testing.sim.loop import Scheduler, SimLoop
from rocketstream.testing.sim.workers import SimWorkers
from tests.kits.stores import TOPIC, put

ROOT = Path("/data/store")
SMALL = StoreConfig(
    commit_log_file_bytes=8192, consume_queue_file_bytes=160, index_slots=16, index_entries=64
)


def open_store(
    disk: Disk, clock: ManualClock | None = None, files: SimFiles | None = None
) -> MessageStore:
    loop = SimLoop(Scheduler())
    store = MessageStore(
        ROOT,
        SMALL,
        clock or ManualClock(),
        files=files or SimFiles(disk),
        workers=SimWorkers(loop, lambda: 0.0),
    )
    store.open()
    return store


@pytest.mark.parametrize("seed", range(20))
def test_flushed_messages_of_a_new_store_survive(seed: int) -> None:
    disk = Disk(random.Random(seed), lambda: 0)
    store = open_store(disk)
    for _ in range(3):
        put(store, b"kept")
    store.flush()
    disk.lose_power()
    assert open_store(disk).max_offset(TOPIC, 0) == 3


@pytest.mark.parametrize("seed", range(20))
def test_names_that_a_killed_process_left_are_as_safe_as_messages(seed: int) -> None:
    """A queue made a moment before the kill; later checkpoints cover its messages."""
    disk, clock = Disk(random.Random(seed), lambda: 0), ManualClock()
    put(open_store(disk, clock), b"kept")  # and killed: what it wrote can be read, no more
    store = open_store(disk, clock)
    for _ in range(3):
        clock.advance(10_000)
        put(store, b"later", topic="Later")
    store.flush()
    disk.lose_power()
    assert open_store(disk, clock).max_offset(TOPIC, 0) == 1


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("before", [1, 40])
def test_what_a_failed_fsync_did_not_write_is_written_after_the_restart(
    seed: int, before: int
) -> None:
    """The system tells a failure once, and takes for written what it failed to write."""
    disk, clock = Disk(random.Random(seed), lambda: 0), ManualClock()
    store = open_store(disk, clock)
    put(store, b"first")
    store.flush()
    clock.advance(10_000)
    for _ in range(before):
        put(store, b"not synced" * 20)
    disk.trouble = Trouble(eio_sync=1.0)
    with pytest.raises(FlushFailedError):
        store.flush()
    disk.trouble = Trouble()
    store = open_store(disk, clock)
    clock.advance(10_000)
    put(store, b"acknowledged")
    store.flush()
    disk.lose_power()
    store = open_store(disk, clock)
    for offset in range(1 + before + 1):
        assert store.get(TOPIC, 0, offset, 1).count == 1


class NamesSynced(SimFiles):
    """Counts the syncs of directories of queues; the first ones find no file descriptor left."""

    def __init__(self, disk: Disk, *, failures: int = 0) -> None:
        super().__init__(disk)
        self.failures = failures
        self.synced: list[Path] = []

    def sync_directory(self, path: Path) -> None:
        if "consumequeue" in path.parts:
            if self.failures:
                self.failures -= 1
                raise OSError(errno.EMFILE, "too many open files", str(path))
            self.synced.append(path)
        super().sync_directory(path)


@pytest.mark.parametrize("failures", [1, 2, 3])
@pytest.mark.parametrize("seed", range(10))
def test_names_that_could_not_be_synced_are_synced_the_next_time(seed: int, failures: int) -> None:
    disk, clock = Disk(random.Random(seed), lambda: 0), ManualClock()
    store = open_store(disk, clock, NamesSynced(disk, failures=failures))
    put(store, b"kept")
    for _ in range(failures):
        store.flush()
    for _ in range(3):
        clock.advance(10_000)
        put(store, b"later", topic="Later")
    store.flush()
    disk.lose_power()
    assert open_store(disk, clock).max_offset(TOPIC, 0) == 1


def test_directories_that_queues_share_are_synced_once() -> None:
    disk = Disk(random.Random(0), lambda: 0)
    files = NamesSynced(disk)
    store = open_store(disk, files=files)
    for queue_id in range(4):
        put(store, queue_id=queue_id)
    store.flush()
    assert len(files.synced) == len(set(files.synced)) == 4 + 2
