"""What the sync and the asyncio pull consumer share: settings, topics, hooks, checked arguments.

Law: no I/O and no waiting.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.base import QueueConsumerBase
from rocketstream.client.consumer.offsets.store import Offsets
from rocketstream.client.consumer.offsets.user_store import checked_store, open_store
from rocketstream.client.consumer.pull.impl import PullConsumerImpl
from rocketstream.client.consumer.queue_listener import QueueListener, listener_function
from rocketstream.client.core.kinds import check_natural, check_positive, check_time
from rocketstream.client.core.pull_settings import PullConsumerSettings
from rocketstream.client.instance.engine import Engine
from rocketstream.client.instruments import INSTRUMENTS
from rocketstream.model import MessageModel, MessageQueue, MessageSelector
from rocketstream.protocol.bodies import SubscriptionData
from rocketstream.protocol.subscription import build_subscription

Expression = str | MessageSelector | None


class PullConsumerBase(QueueConsumerBase[PullConsumerImpl, PullConsumerSettings]):
    """Settings and state; see ``rocketstream.PullConsumer`` for the arguments."""

    _kind = "PullConsumer"
    _is_traced = False

    def __init__(
        self,
        group: str,
        *,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Any,
    ) -> None:
        super().__init__(PullConsumerSettings, group, namesrv_addr, config, clock, settings)
        checked_store(self.settings.offset_store)
        self._listeners: dict[str, QueueListener | None] = {
            self.config.with_namespace(topic): None for topic in self.settings.register_topics
        }
        if self.settings.message_queue_listener is not None:
            listener_function(self.settings.message_queue_listener)
        INSTRUMENTS.made(self)

    @property
    def register_topics(self) -> set[str]:
        """The topics whose queues the group divides, and that heartbeats report (C-54)."""
        return {self.config.without_namespace(topic) for topic in self._listeners}

    # --- for the faces ----------------------------------------------------------------------------

    def _config_of(self, shared: ClientConfig, clock: Clock) -> ClientConfig:
        return own_config(shared, self.settings.message_model, clock)

    def _shown(self) -> dict[str, list[str]]:
        return {"topics": sorted(map(self.config.without_namespace, list(self._listeners)))}

    def _begin_start(self) -> None:
        self._check_new()
        self.config.name_servers()

    async def _make(self, engine: Engine) -> PullConsumerImpl:
        group = self.config.with_namespace(self.group)
        store: Offsets = await open_store(
            engine.instance, group, self.settings.message_model, self.settings.offset_store
        )
        impl = PullConsumerImpl(
            engine.instance,
            group,
            self.settings,
            store,
            self._listeners,
            self.consume_hooks,
            self.filter_hooks,
            threaded=engine.thread is not None,
        )
        await impl.start()
        return impl

    def _keep_listener(self, topic: str, listener: QueueListener | None) -> str:
        wrapped = self.config.topic_with_namespace(topic)
        if listener is not None:
            listener_function(listener)
        self._listeners[wrapped] = listener
        return wrapped

    def _inside(self, mq: MessageQueue) -> MessageQueue:
        """Return a queue as the servers know it (C-148)."""
        return self.config.queue_with_namespace(mq)

    def _pull_timeout_ms(self, block: bool, timeout_ms: float | None) -> float:
        if block:
            return self.settings.consumer_timeout_ms_when_suspend
        if timeout_ms is None:
            return self.settings.consumer_pull_timeout_ms
        check_time("timeout_ms", timeout_ms)
        return timeout_ms

    def _subscription_for(self, mq: MessageQueue, expression: Expression) -> SubscriptionData:
        selector = MessageSelector.of(expression)
        return build_subscription(
            mq.topic, selector.expression, self._clock.now_ms(), selector.expression_type
        )


def check_pull(offset: int, max_nums: int) -> None:
    """Check where and how much to pull (C-492).

    Raises:
        ConfigurationError: a negative offset, or no number of messages.
    """
    check_natural("offset", offset)
    check_positive("max_nums", max_nums)


def own_config(config: ClientConfig, model: MessageModel, clock: Clock) -> ClientConfig:
    """Return a pulling client's configuration: marked as a stream reader's, with its own id (C-17).

    In broadcasting the instance name stays as given, since offsets are kept under it (C-114).
    """
    config = replace(config, enable_stream_request_type=True)
    return config if model is MessageModel.BROADCASTING else config.with_own_instance(clock)
