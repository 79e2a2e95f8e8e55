"""The producer of the sync face: many threads may send, each on a connection of its own.

The hot path is one blocking round trip on the caller's thread; futures go through the
engine's loop (upstream's DefaultMQProducer).
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Final, TypeVar, cast

from rocketstream.checks import checks_calls
from rocketstream.client.admin.requests import SyncAdmin
from rocketstream.client.instance.background import call_back
from rocketstream.client.instance.engine import Engine
from rocketstream.client.instance.life_cycle import (
    ServiceState,
    Started,
    SyncClient,
    blocking,
    not_running,
    starting,
)
from rocketstream.client.instance.routes import Queues
from rocketstream.client.producer.aio_producer import AsyncProducer
from rocketstream.client.producer.base import (
    TIMER_MARK,
    BlockingMachine,
    Messages,
    ProducerBase,
    not_flushed,
)
from rocketstream.client.producer.many import SendManyResult, given_of
from rocketstream.client.producer.message import QueueSelector, joined, several
from rocketstream.client.producer.observer import ASYNC, ONEWAY, SYNC
from rocketstream.client.producer.policy import End, SendTarget, Steps, Try
from rocketstream.client.producer.send_future import SendFuture
from rocketstream.errors import (
    ClientStateError,
    ConfigurationError,
    ForkedClientError,
    RocketMQError,
    SendError,
)
from rocketstream.model import Message, MessageQueue, SendResult
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.sends import PreparedSend
from rocketstream.transport.blocking_pool import BlockingPool

T = TypeVar("T")


@checks_calls("send", "send_batch", "send_oneway", "send_async")
class Producer(ProducerBase[BlockingMachine], SyncAdmin, SyncClient[BlockingMachine]):
    """Sends messages; thread safe; a ``with`` block starts it and shuts it down.

    Args:
        group: producer group, 1 to 255 characters of ``[%|a-zA-Z0-9_-]``.
        namesrv_addr: ``host:port``, several joined by ``;``; None takes NAMESRV_ADDR.
        config: settings shared by all clients; ``namesrv_addr`` overrides its address.
        clock: where time comes from.
        **settings: ``send_msg_timeout_ms`` (3000, for all tries together),
            ``retry_times_when_send_failed`` (2), ``retry_times_when_send_async_failed`` (2),
            ``retry_another_broker_when_not_store_ok`` (False),
            ``compress_msg_body_over_howmuch`` (4096 bytes), ``compress_type`` (ZLIB, LZ4, ZSTD),
            ``compress_level`` (5), ``max_message_size`` (4 MiB), ``default_topic_queue_nums`` (4),
            ``create_topic_key`` (TBW102), ``retry_response_codes`` (broker codes worth another
            try), ``topics`` (whose brokers are to know this producer from the start),
            ``send_latency_fault_enable`` (False: avoid slow and failing brokers) with
            ``latency_max``, ``not_available_duration`` (its table, ms), ``start_detector_enable``
            (True), ``detect_interval_ms`` (2000), ``detect_timeout_ms`` (200), ``busy_wait`` (True:
            ``send`` looks for its answer some tens of microseconds before it sleeps, while answers
            come that soon and nobody else sends), ``auto_batch`` (False: gather single messages
            into batches) with ``batch_max_delay_ms`` (10), ``batch_max_bytes`` (32 KiB of bodies),
            ``total_batch_max_bytes`` (32 MiB of bodies gathered or on their way; more callers
            wait); and every field of ``ClientConfig``.

    Raises:
        ConfigurationError: a setting that cannot be used; the text names it.
        NotSupportedError: ``compress_type`` needs ``rocketstream[compression]``, which is missing.
    """

    start: ClassVar[Callable[[Any], None]] = starting(AsyncProducer.start)
    fetch_publish_message_queues: Final = blocking(AsyncProducer.fetch_publish_message_queues)
    queue_of: Final = blocking(AsyncProducer.queue_of)
    recall_message: Final = blocking(AsyncProducer.recall_message)

    async def _make(self, engine: Engine) -> BlockingMachine:
        return self._joined(BlockingMachine(engine, self._joining(), self._clock))

    def shutdown(self) -> None:
        """Wait for what ``send_async`` has on its way, tell the brokers, close. Blocks.

        Bounded by the send timeout plus the API timeout. Does nothing unless running.
        """
        started = self._begin_shutdown()
        if started is None:
            return
        machine = started.machine
        try:
            machine.outbox.wait_empty(self.settings.send_msg_timeout_ms)
        finally:
            try:
                self._end_threaded(started, self._close(machine))
            finally:
                machine.pool.close()
                machine.outbox.close()

    def _waits_for_itself(self, started: Started[BlockingMachine]) -> bool:
        return super()._waits_for_itself(started) or started.machine.outbox.is_interrupted

    # --- sending and waiting ----------------------------------------------------------------------

    def send(
        self,
        message: Messages,
        *,
        message_queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
        sharding_key: str | None = None,
        timeout_ms: float | None = None,
    ) -> SendResult:
        """Send one message, or several as batches, and wait until the broker has stored it.

        Args:
            message: a message, or several of one topic; several go to one queue, in order, in as
                many batches as the size limit asks for.
            message_queue: send to this queue, one try.
            selector: ``selector(queues, message, arg)`` picks the queue, one try.
            arg: handed to ``selector``.
            sharding_key: messages of one key go to one queue, in order; one try.
            timeout_ms: for all tries together; ``send_msg_timeout_ms`` by default.

        Raises:
            SendError: not sent, refused, or unknown; see its ``outcome``.
            ClientStateError: not running.
            ForkedClientError: called in a forked child.
        """
        if isinstance(message, Message):
            prepared, target = self._preparer.one_to(
                message, message_queue, selector, arg, sharding_key
            )
            if TIMER_MARK in prepared.properties:
                self._wait(self._require_timers(prepared, message, target))
            settings = self._policy.settings
            timeout: float = settings.send_msg_timeout_ms
            if timeout_ms is not None:
                timeout = self._timeout(timeout_ms)
            if settings.auto_batch:
                return self._gather(prepared, message, target, timeout, None).result()
            return self._send(prepared, target, timeout)
        return joined(
            self.send_batch(
                several(message),
                message_queue=message_queue,
                selector=selector,
                arg=arg,
                sharding_key=sharding_key,
                timeout_ms=timeout_ms,
            )
        )

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        message_queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
        sharding_key: str | None = None,
        timeout_ms: float | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic to one queue, in order; one result per batch it took.

        Raises:
            SendError: as ``send``; ``parameters["sent"]`` holds the results of the batches that
                were stored before it failed.
        """
        messages = several(messages)
        parts, target = self._preparer.batches_to(
            messages, message_queue, selector, arg, sharding_key
        )
        results: list[SendResult] = []
        for part in parts:
            try:
                results.append(self._send(part, target, self._timeout(timeout_ms)))
            except SendError as error:
                error.parameters["sent"] = results
                raise
            target = SendTarget(queue=results[0].message_queue)
        return results

    def send_many(
        self,
        topic: str,
        bodies: Any,
        *,
        tags: Any = None,
        keys: Any = None,
        properties: Any = None,
        sharding_keys: Any = None,
        timeout_ms: float | None = None,
    ) -> SendManyResult:
        """Send many messages, given as columns, and wait until each is stored.

        They go in batches, several requests at a time, to any queues, or by key to one each, in
        order. For tens of thousands a second and more: no object is made of a message. Bodies are
        not compressed, nor do ``auto_batch`` and its settings count. Needs
        ``rocketstream[columns]``.

        Args:
            topic: their topic.
            bodies: the bodies, bytes or str: a sequence, a pyarrow array, a series; or a table of
                messages: a pyarrow table, record batch or reader (read as it is sent, so that any
                number goes in bounded memory), a data frame of pandas or polars, with columns
                ``body``, ``tags``, ``keys``, ``properties``, ``shardingKey``, ``queueId`` and
                ``brokerName``, ``delayLevel`` or ``deliverTime``, ``flag``, ``msgId``.
            tags: one for all messages, or a sequence with one for each.
            keys: a sequence; several of one message in a list of their own.
            properties: a mapping for all, or a sequence with one for each.
            sharding_keys: a sequence: messages of one key go to one queue, in order.
            timeout_ms: of each request, all its tries together; ``send_msg_timeout_ms`` by default.

        Raises:
            SendManyError: some are not known to be stored; its ``result`` tells of each, and
                ``result.rest`` are those to send again. No message is sent after one has failed.
            MessageInvalidError: a message cannot be sent; ``parameters["sent"]`` tells of those
                before it, of which some thousands are looked at together.
            ConfigurationError: columns that are unknown, missing or exclude each other.
            SendError: the topic has no route.
            NotSupportedError: pyarrow or numpy is missing.
        """
        timeout = self._timeout(timeout_ms)
        engine = self._running().engine
        given = given_of(
            bodies, tags=tags, keys=keys, properties=properties, shardingKey=sharding_keys
        )
        many = self._wait(self._many(topic, given, timeout))
        for step in many.steps():
            if self.state is not ServiceState.RUNNING:
                many.stop()  # what is on its way is waited for, as far as the loop goes on
            try:
                engine.run(step)
            except ClientStateError:
                if not engine.has_ended():
                    raise
                many.cut_off()
        return many.result()

    def send_oneway(
        self,
        message: Message,
        *,
        message_queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
        sharding_key: str | None = None,
    ) -> None:
        """Write one message to its broker and do not wait: it may be lost without a trace.

        Raises:
            SendError: it could not be written.
        """
        started = self._running()
        prepared, target = self._preparer.one_to(
            message, message_queue, selector, arg, sharding_key
        )
        if TIMER_MARK in prepared.properties:
            self._wait(self._require_timers(prepared, message, target))
        steps = self._policy.oneway(started.engine.instance.routes, prepared.topic, target)
        self._drive(started, steps, prepared, ONEWAY)

    def _selected(self, prepared: PreparedSend, target: SendTarget) -> SendTarget:
        """Call a user's selector here, on the caller's thread, where it may take its time.

        Raises:
            SendError: the topic has no route, or the selector raised.
        """
        started = self._running()
        steps = self._policy.queue(started.engine.instance.routes, prepared.topic, target)
        return SendTarget(queue=self._drive(started, steps, prepared, ASYNC))

    def _send(self, prepared: PreparedSend, target: SendTarget, timeout_ms: float) -> SendResult:
        started = self._started
        if started is None or self.state is not ServiceState.RUNNING:
            raise not_running(self._kind, self.state)
        again = self._policy.settings.retry_times_when_send_failed
        routes = started.engine.instance.routes
        steps = self._policy.tries(routes, prepared.topic, target, timeout_ms, again)
        return self._drive(started, steps, prepared, SYNC)

    def _drive(
        self,
        started: Started[BlockingMachine],
        steps: Steps[T],
        prepared: PreparedSend,
        mode: str,
    ) -> T:
        """Do what the policy wants, step by step, on the caller's thread."""
        end: End = None
        while True:
            try:
                wanted = steps.send(end)
            except StopIteration as done:
                return cast("T", done.value)
            if wanted is None:
                end = _route(started, prepared.topic)
            else:
                end = self._try(started.machine.pool, prepared, wanted, mode)

    def _try(
        self, pool: BlockingPool, prepared: PreparedSend, wanted: Try, mode: str
    ) -> SendResult | Exception | None:
        queue, address, left_ms = wanted
        result: SendResult | None = None
        observed = None
        try:
            if self._observer.is_on:
                observed = self._observer.begin(prepared, queue, address, mode)
            if mode is ONEWAY:
                pool.oneway(address, prepared.command(queue), left_ms)
            else:
                answer = pool.request(address, prepared.command(queue), left_ms)
                result = prepared.result(answer, queue, address)
        except BaseException as error:
            if observed is not None:
                observed.ended(None, error)
            if isinstance(error, ForkedClientError) or not isinstance(error, Exception):
                raise
            return error
        if observed is not None:
            observed.ended(result, None)
        return result

    # --- sending without waiting ------------------------------------------------------------------

    def send_async(
        self,
        message: Messages,
        *,
        message_queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
        sharding_key: str | None = None,
        timeout_ms: float | None = None,
        callback: Callable[[SendFuture], object] | None = None,
    ) -> SendFuture:
        """Send without waiting; the future gets the result or a ``SendError``.

        Any number may be on their way; beyond 10,000 messages or 32 MiB the call waits for some
        to be answered. Order is kept only among messages of one queue that did not fail.

        Args:
            message: one message, or several of one topic; several go as in ``send``, the batches
                one after the other, and the future gets one result for all.
            message_queue: as in ``send``.
            selector: as in ``send``; called before this returns.
            arg: as in ``send``.
            sharding_key: as in ``send``.
            timeout_ms: as in ``send``.
            callback: added to the future; callbacks run on a thread of their own.

        Raises:
            MessageInvalidError: the message cannot be sent.
            SendError: too many are on their way and none was answered within the timeout.
            ClientStateError: not running.
        """
        timeout = self._timeout(timeout_ms)
        if callback is not None and not callable(callback):
            raise ConfigurationError(f"callback must be a function of the future, not {callback!r}")
        if isinstance(message, Message):
            prepared, target = self._preparer.one_to(
                message, message_queue, selector, arg, sharding_key
            )
            if TIMER_MARK in prepared.properties:
                self._wait(self._require_timers(prepared, message, target))
            if self._policy.settings.auto_batch:
                return self._gather(prepared, message, target, timeout, callback)
            if selector is not None:
                try:
                    target = self._selected(prepared, target)
                except SendError as error:
                    return self._machine.outbox.failed(error, callback)
            return self._machine.outbox.put(prepared, target, timeout, callback)
        messages = several(message)
        parts, target = self._preparer.batches_to(
            messages, message_queue, selector, arg, sharding_key
        )
        if selector is not None:
            try:
                target = self._selected(parts[0], target)
            except SendError as error:
                return self._machine.outbox.failed(error, callback)
        return self._machine.outbox.put_parts(parts, target, timeout, callback)

    def _gather(
        self,
        prepared: PreparedSend,
        message: Message,
        target: SendTarget,
        timeout_ms: float,
        callback: Callable[[SendFuture], object] | None,
    ) -> SendFuture:
        """Have a message sent with others of its topic, or of its queue, if it must go to one."""
        outbox = self._machine.outbox
        queue = target.queue
        if target.pick is not None:
            try:
                queue = self._selected(prepared, target).queue
            except SendError as error:
                return outbox.failed(error, callback)
        return outbox.gather(prepared, message.properties, queue, timeout_ms, callback)

    def flush(self, timeout_ms: float | None = None) -> None:
        """Wait until every message that ``send_async`` took before has its outcome. Blocks.

        Messages that ``auto_batch`` has gathered leave at once. A failed one raises nothing here:
        its future has the error. Callbacks may still run; one-way messages are written when
        ``send_oneway`` returns, and have no outcome; of ``request_async`` the future tells.
        Messages that other threads send meanwhile are not waited for.

        Args:
            timeout_ms: how long to wait; by default as long as it takes, which the timeouts of the
                sends bound.

        Raises:
            FlushTimeoutError: some are still on their way, and go on; it tells how many.
            ClientStateError: not running, called on the network thread, or by a signal handler that
                interrupted a ``send_async``.
        """
        timeout = self._flush_timeout(timeout_ms)
        engine, machine = self._running()
        if threading.get_ident() == engine.loop_thread_id:
            raise ClientStateError(
                "flush() would block the network thread it was called on; call it on another thread"
            )
        left = machine.outbox.flush(timeout)
        if left:
            raise not_flushed(left, timeout)

    # --- request and reply ------------------------------------------------------------------------

    def request(
        self,
        message: Message,
        *,
        message_queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
        timeout_ms: float | None = None,
    ) -> MessageExt:
        """Send a message and wait for the reply of whoever consumes it.

        The consumer answers with ``create_reply_message``. Arguments are those of ``send``;
        ``timeout_ms`` covers sending and waiting.

        Raises:
            SendError: not sent, refused, or unknown; see its ``outcome``.
            ReplyTimeoutError: no reply in time; ``sent`` tells whether the request was stored.
        """
        target = self._preparer.target(message, message_queue, selector, arg)
        if selector is not None:
            target = self._selected(self._preparer.one(message), target)
        return self._wait(self._request(message, target, self._timeout(timeout_ms)))

    def request_async(
        self,
        message: Message,
        *,
        message_queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
        timeout_ms: float | None = None,
        callback: Callable[[concurrent.futures.Future[MessageExt]], object] | None = None,
    ) -> concurrent.futures.Future[MessageExt]:
        """Send a request without waiting; the future gets the reply or the error of ``request``.

        Args:
            message: as in ``request``.
            message_queue: as in ``send``.
            selector: as in ``send``; called before this returns.
            arg: as in ``send``.
            timeout_ms: as in ``request``.
            callback: called with the future when it is done, on a callback thread.
        """
        engine = self._running().engine
        target = self._preparer.target(message, message_queue, selector, arg)
        timeout = self._timeout(timeout_ms)
        future: concurrent.futures.Future[MessageExt]
        try:
            if selector is not None:
                target = self._selected(self._preparer.one(message), target)
        except RocketMQError as error:
            future = concurrent.futures.Future()
            future.set_exception(error)
        else:
            future = engine.submit(self._request(message, target, timeout))
        if callback is not None:
            callbacks = engine.instance.callbacks
            future.add_done_callback(partial(call_back, callbacks, "request_async", callback))
        return future


def _route(started: Started[BlockingMachine], topic: str) -> Queues | SendError:
    return started.engine.run(started.machine.sender.route(topic))
