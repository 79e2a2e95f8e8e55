"""A pull consumer's schedule: one task per allotted queue, called again and again.

Law: decides when and where a task runs; what it pulls is the user's (C-500 to C-503, upstream's
MQPullConsumerScheduleService).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, Unpack

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.arguments import checks_calls
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.pull.aio_consumer import AsyncPullConsumer
from rocketstream.client.consumer.pull.base import PullConsumerBase
from rocketstream.client.consumer.pull.consumer import PullConsumer
from rocketstream.client.core.kinds import check_positive
from rocketstream.client.instance.callbacks import CallbackExecutor
from rocketstream.client.instance.service_state import ServiceState
from rocketstream.client.instance.with_block import AsyncWithBlock, WithBlock
from rocketstream.client.keywords import PullConsumerKeywords
from rocketstream.errors import (
    BrokerError,
    ClientStateError,
    ConfigurationError,
    RocketMQError,
    TransportError,
)
from rocketstream.model import MessageQueue
from rocketstream.protocol.names import check_topic

logger = logging.getLogger("rocketstream.client")

PULL_NEXT_DELAY_MS = 200
FAILED_DELAY_MS = 1_000
PULL_THREADS = 20


ConsumerT = TypeVar("ConsumerT", PullConsumer, AsyncPullConsumer)
Context_contra = TypeVar("Context_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)


@dataclass(slots=True)
class _TaskContext(Generic[ConsumerT]):
    """What a task is given.

    Attributes:
        pull_consumer: pulls, and keeps the offsets.
        pull_next_delay_ms: when the task is called again; the task may change it.
    """

    pull_consumer: ConsumerT
    pull_next_delay_ms: float = PULL_NEXT_DELAY_MS


class PullTaskContext(_TaskContext[PullConsumer]):
    """What a task is given: the consumer, and when the task is called again."""

    __slots__ = ()


class AsyncPullTaskContext(_TaskContext[AsyncPullConsumer]):
    """As ``rocketstream.PullTaskContext``, with the asyncio consumer."""

    __slots__ = ()


class _PullTask(Protocol[Context_contra, R_co]):
    """The object form of a task."""

    def do_pull_task(self, mq: MessageQueue, context: Context_contra, /) -> R_co: ...


PullTask = Callable[[MessageQueue, PullTaskContext], object] | _PullTask[PullTaskContext, object]
AsyncPullTask = (
    Callable[[MessageQueue, AsyncPullTaskContext], object] | _PullTask[AsyncPullTaskContext, object]
)
PullTaskCallback = Callable[[MessageQueue, Any], object]


class _Schedule:
    """What both faces share: callbacks by topic, and which queues have a task."""

    def __init__(self, consumer: PullConsumerBase) -> None:
        self.state = ServiceState.CREATE_JUST
        self._pulling = consumer
        self._tasks_lock = threading.Lock()
        self._callbacks: dict[str, PullTaskCallback] = {}
        self._cancelled: dict[MessageQueue, threading.Event] = {}

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

    def _changed(self, topic: str, mine: Sequence[MessageQueue]) -> list[MessageQueue]:
        """Cancel the tasks of queues that left; return the queues that need one (C-501)."""
        with self._tasks_lock:
            for mq in [mq for mq in self._cancelled if mq.topic == topic and mq not in mine]:
                self._cancelled.pop(mq).set()
            new = [mq for mq in mine if mq not in self._cancelled]
            for mq in new:
                self._cancelled[mq] = threading.Event()
            return new

    def _cancel_all(self) -> None:
        with self._tasks_lock:
            for cancelled in self._cancelled.values():
                cancelled.set()
            self._cancelled.clear()

    def _cancellation(self, mq: MessageQueue) -> threading.Event | None:
        with self._tasks_lock:
            return self._cancelled.get(mq)

    def _failed(self, mq: MessageQueue, error: Exception) -> None:
        """Say that a task raised: once per outage of a server, else each time with its stack."""
        started = self._pulling._started
        if started is None or not isinstance(error, TransportError | BrokerError):
            text = "pull task of %s failed, again in %d ms"
            logger.error(text, mq, FAILED_DELAY_MS, exc_info=error)
            return
        with contextlib.suppress(RocketMQError, RuntimeError):  # shut down meanwhile
            engine = started.engine
            engine.call_soon(engine.instance.outages.failed, ("pull task of", mq), error)

    def _task_of(self, mq: MessageQueue) -> PullTaskCallback | None:
        callback = self._callbacks.get(mq.topic)
        if callback is None:
            logger.warning(
                "no pull task is registered for topic %s; its queue at broker %s is no "
                "longer pulled",
                *mq[:2],
            )
        return callback


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
class MQPullConsumerScheduleService(_Schedule, WithBlock):
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
        self.consumer = _pulling_with(PullConsumer, consumer, group, given)
        super().__init__(self.consumer)
        check_positive("pull_thread_nums", pull_thread_nums)
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
        self._executor = CallbackExecutor(self.pull_thread_nums, "rocketstream-pull-task")
        try:
            self.consumer.start()
        except BaseException:
            self._executor.close()
            raise
        self.state = ServiceState.RUNNING

    def shutdown(self) -> None:
        """Run no more tasks, wait for those that run, shut the consumer down."""
        self._cancel_all()
        if self.state is ServiceState.RUNNING:
            self.state = ServiceState.SHUTDOWN_ALREADY
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.close()
            executor.join(self.consumer.settings.consumer_timeout_ms_when_suspend / 1000)
        self.consumer.shutdown()

    def _queues_changed(
        self, topic: str, _every: Sequence[MessageQueue], mine: Sequence[MessageQueue]
    ) -> None:
        for mq in self._changed(topic, mine):
            cancelled = self._cancellation(mq)
            if cancelled is not None:
                self._submit(mq, cancelled)

    def _submit(self, mq: MessageQueue, cancelled: threading.Event) -> None:
        executor = self._executor
        if executor is not None:
            with contextlib.suppress(ClientStateError):  # shut down meanwhile
                executor.submit(self._run, mq, cancelled)

    def _run(self, mq: MessageQueue, cancelled: threading.Event) -> None:
        callback = None if cancelled.is_set() else self._task_of(mq)
        if callback is None:
            return
        context = PullTaskContext(self.consumer)
        try:
            callback(mq, context)
            delay_ms = context.pull_next_delay_ms
        except Exception as error:
            self._failed(mq, error)
            delay_ms = FAILED_DELAY_MS
        if not cancelled.is_set():
            self._again(mq, cancelled, delay_ms)

    def _again(self, mq: MessageQueue, cancelled: threading.Event, delay_ms: float) -> None:
        started = self.consumer._started
        if started is None or self.consumer.state is not ServiceState.RUNNING:
            return
        loop = started.engine.loop

        def later() -> None:
            loop.call_later(max(delay_ms, 0) / 1000, self._submit, mq, cancelled)

        with contextlib.suppress(RuntimeError):  # the loop is closed: shut down meanwhile
            loop.call_soon_threadsafe(later)


@checks_calls()
class AsyncMQPullConsumerScheduleService(_Schedule, AsyncWithBlock):
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
        self.consumer = _pulling_with(AsyncPullConsumer, consumer, group, given)
        super().__init__(self.consumer)
        self._running: dict[MessageQueue, asyncio.Task[None]] = {}

    async def register_pull_task_callback(self, topic: str, callback: AsyncPullTask) -> None:
        """Have ``callback(mq, context)`` awaited for each allotted queue of a topic."""
        check_topic(topic)
        self._callbacks[topic] = self._callback(callback)
        await self.consumer.register_message_queue_listener(topic, self._queues_changed)

    async def start(self) -> None:
        """Start the consumer; tasks begin as soon as queues are allotted."""
        if self._is_started_again():
            return
        await self.consumer.start()
        self.state = ServiceState.RUNNING

    async def shutdown(self) -> None:
        """Cancel the tasks and shut the consumer down."""
        self._cancel_all()
        if self.state is ServiceState.RUNNING:
            self.state = ServiceState.SHUTDOWN_ALREADY
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self.consumer.shutdown()

    def _queues_changed(
        self, topic: str, _every: Sequence[MessageQueue], mine: Sequence[MessageQueue]
    ) -> None:
        for mq in self._changed(topic, mine):
            cancelled = self._cancellation(mq)
            if cancelled is not None:
                previous = self._running.get(mq)
                coro = self._run(mq, cancelled, previous)
                task = self._running[mq] = asyncio.get_running_loop().create_task(coro)
                task.add_done_callback(lambda done, mq=mq: self._ended(mq, done))  # type: ignore[misc]

    def _ended(self, mq: MessageQueue, task: asyncio.Task[None]) -> None:
        if self._running.get(mq) is task:
            del self._running[mq]

    async def _run(
        self, mq: MessageQueue, cancelled: threading.Event, previous: asyncio.Task[None] | None
    ) -> None:
        if previous is not None:
            await asyncio.gather(previous, return_exceptions=True)
        while not cancelled.is_set():
            callback = self._task_of(mq)
            if callback is None:
                return
            context = AsyncPullTaskContext(self.consumer)
            try:
                answer = callback(mq, context)
                if inspect.isawaitable(answer):
                    await answer
                delay_ms = context.pull_next_delay_ms
            except Exception as error:
                self._failed(mq, error)
                delay_ms = FAILED_DELAY_MS
            await asyncio.sleep(max(delay_ms, 0) / 1000)
