"""Pure: requests with the way their answers are read, and those about the offsets of one queue.

Each request about a queue names its broker (``bname``), as those of upstream's
clients and of its mqadmin do from 5.0 on (MQClientAPIImpl,
DefaultMQAdminExtImpl.updateConsumeOffset): servers of 4.9 ignore it, a proxy of 5.x refuses a
request without it ("Request doesn't have field bname").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from rocketstream.model import MessageQueue
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    Header,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Question(Generic[T_co]):
    """One question to a broker or a name server.

    Attributes:
        code: the code of the request.
        header: its fields; None where it has none.
        read: returns what a successful answer says.
        patience: how many times as long as for other questions an answer is waited for.
    """

    code: RequestCode
    header: Header | None
    read: Callable[[RemotingCommand], T_co]
    patience: int = 1

    def command(self) -> RemotingCommand:
        """Return the request, made anew each time."""
        return RemotingCommand.request(self.code, self.header)


def max_offset(queue: MessageQueue) -> Question[int]:
    """Ask for the offset the next message of a queue will get (30)."""
    header = GetMaxOffsetRequestHeader(queue.topic, queue.queue_id, bname=queue.broker_name)
    return Question(
        RequestCode.GET_MAX_OFFSET, header, lambda a: a.header(GetMaxOffsetResponseHeader).offset
    )


def min_offset(queue: MessageQueue) -> Question[int]:
    """Ask for the offset of the oldest message still in a queue (31)."""
    header = GetMinOffsetRequestHeader(queue.topic, queue.queue_id, bname=queue.broker_name)
    return Question(
        RequestCode.GET_MIN_OFFSET, header, lambda a: a.header(GetMinOffsetResponseHeader).offset
    )


def oldest_store_time(queue: MessageQueue) -> Question[int]:
    """Ask when the oldest message of a queue was stored, ms since 1970; -1 if it is empty (32)."""
    header = GetEarliestMsgStoretimeRequestHeader(
        queue.topic, queue.queue_id, bname=queue.broker_name
    )
    return Question(
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        header,
        lambda a: a.header(GetEarliestMsgStoretimeResponseHeader).timestamp,
    )


def offset_at(queue: MessageQueue, timestamp_ms: int) -> Question[int]:
    """Ask for the offset stored nearest to a time, by the broker's rule (29; C-372)."""
    header = SearchOffsetRequestHeader(
        queue.topic, queue.queue_id, timestamp_ms, bname=queue.broker_name
    )
    return Question(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        header,
        lambda a: a.header(SearchOffsetResponseHeader).offset,
    )


def committed_offset(group: str, queue: MessageQueue) -> Question[int | None]:
    """Ask for the offset a group has stored for a queue (14); None when the answer has none.

    A broker that has none answers with an error instead, OffsetNotFoundError; every other error is
    an error (C-316).
    """
    header = QueryConsumerOffsetRequestHeader(
        group, queue.topic, queue.queue_id, bname=queue.broker_name
    )
    return Question(RequestCode.QUERY_CONSUMER_OFFSET, header, _committed)


def _committed(answer: RemotingCommand) -> int | None:
    offset = answer.header(QueryConsumerOffsetResponseHeader).offset
    return offset if offset >= 0 else None


def commit(
    group: str, queue: MessageQueue, offset: int, *, oneway: bool = False
) -> RemotingCommand:
    """Return the request that stores a group's offset for a queue (15)."""
    header = UpdateConsumerOffsetRequestHeader(
        group, queue.topic, queue.queue_id, offset, bname=queue.broker_name
    )
    return RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, header, oneway=oneway)
