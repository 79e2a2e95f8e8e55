"""What a window of a group's states is judged to be, and the sentence that says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from rocketstream.admin.core.verdicts import judge
from rocketstream.admin.core.windows import tracks_of
from rocketstream.admin.rows import MemberRow, SubscriptionRow
from rocketstream.admin.state import (
    GroupState,
    GroupVerdict,
    PinnedMessage,
    QueueKind,
    QueueState,
    Verdict,
)

STEP_MS = 10_000
T0 = 1_700_000_000_000
ONE = (MemberRow("c1", "10.0.0.1:1", "JAVA", 409),)
TWO = (*ONE, MemberRow("c2", "10.0.0.2:1", "JAVA", 409))


def queue(committed: int | None, end: int | None, queue_id: int = 0, **more: object) -> QueueState:
    return QueueState(
        "orders",
        "broker-a",
        queue_id,
        min_offset=None if end is None else 0,
        max_offset=end,
        committed_offset=committed,
        **more,  # type: ignore[arg-type]
    )


RETRY = QueueState(
    "%RETRY%billing",
    "broker-a",
    0,
    kind=QueueKind.RETRY,
    min_offset=0,
    max_offset=0,
)


def state(
    step: float,
    queues: Sequence[QueueState],
    members: tuple[MemberRow, ...] | None = ONE,
    **more: object,
) -> GroupState:
    told: dict[str, object] = {
        "message_model": "CLUSTERING" if members else None,
        "consume_type": "CONSUME_PASSIVELY" if members else None,
        "subscriptions": (SubscriptionRow("orders", "*", "TAG"),) if members else (),
    }
    return GroupState(
        "billing",
        T0 + int(step * STEP_MS),
        members=members,
        queues=tuple(queues),
        **(told | more),  # type: ignore[arg-type]
    )


def window(
    steps: int,
    committed: Callable[[int], int],
    end: Callable[[int], int],
    **more: object,
) -> list[GroupState]:
    return [
        state(step, [queue(committed(step), end(step))], **more)  # type: ignore[arg-type]
        for step in range(steps + 1)
    ]


def said(verdict: GroupVerdict, *parts: str) -> None:
    for part in parts:
        assert part in verdict.sentence, verdict.sentence


def test_a_group_that_consumes_what_arrives_is_ok() -> None:
    found = judge(window(60, lambda s: s * 100, lambda s: s * 100 + 40))
    assert found.verdict is Verdict.OK
    assert found.consume_rate == pytest.approx(10)
    assert found.arrival_rate == pytest.approx(10)
    said(found, "Keeps up: 40 messages", "10/s arrive", "10/s are consumed")


def test_rates_of_a_group_that_first_committed_within_the_window_are_those_of_its_topic() -> None:
    """Its empty retry queue, known from the beginning, is not all there is."""
    before = [state(step, [RETRY, queue(None, 100)]) for step in range(3)]
    after = [state(step, [RETRY, queue(step * 100, step * 100 + 5)]) for step in range(3, 30)]
    verdict = judge([*before, *after])
    assert verdict.verdict is Verdict.OK
    assert (verdict.consume_rate, verdict.arrival_rate) == (10.0, 10.0)


def test_a_group_that_fails_every_message_is_not_told_as_if_all_were_well() -> None:
    """Nothing of it waits: what failed is in its dead letters, the first of them made the topic."""

    def dead(end: int) -> QueueState:
        return replace(RETRY, topic="%DLQ%billing", kind=QueueKind.DEAD_LETTER, max_offset=end)

    waiting = replace(RETRY, max_offset=3, committed_offset=0)
    begun = [state(step, [RETRY, queue(step, step)]) for step in range(6)]
    went_on = [state(s, [waiting, queue(s, s), dead(s * 2)], delayed=4) for s in range(6, 13)]
    text = judge([*begun, *went_on]).sentence
    assert "7 messages failed and will be tried again." in text
    assert text.startswith("Fails: 24 messages became dead letters ")
    assert "in the last 2 min" in text
    assert "24 dead letters are kept." in judge(went_on[-1:]).sentence
    assert "letter" not in judge(begun).sentence


def test_dead_letters_of_a_broker_that_was_silent_at_first_count_from_its_first_answer() -> None:
    """They died long before: only what comes from then on has failed within the window."""

    def at_b(step: int, letters: int) -> list[QueueState]:
        dead = replace(RETRY, topic="%DLQ%billing", kind=QueueKind.DEAD_LETTER, max_offset=letters)
        held = [queue(step, step), dead]
        return [queue(step, step), *(replace(each, broker_name="broker-b") for each in held)]

    before = [state(step, [queue(step, step)]) for step in range(6)]
    back = [state(step, at_b(step, 500)) for step in range(6, 9)]
    assert judge([*before, *back]).verdict is Verdict.OK
    found = judge([*before, *back, state(9, at_b(9, 510))])
    assert found.verdict is Verdict.FAILING
    said(found, "Fails: 10 messages became dead letters")


def test_a_group_nothing_waits_for_is_ok_from_one_state() -> None:
    found = judge([state(0, [queue(7, 7)])])
    assert found.verdict is Verdict.OK
    assert found.consume_rate is None
    said(found, "Caught up: no message waits.")


def test_a_backlog_worked_off_is_catching_up_and_says_when_it_is_done() -> None:
    found = judge(window(60, lambda s: s * 300, lambda s: 30_000 + s * 100))
    assert found.verdict is Verdict.CATCHING_UP
    # 18,000 wait, 20 a second more are consumed than arrive.
    assert found.eta_ms == pytest.approx(900_000, rel=0.01)
    said(found, "Catches up in about 15 min", "18,000 messages wait", "30/s are consumed")


def test_a_group_that_consumes_less_than_arrives_falls_behind() -> None:
    found = judge(window(60, lambda s: s * 100, lambda s: 20_000 + s * 300))
    assert found.verdict is Verdict.FALLING_BEHIND
    assert (found.topic, found.broker_name, found.queue_id) == ("orders", "broker-a", 0)
    said(found, "Falls behind: 30/s arrive, only 10/s are consumed", "32,000 messages wait")


def test_a_group_that_keeps_its_distance_is_said_not_to_catch_up() -> None:
    found = judge(window(60, lambda s: s * 100, lambda s: 90_000 + s * 100))
    assert found.verdict is Verdict.FALLING_BEHIND
    said(found, "Stays behind: it keeps pace and gains nothing")


def test_members_that_finish_nothing_are_stalled() -> None:
    found = judge(window(20, lambda s: 500, lambda s: 1_000 + 100 * s, members=TWO))
    assert found.verdict is Verdict.STALLED
    assert found.since_ms == T0
    said(found, "no message was finished for 3 min 20 s", "2 members are connected", "2,500")


def test_one_queue_that_stands_among_others_is_named() -> None:
    states = [
        state(s, [queue(s * 100, s * 100 + 10, 0), queue(50, 90 + s * 10, 1, client_id="c1")])
        for s in range(30)
    ]
    found = judge(states)
    assert (found.verdict, found.queue_id) == (Verdict.STALLED, 1)
    said(found, "nothing of queue 1 of orders at broker-a", "its member c1", "other queues go on")


def test_a_few_messages_may_be_in_work_for_as_long_as_rocketmq_gives_a_listener() -> None:
    few = window(120, lambda s: 5, lambda s: 8)
    assert judge(few[:60]).verdict is Verdict.UNKNOWN
    said(judge(few[:60]), "3 messages not finished for 9 min 50 s", "group why")
    assert judge(few).verdict is Verdict.STALLED


def test_nobody_connected_and_nothing_consumed_is_stopped_after_a_restart_would_be_over() -> None:
    gone = [state(s, [queue(5, 90), RETRY], members=()) for s in range(60)]
    found = judge(gone)
    assert found.verdict is Verdict.STOPPED
    said(found, "nobody is connected", "nothing was consumed for 9 min 50 s", "85 messages wait")
    assert judge(gone[:6]).verdict is Verdict.UNKNOWN
    said(judge(gone[:6]), "A restart looks like this")


def test_one_state_tells_a_stopped_group_by_how_long_messages_wait() -> None:
    waits = queue(5, 90, next_stored_ms=T0 - 600_000)
    found = judge([state(0, [waits, RETRY], members=())])
    assert found.verdict is Verdict.STOPPED
    said(found, "nothing was consumed for 10 min")


def test_a_group_that_never_had_members_is_not_stopped_before_a_daily_job_would_be_late() -> None:
    """A Spark query commits without being a member; it may run once an hour, or once a day."""
    hours = 3_600_000

    def waits(ago_ms: int) -> GroupVerdict:
        return judge([state(0, [queue(5, 90, next_stored_ms=T0 - ago_ms)], members=())])

    assert waits(20 * hours).verdict is Verdict.UNKNOWN
    said(waits(20 * hours), "A Spark query or a pull program commits without being a member")
    assert waits(27 * hours).verdict is Verdict.STOPPED


def test_a_query_without_members_that_was_quicker_before_is_stopped() -> None:
    states = [state(s, [queue(min(s, 40) * 100, s * 100 + 50)], members=()) for s in range(70)]
    assert judge(states[:45]).verdict is not Verdict.STOPPED
    assert judge(states).verdict is Verdict.STOPPED


def test_a_fault_older_than_the_window_is_still_the_same_fault() -> None:
    """A window that slides past the last movement must not forget what it showed."""
    states = [state(s, [queue(min(s, 40) * 100, s * 100 + 50)], members=()) for s in range(400)]
    before = judge(states[:70])
    found = judge(states[-100:], before=before)
    assert found.verdict is Verdict.STOPPED
    assert found.since_ms == before.since_ms


def test_offsets_set_back_are_rewound_until_the_group_is_where_it_was() -> None:
    def committed(step: int) -> int:
        return 100_000 + step * 100 if step < 30 else 20_000 + (step - 30) * 3_000

    states = window(80, committed, lambda s: 100_050 + s * 100)
    found = judge(states[:40])
    assert found.verdict is Verdict.REWOUND
    assert found.since_ms == T0 + 30 * STEP_MS
    said(found, "Set back by 82,900 messages in queue 0 of orders at broker-a", "55,900 still")
    assert found.eta_ms == pytest.approx(55_900 / 300 * 1000, rel=0.01)
    assert judge(states).verdict is not Verdict.REWOUND


def test_redelivery_after_a_queue_changed_hands_is_not_rewound() -> None:
    def committed(step: int) -> int:
        return step * 100 - (300 if step == 30 else 0)

    for upto in range(30, 36):
        assert judge(window(upto, committed, lambda s: s * 100 + 50)).verdict is Verdict.OK


def test_a_topic_made_anew_is_neither_rewound_nor_taken_for_caught_up() -> None:
    states = window(20, lambda s: 5_000, lambda s: 5_000 if s < 15 else s - 15)
    found = judge(states)
    assert found.verdict is Verdict.UNKNOWN
    said(found, "5,000", "was the topic made anew?")
    consumed_again = [*states, state(21, [queue(6, 8)]), state(22, [queue(8, 8)])]
    assert judge(consumed_again).verdict is Verdict.OK


def test_a_topic_made_anew_between_two_looks_is_not_rewound() -> None:
    states = window(20, lambda s: 5_000 if s < 15 else 2, lambda s: 5_000 if s < 15 else 4)
    assert judge(states).verdict is Verdict.OK


def test_members_that_came_just_now_are_given_time() -> None:
    """A restart of one member makes all wait: for its queues, its lock, its first commit."""
    states = [state(s, [queue(500, 1_000 + s)], members=TWO if s < 8 else ONE) for s in range(16)]
    assert judge(states).verdict is not Verdict.STALLED
    assert judge([*states, state(21, [queue(500, 1_030)])]).verdict is Verdict.STALLED


def test_a_job_that_took_all_there_was_and_ended_is_not_stopped() -> None:
    """In several commits; what came meanwhile is for its next run, in an hour."""

    def committed(step: int) -> int:
        return min(max(step - 20, 0) * 500, 6_000)

    states = [state(s, [queue(committed(s), 6_000 + s * 10)], members=()) for s in range(90)]
    assert judge(states).verdict is Verdict.UNKNOWN


def test_how_long_a_queue_stood_counts_only_where_its_beginning_was_seen() -> None:
    ends = [50, 50, 50, 90, 90, 90]
    committed = [10, 10, 50, 50, 50, 90]
    (track,) = tracks_of(
        [
            state(s, [queue(at, end)])
            for s, (at, end) in enumerate(zip(committed, ends, strict=True))
        ]
    )
    assert track.waits_ms() == [2 * STEP_MS]


PIN = PinnedMessage(
    "orders", "broker-a", 0, 500, "c1", 40_000, finished_behind=12, msg_id="AC1", keys="order-9"
)


def test_a_pinned_message_is_named_with_queue_key_and_client() -> None:
    found = judge(window(5, lambda s: 500, lambda s: 520 + s), [PIN])
    assert found.verdict is Verdict.PINNED
    assert found.since_ms == T0 + 5 * STEP_MS - 40_000
    said(found, "message AC1 (key order-9) at offset 500", "queue 0 of orders", "c1", "40 s")
    said(found, "12 later ones were consumed")


def test_a_finding_the_queue_has_left_behind_pins_nothing() -> None:
    assert judge(window(9, lambda s: 501 + s, lambda s: 503 + s), [PIN]).verdict is Verdict.OK


def test_offsets_of_a_broadcasting_group_are_at_its_members() -> None:
    found = judge([state(0, [queue(None, 9)], message_model="BROADCASTING")])
    assert found.verdict is Verdict.UNKNOWN
    said(found, "broadcasting", "running-info")


def test_what_could_not_be_asked_is_unknown_with_its_reason() -> None:
    failed = queue(None, None, 1, error="broker-b did not answer in 5 s")
    found = judge([state(0, [queue(5, 5), failed])])
    assert found.verdict is Verdict.UNKNOWN
    said(found, "1 of 2 queues is fine", "broker-b did not answer in 5 s")
    nothing = judge([state(0, [failed])])
    assert nothing.verdict is Verdict.UNKNOWN
    said(nothing, "not known in any queue", "broker-b did not answer")


def test_a_fault_in_a_queue_that_is_known_counts_although_others_are_not() -> None:
    failed = queue(None, None, 1, error="broker-b did not answer in 5 s")
    states = [state(s, [queue(5, 90), failed]) for s in range(30)]
    assert judge(states).verdict is Verdict.STALLED


def test_a_topic_the_members_subscribe_no_more_does_not_count() -> None:
    old = QueueState("old", "broker-a", 0, max_offset=900, min_offset=0, committed_offset=3)
    states = [state(s, [queue(s, s), old]) for s in range(60)]
    assert judge(states).verdict is Verdict.OK


def test_messages_the_filter_refuses_wait_for_nobody() -> None:
    states = [state(s, [queue(5, 90, matching=0)]) for s in range(60)]
    assert judge(states).verdict is Verdict.OK


def test_no_state_at_all_is_unknown() -> None:
    assert judge([]).verdict is Verdict.UNKNOWN
