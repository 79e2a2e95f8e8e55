"""The lite pull consumer of the sync face: ``poll`` it, or iterate over it.

Law: checks arguments and forwards; waits for messages on the caller's thread (upstream's
DefaultLitePullConsumer).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from threading import TIMEOUT_MAX
from typing import Any, TypeVar, Unpack

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.arguments import checks_calls
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.lite.base import LitePullConsumerBase
from rocketstream.client.consumer.lite.impl import LitePullConsumerImpl
from rocketstream.client.consumer.pull.base import Expression
from rocketstream.client.consumer.queue_listener import QueueListener, TopicQueueListener
from rocketstream.client.core.lite_pull import LiteQueue
from rocketstream.client.instance.engine import Engine
from rocketstream.client.instance.service_state import ServiceState
from rocketstream.client.instance.with_block import WithBlock
from rocketstream.client.keywords import LitePullConsumerKeywords
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt

T = TypeVar("T")


@checks_calls("poll", "subscribe")
class LitePullConsumer(LitePullConsumerBase, WithBlock):
    """Hands out messages when asked; a ``with`` block starts it and shuts it down. Thread safe.

    Either ``subscribe`` topics, and share their queues with the other members of the group, or
    ``assign`` queues; both before the block or inside. ``poll`` again and again, or iterate.

    Each message is handed out at least once. What ``poll`` returned counts as consumed when the
    caller comes back: with the next ``poll``, a commit, or ``shutdown``. In iteration a message
    counts once the next one was asked for. With ``auto_commit`` such offsets are stored every
    ``auto_commit_interval_ms``, when a queue is given up, and at shutdown; without it only what
    ``commit`` and ``commit_sync`` were told. Threads that share a consumer share this too: any
    thread's next ``poll`` counts for what any of them got.

    Args:
        group: consumer group, 1 to 248 characters of ``[%|a-zA-Z0-9_-]``.
        namesrv_addr: ``host:port``, several joined by ``;``; None takes NAMESRV_ADDR.
        config: settings shared by all clients; ``namesrv_addr`` overrides its address.
        subscription: topics with their expressions, the same as calls of ``subscribe``.
        clock: where time comes from.
        **settings: upstream's, among them ``auto_commit`` (True), ``auto_commit_interval_ms``
            (5000, at least 1000), ``pull_batch_size`` (10: most messages of one poll),
            ``pull_threshold_for_all`` (10000 messages cached), ``pull_threshold_for_queue``
            (1000), ``pull_threshold_size_for_queue`` (100 MiB), ``consume_max_span`` (2000),
            ``poll_timeout_ms`` (5000), ``topic_metadata_check_interval_ms`` (30000),
            ``consume_from_where`` (LAST_OFFSET), ``consume_timestamp``, ``message_model``,
            ``allocate_message_queue_strategy``, ``broker_suspend_max_time_ms`` (20000),
            ``consumer_timeout_ms_when_suspend`` (30000), ``message_queue_listener``,
            ``offset_store``, ``unit_mode``, ``check_crc`` (True: a damaged message is pulled again
            until it is whole). ``pull_thread_nums`` is accepted and needed for
            nothing: no queue occupies a thread.

    Raises:
        ConfigurationError: a setting out of its range; the text names it and the range.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        subscription: Mapping[str, Expression] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Unpack[LitePullConsumerKeywords],
    ) -> None:
        super().__init__(
            group,
            namesrv_addr=namesrv_addr,
            config=config,
            subscription=subscription,
            clock=clock,
            **settings,
        )
        self._arrived = threading.Condition()
        self._waiting = 0

    def start(self) -> None:
        """Join the group, or begin to pull the assigned queues. Blocks for a few requests.

        A start that fails leaves nothing behind and may be tried again.

        Raises:
            ConnectError: no name server answered; every address tried is named.
            ClientStateError: started before, or the group exists in this client instance.
            ConfigurationError: no name server address.
            BrokerError: a broker refuses a subscription.
        """
        if self._is_started_again():
            return
        with self._life.starting(self.shutdown):
            self._begin_start()
            engine, impl = self._start_threaded(self.config, self._make)
            engine.loop.call_soon_threadsafe(impl.begin)

    def _before_start(self, impl: LitePullConsumerImpl) -> None:
        self._arrived = threading.Condition(impl.lock)
        impl.has_arrived = self._wake

    def _wake(self) -> None:
        if self._waiting:
            with self._arrived:
                self._arrived.notify_all()

    def shutdown(self, *, commit: bool | None = None) -> None:
        """Stop, store what was committed, leave the group. Does nothing unless running.

        With ``auto_commit`` that includes what the last ``poll`` returned, if it was this thread's;
        never the last message of an iteration.

        Args:
            commit: whether what the last ``poll`` returned counts as consumed; None: if this thread
                polled it. Leaving a ``with`` block by an exception says no.
        """
        started = self._begin_shutdown()
        if started is not None:
            closer = threading.get_ident()
            self._end_threaded(started, self._close(started.machine, commit=commit, closer=closer))

    def __exit__(self, kind: object = None, *_: object) -> None:
        self.shutdown(commit=None if kind is None else False)

    # --- what to consume --------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str,
        expression: Expression = "*",
        message_queue_listener: QueueListener | None = None,
    ) -> None:
        """Consume a topic; replaces an earlier subscription of it. Before or after ``start``.

        Args:
            topic: topic to consume; it may be created later.
            expression: ``*`` for all, tags (``TagA || TagB``), or a ``MessageSelector``.
            message_queue_listener: told, on a callback thread, when the topic's queues or this
                member's share of them change.

        Raises:
            ClientStateError: queues are assigned.
            ConfigurationError: a bad topic name or listener.
            SubscriptionError: an expression that cannot be used.
            BrokerError: running, and a broker refuses it; an earlier subscription stays.
        """
        before = self._plan.subscribed()
        name = self._subscribe(topic, expression, message_queue_listener)
        if self.is_running:
            self._call(lambda impl: impl.subscription_changed(name, before))

    def unsubscribe(self, topic: str) -> None:
        """Consume a topic no more; nothing cached of it is handed out, its offsets are stored."""
        name = self._unsubscribe(topic)
        if name is not None:
            self._call(lambda impl: impl.unsubscribed(name))

    def assign(self, message_queues: Collection[MessageQueue]) -> None:
        """Consume these queues and no others; may be called again at any time.

        Raises:
            ClientStateError: topics are subscribed.
            ConfigurationError: no queues.
        """
        self._assign(message_queues)
        if self.is_running:
            self._call(lambda impl: impl.apply_assignment())

    def assignment(self) -> list[MessageQueue]:
        """Return the queues being consumed, sorted.

        Raises:
            ClientStateError: not running.
        """
        return self.config.queues_without_namespace(self._machine.assignment())

    def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return a topic's readable queues, sorted.

        Raises:
            RouteNotFoundError: the topic is unknown.
            ConnectError: no name server answered.
            ClientStateError: not running.
        """
        name = self.config.topic_with_namespace(topic)
        queues = self._call(lambda impl: impl.fetch_message_queues(name))
        return self.config.queues_without_namespace(queues)

    def register_topic_message_queue_change_listener(
        self, topic: str, listener: TopicQueueListener
    ) -> None:
        """Have ``listener(topic, queues)`` called when a topic's queues change.

        Looked at every ``topic_metadata_check_interval_ms``, called on a callback thread; an object
        with a method ``on_changed`` does as well.

        Raises:
            ConfigurationError: a bad topic name or listener.
        """
        name = self._keep_topic_listener(topic, listener)
        if self.is_running:
            self._call(lambda impl: impl.topic_changes.register(name, self._topic_listeners[name]))

    # --- messages ---------------------------------------------------------------------------------

    def poll(self, timeout_ms: float | None = None) -> list[MessageExt]:
        """Return the next messages: at most ``pull_batch_size``, all of one queue.

        What the last call returned counts as consumed now, whichever thread made it:
        let only one thread poll.

        Args:
            timeout_ms: how long to wait for some; by default ``poll_timeout_ms``.

        Returns:
            The messages; none when none came in time, or the consumer was shut down meanwhile.

        Raises:
            ClientStateError: not running.
            ConfigurationError: a negative timeout.
        """
        engine, impl = self._running()
        timeout = self._timeout_ms(timeout_ms)
        cache = impl.cache
        began_ms = self._clock.now_ms() if self.consume_hooks else None
        free = None
        with impl.lock:
            self._poller = threading.get_ident()
            cache.settle()
            messages = cache.take(self._batch)
            if not messages:
                impl.commit_if_due()
                if self._wait(impl, min(timeout / 1000, TIMEOUT_MAX)):
                    messages = cache.take(self._batch)
            if cache.pull_ended or not messages:
                free = self._look_around(impl)
        if free:
            self._pull_again(engine, impl, free)
        if began_ms is not None and messages:
            self._tell_hooks(messages, began_ms)
        return messages

    def __iter__(self) -> Iterator[MessageExt]:
        """Iterate over the messages, one by one, until the consumer is shut down.

        Raises:
            ClientStateError: not started.
        """
        if self.state is ServiceState.SHUTDOWN_ALREADY:
            return
        engine, impl = self._running()
        cache, lock, hooks = impl.cache, impl.lock, self.consume_hooks
        while True:
            engine.check_process()
            with lock:
                self._poller = None
                message = cache.next_one()
                if message is None:
                    impl.commit_if_due()
                    if not self._wait(impl, None):
                        return
                    continue
                free = self._look_around(impl) if cache.pull_ended else None
            if free:
                self._pull_again(engine, impl, free)
            if hooks:
                self._tell_hooks([message])
            yield message

    def _look_around(self, impl: LitePullConsumerImpl) -> list[LiteQueue]:
        """Commit if it is time and return the queues to pull again; the lock is held."""
        impl.cache.pull_ended = False
        impl.commit_if_due()
        return impl.cache.released()

    def _wait(self, impl: LitePullConsumerImpl, timeout_s: float | None) -> bool:
        """Wait for messages, or the end; the lock is held."""
        self._waiting += 1
        try:
            self._arrived.wait_for(lambda: impl.cache.has_messages or not impl.running, timeout_s)
        finally:
            self._waiting -= 1
        return impl.cache.has_messages

    def _pull_again(
        self, engine: Engine, impl: LitePullConsumerImpl, queues: list[LiteQueue]
    ) -> None:
        try:
            engine.loop.call_soon_threadsafe(impl.pulls.pull_all, queues)
        except RuntimeError:  # shut down by another thread meanwhile: the loop is closed
            return

    # --- positions --------------------------------------------------------------------------------

    def seek(self, message_queue: MessageQueue, offset: int) -> None:
        """Go on at an offset; what was cached of the queue is not handed out.

        Raises:
            ConfigurationError: the queue is not ours now, or the offset is not in it.
            RocketMQError: the broker could not be asked for the queue's ends.
            ClientStateError: not running.
        """
        inside = self._inside(message_queue)
        self._call(lambda impl: impl.seek(inside, offset))

    def seek_to_begin(self, message_queue: MessageQueue) -> None:
        """Go on at the oldest message; see ``seek``."""
        inside = self._inside(message_queue)
        self._call(lambda impl: impl.seek(inside, None))

    def seek_to_end(self, message_queue: MessageQueue) -> None:
        """Go on behind the newest message; see ``seek``."""
        inside = self._inside(message_queue)
        self._call(lambda impl: impl.seek(inside, None, to_end=True))

    def seek_to_timestamp(self, message_queue: MessageQueue, timestamp_ms: int) -> None:
        """Go on at ``offset_for_timestamp``; see ``seek``."""
        self.seek(message_queue, self.offset_for_timestamp(message_queue, timestamp_ms))

    def offset_for_timestamp(self, message_queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset nearest to a store time, ms since 1970 (C-372)."""
        inside = self._inside(message_queue)
        return self._call(lambda impl: impl.admin.search_offset(inside, timestamp_ms))

    def pause(self, message_queues: Collection[MessageQueue]) -> None:
        """Pull these queues no more; what is cached is still handed out. Others are ignored."""
        self._machine.pause(self._insides(message_queues))

    def resume(self, message_queues: Collection[MessageQueue]) -> None:
        """Pull these queues again."""
        engine, impl = self._running()
        engine.loop.call_soon_threadsafe(impl.resume, self._insides(message_queues))

    # --- commits ----------------------------------------------------------------------------------

    def commit(
        self,
        offsets: Collection[MessageQueue] | dict[MessageQueue, int] | None = None,
        persist: bool = False,
    ) -> None:
        """Commit what was handed out, the last messages included; stored by the timer.

        Args:
            offsets: queues to commit where the caller is in them, or offsets by queue; None: all
                queues. Queues that are not ours now are passed over.
            persist: have the store keep them now, as ``commit_sync`` does.

        Raises:
            RocketMQError: with ``persist``: the store did not take all of them.
            ClientStateError: not running.
        """
        mqs = self._noted(self._machine, offsets)
        if persist:
            self._call(lambda impl: impl.persist(mqs))

    def commit_sync(self) -> None:
        """Commit what was handed out, the last messages included, and wait until it is stored.

        Raises:
            RocketMQError: the store did not take all of it.
            ClientStateError: not running.
        """
        self.commit(None, persist=True)

    def committed(self, message_queue: MessageQueue) -> int:
        """Return the group's committed offset of a queue, -1 if there is none.

        Raises:
            RocketMQError: the store cannot be asked.
            ClientStateError: not running.
        """
        inside = self._inside(message_queue)
        return self._call(lambda impl: impl.committed(inside))

    # --- inside -----------------------------------------------------------------------------------

    def _call(self, call: Callable[[LitePullConsumerImpl], Coroutine[Any, Any, T]]) -> T:
        engine, impl = self._running()
        return engine.run(call(impl))
