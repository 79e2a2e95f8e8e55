"""When rounds of a benchmark are enough: what counts as steady, and whose turn it is."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.harness import Figure
from benchmarks.rounds import USUAL, Rounds, Rule, in_turn, is_steady, one_way, steady

LEVEL = (100.0, 101.0, 99.0, 100.0, 102.0, 99.0)
COLD = 20.0


def test_six_rounds_that_say_the_same_are_steady() -> None:
    assert is_steady((COLD, *LEVEL))


def test_the_cold_round_never_counts() -> None:
    assert not is_steady(LEVEL), "five rounds after the first"
    assert is_steady((1e9, *LEVEL))


def test_a_side_that_still_warms_up_is_not_steady() -> None:
    assert not is_steady((COLD, 60.0, 70.0, 80.0, 88.0, 94.0, 98.0))


def test_halves_that_differ_by_more_than_the_drift_are_not_steady() -> None:
    assert is_steady((COLD, 100.0, 99.0, 101.0, 108.0, 107.0, 99.0))
    assert not is_steady((COLD, 100.0, 99.0, 101.0, 109.0, 110.0, 99.0))


@pytest.mark.parametrize("rounds", [(100, 101, 102, 103, 104, 106), (106, 104, 103, 102, 101, 100)])
def test_a_trend_is_not_steady_though_its_halves_are_near(rounds: tuple[float, ...]) -> None:
    assert one_way(rounds) == 1.0
    assert not is_steady((COLD, *rounds))


def test_the_slightest_drift_is_no_trend() -> None:
    assert is_steady((COLD, 100.0, 100.1, 100.2, 100.3, 100.4, 100.5))


def test_noise_around_a_level_is_steady_and_told_by_the_range() -> None:
    rounds = Rounds((COLD, 80.0, 120.0, 100.0, 82.0, 119.0, 101.0))
    assert rounds.steady
    assert (min(rounds.kept), rounds.median, max(rounds.kept)) == (80.0, 100.5, 120.0)


def test_only_the_last_rounds_are_reported() -> None:
    rounds = Rounds((COLD, 50.0, 70.0, *LEVEL))
    assert rounds.cold == COLD
    assert rounds.kept == LEVEL
    assert rounds.median == 100.0


def test_a_side_that_never_counted_anything_divides_by_nothing() -> None:
    assert is_steady((0.0,) * 7)
    assert not is_steady((0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0))


def test_rounds_end_as_soon_as_all_sides_are_steady() -> None:
    ours = itertools.chain([COLD, 50.0, 70.0, 90.0], itertools.cycle(LEVEL))
    done = in_turn({"ours": lambda: next(ours), "peer": lambda: 7.0})
    assert [len(each.all) for each in done.values()] == [9, 9], "nothing of 50 and 70 left"
    assert all(each.steady for each in done.values())


def test_rounds_that_never_become_steady_end_and_say_so() -> None:
    doubling = (2.0**number for number in itertools.count())
    rounds = steady(lambda: next(doubling), Rule(most=10))
    assert len(rounds.all) == 10
    assert not rounds.steady
    figure = Figure("doubling", "msg/s", rounds)
    assert figure.line()["ours"]["steady"] is False


def test_no_side_always_follows_the_same_one() -> None:
    order: list[str] = []

    def side(name: str) -> float:
        order.append(name)
        return 1.0

    in_turn({"a": lambda: side("a"), "b": lambda: side("b")})
    assert order[:8] == ["a", "b", "b", "a", "a", "b", "b", "a"]


def test_a_figure_tells_the_cold_round_beside_the_steady_ones() -> None:
    mine, other = Rounds((COLD, *LEVEL)), Rounds((5.0, *(each / 2 for each in LEVEL)))
    line = Figure("sends", "msg/s", mine, "peer", other).line()
    assert line["ours"] == {
        "min": 99.0, "median": 100.0, "max": 102.0, "cold": 20.0, "rounds": 7, "steady": True,
    }  # fmt: skip
    assert line["ratio"] == 2.0, "of the steady rounds, the cold ones would say four"


def test_launches_have_no_cold_round_and_all_of_them_count() -> None:
    line = Figure("start", "s", [3.0, 1.0, 2.0]).line()
    assert line["ours"] == {"min": 1.0, "median": 2.0, "max": 3.0, "runs": 3}


def test_the_window_of_the_usual_rule_is_what_the_text_says() -> None:
    assert (USUAL.window, USUAL.drift_max, USUAL.one_way_max, USUAL.most) == (6, 0.08, 0.8, 16)
