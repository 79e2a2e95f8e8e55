"""The keeper's rounds: queues synced a few at a time, a checkpoint behind them all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketstream.server.store import MessageStore, keeper
from rocketstream.server.store.checkpoint import read_checkpoint
from rocketstream.server.store.consume_queue import ConsumeQueue
from rocketstream.server.store.files import FileMap, Files
from rocketstream.testing.clock import ManualClock
from tests.kits.stores import HandWorkers, QuickFiles, opened, put, small_config

QUEUES = 10


class CountingFiles(QuickFiles):
    """Keeps the count of the queue files that were synced, and of the directories."""

    def __init__(self) -> None:
        self.queues = 0
        self.directories: list[Path] = []

    def sync_map(self, handle: int, mapped: FileMap | None) -> None:
        self.queues += 1

    def sync_directory(self, path: Path) -> None:
        assert path.is_dir(), f"{path} is gone"
        self.directories.append(path)


class Bench:
    """A store with units of ten queues that are not on the disk, and its keeper by hand."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock, self.files, self.workers = ManualClock(), CountingFiles(), HandWorkers()
        config = small_config(
            keep_interval_ms=200, poll_interval_ms=100, flush="sync", index_enabled=False
        )
        options = {"files": self.files, "workers": self.workers, "clock": self.clock}
        self.opening = opened(root, config, **options)

    def fill(self, store: MessageStore) -> None:
        for queue_id in range(QUEUES):
            put(store, queue_id=queue_id)
        store._flusher.flush()
        self.clock.advance(1_000)

    def step(self) -> int:
        """Let the keeper do one step; return how many queues it synced."""
        before = self.files.queues
        assert self.workers.steps["store-keeper"]() == 0.1
        return self.files.queues - before

    def vouched_ms(self) -> int:
        """Up to when the checkpoint vouches for units of queues."""
        return read_checkpoint(self.root / "checkpoint", Files()).logics_msg_timestamp


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def store(bench: Bench) -> Iterator[MessageStore]:
    with bench.opening as store:
        bench.fill(store)
        yield store


def unsynced(store: MessageStore) -> list[ConsumeQueue]:
    """Queues with units that are not on the disk."""
    return [queue for queue in store._queues.values() if queue.synced_offset < queue.max_offset]


def test_many_queues_are_synced_a_few_at_a_time(bench: Bench, store: MessageStore) -> None:
    """A thousand in a row, each second, took a quarter of the broker's time and its p99."""
    assert [bench.step() for _ in range(6)] == [0, 4, 4, 2, 0, 0]
    assert {path.name for path in bench.files.directories} >= {str(n) for n in range(QUEUES)}


def test_a_checkpoint_vouches_for_no_more_than_its_round_began_with(
    bench: Bench, store: MessageStore
) -> None:
    """A unit made amid the round may be one of a queue that was synced before."""
    filled_ms = store._last_timestamp
    bench.step()
    assert bench.step() == 4
    put(store, queue_id=0)
    store._flusher.flush()
    later_ms = store._last_timestamp
    assert later_ms > filled_ms
    assert (bench.step(), bench.vouched_ms()) == (4, 0)
    assert (bench.step(), bench.vouched_ms()) == (2, filled_ms)
    assert bench.step() == 1, "the next round has what came meanwhile"
    assert bench.vouched_ms() == later_ms


def test_a_flush_amid_a_round_puts_all_on_the_disk(bench: Bench, store: MessageStore) -> None:
    bench.step()
    assert bench.step() == 4
    put(store, queue_id=0)
    store.flush()
    assert not unsynced(store)
    assert bench.vouched_ms() == store._last_timestamp
    assert [bench.step() for _ in range(4)] == [0] * 4, "the round it took the place of is over"


def test_a_topic_removed_amid_a_round_leaves_nothing_to_sync(
    bench: Bench, store: MessageStore
) -> None:
    """The directories of its new files are gone: that is no failed sync."""
    bench.step()
    assert bench.step() == 4
    store.delete_topic("T1")
    assert [bench.step() for _ in range(3)] == [0] * 3
    assert store.is_writable
    put(store)
    store._flusher.flush()
    assert sum(bench.step() for _ in range(3)) == 1


def test_a_round_takes_no_more_steps_for_very_many_queues(
    bench: Bench, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint that comes late leaves much of the log to be walked after a crash."""
    monkeypatch.setattr(keeper, "_SYNC_STEPS_MAX", 2)
    assert [bench.step() for _ in range(4)] == [0, 5, 5, 0]


def test_who_stops_amid_a_round_loses_nothing(bench: Bench, tmp_path: Path) -> None:
    with bench.opening as store:
        bench.fill(store)
        bench.step()
        assert bench.step() == 4
        assert len(unsynced(store)) == QUEUES - 4
        queues = list(store._queues.values())
        store.close()
        assert [queue.synced_offset for queue in queues] == [1] * QUEUES
        store.open()
        put(store, queue_id=3)
        assert sum(bench.step() for _ in range(4)) == 1
