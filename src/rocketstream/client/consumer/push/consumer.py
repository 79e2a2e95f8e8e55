"""The push consumer of the sync face: the machine on a thread of its own, listeners on others.

Law: starts, stops and forwards (upstream's DefaultMQPushConsumer).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Literal, TypeVar, Unpack, overload

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.arguments import checks_calls
from rocketstream.client.admin.faces import SyncAdmin
from rocketstream.client.admin.requests import MQAdmin
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.listener import (
    ConcurrentListener,
    MessageListenerOrderly,
    OrderlyListener,
)
from rocketstream.client.consumer.listener_faces import ListenerConsumer
from rocketstream.client.consumer.offsets.store import OffsetStore
from rocketstream.client.consumer.offsets.view import OffsetStoreView
from rocketstream.client.consumer.push.base import PushConsumerBase
from rocketstream.client.consumer.push.calls import PushCalls
from rocketstream.client.consumer.push.impl import PushConsumerImpl, start_push
from rocketstream.client.instance.service_state import ServiceState
from rocketstream.client.keywords import PushConsumerKeywords
from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue, MessageSelector
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.subscription import EXPRESSION_TAG

T = TypeVar("T")


@checks_calls("subscribe")
class PushConsumer(PushConsumerBase, ListenerConsumer[PushConsumerImpl], SyncAdmin):
    """Consumes topics as a member of a group; a ``with`` block starts it and shuts it down.

    It is to have its listener and what it subscribes before the block; more topics may be
    subscribed inside. Without ``with``: ``start`` and ``shutdown``.

    The members of a group divide the queues of a topic; each message is consumed at least once.
    What a listener fails comes back later, after ``max_reconsume_times`` into ``%DLQ%<group>``.
    One that returns None, for want of a ``return``, has failed its messages. Success is
    ``ConsumeConcurrentlyStatus.CONSUME_SUCCESS``, in order ``ConsumeOrderlyStatus.SUCCESS``.

    Args:
        group: consumer group, 1 to 248 characters of ``[%|a-zA-Z0-9_-]``.
        namesrv_addr: ``host:port``, several joined by ``;``; None takes NAMESRV_ADDR.
        config: settings shared by all clients; ``namesrv_addr`` overrides its address.
        listener: as ``register_message_listener``.
        subscription: topics with their expressions, the same as calls of ``subscribe``; an empty
            one says that they come later, inside the block.
        offset_store: where offsets are kept; None keeps them at the brokers when clustering, in
            ``~/.rocketmq_offsets`` when broadcasting.
        clock: where time comes from.
        **settings: those of ``PushConsumerSettings``, each an attribute as well, and any of
            ``ClientConfig``. Among them ``message_model`` (CLUSTERING), ``consume_from_where``
            (LAST_OFFSET), ``consume_timestamp`` (``yyyyMMddHHmmss``, local time),
            ``consume_thread_max`` (20; threads are started when listeners wait),
            ``consume_message_batch_max_size`` (1), ``pull_batch_size`` (32),
            ``max_reconsume_times`` (-1: 16), ``send_back_cause`` (False: dead letters do not tell
            what was raised), ``consume_timeout_minutes`` (15),
            ``pull_threshold_for_queue`` (1000 messages), ``pull_threshold_size_for_queue`` (100
            MiB), ``consume_concurrently_max_span`` (2000), ``await_termination_ms_when_shutdown``
            (30000; 0 does not wait for listeners).

    Raises:
        ConfigurationError: a setting out of its range; the text names it and the range.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        listener: ConcurrentListener | MessageListenerOrderly | None = None,
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
        self, listener: ConcurrentListener, *, orderly: Literal[False] = ...
    ) -> None: ...
    @overload
    def register_message_listener(
        self, listener: OrderlyListener, *, orderly: Literal[True]
    ) -> None: ...
    @overload
    def register_message_listener(
        self, listener: MessageListenerOrderly, *, orderly: bool = ...
    ) -> None: ...
    def register_message_listener(self, listener: object, *, orderly: bool = False) -> None:
        """Set what consumes the messages; before ``start``.

        Args:
            listener: ``f(messages)`` or ``f(messages, context)``, or an object with such a method
                ``consume_message``. It returns a ``ConsumeConcurrentlyStatus``; whatever else it
                returns, None included, and whatever it raises counts as RECONSUME_LATER.
            orderly: consume each queue in order; the listener then returns a
                ``ConsumeOrderlyStatus``. A ``MessageListenerOrderly`` is orderly in any case.

        Raises:
            ConfigurationError: not such a callable.
            ClientStateError: started already.
        """
        self._set_listener(listener, orderly)

    def start(self) -> None:
        """Join the group and begin to consume. Blocks for a few requests.

        A start that fails leaves nothing behind and may be tried again.

        Raises:
            ConnectError: no name server answered; every address tried is named.
            ClientStateError: started before, or the group exists in this client instance.
            ConfigurationError: no listener, a coroutine listener, or no name server address.
        """
        if self._is_started_again():
            return
        with self._life.starting(self.shutdown):
            plan = self._begin_start()
            if plan.listener.is_async:
                raise ConfigurationError(
                    "the listener is a coroutine function; use rocketstream.aio.PushConsumer"
                )
            self._start_threaded(self.config, partial(start_push, plan))

    def subscribe(
        self,
        topic: str,
        expression: str | MessageSelector | None = "*",
        *,
        expression_type: str = EXPRESSION_TAG,
    ) -> None:
        """Consume a topic; replaces an earlier subscription of it. Before or after ``start``.

        All members of a group must subscribe the same topics with the same expressions.

        Args:
            topic: topic to consume; it may be created later.
            expression: ``*`` for all, tags as in ``TagA || TagB``, or a ``MessageSelector``.
            expression_type: TAG, or SQL92 for a condition on message properties.

        Raises:
            ConfigurationError: a bad topic name.
            SubscriptionError: an expression without any tag, or a condition with a mistake.
            BrokerError: running, and a broker refuses it; an earlier subscription stays.
        """
        subscription = self._subscription(topic, expression, expression_type)
        if self.state is ServiceState.RUNNING:
            engine, impl = self._running()
            engine.run(impl.subscribe(subscription))
        self._subscriptions[subscription.topic] = subscription

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic; its offsets are stored."""
        name = self.config.with_namespace(topic)
        self._subscriptions.pop(name, None)
        if self.state is ServiceState.RUNNING:
            engine, impl = self._running()
            engine.run(impl.unsubscribe(name))

    def suspend(self) -> None:
        """Pull nothing more until ``resume``; messages already here are still consumed.

        Raises:
            ClientStateError: not running.
        """
        engine, impl = self._running()
        engine.call_soon(impl.suspend)

    def resume(self) -> None:
        """Pull again.

        Raises:
            ClientStateError: not running.
        """
        engine, impl = self._running()
        engine.call_soon(impl.resume)

    def assigned_queues(self) -> list[MessageQueue]:
        """Return the queues this member has now, the retry topic's included.

        Raises:
            ClientStateError: not running.
        """
        return PushCalls(self._machine).assigned_queues()

    @property
    def offset_store(self) -> OffsetStore:
        """Where this consumer is in each queue: the store it was given, or a view of its own.

        Raises:
            ClientStateError: it was given none and is not running.
        """
        if self._user_store is not None:
            return self._user_store
        engine, impl = self._running()
        return OffsetStoreView(impl.store, engine)

    # --- what else upstream's class can be asked --------------------------------------------------
    # Each of these blocks for a request or two and raises ClientStateError unless running,
    # RouteNotFoundError where topic or broker is unknown, BrokerError where a broker refuses.

    def fetch_subscribe_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic, sorted, whoever has them."""
        return self._call(lambda calls: calls.fetch_subscribe_message_queues(topic))

    def send_message_back(
        self, message: MessageExt, delay_level: int, broker_name: str | None = None
    ) -> None:
        """Have a message consumed again later; what its listener returns counts besides (C-273).

        Args:
            message: a message this consumer got.
            delay_level: -1 for the dead-letter topic, 0 lets the broker decide, else that level.
            broker_name: where to; None takes the broker that stored it.

        Raises:
            SendError: neither the broker nor a send to the retry topic took it.
        """
        self._call(lambda calls: calls.send_message_back(message, delay_level, broker_name))

    def core_pool_size(self) -> int:
        """Return how many listener calls there may be at once."""
        return self._call(lambda calls: calls.core_pool_size())

    def update_core_pool_size(self, core_pool_size: int) -> bool:
        """Change how many listener calls there may be at once; return whether it was changed."""
        return self._call(lambda calls: calls.update_core_pool_size(core_pool_size))

    def _ask(self, question: Callable[[MQAdmin], Coroutine[Any, Any, T]]) -> T:
        return self._call(lambda calls: question(calls.admin))

    def _call(self, call: Callable[[PushCalls], Coroutine[Any, Any, T]]) -> T:
        engine, impl = self._running()
        return engine.run(call(PushCalls(impl)))
