"""Requests a broker makes of a client: a table from code to handler (C-133).

Law: reads the request, asks the group's consumer or producer, answers; knows no consumer kind
(upstream's ClientRemotingProcessor).
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from rocketstream.client.consumer.consume.pool import POOL_PREFIX
from rocketstream.client.producer.replies import take_reply
from rocketstream.errors import RemoteProtocolError, RocketMQError
from rocketstream.protocol.bodies import Body, GetConsumerStatusBody, ResetOffsetBody
from rocketstream.protocol.codes import RequestCode, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    CheckTransactionStateRequestHeader,
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
)
from rocketstream.protocol.message_ext import MessageExt, decode_message
from rocketstream.protocol.namespace import without_namespace

if TYPE_CHECKING:
    from rocketstream.client.instance.mq_client import MQClientInstance
    from rocketstream.transport.aio import Connection

logger = logging.getLogger("rocketstream.client")

PROPERTY_PRODUCER_GROUP = "PGROUP"
_TASK_FRAMES_MAX = 50
TASKS_TOLD_MAX = 500
"""A program may have tasks by the ten thousand; those of listeners come first."""

RemoteHandler = Callable[["MQClientInstance", "Connection", RemotingCommand], None]
"""Called on the loop; must not wait: what takes time runs in ``instance.run_soon``."""


def serve(instance: MQClientInstance, connection: Connection, command: RemotingCommand) -> bool:
    """Handle a broker's request; tell whether its code is known."""
    handler = REMOTE_HANDLERS.get(command.code)
    if handler is None:
        return False
    try:
        handler(instance, connection, command)
    except RocketMQError as error:
        logger.warning("request %d of %s: %s", command.code, connection.peer, error)
        _fail(connection, command, str(error))
    return True


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
    # What a coroutine listener waits for is in no thread's stack.
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    tasks.sort(key=lambda task: (not task.get_name().startswith(POOL_PREFIX), task.get_name()))
    for task in tasks[:TASKS_TOLD_MAX]:
        stack = traceback.StackSummary.extract(_frames_of(task))
        parts.append(_stack_text(f'"{task.get_name()}" asyncio task', stack))
    if len(tasks) > TASKS_TOLD_MAX:
        parts.append(f"{len(tasks) - TASKS_TOLD_MAX} asyncio tasks more are not shown")
    return "\n\n".join(parts) + "\n"


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


# --- handlers -------------------------------------------------------------------------------------


def _ids_changed(
    instance: MQClientInstance, _connection: Connection, _command: RemotingCommand
) -> None:
    instance.rebalance_soon()


def _check_transaction(
    instance: MQClientInstance, connection: Connection, command: RemotingCommand
) -> None:
    header = command.header(CheckTransactionStateRequestHeader)
    message = _message_of(instance, command)
    group = message.get_property(PROPERTY_PRODUCER_GROUP)
    producer = instance.producer(group) if group else None
    if producer is None:
        logger.warning(
            "a broker asks for the state of transaction %s of producer group %s, which is not here",
            header.transaction_id,
            group,
        )
        return
    instance.run_soon(producer.check_transaction_state(connection.peer, message, header))


def _reset_offset(
    instance: MQClientInstance, connection: Connection, command: RemotingCommand
) -> None:
    header = command.header(ResetOffsetRequestHeader)
    table = ResetOffsetBody.decode(command.body).offset_table if command.body else {}
    logger.info(
        "%s asks to reset offsets of group %s, topic %s: %s",
        connection.peer, header.group, header.topic, table,
    )  # fmt: skip
    consumer = instance.consumer(header.group)
    if consumer is None:
        logger.warning("offsets of group %s cannot be reset: it is not here", header.group)
        return
    offsets = {mq: offset for mq, offset in table.items() if mq.topic == header.topic}
    instance.run_soon(consumer.reset_offsets(header.topic, offsets))


def _consumer_status(
    instance: MQClientInstance, connection: Connection, command: RemotingCommand
) -> None:
    header = command.header(GetConsumerStatusRequestHeader)
    consumer = instance.consumer(header.group)
    table = {} if consumer is None else consumer.consumer_status(header.topic)
    _answer(connection, command, GetConsumerStatusBody(message_queue_table=dict(table)))


def _running_info(
    instance: MQClientInstance, connection: Connection, command: RemotingCommand
) -> None:
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


def _consume_directly(
    instance: MQClientInstance, connection: Connection, command: RemotingCommand
) -> None:
    header = command.header(ConsumeMessageDirectlyResultRequestHeader)
    message = _message_of(instance, command, header.broker_name or "", unwrap=False)

    async def ask() -> Body | None:
        consumer = instance.consumer(header.consumer_group)
        if consumer is None:
            return None
        return await consumer.consume_directly(message, header.broker_name or "")

    _serve_soon(instance, connection, command, ask(), header.consumer_group)


REMOTE_HANDLERS: dict[int, RemoteHandler] = {
    RequestCode.CHECK_TRANSACTION_STATE: _check_transaction,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: _ids_changed,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: _reset_offset,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: _consumer_status,
    RequestCode.GET_CONSUMER_RUNNING_INFO: _running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: _consume_directly,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: take_reply,
}
"""Who serves which request; a handler answers itself, or not at all for one-way requests."""


# --- inside ---------------------------------------------------------------------------------------


def _serve_soon(
    instance: MQClientInstance,
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
    instance: MQClientInstance,
    command: RemotingCommand,
    broker_name: str = "",
    *,
    unwrap: bool = True,
) -> MessageExt:
    try:
        message = decode_message(command.body, broker_name)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(
            f"request {command.code} carries no readable message: {error}"
        ) from error
    if unwrap:
        namespace = instance.config.effective_namespace()
        message.topic = without_namespace(message.topic, namespace)
    return message


def _answer(connection: Connection, command: RemotingCommand, body: Body) -> None:
    connection.reply(command, RemotingCommand.response(ResponseCode.SUCCESS, body=body.encode()))


def _fail(connection: Connection, command: RemotingCommand, remark: str) -> None:
    connection.reply(command, RemotingCommand.response(ResponseCode.SYSTEM_ERROR, remark))
