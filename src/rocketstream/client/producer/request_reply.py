"""Requests that wait for a reply: sent as messages, matched by correlation id (C-479 ff.).

Runs on the engine's loop, except for ``create_reply_message``, which only makes a message.
"""

from __future__ import annotations

import asyncio
import logging

from rocketstream._util.patience import up_to
from rocketstream.client.config import new_uuid
from rocketstream.client.producer.async_sender import AsyncSender
from rocketstream.client.producer.policy import SendTarget
from rocketstream.errors import (
    ClientStateError,
    MessageInvalidError,
    ReplyTimeoutError,
    SendError,
)
from rocketstream.model import Message, SendResult
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import REPLY_TOPIC_SUFFIX
from rocketstream.protocol.properties import (
    PROPERTY_CLUSTER,
    PROPERTY_CORRELATION_ID,
    PROPERTY_MSG_TYPE,
    PROPERTY_REPLY_TO_CLIENT,
    PROPERTY_TTL,
)
from rocketstream.protocol.sends import PreparedSend

logger: logging.Logger = logging.getLogger("rocketstream.client")

_REPLY_TYPE = "reply"
_ANNOUNCED = "rocketstream.announced"
_DEAD_BROKER_PAUSE_MS = 30_000


def create_reply_message(request: MessageExt | Message, body: bytes | str) -> Message:
    """Return the reply to a request a consumer got; send it with any producer (C-480).

    Raises:
        MessageInvalidError: ``request`` was not sent with ``request``, or not over a broker.
    """
    properties = getattr(request, "properties", {})
    cluster = properties.get(PROPERTY_CLUSTER)
    if not cluster:
        raise MessageInvalidError(
            f"request must be a message that was sent with request() and received from a broker: "
            f"its property {PROPERTY_CLUSTER} is missing, so nobody knows where to reply"
        )
    reply = Message(cluster + REPLY_TOPIC_SUFFIX, body)
    reply.properties[PROPERTY_MSG_TYPE] = _REPLY_TYPE
    for name in (PROPERTY_CORRELATION_ID, PROPERTY_REPLY_TO_CLIENT, PROPERTY_TTL):
        value = properties.get(name)
        if value:
            reply.properties[name] = value
    return reply


class Requests:
    """The requests of one producer that wait for replies."""

    def __init__(self, sender: AsyncSender, client_id: str) -> None:
        self._sender = sender
        self._instance = sender.instance
        self._client_id = client_id
        self._mine: set[str] = set()
        self._dead: dict[str, float] = {}
        self._announcing = asyncio.Lock()

    def mark(self, message: Message, timeout_ms: float) -> str:
        """Give a message the properties of a request; return its correlation id."""
        correlation_id = new_uuid()
        message.properties[PROPERTY_CORRELATION_ID] = correlation_id
        message.properties[PROPERTY_REPLY_TO_CLIENT] = self._client_id
        message.properties[PROPERTY_TTL] = str(max(1, int(timeout_ms)))
        return correlation_id

    async def send(
        self, prepared: PreparedSend, target: SendTarget, correlation_id: str, timeout_ms: float
    ) -> MessageExt:
        """Send a request and wait for its reply; ``timeout_ms`` covers both.

        Raises:
            SendError: not sent, refused, or unknown.
            ReplyTimeoutError: no reply in time; ``sent`` tells whether the broker has the request.
        """
        reply: asyncio.Future[MessageExt] = asyncio.get_running_loop().create_future()
        deadline = self._sender.now() + timeout_ms
        sent = False

        def done(result: SendResult | None, error: SendError | None) -> None:
            nonlocal sent
            sent = result is not None
            if error is not None and not reply.done():
                reply.set_exception(error)

        self._instance.replies.expect(correlation_id, reply)
        self._mine.add(correlation_id)
        try:
            async with up_to(timeout_ms / 1000):
                await self._announce(prepared.topic)
                left_ms = max(0.0, deadline - self._sender.now())
                self._sender.send(prepared, target, left_ms, done)
                return await reply
        except TimeoutError as error:
            if isinstance(error, SendError):
                raise
            state = "was stored" if sent else "has no answer from its broker either"
            raise ReplyTimeoutError(
                f"no reply within {timeout_ms:g} ms; "
                f"the request to topic {prepared.topic!r} {state}",
                sent=sent,
                topic=prepared.topic,
                timeout_ms=timeout_ms,
            ) from None
        finally:
            self._instance.replies.forget(correlation_id)
            self._mine.discard(correlation_id)
            if not reply.cancel() and not reply.cancelled():
                reply.exception()  # told to nobody where the wait ended first, and no fault

    def close(self) -> None:
        """Fail what still waits."""
        for correlation_id in self._mine:
            error = ClientStateError("the producer was shut down")
            self._instance.replies.fail(correlation_id, error)

    async def _announce(self, topic: str) -> None:
        """See to it that brokers know which connection the reply is to be pushed over."""
        await self._sender.publish_queues(topic)
        if not self._has_news():
            return
        async with self._announcing:
            if not self._has_news():
                return  # while waiting, somebody else has told them
            await self._instance.heartbeats.send()
            self._dead.clear()
            for address in self._addresses():
                connection = self._instance.remoting.connected(address)
                if connection is None:
                    self._dead[address] = self._sender.now()
                else:
                    connection.attributes[_ANNOUNCED] = True

    def _has_news(self) -> bool:
        now = self._sender.now()
        return any(self._is_news(address, now) for address in self._addresses())

    def _addresses(self) -> list[str]:
        return list(self._instance.routes.addresses(masters_only=True))

    def _is_news(self, address: str, now: float) -> bool:
        connection = self._instance.remoting.connected(address)
        if connection is not None:
            return _ANNOUNCED not in connection.attributes
        tried = self._dead.get(address)
        return tried is None or now - tried > _DEAD_BROKER_PAUSE_MS
