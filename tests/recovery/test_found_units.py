"""Units lost with a process are found in one walk over the log, and are what they were."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocketstream.server.store import MessageStore, RecoveryReport, queues
from rocketstream.server.store.recovery import Recovery
from rocketstream.testing.clock import ManualClock
from tests.kits.stores import (
    QuickFiles,
    all_bodies,
    make_record,
    opened,
    put,
    put_record,
    small_config,
    tree,
)

PREPARED = 4
COUNT = 95


def killed(root: Path) -> dict[str, bytes]:
    """Leave a store as a kill does; return its queues' files."""
    store = MessageStore(root, small_config(), ManualClock(), QuickFiles())
    store.open()
    put(store, b"first")
    store.flush()
    for number in range(COUNT):
        put(store, b"%d" % number, queue_id=number % 3, tags=f"t{number % 2}")
        put_record(store, "T1", 0, make_record(b"half", sys_flag=PREPARED), 0)
    store.abandon()
    return tree(root / "consumequeue")


def opened_again(root: Path) -> RecoveryReport:
    store = MessageStore(root, small_config(), ManualClock(), QuickFiles())
    report = store.open()
    store.abandon()
    return report


def no_second_walk(self: Recovery, start: int) -> None:
    raise AssertionError(f"the log is walked again from {start}")


def test_units_are_as_they_were_after_one_walk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over many files of each queue (10 units a file here), whether they are there or not."""
    before = killed(tmp_path)
    assert len(before) > 9
    monkeypatch.setattr(Recovery, "_dispatch_from", no_second_walk)
    report = opened_again(tmp_path)
    assert report.records_dispatched >= COUNT
    assert not report.rebuilt
    assert tree(tmp_path / "consumequeue") == before
    for path in sorted((tmp_path / "consumequeue" / "T1" / "1").iterdir())[1:]:
        path.unlink()
    assert opened_again(tmp_path).records_dispatched >= COUNT
    assert tree(tmp_path / "consumequeue") == before


def test_more_than_may_be_remembered_is_walked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = killed(tmp_path)
    walks: list[int] = []
    general = Recovery._dispatch_from

    def walked(self: Recovery, start: int) -> None:
        walks.append(start)
        general(self, start)

    monkeypatch.setattr(Recovery, "_dispatch_from", walked)
    monkeypatch.setattr(queues, "RECORDS_MAX", COUNT // 2)
    opened_again(tmp_path)
    assert len(walks) == 1
    assert tree(tmp_path / "consumequeue") == before


def test_a_topic_made_again_meanwhile_has_the_later_messages(tmp_path: Path) -> None:
    store = MessageStore(tmp_path, small_config(), ManualClock(), QuickFiles())
    store.open()
    put(store, b"other", topic="T2")
    store.flush()
    put(store, b"gone")
    store.delete_topic("T1")
    for text in (b"a", b"b"):
        put(store, text)
    store.abandon()
    with opened(tmp_path) as again:
        assert all_bodies(again) == [b"a", b"b"]
        assert all_bodies(again, "T2") == [b"other"]


def test_a_last_record_that_was_not_written_whole_gets_no_unit(tmp_path: Path) -> None:
    store = MessageStore(tmp_path, small_config(), ManualClock(), QuickFiles())
    store.open()
    put(store, b"flushed")
    store.flush()
    put(store, b"kept", tags="a")
    last = put(store, b"torn", tags="abc")
    store.abandon()
    log = tmp_path / "commitlog" / ("0" * 20)
    with log.open("r+b") as file:
        file.seek(last.end_offset - 2)
        file.write(bytes(2))
    with opened(tmp_path) as again:
        assert all_bodies(again) == [b"flushed", b"kept"]
        assert put(again, b"next").queue_offset == 2
        assert all_bodies(again)[2:] == [b"next"]
