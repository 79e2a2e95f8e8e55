"""Lite topics (RIP-83): their names, their queue, and the handles that acknowledge their messages.

Pure: text and numbers in, text and numbers out; as Apache's 5.5.0 has them (``LiteUtil``,
``LiteShardingImpl``, ``ExtraInfoUtil``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from rocketstream.protocol.properties import whole_number
from rocketstream.protocol.tag_hash import java_hash

LITE_PREFIX: Final = "%LMQ%$"
LITE_SEPARATOR: Final = "$"
LITE_QUEUE_ID: Final = 0
"""A lite topic is one queue."""
REVIVE_QUEUE_ID: Final = 999
"""The mark of an acknowledgement for a queue that is consumed in order."""

_MULTIPLIER: Final = 2_862_933_555_777_941_757
_BITS_64: Final = 0xFFFF_FFFF_FFFF_FFFF
_INT_MAX: Final = 0x7FFF_FFFF


def lite_queue_name(parent: str, name: str) -> str:
    """Return what brokers call the queue of a lite topic.

    >>> lite_queue_name("agents", "agent-7")
    '%LMQ%$agents$agent-7'
    """
    return f"{LITE_PREFIX}{parent}{LITE_SEPARATOR}{name}"


def lite_queue_index(name: str, count: int) -> int:
    """Return which of its parent's ``count`` queues a lite topic belongs to.

    Brokers take a lite topic for theirs when this is one of their queues: Guava's consistent hash
    of Java's hash of the name. More queues move few names.
    """
    state = java_hash(name) & _BITS_64
    candidate = 0
    while True:
        state = (_MULTIPLIER * state + 1) & _BITS_64
        step = (candidate + 1) / (((state >> 33) + 1) / 0x8000_0000)
        following = int(min(step, 0x7FFF_FFFF))
        if following >= count:
            return candidate
        candidate = following


def receipt(broker_name: str, offset: int, pop_time_ms: int, invisible_ms: int) -> str:
    """Return the ``extraInfo`` that acknowledges a message of a lite topic, or hides it longer."""
    parts = (
        offset,
        pop_time_ms,
        invisible_ms,
        REVIVE_QUEUE_ID,
        0,
        broker_name,
        LITE_QUEUE_ID,
        offset,
    )
    return " ".join(map(str, parts))


def order_counts(text: str | None, offsets: Sequence[int]) -> list[int]:
    """Return how often each message was received before, 0 where the answer does not tell.

    Args:
        text: of an answer: an entry a message, a bare 0 for each of a lite topic where nothing was
            received before; else entries that name offsets, for those that were.
        offsets: of the messages in their lite topics, in the order of the answer.

    >>> order_counts("0;0 qo0%7 2", [3, 7, 8])
    [0, 2, 0]
    """
    entries = deque((text or "").split(";"))
    counts = []
    for offset in offsets:
        place, _, count = entries[0].rpartition(" ") if entries else ("", "", "0")
        if not place or place.endswith(f"%{offset}"):
            counts.append(whole_number(count, _INT_MAX) or 0)
            if entries:
                entries.popleft()
        else:
            counts.append(0)
    return counts
