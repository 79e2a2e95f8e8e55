"""The consumer of lite topics (Java's ``LitePushConsumer``, RIP-83)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, ClassVar, Final, Unpack

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.checks import checks_calls
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.base import (
    AsyncListenerConsumer,
    ConsumerBase,
    ListenerConsumer,
)
from rocketstream.client.consumer.listener import NO_LISTENER, Listener, listener_of
from rocketstream.client.consumer.lite_topics.impl import LitePushConsumerImpl
from rocketstream.client.consumer.lite_topics.service import AnyLiteTopicListener, LiteTopicListener
from rocketstream.client.consumer.settings import LitePushConsumerSettings, OffsetOption
from rocketstream.client.hooks import client_made
from rocketstream.client.instance.engine import Engine
from rocketstream.client.instance.life_cycle import ServiceState, blocking, starting
from rocketstream.client.keywords import LitePushConsumerKeywords
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.model import check_lite_topic
from rocketstream.protocol.names import check_topic


class LitePushConsumerBase(ConsumerBase[LitePushConsumerImpl, LitePushConsumerSettings]):
    """Both faces: settings, listener, the lite topics to begin with."""

    bind_topic: str

    _kind = "LitePushConsumer"
    _keywords = ("bind_topic", "listener", "lite_topics")

    def __init__(
        self,
        group: str,
        bind_topic: str,
        *,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        listener: AnyLiteTopicListener | None = None,
        lite_topics: Iterable[str] = (),
        clock: Clock = SYSTEM_CLOCK,
        **settings: Unpack[LitePushConsumerKeywords],
    ) -> None:
        super().__init__(LitePushConsumerSettings, group, namesrv_addr, config, clock, {**settings})
        check_topic(bind_topic, "bind_topic")
        self.bind_topic = bind_topic
        self._from_start = checked_names(lite_topics)
        self._listener: Listener | None = None
        if listener is not None:
            self._set_listener(listener)
        client_made(self)

    @property
    def lite_topics(self) -> frozenset[str]:
        """The lite topics subscribed; those another member has taken over are left out."""
        if self.state is ServiceState.RUNNING:
            return self._machine.topics.wanted
        return frozenset(self._from_start)

    def _set_listener(self, listener: object) -> None:
        if self.state is not ServiceState.CREATE_JUST:
            raise ClientStateError("the listener is set before start()")
        found = listener_of(listener)
        if found.is_orderly:
            raise ConfigurationError(
                "a lite topic is consumed in order by any listener; give one that is not a "
                "MessageListenerOrderly and returns ConsumeConcurrentlyStatus"
            )
        self._listener = found

    def _shown(self) -> dict[str, list[str]]:
        return {"bind_topic": [self.bind_topic]}

    def _lacks(self) -> tuple[str, ...]:
        return () if self._listener is not None else ("listener",)

    def _begin_start(self) -> Listener:
        self._check_new()
        if self._listener is None:
            raise ConfigurationError(f"{NO_LISTENER} (Java: messageListener is null)")
        self.config.name_servers()
        return self._listener

    async def _make(self, engine: Engine) -> LitePushConsumerImpl:
        assert self._listener is not None
        config = engine.instance.config
        impl = LitePushConsumerImpl(
            engine.instance,
            replace(self.settings, consumer_group=config.with_namespace(self.group)),
            config.with_namespace(self.bind_topic),
            self._listener,
            self.consume_hooks,
            self._tracing,
        )
        await impl.start(self._from_start)
        return impl


def checked_names(lite_topics: Iterable[str]) -> list[str]:
    """Return the names of lite topics, given as one or several, each checked.

    Raises:
        ConfigurationError: one of them is not a name of a lite topic, or neither was given.
    """
    if isinstance(lite_topics, str):
        names = [lite_topics]
    elif isinstance(lite_topics, Iterable):
        names = list(lite_topics)
    else:
        raise ConfigurationError(
            f"lite topics are given as a str, or several of them; given is {lite_topics!r}"
        )
    for name in names:
        check_lite_topic(name)
    return names


def checked_option(option: object) -> OffsetOption | None:
    """Return where a group is to go on.

    Raises:
        ConfigurationError: it is not an ``OffsetOption``.
    """
    if option is None or isinstance(option, OffsetOption):
        return option
    raise ConfigurationError(
        f"offset_option must be an OffsetOption, such as OffsetOption.MIN_OFFSET, not {option!r}"
    )


@checks_calls()
class AsyncLitePushConsumer(LitePushConsumerBase, AsyncListenerConsumer[LitePushConsumerImpl]):
    """Consumes lite topics, each in order; ``async with`` starts it and shuts it down.

    Arguments, settings and errors are those of ``rocketstream.LitePushConsumer``. A coroutine
    listener is awaited on the caller's loop, at most ``consume_thread_max`` calls at once, each for
    another lite topic; a plain function is called on worker threads.
    """

    def register_message_listener(self, listener: AnyLiteTopicListener) -> None:
        """Set what consumes the messages; may be a coroutine function."""
        self._set_listener(listener)

    async def start(self) -> None:
        """Subscribe at every broker of the parent topic, and begin to consume.

        Takes a few requests, and one for each lite topic there is from the start. A start that
        fails leaves nothing behind and may be tried again.

        Raises:
            ConnectError: no name server answered, or none of the brokers.
            RouteNotFoundError: the parent topic does not exist.
            NotSupportedError: a broker of it has no lite topics; the text says what it takes.
            LiteTopicSetupError: topic or group are not made for lite topics; the text says how.
            ClientStateError: started before, or the group exists in this client instance.
            ConfigurationError: no listener, or no name server address.
        """
        await self._start_and_await()

    async def subscribe_lite(
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
        await self._machine.brokers.add(names, option)

    async def unsubscribe_lite(self, lite_topic: str | Iterable[str]) -> None:
        """Consume one lite topic no more, or several; what a listener has begun is finished.

        Raises:
            ConfigurationError: a name that cannot be one.
            BrokerError: a broker refuses.
            TransportError: no broker could be reached; they forget the names within a minute.
            ClientStateError: not running.
        """
        await self._machine.unsubscribe(checked_names(lite_topic))


@checks_calls()
class LitePushConsumer(ListenerConsumer[LitePushConsumerImpl], LitePushConsumerBase):
    """Consumes lite topics, each in order; a ``with`` block starts it and shuts it down.

    Lite topics (RIP-83) are queues below a parent topic that exist as soon as something is sent to
    them: one for each agent, session or user, as many as a hundred thousand. Not to be confused
    with ``LitePullConsumer``, which polls ordinary topics. It takes brokers from 5.5 on; see
    docs/lite-topics.md for how they, the topic and the group are set up.

    Each message is consumed at least once. The listener gets messages of one lite topic at a time
    and returns ``ConsumeConcurrentlyStatus.CONSUME_SUCCESS``; only then is a message acknowledged.
    A message it fails comes again after ``suspend_ms``, with the next ones of its lite topic and
    without end: ``message.reconsume_times`` tells how often. A listener that returns None has
    failed its messages.

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
                ``consume_message``; ``context`` is a ``LiteTopicContext``. Any result besides
                CONSUME_SUCCESS, and any exception, counts as RECONSUME_LATER.

        Raises:
            ConfigurationError: not such a callable, or an orderly listener.
            ClientStateError: started already.
        """
        self._set_listener(listener)

    start: ClassVar[Callable[[Any], None]] = starting(AsyncLitePushConsumer.start)
    subscribe_lite: Final = blocking(AsyncLitePushConsumer.subscribe_lite)
    unsubscribe_lite: Final = blocking(AsyncLitePushConsumer.unsubscribe_lite)
