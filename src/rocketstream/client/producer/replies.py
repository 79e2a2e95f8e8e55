"""Replies that brokers push to whoever made the request (326, C-482).

Law: runs on the instance's loop; nothing of sending, so that the instance may serve it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from rocketstream.errors import ConfigurationError, LocalProtocolError, RemoteProtocolError
from rocketstream.protocol.codes import ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import ReplyMessageRequestHeader
from rocketstream.protocol.message_ext import MessageExt, decode_message
from rocketstream.protocol.properties import PROPERTY_ARRIVE_TIME, PROPERTY_CORRELATION_ID
from rocketstream.protocol.record import RecordFields, encode_record
from rocketstream.transport.addresses import parse_address

if TYPE_CHECKING:
    from rocketstream.client.instance.mq_client import MQClientInstance
    from rocketstream.transport.aio import Connection

logger = logging.getLogger("rocketstream.client")

Waiting = dict[str, "asyncio.Future[MessageExt]"]
_waiting: WeakKeyDictionary[MQClientInstance, Waiting] = WeakKeyDictionary()


def replies_awaited(instance: MQClientInstance) -> Waiting:
    """Return the futures of an instance's requests by correlation id; theirs who put them in."""
    return _waiting.setdefault(instance, {})


def take_reply(
    instance: MQClientInstance, connection: Connection, command: RemotingCommand
) -> None:
    """Handle a reply a broker pushes (326): give it to the request that waits for it (C-482).

    Raises:
        RemoteProtocolError: it cannot be read.
    """
    header = command.header(ReplyMessageRequestHeader)
    message = _reply_message(header, bytes(command.body))
    message.properties[PROPERTY_ARRIVE_TIME] = str(instance.clock.now_ms())
    correlation_id = message.get_property(PROPERTY_CORRELATION_ID)
    reply = _waiting.get(instance, {}).get(correlation_id or "")
    if reply is None or reply.done():
        logger.warning("a reply came too late, or to nobody: correlation id %s", correlation_id)
    else:
        reply.set_result(message)
    connection.reply(command, RemotingCommand.response(ResponseCode.SUCCESS))


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
