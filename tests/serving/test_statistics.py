"""Windows of statistics, counts of days and times of puts, from totals and times alone."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

import rocketstream.server.broker.statistics as statistics_module
from rocketstream.server.broker.core.days import DayCounts, Mornings
from rocketstream.server.broker.core.sampled import (
    INTERVALS_MS,
    SAMPLES,
    STEP,
    Pace,
    SampledTotals,
    Totals,
)
from rocketstream.server.broker.statistics import BrokerStatistics
from rocketstream.server.store import MessageStore
from rocketstream.server.store.put_times import PutTimes
from rocketstream.testing import ManualClock
from rocketstream.transport.sharing import Sharing

TODAY = datetime(2026, 3, 1, tzinfo=UTC).toordinal()


class Sampling:
    """Samples of one pace, taken on time."""

    def __init__(self, pace: Pace = Pace.MINUTE) -> None:
        self.samples, self.pace, self.now_ms = SampledTotals(), pace, 0.0

    def take(self, **totals: int | Totals) -> None:
        self.now_ms += INTERVALS_MS[self.pace]
        counted = [
            (key, total if isinstance(total, Totals) else Totals(total, 0, total))
            for key, total in totals.items()
        ]
        for _ in self.samples.taking(self.pace, self.now_ms, counted):
            pass

    def window(self, *keys: str) -> tuple[int, float]:
        window = self.samples.window(self.pace, keys)
        return window.grown.nums, window.span_ms


def test_what_was_never_sampled_has_no_window() -> None:
    sampling = Sampling()
    assert sampling.window("a") == (0, 0.0)
    sampling.take(b=1)
    assert sampling.window("a") == (0, 0.0)


def test_a_first_sample_counts_from_one_interval_before() -> None:
    """As StatsItem, which puts a zero ten seconds before its first sample."""
    sampling = Sampling()
    sampling.take()
    sampling.take(a=50)
    assert sampling.window("a") == (50, 10_000)
    sampling.take(a=70)
    assert sampling.window("a") == (70, 20_000)


@pytest.mark.parametrize(("pace", "samples"), [(0, 6), (1, 6), (2, 24)])
def test_a_window_is_as_long_as_its_name_says(pace: int, samples: int) -> None:
    sampling = Sampling(Pace(pace))
    for total in range(1, 40):
        sampling.take(a=total * 10)
    assert sampling.window("a") == (samples * 10, samples * INTERVALS_MS[pace])


def test_what_came_to_rest_leaves_the_window() -> None:
    sampling = Sampling()
    for _ in range(6):
        sampling.take(a=50)
        assert sampling.window("a")[0] == 50
    sampling.take(a=50)
    assert sampling.window("a") == (0, 60_000)
    sampling.take(a=51)
    assert sampling.window("a") == (1, 60_000)


def test_queues_make_a_topic_together() -> None:
    """One that is written to later does not shorten the window of the others."""
    sampling = Sampling()
    for total in range(10, 30):
        sampling.take(a=total)
    sampling.take(a=30, b=5)
    assert sampling.window("a", "b", "nobody") == (6 + 5, 60_000)


def test_what_is_forgotten_begins_anew() -> None:
    sampling = Sampling()
    for total in range(10, 30):
        sampling.take(a=total)
    sampling.samples.forget(lambda key: key == "a")
    assert sampling.window("a") == (0, 0.0)
    sampling.take(a=3)
    assert sampling.window("a") == (3, 10_000)


def test_samples_are_as_many_as_their_window_has() -> None:
    sampling = Sampling()
    for total in range(1_000):
        sampling.take(a=total)
    (track,) = sampling.samples._paces[Pace.MINUTE]._tracks.values()
    assert len(track) == 7


def test_mornings_are_what_was_counted_at_midnight() -> None:
    days = DayCounts(since_ms=1, day=TODAY).counted(TODAY, 10, 4)
    assert (days.puts, days.put_mornings) == (10, Mornings(0, 0))
    days = days.counted(TODAY + 1, 1, 0).counted(TODAY + 1, 2, 2)
    assert (days.puts, days.put_mornings) == (13, Mornings(10, 0))
    assert (days.gets, days.get_mornings) == (6, Mornings(4, 0))
    days = days.counted(TODAY + 2, 0, 0)
    assert days.put_mornings == Mornings(13, 10)


def test_days_spent_stopped_are_days_without_messages() -> None:
    days = DayCounts(since_ms=1, day=TODAY).counted(TODAY, 10, 4)
    read = DayCounts.decode(days.encode(pretty=True))
    assert read == days
    assert read.counted(TODAY + 3, 5, 0).put_mornings == Mornings(10, 10)


def test_a_clock_set_back_ends_no_day() -> None:
    days = DayCounts(since_ms=1, day=TODAY).counted(TODAY, 10, 4).counted(TODAY - 1, 1, 1)
    assert (days.day, days.puts, days.put_mornings) == (TODAY, 11, Mornings(0, 0))


def test_times_of_the_last_minute_are_told_as_upstream_does() -> None:
    times = PutTimes()
    assert times.distribution() == "null"
    assert times.percentile_ms(0.99) == 0
    times.slow(3)
    times.slow(60, 2)
    times.slow(12_000)
    times.roll(1_000)
    told = dict(part.rsplit(":", 1) for part in times.distribution().split())
    assert told["[<=0ms]"] == "996"
    assert (told["[0~10ms]"], told["[50~100ms]"], told["[10s~]"]) == ("1", "2", "1")
    assert times.longest_ms == 12_000
    assert times.percentile_ms(0.5) == pytest.approx(500 / 996)
    assert times.percentile_ms(0.999) == pytest.approx(60)
    times.roll(1_010)
    assert times.distribution().startswith("[<=0ms]:10 [0~10ms]:0 ")
    assert times.longest_ms == 12_000


@pytest.mark.parametrize(("things", "steps"), [(0, 0), (499, 0), (500, 1), (999, 1), (1_000, 2)])
def test_every_five_hundred_things_sampled_are_a_step(things: int, steps: int) -> None:
    """Between steps the broker serves others."""
    counted = [(str(number), Totals(1, 0, 1)) for number in range(things)]
    assert len(list(SampledTotals().taking(Pace.MINUTE, 10_000, counted))) == steps


def test_what_came_to_rest_costs_no_more_samples() -> None:
    sampling = Sampling()
    for total in (1, 2, 2, 2, 2):
        sampling.take(a=total)
    track = sampling.samples._paces[Pace.MINUTE]._tracks["a"]
    assert [(tick, totals.nums) for tick, totals in track] == [(1, 1), (2, 2)]
    for _ in range(3):
        sampling.take(a=2)
    assert [(tick, totals.nums) for tick, totals in track] == [(2, 2)]
    assert sampling.window("a") == (0, 60_000)


def test_what_came_late_counts_from_one_interval_before_although_a_tick_was_late() -> None:
    """As StatsItem: its zero is as old as the interval, whenever the tick before it was."""
    sampling = Sampling()
    sampling.take(old=1)
    sampling.now_ms += 5_000
    for total in range(1, 7):
        sampling.take(old=total + 1, a=total)
    assert sampling.window("a") == (6, 60_000)
    assert sampling.window("old") == (6, 65_000)


def test_samples_of_the_paces_are_taken_as_often_as_apaches() -> None:
    """Code 315 tells a minute, an hour and a day, of 6, 6 and 24 intervals."""
    assert INTERVALS_MS == (10_000, 600_000, 3_600_000)
    assert [
        interval * (samples - 1) for interval, samples in zip(INTERVALS_MS, SAMPLES, strict=True)
    ] == [60_000, 3_600_000, 86_400_000]


def test_bytes_calls_and_time_grow_with_what_is_counted() -> None:
    sampling = Sampling()
    sampling.take(a=Totals(1, 10, 1, 3), b=Totals(2, 20, 2, 4))
    sampling.take(a=Totals(4, 50, 2, 9), b=Totals(2, 20, 2, 4))
    window = sampling.samples.window(Pace.MINUTE, ["a", "b"])
    assert window.grown == Totals(6, 70, 4, 13)
    assert window.span_ms == 20_000
    assert sampling.samples.window(Pace.HOUR, ["a"]).grown == Totals(0, 0, 0, 0)


def test_a_thing_is_forgotten_in_every_pace() -> None:
    samples = SampledTotals()
    for pace in Pace:
        list(samples.taking(pace, 1.0, [("a", Totals(1)), ("b", Totals(1))]))
    samples.forget(lambda key: key == "a")
    told = [(samples.window(pace, ["a"]), samples.window(pace, ["b"])) for pace in Pace]
    assert [(gone.span_ms, kept.grown.nums) for gone, kept in told] == [(0.0, 1)] * 3


def test_a_message_stored_and_one_given_count_each_by_itself() -> None:
    days = DayCounts(since_ms=1, day=TODAY)
    assert days.counted(TODAY, 0, 3).gets == 3
    assert days.counted(TODAY, 2, 0).puts == 2
    assert days.counted(TODAY, 0, 0) == days
    assert (days.puts, days.gets) == (0, 0)
    assert (days.put_mornings, days.get_mornings) == (Mornings(0, 0), Mornings(0, 0))


def test_a_day_after_days_stopped_has_mornings_of_its_own() -> None:
    days = DayCounts(since_ms=1, day=TODAY).counted(TODAY, 10, 4).counted(TODAY + 2, 1, 1)
    assert (days.day, days.put_mornings, days.get_mornings) == (
        TODAY + 2,
        Mornings(10, 10),
        Mornings(4, 4),
    )
    days = days.counted(TODAY + 3, 0, 0)
    assert (days.put_mornings, days.get_mornings) == (Mornings(11, 10), Mornings(5, 4))


def test_the_file_of_counts_is_one_line_unless_people_are_to_read_it() -> None:
    days = DayCounts(since_ms=1, day=TODAY, puts=2, gets=3)
    assert b"\n" not in days.encode()
    assert b"\n\t" in days.encode(pretty=True)
    assert DayCounts.decode(days.encode()) == DayCounts.decode(days.encode(pretty=True)) == days


def test_a_sample_in_steps_goes_on_where_groups_come_meanwhile() -> None:
    """It was thrown away, with a traceback, and a busy broker told rates of minutes ago."""
    clock = ManualClock()
    steps: list[Any] = []
    statistics = BrokerStatistics(cast("MessageStore", NothingPut()), clock)
    statistics.sharing = cast("Sharing", SimpleNamespace(start=steps.append))
    for number in range(2 * STEP):
        statistics.pulled("T", number, "g", 6, 1, 0.0)
    clock.advance(INTERVALS_MS[Pace.MINUTE])
    statistics.sample()
    next(steps[0])
    statistics.pulled("T", 0, "new", 1, 1, 0.0)
    assert sum(1 for _ in steps[0]) == 1
    assert statistics.pulled_per_second("T", "g", 2 * STEP) > 0


class Pulls:
    """Statistics of pulls from a topic, sampled every ten seconds."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.statistics = BrokerStatistics(cast("MessageStore", NothingPut()), self.clock)

    def run(self, seconds: int, *groups: str) -> None:
        """Let each group pull a message a second."""
        for _ in range(seconds // 10):
            for group in groups:
                self.statistics.pulled("T", 0, group, 10, 1, 0.0)
            self.clock.advance(10_000)
            self.statistics.sample()

    def rate(self, group: str) -> float:
        return self.statistics.pulled_per_second("T", group, 1)

    def sampled(self) -> list[set[Any]]:
        """What there are samples of, by pace."""
        broker = {("", -1), ("", -1, "")}
        return [set(each._tracks) - broker for each in self.statistics._samples._paces]


def test_where_no_more_is_counted_a_live_group_takes_the_place_of_one_that_rests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new group's rate was told as 0 for ever, however long the others had been gone."""
    monkeypatch.setattr(statistics_module, "STATISTICS_MAX", 2)
    pulls = Pulls()
    pulls.run(60, "old", "live")
    pulls.run(580, "live")
    pulls.run(10, "live", "new")
    assert [pulls.rate(group) for group in ("old", "live", "new")] == [0, 1, 0]
    pulls.run(60, "live", "new")
    assert [pulls.rate(group) for group in ("old", "live", "new")] == [0, 1, 1]
    assert pulls.sampled()[Pace.MINUTE] == {("T", 0, "live"), ("T", 0, "new")}
    pulls.run(60, "live", "new", "one more")
    assert [pulls.rate(group) for group in ("live", "new", "one more")] == [1, 1, 0]


def test_a_group_that_rested_for_a_day_is_counted_no_more() -> None:
    """Groups that ran once stayed until the broker ended."""
    pulls = Pulls()
    pulls.run(10, "once", "live")
    pulls.statistics.sent_back("T", "once")
    pulls.run(24 * 3_600 - 20, "live")
    assert pulls.statistics.view("GROUP_GET_NUMS", "T@once", "c", 1) is not None
    pulls.run(2 * 3_600, "live")
    assert pulls.statistics.view("GROUP_GET_NUMS", "T@once", "c", 1) is None
    assert pulls.statistics.view("SNDBCK_PUT_NUMS", "T@once", "c", 1) is None
    assert pulls.sampled() == [{("T", 0, "live")}] * 3
    pulls.run(60, "once", "live")
    assert (pulls.rate("once"), pulls.rate("live")) == (1, 1)


def test_what_is_forgotten_while_samples_are_taken_is_not_sampled() -> None:
    """Nobody would forget such a sample any more."""
    pulls = Pulls()
    steps: list[Any] = []
    pulls.statistics.sharing = cast("Sharing", SimpleNamespace(start=steps.append))
    for number in range(2 * STEP):
        pulls.statistics.pulled("T", number, "g", 1, 1, 0.0)
    pulls.clock.advance(10_000)
    pulls.statistics.sample()
    next(steps[0])
    pulls.statistics.group_deleted("g")
    assert list(steps[0]) == []
    assert pulls.sampled()[Pace.MINUTE] == set()


class NothingPut:
    """A store nothing is put into."""

    put_times = PutTimes()

    def counted(self) -> list[tuple[str, int, tuple[int, int, int]]]:
        return []
