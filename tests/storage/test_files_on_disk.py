"""The bytes of the store's files are upstream's: golden samples of wire-and-storage section 5."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstream.errors import StoreDamagedError, StoreError
from rocketstream.protocol.names import SCHEDULE_TOPIC
from rocketstream.protocol.record import read_head
from rocketstream.protocol.tag_hash import java_hash
from rocketstream.server.store import MessageStore, StoreConfig
from rocketstream.server.store.key_index import IndexFile, key_hash
from rocketstream.server.store.results import DELAY_LEVELS_MS_DEFAULT
from rocketstream.testing.clock import ManualClock
from tests.kits.stores import (
    HOST,
    all_bodies,
    make_record,
    opened,
    put,
    put_record,
    small_config,
    tree,
)

FIRST = "0" * 20


@given(
    st.sampled_from(["T1", "%RETRY%g", "ü"]),
    st.one_of(
        st.text("0123456789ABCDEF", min_size=32, max_size=32),
        st.text(st.characters(max_codepoint=0x7E), min_size=31, max_size=33),
        st.text(max_size=300),
    ),
)
def test_the_hash_of_a_key_is_javas(topic: str, key: str) -> None:
    """Ids, of which most is remembered, as any other key (W 5.4)."""
    value = abs(java_hash(f"{topic}#{key}"))
    assert key_hash(topic, key) == (0 if value == 0x8000_0000 else value)


def test_golden_blank_marker(tmp_path: Path) -> None:
    """W 5.2: 539 bytes remain at 3557."""
    with opened(tmp_path) as store:
        first = make_record(b"")
        put_record(store, "T1", 0, make_record(b"x" * (3557 - len(first))), 0)
        assert store.physical_max_offset == 3557
        put_record(store, "T1", 0, make_record(b"y" * 539), 0)
        log = (tmp_path / "commitlog" / FIRST).read_bytes()
        assert log[3557:3565].hex().upper() == "0000021BCBD43194"
        assert not any(log[3565:])


@pytest.mark.parametrize("spare", [8, 9])
def test_eight_bytes_always_stay_for_the_blank_marker(tmp_path: Path, spare: int) -> None:
    """A record fits only if 8 bytes remain behind it (W 5.2)."""
    with opened(tmp_path) as store:
        empty = len(make_record(b""))
        result = put_record(store, "T1", 0, make_record(b"x" * (4096 - spare - empty)), 0)
        assert (result.physical_offset, result.size) == (0, 4096 - spare)
        assert put(store).physical_offset == 4096
        assert all_bodies(store)[1:] == [b"hello"]
        log = (tmp_path / "commitlog" / FIRST).read_bytes()
        assert log[4096 - spare :][:8].hex().upper() == f"{spare:08X}CBD43194"


def test_record_larger_than_a_log_file_is_refused(tmp_path: Path) -> None:
    """One byte more than fits a file of its own; nothing is stored."""
    with opened(tmp_path) as store:
        empty = len(make_record(b""))
        with pytest.raises(StoreError, match="do not fit"):
            put_record(store, "T1", 0, make_record(b"x" * (4096 - 7 - empty)), 0)
        assert store.max_offset("T1", 0) == 0
        assert put(store).physical_offset == 0


def test_files_are_pre_sized_and_the_next_log_file_is_made_ahead(tmp_path: Path) -> None:
    """W 5.1: full size, zero-filled, named by their offsets; two log files after a message."""
    with opened(tmp_path) as store:
        put(store)
        store._log.prepare_ahead()
        log = sorted((tmp_path / "commitlog").iterdir())
        assert [(path.name, path.stat().st_size) for path in log] == [
            (FIRST, 4096),
            ("00000000000000004096", 4096),
        ]
        queue = list((tmp_path / "consumequeue" / "T1" / "0").iterdir())
        assert [(path.name, path.stat().st_size) for path in queue] == [(FIRST, 200)]


def test_full_size_files_take_space_in_steps(tmp_path: Path) -> None:
    """A 1 GiB log file of a store that holds little takes little of the disk."""
    with opened(tmp_path, small_config(commit_log_file_bytes=1 << 30)) as store:
        put(store)
        store._log.prepare_ahead()
        assert len(list((tmp_path / "commitlog").iterdir())) == 2
        for path in (tmp_path / "commitlog").iterdir():
            assert path.stat().st_size == 1 << 30
            assert path.stat().st_blocks * 512 <= 40 << 20


def test_reservation_grows_with_the_log(tmp_path: Path) -> None:
    """Step by step, ahead by the background or when a record needs it."""
    with opened(tmp_path, small_config(commit_log_file_bytes=64 << 20)) as store:
        for _ in range(10):
            put(store, b"x" * (4 << 20))
            assert store._log._reserved_end >= store.physical_max_offset
        reserved = store._log._reserved_end
        put(store, b"x" * (4 << 20))
        store._log.prepare_ahead()
        assert reserved < store._log._reserved_end <= 64 << 20
        assert len(all_bodies(store)) == 11


def test_default_sizes_are_upstreams() -> None:
    """W 5.1."""
    config = StoreConfig()
    assert config.commit_log_file_bytes == 1 << 30
    assert config.consume_queue_file_bytes == 6_000_000
    assert IndexFile.size(config.index_slots, config.index_entries) == 420_000_040
    assert DELAY_LEVELS_MS_DEFAULT[:3] == (1000, 5000, 10_000)
    assert len(DELAY_LEVELS_MS_DEFAULT) == 18
    assert DELAY_LEVELS_MS_DEFAULT[-1] == 7_200_000


def test_consume_queue_units(tmp_path: Path) -> None:
    """W 5.3: offset, size, tagsCode; tags 2598919 and 2598921 for TagA and TagC."""
    with opened(tmp_path) as store:
        first = put(store, tags="TagA")
        second = put(store, tags="TagC")
        queue = (tmp_path / "consumequeue" / "T1" / "0" / FIRST).read_bytes()
        assert queue[:40].hex().upper() == (
            f"0000000000000000{first.size:08X}000000000027A807"
            f"{first.size:016X}{second.size:08X}000000000027A809"
        )
        assert not any(queue[40:])


def test_queue_unit_of_the_schedule_topic_holds_the_delivery_time(tmp_path: Path) -> None:
    """W 4.4: tagsCode = store timestamp + delay, also when the queue is rebuilt."""
    clock = ManualClock(1_794_000_000_000)
    record = make_record(topic=SCHEDULE_TOPIC, queue_id=2, tags="TagA", extra="DELAY\x013")
    with opened(tmp_path, clock=clock) as store:
        put_record(store, SCHEDULE_TOPIC, 2, record, clock.now_ms() + 10_000)
        written = store.consume_queue_entries(SCHEDULE_TOPIC, 2, 0, 1)
        assert written[0][2] == 1_794_000_010_000
    (tmp_path / "consumequeue" / SCHEDULE_TOPIC / "2" / FIRST).unlink()
    with opened(tmp_path, clock=clock) as store:
        assert store.consume_queue_entries(SCHEDULE_TOPIC, 2, 0, 1) == written


def test_stored_record_carries_what_the_store_assigned(tmp_path: Path) -> None:
    """W 4.1: queueOffset, physicalOffset, storeTimestamp, for v4 and v6 hosts."""
    clock = ManualClock(1_700_000_000_005)
    v6 = bytes(range(16)) + (10911).to_bytes(4, "big")
    with opened(tmp_path, clock=clock) as store:
        put(store)
        for host in (HOST, v6):
            record = make_record(host=host)
            result = put_record(store, "T1", 0, record, 0)
            head = read_head(store.read(result.physical_offset) or b"")
            assert head.queue_offset == result.queue_offset
            assert head.physical_offset == result.physical_offset
            assert head.store_timestamp == result.store_timestamp == clock.now_ms()


def test_index_sample(tmp_path: Path) -> None:
    """W 5.4: entries and slots of GoldT#k1 and GoldT#k2 at offset 0, after one other key."""
    config = small_config(index_slots=5_000_000, index_entries=100)
    with opened(tmp_path, config) as store:
        put_record(store, "GoldT", 0, make_record(topic="GoldT"), 0, ("u", "k1", "k2"))
        store.query_by_key("GoldT", "k1", 1, 0, 1)
        (path,) = (tmp_path / "index").iterdir()
        data = path.read_bytes()
        assert len(path.name) == 17
        assert path.name.isdigit()
        now = store._last_timestamp
        slots = {
            hash_ % 5_000_000 for hash_ in (key_hash("GoldT", key) for key in ("u", "k1", "k2"))
        }
        assert struct.unpack_from(">qqqqii", data) == (now, now, 0, 0, len(slots), 4)
        entries = 40 + 5_000_000 * 4
        assert struct.unpack_from(">iqii", data, entries + 2 * 20) == (2100982837, 0, 0, 0)
        assert struct.unpack_from(">iqii", data, entries + 3 * 20) == (2100982838, 0, 0, 0)
        assert struct.unpack_from(">i", data, 40 + 982837 * 4) == (2,)
        assert struct.unpack_from(">i", data, 40 + 982838 * 4) == (3,)


def test_index_file_appears_with_the_first_record_even_without_keys(tmp_path: Path) -> None:
    """W 5.4: created lazily at the first dispatched record."""
    with opened(tmp_path) as store:
        assert list((tmp_path / "index").iterdir()) == []
        put(store)
        store.query_by_key("T1", "none", 1, 0, 1)
        assert len(list((tmp_path / "index").iterdir())) == 1


def test_index_can_be_left_out(tmp_path: Path) -> None:
    """Without an index nothing is found by key, and no file is made."""
    with opened(tmp_path, small_config(index_enabled=False)) as store:
        put(store, keys="k1")
        assert store.query_by_key("T1", "k1", 1, 0, 1 << 60).records == []
        assert list((tmp_path / "index").iterdir()) == []


def test_checkpoint_abort_and_lock(tmp_path: Path) -> None:
    """W 5.5: 4096 bytes with three timestamps; an empty abort while open; ``lock`` in lock."""
    clock = ManualClock(1_700_000_000_007)
    with opened(tmp_path, clock=clock) as store:
        assert (tmp_path / "abort").read_bytes() == b""
        assert (tmp_path / "lock").read_bytes() == b"lock"
        put(store)
        store.flush()
        data = (tmp_path / "checkpoint").read_bytes()
        assert len(data) == 4096
        end = store.physical_max_offset
        assert struct.unpack_from(">qqqq", data) == (clock.now_ms(), clock.now_ms(), 0, end)
        assert not any(data[32:256])  # 5.x uses some of these
    assert not (tmp_path / "abort").exists()
    assert (tmp_path / "lock").exists()


def test_first_unit_beyond_zero_is_preceded_by_fillers(tmp_path: Path) -> None:
    """W 5.3: {0, 0x7FFFFFFF, 0} up to the first logical offset; the log's start is its minimum."""
    with opened(tmp_path) as store:
        for _ in range(14):
            put(store, b"x" * 500)
        first_kept = 12
        assert store.physical_max_offset > 8192
    for path in sorted((tmp_path / "commitlog").iterdir())[:2]:
        path.unlink()
    for path in (tmp_path / "consumequeue" / "T1" / "0").iterdir():
        path.unlink()
    (tmp_path / "checkpoint").unlink()  # with it the files would be missed
    with opened(tmp_path) as store:
        (path,) = (tmp_path / "consumequeue" / "T1" / "0").iterdir()
        assert path.name == f"{200:020d}"
        units = list(struct.iter_unpack(">qiq", path.read_bytes()))
        assert units[: first_kept - 10] == [(0, 0x7FFFFFFF, 0)] * (first_kept - 10)
        assert units[first_kept - 10][0] == 8192
        assert store.min_offset("T1", 0) == first_kept
        assert store.max_offset("T1", 0) == 14


@pytest.mark.parametrize("where", ["commitlog/" + FIRST, "consumequeue/T1/0/" + FIRST])
def test_file_of_another_size_is_refused_and_nothing_changed(tmp_path: Path, where: str) -> None:
    """W 5.1: a size that differs from the configured one makes the store fail to start."""
    with opened(tmp_path) as store:
        put(store)
    with (tmp_path / where).open("ab") as file:
        file.write(b"\0")
    before = tree(tmp_path)
    store = MessageStore(tmp_path, small_config())
    with pytest.raises(StoreDamagedError, match="are configured"):
        store.open()
    assert tree(tmp_path) == before


def test_empty_last_file_is_taken_as_never_made(tmp_path: Path) -> None:
    """A machine that stopped while a file was being made leaves one of no bytes (as 5.x)."""
    with opened(tmp_path) as store:
        put(store)
        store._log.prepare_ahead()
    (tmp_path / "commitlog" / "00000000000000004096").write_bytes(b"")
    with opened(tmp_path) as store:
        assert store.max_offset("T1", 0) == 1


def test_foreign_and_missing_log_files_are_refused(tmp_path: Path) -> None:
    """Names are 20 digits and follow each other."""
    with opened(tmp_path) as store:
        for _ in range(12):
            put(store, b"x" * 1000)
    log = tmp_path / "commitlog"
    (log / "00000000000000004096").rename(tmp_path / "away")
    with pytest.raises(StoreDamagedError, match="no file between"):
        MessageStore(tmp_path, small_config()).open()
    (tmp_path / "away").rename(log / "notes.txt")
    with pytest.raises(StoreDamagedError, match="20 digits"):
        MessageStore(tmp_path, small_config()).open()


def test_topic_directories_carry_the_raw_name(tmp_path: Path) -> None:
    """W 5.1: %RETRY%cg as it is; what would leave the directory is refused."""
    with opened(tmp_path) as store:
        put(store, topic="%RETRY%cg")
        assert (tmp_path / "consumequeue" / "%RETRY%cg" / "0").is_dir()
        for name in ("../x", "a/b", "", ".."):
            with pytest.raises(StoreError, match="cannot be the name"):
                put_record(store, name, 0, make_record(), 0)
        with pytest.raises(StoreError, match="cannot be the name"):
            put_record(store, "T1", -1, make_record(), 0)
