"""One fault each in an otherwise healthy group: the verdict, and how soon it is right.

Times are those of sweeps every 10 s, in virtual time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import pytest

from rocketstream.admin.core.verdicts import WINDOW_MS, judge
from rocketstream.admin.state import GroupState, GroupVerdict, Verdict
from tests.unit.admin.faulty_groups import SWEEP_MS, T0, Pool

MINUTE = 60_000


def judged(states: Iterable[GroupState]) -> list[tuple[float, GroupVerdict]]:
    """Judge as the watch does; return each change with the minute it was seen in."""
    window: deque[GroupState] = deque(maxlen=WINDOW_MS // SWEEP_MS)
    before: GroupVerdict | None = None
    found: list[tuple[float, GroupVerdict]] = []
    for state in states:
        window.append(state)
        verdict = judge(window, before=before)
        if before is None or before.verdict is not verdict.verdict:
            found.append(((state.taken_ms - T0) / MINUTE, verdict))
        before = verdict
    return found


def shown(found: list[tuple[float, GroupVerdict]]) -> str:
    return "; ".join(f"{minute:.1f} {verdict.verdict}" for minute, verdict in found)


@pytest.mark.parametrize(
    ("threads", "call_s", "rate", "queues", "backlog"),
    [(4, 10, 2, 8, 60), (20, 60, 1, 16, 50), (2, 20, 1, 4, 0), (8, 2, 5, 4, 0)],
)
def test_a_group_that_falls_behind_is_told_in_six_minutes_and_never_called_well_then(
    threads: int, call_s: int, rate: float, queues: int, backlog: int
) -> None:
    pool = Pool(threads, lambda queue, offset: call_s * 1_000, lambda at_ms: rate, queues, backlog)
    found = judged(pool.states(60))
    minute, last = found[-1]
    assert last.verdict is Verdict.FALLING_BEHIND, shown(found)
    assert minute <= 6, shown(found)
    assert {v.verdict for _, v in found[:-1]} <= {Verdict.OK, Verdict.UNKNOWN}, shown(found)


@pytest.mark.parametrize(
    ("call_s", "rate"), [(5, 2), (30, 0.5), (90, 0.1), (100, 0.18), (300, 0.05)]
)
def test_slow_work_that_keeps_pace_is_well(call_s: int, rate: float) -> None:
    pool = Pool(20, lambda queue, offset: call_s * 1_000, lambda at_ms: rate)
    found = judged(pool.states(60))
    assert {v.verdict for _, v in found} <= {Verdict.OK, Verdict.UNKNOWN}, shown(found)
    minute, last = found[-1]
    assert last.verdict is Verdict.OK, shown(found)
    assert minute <= 3 + call_s / 60, shown(found)


@pytest.mark.parametrize("call_s", [1, 60, 300])
def test_a_group_whose_last_member_left_is_stopped_after_three_minutes(call_s: int) -> None:
    """However slow its listener was."""

    def dies(pool: Pool, at_ms: int) -> None:
        pool.is_member = at_ms < 40 * MINUTE

    pool = Pool(4, lambda queue, offset: call_s * 1_000, lambda at_ms: 4, change=dies)
    minute, last = judged(pool.states(50))[-1]
    assert last.verdict is Verdict.STOPPED
    assert 43 <= minute <= 43.2


def test_threads_that_never_return_are_stalled_in_five_minutes() -> None:
    def call_ms(queue: int, offset: int) -> int | None:
        return 100 if offset < 600 else None

    found = judged(Pool(4, call_ms, lambda at_ms: 4).states(30))
    minute, last = found[-1]
    assert last.verdict is Verdict.STALLED, shown(found)
    assert minute <= 600 / 60 + 5, shown(found)


def test_dead_letters_are_no_success() -> None:
    """A listener that fails three of five messages has no lag."""
    pool = Pool(
        20, lambda queue, offset: 10, lambda at_ms: 2,
        fails=lambda queue, offset: offset >= 300 and offset % 5 < 3,
    )  # fmt: skip
    found = judged(pool.states(25))
    minute, last = found[-1]
    assert last.verdict is Verdict.FAILING, shown(found)
    assert minute <= 10 + 2, shown(found)
    assert "became dead letters in the last 5 min" in last.sentence


def test_one_dead_letter_in_a_thousand_is_told_and_no_fault() -> None:
    pool = Pool(
        20, lambda queue, offset: 10, lambda at_ms: 10, fails=lambda queue, offset: not offset % 999
    )
    found = judged(pool.states(30))
    assert [v.verdict for _, v in found] == [Verdict.OK], shown(found)


def test_a_group_that_fails_no_more_is_well_again() -> None:
    pool = Pool(
        20, lambda queue, offset: 10, lambda at_ms: 2, fails=lambda queue, offset: offset < 200
    )
    found = judged(pool.states(25))
    assert [v.verdict for _, v in found][-2:] == [Verdict.FAILING, Verdict.OK], shown(found)


def test_messages_deleted_before_they_were_consumed_are_lost() -> None:
    """Retention is quicker than a group that falls behind."""

    def deletes(pool: Pool, at_ms: int) -> None:
        for queue in pool.made:
            queue.low = max(len(queue.stored) - 150, 0)

    pool = Pool(2, lambda queue, offset: 2_000, lambda at_ms: 4, change=deletes)
    found = judged(pool.states(30))
    assert found[-1][1].verdict is Verdict.LOSING, shown(found)
    assert "before the group consumed them" in found[-1][1].sentence
