"""The driver's questions about one row: its entry in the queue's index, or a pull of the message.

Pure: values in, a request out; the bytes of an answer in, an entry or the head of a record out.
"""

from __future__ import annotations

import dataclasses
from typing import Final, NamedTuple

from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import QueryConsumeQueueResponseBody
from rocketstream.protocol.codes import MessageSysFlag, PullSysFlag, RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    PullMessageRequestHeader,
    QueryConsumeQueueRequestHeader,
)
from rocketstream.protocol.properties import decode_properties, whole_number
from rocketstream.protocol.record import RecordHead, read_head
from rocketstream.spark.options import ReadOptions
from rocketstream.spark.scan import DEFAULT_GROUP

INNER_NUM: Final = "INNER_NUM"
_INNER_MESSAGES_MAX: Final = 32_767
"""The property with the number of messages in a record."""
_WRAPPED: Final = MessageSysFlag.INNER_BATCH | MessageSysFlag.NEED_UNWRAP


def pull_one(
    options: ReadOptions, queue: MessageQueue, offset: int, hold_ms: int = 0
) -> RemotingCommand:
    """Return a pull of the message at an offset, with any tags.

    Args:
        options: the options of the read, which name the group.
        queue: the message's queue.
        offset: the message's offset.
        hold_ms: how long the broker waits for the message if it has not arrived yet.
    """
    header = PullMessageRequestHeader(
        consumer_group=options.group or DEFAULT_GROUP,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=1,
        sys_flag=PullSysFlag.SUBSCRIPTION | (PullSysFlag.SUSPEND if hold_ms else 0),
        commit_offset=0,
        suspend_timeout_millis=hold_ms,
        sub_version=0,
        subscription="*",
        expression_type="TAG",
        bname=queue.broker_name,
    )
    return RemotingCommand.request(RequestCode.PULL_MESSAGE, header)


class QueueEntry(NamedTuple):
    """The entry of a queue's index that leads to a row.

    Attributes:
        place: where the row is in the broker's log, bytes.
        size: bytes of the record that holds it.
        is_alone: whether the record is known to hold no row after it, as those of 5.x may.
    """

    place: int
    size: int
    is_alone: bool


def ask_entry(queue: MessageQueue, offset: int) -> RemotingCommand:
    """Return the question for the entries of a row and of the next one (code 321): no body."""
    header = QueryConsumeQueueRequestHeader(
        topic=queue.topic, queue_id=queue.queue_id, index=offset, count=2
    )
    return RemotingCommand.request(RequestCode.QUERY_CONSUME_QUEUE, header)


def entry_at(body: bytes, offset: int) -> QueueEntry | None:
    """Return the entry of ``offset`` in the answer to ``ask_entry``; None where there is no row.

    Raises:
        RemoteProtocolError: the answer is not one to that question.
    """
    answer = QueryConsumeQueueResponseBody.decode(body) if body else None
    if answer is None or not answer.queue_data:
        return None
    first = answer.queue_data[0]
    is_alone = len(answer.queue_data) > 1 or answer.max_queue_index <= offset + 1
    return QueueEntry(first.physic_offset, first.physic_size, is_alone)


def head_at(body: bytes, offset: int | None) -> RecordHead | None:
    """Return the head of an answer's first record; None if the record does not hold ``offset``.

    A record of a 5.x broker may hold several messages, each with an offset of its own. The broker
    answers with the record when it is asked for any of them; the size returned is then one
    message's share.

    Args:
        body: the body of the answer.
        offset: the offset the record must hold, None for any.

    Raises:
        RemoteProtocolError: the answer is not a whole, consistent record.
    """
    head = read_head(body)
    count = 1
    if head.sys_flag & _WRAPPED == _WRAPPED:
        end = head.properties_start + head.properties_size
        told = decode_properties(bytes(body[head.properties_start : end])).get(INNER_NUM, "")
        count = max(1, whole_number(told, _INNER_MESSAGES_MAX) or 1)
    if offset is not None and not head.queue_offset <= offset < head.queue_offset + count:
        return None
    return dataclasses.replace(head, total_size=head.total_size // count)
