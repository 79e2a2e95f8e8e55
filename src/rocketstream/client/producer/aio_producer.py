"""The producer of the asyncio face: everything on the caller's loop.

The same rules as the sync producer; no threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from rocketstream import limits
from rocketstream._util.clock import Clock
from rocketstream._util.ending import take_all
from rocketstream.checks import checks_calls
from rocketstream.client.admin.requests import AsyncAdmin
from rocketstream.client.instance.engine import Engine
from rocketstream.client.instance.life_cycle import AsyncClient
from rocketstream.client.producer.base import (
    TIMER_MARK,
    LoopMachine,
    Messages,
    ProducerBase,
    not_flushed,
)
from rocketstream.client.producer.gatherer import Gatherer
from rocketstream.client.producer.gathering import Begun
from rocketstream.client.producer.many import SendManyResult, given_of
from rocketstream.client.producer.message import (
    QueueSelector,
    decode_recall_handle,
    joined,
    several,
)
from rocketstream.client.producer.policy import SendTarget, queue_of_key
from rocketstream.errors import (
    ConfigurationError,
    NotSupportedError,
    RequestNotSupportedError,
    SendError,
)
from rocketstream.model import Message, MessageQueue, SendResult
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import RecallMessageRequestHeader, RecallMessageResponseHeader
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import DLQ_PREFIX, RETRY_PREFIX
from rocketstream.protocol.sends import PreparedSend

T = TypeVar("T")


class _Load:
    """Counts of the sends of one producer that are under way; it compares them at every change.

    Attributes:
        sends: sends that have begun and not ended; some of them may wait for room.
        entered: those that had room for their messages.
        bytes: their bodies.
    """

    __slots__ = ("bytes", "entered", "sends")

    def __init__(self) -> None:
        self.sends = self.entered = self.bytes = 0


@checks_calls("send", "send_batch", "send_oneway")
class AsyncProducer(ProducerBase[LoopMachine], AsyncAdmin, AsyncClient[LoopMachine]):
    """Sends messages from one event loop; ``async with`` starts it and shuts it down.

    Arguments, settings and errors are those of ``rocketstream.Producer``. Many sends may be
    awaited at once: they share one connection per broker.
    """

    def _create(self, clock: Clock) -> None:
        super()._create(clock)
        self._load = _Load()
        self._bytes_max = limits.ASYNC_SEND_BYTES_IN_FLIGHT_MAX
        if self.settings.auto_batch:
            self._bytes_max = self.settings.total_batch_max_bytes
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._empty: asyncio.Future[None] | None = None
        self._begun = Begun()
        self._flushing: list[asyncio.Future[None]] = []

    async def start(self) -> None:
        """Begin; needs no network yet: routes are asked for when first needed.

        Raises:
            ClientStateError: started before, or the group exists in this client instance.
            ConfigurationError: no name server address.
        """
        await self._start_and_await()

    async def _make(self, engine: Engine) -> LoopMachine:
        return self._joined(LoopMachine(engine, self._joining()))

    async def shutdown(self) -> None:
        """Tell the brokers and close. Sends still awaited fail.

        Ends a start under way, waits for another end under way; else does nothing unless running.
        With ``auto_batch`` what was gathered is sent first, and its answers are waited for, up to
        the send timeout.
        """
        started = await self._to_end()
        if started is None:
            return
        gatherer = started.machine.gatherer
        try:
            await self._end_here(started, self._ending(started.machine))
        finally:
            if gatherer is not None:
                gatherer.close()

    async def _ending(self, machine: LoopMachine) -> None:
        gatherer = machine.gatherer
        if gatherer is None:
            await self._close(machine)
        else:
            await take_all(lambda: self._gathered_sent(gatherer), lambda: self._close(machine))

    async def send(
        self,
        message: Messages,
        *,
        message_queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
        sharding_key: str | None = None,
        timeout_ms: float | None = None,
    ) -> SendResult:
        """Send one message, or several as batches; see ``rocketstream.Producer.send``.

        A send whose task is cancelled may be sent all the same, and ``flush`` waits for it.
        """
        if isinstance(message, Message):
            prepared, target = self._preparer.one_to(
                message, message_queue, selector, arg, sharding_key
            )
            timeout = self._timeout(timeout_ms)
            begun = self._begin()
            if TIMER_MARK in prepared.properties:
                await self._or_end(begun, self._require_timers(prepared, message, target))
            gathered = message.properties if self._policy.settings.auto_batch else None
            return await self._send(prepared, target, timeout, begun, gathered)
        return joined(
            await self.send_batch(
                several(message),
                message_queue=message_queue,
                selector=selector,
                arg=arg,
                sharding_key=sharding_key,
                timeout_ms=timeout_ms,
            )
        )

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        message_queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
        sharding_key: str | None = None,
        timeout_ms: float | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic to one queue, in order; one result per batch it took."""
        messages = several(messages)
        parts, target = self._preparer.batches_to(
            messages, message_queue, selector, arg, sharding_key
        )
        timeout = self._timeout(timeout_ms)
        results: list[SendResult] = []
        begun = self._begin()  # one for all parts, which go one after the other
        try:
            for part in parts:
                results.append(await self._send(part, target, timeout, self._begin()))
                target = SendTarget(queue=results[0].message_queue)
        except SendError as error:
            error.parameters["sent"] = results
            raise
        finally:
            self._end(begun)
        return results

    async def send_many(
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
        """Send many messages, given as columns; see ``rocketstream.Producer.send_many``.

        Cancelled, it sends no more of them; those on their way may be stored, and ``flush`` waits
        for them.
        """
        timeout = self._timeout(timeout_ms)
        self._running()
        given = given_of(
            bodies, tags=tags, keys=keys, properties=properties, shardingKey=sharding_keys
        )
        begun = self._begin()
        many = await self._or_end(begun, self._many(topic, given, timeout))
        try:
            for step in many.steps():
                await step
            return many.result()
        finally:  # cancelled, it has requests on their way
            many.leave(partial(self._end, begun))

    async def send_oneway(
        self,
        message: Message,
        *,
        message_queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
        sharding_key: str | None = None,
    ) -> None:
        """Write one message to its broker and do not wait: it may be lost without a trace."""
        sender = self._machine.sender
        prepared, target = self._preparer.one_to(
            message, message_queue, selector, arg, sharding_key
        )
        begun = self._begin()
        if TIMER_MARK in prepared.properties:
            await self._or_end(begun, self._require_timers(prepared, message, target))
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(result: None, error: SendError | None) -> None:
            _tell(future, result, error)
            self._end(begun)

        sender.oneway(prepared, target, done)
        await future

    async def request(
        self,
        message: Message,
        *,
        message_queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        arg: Any = None,
        timeout_ms: float | None = None,
    ) -> MessageExt:
        """Send a message and wait for its reply; see ``rocketstream.Producer.request``."""
        self._running()
        target = self._preparer.target(message, message_queue, selector, arg)
        return await self._request(message, target, self._timeout(timeout_ms))

    # --- queues and recall ------------------------------------------------------------------------

    async def fetch_publish_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues messages of ``topic`` can be sent to.

        Raises:
            SendRouteError: the topic has no route.
            SendConnectError: no name server answered.
        """
        sender = self._machine.sender
        found = await sender.publish_queues(self.config.topic_with_namespace(topic))
        return self.config.queues_without_namespace(found)

    async def queue_of(self, topic: str, sharding_key: str) -> MessageQueue:
        """Return the queue that messages of a sharding key go to.

        Raises:
            SendRouteError: the topic has no route.
            SendConnectError: no name server answered.
        """
        sender = self._machine.sender
        found = await sender.publish_queues(self.config.topic_with_namespace(topic))
        return queue_of_key(self.config.queues_without_namespace(found), sharding_key)

    async def recall_message(self, topic: str, recall_handle: str) -> str:
        """Take a timed message back before it is delivered; return its id.

        Args:
            topic: topic it was sent to.
            recall_handle: ``SendResult.recall_handle``.

        Raises:
            ConfigurationError: not a handle.
            NotSupportedError: the broker cannot recall messages.
            BrokerError: it refuses, as when the message was delivered.
        """
        wrapped = self.config.topic_with_namespace(topic)
        if wrapped.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            raise ConfigurationError(f"topic is not supported: {topic}", topic=topic)
        sender = self._machine.sender
        instance = sender.instance
        broker_name = decode_recall_handle(recall_handle).broker_name
        await sender.publish_queues(wrapped)
        address = instance.routes.known_master(broker_name)
        header = RecallMessageRequestHeader(
            wrapped, recall_handle, self.settings.producer_group, broker_name
        )
        command = RemotingCommand.request(RequestCode.RECALL_MESSAGE, header)
        api = instance.api
        try:
            answer = await api.invoke(api.channel(address), command, self._timeout(None))
        except RequestNotSupportedError as error:
            raise NotSupportedError(
                f"broker {broker_name} ({address}) cannot recall messages: it takes 5.3.1 or later"
            ) from error
        return answer.header(RecallMessageResponseHeader).msg_id

    async def flush(self, timeout_ms: float | None = None) -> None:
        """Wait until every send that was begun before has its outcome.

        A task begins its send when it runs first: tasks made before run first. Messages that
        ``auto_batch`` has gathered leave at once. A message that failed raises nothing here, its
        ``send`` does; one whose sender was cancelled is waited for too. One-way messages are waited
        for until they are written. Requests are not: their callers have the replies.

        Args:
            timeout_ms: how long to wait; by default as long as it takes, which the timeouts of the
                sends bound.

        Raises:
            FlushTimeoutError: some are still on their way, and go on; it tells how many.
            ClientStateError: not running.
        """
        timeout = self._flush_timeout(timeout_ms)
        gatherer = self._machine.gatherer
        await asyncio.sleep(0)
        if gatherer is not None:
            gatherer.hurry()
        begun = self._begun
        flush = begun.flush(self._load.sends)
        try:
            async with asyncio.timeout(None if timeout is None else timeout / 1000):
                while begun.left(flush):
                    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._flushing.append(waiter)
                    await waiter
        except TimeoutError:
            raise not_flushed(begun.left(flush), timeout) from None

    async def _send(
        self,
        prepared: PreparedSend,
        target: SendTarget,
        timeout_ms: float,
        begun: int,
        properties: dict[str, str] | None = None,
    ) -> SendResult:
        """Send a message, or a batch, and wait for its end.

        Args:
            prepared: made ready.
            target: where it is to go.
            timeout_ms: for all tries together.
            begun: the result of ``_begin``.
            properties: those of a message to be sent with others of its topic, or of its queue, if
                it must go to one.
        """
        try:
            machine = self._machine
            queue = None if properties is None else await self._queue_for(prepared, target)
            if self._is_full():
                await self._room()
        except BaseException:
            self._end(begun)
            raise
        size = len(prepared.body)
        self._enter(size)
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()

        def done(result: SendResult | None, error: SendError | None) -> None:
            self._leave(size)
            _tell(future, result, error)
            self._end(begun)

        if properties is None:
            machine.sender.send(prepared, target, timeout_ms, done)
        else:
            assert machine.gatherer is not None
            machine.gatherer.put(prepared, properties, queue, timeout_ms, done)
        return await future

    async def _queue_for(self, prepared: PreparedSend, target: SendTarget) -> MessageQueue | None:
        """Return the queue a message must go to; None for any of its topic."""
        sender = self._machine.sender
        if target.pick is None:
            return target.queue
        future: asyncio.Future[MessageQueue] = asyncio.get_running_loop().create_future()
        sender.choose_queue(prepared, target, partial(_tell, future))
        return await future

    async def _gathered_sent(self, gatherer: Gatherer) -> None:
        """Send what is gathered without delay and wait for it, as long as a send may take."""
        gatherer.flush()
        empty = self._empty = asyncio.get_running_loop().create_future()
        if self._load.entered:
            await asyncio.wait([empty], timeout=self.settings.send_msg_timeout_ms / 1000)
        self._empty = None

    def _is_full(self) -> bool:
        load = self._load
        return load.entered >= limits.ASYNC_SENDS_IN_FLIGHT_MAX or load.bytes >= self._bytes_max

    async def _room(self) -> None:
        """Wait until there is room for one message more."""
        while self._is_full():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake_next()  # the room was given and is not used
                raise

    def _begin(self) -> int:
        """Note that a send begins; ``_end`` is to be told what is returned, once."""
        self._load.sends += 1
        return self._begun.now

    def _end(self, begun: int) -> None:
        self._load.sends -= 1
        if self._begun.waits and self._begun.ended(begun):
            flushing, self._flushing = self._flushing, []
            for waiter in flushing:
                if not waiter.done():
                    waiter.set_result(None)

    async def _or_end(self, begun: int, step: Coroutine[Any, Any, T]) -> T:
        """Await a step of a send, which ends with it if it fails."""
        try:
            return await step
        except BaseException:
            self._end(begun)
            raise

    def _enter(self, size: int) -> None:
        self._load.entered += 1
        self._load.bytes += size

    def _leave(self, size: int) -> None:
        self._load.entered -= 1
        self._load.bytes -= size
        self._wake_next()
        if self._empty is not None and not self._load.entered and not self._empty.done():
            self._empty.set_result(None)

    def _wake_next(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break


def _tell(future: asyncio.Future[Any], result: Any, error: SendError | None) -> None:
    """End a send's future, unless its caller was cancelled: the message is sent all the same."""
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
