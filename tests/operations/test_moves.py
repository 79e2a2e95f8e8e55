"""Where queues go in a reset, what that skips and repeats, and when a plan is no longer true."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketstream.admin.core.moves import (
    GroupMember,
    QueueFacts,
    ResetBy,
    ResetPlan,
    ResetRow,
    ResetTarget,
    changes_since,
    member_problems,
    outcome,
    row_of,
    skip_problem,
    still_to_move,
)
from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.suggestions import like

QUEUE = MessageQueue("orders", "broker-a", 0)


def row(
    committed: int | None,
    to: int,
    *,
    low: int = 10,
    high: int = 20,
    by: ResetBy = ResetBy.BROKER,
) -> ResetRow:
    found = row_of(QueueFacts(QUEUE, low, high, committed), ResetTarget.offset(to), by)
    assert found is not None
    return found


def plan(*rows: ResetRow, members: tuple[str, ...] = ()) -> ResetPlan:
    return ResetPlan("billing", "orders", ResetTarget.offset(0), rows, 0, members)


QUEUES = st.tuples(
    st.integers(0, 50), st.integers(0, 50), st.none() | st.integers(0, 120), st.integers(0, 120)
)


@given(QUEUES)
def test_previews_count_what_consuming_afterwards_shows(
    numbers: tuple[int, int, int | None, int],
) -> None:
    """Whatever is committed and asked for: beside a consumer that counts message by message."""
    low, kept, committed, to = numbers
    high = low + kept
    found = row(committed, to, low=low, high=high)
    assert low <= found.to_offset <= high
    consumed = set(range(low, min(committed, high))) if committed is not None else set()
    next_ones = set(range(found.to_offset, high))
    never = set(range(low, high)) - consumed - next_ones
    assert found.repeated == len(consumed & next_ones)
    assert found.skipped == len(never)
    assert found.expired == (0 if committed is None else max(low - committed, 0))
    assert (found.clamped is None) == (found.to_offset == to)


@pytest.mark.parametrize(
    ("committed", "by", "to"),
    [(15, -3, 12), (15, -9, 10), (15, 3, 18), (15, 9, 20), (2, 1, 11), (2, -1, 10), (30, -1, 19)],
)
def test_shifts_count_from_where_the_group_would_go_on(committed: int, by: int, to: int) -> None:
    """Not from an offset that has expired, nor from one beyond the end."""
    facts = QueueFacts(QUEUE, 10, 20, committed)
    found = row_of(facts, ResetTarget.shift(by), ResetBy.BROKER)
    assert found is not None
    assert found.to_offset == to


def test_target_that_says_nothing_for_a_queue_leaves_it_out() -> None:
    never = QueueFacts(QUEUE, 0, 5, None)
    assert row_of(never, ResetTarget.shift(1), ResetBy.BROKER) is None
    assert row_of(never, ResetTarget.copy_of("x"), ResetBy.BROKER) is None


@pytest.mark.parametrize("make", [ResetTarget.time, ResetTarget.offset])
def test_negative_times_and_offsets_are_refused(make: object) -> None:
    with pytest.raises(ConfigurationError, match="-1"):
        make(-1)  # type: ignore[operator]
    with pytest.raises(ConfigurationError, match="moves nothing"):
        ResetTarget.shift(0)


def test_skipping_is_a_problem_unless_it_was_asked_for() -> None:
    rows = [row(12, 15)]
    assert skip_problem(rows, ResetTarget.offset(15)) != []
    assert skip_problem(rows, ResetTarget.time(1)) != []
    assert skip_problem(rows, ResetTarget.latest()) == []
    assert skip_problem(rows, ResetTarget.shift(3)) == []
    assert skip_problem(rows, ResetTarget.undo({})) == []
    assert skip_problem([row(15, 12)], ResetTarget.offset(12)) == []


PUSH = GroupMember("c1", "JAVA", is_push=True)


@pytest.mark.parametrize(
    ("member", "by", "why"),
    [
        (PUSH, ResetBy.MEMBERS, ""),
        (replace(PUSH, is_push=False), ResetBy.MEMBERS, "pulls by itself"),
        (replace(PUSH, is_push=False), ResetBy.PULL, ""),
        (replace(PUSH, language="GO"), ResetBy.MEMBERS, "language"),
        (replace(PUSH, language="GO"), ResetBy.PULL, ""),
        (replace(PUSH, is_broadcasting=True), ResetBy.PULL, "broadcasting"),
        (replace(PUSH, client_id="x#spark"), ResetBy.PULL, "checkpoint"),
    ],
)
def test_members_that_do_not_go_where_they_are_sent_are_named(
    member: GroupMember, by: ResetBy, why: str
) -> None:
    problems = member_problems([member], [by])
    assert len(problems) == bool(why)
    assert all(why in each and member.client_id in each for each in problems)


def test_group_that_consumed_on_may_be_moved_back_while_it_is_online() -> None:
    shown, now = row(15, 12), row(18, 12)
    online = ("c1",)
    assert changes_since(plan(shown, members=online), plan(now, members=online)) == []
    assert changes_since(plan(shown), plan(now)) == [
        "orders broker-a:0 would repeat 6 messages, not 3"
    ]


def test_plan_is_not_carried_out_beyond_what_it_showed() -> None:
    online = ("c1",)
    assert "would skip 5" in changes_since(plan(row(12, 15)), plan(row(10, 15)))[0]
    assert (
        "have connected" in changes_since(plan(row(15, 12)), plan(row(15, 12), members=online))[0]
    )
    assert "have left" in changes_since(plan(row(15, 12), members=online), plan(row(15, 12)))[0]
    assert "is gone" in changes_since(plan(row(15, 12)), plan())[0]
    expired = row(15, 12, low=14)
    assert "would go to 14, not 12" in changes_since(plan(row(15, 12)), plan(expired))[0]


def test_queue_never_goes_back_that_was_shown_to_go_forward() -> None:
    move, left = still_to_move(plan(row(12, 15)), plan(row(17, 15)))
    assert (move, [each.from_offset for each in left]) == ([], [17])
    move, left = still_to_move(plan(row(15, 15)), plan(row(16, 15)))
    assert (move, len(left)) == ([], 1)
    move, left = still_to_move(plan(row(17, 15)), plan(row(18, 15)))
    assert (len(move), left) == (1, [])


@pytest.mark.parametrize(
    ("to", "by", "stored", "moved"),
    [
        (12, ResetBy.BROKER, 12, True),
        (12, ResetBy.BROKER, 15, False),
        (12, ResetBy.MEMBERS, 13, True),  # consuming again
        (12, ResetBy.MEMBERS, 15, None),  # consumed again, or never moved
        (12, ResetBy.MEMBERS, 11, False),
        (18, ResetBy.PULL, 15, False),  # a member's late commit
        (18, ResetBy.PULL, 19, True),
        (18, ResetBy.PULL, None, None),
    ],
)
def test_offset_read_back_says_no_more_than_it_can(
    to: int, by: ResetBy, stored: int | None, moved: bool | None
) -> None:
    found = outcome(row(15, to, by=by), stored)
    assert found.moved is moved
    assert (found.note is None) == (moved is True)


def test_names_like_the_one_given_are_found() -> None:
    assert like("biling", ["billing", "audit"]) == "; did you mean 'billing'?"
    assert like("BILLING", ["billing"]) == "; did you mean 'billing'?"
    assert like("billing", ["billing-of-the-shop"]) == "; did you mean 'billing-of-the-shop'?"
    assert like("quite-other", ["billing"]) == ""
