"""Messages put together: the files of single puts, and all or nothing of each write."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import pytest

from rocketstream.errors import DiskFullError, StoreError
from rocketstream.protocol.drafts import Draft, draft_tail, may_be_draft, topic_head
from rocketstream.protocol.record import new_record, pack_host, sealable
from rocketstream.server.store import MessageStore
from rocketstream.testing.clock import ManualClock
from tests.unit.store.kit import (
    HOST,
    BreakingFiles,
    FaultyFiles,
    QuickFiles,
    all_bodies,
    opened,
    small_config,
    tree,
)

BORN_MS = 1_700_000_000_000


def draft(body: bytes, queue_id: int = 0, topic: str = "T1", keys: tuple[str, ...] = ()) -> Draft:
    tail = draft_tail(topic_head(topic.encode()), b"TAGS\x01a")
    return ((topic, queue_id), 3, 1, BORN_MS, HOST, HOST, body, tail, 97, keys)


def record(body: bytes, queue_id: int = 0, topic: str = "T1") -> bytearray:
    return new_record(
        topic.encode(), queue_id, 3, 1, BORN_MS, HOST, HOST, 0, 0, body, sealable(b"TAGS\x01a")
    )


def test_a_run_leaves_the_files_that_single_puts_leave(tmp_path: Path) -> None:
    """Over the ends of log files too: nothing is written that one by one would not be."""
    sent = [(b"%03d" % n * (1 + n % 7), n % 3, (f"k{n}",)) for n in range(120)]
    runs, single = tmp_path / "runs", tmp_path / "single"
    with opened(runs) as store:
        arrived: list[tuple[str, int, int, int]] = []
        store.on_arrival = lambda *what: arrived.append(what)
        places = []
        for first in range(0, len(sent), 7):
            some = [draft(body, queue, keys=keys) for body, queue, keys in sent[first : first + 7]]
            stored, error = store.put_many(some)
            assert error is None
            places += stored
    with opened(single) as store:
        expected, told = [], []
        for body, queue, keys in sent:
            put = store.put("T1", queue, record(body, queue), 97, keys)
            expected.append((put.physical_offset, put.queue_offset))
            told.append(("T1", queue, put.queue_offset + 1, 97))
    assert places == expected
    assert arrived == told
    left, right = tree(runs), tree(single)
    assert len(left) > 10
    assert left == right


def test_a_batch_of_drafts_stays_in_one_file(tmp_path: Path) -> None:
    """As ``put_batch`` does it (W 4.5): the file is closed with a blank before it."""
    with opened(tmp_path / "drafts") as store:
        store.put_many([draft(b"x" * 3500)])
        drafts = store.put_together([draft(b"y" * 300), draft(b"z" * 300)])
    with opened(tmp_path / "records") as store:
        store.put("T1", 0, record(b"x" * 3500), 97)
        records = [record(b"y" * 300), record(b"z" * 300)]
        assert store.put_batch("T1", 0, records, [97, 97], [(), ()]) == drafts
    assert tree(tmp_path / "drafts") == tree(tmp_path / "records")


def test_a_failed_write_refuses_all_of_a_run_and_leaves_nothing(tmp_path: Path) -> None:
    files = FaultyFiles()
    with opened(tmp_path, files=files) as store:
        assert store.put_many([draft(b"a")])[1] is None
        files.write_bytes_left = 150
        places, error = store.put_many([draft(b"b"), draft(b"c", 1), draft(b"d")])
        assert places == []
        assert isinstance(error, DiskFullError)
        assert all_bodies(store) == [b"a"]
        assert store.max_offset("T1", 1) == 0
        files.write_bytes_left = None
        places, error = store.put_many([draft(b"e"), draft(b"f", 1)])
        assert error is None
        assert [offset for _, offset in places] == [1, 0]
        assert all_bodies(store) == [b"a", b"e"]


def test_of_a_run_over_two_files_what_is_refused_is_not_there(tmp_path: Path) -> None:
    files = FaultyFiles()
    with opened(tmp_path, files=files) as store:
        assert store.put_many([draft(b"x" * 3000)])[1] is None
        files.fail_reserve = True
        many = [draft(b"%d" % n * 400) for n in range(4)]
        places, error = store.put_many(many)
        assert isinstance(error, DiskFullError)
        assert all_bodies(store) == [b"x" * 3000, *(each[6] for each in many[: len(places)])]
        assert len(places) < 4
        files.fail_reserve = False


def test_a_run_that_fails_anywhere_shows_nobody_what_is_not_there(tmp_path: Path) -> None:
    """At any request to the disk; with places for the files of two queues only."""
    failures = 0
    for first in itertools.count(1, 2):
        files = BreakingFiles(errno.EIO, first, 1)
        root = tmp_path / str(first)
        store = MessageStore(root, small_config(queue_maps_max=2), ManualClock(), files)
        store.open()
        files.counts = True
        taken: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
        refused = 0
        for number in range(3):
            bodies = [(b"%d-%d" % (number, n) * 9, n % (1 + number % 3)) for n in range(9)]
            places, error = store.put_many([draft(body, queue) for body, queue in bodies])
            assert (error is None) == (len(places) == len(bodies))
            refused += len(bodies) - len(places)
            for body, queue in bodies[: len(places)]:
                taken[queue].append(body)
            counts, files.counts = files.counts, False
            for queue, expected in taken.items():
                assert all_bodies(store, queue_id=queue) == expected
            files.counts = counts
        files.counts = False
        store.abandon()
        with opened(root, files=QuickFiles()) as again:
            for queue, expected in taken.items():
                assert all_bodies(again, queue_id=queue) == expected
        failures += refused > 0
        if files.asked < first:
            break
    assert failures > 5


def test_a_closed_store_takes_no_run(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.put_many([draft(b"a")])
    places, error = store.put_many([draft(b"b")])
    assert places == []
    assert isinstance(error, StoreError)


@pytest.mark.parametrize(
    ("topic", "sys_flag", "host", "may"),
    [
        (b"t", 1 | 2 | 0x300, HOST, True),
        (b"t" * 127, 0, HOST, True),
        (b"t" * 128, 0, HOST, False),
        (b"", 0, HOST, False),
        (b"t", 4, HOST, False),
        (b"t", 8, HOST, False),
        (b"t", 0x10, HOST, False),
        (b"t", 0, pack_host("::1", 1), False),
    ],
)
def test_only_usual_messages_are_drafts(
    topic: bytes, sys_flag: int, host: bytes, may: bool
) -> None:
    assert may_be_draft(topic, sys_flag, host, HOST) is may
