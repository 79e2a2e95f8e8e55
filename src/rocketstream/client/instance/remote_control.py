"""Requests a broker makes of a client: a table from code to handler (C-133).

Law: reads the request, asks the group's consumer or producer, answers; knows no consumer kind
(upstream's ClientRemotingProcessor).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, runtime_checkable

from rocketstream._util.clock import Clock
from rocketstream.client.config import ClientConfig
from rocketstream.client.instance.api import MQClientAPI
from rocketstream.client.instance.groups import ConsumerInner, ProducerInner
from rocketstream.client.instance.replies import AwaitedReplies
from rocketstream.client.instance.stacks import all_stacks
from rocketstream.errors import RemoteProtocolError, RocketMQError
from rocketstream.protocol.bodies import Body, GetConsumerStatusBody, ResetOffsetBody
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    CheckTransactionStateRequestHeader,
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    NotifyUnsubscribeLiteRequestHeader,
    ReplyMessageRequestHeader,
    ResetOffsetRequestHeader,
)
from rocketstream.protocol.message_ext import MessageExt, decode_message
from rocketstream.protocol.namespace import without_namespace
from rocketstream.transport.aio import Connection

logger = logging.getLogger("rocketstream.client")

PROPERTY_PRODUCER_GROUP = "PGROUP"


class Served(Protocol):
    """What the handlers need of the client instance whose brokers ask."""

    config: ClientConfig
    clock: Clock
    api: MQClientAPI
    replies: AwaitedReplies

    def producer(self, group: str) -> ProducerInner | None:
        """Return the producer of a group."""
        ...

    def consumer(self, group: str) -> ConsumerInner | None:
        """Return the consumer of a group."""
        ...

    def rebalance_soon(self) -> None:
        """Have queues divided anew."""
        ...

    def run_soon(
        self, work: Coroutine[None, None, None], on_dropped: Callable[[], None] | None = None
    ) -> None:
        """Run work that takes time."""
        ...

    @staticmethod
    def version_text() -> str:
        """Return the version of this client as upstream tells it."""
        ...


@runtime_checkable
class LiteSubscriber(Protocol):
    """A consumer of lite topics."""

    def lite_topic_taken(self, name: str) -> None:
        """Another member of the group has a lite topic from now on."""
        ...


RemoteHandler = Callable[[Served, Connection, RemotingCommand], None]
"""Called on the loop; must not wait: what takes time runs in ``instance.run_soon``."""


def serve(instance: Served, connection: Connection, command: RemotingCommand) -> bool:
    """Handle a broker's request; return whether its code is known."""
    handler = REMOTE_HANDLERS.get(command.code)
    if handler is None:
        return False
    try:
        handler(instance, connection, command)
    except RocketMQError as error:
        logger.warning("request %d of %s: %s", command.code, connection.peer, error)
        _fail(connection, command, str(error))
    return True


# --- handlers -------------------------------------------------------------------------------------


def _ids_changed(instance: Served, _connection: Connection, _command: RemotingCommand) -> None:
    instance.rebalance_soon()


def _check_transaction(instance: Served, connection: Connection, command: RemotingCommand) -> None:
    header = command.header(CheckTransactionStateRequestHeader)
    message = _message_of(instance, command)
    group = message.get_property(PROPERTY_PRODUCER_GROUP)
    producer = instance.producer(group) if group else None
    if producer is None:
        logger.warning(
            "a broker asks for the state of transaction %s of producer group %s, which has no "
            "producer in this client",
            header.transaction_id,
            group,
        )
        return
    instance.run_soon(producer.check_transaction_state(connection.peer, message, header))


def _reset_offset(instance: Served, connection: Connection, command: RemotingCommand) -> None:
    header = command.header(ResetOffsetRequestHeader)
    table = ResetOffsetBody.decode(command.body).offset_table if command.body else {}
    logger.info(
        "%s asks to reset offsets of group %s, topic %s: %s",
        connection.peer, header.group, header.topic, table,
    )  # fmt: skip
    consumer = instance.consumer(header.group)
    if consumer is None:
        logger.warning(
            "offsets of group %s cannot be reset: it has no consumer in this client", header.group
        )
        return
    offsets = {mq: offset for mq, offset in table.items() if mq.topic == header.topic}
    instance.run_soon(consumer.reset_offsets(header.topic, offsets))


def _consumer_status(instance: Served, connection: Connection, command: RemotingCommand) -> None:
    header = command.header(GetConsumerStatusRequestHeader)
    consumer = instance.consumer(header.group)
    table = {} if consumer is None else consumer.consumer_status(header.topic)
    _answer(connection, command, GetConsumerStatusBody(message_queue_table=dict(table)))


def _running_info(instance: Served, connection: Connection, command: RemotingCommand) -> None:
    header = command.header(GetConsumerRunningInfoRequestHeader)

    async def ask() -> Body | None:
        consumer = instance.consumer(header.consumer_group)
        if consumer is None:
            return None
        info = await consumer.running_info()
        info.properties.update(
            PROP_NAMESERVER_ADDR="".join(f"{each};" for each in instance.api.name_servers),
            PROP_CONSUME_TYPE=consumer.consume_type,
            PROP_CLIENT_VERSION=instance.version_text(),
        )
        if header.jstack_enable:
            info.jstack = all_stacks()
        return info

    _serve_soon(instance, connection, command, ask(), header.consumer_group)


def _consume_directly(instance: Served, connection: Connection, command: RemotingCommand) -> None:
    header = command.header(ConsumeMessageDirectlyResultRequestHeader)
    message = _message_of(instance, command, header.broker_name or "", unwrap=False)

    async def ask() -> Body | None:
        consumer = instance.consumer(header.consumer_group)
        if consumer is None:
            return None
        return await consumer.consume_directly(message, header.broker_name or "")

    _serve_soon(instance, connection, command, ask(), header.consumer_group)


def _take_reply(instance: Served, connection: Connection, command: RemotingCommand) -> None:
    """Take a reply a broker pushes to the request that waits for it (326, C-482)."""
    header = command.header(ReplyMessageRequestHeader)
    instance.replies.take(header, bytes(command.body), instance.clock.now_ms())
    connection.reply(command, RemotingCommand.response(ResponseCode.SUCCESS))


def _lite_topic_taken(instance: Served, _connection: Connection, command: RemotingCommand) -> None:
    header = command.header(NotifyUnsubscribeLiteRequestHeader)
    consumer = instance.consumer(header.consumer_group)
    if isinstance(consumer, LiteSubscriber):
        consumer.lite_topic_taken(header.lite_topic)


REMOTE_HANDLERS: dict[int, RemoteHandler] = {
    RequestCode.CHECK_TRANSACTION_STATE: _check_transaction,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: _ids_changed,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: _reset_offset,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: _consumer_status,
    RequestCode.GET_CONSUMER_RUNNING_INFO: _running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _consume_directly,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: _take_reply,
    RequestCode.NOTIFY_UNSUBSCRIBE_LITE: _lite_topic_taken,
}
"""Who serves which request; a handler answers itself, or not at all for one-way requests."""


# --- inside ---------------------------------------------------------------------------------------


def _serve_soon(
    instance: Served,
    connection: Connection,
    command: RemotingCommand,
    ask: Coroutine[Any, Any, Body | None],
    group: str,
) -> None:
    async def work() -> None:
        try:
            body = await ask
        except Exception as error:
            logger.exception("request %d of %s failed", command.code, connection.peer)
            _fail(connection, command, f"{type(error).__name__}: {error}")
            return
        if body is None:
            _fail(connection, command, f"The Consumer Group <{group}> not exist in this consumer")
        else:
            _answer(connection, command, body)

    instance.run_soon(work(), ask.close)


def _message_of(
    instance: Served,
    command: RemotingCommand,
    broker_name: str = "",
    *,
    unwrap: bool = True,
) -> MessageExt:
    try:
        message = decode_message(command.body, broker_name)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(
            f"request {command.code} carries a message that cannot be read: {error}"
        ) from error
    if unwrap:
        namespace = instance.config.effective_namespace()
        message.topic = without_namespace(message.topic, namespace)
    return message


def _answer(connection: Connection, command: RemotingCommand, body: Body) -> None:
    connection.reply(command, RemotingCommand.response(ResponseCode.SUCCESS, body=body.encode()))


def _fail(connection: Connection, command: RemotingCommand, remark: str) -> None:
    connection.reply(command, RemotingCommand.response(ResponseCode.SYSTEM_ERROR, remark))
