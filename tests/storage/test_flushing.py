"""Flushing: group commit, waiters told after the fsync only, a failed fsync that is final."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import threading
from pathlib import Path

import pytest

from rocketstream._util.workers import ThreadWorkers
from rocketstream.errors import DiskFullError, FlushFailedError, StoreLockedError
from rocketstream.server.store import GetMessageStatus, MessageStore
from rocketstream.server.store.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from rocketstream.server.store.files import Files
from rocketstream.server.store.flusher import LogFlusher
from rocketstream.testing.clock import ManualClock
from tests.kits.stores import (
    FaultyFiles,
    QuickFiles,
    all_bodies,
    make_record,
    opened,
    put,
    put_records,
    small_config,
)


class Waiter:
    """Remembers what a flush callback was told."""

    def __init__(self) -> None:
        self.called = threading.Event()
        self.told: list[Exception | None] = []

    def __call__(self, error: Exception | None) -> None:
        self.told.append(error)
        self.called.set()

    def outcome(self) -> Exception | None:
        assert self.called.wait(10)
        assert len(self.told) == 1
        return self.told[0]


def test_sync_waiter_is_called_after_the_fsync_only(tmp_path: Path) -> None:
    """Covers C-434 (SYNC_FLUSH): held while the disk works, one fsync for all that arrived."""
    files = FaultyFiles()
    with opened(tmp_path, small_config(flush="sync"), files=files) as store:
        files.gate = threading.Event()
        files.before_sync.clear()
        first, later = Waiter(), [Waiter() for _ in range(5)]
        store.when_flushed(put(store).end_offset, first)
        assert files.before_sync.wait(10)
        syncs = files.syncs
        for waiter in later:
            store.when_flushed(put(store).end_offset, waiter)
        assert not first.called.is_set()
        files.gate.set()
        assert first.outcome() is None
        assert [waiter.outcome() for waiter in later] == [None] * 5
        assert files.syncs == syncs + 2


def test_what_is_flushed_already_answers_at_once(tmp_path: Path) -> None:
    """No thread is involved."""
    with opened(tmp_path) as store:
        end = put(store).end_offset
        store.flush()
        waiter = Waiter()
        store.when_flushed(end, waiter)
        assert waiter.told == [None]
        assert store.flushed_offset == end


def test_async_flush_runs_by_the_timer(tmp_path: Path) -> None:
    """Covers C-434 (ASYNC_FLUSH): nobody asks, the interval does it."""
    with opened(tmp_path, small_config(flush_interval_ms=5)) as store:
        waiter = Waiter()
        store.when_flushed(put(store).end_offset, waiter)
        assert waiter.outcome() is None


def test_flush_covers_every_file_since_the_last_one(tmp_path: Path) -> None:
    """A run of messages over several log files is synced as a whole."""
    files = FaultyFiles()
    with opened(tmp_path, files=files) as store:
        for _ in range(10):
            end = put(store, b"x" * 1500).end_offset
        files.syncs = 0
        store._flusher.flush()
        assert store.flushed_offset == end
        assert files.syncs == 5


def test_failed_fsync_is_final(tmp_path: Path) -> None:
    """Waiters are told, writes refused for ever, reads go on, ``abort`` stays."""
    files = FaultyFiles()
    store = MessageStore(tmp_path, small_config(flush="sync"), ManualClock(), files)
    store.open()
    safe = put(store, b"safe").end_offset
    store.flush()
    files.fail_sync = True
    waiter = Waiter()
    end = put(store, b"doubt").end_offset
    store.when_flushed(end, waiter)
    assert isinstance(waiter.outcome(), FlushFailedError)
    files.fail_sync = False
    for _ in range(2):
        with pytest.raises(FlushFailedError, match="no more writes"):
            put(store)
    with pytest.raises(FlushFailedError):
        put_records(store, "T1", 0, [make_record()], [0], [()])
    again = Waiter()
    store.when_flushed(end, again)
    assert isinstance(again.told[0], FlushFailedError)
    fine = Waiter()
    store.when_flushed(safe, fine)
    assert fine.told == [None]
    assert not store.is_writable
    assert all_bodies(store) == [b"safe"]
    assert read_checkpoint(tmp_path / "checkpoint", Files()).flushed_offset == safe
    with pytest.raises(FlushFailedError):
        store.close()
    assert (tmp_path / "abort").exists()
    with opened(tmp_path) as store:
        assert all_bodies(store) == [b"safe", b"doubt"]


def test_sync_flush_shows_nothing_that_a_power_loss_may_take_back(tmp_path: Path) -> None:
    """Whoever was given a message before it is on the disk would never be given the one that takes
    its offset after a power loss."""
    with opened(tmp_path, small_config(flush="sync")) as store:
        for number in range(15):  # more than one file of the queue
            put(store, b"%d" % number)
        assert store.max_offset("T1", 0) == 0
        assert store.get("T1", 0, 0, 32).status is GetMessageStatus.NO_MESSAGE_IN_QUEUE
        assert store.consume_queue_entries("T1", 0, 0, 32) == []
        store.flush()
        assert all_bodies(store) == [b"%d" % number for number in range(15)]
        put(store, b"later")
        assert store.max_offset("T1", 0) == 15
        assert store.get("T1", 0, 15, 32).status is GetMessageStatus.OFFSET_OVERFLOW_ONE
        assert all_bodies(store)[-1] == b"14"
        store.flush()
        assert all_bodies(store)[-1] == b"later"


def test_sync_flush_names_no_offset_of_a_time_that_readers_do_not_have(tmp_path: Path) -> None:
    """A group reset to now went on behind messages that a power loss may take back."""
    with opened(tmp_path, small_config(flush="sync")) as store:
        put(store)
        assert store.offset_by_timestamp("T1", 0, 1 << 62) == 0
        put(store)
        store.flush()
        put(store)
        assert store.offset_by_timestamp("T1", 0, 1 << 62) == 1


def test_async_flush_shows_messages_at_once(tmp_path: Path) -> None:
    """What async flush promises is no more than a process that ends."""
    with opened(tmp_path, small_config()) as store:
        put(store)
        assert store.max_offset("T1", 0) == 1


def test_what_a_killed_process_left_is_flushed_before_it_is_shown(tmp_path: Path) -> None:
    """It may be in the memory of the machine only."""
    store = MessageStore(tmp_path, small_config(), ManualClock(), QuickFiles())
    store.open()
    put(store, b"left")
    store.abandon()
    with opened(tmp_path, small_config(flush="sync")) as store:
        assert store.flushed_offset == store.physical_max_offset
        assert all_bodies(store) == [b"left"]


def test_open_gives_everything_back_when_what_it_found_cannot_be_flushed(tmp_path: Path) -> None:
    """The directory can be opened again once the disk is well."""
    store = MessageStore(tmp_path, small_config(), ManualClock(), QuickFiles())
    store.open()
    put(store, b"left")
    store.abandon()
    store = MessageStore(tmp_path, small_config(flush="sync"), ManualClock(), QuickFiles())

    def fail(_start: int, _end: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    store._flusher._sync = fail
    with pytest.raises(FlushFailedError):
        store.open()
    with opened(tmp_path, small_config(flush="sync")) as store:
        assert all_bodies(store) == [b"left"]


def test_the_checkpoint_claims_no_more_of_the_log_than_was_flushed(tmp_path: Path) -> None:
    """Covers C-434: it vouches for what is on the disk, not for what was written since."""
    with opened(tmp_path, small_config(flush="async", flush_interval_ms=3_600_000)) as store:
        safe = put(store, b"flushed").end_offset
        store._flusher.flush()
        put(store, b"written")
        store._keeper.keep()
        marks = read_checkpoint(tmp_path / "checkpoint", Files())
        assert (marks.flushed_offset, store.flushed_offset) == (safe, safe)


def test_failed_sync_of_a_queue_is_final_too(tmp_path: Path) -> None:
    """A checkpoint must never claim units that are not on the disk."""
    files = FaultyFiles()
    store = MessageStore(tmp_path, small_config(), ManualClock(), files)
    store.open()
    put(store)
    store._flusher.flush()
    files.fail_sync = True
    with pytest.raises(FlushFailedError):
        store.flush()
    assert read_checkpoint(tmp_path / "checkpoint", Files()).logics_msg_timestamp == 0
    with pytest.raises(FlushFailedError):
        put(store)
    store.abandon()


def test_close_tells_those_who_wait(tmp_path: Path) -> None:
    """A waiter of the timer gets its answer from the last flush."""
    waiter = Waiter()
    with opened(tmp_path) as store:
        store.when_flushed(put(store).end_offset, waiter)
    assert waiter.told == [None]


def test_callback_may_wait_again() -> None:
    """Callbacks run without the flusher's lock."""
    end = 1
    flusher = LogFlusher(
        lambda: (end, 0),
        lambda *_: None,
        interval_ms=3_600_000,
        at_once=True,
        workers=ThreadWorkers(),
    )
    flusher.start(0, 0)
    second = Waiter()
    flusher.when_flushed(1, lambda _: flusher.when_flushed(1, second))
    assert second.outcome() is None
    flusher.stop()


def test_full_disk_at_the_roll_is_a_clean_error(tmp_path: Path) -> None:
    """DiskFullError, nothing half-written, reads go on, and writes do once there is room."""
    files = FaultyFiles()
    with opened(tmp_path, files=files) as store:
        put(store, b"one" * 500)
        files.fail_reserve = True
        put(store, b"two" * 500)
        end = store.physical_max_offset
        for _ in range(2):
            with pytest.raises(DiskFullError, match="no room for"):
                put(store, b"three" * 300)
        with pytest.raises(DiskFullError):
            put_records(store, "T1", 0, [make_record(b"x" * 2000)], [0], [()])
        assert store.physical_max_offset == end
        assert len(all_bodies(store)) == 2
        assert put(store, b"small").physical_offset == end
        files.fail_reserve = False
        put(store, b"three" * 300)
        assert len(all_bodies(store)) == 4
    with opened(tmp_path) as store:
        assert len(all_bodies(store)) == 4


def test_full_disk_for_a_queue_file_stores_nothing(tmp_path: Path) -> None:
    """The queue's space is taken before the record is written."""
    files = FaultyFiles()
    with opened(tmp_path, files=files) as store:
        for _ in range(10):
            put(store)
        files.fail_reserve = True
        end = store.physical_max_offset
        with pytest.raises(DiskFullError):
            put(store)
        with pytest.raises(DiskFullError):
            put(store, topic="T2")
        assert (store.physical_max_offset, store.max_offset("T1", 0)) == (end, 10)
        files.fail_reserve = False
        assert put(store).queue_offset == 10


@pytest.mark.parametrize("written", [0, 1, 50])
def test_record_that_could_not_be_written_whole_leaves_no_trace(
    tmp_path: Path, written: int
) -> None:
    """A file system that breaks its promise of space; the next start sees no torn tail."""
    files = FaultyFiles()
    with opened(tmp_path, files=files) as store:
        put(store, b"one")
        files.write_bytes_left = written
        with pytest.raises(DiskFullError):
            put(store, b"two" * 100)
        files.write_bytes_left = None
        assert all_bodies(store) == [b"one"]
        put(store, b"three")
    with opened(tmp_path) as store:
        assert all_bodies(store) == [b"one", b"three"]


def test_short_writes_are_continued(tmp_path: Path) -> None:
    """os.pwrite may write less than it was given."""

    class OneByteAtATime(FaultyFiles):
        def pwrite(self, fd: int, data: bytes | bytearray, position: int) -> int:
            return super().pwrite(fd, data[:1], position)

    with opened(tmp_path, files=OneByteAtATime()) as store:
        put(store, b"hello")
        assert all_bodies(store) == [b"hello"]


def test_store_in_use_is_refused(tmp_path: Path) -> None:
    """The same process; the text names the directory and what to do."""
    with opened(tmp_path) as store:
        put(store)
        with pytest.raises(StoreLockedError, match="is in use by this process") as caught:
            MessageStore(tmp_path, small_config()).open()
        assert str(tmp_path) in str(caught.value)
        assert all_bodies(store) == [b"hello"]
    with opened(tmp_path) as store:
        assert all_bodies(store) == [b"hello"]


def test_store_can_be_opened_again_after_close(tmp_path: Path) -> None:
    """The same object, flusher and keeper included."""
    store = MessageStore(tmp_path, small_config(flush="sync"), ManualClock())
    for _ in range(2):
        store.open()
        waiter = Waiter()
        store.when_flushed(put(store).end_offset, waiter)
        assert waiter.outcome() is None
        store.close()
    with opened(tmp_path) as store:
        assert len(all_bodies(store)) == 2


class BadPlaces(QuickFiles):
    """Fails the write of a number."""

    def __init__(self, number: int) -> None:
        self.left = number

    def pwrite(self, fd: int, data: bytes | bytearray, position: int) -> int:
        self.left -= 1
        if self.left == 0:
            raise OSError(errno.EIO, "input/output error")
        return super().pwrite(fd, data, position)


def test_checkpoint_that_could_not_be_written_is_still_this_stores_own(tmp_path: Path) -> None:
    """Half of it looked as if another program had written there: no hole of a power failure was
    set aside any more, and the store refused to start."""
    path = tmp_path / "checkpoint"
    old, new = Checkpoint(1, 2, 3, 4), Checkpoint(5, 6, 7, 8)
    for number in itertools.count(1):
        write_checkpoint(path, old, QuickFiles())
        files = BadPlaces(number)
        with contextlib.suppress(OSError):
            write_checkpoint(path, new, files)
        found = read_checkpoint(path, Files())
        assert found.own
        if files.left > 0:
            break
        assert dataclasses.replace(found, own=False) == old
    assert dataclasses.replace(found, own=False) == new


def test_what_a_later_version_keeps_in_the_checkpoint_stays(tmp_path: Path) -> None:
    """5.x has more fields behind those of 4.9 (W 5.5)."""
    with opened(tmp_path) as store:
        put(store)
    path = tmp_path / "checkpoint"
    data = bytearray(path.read_bytes())
    data[32:48] = b"another's number"
    path.write_bytes(data)
    with opened(tmp_path) as store:
        put(store)
    assert path.read_bytes()[32:48] == b"another's number"
    assert read_checkpoint(path, Files()).own
