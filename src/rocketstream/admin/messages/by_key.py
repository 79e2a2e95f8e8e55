"""What the brokers' index tells of one key, page by page backwards in time.

Law: questions only. What the index cannot reach is said, never left out: Apache's index keeps
whole seconds, so that of more within one second than an answer holds the rest has to be read from
the queues.
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
    """What the index is asked for, and when it is enough.

    Attributes:
        key: one of their keys.
        since_ms: stored then or later, None for any.
        until_ms: stored before, None for any.
        is_wanted: which of those with the key are wanted.
        most: more wanted ones of a broker than so many are enough; None: all are needed.
        has_time: whether another question may be asked after so many messages.
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
    """What the brokers' indexes told.

    Attributes:
        found: what is wanted, the newest first.
        floor_ms: what was stored later is all here; None where everything is.
        problems: brokers that did not tell.
    """

    found: list[MessageExt]
    floor_ms: int | None
    problems: list[str]


def has_key(message: MessageExt, key: str) -> bool:
    """Tell whether a message is found by a key, as the index finds it: by key or sender's id."""
    return key in (message.keys or "").split(KEY_SEPARATOR) or message.msg_id == key


def ask_indexes(
    admin: MessageAdmin, masters: Mapping[str, str], search: IndexSearch
) -> IndexAnswer:
    """Ask every broker's index, each until it told all, or enough, or cannot reach further."""
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
    """Return where a message stands among those of all brokers, in order of time."""
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
            message.broker_name = name
            # Apache's index knows seconds and hashes: later ones and other keys are among them.
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
    """Return what is left of queues once messages of them were told, in this order."""
    left = dict(ranges)
    for message in told:
        queue = message.message_queue
        if queue in left:
            low, high = left[queue]
            at = message.queue_offset
            left[queue] = (low, min(high, at)) if newest_first else (max(low, at + 1), high)
    return {queue: span for queue, span in left.items() if span[0] < span[1]}
