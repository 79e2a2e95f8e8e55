"""The search of the brokers' index for one key, page by page backwards in time.

Law: messages the index cannot reach are reported, never left out: Apache's index keeps whole
seconds, so if one second has more messages than an answer holds, the rest must be read from the
queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from rocketstream.admin.core.paging import Range
from rocketstream.admin.messages.index_pages import LAST_MS, index_pages
from rocketstream.admin.messages.viewing import MessageAdmin
from rocketstream.errors import RocketMQError
from rocketstream.model import MessageQueue
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.properties import KEY_SEPARATOR


@dataclass(frozen=True, slots=True)
class IndexSearch:
    """The question to the index, and when the answers are enough.

    Attributes:
        key: one of the messages' keys.
        since_ms: stored at this time or later, ms since 1970; None for any.
        until_ms: stored before this time, ms since 1970; None for any.
        is_wanted: returns whether a message with the key is wanted.
        most: stop at a broker when it gave more wanted messages than this; None needs all.
        has_time: called with the number of messages so far; returns whether another question may be
            asked.
    """

    topic: str
    key: str
    since_ms: int | None
    until_ms: int | None
    is_wanted: Callable[[MessageExt], bool]
    most: int | None
    has_time: Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class IndexAnswer:
    """The answers of the brokers' indexes.

    Attributes:
        found: the wanted messages, the newest first.
        floor_ms: all messages stored after this time are here; None where all are here.
        problems: the brokers that did not answer.
    """

    found: list[MessageExt]
    floor_ms: int | None
    problems: list[str]


def has_key(message: MessageExt, key: str) -> bool:
    """Return whether the index finds a message by a key: by one of its keys or the sender's id."""
    return key in (message.keys or "").split(KEY_SEPARATOR) or message.msg_id == key


def ask_indexes(
    admin: MessageAdmin, masters: Mapping[str, str], search: IndexSearch
) -> IndexAnswer:
    """Ask every broker's index until it has given all, or enough, or cannot reach further."""
    found: list[MessageExt] = []
    floors: list[int] = []
    problems: list[str] = []
    for name, address in masters.items():
        try:
            some, floor_ms = _ask_index(admin, name, address, search)
        except RocketMQError as error:
            problems.append(f"broker {name}: {error.message}")
            continue
        found += some
        if floor_ms is not None:
            floors.append(floor_ms)
    floor = max(floors, default=None)
    found.sort(key=place_of, reverse=True)
    return IndexAnswer(
        [m for m in found if floor is None or m.store_timestamp >= floor], floor, problems
    )


def place_of(message: MessageExt) -> tuple[int, str, int]:
    """Return a sort key that orders the messages of all brokers by time."""
    return message.store_timestamp, message.broker_name, message.commit_log_offset


def _ask_index(
    admin: MessageAdmin, name: str, address: str, search: IndexSearch
) -> tuple[list[MessageExt], int | None]:
    wanted: list[MessageExt] = []
    last_ms = LAST_MS if search.until_ms is None else search.until_ms - 1
    since_ms = search.since_ms or 0
    looked, floor_ms = 0, None
    for page in index_pages(admin._wire, address, search.topic, search.key, last_ms=last_ms):
        looked, floor_ms = looked + len(page.fresh), page.floor_ms
        for message in page.fresh:
            message._broker_name = name
            # Apache's index knows only seconds and hashes: later messages and other keys are among
            # them.
            if (
                has_key(message, search.key)
                and message.store_timestamp >= since_ms
                and (search.until_ms is None or message.store_timestamp < search.until_ms)
                and search.is_wanted(message)
            ):
                wanted.append(message)
        if floor_ms is None or floor_ms < since_ms:
            return wanted, None
        is_enough = search.most is not None and len(wanted) > search.most
        if is_enough or not search.has_time(looked):
            break
    return wanted, floor_ms


def ranges_left(
    ranges: Mapping[MessageQueue, Range], told: Iterable[MessageExt], *, newest_first: bool
) -> dict[MessageQueue, Range]:
    """Return the rest of queues whose messages were found so far, in this order."""
    left = dict(ranges)
    for message in told:
        queue = message.message_queue
        if queue in left:
            low, high = left[queue]
            at = message.queue_offset
            left[queue] = (low, min(high, at)) if newest_first else (max(low, at + 1), high)
    return {queue: span for queue, span in left.items() if span[0] < span[1]}
