"""Reading a store directory without a broker: every offset once, or named."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketstream.columns.table import Column, choose
from rocketstream.errors import (
    ConfigurationError,
    DataLossError,
    NotSupportedError,
    RemoteProtocolError,
    RocketMQError,
    StoreDamagedError,
)
from rocketstream.model import MessageQueue
from rocketstream.server.store import MessageStore
from rocketstream.spark.options import store_options
from rocketstream.spark.store.files import PACKED_UNIT
from rocketstream.spark.store.rows import StoreRead, new_store_scan
from rocketstream.spark.store.snapshot import Snapshot, partition_count, store_plans, store_ranges
from rocketstream.testing.clock import ManualClock
from tests.kits.stores import FOREVER_MS, make_record, opened, put, small_config

COLUMNS: tuple[Column, ...] = choose(
    [("topic", "string"), ("queueId", "int"), ("queueOffset", "bigint"), ("body", "binary")]
)
Row = tuple[int, int, bytes]


def ranges_of(root: Path, **options: str) -> dict[int, tuple[int, int]]:
    """What a read covers, by queue id."""
    parsed = store_options({"storePath": str(root), "topic": "T1", **options})
    with contextlib.closing(Snapshot(parsed)) as snapshot:
        found = store_ranges(parsed, snapshot)
    return {span.queue.queue_id: (span.begin, span.end) for span in found}


def tasks_of(root: Path, partitions: int = 1, **options: str) -> list[list[Row]]:
    """The rows of every task of a read."""
    parsed = store_options({"storePath": str(root), "topic": "T1", **options})
    with contextlib.closing(Snapshot(parsed)) as snapshot:
        plans = store_plans(snapshot, store_ranges(parsed, snapshot), partitions)
    scan = new_store_scan(parsed, COLUMNS)
    return [
        [
            (row["queueId"], row["queueOffset"], row["body"])
            for batch in StoreRead(scan, plan).batches()
            for row in batch.to_pylist()
        ]
        for plan in plans
    ]


def rows_of(root: Path, partitions: int = 1, **options: str) -> list[Row]:
    """All rows of a read, sorted."""
    return sorted(row for task in tasks_of(root, partitions, **options) for row in task)


def fill(store: MessageStore, count: int = 60, size: int = 100) -> list[Row]:
    """Messages over three queues, and as many of another topic between them."""
    written = []
    for number in range(count):
        put(store, b"other", topic="T2", queue_id=number % 2)
        body = b"%d" % number * size
        tags = "odd" if number % 2 else "even"
        result = put(store, body, queue_id=number % 3, tags=tags)
        written.append((number % 3, result.queue_offset, body))
    return sorted(written)


@contextlib.contextmanager
def killed(root: Path, **changes: Any) -> Iterator[MessageStore]:
    """A store nobody closes: what a killed broker leaves."""
    with opened(root / "running", small_config(**changes)) as store:
        yield store
        shutil.copytree(root / "running", root / "left")


def log_files(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


@pytest.mark.parametrize("partitions", [1, 4, 200])
def test_a_closed_store_gives_every_message_of_the_topic_once(
    tmp_path: Path, partitions: int
) -> None:
    with opened(tmp_path) as store:
        written = fill(store)
    assert len(log_files(tmp_path)) > 3
    assert rows_of(tmp_path, partitions) == written


def test_several_topics_are_read_together(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 30)
    rows = rows_of(tmp_path, topic="T1,T2")
    assert sorted(body for _, _, body in rows).count(b"other") == 30
    assert len(rows) == 60


def test_each_task_reads_its_own_stretch_of_the_log_and_a_queue_in_order(tmp_path: Path) -> None:
    with opened(tmp_path, small_config(commit_log_file_bytes=1 << 20)) as store:
        written = fill(store, 90, size=1)
    tasks = tasks_of(tmp_path, 3)
    assert [29 <= len(task) <= 31 for task in tasks] == [True] * 3
    assert sorted(row for task in tasks for row in task) == written
    for task in tasks:
        # A stretch of the log has the messages that were written together.
        numbers = sorted(int(body) for _, _, body in task)
        assert numbers == list(range(numbers[0], numbers[0] + len(task)))
        for queue_id in range(3):
            offsets = [offset for each, offset, _ in task if each == queue_id]
            assert offsets == sorted(offsets)


def test_partitions_follow_cores_and_rows() -> None:
    assert partition_count(1_000, 4, None) == 1
    assert partition_count(2_000, 4, None) == 4
    assert partition_count(50_000_000, 4, None) == 10
    assert partition_count(50_000_000, 4, 7) == 7
    assert partition_count(3, 4, 7) == 3


def test_tags_are_chosen_by_the_index_and_checked_on_the_message(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        written = fill(store)
    odd = [row for row in written if int(row[2][:1] if len(row[2]) == 100 else row[2][:2]) % 2]
    assert rows_of(tmp_path, tags="odd") == odd
    assert rows_of(tmp_path, tags="odd || even") == written


def test_what_a_killed_broker_left_in_the_log_alone_is_found(tmp_path: Path) -> None:
    """A store not closed may have more in its log than in its index (wire-and-storage 5.6)."""
    with killed(tmp_path) as store:
        written = fill(store)
    left = tmp_path / "left"
    for queue_id in range(3):
        newest = max((left / "consumequeue" / "T1" / str(queue_id)).iterdir())
        newest.write_bytes(bytes(newest.stat().st_size))
    assert (left / "abort").exists()
    assert rows_of(left) == written
    assert rows_of(left, 5) == written
    (left / "abort").unlink()
    assert len(rows_of(left)) < len(written)


def test_the_log_gives_a_topic_made_anew_none_of_the_rows_it_had_before(tmp_path: Path) -> None:
    """A broker that still runs, or was killed, leaves no clean end: the whole log is searched."""
    with opened(tmp_path / "store") as store:
        fill(store, 20)
        store.delete_topic("T1")
        expected = fill(store, 4)
        assert rows_of(tmp_path / "store") == expected


def test_the_log_is_searched_from_where_the_index_was_last_safe(tmp_path: Path) -> None:
    """Not from its beginning: that could be a terabyte."""
    clock = ManualClock(1_700_000_000_000)
    with opened(tmp_path / "running", clock=clock) as store:
        fill(store, 30)
        store.flush()
        clock.advance(60_000)
        written = fill(store, 30)
        shutil.copytree(tmp_path / "running", tmp_path / "left")
    left = tmp_path / "left"
    stamp = (1_700_000_000_000 + 10_000).to_bytes(8, "big")
    (left / "checkpoint").write_bytes((stamp + stamp).ljust(4096, b"\0"))
    first = log_files(left)[0]
    # Walking through this file would find no record.
    first.write_bytes(b"\xff" * first.stat().st_size)
    assert rows_of(left, startingTimestamp=str(1_700_000_000_000 + 60_000)) == written


def test_offsets_and_times_bound_a_read(tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000_000)
    with opened(tmp_path, clock=clock) as store:
        for number in range(30):
            clock.advance(1_000)
            put(store, b"%d" % number, queue_id=number % 3)
    at = 1_700_000_000_000
    window = {"startingTimestamp": str(at + 10_000), "endingTimestamp": str(at + 20_000)}
    rows = rows_of(tmp_path, 1, **window)
    assert sorted(int(body) for _, _, body in rows) == list(range(9, 19))
    named = {
        "startingOffsets": '{"T1":{"store":{"0":2,"1":-1}}}',
        "endingOffsets": '{"T1":{"store":{"0":5}}}',
    }
    assert ranges_of(tmp_path, **named) == {0: (2, 5), 2: (0, 10)}
    # Told from now, which is years later.
    assert rows_of(tmp_path, 1, startingTimestamp="-1h") == []
    assert len(rows_of(tmp_path, 1, endingTimestamp="-1h")) == 30


def test_offsets_outside_the_store_are_a_loss(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store)
    beyond = {"endingOffsets": '{"T1":{"b":{"0":21}}}', "brokerName": "b"}
    with pytest.raises(DataLossError, match=r"offsets 0 to 20 were asked .* holds 0 to 19"):
        ranges_of(tmp_path, **beyond)
    assert ranges_of(tmp_path, **beyond, failOnDataLoss="false")[0] == (0, 20)


def named(offset: int) -> str:
    return f'{{"T1":{{"store":{{"0":{offset}}}}}}}'


@pytest.mark.parametrize("end", ["latest", named(15), named(2_000)])
def test_a_beginning_beyond_the_end_of_the_store_is_a_loss(tmp_path: Path, end: str) -> None:
    """As of a read through brokers; a beginning at the end is none."""
    with opened(tmp_path) as store:
        fill(store)
    beyond = {"startingOffsets": named(1_000), "endingOffsets": end}
    with pytest.raises(DataLossError, match=r"offsets 1000 .* asked for, .* holds 0 to 19"):
        ranges_of(tmp_path, **beyond)
    assert 0 not in ranges_of(tmp_path, **beyond, failOnDataLoss="false")
    assert 0 not in ranges_of(tmp_path, startingOffsets=named(20))


def test_an_end_before_the_beginning_of_a_store_read_is_refused(tmp_path: Path) -> None:
    """The queue would be left out without a word; nothing is wanted where both are one."""
    with opened(tmp_path) as store:
        fill(store)
    with pytest.raises(ConfigurationError, match="begins at offset 8 and ends at 2: give"):
        ranges_of(tmp_path, startingOffsets=named(8), endingOffsets=named(2))
    assert 0 not in ranges_of(tmp_path, startingOffsets=named(8), endingOffsets=named(8))


def test_a_queue_nobody_has_is_named_with_those_there_are(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store)
    with pytest.raises(ConfigurationError, match=r"T1/broker-a/0.*T1/store/0.*brokerName"):
        ranges_of(tmp_path, startingOffsets='{"T1":{"broker-a":{"0":1}}}')


def test_expired_log_files_move_earliest_and_are_no_loss(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        written = fill(store)
    log_files(tmp_path)[0].unlink()
    rows = rows_of(tmp_path)
    assert 0 < len(rows) < len(written)
    assert rows == [row for row in written if row in rows]
    low = min(offset for queue_id, offset, _ in rows if queue_id == 0)
    with pytest.raises(DataLossError, match=f"holds {low} to 19"):
        ranges_of(tmp_path, startingOffsets='{"T1":{"store":{"0":0}}}')


def test_a_hole_in_the_log_is_a_loss_that_names_its_offsets(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        written = fill(store)
    gone = log_files(tmp_path)[1]
    gone.unlink()
    with pytest.raises(DataLossError, match=r"topic 'T1'.* offsets \d+ to \d+ are gone.*not there"):
        rows_of(tmp_path)
    rows = rows_of(tmp_path, failOnDataLoss="false")
    assert 0 < len(rows) < len(written)
    assert set(rows) < set(written)


def test_a_torn_record_is_named_and_left_out_only_when_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store:
        written = fill(store)
    index = tmp_path / "consumequeue" / "T1" / "1" / ("0" * 20)
    physical, size, _ = PACKED_UNIT.unpack_from(index.read_bytes(), 3 * 20)
    log = [f for f in log_files(tmp_path) if int(f.name) <= physical][-1]
    data = bytearray(log.read_bytes())
    at = physical - int(log.name)
    data[at : at + size] = bytes(size)
    log.write_bytes(data)
    with pytest.raises(StoreDamagedError, match=rf"offsets 3 to 3 .*queue 1.*{log.name}.*skipDam"):
        rows_of(tmp_path)
    rows = rows_of(tmp_path, skipDamaged="true")
    assert rows == [row for row in written if row[:2] != (1, 3)]
    assert "damaged: offsets 3 to 3 of topic 'T1', broker 'store', queue 1" in caplog.text


def test_a_damaged_body_is_named_and_left_out_only_when_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store:
        written = fill(store)
    log = log_files(tmp_path)[0]
    data = bytearray(log.read_bytes())
    at = data.index(b"3" * 100)
    data[at] ^= 1
    log.write_bytes(data)
    with pytest.raises(RemoteProtocolError, match=r"body at offset 1 .*damaged"):
        rows_of(tmp_path)
    assert rows_of(tmp_path, skipDamaged="true") == [r for r in written if r[:2] != (0, 1)]
    assert "damaged: offsets 1 to 1 of topic 'T1', broker 'store', queue 0" in caplog.text
    assert len(rows_of(tmp_path, checkBodyCrc="false")) == len(written)


def test_a_torn_end_of_the_log_is_named_before_anything_is_read(tmp_path: Path) -> None:
    with killed(tmp_path) as store:
        written = fill(store, 10, size=1)
        end = store.physical_max_offset
    left = tmp_path / "left"
    log = log_files(left)[0]
    data = bytearray(log.read_bytes())
    data[end : end + 20] = make_record(b"never whole")[:20]
    log.write_bytes(data)
    with pytest.raises(StoreDamagedError, match=rf"no whole record at {end} .*skipDamaged"):
        rows_of(left)
    assert rows_of(left, skipDamaged="true") == written


def test_a_queue_that_begins_later_has_no_rows_before(tmp_path: Path) -> None:
    """Entries before a queue's first message are fillers (wire-and-storage 5.3)."""
    with opened(tmp_path) as store:
        fill(store, 12)
    index = tmp_path / "consumequeue" / "T1" / "0" / ("0" * 20)
    data = bytearray(index.read_bytes())
    data[: 2 * 20] = PACKED_UNIT.pack(0, 0x7FFFFFFF, 0) * 2
    index.write_bytes(data)
    assert ranges_of(tmp_path)[0] == (2, 4)


def test_a_store_that_grows_is_read_up_to_the_snapshot(tmp_path: Path) -> None:
    """A running broker's directory: rows planned are the rows there were."""
    with opened(tmp_path, small_config(commit_log_file_bytes=1 << 20)) as store:
        written = fill(store, 30)
        parsed = store_options({"storePath": str(tmp_path), "topic": "T1"})
        with contextlib.closing(Snapshot(parsed)) as snapshot:
            plans = store_plans(snapshot, store_ranges(parsed, snapshot), 2)
        fill(store, 30)
        scan = new_store_scan(parsed, COLUMNS)
        found = [
            (row["queueId"], row["queueOffset"], row["body"])
            for plan in plans
            for batch in StoreRead(scan, plan).batches()
            for row in batch.to_pylist()
        ]
        assert sorted(found) == written
        assert len(rows_of(tmp_path)) == 60


def test_an_empty_topic_gives_no_plan(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        fill(store, 3)
    assert tasks_of(tmp_path, startingOffsets='{"T1":{"store":{"0":-1,"1":-1,"2":-1}}}') == []


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"storePath": "/nowhere"}, ConfigurationError, "'/nowhere', which is not a directory"),
        ({"storePath": "s3a://b/s"}, ConfigurationError, "path of a directory"),
        ({"topic": "T9"}, ConfigurationError, "holds no topic 'T9'; it holds T1, T2"),
        ({"nameServer": "h:1"}, ConfigurationError, "'nameServer' is for reading through brokers"),
        ({"skipDamage": "true"}, ConfigurationError, "did you mean 'skipDamaged'"),
        ({"topic": ""}, ConfigurationError, "'topic' is missing"),
        ({"commitLogPath": "/nowhere"}, ConfigurationError, "no commit log files in /nowhere"),
        ({"topic": "B"}, NotSupportedError, "BatchCQ"),
    ],
)
def test_what_cannot_be_read_is_named(
    tmp_path: Path, options: dict[str, str], kind: type[RocketMQError], text: str
) -> None:
    with opened(tmp_path) as store:
        fill(store, 3)
    (tmp_path / "batchconsumequeue" / "B").mkdir(parents=True)
    with pytest.raises(kind, match=text):
        ranges_of(tmp_path, **options)


def test_a_directory_that_is_no_store_is_told_from_a_kind_not_read(tmp_path: Path) -> None:
    (tmp_path / "some").mkdir()
    with pytest.raises(ConfigurationError, match="holds some but no 'consumequeue'"):
        ranges_of(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="/file', which is not a directory here"):
        ranges_of(tmp_path / "file")
    (tmp_path / "consumequeue_rocksdb").mkdir()
    with pytest.raises(NotSupportedError, match="RocksDB"):
        ranges_of(tmp_path)


def test_a_file_uri_names_the_store_too(tmp_path: Path) -> None:
    options = store_options({"storePath": f"file://{tmp_path}/a%20b", "topic": "T1"})
    assert options.store_path == f"{tmp_path}/a b"
    assert options.commit_log_paths == (f"{tmp_path}/a b/commitlog",)


def test_rows_carry_the_broker_name_given(tmp_path: Path) -> None:
    with opened(tmp_path, small_config(keep_interval_ms=FOREVER_MS)) as store:
        fill(store, 3)
    parsed = store_options({"storePath": str(tmp_path), "topic": "T1", "brokerName": "b"})
    with contextlib.closing(Snapshot(parsed)) as snapshot:
        assert MessageQueue("T1", "b", 0) in snapshot.highs
