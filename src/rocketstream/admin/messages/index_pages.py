"""The answers of one broker's index for a key, page by page backwards in time.

An answer holds at most 64 messages and, from our broker, as many as fit ``QUERY_BYTES_MAX``: the
next page is asked for, whichever bound ended an answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from rocketstream import limits

if TYPE_CHECKING:
    from rocketstream.protocol.message_ext import MessageExt

MESSAGES_MAX: Final = 64
"""Most messages of one answer (C-538)."""
LAST_MS: Final = 0x7FFF_FFFF_FFFF_FFFF

# A broker stops before the message that would not fit; as usually configured none has 4 MiB.
_MAY_BE_CUT_BYTES: Final = limits.QUERY_BYTES_MAX // 2


class Index(Protocol):
    """The operation of brokers that finds messages by key."""

    def messages_by_key(
        self, address: str, topic: str, key: str, most: int, *, until_ms: int
    ) -> list[MessageExt]:
        """Return the newest messages with a key, stored at ``until_ms`` or before."""


@dataclass(frozen=True, slots=True)
class IndexPage:
    """One answer.

    Attributes:
        fresh: messages that no earlier answer contained.
        floor_ms: messages stored before this time may be missing; None where the answer was
            complete.
    """

    fresh: list[MessageExt]
    floor_ms: int | None


def index_pages(
    index: Index,
    address: str,
    topic: str,
    key: str,
    *,
    last_ms: int = LAST_MS,
    most: int = MESSAGES_MAX,
) -> Iterator[IndexPage]:
    """Yield answers until one is the last, or contains nothing new.

    Args:
        last_ms: the last store time that is wanted.
        most: how many messages one answer holds, at most ``MESSAGES_MAX``.

    Raises:
        RocketMQError: the broker did not answer.
    """
    seen: set[int] = set()
    while True:
        some = index.messages_by_key(address, topic, key, most, until_ms=last_ms)
        fresh = [m for m in some if m.commit_log_offset not in seen]
        seen.update(m.commit_log_offset for m in fresh)
        has_more = len(some) >= most or (sum(m.store_size for m in some) >= _MAY_BE_CUT_BYTES)
        last_ms = min((m.store_timestamp for m in some), default=last_ms)
        yield IndexPage(fresh, last_ms if has_more else None)
        if not has_more or not fresh:
            return
