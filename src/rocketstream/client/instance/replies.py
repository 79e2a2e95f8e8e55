"""Replies that brokers push to whoever made the request (326, C-482).

Law: a table and no I/O, used on the instance's loop; it knows nothing of sending.
"""

from __future__ import annotations

import asyncio
import logging

from rocketstream.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from rocketstream.protocol.addresses import parse_address
from rocketstream.protocol.headers import ReplyMessageRequestHeader
from rocketstream.protocol.message_ext import MessageExt, decode_message
from rocketstream.protocol.properties import PROPERTY_ARRIVE_TIME, PROPERTY_CORRELATION_ID
from rocketstream.protocol.record import RecordFields, encode_record

logger = logging.getLogger("rocketstream.client")


class AwaitedReplies:
    """The requests of one client instance that wait for a reply, by correlation id."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[MessageExt]] = {}

    def expect(self, correlation_id: str, reply: asyncio.Future[MessageExt]) -> None:
        """Wait for the reply to a request: ``reply`` is done when it comes."""
        self._waiting[correlation_id] = reply

    def forget(self, correlation_id: str) -> None:
        """Wait no longer; a reply that still comes is logged."""
        self._waiting.pop(correlation_id, None)

    def fail(self, correlation_id: str, error: Exception) -> None:
        """End a request that still waits with an error."""
        reply = self._waiting.get(correlation_id)
        if reply is not None and not reply.done():
            reply.set_exception(error)

    def take(self, header: ReplyMessageRequestHeader, body: bytes, now_ms: int) -> None:
        """Give a pushed reply to the request that waits for it (C-482).

        Raises:
            RemoteProtocolError: it cannot be read.
        """
        message = _reply_message(header, body)
        message.properties[PROPERTY_ARRIVE_TIME] = str(now_ms)
        correlation_id = message.get_property(PROPERTY_CORRELATION_ID)
        reply = self._waiting.get(correlation_id or "")
        if reply is None or reply.done():
            logger.warning(
                "no request waits for a reply: it came too late, or to the wrong client; "
                "correlation id %s",
                correlation_id,
            )
        else:
            reply.set_result(message)


def _reply_message(header: ReplyMessageRequestHeader, body: bytes) -> MessageExt:
    try:
        record = encode_record(
            RecordFields(
                topic=header.topic,
                queue_id=header.queue_id,
                flag=header.flag,
                sys_flag=header.sys_flag,
                born_timestamp=header.born_timestamp,
                born_host=parse_address(header.born_host.lstrip("/")),
                store_timestamp=header.store_timestamp,
                store_host=parse_address(header.store_host.lstrip("/")),
                reconsume_times=header.reconsume_times or 0,
                prepared_transaction_offset=0,
                body=body,
                properties=header.properties or "",
            )
        )
    except (ConfigurationError, LocalProtocolError) as error:
        raise RemoteProtocolError(f"a pushed reply cannot be read: {error}") from error
    message = decode_message(record)
    message.body  # noqa: B018  (inflates: what cannot be read fails here, not at the user)
    return message
