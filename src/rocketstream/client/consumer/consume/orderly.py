"""The orderly consume services: worker threads for plain listeners, tasks for coroutine ones.

Law: calls the listener and nothing else; what may be taken and what a status does is decided in
``core.orderly_turn``, and carried out in ``turns`` (upstream's ConsumeMessageOrderlyService).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

from rocketstream.client.consumer.consume.calls import (
    CallObserver,
    checked_status,
    is_being_cancelled,
)
from rocketstream.client.consumer.consume.pool import Worker, WorkerPool
from rocketstream.client.consumer.consume.runs import PullRequest
from rocketstream.client.consumer.consume.tasks import TaskPool
from rocketstream.client.consumer.consume.turns import (
    STATS_INTERVAL_MS,
    OrderlyParts,
    OrderlyService,
)
from rocketstream.client.consumer.listener import ConsumeOrderlyContext
from rocketstream.client.hooks import ConsumeMessageContext
from rocketstream.model import ConsumeOrderlyStatus, MessageQueue
from rocketstream.protocol.message_ext import MessageExt

logger = logging.getLogger("rocketstream.client")

_SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
_GOOD = frozenset({ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.COMMIT})
_SUCCESS = ConsumeOrderlyStatus.SUCCESS
_TURN_YIELDS_MS = 2.0
_COUNT_MASK = 0x3F
"""Figures of plain calls are added every 64 calls, and at the end of a turn."""


class _Turn:
    """The listener calls of one turn: around each of them, and their figures."""

    __slots__ = (
        "_counted_ms",
        "_failed",
        "_hooked",
        "_mq",
        "_observer",
        "_ok",
        "_seen",
        "_started_ms",
        "began_ms",
        "calls",
        "context",
    )  # fmt: skip

    def __init__(self, observer: CallObserver, mq: MessageQueue) -> None:
        self._observer = observer
        self._mq = mq
        self._seen = observer.seen_queue(mq)
        self.calls = self._ok = self._failed = 0
        self._hooked: ConsumeMessageContext | None = None
        self.context = ConsumeOrderlyContext(self._seen)
        self.began_ms = self._counted_ms = self._started_ms = observer.clock.monotonic_ms()

    def before(self, batch: list[MessageExt]) -> None:
        """Prepare a call."""
        self.context = ConsumeOrderlyContext(self._seen)
        self._hooked = self._observer.before(batch, self._mq) if self._observer.hooks else None
        self._started_ms = self._observer.clock.monotonic_ms()

    def after(
        self, batch: list[MessageExt], answer: object, error: BaseException | None
    ) -> ConsumeOrderlyStatus:
        """Return the status a call's outcome counts as."""
        now_ms = self._observer.clock.monotonic_ms()
        status = checked_status(answer, error, batch, _SUSPEND)
        if self._hooked is not None:
            self._observer.after(self._hooked, answer, status, error, now_ms - self._started_ms)
        self.calls += 1
        if status in _GOOD:
            self._ok += len(batch)
        else:
            if self._observer.blame is not None:
                self._observer.blame.tell(batch, error, answer, _SUSPEND.name)
            self._failed += len(batch)
        if now_ms - self._counted_ms > STATS_INTERVAL_MS:
            self.count()
        return status

    def cut_off(self, error: BaseException) -> None:
        """Tell the hooks of a call that was cancelled, whose outcome counts for nothing else."""
        if self._hooked is not None:
            self._observer.cut_off(self._hooked, _SUSPEND, error)

    def succeeded(self, batch: list[MessageExt]) -> None:
        """Note a SUCCESS that nobody but the figures wants to know of."""
        self.calls += 1
        self._ok += len(batch)
        if not self.calls & _COUNT_MASK:
            self.count()

    def count(self) -> None:
        """Add the figures so far to the statistics; all time since the last ones is listeners'."""
        now_ms = self._observer.clock.monotonic_ms()
        rt_ms = now_ms - self._counted_ms
        self._observer.count(self._mq.topic, self._ok, self._failed, rt_ms, self.calls)
        self.calls = self._ok = self._failed = 0
        self._counted_ms = now_ms


class ConsumeMessageOrderlyService(OrderlyService):
    """Consumes in order on worker threads; a worker stays with a queue until its turn ends."""

    def __init__(self, parts: OrderlyParts) -> None:
        super().__init__(parts)
        self._threads: dict[MessageQueue, int] = {}
        self._caller: int | None = None
        self._pool: WorkerPool[PullRequest] = WorkerPool(
            self.observer.group, self, self.observer.clock, parts.settings.consume_thread_max
        )

    def _start(self, request: PullRequest) -> None:
        with self._pool.mutex:
            self._ready.append(request)
            self._pool.work_added()
        self._pool.start_ticks()

    async def _stop(self, await_ms: float, caller: int | None) -> None:
        self._caller = caller
        await self._pool.shutdown(await_ms, caller)

    def _is_caller(self, mq: MessageQueue) -> bool:
        return self._caller is not None and self._threads.get(mq) == self._caller

    # --- the pool's source ------------------------------------------------------------------------

    def next_job(self) -> PullRequest | None:
        """Return a queue whose turn it is."""
        return self._ready.popleft() if self._ready else None

    def waiting(self) -> int:
        """Return how many queues wait for a worker."""
        return len(self._ready)

    def is_open(self) -> bool:
        """Whether a queue waits for a worker."""
        return bool(self._ready)

    def tick(self) -> None:
        """Do nothing: every batch is settled at once, so no finished message waits."""

    def work(self, worker: Worker, job: PullRequest) -> None:
        """Give a queue its turn."""
        mq = job.process_queue.message_queue
        self._threads[mq] = threading.get_ident()
        turn = _Turn(self.observer, mq)
        try:
            self._consume(worker, job, turn)
        except Exception:
            logger.exception("consuming %s failed; its batch comes again", mq)
            self.failed(job)
        turn.count()

    def _consume(self, worker: Worker, request: PullRequest, turn: _Turn) -> None:
        call, takes_context = self.listener.call, self.listener.takes_context
        plain = not (takes_context or self.observer.hooks)
        began_ms = turn.began_ms
        batch = self.next_batch(request, began_ms)
        while batch is not None:
            if not plain:
                turn.before(batch)
            # A copy: the listener may do with its list what it likes.
            given = batch[:]
            answer: Any = None
            error: BaseException | None = None
            worker.calls += 1
            worker.calling = True
            try:
                answer = call(given, turn.context) if takes_context else call(given)
            except BaseException as raised:  # nothing a listener raises may end the worker
                error = raised
            worker.calling = False
            if plain and answer is _SUCCESS:
                turn.succeeded(batch)
                batch = self.advance(request, began_ms)
                continue
            status = turn.after(batch, answer, error)
            if status is _SUCCESS and turn.context.auto_commit:
                batch = self.advance(request, began_ms)
            elif self.settle(request, batch, status, turn.context):
                batch = self.next_batch(request, began_ms)
            else:
                return


class AsyncOrderlyService(OrderlyService):
    """Consumes in order with coroutine listeners: one task per queue at a time."""

    def __init__(self, parts: OrderlyParts) -> None:
        super().__init__(parts)
        self._callers: dict[MessageQueue, asyncio.Task[Any] | None] = {}
        self._caller: asyncio.Task[Any] | None = None
        self._pool: TaskPool = TaskPool(
            self._work, parts.settings.consume_thread_max, self.observer.group
        )

    def _start(self, request: PullRequest) -> None:
        self._ready.append(request)
        self._pool.start_one()

    async def _stop(self, await_ms: float, caller: int | None) -> None:
        self._caller = asyncio.current_task()
        await self._pool.shutdown(await_ms)

    def _is_caller(self, mq: MessageQueue) -> bool:
        return self._caller is not None and self._callers.get(mq) is self._caller

    async def _work(self) -> None:
        while self._ready and self._pool.may_go_on():
            request = self._ready.popleft()
            if self._ready:
                self._pool.start_one()
            mq = request.process_queue.message_queue
            self._callers[mq] = asyncio.current_task()
            turn = _Turn(self.observer, mq)
            try:
                await self._consume(request, turn)
            except asyncio.CancelledError:
                self.cut_off(request)
                raise
            except Exception:
                logger.exception("consuming %s failed; its batch comes again", mq)
                self.failed(request)
            finally:
                self._callers.pop(mq, None)
                turn.count()
            await asyncio.sleep(0)

    async def _consume(self, request: PullRequest, turn: _Turn) -> None:
        call, takes_context = self.listener.call, self.listener.takes_context
        yielded_ms = turn.began_ms
        batch = self.next_batch(request, turn.began_ms)
        while batch is not None:
            turn.before(batch)
            given = batch[:]
            answer: Any = None
            error: BaseException | None = None
            try:
                answer = await (call(given, turn.context) if takes_context else call(given))
            except BaseException as raised:  # nothing a listener raises may end the task
                if isinstance(raised, asyncio.CancelledError) and is_being_cancelled():
                    turn.cut_off(raised)
                    raise
                error = raised
            status = turn.after(batch, answer, error)
            if not self.settle(request, batch, status, turn.context):
                return
            now_ms = self._now()
            if now_ms - yielded_ms > _TURN_YIELDS_MS:
                # A listener that never suspends must not keep the loop from its sockets.
                yielded_ms = now_ms
                await asyncio.sleep(0)
            batch = self.next_batch(request, turn.began_ms)
