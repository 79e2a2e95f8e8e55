"""Turns of queues consumed in order: who may consume which queue when, and what a status does.

Law: at most one listener call per queue at a time, whatever generation; locks, timers and hand-over
belong to the loop, taking a batch and settling it to whoever calls the listener (upstream's
ConsumeMessageOrderlyService, C-279 to C-298, with C-556 to C-560 and C-590 put right).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from rocketstream.client.consumer.consume.calls import CallWatch, consume_directly
from rocketstream.client.consumer.consume.runs import ConsumeBook, PullRequest
from rocketstream.client.consumer.listener import ConsumeOrderlyContext, Listener
from rocketstream.client.consumer.push.send_back import SendBack
from rocketstream.client.consumer.queue_locks import LockAnswers, QueueLocks
from rocketstream.client.core.orderly import (
    LOCK_RETRY_FAILED_MS,
    LOCK_RETRY_MS,
    LOCK_RETRY_RUNNING_MS,
    RESUME_MS,
    Lease,
    OrderlyProcessQueue,
    OrderlyTimes,
    Step,
    orderly_max_reconsume_times,
    split_by_tries,
    step_of,
    suspend_ms,
)
from rocketstream.client.core.settings import PushConsumerSettings
from rocketstream.errors import RocketMQError
from rocketstream.model import ConsumeOrderlyStatus, MessageQueue
from rocketstream.protocol.bodies import ConsumeMessageDirectlyResult
from rocketstream.protocol.message_ext import MessageExt

logger = logging.getLogger("rocketstream.client")

REFUSED_RETRY_MS = (500, 500, 1_000, 2_000)
"""Pauses before a queue somebody else still has is asked for again (C-560); the last one stays."""
STATS_INTERVAL_MS = 1_000
TURN_SHARE_MS = 20.0
"""A turn lasts this long at most while other queues wait for a worker."""


@dataclass(frozen=True, slots=True)
class OrderlyParts:
    """What an orderly consume service works with.

    Attributes:
        listener: what is called.
        book: where offsets are noted.
        send_back: takes messages that had their last try.
        watch: hooks and statistics.
        settings: of the consumer.
        locks: the broker locks; None where every member has every queue (C-555).
        rebalance_soon: have the queues divided again.
        times: how long locks last and are waited for.
    """

    listener: Listener
    book: ConsumeBook
    send_back: SendBack
    watch: CallWatch
    settings: PushConsumerSettings
    locks: QueueLocks | None
    rebalance_soon: Callable[[], None]
    times: OrderlyTimes


class OrderlyService(ABC):
    """Everything of an orderly consume service but the calls themselves."""

    def __init__(self, parts: OrderlyParts) -> None:
        settings = parts.settings
        self.listener = parts.listener
        self.watch = parts.watch
        self._book = parts.book
        self._send_back = parts.send_back
        self._batch_size = settings.consume_message_batch_max_size
        self._suspend_ms = settings.suspend_current_queue_time_ms
        self._max_times = orderly_max_reconsume_times(settings.max_reconsume_times)
        self._locks = parts.locks
        self._rebalance_soon = parts.rebalance_soon
        self._times = parts.times
        self._now = parts.watch.clock.monotonic_ms
        self._loop = asyncio.get_running_loop()
        self._ledgers: dict[MessageQueue, OrderlyProcessQueue] = {}
        self._granted: dict[MessageQueue, float] = {}
        self._turns: dict[MessageQueue, PullRequest] = {}
        self._successors: dict[MessageQueue, PullRequest] = {}
        self._kept: set[MessageQueue] = set()
        self._freed = asyncio.Event()
        self._timers: set[asyncio.TimerHandle] = set()
        self._relocks: dict[PullRequest, asyncio.TimerHandle] = {}
        """Turns that wait for a lock, and when it is asked for."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewal: asyncio.Task[None] | None = None
        self._refusals = 0
        self._retry: asyncio.TimerHandle | None = None
        self._stopping = self._closed = False

    # --- what a driver provides -------------------------------------------------------------------

    @abstractmethod
    def _start(self, request: PullRequest) -> None:
        """Begin a turn soon: take batches and settle them until told to end. On the loop."""

    @abstractmethod
    async def _stop(self, await_ms: float, caller: int | None) -> None:
        """Begin no turn any more and wait for running listeners, at most ``await_ms``."""

    @abstractmethod
    def _others_wait(self) -> bool:
        """Whether a queue waits for somebody to call its listener; any thread."""

    @abstractmethod
    def _is_caller(self, mq: MessageQueue) -> bool:
        """Whether the queue's listener is the one that asked for the shutdown."""

    # --- queues come and go -----------------------------------------------------------------------

    def new_queue(self, mq: MessageQueue, generation: int, now_ms: float) -> OrderlyProcessQueue:
        """Return an empty ledger, with the lease of the lock taken just now or of the last one."""
        lease: Lease | None = None
        live_ms = self._times.lock_max_live_ms
        if self._locks is not None:
            granted_ms = self._granted.pop(mq, None)
            former = self._ledgers.get(mq)
            lease = former.lease if former is not None else None
            if granted_ms is not None or lease is None:
                # Without a lock the lease is over before it begins, and a turn asks for one.
                lease = Lease(-math.inf if granted_ms is None else granted_ms, live_ms)
        queue = self._ledgers[mq] = OrderlyProcessQueue(mq, generation, now_ms, lease)
        return queue

    async def may_take(self, mqs: Sequence[MessageQueue]) -> Collection[MessageQueue]:
        """Lock queues at their brokers; return those that were to be had (C-175, C-186).

        A refused one is asked for again soon: its owner is about to let go (C-560).
        """
        if self._locks is None:
            return mqs
        if self._renewal is None and not self._stopping:
            self._renewal = self._loop.create_task(self._renew_forever())
        await self._unlock_unused(keep=mqs)
        answers = await self._locks.lock(mqs)
        for mq in answers.held:
            stands = self._locks.still_stands(mq, answers)
            self._granted[mq] = answers.asked_ms if stands else -math.inf
        if answers.refused:
            self._ask_again_soon()
        else:
            self._refusals = 0
        return answers.held

    async def release(self, requests: Sequence[PullRequest]) -> Collection[MessageQueue]:
        """Wait a moment for the listeners; return the queues that nobody works on (C-556, C-557).

        What a listener finishes while it is waited for counts. Queues left out are tried again as
        soon as their listener returns.
        """
        mqs = [request.process_queue.message_queue for request in requests]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._times.release_wait_ms / 1000):
                while any(map(self._is_in_hand, mqs)):
                    self._freed.clear()
                    if any(map(self._is_in_hand, mqs)):
                        await self._freed.wait()
        busy = {mq for mq in mqs if self._is_in_hand(mq)}
        self._kept |= busy
        for mq in busy:
            logger.info("%s is given up when its listener returns", mq)
        return [mq for mq in mqs if mq not in busy]

    async def released(self, mqs: Sequence[MessageQueue]) -> None:
        """Unlock queues whose offsets are stored (C-122, C-188, C-556).

        At shutdown a listener may still run: its queue stays locked until the broker forgets it,
        so that nobody overtakes it.
        """
        free: list[MessageQueue] = []
        for mq in mqs:
            queue = self._ledgers.pop(mq, None)
            self._kept.discard(mq)
            is_held = queue is None or queue.lease is None or queue.lease.locked
            if is_held and (not self._is_in_hand(mq) or self._is_caller(mq)):
                free.append(mq)
        if self._locks is not None and free:
            await self._locks.unlock(free)

    def _is_in_hand(self, mq: MessageQueue) -> bool:
        turn = self._turns.get(mq)
        return turn is not None and ledger_of(turn).in_hand

    async def _unlock_unused(
        self, keep: Collection[MessageQueue] = (), older_than_ms: float = 0.0
    ) -> None:
        """Give back locks of queues that were not taken in the end."""
        before_ms = self._now() - older_than_ms
        unused = [mq for mq, ms in self._granted.items() if mq not in keep and ms <= before_ms]
        for mq in unused:
            del self._granted[mq]
        if self._locks is not None and unused:
            await self._locks.unlock([mq for mq in unused if mq not in self._ledgers])

    def _ask_again_soon(self) -> None:
        if self._retry is not None or self._stopping:
            return
        pause_ms = REFUSED_RETRY_MS[min(self._refusals, len(REFUSED_RETRY_MS) - 1)]
        self._refusals += 1

        def due() -> None:
            self._retry = None
            self._rebalance_soon()

        self._retry = self._loop.call_later(pause_ms / 1000, due)

    # --- locks ------------------------------------------------------------------------------------

    async def _renew_forever(self) -> None:
        pause_ms = self._times.first_lock_ms
        while True:
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = self._times.lock_interval_ms
            try:
                await self.renew()
            except Exception:
                logger.exception("renewing queue locks failed")

    async def renew(self) -> None:
        """Renew the locks of all queues that are ours (C-187, C-279); dropped ones not (C-558)."""
        if self._locks is None:
            return
        # Younger ones may just be on their way into the table: their start is being asked for.
        await self._unlock_unused(older_than_ms=self._times.lock_max_live_ms)
        mqs = [mq for mq, queue in self._ledgers.items() if not queue.dropped]
        await self._apply(self._locks, mqs)

    def connection_lost(self, address: str) -> None:
        """Trust no lock that was granted over this connection, until it is granted anew.

        A broker keeps its locks in memory: after a restart whoever asks first is granted all of
        them. A batch that is with its listener ends; the next one waits for the lock.
        """
        locks = self._locks
        if locks is None:
            return
        for mq, queue in self._ledgers.items():
            if queue.lease is not None and locks.is_from(mq, address):
                queue.lease.doubt()
        for mq in self._granted:
            if locks.is_from(mq, address):
                self._granted[mq] = -math.inf

    def connection_made(self, address: str) -> None:
        """Ask for the locks that waiting turns need, and for those that are in doubt, at once."""
        if self._locks is None or self._stopping:
            return
        self._run(self._relock(self._locks))

    async def _relock(self, locks: QueueLocks) -> None:
        now_ms = self._now()
        mqs = [
            mq
            for mq, queue in self._ledgers.items()
            if not queue.dropped and queue.lease is not None and not queue.lease.is_valid(now_ms)
        ]
        if not mqs:
            return
        await self._apply(locks, mqs)
        now_ms = self._now()
        for request, timer in list(self._relocks.items()):
            lease = ledger_of(request).lease
            if lease is not None and lease.is_valid(now_ms):
                timer.cancel()
                self._timers.discard(timer)
                self._relocks.pop(request, None)
                self._later(request, RESUME_MS)

    async def _apply(self, locks: QueueLocks, mqs: Sequence[MessageQueue]) -> LockAnswers:
        """Ask for locks and take the answers in."""
        answers = await locks.lock(mqs)
        now_ms = self._now()
        # In the order asked, not that of a set: a simulated run is to be the same each time.
        held = [mq for mq in mqs if mq in answers.held and mq in self._ledgers]
        doubted = [
            mq for mq in held if (lease := self._ledgers[mq].lease) and not lease.is_valid(now_ms)
        ]
        ours = await asyncio.gather(*map(self._is_ours_still, doubted)) if doubted else []
        unknown = {mq for mq, is_ours in zip(doubted, ours, strict=True) if not is_ours}
        for mq in held:
            queue = self._ledgers.get(mq)
            if queue is None or queue.lease is None or mq in unknown:
                continue
            if locks.still_stands(mq, answers):
                queue.lease.renew(answers.asked_ms)
        for mq in [mq for mq in mqs if mq in answers.refused]:
            queue = self._ledgers.get(mq)
            if queue is not None and queue.lease is not None and not queue.dropped:
                # Somebody else has consumed it meanwhile: what is cached here may be done there.
                logger.warning("%s was locked by somebody else; it has to be taken anew", mq)
                queue.lease.lose()
                queue.drop()
                self._rebalance_soon()
        return answers

    async def _is_ours_still(self, mq: MessageQueue) -> bool:
        """Whether nobody had a queue while its lock was in doubt; one that did makes it dropped."""
        queue = self._ledgers[mq]
        try:
            overtaken = await self._book.is_overtaken(mq)
        except RocketMQError as error:
            logger.debug("whether somebody else had %s is not known yet: %s", mq, error)
            return False
        if overtaken and not queue.dropped:
            logger.warning("%s was consumed by somebody else meanwhile; it is taken anew", mq)
            queue.drop()
            self._rebalance_soon()
        return not overtaken

    async def _try_lock(self, request: PullRequest) -> None:
        queue = ledger_of(request)
        if self._locks is None or self._stopping or queue.dropped:
            return
        answers = await self._apply(self._locks, [queue.message_queue])
        lease = queue.lease
        if lease is None or lease.is_valid(self._now()):
            self._later(request, RESUME_MS)
        elif not queue.dropped and queue.message_queue not in answers.refused:
            self._relock_later(request, LOCK_RETRY_FAILED_MS)

    # --- turns ------------------------------------------------------------------------------------

    def submit(self, request: PullRequest, messages: list[MessageExt]) -> None:
        """Begin a turn unless one is under way; the messages are in the ledger (C-280)."""
        queue = ledger_of(request)
        with request.lock:
            if queue.consuming:
                return
            queue.consuming = True
        self._dispatch(request)

    def _dispatch(self, request: PullRequest) -> None:
        queue = ledger_of(request)
        if self._stopping or queue.dropped:
            return
        mq = queue.message_queue
        if mq in self._turns:
            # A turn is ending, or a listener of an earlier generation still runs (C-281).
            self._successors[mq] = request
            return
        self._turns[mq] = request
        self._start(request)

    def _later(self, request: PullRequest, pause_ms: float) -> None:
        self._after(pause_ms, lambda: self._dispatch(request))

    def _relock_later(self, request: PullRequest, pause_ms: float) -> None:
        def due() -> None:
            self._relocks.pop(request, None)
            self._run(self._try_lock(request))

        timer = self._after(pause_ms, due)
        if timer is not None:
            self._relocks[request] = timer

    def _after(self, pause_ms: float, work: Callable[[], None]) -> asyncio.TimerHandle | None:
        if self._stopping:
            return None

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
        task.add_done_callback(self._tasks.discard)

    def _ended(self, request: PullRequest, then: Callable[[], None] | None) -> None:
        """A turn is over; on the loop."""
        mq = request.process_queue.message_queue
        if self._turns.get(mq) is request:
            del self._turns[mq]
        self._freed.set()
        successor = self._successors.pop(mq, None)
        if successor is not None:
            self._dispatch(successor)
        if then is not None:
            then()
        if mq in self._kept:
            self._kept.discard(mq)
            self._rebalance_soon()

    # --- what the caller of the listener uses; any thread -----------------------------------------

    def next_batch(
        self, request: PullRequest, began_ms: float, first: bool
    ) -> list[MessageExt] | None:
        """Take the next batch of a turn; None ends it, and what comes next is arranged (C-281).

        Args:
            request: the queue.
            began_ms: when the turn began.
            first: whether it is the turn's first batch; a turn takes one at least.
        """
        queue = ledger_of(request)
        now_ms = self._now()
        then: Callable[[], None] | None = None
        with request.lock:
            lease = queue.lease
            if self._stopping or queue.dropped or queue.leaving:
                queue.consuming = False
            elif lease is not None and not lease.is_valid(now_ms):
                pause_ms = LOCK_RETRY_MS if first else LOCK_RETRY_RUNNING_MS
                then = partial(self._relock_later, request, pause_ms)
            elif not first and self._is_over(now_ms - began_ms):
                # To the end of the line; a turn that nobody waits for only makes a short pause.
                pause_ms = 0 if self._others_wait() else RESUME_MS
                then = partial(self._later, request, pause_ms)
            elif batch := queue.take(self._batch_size):
                queue.in_hand = True
                return cast("list[MessageExt]", batch)
        self.end(request, then)
        return None

    def advance(self, request: PullRequest, began_ms: float) -> list[MessageExt] | None:
        """Commit what is taken and take the next batch: a SUCCESS and its sequel in one step."""
        queue: OrderlyProcessQueue = request.process_queue  # type: ignore[assignment]
        now_ms = self._now()
        batch: list[Any] = []
        resume = False
        with request.lock:
            if not queue.dropped:
                resume = self._book.note(queue, queue.commit(now_ms))
                lease = queue.lease
                if (
                    queue.waiting_count
                    and (lease is None or lease.is_valid(now_ms))
                    and not self._is_over(now_ms - began_ms)
                    and not (queue.leaving or self._stopping)
                ):
                    batch = queue.take(self._batch_size)
        if resume:
            self._book.resume(request)
        if batch:
            return batch
        queue.in_hand = False
        return self.next_batch(request, began_ms, first=False)

    def _is_over(self, turn_ms: float) -> bool:
        return turn_ms > TURN_SHARE_MS and (
            turn_ms > self._times.turn_max_ms or self._others_wait()
        )

    def end(self, request: PullRequest, then: Callable[[], None] | None = None) -> None:
        """End a turn; ``then`` says how the queue goes on."""
        ledger_of(request).in_hand = False
        self._post(self._ended, request, then)

    def settle(
        self,
        request: PullRequest,
        batch: list[MessageExt],
        status: ConsumeOrderlyStatus,
        context: ConsumeOrderlyContext,
    ) -> bool:
        """Do what a status says; return whether the turn goes on (C-285, C-286)."""
        queue = ledger_of(request)
        step = step_of(status, context.auto_commit)
        pause_ms = suspend_ms(context.suspend_current_queue_time_ms, self._suspend_ms)
        if step is Step.AGAIN:
            spent, again = split_by_tries(batch, self._max_times)
            if spent:
                work = partial(self._give_up, request, spent, again, pause_ms, context.auto_commit)
                self._post(lambda: self._run(work()))
                return False
            self._count_tries(again)
        ours = self._book.enter(request, _change(queue, step, batch))
        if ours and step in (Step.COMMIT, Step.KEEP):
            queue.in_hand = False
            return True
        self.end(request, partial(self._later, request, pause_ms) if ours else None)
        return False

    def failed(self, request: PullRequest) -> None:
        """End a turn that broke for a reason of ours: its batch comes again."""
        queue = ledger_of(request)
        with request.lock:
            queue.rollback()
        self.end(request, partial(self._later, request, self._suspend_ms))

    def _post(self, work: Callable[..., None], *arguments: object) -> None:
        # The loop may be gone when a listener outlived the shutdown.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work, *arguments)

    @staticmethod
    def _count_tries(messages: Sequence[MessageExt]) -> None:
        for message in messages:
            message.reconsume_times += 1

    async def _give_up(
        self,
        request: PullRequest,
        spent: list[MessageExt],
        again: list[MessageExt],
        pause_ms: float,
        auto_commit: bool,
    ) -> None:
        """Move messages to the dead-letter topic; only the others come again (C-287, C-590)."""
        dead: list[MessageExt] = []
        again = list(again)
        for message in spent:
            (dead if await self._send_back.give_up(message) else again).append(message)
        self._count_tries(again)
        queue = ledger_of(request)

        def change(now_ms: float) -> int:
            offset = queue.finish(dead, now_ms)
            queue.consume_again(again)
            return offset if auto_commit else -1

        ours = self._book.enter(request, change)
        then: Callable[[], None] | None = None
        if ours:
            then = partial(self._later, request, pause_ms if again else 0.0)
        queue.in_hand = False
        self._ended(request, then)

    # --- the rest ---------------------------------------------------------------------------------

    async def shutdown(self, await_ms: float, caller: int | None = None) -> None:
        """Begin no turn any more; wait for running listeners; locks go back in ``released``."""
        self._stopping = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._relocks.clear()
        if self._retry is not None:
            self._retry.cancel()
        await self._stop(await_ms, caller)
        self._closed = True
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)
        await self._unlock_unused()

    async def consume_directly(
        self, message: MessageExt, broker_name: str | None
    ) -> ConsumeMessageDirectlyResult:
        """Call the listener with a message an operator chose; nothing is committed (C-295)."""
        return await consume_directly(self.listener, message, broker_name, self.watch)


def ledger_of(request: PullRequest) -> OrderlyProcessQueue:
    """Return the ledger of a queue consumed in order."""
    return cast("OrderlyProcessQueue", request.process_queue)


def _change(
    queue: OrderlyProcessQueue, step: Step, batch: Sequence[MessageExt]
) -> Callable[[float], int]:
    if step is Step.COMMIT:
        return queue.commit

    def change(_: float) -> int:
        if step is Step.ROLLBACK:
            queue.rollback()
        elif step is Step.AGAIN:
            queue.consume_again(batch)
        return -1

    return change
