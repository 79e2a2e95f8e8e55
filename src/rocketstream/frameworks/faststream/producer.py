"""FastStream's producer over ours."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NoReturn

from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto

from rocketstream.client.producer.aio_producer import AsyncProducer
from rocketstream.client.producer.policy import unsafe
from rocketstream.errors import ClientStateError, NotSupportedError, SendError, SendOutcome
from rocketstream.frameworks.faststream.command import RocketMQPublishCommand
from rocketstream.frameworks.faststream.message import decode_body, parse_message
from rocketstream.model import SendResult
from rocketstream.protocol.message_ext import MessageExt

if TYPE_CHECKING:
    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import CustomCallable

logger: logging.Logger = logging.getLogger("rocketstream.frameworks")

REQUEST_TIMEOUT_S = 3.0
"""How long a request waits for its reply: the producer's own default."""


class RocketMQProducer(ProducerProto[RocketMQPublishCommand]):
    """Sends the messages of a broker and its publishers; one for each broker."""

    def __init__(self, parser: CustomCallable | None, decoder: CustomCallable | None) -> None:
        self._parser = ParserComposition(parser, parse_message)
        self._decoder = ParserComposition(decoder, decode_body)
        self.codec: CodecProto = DefaultCodec()
        self.serializer: SerializerProto | None = None
        self.client: AsyncProducer | None = None

    def connect(
        self, client: AsyncProducer, codec: CodecProto | None, serializer: SerializerProto | None
    ) -> None:
        """Send over a client from now on."""
        self.client, self.serializer = client, serializer
        self.codec = codec or DefaultCodec()

    async def publish(self, cmd: RocketMQPublishCommand) -> SendResult | None:
        """Send a message; return once the broker has stored it, as safely as it is set up to.

        A reply that nobody waits for any longer is logged: the handler has done its work.

        Raises:
            SendError: no broker took it, or one did that does not call it safe.
            ConfigurationError: what no message can have.
            ClientStateError: the broker is not connected.
        """
        message = await cmd.message(self.codec, self.serializer)
        try:
            stored = await self._connected().send(message, sharding_key=cmd.sharding_key)
            # The message that a handler's result replaces would count as consumed.
            if (doubt := unsafe(stored)) is not None:
                raise doubt
            return stored
        except SendError as error:
            if cmd.request is None or error.outcome is not SendOutcome.REJECTED:
                raise
            logger.warning(
                "nobody waits for the reply to message %s: %s", cmd.request.msg_id, error
            )
            return None

    async def request(self, cmd: RocketMQPublishCommand) -> MessageExt:
        """Send a message and wait for its reply.

        Raises:
            ReplyTimeoutError: no reply in time.
            SendError: no broker took it.
        """
        message = await cmd.message(self.codec, self.serializer)
        timeout = REQUEST_TIMEOUT_S if cmd.timeout is None else cmd.timeout
        return await self._connected().request(message, timeout_ms=timeout * 1000)

    async def publish_batch(self, cmd: Any) -> NoReturn:
        """Refuse: messages are gathered by the producer instead.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError(
            "this broker publishes no batches; with producer_settings={'auto_batch': True} what is "
            "published at the same time goes out together"
        )

    def _connected(self) -> AsyncProducer:
        if self.client is None:
            raise ClientStateError("the broker is not connected; await broker.connect() first")
        return self.client
