"""A service that consumes in order, its queues, and what comes of their messages."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection, Sequence
from types import SimpleNamespace
from typing import Any, cast

from rocketstream import ConsumeOrderlyContext, ConsumeOrderlyStatus, MessageExt, MessageQueue
from rocketstream.client.consumer.consume.orderly import (
    AsyncOrderlyService,
    ConsumeMessageOrderlyService,
)
from rocketstream.client.consumer.consume.orderly_queue import Lease, OrderlyTimes
from rocketstream.client.consumer.listener import listener_of
from rocketstream.client.consumer.process_queue import Thresholds
from rocketstream.client.consumer.queue import OrderlyQueue, QueueLinks
from rocketstream.client.consumer.settings import PushConsumerSettings
from tests.kits.client.fake_broker import GROUP, TOPIC
from tests.kits.client.model_cluster import StillLoop
from tests.kits.client.queued import queued

MQ = MessageQueue(TOPIC, "broker-a", 0)
SUCCESS = ConsumeOrderlyStatus.SUCCESS
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
LIVE_MS = 30_000


class Observer:
    """Remembers what it is told around listener calls; ``hooks`` and ``failure_cause`` are off."""

    def __init__(self, loop: StillLoop) -> None:
        self.group = GROUP
        self.hooks = False
        self.failure_cause: Any = None
        self.clock = SimpleNamespace(monotonic_ms=lambda: round(loop.now_s * 1000, 3))
        self.told: list[tuple[Any, ...]] = []
        self.figures: list[tuple[Any, ...]] = []

    def seen_queue(self, mq: MessageQueue) -> MessageQueue:
        return mq._replace(topic="seen")

    def before(self, batch: list[MessageExt], mq: MessageQueue) -> str:
        self.told.append(("before", offsets(batch), mq))
        return f"hooked {batch[0].queue_offset}"

    def after(self, *given: Any) -> None:
        self.told.append(("after", *given))

    def cut_off(self, *given: Any) -> None:
        self.told.append(("cut off", *given))

    def count(self, *given: Any) -> None:
        self.figures.append(given)


class Locker:
    """Gives leases; answers questions for locks as the test says."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.asked: list[MessageQueue] = []
        self.doubted_asked = 0
        self.refuses = False
        self.grants = True
        self.error: Exception | None = None
        self.kept: list[OrderlyQueue] = []
        self.said: list[str] = []

    def lease(self, mq: MessageQueue) -> Lease:
        return Lease(self.case.now_ms(), LIVE_MS)

    def taken(self, queue: OrderlyQueue) -> None:
        self.kept.append(queue)

    def _answer(self) -> None:
        if self.grants and not self.refuses:
            for queue in self.kept:
                cast(Lease, queue.process_queue.lease).renew(self.case.now_ms())

    async def ask(self, mqs: Sequence[MessageQueue]) -> Collection[MessageQueue]:
        self.asked += mqs
        if self.error is not None:
            raise self.error
        self._answer()
        return set(mqs) if self.refuses else set()

    async def ask_for_doubted(self) -> bool:
        self.doubted_asked += 1
        doubted = any(queue.is_in_doubt(self.case.now_ms()) for queue in self.kept)
        self._answer()
        return doubted

    def stop(self) -> None:
        self.said.append("stopped")

    async def close(self) -> None:
        self.said.append("closed")


def offsets(batch: Sequence[MessageExt]) -> list[int]:
    return [message.queue_offset for message in batch]


class Case:
    """A service of one kind, a queue, and what comes of its messages."""

    def __init__(self, loop: StillLoop, is_async: bool) -> None:
        self.loop, self.is_async = loop, is_async
        self.observer = Observer(loop)
        self.locker = Locker(self)
        self.committed: list[int] = []
        self.calls: list[list[int]] = []
        self.given_up: list[tuple[int, int]] = []
        self.takes_dead = True
        self.dead_error: Exception | None = None
        store = SimpleNamespace(update_offset=lambda mq, offset: self.committed.append(offset))
        self.links = QueueLinks(
            cast(Any, store), lambda _: None, self._submit, cast(Any, self.observer.clock)
        )
        self.ended: list[asyncio.Task[None]] = []
        self.service: Any = None

    def now_ms(self) -> float:
        return self.observer.clock.monotonic_ms()  # type: ignore[no-any-return]

    def _submit(self, queue: Any, messages: list[MessageExt]) -> None:
        self.service.submit(queue, messages)

    async def give_up(self, message: MessageExt, max_times: int) -> bool:
        """As of the send-back."""
        self.given_up.append((message.queue_offset, max_times))
        if self.dead_error is not None:
            raise self.dead_error
        return self.takes_dead

    def listen(
        self,
        listener: Callable[..., object],
        *,
        has_locks: bool = True,
        batch_size: int = 1,
        threads: int = 2,
        **settings: Any,
    ) -> Any:
        """Make the service of a listener, which is called with a batch, or with a context too."""

        def noted(batch: list[MessageExt]) -> object:
            self.calls.append(offsets(batch))
            return listener(batch)

        def with_context(batch: list[MessageExt], context: ConsumeOrderlyContext) -> object:
            self.calls.append(offsets(batch))
            return listener(batch, context)

        async def awaited(batch: list[MessageExt]) -> object:
            answer = noted(batch)
            return await answer if inspect.isawaitable(answer) else answer

        async def awaited_with_context(
            batch: list[MessageExt], context: ConsumeOrderlyContext
        ) -> object:
            return with_context(batch, context)

        takes_context = len(inspect.signature(listener).parameters) == 2
        chosen: Callable[..., object] = with_context if takes_context else noted
        if self.is_async:
            chosen = awaited_with_context if takes_context else awaited
        made = PushConsumerSettings(
            GROUP,
            consume_thread_min=1,
            consume_thread_max=threads,
            consume_message_batch_max_size=batch_size,
            **{"suspend_current_queue_time_ms": 1_000, **settings},
        )
        kind = AsyncOrderlyService if self.is_async else ConsumeMessageOrderlyService

        async def make() -> Any:
            return kind(
                listener_of(chosen, orderly=True),
                cast(Any, self.observer),
                made,
                cast(Any, self),
                cast(Any, self.locker) if has_locks else None,
                OrderlyTimes(),
            )

        self.service = self.loop.run_until_complete(make())
        if self.is_async:
            pool, ended = self.service._pool, self.service._pool._ended

            def note(task: asyncio.Task[None]) -> None:
                self.ended.append(task)
                ended(task)

            pool._ended = note
        else:
            # The test is the pool's one worker.
            self.service._pool.work_added = lambda: None
            self.service._pool.look_soon = lambda: None
        return self.service

    def take(self, former: OrderlyQueue | None = None, mq: MessageQueue = MQ) -> OrderlyQueue:
        queue: OrderlyQueue = self.service.new_queue(mq, 0, Thresholds(), self.links, former)
        return queue

    def put(self, queue: OrderlyQueue, *found: int) -> list[MessageExt]:
        """Have messages come, and do what is due."""
        messages = [queued(offset) for offset in found]
        queue.consume(queue.put(messages, found[-1] + 1))
        self.turn()
        return messages

    def turn(self, ms: float = 0) -> None:
        self.loop.now_s += ms / 1000
        for _ in range(6):
            if not self.is_async:
                while (job := self.service.next_job()) is not None:
                    self.service.work(job)
            for _ in range(4):
                self.loop.run_until_complete(asyncio.sleep(0))
        for task in self.ended:
            assert task.cancelled() or task.exception() is None
