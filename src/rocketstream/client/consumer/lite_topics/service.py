"""Calling the listener with messages of lite topics: on threads, or in tasks on one loop.

Law: user code and what surrounds it; what an answer means for brokers is the owner's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rocketstream.client.consumer.consume.base import ListenerService
from rocketstream.client.consumer.consume.calls import (
    CallObserver,
    checked_status,
    is_being_cancelled,
)
from rocketstream.client.consumer.consume.pool import Worker, WorkerPool
from rocketstream.client.consumer.consume.runs import mark_started
from rocketstream.client.consumer.consume.tasks import TaskPool
from rocketstream.client.consumer.listener import Listener
from rocketstream.client.consumer.lite_topics.context import LiteTopicContext
from rocketstream.client.core.lite_runs import LiteRun, LiteRuns
from rocketstream.client.core.lite_settings import LitePushConsumerSettings
from rocketstream.client.hooks import ConsumeMessageContext
from rocketstream.model import ConsumeConcurrentlyStatus
from rocketstream.protocol.message_ext import MessageExt

_SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
_LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER


class Acknowledger(Protocol):
    """Takes what became of messages to their brokers; from any thread."""

    def succeeded(self, run: LiteRun, offsets: Sequence[int]) -> None:
        """Acknowledge messages of a run that are consumed."""
        ...

    def given_back(self, run: LiteRun, offsets: Sequence[int], hidden_ms: int) -> None:
        """Have messages of a run come again after ``hidden_ms``."""
        ...

    def ended(self) -> None:
        """Report that a run has ended, so that there is room for another."""
        ...


@dataclass(frozen=True, slots=True)
class LiteParts:
    """What a consume service of lite topics works with.

    Attributes:
        listener: what is called.
        runs: those of the consumer that have not ended.
        acknowledger: told how calls ended.
        observer: calls hooks and counts around listener calls.
        settings: those of the consumer.
    """

    listener: Listener
    runs: LiteRuns
    acknowledger: Acknowledger
    observer: CallObserver
    settings: LitePushConsumerSettings


class LiteService(ListenerService):
    """What both kinds of service do around a call; the runs are touched under ``mutex`` only."""

    mutex: contextlib.AbstractContextManager[Any]
    _pool: WorkerPool[LiteRun] | TaskPool

    def __init__(self, parts: LiteParts) -> None:
        super().__init__(parts.listener, parts.observer)
        self.runs = parts.runs
        self._acknowledger = parts.acknowledger
        self._clock = parts.observer.clock
        self._size = parts.settings.consume_message_batch_max_size
        self._suspend_ms = parts.settings.suspend_ms

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

    def _begin(
        self, run: LiteRun, batch: list[MessageExt]
    ) -> tuple[LiteTopicContext | None, ConsumeMessageContext | None, int]:
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
        begun: tuple[LiteTopicContext | None, ConsumeMessageContext | None, int],
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
        # What follows in the lite topic stays hidden with it: it is consumed in order.
        hidden_ms = self._suspend_ms if context is None else context.suspend_ms
        self._acknowledger.given_back(run, run.left, hidden_ms)
        return False

    def _finish(self, run: LiteRun, *, stopped: bool, failed: bool) -> None:
        if stopped and not failed and run.left:
            self._acknowledger.given_back(run, run.left, GIVEN_BACK_MS)
        with self.mutex:
            self.runs.finish(run)
        self._acknowledger.ended()


GIVEN_BACK_MS = 10
"""How long what a consumer gives back unconsumed stays hidden."""


class ThreadedLiteService(LiteService):
    """Calls a plain function on worker threads; the source of their pool."""

    def __init__(self, parts: LiteParts) -> None:
        super().__init__(parts)
        self._pool: WorkerPool[LiteRun] = WorkerPool(
            self.observer.group, self, self._clock, parts.settings.consume_thread_max
        )
        self.mutex = self._pool.mutex

    def submit(self, runs: Sequence[LiteRun]) -> bool:
        """Have runs consumed; on the loop. Return whether they were taken: not once it stops."""
        pool = self._pool
        with pool.mutex:
            if not self._add(runs):
                return False
            pool.work_added()
        pool.start_ticks()
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

    def waiting(self) -> int:
        """Return how many runs could be begun."""
        return self.runs.waiting

    def is_open(self) -> bool:
        """Whether anything is not finished with."""
        return not self.runs.is_empty

    def tick(self) -> None:
        """Nothing: each answer is acknowledged at once."""

    def work(self, worker: Worker, job: LiteRun) -> None:
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
                worker.calls += 1
                worker.calling = True
                try:
                    answer = call(list(batch)) if begun[0] is None else call(list(batch), begun[0])
                except BaseException as raised:  # nothing a listener raises may end the worker
                    error = raised
                worker.calling = False
                failed = not self._end(job, batch, begun, answer, error)
                if pool.is_resting:
                    pool.rouse()
        finally:
            self._finish(job, stopped=pool.stopping, failed=failed)


class AsyncLiteService(LiteService):
    """Awaits a coroutine function in tasks; everything on one loop."""

    def __init__(self, parts: LiteParts) -> None:
        super().__init__(parts)
        self.mutex = contextlib.nullcontext()
        self._pool: TaskPool = TaskPool(
            self._work, parts.settings.consume_thread_max, self.observer.group
        )

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
            if self.runs.waiting:
                pool.start_one()
            await self._consume(run)
            # A listener that never suspends must not keep the loop from its sockets.
            await asyncio.sleep(0)

    async def _consume(self, run: LiteRun) -> None:
        pool = self._pool
        failed = False
        try:
            while not (failed or pool.stopping):
                batch = self._next_batch(run)
                if not batch:
                    break
                begun = self._begin(run, batch)
                answer, error = await self._called(batch, begun)
                failed = not self._end(run, batch, begun, answer, error)
        finally:
            self._finish(run, stopped=pool.stopping, failed=failed)
            if self.runs.waiting:
                pool.start_one()

    async def _called(
        self,
        batch: list[MessageExt],
        begun: tuple[LiteTopicContext | None, ConsumeMessageContext | None, int],
    ) -> tuple[object, BaseException | None]:
        context, hooked, _ = begun
        call: Callable[..., Any] = self.listener.call
        try:
            return await (
                call(list(batch)) if context is None else call(list(batch), context)
            ), None
        except BaseException as raised:  # nothing a listener raises may end the task
            if isinstance(raised, asyncio.CancelledError) and is_being_cancelled():
                if hooked is not None:
                    self.observer.cut_off(hooked, _LATER, raised)
                raise
            return None, raised
