"""Consuming in order: the turns of queues, and the threads or tasks that call the listener.

Law: at most one listener call per queue at a time, whatever the assignment. ``orderly_turn``
decides which messages may be taken and what a status does. Timers and the questions for locks are
the loop's; taking a batch and settling it happen on the thread that calls the listener, under the
lock of the queue (upstream's ConsumeMessageOrderlyService, C-279 to C-298, with C-556 to C-560 and
C-590 put right).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from rocketstream._util.ending import Cancellation, take_all
from rocketstream._util.user_code import is_thrown_away
from rocketstream.client.consumer.consume.listener_calls import (
    CallObserver,
    ListenerService,
    checked_status,
)
from rocketstream.client.consumer.consume.orderly_queue import OrderlyProcessQueue, OrderlyTimes
from rocketstream.client.consumer.consume.orderly_turn import (
    AskLock,
    Ending,
    GiveUp,
    GoOn,
    OrderlyTurns,
    Resume,
)
from rocketstream.client.consumer.consume.queue_locks import QueueLocker
from rocketstream.client.consumer.consume.workers import TaskPool, WorkerPool
from rocketstream.client.consumer.listener import ConsumeOrderlyContext, Listener
from rocketstream.client.consumer.process_queue import Thresholds
from rocketstream.client.consumer.queue import AssignedQueue, OrderlyQueue, QueueLinks
from rocketstream.client.consumer.retry import orderly_max_reconsume_times
from rocketstream.client.consumer.send_back import SendBack
from rocketstream.client.consumer.settings import PushConsumerSettings
from rocketstream.client.hooks import ConsumeMessageContext
from rocketstream.errors import ConfigurationError
from rocketstream.model import ConsumeOrderlyStatus, MessageQueue
from rocketstream.protocol.message_ext import MessageExt

logger: logging.Logger = logging.getLogger("rocketstream.client")

LOCK_MAX_LIVE_VARIABLE = "ROCKETMQ_REBALANCE_LOCK_MAX_LIVE_MS"
LOCK_INTERVAL_VARIABLE = "ROCKETMQ_REBALANCE_LOCK_INTERVAL_MS"
TURN_MAX_VARIABLE = "ROCKETMQ_MAX_TIME_CONSUME_CONTINUOUSLY_MS"
STATS_INTERVAL_MS = 1_000
_SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
_GOOD = frozenset({ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.COMMIT})
_SUCCESS = ConsumeOrderlyStatus.SUCCESS
_TURN_YIELDS_MS = 2.0
_COUNT_MASK = 0x3F
"""Figures of plain calls are added every 64 calls, and at the end of a turn."""


def orderly_times() -> OrderlyTimes:
    """Return the times of orderly consumers; environment variables stand for upstream's sysprops.

    Raises:
        ConfigurationError: one of them is not a number of milliseconds.
    """
    usual = OrderlyTimes()
    return OrderlyTimes(
        lock_max_live_ms=_milliseconds(LOCK_MAX_LIVE_VARIABLE, usual.lock_max_live_ms),
        lock_interval_ms=_milliseconds(LOCK_INTERVAL_VARIABLE, usual.lock_interval_ms),
        turn_max_ms=_milliseconds(TURN_MAX_VARIABLE, usual.turn_max_ms),
    )


def _milliseconds(variable: str, default: float) -> float:
    text = os.environ.get(variable, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ConfigurationError(
            f"environment variable {variable} must be a number of milliseconds above 0, "
            f"not {text!r}"
        )
    return float(text)


class OrderlyService(ListenerService, ABC):
    """All of an orderly consume service except calling the listener.

    Args:
        listener: what is called.
        observer: calls hooks and counts around listener calls.
        settings: of the consumer.
        send_back: takes messages that had their last try.
        locker: the broker locks; None where every member has every queue (C-555).
        times: how long locks last and are waited for.
    """

    def __init__(
        self,
        listener: Listener,
        observer: CallObserver,
        settings: PushConsumerSettings,
        send_back: SendBack,
        locker: QueueLocker | None,
        times: OrderlyTimes,
    ) -> None:
        super().__init__(listener, observer, settings.consume_thread_max)
        self.locker = locker
        self.times = times
        self._send_back = send_back
        self._max_times = orderly_max_reconsume_times(settings.max_reconsume_times)
        self._decide = OrderlyTurns(
            settings.consume_message_batch_max_size,
            self._max_times,
            settings.suspend_current_queue_time_ms,
            times.turn_max_ms,
            self._others_wait,
        )
        self._now = observer.clock.monotonic_ms
        self._loop = asyncio.get_running_loop()
        self._ready: deque[OrderlyQueue] = deque()
        """Queues that wait for somebody to call their listener."""
        self._timers: set[asyncio.TimerHandle] = set()
        self._relocks: dict[OrderlyQueue, asyncio.TimerHandle] = {}
        """Turns that wait for a lock, and when it is asked for."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    # --- what a driver provides -------------------------------------------------------------------

    @abstractmethod
    def _start(self, queue: OrderlyQueue) -> None:
        """Begin a turn soon: take batches and settle them until there is none. On the loop."""

    @abstractmethod
    async def _stop(self, await_ms: float, caller: int | None) -> None:
        """Begin no turn any more and wait for running listeners, at most ``await_ms``.

        The queue whose listener asked for the shutdown is spared.
        """

    def _others_wait(self) -> bool:
        """Whether a queue waits for somebody to call its listener; any thread."""
        return bool(self._ready)

    # --- queues and their locks -------------------------------------------------------------------

    def new_queue(
        self,
        mq: MessageQueue,
        offset: int,
        thresholds: Thresholds,
        links: QueueLinks,
        former: AssignedQueue | None,
    ) -> OrderlyQueue:
        """Return a queue that is taken, with the lease of its lock; ``former`` was it before."""
        assert former is None or isinstance(former, OrderlyQueue)
        lease = None if self.locker is None else self.locker.lease(mq)
        held = OrderlyProcessQueue(mq, self._now(), lease)
        queue = OrderlyQueue(held, offset, thresholds, links, former)
        if self.locker is not None:
            self.locker.taken(queue)
        return queue

    def connection_made(self) -> None:
        """Ask for the locks that waiting turns need, and for those that are in doubt, at once."""
        if self.locker is not None and not self._decide.stopping:
            self._run(self._relock(self.locker))

    async def _relock(self, locker: QueueLocker) -> None:
        if not await locker.ask_for_doubted():
            return
        now_ms = self._now()
        for queue, timer in list(self._relocks.items()):
            with queue.lock:
                resume = self._decide.locked(queue.process_queue, now_ms)
            if resume is not None:
                timer.cancel()
                self._timers.discard(timer)
                self._relocks.pop(queue, None)
                self._perform(queue, resume)

    def _ask_lock(self, queue: OrderlyQueue) -> None:
        self._relocks.pop(queue, None)
        self._run(self._try_lock(queue))

    async def _try_lock(self, queue: OrderlyQueue) -> None:
        with queue.lock:
            wanted = self._decide.may_go_on(queue.process_queue)
        assert self.locker is not None, "a queue without a lease waits for no lock"
        if not wanted:
            return
        try:
            refused = await self.locker.ask([queue.message_queue])
        except Exception:
            logger.exception("asking for the lock of %s failed", queue.message_queue)
            self.failed(queue)
            return
        with queue.lock:
            is_refused = queue.message_queue in refused
            then = self._decide.asked(queue.process_queue, is_refused, self._now())
        self._perform(queue, then)

    # --- turns ------------------------------------------------------------------------------------

    def submit(self, queue: AssignedQueue, messages: list[MessageExt]) -> None:
        """Begin a turn unless one is under way; the messages are in its process queue (C-280)."""
        assert isinstance(queue, OrderlyQueue)
        with queue.lock:
            begins = self._decide.came(queue.process_queue)
        if begins:
            self._begin(queue)

    def _begin(self, queue: OrderlyQueue) -> None:
        """Start a turn, once the listener of an earlier assignment has returned (C-281)."""
        if queue.former is not None and not queue.is_free:
            queue.former.when_free(lambda: self._begin_after(queue))
        else:
            self._start(queue)

    def _begin_after(self, queue: OrderlyQueue) -> None:
        with queue.lock:
            begins = self._decide.may_go_on(queue.process_queue)
        if begins:
            self._begin(queue)

    def _perform(self, queue: OrderlyQueue, then: Ending) -> None:
        """Set the timer of the pause that follows a turn, if any; on the loop."""
        if self._decide.stopping:
            return
        if isinstance(then, Resume):
            self._after(then.pause_ms, lambda: self._resume(queue))
        elif isinstance(then, AskLock):
            ask = self._after(then.pause_ms, lambda: self._ask_lock(queue))
            self._relocks[queue] = ask

    def _resume(self, queue: OrderlyQueue) -> None:
        with queue.lock:
            begins = self._decide.due(queue.process_queue)
        if begins:
            self._begin(queue)

    def _after(self, pause_ms: float, work: Callable[[], None]) -> asyncio.TimerHandle:
        def due() -> None:
            self._timers.discard(timer)
            work()

        timer = self._loop.call_later(pause_ms / 1000, due)
        self._timers.add(timer)
        return timer

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        if self._closed:  # a listener outlived the shutdown; nothing counts any more
            work.close()
            return
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a step of consuming in order failed", exc_info=error)

    def _ended(self, queue: OrderlyQueue, then: Ending) -> None:
        """End a turn; on the loop."""
        queue.tell_if_free()
        self._perform(queue, then)

    # --- what the caller of the listener uses; any thread -----------------------------------------

    def next_batch(self, queue: OrderlyQueue, began_ms: float) -> list[MessageExt] | None:
        """Take the next batch of a turn; None means the turn has ended (C-281).

        Args:
            queue: the queue.
            began_ms: when the turn began.
        """
        with queue.lock:
            then = self._decide.next(queue.process_queue, began_ms, self._now())
        if isinstance(then, list):
            return then
        self._end(queue, then)
        return None

    def advance(self, queue: OrderlyQueue, began_ms: float) -> list[MessageExt] | None:
        """Commit what was taken and take the next batch: what SUCCESS leads to, in one step."""
        now_ms = self._now()
        with queue.lock:
            offset, then = self._decide.advance(queue.process_queue, began_ms, now_ms)
            queue.note(offset)
        if isinstance(then, list):
            return then
        self._end(queue, then)
        return None

    def settle(
        self,
        queue: OrderlyQueue,
        batch: list[MessageExt],
        status: ConsumeOrderlyStatus,
        context: ConsumeOrderlyContext,
    ) -> bool:
        """Do what a status says; return whether the turn goes on (C-285, C-286)."""
        held, asked_ms = queue.process_queue, context.suspend_current_queue_time_ms
        with queue.lock:
            offset, then = self._decide.answered(
                held, batch, status, context.auto_commit, asked_ms, self._now()
            )
            queue.note(offset)
        if isinstance(then, GoOn):
            return True
        if isinstance(then, GiveUp):
            self._post(lambda: self._run(self._give_up(queue, then)))
        else:
            self._end(queue, then)
        return False

    def failed(self, queue: OrderlyQueue) -> None:
        """End a turn that broke by a mistake of rocketstream: its batch comes again."""
        with queue.lock:
            then = self._decide.broke(queue.process_queue)
        self._end(queue, then)

    def cut_off(self, queue: OrderlyQueue) -> None:
        """End a turn whose listener call was cancelled with its consumer: no answer comes."""
        with queue.lock:
            self._decide.cut_off(queue.process_queue)

    def _end(self, queue: OrderlyQueue, then: Ending) -> None:
        self._post(self._ended, queue, then)

    def _post(self, work: Callable[..., None], *arguments: object) -> None:
        # The loop may be gone when a listener outlived the shutdown.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work, *arguments)

    async def _give_up(self, queue: OrderlyQueue, what: GiveUp) -> None:
        """Move messages to the dead-letter topic; only the others come again (C-287, C-590)."""
        dead: list[MessageExt] = []
        undead: list[MessageExt] = []
        try:
            for message in what.spent:
                is_dead = await self._send_back.give_up(message, self._max_times)
                (dead if is_dead else undead).append(message)
        except Exception:
            logger.exception(
                "giving up messages of %s failed; they come again",
                queue.message_queue,
            )
            self.failed(queue)
            return
        held = queue.process_queue
        with queue.lock:
            offset, then = self._decide.given_up(held, what, dead, undead, self._now())
            queue.note(offset)
        self._ended(queue, then)

    # --- the rest ---------------------------------------------------------------------------------

    async def shutdown(self, await_ms: float, caller: int | None = None) -> None:
        """Begin no turn any more; wait for running listeners; locks go back as queues leave."""
        self._decide.stopping = True
        for timer in self._timers:
            timer.cancel()
        if self.locker is not None:
            self.locker.stop()
        steps = [lambda: self._stop(await_ms, caller), self._count_no_more]
        if self.locker is not None:
            steps.append(self.locker.close)
        await take_all(*steps)

    async def _count_no_more(self) -> None:
        self._closed = True
        await asyncio.gather(*self._tasks, return_exceptions=True)


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
            if self._observer.failure_cause is not None:
                self._observer.failure_cause.tell(batch, error, answer, _SUSPEND.name)
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

    _pool: WorkerPool[OrderlyQueue]

    def _make_pool(self, size: int) -> WorkerPool[OrderlyQueue]:
        self._callers: dict[OrderlyQueue, int] = {}
        return WorkerPool(self.observer.group, self, size)

    def _start(self, queue: OrderlyQueue) -> None:
        with self._pool.mutex:
            self._ready.append(queue)
            self._pool.work_added()
        self._pool.look_soon()

    async def _stop(self, await_ms: float, caller: int | None) -> None:
        for queue, thread in list(self._callers.items()):
            if thread == caller:
                queue.spared = True
        await self._pool.shutdown(await_ms, caller)

    # --- the pool's source ------------------------------------------------------------------------

    def next_job(self) -> OrderlyQueue | None:
        """Return a queue whose turn it is."""
        return self._ready.popleft() if self._ready else None

    def oldest(self) -> OrderlyQueue | None:
        """Return the queue that waits longest for a worker."""
        return self._ready[0] if self._ready else None

    def work(self, job: OrderlyQueue) -> None:
        """Give a queue its turn."""
        mq = job.message_queue
        self._callers[job] = threading.get_ident()
        turn = _Turn(self.observer, mq)
        try:
            self._consume(job, turn)
        except BaseException:  # SystemExit, too, ends no thread but the main one
            logger.exception("consuming %s failed; its batch comes again", mq)
            self.failed(job)
        finally:
            self._callers.pop(job, None)
        turn.count()

    def _consume(self, queue: OrderlyQueue, turn: _Turn) -> None:
        call, takes_context = self.listener.call, self.listener.takes_context
        plain = not (takes_context or self.observer.hooks)
        began_ms = turn.began_ms
        batch = self.next_batch(queue, began_ms)
        while batch is not None:
            if not plain:
                turn.before(batch)
            # A copy: the listener may do with its list what it likes.
            given = batch[:]
            answer: Any = None
            error: BaseException | None = None
            try:
                answer = call(given, turn.context) if takes_context else call(given)
            except BaseException as raised:  # nothing a listener raises may end the worker
                error = raised
            if plain and answer is _SUCCESS:
                turn.succeeded(batch)
                batch = self.advance(queue, began_ms)
                continue
            status = turn.after(batch, answer, error)
            if not self.settle(queue, batch, status, turn.context):
                return
            batch = self.next_batch(queue, began_ms)


class AsyncOrderlyService(OrderlyService):
    """Consumes in order with coroutine listeners: one task per queue at a time."""

    _pool: TaskPool

    def _make_pool(self, size: int) -> TaskPool:
        self._callers: dict[OrderlyQueue, asyncio.Task[Any] | None] = {}
        return TaskPool(self._work, size, self.observer.group)

    def _start(self, queue: OrderlyQueue) -> None:
        self._ready.append(queue)
        self._pool.start_one()

    async def _stop(self, await_ms: float, caller: int | None) -> None:
        for queue, task in self._callers.items():
            if task is asyncio.current_task():
                queue.spared = True
        await self._pool.shutdown(await_ms)

    async def _work(self) -> None:
        while self._ready and self._pool.may_go_on():
            queue = self._ready.popleft()
            if self._ready:
                self._pool.start_one()
            mq = queue.message_queue
            self._callers[queue] = asyncio.current_task()
            turn = _Turn(self.observer, mq)
            try:
                await self._consume(queue, turn)
            except asyncio.CancelledError:
                if self._pool.stopping:
                    self.cut_off(queue)
                else:
                    logger.warning("somebody cancelled the call of %s; its batch comes again", mq)
                    self.failed(queue)
                raise
            except (Exception, SystemExit):
                logger.exception("consuming %s failed; its batch comes again", mq)
                self.failed(queue)
            finally:
                self._callers.pop(queue, None)
                turn.count()
            await asyncio.sleep(0)

    async def _consume(self, queue: OrderlyQueue, turn: _Turn) -> None:
        call, takes_context = self.listener.call, self.listener.takes_context
        yielded_ms, task = turn.began_ms, asyncio.current_task()
        batch = self.next_batch(queue, turn.began_ms)
        while batch is not None:
            turn.before(batch)
            given = batch[:]
            answer: Any = None
            error: BaseException | None = None
            cancellation = Cancellation(task)
            try:
                answer = await (call(given, turn.context) if takes_context else call(given))
            except BaseException as raised:  # nothing a listener raises may end the task
                if is_thrown_away(raised, task):
                    raise
                if isinstance(raised, asyncio.CancelledError) and cancellation.has_come:
                    turn.cut_off(raised)
                    raise
                error = raised
            status = turn.after(batch, answer, error)
            if not self.settle(queue, batch, status, turn.context):
                return
            now_ms = self._now()
            if now_ms - yielded_ms > _TURN_YIELDS_MS:
                # A listener that never suspends must not keep the loop from its sockets.
                yielded_ms = now_ms
                await asyncio.sleep(0)
            batch = self.next_batch(queue, turn.began_ms)
