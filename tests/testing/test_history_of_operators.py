"""Several brokers, losses of power, removals, resets, slow listeners: what each explains."""

from __future__ import annotations

import dataclasses

import pytest

from rocketstream.errors import SendOutcome
from rocketstream.model import MessageQueue
from rocketstream.testing.history import AnomalyKind, Rules
from rocketstream.testing.history.events import (
    BrokerDied,
    ClockJumped,
    CommitSeen,
    Disturbed,
    Event,
    ListenerReturned,
    LogRead,
    LogTrimmed,
    MemberJoined,
    MessageDelivered,
    MessageStored,
    OffsetReset,
    ProcessDied,
    RunEnded,
    SendAcknowledged,
    SendFailed,
    SendInvoked,
)
from tests.testing.clean_history import TOPIC
from tests.testing.hand_made import GROUP, QUEUE, History, consumed, kinds, sent


@pytest.mark.parametrize(
    ("takeover_ms", "tries", "blamed"), [(None, 3, False), (1.0, 1, False), (1.0, 3, True)]
)
def test_a_send_that_may_be_tried_again_must_succeed_where_a_broker_is_there(
    takeover_ms: float | None, tries: int, blamed: bool
) -> None:
    history: History = [
        SendInvoked(0.0, "k", TOPIC, tries=tries),
        SendFailed(9.0, "k", SendOutcome.UNKNOWN, tries),
    ]
    expected = {AnomalyKind.NOT_TAKEN_OVER} if blamed else set()
    assert kinds(history, Rules(takeover_ms=takeover_ms)) == expected


@pytest.mark.parametrize(
    ("given_at", "crashed", "ended_at", "blamed"),
    [
        (900.0, "another", 9_000.0, False),
        (5_000.0, "another", 9_000.0, True),
        (5_000.0, QUEUE.broker_name, 9_000.0, False),
        (5_000.0, "another", 900.0, False),
    ],
)
def test_a_message_of_a_living_broker_does_not_wait_for_one_that_is_away(
    given_at: float, crashed: str, ended_at: float, blamed: bool
) -> None:
    history: History = [
        GROUP,
        *sent("k", 10.0, 0),
        BrokerDied(500.0, crashed),
        *consumed("k", given_at, 0),
        RunEnded(ended_at),
    ]
    expected = {AnomalyKind.NOT_TAKEN_OVER} if blamed else set()
    assert kinds(history, Rules(takeover_ms=1_000.0)) == expected


@pytest.mark.parametrize(
    ("trims", "expected"),
    [
        ([LogTrimmed(900.0, QUEUE, 1, 800.0)], set()),
        ([LogTrimmed(1_200.0, QUEUE, 1, 1_100.0)], {AnomalyKind.COMMITTED_AHEAD}),
        ([], {AnomalyKind.COMMITTED_AHEAD, AnomalyKind.LOST}),
    ],
)
def test_a_group_may_pass_what_was_removed_and_nothing_else(
    trims: History, expected: set[AnomalyKind]
) -> None:
    """Passed first and removed later is passed all the same."""
    history: History = [
        GROUP,
        *sent("k0", 10.0, 0)[:2],
        *sent("k1", 20.0, 1),
        *trims,
        CommitSeen(1_000.0, "g", QUEUE, 1),
        *consumed("k1", 1_200.0, 1),
        LogRead(2_000.0, QUEUE, 1 if trims else 0, 2),
        RunEnded(2_000.0),
    ]
    if not trims:
        history += sent("k0", 10.0, 0)[2:]
    assert kinds(history) == expected


@pytest.mark.parametrize(("trimmed", "lost"), [(1, True), (2, False)])
def test_what_is_still_there_must_be_consumed_though_more_was_removed(
    trimmed: int, lost: bool
) -> None:
    history: History = [
        GROUP,
        *sent("k", 10.0, 1),
        LogTrimmed(500.0, QUEUE, trimmed, 400.0),
        RunEnded(2_000.0),
    ]
    assert kinds(history) == ({AnomalyKind.LOST} if lost else set())


@pytest.mark.parametrize(
    ("kept_ms", "jump_ms", "early"),
    [(0.0, 0.0, False), (400.0, 0.0, False), (600.0, 0.0, True), (600.0, 200.0, False)],
)
def test_a_message_is_removed_when_its_time_is_over(
    kept_ms: float, jump_ms: float, early: bool
) -> None:
    history: History = [
        *sent("k", 10.0, 0)[:2],
        ClockJumped(100.0, "b", jump_ms),
        LogTrimmed(510.0, QUEUE, 1, 410.0),
    ]
    assert kinds(history, Rules(kept_ms=kept_ms)) == ({AnomalyKind.LOST} if early else set())


@pytest.mark.parametrize(
    ("reset", "again_at", "forgotten"),
    [
        (OffsetReset(20_000.0, "g", QUEUE, 0, told=True), 21_000.0, False),
        (OffsetReset(20_000.0, "g", QUEUE, 0, told=True), None, True),
        (OffsetReset(20_000.0, "g", QUEUE, 0, told=True), 19_000.0, True),
        (OffsetReset(20_000.0, "g", QUEUE, 1, told=True), None, False),
        (OffsetReset(20_000.0, "g", QUEUE, 0), None, False),
        (OffsetReset(38_000.0, "g", QUEUE, 0, told=True), None, False),
    ],
)
def test_a_group_that_is_told_to_go_back_consumes_all_from_there_on(
    reset: OffsetReset, again_at: float | None, forgotten: bool
) -> None:
    early = dataclasses.replace(reset, at=0.0, told=False, until=40_000.0)  # the cause of repeats
    history: History = [GROUP, *sent("k", 10.0, 0), *consumed("k", 20.0, 0), early, reset]
    if again_at is not None:
        history += consumed("k", again_at, 0)
    history += [LogRead(40_000.0, QUEUE, 0, 1), RunEnded(40_000.0)]
    assert kinds(history) == ({AnomalyKind.RESET_FORGOTTEN} if forgotten else set())


@pytest.mark.parametrize(
    "cause",
    [
        MemberJoined(18_000.0, "g", "n"),
        ProcessDied(21_000.0, "n"),
        BrokerDied(25_000.0, "b"),
        Disturbed(19_000.0, 19_500.0, "partition"),
    ],
)
def test_a_reset_may_miss_who_just_comes_or_goes(cause: Event) -> None:
    reset = OffsetReset(20_000.0, "g", QUEUE, 0, told=True)
    history: History = [GROUP, *sent("k", 10.0, 0), *consumed("k", 20.0, 0), reset]
    history += [LogRead(40_000.0, QUEUE, 0, 1), RunEnded(40_000.0)]
    assert kinds(history) == {AnomalyKind.RESET_FORGOTTEN}
    assert kinds([*history, cause]) == set()


@pytest.mark.parametrize(
    ("timeout_ms", "jump_ms", "expected"),
    [
        (500.0, 0.0, set()),
        (1_500.0, 0.0, {AnomalyKind.COMMITTED_AHEAD, AnomalyKind.MISCOUNTED}),
        (1_500.0, 900.0, set()),
    ],
)
def test_a_listener_that_takes_too_long_has_failed_whatever_it_says_later(
    timeout_ms: float, jump_ms: float, expected: set[AnomalyKind]
) -> None:
    group = dataclasses.replace(GROUP, timeout_ms=timeout_ms)
    slow = MessageDelivered(20.0, "k", "g", "m", QUEUE, 0, call=1)
    again = MessageDelivered(900.0, "k", "g", "m", MessageQueue("%RETRY%g", "b", 0), 0, 1, call=2)
    history: History = [
        *(group, *sent("k", 10.0, 0), slow, ClockJumped(30.0, "m", jump_ms)),
        CommitSeen(700.0, "g", QUEUE, 1),
        again,
        ListenerReturned(901.0, again, True),
        ListenerReturned(1_020.0, slow, True),
    ]
    assert kinds(history) == expected


@pytest.mark.parametrize(("until", "excused"), [(0.0, False), (3_000.0, True)])
def test_a_reset_that_is_still_on_its_way_explains_what_it_does_later(
    until: float, excused: bool
) -> None:
    history: History = [
        GROUP,
        *sent("k", 10.0, 0),
        OffsetReset(15.0, "g", QUEUE, 0, until),
        *consumed("k", 20.0, 0),
        CommitSeen(1_000.0, "g", QUEUE, 1),
        CommitSeen(2_000.0, "g", QUEUE, 0),
        *consumed("k", 2_500.0, 0),
    ]
    expected = set() if excused else {AnomalyKind.OFFSET_BACKWARDS, AnomalyKind.REPEATED}
    assert kinds(history) == expected


@pytest.mark.parametrize(("since", "excused"), [(900.0, True), (960.0, False)])
def test_a_commit_that_was_seen_after_a_reset_may_have_come_before_it(
    since: float, excused: bool
) -> None:
    history: History = [
        GROUP,
        *sent("k", 10.0, 0),
        *consumed("k", 20.0, 0),
        OffsetReset(950.0, "g", QUEUE, 0),
        CommitSeen(1_000.0, "g", QUEUE, 1, since),
        CommitSeen(1_100.0, "g", QUEUE, 0),
    ]
    assert (AnomalyKind.OFFSET_BACKWARDS not in kinds(history)) is excused


@pytest.mark.parametrize(("crashed", "twice"), [("b", False), ("c", False), ("d", True)])
def test_a_message_comes_back_twice_for_a_crash_of_a_broker_that_had_a_part_in_it(
    crashed: str, twice: bool
) -> None:
    """A send-back goes to another broker when the message's own does not answer."""
    group = dataclasses.replace(GROUP, attempts_max=2)
    retries = [MessageQueue("%RETRY%g", broker, 0) for broker in ("b", "c")]
    history: History = [group, *sent("k", 0.0, 0), *consumed("k", 10.0, 0, success=False)]
    for number, queue in enumerate(retries):
        at = 100.0 * (1 + number)
        history.append(MessageStored(at, "k", queue, 0))
        delivery = MessageDelivered(at + 1, "k", "g", "m", queue, 0, 1, call=50 + number)
        history += [delivery, ListenerReturned(at + 2, delivery, True)]
    history.append(BrokerDied(250.0, crashed))
    expected = {AnomalyKind.STORED_TWICE} if twice else set()
    assert kinds(history) == expected


@pytest.mark.parametrize(
    ("tries", "queue_ids", "expected"),
    [
        (1, [0], set()),
        (1, [1], {AnomalyKind.MISPLACED}),
        (3, [1], {AnomalyKind.MISPLACED}),
        (3, [1, 0], set()),  # a try without an answer was sent to another queue
    ],
)
def test_what_waited_is_in_the_queue_it_was_sent_to(
    tries: int, queue_ids: list[int], expected: set[AnomalyKind]
) -> None:
    history: History = [
        SendInvoked(1.0, "k", TOPIC, due_ms=5.0, tries=tries),
        SendAcknowledged(2_000.0, "k", tries=tries, wanted=QUEUE),
        *(
            MessageStored(2_500.0, "k", QUEUE._replace(queue_id=queue_id), 0)
            for queue_id in queue_ids
        ),
    ]
    assert kinds(history) == expected


@pytest.mark.parametrize(
    ("unflushed_ms", "crash_at", "power_lost", "expected"),
    [
        (0.0, 12.0, True, {AnomalyKind.LOST}),  # flush=sync: never
        (500.0, 12.0, True, set()),
        (500.0, 12.0, False, {AnomalyKind.LOST}),  # a killed process loses nothing
        (500.0, 900.0, True, {AnomalyKind.LOST}),  # flushed long before
        (None, 900.0, True, set()),
    ],
)
def test_a_power_loss_excuses_what_was_not_flushed(
    unflushed_ms: float | None, crash_at: float, power_lost: bool, expected: set[AnomalyKind]
) -> None:
    history: History = [
        *sent("k", 10.0, 0)[:2],
        BrokerDied(crash_at, "b", power_lost),
        LogRead(1_000.0, QUEUE, 0, 0),
        RunEnded(1_000.0),
    ]
    assert kinds(history, Rules(unflushed_ms=unflushed_ms)) == expected


@pytest.mark.parametrize(
    ("deaths", "expected"),
    [
        ([(10.5, True)], set()),  # before the answer came, and maybe after the write
        ([(20.0, False), (9_000.0, True)], set()),  # what a killed process left was not flushed yet
        ([(20.0, False), (30_000.0, True)], {AnomalyKind.LOST}),
        ([(600.0, False), (700.0, True)], {AnomalyKind.LOST}),  # flushed before it was killed
    ],
)
def test_what_a_killed_broker_left_is_flushed_once_it_runs_again(
    deaths: list[tuple[float, bool]], expected: set[AnomalyKind]
) -> None:
    end = 60_000.0
    history: History = [
        *sent("k", 10.0, 0)[:2],
        *(BrokerDied(at, "b", power_lost) for at, power_lost in deaths),
        LogRead(end, QUEUE, 0, 0),
        RunEnded(end),
    ]
    assert kinds(history, Rules(unflushed_ms=500.0)) == expected
