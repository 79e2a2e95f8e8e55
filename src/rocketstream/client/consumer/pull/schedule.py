"""A pull consumer's schedule: one task per allotted queue, called again and again.

(C-500 to C-503, upstream's MQPullConsumerScheduleService.)
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, Unpack

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream._util.ending import take_all
from rocketstream._util.executors import CallbackExecutor
from rocketstream._util.user_code import called, result_of
from rocketstream.checks import check_range, checks_calls
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.pull.consumer import (
    AsyncPullConsumer,
    PullConsumer,
    PullConsumerBase,
)
from rocketstream.client.instance.life_cycle import AsyncClient, Client, ServiceState, SyncClient
from rocketstream.client.keywords import PullConsumerKeywords
from rocketstream.errors import (
    BrokerError,
    ClientStateError,
    ConfigurationError,
    RouteNotFoundError,
    TransportError,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.names import check_topic

logger: logging.Logger = logging.getLogger("rocketstream.client")

PULL_NEXT_DELAY_MS = 200
FAILED_DELAY_MS = 1_000
PULL_THREADS = 20


ConsumerT = TypeVar("ConsumerT", PullConsumer, AsyncPullConsumer)
Context_contra = TypeVar("Context_contra", contravariant=True)


@dataclass(slots=True)
class _TaskContext(Generic[ConsumerT]):
    """The context of a task.

    Attributes:
        pull_consumer: pulls, and keeps the offsets.
        pull_next_delay_ms: when the task is called again; the task may change it.
    """

    pull_consumer: ConsumerT
    pull_next_delay_ms: float = PULL_NEXT_DELAY_MS


class PullTaskContext(_TaskContext[PullConsumer]):
    """The context of a task: the consumer, and when the task is called again."""

    __slots__ = ()


class AsyncPullTaskContext(_TaskContext[AsyncPullConsumer]):
    """As ``rocketstream.PullTaskContext``, with the asyncio consumer."""

    __slots__ = ()


class _PullTask(Protocol[Context_contra]):
    """The object form of a task."""

    def do_pull_task(self, mq: MessageQueue, context: Context_contra, /) -> object: ...


PullTask = Callable[[MessageQueue, PullTaskContext], object] | _PullTask[PullTaskContext]
AsyncPullTask = (
    Callable[[MessageQueue, AsyncPullTaskContext], object] | _PullTask[AsyncPullTaskContext]
)
PullTaskCallback = Callable[[MessageQueue, Any], object]


class _Schedule(Client[None]):
    """Both faces: callbacks by topic, and a task of the loop for each queue."""

    # The settings are its consumer's.
    __setattr__: Callable[[Any, str, Any], None] = object.__setattr__  # type: ignore[assignment]

    def __init__(self, consumer: PullConsumerBase, clock: Clock) -> None:
        self._create(clock)
        self._pulling = consumer
        self._callbacks: dict[str, PullTaskCallback] = {}
        self._cancelled: dict[MessageQueue, asyncio.Event] = {}
        self._tasks: dict[MessageQueue, asyncio.Task[None]] = {}
        self._is_over = False

    def __repr__(self) -> str:
        return f"{type(self).__name__.removeprefix('Async')}({self._pulling!r})"

    def _callback(self, callback: Any) -> PullTaskCallback:
        method = getattr(callback, "do_pull_task", callback)
        if not callable(method):
            raise ConfigurationError(
                f"{callback!r} is not a pull task: give a function of queue and context, or an "
                "object with a method do_pull_task"
            )
        return method  # type: ignore[no-any-return]

    async def _call_task(self, callback: PullTaskCallback, mq: MessageQueue) -> float:
        """Call a user's function and wait for it; return the delay of the next call, ms."""
        raise NotImplementedError

    # --- on the loop ------------------------------------------------------------------------------

    def _divided(self, topic: str, mine: Sequence[MessageQueue]) -> None:
        """End the tasks of queues that left, begin those of queues that came (C-501)."""
        if self._is_over:
            return  # the consumer, which ends after the tasks, has divided once more
        for mq in [mq for mq in self._cancelled if mq.topic == topic and mq not in mine]:
            self._cancelled.pop(mq).set()
        for mq in mine:
            if mq not in self._cancelled:
                cancelled = self._cancelled[mq] = asyncio.Event()
                run = self._run(mq, cancelled, self._tasks.get(mq))
                task = self._tasks[mq] = asyncio.get_running_loop().create_task(run)
                task.add_done_callback(lambda done, mq=mq: self._ended(mq, done))  # type: ignore[misc]

    def _cancel_all(self) -> None:
        self._is_over = True
        for cancelled in self._cancelled.values():
            cancelled.set()
        self._cancelled.clear()

    def _ended(self, mq: MessageQueue, task: asyncio.Task[None]) -> None:
        if self._tasks.get(mq) is task:
            del self._tasks[mq]

    async def _run(
        self, mq: MessageQueue, cancelled: asyncio.Event, previous: asyncio.Task[None] | None
    ) -> None:
        if previous is not None:  # the queue came back while the task it had before still runs
            await asyncio.gather(previous, return_exceptions=True)
        while not cancelled.is_set():
            callback = self._callbacks.get(mq.topic)
            if callback is None:
                logger.warning(
                    "no pull task is registered for topic %s; its queue at broker %s is no "
                    "longer pulled",
                    *mq[:2],
                )
                return
            try:
                delay_ms = await self._call_task(callback, mq)
            except Exception as error:
                self._failed(mq, error)
                delay_ms = FAILED_DELAY_MS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(delay_ms, 0) / 1000):
                    await cancelled.wait()

    def _failed(self, mq: MessageQueue, error: BaseException) -> None:
        """Say that a task raised: once per outage of a server, else each time with its stack."""
        started = self._pulling._started
        if started is not None and isinstance(
            error, TransportError | BrokerError | RouteNotFoundError
        ):
            started.engine.instance.outages.failed(("pull task of", mq), error)
        else:
            text = "pull task of %s failed, again in %d ms"
            logger.error(text, mq, FAILED_DELAY_MS, exc_info=error)


def _pulling_with(
    kind: type[ConsumerT], consumer: ConsumerT | None, group: str, given: dict[str, Any]
) -> ConsumerT:
    """Return the consumer to pull with: the one given, or one made of group and settings.

    Raises:
        ConfigurationError: what is given is not such a consumer, is of another group, or has
            settings beside it, which it would not take.
    """
    if consumer is None:
        return kind(group, **given)
    if not isinstance(consumer, kind):
        module = "rocketstream.aio" if kind is AsyncPullConsumer else "rocketstream"
        raise ConfigurationError(f"consumer must be a {module}.PullConsumer, not {consumer!r}")
    besides = sorted(name for name, value in given.items() if value not in (None, SYSTEM_CLOCK))
    if besides:
        raise ConfigurationError(
            f"{', '.join(besides)} cannot be given beside consumer, which has its own settings: "
            "make the consumer with them"
        )
    if consumer.group != group:
        raise ConfigurationError(
            f"consumer is of group {consumer.group!r}, and group is {group!r}: give the same"
        )
    return consumer


@checks_calls()
class MQPullConsumerScheduleService(_Schedule, SyncClient[None]):
    """Calls a task for each queue of registered topics that the group has allotted to this member.

    Tasks run on at most ``pull_thread_nums`` threads, one per queue at a time, again after
    ``context.pull_next_delay_ms`` (200), or 1000 ms after one that raised. A ``with`` block
    starts it and shuts it down.

    Args:
        group: consumer group.
        consumer: pull with this one, which is of ``group``; by default one is made of ``group``
            and ``settings``.
        pull_thread_nums: threads for tasks.
        **settings: as of ``PullConsumer``, ``namesrv_addr`` and ``config`` among them; none beside
            ``consumer``, which has its own.

    Raises:
        ConfigurationError: a setting that cannot be used; the text names it.
    """

    def __init__(
        self,
        group: str,
        *,
        consumer: PullConsumer | None = None,
        pull_thread_nums: int = PULL_THREADS,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Unpack[PullConsumerKeywords],
    ) -> None:
        given = {"namesrv_addr": namesrv_addr, "config": config, "clock": clock, **settings}
        self.consumer: PullConsumer = _pulling_with(PullConsumer, consumer, group, given)
        super().__init__(self.consumer, clock)
        check_range("pull_thread_nums", pull_thread_nums, 1)
        self.pull_thread_nums = pull_thread_nums
        self._executor: CallbackExecutor | None = None

    def register_pull_task_callback(self, topic: str, callback: PullTask) -> None:
        """Have ``callback(mq, context)`` called for each allotted queue of a topic.

        Raises:
            ConfigurationError: a bad topic name, or no such callback.
        """
        check_topic(topic)
        task = self._callback(callback)
        if inspect.iscoroutinefunction(task):
            raise ConfigurationError(
                f"the pull task {callback!r} is a coroutine function, which nobody would "
                "await here; give a plain one or use rocketstream.aio.MQPullConsumerScheduleService"
            )
        self._callbacks[topic] = task
        self.consumer.register_message_queue_listener(topic, self._queues_changed)

    def start(self) -> None:
        """Start the consumer; tasks begin as soon as queues are allotted.

        Raises: as ``PullConsumer.start``.
        """
        if self._is_started_again():
            return
        with self._life.starting(self.shutdown):
            self.consumer._check_new()  # one that runs keeps its threads
            self._executor = CallbackExecutor(self.pull_thread_nums, "rocketstream-pull-task")
            try:
                self.consumer.start()
            except BaseException:
                self._cancel_begun()
                self._executor.close()
                raise
            self.state: ServiceState = ServiceState.RUNNING

    def _cancel_begun(self) -> None:
        """End the tasks of a start that failed; their loop goes on where other clients share it."""
        for mq, cancelled in list(self._cancelled.items()):
            task = self._tasks.get(mq)
            if task is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed, and its tasks ended
                    task.get_loop().call_soon_threadsafe(cancelled.set)
        self._cancelled.clear()

    def shutdown(self) -> None:
        """Run no more tasks, wait for those that run, shut the consumer down."""
        if self._is_put_off(self.consumer):
            return
        with self._life.lock:  # a start by another thread is over, or does not begin before this
            if self.state is not ServiceState.RUNNING:
                self.consumer.shutdown()
                return
            self.state = ServiceState.SHUTDOWN_ALREADY
            started = self.consumer._started
            executor, self._executor = self._executor, None
        if started is not None:
            with contextlib.suppress(ClientStateError):
                started.engine.call_soon(self._cancel_all)
        try:
            if executor is not None:
                executor.close()
                executor.join(self.consumer.settings.consumer_timeout_ms_when_suspend / 1000)
        finally:
            self.consumer.shutdown()

    def _queues_changed(
        self, topic: str, _every: Sequence[MessageQueue], mine: Sequence[MessageQueue]
    ) -> None:
        self.consumer._running().engine.call_soon(self._divided, topic, mine)

    async def _call_task(self, callback: PullTaskCallback, mq: MessageQueue) -> float:
        context = PullTaskContext(self.consumer)

        def call() -> BaseException | None:
            try:
                callback(mq, context)
            except BaseException as error:  # such as SystemExit, which would end the loop
                return error
            return None

        executor = self._executor
        if executor is None:
            raise asyncio.CancelledError
        try:
            running = executor.submit(call)
        except ClientStateError:  # shut down meanwhile
            raise asyncio.CancelledError from None
        error = await asyncio.wrap_future(running)
        if error is None:
            return context.pull_next_delay_ms
        self._failed(mq, error)
        return FAILED_DELAY_MS


@checks_calls()
class AsyncMQPullConsumerScheduleService(_Schedule, AsyncClient[None]):
    """As ``rocketstream.MQPullConsumerScheduleService``, with coroutine tasks on the caller's loop.

    Args:
        group: consumer group.
        consumer: pull with this one, which is of ``group``; by default one is made of ``group``
            and ``settings``.
        **settings: as of ``PullConsumer``, ``namesrv_addr`` and ``config`` among them; none beside
            ``consumer``, which has its own.

    Raises:
        ConfigurationError: a setting that cannot be used; the text names it.
    """

    def __init__(
        self,
        group: str,
        *,
        consumer: AsyncPullConsumer | None = None,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Unpack[PullConsumerKeywords],
    ) -> None:
        given = {"namesrv_addr": namesrv_addr, "config": config, "clock": clock, **settings}
        self.consumer: AsyncPullConsumer = _pulling_with(AsyncPullConsumer, consumer, group, given)
        super().__init__(self.consumer, clock)

    async def register_pull_task_callback(self, topic: str, callback: AsyncPullTask) -> None:
        """Have ``callback(mq, context)`` awaited for each allotted queue of a topic."""
        check_topic(topic)
        self._callbacks[topic] = self._callback(callback)
        await self.consumer.register_message_queue_listener(topic, self._queues_changed)

    async def start(self) -> None:
        """Start the consumer; tasks begin as soon as queues are allotted."""
        if self._is_started_again():
            return
        self.consumer._check_new()  # one that is being started, or runs, keeps its tasks
        self._is_over = False  # an end before the start, as in a ``finally``, was of nothing
        try:
            await self.consumer.start()
        except BaseException:
            if self.consumer.state is not ServiceState.RUNNING:
                self._cancel_all()
            raise
        is_over = self.consumer.state is ServiceState.SHUTDOWN_ALREADY  # while it started
        self.state: ServiceState = self.consumer.state if is_over else ServiceState.RUNNING

    async def shutdown(self) -> None:
        """Cancel the tasks and shut the consumer down.

        A task that awaits this itself is not cancelled; it is called no more once it has returned.

        Raises:
            ClientStateError: it was started on another event loop.
        """
        self.consumer._check_process()  # before anything is touched that belongs to another loop
        self._cancel_all()
        if self.state is ServiceState.RUNNING:
            self.state = ServiceState.SHUTDOWN_ALREADY
        running = [task for task in self._tasks.values() if task is not asyncio.current_task()]
        for task in running:
            task.cancel()
        await take_all(
            lambda: asyncio.gather(*running, return_exceptions=True), self.consumer.shutdown
        )

    def _queues_changed(
        self, topic: str, _every: Sequence[MessageQueue], mine: Sequence[MessageQueue]
    ) -> None:
        self._divided(topic, mine)

    async def _call_task(self, callback: PullTaskCallback, mq: MessageQueue) -> float:
        context = AsyncPullTaskContext(self.consumer)
        answer = called(callback, mq, context)
        if inspect.isawaitable(answer):
            await result_of(answer)
        return context.pull_next_delay_ms
