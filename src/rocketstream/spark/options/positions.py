"""Where a read begins and ends, as a user may say it.

Law: pure; text in, a frozen value out; what a position means for a queue the cluster knows.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.spark.options.parsing import bad

EARLIEST: Final = -2
"""Kafka's number for the oldest offset, accepted inside offset JSON."""
LATEST: Final = -1
"""Kafka's number for the end of the queue, accepted inside offset JSON."""

Mode = Literal["batch", "stream"]
OffsetTable = Mapping[MessageQueue, int]


@dataclass(frozen=True, slots=True)
class Position:
    """Where to begin or end: one end of every queue, an offset per queue, or a time."""

    kind: Literal["earliest", "latest", "offsets", "timestamp"]
    offsets: OffsetTable | None = None
    timestamp_ms: int = 0


AT_EARLIEST: Final = Position("earliest")
AT_LATEST: Final = Position("latest")


def bounds(
    values: Mapping[str, str], topics: tuple[str, ...], mode: Mode
) -> tuple[Position, Position]:
    """Return where a read begins and ends.

    Raises:
        ConfigurationError: a position that cannot be used, or not in this mode.
    """
    if mode == "stream":
        for name in ("endingOffsets", "endingTimestamp"):
            if name in values:
                raise ConfigurationError(
                    f"option {name!r} is for batch reads; a stream has no end "
                    "(trigger(availableNow=True) stops at what is there)",
                    option=name,
                )
    default = AT_EARLIEST if mode == "batch" else AT_LATEST
    start = _position(values, "startingOffsets", "startingTimestamp", topics, default)
    end = _position(values, "endingOffsets", "endingTimestamp", topics, AT_LATEST)
    if mode == "batch" and start.kind == "latest":
        raise bad("startingOffsets", "latest", "earliest or offsets, since a batch ends there")
    if end.kind == "earliest":
        raise bad("endingOffsets", "earliest", "latest or offsets, since a batch begins there")
    return start, end


def _position(
    values: Mapping[str, str],
    offsets_name: str,
    timestamp_name: str,
    topics: tuple[str, ...],
    default: Position,
) -> Position:
    # As in Spark's Kafka source a time, being the more special wish, wins over offsets.
    if timestamp_name in values:
        return Position("timestamp", timestamp_ms=_timestamp(timestamp_name, values))
    text = values.get(offsets_name)
    if text is None:
        return default
    match text.strip().lower():
        case "earliest":
            return AT_EARLIEST
        case "latest":
            return AT_LATEST
    return Position("offsets", offsets=offset_table(offsets_name, text, topics))


def offset_table(name: str, text: str, topics: tuple[str, ...]) -> dict[MessageQueue, int]:
    """Parse ``{"topic":{"broker":{"0":123}}}``; -2 stands for earliest, -1 for latest."""
    accepted = 'earliest, latest, or {"topic":{"broker":{"0":123}}} with -2 earliest, -1 latest'
    try:
        tree = json.loads(text)
    except ValueError as error:
        raise bad(name, text, accepted) from error
    table: dict[MessageQueue, int] = {}
    for topic, brokers in _entries(tree):
        for broker_name, queues in _entries(brokers):
            for queue_id, offset in _entries(queues):
                if not _is_offset(offset) or not (queue_id.isascii() and queue_id.isdigit()):
                    raise bad(name, text, accepted)
                table[MessageQueue(topic, broker_name, int(queue_id))] = offset
    if not table:
        raise bad(name, text, accepted)
    strangers = sorted({queue.topic for queue in table} - set(topics))
    if strangers:
        raise bad(name, text, f"offsets of the topics read ({', '.join(topics)})")
    return table


def _entries(node: Any) -> list[tuple[str, Any]]:
    # What is no object counts as empty: its queues are then missing, which is an error too.
    return list(node.items()) if isinstance(node, dict) else []


def _is_offset(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= EARLIEST


def _timestamp(name: str, values: Mapping[str, str]) -> int:
    text = values[name].strip()
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise bad(
            name, text, "milliseconds since 1970 UTC or ISO 8601 such as 2024-05-01T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        # Without a zone the text would mean another moment on every machine of a cluster.
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1000)
