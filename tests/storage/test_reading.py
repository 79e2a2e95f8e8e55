"""Reading a queue: statuses, limits, filters and search by time (C-360, C-367 to C-373)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketstream.errors import StoreDamagedError
from rocketstream.protocol.record import HEAD_V4, sealable
from rocketstream.protocol.tag_hash import tags_code
from rocketstream.server.store import GetMessageStatus, MessageStore, log_walk, units
from rocketstream.server.store.commit_log import CommitLog
from rocketstream.server.store.consume_queue import FILLER_SIZE, UNIT
from rocketstream.server.store.dispatch import DispatchEntry
from rocketstream.server.store.log_walk import WalkEnd
from rocketstream.testing.clock import ManualClock
from tests.kits.stores import (
    all_bodies,
    bodies,
    make_record,
    opened,
    put,
    put_record,
    put_record_in_body,
    put_records,
    small_config,
)

BIG = {"commit_log_file_bytes": 1 << 20, "consume_queue_file_bytes": 20 * 1000}
Status = GetMessageStatus


def answer(store: MessageStore, offset: int, count: int = 32) -> tuple[GetMessageStatus, int]:
    result = store.get("T1", 0, offset, count)
    return result.status, result.next_begin_offset


def test_statuses_at_the_bounds_of_a_queue(tmp_path: Path) -> None:
    """Covers C-367 with the examples of C-360 (offsets 0-39)."""
    with opened(tmp_path, small_config(**BIG)) as store:
        assert answer(store, 0) == (Status.NO_MESSAGE_IN_QUEUE, 0)
        assert answer(store, 5) == (Status.NO_MESSAGE_IN_QUEUE, 0)
        for number in range(40):
            put(store, b"%d" % number)
        assert answer(store, 40) == (Status.OFFSET_OVERFLOW_ONE, 40)
        assert answer(store, 41) == (Status.OFFSET_OVERFLOW_BADLY, 40)
        assert answer(store, -1) == (Status.OFFSET_TOO_SMALL, 0)
        assert answer(store, 39) == (Status.FOUND, 40)
        result = store.get("T1", 0, 3, 5)
        assert (result.min_offset, result.max_offset, result.count) == (0, 40, 5)
        assert bodies(result) == [b"3", b"4", b"5", b"6", b"7"]


def test_a_record_inside_a_body_is_none_of_the_store(tmp_path: Path) -> None:
    """No unit points at it, whichever queue it names; the messages beside it are found."""
    with opened(tmp_path, small_config(**BIG)) as store:
        first = put(store, b"first", topic="T2")
        for topic, queue_offset in (("T2", 0), ("T2", 1), ("T3", 0), ("T1", 0), ("T1", 4)):
            inside = put_record_in_body(store, topic, queue_offset)
            assert store.read(inside) is None
            carrier = store.read(inside - HEAD_V4.size)
            assert carrier is not None
            assert b"forged" in carrier
        found = store.read(first.physical_offset)
        assert found is not None
        assert b"first" in found
        assert store.read(first.physical_offset + 1) is None
        store.delete_topic("T2")
        assert store.read(first.physical_offset) is None, "nor is one of a deleted topic"


def test_tag_match_skips_and_counts_what_was_scanned(tmp_path: Path) -> None:
    """Covers C-360: every second message, 5 from 0 -> next 9; none -> next 40."""
    with opened(tmp_path, small_config(**BIG)) as store:
        for number in range(40):
            put(store, b"%d" % number, tags="TagA" if number % 2 == 0 else "TagB")
        wanted = tags_code("TagA")
        result = store.get("T1", 0, 0, 5, lambda code: code == wanted)
        assert bodies(result) == [b"0", b"2", b"4", b"6", b"8"]
        assert result.next_begin_offset == 9
        result = store.get("T1", 0, 0, 5, lambda code: False)
        assert (result.status, result.next_begin_offset) == (Status.NO_MATCHED_MESSAGE, 40)


@pytest.mark.parametrize(("count", "scanned"), [(1, 800), (32, 800), (900, 900)])
def test_scan_is_bounded(tmp_path: Path, count: int, scanned: int) -> None:
    """Covers C-368, C-369: 800 units, or as many as were asked for."""
    with opened(tmp_path, small_config(**BIG)) as store:
        for _ in range(1000):
            put(store, b"x")
        result = store.get("T1", 0, 0, count, lambda code: False)
        assert (result.status, result.next_begin_offset) == (Status.NO_MATCHED_MESSAGE, scanned)


def test_scan_stops_at_the_end_of_an_index_file(tmp_path: Path) -> None:
    """Covers C-368: one index file, here of 10 units."""
    with opened(tmp_path) as store:
        for number in range(15):
            put(store, b"%d" % number)
        assert answer(store, 4) == (Status.FOUND, 10)
        assert answer(store, 10) == (Status.FOUND, 15)


def test_batch_in_memory_is_as_large_as_asked_for(tmp_path: Path) -> None:
    """More than upstream's 32 when a client asks for more (differs from C-370 on purpose)."""
    with opened(tmp_path, small_config(**BIG)) as store:
        for _ in range(40):
            put(store, b"x")
        assert store.get("T1", 0, 0, 100).count == 40


def test_batch_in_memory_is_full_at_32_messages_or_256_kib(tmp_path: Path) -> None:
    """Covers C-370; at the bound, one byte below and above, and the first always accepted."""
    like_upstream = {**BIG, "commit_log_file_bytes": 4 << 20, "transfer_count_in_memory_max": 32}
    with opened(tmp_path, small_config(**like_upstream)) as store:
        for _ in range(40):
            put(store, b"x")
        assert store.get("T1", 0, 0, 100).count == 32
        assert store.get("T1", 0, 0, 31).count == 31
        empty = len(make_record(b"", queue_id=1))
        half = 131_072 - empty
        put(store, b"a" * half, queue_id=1)
        put(store, b"b" * half, queue_id=1)
        put(store, b"c" * (half + 1), queue_id=1)
        put(store, b"d" * 300_000, queue_id=1)
        assert store.get("T1", 1, 0, 32).total_bytes == 262_144
        assert store.get("T1", 1, 1, 32).count == 1
        assert store.get("T1", 1, 3, 32).count == 1


def test_batch_on_disk_is_full_at_8_messages_or_64_kib(tmp_path: Path) -> None:
    """Covers C-370 for entries further behind the end than the memory share, and C-361."""
    with opened(tmp_path, small_config(**{**BIG, "memory_bytes": 4000})) as store:
        for _ in range(100):
            put(store, b"x")
        result = store.get("T1", 0, 0, 32)
        assert (result.count, result.on_disk) == (8, True)
        result = store.get("T1", 0, 90, 32)
        assert (result.count, result.on_disk) == (10, False)
        put(store, b"a" * 40_000, queue_id=1)
        put(store, b"b" * 40_000, queue_id=1)
        put(store, b"c" * 5_000, queue_id=1)
        assert store.get("T1", 1, 0, 32).count == 1


def test_first_entry_counts_as_in_memory_until_the_log_has_moved_on(tmp_path: Path) -> None:
    """Covers C-333, C-334: entry 0 missing -> not on disk."""
    with opened(tmp_path, small_config(**{**BIG, "memory_bytes": 1000})) as store:
        assert store.first_entry_in_memory("T1", 0)
        put(store)
        assert store.first_entry_in_memory("T1", 0)
        put(store, b"x" * 1000)
        assert not store.first_entry_in_memory("T1", 0)


def test_neighbours_in_the_log_come_as_one_range(tmp_path: Path) -> None:
    """A read of one queue's run is one copy; other queues' records between split it."""
    with opened(tmp_path, small_config(**BIG)) as store:
        for number in range(6):
            put(store, b"%d" % number, queue_id=1 if number == 3 else 0)
        result = store.get("T1", 0, 0, 32)
        assert [len(part) for part in result.records] == [3 * 94, 2 * 94]
        assert bodies(result) == [b"0", b"1", b"2", b"4", b"5"]
        assert (result.count, result.total_bytes) == (5, 5 * 94)


def test_a_filter_that_passes_everything_reads_what_none_does(tmp_path: Path) -> None:
    """Covers C-368, C-370: whatever the units are, good, odd or gone."""
    with opened(tmp_path, small_config(**BIG)) as store:
        for number in range(40):
            put(store, b"%d" % number)
        queue = store._queues["T1", 0]
        UNIT.pack_into(queue._tail_map, 7 * 20, 0, FILLER_SIZE, 0)
        for count in (1, 7, 32):
            assert store.get("T1", 0, 5, count) == store.get("T1", 0, 5, count, lambda code: True)


def test_what_was_read_does_not_change_by_later_puts(tmp_path: Path) -> None:
    """Records are copies."""
    with opened(tmp_path) as store:
        put(store, b"one")
        result = store.get("T1", 0, 0, 32)
        for _ in range(100):
            put(store, b"two")
        assert bodies(result) == [b"one"]


def test_records_that_left_the_log_are_skipped_by_the_file(tmp_path: Path) -> None:
    """Covers C-368: MESSAGE_WAS_REMOVING, all units into the same file are stepped over."""
    config = small_config(consume_queue_file_bytes=20 * 1000)
    with opened(tmp_path, config) as store:
        for number in range(12):
            put(store, b"%04d" % number * 150)
        store._log.drop_first()
        result = store.get("T1", 0, 0, 2)
        assert (result.status, bodies(result)[0][:4]) == (Status.FOUND, b"0005")
        result = store.get("T1", 0, 0, 2, lambda code: True)
        assert (result.status, result.next_begin_offset) == (Status.FOUND, 7)
        queue = store._queues["T1", 0]
        queue.correct_min(store.physical_min_offset)
        assert answer(store, 0) == (Status.OFFSET_TOO_SMALL, 5)


def test_only_removed_records_give_message_was_removing(tmp_path: Path) -> None:
    """Covers C-368: nothing found and something gone."""
    with opened(tmp_path) as store:
        put(store)
        put(store)
        queue = store._queues["T1", 0]
        for at in (0, 20):
            UNIT.pack_into(queue._tail_map, at, 0, FILLER_SIZE, 0)
        assert answer(store, 0) == (Status.MESSAGE_WAS_REMOVING, 2)


@pytest.mark.parametrize("is_old", [False, True], ids=["written since", "found at the start"])
@pytest.mark.parametrize("where", [0, 7, 19])
@pytest.mark.parametrize(
    "unit", [(1 << 40, 94, 0), (0, 0, 0), (100, 94, 0), (94, 94, 0), (-1, 94, 0), (658, 95, 0)]
)
def test_a_damaged_unit_is_mended_when_it_is_read(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    unit: tuple[int, int, int],
    where: int,
    is_old: bool,
) -> None:
    """Not taken for a removed message, nor its neighbours with it: the log has the record."""
    config = small_config(**BIG, verify_bytes_max=0)
    with opened(tmp_path, config) as store:
        for number in range(20):
            put(store, b"%05d" % number, tags="A")
        if not is_old:
            assert_mended(store, caplog, unit, where)
            return
    with opened(tmp_path, config) as store:
        put(store, b"last")  # maps the file
        assert_mended(store, caplog, unit, where)


def assert_mended(
    store: MessageStore, caplog: pytest.LogCaptureFixture, unit: tuple[int, int, int], where: int
) -> None:
    queue = store._queues["T1", 0]
    before = queue.unit(where)
    UNIT.pack_into(queue._tail_map, where * 20, *unit)
    assert bodies(store.get("T1", 0, 0, 20)) == [b"%05d" % number for number in range(20)]
    assert queue.unit(where) == before
    assert [f"offset={where}:" in each.message for each in caplog.records] == [True]
    assert "condition=UNIT_MENDED" in caplog.text


@pytest.mark.parametrize("count", [1, 25])
@pytest.mark.parametrize("where", [0, 7, 19])
@pytest.mark.parametrize("unit", [(0, 0, 0), (94, 94, 0), (-1, 94, 0)])
def test_a_damaged_unit_is_not_taken_for_that_of_a_message_that_left(
    tmp_path: Path, unit: tuple[int, int, int], where: int, count: int
) -> None:
    """Of a log whose first files are gone: it passed its message, or all before it, in silence."""
    config = small_config(consume_queue_file_bytes=20 * 1000, verify_bytes_max=0)
    with opened(tmp_path, config) as store:
        for number in range(60):
            put(store, b"%04d" % number * 145, tags="A")
        store._drop_log_files(2)
        low = store.min_offset("T1", 0)
        assert low == 12
    path = tmp_path / "consumequeue" / "T1" / "0" / ("0" * 20)
    units = bytearray(path.read_bytes())
    for number in range(low + where, low + where + count):
        UNIT.pack_into(units, number * 20, *unit)
    path.write_bytes(units)
    expected = [b"%04d" % number * 145 for number in range(low, 60)]
    with opened(tmp_path, config) as store:
        tagged = [store.get("T1", 0, at, 1, tags_code("A").__eq__) for at in range(low, 60)]
        assert [body for result in tagged for body in bodies(result)] == expected
    path.write_bytes(units)
    with opened(tmp_path, config) as store:
        assert all_bodies(store) == expected
    path.write_bytes(units)
    with opened(tmp_path, config) as store:
        store._drop_log_files(1)
        assert all_bodies(store) == expected[6:]


@pytest.mark.parametrize("unit", [(0, 0, 0), (1 << 40, 94, 0), (-1, 94, 0), (94, 3, 0)])
def test_a_damaged_unit_is_mended_for_who_wants_one_tag_alone(
    tmp_path: Path, unit: tuple[int, int, int]
) -> None:
    """A zeroed page of an index names no tag either; a message of another tag stays left out."""
    with opened(tmp_path, small_config(**BIG, verify_bytes_max=0)) as store:
        for number in range(20):
            put(store, b"%05d" % number, tags="AB"[number % 2])
        queue = store._queues["T1", 0]
        for where in (6, 7):
            UNIT.pack_into(queue._tail_map, where * 20, *unit)
        found = store.get("T1", 0, 0, 32, lambda code: code == tags_code("A"))
        assert bodies(found) == [b"%05d" % number for number in range(0, 20, 2)]


def test_a_unit_of_no_record_is_named_once_and_only_it_is_passed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A whole log without the message: there is nothing to wait for."""
    with opened(tmp_path, small_config(**BIG)) as store:
        for number in range(5):
            put(store, b"%d" % number)
        queue = store._queues["T1", 0]
        queue.append(1 << 40, 94, 0)
        for _ in range(4):
            queue.append(*queue.unit(4))
        put(store, b"new")
        for _ in range(2):
            assert bodies(store.get("T1", 0, 0, 32)) == [b"0", b"1", b"2", b"3", b"4", b"new"]
        told = [each.message for each in caplog.records]
        assert len(told) == 5
        assert told[0].startswith("condition=UNIT_POINTS_NOWHERE topic=T1 queue=0 offset=5:")


def test_the_log_is_searched_once_for_neighbours_of_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spoilt page of units must not have the log read once a unit, and again at each pull."""
    searches: list[int] = []

    def counted(log: CommitLog, end: WalkEnd) -> Iterator[DispatchEntry]:
        searches.append(end.offset)
        return log_walk.walk(log, end)

    monkeypatch.setattr(units, "walk", counted)
    with opened(tmp_path, small_config(**BIG)) as store:
        put(store, b"old")
        queue = store._queues["T1", 0]
        for _ in range(200):
            queue.append(1 << 40, 94, 0)
        put(store, b"new")
        for _ in range(2):
            assert bodies(store.get("T1", 0, 0, 300)) == [b"old", b"new"]
    assert len(searches) == 1


@pytest.mark.parametrize("byte", [0, 4, 12, 20, 28, 88, 92, 98, 110])
def test_a_damaged_record_is_not_served_and_a_reset_passes_it(tmp_path: Path, byte: int) -> None:
    """Any byte of an old record: what stands before it is served, then an operator must choose."""
    config = small_config(**BIG, verify_bytes_max=0)
    with opened(tmp_path, config) as store:
        record = make_record(b"sealed", extra=sealable(b"KEYS\x01k").decode())
        places = [put(store, b"%d" % number).physical_offset for number in range(3)]
        places.append(put_record(store, "T1", 0, record, 0).physical_offset)
        put(store, b"4")
    path = tmp_path / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[places[3] + byte] ^= 1
    path.write_bytes(data)
    with opened(tmp_path, config) as store:
        result = store.get("T1", 0, 0, 32)
        assert (bodies(result), result.next_begin_offset) == ([b"0", b"1", b"2"], 3)
        with pytest.raises(StoreDamagedError, match="group reset GROUP T1 --queue 0 --to-offset 4"):
            store.get("T1", 0, 3, 32)
        assert bodies(store.get("T1", 0, 4, 32)) == [b"4"]


@pytest.mark.parametrize(
    ("timestamp", "offset"),
    [
        (0, 0),
        (1000, 0),
        (1001, 0),
        (1050, 0),
        (1051, 1),
        (1100, 1),
        (1350, 3),
        (1400, 4),
        (9999, 4),
    ],
)
def test_offset_by_timestamp_is_the_nearest_a_tie_the_earlier(
    tmp_path: Path, timestamp: int, offset: int
) -> None:
    """Covers C-372: stored at 1000, 1100, ..., 1400."""
    clock = ManualClock(1000)
    with opened(tmp_path, small_config(consume_queue_file_bytes=40), clock=clock) as store:
        assert store.offset_by_timestamp("T1", 0, timestamp) == 0
        for _ in range(5):
            put(store)
            clock.advance(100)
        assert store.offset_by_timestamp("T1", 0, timestamp) == offset
        assert store.store_timestamp("T1", 0, offset) == 1000 + 100 * offset


def test_bounds_of_unknown_queues_are_zero(tmp_path: Path) -> None:
    """Covers C-373."""
    with opened(tmp_path) as store:
        assert (store.max_offset("T1", 0), store.min_offset("T1", 0)) == (0, 0)
        assert store.store_timestamp("T1", 0, 0) == -1
        assert store.offset_by_timestamp("T1", 0, 5) == 0
        assert store.consume_queue_entries("T1", 0, 0, 5) == []


def test_store_timestamps_do_not_go_back_with_the_clock(tmp_path: Path) -> None:
    """W 5.2: monotone, over a restart too."""
    clock = ManualClock(5000)
    with opened(tmp_path, clock=clock) as store:
        assert put(store).store_timestamp == 5000
        clock.jump(-2000)
        assert put(store).store_timestamp == 5000
    with opened(tmp_path, clock=clock) as store:
        assert put(store).store_timestamp == 5000
        clock.jump(3000)
        assert put(store).store_timestamp == 6000


def test_batch_gets_consecutive_offsets_in_one_file(tmp_path: Path) -> None:
    """W 4.5: all records of a batch go into one file; offsets of each are returned."""
    arrived: list[tuple[str, int, int, int]] = []
    with opened(tmp_path) as store:
        store.on_arrival = lambda *seen: arrived.append(seen)
        put(store, b"x" * 3500)
        records = [make_record(b"%d" % number * 150) for number in range(3)]
        result = put_records(store, "T1", 0, records, [7, 8, 9], [(), ("k",), ()])
        assert result.physical_offset == 4096
        assert result.queue_offset == 1
        assert len(result.physical_offsets) == 3
        assert result.end_offset == store.physical_max_offset == 4096 + result.size
        assert [code for _, _, code in store.consume_queue_entries("T1", 0, 1, 9)] == [7, 8, 9]
        assert arrived == [("T1", 0, 1, 0), ("T1", 0, 2, 7), ("T1", 0, 3, 8), ("T1", 0, 4, 9)]
        assert all_bodies(store)[1:] == [b"0" * 150, b"1" * 150, b"2" * 150]


def test_prepared_and_rollback_records_enter_no_queue(tmp_path: Path) -> None:
    """W 5.3: transaction types 4 and 12 are skipped, 0 and 8 are not; also after a rebuild."""
    with opened(tmp_path) as store:
        for sys_flag in (0, 4, 8, 12):
            put_record(store, "T1", 0, make_record(b"%d" % sys_flag, sys_flag=sys_flag), 0)
        assert all_bodies(store) == [b"0", b"8"]
        store.abandon()
    with opened(tmp_path) as store:
        assert all_bodies(store) == [b"0", b"8"]


def test_messages_are_found_by_key_and_time(tmp_path: Path) -> None:
    """W 5.4: the newest of several index files, in the order stored; time range; unknown keys."""
    clock = ManualClock(100_000)
    with opened(tmp_path, small_config(**BIG), clock=clock) as store:
        for number in range(100):
            put(store, b"%d" % number, keys=f"k{number % 50} same")
            clock.advance(1000)
        found = store.query_by_key("T1", "k7", 32, 0, 1 << 60)
        assert len(list((tmp_path / "index").iterdir())) == 6
        assert [record.count(b"same") for record in found.records] == [1, 1]
        assert b"\x00\x0257" in found.records[1]
        assert found.index_last_update_timestamp == 199_000
        assert len(store.query_by_key("T1", "same", 32, 0, 1 << 60).records) == 32
        assert len(store.query_by_key("T1", "same", 99, 0, 1 << 60).records) == 64
        assert len(store.query_by_key("T1", "same", 99, 110_000, 119_999).records) == 10
        assert store.query_by_key("T1", "other", 32, 0, 1 << 60).records == []
        assert store.query_by_key("T2", "same", 32, 0, 1 << 60).records == []


def test_a_query_is_answered_in_steps(tmp_path: Path) -> None:
    """However long a chain of equal keys is, and however much waits to be indexed."""
    clock = ManualClock(100_000)
    sizes = small_config(index_entries=20_000, index_slots=100)
    with opened(tmp_path, sizes, clock=clock) as store:
        for number in range(5_000):
            put(store, b"%d" % number, keys="same")
            clock.advance(1)
        for _ in store.indexing():
            pass
        # The first of all, at the end of a chain of 5,000 whose times are all too late.
        assert sum(1 for _ in store.querying_by_key("T1", "same", 64, 0, 100_000)) >= 1
        assert len(store.query_by_key("T1", "same", 64, 0, 100_000).records) == 64


def test_deleted_topic_begins_anew(tmp_path: Path) -> None:
    """Its queues are gone, its records stay; created again it counts from 0, after a crash too."""
    with opened(tmp_path) as store:
        for _ in range(3):
            put(store, b"old")
        put(store, topic="T2")
        store.delete_topic("T1")
        assert store.topics() == ["T2"]
        assert not (tmp_path / "consumequeue" / "T1").exists()
        assert put(store, b"new").queue_offset == 0
        store.flush()
    with opened(tmp_path) as store:
        assert all_bodies(store) == [b"new"]
        put(store, b"newer")
        store.abandon()
    with opened(tmp_path) as store:
        assert all_bodies(store) == [b"new", b"newer"]
        assert store.queue_ids("T1") == [0]


def test_messages_of_a_deleted_topic_stay_away_where_the_new_one_has_fewer_queues(
    tmp_path: Path,
) -> None:
    """A start took the queues nobody wrote to again for lost, and built them from the log."""
    with opened(tmp_path) as store:
        for queue_id in range(4):
            put(store, b"old", queue_id=queue_id)
        store.delete_topic("T1")
        put(store, b"new", queue_id=2)
    with opened(tmp_path) as store:
        assert store.queue_ids("T1") == [2]
        assert all_bodies(store, queue_id=2) == [b"new"]
