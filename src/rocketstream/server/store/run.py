"""Usual messages that are stored together: their records, one behind the other, for one write.

Law: bytes and places; who has room, and what is written, the store decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from rocketstream.protocol.drafts import Draft, record_head
from rocketstream.server.store.consume_queue import ConsumeQueue

Place: TypeAlias = tuple[int, int]
"""Physical offset and queue offset of a stored message."""


def lay_out(
    drafts: Sequence[Draft],
    sizes: Sequence[int],
    queues: Sequence[ConsumeQueue],
    physical: int,
    timestamp: int,
) -> tuple[list[Place], dict[ConsumeQueue, int], bytes]:
    """Give each its offsets.

    Args:
        drafts: the messages, in their order.
        sizes: of their records.
        queues: of each of them.
        physical: where the first will be.
        timestamp: when they are stored.

    Returns:
        Their places, the end each queue will have, and all their records.
    """
    ends: dict[ConsumeQueue, int] = {}
    places: list[Place] = []
    parts: list[bytes | bytearray | memoryview] = []
    for draft, size, queue in zip(drafts, sizes, queues, strict=True):
        offset = ends.get(queue)
        if offset is None:
            offset = queue.max_offset
        ends[queue] = offset + 1
        parts += (record_head(draft, size, offset, physical, timestamp), draft[6], draft[7])
        places.append((physical, offset))
        physical += size
    return places, ends, b"".join(parts)
