"""Rates of a consumer over the last minute and hour (C-540, ConsumerStatsManager)."""

from __future__ import annotations

import threading

import pytest

from rocketstream.client.stats import SAMPLE_INTERVAL_MS, ConsumerStats
from rocketstream.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def sample_for(stats: ConsumerStats, clock: ManualClock, seconds: int) -> None:
    """Let time pass as the instance's timer sees it."""
    for _ in range(seconds * 1000 // SAMPLE_INTERVAL_MS):
        clock.advance(SAMPLE_INTERVAL_MS)
        stats.sample()


def test_a_figure_that_begins_now_is_spread_over_ten_seconds(clock: ManualClock) -> None:
    """Covers C-540: no span is empty, so nothing is divided by zero."""
    stats = ConsumerStats(clock)
    stats.inc_pull_tps("g", "T", 50)
    stats.inc_pull_rt("g", "T", 12)
    status = stats.consume_status("g", "T")
    assert status.pull_tps == pytest.approx(5.0)
    assert status.pull_rt == 12


def test_rates_are_those_of_the_last_minute(clock: ManualClock) -> None:
    """Covers C-540: what is older than a minute has left the rates."""
    stats = ConsumerStats(clock)
    stats.inc_consume_ok_tps("g", "T", 600)
    sample_for(stats, clock, 60)
    assert stats.consume_status("g", "T").consume_ok_tps == pytest.approx(10.0, rel=0.2)
    sample_for(stats, clock, 20)
    assert stats.consume_status("g", "T").consume_ok_tps == 0


def test_the_mean_of_a_quiet_minute_is_that_of_the_hour(clock: ManualClock) -> None:
    """Covers C-540: consumeRT falls back to the hour, consumeFailedMsgs is the hour's."""
    stats = ConsumerStats(clock)
    stats.inc_consume_rt("g", "T", 30, calls=3)
    stats.inc_consume_failed_tps("g", "T", 7)
    sample_for(stats, clock, 600)
    status = stats.consume_status("g", "T")
    assert status.consume_rt == 10
    assert (status.consume_failed_tps, status.consume_failed_msgs) == (0, 7)
    sample_for(stats, clock, 2 * 3600)
    status = stats.consume_status("g", "T")
    assert (status.consume_rt, status.consume_failed_msgs) == (0, 0)


def test_figures_of_an_hour_without_calls_are_dropped(clock: ManualClock) -> None:
    """A client that lives for months consumes topics that come and go."""
    stats = ConsumerStats(clock)
    stats.inc_pull_tps("g", "gone", 5)
    stats.inc_pull_tps("g", "T", 5)
    sample_for(stats, clock, 1800)
    stats.inc_pull_tps("g", "T", 5)
    sample_for(stats, clock, 1800)
    assert {topic for _, _, topic in stats._items} == {"gone", "T"}
    sample_for(stats, clock, 1200)
    assert {topic for _, _, topic in stats._items} == {"T"}
    stats.inc_pull_tps("g", "gone", 50)
    assert stats.consume_status("g", "gone").pull_tps == pytest.approx(5.0)


def test_groups_and_topics_are_counted_apart_and_namespaces_do_not_matter(
    clock: ManualClock,
) -> None:
    stats = ConsumerStats(clock, "ns")
    stats.inc_pull_tps("ns%g", "ns%T", 10)
    stats.inc_pull_tps("g", "T", 10)
    stats.inc_pull_tps("g", "U", 99)
    assert stats.consume_status("g", "T").pull_tps == pytest.approx(2.0)
    assert stats.consume_status("h", "T").pull_tps == 0
    stats.forget("ns%g")
    assert stats.consume_status("g", "U").pull_tps == 0


def test_no_figure_is_lost_between_threads(clock: ManualClock) -> None:
    stats = ConsumerStats(clock)
    barrier = threading.Barrier(4)

    def add() -> None:
        barrier.wait(10)
        for _ in range(5_000):
            stats.inc_consume_failed_tps("g", "T", 1)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stats.consume_status("g", "T").consume_failed_msgs == 20_000
