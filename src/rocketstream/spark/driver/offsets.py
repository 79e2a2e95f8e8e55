"""The offset a stream keeps in Spark's checkpoint: where each queue ends, and where it began.

Pure: JSON-able dicts in and out.

Law: the same offset always gives the same text, since Spark compares offsets as text: keys sorted,
nothing that changes by itself.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.spark.scan import QueueRange

VERSION: Final = 3
"""The version of an offset that says its partitions; version 1, which had no marks, is read too."""
_WITHOUT_PARTITIONS: Final = 2
"""The version of any other: a checkpoint without partitions can be read by what knows none."""
_READABLE: Final = (1, _WITHOUT_PARTITIONS, VERSION)

_CHECKED: Final = ("v", "q", "base", "init", "at", "parts")
"""The keys that the checksum covers; Spark's reports of progress have warnings beside them."""

T = TypeVar("T")

Ends = Mapping[MessageQueue, int]


class Mark(NamedTuple):
    """Identifies a stored row, as another one may be at the same offset later.

    Attributes:
        store_ms: when the broker stored it, ms since 1970; or when it stored the newest of the rows
            that were marked together, since one message of each broker is enough to know a log
            again.
        place: where in the broker's log, bytes.
    """

    store_ms: int
    place: int

    def is_of(self, row: Mark) -> bool:
        """Whether this is the mark of a row; ``row`` tells exactly when that was stored."""
        return row.place == self.place and row.store_ms <= self.store_ms

    def covers(self, other: Mark) -> bool:
        """Whether a row with the mark ``other`` was stored before this one, or is the same."""
        return other.store_ms <= self.store_ms and other.place <= self.place


Marks = Mapping[MessageQueue, Mark]


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A point of the stream.

    Attributes:
        ends: next offset of every queue known at this point.
        base: where queues begin that the previous offset did not know. The first batch needs it for
            all queues: Spark asks for the initial offset again when it replays batch 0, and by then
            the queues' ends have moved.
        initial: whether this is an initial offset, before any batch.
        marks: the mark of the row before each end, where that row could be read. A topic that was
            deleted and made again has another row there.
        partitions: into how many Spark partitions the batch that ends here is planned; None where
            the options say it, or an earlier version wrote the offset. Rows that a query sends on
            are known by partition and number, so a replay on other cores must plan the same.
    """

    ends: Ends
    base: Ends = field(default_factory=dict)
    initial: bool = False
    marks: Marks = field(default_factory=dict)
    partitions: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the dict to hand to Spark; equal offsets give equal text."""
        version = _WITHOUT_PARTITIONS if self.partitions is None else VERSION
        text: dict[str, Any] = {"v": version, "q": _nested(self.ends)}
        if self.base:
            text["base"] = _nested(self.base)
        if self.initial:
            text["init"] = 1
        if self.marks:
            text["at"] = _nested({queue: list(mark) for queue, mark in self.marks.items()})
        if self.partitions is not None:
            text["parts"] = self.partitions
        return text | {"crc": _checksum(text)}

    @classmethod
    def from_json(cls, value: Any) -> StreamOffset:
        """Read the dict that ``to_json`` made.

        Raises:
            ConfigurationError: it is not an offset of this source (but from another source's
                checkpoint), is of a later version, or is not as it was written.
        """
        version = value.get("v") if isinstance(value, dict) else None
        if isinstance(version, int) and version > VERSION:
            raise ConfigurationError(
                f"the checkpoint was written by a later rocketstream: its offsets have format "
                f"{version}, this one reads {_READABLE[0]} to {VERSION}. Upgrade rocketstream on "
                "the driver, or use a new checkpoint directory",
                version=version,
            )
        if version not in _READABLE:
            raise _foreign(value)
        # Of earlier releases there is none.
        if "crc" in value and value["crc"] != _checksum(value):
            raise ConfigurationError(
                f"the checkpoint is damaged: its offset {json.dumps(value)} is not as it was "
                "written, and a wrong offset would skip messages. Restore the checkpoint from a "
                "copy, or use a new directory and say where it begins with startingOffsets"
            )
        try:
            ends, base = _flat(value["q"], int), _flat(value.get("base", {}), int)
            marks = _flat(value.get("at", {}), _mark)
            partitions = int(value["parts"]) if "parts" in value else None
        except (KeyError, TypeError, ValueError, AttributeError):
            raise _foreign(value) from None
        return cls(ends, base, bool(value.get("init")), marks, partitions)


def following(
    start: StreamOffset,
    ends: Ends,
    new_starts: Ends,
    marks: Marks | None = None,
    deleted: Collection[MessageQueue] = (),
) -> StreamOffset:
    """Return the offset after ``start`` that ends at ``ends``.

    Args:
        start: the offset at which the batch begins.
        ends: where each queue ends; a queue left out stays, and none moves backwards unless it has
            a new start.
        new_starts: the first offset of each queue that ``start`` does not know, or that was
            replaced.
        marks: the marks of the rows before ``ends``.
        deleted: queues that are known no longer: one that comes under such a name is new.
    """
    merged = {queue: end for queue, end in start.ends.items() if queue not in deleted}
    base = dict(merged) if start.initial else {}
    stay = merged.keys() - ends.keys()
    marked = {queue: mark for queue, mark in start.marks.items() if queue in stay}
    for queue, end in ends.items():
        begin = new_starts.get(queue)
        if begin is None:
            begin = start.ends[queue]
        else:
            base[queue] = begin
        merged[queue] = max(begin, end)
    return StreamOffset(merged, base, marks=marked | dict(marks or {}))


def ranges_between(start: StreamOffset, end: StreamOffset) -> list[QueueRange]:
    """Return the ranges between two offsets, without empty ones, sorted by queue.

    ``end`` was written to the checkpoint before anything was read, but ``start`` may have been
    resolved a second time: where ``end`` has a beginning, that one counts, but where both are one,
    as of a trigger that found nothing, there is nothing between them.
    """
    if end.initial or start == end:
        return []
    ranges = []
    for queue in sorted(end.ends):
        begin = end.base.get(queue, start.ends.get(queue, 0))
        if begin < end.ends[queue]:
            ranges.append(QueueRange(queue, begin, end.ends[queue]))
    return ranges


def _checksum(text: Mapping[str, Any]) -> int:
    """Return the CRC-32 of an offset's own keys; a checkpoint on an object store has no other."""
    own = {key: text[key] for key in _CHECKED if key in text}
    return zlib.crc32(json.dumps(own, sort_keys=True, separators=(",", ":")).encode())


def _nested(table: Mapping[MessageQueue, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    tree: dict[str, dict[str, dict[str, Any]]] = {}
    for queue in sorted(table):
        brokers = tree.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = table[queue]
    return tree


def _flat(
    tree: Mapping[str, Mapping[str, Mapping[str, Any]]], read: Callable[[Any], T]
) -> dict[MessageQueue, T]:
    return {
        MessageQueue(topic, broker, int(queue_id)): read(value)
        for topic, brokers in tree.items()
        for broker, queues in brokers.items()
        for queue_id, value in queues.items()
    }


def _mark(value: Any) -> Mark:
    store_ms, place = value
    return Mark(int(store_ms), int(place))


def _foreign(value: Any) -> ConfigurationError:
    return ConfigurationError(
        f"the checkpoint holds {value!r}, which is not an offset of the rocketmq source "
        f"of format {_READABLE[0]} to {VERSION}; use a checkpoint of this source or a new directory"
    )
