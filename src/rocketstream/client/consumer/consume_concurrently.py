"""The concurrent consume service: worker threads that take chunks of runs and call the listener.

Law: threads and user code; results go to the book and to the send-back, nothing else is decided
here (upstream's ConsumeMessageConcurrentlyService, C-254, C-260 to C-268).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from typing import Any

from rocketstream._util.clock import Clock, process_cpu_ms
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
from rocketstream.client.core.parallelism import Governor
from rocketstream.model import ConsumeConcurrentlyStatus
from rocketstream.protocol.message_ext import MessageExt

_TICK_S = 0.001
_TICK_ALL_AWAKE_S = 0.005
_THREAD_NAME_GROUP_CHARS = 100
_SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS


class _Worker:
    """One worker thread: parked at its gate, or taking chunks."""

    __slots__ = ("calling", "calls", "gate", "thread")

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.calls = 0
        self.calling = False
        self.thread: threading.Thread | None = None


class ConsumeMessageConcurrentlyService(UnlockedService):
    """Consumes runs on worker threads.

    One worker takes a whole run, chunk after chunk, so that a fast listener costs no hand-over
    per message. Every millisecond the loop looks whether work waits; if the listener is slow, more
    workers join, on the same run too (``core.parallelism``). Finished messages are entered per
    run, or every few milliseconds of a slow one.
    """

    def __init__(
        self,
        group: str,
        listener: Listener,
        book: ConsumeBook,
        send_back: SendBack,
        clock: Clock,
        *,
        batch_size: int,
        threads_max: int,
    ) -> None:
        self._name = f"ConsumeMessageThread_{group[:_THREAD_NAME_GROUP_CHARS]}"
        self._listener = listener
        self._book = book
        self._send_back = send_back
        self._clock = clock
        self._batch_size = batch_size
        self._loop = asyncio.get_running_loop()
        self._governor = Governor(threads_max)
        # Guards the fields below; held for a few steps only, never while user code runs.
        self._mutex = threading.Lock()
        self._runs: deque[ConsumeRun] = deque()
        self._open: list[ConsumeRun] = []
        self._workers: list[_Worker] = []
        self._parked: list[_Worker] = []
        self._awake = 0
        self._stopping = False
        self._spared = 0
        self._quiet = asyncio.Event()
        self._ticking = False

    # --- on the loop ------------------------------------------------------------------------------

    def submit(self, request: PullRequest, messages: list[MessageExt]) -> None:
        """Hand a run out; wakes one worker if none is awake."""
        run = ConsumeRun(request, messages, self._batch_size)
        with self._mutex:
            if self._stopping:
                return
            self._runs.append(run)
            self._open.append(run)
            if not self._awake:
                self._wake_one()
        if not self._ticking:
            self._ticking = True
            now, cpu = self._clock.monotonic_ms(), process_cpu_ms()
            self._governor.start(now, cpu, self._calls(), self._awake)
            self._loop.call_later(_TICK_S, self._tick)

    def flush(self, request: PullRequest) -> None:
        """Enter what is finished of one queue."""
        for run in list(self._open):
            if run.request is request:
                self._book.flush(run)

    async def shutdown(self, await_ms: float, caller: int | None = None) -> None:
        """Hand out nothing more; wait for running listeners, at most ``await_ms``.

        Threads whose listener does not return are left behind; their results no longer count.
        So is ``caller``, a thread that waits for this inside its listener.
        """
        with self._mutex:
            self._stopping = True
            self._runs.clear()
            parked, self._parked = self._parked, []
            self._awake += len(parked)
            own = {worker.thread.ident for worker in self._workers if worker.thread is not None}
            self._spared = int(caller in own)
            if self._awake <= self._spared:
                self._quiet.set()
        for worker in parked:
            worker.gate.release()
        if await_ms > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(await_ms / 1000):
                    await self._quiet.wait()
        for run in list(self._open):
            self._book.flush(run)

    def _tick(self) -> None:
        """Look after slow listeners: enter what is finished, wake more workers."""
        with self._mutex:
            self._open = [run for run in self._open if not run.is_claimed or run.finished]
            open_runs = list(self._open)
            if not open_runs or self._stopping:
                self._ticking = False
                return
            waiting = sum(max(0, run.chunks - run.claimed) for run in open_runs)
            calling = sum(worker.calling for worker in self._workers)
            awake = self._awake
            target = self._governor.tick(
                self._clock.monotonic_ms(),
                process_cpu_ms(),
                self._calls(),
                waiting=waiting,
                awake=awake,
                calling=calling,
            )
            for _ in range(target - awake):
                if not self._invite(open_runs):
                    break
        for run in open_runs:
            self._book.flush(run)
        all_awake = awake >= self._governor.maximum
        self._loop.call_later(_TICK_ALL_AWAKE_S if all_awake else _TICK_S, self._tick)

    def _invite(self, open_runs: list[ConsumeRun]) -> bool:
        """Wake one worker more if there is something to take."""
        if not self._runs and all(run.is_claimed for run in open_runs):
            return False
        self._wake_one()
        return True

    def _calls(self) -> int:
        return sum(worker.calls for worker in self._workers)

    def _wake_one(self) -> None:
        self._awake += 1
        if self._parked:
            self._parked.pop().gate.release()
            return
        worker = _Worker()
        self._workers.append(worker)
        worker.thread = threading.Thread(
            target=self._work,
            args=(worker,),
            name=f"{self._name}_{len(self._workers)}",
            daemon=True,
        )
        worker.thread.start()

    # --- on worker threads ------------------------------------------------------------------------

    def _work(self, worker: _Worker) -> None:
        while (run := self._next_run(worker)) is not None:
            self._consume(worker, run)
        with self._mutex:
            self._awake -= 1
            last = self._awake <= self._spared
        if last:
            # The loop may be gone when a listener outlived the shutdown.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._quiet.set)

    def _next_run(self, worker: _Worker) -> ConsumeRun | None:
        while True:
            with self._mutex:
                if self._stopping:
                    return None
                if self._awake == 1 or self._awake <= self._governor.target:
                    if self._runs:
                        return self._runs.popleft()
                    for run in self._open:
                        if not run.is_claimed:
                            return run
                self._awake -= 1
                self._parked.append(worker)
            worker.gate.acquire()

    def _consume(self, worker: _Worker, run: ConsumeRun) -> None:
        """Take chunks of a run until none is left."""
        queue = run.request.process_queue
        messages, size, claims, finished = run.messages, self._batch_size, run.claims, run.finished
        call, takes_context = self._listener.call, self._listener.takes_context
        now_ms = self._clock.now_ms
        flushed_ms = now_ms()
        context: ConsumeConcurrentlyContext | None = None
        while not (queue.dropped or self._stopping):
            number = next(claims)
            batch = messages[number * size : number * size + size]
            if not batch:
                break
            run.claimed = number + 1
            started_ms = now_ms()
            for message in batch:
                message.consume_start_ms = started_ms
            error: BaseException | None = None
            status: Any = None
            worker.calls += 1
            worker.calling = True
            try:
                if takes_context:
                    context = ConsumeConcurrentlyContext(queue.message_queue)
                    status = call(batch, context)
                else:
                    status = call(batch)
            except BaseException as raised:  # nothing a listener raises may end the worker
                error = raised
            worker.calling = False
            if queue.dropped:
                break
            # Not the list the listener got: it may have changed it.
            batch = messages[number * size : number * size + size]
            if status is _SUCCESS and context is None:
                finished.extend(batch)
            else:
                self._settle(run, batch, checked_status(status, error, batch), context)
            if started_ms - flushed_ms >= FLUSH_INTERVAL_MS:
                flushed_ms = started_ms
                self._book.flush(run)
        run.claimed = max(run.claimed, run.chunks)
        self._book.flush(run)

    def _settle(
        self,
        run: ConsumeRun,
        batch: list[MessageExt],
        status: ConsumeConcurrentlyStatus,
        context: ConsumeConcurrentlyContext | None,
    ) -> None:
        """Sort a batch into finished and failed messages (C-262 to C-264)."""
        failed = settle(run, batch, status, context)
        if failed:
            level = 0 if context is None else context.delay_level_when_next_consume
            self._send_back.submit(run.request, failed, level)
