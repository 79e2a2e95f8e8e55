"""Sending on the engine's loop: many messages in flight on one connection per broker.

Law: no task per message; everything runs on the loop (upstream's sendKernelImpl, ASYNC). Decides
nothing: does what ``core.send_policy`` wants.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from rocketstream._util.patience import up_to
from rocketstream.client.core.producer_settings import ProducerSettings
from rocketstream.client.core.queue_rotation import QueueRotation, SendTarget
from rocketstream.client.core.send_policy import Began, End, Queues, SendPolicy, Steps, Try
from rocketstream.client.instance.api import vip_address
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.client.producer.sending import PreparedSend
from rocketstream.client.producer.try_observer import ASYNC, ObservedTry, TryObserver
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
from rocketstream.protocol.answer_form import StoredForm, StoredValues
from rocketstream.protocol.command import RemotingCommand
from rocketstream.transport.sending_connection import SendingConnection, StoredSink

SendDone = Callable[[SendResult | None, SendError | None], None]


class AsyncSender:
    """Sends prepared messages on the loop of one instance."""

    def __init__(self, instance: MQClientInstance, settings: ProducerSettings) -> None:
        self.instance = instance
        self.now = instance.clock.monotonic_ms
        self.policy = SendPolicy(
            instance.routes,
            settings,
            QueueRotation(random.randrange(1 << 16)),
            self.now,
            vip_address if instance.config.vip_channel_enabled else None,
        )
        self.observer: TryObserver | None = None

    @property
    def settings(self) -> ProducerSettings:
        """Settings of the producer as they are now."""
        return self.policy.settings

    def send(
        self, prepared: PreparedSend, target: SendTarget, timeout_ms: float, on_done: SendDone
    ) -> None:
        """Send one message; ``on_done`` is called once, on the loop."""
        _Sending(self, prepared, target, timeout_ms, on_done).begin()

    async def connection(self, address: str, timeout_ms: float) -> SendingConnection:
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

    async def route(self, topic: str) -> Queues | SendError:
        """Return what ``publish_queues`` does, or the error, whichever it is, as a value."""
        try:
            return await self.publish_queues(topic)
        except SendError as error:
            return error
        except Exception as error:  # whoever waits for the message must still be told
            text = f"the route of topic {topic!r} cannot be used: {error!r}"
            return SendError(text, SendOutcome.NOT_SENT, topic=topic)


class _Sending(StoredSink):
    """One message on its way: has what the policy wants done, and tells it how it went."""

    __slots__ = (
        "_address",
        "_observed",
        "_on_done",
        "_prepared",
        "_queue",
        "_sender",
        "_started_ms",
        "_steps",
        "_target",
        "_timeout_ms",
    )  # fmt: skip
    _queue: MessageQueue
    _address: str

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
        self._timeout_ms = timeout_ms
        self._on_done = on_done
        self._started_ms = sender.now()
        self._steps: Steps[SendResult] | None = None
        self._observed: ObservedTry | None = None

    def begin(self) -> None:
        wanted = self._sender.policy.first(self._prepared.topic, self._target, self._timeout_ms)
        if wanted is not None:
            self._try(wanted)
        else:
            self._steps = self._more(None)
            self._went(None)

    def _more(self, began: Began | None) -> Steps[SendResult]:
        policy = self._sender.policy
        again = policy.settings.retry_times_when_send_async_failed
        return policy.tries(self._prepared.topic, self._target, self._timeout_ms, again, began)

    def _went(self, end: End) -> None:
        """Tell the policy how it went, and do what it wants next."""
        if self._steps is None:
            self._steps = self._more((self._started_ms, self._queue.broker_name, end))
            end = None
        try:
            wanted = self._steps.send(end)
        except StopIteration as done:
            self._on_done(done.value, None)
        except SendError as error:
            self._on_done(None, error)
        else:
            if wanted is None:
                self._sender.instance.run_soon(self._find_route(), self._dropped)
            else:
                self._try(wanted)

    def _try(self, wanted: Try) -> None:
        sender, prepared = self._sender, self._prepared
        queue, address, left_ms = wanted
        self._queue, self._address = queue, address
        try:
            if sender.observer is not None:
                self._observed = sender.observer.begin(prepared, queue, address, ASYNC)
            connection = sender.instance.remoting.connected(address)
            if connection is None:
                sender.instance.run_soon(self._connect(left_ms), self._dropped)
            elif (
                prepared.plans is not None
                and connection.takes_ready
                and queue.topic == prepared.topic  # a selector may name any queue it likes
            ):
                connection.request_ready(self._frame, left_ms, self)
            else:
                connection.request_callback(prepared.command(queue), left_ms, self)
        except Exception as error:  # the user's hooks may raise anything; others wait behind this
            self._ended(error)

    def _frame(self, opaque: int) -> bytes:
        return self._prepared.frame(self._queue, opaque)

    async def _find_route(self) -> None:
        self._went(await self._sender.route(self._prepared.topic))

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
            connection.request_callback(self._prepared.command(self._queue), left_ms, self)
        except Exception as error:  # as above
            self._ended(error)

    def stored(self, form: StoredForm, values: StoredValues) -> None:
        """Take the usual answer: stored as wished, which ends every send."""
        result = self._prepared.stored(form, values, self._queue)
        if self._observed is not None:
            self._observed.ended(result, None)
            self._observed = None
        self._on_done(result, None)

    def __call__(self, answer: RemotingCommand | None, error: Exception | None) -> None:
        """Take any other answer, or the error that kept it from coming."""
        if answer is None:
            self._ended(
                error or InternalError("a request ended with neither an answer nor an error")
            )
            return
        try:
            end: SendResult | RocketMQError = self._prepared.result(
                answer, self._queue, self._address
            )
        except RocketMQError as failure:
            end = failure
        self._ended(end)

    def _ended(self, end: SendResult | Exception) -> None:
        """Tell the observer and the policy how a try ended."""
        if self._observed is not None:
            if isinstance(end, Exception):
                self._observed.ended(None, end)
            else:
                self._observed.ended(end, None)
            self._observed = None
        self._went(end)

    def _dropped(self) -> None:
        text = "the client was shut down before the message was sent"
        self._ended(SendError(text, SendOutcome.NOT_SENT, topic=self._prepared.topic))
