"""The pulls of the driver: one message at an offset, at once or when it arrives.

Law: pure; values in, a request out; an answer's bytes in, a head out.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import MessageSysFlag, PullSysFlag, RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import PullMessageRequestHeader
from rocketstream.protocol.properties import decode_properties
from rocketstream.protocol.record import RecordHead, read_head
from rocketstream.spark.options import ReadOptions
from rocketstream.spark.scan import DEFAULT_GROUP

INNER_NUM: Final = "INNER_NUM"
"""The property of a record that holds several messages: how many (wire-and-storage 7.2)."""
_WRAPPED: Final = MessageSysFlag.INNER_BATCH | MessageSysFlag.NEED_UNWRAP


def pull_one(
    options: ReadOptions, queue: MessageQueue, offset: int, hold_ms: int = 0
) -> RemotingCommand:
    """Return a pull of the message at an offset, whatever the tags of the read.

    Args:
        options: name the group.
        queue: where it is.
        offset: which one.
        hold_ms: how long the broker shall wait for it, if it is not there yet.
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


def head_at(body: bytes, offset: int | None) -> RecordHead | None:
    """Return the head of the first record of an answer; None if it does not hold an offset.

    A record of a 5.x broker may hold several messages, each with an offset of its own: asked for
    one of them the broker answers with the record. Its size is then a message's share of it.

    Args:
        body: of the answer.
        offset: which must be in it, None for any.

    Raises:
        RemoteProtocolError: not a whole, consistent record.
    """
    head = read_head(body)
    count = 1
    if head.sys_flag & _WRAPPED == _WRAPPED:
        end = head.properties_start + head.properties_size
        told = decode_properties(bytes(body[head.properties_start : end])).get(INNER_NUM, "")
        count = max(1, int(told)) if told.isascii() and told.isdigit() else 1
    if offset is not None and not head.queue_offset <= offset < head.queue_offset + count:
        return None
    return head if count == 1 else dataclasses.replace(head, total_size=head.total_size // count)
