"""The consumer of lite topics of the sync face: the machine on a thread of its own.

Law: starts, stops and forwards (Java's ``LitePushConsumer``, RIP-83).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Unpack

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.arguments import checks_calls
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.listener_faces import ListenerConsumer
from rocketstream.client.consumer.lite_topics.base import (
    LitePushConsumerBase,
    checked_names,
    checked_option,
)
from rocketstream.client.consumer.lite_topics.context import LiteTopicListener
from rocketstream.client.consumer.lite_topics.impl import LitePushConsumerImpl, start_lite
from rocketstream.client.core.lite_settings import OffsetOption
from rocketstream.client.keywords import LitePushConsumerKeywords
from rocketstream.errors import ConfigurationError


@checks_calls()
class LitePushConsumer(LitePushConsumerBase, ListenerConsumer[LitePushConsumerImpl]):
    """Consumes lite topics, each in order; a ``with`` block starts it and shuts it down.

    Lite topics (RIP-83) are queues below a parent topic that exist as soon as something is sent to
    them: one for each agent, session or user, as many as a hundred thousand. Not to be confused
    with ``LitePullConsumer``, which polls ordinary topics. It takes brokers from 5.5 on; see
    docs/lite-topics.md for how they, the topic and the group are set up.

    Each message is consumed at least once. The listener gets messages of one lite topic at a time
    and returns ``ConsumeConcurrentlyStatus.CONSUME_SUCCESS``; only then is a message acknowledged.
    What it fails comes again after ``suspend_ms``, and with it what follows in its lite topic,
    without end: ``message.reconsume_times`` tells how often. One that returns None has failed.

    Args:
        group: consumer group, bound to the parent topic by its attribute ``lite.bind.topic``.
        bind_topic: the parent topic.
        namesrv_addr: ``host:port``, several joined by ``;``; None takes NAMESRV_ADDR.
        config: settings shared by all clients; ``namesrv_addr`` overrides its address.
        listener: as ``register_message_listener``.
        lite_topics: subscribed from the start, as by ``subscribe_lite``.
        clock: where time comes from.
        **settings: those of ``LitePushConsumerSettings`` and any of ``ClientConfig``. Among them
            ``consume_thread_max`` (20), ``consume_message_batch_max_size`` (1),
            ``max_cache_message_count`` (1024), ``max_cache_message_size`` (64 MiB),
            ``invisible_ms`` (60000), ``suspend_ms`` (1000), ``consume_timeout_minutes`` (15),
            ``await_termination_ms_when_shutdown`` (30000).

    Raises:
        ConfigurationError: a setting out of its range, or a name that cannot be one.
    """

    def __init__(
        self,
        group: str,
        bind_topic: str,
        *,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        listener: LiteTopicListener | None = None,
        lite_topics: Iterable[str] = (),
        clock: Clock = SYSTEM_CLOCK,
        **settings: Unpack[LitePushConsumerKeywords],
    ) -> None:
        super().__init__(
            group,
            bind_topic,
            namesrv_addr=namesrv_addr,
            config=config,
            listener=listener,
            lite_topics=lite_topics,
            clock=clock,
            **settings,
        )

    def register_message_listener(self, listener: LiteTopicListener) -> None:
        """Set what consumes the messages; before ``start``.

        Args:
            listener: ``f(messages)`` or ``f(messages, context)``, or an object with such a method
                ``consume_message``; ``context`` is a ``LiteTopicContext``. Whatever it returns
                besides CONSUME_SUCCESS, and whatever it raises, counts as RECONSUME_LATER.

        Raises:
            ConfigurationError: not such a callable, or an orderly listener.
            ClientStateError: started already.
        """
        self._set_listener(listener)

    def start(self) -> None:
        """Subscribe at every broker of the parent topic, and begin to consume.

        Blocks for a few requests, and one for each lite topic there is from the start. A start that
        fails leaves nothing behind and may be tried again.

        Raises:
            ConnectError: no name server answered, or none of the brokers.
            RouteNotFoundError: the parent topic does not exist.
            NotSupportedError: a broker of it has no lite topics; the text says what it takes.
            LiteTopicSetupError: topic or group are not made for lite topics; the text says how.
            ClientStateError: started before, or the group exists in this client instance.
            ConfigurationError: no listener, a coroutine listener, or no name server address.
        """
        if self._is_started_again():
            return
        with self._life.starting(self.shutdown):
            plan = self._begin_start()
            if plan.listener.is_async:
                raise ConfigurationError(
                    "the listener is a coroutine function; use rocketstream.aio.LitePushConsumer"
                )
            self._start_threaded(self.config, partial(start_lite, plan))

    def subscribe_lite(
        self, lite_topic: str | Iterable[str], offset_option: OffsetOption | None = None
    ) -> None:
        """Consume one lite topic, or several; those subscribed already are passed over.

        The group goes on where it was; where it never was it begins at the oldest message. To know
        which of the two, brokers are asked about each name, some thousands a second. Brokers out of
        reach are told when they are back.

        Args:
            lite_topic: a name, or several.
            offset_option: moves the group there instead, whatever it has consumed, and asks
                nothing; every broker must then be in reach.

        Raises:
            ConfigurationError: a name that cannot be one, or no ``OffsetOption``.
            LiteSubscriptionQuotaError: the broker's clients have subscribed as many as they may.
            BrokerError: a broker refuses; none of the names is subscribed then.
            TransportError: no broker could be reached; likewise.
            ClientStateError: not running.
        """
        names, option = checked_names(lite_topic), checked_option(offset_option)
        engine, impl = self._running()
        engine.run(impl.subscribe(names, option))

    def unsubscribe_lite(self, lite_topic: str | Iterable[str]) -> None:
        """Consume one lite topic no more, or several; what a listener has begun is finished.

        Raises:
            ConfigurationError: a name that cannot be one.
            BrokerError: a broker refuses.
            TransportError: no broker could be reached; they forget the names within a minute.
            ClientStateError: not running.
        """
        names = checked_names(lite_topic)
        engine, impl = self._running()
        engine.run(impl.unsubscribe(names))
