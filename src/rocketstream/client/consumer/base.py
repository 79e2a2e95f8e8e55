"""Configuration, group, settings and hooks of every kind of consumer, and the end of listeners."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from rocketstream._util.clock import Clock
from rocketstream._util.waiting import Latch
from rocketstream.checks import check_range, checks_calls
from rocketstream.client.config import ClientConfig, client_config
from rocketstream.client.consumer.listener import Listener
from rocketstream.client.consumer.settings import (
    LitePullConsumerSettings,
    LitePushConsumerSettings,
    PullConsumerSettings,
    PushConsumerSettings,
)
from rocketstream.client.consumer.subscription import subscription_of
from rocketstream.client.hooks import (
    ConsumeHooks,
    ConsumeMessageHook,
    FilterHooks,
    FilterMessageHook,
)
from rocketstream.client.instance.life_cycle import (
    AsyncClient,
    Client,
    ServiceState,
    SyncClient,
)
from rocketstream.client.keyword_settings import settings_of
from rocketstream.client.trace import CONSUME, TRACE_SETTINGS, Tracing, tracing_of
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.model import MessageModel, MessageSelector
from rocketstream.protocol.bodies import SubscriptionData
from rocketstream.protocol.subscription import EXPRESSION_TAG

logger: logging.Logger = logging.getLogger("rocketstream.client")


M = TypeVar("M")
S = TypeVar(
    "S",
    bound=PushConsumerSettings
    | PullConsumerSettings
    | LitePullConsumerSettings
    | LitePushConsumerSettings,
)


class ConsumerBase(Client[M], Generic[M, S]):
    """A consumer with its machine ``M`` and its settings ``S``."""

    _keywords: ClassVar[tuple[str, ...]] = ()
    """Names its constructor takes besides settings, ``config`` and ``clock``."""
    _is_traced: ClassVar[bool] = True
    """Whether it takes the settings of message trace."""

    settings: S
    consume_hooks: ConsumeHooks
    filter_hooks: FilterHooks
    """Of a consumer that pulls queues; the others have none."""

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

    def _settings_kinds(self) -> tuple[type[Any], ...]:
        return type(self.settings), ClientConfig

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


def register_filter_message_hook(self: ConsumerBase[Any, Any], hook: FilterMessageHook) -> None:
    """Let ``hook`` drop messages after each pull, on the network thread."""
    self.filter_hooks.register(hook)


def own_config(config: ClientConfig, model: MessageModel, clock: Clock) -> ClientConfig:
    """Return a pulling client's configuration: marked as a stream reader's, with its own id (C-17).

    In broadcasting the instance name stays as given, since offsets are kept under it (C-114).
    """
    config = replace(config, enable_stream_request_type=True)
    return config if model is MessageModel.BROADCASTING else config.with_own_instance(clock)


# --- with a listener ------------------------------------------------------------------------------


class ListenerMachine(Protocol):
    """The machine of such a consumer, while it runs."""

    def shutdown(
        self, await_ms: float | None, caller: int | None = None
    ) -> Coroutine[Any, Any, object]:
        """End; wait ``await_ms`` for running listeners, not for one on the thread ``caller``.

        None waits for as long as the settings say.
        """
        ...


L = TypeVar("L", bound=ListenerMachine)


@checks_calls()
class ListenerConsumer(SyncClient[L]):
    """A consumer of the sync face that calls a listener until it is shut down."""

    _works_alone = True

    def _create(self, clock: Clock) -> None:
        super()._create(clock)
        self._ended = Latch()

    def _begin_start(self) -> Listener:
        listener: Listener = super()._begin_start()
        if listener.is_async:
            raise ConfigurationError(
                f"the listener is a coroutine function; use rocketstream.aio.{self._kind}"
            )
        return listener

    def shutdown(self, await_ms: float | None = None) -> None:
        """Stop, so that nothing is lost and nothing finished is repeated.

        Nothing more is fetched, running listeners are waited for, what they finished is told to the
        brokers, then the group's other members. A message that no listener has finished is consumed
        again by the next owner of its queue; that includes the batch of a listener that calls this
        itself. Does nothing unless running.

        Args:
            await_ms: how long to wait for running listeners; by default
                ``await_termination_ms_when_shutdown``. Listeners that take longer are left behind.
        """
        if await_ms is not None:
            check_range("await_ms", await_ms, 0, hint=float)
        started = self._begin_shutdown()
        if started is None:
            return
        try:
            self._end_threaded(started, started.machine.shutdown(await_ms, threading.get_ident()))
        finally:
            self._ended.open()

    def wait(self, timeout_ms: float | None = None) -> bool:
        """Wait until the consumer has been shut down, by another thread or a signal handler.

        What a program whose listener does all the work has left to do. Ctrl-C raises
        KeyboardInterrupt here at once; leaving the ``with`` block then shuts the consumer down.
        Outages end nothing: the consumer goes on when the servers are back.

        Args:
            timeout_ms: how long to wait; by default for ever.

        Returns:
            Whether it has been shut down, all of it: listeners have ended, brokers have been told.

        Raises:
            ClientStateError: not started, or called on the network thread, which would stand still.
        """
        if timeout_ms is not None:
            check_range("timeout_ms", timeout_ms, 0, hint=float)
        if self.state is not ServiceState.SHUTDOWN_ALREADY:
            engine = self._running()[0]
            if threading.get_ident() == engine.loop_thread_id:
                raise ClientStateError(
                    "wait() would block the network thread it was called on; call it on "
                    "another thread"
                )
        return self._ended.wait(timeout_ms)


@checks_calls()
class AsyncListenerConsumer(AsyncClient[L]):
    """A consumer of the asyncio face that calls a listener until it is shut down."""

    async def shutdown(self, await_ms: float | None = None) -> None:
        """Stop, so that nothing is lost and nothing finished is repeated.

        Ends a start under way, waits for another end under way; else does nothing unless running.
        A listener may await this, and is not waited for then. To bound that use
        ``asyncio.timeout``: before Python 3.12 ``asyncio.wait_for`` calls in a task of its own, and
        the listener would wait for itself.

        Args:
            await_ms: how long to wait for running listeners; by default
                ``await_termination_ms_when_shutdown``. Coroutines that take longer are cancelled.
        """
        if await_ms is not None:
            check_range("await_ms", await_ms, 0, hint=float)
        started = await self._to_end()
        if started is not None:
            await self._end_here(started, started.machine.shutdown(await_ms))

    async def wait(self, timeout_ms: float | None = None) -> bool:
        """Wait until the consumer has been shut down; see ``rocketstream.PushConsumer.wait``.

        Ctrl-C cancels it, as it does whatever ``asyncio.run`` runs.
        """
        if timeout_ms is not None:
            check_range("timeout_ms", timeout_ms, 0, hint=float)
        if self.state is not ServiceState.SHUTDOWN_ALREADY:
            self._running()
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                await self._over.wait()
        except TimeoutError:
            return False
        return True
