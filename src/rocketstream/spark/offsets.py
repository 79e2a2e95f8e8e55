"""The offset a stream keeps in Spark's checkpoint: where each queue ends, and where it began.

Law: pure; JSON-able dicts in and out. Spark compares offsets as text, so the same offset must
always give the same text: keys sorted, nothing that changes by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.spark.planning import QueueRange

VERSION: Final = 1

Ends = Mapping[MessageQueue, int]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A point of the stream.

    Attributes:
        ends: next offset of every queue known at this point.
        base: where queues begin that the offset before this one did not know. The first batch
            needs it for all of them: Spark asks for the initial offset again when it replays
            batch 0, and by then the queues' ends have moved.
        initial: whether this is an initial offset, before any batch.
    """

    ends: Ends
    base: Ends = field(default_factory=dict)
    initial: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the dict to hand to Spark; equal offsets give equal text."""
        text: dict[str, Any] = {"v": VERSION, "q": _nested(self.ends)}
        if self.base:
            text["base"] = _nested(self.base)
        if self.initial:
            text["init"] = 1
        return text

    @classmethod
    def from_json(cls, value: Any) -> StreamOffset:
        """Read what ``to_json`` wrote.

        Raises:
            ConfigurationError: not an offset of this source (another source's checkpoint).
        """
        if not isinstance(value, dict) or value.get("v") != VERSION:
            raise _foreign(value)
        try:
            ends, base = _flat(value["q"]), _flat(value.get("base", {}))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise _foreign(value) from None
        return cls(ends, base, bool(value.get("init")))


def following(start: StreamOffset, ends: Ends, new_starts: Ends) -> StreamOffset:
    """Return the offset after ``start`` that ends at ``ends``.

    Args:
        start: where the batch begins.
        ends: where each queue shall end; queues left out stay, none moves backwards.
        new_starts: first offset of queues ``start`` does not know.
    """
    merged = dict(start.ends)
    base = dict(start.ends) if start.initial else {}
    for queue, end in ends.items():
        begin = start.ends.get(queue)
        if begin is None:
            begin = base[queue] = new_starts[queue]
        merged[queue] = max(begin, end)
    return StreamOffset(merged, base)


def ranges_between(start: StreamOffset, end: StreamOffset) -> list[QueueRange]:
    """Return what lies between two offsets, empty ranges left out, sorted by queue.

    ``end`` was written to the checkpoint before anything was read, ``start`` may have been
    resolved anew: where ``end`` names a beginning, that one counts.
    """
    if end.initial:
        return []
    ranges = []
    for queue in sorted(end.ends):
        begin = end.base.get(queue, start.ends.get(queue, 0))
        if begin < end.ends[queue]:
            ranges.append(QueueRange(queue, begin, end.ends[queue]))
    return ranges


def _nested(table: Ends) -> dict[str, dict[str, dict[str, int]]]:
    tree: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(table):
        brokers = tree.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = table[queue]
    return tree


def _flat(tree: Mapping[str, Mapping[str, Mapping[str, int]]]) -> dict[MessageQueue, int]:
    return {
        MessageQueue(topic, broker, int(queue_id)): int(offset)
        for topic, brokers in tree.items()
        for broker, queues in brokers.items()
        for queue_id, offset in queues.items()
    }


def _foreign(value: Any) -> ConfigurationError:
    return ConfigurationError(
        f"the checkpoint holds {value!r}, which is not an offset of the rocketmq source "
        f"version {VERSION}; use a checkpoint of this source or a new directory"
    )
