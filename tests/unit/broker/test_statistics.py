"""Windows of statistics, counts of days and times of puts, from totals and times alone."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from rocketstream.server.broker.core.days import DayCounts, Mornings
from rocketstream.server.broker.core.sampled import INTERVALS_MS, Pace, SampledTotals, Totals
from rocketstream.server.store.put_times import PutTimes

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
    assert len(track) <= 8


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
