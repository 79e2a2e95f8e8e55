"""Admin requests a broker passes on to clients: codes 222, 223, 307, 309 (C-531, C-538).

A member itself decides what it does; the broker relays its answer. Upstream: Broker2Client and
AdminBrokerProcessor.callConsumer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from rocketstream.errors import ProtocolError, RequestTimeoutError, TransportError
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import GetConsumerStatusBody, ResetOffsetBody
from rocketstream.protocol.codes import (
    VERSION_CONSUMER_RUNNING_INFO,
    VERSION_RESET_OFFSET,
    LanguageCode,
    RequestCode,
    ResponseCode,
)
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from rocketstream.protocol.message_id import decode_offset_msg_id
from rocketstream.protocol.names import DLQ_PREFIX
from rocketstream.protocol.signing import unsigned
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.broker.core.acl.accounts import SUB
from rocketstream.server.broker.core.acl.rights import rights_to_stored
from rocketstream.server.broker.core.members import ConsumerGroup, Member
from rocketstream.server.broker.messages import StoredMessage, read_stored
from rocketstream.server.dispatch import Handler, ok, refusal
from rocketstream.transport.connection import Connection

logger: logging.Logger = logging.getLogger("rocketstream.server")

STATUS_TIMEOUT_MS = 5_000
CALL_TIMEOUT_MS = 10_000
TO_MAX = -1
"""The timestamp by which a reset asks for the end of the queue."""


class ProxiedHandlers:
    """Requests that reset, question and test consumers through their broker."""

    def __init__(self, controller: BrokerController) -> None:
        self._controller = controller

    def table(self) -> dict[int, Handler]:
        """The codes of this module."""
        return {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset_offset,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.consumer_status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
        }

    # --- resetting -------------------------------------------------------------------------------

    def reset_offset(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """Code 222: each member gets a 220 to move its offsets; the broker's stay (C-531)."""
        header = request.header(ResetOffsetRequestHeader)
        logger.info(
            "reset of offsets group=%s topic=%s timestamp=%d force=%s peer=%s",
            header.group, header.topic, header.timestamp, header.is_force, connection.peer,
        )  # fmt: skip
        body = ResetOffsetBody(self._reset_table(header))
        for_c = request.language == LanguageCode.CPP
        told = ResetOffsetRequestHeader(header.topic, header.group, header.timestamp, False)
        group = self._controller.consumers.group(header.group)
        if group is None:
            raise refusal(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group} "
                f"Topic: {header.topic} Timestamp: {header.timestamp}",
            )
        for member in group.members.values():
            _check_version(member, VERSION_RESET_OFFSET)
        for member in group.members.values():
            command = RemotingCommand.request(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                told,
                body.encode_for_c() if for_c else body.encode(),
                oneway=True,
            )
            _tell(member, command)
        return ok(body=body.encode())

    def _reset_table(self, header: ResetOffsetRequestHeader) -> dict[MessageQueue, int]:
        """Return the new offset of each write queue; one queue without an offset fails all (C-531).

        5.x tools can name one queue and an offset in it; then only that queue is moved.
        """
        controller, topic = self._controller, header.topic
        config = controller.topics.get(topic)
        if config is None:
            text = f"[reset-offset] reset offset failed, no topic in this broker. topic={topic}"
            raise refusal(ResponseCode.SYSTEM_ERROR, text)
        table: dict[MessageQueue, int] = {}
        for queue_id in _queue_ids(header, config.write_queue_nums):
            stored = controller.offsets.query(header.group, topic, queue_id)
            if stored is None:
                text = f"THe consumer group <{header.group}> not exist"
                raise refusal(ResponseCode.SYSTEM_ERROR, text)
            wanted = self._wanted(header, queue_id)
            queue = MessageQueue(topic, controller.config.broker_name, queue_id)
            table[queue] = wanted if header.is_force or wanted < stored else stored
        return table

    def _wanted(self, header: ResetOffsetRequestHeader, queue_id: int) -> int:
        store, topic = self._controller.store, header.topic
        high = store.max_offset(topic, queue_id)
        if header.offset is not None and header.offset >= 0 and _names_queue(header):
            low = store.min_offset(topic, queue_id)
            if not low <= header.offset <= high:
                text = f"Target offset {header.offset} not in consume queue range [{low}-{high}]"
                raise refusal(ResponseCode.SYSTEM_ERROR, text)
            return header.offset
        if header.timestamp == TO_MAX:
            return high
        return max(store.offset_by_timestamp(topic, queue_id, header.timestamp), 0)

    # --- asking all ------------------------------------------------------------------------------

    def consumer_status(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | None:
        """Code 223: the offsets every member, or one of them, has consumed (221)."""
        header = request.header(GetConsumerStatusRequestHeader)
        group = self._controller.consumers.group(header.group)
        if group is None:
            text = f"No Any Consumer online in the consumer group: [{header.group}]"
            raise refusal(ResponseCode.SYSTEM_ERROR, text)
        asked = [
            member
            for member in group.members.values()
            if not header.client_addr or member.client_id == header.client_addr
        ]
        for member in asked:
            _check_version(member, VERSION_RESET_OFFSET)
        self._controller.spawn(self._collect_status(connection, request, header, asked))
        return None

    async def _collect_status(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: GetConsumerStatusRequestHeader,
        members: list[Member],
    ) -> None:
        question = GetConsumerStatusRequestHeader(header.topic, header.group)
        tables = await asyncio.gather(*(_status_of(member, question) for member in members))
        found = {
            member.client_id: table
            for member, table in zip(members, tables, strict=True)
            if table is not None
        }
        connection.reply(request, ok(body=GetConsumerStatusBody(consumer_table=found).encode()))

    # --- asking one ------------------------------------------------------------------------------

    def running_info(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | None:
        """Code 307."""
        header = request.header(GetConsumerRunningInfoRequestHeader)
        member = self._member(header.consumer_group, header.client_id)
        self._relay(connection, request, header.consumer_group, member, bytes(request.body))
        return None

    def consume_directly(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | None:
        """Code 309: the member gets the stored message with the request."""
        header = request.header(ConsumeMessageDirectlyResultRequestHeader)
        _, _, offset = decode_offset_msg_id(header.msg_id or "")
        record = self._controller.store.read(offset) if offset >= 0 else None
        if record is None:
            text = f"can not find message by the id, {header.msg_id}"
            raise refusal(ResponseCode.SYSTEM_ERROR, text)
        member = self._member(header.consumer_group, header.client_id)
        self._check_rights(connection, request, read_stored(record), member)
        ext = request.ext_fields = dict(request.ext_fields or {})
        ext["brokerName"] = self._controller.config.broker_name
        self._relay(connection, request, header.consumer_group, member, record)
        return None

    def _check_rights(
        self,
        connection: Connection,
        request: RemotingCommand,
        stored: StoredMessage,
        member: Member,
    ) -> None:
        """Refuse to pass a message to a member that may not read its topic."""
        access = self._controller.access
        if access is None:
            return
        topic, properties = stored.head.topic, stored.properties
        access.check_stored(connection, request, topic, properties, SUB)
        rights = rights_to_stored(topic, properties, SUB)
        # A group's dead letters are brought to its members, who need no right to them as a topic.
        needed = {name: right for name, right in rights.items() if not name.startswith(DLQ_PREFIX)}
        assert isinstance(member.channel, Connection)
        if not access.may(member.channel, member.access_key, needed):
            text = f"the account of consumer <{member.client_id}> has no right to the message"
            raise refusal(ResponseCode.SYSTEM_ERROR, text)

    def _member(self, group_name: str, client_id: str | None) -> Member:
        group = self._controller.consumers.group(group_name)
        member = _find(group, client_id) if group and client_id else None
        if member is None:
            text = f"The Consumer <{group_name}> <{client_id}> not online"
            raise refusal(ResponseCode.SYSTEM_ERROR, text)
        if member.version < VERSION_CONSUMER_RUNNING_INFO:
            raise refusal(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client_id}> Version <{member.version}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT",
            )
        return member

    def _relay(
        self,
        connection: Connection,
        request: RemotingCommand,
        group: str,
        member: Member,
        body: bytes,
    ) -> None:
        """Ask a member the same question and relay its answer, of any kind."""
        who = f"<{group}> <{member.client_id}>"

        def answered(answer: RemotingCommand | None, error: Exception | None) -> None:
            if answer is not None:
                response = RemotingCommand.response(answer.code, answer.remark)
                response.ext_fields, response.body = answer.ext_fields, bytes(answer.body)
            elif isinstance(error, RequestTimeoutError):
                text = f"consumer {who} Timeout: {error.message}"
                response = RemotingCommand.response(ResponseCode.CONSUME_MSG_TIMEOUT, text)
            else:
                text = f"invoke consumer {who} Exception: {error}"
                response = RemotingCommand.response(ResponseCode.SYSTEM_ERROR, text)
            connection.reply(request, response)

        command = RemotingCommand.request(request.code, None, body)
        command.ext_fields = unsigned(request.ext_fields or {})
        channel = member.channel
        assert isinstance(channel, Connection)
        try:
            channel.request_callback(command, CALL_TIMEOUT_MS, answered)
        except TransportError as error:
            answered(None, error)


def _names_queue(header: ResetOffsetRequestHeader) -> bool:
    return header.queue_id is not None and header.queue_id >= 0


def _queue_ids(header: ResetOffsetRequestHeader, queues: int) -> Sequence[int]:
    if header.queue_id is None or header.queue_id < 0:
        return range(queues)
    if header.queue_id >= queues:
        text = f"queue {header.queue_id} of topic {header.topic} is not one of its {queues} queues"
        raise refusal(ResponseCode.SYSTEM_ERROR, text)
    return (header.queue_id,)


async def _status_of(
    member: Member, question: GetConsumerStatusRequestHeader
) -> dict[MessageQueue, int] | None:
    """Return a member's offsets; None when it cannot or will not tell."""
    channel = member.channel
    assert isinstance(channel, Connection)
    command = RemotingCommand.request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, question)
    try:
        answer = await channel.request(command, STATUS_TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            return None
        return GetConsumerStatusBody.decode_request(bytes(answer.body)).message_queue_table
    except (TransportError, ProtocolError) as error:
        logger.info("client %s does not say what it consumed: %s", member.client_id, error)
        return None


def _find(group: ConsumerGroup, client_id: str) -> Member | None:
    return next((m for m in group.members.values() if m.client_id == client_id), None)


def _check_version(member: Member, least: int) -> None:
    if member.version < least:
        text = f"the client does not support this feature. version={member.version}"
        raise refusal(ResponseCode.SYSTEM_ERROR, text)


def _tell(member: Member, command: RemotingCommand) -> None:
    if isinstance(member.channel, Connection):
        try:
            member.channel.oneway(command)
        except TransportError as error:
            logger.info("cannot tell client %s: %s", member.client_id, error)
