"""Sends on the engine's loop: many messages on their way over one connection per broker.

No task per message; everything runs on the loop (upstream's sendKernelImpl, ASYNC). Decides
nothing: does what ``policy`` wants.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from rocketstream._util.clock import Clock
from rocketstream._util.patience import up_to
from rocketstream.client.config import ClientConfig
from rocketstream.client.instance.api import vip_address
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.client.instance.routes import Queues
from rocketstream.client.producer.observer import ASYNC, ONEWAY, ObservedTry, TryObserver
from rocketstream.client.producer.policy import (
    ANY_QUEUE,
    End,
    QueueRotation,
    SendPolicy,
    SendTarget,
    Steps,
    Try,
    unsafe,
)
from rocketstream.client.producer.settings import ProducerSettings
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
from rocketstream.model import MessageQueue, SendResult
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.sends import PreparedSend
from rocketstream.transport.connection import Connection

SendDone = Callable[[SendResult | None, SendError | None], None]


def policy_of(settings: ProducerSettings, config: ClientConfig, clock: Clock) -> SendPolicy:
    """Return the policy of a client's sends."""
    return SendPolicy(
        settings,
        QueueRotation(random.randrange(1 << 16)),
        clock.monotonic_ms,
        vip_address if config.vip_channel_enabled else None,
    )


def plain_sender(instance: MQClientInstance, settings: ProducerSettings) -> AsyncSender:
    """Return a sender for a consumer or a trace, without observer."""
    return AsyncSender(instance, policy_of(settings, instance.config, instance.clock))


class AsyncSender:
    """Sends prepared messages on the loop of one instance.

    Args:
        instance: knows the routes and has the connections.
        policy: what a send does next.
        observer: is told of every try; None where nobody observes.
    """

    def __init__(
        self, instance: MQClientInstance, policy: SendPolicy, observer: TryObserver | None = None
    ) -> None:
        self.instance = instance
        self.policy = policy
        self.observer = observer
        self.now: Callable[[], float] = instance.clock.monotonic_ms

    def send(
        self, prepared: PreparedSend, target: SendTarget, timeout_ms: float, on_done: SendDone
    ) -> None:
        """Send one message; ``on_done`` is called once, on the loop."""
        policy = self.policy
        again = policy.settings.retry_times_when_send_async_failed
        steps = policy.tries(self.instance.routes, prepared.topic, target, timeout_ms, again)
        _Sending(self, prepared, steps, on_done).go()

    def send_copy(self, prepared: PreparedSend, timeout_ms: float, on_done: SendDone) -> None:
        """Send what replaces another message: stored otherwise than with SEND_OK is an error."""

        def told(result: SendResult | None, error: SendError | None) -> None:
            doubt = error if result is None else unsafe(result)
            on_done(result if doubt is None else None, doubt)

        self.send(prepared, ANY_QUEUE, timeout_ms, told)

    def oneway(
        self, prepared: PreparedSend, target: SendTarget, on_done: Callable[[Any, Any], None]
    ) -> None:
        """Write one message; ``on_done`` is called once, with two times None when that is done."""
        steps = self.policy.oneway(self.instance.routes, prepared.topic, target)
        _Sending(self, prepared, steps, on_done, ONEWAY).go()

    def choose_queue(
        self,
        prepared: PreparedSend,
        target: SendTarget,
        on_done: Callable[[MessageQueue | None, SendError | None], None],
    ) -> None:
        """Choose a queue and send nothing; ``on_done`` is called once."""
        steps = self.policy.queue(self.instance.routes, prepared.topic, target)
        _Sending(self, prepared, steps, on_done).go()

    async def connection(self, address: str, timeout_ms: float) -> Connection:
        """Return the connection to ``address``, connecting if there is none.

        Raises:
            ConnectError: it cannot be made, or not in time.
            ClientStateError: the client is closed.
        """
        remoting = self.instance.remoting
        try:
            async with up_to(timeout_ms / 1000):
                return await remoting.connection(address)
        except TimeoutError:
            text = f"cannot connect to {address} within {timeout_ms:.0f} ms"
            raise ConnectError(text, address=address) from None

    async def publish_queues(self, topic: str) -> Queues:
        """Return the queues to send to, asking the name server if need be.

        Raises:
            SendRouteError: the topic has no route and cannot be created.
            SendConnectError: no name server answered.
            SendError: one refused, or answered nonsense.
        """
        table = self.instance.routes.publish_table
        if topic not in table:
            try:
                settings = self.policy.settings
                await self.instance.route_updates.publish(
                    topic, settings.create_topic_key, settings.default_topic_queue_nums
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
        if topic not in table:
            raise SendRouteError(f"No route info of this topic: {topic}", topic=topic)
        return table[topic]

    async def route(self, topic: str) -> Queues | SendError:
        """Return what ``publish_queues`` does, or the error, whichever it is, as a value.

        What is known is asked for again first, unless that was done a moment ago: some try failed.
        """
        try:
            if topic in self.instance.routes.publish_table:
                await self.instance.route_updates.renew(topic)
            return await self.publish_queues(topic)
        except SendError as error:
            return error
        except Exception as error:  # whoever waits for the message must still be told
            text = f"the route of topic {topic!r} cannot be used: {error!r}"
            return SendError(text, SendOutcome.NOT_SENT, topic=topic)


class _Sending:
    """One message on its way: has what the policy wants done, and tells it how it went."""

    __slots__ = (
        "_address", "_mode", "_observed", "_on_done", "_prepared", "_queue", "_sender", "_steps",
    )  # fmt: skip
    _queue: MessageQueue
    _address: str

    def __init__(
        self,
        sender: AsyncSender,
        prepared: PreparedSend,
        steps: Steps[Any],
        on_done: Callable[[Any, SendError | None], None],
        mode: str = ASYNC,
    ) -> None:
        self._sender = sender
        self._prepared = prepared
        self._steps = steps
        self._on_done = on_done
        self._mode = mode
        self._observed: ObservedTry | None = None

    def go(self, end: End = None) -> None:
        """Tell the policy how it went, and do what it wants next."""
        try:
            wanted = self._steps.send(end)
        except StopIteration as done:
            self._on_done(done.value, None)
        except SendError as error:
            self._on_done(None, error)
        else:
            if wanted is None:
                self._sender.instance.background.run_soon(self._find_route(), self._dropped)
            else:
                self._try(wanted)

    async def _find_route(self) -> None:
        self.go(await self._sender.route(self._prepared.topic))

    def _try(self, wanted: Try) -> None:
        sender = self._sender
        queue, address, left_ms = self._queue, self._address, _ = wanted
        try:
            if sender.observer is not None and sender.observer.is_on:
                self._observed = sender.observer.begin(self._prepared, queue, address, self._mode)
            connection = sender.instance.remoting.connected(address)
            if connection is None:
                sender.instance.background.run_soon(self._connect(left_ms), self._dropped)
                return
            self._write(connection, left_ms)
        except Exception as error:  # the user's hooks may raise anything; others wait behind this
            self._ended(error)
            return
        if self._mode is ONEWAY:
            self._ended(None)

    async def _connect(self, left_ms: float) -> None:
        """Connect, which counts for the time of the try, and send."""
        sender, address = self._sender, self._address
        until_ms = sender.now() + left_ms
        try:
            connection = await sender.connection(address, left_ms)
            left_ms = until_ms - sender.now()
            if left_ms <= 0:
                raise ConnectError(
                    f"connected to {address} only after the timeout of the send; nothing was sent"
                )
            self._write(connection, left_ms)
        except Exception as error:  # as above
            self._ended(error)
            return
        if self._mode is ONEWAY:
            self._ended(None)

    def _write(self, connection: Connection, left_ms: float) -> None:
        command = self._prepared.command(self._queue)
        if self._mode is ONEWAY:
            connection.oneway(command)
        else:
            connection.request_callback(command, left_ms, self)

    def __call__(self, answer: RemotingCommand | None, error: Exception | None) -> None:
        """Take the answer, or the error that kept it from coming."""
        end: SendResult | Exception | None = error
        if answer is not None:
            try:
                end = self._prepared.result(answer, self._queue, self._address)
            except RocketMQError as failure:
                end = failure
        elif error is None:
            end = InternalError("a request ended with neither an answer nor an error")
        self._ended(end)

    def _ended(self, end: SendResult | Exception | None) -> None:
        """Tell the observer and the policy how a try ended."""
        observed = self._observed
        if observed is not None:
            self._observed = None
            if isinstance(end, Exception):
                observed.ended(None, end)
            else:
                observed.ended(end, None)
        self.go(end)

    def _dropped(self) -> None:
        text = "the client was shut down before the message was sent"
        self._ended(SendError(text, SendOutcome.NOT_SENT, topic=self._prepared.topic))
