"""Calling the listener with messages of lite topics: on threads, or in tasks on one loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from rocketstream._util.ending import Cancellation
from rocketstream._util.user_code import is_thrown_away
from rocketstream.checks import check_range
from rocketstream.client.consumer.consume.listener_calls import (
    CallObserver,
    ListenerService,
    checked_status,
    mark_started,
)
from rocketstream.client.consumer.consume.workers import TaskPool, WorkerPool
from rocketstream.client.consumer.listener import Listener, Listening
from rocketstream.client.consumer.lite_topics.brokers import Acknowledger
from rocketstream.client.consumer.lite_topics.topics import LiteRun, LiteRuns
from rocketstream.client.consumer.settings import LitePushConsumerSettings
from rocketstream.client.hooks import ConsumeMessageContext
from rocketstream.model import ConsumeConcurrentlyStatus, MessageQueue
from rocketstream.protocol.message_ext import MessageExt


class LiteTopicContext:
    """Where the messages of a call come from, and when they come again if they fail.

    Attributes:
        lite_topic: the lite topic all of them are of.
        message_queue: the parent topic and the broker; a lite topic is one queue, 0.
    """

    __slots__ = ("_suspend_ms", "lite_topic", "message_queue")

    def __init__(self, lite_topic: str, message_queue: MessageQueue, suspend_ms: int) -> None:
        self.lite_topic: str = lite_topic
        self.message_queue: MessageQueue = message_queue
        self._suspend_ms = suspend_ms

    def __repr__(self) -> str:
        return (
            f"LiteTopicContext({self.lite_topic!r}, {self.message_queue!r}, "
            f"suspend_ms={self._suspend_ms})"
        )

    @property
    def suspend_ms(self) -> int:
        """With RECONSUME_LATER: how long the lite topic rests; by default the setting."""
        return self._suspend_ms

    @suspend_ms.setter
    def suspend_ms(self, value: int) -> None:
        check_range("suspend_ms", value, 0)
        self._suspend_ms = value


LiteTopicListener = Listening[ConsumeConcurrentlyStatus, LiteTopicContext]
AnyLiteTopicListener = (
    LiteTopicListener | Listening[Awaitable[ConsumeConcurrentlyStatus], LiteTopicContext]
)

GIVEN_BACK_MS = 10
"""How long what a consumer gives back unconsumed stays hidden."""
_SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
_LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER

_Begun = tuple[LiteTopicContext | None, ConsumeMessageContext | None, int]
"""A call's context and hooks' context, if there are any, and when it began."""


class LiteService(ListenerService):
    """The steps around a call of either kind; the runs are touched under ``mutex`` only.

    Args:
        listener: what is called.
        runs: those of the consumer that have not ended.
        acknowledger: told how calls ended.
        observer: calls hooks and counts around listener calls.
        settings: those of the consumer.
    """

    mutex: contextlib.AbstractContextManager[Any]
    _pool: WorkerPool[LiteRun] | TaskPool

    def __init__(
        self,
        listener: Listener,
        runs: LiteRuns,
        acknowledger: Acknowledger,
        observer: CallObserver,
        settings: LitePushConsumerSettings,
    ) -> None:
        super().__init__(listener, observer, settings.consume_thread_max)
        self.runs = runs
        self._acknowledger = acknowledger
        self._clock = observer.clock
        self._size = settings.consume_message_batch_max_size
        self._suspend_ms = settings.suspend_ms

    def begin_no_more(self) -> None:
        """Let running calls be the last ones; ``shutdown`` waits for them."""
        with self.mutex:
            self._pool.stopping = True

    def _add(self, runs: Sequence[LiteRun]) -> bool:
        """Enter runs, with ``mutex`` held; return whether they were taken: not once it stops."""
        if self._pool.stopping:
            return False
        for run in runs:
            self.runs.add(run)
        return True

    def _next_batch(self, run: LiteRun) -> list[MessageExt]:
        """Return what the listener gets next of a run; none when it has ended, or is too old."""
        with self.mutex:
            if self._clock.monotonic_ms() >= run.hidden_until_ms:
                return []
            return list(run.messages[run.done : run.done + self._size])

    def _begin(self, run: LiteRun, batch: list[MessageExt]) -> _Begun:
        started_ms = self._clock.now_ms()
        mark_started(batch, started_ms)
        context = None
        if self.listener.takes_context:
            queue = self.observer.seen_queue(run.queue)
            context = LiteTopicContext(run.lite_topic, queue, self._suspend_ms)
        hooked = self.observer.before(batch, run.queue) if self.observer.hooks else None
        return context, hooked, started_ms

    def _end(
        self,
        run: LiteRun,
        batch: list[MessageExt],
        begun: _Begun,
        answer: object,
        error: BaseException | None,
    ) -> bool:
        """Settle a batch; return whether the run goes on."""
        context, hooked, started_ms = begun
        status = checked_status(answer, error, batch, _LATER)
        took_ms = self._clock.now_ms() - started_ms
        if hooked is not None:
            self.observer.after(hooked, answer, status, error, took_ms)
        good = status is _SUCCESS
        count = len(batch)
        self.observer.count(run.queue.topic, count * good, count * (not good), took_ms, 1)
        if good:
            with self.mutex:
                offsets = run.left[:count]
                self.runs.advance(run, count)
            self._acknowledger.succeeded(run, offsets)
            return True
        # The rest of the lite topic stays hidden with it: it is consumed in order.
        hidden_ms = self._suspend_ms if context is None else context.suspend_ms
        self._acknowledger.given_back(run, run.left, hidden_ms)
        return False

    def _finish(self, run: LiteRun, *, stopped: bool, failed: bool) -> None:
        if stopped and not failed and run.left:
            self._acknowledger.given_back(run, run.left, GIVEN_BACK_MS)
        with self.mutex:
            self.runs.finish(run)
        self._acknowledger.ended()


class ThreadedLiteService(LiteService):
    """Calls a plain function on worker threads; the source of their pool."""

    _pool: WorkerPool[LiteRun]

    def _make_pool(self, size: int) -> WorkerPool[LiteRun]:
        pool: WorkerPool[LiteRun] = WorkerPool(self.observer.group, self, size)
        self.mutex: contextlib.AbstractContextManager[Any] = pool.mutex
        return pool

    def submit(self, runs: Sequence[LiteRun]) -> bool:
        """Have runs consumed; on the loop. Return whether they were taken: not once it stops."""
        pool = self._pool
        with pool.mutex:
            if not self._add(runs):
                return False
            pool.work_added()
        pool.look_soon()
        return True

    async def shutdown(self, await_ms: float, caller: int | None = None) -> None:
        """Begin no call any more; wait for running ones, at most ``await_ms``, not for ``caller``.

        Threads whose listener does not return are left behind.
        """
        await self._pool.shutdown(await_ms, caller)

    # --- the pool's source ------------------------------------------------------------------------

    def next_job(self) -> LiteRun | None:
        """Return a run to begin."""
        return self.runs.next_run(self._clock.monotonic_ms())

    def oldest(self) -> LiteRun | None:
        """Return the run that waits longest for a worker."""
        return self.runs.oldest

    def work(self, job: LiteRun) -> None:
        """Consume a run until it ends, fails or the pool stops."""
        pool, call = self._pool, self.listener.call
        failed = False
        try:
            while not (failed or pool.stopping):
                batch = self._next_batch(job)
                if not batch:
                    break
                begun = self._begin(job, batch)
                answer, error = None, None
                try:
                    answer = call(list(batch)) if begun[0] is None else call(list(batch), begun[0])
                except BaseException as raised:  # nothing a listener raises may end the worker
                    error = raised
                failed = not self._end(job, batch, begun, answer, error)
        finally:
            self._finish(job, stopped=pool.stopping, failed=failed)


class AsyncLiteService(LiteService):
    """Awaits a coroutine function in tasks; everything on one loop."""

    _pool: TaskPool

    def _make_pool(self, size: int) -> TaskPool:
        self.mutex: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        return TaskPool(self._work, size, self.observer.group)

    def submit(self, runs: Sequence[LiteRun]) -> bool:
        """Have runs consumed; return whether they were taken: not once it stops."""
        if not self._add(runs):
            return False
        self._pool.start_one()
        return True

    async def shutdown(self, await_ms: float, caller: int | None = None) -> None:
        """Begin no call any more; wait for running ones, then cancel what is left."""
        await self._pool.shutdown(await_ms)

    async def _work(self) -> None:
        pool = self._pool
        while pool.may_go_on():
            run = self.runs.next_run(self._clock.monotonic_ms())
            if run is None:
                return
            if self.runs.oldest is not None:
                pool.start_one()
            await self._consume(run)
            # A listener that never suspends must not keep the loop from its sockets.
            await asyncio.sleep(0)

    async def _consume(self, run: LiteRun) -> None:
        pool = self._pool
        failed = is_cut = False
        try:
            while not (failed or pool.stopping):
                batch = self._next_batch(run)
                if not batch:
                    break
                begun, cancellation = self._begin(run, batch), Cancellation()
                answer, error = await self._called(batch, begun)
                if isinstance(error, asyncio.CancelledError) and cancellation.has_come:
                    is_cut = self._is_failed_later(run, batch, begun, error)
                    raise error
                failed = not self._end(run, batch, begun, answer, error)
        finally:
            if not is_cut:
                self._finished(run, failed=failed)

    def _finished(self, run: LiteRun, *, failed: bool) -> None:
        self._finish(run, stopped=self._pool.stopping, failed=failed)
        if self.runs.oldest is not None:
            self._pool.start_one()

    def _is_failed_later(
        self, run: LiteRun, batch: list[MessageExt], begun: _Begun, error: BaseException
    ) -> bool:
        """Note that a call was cancelled; return whether by a user, which is a failure."""

        def settle() -> None:
            failed = not (self._pool.stopping or self._end(run, batch, begun, None, error))
            self._finished(run, failed=failed)

        if not self._pool.stopping:
            self._pool.if_others_go_on(settle)
            return True
        if begun[1] is not None:
            self.observer.cut_off(begun[1], _LATER, error)
        return False

    async def _called(
        self, batch: list[MessageExt], begun: _Begun
    ) -> tuple[object, BaseException | None]:
        context = begun[0]
        call: Callable[..., Any] = self.listener.call
        task = asyncio.current_task()
        try:
            return await (
                call(list(batch)) if context is None else call(list(batch), context)
            ), None
        except BaseException as raised:  # nothing a listener raises may end the task
            if is_thrown_away(raised, task):
                raise
            return None, raised
