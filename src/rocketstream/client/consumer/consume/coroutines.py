"""The concurrent consume service for coroutine listeners: tasks on the caller's loop.

Law: everything on one loop; results go to the offset updater and to the send-back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from rocketstream.client.consumer.consume.base import ConcurrentParts, ConcurrentService
from rocketstream.client.consumer.consume.calls import (
    checked_status,
    is_being_cancelled,
    tell_failed,
)
from rocketstream.client.consumer.consume.runs import (
    FLUSH_INTERVAL_MS,
    ConsumeRun,
    PullRequest,
    mark_started,
)
from rocketstream.client.consumer.consume.tasks import TaskPool
from rocketstream.client.consumer.listener import ConsumeConcurrentlyContext
from rocketstream.model import ConsumeConcurrentlyStatus
from rocketstream.protocol.message_ext import MessageExt

_SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
_LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER


class AsyncConsumeService(ConcurrentService):
    """Consumes runs with at most ``calls_max`` listener calls awaited at once.

    A task that takes a chunk starts one more if another waits, so a listener that never suspends
    is called from one task, chunk after chunk, and a waiting one gets its parallelism at once.
    """

    def __init__(self, parts: ConcurrentParts) -> None:
        super().__init__(parts)
        self._runs: deque[ConsumeRun] = deque()
        self._pool: TaskPool = TaskPool(self._work, parts.calls_max, self.observer.group)

    def submit(self, request: PullRequest, messages: list[MessageExt]) -> None:
        """Hand a run out."""
        if self._pool.stopping:
            return
        self._runs.append(ConsumeRun(request, messages, self._batch_size))
        self._pool.start_one()

    def flush(self, request: PullRequest) -> None:
        """Remove what is finished of one queue."""
        for run in list(self._runs):
            if run.request is request:
                self._offset_updater.flush(run)

    async def shutdown(self, await_ms: float, caller: int | None = None) -> None:
        """Hand out nothing more; wait for running listeners, then cancel what is left.

        A listener that awaits this itself is neither waited for nor cancelled.
        """
        await self._pool.shutdown(await_ms)
        for run in self._runs:  # of calls that were cut off, or that are the caller
            self._offset_updater.flush(run)
        self._runs.clear()

    async def _work(self) -> None:
        while self._runs and self._pool.may_go_on():
            run = self._runs[0]
            await self._consume(run)
            if self._runs and self._runs[0] is run:
                self._runs.popleft()
            # A listener that never suspends must not keep the loop from its sockets.
            await asyncio.sleep(0)

    async def _consume(self, run: ConsumeRun) -> None:
        queue, observer, pool = run.request.process_queue, self.observer, self._pool
        mq = queue.message_queue
        call, takes_context = self.listener.call, self.listener.takes_context
        plain = not (takes_context or observer.hooks)
        began_ms = flushed_ms = self._clock.now_ms()
        calls = done = failed = 0
        while not (queue.dropped or pool.stopping):
            number = next(run.claims)
            batch = run.chunk(number, self._batch_size)
            if not batch:
                break
            run.claimed = number + 1
            if not run.is_claimed or len(self._runs) > 1:
                pool.start_one()
            started_ms = self._clock.now_ms()
            mark_started(batch, started_ms)
            context = None if plain else ConsumeConcurrentlyContext(observer.seen_queue(mq))
            hooked = observer.before(batch, mq) if observer.hooks else None
            error: BaseException | None = None
            status: Any = None
            calls += 1
            try:
                status = await (call(batch, context) if takes_context else call(batch))
            except BaseException as raised:  # nothing a listener raises may end the task
                if isinstance(raised, asyncio.CancelledError) and is_being_cancelled():
                    if hooked is not None:
                        observer.cut_off(hooked, _LATER, raised)
                    raise
                error = raised
            batch = run.chunk(number, self._batch_size)
            if plain and status is _SUCCESS and not queue.dropped:
                run.finished.extend(batch)
                done += len(batch)
                if started_ms - flushed_ms >= FLUSH_INTERVAL_MS:
                    flushed_ms = started_ms
                    self._offset_updater.flush(run)
                continue
            checked = checked_status(status, error, batch, _LATER)
            if hooked is not None:
                observer.after(hooked, status, checked, error, self._clock.now_ms() - started_ms)
            if queue.dropped:
                break
            if observer.blame is not None:
                tell_failed(observer.blame, batch, context, checked, status, error)
            failed += self._settler.settle(run, batch, checked, context)
            done += len(batch)
            if started_ms - flushed_ms >= FLUSH_INTERVAL_MS:
                flushed_ms = started_ms
                self._offset_updater.flush(run)
        run.claimed = max(run.claimed, run.chunks)
        self._offset_updater.flush(run)
        observer.count(mq.topic, done - failed, failed, self._clock.now_ms() - began_ms, calls)
