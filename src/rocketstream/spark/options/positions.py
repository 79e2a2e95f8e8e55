"""The positions where a read begins and ends, as a user may write them.

Pure: text in, a frozen value out; the cluster decides what a position means for a queue.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.spark.options.parsing import bad
from rocketstream.spark.options.times import TIME_ACCEPTED, point_ms
from rocketstream.spark.options.topics import TopicChoice

EARLIEST: Final = -2
"""Kafka's number for the oldest offset, accepted inside offset JSON."""
LATEST: Final = -1
"""Kafka's number for the end of the queue, accepted inside offset JSON."""

START_OPTIONS: Final = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
END_OPTIONS: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
STRATEGY_OPTION: Final = "startingOffsetsByTimestampStrategy"

Mode = Literal["batch", "stream"]
Kind = Literal["earliest", "latest", "group", "offsets", "timestamp", "timestamps"]
Place = tuple[str, str | None, int | None]


@dataclass(frozen=True, slots=True)
class QueueTable:
    """A number for some queues: for single ones, or for all of a broker or a topic together.

    Attributes:
        values: by topic, broker and queue; None stands for all brokers, or all queues.
    """

    values: Mapping[Place, int]

    def of(self, queue: MessageQueue) -> int | None:
        """Return the number that applies most closely to a queue; None where there is none."""
        topic, broker, queue_id = queue.topic, queue.broker_name, queue.queue_id
        for place in ((topic, broker, queue_id), (topic, broker, None), (topic, None, None)):
            if place in self.values:
                return self.values[place]
        return None

    def strangers(self, queues: Iterable[MessageQueue]) -> list[str]:
        """Return the names that match none of some queues, nor their brokers or topics."""
        there: set[Place] = set()
        for topic, broker, queue_id in queues:
            there |= {(topic, broker, queue_id), (topic, broker, None), (topic, None, None)}
        strange = [place for place in self.values if place not in there]
        return sorted(
            "/".join(str(part) for part in place if part is not None) for place in strange
        )


@dataclass(frozen=True, slots=True)
class Position:
    """Where to begin or end: one end of every queue, the group's offsets, given offsets, or times.

    Attributes:
        kind: which of these.
        table: offsets or times of queues; a queue not in it begins at its earliest offset, or ends
            at its latest.
        timestamp_ms: for kind ``timestamp``, a point in time as ``times.point_ms`` returns it.
        must_match: whether a queue without a row of that time or later is an error, instead of
            being read from its end.
    """

    kind: Kind
    table: QueueTable | None = None
    timestamp_ms: int = 0
    must_match: bool = False


AT_EARLIEST: Final = Position("earliest")
AT_LATEST: Final = Position("latest")
AT_GROUP: Final = Position("group")
_TREE: Final = '{"topic":{"broker":{"0":VALUE}}}'
_NAMED: Final = {"earliest": AT_EARLIEST, "latest": AT_LATEST, "group": AT_GROUP}


def bounds(values: Mapping[str, str], topics: TopicChoice, mode: Mode) -> tuple[Position, Position]:
    """Return the positions where a read begins and ends.

    Raises:
        ConfigurationError: a position cannot be used, or not in this mode, or two are given.
    """
    if mode == "stream":
        for name in END_OPTIONS:
            if name in values:
                raise ConfigurationError(
                    f"option {name!r} is for batch reads; a stream has no end "
                    "(trigger(availableNow=True) stops at what is there)",
                    option=name,
                )
    default = AT_EARLIEST if mode == "batch" else AT_LATEST
    start = _position(values, START_OPTIONS, topics, default)
    end = _position(values, END_OPTIONS, topics, AT_LATEST)
    if mode == "batch" and start.kind == "latest":
        raise bad("startingOffsets", "latest", "earliest or offsets, since a batch ends there")
    if end.kind == "earliest":
        raise bad("endingOffsets", "earliest", "latest or offsets, since a batch begins there")
    if start.kind == end.kind == "group":
        raise bad("endingOffsets", "group", "another end: a batch from 'group' begins there")
    if "group" in (start.kind, end.kind) and not values.get("group"):
        name = "startingOffsets" if start.kind == "group" else "endingOffsets"
        raise ConfigurationError(
            f"option {name!r} is 'group': say whose offsets by option 'group'", option=name
        )
    return start, end


def _position(
    values: Mapping[str, str], names: tuple[str, str, str], topics: TopicChoice, default: Position
) -> Position:
    given = [name for name in names if name in values]
    if len(given) > 1:
        where = "begins" if names is START_OPTIONS else "ends"
        raise ConfigurationError(
            f"options {' and '.join(map(repr, given))} both say where the read {where}; "
            "give one of them",
            options=given,
        )
    must_match = names is START_OPTIONS and _must_match(values, given)
    if not given:
        return default
    (name,) = given
    text = values[name].strip()
    if name == names[1]:
        point = point_ms(text)
        if point is None:
            raise bad(name, text, TIME_ACCEPTED)
        return Position("timestamp", timestamp_ms=point, must_match=must_match)
    if name == names[2]:
        table = _table(name, text, topics, _time_of, f"{_TREE} with times: {TIME_ACCEPTED}")
        return Position("timestamps", table, must_match=must_match)
    return _NAMED.get(text.lower()) or Position("offsets", offset_table(name, text, topics))


def _must_match(values: Mapping[str, str], given: list[str]) -> bool:
    text = values.get(STRATEGY_OPTION)
    if text is None:
        return False
    if text.strip().lower() not in {"error", "latest"}:
        raise bad(STRATEGY_OPTION, text, "error or latest")
    if not given or given[0] == START_OPTIONS[0]:
        raise ConfigurationError(
            f"option {STRATEGY_OPTION!r} is for a read that begins at a time: give "
            f"{START_OPTIONS[1]!r} or {START_OPTIONS[2]!r} too, or leave it out",
            option=STRATEGY_OPTION,
        )
    return text.strip().lower() == "error"


def offset_table(name: str, text: str, topics: TopicChoice) -> QueueTable:
    """Parse ``{"topic":{"broker":{"0":123}}}``; -2 stands for earliest, -1 for latest.

    A number in place of a topic's or broker's object applies to all its queues.
    """
    accepted = f"earliest, latest, group, or {_TREE} with offsets or words, -2 earliest, -1 latest"
    return _table(name, text, topics, _offset_of, accepted)


def _table(
    name: str,
    text: str,
    topics: TopicChoice,
    read: Callable[[Any], int | None],
    accepted: str,
) -> QueueTable:
    """Parse a tree of topics, brokers and queues with a value at any depth."""
    values: dict[Place, int] = {}

    def walk(node: Any, path: tuple[str, ...]) -> None:
        if isinstance(node, dict) and len(path) < 3 and node:
            for key, child in node.items():
                walk(child, (*path, key))
            return
        value, place = read(node), _place(path)
        if value is None or place is None:
            raise bad(name, text, accepted)
        values[place] = value

    try:
        walk(json.loads(text), ())
    except (ValueError, RecursionError) as error:
        raise bad(name, text, accepted) from error
    for topic, broker, queue_id in values:
        asked = topics.has(topic)
        if asked and broker is not None and queue_id is not None:
            asked = topics.wants(MessageQueue(topic, broker, queue_id))
        if not asked:
            raise bad(name, text, f"values only for queues that are read ({topics.text})")
    return QueueTable(values)


def _place(path: tuple[str, ...]) -> Place | None:
    topic, broker, queue_id = (*path, None, None, None)[:3]
    if topic is None or not (queue_id is None or (queue_id.isascii() and queue_id.isdigit())):
        return None
    return topic, broker, None if queue_id is None else int(queue_id)


def _offset_of(value: Any) -> int | None:
    if isinstance(value, str):
        return {"earliest": EARLIEST, "latest": LATEST}.get(value.strip().lower())
    return value if type(value) is int and EARLIEST <= value < 2**63 else None


def _time_of(value: Any) -> int | None:
    if type(value) is int:
        return value if 0 <= value < 2**63 else None
    return point_ms(value) if isinstance(value, str) else None
