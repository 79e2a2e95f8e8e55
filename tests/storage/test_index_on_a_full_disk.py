"""The key index on a full disk: it stops, says so, and goes on by itself when there is room."""

from __future__ import annotations

import threading
from collections import deque
from pathlib import Path

import pytest

from rocketstream.server.store import MessageStore
from rocketstream.server.store.key_index import KeyIndex, Pending
from rocketstream.testing.clock import ManualClock
from tests.kits.stores import (
    FaultyFiles,
    HandWorkers,
    make_record,
    opened,
    put,
    put_records,
    small_config,
)


class FullForIndex(FaultyFiles):
    """No room for index files while told so; everything else has some."""

    def __init__(self) -> None:
        super().__init__()
        self.index_handles: set[int] = set()

    def open(self, path: Path, **options: bool) -> int:
        handle = super().open(path, **options)
        is_index = path.parent.name == "index" or path.name == ".allocating-index"
        (self.index_handles.add if is_index else self.index_handles.discard)(handle)
        return handle

    def reserve(self, fd: int, start: int, size: int) -> None:
        if self.fail_reserve and fd not in self.index_handles:
            self.fail_reserve = False
            try:
                super().reserve(fd, start, size)
            finally:
                self.fail_reserve = True
            return
        super().reserve(fd, start, size)


def found(store: MessageStore, key: str) -> int:
    return len(store.query_by_key("T1", key, 64, 0, 1 << 60).records)


def complete(store: MessageStore) -> bool:
    return store.query_by_key("T1", "none", 64, 0, 1 << 60).complete


@pytest.mark.parametrize("by_keeper", [True, False])
def test_index_goes_on_when_there_is_room_again(
    tmp_path: Path, by_keeper: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing that was stored meanwhile is missing, nothing is there twice; no restart."""
    files, workers = FullForIndex(), HandWorkers()
    config = small_config(keep_interval_ms=100, poll_interval_ms=100)
    with opened(tmp_path, config, files=files, workers=workers) as store:
        files.fail_reserve = True
        for number in range(10):
            put(store, keys=f"k{number} all")
        assert (found(store, "k3"), complete(store)) == (0, False)
        for number in range(10, 20):
            put(store, keys=f"k{number} all")
        workers.steps["store-keeper"]()
        assert caplog.text.count("condition=INDEX_STOPPED") == 1
        files.fail_reserve = False
        if by_keeper:
            workers.steps["store-keeper"]()
        put(store, keys="k20 all")
        assert [found(store, f"k{number}") for number in range(21)] == [1] * 21
        assert (found(store, "all"), complete(store)) == (21, True)


def test_no_key_of_a_record_is_lost_between_two_files(tmp_path: Path) -> None:
    """Its first key was the last of one file, and for the next file there was no room."""
    files = FullForIndex()
    with opened(tmp_path, small_config(index_entries=4), files=files) as store:
        put(store, keys="a b")
        assert found(store, "a") == 1
        files.fail_reserve = True
        put(store, keys="c d e")
        assert not complete(store)
    files.fail_reserve = False
    with opened(tmp_path, small_config(index_entries=4), files=files) as store:
        assert [found(store, key) for key in "abcde"] == [1] * 5


def test_no_key_of_a_record_is_lost_with_the_file_that_had_its_last_ones(tmp_path: Path) -> None:
    """A start after a crash drops the newest file; the record's first key is in the one before."""
    with opened(tmp_path, small_config(index_entries=4)) as store:
        put(store, keys="a b")
        put(store, keys="c d")
        put(store, keys="e")
        assert [found(store, key) for key in "abcde"] == [1] * 5
    _, second = sorted((tmp_path / "index").iterdir())
    second.unlink()
    with opened(tmp_path, small_config(index_entries=4)) as store:
        assert [found(store, key) for key in "abcde"] == [1] * 5


def test_no_key_is_lost_where_such_a_start_finds_no_room_either(tmp_path: Path) -> None:
    """Indexing began anew behind that record, though its last keys were not there yet."""
    files = FullForIndex()
    with opened(tmp_path, small_config(index_entries=4)) as store:
        put(store, keys="a b")
        put(store, keys="c d")
    _, second = sorted((tmp_path / "index").iterdir())
    second.unlink()
    files.fail_reserve = True
    with opened(tmp_path, small_config(index_entries=4), files=files) as store:
        assert not complete(store)
        files.fail_reserve = False
        assert [found(store, key) for key in "abcd"] == [1] * 4


def test_index_file_that_is_short_of_a_record_says_so(tmp_path: Path) -> None:
    """In the process too: the record is indexed anew, its keys found once."""
    files = FullForIndex()
    clock = ManualClock()
    with opened(tmp_path, small_config(index_entries=4), files=files, clock=clock) as store:
        put(store, keys="a b")
        assert found(store, "a") == 1
        files.fail_reserve = True
        put(store, keys="c d e")
        assert not complete(store)
        files.fail_reserve = False
        assert [found(store, key) for key in "abcde"] == [1] * 5


class ResumedBetween(deque[Pending]):
    """Records that wait to be indexed; another thread resumes as soon as one does."""

    def __init__(self, index: KeyIndex) -> None:
        super().__init__()
        self._index = index

    def append(self, record: Pending) -> None:
        super().append(record)
        thread = threading.Thread(target=self._index.resume)
        thread.start()
        thread.join()


@pytest.mark.parametrize("count", [1, 3])
def test_a_message_stored_while_indexing_is_resumed_is_found(tmp_path: Path, count: int) -> None:
    """It waited, and was let go of for the log, before the log said that it was there."""
    with opened(tmp_path, workers=HandWorkers()) as store:
        put(store, keys="before")
        assert found(store, "before") == 1
        index = store._index
        assert index is not None
        index.failed = "no space left"
        index.pending = ResumedBetween(index)
        record = make_record(keys="meanwhile")
        put_records(store, "T1", 0, [record] * count, keys=[["meanwhile"]] * count)
        index.pending = deque(index.pending)
        put(store, keys="after")
        counts = [found(store, key) for key in ("before", "meanwhile", "after")]
        assert (counts, complete(store)) == ([1, count, 1], True)
