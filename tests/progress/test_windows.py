"""The last minutes of every group in bounded memory."""

from __future__ import annotations

import itertools

from rocketstream.testing.clock import START_MS
from rocketstream.watch.windows import STATES_MIN, Windows
from tests.kits.states import group, queue


def queue_states(windows: Windows) -> int:
    """How many different states of queues are kept: they decide the memory of the windows."""
    return len({id(queue) for state in windows.window("g") for queue in state.queues})


def test_what_is_older_than_the_span_is_dropped() -> None:
    windows = Windows(span_ms=60_000, states_max=100)
    for n in range(20):
        windows.add({"g": group("g", START_MS + n * 10_000, queue(committed=n))})
    assert [s.taken_ms - START_MS for s in windows.window("g")] == [
        n * 10_000 for n in range(13, 20)
    ]


def test_more_sweeps_than_states_still_reach_as_far_back() -> None:
    windows = Windows(span_ms=1_200_000, states_max=30)
    for n in range(3_000):
        windows.add({"g": group("g", START_MS + n * 1_000, queue(committed=n))})
    window = windows.window("g")
    assert 25 <= len(window) <= 42
    assert window[-1].taken_ms == START_MS + 2_999_000
    assert window[-1].taken_ms - window[0].taken_ms >= 1_100_000
    recent = [s.taken_ms for s in window if window[-1].taken_ms - s.taken_ms <= 300_000]
    assert len(recent) >= 20
    distances = [b - a for a, b in itertools.pairwise(recent)][:-1]
    assert min(distances) >= 12_000


def test_many_queues_leave_fewer_states_of_each_group() -> None:
    windows = Windows(queues_max=1_000)
    queues = [queue(queue_id=n) for n in range(100)]
    for n in range(50):
        moved = [queue(queue_id=q.queue_id, committed=n) for q in queues]
        windows.add({"g": group("g", START_MS + n * 40_000, *moved)})
    assert len(windows.window("g")) <= 13
    assert queue_states(windows) <= 1_300


def test_a_few_states_are_kept_whatever_the_bound() -> None:
    windows = Windows(queues_max=1)
    for n in range(50):
        windows.add({"g": group("g", START_MS + n * 80_000, queue(), queue(queue_id=1))})
    assert STATES_MIN <= len(windows.window("g")) <= STATES_MIN + 3


def test_queues_that_stand_still_are_kept_once() -> None:
    windows = Windows()
    for n in range(10):
        busy = queue(queue_id=0, committed=n)
        windows.add({"g": group("g", START_MS + n * 10_000, busy, queue(queue_id=1))})
    assert len(windows.window("g")) == 10
    assert queue_states(windows) == 11


def test_a_clock_set_back_begins_a_new_window() -> None:
    windows = Windows()
    for at_ms in (START_MS, START_MS + 10_000, START_MS - 3_600_000):
        windows.add({"g": group("g", at_ms, queue())})
    assert [s.taken_ms for s in windows.window("g")] == [START_MS - 3_600_000]
