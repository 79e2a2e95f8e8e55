"""Turns of queues consumed in order: each step of both services, by a clock of the test.

A case runs with a plain listener on the thread that calls it, and with a coroutine.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketstream import ConsumeOrderlyContext, MessageExt
from rocketstream.client.consumer.consume.orderly import (
    LOCK_MAX_LIVE_VARIABLE,
    TURN_MAX_VARIABLE,
    orderly_times,
)
from rocketstream.client.consumer.consume.orderly_queue import Lease, Stage
from rocketstream.errors import ConfigurationError
from tests.kits.client.fake_broker import TOPIC
from tests.kits.client.model_cluster import StillLoop
from tests.kits.client.queued import queued
from tests.ordering.orderly_case import MQ, SUCCESS, SUSPEND, Case


@pytest.fixture
def loop() -> Iterator[StillLoop]:
    made = StillLoop()
    yield made
    made.close()


@pytest.fixture(params=["thread", "task"])
def case(request: pytest.FixtureRequest, loop: StillLoop) -> Iterator[Case]:
    made = Case(loop, request.param == "task")
    yield made
    if made.service is not None:
        loop.run_until_complete(made.service.shutdown(0))


@pytest.fixture
def tasks(loop: StillLoop) -> Iterator[Case]:
    made = Case(loop, True)
    yield made
    loop.run_until_complete(made.service.shutdown(0))


@pytest.fixture
def threads(loop: StillLoop) -> Iterator[Case]:
    made = Case(loop, False)
    yield made
    loop.run_until_complete(made.service.shutdown(0))


# --- a turn -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "calls"), [(1, [[0], [1], [2]]), (2, [[0, 1], [2]])])
def test_messages_are_consumed_in_order_and_committed(
    case: Case, size: int, calls: list[list[int]]
) -> None:
    """Covers C-279 to C-286."""

    def listener(batch: list[MessageExt]) -> object:
        assert not queue.is_free
        case.loop.now_s += 0.002
        batch.clear()  # the list is the listener's own
        return SUCCESS

    case.listen(listener, batch_size=size)
    queue = case.take()
    case.put(queue, 0, 1, 2)
    assert case.calls == calls
    assert case.committed[-1] == 3
    assert queue.is_free
    assert case.observer.figures == [(TOPIC, 3, 0, 2 * len(calls), len(calls))]
    assert queue.process_queue.stage is Stage.IDLE


def test_messages_that_come_during_a_turn_begin_no_other(case: Case) -> None:
    """Covers C-280."""
    began: list[int] = []

    def listener(batch: list[MessageExt]) -> object:
        if batch[0].queue_offset == 0:
            queue.consume(queue.put([queued(1)], 2))
            began.append(len(case.service._ready))
        return SUCCESS

    case.listen(listener)
    queue = case.take()
    case.put(queue, 0)
    assert (case.calls, began) == ([[0], [1]], [0])
    assert case.committed[-1] == 2


def test_a_failed_batch_comes_again_after_the_pause_and_nothing_overtakes_it(case: Case) -> None:
    """Covers C-259, C-284, C-285."""
    answers = iter([SUSPEND, None, SUCCESS, SUCCESS])
    case.listen(lambda _: next(answers))
    queue = case.take()
    case.put(queue, 0, 1)
    assert case.calls == [[0]]
    assert queue.is_free
    assert case.observer.figures == [(TOPIC, 0, 1, 0, 1)]
    case.turn(999.5)
    assert case.calls == [[0]]
    case.turn(1)
    assert case.calls == [[0], [0]]
    case.turn(1_001)
    assert case.calls == [[0], [0], [0], [1]]
    assert case.committed[-1] == 2
    assert not case.service._timers


def test_an_error_of_the_listener_suspends_its_queue(case: Case) -> None:
    """Covers C-261, C-284: hooks are told before and after, with how long it took."""
    case.observer.hooks = True
    error = KeyboardInterrupt()

    def listener(batch: list[MessageExt]) -> object:
        case.loop.now_s += 0.004
        if len(case.calls) == 1:
            raise error
        return SUCCESS

    case.listen(listener)
    case.put(case.take(), 0)
    case.turn(1_001)
    assert case.observer.told == [
        ("before", [0], MQ),
        ("after", "hooked 0", None, SUSPEND, error, 4),
        ("before", [0], MQ),
        ("after", "hooked 0", SUCCESS, SUCCESS, None, 4),
    ]


def test_a_context_is_new_for_each_call_and_says_how_it_goes_on(case: Case) -> None:
    """Covers C-284 to C-286: its queue is as listeners see it."""
    contexts: list[ConsumeOrderlyContext] = []

    def listener(batch: list[MessageExt], context: ConsumeOrderlyContext) -> object:
        contexts.append(context)
        assert context.message_queue == MQ._replace(topic="seen")
        assert context.auto_commit
        if len(contexts) == 1:
            context.suspend_current_queue_time_ms = 50
            return SUSPEND
        context.auto_commit = len(contexts) == 3
        return SUCCESS

    case.listen(listener)
    case.put(case.take(), 0, 1)
    assert case.calls == [[0]]
    case.turn(49)
    assert case.calls == [[0]]
    case.turn(2)
    assert case.calls == [[0], [0], [1]]
    assert len({id(each) for each in contexts}) == 3
    assert case.committed == [2], "the first SUCCESS was kept, the second commits both"


def test_messages_say_why_they_failed_where_that_is_wanted(case: Case) -> None:
    told: list[tuple[Any, ...]] = []
    case.observer.failure_cause = SimpleNamespace(tell=lambda *given: told.append(given))
    case.listen(lambda batch: SUSPEND if batch[0].queue_offset else SUCCESS)
    messages = case.put(case.take(), 0, 1)
    assert told == [([messages[1]], None, SUSPEND, SUSPEND.name)]


@pytest.mark.parametrize(("took_ms", "counted"), [(1_000, 1), (1_001, 2)])
def test_figures_of_a_slow_turn_are_added_meanwhile(case: Case, took_ms: int, counted: int) -> None:
    """Covers C-259: more than a second after the last ones, of calls that are looked at."""
    case.observer.hooks = True

    def listener(batch: list[MessageExt]) -> object:
        if batch[0].queue_offset == 0:
            case.loop.now_s += took_ms / 1000
        return SUCCESS

    case.listen(listener)
    case.put(case.take(), 0, 1)
    whole = [(TOPIC, 2, 0, 1_000, 2)]
    parts = [(TOPIC, 1, 0, 1_001, 1), (TOPIC, 1, 0, 0, 1)]
    assert case.observer.figures == (whole if counted == 1 else parts)


def test_figures_of_quick_calls_are_added_every_64(threads: Case) -> None:
    """Covers C-259."""
    threads.listen(lambda _: SUCCESS)
    threads.put(threads.take(), *range(130))
    assert [figures[1] for figures in threads.observer.figures] == [64, 64, 2]


def test_a_turn_leaves_other_queues_theirs(case: Case) -> None:
    """Covers C-282: with one worker."""

    def listener(batch: list[MessageExt]) -> object:
        case.loop.now_s += 0.2
        return SUCCESS

    case.listen(listener, threads=1)
    first, second = case.take(), case.take(mq=MQ._replace(queue_id=1))
    for queue in (first, second):
        messages = [queued(offset) for offset in range(3)]
        case.service.submit(queue, queue.put(messages, 3))
    assert case.service._others_wait()
    case.turn()
    assert case.service._others_wait() is False
    assert len(case.calls) == 6
    assert case.calls[0] == [0]
    assert case.calls != [[0], [1], [2], [0], [1], [2]]


# --- locks --------------------------------------------------------------------------------------


def test_a_queue_without_locks_needs_none(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    """Covers C-555: broadcasting."""
    case.listen(lambda _: SUCCESS, has_locks=False)
    queue = case.take()
    assert queue.process_queue.lease is None
    assert case.locker.kept == []
    case.put(queue, 0)
    assert case.committed == [1]
    case.service.connection_made()
    case.turn()
    assert case.locker.doubted_asked == 0
    assert caplog.text == ""


def test_a_queue_that_is_taken_is_told_to_the_locker(case: Case) -> None:
    case.listen(lambda _: SUCCESS)
    queue = case.take()
    assert case.locker.kept == [queue]
    assert queue.process_queue.lease is not None


def test_a_turn_waits_for_its_lock_and_asks_for_it(case: Case) -> None:
    """Covers C-236, C-281, C-283: after 100 ms, and every 3 s while nobody answers."""
    case.listen(lambda _: SUCCESS)
    queue = case.take()
    cast(Lease, queue.process_queue.lease).doubt()
    case.locker.grants = False
    case.put(queue, 0)
    assert (case.calls, case.locker.asked) == ([], [])
    assert list(case.service._relocks) == [queue]
    case.turn(101)
    assert case.locker.asked == [MQ]
    assert list(case.service._relocks) == [queue]
    case.turn(2_998)
    assert case.locker.asked == [MQ]
    case.locker.grants = True
    case.turn(4)
    assert case.locker.asked == [MQ, MQ]
    assert case.calls == []
    assert not case.service._relocks
    case.turn(11)
    assert case.calls == [[0]]


def test_a_queue_whose_lock_another_member_has_is_not_asked_for_again(case: Case) -> None:
    """Covers C-283: it is taken anew, when it can be."""
    case.listen(lambda _: SUCCESS)
    queue = case.take()
    cast(Lease, queue.process_queue.lease).doubt()
    case.locker.refuses = True
    case.put(queue, 0)
    case.turn(101)
    assert queue.process_queue.stage is Stage.OVER
    case.turn(10_000)
    assert case.locker.asked == [MQ]


def test_a_queue_that_has_left_is_not_asked_for(case: Case) -> None:
    case.listen(lambda _: SUCCESS)
    queue = case.take()
    cast(Lease, queue.process_queue.lease).doubt()
    case.put(queue, 0)
    queue.drop()
    case.turn(101)
    assert case.locker.asked == []
    assert queue.process_queue.stage is Stage.OVER


def test_a_question_for_a_lock_that_breaks_has_the_batch_come_again(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    case.listen(lambda _: SUCCESS)
    queue = case.take()
    cast(Lease, queue.process_queue.lease).doubt()
    case.put(queue, 0)
    case.locker.error = ZeroDivisionError()
    with caplog.at_level(logging.ERROR):
        case.turn(101)
    assert "asking for the lock of" in caplog.text
    case.locker.error = None
    cast(Lease, queue.process_queue.lease).renew(case.now_ms() + 1_000)
    case.turn(1_001)
    assert case.calls == [[0]]


def test_a_new_connection_has_waiting_turns_go_on_at_once(case: Case) -> None:
    """Covers C-187, C-283: the question that was to come is not asked."""
    case.listen(lambda _: SUCCESS)
    queue, other = case.take(), case.take(mq=MQ._replace(queue_id=1))
    for each in (queue, other):
        cast(Lease, each.process_queue.lease).doubt()
        case.put(each, 0)
    case.locker.kept.remove(other)
    assert len(case.service._relocks) == 2
    case.service.connection_made()
    case.turn()
    assert case.locker.doubted_asked == 1
    assert list(case.service._relocks) == [other]
    assert len(case.service._timers) == 2, "the other's question, and the short pause"
    case.turn(11)
    assert case.calls == [[0]]
    case.turn(91)
    assert case.locker.asked == [other.message_queue]


def test_a_new_connection_without_a_doubt_asks_no_further(case: Case) -> None:
    case.listen(lambda _: SUCCESS)
    queue = case.take()
    cast(Lease, queue.process_queue.lease).doubt()
    case.put(queue, 0)
    cast(Lease, queue.process_queue.lease).renew(case.now_ms())
    case.service.connection_made()
    case.turn()
    assert case.locker.doubted_asked == 1
    assert list(case.service._relocks) == [queue], "it goes on when its own question is answered"
    case.loop.run_until_complete(case.service.shutdown(0))
    case.service.connection_made()
    case.turn()
    assert case.locker.doubted_asked == 1


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x", "\u0663"])
def test_a_time_that_is_no_number_of_milliseconds_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-236, C-282: blank counts as not set."""
    monkeypatch.setenv(TURN_MAX_VARIABLE, " 700 ")
    monkeypatch.setenv(LOCK_MAX_LIVE_VARIABLE, "  ")
    times = orderly_times()
    assert (times.turn_max_ms, times.lock_max_live_ms) == (700, 30_000)
    assert times.lock_interval_ms == 20_000
    monkeypatch.setenv(LOCK_MAX_LIVE_VARIABLE, text)
    with pytest.raises(ConfigurationError, match=LOCK_MAX_LIVE_VARIABLE):
        orderly_times()


# --- queues that come back ------------------------------------------------------------------------


def test_a_queue_taken_anew_waits_for_the_listener_of_before(case: Case) -> None:
    """Covers C-281, C-557."""
    case.listen(lambda _: SUCCESS)
    former = case.take()
    former.process_queue._stage = Stage.IN_HAND
    queue = case.take(former)
    case.put(queue, 0)
    assert case.calls == []
    former.process_queue._stage = Stage.IDLE
    former.tell_if_free()
    case.turn()
    assert case.calls == [[0]]
    again = case.take(queue)
    case.put(again, 1)
    assert case.calls == [[0], [1]], "whose former has returned begins at once"


def test_a_queue_that_was_dropped_while_it_waited_begins_no_turn(case: Case) -> None:
    """Covers C-549."""
    case.listen(lambda _: SUCCESS)
    former = case.take()
    former.process_queue._stage = Stage.IN_HAND
    queue = case.take(former)
    case.put(queue, 0)
    queue.drop()
    former.process_queue._stage = Stage.IDLE
    former.tell_if_free()
    case.turn()
    assert case.calls == []
    assert queue.process_queue.stage is Stage.OVER


def test_a_pause_that_ends_after_the_queue_was_dropped_begins_no_turn(case: Case) -> None:
    case.listen(lambda _: SUSPEND)
    queue = case.take()
    case.put(queue, 0)
    queue.drop()
    case.turn(1_001)
    assert case.calls == [[0]]
    assert queue.process_queue.stage is Stage.OVER


def test_who_waits_for_a_queue_is_told_when_its_turn_ends(case: Case) -> None:
    """Covers C-179: the batch in the listener counts."""
    told: list[int] = []

    def listener(batch: list[MessageExt]) -> object:
        queue.leave()
        queue.when_free(lambda: told.append(len(case.committed)))
        assert not told
        return SUCCESS

    case.listen(listener)
    queue = case.take()
    case.put(queue, 0, 1)
    assert (case.calls, case.committed, told) == ([[0]], [1], [1])
