"""What follows from the answer to a pull.

Law: pure; the shell performs the decision (C-224 to C-230).
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import TYPE_CHECKING

from rocketstream.errors import BrokerError, broker_error
from rocketstream.late import dataclass
from rocketstream.model import PullStatus
from rocketstream.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from rocketstream.protocol.message_ext import MessageExt

FLOW_CONTROL_DELAY_MS = 20
SUSPENDED_DELAY_MS = 1_000

_STATUS = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW_MSG,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCHED_MSG,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_ILLEGAL,
}
_STALE_SUBSCRIPTION = frozenset(
    {
        int(ResponseCode.SUBSCRIPTION_NOT_EXIST),
        int(ResponseCode.SUBSCRIPTION_NOT_LATEST),
        int(ResponseCode.FILTER_DATA_NOT_EXIST),
        int(ResponseCode.FILTER_DATA_NOT_LATEST),
    }
)


STALL_MS = 20
"""Pause after the first answer that brings a queue no further; each further one doubles it."""
STALL_MS_MAX = 3_000
STALLS_TOLD = 8
"""So many of them in a row are told."""


class Stall:
    """A queue whose pulls are answered, but bring it no further.

    Attributes:
        answers: how many did not.
        offset: the furthest one asked for; past it the stall is over.
    """

    __slots__ = ("answers", "offset")

    def __init__(self) -> None:
        self.answers = 0
        self.offset = -1

    def stood(self, offset: int) -> int:
        """An answer to a pull at ``offset`` led nowhere; return the pause before the next, ms."""
        self.answers += 1
        self.offset = max(self.offset, offset)
        return min(STALL_MS << min(self.answers - 1, 16), STALL_MS_MAX)


class AfterFailure(enum.Enum):
    """What to do about a failed pull besides trying again."""

    NOTHING = "NOTHING"
    HEARTBEAT = "HEARTBEAT"
    """The broker does not know our subscription: tell it now, not in 30 s (C-580)."""
    ROUTE = "ROUTE"
    """The broker or queue may be gone: ask the name server again."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Pull the same offset again after ``delay_ms``.

    Attributes:
        delay_ms: the pause.
        after: what to do first.
        expected: so many failures in a row say nothing of an outage.
    """

    delay_ms: int
    after: AfterFailure = AfterFailure.NOTHING
    expected: int = 0


def pull_status(code: int, remark: str | None, address: str) -> PullStatus:
    """Return the status a response code stands for (C-218).

    Raises:
        BrokerError: any other code.
    """
    status = _STATUS.get(code)
    if status is None:
        raise broker_error(code, remark, address)
    return status


def after_failure(error: Exception, exception_delay_ms: int) -> Retry:
    """Return when to try again and what to do first (C-230)."""
    if not isinstance(error, BrokerError):
        return Retry(exception_delay_ms, AfterFailure.ROUTE)
    if error.code == ResponseCode.FLOW_CONTROL:
        return Retry(FLOW_CONTROL_DELAY_MS)
    if error.code in _STALE_SUBSCRIPTION:
        # A broker that has just started knows no group, and may be asked before it is told.
        return Retry(exception_delay_ms, AfterFailure.HEARTBEAT, expected=1)
    return Retry(exception_delay_ms)


def keep_tagged(messages: list[MessageExt], tags: Collection[str]) -> list[MessageExt]:
    """Return the messages whose tag is exactly one of ``tags``; all when there are none.

    The broker compares 32-bit hashes only, so collisions end here (C-220).
    """
    if not tags:
        return messages
    return [message for message in messages if message.tags in tags]


def not_before(messages: list[MessageExt], offset: int) -> list[MessageExt]:
    """Return the messages from ``offset`` on: what lies before it was not asked for.

    Those were pulled before, and consumed maybe; a broker that answers with them is mistaken.
    """
    if messages and messages[0].queue_offset < offset:
        return [message for message in messages if message.queue_offset >= offset]
    return messages


def offset_after(messages: list[MessageExt], asked: int, told: int) -> int:
    """Return where to pull next: where the broker says, but never back, nor the same again."""
    last = messages[-1].queue_offset + 1 if messages else 0
    return max(asked, told, last)
