"""The batches that listener calls get: each of one queue, in the order of the rows.

Pure: at most one unfilled batch per queue is held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rocketstream.model import MessageQueue

M = TypeVar("M")


def batches_of(
    messages: Iterable[tuple[MessageQueue, M]], size: int
) -> Iterator[tuple[MessageQueue, list[M]]]:
    """Yield batches of up to ``size`` messages of one queue (C-260).

    A batch is yielded as soon as it is full, an unfilled one at the end.

    Args:
        messages: each with the queue it was read from, whose topic may differ from the message's
            own.
        size: how many messages a batch holds at most.
    """
    open_batches: dict[MessageQueue, list[M]] = {}
    for queue, message in messages:
        batch = open_batches.setdefault(queue, [])
        batch.append(message)
        if len(batch) == size:
            del open_batches[queue]
            yield queue, batch
    yield from open_batches.items()
