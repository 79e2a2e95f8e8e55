"""How many workers should be awake: the decision of each tick, by its edges."""

from __future__ import annotations

import pytest

from rocketstream.client.core.parallelism import BUSY_TICKS_TO_SHRINK, FAST_CALLS_PER_MS, Governor

WALL_MS = 10.0


def test_workers_are_taken_back_after_eight_ticks() -> None:
    """At ticks of 1 and 5 ms: a short burst takes nobody away."""
    assert (BUSY_TICKS_TO_SHRINK, FAST_CALLS_PER_MS) == (8, 20)


class Ticking:
    """A governor whose clock goes on by 10 ms a tick."""

    def __init__(self, maximum: int = 20) -> None:
        self.governor = Governor(maximum)
        self.now_ms = 0.0
        self.cpu_ms = 0.0
        self.calls = 0

    def tick(
        self, *, busy_ms: float = 0, begun: int = 1, waiting: int = 9, awake: int = 1,
        calling: int | None = None,
    ) -> int:  # fmt: skip
        self.now_ms += WALL_MS
        self.cpu_ms += busy_ms
        self.calls += begun
        return self.governor.tick(
            self.now_ms,
            self.cpu_ms,
            self.calls,
            waiting=waiting,
            awake=awake,
            calling=awake if calling is None else calling,
        )

    def hot(self, ticks: int, *, awake: int) -> list[int]:
        """Let the processor be the limit for so many ticks; return what each one wants."""
        return [self.tick(busy_ms=WALL_MS, awake=awake) for _ in range(ticks)]


def test_one_worker_is_wanted_before_anything_is_known() -> None:
    assert Governor(20).target == 1


def test_workers_that_all_wait_are_doubled_up_to_the_maximum() -> None:
    """A slow listener costs no processor: more of them get more done."""
    given = Ticking()
    assert [given.tick(awake=n, waiting=99) for n in (1, 2, 4, 8, 16)] == [2, 4, 8, 16, 20]


def test_no_more_workers_are_wanted_than_there_are_batches() -> None:
    given = Ticking()
    assert given.tick(awake=8, waiting=3) == 11


def test_a_worker_that_is_between_two_calls_shows_that_there_are_enough() -> None:
    given = Ticking()
    given.governor.start(0.0, 0.0, 0, 4)
    assert given.tick(awake=4, calling=3) == 4
    assert given.tick(awake=4, calling=4) == 8


def test_nothing_waiting_changes_nothing() -> None:
    given = Ticking()
    given.governor.start(0.0, 0.0, 0, 4)
    assert given.tick(awake=4, waiting=0) == 4
    hot = [given.tick(busy_ms=WALL_MS, awake=4, waiting=0) for _ in range(BUSY_TICKS_TO_SHRINK)]
    assert hot == [4] * BUSY_TICKS_TO_SHRINK


@pytest.mark.parametrize(("share", "shrinks"), [(0.74, False), (0.75, True)])
def test_the_processor_is_the_limit_from_three_quarters_on(share: float, shrinks: bool) -> None:
    given = Ticking()
    given.governor.start(0.0, 0.0, 0, 8)
    wanted = [
        given.tick(busy_ms=share * WALL_MS, awake=8, calling=0) for _ in range(BUSY_TICKS_TO_SHRINK)
    ]
    assert wanted == [8] * (BUSY_TICKS_TO_SHRINK - 1) + [4 if shrinks else 8]


@pytest.mark.parametrize(("awake", "floor"), [(1, 1), (2, 1), (5, 2)])
def test_half_of_the_workers_are_taken_back_and_one_is_always_left(awake: int, floor: int) -> None:
    given = Ticking()
    given.governor.start(0.0, 0.0, 0, awake)
    assert given.hot(BUSY_TICKS_TO_SHRINK, awake=awake)[-1] == floor


def test_hot_ticks_count_only_in_a_row_and_anew_after_workers_were_taken_back() -> None:
    given = Ticking()
    given.governor.start(0.0, 0.0, 0, 8)
    short = BUSY_TICKS_TO_SHRINK - 1
    assert given.hot(short, awake=8) == [8] * short
    assert given.tick(awake=8, waiting=0) == 8, "nothing waited: begins anew"
    assert given.hot(short, awake=8) == [8] * short
    assert given.tick(awake=8, calling=7) == 8, "the processor had room: begins anew"
    assert given.hot(BUSY_TICKS_TO_SHRINK, awake=8) == [8] * short + [4]
    assert given.hot(short, awake=4) == [4] * short
    given.governor.start(given.now_ms, given.cpu_ms, given.calls, 4)
    assert given.hot(BUSY_TICKS_TO_SHRINK, awake=4) == [4] * short + [2]


@pytest.mark.parametrize("awake", [1, 3])
def test_calls_that_wait_for_nothing_count_by_worker(awake: int) -> None:
    """At 20 calls a millisecond and worker more workers would only compete."""
    at_once = int(FAST_CALLS_PER_MS * WALL_MS * awake)
    given = Ticking()
    given.governor.start(0.0, 0.0, 0, awake)
    fast = [given.tick(begun=at_once, awake=awake) for _ in range(BUSY_TICKS_TO_SHRINK)]
    assert fast == [awake] * (BUSY_TICKS_TO_SHRINK - 1) + [max(1, awake // 2)]
    assert given.tick(begun=at_once - 1, awake=awake) == 2 * awake


def test_without_an_awake_worker_one_counts_as_one() -> None:
    given = Ticking()
    assert given.tick(begun=0, awake=0) == 1
    assert given.hot(BUSY_TICKS_TO_SHRINK, awake=8)[:-1] == [1] * (BUSY_TICKS_TO_SHRINK - 1)
    given = Ticking()
    assert [given.tick(begun=199, awake=0, calling=0) for _ in range(2)] == [1, 1]
    assert given.tick(begun=200, awake=0, calling=0, waiting=0) == 1
    given.governor.start(0.0, 0.0, 0, 0)
    assert given.governor.target == 1


def test_a_clock_that_stood_still_or_went_back_decides_nothing() -> None:
    given = Ticking()
    given.governor.start(5.0, 0.0, 0, 3)
    for now_ms in (5.0, 4.0):
        assert given.governor.tick(now_ms, 99.0, 99, waiting=9, awake=3, calling=3) == 3
    assert given.governor.tick(5.5, 0.0, 1, waiting=9, awake=3, calling=3) == 6


def test_the_first_tick_counts_from_nothing() -> None:
    """Neither a call nor a moment of the processor is known of before it."""
    given = Ticking()
    for _ in range(BUSY_TICKS_TO_SHRINK - 1):
        given.tick(busy_ms=0.75 * WALL_MS, begun=0, awake=4)
    assert given.tick(busy_ms=0.75 * WALL_MS, begun=0, awake=4) == 2
    fresh = Ticking(4)
    fresh.tick(begun=0, awake=4)
    assert fresh.governor.is_steady


def test_it_is_steady_while_all_workers_are_in_one_and_the_same_call() -> None:
    """Then no tick is needed before a call returns: a blocked listener costs no processor."""
    given = Ticking(4)
    given.tick(begun=4, awake=4)
    assert not given.governor.is_steady
    given.tick(begun=0, awake=4)
    assert given.governor.is_steady
    given.tick(begun=0, awake=3)
    assert not given.governor.is_steady, "one more may be woken"
    given.tick(begun=0, awake=4)
    assert given.governor.is_steady
    given.tick(begun=0, awake=4, waiting=0)
    assert not given.governor.is_steady
    given.tick(begun=0, awake=4)
    given.governor.start(given.now_ms, given.cpu_ms, given.calls, 4)
    assert not given.governor.is_steady


@pytest.mark.parametrize(
    ("busy_ms", "begun", "calling", "steady"),
    [(0, 0, 4, True), (WALL_MS, 0, 4, False), (0, 1, 4, False), (0, 0, 3, False)],
)
def test_it_is_not_steady_where_a_tick_could_change_something(
    busy_ms: float, begun: int, calling: int, steady: bool
) -> None:
    """Where the processor is the limit some are taken back, and after a call more may be wanted."""
    given = Ticking(4)
    given.governor.start(0.0, 0.0, 0, 4)
    assert given.tick(busy_ms=busy_ms, begun=begun, awake=4, calling=calling) == 4
    assert given.governor.is_steady is steady


def test_a_new_maximum_applies_at_once_and_to_what_is_wanted_later() -> None:
    given = Ticking()
    given.governor.start(0.0, 0.0, 0, 8)
    given.governor.resize(3)
    assert (given.governor.maximum, given.governor.target) == (3, 3)
    given.governor.resize(5)
    assert given.governor.target == 3
    assert given.tick(awake=3) == 5
