"""How turns in order end: last tries, mistakes of ours, the end of the consumer, and its pools."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rocketstream import MessageExt
from rocketstream.client.consumer.consume.orderly_queue import Stage
from rocketstream.client.consumer.consume.orderly_turn import AskLock, Resume
from rocketstream.client.consumer.queue import OrderlyQueue
from rocketstream.client.instance.background import CUT_OFF_AFTER_MS
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


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit])
def test_a_turn_that_breaks_ends_no_worker_and_its_batch_comes_again(
    case: Case,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
) -> None:
    case.listen(lambda _: SUSPEND)
    queue = case.take()
    settle = case.service.settle

    def broken(*given: Any) -> bool:
        monkeypatch.setattr(case.service, "settle", settle)
        raise error

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


def test_a_call_that_somebody_cancels_is_made_again_and_the_queue_goes_on(
    tasks: Case, caplog: pytest.LogCaptureFixture
) -> None:
    """Its task ends; another takes its work, and what waits behind it."""
    called: list[Any] = []

    async def wait() -> object:
        called.append(asyncio.current_task())
        return await asyncio.Event().wait()

    tasks.listen(lambda _: SUCCESS if called else wait(), threads=1)
    other = tasks.take(mq=MQ._replace(queue_id=1))
    queue = tasks.take()
    tasks.put(queue, 0, 1)
    tasks.put(other, 7)
    assert tasks.calls == [[0]]
    called[0].cancel()
    tasks.turn()
    assert called[0].cancelled()
    assert "somebody cancelled the call of" in caplog.text
    tasks.turn(CUT_OFF_AFTER_MS)
    assert tasks.calls == [[0], [7]]
    tasks.turn(1_001)
    assert tasks.calls == [[0], [7], [0], [1]]
    assert not queue.spared


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
