"""Queue files: little space, few in memory, whatever the number of queues."""

from __future__ import annotations

import errno
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from rocketstream.errors import DiskFullError, StoreError
from rocketstream.server.store import MessageStore
from rocketstream.server.store.consume_queue import UNIT, ConsumeQueue
from rocketstream.server.store.files import FileMap
from rocketstream.server.store.mapped_file import based_name
from rocketstream.server.store.queue_file import QueueMaps
from rocketstream.testing.clock import ManualClock
from tests.kits.stores import (
    FaultyFiles,
    QuickFiles,
    all_bodies,
    opened,
    put,
    put_records,
    small_config,
)

TOPICS, QUEUES = 1000, 8
MANY_QUEUES = f"""
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from pathlib import Path
from rocketstream.server.store import MessageStore, StoreConfig
from tests.kits.stores import QuickFiles, make_record, put_record
root = Path(sys.argv[1])
config = StoreConfig(commit_log_file_bytes=64 << 20, index_enabled=False)
def use(times):
    store = MessageStore(root, config, files=QuickFiles())
    store.open()
    for number in range({TOPICS * QUEUES} * times):
        topic, queue = f"T{{number // {QUEUES} % {TOPICS}}}", number % {QUEUES}
        put_record(store, topic, queue, make_record(b"%d" % number, topic=topic, queue_id=queue), 0)
    for number in range({TOPICS * QUEUES}):
        topic, queue = f"T{{number // {QUEUES}}}", number % {QUEUES}
        high = store.max_offset(topic, queue)
        assert store.get(topic, queue, 0, 32).count == high, (topic, queue, high)
    store.close()
    return high
print(use(2), use(1), use(0))
files = [path.stat() for path in (root / "consumequeue").rglob("*") if path.is_file()]
assert {{file.st_size for file in files}} == {{300_000 * 20}}
print(len(files), sum(file.st_blocks * 512 for file in files))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of open files to set")
def test_eight_thousand_queues_fit_a_limit_of_256_files() -> None:
    """48 GB and 8,000 descriptors once; the files keep the size upstream opens."""
    memory = Path("/dev/shm")  # eight thousand names take a busy disk a minute
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        command = [sys.executable, "-c", MANY_QUEUES, folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    offsets, sizes = done.stdout.splitlines()
    assert offsets == "2 3 3"
    count, used = map(int, sizes.split())
    assert count == TOPICS * QUEUES
    assert used <= count * 8192


def test_no_more_queue_files_are_in_memory_than_allowed(tmp_path: Path) -> None:
    """What is written and read in turns through three maps is what was written."""
    config = small_config(queue_maps_max=3)
    with opened(tmp_path, config) as store:
        for number in range(300):
            put(store, b"m%d" % number, queue_id=number % 7)
            assert len(store._queues._maps) <= 3
        for queue_id in range(7):
            expected = [b"m%d" % number for number in range(queue_id, 300, 7)]
            assert all_bodies(store, queue_id=queue_id) == expected
            assert len(store._queues._maps) <= 3
    with opened(tmp_path, config) as store:
        assert sum(len(all_bodies(store, queue_id=number)) for number in range(7)) == 300
        store.delete_topic("T1")
        assert len(store._queues._maps) == 0


def test_a_busy_queue_stays_in_memory_among_many_idle_ones(tmp_path: Path) -> None:
    """The one that is written to between all others is not mapped anew each time."""
    with opened(tmp_path, small_config(queue_maps_max=4, consume_queue_file_bytes=20_000)) as store:
        put(store, queue_id=0)
        busy = store._queues["T1", 0]._segments[0].map
        for number in range(1, 50):
            put(store, queue_id=number)
            put(store, queue_id=0)
            assert store._queues["T1", 0]._segments[0].map is busy


def test_batch_over_two_queue_files_with_two_maps(tmp_path: Path) -> None:
    """The first file is still written to when the second one is made."""
    from tests.kits.stores import make_record

    with opened(tmp_path, small_config(queue_maps_max=2)) as store:
        for number in range(5):
            put(store, queue_id=number)
        for queue_id in (0, 1):
            records = [make_record(b"b%d" % number, queue_id=queue_id) for number in range(15)]
            put_records(store, "T1", queue_id, records, [0] * 15, [()] * 15)
        for queue_id in (0, 1):
            assert len(all_bodies(store, queue_id=queue_id)) == 16


class FewDescriptors(FaultyFiles):
    """Files that cannot be opened while told so."""

    def __init__(self) -> None:
        super().__init__()
        self.fail_open = False

    def open(self, path: Path, **options: bool) -> int:
        if self.fail_open and "consumequeue" in path.parts:
            raise OSError(errno.EMFILE, "too many open files")
        return super().open(path, **options)


def test_queue_that_cannot_be_mapped_refuses_the_message_before_it_is_stored(
    tmp_path: Path,
) -> None:
    """An error that names the file, nothing half done, and on it goes when files can be opened."""
    files = FewDescriptors()
    with opened(tmp_path, small_config(queue_maps_max=2), files=files) as store:
        for number in range(4):
            put(store, queue_id=number)
        end = store.physical_max_offset
        files.fail_open = True
        with pytest.raises(StoreError, match="too many open files"):
            put(store, queue_id=0)
        assert (store.physical_max_offset, store.max_offset("T1", 0)) == (end, 1)
        files.fail_open = False
        assert put(store, queue_id=0).queue_offset == 1


def test_space_of_a_queue_is_taken_in_steps_before_it_is_written(tmp_path: Path) -> None:
    """Never more than a step ahead; a full disk is met at the step, not by a signal."""
    files = FaultyFiles()
    config = small_config(consume_queue_file_bytes=20_000, commit_log_file_bytes=1 << 20)
    with opened(tmp_path, config, files=files) as store:
        for _ in range(204):
            put(store)
        files.fail_reserve = True
        with pytest.raises(DiskFullError):
            put(store)
        assert store.max_offset("T1", 0) == 204
        files.fail_reserve = False
        assert put(store).queue_offset == 204
    path = tmp_path / "consumequeue" / "T1" / "0" / ("0" * 20)
    assert path.stat().st_size == 20_000
    assert path.stat().st_blocks * 512 <= 8192
    with opened(tmp_path, config, files=files) as store:
        files.fail_reserve = True
        with pytest.raises(DiskFullError):
            put(store)  # after a start nothing is known to be reserved
        files.fail_reserve = False
        assert put(store).queue_offset == 205


class CountedFiles(QuickFiles):
    """Files that note how often a queue's file is opened, and how many are mapped."""

    def __init__(self) -> None:
        self.opens: Counter[Path] = Counter()
        self.handles: set[int] = set()
        self.maps = 0

    def open(self, path: Path, **options: bool) -> int:
        handle = super().open(path, **options)
        self.handles.discard(handle)
        if "consumequeue" in path.parts:
            self.opens[path] += 1
            self.handles.add(handle)
        return handle

    def map(self, handle: int, size: int) -> FileMap:
        self.maps += handle in self.handles
        return super().map(handle, size)


@pytest.mark.parametrize("is_killed", [False, True], ids=["closed", "killed"])
def test_start_opens_each_queue_file_once_and_maps_none(tmp_path: Path, is_killed: bool) -> None:
    """Eight thousand queues were mapped four times each, a third of a start's processor time."""
    clock, files = ManualClock(), CountedFiles()
    store = MessageStore(tmp_path, small_config(), clock, files)
    store.open()
    for number in range(40):
        put(store, b"m%d" % number, queue_id=number % 20)
    clock.advance(60_000)
    put(store, b"the last", queue_id=20)
    store.flush()
    if is_killed:
        store.abandon()
    else:
        store.close()
    files.opens.clear()
    files.maps = 0
    store.open()
    opens, maps = files.opens.copy(), files.maps
    try:
        # Of what was not synced for long enough the units are written anew.
        untouched = range(19 if is_killed else 21)
        assert {opens[queue_path(tmp_path, number)] for number in untouched} == {1}
        assert maps == 21 - len(untouched)
        assert len(all_bodies(store, queue_id=3)) == 2
    finally:
        store.abandon()


def queue_path(root: Path, queue_id: int) -> Path:
    return root / "consumequeue" / "T1" / str(queue_id) / based_name(0)


class WithoutHoles(QuickFiles):
    """A disk that cannot tell where a file has no data."""

    def extents(self, handle: int, start: int, size: int) -> list[tuple[int, int]]:
        return [(start, size)] if start < size else []


@pytest.mark.parametrize("files", [QuickFiles(), WithoutHoles()], ids=["holes", "no holes"])
@pytest.mark.parametrize("count", [1, 2, 204, 205, 206, 409, 410, 999, 1_000, 1_001, 1_500])
def test_end_of_a_queue_is_found_wherever_it_lies(
    tmp_path: Path, files: QuickFiles, count: int
) -> None:
    """In the part of the file that is looked at, before it, and at the end of the file."""

    def queue() -> ConsumeQueue:
        return ConsumeQueue("T", 0, tmp_path / "q", 20_000, files, tmp_path / "via", QueueMaps(8))

    made = queue()
    made.extend(b"".join(UNIT.pack(100 * number, 100, number) for number in range(count)))
    made.close()
    found = queue()
    found.load()
    assert found.max_offset == count
    assert found.last_unit() == (100 * (count - 1), 100)
    assert found.truncate_physical(100 * count) == 0
    for offset in {0, count // 2, count - 1}:
        assert found.unit(offset) == (100 * offset, 100, offset)
    assert found.truncate_physical(100 * (count - 1)) == 1
    assert found.max_offset == count - 1
    found.close()


@pytest.mark.parametrize("files", [QuickFiles(), WithoutHoles()], ids=["holes", "no holes"])
def test_what_stands_behind_the_end_of_a_queue_is_cleared_at_the_start(
    tmp_path: Path, files: QuickFiles
) -> None:
    """A unit left there would count again when those before it are written."""
    path = tmp_path / "q" / based_name(0)
    made = ConsumeQueue("T", 0, path.parent, 20_000, files, tmp_path / "via", QueueMaps(8))
    made.extend(b"".join(UNIT.pack(100 * number, 100, 0) for number in range(5)))
    made.close()
    with path.open("r+b") as file:
        file.seek(7 * 20)
        file.write(UNIT.pack(700, 100, 0))
    found = ConsumeQueue("T", 0, path.parent, 20_000, files, tmp_path / "via", QueueMaps(8))
    found.load()
    assert found.max_offset == 5
    assert found.truncate_physical(500) == 0
    found.close()
    assert not any(path.read_bytes()[5 * 20 :])
