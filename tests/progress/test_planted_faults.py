"""How verdicts come and go with what a group does; the table of faults is in ``scenarios``."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rocketstream.admin.state import Verdict
from tests.progress.bench_of_verdicts import Course, watched
from tests.progress.virtual_group import MINUTE, Call, Client, Group, Listener, Queue, Stored


def takes(call_ms: float, fails: Callable[[int], bool] = lambda number: False) -> Listener:
    """A listener whose calls take so long, and that fails messages of some numbers for good."""

    def listener(group: Group, client: Client, queue: Queue, message: Stored, at_ms: int) -> Call:
        return Call(call_ms, not fails(int(message.key[1:])))

    return listener


def judged(group: Group, minutes: float) -> Course:
    return watched([group], minutes)["billing"]


def seen(course: Course) -> set[Verdict]:
    return {verdict for _, verdict, _ in course.verdicts}


@pytest.mark.parametrize(
    ("threads", "call_s", "rate", "queues", "backlog"),
    [(4, 10, 2, 8, 60), (20, 60, 1, 16, 50), (2, 20, 1, 4, 0), (8, 2, 5, 4, 0)],
)
def test_a_group_that_falls_behind_is_told_in_six_minutes_and_never_called_well_then(
    threads: int, call_s: int, rate: float, queues: int, backlog: int
) -> None:
    group = Group("billing", lambda at: rate, takes(call_s * 1_000), number=queues, threads=threads)
    for queue in group.queues:
        queue.stored = [Stored(0, f"k{number}") for number in range(backlog)]
    course = judged(group, 40)
    minute, last, _ = course.verdicts[-1]
    assert last is Verdict.FALLING_BEHIND, course.told()
    assert minute <= 6, course.told()
    assert seen(course) <= {Verdict.OK, Verdict.UNKNOWN, last}, course.told()


@pytest.mark.parametrize(
    ("call_s", "rate"), [(5, 2), (30, 0.5), (90, 0.1), (100, 0.18), (300, 0.05)]
)
def test_slow_work_that_keeps_pace_is_well(call_s: int, rate: float) -> None:
    course = judged(Group("billing", lambda at: rate, takes(call_s * 1_000)), 40)
    assert seen(course) <= {Verdict.OK, Verdict.UNKNOWN}, course.told()
    minute, last, _ = course.verdicts[-1]
    assert last is Verdict.OK, course.told()
    assert minute <= 3 + call_s / 60, course.told()


def test_a_thread_that_takes_messages_of_many_queues_in_turn_pins_none() -> None:
    """A message waits for it as long as a call takes, and is in its hands for another."""

    def listener(group: Group, client: Client, queue: Queue, message: Stored, at_ms: int) -> Call:
        return Call(10_000 + int(message.key[1:]) * 7_919 % 20_000)

    group = Group("billing", lambda at: 0.12, listener, number=16, clients=3, threads=1)
    course = judged(group, 60)
    assert seen(course) <= {Verdict.OK, Verdict.UNKNOWN}, course.told()


@pytest.mark.parametrize("call_s", [1, 60, 300])
def test_a_group_whose_last_member_left_is_stopped_after_three_minutes(call_s: int) -> None:
    """However slow its listener was."""

    def dies(group: Group, at_ms: int) -> None:
        if at_ms == 30 * MINUTE:
            group.leave("10.0.0.1@4711", at_ms)

    group = Group("billing", lambda at: 4, takes(call_s * 1_000), dies, threads=4)
    minute, last, _ = judged(group, 36).verdicts[-1]
    assert last is Verdict.STOPPED
    assert 33 <= minute <= 33.2


def test_one_dead_letter_in_a_thousand_is_told_and_no_fault() -> None:
    listener = takes(10, lambda number: number % 999 == 0)
    course = judged(Group("billing", lambda at: 10, listener, tries_max=0), 20)
    assert seen(course) <= {Verdict.OK, Verdict.UNKNOWN}, course.told()


def test_a_group_that_fails_no_more_is_well_again() -> None:
    listener = takes(10, lambda number: 600 < number < 1_400)
    course = judged(Group("billing", lambda at: 2, listener, tries_max=0), 20)
    assert [v for _, v, _ in course.verdicts][-2:] == [Verdict.FAILING, Verdict.OK], course.told()
