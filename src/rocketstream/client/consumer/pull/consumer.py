"""The pull consumer: single pulls of queues the caller chooses (Java's DefaultMQPullConsumer)."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, ClassVar, Final, Protocol, TypeVar, Unpack

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.checks import check_range, checks_calls
from rocketstream.client.admin.requests import AsyncAdmin, MQAdmin, SyncAdmin
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.base import (
    ConsumerBase,
    own_config,
    register_filter_message_hook,
)
from rocketstream.client.consumer.offsets.store import Offsets
from rocketstream.client.consumer.offsets.user_store import checked_store, open_store
from rocketstream.client.consumer.pull.impl import PullConsumerImpl
from rocketstream.client.consumer.pull_answer import PullResult
from rocketstream.client.consumer.settings import PullConsumerSettings
from rocketstream.client.consumer.subscription import (
    Expression,
    QueueListener,
    listener_function,
    topic_queues,
)
from rocketstream.client.hooks import FilterHooks, client_made
from rocketstream.client.instance.background import call_back
from rocketstream.client.instance.engine import Engine
from rocketstream.client.instance.life_cycle import (
    AsyncClient,
    ServiceState,
    SyncClient,
    blocking,
    starting,
)
from rocketstream.client.keywords import PullConsumerKeywords
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.model import MessageQueue, MessageSelector
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.subscription import build_subscription

T = TypeVar("T")


@checks_calls()
class PullConsumerBase(ConsumerBase[PullConsumerImpl, PullConsumerSettings]):
    """Both faces: settings, state, and the calls that wait for nothing."""

    _kind = "PullConsumer"
    _is_traced = False

    register_filter_message_hook = register_filter_message_hook

    def __init__(
        self,
        group: str,
        *,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Unpack[PullConsumerKeywords],
    ) -> None:
        super().__init__(PullConsumerSettings, group, namesrv_addr, config, clock, {**settings})
        self.filter_hooks: FilterHooks = FilterHooks()
        checked_store(self.settings.offset_store)
        self._listeners: dict[str, QueueListener | None] = {
            self.config.with_namespace(topic): None for topic in self.settings.register_topics
        }
        if self.settings.message_queue_listener is not None:
            listener_function(self.settings.message_queue_listener)
        client_made(self)

    @property
    def register_topics(self) -> set[str]:
        """The topics whose queues the group divides, and that heartbeats report (C-54)."""
        return {self.config.without_namespace(topic) for topic in self._listeners}

    def fetch_message_queues_in_balance(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a registered topic that the group has allotted to this member.

        None of a topic that is not in ``register_topics``, nor before the first rebalance.

        Raises:
            ClientStateError: not running.
        """
        queues = self._machine.message_queues_in_balance(self.config.topic_with_namespace(topic))
        return self.config.queues_without_namespace(queues)

    def update_consume_offset(self, message_queue: MessageQueue, offset: int) -> None:
        """Note where the group is; stored by the timer, or at shutdown.

        Of a registered topic's queue that the group gave to another member, it is stored only where
        that member is not further.

        Raises:
            ClientStateError: not running.
        """
        self._machine.update_consume_offset(self._inside(message_queue), offset)
        self._running()  # the shutdown by another thread may have stored what was noted before

    # --- inside -----------------------------------------------------------------------------------

    def _config_of(self, shared: ClientConfig, clock: Clock) -> ClientConfig:
        return own_config(shared, self.settings.message_model, clock)

    def _shown(self) -> dict[str, list[str]]:
        return {"topics": sorted(map(self.config.without_namespace, list(self._listeners)))}

    async def _make(self, engine: Engine) -> PullConsumerImpl:
        group = self.config.with_namespace(self.group)
        store: Offsets = await open_store(
            engine, group, self.settings.message_model, self.settings.offset_store
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

    @staticmethod
    def _set_to_work(machine: PullConsumerImpl) -> None:
        machine.begin()

    def _admin(self) -> MQAdmin:
        return self._machine.admin

    def _inside(self, mq: MessageQueue) -> MessageQueue:
        """Return a queue as the servers know it (C-148)."""
        return self.config.queue_with_namespace(mq)

    def _pulling(
        self,
        message_queue: MessageQueue,
        expression: Expression,
        offset: int,
        max_nums: int,
        block: bool,
        timeout_ms: float | None = None,
    ) -> Coroutine[Any, Any, PullResult]:
        """Check the arguments of a pull (C-492); return it, to be awaited on the loop."""
        inside, selector = self._inside(message_queue), MessageSelector.of(expression)
        subscription = build_subscription(
            inside.topic, selector.expression, self._clock.now_ms(), selector.expression_type
        )
        impl = self._machine
        check_range("offset", offset, 0)
        check_range("max_nums", max_nums, 1)
        if block:
            timeout_ms = self.settings.consumer_timeout_ms_when_suspend
        elif timeout_ms is None:
            timeout_ms = self.settings.consumer_pull_timeout_ms
        else:
            check_range("timeout_ms", timeout_ms, 0, hint=float)
        return impl.pull(inside, subscription, offset, max_nums, block=block, timeout_ms=timeout_ms)


@checks_calls("pull", "pull_block_if_not_found")
class AsyncPullConsumer(PullConsumerBase, AsyncAdmin, AsyncClient[PullConsumerImpl]):
    """Pulls queues the caller chooses from offsets the caller keeps.

    Arguments, settings and errors are those of ``rocketstream.PullConsumer``; listeners may be
    coroutine functions.
    """

    async def start(self) -> None:
        """Make the client ready; with registered topics, join the group.

        A start that fails leaves nothing behind and may be tried again.

        Raises:
            ClientStateError: started before, or the group exists in this client instance.
            ConfigurationError: no name server address.
        """
        await self._start_and_await()

    async def shutdown(self) -> None:
        """Store what offsets were noted, leave the group, end.

        Ends a start under way, waits for another end under way; else does nothing unless running.
        """
        started = await self._to_end()
        if started is not None:
            await self._end_here(started, started.machine.shutdown())

    # --- queues -----------------------------------------------------------------------------------

    async def fetch_subscribe_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return the topic's readable queues, sorted.

        Raises:
            RouteNotFoundError: the topic is unknown.
            ConnectError: no name server answered.
            ClientStateError: not running.
        """
        name = self.config.topic_with_namespace(topic)
        impl = self._machine
        afresh = name not in impl.subscribed_topics()
        queues = await topic_queues(impl.instance, name, afresh=afresh)
        return self.config.queues_without_namespace(queues)

    async def register_message_queue_listener(
        self, topic: str, listener: QueueListener | None = None
    ) -> None:
        """Take part in dividing a topic's queues, and have changes told; before or after start.

        Args:
            topic: topic to register.
            listener: called with topic, all its queues and this member's, on a callback thread.

        Raises:
            ConfigurationError: a bad topic name, or no such listener.
        """
        name = self.config.topic_with_namespace(topic)
        if listener is not None:
            listener_function(listener)
        self._listeners[name] = listener
        if self.state is ServiceState.RUNNING:
            await self._machine.register_topics([name])

    # --- pulling ----------------------------------------------------------------------------------

    async def pull(
        self,
        message_queue: MessageQueue,
        expression: Expression,
        offset: int,
        max_nums: int,
        timeout_ms: float | None = None,
    ) -> PullResult:
        """Pull once; an empty queue is answered at once.

        Args:
            message_queue: queue to pull.
            expression: tags (``TagA || TagB``), ``*`` or None for all, or a ``MessageSelector``.
            offset: where to begin.
            max_nums: how many messages at most; brokers give 32 at most by default.
            timeout_ms: bound of the request; by default ``consumer_pull_timeout_ms``.

        Raises:
            ConfigurationError: no queue, a negative offset, no number, or a bad expression.
            BrokerError: the broker refuses.
            TransportError: no connection, or no answer in time.
            ClientStateError: not running.
        """
        return await self._pulling(message_queue, expression, offset, max_nums, False, timeout_ms)

    async def pull_block_if_not_found(
        self, message_queue: MessageQueue, expression: Expression, offset: int, max_nums: int
    ) -> PullResult:
        """Pull once; the broker holds the request while there is nothing new.

        Blocks for ``broker_suspend_max_time_ms`` and the broker's own granularity.

        Raises: as ``pull``.
        """
        return await self._pulling(message_queue, expression, offset, max_nums, True)

    # --- offsets ----------------------------------------------------------------------------------

    async def fetch_consume_offset(
        self, message_queue: MessageQueue, from_store: bool = False
    ) -> int:
        """Return the group's offset of a queue, -1 if there is none; a broker may tell 0 instead.

        It does so while the queue's first message is there and young (C-195).

        Args:
            message_queue: the queue.
            from_store: ask the store even if an offset was noted here; that stays noted.

        Raises:
            RocketMQError: the store cannot be asked.
            ClientStateError: not running.
        """
        inside = self._inside(message_queue)
        return await self._machine.fetch_consume_offset(inside, from_store=from_store)

    async def update_consume_offset_to_broker(
        self, message_queue: MessageQueue, offset: int
    ) -> None:
        """Note where the group is and have the broker store it now.

        Raises:
            RocketMQError: the broker did not store it.
            ClientStateError: not running.
        """
        await self._machine.update_consume_offset_to_broker(self._inside(message_queue), offset)

    async def persist_consumer_offset(self) -> None:
        """Store every noted offset now; a failure is logged and tried again by the timer.

        Raises:
            ClientStateError: not running.
        """
        await self._machine.persist_offsets()

    # --- send-back --------------------------------------------------------------------------------

    async def send_message_back(
        self,
        message: MessageExt,
        delay_level: int,
        broker_name: str | None = None,
        consumer_group: str | None = None,
    ) -> None:
        """Have a message delivered again, to the retry topic of a group.

        Args:
            message: a message pulled before.
            delay_level: the broker's delay level, 0 for one that grows with each try, -1 to give
                the message up.
            broker_name: who stores the message; None: who it came from.
            consumer_group: whose retry topic; None: this group's.

        Raises:
            SendError: the broker refused and sending it anew failed too.
            ClientStateError: not running.
        """
        group = None if not consumer_group else self.config.with_namespace(consumer_group)
        await self._machine.send_message_back(message, delay_level, broker_name, group)

    # --- inside -----------------------------------------------------------------------------------


class PullCallback(Protocol):
    """Gets the outcome of one pull, on one of the client's callback threads."""

    def on_success(self, pull_result: PullResult) -> object:
        """The pull was answered, with any of the four statuses."""
        ...

    def on_exception(self, error: BaseException) -> object:
        """The pull failed."""
        ...


AnyCallback = PullCallback | Callable[["Future[PullResult]"], object]
_NONE_GIVEN: Final = object()


@checks_calls("pull", "pull_block_if_not_found", "pull_async", "pull_block_if_not_found_async")
class PullConsumer(PullConsumerBase, SyncAdmin, SyncClient[PullConsumerImpl]):
    """Pulls queues the caller chooses from offsets the caller keeps; thread safe.

    A ``with`` block starts it and shuts it down. The expression goes along with every pull, so
    nothing is subscribed. Continue at ``PullResult.next_begin_offset`` whatever the
    status. Messages sent back go to the group's retry topic, which nobody consumes unless the
    caller does.

    Args:
        group: consumer group, 1 to 248 characters of ``[%|a-zA-Z0-9_-]``.
        namesrv_addr: ``host:port``, several joined by ``;``; None takes NAMESRV_ADDR.
        config: settings shared by all clients; ``namesrv_addr`` overrides its address.
        clock: where time comes from.
        **settings: upstream's: ``broker_suspend_max_time_ms`` (20000),
            ``consumer_timeout_ms_when_suspend`` (30000, not less), ``consumer_pull_timeout_ms``
            (10000), ``message_model``, ``allocate_message_queue_strategy``, ``register_topics``,
            ``message_queue_listener``, ``max_reconsume_times`` (16), ``unit_mode``,
            ``offset_store``, ``check_crc`` (True: pulling a damaged message is an error).

    Raises:
        ConfigurationError: a setting out of its range; the text names it and the range.
    """

    start: ClassVar[Callable[[Any], None]] = starting(AsyncPullConsumer.start)
    fetch_subscribe_message_queues: Final = blocking(
        AsyncPullConsumer.fetch_subscribe_message_queues
    )
    register_message_queue_listener: Final = blocking(
        AsyncPullConsumer.register_message_queue_listener
    )
    pull: Final = blocking(AsyncPullConsumer.pull)
    pull_block_if_not_found: Final = blocking(AsyncPullConsumer.pull_block_if_not_found)
    fetch_consume_offset: Final = blocking(AsyncPullConsumer.fetch_consume_offset)
    update_consume_offset_to_broker: Final = blocking(
        AsyncPullConsumer.update_consume_offset_to_broker
    )
    persist_consumer_offset: Final = blocking(AsyncPullConsumer.persist_consumer_offset)
    send_message_back: Final = blocking(AsyncPullConsumer.send_message_back)

    def shutdown(self) -> None:
        """Store what offsets were noted, leave the group, end. Does nothing unless running."""
        started = self._begin_shutdown()
        if started is not None:
            self._end_threaded(started, started.machine.shutdown())

    def pull_async(
        self,
        message_queue: MessageQueue,
        expression: Expression,
        offset: int,
        max_nums: int,
        callback: AnyCallback | None = _NONE_GIVEN,  # type: ignore[assignment]
        timeout_ms: float | None = None,
    ) -> Future[PullResult]:
        """As ``pull``, without waiting.

        Args:
            message_queue: as in ``pull``.
            expression: as in ``pull``.
            offset: as in ``pull``.
            max_nums: as in ``pull``.
            callback: called on a callback thread with the future, or an object with
                ``on_success(pull_result)`` and ``on_exception(error)``.
            timeout_ms: as in ``pull``.

        Raises:
            ConfigurationError: as ``pull``, or a callback that is None.
            ClientStateError: not running.
        """
        pulling = self._pulling(message_queue, expression, offset, max_nums, False, timeout_ms)
        return self._submit(pulling, callback)

    def pull_block_if_not_found_async(
        self,
        message_queue: MessageQueue,
        expression: Expression,
        offset: int,
        max_nums: int,
        callback: AnyCallback | None = _NONE_GIVEN,  # type: ignore[assignment]
    ) -> Future[PullResult]:
        """As ``pull_block_if_not_found``, without waiting; see ``pull_async``."""
        return self._submit(
            self._pulling(message_queue, expression, offset, max_nums, True), callback
        )

    def _submit(
        self, pulling: Coroutine[Any, Any, PullResult], callback: AnyCallback | None
    ) -> Future[PullResult]:
        if callback is None:
            pulling.close()
            raise ConfigurationError("callback must be a function or a PullCallback, not None")
        try:
            engine = self._running().engine
        except BaseException:  # shut down meanwhile
            pulling.close()
            raise
        future = engine.submit(pulling)
        if callback is not _NONE_GIVEN:
            function = callback if callable(callback) else _adapted(callback)
            callbacks = engine.instance.callbacks
            future.add_done_callback(partial(call_back, callbacks, "pull_async", function))
        return future


def _adapted(callback: PullCallback) -> Callable[[Future[PullResult]], object]:
    def tell(done: Future[PullResult]) -> object:
        try:
            result = done.result()
        except CancelledError:
            why = "the client was shut down before the pull was answered"
            return callback.on_exception(ClientStateError(why))
        except BaseException as error:
            return callback.on_exception(error)
        return callback.on_success(result)

    return tell
