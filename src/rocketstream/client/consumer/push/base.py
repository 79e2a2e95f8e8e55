"""What the sync and the asyncio push consumer share: settings, subscriptions, listener.

Law: no I/O and no waiting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Generic, Self, TypeVar, overload

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.base import QueueConsumerBase
from rocketstream.client.consumer.listener import NO_LISTENER, Listener, listener_of
from rocketstream.client.consumer.offsets.store import OffsetStore
from rocketstream.client.consumer.offsets.user_store import checked_store
from rocketstream.client.consumer.push.impl import PushConsumerImpl, PushPlan
from rocketstream.client.consumer.subscribing import subscribed
from rocketstream.client.core.allocate import AllocateMessageQueueStrategy
from rocketstream.client.core.settings import PushConsumerSettings
from rocketstream.client.instance.service_state import ServiceState
from rocketstream.client.instance.with_block import StartedByWith, lacking
from rocketstream.client.instruments import INSTRUMENTS
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.model import ConsumeFromWhere, MessageModel, MessageSelector
from rocketstream.protocol.bodies import SubscriptionData

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


class PushConsumerBase(StartedByWith, QueueConsumerBase[PushConsumerImpl, PushConsumerSettings]):
    """Settings, subscriptions and state; see ``rocketstream.PushConsumer`` for the arguments.

    Every setting is also an attribute. Before ``start`` it takes any value, ``start`` checks all of
    them in upstream's order; while running only those of ``CHANGEABLE`` can be changed.
    """

    _kind = "PushConsumer"
    _keywords = ("listener", "subscription", "offset_store")

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
        super().__init__(PushConsumerSettings, group, namesrv_addr, config, clock, settings)
        self._user_store = checked_store(offset_store)
        self._subscriptions: dict[str, SubscriptionData] = {}
        for topic, expression in subscribed(subscription):
            data = self._subscription(topic, expression)
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

    def _lacks(self) -> tuple[str, ...]:
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
