"""Snapshots in micro-batches: when one is due, what a batch holds, what a restart does."""

from __future__ import annotations

import pytest

from rocketstream.errors import ConfigurationError, ConnectError
from rocketstream.spark.progress.history import History, SnapshotOffset
from rocketstream.spark.progress.tables import CLUSTER_COLUMNS, Row
from rocketstream.testing.clock import ManualClock

BEGIN = SnapshotOffset()


class Cluster:
    """Takes snapshots of one row, their time; out of reach when told so."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.is_down = False

    def take(self, at_ms: int) -> list[Row]:
        self.taken.append(at_ms)
        if self.is_down:
            raise ConnectError("no name server answered")
        return [(at_ms,)]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def history(cluster: Cluster, clock: ManualClock) -> History:
    made = History(cluster.take, 1_000, clock)
    made.stop()  # nobody waits in a test
    return made


def test_the_first_snapshot_is_due_at_once_and_the_next_after_the_interval(
    history: History, clock: ManualClock, cluster: Cluster
) -> None:
    first = history.latest(BEGIN)
    assert first.number == 1
    assert history.rows(BEGIN, first) == [(first.at_ms,)]
    clock.advance(999)
    assert history.latest(first) is first
    clock.advance(1)
    second = history.latest(first)
    assert (second.number, second.at_ms - first.at_ms) == (2, 1_000)
    assert cluster.taken == [first.at_ms, second.at_ms]


def test_a_batch_holds_the_snapshot_it_was_planned_with(
    history: History, clock: ManualClock, cluster: Cluster
) -> None:
    first = history.latest(BEGIN)
    clock.advance(500)
    assert history.rows(BEGIN, first) == [(first.at_ms,)]
    assert len(cluster.taken) == 1


def test_a_replayed_batch_takes_a_snapshot_of_its_own_time(
    history: History, clock: ManualClock
) -> None:
    """Progress cannot be read again, and what was then is not invented."""
    planned = SnapshotOffset(7, clock.now_ms())
    clock.advance(60_000)
    assert history.rows(SnapshotOffset(6, planned.at_ms - 1_000), planned) == [(clock.now_ms(),)]
    assert history.latest(planned).number == 8


def test_an_empty_range_takes_none(history: History, cluster: Cluster) -> None:
    """Spark 4.0 and 4.1 say so where a restart goes on."""
    logged = SnapshotOffset(3, 1)
    assert history.rows(logged, logged) == []
    assert cluster.taken == []
    assert history.latest(None).number == 4


def test_available_now_is_one_snapshot_even_if_none_is_due(
    history: History, clock: ManualClock
) -> None:
    start = SnapshotOffset(3, clock.now_ms())
    history.prepare_available_now()
    end = history.latest(start)
    assert end.number == 4
    clock.advance(10_000)
    assert history.latest(end) is end


def test_a_clock_that_was_set_back_does_not_silence_the_history(
    history: History, clock: ManualClock
) -> None:
    ahead = SnapshotOffset(3, clock.now_ms() + 3_600_000)
    assert history.latest(ahead).number == 4


def test_an_outage_is_a_row_with_its_reason(history: History, cluster: Cluster) -> None:
    cluster.is_down = True
    end = history.latest(BEGIN)
    (row,) = history.rows(BEGIN, end)
    told = dict(zip(CLUSTER_COLUMNS, row, strict=True))
    assert told.pop("error") == "no name server answered"
    assert told.pop("observedAt") == end.at_ms
    assert set(told.values()) == {None}


def test_offsets_are_read_back_and_foreign_ones_refused() -> None:
    offset = SnapshotOffset(3, 17)
    assert SnapshotOffset.from_json(offset.to_json()) == offset
    for value in ({"v": 2, "q": {}}, {"v": 1, "snapshot": "3", "at": 1}, None):
        with pytest.raises(ConfigurationError, match="not an offset of rocketmq-progress"):
            SnapshotOffset.from_json(value)
