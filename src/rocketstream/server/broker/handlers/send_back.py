"""Messages consumers send back: code 36 (C-398 to C-402, C-592).

The rule is that of the retry sends of ``handlers.send``: more attempts than allowed means the
dead-letter topic at once, without delay.
"""

from __future__ import annotations

import itertools

from rocketstream.errors import (
    ConfigurationError,
    LocalProtocolError,
    StoreError,
)
from rocketstream.protocol import names
from rocketstream.protocol.bodies import SubscriptionGroupConfig
from rocketstream.protocol.codes import (
    VERSION_MAX_RECONSUME_TIMES,
    Perm,
    RequestCode,
    ResponseCode,
)
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import ConsumerSendMsgBackRequestHeader
from rocketstream.protocol.message_id import encode_offset_msg_id
from rocketstream.protocol.properties import (
    PROPERTY_DELAY,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_WAIT,
)
from rocketstream.protocol.record import unpack_host
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.broker.core.acl.accounts import SUB
from rocketstream.server.broker.flush_gate import TIMEOUT, FlushGate
from rocketstream.server.broker.messages import (
    InnerMessage,
    MessageWriter,
    StoredMessage,
    copy_of,
    read_stored,
)
from rocketstream.server.dispatch import Handler, ok, refusal
from rocketstream.transport.connection import Connection

FIRST_RETRY_LEVEL = 3
ATTEMPTS_MAX = 2**31 - 1
"""Tries that a record can tell: clients choose the number, and a greater one fits none."""


class SendBackHandlers:
    """Stores a message for another attempt, or gives it up."""

    def __init__(
        self, controller: BrokerController, writer: MessageWriter, gate: FlushGate | None
    ) -> None:
        self._controller = controller
        self._writer = writer
        self._gate = gate
        self._next_queue = itertools.count()

    def table(self) -> dict[int, Handler]:
        """The codes of this module."""
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back}

    def send_back(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        """Code 36."""
        header = request.header(ConsumerSendMsgBackRequestHeader)
        self._check_group(header.group)
        settings = self._controller.find_group(header.group)
        if settings is None:
            text = f"subscription group not exist, {header.group}"
            raise refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text)
        if settings.retry_queue_nums <= 0:
            return ok()
        stored = self._stored(header)
        access = self._controller.access
        if access is not None:
            # Otherwise the readers of one group could read every topic through its retries.
            head = stored.head
            access.check_stored(connection, request, head.topic, stored.properties, SUB)
        topic = self._controller.ensure_retry_topic(settings, unit=bool(header.unit_mode))
        if not topic.perm & Perm.WRITE:
            text = f"the topic[{topic.topic_name}] sending message is forbidden"
            raise refusal(ResponseCode.NO_PERMISSION, text)
        queues = min(settings.retry_queue_nums, topic.write_queue_nums)
        message = self._next_attempt(header, settings, stored, request.version, queues)
        return self._put(connection, request, message, header.group)

    def _check_group(self, group: str) -> None:
        """Refuse a send-back that could never be delivered: the delay would hide it (C-399)."""
        try:
            names.check_consumer_group(group)
        except ConfigurationError as error:
            text = f"subscription group not exist, {group}: {error.message}"
            raise refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, text) from None

    def _stored(self, header: ConsumerSendMsgBackRequestHeader) -> StoredMessage:
        """Return the message; one that a power loss took is sent anew by whoever is refused."""
        record = self._controller.store.read(header.offset)
        stored = None if record is None else read_stored(record)
        if stored is None or not stored.may_be(header.origin_msg_id):
            text = f"look message by offset failed, {header.offset}"
            raise refusal(ResponseCode.SYSTEM_ERROR, text)
        return stored

    def _next_attempt(
        self,
        header: ConsumerSendMsgBackRequestHeader,
        settings: SubscriptionGroupConfig,
        stored: StoredMessage,
        version: int,
        queues: int,
    ) -> InnerMessage:
        most = settings.retry_max_times
        if version >= VERSION_MAX_RECONSUME_TIMES and header.max_reconsume_times is not None:
            most = header.max_reconsume_times
        message = copy_of(stored, "", 0)
        properties = message.properties
        properties.setdefault(PROPERTY_RETRY_TOPIC, stored.head.topic)
        properties[PROPERTY_WAIT] = "false"
        properties.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, _offset_id(stored))
        attempts = stored.head.reconsume_times
        if attempts >= most or header.delay_level < 0:
            message.topic = names.dlq_topic(header.group)
            self._controller.ensure_topic(message.topic, 1)
            level = 0
        else:
            message.topic = names.retry_topic(header.group)
            message.queue_id = next(self._next_queue) % queues
            level = header.delay_level or FIRST_RETRY_LEVEL + attempts
        properties[PROPERTY_DELAY] = str(level)
        message.reconsume_times = min(attempts + 1, ATTEMPTS_MAX)
        return message

    def _put(
        self, connection: Connection, request: RemotingCommand, message: InnerMessage, group: str
    ) -> RemotingCommand | None:
        try:
            self._writer.put(message)
        except LocalProtocolError:  # a retry's properties made it too long; Apache's word
            raise refusal(ResponseCode.SYSTEM_ERROR, "PROPERTIES_SIZE_EXCEEDED") from None
        except StoreError as error:
            text = f"the message was not stored: {error.message}"
            raise refusal(ResponseCode.SYSTEM_ERROR, text) from error
        self._controller.put_count.total += 1
        topic = message.properties[PROPERTY_RETRY_TOPIC]
        self._controller.statistics.sent_back(topic, group)
        response = ok()
        if self._gate is None:
            return response

        def done(failure: str | None) -> None:
            if failure is not None:
                response.code = ResponseCode.SYSTEM_ERROR
                response.remark = "FLUSH_DISK_TIMEOUT" if failure == TIMEOUT else failure
            connection.reply(request, response)

        self._gate.wait(self._controller.store.physical_max_offset, done)
        return None


def _offset_id(stored: StoredMessage) -> str:
    host, port = unpack_host(stored.head.store_host_bytes)
    return encode_offset_msg_id(host, port, stored.head.physical_offset)
