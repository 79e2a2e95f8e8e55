"""The push consumer of the sync face: the machine on a thread of its own, listeners on others.

Law: starts, stops and forwards (upstream's DefaultMQPushConsumer).
"""

from __future__ import annotations

import threading
from typing import Any, Self

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.listener import (
    Listener,
    ListenerFunction,
    MessageListenerConcurrently,
)
from rocketstream.client.consumer.push_base import PushConsumerBase, make_service
from rocketstream.client.consumer.push_impl import PushConsumerImpl
from rocketstream.client.core.settings import PushConsumerSettings
from rocketstream.client.engine import Engine, threaded_engine
from rocketstream.client.service_state import ServiceState
from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.protocol.subscription import EXPRESSION_TAG


class PushConsumer(PushConsumerBase):
    """Consumes topics as a member of a group; leaving it as a context manager shuts it down.

    Subscribe, set the listener, then ``start``.

    The members of a group divide the queues of a topic; each message is consumed at least once.
    What a listener fails comes back later, after ``max_reconsume_times`` into ``%DLQ%<group>``.

    Args:
        group: consumer group, 1 to 255 characters of ``[%|a-zA-Z0-9_-]``.
        namesrv_addr: ``host:port``, several joined by ``;``; None takes NAMESRV_ADDR.
        config: settings shared by all clients; ``namesrv_addr`` overrides its address.
        listener: as ``register_message_listener``.
        clock: where time comes from.
        **settings: upstream's, among them ``consume_from_where`` (LAST_OFFSET),
            ``consume_timestamp`` (``yyyyMMddHHmmss``, local time), ``consume_thread_max`` (20;
            threads are started when listeners wait, ``consume_thread_min`` is only checked),
            ``consume_message_batch_max_size`` (1),
            ``pull_batch_size`` (32), ``max_reconsume_times`` (-1: 16),
            ``consume_timeout_minutes`` (15), ``pull_threshold_for_queue`` (1000 messages),
            ``pull_threshold_size_for_queue`` (100 MiB), ``consume_concurrently_max_span`` (2000),
            ``await_termination_ms_when_shutdown`` (30000; 0 does not wait for listeners).

    Raises:
        ConfigurationError: a setting out of its range; the text names it and the range.
        NotSupportedError: a setting of something that is not built yet.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        listener: ListenerFunction | MessageListenerConcurrently | None = None,
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
        self._lock = threading.Lock()  # start and shutdown only
        self._engine: Engine | None = None
        self._impl: PushConsumerImpl | None = None

    def start(self) -> None:
        """Join the group and begin to consume. Blocks for a few requests.

        A start that fails leaves nothing behind and may be tried again.

        Raises:
            ConnectError: no name server answered; every address tried is named.
            ClientStateError: started before, or the group exists in this client instance.
            ConfigurationError: no listener, a coroutine listener, or no name server address.
        """
        with self._lock:
            settings, listener = self._begin_start()
            if listener.is_async:
                raise ConfigurationError(
                    "the listener is a coroutine function; use rocketstream.aio.PushConsumer"
                )
            self.state = ServiceState.START_FAILED
            engine: Engine | None = None
            try:
                engine = threaded_engine(self.config, self._clock)
                self._impl = engine.run(self._start(engine, settings, listener))
            except BaseException:
                self.state = ServiceState.CREATE_JUST
                if engine is not None and engine.release():
                    engine.close()
                raise
            self._engine = engine
            self.state = ServiceState.RUNNING

    async def _start(
        self, engine: Engine, settings: PushConsumerSettings, listener: Listener
    ) -> PushConsumerImpl:
        impl = PushConsumerImpl(
            engine.instance, settings, self._subscriptions, listener, make_service
        )
        await impl.start()
        return impl

    def shutdown(self, await_ms: float | None = None) -> None:
        """Stop, so that nothing is lost and nothing finished is repeated.

        Pulls stop, running listeners are waited for, offsets are stored at the brokers, the group
        is told. What no listener has finished stays for the next owner; that includes the batch of
        a listener that calls this itself. Does nothing unless running.

        Args:
            await_ms: how long to wait for running listeners; by default
                ``await_termination_ms_when_shutdown``. Those that take longer are left behind.
        """
        with self._lock:
            if self.state is not ServiceState.RUNNING:
                return
            self.state = ServiceState.SHUTDOWN_ALREADY
        engine, impl = self._parts()
        engine.check_process()
        if await_ms is None:
            await_ms = self.settings.await_termination_ms_when_shutdown
        try:
            engine.run(impl.shutdown(await_ms, threading.get_ident()))
        finally:
            if engine.release():
                engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def subscribe(
        self, topic: str, expression: str | None = "*", *, expression_type: str = EXPRESSION_TAG
    ) -> None:
        """Consume a topic; replaces an earlier subscription of it. Before or after ``start``.

        All members of a group must subscribe the same topics with the same expressions.

        Args:
            topic: topic to consume; it may be created later.
            expression: ``*`` for all, or tags: ``TagA || TagB``.
            expression_type: TAG; SQL92 is not supported yet.

        Raises:
            ConfigurationError: a bad topic name.
            SubscriptionError: an expression without any tag.
        """
        subscription = self._subscription(topic, expression, expression_type)
        self._subscriptions[topic] = subscription
        if self.state is ServiceState.RUNNING:
            engine, impl = self._parts()
            engine.run(impl.subscribe(subscription))

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic; its offsets are stored."""
        self._subscriptions.pop(topic, None)
        if self.state is ServiceState.RUNNING:
            engine, impl = self._parts()
            engine.run(impl.unsubscribe(topic))

    def suspend(self) -> None:
        """Pull nothing more until ``resume``; messages already here are still consumed.

        Raises:
            ClientStateError: not running.
        """
        engine, impl = self._running()
        engine.loop.call_soon_threadsafe(impl.suspend)

    def resume(self) -> None:
        """Pull again.

        Raises:
            ClientStateError: not running.
        """
        engine, impl = self._running()
        engine.loop.call_soon_threadsafe(impl.resume)

    def assigned_queues(self) -> list[MessageQueue]:
        """Return the queues this member has now, the retry topic's included.

        Raises:
            ClientStateError: not running.
        """
        return self._running()[1].assigned_queues()

    def _running(self) -> tuple[Engine, PushConsumerImpl]:
        if self.state is not ServiceState.RUNNING:
            raise self._not_running()
        return self._parts()

    def _parts(self) -> tuple[Engine, PushConsumerImpl]:
        if self._engine is None or self._impl is None:
            raise self._not_running()
        return self._engine, self._impl
