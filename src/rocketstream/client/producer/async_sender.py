"""Sending on the engine's loop: many messages in flight on one connection per broker.

Law: no task per message; everything runs on the loop (upstream's sendKernelImpl, ASYNC).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rocketstream.client.core.producer_settings import ProducerSettings
from rocketstream.client.core.send import SendAttempts, choose_queue
from rocketstream.client.instance.api import vip_address
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.client.producer.sending import PreparedSend
from rocketstream.errors import (
    ConnectError,
    InternalError,
    RocketMQError,
    RouteNotFoundError,
    SendConnectError,
    SendError,
    SendOutcome,
    SendRouteError,
)
from rocketstream.model import MessageQueue, SendResult, SendStatus
from rocketstream.protocol.answer_form import StoredForm, StoredValues
from rocketstream.protocol.command import RemotingCommand
from rocketstream.transport.sending_connection import StoredSink

if TYPE_CHECKING:
    from rocketstream.client.producer.try_watch import Trial, TryWatch

SendDone = Callable[[SendResult | None, SendError | None], None]
QueueChoice = Callable[[tuple[MessageQueue, ...]], MessageQueue]


@dataclass(slots=True)
class SendTarget:
    """Where a message goes: one fixed queue, one picked from all, or the next in turn."""

    queue: MessageQueue | None = None
    pick: QueueChoice | None = None

    @property
    def is_fixed(self) -> bool:
        """Whether a retry must not go elsewhere: one try only (C-469, C-470)."""
        return self.queue is not None or self.pick is not None


ANY_QUEUE = SendTarget()


class QueueTurn:
    """Takes queues in turn, from a random start (C-460). Thread safe."""

    __slots__ = ("_counter",)

    def __init__(self) -> None:
        self._counter = itertools.count(random.randrange(1 << 16))

    def choose(
        self, queues: tuple[MessageQueue, ...], target: SendTarget, last_broker: str | None
    ) -> MessageQueue:
        """Return the queue of the next try.

        Raises:
            SendError: the user's selector raised (C-470); a ``SendError`` of its own as it is.
        """
        if target.queue is not None:
            return target.queue
        if target.pick is not None:
            try:
                return target.pick(queues)
            except SendError:
                raise
            except Exception as error:
                text = f"select message queue threw exception: {error!r}"
                raise SendError(text, SendOutcome.NOT_SENT) from error
        if last_broker is None:
            return queues[next(self._counter) % len(queues)]
        return choose_queue(queues, self._counter.__next__, last_broker)


class BrokerAddresses:
    """Finds the address to send to; fast port if configured."""

    __slots__ = ("_instance", "_vip")

    def __init__(self, instance: MQClientInstance) -> None:
        self._instance = instance
        self._vip = instance.config.vip_channel_enabled

    def master(self, broker_name: str) -> str:
        """Return the master's address.

        Raises:
            RouteNotFoundError: the broker has none (any more).
        """
        address = self._instance.routes.master(broker_name)
        if address is None:
            raise RouteNotFoundError(f"The broker[{broker_name}] not exist", broker=broker_name)
        return vip_address(address) if self._vip else address


class AsyncSender:
    """Sends prepared messages on the loop of one instance."""

    def __init__(self, instance: MQClientInstance, settings: ProducerSettings) -> None:
        self.instance = instance
        self.settings = settings
        self.turn = QueueTurn()
        self.addresses = BrokerAddresses(instance)
        self.now = instance.clock.monotonic_ms
        self.watch: TryWatch | None = None

    def send(
        self, prepared: PreparedSend, target: SendTarget, timeout_ms: float, on_done: SendDone
    ) -> None:
        """Send one message; ``on_done`` is called once, on the loop."""
        _Sending(self, prepared, target, timeout_ms, on_done).begin()

    async def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues to send to, asking the name server if need be.

        Raises:
            SendRouteError: the topic has no route and cannot be created.
            SendConnectError: no name server answered.
            SendError: one refused, or answered nonsense.
        """
        info = self.instance.routes.publish_info(topic)
        if info is None:
            try:
                await self.instance.publish_route(
                    topic, self.settings.create_topic_key, self.settings.default_topic_queue_nums
                )
            except RouteNotFoundError as error:
                raise SendRouteError(str(error), **error.parameters) from error
            except ConnectError as error:
                raise SendConnectError(
                    str(error), SendOutcome.NOT_SENT, **error.parameters
                ) from error
            except SendError:
                raise
            except RocketMQError as error:  # a name server that refuses, or answers nonsense
                raise SendError(
                    str(error), SendOutcome.NOT_SENT, **{"topic": topic, **error.parameters}
                ) from error
            info = self.instance.routes.publish_info(topic)
        if info is None:
            raise SendRouteError(f"No route info of this topic: {topic}", topic=topic)
        return info.queues


class _Sending(StoredSink):
    """One message on its way, through its tries."""

    __slots__ = (
        "_address", "_made_attempts", "_on_done", "_prepared", "_queue", "_sender", "_started_ms",
        "_target", "_timeout_ms", "_trial",
    )  # fmt: skip

    def __init__(
        self,
        sender: AsyncSender,
        prepared: PreparedSend,
        target: SendTarget,
        timeout_ms: float,
        on_done: SendDone,
    ) -> None:
        self._sender = sender
        self._prepared = prepared
        self._target = target
        self._on_done = on_done
        self._started_ms = sender.now()
        self._timeout_ms = timeout_ms
        self._made_attempts: SendAttempts | None = None
        self._queue = target.queue
        self._address = ""
        self._trial: Trial | None = None

    @property
    def _attempts(self) -> SendAttempts:
        """The book of tries; most messages are stored by the first and need none."""
        attempts = self._made_attempts
        if attempts is None:
            settings = self._sender.settings
            again = 0 if self._target.is_fixed else settings.retry_times_when_send_async_failed
            attempts = self._made_attempts = SendAttempts(
                self._prepared.topic,
                self._started_ms,
                self._timeout_ms,
                1 + again,
                settings.retry_response_codes,
                elsewhere=settings.retry_another_broker_when_not_store_ok,
            )
        return attempts

    def begin(self) -> None:
        info = self._sender.instance.routes.publish_info(self._prepared.topic)
        if info is not None and self._timeout_ms > 0:
            self._choose(info.queues, self._timeout_ms, None)
        elif info is not None:
            self._try(info.queues)
        else:
            self._sender.instance.run_soon(self._with_route(), self._dropped)

    async def _with_route(self) -> None:
        try:
            queues = await self._sender.publish_queues(self._prepared.topic)
        except SendError as error:
            self._give_up(error)
            return
        except Exception as error:  # whoever waits for the message must still be told
            text = f"the route of topic {self._prepared.topic!r} cannot be used: {error!r}"
            self._give_up(SendError(text, SendOutcome.NOT_SENT, topic=self._prepared.topic))
            return
        self._try(queues)

    def _try(self, queues: tuple[MessageQueue, ...]) -> None:
        try:
            remaining_ms = self._attempts.remaining_ms(self._sender.now())
        except SendError as error:
            self._give_up(error)
            return
        self._choose(queues, remaining_ms, self._attempts.last_broker)

    def _choose(
        self, queues: tuple[MessageQueue, ...], remaining_ms: float, last_broker: str | None
    ) -> None:
        try:
            queue = self._sender.turn.choose(queues, self._target, last_broker)
        except SendError as error:
            self._give_up(error)
            return
        self._ask(queue, remaining_ms)

    def _ask(self, queue: MessageQueue, remaining_ms: float) -> None:
        self._queue = queue
        sender, prepared = self._sender, self._prepared
        try:
            self._address = address = sender.addresses.master(queue.broker_name)
            if sender.watch is not None:
                self._trial = sender.watch.begin(prepared, queue, address, "ASYNC")
            connection = sender.instance.remoting.connected(address)
            if connection is None:
                sender.instance.run_soon(self._with_connection(), self._dropped)
            elif (
                prepared.plans is not None
                and connection.takes_ready
                and queue.topic == prepared.topic  # a selector may name any queue it likes
            ):
                connection.request_ready(self._frame, remaining_ms, self)
            else:
                connection.request_callback(prepared.command(queue), remaining_ms, self)
        except RocketMQError as error:
            self._failed(error)

    def _frame(self, opaque: int) -> bytes:
        assert self._queue is not None
        return self._prepared.frame(self._queue, opaque)

    async def _with_connection(self) -> None:
        remoting = self._sender.instance.remoting
        queue = self._queue
        if queue is None:
            raise InternalError("a send connects before it has a queue")
        try:
            connection = await remoting.connection(self._address)
            remaining_ms = self._attempts.remaining_ms(self._sender.now())
            connection.request_callback(self._prepared.command(queue), remaining_ms, self)
        except SendError as error:
            self._give_up(error)
        except RocketMQError as error:
            self._failed(error)

    def stored(self, form: StoredForm, values: StoredValues) -> None:
        """Take the usual answer: it is stored as wished."""
        queue = self._queue
        assert queue is not None
        result = self._prepared.stored(form, values, queue)
        if self._trial is not None:
            self._trial.ended(result, None)
            self._trial = None
        self._on_done(result, None)

    def __call__(self, answer: RemotingCommand | None, error: Exception | None) -> None:
        """Take any other answer, or the error that kept it from coming."""
        queue = self._queue
        if answer is None or queue is None:
            self._failed(error or InternalError("a request ended without answer and error"))
            return
        try:
            result = self._prepared.result(answer, queue, self._address)
        except RocketMQError as failure:
            self._failed(failure)
            return
        if self._trial is not None:
            self._trial.ended(result, None)
            self._trial = None
        stored = result.send_status is SendStatus.SEND_OK  # the usual case needs no book of tries
        if stored or self._attempts.answered(queue.broker_name, result):
            self._on_done(result, None)
        else:
            self._again()

    def _failed(self, error: Exception) -> None:
        if self._trial is not None:
            self._trial.ended(None, error)
            self._trial = None
        broker_name = self._queue.broker_name if self._queue is not None else ""
        try:
            self._attempts.failed(broker_name, error, self._sender.now())
        except SendError as failure:
            self._give_up(failure)
            return
        self._again()

    def _give_up(self, error: SendError) -> None:
        stored = self._attempts.stored
        self._on_done(stored, error if stored is None else None)

    def _again(self) -> None:
        info = self._sender.instance.routes.publish_info(self._prepared.topic)
        if info is None:
            self._sender.instance.run_soon(self._with_route(), self._dropped)
        else:
            self._try(info.queues)

    def _dropped(self) -> None:
        text = "the client was shut down before the message was sent"
        outcome = self._attempts.outcome
        self._give_up(SendError(text, outcome, topic=self._prepared.topic))
