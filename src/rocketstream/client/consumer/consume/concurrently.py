"""The concurrent consume service: worker threads that take chunks of runs and call the listener.

Law: threads and user code; results go to the offset updater and to the send-back, nothing else is
decided here (upstream's ConsumeMessageConcurrentlyService, C-254, C-260 to C-268).
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

from rocketstream.client.consumer.consume.base import ConcurrentParts, ConcurrentService
from rocketstream.client.consumer.consume.calls import (
    checked_status,
    tell_failed,
)
from rocketstream.client.consumer.consume.pool import Worker, WorkerPool
from rocketstream.client.consumer.consume.runs import (
    FLUSH_INTERVAL_MS,
    ConsumeRun,
    PullRequest,
    set_start_property,
)
from rocketstream.client.consumer.listener import ConsumeConcurrentlyContext
from rocketstream.client.hooks import ConsumeMessageContext
from rocketstream.model import ConsumeConcurrentlyStatus, MessageQueue
from rocketstream.protocol.message_ext import MessageExt

_Around = tuple[ConsumeConcurrentlyContext | None, ConsumeMessageContext | None]
_OPEN_RUNS = 64
_SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
_LATER = ConsumeConcurrentlyStatus.RECONSUME_LATER


class ConsumeMessageConcurrentlyService(ConcurrentService):
    """Consumes runs on worker threads.

    One worker takes a whole run, chunk after chunk, so that a fast listener costs no hand-over
    per message. If the listener is slow, more workers join, on the same run too. Finished messages
    are removed per run, or every few milliseconds of a slow one.
    """

    def __init__(self, parts: ConcurrentParts) -> None:
        super().__init__(parts)
        self._runs: deque[ConsumeRun] = deque()
        self._open: deque[ConsumeRun] = deque()
        """Oldest first; what is done leaves from the front, or when there is much of it."""
        self._open_max = _OPEN_RUNS
        self._pool: WorkerPool[ConsumeRun] = WorkerPool(
            self.observer.group, self, self._clock, parts.calls_max
        )

    # --- on the loop ------------------------------------------------------------------------------

    def submit(self, request: PullRequest, messages: list[MessageExt]) -> None:
        """Hand a run out; wakes one worker if none is awake."""
        run = ConsumeRun(request, messages, self._batch_size)
        pool = self._pool
        with pool.mutex:
            if pool.stopping:
                return
            self._runs.append(run)
            self._open.append(run)
            pool.work_added()
        pool.start_ticks()

    def flush(self, request: PullRequest) -> None:
        """Remove what is finished of one queue."""
        for run in list(self._open):
            if run.request is request:
                self._offset_updater.flush(run)

    async def shutdown(self, await_ms: float, caller: int | None = None) -> None:
        """Hand out nothing more; wait for running listeners, at most ``await_ms``.

        Threads whose listener does not return are left behind; their results no longer count.
        So is ``caller``, a thread that waits for this inside its listener.
        """
        with self._pool.mutex:
            self._runs.clear()
        await self._pool.shutdown(await_ms, caller)
        for run in list(self._open):
            self._offset_updater.flush(run)

    # --- the pool's source ------------------------------------------------------------------------

    def next_job(self) -> ConsumeRun | None:
        """Return a run nobody has, else one that has chunks left."""
        if self._runs:
            return self._runs.popleft()
        for run in self._open:
            if not run.is_claimed:
                return run
        return None

    def waiting(self) -> int:
        """Return how many chunks no worker has taken; as many as there may be workers are enough.

        Asked every millisecond, while runs may wait by the hundred.
        """
        enough = self._pool.core_pool_size
        chunks = 0
        for run in self._open:
            chunks += max(0, run.chunks - run.claimed)
            if chunks >= enough:
                break
        return chunks

    def is_open(self) -> bool:
        """Whether a run has chunks left or finished messages not removed."""
        runs = self._open
        while runs and runs[0].is_done:
            runs.popleft()
        if len(runs) > self._open_max:
            # The first one takes long, and others are done behind it.
            self._open = runs = deque(run for run in runs if not run.is_done)
            self._open_max = max(_OPEN_RUNS, 2 * len(runs))
        return bool(runs)

    def tick(self) -> None:
        """Remove what is finished, of the runs that somebody has begun."""
        begun = max(0, len(self._open) - len(self._runs))
        for run in list(itertools.islice(self._open, begun)):
            self._offset_updater.flush(run)

    def work(self, worker: Worker, job: ConsumeRun) -> None:
        """Take chunks of a run until none is left."""
        run = job
        queue, pool, observer = run.request.process_queue, self._pool, self.observer
        messages, size, claims, finished = run.messages, self._batch_size, run.claims, run.finished
        chunks = run.chunks
        call, now_ms = self.listener.call, self._clock.now_ms
        plain = not (self.listener.takes_context or observer.hooks)
        began_ms = flushed_ms = now_ms()
        calls_before = worker.calls
        done = failed = 0
        context: ConsumeConcurrentlyContext | None = None
        hooked: ConsumeMessageContext | None = None
        while not (queue.dropped or pool.stopping):
            number = next(claims)
            if number >= chunks:
                break
            first = number * size
            batch = [messages[first]] if size == 1 else messages[first : first + size]
            run.claimed = number + 1
            started_ms = now_ms()
            for message in batch:
                message.consume_start_ms = started_ms
                if message._properties is not None:
                    set_start_property(message)
            if not plain:
                context, hooked = self._before(batch, queue.message_queue)
            error: BaseException | None = None
            status: Any = None
            worker.calls += 1
            worker.calling = True
            try:
                status = call(batch) if context is None else call(batch, context)
            except BaseException as raised:  # nothing a listener raises may end the worker
                error = raised
            worker.calling = False
            # Not the list the listener got: it may have changed it.
            if plain and status is _SUCCESS:
                if queue.dropped:
                    break
                if size == 1:
                    finished.append(messages[first])
                    done += 1
                else:
                    batch = messages[first : first + size]
                    finished.extend(batch)
                    done += len(batch)
            else:
                batch = messages[first : first + size]
                checked = checked_status(status, error, batch, _LATER)
                if hooked is not None:
                    observer.after(hooked, status, checked, error, now_ms() - started_ms)
                if queue.dropped:
                    break
                if observer.blame is not None:
                    tell_failed(observer.blame, batch, context, checked, status, error)
                failed += self._settler.settle(run, batch, checked, context)
                done += len(batch)
            if started_ms - flushed_ms >= FLUSH_INTERVAL_MS:
                flushed_ms = started_ms
                self._offset_updater.flush(run)
            if pool.is_resting:
                pool.rouse()
        run.claimed = max(run.claimed, run.chunks)
        self._offset_updater.flush(run)
        mq = queue.message_queue
        calls = worker.calls - calls_before
        observer.count(mq.topic, done - failed, failed, now_ms() - began_ms, calls)

    def _before(self, batch: list[MessageExt], mq: MessageQueue) -> _Around:
        """Return the listener's context and the hooks', each only where it is wanted."""
        context = None
        if self.listener.takes_context:
            context = ConsumeConcurrentlyContext(self.observer.seen_queue(mq))
        return context, self.observer.before(batch, mq) if self.observer.hooks else None
