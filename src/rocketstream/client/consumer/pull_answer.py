"""Pure: what the answer to a pull says, how much of it is believed, and what follows from it.

The puller asks again for what is doubtful, names as lost what stays away, and performs what is
decided here (C-218 to C-230).

The records of an answer are of the queue asked, ascend, and lie between the offset asked for and
the one the broker names next. Under ``*`` no offset between the two is left out: what is not there
was removed, or the answer is wrong. Under tags and conditions the broker may leave out any of them.
"""

from __future__ import annotations

import bisect
import enum
import operator
import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from rocketstream.errors import BrokerError, broker_error
from rocketstream.model import MessageQueue, PullStatus
from rocketstream.protocol.codes import MessageSysFlag, ResponseCode
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.record import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN

_offset = operator.attrgetter("queue_offset")

LOOKS = 3
"""So many answers in a row have to leave the same out before it is passed over."""
LOOKS_AT_NOTHING = 7
"""So many, where they brought no record of the queue at all though they say FOUND."""
MEANWHILE_MAX = 1_024
"""So many records a broker may store between two steps of an answer."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A part of a queue that an answer should have shown.

    Attributes:
        start: its first offset.
        end: where the queue goes on.
        instead: what came in its place, in words; empty for nothing.
        looks: how many answers must agree before it is believed.
    """

    start: int
    end: int
    instead: str
    looks: int = LOOKS


@dataclass(frozen=True, slots=True)
class Believed:
    """The part of an answer that is believed.

    Attributes:
        messages: to be consumed.
        next_offset: where to pull next.
        missing: what to ask for again: it begins at ``next_offset``.
        lost: what is passed over, since answer after answer left it out.
        stray: the first record that was not asked for, in words; empty where there is none.
    """

    messages: list[MessageExt]
    next_offset: int
    missing: Missing | None = None
    lost: Missing | None = None
    stray: str = ""


def end_told(asked: int, told: int, max_offset: int, last: int) -> int:
    """Return where a broker says to go on; never beyond the end of the queue, as it tells it.

    Args:
        asked: the offset asked for.
        told: where the broker says to go on.
        max_offset: the end it tells. It looks for that before it reads, so records that are stored
            in between lie a little beyond.
        last: the offset of the last record; -1 where some are not of the queue asked, or none came.
    """
    end = last + 1 if max_offset <= last < max_offset + MEANWHILE_MAX else max_offset
    return end if told > end > asked else told


def is_plain(messages: list[MessageExt], asked: int, told: int, *, complete: bool) -> bool:
    """Whether records of the queue asked are just as they should be; most answers are.

    Args:
        messages: those records.
        asked: the offset asked for.
        told: where the broker says to go on.
        complete: whether no offset may be left out.
    """
    offsets = [message._queue_offset for message in messages]  # a third of the property's time
    if complete:
        return len(offsets) == told - asked and offsets == list(range(asked, told))
    return (
        bool(offsets)
        and asked <= offsets[0]
        and offsets[-1] < told
        and all(map(operator.lt, offsets, offsets[1:]))
    )


def examined(
    mq: MessageQueue,
    messages: list[MessageExt],
    asked: int,
    told: int,
    max_offset: int,
    *,
    found: bool,
    complete: bool,
    looks: int,
) -> Believed:
    """Return what to take of an answer that is not plain.

    Args:
        mq: the queue asked.
        messages: the records of the answer, whatever they say of themselves.
        asked: the offset asked for.
        told: where the broker says to go on (``end_told``).
        max_offset: the end of the queue, as the broker tells it.
        found: whether the broker says that it found messages.
        complete: whether no offset may be left out.
        looks: how many answers so far left out what begins at ``asked``, before this one.
    """
    within = told if told > asked else max(asked, max_offset)
    own, strays = _sorted_out(mq, messages, asked, within, complete=complete)
    offsets = [message.queue_offset for message in own]
    begins = [asked, *[offset + 1 for offset in offsets]]
    ends = [*offsets, told if told > asked else begins[-1]]
    if complete:
        doubtful: Iterable[int] = range(len(begins))
    elif found and not messages:
        doubtful = (0,)
    else:
        doubtful = sorted({place for place, _ in strays})
    stray = _described(strays[0][1]) if strays else ""
    patience = LOOKS_AT_NOTHING if found and not own else LOOKS
    missing = [
        Missing(begins[place], ends[place], stray, patience)
        for place in doubtful
        if begins[place] < ends[place]
    ]
    lost = None
    if missing and missing[0].start == asked and looks + 1 >= patience:
        lost = missing.pop(0)
    next_offset = missing[0].start if missing else max(begins[-1], ends[-1])
    taken = own[: bisect.bisect_left(offsets, next_offset)]
    return Believed(taken, next_offset, missing[0] if missing else None, lost, stray)


def _sorted_out(
    mq: MessageQueue, messages: list[MessageExt], asked: int, end: int, *, complete: bool
) -> tuple[list[MessageExt], list[tuple[int, MessageExt]]]:
    """Return the records that were asked for, ascending, and the others, each with its place.

    A record that is there twice is neither at its second time.
    """
    own: list[MessageExt] = []
    strays: list[tuple[int, MessageExt]] = []
    last = asked - 1
    for message in sorted(messages, key=_offset) if complete else messages:
        offset = message.queue_offset
        mine = message.topic == mq.topic and message.queue_id == mq.queue_id
        if mine and last < offset < end:
            own.append(message)
            last = offset
        elif not (
            mine
            and own
            and offset == last
            and message.commit_log_offset == own[-1].commit_log_offset
        ):
            strays.append((len(own), message))
    return own, strays


def _described(message: MessageExt) -> str:
    return (
        f"a record of topic {message.topic}, queue {message.queue_id}, offset "
        f"{message.queue_offset}"
    )


# --- undecoded ------------------------------------------------------------------------------------

_head = struct.Struct(">iI4xi4xq8xi")
"""The beginning of a record: size, magic, queue, offset, flags of the system."""
_MAGIC = frozenset({MAGIC_V1, MAGIC_V2})
_BATCHED = MessageSysFlag.INNER_BATCH | MessageSysFlag.NEED_UNWRAP


@dataclass(frozen=True, slots=True)
class Records:
    """The records of a pull as the broker sent them; who decodes them finds out whether all are.

    Attributes:
        body: the bytes.
        count: how many records there should be.
        first, last: their first and last offset.
        complete: whether no offset may be left out.
        tags: those wanted, as brokers compare hashes only; empty for all.
    """

    body: bytes | memoryview
    count: int
    first: int
    last: int
    complete: bool = True
    tags: Collection[str] = ()

    def __len__(self) -> int:
        return self.count

    def split(self, count: int) -> tuple[Records, Records]:
        """Return the first ``count`` records, fewer than there are, and the others.

        Where the bytes make no sense the first have them all, and the others none.
        """
        at, number, last = 0, 0, self.first - 1
        while number < count and (head := _head_at(self.body, at)) is not None:
            size, _, _, last, _ = head
            number = last + 1 - self.first if self.complete else number + 1
            at += size
        rest = _head_at(self.body, at)
        if rest is None or number >= self.count:
            return self, replace(self, body=b"", count=0)
        body, first = memoryview(self.body), rest[3]
        return (
            replace(self, body=body[:at], count=number, last=first - 1 if self.complete else last),
            replace(self, body=body[at:], count=self.count - number, first=first),
        )


def records_of(
    body: bytes | memoryview, mq: MessageQueue, asked: int, told: int, *, complete: bool
) -> Records | None:
    """Return the records of an answer if they seem to be just as they should be, else None.

    Args:
        body: the records.
        mq: the queue asked.
        asked: the offset asked for.
        told: where the broker says to go on.
        complete: whether no offset may be left out. Then only the first record is looked at.
    """
    at, count, last = 0, 0, asked - 1
    first = None
    while at < len(body):
        head = _head_at(body, at)
        if head is None:
            return None
        size, magic, queue_id, offset, sys_flag = head
        if magic not in _MAGIC or queue_id != mq.queue_id or sys_flag & _BATCHED:
            return None
        if complete:
            count = told - asked
            usual = offset == asked and 0 < count <= len(body) // RECORD_BYTES_MIN
            return Records(body, count, asked, told - 1) if usual else None
        if not last < offset < told:
            return None
        first, last = offset if first is None else first, offset
        at += size
        count += 1
    return None if first is None else Records(body, count, first, last, complete=False)


def _head_at(body: bytes | memoryview, at: int) -> tuple[int, int, int, int, int] | None:
    """Return what the record at a place begins with; None where its length makes no sense."""
    left = len(body) - at
    if left < RECORD_BYTES_MIN:
        return None
    head: tuple[int, int, int, int, int] = _head.unpack_from(body, at)
    return head if RECORD_BYTES_MIN <= head[0] <= left else None


# --- what follows from it -------------------------------------------------------------------------


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
        self.answers: int = 0
        self.offset: int = -1

    def stood(self, offset: int) -> int:
        """An answer to a pull at ``offset`` led nowhere; return the pause before the next, ms."""
        self.answers += 1
        self.offset = max(self.offset, offset)
        return min(STALL_MS << min(self.answers - 1, 16), STALL_MS_MAX)


class AfterFailure(enum.Enum):
    """The step after a failed pull, besides trying again."""

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
    if error.code == ResponseCode.NOT_LEADER_FOR_QUEUE:
        return Retry(exception_delay_ms, AfterFailure.ROUTE)  # the address is another broker's now
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


@dataclass(frozen=True, slots=True)
class PullResult:
    """The result of a pull; continue at ``next_begin_offset`` whatever the status (C-496)."""

    pull_status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    msg_found_list: list[MessageExt]


@dataclass(frozen=True, slots=True)
class RecordsResult(PullResult):
    """The result of a pull whose records are just as they should be, and wanted undecoded.

    Attributes:
        records: those that were found, in place of messages.
    """

    records: Records
