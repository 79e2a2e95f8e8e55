"""The concurrent consume service for coroutine listeners: tasks on the caller's loop.

Law: everything on one loop; results go to the book and to the send-back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from rocketstream._util.clock import Clock
from rocketstream.client.consumer.consume_run import (
    FLUSH_INTERVAL_MS,
    ConsumeBook,
    ConsumeRun,
    PullRequest,
    UnlockedService,
    checked_status,
    settle,
)
from rocketstream.client.consumer.listener import ConsumeConcurrentlyContext, Listener
from rocketstream.client.consumer.send_back import SendBack


class AsyncConsumeService(UnlockedService):
    """Consumes runs with at most ``tasks_max`` listener calls awaited at once.

    A task that takes a chunk starts one more if another waits, so a listener that never suspends
    is called from one task, chunk after chunk, and a waiting one gets its parallelism at once.
    """

    def __init__(
        self,
        listener: Listener,
        book: ConsumeBook,
        send_back: SendBack,
        clock: Clock,
        *,
        batch_size: int,
        tasks_max: int,
    ) -> None:
        self._listener = listener
        self._book = book
        self._send_back = send_back
        self._clock = clock
        self._batch_size = batch_size
        self._tasks_max = tasks_max
        self._loop = asyncio.get_running_loop()
        self._runs: deque[ConsumeRun] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._coming = False
        self._stopping = False

    def submit(self, request: PullRequest, messages: list[Any]) -> None:
        """Hand a run out."""
        if self._stopping:
            return
        self._runs.append(ConsumeRun(request, messages, self._batch_size))
        self._start_one()

    def flush(self, request: PullRequest) -> None:
        """Enter what is finished of one queue."""
        for run in list(self._runs):
            if run.request is request:
                self._book.flush(run)

    async def shutdown(self, await_ms: float, caller: int | None = None) -> None:
        """Hand out nothing more; wait for running listeners, then cancel what is left.

        A listener that awaits this itself is neither waited for nor cancelled.
        """
        self._stopping = True
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        if tasks and await_ms > 0:
            await asyncio.wait(tasks, timeout=await_ms / 1000)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._runs.clear()

    def _start_one(self) -> None:
        if self._coming or self._stopping or len(self._tasks) >= self._tasks_max:
            return
        self._coming = True
        task = self._loop.create_task(self._work())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            self._coming = False

    async def _work(self) -> None:
        self._coming = False
        while self._runs and not self._stopping:
            run = self._runs[0]
            await self._consume(run)
            if self._runs and self._runs[0] is run:
                self._runs.popleft()
            # A listener that never suspends must not keep the loop from its sockets.
            await asyncio.sleep(0)

    async def _consume(self, run: ConsumeRun) -> None:
        queue = run.request.process_queue
        call, takes_context = self._listener.call, self._listener.takes_context
        flushed_ms = self._clock.now_ms()
        while not (queue.dropped or self._stopping):
            number = next(run.claims)
            batch = run.chunk(number, self._batch_size)
            if not batch:
                break
            run.claimed = number + 1
            if not run.is_claimed or len(self._runs) > 1:
                self._start_one()
            started_ms = self._clock.now_ms()
            for message in batch:
                message.consume_start_ms = started_ms
            context = ConsumeConcurrentlyContext(queue.message_queue)
            error: BaseException | None = None
            status: Any = None
            try:
                status = await (call(batch, context) if takes_context else call(batch))
            except BaseException as raised:  # nothing a listener raises may end the task
                if isinstance(raised, asyncio.CancelledError) and self._is_cancelled():
                    raise
                error = raised
            if queue.dropped:
                break
            batch = run.chunk(number, self._batch_size)
            failed = settle(run, batch, checked_status(status, error, batch), context)
            if failed:
                self._send_back.submit(run.request, failed, context.delay_level_when_next_consume)
            if started_ms - flushed_ms >= FLUSH_INTERVAL_MS:
                flushed_ms = started_ms
                self._book.flush(run)
        run.claimed = max(run.claimed, run.chunks)
        self._book.flush(run)

    @staticmethod
    def _is_cancelled() -> bool:
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
