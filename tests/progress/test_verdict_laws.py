"""What holds of every verdict, whatever window it is made of."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from rocketstream.admin.core.verdicts import judge
from rocketstream.admin.core.windows import relevant
from rocketstream.admin.rows import MemberRow, SubscriptionRow
from rocketstream.admin.state import GroupState, PinnedMessage, QueueKind, QueueState, Verdict

T0 = 1_700_000_000_000
OFFSETS = st.none() | st.integers(0, 50)
TIMES = st.none() | st.integers(T0 - 100_000_000, T0 + 1_000_000)
FAULTS = {Verdict.FALLING_BEHIND, Verdict.STALLED, Verdict.STOPPED, Verdict.REWOUND}


@st.composite
def queues(draw: st.DrawFn) -> QueueState:
    kind = draw(st.sampled_from(QueueKind))
    low, high = draw(OFFSETS), draw(OFFSETS)
    if low is not None and high is not None and low > high:
        low, high = high, low
    return QueueState(
        draw(st.sampled_from(["orders", "mails"])),
        "broker-a",
        draw(st.integers(0, 2)),
        kind,
        low,
        high,
        draw(OFFSETS),
        matching=draw(st.none() | st.integers(0, 9)),
        matching_is_exact=draw(st.booleans()),
        next_stored_ms=draw(TIMES),
        last_stored_ms=draw(TIMES),
        last_consumed_ms=draw(TIMES),
        client_id=draw(st.sampled_from([None, "c1"])),
        error=draw(st.sampled_from([None, "silent"])),
    )


@st.composite
def states(draw: st.DrawFn) -> GroupState:
    members = draw(st.sampled_from([None, (), ("c1",), ("c1", "c2")]))
    subscribed = draw(st.sampled_from([None, "*", "paid"]))
    return GroupState(
        "billing",
        T0 + draw(st.integers(0, 200)) * 10_000,
        None if members is None else tuple(MemberRow(m, f"{m}:1", "JAVA", 409) for m in members),
        draw(st.sampled_from([None, "CLUSTERING", "BROADCASTING"])),
        draw(st.sampled_from([None, "CONSUME_PASSIVELY", "CONSUME_ACTIVELY"])),
        () if subscribed is None else (SubscriptionRow("orders", subscribed, "TAG"),),
        tuple({(q.topic, q.queue_id): q for q in draw(st.lists(queues(), max_size=4))}.values()),
        errors=draw(st.sampled_from([(), ("broker-b is silent",)])),
    )


WINDOWS = st.lists(states(), min_size=1, max_size=12)
PINS = st.lists(
    st.builds(
        PinnedMessage,
        st.just("orders"),
        st.just("broker-a"),
        st.integers(0, 2),
        st.integers(0, 50),
        st.just("c1"),
        st.integers(0, 100_000),
    ),
    max_size=2,
)


@settings(max_examples=40, deadline=None)
@given(WINDOWS, PINS)
def test_every_window_gets_a_verdict_with_a_sentence(
    window: list[GroupState], pinned: list[PinnedMessage]
) -> None:
    first = judge(window, pinned)
    again = judge(window, pinned, before=first)
    for found in (first, again):
        assert found.group == "billing"
        assert found.sentence.endswith(".")
        assert "None" not in found.sentence
        assert (found.eta_ms is None) or found.verdict in {Verdict.CATCHING_UP, Verdict.REWOUND}
        assert (found.since_ms or T0) <= T0 + 2_000_000


@settings(max_examples=40, deadline=None)
@given(WINDOWS)
def test_what_is_not_known_is_never_ok(window: list[GroupState]) -> None:
    newest = max(window, key=lambda state: state.taken_ms)
    if sum(state.taken_ms == newest.taken_ms for state in window) > 1:
        return  # which of them is the newest nobody can say
    found = judge(window)
    counted = [queue for queue in newest.queues if relevant(newest, queue)]
    if found.verdict is Verdict.OK:
        assert counted
        for queue in counted:
            assert queue.lag is not None
            assert queue.lag >= 0
        assert newest.message_model != "BROADCASTING"


@settings(max_examples=40, deadline=None)
@given(WINDOWS)
def test_where_nothing_waits_there_is_no_fault(window: list[GroupState]) -> None:
    newest = max(window, key=lambda state: state.taken_ms)
    done = tuple(
        replace(queue, committed_offset=queue.max_offset, matching=None)
        for queue in newest.queues
        if queue.max_offset is not None
    )
    later = replace(newest, taken_ms=newest.taken_ms + 10_000, queues=done)
    assert judge([*window, later]).verdict not in FAULTS


@settings(max_examples=25, deadline=None)
@given(WINDOWS, st.integers(-10_000_000, 10_000_000), st.randoms(use_true_random=False))
def test_only_distances_in_time_count_and_no_order(
    window: list[GroupState], shift_ms: int, rng: random.Random
) -> None:
    """The hour of the day changes nothing, nor in which order states are handed in."""
    if len({state.taken_ms for state in window}) < len(window):
        return

    def moved(at: int | None) -> int | None:
        return None if at is None else at + shift_ms

    shifted = [
        replace(
            state,
            taken_ms=state.taken_ms + shift_ms,
            queues=tuple(
                replace(
                    q,
                    next_stored_ms=moved(q.next_stored_ms),
                    last_stored_ms=moved(q.last_stored_ms),
                    last_consumed_ms=moved(q.last_consumed_ms),
                )
                for q in state.queues
            ),
        )
        for state in window
    ]
    rng.shuffle(shifted)
    one, other = judge(window), judge(shifted)
    assert (one.verdict, one.sentence, one.eta_ms) == (other.verdict, other.sentence, other.eta_ms)


@settings(max_examples=25, deadline=None)
@given(WINDOWS, st.integers(1, 9))
def test_pins_of_queues_that_moved_on_change_nothing(window: list[GroupState], by: int) -> None:
    newest = max(window, key=lambda state: state.taken_ms)
    left_behind = [
        PinnedMessage(q.topic, q.broker_name, q.queue_id, q.committed_offset - by, "c1", 99_000)
        for q in newest.queues
        if q.committed_offset is not None
    ]
    assert judge(window, left_behind).verdict is not Verdict.PINNED
