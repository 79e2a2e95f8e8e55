"""A wall clock that leaps: retention goes by the time that passed, stamps by the clock."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rocketstream.errors import StoreError
from rocketstream.protocol.record import read_head
from rocketstream.server.store import Files, MessageStore
from rocketstream.server.store.retention_clock import RetentionClock
from rocketstream.testing.clock import ManualClock
from tests.kits.stores import FaultyFiles, QuickFiles, make_record, opened, put, put_records

HOUR_MS = 3_600_000
RESERVED_MS = 72 * HOUR_MS
START_MS = 1_700_000_000_000


def fill(store: MessageStore, clock: ManualClock) -> None:
    """Three log files, written now."""
    for _ in range(6):
        put(store, b"x" * 1500)
    store.flush()
    for segment in store._log.segments:
        os.utime(segment.path, (clock.now_ms() / 1000,) * 2)


def expired(store: MessageStore) -> int:
    return store.delete_expired(manual=True, disk_used_ratio=0.1)


@pytest.mark.parametrize("restarted", [False, True])
def test_clock_that_leaps_ahead_expires_nothing(tmp_path: Path, restarted: bool) -> None:
    """+73 h on the wall, none passed: not now, not after a restart; after 72 h of time, yes."""
    clock = ManualClock()
    with opened(tmp_path, clock=clock) as store:
        fill(store, clock)
        assert expired(store) == 0
        clock.jump(73 * HOUR_MS)
        if not restarted:
            assert expired(store) == 0
    with opened(tmp_path, clock=clock) as store:
        assert expired(store) == 0
        clock.advance(71 * HOUR_MS)
        assert expired(store) == 0
    with opened(tmp_path, clock=clock) as store:
        clock.advance(2 * HOUR_MS)
        assert expired(store) == 2


def test_clock_that_was_far_behind_and_is_right_now_expires_in_time(tmp_path: Path) -> None:
    """A machine without a battery: 1970, then today. What is held back is given up after 72 h."""
    clock = ManualClock(1_000_000)
    with opened(tmp_path, clock=clock) as store:
        fill(store, clock)
        expired(store)
        clock.jump(START_MS)
        assert expired(store) == 0
        clock.advance(73 * HOUR_MS)
        assert expired(store) == 2


def clock_at(tmp_path: Path, wall_ms: int = START_MS, files: Files | None = None) -> RetentionClock:
    clock = RetentionClock(tmp_path / "retentionClock.json", files or QuickFiles(), RESERVED_MS)
    clock.start(wall_ms, 0.0, wall_ms)
    return clock


def test_leap_that_is_taken_back_leaves_nothing_held_back(tmp_path: Path) -> None:
    """Forwards and back again: time is what it would have been."""
    clock = clock_at(tmp_path)
    assert clock.now_ms(START_MS + 10_000, 10_000) == START_MS + 10_000
    assert clock.now_ms(START_MS + 20_000 + RESERVED_MS, 20_000) == START_MS + 20_000
    assert clock.now_ms(START_MS + 30_000 + RESERVED_MS, 30_000) == START_MS + 30_000
    assert clock.now_ms(START_MS + 40_000, 40_000) == START_MS + 40_000
    assert clock.held_ms == 0


def test_clock_set_back_is_followed(tmp_path: Path) -> None:
    """Files live longer by it: never shorter than promised."""
    clock = clock_at(tmp_path)
    assert clock.now_ms(START_MS - HOUR_MS, 10_000) == START_MS - HOUR_MS
    assert clock.now_ms(START_MS - HOUR_MS + 10_000, 20_000) == START_MS - HOUR_MS + 10_000


def test_broken_file_begins_anew(tmp_path: Path) -> None:
    """No reason not to start."""
    (tmp_path / "retentionClock.json").write_text("{")
    assert clock_at(tmp_path).now_ms(START_MS, 0.0) == START_MS


def test_the_end_of_what_was_held_back_is_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It ends between two looks, seldom at one: the next start reads what was saved since."""
    clock = clock_at(tmp_path)
    leapt_ms = START_MS + HOUR_MS
    assert clock.now_ms(leapt_ms, 0.0) == START_MS
    later_ms = RESERVED_MS + 3
    assert clock.now_ms(leapt_ms + later_ms, later_ms) == leapt_ms + later_ms
    clock.save(later_ms)
    caplog.clear()
    clock_at(tmp_path, leapt_ms + later_ms)
    assert not caplog.records


def test_a_leap_is_not_forgotten_when_the_disk_fails_for_a_moment(tmp_path: Path) -> None:
    """What leapt before is still held back at the next start that can read of it."""
    files = FaultyFiles()
    clock = clock_at(tmp_path, files=files)
    leapt_ms = START_MS + RESERVED_MS
    assert clock.now_ms(leapt_ms, 0.0) == START_MS
    files.unreadable.add(tmp_path / "retentionClock.json")
    with pytest.raises(StoreError, match="cannot be read"):
        clock_at(tmp_path, leapt_ms, files)
    files.unreadable.clear()
    assert clock_at(tmp_path, leapt_ms, files).now_ms(leapt_ms, 0.0) == START_MS


def test_a_store_that_cannot_read_its_clock_lets_go_of_everything(tmp_path: Path) -> None:
    """The next start, when the disk works, is as any other."""
    with opened(tmp_path):
        pass
    files = FaultyFiles()
    files.unreadable.add(tmp_path / "config" / "retentionClock.json")
    with pytest.raises(StoreError, match="cannot be read"), opened(tmp_path, files=files):
        pass
    assert not (tmp_path / "abort").exists()
    with opened(tmp_path) as store:
        put(store)


def stamp(store: MessageStore) -> int:
    """Store one message; its stamp."""
    return put(store).store_timestamp


def test_stamps_follow_a_clock_that_is_set_right(tmp_path: Path) -> None:
    """Ahead by 73 h once, they stayed ahead for 73 h; a small step back is still not shown."""
    clock = ManualClock()
    with opened(tmp_path, clock=clock) as store:
        first = stamp(store)
        clock.jump(-10_000)
        assert stamp(store) == first
        clock.jump(10_000 + 73 * HOUR_MS)
        assert stamp(store) == first + 73 * HOUR_MS
        clock.jump(-73 * HOUR_MS)
        assert stamp(store) == first
        records = [make_record(), make_record()]
        clock.jump(-HOUR_MS)
        assert put_records(store, "T1", 0, records, [0, 0], [(), ()]).store_timestamp == (
            first - HOUR_MS
        )


def test_search_by_time_skips_nothing_that_was_stored_after_the_clock_was_right(
    tmp_path: Path,
) -> None:
    """Stamps of the future in between: it may begin too early, never too late."""
    clock = ManualClock()
    with opened(tmp_path, clock=clock) as store:
        for number in range(60):
            clock.advance(60_000)
            if number == 20:
                clock.jump(73 * HOUR_MS)
            if number == 27:
                clock.jump(-73 * HOUR_MS)
            put(store, b"%d" % number)
        for number in range(27, 60):
            record = store.get("T1", 0, number, 1).records[0]
            wanted = read_head(record).store_timestamp
            assert store.offset_by_timestamp("T1", 0, wanted) <= number


def test_index_finds_what_was_stored_while_the_clock_was_ahead(tmp_path: Path) -> None:
    """A file's time range reaches up to its newest stamp, not its last."""
    clock = ManualClock()
    with opened(tmp_path, clock=clock) as store:
        put(store, keys="a")
        clock.jump(73 * HOUR_MS)
        ahead = clock.now_ms()
        put(store, keys="b")
        clock.jump(-73 * HOUR_MS)
        put(store, keys="c")
        assert store.query_by_key("T1", "b", 9, ahead - 1000, ahead + 1000).records
        assert store.query_by_key("T1", "c", 9, 0, ahead).records
