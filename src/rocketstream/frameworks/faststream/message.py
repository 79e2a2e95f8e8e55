"""A received message as FastStream's handlers get it, and how it is made from RocketMQ's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from faststream.message import StreamMessage, decode_message

from rocketstream.frameworks.intake import Delivery
from rocketstream.model import RESERVED_PROPERTIES
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.properties import PROPERTY_CORRELATION_ID, PROPERTY_REPLY_TO_CLIENT

if TYPE_CHECKING:
    from faststream._internal.basic_types import DecodedMessage

CONTENT_TYPE = "content-type"
CORRELATION_ID = "correlation_id"
REPLY_TO = "reply_to"
"""Names of properties; the headers FastStream's Kafka broker uses."""

_delivery: ContextVar[Delivery | None] = ContextVar("rocketstream_delivery", default=None)


class RocketMQMessage(StreamMessage[MessageExt]):
    """A message in a handler; the first of ``ack``, ``nack`` and ``reject`` counts.

    ``raw_message`` is the ``MessageExt``, with ``tags``, ``keys``, ``reconsume_times``, and so on.
    """

    def __init__(self, message: MessageExt, delivery: Delivery | None) -> None:
        properties = message.properties
        msg_id = message.msg_id
        super().__init__(
            message,
            message.body,
            headers={k: v for k, v in properties.items() if k not in RESERVED_PROPERTIES},
            reply_to=properties.get(REPLY_TO) or properties.get(PROPERTY_REPLY_TO_CLIENT) or "",
            content_type=properties.get(CONTENT_TYPE),
            correlation_id=properties.get(CORRELATION_ID)
            or properties.get(PROPERTY_CORRELATION_ID)
            or msg_id,
            message_id=msg_id,
        )
        self._settled_by = delivery

    @property
    def is_request(self) -> bool:
        """Whether a producer waits for the reply: it was sent by ``request``."""
        return PROPERTY_REPLY_TO_CLIENT in self.raw_message.properties

    async def ack(self) -> None:
        """It is consumed."""
        if self.committed is None and self._settled_by is not None:
            self._settled_by.done()
        await super().ack()

    async def nack(self, delay_level: int = 0) -> None:
        """It comes again, and goes to the dead letters after ``max_reconsume_times`` tries.

        Args:
            delay_level: after which of the broker's delay levels; 0: one that grows with the number
                of tries. In order, the queue waits for it instead.

        Raises:
            ConfigurationError: it is not a whole number from 0 on.
        """
        if self.committed is None and self._settled_by is not None:
            self._settled_by.later(delay_level)
        await super().nack()

    async def reject(self) -> None:
        """It goes to the dead letters of the group, ``%DLQ%<group>``."""
        if self.committed is None and self._settled_by is not None:
            self._settled_by.dead()
        await super().reject()


@contextmanager
def delivered(delivery: Delivery) -> Iterator[None]:
    """Let messages parsed inside settle this delivery."""
    token = _delivery.set(delivery)
    try:
        yield
    finally:
        _delivery.reset(token)


async def parse_message(message: MessageExt) -> RocketMQMessage:
    """Return a message of RocketMQ's as one of FastStream's."""
    return RocketMQMessage(message, _delivery.get())


async def decode_body(message: StreamMessage[MessageExt]) -> DecodedMessage:
    """Return the body as its content type says; without one, as JSON if it is that."""
    return decode_message(message)
