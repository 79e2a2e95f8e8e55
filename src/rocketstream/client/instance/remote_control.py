"""Requests a broker makes of a client: a table from code to handler (C-133).

It reads the request, asks the group's consumer or producer and answers; it knows no kind of
consumer (upstream's ClientRemotingProcessor).
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any

from rocketstream._util.clock import Clock
from rocketstream.client.config import ClientConfig
from rocketstream.client.instance.api import MQClientAPI
from rocketstream.client.instance.background import Background
from rocketstream.client.instance.groups import Groups
from rocketstream.errors import (
    ConfigurationError,
    LocalProtocolError,
    RemoteProtocolError,
    RocketMQError,
)
from rocketstream.protocol.addresses import parse_address
from rocketstream.protocol.bodies import Body, GetConsumerStatusBody, ResetOffsetBody
from rocketstream.protocol.codes import VERSION, RequestCode, ResponseCode, version_text
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
from rocketstream.protocol.names import LISTENER_THREAD_PREFIX
from rocketstream.protocol.namespace import without_namespace
from rocketstream.protocol.properties import PROPERTY_ARRIVE_TIME, PROPERTY_CORRELATION_ID
from rocketstream.protocol.record import RecordFields, encode_record
from rocketstream.transport.connection import Connection, refuse_request

logger: logging.Logger = logging.getLogger("rocketstream.client")

PROPERTY_PRODUCER_GROUP = "PGROUP"
_TASK_FRAMES_MAX = 50
TASKS_TOLD_MAX = 500
"""A program may have tasks by the ten thousand; those of listeners come first."""


class RemoteControl:
    """Answers what brokers ask of one client instance; belongs to its loop."""

    def __init__(
        self,
        config: ClientConfig,
        clock: Clock,
        groups: Groups,
        api: MQClientAPI,
        replies: AwaitedReplies,
        background: Background,
    ) -> None:
        self._namespace = config.effective_namespace()
        self._clock = clock
        self._groups = groups
        self._api = api
        self._replies = replies
        self._background = background

    def serve(self, connection: Connection, command: RemotingCommand) -> None:
        """Handle a broker's request; one of an unknown code is refused."""
        handler = REMOTE_HANDLERS.get(command.code)
        if handler is None:
            refuse_request(connection, command)
            return
        try:
            handler(self, connection, command)
        except RocketMQError as error:
            logger.warning("request %d of %s: %s", command.code, connection.peer, error)
            _fail(connection, command, str(error))

    # --- handlers: called on the loop, so what takes time runs in the background ------------------

    def _ids_changed(self, _connection: Connection, _command: RemotingCommand) -> None:
        self._groups.rebalance_soon()

    def _check_transaction(self, connection: Connection, command: RemotingCommand) -> None:
        header = command.header(CheckTransactionStateRequestHeader)
        message = self._message_of(command)
        group = message.get_property(PROPERTY_PRODUCER_GROUP)
        check = self._groups.producers.get(group) if group else None
        if check is None:
            logger.warning(
                "a broker asks for the state of transaction %s of producer group %s, which has no "
                "producer in this client",
                header.transaction_id,
                group,
            )
            return
        self._background.run_soon(check(connection.peer, message, header))

    def _reset_offset(self, connection: Connection, command: RemotingCommand) -> None:
        header = command.header(ResetOffsetRequestHeader)
        table = ResetOffsetBody.decode(command.body).offset_table if command.body else {}
        logger.info(
            "%s asks to reset offsets of group %s, topic %s: %s",
            connection.peer, header.group, header.topic, table,
        )  # fmt: skip
        consumer = self._groups.consumers.get(header.group)
        if consumer is None:
            logger.warning(
                "offsets of group %s cannot be reset: it has no consumer in this client",
                header.group,
            )
            return
        offsets = {mq: offset for mq, offset in table.items() if mq.topic == header.topic}
        self._background.run_soon(consumer.reset_offsets(header.topic, offsets))

    def _consumer_status(self, connection: Connection, command: RemotingCommand) -> None:
        header = command.header(GetConsumerStatusRequestHeader)
        consumer = self._groups.consumers.get(header.group)
        table = {} if consumer is None else consumer.consumer_status(header.topic)
        _answer(connection, command, GetConsumerStatusBody(message_queue_table=dict(table)))

    def _running_info(self, connection: Connection, command: RemotingCommand) -> None:
        header = command.header(GetConsumerRunningInfoRequestHeader)

        async def ask() -> Body | None:
            consumer = self._groups.consumers.get(header.consumer_group)
            if consumer is None:
                return None
            info = await consumer.running_info()
            servers = self._api.name_servers.addresses
            info.properties.update(
                PROP_NAMESERVER_ADDR="".join(f"{each};" for each in servers),
                PROP_CONSUME_TYPE=consumer.consume_type,
                PROP_CLIENT_VERSION=version_text(VERSION),
            )
            if header.jstack_enable:
                info.jstack = all_stacks()
            return info

        self._serve_soon(connection, command, ask(), header.consumer_group)

    def _consume_directly(self, connection: Connection, command: RemotingCommand) -> None:
        header = command.header(ConsumeMessageDirectlyResultRequestHeader)
        message = self._message_of(command, header.broker_name or "", unwrap=False)

        async def ask() -> Body | None:
            consumer = self._groups.consumers.get(header.consumer_group)
            if consumer is None:
                return None
            return await consumer.consume_directly(message, header.broker_name or "")

        self._serve_soon(connection, command, ask(), header.consumer_group)

    def _take_reply(self, connection: Connection, command: RemotingCommand) -> None:
        """Take a reply a broker pushes to the request that waits for it (326, C-482)."""
        header = command.header(ReplyMessageRequestHeader)
        self._replies.take(header, bytes(command.body), self._clock.now_ms())
        connection.reply(command, RemotingCommand.response(ResponseCode.SUCCESS))

    def _lite_topic_taken(self, _connection: Connection, command: RemotingCommand) -> None:
        header = command.header(NotifyUnsubscribeLiteRequestHeader)
        consumer = self._groups.consumers.get(header.consumer_group)
        if consumer is not None:
            consumer.lite_topic_taken(header.lite_topic)

    # --- inside -----------------------------------------------------------------------------------

    def _serve_soon(
        self,
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
                _fail(
                    connection, command, f"The Consumer Group <{group}> not exist in this consumer"
                )
            else:
                _answer(connection, command, body)

        self._background.run_soon(work(), ask.close)

    def _message_of(
        self,
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
            message._topic = without_namespace(message.topic, self._namespace)
        return message


REMOTE_HANDLERS: dict[int, Callable[[RemoteControl, Connection, RemotingCommand], None]] = {
    RequestCode.CHECK_TRANSACTION_STATE: RemoteControl._check_transaction,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: RemoteControl._ids_changed,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: RemoteControl._reset_offset,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: RemoteControl._consumer_status,
    RequestCode.GET_CONSUMER_RUNNING_INFO: RemoteControl._running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: RemoteControl._consume_directly,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: RemoteControl._take_reply,
    RequestCode.NOTIFY_UNSUBSCRIBE_LITE: RemoteControl._lite_topic_taken,
}
"""Handlers by request code; each answers itself, or not at all where the request is one-way."""


def _answer(connection: Connection, command: RemotingCommand, body: Body) -> None:
    connection.reply(command, RemotingCommand.response(ResponseCode.SUCCESS, body=body.encode()))


def _fail(connection: Connection, command: RemotingCommand, remark: str) -> None:
    connection.reply(command, RemotingCommand.response(ResponseCode.SYSTEM_ERROR, remark))


# --- replies -------------------------------------------------------------------------------------


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


# --- stacks --------------------------------------------------------------------------------------


def all_stacks() -> str:
    """Return the stack of every thread and of the running loop's tasks, as jstack lists Java's."""
    names = {thread.ident: thread for thread in threading.enumerate()}
    parts: list[str] = []
    for ident, frame in sys._current_frames().items():
        thread = names.get(ident)
        name = thread.name if thread is not None else "unknown"
        daemon = " daemon" if thread is not None and thread.daemon else ""
        stack = traceback.extract_stack(frame)
        parts.append(_stack_text(f'"{name}"{daemon} TID: {ident}', stack))
    # The stack of a coroutine listener is in no thread's.
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    tasks.sort(key=_listeners_first)
    for task in tasks[:TASKS_TOLD_MAX]:
        stack = traceback.StackSummary.extract(_frames_of(task))
        parts.append(_stack_text(f'"{task.get_name()}" asyncio task', stack))
    if len(tasks) > TASKS_TOLD_MAX:
        parts.append(f"{len(tasks) - TASKS_TOLD_MAX} more asyncio tasks are not shown")
    return "\n\n".join(parts) + "\n"


def _listeners_first(task: asyncio.Task[Any]) -> tuple[bool, str]:
    name = task.get_name()
    return not name.startswith(LISTENER_THREAD_PREFIX), name


def _frames_of(task: asyncio.Task[Any]) -> Iterator[tuple[FrameType, int]]:
    """Return a task's frames down to what it waits for; ``get_stack`` gives the first only."""
    waits: Any = task.get_coro()
    for _ in range(_TASK_FRAMES_MAX):
        frame = getattr(waits, "cr_frame", None)
        if frame is None:
            return
        yield frame, frame.f_lineno
        waits = waits.cr_await


def _stack_text(title: str, stack: traceback.StackSummary) -> str:
    lines = [title]
    for entry in reversed(stack):
        lines.append(f"    at {entry.name} ({entry.filename}:{entry.lineno})")
        if entry.line:
            lines.append(f"        {entry.line}")
    return "\n".join(lines)
