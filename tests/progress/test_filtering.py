"""What follows for all messages of a queue from looking at some."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstream.admin.core.filtering import Count, estimate, estimate_of_runs, scaled, spread


@given(st.integers(0, 5_000), st.integers(1, 500))
def test_places_are_spread_over_the_whole_without_one_taken_twice(total: int, most: int) -> None:
    places = spread(total, most)
    assert places == sorted(set(places))
    assert len(places) <= most
    assert all(0 <= place < total for place in places)
    if total <= most:
        assert places == list(range(total))
    else:
        assert len(places) == most
        assert all(
            abs(place - i * total / most) <= total / most + 1 for i, place in enumerate(places)
        )


def test_places_do_not_step_with_what_repeats() -> None:
    """Every tenth message matches: taking every tenth would find all or none."""
    found = sum(place % 10 == 0 for place in spread(10_000, 1_000))
    assert 70 < found < 130


@given(st.integers(1, 3_000), st.data())
def test_bounds_are_never_beyond_what_was_seen(total: int, data: st.DataObject) -> None:
    looked_at = data.draw(st.integers(0, total))
    wanted = data.draw(st.integers(0, looked_at))
    count = estimate(wanted, looked_at, total)
    assert wanted <= count.low <= count.matching <= count.high <= total - (looked_at - wanted)
    if looked_at == total:
        assert count == Count.exactly(wanted)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.97])
def test_the_truth_is_within_the_bounds_in_19_of_20_cases(share: float) -> None:
    chance = random.Random(5)
    right = 0
    for _ in range(300):
        wanted = [chance.random() < share for _ in range(4_000)]
        seen = [wanted[place] for place in spread(4_000, 384)]
        count = estimate(sum(seen), len(seen), 4_000)
        right += count.low <= sum(wanted) <= count.high
    assert right >= 280


def test_runs_of_neighbours_count_as_one_observation_each() -> None:
    """All that is wanted is in half of the runs: less is known than from 4,000 single ones."""
    runs = [(1_000, 1_000), (0, 1_000), (1_000, 1_000), (0, 1_000)]
    count = estimate_of_runs(runs, 40_000)
    single = estimate(2_000, 4_000, 40_000)
    assert count.matching == single.matching == 20_000
    assert count.high - count.low > 10 * (single.high - single.low)
    assert estimate_of_runs(runs, 4_000) == Count.exactly(2_000)
    assert estimate_of_runs([], 10) == Count(0, 0, 10)


def test_a_second_look_takes_its_share() -> None:
    assert scaled(Count.exactly(100), Count.exactly(20), 20) == Count.exactly(100)
    assert scaled(Count.exactly(20), Count.exactly(5), 20) == Count.exactly(5)
    assert scaled(Count(100, 80, 120), Count(10, 8, 12), 20) == Count(50, 32, 72)
