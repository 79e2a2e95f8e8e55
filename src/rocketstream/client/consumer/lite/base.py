"""What the sync and the asyncio lite pull consumer share: settings, what to consume, hooks.

Law: no I/O and no waiting.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.base import QueueConsumerBase
from rocketstream.client.consumer.lite.impl import LitePullConsumerImpl
from rocketstream.client.consumer.offsets.user_store import checked_store, open_store
from rocketstream.client.consumer.pull.base import Expression, own_config
from rocketstream.client.consumer.queue_listener import QueueListener, listener_function
from rocketstream.client.consumer.subscribing import subscribed
from rocketstream.client.core.kinds import check_natural, check_time
from rocketstream.client.core.lite_plan import LitePlan
from rocketstream.client.core.pull_settings import LitePullConsumerSettings
from rocketstream.client.hooks import ConsumeMessageContext
from rocketstream.client.instance.engine import Engine
from rocketstream.client.instance.service_state import ServiceState
from rocketstream.client.instruments import INSTRUMENTS
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.model import MessageQueue, MessageSelector
from rocketstream.protocol.message_ext import MessageExt


class LitePullConsumerBase(QueueConsumerBase[LitePullConsumerImpl, LitePullConsumerSettings]):
    """Settings, subscriptions and state; see ``rocketstream.LitePullConsumer``."""

    _kind = "LitePullConsumer"
    _keywords = ("subscription",)

    def __init__(
        self,
        group: str,
        *,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        subscription: Mapping[str, Expression] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Any,
    ) -> None:
        super().__init__(LitePullConsumerSettings, group, namesrv_addr, config, clock, settings)
        checked_store(self.settings.offset_store)
        if self.settings.message_queue_listener is not None:
            listener_function(self.settings.message_queue_listener)
        self._batch = self.settings.pull_batch_size
        self._plan = LitePlan()
        self._topic_listeners: dict[str, Any] = {}
        self._poller: object = None
        """Who polled last, a thread or task; None when the last message came by iteration."""
        for topic, expression in subscribed(subscription):
            self._subscribe(topic, expression, None)
        INSTRUMENTS.made(self)

    @property
    def is_running(self) -> bool:
        """Whether it was started and not shut down."""
        return self.state is ServiceState.RUNNING

    def set_sub_expression_for_assign(self, topic: str, expression: Expression) -> None:
        """Say which messages of queues of a topic are wanted, before they are assigned.

        Upstream says it before the start (C-505), when queues can only be known from elsewhere.

        Raises:
            ClientStateError: running with queues assigned, or topics are subscribed.
            ConfigurationError: a bad topic name, or a blank expression.
        """
        subscription = self._subscription(topic, expression)
        text = MessageSelector.of(expression).expression
        if not text or text.isspace():
            raise ConfigurationError("expression must not be empty (Java: subExpression)")
        if self.state is not ServiceState.CREATE_JUST and self._plan.assigned is not None:
            raise ClientStateError(
                "call set_sub_expression_for_assign() before assign(); queues are assigned already"
            )
        self._check_process()
        self._plan.set_expression(subscription)

    # --- for the faces ----------------------------------------------------------------------------

    def _config_of(self, shared: ClientConfig, clock: Clock) -> ClientConfig:
        return own_config(shared, self.settings.message_model, clock)

    def _shown(self) -> dict[str, list[str]]:
        plan, outside = self._plan, self.config.queue_without_namespace
        queues = map(outside, sorted(plan.assigned or ()))
        return {
            "topics": sorted(map(self.config.without_namespace, plan.subscriptions)),
            "assigned": [f"{mq.topic}@{mq.broker_name}:{mq.queue_id}" for mq in queues],
        }

    def _subscribe(self, topic: str, expression: Expression, listener: QueueListener | None) -> str:
        """Note a subscription; return the topic's name inside."""
        self._check_process()
        self._plan.check_subscribe()
        subscription = self._subscription(topic, expression)
        if listener is not None:
            listener_function(listener)
        self._plan.subscribe(subscription, listener)
        return subscription.topic

    def _unsubscribe(self, topic: str) -> str | None:
        """Forget a subscription; return the topic if the running machine must know."""
        self._check_process()
        name = self.config.with_namespace(topic)
        return name if self._plan.unsubscribe(name) and self.is_running else None

    def _assign(self, mqs: Collection[MessageQueue] | None) -> None:
        self._check_process()
        self._plan.assign([self._inside(mq) for mq in mqs or ()])

    def _keep_topic_listener(self, topic: str, listener: Any) -> str:
        name = self.config.topic_with_namespace(topic)
        if listener is None:
            raise ConfigurationError("listener must be a function of topic and queues, not None")
        function = getattr(listener, "on_changed", listener)
        if not callable(function):
            raise ConfigurationError(
                f"{listener!r} is not a listener: give a function of topic and queues, or an "
                "object with a method on_changed"
            )
        self._check_process()
        self._topic_listeners[name] = function
        return name

    def _begin_start(self) -> None:
        self._check_new()
        self.config.name_servers()

    async def _make(self, engine: Engine) -> LitePullConsumerImpl:
        group = self.config.with_namespace(self.group)
        settings = self.settings
        store = await open_store(
            engine.instance, group, settings.message_model, settings.offset_store
        )
        impl = LitePullConsumerImpl(
            engine.instance,
            group,
            settings,
            self._plan,
            store,
            self.filter_hooks,
            threaded=engine.thread is not None,
        )
        self._before_start(impl)
        await impl.start(self._topic_listeners)
        self._tracing.start()
        return impl

    async def _close(
        self, impl: LitePullConsumerImpl, *, commit: bool | None, closer: object
    ) -> None:
        # Whoever else polled last may still be at work on what it got.
        done = self._poller is not None and (commit or (commit is None and closer == self._poller))
        try:
            await impl.shutdown(commit=done)
        finally:
            await self._tracing.stop()

    def _before_start(self, impl: LitePullConsumerImpl) -> None:
        """Take the machine before its first message can arrive."""

    def _timeout_ms(self, timeout_ms: float | None) -> float:
        if timeout_ms is None:
            return self.settings.poll_timeout_ms
        if type(timeout_ms) is int and timeout_ms >= 0:  # asked for each poll
            return timeout_ms
        check_time("timeout_ms", timeout_ms)
        return timeout_ms

    def _inside(self, mq: MessageQueue) -> MessageQueue:
        return self.config.queue_with_namespace(mq)

    def _insides(self, mqs: Collection[MessageQueue]) -> list[MessageQueue]:
        return [self._inside(mq) for mq in mqs]

    def _noted(
        self,
        impl: LitePullConsumerImpl,
        offsets: Collection[MessageQueue] | dict[MessageQueue, int] | None,
    ) -> list[MessageQueue]:
        """Note a commit; return the queues concerned."""
        if offsets is None:
            return impl.commit_positions(None)
        if isinstance(offsets, dict):
            for offset in offsets.values():
                check_natural("an offset", offset)
            inside = {self._inside(mq): offset for mq, offset in offsets.items()}
            return impl.commit_offsets(inside)
        return impl.commit_positions(self._insides(offsets))

    def _tell_hooks(self, messages: list[MessageExt], began_ms: int | None = None) -> None:
        config = self.config
        context = ConsumeMessageContext(
            config.with_namespace(self.group),
            messages,
            config.queue_with_namespace(messages[0].message_queue),
            namespace=config.effective_namespace(),
            access_channel=config.access_channel,
            began_ms=began_ms,
        )
        self.consume_hooks.handed_out(context)
