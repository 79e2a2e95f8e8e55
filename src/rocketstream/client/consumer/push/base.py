"""What the sync and the asyncio push consumer share: settings, subscriptions, listener.

Law: no I/O and no waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Generic, Self, TypeVar, overload

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.client.config import ClientConfig, client_config
from rocketstream.client.consumer.listener import NO_LISTENER, Listener, listener_of
from rocketstream.client.consumer.offsets.store import OffsetStore
from rocketstream.client.consumer.offsets.user_store import checked_store
from rocketstream.client.consumer.push.impl import PushConsumerImpl, PushPlan
from rocketstream.client.consumer.settings_of import settings_of
from rocketstream.client.consumer.subscribing import subscription_of
from rocketstream.client.core.allocate import AllocateMessageQueueStrategy
from rocketstream.client.core.settings import PushConsumerSettings
from rocketstream.client.hooks import (
    ConsumeHooks,
    ConsumeMessageHook,
    FilterHooks,
    FilterMessageHook,
)
from rocketstream.client.instance.service_state import ServiceState
from rocketstream.client.instance.started import Startable
from rocketstream.client.instance.with_block import StartedByWith, lacking
from rocketstream.client.instruments import INSTRUMENTS
from rocketstream.client.trace.dispatcher import CONSUME
from rocketstream.client.trace.of_client import TRACE_SETTINGS, tracing_of
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.model import ConsumeFromWhere, MessageModel, MessageSelector
from rocketstream.protocol.bodies import SubscriptionData
from rocketstream.protocol.names import check_topic
from rocketstream.protocol.subscription import EXPRESSION_TAG

logger = logging.getLogger("rocketstream.client")

_NAMED = ("config", "clock", "listener", "subscription", "offset_store")

CHANGEABLE = frozenset(
    {
        "check_crc",
        "consume_concurrently_max_span",
        "post_subscription_when_pull",
        "pull_batch_size",
        "pull_interval_ms",
        "pull_threshold_for_queue",
        "pull_threshold_for_topic",
        "pull_threshold_size_for_queue",
        "pull_threshold_size_for_topic",
    }
)
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


class PushConsumerBase(StartedByWith, Startable[PushConsumerImpl]):
    """Settings, subscriptions and state; see ``rocketstream.PushConsumer`` for the arguments.

    Every setting is also an attribute. Before ``start`` it takes any value, ``start`` checks all of
    them in upstream's order; while running only those of ``CHANGEABLE`` can be changed.
    """

    _kind = "PushConsumer"
    _refusal = "The consumer service state not OK"

    message_model = Setting[MessageModel]()
    consume_from_where = Setting[ConsumeFromWhere]()
    consume_timestamp = Setting[str]()
    allocate_message_queue_strategy = Setting[AllocateMessageQueueStrategy]()
    consume_thread_min = Setting[int]()
    consume_thread_max = Setting[int]()
    consume_concurrently_max_span = Setting[int]()
    pull_threshold_for_queue = Setting[int]()
    pull_threshold_for_topic = Setting[int]()
    pull_threshold_size_for_queue = Setting[int]()
    pull_threshold_size_for_topic = Setting[int]()
    pull_interval_ms = Setting[int]()
    consume_message_batch_max_size = Setting[int]()
    pull_batch_size = Setting[int]()
    adjust_thread_pool_nums_threshold = Setting[int]()
    post_subscription_when_pull = Setting[bool]()
    max_reconsume_times = Setting[int]()
    suspend_current_queue_time_ms = Setting[int]()
    consume_timeout_minutes = Setting[float]()
    await_termination_ms_when_shutdown = Setting[int]()
    local_retry_delay_ms = Setting[int]()
    check_crc = Setting[bool]()
    send_back_cause = Setting[bool]()

    def __init__(
        self,
        group: str,
        *,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        listener: object = None,
        subscription: Mapping[str, str | MessageSelector | None] | None = None,
        offset_store: OffsetStore | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Any,
    ) -> None:
        self._shared_config = client_config(config, namesrv_addr, settings)
        self._tracing = tracing_of(settings, group, CONSUME, self._shared_config, clock)
        self._own_config = self._shared_config.with_own_instance(clock)
        self.settings = settings_of(
            PushConsumerSettings, "PushConsumer", group, settings, clock, (*_NAMED, *TRACE_SETTINGS)
        )
        self.settings.check()
        self._user_store = checked_store(offset_store)
        self._create(clock)
        self.consume_hooks = ConsumeHooks()
        self.filter_hooks = FilterHooks()
        self._tracing.watch_consumption(self.consume_hooks)
        self._subscriptions: dict[str, SubscriptionData] = {}
        for topic, expression in (subscription or {}).items():
            data = self._subscription(topic, expression, EXPRESSION_TAG)
            self._subscriptions[data.topic] = data
        self._may_subscribe_nothing = subscription is not None  # said so: topics come later
        self._listener: Listener | None = None
        if listener is not None:
            self._listener = listener_of(listener)
        INSTRUMENTS.made(self)

    @property
    def config(self) -> ClientConfig:
        """The configuration shared by all clients.

        Unless told otherwise a clustering consumer has an instance name of its own; broadcasting
        ones keep DEFAULT, and with it the place of their offsets (C-114).
        """
        clustering = self.settings.message_model is not MessageModel.BROADCASTING
        return self._own_config if clustering else self._shared_config

    @property
    def group(self) -> str:
        """The consumer group."""
        return self.settings.consumer_group

    @property
    def client_id(self) -> str:
        """The id brokers and the other members know this consumer by."""
        return self.config.client_id()

    def _shown(self) -> dict[str, list[str]]:
        return {"topics": sorted(map(self.config.without_namespace, list(self._subscriptions)))}

    def _set_listener(self, listener: object, orderly: bool) -> None:
        if self.state is not ServiceState.CREATE_JUST:
            raise ClientStateError("the listener can be set only before start()")
        self._listener = listener_of(listener, orderly=orderly)

    def register_consume_message_hook(self, hook: ConsumeMessageHook) -> None:
        """Call ``hook`` before and after each listener call; what it raises is only logged."""
        self.consume_hooks.register(hook)

    def register_filter_message_hook(self, hook: FilterMessageHook) -> None:
        """Let ``hook`` drop messages after each pull, before they are cached."""
        self.filter_hooks.register(hook)

    def _subscription(
        self, topic: str, expression: str | MessageSelector | None, expression_type: str
    ) -> SubscriptionData:
        check_topic(topic)
        selector = MessageSelector.of(expression, expression_type)
        name = self.config.with_namespace(topic)
        return subscription_of(topic, name, selector, self._clock.now_ms(), logger)

    def _set(self, name: str, value: object) -> None:
        change: dict[str, Any] = {name: value}
        changed = replace(self.settings, **change)
        if self.state is ServiceState.RUNNING:
            if name not in CHANGEABLE:
                raise ClientStateError(
                    f"{name} can be set only before start(); while running only "
                    f"{', '.join(sorted(CHANGEABLE))} can be changed"
                )
            changed.check()
            self._apply(changed)
        self.settings = changed

    def _apply(self, settings: PushConsumerSettings) -> None:
        engine, impl = self._running()
        if engine.thread is None:
            impl.change(settings)
        else:
            engine.call_soon(impl.change, settings)

    def _lacks(self) -> str:
        return lacking(
            listener=self._listener is not None,
            subscription=bool(self._subscriptions) or self._may_subscribe_nothing,
        )

    def _begin_start(self) -> PushPlan:
        self._check_new()
        self.settings.check(self._some_listener)
        self.config.name_servers()
        return PushPlan(
            self.settings,
            self._subscriptions,
            self._some_listener(),
            self._user_store,
            self.consume_hooks,
            self.filter_hooks,
            self._tracing,
        )

    def _some_listener(self) -> Listener:
        if self._listener is None:
            raise ConfigurationError(f"{NO_LISTENER} (Java: messageListener is null)")
        return self._listener
