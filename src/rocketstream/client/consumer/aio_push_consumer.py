"""The push consumer of the asyncio face: the machine on the caller's loop.

Law: starts, stops and forwards; the same rules as the sync one.
"""

from __future__ import annotations

from typing import Any, Self

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.listener import (
    AsyncListenerFunction,
    ListenerFunction,
    MessageListenerConcurrently,
)
from rocketstream.client.consumer.push_base import PushConsumerBase, make_service
from rocketstream.client.consumer.push_impl import PushConsumerImpl
from rocketstream.client.engine import Engine, loop_engine
from rocketstream.client.service_state import ServiceState
from rocketstream.model import MessageQueue
from rocketstream.protocol.subscription import EXPRESSION_TAG


class AsyncPushConsumer(PushConsumerBase):
    """Consumes topics as a member of a group; leaving it as an async context manager ends it.

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
        listener: (
            AsyncListenerFunction | ListenerFunction | MessageListenerConcurrently | None
        ) = None,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Any,
    ) -> None:
        super().__init__(
            group,
            namesrv_addr=namesrv_addr,
            config=config,
            listener=listener,
            clock=clock,
            **settings,
        )
        self._engine: Engine | None = None
        self._impl: PushConsumerImpl | None = None

    async def start(self) -> None:
        """Join the group and begin to consume; a start that fails leaves nothing behind.

        Raises:
            ConnectError: no name server answered; every address tried is named.
            ClientStateError: started before, or the group exists in this client instance.
            ConfigurationError: no listener, or no name server address.
        """
        settings, listener = self._begin_start()
        self.state = ServiceState.START_FAILED
        engine: Engine | None = None
        try:
            engine = await loop_engine(self.config, self._clock)
            impl = PushConsumerImpl(
                engine.instance, settings, self._subscriptions, listener, make_service
            )
            await impl.start()
        except BaseException:
            self.state = ServiceState.CREATE_JUST
            if engine is not None and engine.release():
                await engine.instance.close()
            raise
        self._engine, self._impl = engine, impl
        self.state = ServiceState.RUNNING

    async def shutdown(self, await_ms: float | None = None) -> None:
        """Stop, so that nothing is lost and nothing finished is repeated.

        Args:
            await_ms: how long to wait for running listeners; by default
                ``await_termination_ms_when_shutdown``. Coroutines that take longer are cancelled.
        """
        if self.state is not ServiceState.RUNNING:
            return
        self.state = ServiceState.SHUTDOWN_ALREADY
        engine, impl = self._parts()
        if await_ms is None:
            await_ms = self.settings.await_termination_ms_when_shutdown
        try:
            await impl.shutdown(await_ms)
        finally:
            if engine.release():
                await engine.instance.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    async def subscribe(
        self, topic: str, expression: str | None = "*", *, expression_type: str = EXPRESSION_TAG
    ) -> None:
        """Consume a topic; see ``rocketstream.PushConsumer.subscribe``."""
        subscription = self._subscription(topic, expression, expression_type)
        self._subscriptions[topic] = subscription
        if self.state is ServiceState.RUNNING:
            await self._parts()[1].subscribe(subscription)

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic; its offsets are stored."""
        self._subscriptions.pop(topic, None)
        if self.state is ServiceState.RUNNING:
            await self._parts()[1].unsubscribe(topic)

    def suspend(self) -> None:
        """Pull nothing more until ``resume``; messages already here are still consumed."""
        self._running().suspend()

    def resume(self) -> None:
        """Pull again."""
        self._running().resume()

    def assigned_queues(self) -> list[MessageQueue]:
        """Return the queues this member has now, the retry topic's included."""
        return self._running().assigned_queues()

    def _running(self) -> PushConsumerImpl:
        if self.state is not ServiceState.RUNNING:
            raise self._not_running()
        return self._parts()[1]

    def _parts(self) -> tuple[Engine, PushConsumerImpl]:
        if self._engine is None or self._impl is None:
            raise self._not_running()
        return self._engine, self._impl
