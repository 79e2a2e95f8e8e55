"""Old files: the plan, and what the store removes and corrects (W 5.7, C-371, C-439)."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from rocketstream.errors import DiskFullError
from rocketstream.server.store import GetMessageStatus
from rocketstream.server.store.commit_log import CommitLog
from rocketstream.server.store.mapped_file import MappedFile
from rocketstream.server.store.retention import LogFile, RetentionConfig, plan_retention
from rocketstream.testing.clock import ManualClock
from tests.kits.stores import HandWorkers, all_bodies, opened, put, small_config

HOUR = 3_600_000
NOW = 100 * HOUR
# Upstream's marks; ours are off by default.
CONFIG = RetentionConfig(disk_clean_forcibly_ratio=0.85, disk_warning_ratio=0.90)


def plan(ages_h: list[float], **given: object) -> int:
    files = [LogFile(number, int(NOW - age * HOUR)) for number, age in enumerate(ages_h)]
    arguments = {"now_ms": NOW, "hour": 12, "disk_used_ratio": 0.5} | given
    return plan_retention(files, CONFIG, **arguments).remove  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "removed"),
    [
        ({}, 0),
        ({"hour": 4}, 2),
        ({"manual": True}, 2),
        ({"disk_used_ratio": 0.75}, 0),
        ({"disk_used_ratio": 0.76}, 2),
        ({"disk_used_ratio": 0.86}, 4),
    ],
)
def test_expired_files_go_when_it_is_time(given: dict[str, object], removed: int) -> None:
    """Covers C-439: 72 h; at hour 4, over 75 %, or by hand; over 85 % regardless of age."""
    assert plan([80, 73, 71, 1], **given) == removed


def test_a_file_is_kept_to_the_last_millisecond() -> None:
    """Exactly 72 h is not past 72 h."""
    assert plan([72], hour=4) == 0
    assert plan([72 + 1 / HOUR], hour=4) == 1


def test_at_most_ten_a_round_and_oldest_first() -> None:
    """W 5.7."""
    assert plan([80] * 15, hour=4) == 10
    assert plan([1, 80, 80], hour=4) == 0
    assert plan([], hour=4) == 0


def test_writes_are_refused_above_the_warning_level() -> None:
    """Covers C-439: 90 %."""
    for ratio, refused in ((0.90, False), (0.91, True)):
        decided = plan_retention([], CONFIG, now_ms=NOW, hour=1, disk_used_ratio=ratio)
        assert decided.refuse_writes is refused


def test_a_full_disk_alone_removes_and_refuses_nothing_by_default() -> None:
    """Messages are kept their time even where others fill the disk (differs from C-439)."""
    decided = plan_retention(
        [LogFile(0, NOW - HOUR)], RetentionConfig(), now_ms=NOW, hour=12, disk_used_ratio=0.99
    )
    assert decided == (0, False)


def test_removed_files_move_the_minimum_of_queues(tmp_path: Path) -> None:
    """Covers C-371: log, queue and index files go, reads below get OFFSET_TOO_SMALL."""
    clock = ManualClock()
    with opened(tmp_path, clock=clock) as store:
        for number in range(60):
            put(store, b"%03d" % number * 100, keys=f"k{number} w")
        store.query_by_key("T1", "w", 1, 0, 1 << 60)
        store.flush()
        files = sorted((tmp_path / "commitlog").iterdir())
        for path in files:
            os.utime(path, (clock.now_ms() / 1000 - 73 * 3600,) * 2)
        assert store.delete_expired(manual=True, disk_used_ratio=0.5) == 5
        assert store.delete_expired(manual=True, disk_used_ratio=0.5) == 0
        assert store.physical_min_offset == 5 * 4096
        first = store.min_offset("T1", 0)
        assert first > 40
        result = store.get("T1", 0, 0, 32)
        assert (result.status, result.next_begin_offset) == (
            GetMessageStatus.OFFSET_TOO_SMALL,
            first,
        )
        expected = [b"%03d" % number * 100 for number in range(first, 60)]
        assert all_bodies(store) == expected
        kept = sorted((tmp_path / "consumequeue" / "T1" / "0").iterdir())
        assert int(kept[0].name) == first // 10 * 200
        assert len(list((tmp_path / "index").iterdir())) < 4
        assert put(store).queue_offset == 60
        store.abandon()
    with opened(tmp_path, clock=clock) as store:
        assert store.min_offset("T1", 0) == first
        assert all_bodies(store) == [*expected, b"hello"]


def test_keys_are_found_though_the_file_that_is_being_indexed_is_removed(tmp_path: Path) -> None:
    """The walk over the log ended there, and nothing behind it was ever indexed."""
    clock = ManualClock()
    with opened(tmp_path, clock=clock, workers=HandWorkers()) as store:
        for number in range(60):
            put(store, b"%03d" % number * 100, keys=f"k{number}")
        store.flush()
        store.abandon()
    shutil.rmtree(tmp_path / "index")
    with opened(tmp_path, clock=clock, workers=HandWorkers()) as store:
        assert store._index is not None
        store._index.step(5)
        for path in sorted((tmp_path / "commitlog").iterdir())[:3]:
            os.utime(path, (clock.now_ms() / 1000 - 73 * 3600,) * 2)
        assert store.delete_expired(manual=True, disk_used_ratio=0.5) == 3
        for number in range(store.min_offset("T1", 0), 60):
            assert len(store.query_by_key("T1", f"k{number}", 9, 0, 1 << 60).records) == 1


def test_a_file_is_the_one_asked_for_while_another_is_removed(tmp_path: Path) -> None:
    """Two threads look and remove: the second look was at a list that had moved on."""
    with opened(tmp_path) as store:
        for number in range(60):
            put(store, b"%03d" % number * 100)
        store.flush()
        log = store._log
        log._segments = RemovedBetween(log._segments, log)
        found = log.segment_at(2 * 4096 + 1)
        assert found is not None
        assert found.base == 2 * 4096
        assert log.min_offset == 4096


class RemovedBetween(list[MappedFile]):
    """Files of a log, of which the first is removed after the first look."""

    def __init__(self, files: list[MappedFile], log: CommitLog) -> None:
        super().__init__(files)
        self._log: CommitLog | None = log

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        log, self._log = self._log, None
        if log is not None:
            log.drop_first()
        return found


def test_queue_file_whose_last_unit_is_damaged_stays(tmp_path: Path) -> None:
    """A zeroed unit is no sign that all before it have left."""
    with opened(tmp_path) as store:
        for number in range(40):
            put(store, b"%04d" % number * 150)
        store._queues["T1", 0].rewrite(19, 0, 0, 0)
        store._drop_log_files(2)
        assert all_bodies(store) == [b"%04d" % number * 150 for number in range(10, 40)]


def test_too_full_a_disk_refuses_messages_until_there_is_room(tmp_path: Path) -> None:
    """Covers C-439."""
    with opened(tmp_path, dataclasses.replace(small_config(), retention=CONFIG)) as store:
        put(store)
        store.delete_expired(disk_used_ratio=0.95)
        assert not store.is_writable
        with pytest.raises(DiskFullError, match="fuller than 90%"):
            put(store)
        assert all_bodies(store) == [b"hello"]
        store.delete_expired(disk_used_ratio=0.5)
        assert put(store).queue_offset == 1
