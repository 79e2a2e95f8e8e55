"""The push consumer of the asyncio face: the machine on the caller's loop.

Law: starts, stops and forwards; the same rules as the sync one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal, Unpack, overload

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.arguments import checks_calls
from rocketstream.client.admin.faces import AsyncAdmin
from rocketstream.client.admin.requests import MQAdmin
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.listener import (
    AnyConcurrentListener,
    AnyOrderlyListener,
    MessageListenerOrderly,
)
from rocketstream.client.consumer.listener_faces import AsyncListenerConsumer
from rocketstream.client.consumer.offsets.store import OffsetStore
from rocketstream.client.consumer.offsets.view import AsyncOffsetStoreView
from rocketstream.client.consumer.push.base import PushConsumerBase
from rocketstream.client.consumer.push.calls import PushCalls
from rocketstream.client.consumer.push.impl import PushConsumerImpl, start_push
from rocketstream.client.instance.service_state import ServiceState
from rocketstream.client.keywords import PushConsumerKeywords
from rocketstream.model import MessageQueue, MessageSelector
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.subscription import EXPRESSION_TAG


@checks_calls("subscribe")
class AsyncPushConsumer(PushConsumerBase, AsyncListenerConsumer[PushConsumerImpl], AsyncAdmin):
    """Consumes topics as a member of a group; ``async with`` starts it and shuts it down.

    Arguments, settings and errors are those of ``rocketstream.PushConsumer``. A coroutine listener
    is awaited on the caller's loop, at most ``consume_thread_max`` calls at once; a plain function
    is called on worker threads.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        listener: AnyConcurrentListener | MessageListenerOrderly | None = None,
        subscription: Mapping[str, str | MessageSelector | None] | None = None,
        offset_store: OffsetStore | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Unpack[PushConsumerKeywords],
    ) -> None:
        super().__init__(
            group,
            namesrv_addr=namesrv_addr,
            config=config,
            listener=listener,
            subscription=subscription,
            offset_store=offset_store,
            clock=clock,
            **settings,
        )

    @overload
    def register_message_listener(
        self,
        listener: AnyConcurrentListener,
        *,
        orderly: Literal[False] = ...,
    ) -> None: ...
    @overload
    def register_message_listener(
        self, listener: AnyOrderlyListener, *, orderly: Literal[True]
    ) -> None: ...
    @overload
    def register_message_listener(
        self, listener: MessageListenerOrderly, *, orderly: bool = ...
    ) -> None: ...
    def register_message_listener(self, listener: object, *, orderly: bool = False) -> None:
        """Set what consumes the messages; see ``rocketstream.PushConsumer``; may be a coroutine."""
        self._set_listener(listener, orderly)

    async def start(self) -> None:
        """Join the group and begin to consume; a start that fails leaves nothing behind.

        Raises:
            ConnectError: no name server answered; every address tried is named.
            ClientStateError: started before, or the group exists in this client instance.
            ConfigurationError: no listener, or no name server address.
        """
        if self._is_started_again():
            return
        plan = self._begin_start()
        await self._start_here(self.config, partial(start_push, plan))

    async def subscribe(
        self,
        topic: str,
        expression: str | MessageSelector | None = "*",
        *,
        expression_type: str = EXPRESSION_TAG,
    ) -> None:
        """Consume a topic; see ``rocketstream.PushConsumer.subscribe``."""
        subscription = self._subscription(topic, expression, expression_type)
        if self.state is ServiceState.RUNNING:
            await self._machine.subscribe(subscription)
        self._subscriptions[subscription.topic] = subscription

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic; its offsets are stored."""
        name = self.config.with_namespace(topic)
        self._subscriptions.pop(name, None)
        if self.state is ServiceState.RUNNING:
            await self._machine.unsubscribe(name)

    def suspend(self) -> None:
        """Pull nothing more until ``resume``; messages already here are still consumed."""
        self._machine.suspend()

    def resume(self) -> None:
        """Pull again."""
        self._machine.resume()

    def assigned_queues(self) -> list[MessageQueue]:
        """Return the queues this member has now, the retry topic's included."""
        return self._calls().assigned_queues()

    @property
    def offset_store(self) -> OffsetStore | AsyncOffsetStoreView:
        """Where this consumer is in each queue: the store it was given, or a view of its own.

        Raises:
            ClientStateError: it was given none and is not running.
        """
        if self._user_store is not None:
            return self._user_store
        impl = self._machine
        return AsyncOffsetStoreView(impl.store, impl.instance.config)

    # --- what else upstream's class can be asked; see ``rocketstream.PushConsumer`` ---------------

    async def fetch_subscribe_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic, sorted, whoever has them."""
        return await self._calls().fetch_subscribe_message_queues(topic)

    async def send_message_back(
        self, message: MessageExt, delay_level: int, broker_name: str | None = None
    ) -> None:
        """Have a message consumed again later; what its listener returns counts besides (C-273)."""
        await self._calls().send_message_back(message, delay_level, broker_name)

    async def core_pool_size(self) -> int:
        """Return how many listener calls there may be at once."""
        return await self._calls().core_pool_size()

    async def update_core_pool_size(self, core_pool_size: int) -> bool:
        """Change how many listener calls there may be at once; return whether it was changed."""
        return await self._calls().update_core_pool_size(core_pool_size)

    def _admin(self) -> MQAdmin:
        return self._calls().admin

    def _calls(self) -> PushCalls:
        return PushCalls(self._machine)
