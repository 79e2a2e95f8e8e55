"""Strays, maps in use, failing syncs, folding names: they neither stop nor mislead a store."""

from __future__ import annotations

import dataclasses
import errno
import os
import threading
from pathlib import Path

import pytest

from rocketstream.errors import FlushFailedError, StoreDamagedError, StoreError
from rocketstream.server.store import MessageStore, log_walk
from rocketstream.server.store import files as files_module
from rocketstream.server.store.files import Files
from rocketstream.testing.clock import ManualClock
from tests.kits.stores import (
    FaultyFiles,
    HandWorkers,
    QuickFiles,
    all_bodies,
    opened,
    put,
    small_config,
)

DAYS_4 = 4 * 24 * 3_600_000


def with_expired_files(store: MessageStore) -> None:
    """Fill some log files, all but the newest long expired."""
    for _ in range(6):
        put(store, b"x" * 1500, keys="k")
    store.flush()
    for segment in store._log.segments:
        os.utime(segment.path, (1_600_000_000, 1_600_000_000))


def test_retention_removes_a_file_somebody_reads(tmp_path: Path) -> None:
    """A view of its bytes is held elsewhere: the name goes now, the memory with the last reader."""
    with opened(tmp_path) as store:
        with_expired_files(store)
        first = store._log.segments[0]
        with memoryview(first.map) as view:
            assert store.delete_expired(manual=True, disk_used_ratio=0.1) == 2
            assert bytes(view[4:8]) == b"\xda\xa3\x20\xa7"
        assert not first.path.exists()
        assert len(all_bodies(store)) == 2


def test_indexing_goes_on_over_a_file_that_is_removed(tmp_path: Path) -> None:
    """The keeper walks the log while retention takes the file it stands in."""
    with opened(tmp_path) as store:
        with_expired_files(store)
        walk = log_walk.index_backlog(store._log, -1, again=False)
        assert next(walk)[0] == 0
        store.delete_expired(manual=True, disk_used_ratio=0.1)
        assert len(list(walk)) <= 5


def test_retention_leaves_what_is_not_flushed(tmp_path: Path) -> None:
    """The flusher must not find a file gone: that would look like a failed disk."""
    with opened(tmp_path) as store:
        with_expired_files(store)
        with_expired_files(store)
        store._keeper._last_marks = dataclasses.replace(
            store._keeper._last_marks, flushed_offset=store._log.segments[1].base
        )
        assert store.delete_expired(manual=True, disk_used_ratio=0.1) == 1
        store._keeper.keep()
        assert store.delete_expired(manual=True, disk_used_ratio=0.1) == 4


class FailingDirectories(FaultyFiles):
    """Directories that cannot be synced while told so."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None

    def sync_directory(self, path: Path) -> None:
        if self.error is not None and path.name == "commitlog":
            raise self.error
        super().sync_directory(path)


def keeper_step(store: MessageStore, workers: HandWorkers) -> float | None:
    return workers.steps["store-keeper"]()


@pytest.mark.parametrize("error", [OSError(errno.EIO, "input/output error"), ValueError("a bug")])
def test_whatever_ends_the_keeper_is_final_and_reported(
    tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it no checkpoint is written and nothing indexed: the store must say so."""
    files, workers = FailingDirectories(), HandWorkers()
    store = MessageStore(tmp_path, small_config(), ManualClock(), files, workers)  # type: ignore[arg-type]
    store.open()
    put(store)
    files.error = error
    assert keeper_step(store, workers) is None
    files.error = None
    with pytest.raises(FlushFailedError, match=str(error.args[-1])):
        put(store)
    assert not store.is_writable
    assert "condition=FLUSH_FAILED" in caplog.text
    store.abandon()


def test_directory_that_cannot_be_synced_at_a_roll_is_final(tmp_path: Path) -> None:
    """The new file's name may be lost: what is acknowledged in it may be too."""
    files = FailingDirectories()
    store = MessageStore(tmp_path, small_config(), ManualClock(), files)
    store.open()
    put(store, b"x" * 3000)
    files.error = OSError(errno.EIO, "input/output error")
    with pytest.raises(FlushFailedError, match="input/output error"):
        put(store, b"x" * 3000)
    files.error = None
    with pytest.raises(FlushFailedError):
        put(store, b"x")
    store.abandon()


def test_flusher_reports_what_is_no_error_of_the_system_too(tmp_path: Path) -> None:
    """Who waits is told, whatever went wrong."""
    with opened(tmp_path, small_config(flush="sync"), workers=HandWorkers()) as store:
        told: list[Exception | None] = []
        store.when_flushed(put(store).end_offset, told.append)
        store._flusher._sync = lambda *_: (_ for _ in ()).throw(ValueError("a bug"))
        with pytest.raises(FlushFailedError, match="a bug"):
            store._flusher.flush()
        assert isinstance(told[0], FlushFailedError)
        store.abandon()


@pytest.mark.parametrize(
    "stray",
    [
        "consumequeue/.DS_Store",
        "consumequeue/T1/.DS_Store",
        "consumequeue/T1/0/.DS_Store",
        "consumequeue/T1/0/notes.txt",
        "consumequeue/T1/7",
        "consumequeue/no topic/0/x",
        "commitlog/.DS_Store",
    ],
)
def test_stray_file_is_left_alone_and_told(
    tmp_path: Path, stray: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Finder, backup programs and people leave files; they are no reason not to start."""
    with opened(tmp_path) as store:
        put(store)
    path = tmp_path / stray
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("?")
    with opened(tmp_path) as store:
        assert all_bodies(store) == [b"hello"]
        assert put(store).queue_offset == 1
        if stray.endswith("7"):
            with pytest.raises(StoreError, match="cannot make"):
                put(store, queue_id=7)
    assert path.read_text() == "?"
    assert "does not belong there" in caplog.text


def test_stray_log_file_is_still_refused(tmp_path: Path) -> None:
    """A log file under a wrong name may be what somebody needs to restore."""
    with opened(tmp_path) as store:
        put(store)
    (tmp_path / "commitlog" / "00000000000000000000.old").write_text("?")
    with pytest.raises(StoreDamagedError, match="does not belong there"), opened(tmp_path):
        pass


class FoldingFiles(QuickFiles):
    """A disk that does not tell upper from lower case."""

    def exists(self, path: Path) -> bool:
        if not path.parent.is_dir():
            return False
        return path.name.lower() in [found.name.lower() for found in path.parent.iterdir()]


def test_topics_that_differ_only_in_case_are_refused_where_names_fold(tmp_path: Path) -> None:
    """Both would write into one directory; the second is refused before anything is stored."""
    with opened(tmp_path, files=FoldingFiles()) as store:
        put(store, topic="Orders")
        with pytest.raises(StoreError, match=r"'orders' differs from 'Orders' only in case"):
            put(store, topic="orders")
        put(store, topic="Orders", queue_id=1)
        store.delete_topic("Orders")
        put(store, topic="orders")
    with opened(tmp_path / "other") as store:
        put(store, topic="Orders")
        put(store, topic="orders")


@pytest.mark.parametrize("topic", ["con", "Nul", "COM1", "a|b"])
def test_topics_that_are_no_directory_of_windows_are_refused_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    """Before anything is stored: a queue whose files cannot be made would stop all the others."""
    monkeypatch.setattr(files_module, "_IS_WINDOWS", True)
    with opened(tmp_path) as store:
        with pytest.raises(StoreError, match="cannot be stored on Windows"):
            put(store, topic=topic)
        assert put(store, topic="console").physical_offset == 0
    monkeypatch.undo()
    with opened(tmp_path / "other") as store:
        put(store, topic=topic)


def test_macos_syncs_through_the_cache_of_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There fsync leaves data in the drive's memory; F_FULLFSYNC does not, where it is known."""
    asked: list[tuple[int, int]] = []
    synced: list[int] = []
    refuse = False
    this_thread = threading.get_ident()

    def is_ours() -> bool:
        """Return whether this test asks: servers that other tests keep running flush too."""
        return threading.get_ident() == this_thread

    def fsync(handle: int) -> None:
        if is_ours():
            synced.append(handle)

    def fcntl(handle: int, request: int) -> int:
        if is_ours():
            asked.append((handle, request))
        if refuse:
            raise OSError(errno.ENOTSUP, "not supported")
        return 0

    monkeypatch.setattr(files_module, "_FULL_SYNC", 51, raising=False)
    monkeypatch.setattr("fcntl.fcntl", fcntl)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "fdatasync", fsync, raising=False)
    files = Files()
    with files.opened(tmp_path / "a", create=True) as handle:
        files.sync(handle)
        assert (asked, synced) == ([(handle, 51)], [])
        refuse = True
        files.sync(handle)
        assert synced == [handle]
        files.sync_directory(tmp_path)
        assert len(asked) == 3
        assert len(synced) == 2
