"""The producer of the asyncio face: everything on the caller's loop.

Law: the same rules as the sync producer; no threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar, Unpack, cast

from rocketstream import limits
from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream._util.ending import take_all
from rocketstream.arguments import checks_calls
from rocketstream.client.config import ClientConfig
from rocketstream.client.core.begun import Begun
from rocketstream.client.core.queue_rotation import SendTarget
from rocketstream.client.core.send import queue_of_key
from rocketstream.client.core.send_policy import End, Steps, Try
from rocketstream.client.instance.engine import Engine
from rocketstream.client.instance.with_block import AsyncWithBlock
from rocketstream.client.keywords import ProducerKeywords
from rocketstream.client.producer.async_sender import AsyncSender
from rocketstream.client.producer.base import (
    TIMER_MARK,
    Messages,
    QueueSelector,
    is_timed,
    not_flushed,
    target_of,
)
from rocketstream.client.producer.gatherer import Ended, Gatherer, Held
from rocketstream.client.producer.machine import LoopMachine
from rocketstream.client.producer.queries import AsyncQueries
from rocketstream.client.producer.sending import PreparedSend, joined, several
from rocketstream.client.producer.try_observer import ONEWAY, ObservedTry
from rocketstream.errors import SendError
from rocketstream.model import Message, MessageQueue, SendResult
from rocketstream.protocol.message_ext import MessageExt

T = TypeVar("T")


@checks_calls("send", "send_batch", "send_oneway")
class AsyncProducer(AsyncQueries, AsyncWithBlock):
    """Sends messages from one event loop; ``async with`` starts it and shuts it down.

    Arguments, settings and errors are those of ``rocketstream.Producer``. Many sends may be
    awaited at once: they share one connection per broker.
    """

    def __init__(
        self,
        group: str,
        *,
        namesrv_addr: str | None = None,
        config: ClientConfig | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **settings: Unpack[ProducerKeywords],
    ) -> None:
        super().__init__(group, namesrv_addr=namesrv_addr, config=config, clock=clock, **settings)
        self._in_flight = 0
        self._bytes_in_flight = 0
        self._bytes_max = limits.ASYNC_SEND_BYTES_IN_FLIGHT_MAX
        if self.settings.auto_batch:
            self._bytes_max = self.settings.total_batch_max_bytes
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._empty: asyncio.Future[None] | None = None
        self._under_way = 0
        self._begun = Begun()
        self._flushing: list[asyncio.Future[None]] = []

    async def start(self) -> None:
        """Begin; needs no network yet.

        Raises:
            ClientStateError: started before, or the group exists in this client instance.
            ConfigurationError: no name server address.
        """
        if self._is_started_again():
            return
        self._begin_start()
        await self._start_here(self.config, self._make)

    async def _make(self, engine: Engine) -> LoopMachine:
        return self._joined(LoopMachine(engine, self._joining(), self._gathered_ended))

    async def shutdown(self) -> None:
        """Tell the brokers and close. What is still awaited fails. Does nothing unless running.

        With ``auto_batch`` what was gathered is sent first, and its answers are waited for, up to
        the send timeout.
        """
        started = self._begin_shutdown()
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
        """Send one message, or several as batches; see ``rocketstream.Producer.send``."""
        if isinstance(message, Message):
            target = target_of(message, message_queue, selector, arg, sharding_key, self._unwrap)
            prepared = self._preparer.one(message)
            timeout = self._timeout(timeout_ms)
            begun = self._begin()
            if self._observer is not None or TIMER_MARK in prepared.properties:
                await self._or_end(begun, self._special(prepared, message, target))
            if self.settings.auto_batch:
                return await self._gather(prepared, message, target, timeout, begun)
            return await self._send(prepared, target, timeout, begun)
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
        parts = self._preparer.batches(messages)
        target = target_of(messages[0], message_queue, selector, arg, sharding_key, self._unwrap)
        timeout = self._timeout(timeout_ms)
        results: list[SendResult] = []
        begun = self._begin()  # one for all parts, which go one after the other
        try:
            for part in parts:
                part.message = messages
                results.append(await self._send(part, target, timeout, self._begin()))
                target = SendTarget(queue=results[0].message_queue)
        except SendError as error:
            error.parameters["sent"] = results
            raise
        finally:
            self._end(begun)
        return results

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
        begun = self._begin()
        try:
            await self._oneway(message, message_queue, selector, arg, sharding_key)
        finally:
            self._end(begun)

    async def _oneway(
        self,
        message: Message,
        message_queue: MessageQueue | None,
        selector: QueueSelector | None,
        arg: Any,
        sharding_key: str | None,
    ) -> None:
        sender = self._machine.sender
        target = target_of(message, message_queue, selector, arg, sharding_key, self._unwrap)
        prepared = self._preparer.one(message)
        if self._observer is not None or TIMER_MARK in prepared.properties:
            await self._special(prepared, message, target)
        await self._drive(sender, sender.policy.oneway(prepared.topic, target), prepared)

    async def _drive(self, sender: AsyncSender, steps: Steps[T], prepared: PreparedSend) -> T:
        """Do what the policy wants, step by step, where no answer is waited for."""
        end: End = None
        while True:
            try:
                wanted = steps.send(end)
            except StopIteration as done:
                return cast("T", done.value)
            if wanted is None:
                end = await sender.route(prepared.topic)
            else:
                end = await self._write(sender, prepared, wanted)

    async def _write(self, sender: AsyncSender, prepared: PreparedSend, wanted: Try) -> End:
        queue, address, left_ms = wanted
        observed: ObservedTry | None = None
        try:
            if self._observer is not None:
                observed = self._observer.begin(prepared, queue, address, ONEWAY)
            connection = await sender.connection(address, left_ms)
            connection.oneway(prepared.command(queue))
        except BaseException as error:
            if observed is not None:
                observed.ended(None, error)
            if isinstance(error, Exception):
                return error
            raise
        if observed is not None:
            observed.ended(None, None)
        return None

    async def _special(self, prepared: PreparedSend, message: Message, target: SendTarget) -> None:
        """Do what only observed and timed messages need."""
        prepared.message = message
        if is_timed(prepared, message):
            await self._machine.calls.require_timers(prepared.topic, target.queue)

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
        target = target_of(message, message_queue, selector, arg, None, self._unwrap)
        return await self._request(message, target, self._timeout(timeout_ms))

    async def queue_of(self, topic: str, sharding_key: str) -> MessageQueue:
        """Return the queue that messages of a sharding key go to."""
        return queue_of_key(await self.fetch_publish_message_queues(topic), sharding_key)

    async def flush(self, timeout_ms: float | None = None) -> None:
        """Wait until every send that was begun before has its outcome.

        A task begins its send when it runs first: those made before are let run first. What
        ``auto_batch`` has gathered leaves at once. A message that failed raises nothing here, its
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
        flush = begun.flush(self._under_way)
        try:
            async with asyncio.timeout(None if timeout is None else timeout / 1000):
                while begun.left(flush):
                    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._flushing.append(waiter)
                    await waiter
        except TimeoutError:
            raise not_flushed(begun.left(flush), timeout) from None

    async def _send(
        self, prepared: PreparedSend, target: SendTarget, timeout_ms: float, begun: int
    ) -> SendResult:
        try:
            sender = self._machine.sender
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
            # The caller may have been cancelled; the message is on its way all the same.
            if not future.done():
                if error is not None:
                    future.set_exception(error)
                elif result is not None:
                    future.set_result(result)
            self._end(begun)

        sender.send(prepared, target, timeout_ms, done)
        return await future

    async def _gather(
        self,
        prepared: PreparedSend,
        message: Message,
        target: SendTarget,
        timeout_ms: float,
        begun: int,
    ) -> SendResult:
        """Have a message sent with others of its topic, or of its queue, if it must go to one."""
        try:
            queue = await self._queue_for(prepared, target)
            if self._is_full():
                await self._room()
        except BaseException:
            self._end(begun)
            raise
        self._enter(len(prepared.body))
        gatherer = self._machine.gatherer
        assert gatherer is not None
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        gatherer.put(prepared, message.properties, queue, timeout_ms, (future, begun))
        return await future

    async def _queue_for(self, prepared: PreparedSend, target: SendTarget) -> MessageQueue | None:
        """Return the queue a message must go to; None for any of its topic."""
        sender = self._machine.sender
        if target.pick is None:
            return target.queue
        return await self._drive(sender, sender.policy.queue(prepared.topic, target), prepared)

    def _gathered_ended(self, held: Sequence[Held], ends: Ended, _: int) -> None:
        for (prepared, (future, begun)), end in zip(held, ends, strict=True):
            self._leave(len(prepared.body))
            # The caller may have been cancelled; the message was sent all the same.
            if not future.done():
                if isinstance(end, SendError):
                    future.set_exception(end)
                else:
                    future.set_result(end)
            self._end(begun)

    async def _gathered_sent(self, gatherer: Gatherer) -> None:
        """Send what is gathered without delay and wait for it, as long as a send may take."""
        gatherer.flush()
        empty = self._empty = asyncio.get_running_loop().create_future()
        if self._in_flight:
            await asyncio.wait([empty], timeout=self.settings.send_msg_timeout_ms / 1000)
        self._empty = None

    def _is_full(self) -> bool:
        return (
            self._in_flight >= limits.ASYNC_SENDS_IN_FLIGHT_MAX
            or self._bytes_in_flight >= self._bytes_max
        )

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
        self._under_way += 1
        return self._begun.now

    def _end(self, begun: int) -> None:
        self._under_way -= 1
        if self._begun.waits and self._begun.ended(begun):
            flushing, self._flushing = self._flushing, []
            for waiter in flushing:
                if not waiter.done():
                    waiter.set_result(None)

    async def _or_end(self, begun: int, step: Coroutine[Any, Any, None]) -> None:
        """Await a step of a send, which ends with it if it fails."""
        try:
            await step
        except BaseException:
            self._end(begun)
            raise

    def _enter(self, size: int) -> None:
        self._in_flight += 1
        self._bytes_in_flight += size

    def _leave(self, size: int) -> None:
        self._in_flight -= 1
        self._bytes_in_flight -= size
        self._wake_next()
        if self._empty is not None and not self._in_flight and not self._empty.done():
            self._empty.set_result(None)

    def _wake_next(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break
