"""The lite pull consumer of the asyncio face: ``await poll()``, or ``async for``.

Law: checks arguments and forwards; the same rules as the sync one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Unpack

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.arguments import checks_calls
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.lite.base import LitePullConsumerBase
from rocketstream.client.consumer.lite.impl import LitePullConsumerImpl
from rocketstream.client.consumer.pull.base import Expression
from rocketstream.client.consumer.queue_listener import QueueListener, TopicQueueListener
from rocketstream.client.core.lite_pull import LiteQueue
from rocketstream.client.instance.service_state import ServiceState
from rocketstream.client.instance.with_block import AsyncWithBlock
from rocketstream.client.keywords import LitePullConsumerKeywords
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt

_POLL_SECONDS_MAX = 365 * 86_400.0
"""Longer waits are as good as endless, and timers of loops cannot hold them."""


@checks_calls("poll", "subscribe")
class AsyncLitePullConsumer(LitePullConsumerBase, AsyncWithBlock):
    """Hands out messages when asked; ``async with`` starts it and shuts it down.

    Arguments, settings, errors and what counts as consumed are those of
    ``rocketstream.LitePullConsumer``; listeners may be coroutine functions.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        subscription: Mapping[str, Expression] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Unpack[LitePullConsumerKeywords],
    ) -> None:
        super().__init__(
            group,
            namesrv_addr=namesrv_addr,
            config=config,
            subscription=subscription,
            clock=clock,
            **settings,
        )
        self._waiters: dict[asyncio.Future[None], None] = {}

    async def start(self) -> None:
        """Join the group, or begin to pull the assigned queues.

        Raises:
            ConnectError: no name server answered; every address tried is named.
            ClientStateError: started before, or the group exists in this client instance.
            ConfigurationError: no name server address.
            BrokerError: a broker refuses a subscription.
        """
        if self._is_started_again():
            return
        self._begin_start()
        _, impl = await self._start_here(self.config, self._make)
        impl.begin()

    def _before_start(self, impl: LitePullConsumerImpl) -> None:
        impl.has_arrived = self._wake

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def shutdown(self, *, commit: bool | None = None) -> None:
        """Stop, store what was committed, leave the group. Does nothing unless running.

        Args:
            commit: whether what the last ``poll`` returned counts as consumed; None: if this task
                polled it. Leaving an ``async with`` block by an exception says no; the last message
                of an iteration never does.
        """
        started = self._begin_shutdown()
        if started is not None:
            closer = asyncio.current_task()
            await self._end_here(
                started, self._close(started.machine, commit=commit, closer=closer)
            )

    async def __aexit__(self, kind: object = None, *_: object) -> None:
        await self.shutdown(commit=None if kind is None else False)

    # --- what to consume --------------------------------------------------------------------------

    async def subscribe(
        self,
        topic: str,
        expression: Expression = "*",
        message_queue_listener: QueueListener | None = None,
    ) -> None:
        """Consume a topic; see ``rocketstream.LitePullConsumer.subscribe``."""
        before = self._plan.subscribed()
        name = self._subscribe(topic, expression, message_queue_listener)
        if self.is_running:
            await self._machine.subscription_changed(name, before)

    async def unsubscribe(self, topic: str) -> None:
        """Consume a topic no more; nothing cached of it is handed out, its offsets are stored."""
        name = self._unsubscribe(topic)
        if name is not None:
            await self._machine.unsubscribed(name)

    async def assign(self, message_queues: Collection[MessageQueue]) -> None:
        """Consume these queues and no others; may be called again at any time."""
        self._assign(message_queues)
        if self.is_running:
            await self._machine.apply_assignment()

    def assignment(self) -> list[MessageQueue]:
        """Return the queues being consumed, sorted."""
        return self.config.queues_without_namespace(self._machine.assignment())

    async def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return a topic's readable queues, sorted."""
        name = self.config.topic_with_namespace(topic)
        return self.config.queues_without_namespace(await self._machine.fetch_message_queues(name))

    async def register_topic_message_queue_change_listener(
        self, topic: str, listener: TopicQueueListener
    ) -> None:
        """Have ``listener(topic, queues)`` called when a topic's queues change."""
        name = self._keep_topic_listener(topic, listener)
        if self.is_running:
            await self._machine.topic_changes.register(name, self._topic_listeners[name])

    # --- messages ---------------------------------------------------------------------------------

    async def poll(self, timeout_ms: float | None = None) -> list[MessageExt]:
        """Return the next messages: at most ``pull_batch_size``, all of one queue.

        What the last call returned counts as consumed now, whichever task made it:
        let only one task poll.

        Args:
            timeout_ms: how long to wait for some; by default ``poll_timeout_ms``.

        Returns:
            The messages; none when none came in time, or the consumer was shut down meanwhile.
        """
        impl = self._machine
        timeout = self._timeout_ms(timeout_ms)
        cache = impl.cache
        self._poller = asyncio.current_task(impl.loop)
        began_ms = self._clock.now_ms() if self.consume_hooks else None
        free = None
        with impl.lock:
            cache.settle()
            messages = cache.take(self._batch)
            if not messages:
                impl.commit_if_due()
            elif cache.pull_ended:
                free = self._look_around(impl)
        if not messages:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(timeout / 1000, _POLL_SECONDS_MAX)):
                    await self._wait(impl)
            with impl.lock:
                messages = cache.take(self._batch)
                free = self._look_around(impl)
        if free:
            impl.pulls.pull_all(free)
        if began_ms is not None and messages:
            self._tell_hooks(messages, began_ms)
        return messages

    async def __aiter__(self) -> AsyncIterator[MessageExt]:
        """Iterate over the messages, one by one, until the consumer is shut down.

        Raises:
            ClientStateError: not started.
        """
        if self.state is ServiceState.SHUTDOWN_ALREADY:
            return
        impl = self._machine
        cache, lock, hooks = impl.cache, impl.lock, self.consume_hooks
        while True:
            self._check_process()
            with lock:
                self._poller = None
                message = cache.next_one()
                free = self._look_around(impl) if cache.pull_ended or message is None else None
            if free is not None:
                impl.pulls.pull_all(free)
                # A body that never waits must not keep the network, or anybody else, waiting.
                await asyncio.sleep(0)
            if message is None:
                await self._wait(impl)
                if not impl.running:
                    return
                continue
            if hooks:
                self._tell_hooks([message])
            yield message

    def _look_around(self, impl: LitePullConsumerImpl) -> list[LiteQueue]:
        """Commit if it is time and return the queues to pull again; the lock is held."""
        impl.cache.pull_ended = False
        impl.commit_if_due()
        return impl.cache.released()

    async def _wait(self, impl: LitePullConsumerImpl) -> None:
        """Wait for messages, or the end."""
        while impl.running and not impl.cache.has_messages:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters[waiter] = None
            try:
                await waiter
            finally:
                self._waiters.pop(waiter, None)

    # --- positions --------------------------------------------------------------------------------

    async def seek(self, message_queue: MessageQueue, offset: int) -> None:
        """Go on at an offset; what was cached of the queue is not handed out."""
        await self._machine.seek(self._inside(message_queue), offset)

    async def seek_to_begin(self, message_queue: MessageQueue) -> None:
        """Go on at the oldest message; see ``seek``."""
        await self._machine.seek(self._inside(message_queue), None)

    async def seek_to_end(self, message_queue: MessageQueue) -> None:
        """Go on behind the newest message; see ``seek``."""
        await self._machine.seek(self._inside(message_queue), None, to_end=True)

    async def seek_to_timestamp(self, message_queue: MessageQueue, timestamp_ms: int) -> None:
        """Go on at ``offset_for_timestamp``; see ``seek``."""
        offset = await self.offset_for_timestamp(message_queue, timestamp_ms)
        await self.seek(message_queue, offset)

    async def offset_for_timestamp(self, message_queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset nearest to a store time, ms since 1970 (C-372)."""
        return await self._machine.admin.search_offset(self._inside(message_queue), timestamp_ms)

    def pause(self, message_queues: Collection[MessageQueue]) -> None:
        """Pull these queues no more; what is cached is still handed out. Others are ignored."""
        self._machine.pause(self._insides(message_queues))

    def resume(self, message_queues: Collection[MessageQueue]) -> None:
        """Pull these queues again."""
        self._machine.resume(self._insides(message_queues))

    # --- commits ----------------------------------------------------------------------------------

    async def commit(
        self,
        offsets: Collection[MessageQueue] | dict[MessageQueue, int] | None = None,
        persist: bool = False,
    ) -> None:
        """Commit what was handed out; see ``rocketstream.LitePullConsumer.commit``."""
        impl = self._machine
        mqs = self._noted(impl, offsets)
        if persist:
            await impl.persist(mqs)

    async def commit_sync(self) -> None:
        """Commit what was handed out, the last messages included, and wait until it is stored."""
        await self.commit(None, persist=True)

    async def committed(self, message_queue: MessageQueue) -> int:
        """Return the group's committed offset of a queue, -1 if there is none."""
        return await self._machine.committed(self._inside(message_queue))
