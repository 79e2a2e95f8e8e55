"""The lite pull consumer on asyncio, and what both faces have (upstream's DefaultLitePullConsumer).

Messages are handed out where the caller is, under the machine's lock; everything else is forwarded
to the machine on the client's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.checks import check_range, checks_calls
from rocketstream.client.config import ClientConfig, check_columns
from rocketstream.client.consumer.base import (
    ConsumerBase,
    own_config,
    register_filter_message_hook,
)
from rocketstream.client.consumer.lite.impl import LitePullConsumerImpl
from rocketstream.client.consumer.lite.queues import LitePullPlan, LiteQueue
from rocketstream.client.consumer.offsets.user_store import checked_store, open_store
from rocketstream.client.consumer.settings import LitePullConsumerSettings
from rocketstream.client.consumer.subscription import (
    Expression,
    QueueListener,
    TopicQueueListener,
    listener_function,
    subscribed,
    topic_queues,
)
from rocketstream.client.hooks import ConsumeMessageContext, FilterHooks, client_made
from rocketstream.client.instance.engine import Engine
from rocketstream.client.instance.life_cycle import (
    IN_PEACE,
    AsyncClient,
    ServiceState,
)
from rocketstream.client.keywords import LitePullConsumerKeywords
from rocketstream.columns.table import Column, named
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.model import MessageQueue, MessageSelector
from rocketstream.protocol.message_ext import MessageExt

if TYPE_CHECKING:
    import pyarrow as pa

    from rocketstream.client.consumer.lite.arrow import ArrowPolls
    from rocketstream.client.consumer.lite.batches import Batches

T = TypeVar("T")

COLUMNS_ROWS = 10_000
"""Most rows of a record batch, where nothing else is said."""
GATHER_S = 0.02
"""How long a poll for record batches waits for more that brokers have."""
_POLL_SECONDS_MAX = 365 * 86_400.0
"""Longer waits are as good as endless, and timers of loops cannot hold them."""


@checks_calls()
class LitePullConsumerBase(ConsumerBase[LitePullConsumerImpl, LitePullConsumerSettings]):
    """Both faces: settings, subscriptions or assignments, and the calls that wait for nothing."""

    _kind = "LitePullConsumer"
    _keywords = ("subscription",)
    _waiting = 0
    """How many threads or tasks wait for messages."""

    register_filter_message_hook = register_filter_message_hook

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
        super().__init__(LitePullConsumerSettings, group, namesrv_addr, config, clock, {**settings})
        self.filter_hooks: FilterHooks = FilterHooks()
        checked_store(self.settings.offset_store)
        if self.settings.message_queue_listener is not None:
            listener_function(self.settings.message_queue_listener)
        self._batch = self.settings.pull_batch_size
        self._plan = LitePullPlan()
        self._topic_listeners: dict[str, Any] = {}
        self._poller: object = None
        """The thread or task that polled last; None when the last message came by iteration."""
        self._arrow: ArrowPolls | None = None
        for topic, expression in subscribed(subscription):
            self._subscribe(topic, expression, None)
        client_made(self)

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
        text = MessageSelector.of(expression).expression
        if not text or text.isspace():
            raise ConfigurationError("expression must not be empty (Java: subExpression)")
        subscription = self._subscription(topic, expression)
        if self.state is not ServiceState.CREATE_JUST and self._plan.assigned is not None:
            raise ClientStateError(
                "call set_sub_expression_for_assign() before assign(); queues are assigned already"
            )
        self._check_process()
        self._plan.set_expression(subscription)

    def assignment(self) -> list[MessageQueue]:
        """Return the queues being consumed, sorted.

        Raises:
            ClientStateError: not running.
        """
        return self.config.queues_without_namespace(self._machine.assignment())

    def pause(self, message_queues: Collection[MessageQueue]) -> None:
        """Pull these queues no more; what is cached is still handed out. Others are ignored."""
        self._machine.pause(self._insides(message_queues))

    def resume(self, message_queues: Collection[MessageQueue]) -> None:
        """Pull these queues again."""
        engine, impl = self._running()
        engine.do(impl.resume, self._insides(message_queues))

    # --- inside -----------------------------------------------------------------------------------

    def _config_of(self, shared: ClientConfig, clock: Clock) -> ClientConfig:
        return own_config(shared, self.settings.message_model, clock)

    def _shown(self) -> dict[str, list[str]]:
        plan, outside = self._plan, self.config.queue_without_namespace
        queues = map(outside, sorted(plan.assigned or ()))
        return {
            "topics": sorted(map(self.config.without_namespace, plan.topics)),
            "assigned": [f"{mq.topic}@{mq.broker_name}:{mq.queue_id}" for mq in queues],
        }

    async def _make(self, engine: Engine) -> LitePullConsumerImpl:
        group = self.config.with_namespace(self.group)
        settings = self.settings
        store = await open_store(engine, group, settings.message_model, settings.offset_store)
        impl = LitePullConsumerImpl(
            engine.instance,
            group,
            settings,
            self._plan,
            store,
            self.filter_hooks,
            threaded=engine.thread is not None,
        )
        self._before_start(impl, engine)
        await impl.start(self._topic_listeners)
        self._tracing.start()
        return impl

    async def _close(
        self, impl: LitePullConsumerImpl, *, commit: bool | None, closer: object
    ) -> None:
        # Another thread or task that polled last may still be at work on its messages.
        done = self._poller is not None and (commit or (commit is None and closer == self._poller))
        try:
            await impl.shutdown(commit=done)
        finally:
            await self._tracing.stop()

    @staticmethod
    def _set_to_work(machine: LitePullConsumerImpl) -> None:
        machine.begin()

    def _before_start(self, impl: LitePullConsumerImpl, engine: Engine) -> None:
        """Take the machine before its first message can arrive."""

    def _subscribe(self, topic: str, expression: Expression, listener: QueueListener | None) -> str:
        """Note a subscription; return the topic's name inside."""
        self._check_process()
        self._plan.check_subscribe()
        subscription = self._subscription(topic, expression)
        if listener is not None:
            listener_function(listener)
        self._plan.subscribe(subscription, listener)
        return subscription.topic

    def _timeout_ms(self, timeout_ms: float | None) -> float:
        if timeout_ms is None:
            return self.settings.poll_timeout_ms
        if type(timeout_ms) is int and timeout_ms >= 0:  # asked for each poll
            return timeout_ms
        check_range("timeout_ms", timeout_ms, 0, hint=float)
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
        if isinstance(offsets, dict):
            for offset in offsets.values():
                check_range("an offset", offset, 0)
            inside = {self._inside(mq): offset for mq, offset in offsets.items()}
            return impl.commit_offsets(inside)
        return impl.commit_positions(None if offsets is None else self._insides(offsets))

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

    def _tell_all(self, parts: Iterable[list[MessageExt]], began_ms: int) -> None:
        if self.consume_hooks:
            for messages in parts:
                self._tell_hooks(messages, began_ms)

    def _check_arrow(self, max_rows: int, columns: Sequence[str] | None) -> tuple[Column, ...]:
        self._check_process()
        check_range("max_rows", max_rows, 1)
        return named(columns)

    def _arrow_polls(self, impl: LitePullConsumerImpl) -> ArrowPolls:
        """The maker of record batches; pyarrow is imported when one is wanted first."""
        if self._arrow is None:
            check_columns("poll_arrow")
            from rocketstream.client.consumer.lite.arrow import ArrowPolls

            rows = self.settings.wire_batch_size(in_columns=True)
            self._arrow = ArrowPolls(impl, rows, check_crc=self.settings.check_crc)
        return self._arrow


class _HandedOut(Generic[T]):
    """The things that a consumer hands out; a wait that is cut short does not end them.

    A generator would be over after ``asyncio.wait_for(anext(messages), 1)`` has waited in vain.

    Args:
        hand_out: returns the next one, or raises StopAsyncIteration.
    """

    def __init__(self, hand_out: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._hand_out = hand_out

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Coroutine[Any, Any, T]:
        return self._hand_out()

    async def aclose(self) -> None:
        """Nothing to end; as generators have it, for ``contextlib.aclosing``."""


@checks_calls("poll", "subscribe")
class AsyncLitePullConsumer(LitePullConsumerBase, AsyncClient[LitePullConsumerImpl]):
    """Hands out messages when asked; ``async with`` starts it and shuts it down.

    Arguments, settings, errors and what counts as consumed are those of
    ``rocketstream.LitePullConsumer``; listeners may be coroutine functions.
    """

    _arrived: asyncio.Event
    _arrow_lock: asyncio.Lock
    """Whose turn it is to poll for record batches."""

    async def start(self) -> None:
        """Join the group, or begin to pull the assigned queues. Takes a few requests.

        A start that fails leaves nothing behind and may be tried again.

        Raises:
            ConnectError: no name server answered; every address tried is named.
            ClientStateError: started before, or the group exists in this client instance.
            ConfigurationError: no name server address.
            BrokerError: a broker refuses a subscription.
        """
        await self._start_and_await()

    def _before_start(self, impl: LitePullConsumerImpl, _engine: Engine) -> None:
        self._arrived, self._arrow_lock = asyncio.Event(), asyncio.Lock()
        impl.has_arrived = self._arrived.set

    async def shutdown(self, *, commit: bool | None = None) -> None:
        """Stop, store what was committed, leave the group.

        Ends a start under way, waits for another end under way; else does nothing unless running.

        Args:
            commit: whether what the last ``poll`` returned counts as consumed; None: if this task
                polled it. Leaving an ``async with`` block by an exception says no; the last message
                of an iteration never does.
        """
        started = await self._to_end()
        if started is not None:
            closer = asyncio.current_task()
            await self._end_here(
                started, self._close(started.machine, commit=commit, closer=closer)
            )

    async def __aexit__(self, kind: object = None, *_: object) -> None:
        with IN_PEACE:
            await self.shutdown(commit=None if kind is None else False)

    # --- what to consume --------------------------------------------------------------------------

    async def subscribe(
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
        before = self._plan.topics
        name = self._subscribe(topic, expression, message_queue_listener)
        if self.is_running:
            await self._machine.subscription_changed(name, before.get(name))

    async def unsubscribe(self, topic: str) -> None:
        """Consume a topic no more; nothing cached of it is handed out, its offsets are stored."""
        self._check_process()
        name = self.config.with_namespace(topic)
        if self._plan.unsubscribe(name) and self.is_running:
            await self._machine.unsubscribed(name)

    async def assign(self, message_queues: Collection[MessageQueue]) -> None:
        """Consume these queues and no others; may be called again at any time.

        Raises:
            ClientStateError: topics are subscribed.
            ConfigurationError: no queues.
        """
        self._check_process()
        self._plan.assign(self._insides(message_queues or ()))
        if self.is_running:
            await self._machine.apply_assignment()

    async def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return a topic's readable queues, sorted.

        Raises:
            RouteNotFoundError: the topic is unknown.
            ConnectError: no name server answered.
            ClientStateError: not running.
        """
        name = self.config.topic_with_namespace(topic)
        queues = await topic_queues(self._machine.instance, name, afresh=True)
        return self.config.queues_without_namespace(queues)

    async def register_topic_message_queue_change_listener(
        self, topic: str, listener: TopicQueueListener
    ) -> None:
        """Have ``listener(topic, queues)`` called when a topic's queues change.

        Looked at every ``topic_metadata_check_interval_ms``, called on a callback thread; an object
        with a method ``on_changed`` does as well.

        Raises:
            ConfigurationError: a bad topic name or listener.
        """
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
        if self.is_running:
            await self._machine.topic_changes.register(name, function)

    # --- messages ---------------------------------------------------------------------------------

    async def poll(self, timeout_ms: float | None = None) -> list[MessageExt]:
        """Return the next messages: at most ``pull_batch_size``, all of one queue.

        What the last call returned counts as consumed now, whichever task made it:
        let only one task poll. Before Python 3.12 ``asyncio.wait_for`` would poll in a task of its
        own, and ``shutdown`` not count what that returned: use ``asyncio.timeout``.

        Args:
            timeout_ms: how long to wait for some; by default ``poll_timeout_ms``.

        Returns:
            The messages; none when none came in time, or the consumer was shut down meanwhile.
        """
        impl = self._machine
        timeout = self._timeout_ms(timeout_ms)
        cache = impl.cache
        self._poller = asyncio.current_task(impl.loop)
        began_ms = self._clock.now_ms() if self.consume_hooks else None
        free = None
        with impl.lock:
            cache.settle()
            messages = impl.take(self._batch)
            if not messages:
                impl.commit_if_due()
            elif cache.pull_ended:
                free = self._free_queues(impl)
        if not messages:
            seconds = min(timeout / 1000, _POLL_SECONDS_MAX)
            await self._wait_until(impl, impl.loop.time() + seconds)
            with impl.lock:
                messages = impl.take(self._batch)
                free = self._free_queues(impl)
        if free:
            impl.pulls.pull_all(free)
        if began_ms is not None and messages:
            self._tell_hooks(messages, began_ms)
        return messages

    async def poll_arrow(
        self,
        max_rows: int = COLUMNS_ROWS,
        columns: Sequence[str] | None = None,
        timeout_ms: float | None = None,
    ) -> pa.RecordBatch:
        """Return the next messages as a record batch; see ``rocketstream.LitePullConsumer``.

        Decoding, some milliseconds for 10,000 messages, is done on a thread beside the loop.
        """
        return await self._poll_arrow(max_rows, columns, self._timeout_ms(timeout_ms) / 1000)

    def arrow_batches(
        self, max_rows: int = COLUMNS_ROWS, columns: Sequence[str] | None = None
    ) -> AsyncIterator[pa.RecordBatch]:
        """Iterate over record batches until the consumer is shut down; see ``poll_arrow``.

        A batch counts as consumed once the next one is asked for; the last never does.

        Raises:
            As ``poll_arrow``.
        """
        self._check_arrow(max_rows, columns)

        async def hand_out() -> pa.RecordBatch:
            while self.state is not ServiceState.SHUTDOWN_ALREADY:
                batch = await self._poll_arrow(max_rows, columns, _POLL_SECONDS_MAX, iterated=True)
                if batch.num_rows:
                    return batch
            raise StopAsyncIteration

        return _HandedOut(hand_out)

    async def _poll_arrow(
        self,
        max_rows: int,
        columns: Sequence[str] | None,
        timeout_s: float,
        *,
        iterated: bool = False,
    ) -> pa.RecordBatch:
        chosen = self._check_arrow(max_rows, columns)
        impl = self._machine
        polls, hooks = self._arrow_polls(impl), self.consume_hooks
        deadline = impl.loop.time() + min(timeout_s, _POLL_SECONDS_MAX)
        try:
            async with asyncio.timeout_at(deadline):
                await self._arrow_lock.acquire()
        except TimeoutError:
            return polls.nothing(chosen)
        try:
            self._poller = None if iterated else asyncio.current_task(impl.loop)
            while True:
                began_ms = self._clock.now_ms()
                if rows := polls.gathers(max_rows):
                    await self._wait_until(impl, min(deadline, impl.loop.time() + GATHER_S), rows)
                with impl.lock:
                    found = polls.begin(max_rows, chosen, undecoded=not hooks)
                    free = self._free_queues(impl)
                impl.pulls.pull_all(free)
                if not found:
                    await self._wait_until(impl, deadline)
                elif (batch := await self._read(polls, found, began_ms)).num_rows:
                    return batch
                if not impl.running or impl.loop.time() >= deadline:
                    return polls.nothing(chosen)
        finally:
            self._arrow_lock.release()

    async def _read(self, polls: ArrowPolls, found: Batches, began_ms: int) -> pa.RecordBatch:
        try:
            batch, messages = await asyncio.to_thread(polls.read, found)
        except asyncio.CancelledError:
            polls.cut_short()
            raise
        self._tell_all(messages, began_ms)
        return batch

    def __aiter__(self) -> AsyncIterator[MessageExt]:
        """Iterate over the messages, one by one, until the consumer is shut down.

        ``asyncio.timeout`` or ``asyncio.wait_for`` around one step ends the wait, and no more.

        Raises:
            ClientStateError: not started.
        """
        yields = False

        async def hand_out() -> MessageExt:
            nonlocal yields
            if yields:
                # A body that never waits must not keep the network, or anybody else, waiting.
                yields = False
                await asyncio.sleep(0)
            while self.state is not ServiceState.SHUTDOWN_ALREADY:
                impl = self._machine
                cache = impl.cache
                with impl.lock:
                    if self._poller is not None:
                        self._poller = None
                    if impl.in_columns:
                        impl.leave_columns()
                    message = cache.next_one()
                    yields = cache.pull_ended or message is None
                    free = self._free_queues(impl) if yields else ()
                if free:
                    impl.pulls.pull_all(free)
                if message is not None:  # and nothing is awaited any more: nobody is cut short
                    if self.consume_hooks:
                        self._tell_hooks([message])
                    return message
                await asyncio.sleep(0)
                await self._wait_for_some(impl)
            raise StopAsyncIteration

        return _HandedOut(hand_out)

    def _free_queues(self, impl: LitePullConsumerImpl) -> list[LiteQueue]:
        """Commit if it is time and return the queues to pull again; the lock is held."""
        impl.cache.pull_ended = False
        impl.commit_if_due()
        return impl.cache.released()

    async def _wait_until(
        self, impl: LitePullConsumerImpl, deadline: float, count: int = 1
    ) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._wait_for_some(impl, count)

    async def _wait_for_some(self, impl: LitePullConsumerImpl, count: int = 1) -> None:
        """Wait for messages, or the end."""
        self._waiting += 1
        impl.awaited = count
        try:
            while impl.running and not impl.cache.has(count):
                self._arrived.clear()
                await self._arrived.wait()
        finally:
            self._waiting -= 1
            impl.awaited = 1

    # --- positions --------------------------------------------------------------------------------

    async def seek(self, message_queue: MessageQueue, offset: int) -> None:
        """Go on at an offset; what was cached of the queue is not handed out.

        Raises:
            ConfigurationError: the queue is not ours now, or the offset is not in it.
            RocketMQError: the broker could not be asked for the queue's ends.
            ClientStateError: not running.
        """
        await self._machine.seek(self._inside(message_queue), offset)

    async def seek_to_begin(self, message_queue: MessageQueue) -> None:
        """Go on at the oldest message; see ``seek``."""
        await self._machine.seek(self._inside(message_queue), None)

    async def seek_to_end(self, message_queue: MessageQueue) -> None:
        """Go on behind the newest message; see ``seek``."""
        await self._machine.seek(self._inside(message_queue), None, to_end=True)

    async def seek_to_timestamp(self, message_queue: MessageQueue, timestamp_ms: int) -> None:
        """Go on at ``offset_for_timestamp``; see ``seek``."""
        inside, impl = self._inside(message_queue), self._machine
        await impl.seek(inside, await impl.admin.search_offset(inside, timestamp_ms))

    async def offset_for_timestamp(self, message_queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset nearest to a store time, ms since 1970 (C-372)."""
        return await self._machine.admin.search_offset(self._inside(message_queue), timestamp_ms)

    # --- commits ----------------------------------------------------------------------------------

    async def commit(
        self,
        offsets: Collection[MessageQueue] | dict[MessageQueue, int] | None = None,
        persist: bool = False,
    ) -> None:
        """Commit what was handed out; see ``rocketstream.LitePullConsumer.commit``."""
        impl = self._machine
        mqs = self._noted(impl, offsets)
        if persist:
            await impl.store.persist_now(mqs)

    async def commit_sync(self) -> None:
        """Commit what was handed out, the last messages included, and wait until it is stored.

        Raises:
            RocketMQError: the store did not take all of it.
            ClientStateError: not running.
        """
        impl = self._machine
        await impl.store.persist_now(self._noted(impl, None))

    async def committed(self, message_queue: MessageQueue) -> int:
        """Return the group's committed offset of a queue, -1 if there is none.

        An offset committed here counts from when it is noted, before the broker has it (C-518); a
        broker may tell 0 where there is none, while the queue's first message is young (C-195).

        Raises:
            RocketMQError: the store cannot be asked.
            ClientStateError: not running.
        """
        return await self._machine.committed(self._inside(message_queue))
