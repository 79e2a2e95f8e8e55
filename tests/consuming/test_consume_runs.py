"""The messages of one pull with their listener: each step of both services, by a clock of the test.

A case runs with a plain listener on the thread that hands the run out, and with a coroutine.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketstream import ConsumeConcurrentlyContext, MessageExt, MessageQueue
from rocketstream.client.consumer.consume.concurrent import (
    AsyncConsumeService,
    ConsumeMessageConcurrentlyService,
    ConsumeRun,
)
from rocketstream.client.consumer.listener import listener_of
from rocketstream.client.consumer.process_queue import ProcessQueue, Thresholds
from rocketstream.client.consumer.queue import AssignedQueue, QueueLinks
from rocketstream.client.consumer.settings import PushConsumerSettings
from rocketstream.client.instance.background import CUT_OFF_AFTER_MS
from rocketstream.protocol.properties import PROPERTY_CONSUME_START_TIME
from tests.kits.client.fake_broker import GROUP, TOPIC
from tests.kits.client.model_cluster import StillLoop
from tests.kits.client.queued import queued
from tests.kits.listeners import LATER, SUCCESS
from tests.plugins.waiting import wait_until

MQ = MessageQueue(TOPIC, "broker-a", 0)
BEGAN_MS = 1_000_000


class Observer:
    """Remembers what it is told around listener calls; ``hooks`` and ``failure_cause`` are off."""

    def __init__(self) -> None:
        self.group = GROUP
        self.hooks = False
        self.failure_cause: Any = None
        self.now = BEGAN_MS
        self.clock = SimpleNamespace(now_ms=lambda: self.now, monotonic_ms=lambda: self.now - 7)
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


def offsets(batch: list[MessageExt]) -> list[int]:
    return [message.queue_offset for message in batch]


class Case:
    """A service of one kind, its queue, and what comes of its messages."""

    def __init__(self, loop: StillLoop, is_async: bool) -> None:
        self.loop, self.is_async = loop, is_async
        self.observer = Observer()
        self.committed: list[int] = []
        self.sent_back: list[tuple[AssignedQueue, list[int], int]] = []
        self.calls: list[list[int]] = []
        self.ended: list[asyncio.Task[None]] = []
        self.service: Any = None
        store = SimpleNamespace(update_offset=lambda mq, offset: self.committed.append(offset))
        links = QueueLinks(
            cast(Any, store), lambda _: None, lambda *_: None, cast(Any, self.observer.clock)
        )
        self.queue = AssignedQueue(ProcessQueue(MQ, 0), 0, Thresholds(), links)

    def submit(self, queue: AssignedQueue, messages: list[MessageExt], level: int) -> None:
        """As of the send-back."""
        self.sent_back.append((queue, offsets(messages), level))

    def listen(self, listener: Callable[..., object], batch_size: int = 1, threads: int = 1) -> Any:
        """Make the service of a listener, which is called with a batch, or with a context too."""

        def noted(batch: list[MessageExt]) -> object:
            self.calls.append(offsets(batch))
            return listener(batch)

        def with_context(batch: list[MessageExt], context: ConsumeConcurrentlyContext) -> object:
            self.calls.append(offsets(batch))
            return listener(batch, context)

        async def awaited(batch: list[MessageExt]) -> object:
            answer = noted(batch)
            return await answer if inspect.isawaitable(answer) else answer

        async def awaited_with_context(
            batch: list[MessageExt], context: ConsumeConcurrentlyContext
        ) -> object:
            return with_context(batch, context)

        takes_context = len(inspect.signature(listener).parameters) == 2
        chosen: Callable[..., object] = with_context if takes_context else noted
        if self.is_async:
            chosen = awaited_with_context if takes_context else awaited
        settings = PushConsumerSettings(
            GROUP,
            consume_thread_min=1,
            consume_thread_max=threads,
            consume_message_batch_max_size=batch_size,
        )
        kind = AsyncConsumeService if self.is_async else ConsumeMessageConcurrentlyService
        wanted = listener_of(chosen, orderly=False)

        async def make() -> Any:
            return kind(wanted, cast(Any, self.observer), cast(Any, self), settings)

        self.service = self.loop.run_until_complete(make())
        if self.is_async:
            pool = self.service._pool
            ended = pool._ended

            def note(task: asyncio.Task[None]) -> None:
                self.ended.append(task)
                ended(task)

            pool._ended = note
        return self.service

    def cache(self, count: int, first: int = 0) -> list[MessageExt]:
        messages = [queued(offset) for offset in range(first, first + count)]
        self.queue.put(messages, first + count)
        return messages

    def consume(self, messages: list[MessageExt]) -> None:
        """Have one run consumed."""
        if self.is_async:
            self.service.submit(self.queue, messages)
            self.turn()
        else:
            self.service.work(ConsumeRun(self.queue, messages, self.service._batch_size))

    def turn(self) -> None:
        for _ in range(40):
            self.loop.run_until_complete(asyncio.sleep(0))
        for task in self.ended:
            assert task.cancelled() or task.exception() is None


@pytest.fixture
def loop() -> Iterator[StillLoop]:
    made = StillLoop()
    yield made
    made.close()


@pytest.fixture(params=["thread", "task"])
def case(request: pytest.FixtureRequest, loop: StillLoop) -> Case:
    return Case(loop, request.param == "task")


@pytest.fixture
def tasks(loop: StillLoop) -> Case:
    return Case(loop, True)


# --- runs ---------------------------------------------------------------------------------------


def test_a_run_is_taken_in_chunks_of_the_size_that_is_set(case: Case) -> None:
    run = ConsumeRun(case.queue, case.cache(5), 2)
    assert (run.chunks, run.claimed, run.is_claimed) == (3, 0, False)
    assert [offsets(run.chunk(number, 2)) for number in range(4)] == [[0, 1], [2, 3], [4], []]
    run.claimed = 2
    assert not run.is_claimed
    run.claimed = 3
    assert run.is_claimed
    assert ConsumeRun(case.queue, case.cache(4, 5), 2).chunks == 2


@pytest.mark.parametrize(
    ("size", "calls"),
    [(1, [[0], [1], [2], [3], [4]]), (2, [[0, 1], [2, 3], [4]]), (9, [[*range(5)]])],
)
def test_every_message_goes_to_the_listener_once_and_counts(
    case: Case, size: int, calls: list[list[int]]
) -> None:
    """Covers C-254, C-259, C-260, C-265."""

    def listener(batch: list[MessageExt]) -> object:
        case.observer.now += 1
        assert not case.queue.is_free
        batch.clear()  # the list is the listener's own
        return SUCCESS

    case.listen(listener, size)
    case.consume(case.cache(5))
    assert case.calls == calls
    assert case.queue.is_free
    assert case.committed[-1] == 5
    assert case.observer.figures == [(TOPIC, 5, 0, len(calls), len(calls))]
    assert case.sent_back == []


def test_a_call_begins_when_the_one_before_has_ended(case: Case) -> None:
    """Covers C-233: CONSUME_START_TIME, also where the properties were read before."""
    messages = case.cache(3)
    assert messages[1].properties is not None
    starts: list[int] = []

    def listener(batch: list[MessageExt]) -> object:
        starts.append(batch[0].consume_start_ms)
        case.observer.now += 3
        return SUCCESS

    case.listen(listener)
    case.consume(messages)
    assert starts == [BEGAN_MS, BEGAN_MS + 3, BEGAN_MS + 6]
    assert messages[0]._properties is None
    assert messages[1].properties[PROPERTY_CONSUME_START_TIME] == str(BEGAN_MS + 3)


def test_what_fails_is_sent_back_and_counted_as_failed(case: Case) -> None:
    """Covers C-259, C-262, C-264: level 0, and a batch fails as a whole."""

    def listener(batch: list[MessageExt]) -> object:
        case.observer.now += 2
        return LATER if batch[0].queue_offset == 2 else SUCCESS

    case.listen(listener, 2)
    case.consume(case.cache(5))
    assert case.sent_back == [(case.queue, [2, 3], 0)]
    assert case.observer.figures == [(TOPIC, 3, 2, 6, 3)]
    assert case.committed[-1] == 2, "what failed holds the offset back"


def test_what_is_no_status_or_an_error_fails_and_ends_nothing(case: Case) -> None:
    """Covers C-261."""

    def listener(batch: list[MessageExt]) -> object:
        if batch[0].queue_offset == 0:
            raise SystemExit
        return None if batch[0].queue_offset == 1 else SUCCESS

    case.listen(listener)
    case.consume(case.cache(3))
    assert [sent[1:] for sent in case.sent_back] == [([0], 0), ([1], 0)]
    assert case.observer.figures == [(TOPIC, 1, 2, 0, 3)]


def test_a_context_says_how_much_is_done_and_when_the_rest_comes_again(case: Case) -> None:
    """Covers C-262, C-264: its queue is as listeners see it."""
    seen: list[MessageQueue] = []

    def listener(batch: list[MessageExt], context: ConsumeConcurrentlyContext) -> object:
        seen.append(context.message_queue)
        if batch[0].queue_offset == 0:
            context.ack_index = 0
            context.delay_level_when_next_consume = 5
        return SUCCESS

    case.listen(listener, 2)
    case.consume(case.cache(4))
    assert case.sent_back == [(case.queue, [1], 5)]
    assert seen == [MQ._replace(topic="seen")] * 2
    assert case.observer.figures == [(TOPIC, 3, 1, 0, 2)]
    assert case.observer.told == []
    assert case.committed[-1] == 1


def test_hooks_are_told_around_every_call(case: Case) -> None:
    """Covers C-257, C-258: with how long it took, and an answer of SUCCESS too."""
    case.observer.hooks = True
    error = ValueError("no")

    def listener(batch: list[MessageExt]) -> object:
        case.observer.now += 4
        if batch[0].queue_offset == 1:
            raise error
        return SUCCESS

    case.listen(listener)
    case.consume(case.cache(2))
    assert case.observer.told == [
        ("before", [0], MQ),
        ("after", "hooked 0", SUCCESS, SUCCESS, None, 4),
        ("before", [1], MQ),
        ("after", "hooked 1", None, LATER, error, 4),
    ]
    assert case.observer.figures == [(TOPIC, 1, 1, 8, 2)]


def test_messages_that_fail_say_why_where_that_is_wanted(case: Case) -> None:
    told: list[tuple[Any, ...]] = []
    case.observer.failure_cause = SimpleNamespace(tell=lambda *given: told.append(given))
    case.listen(lambda batch: LATER if batch[0].queue_offset else SUCCESS)
    messages = case.cache(2)
    case.consume(messages)
    assert told == [(messages[1:], None, LATER, "RECONSUME_LATER")]


@pytest.mark.parametrize(("took_ms", "committed"), [(4, [[], [], [2]]), (5, [[], [1], [1, 2]])])
def test_offsets_of_slow_calls_are_committed_every_five_milliseconds(
    case: Case, took_ms: int, committed: list[list[int]]
) -> None:
    """Covers C-265: what finishes within a moment is taken out together."""
    seen: list[list[int]] = []

    def listener(batch: list[MessageExt]) -> object:
        seen.append(case.committed[:])
        case.observer.now += took_ms
        return SUCCESS

    case.listen(listener)
    case.consume(case.cache(3))
    assert seen == committed
    assert case.committed[-1] == 3


@pytest.mark.parametrize("how", ["leave", "drop", "stop"])
def test_no_call_begins_once_the_queue_leaves_or_the_consumer_ends(case: Case, how: str) -> None:
    """Covers C-119, C-179, C-549: the call that runs counts, unless the queue was dropped."""

    def listener(batch: list[MessageExt]) -> object:
        if how == "leave":
            case.queue.leave()
        elif how == "drop":
            case.queue.drop()
        else:
            case.service._pool.stopping = True
        return SUCCESS

    service = case.listen(listener)
    messages = case.cache(3)
    run = ConsumeRun(case.queue, messages, 1)
    if case.is_async:
        service._runs.append(run)
        service._pool.start_one()
        case.turn()
    else:
        service.work(run)
    assert case.calls == [[0]]
    assert run.is_claimed, "nobody else goes on with it"
    assert case.committed == ([] if how == "drop" else [1])
    assert case.observer.figures == [(TOPIC, int(how != "drop"), 0, 0, 1)]


@pytest.mark.parametrize("answer", [SUCCESS, LATER, None])
def test_a_result_for_a_queue_that_was_dropped_goes_nowhere(case: Case, answer: object) -> None:
    """Covers C-263, C-549: neither done nor sent back; hooks are told all the same."""
    case.observer.hooks = True
    hits: list[int] = []

    def listener(batch: list[MessageExt]) -> object:
        hits.append(len(case.committed))
        case.queue.drop()
        return answer

    case.listen(listener)
    case.consume(case.cache(2))
    assert case.calls == [[0]]
    assert (case.sent_back, len(case.committed)) == ([], hits[0])
    assert [told[0] for told in case.observer.told] == ["before", "after"]
    assert case.observer.figures == [(TOPIC, 0, 0, 0, 1)]


def test_nothing_is_handed_out_once_the_service_ends(case: Case) -> None:
    """Covers C-119."""
    service = case.listen(lambda _: SUCCESS)
    case.loop.run_until_complete(service.shutdown(0))
    service.submit(case.queue, case.cache(1))
    case.turn()
    assert case.calls == []
    assert not service._runs


def test_a_service_tells_how_many_calls_it_makes_at_once(case: Case) -> None:
    """Covers C-255: between 1 and the setting."""
    service = case.listen(lambda _: SUCCESS, threads=4)
    assert service.core_pool_size == 4
    for size, allowed in ((1, True), (0, False), (5, False), (4, True), (-1, False), (2, True)):
        assert service.update_core_pool_size(size) is allowed
    assert service.core_pool_size == 2
    assert service._pool.size == 2
    case.turn()


# --- threads ------------------------------------------------------------------------------------


def test_workers_share_a_run_while_it_has_chunks_that_nobody_took(loop: StillLoop) -> None:
    """Covers C-254: a second worker takes what the first one has not."""
    case = Case(loop, False)
    second: list[ConsumeRun | None] = []

    def listener(batch: list[MessageExt]) -> object:
        run = case.service.next_job()
        second.append(run)
        if batch[0].queue_offset == 0:
            case.service._consume(run)  # as another worker does
        return SUCCESS

    service = case.listen(listener)
    run = ConsumeRun(case.queue, case.cache(3), 1)
    service._runs.append(run)
    service.work(run)
    assert sorted(case.calls) == [[0], [1], [2]]
    assert second == [run, run, None]
    assert case.committed[-1] == 3


def test_a_run_that_is_handed_out_wakes_a_worker_and_a_look(loop: StillLoop) -> None:
    case = Case(loop, False)
    service = case.listen(lambda _: SUCCESS)
    service.submit(case.queue, case.cache(2))
    assert service._pool._is_looking
    wait_until(lambda: len(service._pool._parked) == 1, "the worker to be done")
    assert case.calls == [[0], [1]]
    loop.run_until_complete(service.shutdown(0))
    for thread in service._pool._threads:
        thread.join()


# --- tasks --------------------------------------------------------------------------------------


def test_calls_that_wait_are_made_at_once_as_many_as_may_be(tasks: Case) -> None:
    """Covers C-254: one task more for each chunk that waits, within a run and across runs."""
    opened = asyncio.Event()

    async def wait() -> object:
        await opened.wait()
        return SUCCESS

    tasks.listen(lambda _: wait(), threads=3)
    tasks.consume(tasks.cache(2))
    assert tasks.calls == [[0], [1]]
    tasks.consume(tasks.cache(5, 2))
    assert tasks.calls == [[0], [1], [2]]
    opened.set()
    tasks.turn()
    assert sorted(tasks.calls) == [[offset] for offset in range(7)]
    assert tasks.committed[-1] == 7
    assert tasks.queue.is_free
    assert not tasks.service._runs


def test_two_runs_that_come_at_once_are_begun_at_once(tasks: Case) -> None:
    """Covers C-254: the task of the first starts one for the second."""
    opened = asyncio.Event()

    async def wait() -> object:
        await opened.wait()
        return SUCCESS

    tasks.listen(lambda _: wait(), threads=2)
    tasks.service.submit(tasks.queue, tasks.cache(1))
    tasks.consume(tasks.cache(1, 1))
    assert tasks.calls == [[0], [1]]
    opened.set()
    tasks.turn()


def test_tasks_that_shared_a_run_forget_that_one_only(tasks: Case) -> None:
    """The second to come back finds the run gone, and another at its place."""
    gates = [asyncio.Event(), asyncio.Event(), asyncio.Event()]

    async def wait(offset: int) -> object:
        await gates[offset].wait()
        return SUCCESS

    tasks.listen(lambda batch: wait(batch[0].queue_offset), threads=2)
    tasks.service.submit(tasks.queue, tasks.cache(2))
    tasks.consume(tasks.cache(1, 2))
    assert tasks.calls == [[0], [1]]
    for gate in gates:
        gate.set()
    tasks.turn()
    assert sorted(tasks.calls) == [[0], [1], [2]]
    assert tasks.committed[-1] == 3


def test_a_pool_made_smaller_makes_fewer_calls_at_once(tasks: Case) -> None:
    """Covers C-255: tasks too many take no further run."""
    gate = asyncio.Semaphore(0)
    waiting: list[int] = []

    async def wait(offset: int) -> object:
        waiting.append(offset)
        await gate.acquire()
        waiting.remove(offset)
        return SUCCESS

    tasks.listen(lambda batch: wait(batch[0].queue_offset), threads=3)
    for first in range(8):
        tasks.consume(tasks.cache(1, first))
    assert len(waiting) == 3
    assert tasks.service.update_core_pool_size(1)
    for left in (2, 1, 1, 1):
        gate.release()
        tasks.turn()
        assert len(waiting) == left
    for _ in range(4):
        gate.release()
        tasks.turn()
    assert sorted(tasks.calls) == [[offset] for offset in range(8)]


def test_a_call_that_waits_alone_has_no_task_beside_it(tasks: Case) -> None:
    opened = asyncio.Event()

    async def wait() -> object:
        await opened.wait()
        return SUCCESS

    tasks.listen(lambda _: wait(), threads=3)
    tasks.consume(tasks.cache(1))
    assert len(tasks.service._pool._tasks) == 1
    assert next(tasks.service._pool._numbers) == 2
    opened.set()
    tasks.turn()


def test_a_listener_that_never_waits_is_called_from_one_task_which_leaves_others_their_turn(
    tasks: Case,
) -> None:
    """Covers C-254: runs follow each other, and the loop has its sockets in between."""
    turns: list[int] = []

    def other() -> None:
        turns.append(len(tasks.calls))

    tasks.listen(lambda _: SUCCESS)
    for first in range(3):
        tasks.service.submit(tasks.queue, tasks.cache(1, first))

    async def look() -> None:
        for _ in range(6):
            other()
            await asyncio.sleep(0)

    tasks.loop.run_until_complete(look())
    assert tasks.calls == [[0], [1], [2]]
    assert {1, 2} <= set(turns)


@pytest.mark.parametrize("hooks", [False, True])
def test_a_call_that_is_cancelled_with_its_consumer_counts_for_nothing(
    tasks: Case, hooks: bool
) -> None:
    """Covers C-120: its message is not sent back; hooks are told that it was cut off."""
    tasks.observer.hooks = hooks

    async def wait() -> object:
        await asyncio.Event().wait()
        return SUCCESS

    tasks.listen(lambda _: wait())
    tasks.consume(tasks.cache(2))
    tasks.loop.run_until_complete(tasks.service.shutdown(0))
    assert tasks.sent_back == []
    assert tasks.calls == [[0]]
    assert tasks.queue.is_free
    if hooks:
        assert tasks.observer.told[0] == ("before", [0], MQ)
        ((what, hooked, status, error),) = tasks.observer.told[1:]
        assert (what, hooked, status) == ("cut off", "hooked 0", LATER)
        assert isinstance(error, asyncio.CancelledError)
    else:
        assert tasks.observer.told == []


def test_a_cancellation_of_the_listeners_own_is_a_failure(tasks: Case) -> None:
    """Covers C-261: the task goes on."""

    async def give_up() -> object:
        raise asyncio.CancelledError

    tasks.listen(lambda batch: SUCCESS if batch[0].queue_offset else give_up())
    tasks.consume(tasks.cache(2))
    assert tasks.sent_back == [(tasks.queue, [0], 0)]
    assert tasks.observer.figures == [(TOPIC, 1, 1, 0, 2)]


def test_an_error_while_a_task_is_cancelled_is_the_listeners(tasks: Case) -> None:
    """A listener that turns its cancellation into an error has failed."""

    async def turn_it() -> object:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("no") from None
        return SUCCESS

    tasks.listen(lambda _: turn_it())
    tasks.consume(tasks.cache(2))
    tasks.loop.run_until_complete(tasks.service.shutdown(0))
    assert tasks.sent_back == [(tasks.queue, [0], 0)]


def wait_once(tasks: Case, then: Callable[[list[MessageExt]], object]) -> list[Any]:
    """Listen; the first call waits. Return where the task of that call is found."""
    called: list[Any] = []

    async def wait() -> object:
        called.append(asyncio.current_task())
        return await asyncio.Event().wait()

    tasks.listen(lambda batch: then(batch) if called else wait())
    return called


def test_a_call_that_somebody_cancels_has_failed_and_the_others_go_on(
    tasks: Case, caplog: pytest.LogCaptureFixture
) -> None:
    """A moment later, as a loop that ends cancels all; what was done before counts at once."""
    called = wait_once(tasks, lambda _: SUCCESS)
    tasks.consume(tasks.cache(3))
    called[0].cancel()
    tasks.turn()
    assert (called[0].cancelled(), tasks.sent_back, tasks.calls) == (True, [], [[0]])
    tasks.loop.now_s += CUT_OFF_AFTER_MS / 1000
    tasks.turn()
    assert tasks.sent_back == [(tasks.queue, [0], 0)]
    assert tasks.calls == [[0], [1], [2]]
    assert "listener raised CancelledError; counts as RECONSUME_LATER" in caplog.text
    failed = [figures for figures in tasks.observer.figures if figures[2]]
    assert failed == [(TOPIC, 0, 1, 0, 0)]


def test_a_call_that_somebody_cancelled_before_its_consumer_ended_counts_for_nothing(
    tasks: Case,
) -> None:
    called = wait_once(tasks, lambda _: SUCCESS)
    tasks.consume(tasks.cache(2))
    called[0].cancel()
    tasks.turn()
    tasks.loop.run_until_complete(tasks.service.shutdown(0))
    tasks.loop.now_s += CUT_OFF_AFTER_MS / 1000
    tasks.turn()
    assert (tasks.sent_back, tasks.calls) == ([], [[0]])


def test_a_cancellation_that_a_listener_caught_makes_no_later_one_its_own(tasks: Case) -> None:
    """As a library's that does not call ``uncancel``: it still counts in the task."""

    async def listener(batch: list[MessageExt]) -> object:
        if batch[0].queue_offset == 0:
            cast(Any, asyncio.current_task()).cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        if batch[0].queue_offset == 1:
            raise asyncio.CancelledError
        return SUCCESS

    tasks.listen(listener)
    tasks.consume(tasks.cache(3))
    assert tasks.calls == [[0], [1], [2]]
    assert tasks.sent_back == [(tasks.queue, [1], 0)]


def test_eager_tasks_make_no_more_calls_at_once_than_may_be(tasks: Case) -> None:
    """Covers C-254: such a task runs before ``create_task`` returns it."""
    factory = getattr(asyncio, "eager_task_factory", None)
    if factory is None:
        pytest.skip("Python 3.12 has them first")
    tasks.loop.set_task_factory(factory)
    running: list[int] = []
    gate = asyncio.Semaphore(0)

    async def listener(batch: list[MessageExt]) -> object:
        running.append(len(running))
        await gate.acquire()
        running.pop()
        return SUCCESS

    tasks.listen(listener, threads=2)
    for first in range(0, 6, 3):
        tasks.consume(tasks.cache(3, first))
    assert running == [0, 1]
    for _ in range(6):
        gate.release()
        tasks.turn()
        assert len(running) <= 2
    assert sorted(tasks.calls) == [[number] for number in range(6)]
