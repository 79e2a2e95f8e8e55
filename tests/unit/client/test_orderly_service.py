"""Turns of queues consumed in order: each step of both services, by a clock of the test.

A case runs with a plain listener on the thread that calls it, and with a coroutine.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketstream import ConsumeOrderlyContext, ConsumeOrderlyStatus, MessageExt, MessageQueue
from rocketstream.client.consumer.consume.orderly import (
    LOCK_MAX_LIVE_VARIABLE,
    TURN_MAX_VARIABLE,
    AsyncOrderlyService,
    ConsumeMessageOrderlyService,
    orderly_times,
)
from rocketstream.client.consumer.consume.orderly_queue import Lease, OrderlyTimes, Stage
from rocketstream.client.consumer.consume.orderly_turn import AskLock, Resume
from rocketstream.client.consumer.listener import listener_of
from rocketstream.client.consumer.process_queue import Thresholds
from rocketstream.client.consumer.queue import OrderlyQueue, QueueLinks
from rocketstream.client.consumer.settings import PushConsumerSettings
from rocketstream.errors import ConfigurationError
from tests.unit.client.fake_broker import GROUP, TOPIC
from tests.unit.client.model_cluster import StillLoop
from tests.unit.client.queued import queued

MQ = MessageQueue(TOPIC, "broker-a", 0)
SUCCESS = ConsumeOrderlyStatus.SUCCESS
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
LIVE_MS = 30_000


class Observer:
    """Remembers what it is told around listener calls; ``hooks`` and ``failure_cause`` are off."""

    def __init__(self, loop: StillLoop) -> None:
        self.group = GROUP
        self.hooks = False
        self.failure_cause: Any = None
        self.clock = SimpleNamespace(monotonic_ms=lambda: round(loop.now_s * 1000, 3))
        self.told: list[tuple[Any, ...]] = []
        self.figures: list[tuple[Any, ...]] = []

    def seen_queue(self, mq: MessageQueue) -> MessageQueue:
        return mq._replace(topic="seen")

    def before(self, batch: list[MessageExt], mq: MessageQueue) -> str:
        self.told.append(("before", offsets(batch), mq))
        return f"hooked {batch[0].queue_offset}"

    def after(self, *given: Any) -> None:
        self.told.append(("after", *given))

    def cut_off(self, *given: Any) -> None:
        self.told.append(("cut off", *given))

    def count(self, *given: Any) -> None:
        self.figures.append(given)


class Locker:
    """Gives leases; answers questions for locks as the test says."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.asked: list[MessageQueue] = []
        self.doubted_asked = 0
        self.refuses = False
        self.grants = True
        self.error: Exception | None = None
        self.kept: list[OrderlyQueue] = []
        self.said: list[str] = []

    def lease(self, mq: MessageQueue) -> Lease:
        return Lease(self.case.now_ms(), LIVE_MS)

    def taken(self, queue: OrderlyQueue) -> None:
        self.kept.append(queue)

    def _answer(self) -> None:
        if self.grants and not self.refuses:
            for queue in self.kept:
                cast(Lease, queue.process_queue.lease).renew(self.case.now_ms())

    async def ask(self, mqs: Sequence[MessageQueue]) -> Collection[MessageQueue]:
        self.asked += mqs
        if self.error is not None:
            raise self.error
        self._answer()
        return set(mqs) if self.refuses else set()

    async def ask_for_doubted(self) -> bool:
        self.doubted_asked += 1
        doubted = any(queue.is_in_doubt(self.case.now_ms()) for queue in self.kept)
        self._answer()
        return doubted

    def stop(self) -> None:
        self.said.append("stopped")

    async def close(self) -> None:
        self.said.append("closed")


def offsets(batch: Sequence[MessageExt]) -> list[int]:
    return [message.queue_offset for message in batch]


class Case:
    """A service of one kind, a queue, and what comes of its messages."""

    def __init__(self, loop: StillLoop, is_async: bool) -> None:
        self.loop, self.is_async = loop, is_async
        self.observer = Observer(loop)
        self.locker = Locker(self)
        self.committed: list[int] = []
        self.calls: list[list[int]] = []
        self.given_up: list[tuple[int, int]] = []
        self.takes_dead = True
        self.dead_error: Exception | None = None
        store = SimpleNamespace(update_offset=lambda mq, offset: self.committed.append(offset))
        self.links = QueueLinks(
            cast(Any, store), lambda _: None, self._submit, cast(Any, self.observer.clock)
        )
        self.ended: list[asyncio.Task[None]] = []
        self.service: Any = None

    def now_ms(self) -> float:
        return self.observer.clock.monotonic_ms()  # type: ignore[no-any-return]

    def _submit(self, queue: Any, messages: list[MessageExt]) -> None:
        self.service.submit(queue, messages)

    async def give_up(self, message: MessageExt, max_times: int) -> bool:
        """As of the send-back."""
        self.given_up.append((message.queue_offset, max_times))
        if self.dead_error is not None:
            raise self.dead_error
        return self.takes_dead

    def listen(
        self,
        listener: Callable[..., object],
        *,
        has_locks: bool = True,
        batch_size: int = 1,
        threads: int = 2,
        **settings: Any,
    ) -> Any:
        """Make the service of a listener, which is called with a batch, or with a context too."""

        def noted(batch: list[MessageExt]) -> object:
            self.calls.append(offsets(batch))
            return listener(batch)

        def with_context(batch: list[MessageExt], context: ConsumeOrderlyContext) -> object:
            self.calls.append(offsets(batch))
            return listener(batch, context)

        async def awaited(batch: list[MessageExt]) -> object:
            answer = noted(batch)
            return await answer if inspect.isawaitable(answer) else answer

        async def awaited_with_context(
            batch: list[MessageExt], context: ConsumeOrderlyContext
        ) -> object:
            return with_context(batch, context)

        takes_context = len(inspect.signature(listener).parameters) == 2
        chosen: Callable[..., object] = with_context if takes_context else noted
        if self.is_async:
            chosen = awaited_with_context if takes_context else awaited
        made = PushConsumerSettings(
            GROUP,
            consume_thread_min=1,
            consume_thread_max=threads,
            consume_message_batch_max_size=batch_size,
            **{"suspend_current_queue_time_ms": 1_000, **settings},
        )
        kind = AsyncOrderlyService if self.is_async else ConsumeMessageOrderlyService

        async def make() -> Any:
            return kind(
                listener_of(chosen, orderly=True),
                cast(Any, self.observer),
                made,
                cast(Any, self),
                cast(Any, self.locker) if has_locks else None,
                OrderlyTimes(),
            )

        self.service = self.loop.run_until_complete(make())
        if self.is_async:
            pool, ended = self.service._pool, self.service._pool._ended

            def note(task: asyncio.Task[None]) -> None:
                self.ended.append(task)
                ended(task)

            pool._ended = note
        else:
            # The test is the pool's one worker.
            self.service._pool.work_added = lambda: None
            self.service._pool.look_soon = lambda: None
        return self.service

    def take(self, former: OrderlyQueue | None = None, mq: MessageQueue = MQ) -> OrderlyQueue:
        queue: OrderlyQueue = self.service.new_queue(mq, 0, Thresholds(), self.links, former)
        return queue

    def put(self, queue: OrderlyQueue, *found: int) -> list[MessageExt]:
        """Have messages come, and do what is due."""
        messages = [queued(offset) for offset in found]
        queue.consume(queue.put(messages, found[-1] + 1))
        self.turn()
        return messages

    def turn(self, ms: float = 0) -> None:
        self.loop.now_s += ms / 1000
        for _ in range(6):
            if not self.is_async:
                while (job := self.service.next_job()) is not None:
                    self.service.work(job)
            for _ in range(4):
                self.loop.run_until_complete(asyncio.sleep(0))
        for task in self.ended:
            assert task.cancelled() or task.exception() is None


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
    former.process_queue.stage = Stage.IN_HAND
    queue = case.take(former)
    case.put(queue, 0)
    assert case.calls == []
    former.process_queue.stage = Stage.IDLE
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
    former.process_queue.stage = Stage.IN_HAND
    queue = case.take(former)
    case.put(queue, 0)
    queue.drop()
    former.process_queue.stage = Stage.IDLE
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


# --- last tries -----------------------------------------------------------------------------------


@pytest.mark.parametrize("takes_dead", [True, False])
def test_a_message_that_had_its_last_try_becomes_a_dead_letter(
    case: Case, takes_dead: bool
) -> None:
    """Covers C-287 to C-290, C-590: or it comes again; the others come again in any case."""
    case.takes_dead = takes_dead
    case.listen(
        lambda batch: SUSPEND if len(case.calls) == 1 else SUCCESS,
        batch_size=2,
        max_reconsume_times=3,
    )
    queue = case.take()
    messages = [queued(0, reconsume_times=3), queued(1)]
    case.service.submit(queue, queue.put(messages, 2))
    case.turn()
    assert case.given_up == [(0, 3)]
    assert queue.is_free
    case.turn(1_001)
    assert case.calls == [[0, 1], [1]] if takes_dead else [[0, 1], [0, 1]]
    assert case.committed[-1] == 2
    assert case.committed[0] == (1 if takes_dead else 2)


def test_a_dead_letter_that_breaks_comes_again(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-590."""
    case.dead_error = ZeroDivisionError()
    case.listen(lambda _: SUSPEND if len(case.calls) == 1 else SUCCESS, max_reconsume_times=0)
    queue = case.take()
    with caplog.at_level(logging.ERROR):
        case.put(queue, 0)
    assert "giving up messages of" in caplog.text
    case.turn(1_001)
    assert case.calls == [[0], [0]]


# --- mistakes of ours -----------------------------------------------------------------------------


def test_a_turn_that_breaks_ends_no_worker_and_its_batch_comes_again(
    case: Case, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.listen(lambda _: SUSPEND)
    queue = case.take()
    settle = case.service.settle

    def broken(*given: Any) -> bool:
        monkeypatch.setattr(case.service, "settle", settle)
        raise ZeroDivisionError

    monkeypatch.setattr(case.service, "settle", broken)
    with caplog.at_level(logging.ERROR):
        case.put(queue, 0)
    assert "its batch comes again" in caplog.text
    assert case.observer.figures == [(TOPIC, 0, 1, 0, 1)]
    assert not case.service._callers
    case.turn(1_001)
    assert case.calls == [[0], [0]]


def test_a_step_that_breaks_is_logged(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    case.listen(lambda _: SUCCESS)

    async def breaks() -> None:
        raise ZeroDivisionError

    with caplog.at_level(logging.ERROR):
        case.service._run(breaks())
        assert len(case.service._tasks) == 1
        case.turn()
    assert "a step of consuming in order failed" in caplog.text
    assert not case.service._tasks


def test_a_step_that_is_cancelled_is_no_mistake(
    case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    """A loop that ends cancels its tasks."""
    case.listen(lambda _: SUCCESS)
    problems: list[Any] = []
    case.loop.set_exception_handler(lambda _, context: problems.append(context))

    async def waits() -> None:
        await asyncio.Event().wait()

    case.service._run(waits())
    (task,) = case.service._tasks
    case.turn()
    task.cancel()
    case.turn()
    assert (problems, caplog.text, case.service._tasks) == ([], "", set())


def test_a_step_that_breaks_at_the_end_does_not_break_the_end(case: Case) -> None:
    """Covers C-119."""
    case.listen(lambda _: SUCCESS)

    async def breaks() -> None:
        raise ZeroDivisionError

    case.service._run(breaks())
    case.loop.run_until_complete(case.service.shutdown(0))
    assert case.locker.said == ["stopped", "closed"]


# --- the end --------------------------------------------------------------------------------------


def test_the_end_cancels_pauses_and_gives_locks_back(case: Case) -> None:
    """Covers C-119, C-122: locks are asked for no more, then given back."""
    case.listen(lambda _: SUSPEND)
    queue = case.take()
    case.put(queue, 0)
    (timer,) = case.service._timers
    case.loop.run_until_complete(case.service.shutdown(0))
    assert timer.cancelled()
    assert case.locker.said == ["stopped", "closed"]
    case.service.submit(queue, queue.put([queued(1)], 2))
    case.turn(2_000)
    assert case.calls == [[0]]


def test_a_consumer_without_locks_ends_too(case: Case) -> None:
    case.listen(lambda _: SUCCESS, has_locks=False)
    case.loop.run_until_complete(case.service.shutdown(0))
    assert case.locker.said == []


def test_a_turn_that_ends_after_the_end_sets_no_timer(case: Case) -> None:
    """Covers C-120: its listener outlived the consumer."""
    case.listen(lambda _: SUSPEND)
    queue = case.take()
    case.loop.run_until_complete(case.service.shutdown(0))
    case.service._ended(queue, SimpleNamespace())
    for pause in (Resume(100), AskLock(100)):
        case.service._perform(queue, pause)
    assert not case.service._timers
    assert not case.service._relocks

    async def late() -> None:
        raise AssertionError("nothing counts any more")

    case.service._run(late())
    assert not case.service._tasks


def test_the_end_waits_for_dead_letters_on_their_way(case: Case) -> None:
    """Covers C-121, C-590."""
    stored = asyncio.Event()

    async def give_up(message: MessageExt, max_times: int) -> bool:
        await stored.wait()
        return True

    case.give_up = give_up  # type: ignore[method-assign]
    case.listen(lambda _: SUSPEND, max_reconsume_times=0)
    queue = case.take()
    case.put(queue, 0)
    assert not queue.is_free
    ending = case.loop.create_task(case.service.shutdown(0))
    case.turn()
    assert not ending.done()
    stored.set()
    case.turn()
    assert ending.done()
    assert case.committed == [1]


def test_a_listener_that_ends_its_own_consumer_is_spared(threads: Case) -> None:
    """Covers C-121: by its thread; the queue is given up though it is in hand."""
    callers: list[dict[OrderlyQueue, int]] = []

    def listener(batch: list[MessageExt]) -> object:
        callers.append(dict(threads.service._callers))
        return SUCCESS

    service = threads.listen(listener)
    queue, other = threads.take(), threads.take(mq=MQ._replace(queue_id=1))
    threads.put(queue, 0)
    assert callers == [{queue: threading.get_ident()}]
    assert not service._callers
    service._callers |= {queue: 11, other: 22}
    threads.loop.run_until_complete(service.shutdown(0, 11))
    assert (queue.spared, other.spared) == (True, False)
    assert service._pool.stopping


def test_a_coroutine_that_ends_its_own_consumer_is_spared(tasks: Case) -> None:
    """Covers C-121: and goes on; other queues are waited for."""
    seen: list[tuple[bool, bool]] = []

    async def stop() -> object:
        await tasks.service.shutdown(0)
        seen.append((queue.spared, queue.is_free))
        return SUCCESS

    async def wait() -> object:
        await asyncio.Event().wait()
        return SUCCESS

    tasks.listen(lambda batch: stop() if batch[0].queue_offset == 7 else wait(), threads=2)
    other = tasks.take(mq=MQ._replace(queue_id=1))
    tasks.put(other, 0)
    queue = tasks.take()
    tasks.put(queue, 7)
    assert seen == [(True, True)]
    assert not other.spared


@pytest.mark.parametrize("hooks", [False, True])
def test_a_call_that_is_cancelled_with_its_consumer_counts_for_nothing(
    tasks: Case, hooks: bool
) -> None:
    """Covers C-120: hooks are told that it was cut off; the queue is free then."""
    tasks.observer.hooks = hooks

    async def wait() -> object:
        await asyncio.Event().wait()
        return SUCCESS

    tasks.listen(lambda _: wait())
    queue = tasks.take()
    tasks.put(queue, 0)
    assert list(tasks.service._callers) == [queue]
    tasks.loop.run_until_complete(tasks.service.shutdown(0))
    assert (tasks.committed, queue.is_free) == ([], True)
    assert queue.process_queue.stage is Stage.OVER
    assert not tasks.service._callers
    if hooks:
        ((what, hooked, status, error),) = tasks.observer.told[1:]
        assert (what, hooked, status) == ("cut off", "hooked 0", SUSPEND)
        assert isinstance(error, asyncio.CancelledError)
    assert tasks.observer.figures == [(TOPIC, 0, 0, 0, 0)]


def test_a_cancellation_of_the_listeners_own_suspends_its_queue(tasks: Case) -> None:
    """Covers C-261."""

    async def give_up() -> object:
        raise asyncio.CancelledError

    tasks.listen(lambda _: give_up() if len(tasks.calls) == 1 else SUCCESS)
    tasks.put(tasks.take(), 0)
    tasks.turn(1_001)
    assert tasks.calls == [[0], [0]]


def test_an_error_while_a_call_is_cancelled_is_the_listeners(tasks: Case) -> None:
    async def turn_it() -> object:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("no") from None
        return SUCCESS

    tasks.listen(lambda _: turn_it())
    tasks.put(tasks.take(), 0)
    tasks.loop.run_until_complete(tasks.service.shutdown(0))
    assert tasks.observer.figures == [(TOPIC, 0, 1, 0, 1)]


# --- tasks ----------------------------------------------------------------------------------------


def test_queues_are_consumed_at_once_as_many_as_may_be(tasks: Case) -> None:
    """Covers C-254, C-279: one call a queue."""
    opened = asyncio.Event()

    async def wait() -> object:
        await opened.wait()
        return SUCCESS

    tasks.listen(lambda _: wait(), threads=2)
    queues = [tasks.take(mq=MQ._replace(queue_id=number)) for number in range(3)]
    for queue in queues:
        tasks.service.submit(queue, queue.put([queued(0), queued(1)], 2))
    tasks.turn()
    assert tasks.calls == [[0], [0]]
    opened.set()
    for _ in range(4):
        tasks.turn(11)
    assert len(tasks.calls) == 6
    assert all(task.done() for task in tasks.service._pool._tasks)


@pytest.mark.parametrize(("took_ms", "yields"), [(2, False), (3, True)])
def test_a_coroutine_that_never_waits_leaves_the_loop_its_turn(
    tasks: Case, took_ms: int, yields: bool
) -> None:
    """After more than two milliseconds, and then for two more."""
    turns: list[int] = []

    def listener(batch: list[MessageExt]) -> object:
        tasks.loop.now_s += took_ms / 1000 if batch[0].queue_offset == 0 else 0
        return SUCCESS

    tasks.listen(listener)
    queue = tasks.take()
    tasks.service.submit(queue, queue.put([queued(0), queued(1), queued(2)], 3))

    async def look() -> None:
        for _ in range(8):
            turns.append(len(tasks.calls))
            await asyncio.sleep(0)

    tasks.loop.run_until_complete(look())
    assert (1 in turns) is yields
    assert 2 not in turns
    assert tasks.calls == [[0], [1], [2]]


def test_a_task_that_ends_a_turn_leaves_the_loop_its_turn(tasks: Case) -> None:
    turns: list[int] = []
    tasks.listen(lambda _: SUCCESS, threads=1)
    for number in range(3):
        queue = tasks.take(mq=MQ._replace(queue_id=number))
        tasks.service.submit(queue, queue.put([queued(0)], 1))

    async def look() -> None:
        for _ in range(8):
            turns.append(len(tasks.calls))
            await asyncio.sleep(0)

    tasks.loop.run_until_complete(look())
    assert {1, 2} <= set(turns)


# --- threads --------------------------------------------------------------------------------------


def test_the_pool_takes_the_queue_that_waits_longest(threads: Case) -> None:
    """Covers C-254, C-282."""
    service = threads.listen(lambda _: SUCCESS)
    assert (service.oldest(), service.next_job()) == (None, None)
    first, second = threads.take(), threads.take(mq=MQ._replace(queue_id=1))
    for queue in (first, second):
        service.submit(queue, queue.put([queued(0)], 1))
    assert service.oldest() is first
    assert service.next_job() is first
    assert service.oldest() is second
    assert service.next_job() is second
    assert service.next_job() is None


def test_a_turn_that_begins_wakes_a_worker_and_a_look(threads: Case) -> None:
    service = threads.listen(lambda _: SUCCESS)
    woken: list[str] = []
    service._pool.work_added = lambda: woken.append("added")
    service._pool.look_soon = lambda: woken.append("look")
    queue = threads.take()
    service.submit(queue, queue.put([queued(0)], 1))
    assert woken == ["added", "look"]
    assert service.core_pool_size == 2
