"""A pull consumer's schedule step by step: its tasks, its threads, and what it takes for a task."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rocketstream import MessageQueue, MQPullConsumerScheduleService, PullConsumer, aio
from rocketstream._util.executors import CallbackExecutor
from rocketstream._util.loops import LoopThread
from rocketstream._util.waiting import Locks
from rocketstream.client.instance.life_cycle import ServiceState
from rocketstream.errors import (
    BrokerError,
    ClientStateError,
    ConfigurationError,
    RequestTimeoutError,
    RouteNotFoundError,
)
from tests.kits.client.fake_broker import GROUP, TOPIC, WAIT_S
from tests.kits.client.still_client import StillClient

MQ = MessageQueue(TOPIC, "broker-a", 0)
OTHER = MessageQueue(TOPIC, "broker-a", 1)
ELSEWHERE = MessageQueue("U", "broker-a", 0)


class Schedule:
    """The tasks of one schedule on a still loop, for the face that awaits them."""

    def __init__(self) -> None:
        self.client = StillClient()
        self.calls: list[MessageQueue] = []
        self.outages: list[tuple[object, ...]] = []
        self.gate: asyncio.Event | None = None
        self.delay_ms: float | None = None
        self.error: Exception | None = None
        self.service: Any = aio.MQPullConsumerScheduleService(GROUP, namesrv_addr="x:1")
        self.service._callbacks[TOPIC] = self.task

    async def task(self, mq: MessageQueue, context: Any) -> None:
        assert context.pull_consumer is self.service.consumer
        self.calls.append(mq)
        if self.delay_ms is not None:
            context.pull_next_delay_ms = self.delay_ms
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error

    def divide(self, *mine: MessageQueue, topic: str = TOPIC) -> None:
        async def change() -> None:
            self.service._queues_changed(topic, [MQ, OTHER], list(mine))

        self.client.run(change())
        self.client.turn()

    def close(self) -> None:
        self.service._cancel_all()
        if self.gate is not None:
            self.gate.set()
        self.client.turn()
        self.client.close()


@pytest.fixture
def schedule() -> Iterator[Schedule]:
    made = Schedule()
    yield made
    made.close()


@pytest.mark.parametrize(("delay_ms", "pause_ms"), [(None, 200), (50, 50)])
def test_a_task_is_called_again_after_its_pause(
    schedule: Schedule, delay_ms: float | None, pause_ms: float
) -> None:
    """Covers C-502."""
    schedule.delay_ms = delay_ms
    schedule.divide(MQ)
    assert schedule.calls == [MQ]
    schedule.client.turn(pause_ms - 0.1)
    assert schedule.calls == [MQ]
    schedule.client.turn(0.2)
    assert schedule.calls == [MQ, MQ]


@pytest.mark.parametrize("delay_ms", [0, -5])
def test_a_task_that_wants_no_pause_is_called_again_at_once(
    schedule: Schedule, delay_ms: float
) -> None:
    """Covers C-502."""
    schedule.delay_ms = delay_ms
    schedule.divide(MQ)
    assert len(schedule.calls) > 1


def test_a_task_of_a_plain_function_is_called_too(schedule: Schedule) -> None:
    """Covers C-500."""
    schedule.service._callbacks[TOPIC] = lambda mq, context: schedule.calls.append(mq)
    schedule.divide(MQ)
    assert schedule.calls == [MQ]


@pytest.mark.parametrize(
    ("is_running", "error", "is_outage"),
    [
        (True, RequestTimeoutError("no answer"), True),
        (True, BrokerError(1, "no"), True),
        (True, RouteNotFoundError("its broker is away"), True),
        (True, LookupError("no"), False),
        (False, RequestTimeoutError("no answer"), False),
    ],
)
def test_a_task_that_raises_is_called_again_after_a_second(
    schedule: Schedule, caplog: pytest.LogCaptureFixture,
    is_running: bool, error: Exception, is_outage: bool,
) -> None:  # fmt: skip
    """Covers C-502: an outage of a server is told as one, anything else with its stack."""
    if is_running:
        engine = SimpleNamespace(instance=SimpleNamespace(outages=schedule.client))
        schedule.service.consumer._started = SimpleNamespace(engine=engine)
    schedule.error = error
    schedule.divide(MQ)
    told = [("failed", "pull task of", MQ)] if is_outage else []
    assert schedule.client.said == told
    assert (f"pull task of {MQ} failed, again in 1000 ms" in caplog.text) is not is_outage
    schedule.client.turn(999)
    assert schedule.calls == [MQ]
    schedule.client.turn(2)
    assert schedule.calls == [MQ, MQ]
    schedule.service.consumer._started = None


def test_queues_that_leave_lose_their_tasks_at_once(schedule: Schedule) -> None:
    """Covers C-501: those of other topics keep theirs; queues that stay are not begun anew."""
    schedule.service._callbacks["U"] = schedule.task
    schedule.divide(ELSEWHERE, topic="U")
    schedule.divide(MQ, OTHER)
    assert schedule.calls == [ELSEWHERE, MQ, OTHER]
    schedule.divide(OTHER)
    assert set(schedule.service._tasks) == {ELSEWHERE, OTHER}
    schedule.divide(OTHER)
    assert len(schedule.calls) == 3
    schedule.client.turn(201)
    assert sorted(schedule.calls[3:]) == sorted([ELSEWHERE, OTHER])


def test_a_queue_that_comes_back_waits_for_the_task_it_had(schedule: Schedule) -> None:
    """Covers C-501: though that ends with an error of its own."""
    schedule.gate = asyncio.Event()
    schedule.divide(MQ)
    first = schedule.service._tasks[MQ]
    schedule.divide()
    schedule.divide(MQ)
    assert schedule.calls == [MQ]
    assert schedule.service._tasks[MQ] is not first
    first.cancel()
    schedule.client.turn()
    assert schedule.calls == [MQ, MQ]
    assert MQ in schedule.service._tasks, "the new one is there though the former has ended"


def test_a_topic_without_a_task_is_told_and_left_alone(
    schedule: Schedule, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-502."""
    del schedule.service._callbacks[TOPIC]
    schedule.divide(MQ)
    assert f"no pull task is registered for topic {TOPIC}" in caplog.text
    assert schedule.calls == []
    assert schedule.service._tasks == {}


def test_all_tasks_end_with_the_schedule(schedule: Schedule) -> None:
    """Covers C-503."""
    schedule.divide(MQ, OTHER)
    schedule.service._cancel_all()
    schedule.client.turn()
    assert schedule.service._tasks == {}
    assert schedule.service._cancelled == {}
    schedule.client.turn(5_000)
    assert len(schedule.calls) == 2


def test_the_end_of_an_asyncio_schedule_cancels_what_runs(schedule: Schedule) -> None:
    """Covers C-503: then its consumer ends."""
    ended: list[int] = []

    async def shutdown() -> None:
        ended.append(len(schedule.service._tasks))
        schedule.service._queues_changed(TOPIC, [MQ, OTHER], [MQ, OTHER])

    schedule.service.consumer.shutdown = shutdown
    schedule.service.state = ServiceState.RUNNING
    schedule.gate = asyncio.Event()
    schedule.divide(MQ)
    schedule.client.run(schedule.service.shutdown())
    assert ended == [0]
    assert schedule.service._tasks == {}, "begun while the consumer ended, they ran for ever"
    assert schedule.service.state is ServiceState.SHUTDOWN_ALREADY


def test_a_task_that_swallows_its_cancellation_is_not_called_again(schedule: Schedule) -> None:
    """Covers C-503: the end waits for it."""
    schedule.gate = asyncio.Event()

    async def task(mq: MessageQueue, context: Any) -> None:
        schedule.calls.append(mq)
        assert schedule.gate is not None
        with contextlib.suppress(asyncio.CancelledError):
            await schedule.gate.wait()

    async def shutdown() -> None:
        """There is nothing to end."""

    schedule.service.consumer.shutdown = shutdown
    schedule.service._callbacks[TOPIC] = task
    schedule.divide(MQ)
    ending = schedule.client.loop.create_task(schedule.service.shutdown())
    schedule.client.turn()
    assert ending.done()
    assert schedule.calls == [MQ]


def test_an_asyncio_schedule_starts_its_consumer_once(schedule: Schedule) -> None:
    """Covers C-500."""
    started: list[int] = []

    async def start() -> None:
        started.append(1)

    schedule.service.consumer.start = start
    schedule.client.run(schedule.service.start())
    assert started == [1]
    assert schedule.service.state is ServiceState.RUNNING


def test_a_second_start_amid_the_first_leaves_its_tasks_alone(schedule: Schedule) -> None:
    """Its failure ended them, and the service pulled nothing and said nothing."""
    consumer, gate = schedule.service.consumer, asyncio.Event()

    async def start() -> None:
        consumer._check_new()
        consumer.state = ServiceState.START_FAILED  # as long as it starts
        await gate.wait()
        consumer.state = ServiceState.RUNNING

    async def scenario() -> None:
        first = asyncio.create_task(schedule.service.start())
        await asyncio.sleep(0)
        with pytest.raises(ClientStateError, match="was started before"):
            await schedule.service.start()
        gate.set()
        await first

    consumer.start = start
    schedule.client.run(scenario())
    schedule.divide(MQ)
    assert schedule.calls == [MQ]


def test_a_start_after_one_that_failed_calls_tasks_though_it_was_shut_down_between(
    schedule: Schedule,
) -> None:
    """As a `finally` does, to be sure."""
    consumer = schedule.service.consumer

    async def start() -> None:
        schedule.service._queues_changed(TOPIC, [MQ], [MQ])
        if not schedule.calls:
            await asyncio.sleep(0)
            raise ValueError("no")

    async def shutdown() -> None:
        """There is nothing to end."""

    consumer.start, consumer.shutdown = start, shutdown
    with pytest.raises(ValueError, match="no"):
        schedule.client.run(schedule.service.start())
    schedule.client.turn(5_000)
    assert (schedule.calls, schedule.service._tasks) == ([MQ], {}), "it runs without its consumer"
    schedule.client.run(schedule.service.shutdown())
    schedule.client.run(schedule.service.start())
    schedule.client.turn()
    assert schedule.calls == [MQ, MQ]


def test_the_end_of_an_asyncio_schedule_on_another_loop_is_refused(schedule: Schedule) -> None:
    """It cancelled tasks across threads, and then failed with the rest running."""
    schedule.gate = asyncio.Event()
    schedule.divide(MQ)

    def refuse() -> None:
        raise ClientStateError("another loop")

    schedule.service.consumer._started = SimpleNamespace(
        engine=SimpleNamespace(check_process=refuse)
    )
    schedule.service.state = ServiceState.RUNNING
    with pytest.raises(ClientStateError, match="another loop"):
        asyncio.run(schedule.service.shutdown())
    assert schedule.service.state is ServiceState.RUNNING
    assert not schedule.service._tasks[MQ].cancelling()
    schedule.service.consumer._started = None


@pytest.mark.parametrize("is_async", [True, False])
def test_a_task_that_raises_a_cancellation_of_its_own_is_called_again(
    schedule: Schedule, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Covers C-502: what it awaited was cancelled by somebody else; its queue stood still."""

    def task(mq: MessageQueue, context: Any) -> None:
        schedule.calls.append(mq)
        raise asyncio.CancelledError

    async def task_async(mq: MessageQueue, context: Any) -> None:
        task(mq, context)

    schedule.service._callbacks[TOPIC] = task_async if is_async else task
    schedule.divide(MQ)
    assert schedule.calls == [MQ]
    schedule.client.turn(1_000)
    assert schedule.calls == [MQ, MQ]
    assert "failed, again in 1000 ms" in caplog.text


class Threads:
    """A schedule of the face with threads; its consumer is never started."""

    def __init__(self) -> None:
        self.service: Any = MQPullConsumerScheduleService(GROUP, namesrv_addr="x:1")

    def call(self, task: Callable[..., object]) -> Any:
        async def call() -> Any:
            return await self.service._call_task(task, MQ)

        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(call())
        finally:
            loop.close()


def test_a_task_on_a_thread_says_when_it_is_called_again(caplog: pytest.LogCaptureFixture) -> None:
    """Covers C-500, C-502: whatever it raises ends neither thread nor loop."""
    threads = Threads()
    threads.service._executor = CallbackExecutor(1, "t")
    names: list[str] = []

    def task(mq: MessageQueue, context: Any) -> None:
        names.append(threading.current_thread().name)
        context.pull_next_delay_ms = 7

    def exits(mq: MessageQueue, context: Any) -> None:
        raise SystemExit

    try:
        assert threads.call(task) == 7
        assert threads.call(lambda mq, context: None) == 200
        assert threads.call(exits) == 1_000
    finally:
        threads.service._executor.close()
        threads.service._executor.join(WAIT_S)
    assert names[0].startswith("t")
    assert "failed, again in 1000 ms" in caplog.text


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_task_is_not_called_once_its_threads_have_ended(is_closed: bool) -> None:
    """Covers C-503."""
    threads = Threads()
    calls: list[int] = []
    if is_closed:
        threads.service._executor = CallbackExecutor(1, "t")
        threads.service._executor.close()
    with pytest.raises(asyncio.CancelledError):
        threads.call(lambda mq, context: calls.append(1))
    assert calls == []


def test_the_end_of_a_schedule_waits_for_its_threads_and_ends_its_consumer() -> None:
    """Covers C-503: as long as a pull may take; nothing is done twice."""
    threads, done = Threads(), []
    consumer = threads.service.consumer
    threads.service._executor = SimpleNamespace(
        close=lambda: done.append("closed"), join=lambda wait_s: done.append(wait_s)
    )
    threads.service.state = ServiceState.RUNNING
    engine = SimpleNamespace(
        call_soon=done.append, check_process=lambda: None, locks=Locks(), loop_thread_id=0
    )
    consumer._started = SimpleNamespace(engine=engine)
    consumer.shutdown = lambda: done.append("consumer")
    threads.service.shutdown()
    assert done == [threads.service._cancel_all, "closed", 30.0, "consumer"]
    assert threads.service.state is ServiceState.SHUTDOWN_ALREADY
    consumer._started = None
    threads.service.shutdown()
    assert done[4:] == ["consumer"]


def test_a_schedule_that_was_not_started_stays_so_when_it_is_ended() -> None:
    threads = Threads()
    threads.service.shutdown()
    assert threads.service.state is ServiceState.CREATE_JUST


def test_a_start_that_fails_ends_the_threads() -> None:
    """Covers C-118, C-500."""
    threads = Threads()

    def start() -> None:
        threads.service._cancelled[MQ] = asyncio.Event()
        raise ValueError("no")

    threads.service.consumer.start = start
    with pytest.raises(ValueError, match="no"):
        threads.service.start()
    executor = threads.service._executor
    assert executor is not None
    executor.join(WAIT_S)
    with pytest.raises(ClientStateError):
        executor.submit(print)
    assert threads.service._cancelled == {}, "the next start would begin no task for its queue"
    assert threads.service.state is ServiceState.CREATE_JUST


def test_a_start_that_fails_ends_its_tasks_on_a_loop_that_goes_on() -> None:
    """Of an engine that clients share: a task went on with the threads of the next start."""
    threads, called = Threads(), threading.Event()

    def task(_: MessageQueue, context: Any) -> None:
        context.pull_next_delay_ms = 3_600_000
        called.set()

    threads.service._callbacks[TOPIC] = task
    with LoopThread() as loop:

        def start() -> None:
            loop.call_soon(threads.service._divided, TOPIC, [MQ])
            assert called.wait(WAIT_S)
            raise ValueError("no")

        threads.service.consumer.start = start
        with pytest.raises(ValueError, match="no"):
            threads.service.start()

        async def tasks_end() -> None:
            await asyncio.gather(*threads.service._tasks.values())

        loop.run(tasks_end(), timeout_ms=WAIT_S * 1000)
    assert threads.service._cancelled == {}


def test_a_schedule_is_shown_with_its_consumer() -> None:
    for service in (
        MQPullConsumerScheduleService(GROUP, namesrv_addr="x:1"),
        aio.MQPullConsumerScheduleService(GROUP, namesrv_addr="x:1"),
    ):
        assert repr(service).startswith("MQPullConsumerScheduleService(")
        assert repr(service.consumer) in repr(service)


def test_a_schedule_pulls_with_the_consumer_it_is_given() -> None:
    """Covers C-500: which is of its kind and group, and has its settings already."""
    consumer = PullConsumer(GROUP, namesrv_addr="x:1")
    assert MQPullConsumerScheduleService(GROUP, consumer=consumer).consumer is consumer
    with pytest.raises(ConfigurationError, match="give the same"):
        MQPullConsumerScheduleService("other", consumer=consumer)
    with pytest.raises(ConfigurationError, match=r"^namesrv_addr cannot be given beside consumer"):
        MQPullConsumerScheduleService(GROUP, consumer=consumer, namesrv_addr="x:1")
    with pytest.raises(ConfigurationError, match=r"consumer must be a rocketstream\.PullConsumer"):
        MQPullConsumerScheduleService(GROUP, consumer=cast(Any, 7))
    with pytest.raises(ConfigurationError, match=r"must be a rocketstream\.aio\.PullConsumer"):
        aio.MQPullConsumerScheduleService(GROUP, consumer=cast(Any, consumer))


def test_a_schedule_has_threads_and_topics_that_there_can_be() -> None:
    """Covers C-500."""
    for threads in (0, -1):
        with pytest.raises(ConfigurationError, match="pull_thread_nums"):
            MQPullConsumerScheduleService(GROUP, namesrv_addr="x:1", pull_thread_nums=threads)
    service: Any = MQPullConsumerScheduleService(GROUP, namesrv_addr="x:1", pull_thread_nums=1)
    registered: list[tuple[object, ...]] = []
    service.consumer.register_message_queue_listener = lambda *given: registered.append(given)
    with pytest.raises(ConfigurationError, match="topic"):
        service.register_pull_task_callback("", print)

    async def coroutine(mq: MessageQueue, context: object) -> None:
        """Nobody would await it."""

    with pytest.raises(ConfigurationError, match="coroutine function"):
        service.register_pull_task_callback(TOPIC, coroutine)
    assert (registered, service._callbacks) == ([], {})
    task = SimpleNamespace(do_pull_task=print)
    service.register_pull_task_callback(TOPIC, task)
    assert service._callbacks == {TOPIC: print}
    assert registered == [(TOPIC, service._queues_changed)]


def test_an_asyncio_schedule_takes_topics_that_there_can_be() -> None:
    service: Any = aio.MQPullConsumerScheduleService(GROUP, namesrv_addr="x:1")
    registered: list[tuple[str, object]] = []

    async def register(topic: str, listener: object) -> None:
        registered.append((topic, listener))

    service.consumer.register_message_queue_listener = register
    with pytest.raises(ConfigurationError, match="topic"):
        asyncio.run(service.register_pull_task_callback("", print))
    with pytest.raises(ConfigurationError, match="is not a pull task"):
        asyncio.run(service.register_pull_task_callback(TOPIC, cast(Any, 7)))
    asyncio.run(service.register_pull_task_callback(TOPIC, print))
    assert service._callbacks == {TOPIC: print}
    assert registered == [(TOPIC, service._queues_changed)]


def test_changes_of_queues_reach_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    """Covers C-501: from the thread that tells listeners."""
    threads, posted = Threads(), []
    engine = SimpleNamespace(call_soon=lambda *given: posted.append(given))
    threads.service.consumer._running = lambda: SimpleNamespace(engine=engine)
    with caplog.at_level(logging.INFO):
        threads.service._queues_changed(TOPIC, [MQ, OTHER], [MQ])
    assert posted == [(threads.service._divided, TOPIC, [MQ])]
