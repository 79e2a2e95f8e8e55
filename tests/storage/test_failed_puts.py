"""Puts that fail at any request to the disk: no reader is ever shown what is not wholly there."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import pytest

from rocketstream.errors import StoreError
from rocketstream.server.store import MessageStore
from rocketstream.server.store.log_walk import record_at
from rocketstream.testing.clock import ManualClock
from tests.kits.stores import (
    TOPIC,
    BreakingFiles,
    all_bodies,
    bodies,
    make_record,
    opened,
    put,
    put_record,
    put_records,
    small_config,
)

PREPARED = 4
FOR_EVER_MS = 1 << 60


def put_all(store: MessageStore, files: BreakingFiles) -> tuple[list[bytes], list[bytes]]:
    """Put messages, in batches too, over several files; return what was and was not taken."""
    taken, refused = [], []
    for number in range(12):
        count = 7 if number % 3 == 1 else 1
        texts = [b"%03d-%d" % (number, each) for each in range(count)]
        records = [make_record(text, keys=text.decode()) for text in texts]
        try:
            if count == 1:
                put_record(store, TOPIC, 0, records[0], 0, [texts[0].decode()])
            else:
                put_records(store, TOPIC, 0, records, [0] * count, [[t.decode()] for t in texts])
            taken += texts
        except StoreError:
            refused += texts
        half = make_record(b"half", sys_flag=PREPARED)
        try:
            place = put_record(store, TOPIC, 0, half, 0)
        except StoreError:
            pass
        else:
            head = record_at(store._log, place.physical_offset)
            assert head is not None
            assert (head.sys_flag, head.total_size) == (PREPARED, len(half))
        counts, files.counts = files.counts, False
        assert_shows(store, taken, refused)
        files.counts = counts
    return taken, refused


def assert_shows(store: MessageStore, taken: list[bytes], refused: list[bytes]) -> None:
    assert all_bodies(store) == taken
    assert store.max_offset(TOPIC, 0) == len(taken)
    for offset, text in enumerate(taken):
        physical, size, _ = store.consume_queue_entries(TOPIC, 0, offset, 1)[0]
        record = store.read(physical)
        assert record is not None
        assert len(record) == size
        assert text in record
        assert bodies(store.get(TOPIC, 0, offset, 1)) == [text]


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("count", [1, 2])
def test_put_that_fails_anywhere_shows_nobody_what_is_not_there(
    tmp_path: Path, code: int, count: int
) -> None:
    failures = 0
    for first in itertools.count(1):
        root = tmp_path / f"store{first}"
        files = BreakingFiles(code, first, count)
        config = small_config(queue_maps_max=2)
        store = MessageStore(root, config, ManualClock(), files)
        store.open()
        try:
            files.counts = True
            taken, refused = put_all(store, files)
            files.counts = False
            failures += bool(refused)
            for text in taken:
                found = store.query_by_key(TOPIC, text.decode(), 32, 0, FOR_EVER_MS).records
                assert [text in record for record in found] == [True]
            for text in refused:
                assert not store.query_by_key(TOPIC, text.decode(), 32, 0, FOR_EVER_MS).records
        finally:
            store.abandon()
        with opened(root, config) as store:
            assert_shows(store, taken, refused)
        if files.asked < first:
            break
    assert failures > 10


def torn_batch(store: MessageStore, files: BreakingFiles, failures: int) -> int:
    """Have a batch of four written by three quarters; return the size of each record."""
    records = [make_record(b"lost-%d" % number) for number in range(4)]
    files.first, files.last, files.asked = 1, failures, 0
    files.counts = True
    with pytest.raises(StoreError):
        put_records(store, TOPIC, 0, records, [0] * 4, [()] * 4)
    files.counts = False
    return len(records[0])


@pytest.mark.parametrize("failures", [1, 2], ids=["cleared at once", "cleared by the next put"])
@pytest.mark.parametrize("follows", [None, "single", "batch"])
@pytest.mark.parametrize("killed", [False, True])
def test_whole_records_of_a_batch_that_was_refused_do_not_come_back(
    tmp_path: Path, failures: int, follows: str | None, killed: bool
) -> None:
    """The next message ended where the second of the batch began, and the next start took that."""
    files = BreakingFiles(errno.EIO, 1, 1)
    with opened(tmp_path, files=files) as store:
        put(store, b"first-")
        size = torn_batch(store, files, failures)
        kept = [b"first-"]
        if follows == "single":
            assert put(store, b"next-0").size == size
            kept += [b"next-0"]
        elif follows == "batch":
            records = [make_record(b"next-%d" % number) for number in range(2)]
            put_records(store, TOPIC, 0, records, [0] * 2, [()] * 2)
            kept += [b"next-0", b"next-1"]
        assert all_bodies(store) == kept
        if killed:
            store.abandon()
    with opened(tmp_path) as store:
        assert all_bodies(store) == kept
