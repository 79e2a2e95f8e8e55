"""Replies to requests made as messages: codes 324 and 325 in, 326 out (C-479 to C-482).

Law: a reply is pushed first and stored second; the outcome of the push is the answer. Upstream:
ReplyMessageProcessor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rocketstream.errors import (
    BrokerError,
    ConfigurationError,
    LocalProtocolError,
    StoreError,
    TransportError,
)
from rocketstream.protocol.addresses import format_address
from rocketstream.protocol.codes import MessageSysFlag, RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import ReplyMessageRequestHeader, SendMessageRequestHeader
from rocketstream.protocol.properties import (
    PROPERTY_PUSH_REPLY_TIME,
    PROPERTY_REPLY_TO_CLIENT,
    decode_properties,
    encode_properties,
)
from rocketstream.protocol.record import pack_host
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.broker.handlers.send import SendHandlers
from rocketstream.server.broker.messages import InnerMessage, MessageWriter
from rocketstream.server.dispatch import Handler
from rocketstream.transport.connection import Connection
from rocketstream.transport.sharing import AnswerSteps

logger: logging.Logger = logging.getLogger("rocketstream.server")

PUSH_TIMEOUT_MS = 10_000
NO_MESSAGE_ID = "0"
"""Stands for the id of a reply that is not stored."""


class ReplyHandlers:
    """Delivers replies to the clients that wait for them."""

    def __init__(
        self, controller: BrokerController, writer: MessageWriter, sends: SendHandlers
    ) -> None:
        self._controller = controller
        self._writer = writer
        self._sends = sends

    def table(self) -> dict[int, Handler]:
        """The codes of this module."""
        return {
            RequestCode.SEND_REPLY_MESSAGE: self.reply_v1,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.reply_v2,
        }

    def reply_v1(self, connection: Connection, request: RemotingCommand) -> AnswerSteps:
        """Code 324."""
        return self._answer(connection, request, request.header(SendMessageRequestHeader))

    def reply_v2(self, connection: Connection, request: RemotingCommand) -> AnswerSteps:
        """Code 325."""
        header = SendMessageRequestHeader.from_ext_v2(request.ext_fields or {})
        return self._answer(connection, request, header)

    def _answer(
        self, connection: Connection, request: RemotingCommand, header: SendMessageRequestHeader
    ) -> AnswerSteps:
        try:
            queue_id = yield from self._sends.queue_for(connection, header)
        except BrokerError as error:
            return self._bare(error.code, error.remark)
        except ConfigurationError as error:
            return self._bare(ResponseCode.SYSTEM_ERROR, error.message)
        body = bytes(request.body)
        properties = decode_properties(header.properties or "")

        def pushed(failure: str | None) -> None:
            stored = self._store(connection, header, queue_id, body, properties)
            connection.reply(request, self._response(failure, queue_id, stored))

        self._push(connection, header, body, properties, pushed)
        return None

    # --- pushing ---------------------------------------------------------------------------------

    def _push(
        self,
        connection: Connection,
        header: SendMessageRequestHeader,
        body: bytes,
        properties: dict[str, str],
        pushed: Callable[[str | None], None],
    ) -> None:
        client_id = properties.get(PROPERTY_REPLY_TO_CLIENT)
        if client_id is None:
            pushed(f"reply message properties[{PROPERTY_REPLY_TO_CLIENT}] is null")
            return
        channel = self._controller.producers.channel_of(client_id)
        if not isinstance(channel, Connection) or channel.is_closed:
            pushed(f"push reply message fail, channel of <{client_id}> not found.")
            return
        failed = f"push reply message to {client_id}fail."

        def answered(answer: RemotingCommand | None, error: Exception | None) -> None:
            is_taken = answer is not None and answer.code == ResponseCode.SUCCESS
            if not is_taken:
                why = answer.remark if answer is not None else error
                logger.info("client %s did not take a reply: %s", client_id, why)
            pushed(None if is_taken else failed)

        command = self._push_request(connection, header, body, properties)
        try:
            channel.request_callback(command, PUSH_TIMEOUT_MS, answered)
        except TransportError as error:
            answered(None, error)

    def _push_request(
        self,
        connection: Connection,
        header: SendMessageRequestHeader,
        body: bytes,
        properties: dict[str, str],
    ) -> RemotingCommand:
        now_ms = self._controller.now_ms()
        pushed = {**properties, PROPERTY_PUSH_REPLY_TIME: str(now_ms)}
        reply = ReplyMessageRequestHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            born_host=format_address(*connection.peer_host),
            store_host=self._controller.address,
            store_timestamp=now_ms,
            properties=encode_properties(pushed),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
        )
        return RemotingCommand.request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, reply, body)

    # --- storing ---------------------------------------------------------------------------------

    def _store(
        self,
        connection: Connection,
        header: SendMessageRequestHeader,
        queue_id: int,
        body: bytes,
        properties: dict[str, str],
    ) -> tuple[str, int] | None:
        """Store the reply if configured; return its id and offset.

        A failure is only logged (C-481).
        """
        controller = self._controller
        if not controller.config.store_reply_message:
            return None
        message = InnerMessage(
            topic=header.topic,
            queue_id=queue_id,
            body=body,
            properties=properties,
            flag=header.flag,
            sys_flag=header.sys_flag & ~MessageSysFlag.TRANSACTION_MASK,
            born_timestamp=header.born_timestamp,
            born_host=pack_host(*connection.peer_host),
            store_host=controller.store_host_bytes,
            reconsume_times=header.reconsume_times or 0,
        )
        try:
            physical, offset = self._writer.put(message)
        except (StoreError, LocalProtocolError) as error:
            logger.warning("a reply to topic %s could not be stored: %s", header.topic, error)
            return None
        controller.put_count.total += 1
        prefix = controller.store_host_bytes.hex().upper()
        return f"{prefix}{physical:016X}", offset

    def _response(
        self, failure: str | None, queue_id: int, stored: tuple[str, int] | None
    ) -> RemotingCommand:
        code = ResponseCode.SUCCESS if failure is None else ResponseCode.SYSTEM_ERROR
        response = self._bare(code, failure)
        if failure is None or stored is not None:
            msg_id, offset = stored or (NO_MESSAGE_ID, 0)
            place = {"msgId": msg_id, "queueId": str(queue_id), "queueOffset": str(offset)}
            response.ext_fields = {**place, **(response.ext_fields or {})}
        return response

    def _bare(self, code: int, remark: str | None) -> RemotingCommand:
        response = RemotingCommand.response(code, remark)
        region = self._controller.config.region
        response.ext_fields = {"MSG_REGION": region, "TRACE_ON": "true"}
        return response
