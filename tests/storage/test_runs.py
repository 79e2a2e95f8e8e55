"""Messages put together: the files of single puts, and all or nothing of each write."""

from __future__ import annotations

import errno
import itertools
from pathlib import Path

import pytest

from rocketstream.errors import DiskFullError, LocalProtocolError, StoreError
from rocketstream.protocol.record import Draft, new_draft, record_of, sealable
from rocketstream.server.store import MessageStore, Place
from rocketstream.testing.clock import ManualClock
from tests.kits.stores import (
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
    text = sealable(b"TAGS\x01a")
    return new_draft(topic, queue_id, 3, 1, BORN_MS, HOST, HOST, body, text, 97, keys)


def append(store: MessageStore, drafts: list[Draft]) -> tuple[list[Place], StoreError | None]:
    """Store messages as a broker does that took them together; return the error of the others."""
    places: list[Place] = []
    while len(places) < len(drafts):
        try:
            places += store.append(drafts[len(places) :])
        except StoreError as error:
            return places, error
    return places, None


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
            stored, error = append(store, some)
            assert error is None
            places += stored
    with opened(single) as store:
        expected, told = [], []
        for body, queue, keys in sent:
            (place,) = store.append([draft(body, queue, keys=keys)])
            expected.append(place)
            told.append(("T1", queue, place[1] + 1, 97))
    assert places == expected
    assert arrived == told
    left, right = tree(runs), tree(single)
    assert len(left) > 10
    assert left == right


def test_a_batch_stays_in_one_file(tmp_path: Path) -> None:
    """The file is closed with a blank before it, where a run goes on in the next one (W 4.5)."""
    batch = [draft(b"y" * 300), draft(b"z" * 300)]
    with opened(tmp_path / "whole") as store:
        store.append([draft(b"x" * 3300)])
        assert store.append(batch, whole=True) == [(4096, 1), (4096 + len(batch_record(batch)), 2)]
    with opened(tmp_path / "run") as store:
        store.append([draft(b"x" * 3300)])
        (first,) = store.append(batch)
        assert first[0] < 4096
        assert store.append(batch[1:]) == [(4096, 2)]


def batch_record(batch: list[Draft]) -> bytes:
    return record_of(batch[0], 0, 0, 0)


def test_a_number_no_record_carries_stores_nothing_of_its_run(tmp_path: Path) -> None:
    odd = new_draft("T1", 0, 1 << 31, 0, BORN_MS, HOST, HOST, b"odd", b"")
    with opened(tmp_path) as store:
        with pytest.raises(LocalProtocolError):
            store.append([draft(b"a"), odd])
        assert store.physical_max_offset == 0
        store.append([draft(b"b")])
        assert all_bodies(store) == [b"b"]


def test_a_failed_write_refuses_all_of_a_run_and_leaves_nothing(tmp_path: Path) -> None:
    files = FaultyFiles()
    with opened(tmp_path, files=files) as store:
        assert append(store, [draft(b"a")])[1] is None
        files.write_bytes_left = 150
        places, error = append(store, [draft(b"b"), draft(b"c", 1), draft(b"d")])
        assert places == []
        assert isinstance(error, DiskFullError)
        assert all_bodies(store) == [b"a"]
        assert store.max_offset("T1", 1) == 0
        files.write_bytes_left = None
        places, error = append(store, [draft(b"e"), draft(b"f", 1)])
        assert error is None
        assert [offset for _, offset in places] == [1, 0]
        assert all_bodies(store) == [b"a", b"e"]


def test_of_a_run_over_two_files_what_is_refused_is_not_there(tmp_path: Path) -> None:
    files = FaultyFiles()
    with opened(tmp_path, files=files) as store:
        assert append(store, [draft(b"x" * 3000)])[1] is None
        files.fail_reserve = True
        many = [draft(b"%d" % n * 400) for n in range(4)]
        places, error = append(store, many)
        assert isinstance(error, DiskFullError)
        assert all_bodies(store) == [b"x" * 3000, *(each[10] for each in many[: len(places)])]
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
            places, error = append(store, [draft(body, queue) for body, queue in bodies])
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
        append(store, [draft(b"a")])
    places, error = append(store, [draft(b"b")])
    assert places == []
    assert isinstance(error, StoreError)
