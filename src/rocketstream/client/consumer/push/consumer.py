"""The push consumer (upstream's DefaultMQPushConsumer)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar, Final, Generic, Literal, Self, TypeVar, Unpack, overload

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.checks import checks_calls
from rocketstream.client.admin.requests import AsyncAdmin, MQAdmin, SyncAdmin
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.allocate import AllocateMessageQueueStrategy
from rocketstream.client.consumer.base import (
    AsyncListenerConsumer,
    ConsumerBase,
    ListenerConsumer,
    register_filter_message_hook,
)
from rocketstream.client.consumer.listener import (
    NO_LISTENER,
    AnyConcurrentListener,
    AnyOrderlyListener,
    ConcurrentListener,
    Listener,
    MessageListenerOrderly,
    OrderlyListener,
    listener_of,
)
from rocketstream.client.consumer.offsets.store import OffsetStore
from rocketstream.client.consumer.offsets.user_store import (
    AsyncOffsetStoreView,
    OffsetStoreView,
    checked_store,
    open_store,
)
from rocketstream.client.consumer.push.impl import PushConsumerImpl
from rocketstream.client.consumer.settings import PushConsumerSettings
from rocketstream.client.consumer.subscription import subscribed, topic_queues
from rocketstream.client.hooks import FilterHooks, client_made
from rocketstream.client.instance.engine import Engine
from rocketstream.client.instance.life_cycle import (
    ServiceState,
    blocking,
    lacking,
    starting,
)
from rocketstream.client.keywords import PushConsumerKeywords
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.model import ConsumeFromWhere, MessageModel, MessageQueue, MessageSelector
from rocketstream.protocol.bodies import SubscriptionData
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.subscription import EXPRESSION_TAG
from rocketstream.settings import about

CHANGEABLE = frozenset(each.name for each in fields(PushConsumerSettings) if about(each).changeable)
"""Settings that can be changed while a consumer runs."""


T = TypeVar("T")


class Setting(Generic[T]):
    """An attribute that reads and changes one of a consumer's settings."""

    def __set_name__(self, owner: type[PushConsumerBase], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, consumer: None, owner: type[PushConsumerBase]) -> Self: ...
    @overload
    def __get__(self, consumer: PushConsumerBase, owner: type[PushConsumerBase]) -> T: ...
    def __get__(self, consumer: PushConsumerBase | None, owner: type[PushConsumerBase]) -> T | Self:
        if consumer is None:
            return self
        value: T = getattr(consumer.settings, self._name)
        return value

    def __set__(self, consumer: PushConsumerBase, value: T) -> None:
        consumer._set(self._name, value)


@checks_calls()
class PushConsumerBase(ConsumerBase[PushConsumerImpl, PushConsumerSettings]):
    """Both faces: settings, subscriptions, and the calls that wait for nothing.

    Every setting is also an attribute. Before ``start`` it takes any value, ``start`` checks all of
    them in upstream's order; while running only those of ``CHANGEABLE`` can be changed.
    """

    _kind = "PushConsumer"
    _keywords = ("listener", "subscription", "offset_store")

    # Written by `python -m scripts.settings_tables`.
    message_model: Setting[MessageModel] = Setting()
    consume_from_where: Setting[ConsumeFromWhere] = Setting()
    consume_timestamp: Setting[str] = Setting()
    allocate_message_queue_strategy: Setting[AllocateMessageQueueStrategy] = Setting()
    consume_thread_min: Setting[int] = Setting()
    consume_thread_max: Setting[int] = Setting()
    consume_concurrently_max_span: Setting[int] = Setting()
    pull_threshold_for_queue: Setting[int] = Setting()
    pull_threshold_for_topic: Setting[int] = Setting()
    pull_threshold_size_for_queue: Setting[int] = Setting()
    pull_threshold_size_for_topic: Setting[int] = Setting()
    pull_interval_ms: Setting[int] = Setting()
    consume_message_batch_max_size: Setting[int] = Setting()
    pull_batch_size: Setting[int] = Setting()
    adjust_thread_pool_nums_threshold: Setting[int] = Setting()
    post_subscription_when_pull: Setting[bool] = Setting()
    max_reconsume_times: Setting[int] = Setting()
    suspend_current_queue_time_ms: Setting[int] = Setting()
    consume_timeout_minutes: Setting[float] = Setting()
    await_termination_ms_when_shutdown: Setting[int] = Setting()
    local_retry_delay_ms: Setting[int] = Setting()
    check_crc: Setting[bool] = Setting()
    send_back_cause: Setting[bool] = Setting()

    register_filter_message_hook = register_filter_message_hook

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
        super().__init__(PushConsumerSettings, group, namesrv_addr, config, clock, {**settings})
        self.filter_hooks: FilterHooks = FilterHooks()
        self._user_store = checked_store(offset_store)
        self._subscriptions: dict[str, SubscriptionData] = {}
        for topic, expression in subscribed(subscription):
            data = self._subscription(topic, expression)
            self._subscriptions[data.topic] = data
        self._may_subscribe_nothing = subscription is not None  # said so: topics come later
        self._listener: Listener | None = None
        if listener is not None:
            self._listener = listener_of(listener)
        client_made(self)

    @property
    def config(self) -> ClientConfig:
        """The configuration shared by all clients.

        Unless told otherwise a clustering consumer has an instance name of its own; broadcasting
        ones keep DEFAULT, and with it the place of their offsets (C-114).
        """
        clustering = self.settings.message_model is not MessageModel.BROADCASTING
        return self._own_config if clustering else self._shared_config

    def suspend(self) -> None:
        """Pull nothing more until ``resume``; messages already here are still consumed.

        Raises:
            ClientStateError: not running.
        """
        engine, impl = self._running()
        engine.do(impl.suspend)

    def resume(self) -> None:
        """Pull again.

        Raises:
            ClientStateError: not running.
        """
        engine, impl = self._running()
        engine.do(impl.resume)

    def assigned_queues(self) -> list[MessageQueue]:
        """Return the queues this member has now, the retry topic's included.

        Raises:
            ClientStateError: not running.
        """
        return self.config.queues_without_namespace(self._machine.assigned_queues())

    # --- inside -----------------------------------------------------------------------------------

    def _shown(self) -> dict[str, list[str]]:
        return {"topics": sorted(map(self.config.without_namespace, list(self._subscriptions)))}

    def _set_listener(self, listener: object, orderly: bool) -> None:
        if self.state is not ServiceState.CREATE_JUST:
            raise ClientStateError("the listener can be set only before start()")
        if not isinstance(orderly, bool):
            raise ConfigurationError(f"orderly must be True or False, not {orderly!r}")
        self._listener = listener_of(listener, orderly=orderly)

    def _set(self, name: str, value: object) -> None:
        change: dict[str, Any] = {name: value}
        with self._changing:
            changed = replace(self.settings, **change)
            if self.state is ServiceState.RUNNING:
                if name not in CHANGEABLE:
                    raise ClientStateError(
                        f"{name} can be set only before start(); while running only "
                        f"{', '.join(sorted(CHANGEABLE))} can be changed"
                    )
                changed.check()
                engine, impl = self._running()
                engine.do(impl.change, changed)
            self.settings = changed

    def _lacks(self) -> tuple[str, ...]:
        return lacking(
            listener=self._listener is not None,
            subscription=bool(self._subscriptions) or self._may_subscribe_nothing,
        )

    def _begin_start(self) -> Listener:
        self._check_new()
        self.settings.check(self._some_listener)
        self.config.name_servers()
        return self._some_listener()

    async def _make(self, engine: Engine) -> PushConsumerImpl:
        instance = engine.instance
        group = instance.config.with_namespace(self.group)
        settings = replace(self.settings, consumer_group=group)
        store = await open_store(engine, group, settings.message_model, self._user_store)
        impl = PushConsumerImpl(
            instance,
            settings,
            self._subscriptions,
            self._some_listener(),
            store,
            self.consume_hooks,
            self.filter_hooks,
            self._tracing,
        )
        await impl.start()
        return impl

    def _admin(self) -> MQAdmin:
        impl = self._machine
        return MQAdmin(impl.instance, impl.instance.config)

    def _some_listener(self) -> Listener:
        if self._listener is None:
            raise ConfigurationError(f"{NO_LISTENER} (Java: messageListener is null)")
        return self._listener


@checks_calls("subscribe")
class AsyncPushConsumer(PushConsumerBase, AsyncListenerConsumer[PushConsumerImpl], AsyncAdmin):
    """Consumes topics as a member of a group; ``async with`` starts it and shuts it down.

    Arguments, settings and errors are those of ``rocketstream.PushConsumer``. A coroutine listener
    is awaited on the caller's loop, at most ``consume_thread_max`` calls at once; a plain function
    is called on worker threads.
    """

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
        """Join the group and begin to consume. Takes a few requests.

        A start that fails leaves nothing behind and may be tried again.

        Raises:
            ConnectError: no name server answered; every address tried is named.
            ClientStateError: started before, or the group exists in this client instance.
            ConfigurationError: no listener, or no name server address.
        """
        await self._start_and_await()

    async def subscribe(
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
            await self._machine.subscribe(subscription)
        self._subscriptions[subscription.topic] = subscription

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic; its offsets are stored."""
        name = self.config.with_namespace(topic)
        self._subscriptions.pop(name, None)
        if self.state is ServiceState.RUNNING:
            await self._machine.unsubscribe(name)

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

    # --- what else upstream's class can be asked --------------------------------------------------
    # Each of these waits for a request or two and raises ClientStateError unless running,
    # RouteNotFoundError where topic or broker is unknown, BrokerError where a broker refuses.

    async def fetch_subscribe_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic, sorted, whoever has them."""
        name = self.config.topic_with_namespace(topic)
        queues = await topic_queues(self._machine.instance, name, afresh=False)
        return self.config.queues_without_namespace(queues)

    async def send_message_back(
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
        await self._machine.send_message_back(message, delay_level, broker_name)

    async def core_pool_size(self) -> int:
        """Return how many listener calls there may be at once."""
        return self._machine.service.core_pool_size

    async def update_core_pool_size(self, core_pool_size: int) -> bool:
        """Change how many listener calls there may be at once; return whether it was changed."""
        return self._machine.service.update_core_pool_size(core_pool_size)


@checks_calls("subscribe")
class PushConsumer(ListenerConsumer[PushConsumerImpl], PushConsumerBase, SyncAdmin):
    """Consumes topics as a member of a group; a ``with`` block starts it and shuts it down.

    It is to have its listener and what it subscribes before the block; more topics may be
    subscribed inside. Without ``with``: ``start`` and ``shutdown``.

    The members of a group divide the queues of a topic; each message is consumed at least once.
    A message the listener fails comes back later, after ``max_reconsume_times`` into
    ``%DLQ%<group>``. A listener that returns None, for want of a ``return``, has failed its
    messages. Success is ``ConsumeConcurrentlyStatus.CONSUME_SUCCESS``, in order
    ``ConsumeOrderlyStatus.SUCCESS``.

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

    start: ClassVar[Callable[[Any], None]] = starting(AsyncPushConsumer.start)
    subscribe: Final = blocking(AsyncPushConsumer.subscribe)
    unsubscribe: Final = blocking(AsyncPushConsumer.unsubscribe)
    fetch_subscribe_message_queues: Final = blocking(
        AsyncPushConsumer.fetch_subscribe_message_queues
    )
    send_message_back: Final = blocking(AsyncPushConsumer.send_message_back)
    core_pool_size: Final = blocking(AsyncPushConsumer.core_pool_size)
    update_core_pool_size: Final = blocking(AsyncPushConsumer.update_core_pool_size)

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
