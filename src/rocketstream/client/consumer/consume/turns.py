"""Turns of queues consumed in order: carries out what ``core.orderly_turn`` decides.

Law: at most one listener call per queue at a time, whatever its generation. Broker locks, timers
and handing queues over happen on the loop; taking a batch and settling it happen on the thread that
calls the listener, under the lock of the queue (upstream's ConsumeMessageOrderlyService, C-279 to
C-298, with C-556 to C-560 and C-590 put right).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, cast

from rocketstream.client.consumer.consume.base import ListenerService
from rocketstream.client.consumer.consume.calls import CallObserver
from rocketstream.client.consumer.consume.runs import OffsetUpdater, PullRequest
from rocketstream.client.consumer.listener import ConsumeOrderlyContext, Listener
from rocketstream.client.consumer.push.send_back import SendBack
from rocketstream.client.consumer.queue_locks import LockAnswers, QueueLocks
from rocketstream.client.core.orderly import (
    Lease,
    OrderlyProcessQueue,
    OrderlyTimes,
    orderly_max_reconsume_times,
)
from rocketstream.client.core.orderly_turn import (
    AskLock,
    Ending,
    GiveUp,
    GoOn,
    OrderlyTurns,
    Resume,
    TurnOrder,
)
from rocketstream.client.core.settings import PushConsumerSettings
from rocketstream.errors import RocketMQError
from rocketstream.model import ConsumeOrderlyStatus, MessageQueue
from rocketstream.protocol.message_ext import MessageExt

logger = logging.getLogger("rocketstream.client")

REFUSED_RETRY_MS = (500, 500, 1_000, 2_000)
"""Pauses before a queue another member still has is asked for again (C-560); the last one stays."""
STATS_INTERVAL_MS = 1_000


@dataclass(frozen=True, slots=True)
class OrderlyParts:
    """What an orderly consume service works with.

    Attributes:
        listener: what is called.
        offset_updater: removes finished messages and updates the offsets to commit.
        send_back: takes messages that had their last try.
        observer: calls hooks and counts around listener calls.
        settings: of the consumer.
        locks: the broker locks; None where every member has every queue (C-555).
        rebalance_soon: have the queues divided again.
        times: how long locks last and are waited for.
    """

    listener: Listener
    offset_updater: OffsetUpdater
    send_back: SendBack
    observer: CallObserver
    settings: PushConsumerSettings
    locks: QueueLocks | None
    rebalance_soon: Callable[[], None]
    times: OrderlyTimes


class OrderlyService(ListenerService, ABC):
    """All of an orderly consume service except calling the listener."""

    def __init__(self, parts: OrderlyParts) -> None:
        settings = parts.settings
        super().__init__(parts.listener, parts.observer)
        self._offset_updater = parts.offset_updater
        self._send_back = parts.send_back
        self._decide = OrderlyTurns(
            settings.consume_message_batch_max_size,
            orderly_max_reconsume_times(settings.max_reconsume_times),
            settings.suspend_current_queue_time_ms,
            parts.times.turn_max_ms,
            self._others_wait,
        )
        self._locks = parts.locks
        self._rebalance_soon = parts.rebalance_soon
        self._times = parts.times
        self._now = parts.observer.clock.monotonic_ms
        self._loop = asyncio.get_running_loop()
        self._ready: deque[PullRequest] = deque()
        """Queues that wait for somebody to call their listener."""
        self._process_queues: dict[MessageQueue, OrderlyProcessQueue] = {}
        self._granted: dict[MessageQueue, float] = {}
        self._turns: TurnOrder[PullRequest] = TurnOrder()
        self._kept: set[MessageQueue] = set()
        self._freed = asyncio.Event()
        self._timers: set[asyncio.TimerHandle] = set()
        self._relocks: dict[PullRequest, asyncio.TimerHandle] = {}
        """Turns that wait for a lock, and when it is asked for."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewal: asyncio.Task[None] | None = None
        self._refusals = 0
        self._retry: asyncio.TimerHandle | None = None
        self._closed = False

    # --- what a driver provides -------------------------------------------------------------------

    @abstractmethod
    def _start(self, request: PullRequest) -> None:
        """Begin a turn soon: take batches and settle them until there is none. On the loop."""

    @abstractmethod
    async def _stop(self, await_ms: float, caller: int | None) -> None:
        """Begin no turn any more and wait for running listeners, at most ``await_ms``."""

    @abstractmethod
    def _is_caller(self, mq: MessageQueue) -> bool:
        """Whether the queue's listener is the one that asked for the shutdown."""

    def _others_wait(self) -> bool:
        """Whether a queue waits for somebody to call its listener; any thread."""
        return bool(self._ready)

    # --- queues come and go -----------------------------------------------------------------------

    def new_queue(self, mq: MessageQueue, generation: int, now_ms: float) -> OrderlyProcessQueue:
        """Return an empty process queue, with the lease of the lock taken just now or before."""
        lease: Lease | None = None
        live_ms = self._times.lock_max_live_ms
        if self._locks is not None:
            granted_ms = self._granted.pop(mq, None)
            former = self._process_queues.get(mq)
            lease = former.lease if former is not None else None
            if granted_ms is not None or lease is None:
                # Without a lock the lease is over before it begins, and a turn asks for one.
                lease = Lease(-math.inf if granted_ms is None else granted_ms, live_ms)
        queue = self._process_queues[mq] = OrderlyProcessQueue(mq, generation, now_ms, lease)
        return queue

    async def may_take(self, mqs: Sequence[MessageQueue]) -> Collection[MessageQueue]:
        """Lock queues at their brokers; return those that were locked (C-175, C-186).

        A refused lock is asked for again soon: its owner is about to give it back (C-560).
        """
        if self._locks is None:
            return mqs
        if self._renewal is None and not self._decide.stopping:
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
        """Wait up to ``release_wait_ms`` for listeners; return the idle queues (C-556, C-557).

        What a listener finishes in that time counts. The other queues are given up as soon as
        their listener returns.
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
            queue = self._process_queues.pop(mq, None)
            self._kept.discard(mq)
            is_held = queue is None or queue.lease is None or queue.lease.locked
            if is_held and (not self._is_in_hand(mq) or self._is_caller(mq)):
                free.append(mq)
        if self._locks is not None and free:
            await self._locks.unlock(free)

    def _is_in_hand(self, mq: MessageQueue) -> bool:
        turn = self._turns.get(mq)
        return turn is not None and orderly_queue(turn).in_hand

    async def _unlock_unused(
        self, keep: Collection[MessageQueue] = (), older_than_ms: float = 0.0
    ) -> None:
        """Give back locks of queues that were not taken in the end."""
        before_ms = self._now() - older_than_ms
        unused = [mq for mq, ms in self._granted.items() if mq not in keep and ms <= before_ms]
        for mq in unused:
            del self._granted[mq]
        if self._locks is not None and unused:
            await self._locks.unlock([mq for mq in unused if mq not in self._process_queues])

    def _ask_again_soon(self) -> None:
        if self._retry is not None or self._decide.stopping:
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
        # Younger locks may belong to queues that are just being taken: where to begin in them is
        # being asked for.
        await self._unlock_unused(older_than_ms=self._times.lock_max_live_ms)
        mqs = [mq for mq, queue in self._process_queues.items() if not queue.dropped]
        await self._apply(self._locks, mqs)

    def connection_lost(self, address: str) -> None:
        """Trust no lock that was granted over this connection, until it is granted anew.

        A broker keeps its locks in memory: after a restart whoever asks first is granted all of
        them. A batch that is with its listener ends; the next one waits for the lock.
        """
        locks = self._locks
        if locks is None:
            return
        for mq, queue in self._process_queues.items():
            if queue.lease is not None and locks.is_from(mq, address):
                queue.lease.doubt()
        for mq in self._granted:
            if locks.is_from(mq, address):
                self._granted[mq] = -math.inf

    def connection_made(self, address: str) -> None:
        """Ask for the locks that waiting turns need, and for those that are in doubt, at once."""
        if self._locks is None or self._decide.stopping:
            return
        self._run(self._relock(self._locks))

    async def _relock(self, locks: QueueLocks) -> None:
        now_ms = self._now()
        mqs = [
            mq
            for mq, queue in self._process_queues.items()
            if not queue.dropped and queue.lease is not None and not queue.lease.is_valid(now_ms)
        ]
        if not mqs:
            return
        await self._apply(locks, mqs)
        now_ms = self._now()
        for request, timer in list(self._relocks.items()):
            with request.lock:
                resume = self._decide.locked(orderly_queue(request), now_ms)
            if resume is not None:
                timer.cancel()
                self._timers.discard(timer)
                self._relocks.pop(request, None)
                self._perform(request, resume)

    async def _apply(self, locks: QueueLocks, mqs: Sequence[MessageQueue]) -> LockAnswers:
        """Ask for locks; renew, doubt or drop queues as the brokers answer."""
        answers = await locks.lock(mqs)
        now_ms = self._now()
        # In the order asked, not that of a set: a simulated run is to be the same each time.
        held = [mq for mq in mqs if mq in answers.held and mq in self._process_queues]
        doubted = [
            mq
            for mq in held
            if (lease := self._process_queues[mq].lease) and not lease.is_valid(now_ms)
        ]
        ours = await asyncio.gather(*map(self._is_ours_still, doubted)) if doubted else []
        unknown = {mq for mq, is_ours in zip(doubted, ours, strict=True) if not is_ours}
        for mq in held:
            queue = self._process_queues.get(mq)
            if queue is None or queue.lease is None or mq in unknown:
                continue
            if locks.still_stands(mq, answers):
                queue.lease.renew(answers.asked_ms)
        for mq in [mq for mq in mqs if mq in answers.refused]:
            queue = self._process_queues.get(mq)
            if queue is not None and queue.lease is not None and not queue.dropped:
                # Somebody else has consumed it meanwhile: what is cached here may be done there.
                logger.warning("%s was locked by another member; it has to be taken anew", mq)
                queue.lease.lose()
                queue.drop()
                self._rebalance_soon()
        return answers

    async def _is_ours_still(self, mq: MessageQueue) -> bool:
        """Whether nobody consumed a queue while its lock was in doubt; else it is dropped."""
        queue = self._process_queues[mq]
        try:
            overtaken = await self._offset_updater.is_overtaken(mq)
        except RocketMQError as error:
            logger.debug(
                "it is not known yet whether another member consumed %s meanwhile: %s", mq, error
            )
            return False
        if overtaken and not queue.dropped:
            logger.warning("%s was consumed by another member meanwhile; it is taken anew", mq)
            queue.drop()
            self._rebalance_soon()
        return not overtaken

    async def _try_lock(self, request: PullRequest) -> None:
        queue = orderly_queue(request)
        with request.lock:
            wanted = self._decide.may_go_on(queue)
        if self._locks is None or not wanted:
            return
        answers = await self._apply(self._locks, [queue.message_queue])
        with request.lock:
            refused = queue.message_queue in answers.refused
            then = self._decide.asked(queue, refused, self._now())
        self._perform(request, then)

    # --- turns ------------------------------------------------------------------------------------

    def submit(self, request: PullRequest, messages: list[MessageExt]) -> None:
        """Begin a turn unless one is under way; the messages are in its process queue (C-280)."""
        with request.lock:
            begins = self._decide.came(orderly_queue(request))
        if begins:
            self._begin(request)

    def flush(self, request: PullRequest) -> None:
        """Do nothing: every batch is settled at once, so no finished message waits."""

    def _begin(self, request: PullRequest) -> None:
        """Start a turn; one of the same queue that is under way has to end before (C-281)."""
        if self._turns.begin(request.process_queue.message_queue, request):
            self._start(request)

    def _perform(self, request: PullRequest, then: Ending) -> None:
        """Set the timer of the pause that follows a turn, if any; on the loop."""
        if isinstance(then, Resume):
            self._after(then.pause_ms, lambda: self._resume(request))
        elif isinstance(then, AskLock):
            timer = self._after(then.pause_ms, lambda: self._ask_lock(request))
            if timer is not None:
                self._relocks[request] = timer

    def _resume(self, request: PullRequest) -> None:
        with request.lock:
            begins = self._decide.due(orderly_queue(request))
        if begins:
            self._begin(request)

    def _ask_lock(self, request: PullRequest) -> None:
        self._relocks.pop(request, None)
        self._run(self._try_lock(request))

    def _after(self, pause_ms: float, work: Callable[[], None]) -> asyncio.TimerHandle | None:
        if self._decide.stopping:
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

    def _ended(self, request: PullRequest, then: Ending) -> None:
        """End a turn and start the one that waited for it; on the loop."""
        mq = request.process_queue.message_queue
        successor = self._turns.end(mq, request)
        self._freed.set()
        if successor is not None:
            with successor.lock:
                begins = self._decide.may_go_on(orderly_queue(successor))
            if begins:
                self._begin(successor)
        self._perform(request, then)
        if mq in self._kept:
            self._kept.discard(mq)
            self._rebalance_soon()

    # --- what the caller of the listener uses; any thread -----------------------------------------

    def next_batch(self, request: PullRequest, began_ms: float) -> list[MessageExt] | None:
        """Take the next batch of a turn; None means the turn has ended (C-281).

        Args:
            request: the queue.
            began_ms: when the turn began.
        """
        with request.lock:
            then = self._decide.next(orderly_queue(request), began_ms, self._now())
        if isinstance(then, list):
            return then
        self._end(request, then)
        return None

    def advance(self, request: PullRequest, began_ms: float) -> list[MessageExt] | None:
        """Commit what was taken and take the next batch: what SUCCESS leads to, in one step."""
        queue: OrderlyProcessQueue = request.process_queue  # type: ignore[assignment]
        now_ms = self._now()
        with request.lock:
            offset, then = self._decide.advance(queue, began_ms, now_ms)
            resume = self._offset_updater.update_offset(queue, offset)
        if resume:
            self._offset_updater.resume(request)
        if isinstance(then, list):
            return then
        self._end(request, then)
        return None

    def settle(
        self,
        request: PullRequest,
        batch: list[MessageExt],
        status: ConsumeOrderlyStatus,
        context: ConsumeOrderlyContext,
    ) -> bool:
        """Do what a status says; return whether the turn goes on (C-285, C-286)."""
        queue, asked_ms = orderly_queue(request), context.suspend_current_queue_time_ms
        with request.lock:
            offset, then = self._decide.answered(
                queue, batch, status, context.auto_commit, asked_ms, self._now()
            )
            resume = self._offset_updater.update_offset(queue, offset)
        if resume:
            self._offset_updater.resume(request)
        if isinstance(then, GoOn):
            return True
        if isinstance(then, GiveUp):
            self._post(lambda: self._run(self._give_up(request, then)))
        else:
            self._end(request, then)
        return False

    def failed(self, request: PullRequest) -> None:
        """End a turn that broke by a mistake of rocketstream: its batch comes again."""
        with request.lock:
            then = self._decide.broke(orderly_queue(request))
        self._end(request, then)

    def cut_off(self, request: PullRequest) -> None:
        """End a turn whose listener call was cancelled with its consumer: no answer comes."""
        with request.lock:
            self._decide.cut_off(orderly_queue(request))

    def _end(self, request: PullRequest, then: Ending) -> None:
        self._post(self._ended, request, then)

    def _post(self, work: Callable[..., None], *arguments: object) -> None:
        # The loop may be gone when a listener outlived the shutdown.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work, *arguments)

    async def _give_up(self, request: PullRequest, what: GiveUp) -> None:
        """Move messages to the dead-letter topic; only the others come again (C-287, C-590)."""
        dead: list[MessageExt] = []
        undead: list[MessageExt] = []
        for message in what.spent:
            (dead if await self._send_back.give_up(message) else undead).append(message)
        queue = orderly_queue(request)
        with request.lock:
            offset, then = self._decide.given_up(queue, what, dead, undead, self._now())
            resume = self._offset_updater.update_offset(queue, offset)
        if resume:
            self._offset_updater.resume(request)
        self._ended(request, then)

    # --- the rest ---------------------------------------------------------------------------------

    async def shutdown(self, await_ms: float, caller: int | None = None) -> None:
        """Begin no turn any more; wait for running listeners; locks go back in ``released``."""
        self._decide.stopping = True
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


def orderly_queue(request: PullRequest) -> OrderlyProcessQueue:
    """Return the process queue of a queue consumed in order."""
    return cast("OrderlyProcessQueue", request.process_queue)
