"""The layout of usual messages that are stored together: consecutive records for one write.

Bytes and places only: the store decides where there is room and writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from rocketstream.protocol.drafts import Draft, draft_parts
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
    """Assign offsets to messages and make their records.

    Args:
        drafts: the messages, in their order.
        sizes: sizes of their records.
        queues: the queue of each message.
        physical: log offset of the first.
        timestamp: their store time, ms since 1970.

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
        parts += draft_parts(draft, size, offset, physical, timestamp)
        places.append((physical, offset))
        physical += size
    return places, ends, b"".join(parts)
