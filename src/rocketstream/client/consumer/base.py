"""What the consumers of every kind share, on both faces: configuration, group, settings, hooks.

Law: no I/O and no waiting.
"""

from __future__ import annotations

import logging
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from rocketstream._util.clock import Clock
from rocketstream.client.config import ClientConfig, client_config
from rocketstream.client.consumer.settings_of import settings_of
from rocketstream.client.consumer.subscribing import subscription_of
from rocketstream.client.hooks import (
    ConsumeHooks,
    ConsumeMessageHook,
    FilterHooks,
    FilterMessageHook,
)
from rocketstream.client.instance.started import Startable
from rocketstream.client.trace.dispatcher import CONSUME
from rocketstream.client.trace.of_client import TRACE_SETTINGS, Tracing, tracing_of
from rocketstream.model import MessageSelector
from rocketstream.protocol.bodies import SubscriptionData
from rocketstream.protocol.subscription import EXPRESSION_TAG

logger = logging.getLogger("rocketstream.client")


class ConsumerSettings(Protocol):
    """What the settings of every kind of consumer have."""

    @property
    def consumer_group(self) -> str:
        """The group."""

    def check(self) -> None:
        """Refuse what cannot be used."""


M = TypeVar("M")
S = TypeVar("S", bound=ConsumerSettings)


class ConsumerBase(Startable[M], Generic[M, S]):
    """A consumer with its machine ``M`` and its settings ``S``."""

    _keywords: ClassVar[tuple[str, ...]] = ()
    """What its constructor takes by name besides settings, ``config`` and ``clock``."""
    _is_traced: ClassVar[bool] = True
    """Whether it takes the settings of message trace."""

    settings: S
    consume_hooks: ConsumeHooks

    def __init__(
        self,
        kind: type[S],
        group: str,
        namesrv_addr: str | None,
        config: ClientConfig | None,
        clock: Clock,
        given: dict[str, Any],
    ) -> None:
        shared = client_config(config, namesrv_addr, given)
        more = ("config", "clock", *self._keywords)
        self._tracing = Tracing()
        if self._is_traced:
            more += TRACE_SETTINGS
            self._tracing = tracing_of(given, group, CONSUME, shared, clock)
        self.settings = settings_of(kind, group, given, clock, more)
        self.settings.check()
        self._shared_config = shared
        self._own_config = self._config_of(shared, clock)
        self._create(clock)
        self.consume_hooks = ConsumeHooks()
        self._tracing.observe_consumption(self.consume_hooks)

    def _config_of(self, shared: ClientConfig, clock: Clock) -> ClientConfig:
        """Return the configuration of this consumer alone."""
        return shared.with_own_instance(clock)

    @property
    def config(self) -> ClientConfig:
        """The configuration shared by all kinds of clients."""
        return self._own_config

    @property
    def group(self) -> str:
        """The consumer group."""
        return self.settings.consumer_group

    @property
    def client_id(self) -> str:
        """The id brokers and the other members know this consumer by."""
        return self.config.client_id()

    def register_consume_message_hook(self, hook: ConsumeMessageHook) -> None:
        """Call ``hook`` before and after each listener call; what it raises is only logged.

        Of a consumer that has no listener: around each pull, on the network thread, or before and
        after a poll's messages are handed out.
        """
        self.consume_hooks.register(hook)


class QueueConsumerBase(ConsumerBase[M, S]):
    """A consumer that pulls queues: what it pulled can be filtered."""

    filter_hooks: FilterHooks

    def _create(self, clock: Clock) -> None:
        super()._create(clock)
        self.filter_hooks = FilterHooks()

    def register_filter_message_hook(self, hook: FilterMessageHook) -> None:
        """Let ``hook`` drop messages after each pull, on the network thread."""
        self.filter_hooks.register(hook)

    def _subscription(
        self,
        topic: str,
        expression: str | MessageSelector | None,
        expression_type: str = EXPRESSION_TAG,
    ) -> SubscriptionData:
        """Return what is wanted of a topic.

        Raises:
            ConfigurationError: a name that no topic can have.
            SubscriptionError: an expression that cannot be used.
        """
        name = self.config.topic_with_namespace(topic)
        selector = MessageSelector.of(expression, expression_type)
        return subscription_of(topic, name, selector, self._clock.now_ms(), logger)
