"""Consuming in any order: runs of messages, and the threads or tasks that call the listener.

Finished messages go to their queue, failed ones to the send-back (upstream's
ConsumeMessageConcurrentlyService, C-254, C-260 to C-268).
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import Any

from rocketstream._util.ending import Cancellation
from rocketstream._util.user_code import is_thrown_away
from rocketstream.client.consumer.consume.listener_calls import (
    CallObserver,
    ListenerService,
    checked_status,
    mark_started,
    set_start_property,
)
from rocketstream.client.consumer.consume.workers import TaskPool, WorkerPool
from rocketstream.client.consumer.listener import (
    ACK_ALL,
    ConsumeConcurrentlyContext,
    Listener,
    acknowledged,
)
from rocketstream.client.consumer.queue import AssignedQueue
from rocketstream.client.consumer.send_back import DroppedMessages, FailedMessages
from rocketstream.client.consumer.settings import PushConsumerSettings
from rocketstream.client.hooks import ConsumeMessageContext
from rocketstream.model import ConsumeConcurrentlyStatus
from rocketstream.protocol.message_ext import MessageExt

_Around = tuple[ConsumeConcurrentlyContext | None, ConsumeMessageContext | None]
_SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
_LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER
FLUSH_INTERVAL_MS = 5
"""Finished messages of a run that takes longer are taken out of the process queue this often."""


def _is_untouched(around: _Around) -> bool:
    context, _ = around
    return context is not None and context._untouched


class ConsumeRun:
    """The messages of one pull, taken in chunks by any number of workers.

    Attributes:
        claims: counts the chunks taken; one step is atomic.
        claimed: the same number, readable but possibly a little behind.
    """

    __slots__ = ("chunks", "claimed", "claims", "messages", "queue")

    def __init__(self, queue: AssignedQueue, messages: list[MessageExt], batch_size: int) -> None:
        self.queue: AssignedQueue = queue
        self.messages: list[MessageExt] = messages
        self.chunks: int = -(-len(messages) // batch_size)
        self.claims: itertools.count[int] = itertools.count()
        self.claimed: int = 0

    def chunk(self, number: int, size: int) -> list[MessageExt]:
        """Return a chunk; empty past the last one."""
        return self.messages[number * size : number * size + size]

    @property
    def is_claimed(self) -> bool:
        """Whether every chunk has been taken."""
        return self.claimed >= self.chunks


class ConcurrentService(ListenerService):
    """A service that consumes in any order: it has nothing to lock."""

    def __init__(
        self,
        listener: Listener,
        observer: CallObserver,
        failed: FailedMessages | DroppedMessages,
        settings: PushConsumerSettings,
    ) -> None:
        super().__init__(listener, observer, settings.consume_thread_max)
        self._failed = failed
        self._clock = observer.clock
        self._batch_size = settings.consume_message_batch_max_size
        self._runs: deque[ConsumeRun] = deque()
        """Runs with chunks nobody has taken; the first one's are being taken."""

    def _around(self, queue: AssignedQueue, batch: list[MessageExt]) -> _Around:
        """Return the listener's context and the hooks', each only where it is wanted."""
        context, mq = None, queue.message_queue
        if self.listener.takes_context:
            context = ConsumeConcurrentlyContext(self.observer.seen_queue(mq), queue)
        return context, self.observer.before(batch, mq) if self.observer.hooks else None

    def _settle(
        self,
        queue: AssignedQueue,
        batch: list[MessageExt],
        answer: object,
        error: BaseException | None,
        around: _Around,
        took_ms: int,
    ) -> int:
        """Take finished messages out, send failed ones back; return how many those are.

        Of a queue that was dropped meanwhile nothing counts (C-262 to C-264), and what a framework
        left untouched stays what it was: the next to have the queue gets it.
        """
        context, hooked = around
        status = checked_status(answer, error, batch, _LATER)
        if hooked is not None:
            self.observer.after(hooked, answer, status, error, took_ms)
        if queue.dropped or _is_untouched(around):
            return 0
        ack_index = ACK_ALL if context is None else context.ack_index
        good = acknowledged(status, ack_index, len(batch))
        queue.finished.extend(batch[:good])
        failed = batch[good:]
        if failed:
            if self.observer.failure_cause is not None:
                self.observer.failure_cause.tell(failed, error, answer, _LATER.name)
            level = 0 if context is None else context.delay_level_when_next_consume
            self._failed.submit(queue, failed, level)
        return len(failed)


class ConsumeMessageConcurrentlyService(ConcurrentService):
    """Consumes runs on worker threads.

    One worker takes a whole run, chunk after chunk, so that a fast listener costs no hand-over
    per message. If the listener is slow, more workers join, on the same run too. Finished messages
    are removed per run, or every few milliseconds of a slow one.
    """

    _pool: WorkerPool[ConsumeRun]

    def _make_pool(self, size: int) -> WorkerPool[ConsumeRun]:
        return WorkerPool(self.observer.group, self, size)

    # --- on the loop ------------------------------------------------------------------------------

    def submit(self, queue: AssignedQueue, messages: list[MessageExt]) -> None:
        """Hand a run out; wakes one worker if none is awake."""
        pool = self._pool
        with pool.mutex:
            if pool.stopping:
                return
            self._runs.append(ConsumeRun(queue, messages, self._batch_size))
            pool.work_added()
        pool.look_soon()

    async def shutdown(self, await_ms: float, caller: int | None = None) -> None:
        """Hand out nothing more; wait for running listeners, at most ``await_ms``.

        Threads whose listener does not return are left behind; their results no longer count.
        So is ``caller``, a thread that waits for this inside its listener.
        """
        await self._pool.shutdown(await_ms, caller)

    # --- the pool's source ------------------------------------------------------------------------

    def next_job(self) -> ConsumeRun | None:
        """Return the oldest run with chunks that nobody has taken; workers share it."""
        runs = self._runs
        while runs and runs[0].is_claimed:
            runs.popleft()
        return runs[0] if runs else None

    oldest = next_job

    def work(self, job: ConsumeRun) -> None:
        """Take chunks of a run until none is left."""
        job.queue.begin()
        try:
            self._consume(job)
        finally:
            job.queue.end()

    def _consume(self, run: ConsumeRun) -> None:
        queue, pool, observer = run.queue, self._pool, self.observer
        held, finished, mq = queue.process_queue, queue.finished, queue.message_queue
        messages, size, claims, chunks = run.messages, self._batch_size, run.claims, run.chunks
        call, now_ms = self.listener.call, self._clock.now_ms
        plain = not (self.listener.takes_context or observer.hooks)
        began_ms = flushed_ms = started_ms = now_ms()
        calls = done = failed = 0
        around: _Around = None, None
        while not (held.leaving or pool.stopping):
            number = next(claims)
            if number >= chunks:
                break
            first = number * size
            batch = messages[first : first + size]
            run.claimed = number + 1
            for message in batch:
                message._consume_start_ms = started_ms
                if message._properties is not None:
                    set_start_property(message)
            if not plain:
                around = self._around(queue, batch)
            error: BaseException | None = None
            answer: Any = None
            calls += 1
            try:
                answer = call(batch) if around[0] is None else call(batch, around[0])
            except BaseException as raised:  # nothing a listener raises may end the worker
                error = raised
            ended_ms = now_ms()
            batch = messages[first : first + size]  # the listener may have changed its list
            if plain and answer is _SUCCESS:
                finished.extend(batch)
            else:
                took_ms = ended_ms - started_ms
                failed += self._settle(queue, batch, answer, error, around, took_ms)
            if held.dropped:
                break
            done += len(batch)
            if ended_ms - flushed_ms >= FLUSH_INTERVAL_MS:
                flushed_ms = ended_ms
                queue.flush()
            started_ms = ended_ms
        run.claimed = run.chunks
        queue.flush()
        observer.count(mq.topic, done - failed, failed, now_ms() - began_ms, calls)


class AsyncConsumeService(ConcurrentService):
    """Consumes runs with at most ``calls_max`` listener calls awaited at once.

    A task that takes a chunk starts one more if another waits, so a listener that never suspends
    is called from one task, chunk after chunk, and a waiting one gets its parallelism at once.
    """

    _pool: TaskPool

    def _make_pool(self, size: int) -> TaskPool:
        return TaskPool(self._work, size, self.observer.group)

    def submit(self, queue: AssignedQueue, messages: list[MessageExt]) -> None:
        """Hand a run out."""
        if self._pool.stopping:
            return
        self._runs.append(ConsumeRun(queue, messages, self._batch_size))
        self._pool.start_one()

    async def shutdown(self, await_ms: float, caller: int | None = None) -> None:
        """Hand out nothing more; wait for running listeners, then cancel what is left.

        A listener that awaits this itself is neither waited for nor cancelled.
        """
        await self._pool.shutdown(await_ms)

    async def _work(self) -> None:
        while self._runs and self._pool.may_go_on():
            run = self._runs[0]
            run.queue.begin()
            try:
                await self._consume(run)
            finally:
                run.queue.end()
            if self._runs and self._runs[0] is run:
                self._runs.popleft()
            # A listener that never suspends must not keep the loop from its sockets.
            await asyncio.sleep(0)

    async def _consume(self, run: ConsumeRun) -> None:
        queue, observer, pool = run.queue, self.observer, self._pool
        mq, task = queue.message_queue, asyncio.current_task()
        call = self.listener.call
        plain = not (self.listener.takes_context or observer.hooks)
        began_ms = flushed_ms = self._clock.now_ms()
        calls = done = failed = 0
        cut: BaseException | None = None
        while not (queue.leaving or pool.stopping):
            number = next(run.claims)
            batch = run.chunk(number, self._batch_size)
            if not batch:
                break
            run.claimed = number + 1
            if not run.is_claimed or len(self._runs) > 1:
                pool.start_one()
            started_ms = self._clock.now_ms()
            mark_started(batch, started_ms)
            around: _Around = (None, None) if plain else self._around(queue, batch)
            error: BaseException | None = None
            answer: Any = None
            calls += 1
            cancellation = Cancellation(task)
            try:
                answer = await (call(batch) if around[0] is None else call(batch, around[0]))
            except BaseException as raised:  # nothing a listener raises may end the task
                if is_thrown_away(raised, task):
                    raise
                error = raised
            ended_ms = self._clock.now_ms()
            batch = run.chunk(number, self._batch_size)
            if isinstance(error, asyncio.CancelledError) and cancellation.has_come:
                self._cut_off(queue, batch, error, around)
                cut = error
                break
            if plain and answer is _SUCCESS:
                queue.finished.extend(batch)
            else:
                took_ms = ended_ms - started_ms
                failed += self._settle(queue, batch, answer, error, around, took_ms)
            if queue.dropped or _is_untouched(around):
                break
            done += len(batch)
            if ended_ms - flushed_ms >= FLUSH_INTERVAL_MS:
                flushed_ms = ended_ms
                queue.flush()
        if cut is None:
            run.claimed = run.chunks
        queue.flush()
        observer.count(mq.topic, done - failed, failed, self._clock.now_ms() - began_ms, calls)
        if cut is not None:
            raise cut

    def _cut_off(
        self, queue: AssignedQueue, batch: list[MessageExt], error: BaseException, around: _Around
    ) -> None:
        """Note that a call was cancelled: with its consumer, or by a user, as a failure."""
        context, hooked = around
        if hooked is not None:
            self.observer.cut_off(hooked, _LATER, error)

        def settle() -> None:
            if not self._pool.stopping:
                failed = self._settle(queue, batch, None, error, (context, None), 0)
                self.observer.count(queue.message_queue.topic, 0, failed, 0, 0)

        if not self._pool.stopping:
            self._pool.if_others_go_on(settle)
