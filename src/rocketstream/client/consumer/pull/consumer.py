"""The pull consumer of the sync face: every call is one the caller waits for, or a future.

Law: checks arguments, forwards to the machine on the engine's thread (upstream's
DefaultMQPullConsumer).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Final, Protocol, TypeVar, Unpack

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.arguments import checks_calls
from rocketstream.client.admin.faces import SyncAdmin
from rocketstream.client.admin.requests import MQAdmin
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.pull.base import Expression, PullConsumerBase, check_pull
from rocketstream.client.consumer.pull.impl import PullConsumerImpl
from rocketstream.client.consumer.queue_listener import QueueListener
from rocketstream.client.core.pull_result import PullResult
from rocketstream.client.instance.callbacks import CallbackExecutor
from rocketstream.client.instance.service_state import ServiceState
from rocketstream.client.instance.with_block import WithBlock
from rocketstream.client.keywords import PullConsumerKeywords
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt

T = TypeVar("T")


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
class PullConsumer(PullConsumerBase, SyncAdmin, WithBlock):
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

    def __init__(
        self,
        group: str,
        *,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Unpack[PullConsumerKeywords],
    ) -> None:
        super().__init__(group, namesrv_addr=namesrv_addr, config=config, clock=clock, **settings)

    def start(self) -> None:
        """Make the client ready; with registered topics, join the group.

        A start that fails leaves nothing behind and may be tried again.

        Raises:
            ClientStateError: started before, or the group exists in this client instance.
            ConfigurationError: no name server address.
        """
        if self._is_started_again():
            return
        with self._life.starting(self.shutdown):
            self._begin_start()
            engine, impl = self._start_threaded(self.config, self._make)
            engine.loop.call_soon_threadsafe(impl.begin)

    def shutdown(self) -> None:
        """Store what offsets were noted, leave the group, end. Does nothing unless running."""
        started = self._begin_shutdown()
        if started is not None:
            self._end_threaded(started, started.machine.shutdown())

    # --- queues -----------------------------------------------------------------------------------

    def fetch_subscribe_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return the topic's readable queues, sorted.

        Raises:
            RouteNotFoundError: the topic is unknown.
            ConnectError: no name server answered.
            ClientStateError: not running.
        """
        name = self.config.topic_with_namespace(topic)
        queues = self._call(lambda impl: impl.fetch_subscribe_message_queues(name))
        return self.config.queues_without_namespace(queues)

    def fetch_message_queues_in_balance(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a registered topic that the group has allotted to this member.

        Raises:
            ClientStateError: not running.
        """
        queues = self._machine.message_queues_in_balance(self.config.topic_with_namespace(topic))
        return self.config.queues_without_namespace(queues)

    def register_message_queue_listener(
        self, topic: str, listener: QueueListener | None = None
    ) -> None:
        """Take part in dividing a topic's queues, and have changes told; before or after start.

        Args:
            topic: topic to register.
            listener: called with topic, all its queues and this member's, on a callback thread.

        Raises:
            ConfigurationError: a bad topic name, or no such listener.
        """
        name = self._keep_listener(topic, listener)
        if self.state is ServiceState.RUNNING:
            self._call(lambda impl: impl.register_topics([name]))

    # --- pulling ----------------------------------------------------------------------------------

    def pull(
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
        return self._call(
            self._pulling(message_queue, expression, offset, max_nums, False, timeout_ms)
        )

    def pull_block_if_not_found(
        self, message_queue: MessageQueue, expression: Expression, offset: int, max_nums: int
    ) -> PullResult:
        """Pull once; the broker holds the request while there is nothing new.

        Blocks for ``broker_suspend_max_time_ms`` and the broker's own granularity.

        Raises: as ``pull``.
        """
        return self._call(self._pulling(message_queue, expression, offset, max_nums, True, None))

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
        call = self._pulling(message_queue, expression, offset, max_nums, False, timeout_ms)
        return self._submit(call, callback)

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
            self._pulling(message_queue, expression, offset, max_nums, True, None), callback
        )

    def _pulling(
        self,
        message_queue: MessageQueue,
        expression: Expression,
        offset: int,
        max_nums: int,
        block: bool,
        timeout_ms: float | None,
    ) -> Callable[[PullConsumerImpl], Coroutine[Any, Any, PullResult]]:
        inside = self._inside(message_queue)
        subscription = self._subscription_for(inside, expression)
        self._running()
        check_pull(offset, max_nums)
        timeout = self._pull_timeout_ms(block, timeout_ms)
        return lambda impl: impl.pull(
            inside, subscription, offset, max_nums, block=block, timeout_ms=timeout
        )

    def _submit(
        self,
        call: Callable[[PullConsumerImpl], Coroutine[Any, Any, PullResult]],
        callback: AnyCallback | None,
    ) -> Future[PullResult]:
        if callback is None:
            raise ConfigurationError("callback must be a function or a PullCallback, not None")
        engine, impl = self._running()
        assert engine.thread is not None
        future = engine.thread.submit(call(impl))
        if callback is not _NONE_GIVEN:
            function = callback if callable(callback) else _adapted(callback)
            callbacks = engine.instance.callbacks
            future.add_done_callback(lambda done: _call_back(callbacks, function, done))
        return future

    # --- offsets ----------------------------------------------------------------------------------

    def fetch_consume_offset(self, message_queue: MessageQueue, from_store: bool = False) -> int:
        """Return the group's offset of a queue, -1 if there is none.

        Args:
            message_queue: the queue.
            from_store: ask the store even if an offset was noted here; that stays noted.

        Raises:
            RocketMQError: the store cannot be asked.
            ClientStateError: not running.
        """
        inside = self._inside(message_queue)
        return self._call(lambda impl: impl.fetch_consume_offset(inside, from_store=from_store))

    def update_consume_offset(self, message_queue: MessageQueue, offset: int) -> None:
        """Note where the group is; stored by the timer, or at shutdown.

        Raises:
            ClientStateError: not running.
        """
        inside = self._inside(message_queue)
        impl = self._machine
        impl.update_consume_offset(inside, offset)

    def update_consume_offset_to_broker(self, message_queue: MessageQueue, offset: int) -> None:
        """Note where the group is and have the broker store it now.

        Raises:
            RocketMQError: the broker did not store it.
            ClientStateError: not running.
        """
        inside = self._inside(message_queue)
        self._call(lambda impl: impl.update_consume_offset_to_broker(inside, offset))

    def persist_consumer_offset(self) -> None:
        """Store every noted offset now; a failure is logged and tried again by the timer.

        Raises:
            ClientStateError: not running.
        """
        self._call(lambda impl: impl.persist_offsets())

    # --- send-back --------------------------------------------------------------------------------

    def send_message_back(
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
        self._call(lambda impl: impl.send_message_back(message, delay_level, broker_name, group))

    # --- inside -----------------------------------------------------------------------------------

    def _ask(self, question: Callable[[MQAdmin], Coroutine[Any, Any, T]]) -> T:
        return self._call(lambda impl: question(impl.admin))

    def _call(self, call: Callable[[PullConsumerImpl], Coroutine[Any, Any, T]]) -> T:
        engine, impl = self._running()
        return engine.run(call(impl))


def _call_back(
    callbacks: CallbackExecutor,
    function: Callable[[Future[PullResult]], object],
    done: Future[PullResult],
) -> None:
    try:
        callbacks.submit(function, done)
    except ClientStateError:  # shut down meanwhile: there are no callback threads any more
        function(done)


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
