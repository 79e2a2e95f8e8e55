"""What the sync and the asyncio push consumer share: settings, subscriptions, listener.

Law: no I/O and no waiting.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from typing import Any

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.client.config import ClientConfig, client_config
from rocketstream.client.consumer.consume_async import AsyncConsumeService
from rocketstream.client.consumer.consume_concurrently import ConsumeMessageConcurrentlyService
from rocketstream.client.consumer.consume_run import ConsumeService
from rocketstream.client.consumer.listener import Listener, listener_of
from rocketstream.client.consumer.push_impl import PushConsumerImpl
from rocketstream.client.core.settings import TIMESTAMP_FORMAT, PushConsumerSettings
from rocketstream.client.observe.hooks import (
    ConsumeHooks,
    ConsumeMessageHook,
    FilterHooks,
    FilterMessageHook,
)
from rocketstream.client.service_state import ServiceState
from rocketstream.client.unsupported import refuse_unsupported
from rocketstream.errors import ClientStateError, ConfigurationError, NotSupportedError
from rocketstream.protocol.bodies import SubscriptionData
from rocketstream.protocol.names import check_topic
from rocketstream.protocol.subscription import EXPRESSION_TAG, build_subscription

_TIMESTAMP_BACK_MS = 30 * 60_000


class PushConsumerBase:
    """Settings, subscriptions and state; see ``rocketstream.PushConsumer`` for the arguments."""

    def __init__(
        self,
        group: str,
        *,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        listener: object = None,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Any,
    ) -> None:
        refuse_unsupported(settings)
        shared = client_config(config, namesrv_addr, settings)
        known = {field.name for field in fields(PushConsumerSettings)} - {"consumer_group"}
        wrong = sorted(set(settings) - known)
        if wrong:
            raise ConfigurationError(
                f"PushConsumer has no setting {wrong[0]!r}; settings are {', '.join(sorted(known))}"
            )
        # Upstream's default: half an hour before the consumer was made (C-24).
        half_an_hour_ago = datetime.fromtimestamp((clock.now_ms() - _TIMESTAMP_BACK_MS) / 1000)
        settings.setdefault("consume_timestamp", half_an_hour_ago.strftime(TIMESTAMP_FORMAT))
        self.settings = PushConsumerSettings(group, **settings)
        self.settings.check()
        self.config = shared.with_own_instance(clock)
        self.state = ServiceState.CREATE_JUST
        self.consume_hooks = ConsumeHooks()
        self.filter_hooks = FilterHooks()
        self._clock = clock
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._listener: Listener | None = None
        if listener is not None:
            self._listener = listener_of(listener)

    @property
    def group(self) -> str:
        """The consumer group."""
        return self.settings.consumer_group

    @property
    def client_id(self) -> str:
        """The id brokers and the other members know this consumer by."""
        return self.config.client_id()

    def register_message_listener(self, listener: object, *, orderly: bool = False) -> None:
        """Set what consumes the messages; before ``start``.

        Args:
            listener: ``f(messages)`` or ``f(messages, context)``, or an object with such a method
                ``consume_message``. It returns a ``ConsumeConcurrentlyStatus``; whatever else it
                returns, None included, and whatever it raises counts as RECONSUME_LATER.
            orderly: not supported yet.

        Raises:
            ConfigurationError: not such a callable.
            NotSupportedError: an orderly listener.
            ClientStateError: started already.
        """
        if orderly:
            raise NotSupportedError(
                "orderly listeners are not supported yet; register a concurrent one"
            )
        if self.state is not ServiceState.CREATE_JUST:
            raise ClientStateError("the listener is set before start()")
        self._listener = listener_of(listener)

    def register_consume_message_hook(self, hook: ConsumeMessageHook) -> None:
        """Call ``hook`` before and after each listener call; what it raises is only logged."""
        self.consume_hooks.register(hook)

    def register_filter_message_hook(self, hook: FilterMessageHook) -> None:
        """Let ``hook`` drop messages after each pull, before they are cached."""
        self.filter_hooks.register(hook)

    def _subscription(
        self, topic: str, expression: str | None, expression_type: str
    ) -> SubscriptionData:
        check_topic(topic)
        if expression_type != EXPRESSION_TAG:
            raise NotSupportedError(
                f"filtering by {expression_type} is not supported yet; use tags: 'TagA || TagB'"
            )
        return build_subscription(topic, expression, self._clock.now_ms(), expression_type)

    def _begin_start(self) -> tuple[PushConsumerSettings, Listener]:
        if self.state is not ServiceState.CREATE_JUST:
            raise ClientStateError(
                "The PushConsumer service state not OK, maybe started once, "
                f"{self.state.value}; a client cannot be started again, create a new one"
            )
        if self._listener is None:
            raise ConfigurationError("messageListener is null; call register_message_listener()")
        self.config.name_servers()
        return self.settings, self._listener

    def _not_running(self) -> ClientStateError:
        return ClientStateError(f"The consumer service state not OK, {self.state.value}")


def make_service(impl: PushConsumerImpl, listener: Listener) -> ConsumeService:
    """Return the consume service a listener needs: tasks for coroutines, else threads."""
    settings = impl.settings
    if listener.is_async:
        return AsyncConsumeService(
            listener,
            impl.book,
            impl.send_back,
            impl.clock,
            batch_size=settings.consume_message_batch_max_size,
            tasks_max=settings.consume_thread_max,
        )
    return ConsumeMessageConcurrentlyService(
        settings.consumer_group,
        listener,
        impl.book,
        impl.send_back,
        impl.clock,
        batch_size=settings.consume_message_batch_max_size,
        threads_max=settings.consume_thread_max,
    )
