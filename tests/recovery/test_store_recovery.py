"""Crashes, torn tails, damage and lost files: what a store does with them when it is opened.

Law: a crash is ``abandon()``: nothing flushed, no checkpoint, ``abort`` left behind.
"""

from __future__ import annotations

import re
import shutil
import struct
from pathlib import Path

import pytest

from rocketstream.errors import StoreDamagedError
from rocketstream.protocol.record import HEAD_V4, sealable
from rocketstream.server.store import MessageStore, RecoveryReport, StoreConfig
from rocketstream.server.store.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from rocketstream.server.store.files import Files
from rocketstream.testing.clock import ManualClock
from tests.kits.stores import (
    QuickFiles,
    all_bodies,
    make_record,
    opened,
    put,
    put_record,
    put_record_in_body,
    small_config,
    tree,
)

FIRST = "0" * 20


def crash_with(
    root: Path, messages: list[bytes], config: StoreConfig | None = None, *, flush: bool = False
) -> list[int]:
    """Store messages and crash; returns their physical offsets and the end."""
    store = MessageStore(root, config or small_config(), ManualClock(), QuickFiles())
    store.open()
    results = [put(store, body) for body in messages]
    if flush:
        store.flush()
    store.abandon()
    return [result.physical_offset for result in results] + [results[-1].end_offset]


def reopen(
    root: Path, config: StoreConfig | None = None, *, repair: bool = False
) -> tuple[MessageStore, RecoveryReport]:
    store = MessageStore(root, config or small_config(), ManualClock(), QuickFiles())
    return store, store.open(repair=repair)


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def log_file(root: Path, base: int = 0) -> Path:
    return root / "commitlog" / f"{base:020d}"


# --- torn tails -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three_messages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    root = tmp_path_factory.mktemp("crashed") / "store"
    return root, crash_with(root, [b"one", b"two", b"three"])


LAST_SIZE = len(make_record(b"three"))


@pytest.mark.parametrize("kept", range(LAST_SIZE))
def test_torn_tail_at_every_byte_recovers_to_the_record_before(
    tmp_path: Path, three_messages: tuple[Path, list[int]], kept: int
) -> None:
    """Only the first bytes of the last record are on the disk; the rest is zeros."""
    source, offsets = three_messages
    root = tmp_path / "store"
    shutil.copytree(source, root)
    last, end = offsets[2], offsets[3]
    assert end - last == LAST_SIZE
    overwrite(log_file(root), last + kept, bytes(LAST_SIZE - kept))
    store, report = reopen(root)
    try:
        # The last bytes of the record are zeros already: cutting them off changes nothing.
        survives = not any((source / "commitlog" / FIRST).read_bytes()[last + kept : end])
        expected = [b"one", b"two"] + [b"three"] * survives
        assert all_bodies(store) == expected
        assert report.log_end == (end if survives else last)
        assert not report.quarantined
        assert put(store, b"four").queue_offset == len(expected)
        assert all_bodies(store) == [*expected, b"four"]
        store.close()
    finally:
        store.abandon()
    with opened(root) as store:
        assert all_bodies(store) == [*expected, b"four"]


@pytest.mark.parametrize("byte", [0, 4, 8, 12, 20, 28, 39, 84, 88, 92, LAST_SIZE - 1])
def test_flipped_byte_in_the_last_record_is_a_torn_tail(tmp_path: Path, byte: int) -> None:
    """Sizes, magic, CRC, offsets, body: whatever makes the last record not whole."""
    _, _, last, _ = crash_with(tmp_path, [b"one", b"two", b"three"])
    data = log_file(tmp_path).read_bytes()
    overwrite(log_file(tmp_path), last + byte, bytes([data[last + byte] ^ 0xFF]))
    store, report = reopen(tmp_path)
    bodies = all_bodies(store)
    store.abandon()
    assert bodies == [b"one", b"two"]
    assert report.torn_bytes > 0


def test_torn_tail_below_the_flushed_mark_is_refused(tmp_path: Path) -> None:
    """No crash leaves that: nothing that had been flushed is ever zeroed."""
    _, _, last, end = crash_with(tmp_path, [b"one", b"two", b"three"], flush=True)
    assert read_checkpoint(tmp_path / "checkpoint", Files()).flushed_offset == end
    overwrite(log_file(tmp_path), last + 30, b"\xff" * 5)
    before = tree(tmp_path)
    with pytest.raises(StoreDamagedError, match=f"ends at log offset {last} .* reached {end}"):
        reopen(tmp_path)
    assert tree(tmp_path) == before | {"lock": b"lock"}
    store, report = reopen(tmp_path, repair=True)
    assert all_bodies(store) == [b"one", b"two"]
    assert report.quarantined[0].read_bytes() == before[f"commitlog/{FIRST}"][last:end].rstrip(
        b"\0"
    )
    store.close()


def test_torn_blank_marker_is_written_again(tmp_path: Path) -> None:
    """A crash between two files: the marker is lost, nothing follows."""
    offsets = crash_with(tmp_path, [b"x" * 3000])
    overwrite(log_file(tmp_path), offsets[1], b"\0\0\x03\xff")
    store, _ = reopen(tmp_path)
    assert put(store, b"y" * 2000).physical_offset == 4096
    assert len(all_bodies(store)) == 2
    store.close()
    with opened(tmp_path) as store:
        assert len(all_bodies(store)) == 2


def test_bytes_behind_a_torn_tail_are_zeroed(tmp_path: Path) -> None:
    """So that no remains are ever taken for records behind later, shorter ones."""
    offsets = crash_with(tmp_path, [b"one", b"x" * 1000])
    overwrite(log_file(tmp_path), offsets[1] + 95, b"y")
    store, report = reopen(tmp_path)
    store.close()
    assert report.torn_bytes == offsets[2] - offsets[1] - 2  # it ends in two zeros
    assert not any(log_file(tmp_path).read_bytes()[offsets[1] :])


def test_older_remains_behind_the_end_are_not_damage(tmp_path: Path) -> None:
    """Upstream leaves stale records behind a truncation; they are older than the last record."""
    crash_with(tmp_path, [b"one", b"old" * 30, b"old" * 30])
    data = bytearray(log_file(tmp_path).read_bytes())
    store = MessageStore(tmp_path, small_config(), ManualClock(), QuickFiles())
    shutil.rmtree(tmp_path)
    store.open()
    put(store, b"one")
    store._last_timestamp += 5000
    put(store, b"new")
    end = store.physical_max_offset
    store.close()
    written_by_upstream(tmp_path)
    overwrite(log_file(tmp_path), end, bytes(data[end:]))
    store, report = reopen(tmp_path)
    assert all_bodies(store) == [b"one", b"new"]
    assert report.torn_bytes > 0
    store.close()


@pytest.mark.parametrize("kept", range(1, 40))
def test_tear_in_the_properties_is_seen(tmp_path: Path, kept: int) -> None:
    """Topic and properties are covered by no CRC; zeros at their end give the tear away."""
    offsets = crash_with(tmp_path, [b"one"])
    store, _ = reopen(tmp_path)
    text = "KEYS\x01k1\x02TAGS\x01TagA\x02UNIQ_KEY\x0100000001"
    put_record(store, "T1", 0, make_record(b"two", extra=text), 0)
    end = store.physical_max_offset
    store.abandon()
    overwrite(log_file(tmp_path), end - kept, bytes(kept))
    store, report = reopen(tmp_path)
    assert (all_bodies(store), report.log_end) == ([b"one"], offsets[1])
    store.close()


@pytest.mark.parametrize("value", ["v\0", "\0" * 64, "a" + "\0" * 3000 + "b", "\0" * 9000])
def test_last_record_with_nuls_in_its_properties_is_whole(tmp_path: Path, value: str) -> None:
    """What a producer may send is no sign of a tear; the process was killed, nothing was torn."""
    config = small_config(commit_log_file_bytes=16_384)
    crash_with(tmp_path, [b"one"], config)
    store, _ = reopen(tmp_path, config)
    put_record(
        store, "T1", 0, make_record(b"two", extra=sealable(f"key\x01{value}".encode()).decode()), 0
    )
    store.abandon()
    store, report = reopen(tmp_path, config)
    assert all_bodies(store) == [b"one", b"two"]
    assert report.torn_bytes == 0
    store.close()


@pytest.mark.parametrize("value", ["\0" * 3000, "a" * 3000])
def test_a_sector_lost_in_the_properties_is_seen(tmp_path: Path, value: str) -> None:
    """Of any record that was not flushed: it is no message any more, what follows is set aside."""
    config = small_config(commit_log_file_bytes=16_384)
    offsets = crash_with(tmp_path, [b"one"], config)
    store, _ = reopen(tmp_path, config)
    put_record(store, "T1", 0, make_record(b"two", extra=f"key\x01{value}z"), 0)
    put(store, b"three")
    store.abandon()
    end = store_end = offsets[1] + len(make_record(b"two", extra=f"key\x01{value}z"))
    overwrite(log_file(tmp_path), store_end - store_end % 512 - 512, bytes(512))
    if "\0" in value:  # the lost sector was zeros: what says so, stood in the one that is lost
        overwrite(log_file(tmp_path), end - end % 512, bytes(512))
    store, report = reopen(tmp_path, config)
    assert all_bodies(store) == [b"one"]
    assert report.log_end == offsets[1]
    store.close()


def test_queue_offset_that_cannot_be_is_damage(tmp_path: Path) -> None:
    """Nothing in a record guards it: it must never make a queue forget its units."""
    offsets = crash_with(tmp_path, [b"m%d" % number for number in range(9)])
    overwrite(log_file(tmp_path), offsets[8] + 20, struct.pack(">q", 3))
    with pytest.raises(StoreDamagedError, match="says it is number 3 of queue T1/0, which has 8"):
        reopen(tmp_path)
    store, _ = reopen(tmp_path, repair=True)
    assert all_bodies(store) == [b"m%d" % number for number in range(8)]
    assert put(store).queue_offset == 8
    store.close()


# --- damage in the middle -----------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("byte", [0, 4, 8, 28, 88, 91])
def test_damage_in_the_middle_is_refused_and_nothing_changes(
    tmp_path: Path, byte: int, clean: bool
) -> None:
    """Whole records follow the bad one: opening says where and what to do, and touches nothing."""
    offsets = crash_with(tmp_path, [b"m%d" % number for number in range(5)], flush=True)
    if clean:
        reopen(tmp_path)[0].close()
    overwrite(log_file(tmp_path), offsets[2] + byte, b"\xee")
    before = tree(tmp_path)
    store = MessageStore(tmp_path, small_config(), ManualClock(), QuickFiles())
    for _ in range(2):
        with pytest.raises(StoreDamagedError, match="Nothing was changed") as caught:
            store.open()
        error = caught.value
        assert error.parameters["offset"] == offsets[2]
        assert error.parameters["follower"] == offsets[3]
        assert str(log_file(tmp_path)) in str(error)
        assert "repair" in str(error)
    assert tree(tmp_path) == before


def test_zeros_before_whole_records_are_damage(tmp_path: Path) -> None:
    """The end of the log is not there."""
    offsets = crash_with(tmp_path, [b"m%d" % number for number in range(5)], flush=True)
    overwrite(log_file(tmp_path), offsets[1], bytes(offsets[3] - offsets[1]))
    with pytest.raises(StoreDamagedError, match="zeros"):
        reopen(tmp_path)


def test_damage_before_a_later_file_is_refused(tmp_path: Path) -> None:
    """The last record of a file is bad, the next file has whole ones."""
    offsets = crash_with(tmp_path, [b"x" * 1000] * 5, flush=True)
    assert offsets[3] == 4096
    overwrite(log_file(tmp_path), offsets[2] + 100, b"y")
    with pytest.raises(StoreDamagedError, match="follow from offset 4096"):
        reopen(tmp_path)


@pytest.mark.parametrize("flushed", [True, False])
def test_damage_says_whether_it_had_been_flushed(tmp_path: Path, flushed: bool) -> None:
    """A power failure explains only what lies behind the flushed mark of whoever wrote last."""
    offsets = crash_with(tmp_path, [b"m%d" % number for number in range(5)], flush=flushed)
    overwrite(log_file(tmp_path), offsets[2] + 91, b"\xee")
    if not flushed:
        written_by_upstream(tmp_path)
    text = "had been flushed, so a disk" if flushed else "a power failure can explain"
    with pytest.raises(StoreDamagedError, match=text):
        reopen(tmp_path)


def written_by_upstream(root: Path) -> None:
    """Leave the checkpoint as a broker of upstream does that used the store since."""
    overwrite(root / "checkpoint", 0, struct.pack(">q", 1_700_000_000_123))


@pytest.mark.parametrize("size", [1, 2])
def test_hole_in_what_was_not_flushed_is_set_aside(
    tmp_path: Path, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Pages reach the disk in any order: zeros, then whole records. Nobody has to repair that."""
    messages = [b"m%d" % number for number in range(4)]
    offsets = crash_with(tmp_path, messages, flush=True)
    store, _ = reopen(tmp_path)
    ends = [put(store, b"x%d" % number).end_offset for number in range(6)]
    store.abandon()
    overwrite(log_file(tmp_path), ends[0], bytes(ends[size] - ends[0]))
    before = log_file(tmp_path).read_bytes()
    store, report = reopen(tmp_path)
    assert all_bodies(store) == [*messages, b"x0"]
    assert (report.log_end, put(store, b"more").queue_offset) == (ends[0], 5)
    assert [path.name for path in report.quarantined] == [f"{FIRST}.{ends[0]}"]
    assert report.quarantined[0].read_bytes() == before[ends[0] :].rstrip(b"\0")
    assert "condition=UNFLUSHED_HOLE" in caplog.text
    assert str(report.quarantined[0]) in caplog.text
    store.close()
    with opened(tmp_path) as store:
        assert all_bodies(store) == [*messages, b"x0", b"more"]
    assert offsets[-1] < ends[0]


def test_hole_behind_records_of_the_future_is_seen(tmp_path: Path) -> None:
    """After a clock was set back what follows is older than what stands before: no stale bytes."""
    clock = ManualClock()
    store = MessageStore(tmp_path, small_config(), clock, QuickFiles())
    store.open()
    put(store, b"one")
    clock.jump(-3_600_000)
    ends = [put(store, body).end_offset for body in (b"two", b"three", b"four")]
    store._last_timestamp = 0
    store.abandon()
    overwrite(log_file(tmp_path), ends[0], bytes(ends[1] - ends[0]))
    store, report = reopen(tmp_path)
    assert all_bodies(store) == [b"one", b"two"]
    assert len(report.quarantined) == 1
    store.close()


def test_repair_sets_the_damage_aside_and_keeps_what_follows(tmp_path: Path) -> None:
    """One record is lost, its bytes are in ``quarantine``; every other message keeps its offset."""
    offsets = crash_with(tmp_path, [b"x%d" % number * 500 for number in range(8)], flush=True)
    overwrite(log_file(tmp_path), offsets[2] + 100, b"!")
    before = tree(tmp_path / "commitlog")
    store, report = reopen(tmp_path, repair=True)
    kept = [b"x%d" % number * 500 for number in (0, 1, 3, 4, 5, 6, 7)]
    assert all_bodies(store) == kept
    assert [store.get("T1", 0, offset, 1).count for offset in range(8)] == [1] * 8
    assert put(store, b"more").queue_offset == 8
    assert offsets[3] == 4096  # the damaged one was the last of its file
    assert [path.name for path in report.quarantined] == [f"{FIRST}.{offsets[2]}"]
    assert report.quarantined[0].read_bytes() == before[FIRST][offsets[2] :].rstrip(b"\0")
    store.close()
    with opened(tmp_path) as store:
        assert all_bodies(store) == [*kept, b"more"]
    shutil.rmtree(tmp_path / "consumequeue")
    with opened(tmp_path) as store:
        assert all_bodies(store) == [*kept, b"more"]


@pytest.mark.parametrize("lost", [[3], [2, 3, 4], [1, 5], [0], [3, 8]])
@pytest.mark.parametrize("how", ["body", "zeros", "head"])
def test_repair_bridges_any_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lost: list[int], how: str
) -> None:
    """One place or several, zeros or garbage, in two queues: what is whole can be read."""
    offsets = crash_with(tmp_path, [b"m%d" % number for number in range(1)], flush=True)
    store, _ = reopen(tmp_path)
    for number in range(1, 10):
        put(store, b"m%d" % number * 20, queue_id=number % 2)
        offsets.append(store.physical_max_offset)
    store.flush()
    store.abandon()
    for number in lost:
        size = offsets[number + 1] - offsets[number]
        at, data = {
            "body": (offsets[number] + 89, b"?"),
            "zeros": (offsets[number], bytes(size)),
            "head": (offsets[number], b"\xff" * 40),
        }[how]
        overwrite(log_file(tmp_path), at, data)
    with pytest.raises(StoreDamagedError):
        reopen(tmp_path)
    store, _ = reopen(tmp_path, repair=True)
    passed = " ".join(line.partition("passed: ")[2] for line in caplog.messages)
    named = re.findall(r"T1/(\d) (\d+)(?:-(\d+))?", passed)
    assert {
        2 * at + int(queue_id)
        for queue_id, first, last in named
        for at in range(int(first), int(last or first) + 1)
    } == set(lost)
    texts = [b"m0", *(b"m%d" % number * 20 for number in range(1, 10))]
    for queue_id in (0, 1):
        ours = [number for number in range(queue_id, 10, 2) if number not in lost]
        assert all_bodies(store, queue_id=queue_id) == [texts[number] for number in ours]
        assert store.max_offset("T1", queue_id) == (max(ours) // 2 + 1 if ours else 0)
    assert store.query_by_key("T1", "none", 1, 0, 1 << 60).complete
    store.close()
    with opened(tmp_path) as store:
        assert sum(len(all_bodies(store, queue_id=number)) for number in (0, 1)) == 10 - len(lost)


@pytest.mark.parametrize("inner", [("T2", 0), ("T2", 1), ("T1", 2), ("T9", 0)])
def test_repair_makes_no_message_of_what_a_body_holds(
    tmp_path: Path, inner: tuple[str, int]
) -> None:
    """A record in the body of what is damaged is skipped; the next real one is gone on with."""
    store = MessageStore(tmp_path, small_config(), ManualClock(), QuickFiles())
    store.open()
    put(store, b"theirs", topic="T2")
    put(store, b"before")
    inside = put_record_in_body(store, *inner)
    put(store, b"after")
    store.flush()
    store.abandon()
    overwrite(log_file(tmp_path), inside - HEAD_V4.size, b"\xff" * 4)

    store, report = reopen(tmp_path, repair=True)
    assert all_bodies(store) == [b"before", b"after"]
    assert all_bodies(store, "T2") == [b"theirs"]
    assert all_bodies(store, "T9") == []
    assert store.read(inside) is None
    assert b"forged" in report.quarantined[0].read_bytes()
    store.close()


def test_repair_of_a_place_too_small_to_fill_cuts_there(tmp_path: Path) -> None:
    """No record fits: as a last resort all of it is set aside."""
    offsets = crash_with(tmp_path, [b"m%d" % number for number in range(5)], flush=True)
    path = log_file(tmp_path)
    data = path.read_bytes()
    moved = bytearray(data[offsets[3] : offsets[4]])
    struct.pack_into(">q", moved, 28, offsets[2] + 50)
    overwrite(path, offsets[2], b"\xff" * 50 + bytes(moved) + bytes(2000))
    store, report = reopen(tmp_path, repair=True)
    assert all_bodies(store) == [b"m0", b"m1"]
    assert report.quarantined[0].read_bytes()[50:].startswith(bytes(moved)[:90])
    store.close()


# --- consume queues -------------------------------------------------------------------------------


def test_crash_dispatches_again(tmp_path: Path) -> None:
    """W 5.6: every record from the checkpoint on gets its unit again, and only once."""
    crash_with(tmp_path, [b"m%d" % number for number in range(25)])
    before = tree(tmp_path / "consumequeue")
    store, report = reopen(tmp_path)
    assert (report.clean_exit, report.records_checked, report.records_dispatched) == (False, 25, 25)
    assert len(all_bodies(store)) == 25
    store.close()
    assert tree(tmp_path / "consumequeue") == before


def test_crash_long_after_a_checkpoint_dispatches_the_end_only(tmp_path: Path) -> None:
    """W 5.6: what is 3 s older than the checkpoint's timestamps is not walked again."""
    clock = ManualClock()
    store = MessageStore(tmp_path, small_config(), clock, QuickFiles())
    store.open()
    for number in range(30):
        put(store, b"m%d" % number, queue_id=number % 2)
        clock.advance(1000)
    store.flush()
    store.abandon()
    store, report = reopen(tmp_path)
    assert report.records_checked == report.records_dispatched == 4
    assert all_bodies(store)[-1] == b"m28"
    assert put(store).queue_offset == 15
    store.close()


def test_crash_after_the_clock_was_set_back_dispatches_again(tmp_path: Path) -> None:
    """What is older by its stamp than the checkpoint is not on the disk for that."""
    clock = ManualClock()
    store = MessageStore(tmp_path, small_config(), clock, QuickFiles())
    store.open()
    put(store, b"ahead")
    store.flush()
    clock.jump(-3_600_000)
    for number in range(5):
        put(store, b"m%d" % number)
    store.abandon()
    overwrite(tmp_path / "consumequeue" / "T1" / "0" / FIRST, 20, bytes(100))
    store, report = reopen(tmp_path)
    assert len(all_bodies(store)) == 6
    assert not report.rebuilt
    store.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("lost", ["all", "queue", "second file", "last units", "first units"])
def test_lost_queue_units_are_rebuilt(tmp_path: Path, lost: str, clean: bool) -> None:
    """Files or units of a consume queue are gone; the log has it all."""
    store = MessageStore(tmp_path, small_config(), ManualClock(), QuickFiles())
    store.open()
    for number in range(30):
        put(store, b"m%d" % number, queue_id=number % 2, tags="TagA")
    if clean:
        store.close()
    store.abandon()
    before = tree(tmp_path / "consumequeue")
    queue = tmp_path / "consumequeue" / "T1" / "1"
    if lost == "all":
        shutil.rmtree(tmp_path / "consumequeue")
    elif lost == "queue":
        shutil.rmtree(queue)
    elif lost == "second file":
        (queue / f"{200:020d}").unlink()
    elif lost == "last units":
        overwrite(queue / f"{200:020d}", 40, bytes(160))
    else:
        overwrite(queue / FIRST, 0, bytes(200))
    store, report = reopen(tmp_path)
    assert report.rebuilt == (clean or lost == "all")
    assert [len(all_bodies(store, queue_id=number)) for number in range(2)] == [15, 15]
    store.close()
    assert tree(tmp_path / "consumequeue") == before


def test_units_beyond_the_log_are_dropped(tmp_path: Path) -> None:
    """W 5.6: a queue must never refer to what the log does not have."""
    offsets = crash_with(tmp_path, [b"m%d" % number for number in range(13)])
    overwrite(log_file(tmp_path), offsets[12], bytes(200))
    store, report = reopen(tmp_path)
    assert (report.entries_dropped, report.log_end) == (13, offsets[12])
    assert store.max_offset("T1", 0) == 12
    assert put(store, b"new").queue_offset == 12
    assert all_bodies(store)[-1] == b"new"
    store.close()


@pytest.mark.parametrize("writer", ["ours", "upstream"])
@pytest.mark.parametrize("loss", ["older copy", "newest file", "newest files", "all files"])
def test_a_log_that_once_ended_further_is_refused(tmp_path: Path, writer: str, loss: str) -> None:
    """Whole records up to an earlier end: the checkpoint, or a queue, knows better."""
    root = tmp_path / "store"
    with opened(root) as store:
        put(store, b"first" * 100)
    older = tree(root / "commitlog")
    with opened(root) as store:
        places = [0] + [
            put(store, b"m%02d" % number * 200, queue_id=number % 2).physical_offset
            for number in range(22)
        ]
    files = sorted((root / "commitlog").iterdir())
    assert len(files) == 5
    if writer == "upstream":
        written_by_upstream(root)
    kept = {"older copy": 1, "newest file": 4, "newest files": 2, "all files": 0}[loss]
    for path in files[kept:]:
        path.unlink()
    if loss == "older copy":
        files[0].write_bytes(older[FIRST])
    before = tree(root)
    with pytest.raises(StoreDamagedError, match="open the store with repair to go on"):
        reopen(root)
    assert tree(root) == before
    store, _ = reopen(root, repair=True)
    found = all_bodies(store) + all_bodies(store, queue_id=1)
    whole = [place for place in places if place < kept * 4096]
    assert len(found) == (1 if loss == "older copy" else len(whole))
    store.close()
    with opened(root):
        pass


def test_first_files_that_are_missing_are_refused(tmp_path: Path) -> None:
    """Retention says in the checkpoint what it removes; a log that begins later has lost files."""
    with opened(tmp_path) as store:
        for number in range(20):
            put(store, b"m%02d" % number * 200)
    paths = sorted((tmp_path / "commitlog").iterdir())
    kept = paths[0].read_bytes()
    paths[0].unlink()
    with pytest.raises(StoreDamagedError, match=r"begins at log offset 4096, .* files are missing"):
        reopen(tmp_path)
    paths[0].write_bytes(kept)
    with opened(tmp_path) as store:
        store._drop_log_files(2)
        begin = store.physical_min_offset
        assert begin == 8192
    with opened(tmp_path) as store:
        assert store.physical_min_offset == begin


@pytest.mark.parametrize("crash", [False, True])
def test_two_log_files_exchanged_by_name_are_refused_and_kept(tmp_path: Path, crash: bool) -> None:
    """Their records stand at the wrong offsets: they follow nothing, but they had been flushed."""
    store, _ = reopen(tmp_path)
    for number in range(20):
        put(store, b"m%02d" % number * 200)
    store.flush() if crash else store.close()
    store.abandon()
    first, second = sorted((tmp_path / "commitlog").iterdir())[1:3]
    texts = first.read_bytes(), second.read_bytes()
    first.write_bytes(texts[1])
    second.write_bytes(texts[0])
    before = tree(tmp_path)
    with pytest.raises(StoreDamagedError):
        reopen(tmp_path)
    assert tree(tmp_path) == before
    first.write_bytes(texts[0])
    second.write_bytes(texts[1])
    with opened(tmp_path) as store:
        assert len(all_bodies(store)) == 20


@pytest.mark.parametrize("lost", ["queue", "first file", "last file"])
def test_lost_units_of_old_messages_are_rebuilt(tmp_path: Path, lost: str) -> None:
    """Older than what is checked at a start: the checkpoint knows the bounds of the queues."""
    with opened(tmp_path) as store:
        for number in range(25):
            put(store, b"m%02d" % number)
        for _ in range(20):
            put(store, b"new", queue_id=1)
    before = tree(tmp_path / "consumequeue")
    queue = tmp_path / "consumequeue" / "T1" / "0"
    if lost == "queue":
        shutil.rmtree(queue)
    else:
        (queue / (FIRST if lost == "first file" else f"{400:020d}")).unlink()
    store, report = reopen(tmp_path, small_config(verify_bytes_max=300))
    assert report.rebuilt
    assert len(all_bodies(store)) == 25
    store.close()
    assert tree(tmp_path / "consumequeue") == before


def test_units_of_another_queue_are_rebuilt(tmp_path: Path) -> None:
    """By them more messages left with the log's first files than the checkpoint says."""
    config = small_config(verify_bytes_max=300)
    with opened(tmp_path, config) as store:
        for number, queue in enumerate([0] * 3 + [1] * 7 + [0] * 7 + [1] * 3 + [0, 1] * 10):
            put(store, b"m%02d" % number * 200, queue_id=queue)
        store._drop_log_files(2)
        assert (store.min_offset("T1", 0), store.min_offset("T1", 1)) == (3, 7)
        before = all_bodies(store), all_bodies(store, queue_id=1)
    first, second = (tmp_path / "consumequeue" / "T1" / str(queue) / FIRST for queue in (0, 1))
    units = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(units)
    store, _ = reopen(tmp_path, config)
    assert (all_bodies(store), all_bodies(store, queue_id=1)) == before
    store.close()


@pytest.mark.parametrize("number", [0, 7, 23, 24])
@pytest.mark.parametrize("bit", [0, 3, 8, 24, 40, 63])
@pytest.mark.parametrize("field", ["offset", "size"])
def test_a_damaged_unit_is_rebuilt(tmp_path: Path, number: int, bit: int, field: str) -> None:
    """Wherever it points, beyond the log too: the log has all the messages."""
    if field == "size" and bit > 31:
        return  # a size has 32 bits
    with opened(tmp_path) as store:
        for each in range(25):
            put(store, b"m%02d" % each)
    before = tree(tmp_path / "consumequeue")
    name = f"{number // 10 * 200:020d}"
    path, at = tmp_path / "consumequeue" / "T1" / "0" / name, number % 10 * 20
    form, at = (">Q", at) if field == "offset" else (">I", at + 8)
    (value,) = struct.unpack_from(form, path.read_bytes(), at)
    overwrite(path, at, struct.pack(form, value ^ 1 << bit))
    store, report = reopen(tmp_path)
    assert report.rebuilt
    assert all_bodies(store) == [b"m%02d" % each for each in range(25)]
    store.close()
    assert tree(tmp_path / "consumequeue") == before


def test_clean_start_checks_a_bounded_end_of_the_log(tmp_path: Path) -> None:
    """What a clean shutdown left is checked from a record boundary on, not from the start."""
    with opened(tmp_path) as store:
        for number in range(50):
            put(store, b"m%02d" % number, queue_id=number % 3)
    store, report = reopen(tmp_path, small_config(verify_bytes_max=1000))
    assert 10 <= report.records_checked <= 13
    assert report.clean_exit
    assert sum(len(all_bodies(store, queue_id=number)) for number in range(3)) == 50
    store.close()


def test_store_of_49_without_flushed_offset_is_recovered(tmp_path: Path) -> None:
    """4.9 writes three timestamps only; unknown is not taken for flushed."""
    crash_with(tmp_path, [b"one", b"two"], flush=True)
    marks = read_checkpoint(tmp_path / "checkpoint", Files())
    old = Checkpoint(marks.physic_msg_timestamp, marks.logics_msg_timestamp, 0, 0)
    write_checkpoint(tmp_path / "checkpoint", old, Files())
    store, report = reopen(tmp_path)
    assert report.records_checked == 2
    assert store.flushed_offset == 0
    store.close()


@pytest.mark.parametrize("data", [b"", b"\0" * 20, None])
def test_checkpoint_that_is_short_or_missing_means_from_the_start(
    tmp_path: Path, data: bytes | None
) -> None:
    """Everything is walked again."""
    crash_with(tmp_path, [b"one", b"two"], flush=True)
    path = tmp_path / "checkpoint"
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    store, report = reopen(tmp_path)
    assert report.records_dispatched == 2
    store.close()


# --- the index ------------------------------------------------------------------------------------


def test_index_is_dropped_and_rebuilt_after_a_crash(tmp_path: Path) -> None:
    """W 5.6: files newer than the checkpoint's index timestamp; built again from the log."""
    store = MessageStore(tmp_path, small_config(), ManualClock(), QuickFiles())
    store.open()
    for number in range(30):
        put(store, b"m%d" % number, keys=f"k{number}")
    assert len(store.query_by_key("T1", "k5", 9, 0, 1 << 60).records) == 1
    store.abandon()
    store, report = reopen(tmp_path)
    assert report.index_files_dropped == 1
    put(store, b"later", keys="k5")
    found = store.query_by_key("T1", "k5", 9, 0, 1 << 60).records
    assert [b"later" in record for record in found] == [False, True]
    store.close()


def test_index_that_lags_behind_a_clean_store_catches_up(tmp_path: Path) -> None:
    """A store that was used without an index, then with one."""
    with opened(tmp_path, small_config(index_enabled=False)) as store:
        for number in range(30):
            put(store, b"m%d" % number, keys=f"k{number} w")
    with opened(tmp_path) as store:
        assert len(store.query_by_key("T1", "k29", 9, 0, 1 << 60).records) == 1
        put(store, b"m30", keys="k30 w")
    with opened(tmp_path) as store:
        assert len(store.query_by_key("T1", "w", 64, 0, 1 << 60).records) == 31


def test_index_pointing_beyond_the_log_is_dropped(tmp_path: Path) -> None:
    """A torn tail took records away that were indexed."""
    with opened(tmp_path) as store:
        put(store, b"one", keys="k1")
        last = put(store, b"two", keys="k2").physical_offset
    (tmp_path / "checkpoint").unlink()  # as it were a crash that left nothing but the log
    shutil.rmtree(tmp_path / "consumequeue")
    overwrite(log_file(tmp_path), last, bytes(200))
    store, report = reopen(tmp_path)
    assert report.index_files_dropped == 1
    assert len(store.query_by_key("T1", "k1", 9, 0, 1 << 60).records) == 1
    assert store.query_by_key("T1", "k2", 9, 0, 1 << 60).records == []
    store.close()


# --- hostile contents -----------------------------------------------------------------------------


def test_record_with_a_hostile_topic_makes_no_directory_outside(tmp_path: Path) -> None:
    """A log from elsewhere must not write outside of the store."""
    crash_with(tmp_path / "store", [b"one"])
    path = log_file(tmp_path / "store")
    evil = make_record(b"two", topic="../../../x")
    size = len(make_record(b"one"))
    struct.pack_into(">q", evil, 28, size)
    struct.pack_into(">q", evil, 56, 1_700_000_000_001)
    overwrite(path, size, bytes(evil))
    before = tree(tmp_path)
    with pytest.raises(Exception, match="cannot be the name of a queue"):
        reopen(tmp_path / "store")
    assert set(tree(tmp_path)) == set(before)
