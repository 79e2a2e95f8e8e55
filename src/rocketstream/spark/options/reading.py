"""The options of a read through brokers: topics, begin and end, limits, and the rest.

Pure: text in, a frozen value out; every mistake is a ConfigurationError naming the option. The
cluster decides what a position means for a queue.

Law: a setting that a read cannot use is refused with the reason, not ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Literal

from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.protocol import names
from rocketstream.protocol.names import (
    DLQ_PREFIX,
    REPLY_TOPIC_SUFFIX,
    RETRY_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    UNDELIVERED_TOPIC,
)
from rocketstream.spark.options.connecting import (
    CONNECT_OPTIONS,
    LENGTH_ACCEPTED,
    TIME_ACCEPTED,
    ConnectOptions,
    bad,
    connect_settings,
    flag,
    known,
    length_ms,
    number,
    point_ms,
)

TOPIC_OPTIONS: Final = ("topic", "topics", "topicPattern", "assign")
"""The options that select what to read; exactly one of them is given."""

_NAMES: Final = "a topic, or several separated by commas"
_ASSIGN: Final = 'queues as {"topic":{"broker":[0,1]}}'


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """The topics and queues a read selects.

    Attributes:
        names: the named topics, in the order given, without repeats; none with ``pattern``.
        pattern: regular expression that a whole topic name must match, None for names.
        queues: the only queues to read of ``names``, None for all of them.
    """

    names: tuple[str, ...]
    pattern: str | None = None
    queues: frozenset[MessageQueue] | None = None

    def has(self, topic: str) -> bool:
        """Whether queues of a topic are selected."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.names

    def wants(self, queue: MessageQueue) -> bool:
        """Whether a queue is selected."""
        return self.has(queue.topic) if self.queues is None else queue in self.queues

    @property
    def text(self) -> str:
        """The selection as text for messages."""
        if self.pattern is not None:
            return f"topics that match {self.pattern!r}"
        return ", ".join(self.names)


def topic_choice(values: Mapping[str, str]) -> TopicChoice:
    """Return the topics and queues a read selects.

    Raises:
        ConfigurationError: none or several of ``TOPIC_OPTIONS`` are given, or one cannot be used.
    """
    given = [name for name in TOPIC_OPTIONS if values.get(name, "").strip()]
    if len(given) != 1:
        empty = [name for name in TOPIC_OPTIONS if name in values and name not in given]
        found = f"{' and '.join(map(repr, given))} are given" if given else "none is"
        if empty and not given:
            found = f"option {empty[0]!r} is empty"
        raise ConfigurationError(
            "say what to read by exactly one of the options 'topic' (or 'topics'), 'topicPattern' "
            f"and 'assign': {found}",
            options=given,
        )
    name = given[0]
    text = values[name].strip()
    if name == "topicPattern":
        return TopicChoice((), pattern=_pattern(text))
    if name == "assign":
        queues = _assigned(text)
        topics = tuple(dict.fromkeys(queue.topic for queue in queues))
        return TopicChoice(topics, queues=frozenset(queues))
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise bad(name, text, _NAMES)
    return TopicChoice(topics)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, OverflowError) as error:
        accepted = "a regular expression of whole topic names, such as 'orders-.*'"
        raise bad("topicPattern", text, f"{accepted} ({error})") from error
    return text


def _assigned(text: str) -> list[MessageQueue]:
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise bad("assign", text, _ASSIGN) from error
    queues = [
        MessageQueue(topic, broker, queue_id)
        for topic, brokers in _entries(tree, text)
        for broker, ids in _entries(brokers, text)
        for queue_id in _ids(ids, text)
    ]
    if not queues:
        raise bad("assign", text, _ASSIGN)
    return queues


def _entries(node: Any, text: str) -> list[tuple[str, Any]]:
    if not isinstance(node, dict) or not node:
        raise bad("assign", text, _ASSIGN)
    return list(node.items())


def _ids(node: Any, text: str) -> list[int]:
    good = isinstance(node, list) and all(type(i) is int and 0 <= i < 2**31 for i in node)
    if not good or not node:
        raise bad("assign", text, _ASSIGN)
    return list(node)


_FAMILIES: Final = (RETRY_PREFIX, DLQ_PREFIX, SYSTEM_TOPIC_PREFIX)


def matching(pattern: str, listed: Iterable[str], reserved: Collection[str]) -> list[str]:
    """Return the topics that match a pattern, sorted.

    Retry and dead-letter topics of groups, and topics of the system, are left out unless the
    pattern spells their prefix: ``.*`` matches topics somebody sends to, ``%DLQ%.*`` matches dead
    letters.

    Args:
        pattern: matches whole names.
        listed: all topics.
        reserved: further topics of the system: each broker and cluster has one of its own name.
    """
    match = re.compile(pattern).fullmatch
    found = {topic for topic in listed if match(topic)}
    return sorted(topic for topic in found if _is_meant(topic, pattern, reserved))


def _is_meant(topic: str, pattern: str, reserved: Collection[str]) -> bool:
    lower = topic.lower()
    for family in _FAMILIES:
        if lower.startswith(family.lower()):
            return family.lower() in pattern.lower()
    owner = topic.removesuffix(REPLY_TOPIC_SUFFIX)
    of_the_system = topic in SYSTEM_TOPICS or topic == UNDELIVERED_TOPIC or owner in reserved
    return not of_the_system or topic in pattern


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
    return point_ms(str(value)) if type(value) is int or isinstance(value, str) else None


LIMIT_OPTIONS: Final = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
)
TRIGGER_DELAY_MS: Final = 900_000
"""The 15 minutes that Spark's Kafka source uses too."""

_BYTES: Final = re.compile(r"([0-9]{1,15})\s*([kmgt]?)b?", re.ASCII)
_UNIT_BYTES: Final = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """The limits of a micro-batch; None for none.

    Attributes:
        rows_max: how many offsets a micro-batch holds at most.
        rows_min: how many offsets are worth a micro-batch.
        delay_max_ms: how long fewer offsets than ``rows_min`` wait.
        bytes_max: roughly how many bytes of stored messages a micro-batch holds at most.
    """

    rows_max: int | None = None
    rows_min: int | None = None
    delay_max_ms: int = TRIGGER_DELAY_MS
    bytes_max: int | None = None

    @property
    def given(self) -> tuple[str, ...]:
        """The given options under their documented names."""
        values = (self.rows_max, self.rows_min, None, self.bytes_max)
        names = zip(LIMIT_OPTIONS, values, strict=True)
        return tuple(name for name, value in names if value is not None)


def trigger_limits(values: Mapping[str, str], mode: Mode) -> TriggerLimits:
    """Return the limits of micro-batches.

    Raises:
        ConfigurationError: a limit cannot be used, contradicts another, or is given for a batch.
    """
    given = [name for name in LIMIT_OPTIONS if name in values]
    if given and mode == "batch":
        raise ConfigurationError(
            f"option {given[0]!r} is for streams; a batch is one piece, which 'endingOffsets' or "
            "'endingTimestamp' bound and 'maxRecordsPerPartition' divides",
            option=given[0],
        )
    rows_max = number(values, "maxOffsetsPerTrigger", None, 1)
    rows_min = number(values, "minOffsetsPerTrigger", None, 1)
    if rows_min is None and "maxTriggerDelay" in values:
        raise ConfigurationError(
            "option 'maxTriggerDelay' bounds how long 'minOffsetsPerTrigger' holds rows back, "
            "which is not given: give it too, or leave this out",
            option="maxTriggerDelay",
        )
    if rows_max is not None and rows_min is not None and rows_min > rows_max:
        raise bad(
            "minOffsetsPerTrigger", str(rows_min), f"no more than maxOffsetsPerTrigger, {rows_max}"
        )
    return TriggerLimits(rows_max, rows_min, _delay_ms(values), _bytes(values))


def _delay_ms(values: Mapping[str, str]) -> int:
    text = values.get("maxTriggerDelay")
    if text is None:
        return TRIGGER_DELAY_MS
    found = length_ms(text)
    if found is None:
        raise bad("maxTriggerDelay", text, LENGTH_ACCEPTED)
    return found


def _bytes(values: Mapping[str, str]) -> int | None:
    text = values.get("maxBytesPerTrigger")
    if text is None:
        return None
    found = _BYTES.fullmatch(text.strip().lower())
    size = int(found[1]) * _UNIT_BYTES[found[2]] if found else 0
    if not 0 < size < 2**63:
        raise bad("maxBytesPerTrigger", text, "a number of bytes such as 1000000, 512k, 64m or 1g")
    return size


PREFIX: Final = "rocketmq."

CLIENT_SETTINGS: Final = {
    "namesrv.addr": "nameServer",
    "namesrvAddr": "nameServer",
    "accessKey": "accessKey",
    "secretKey": "secretKey",
    "securityToken": "securityToken",
    "useTLS": "useTls",
    "tls.enable": "useTls",
    "mqClientApiTimeout": "requestTimeoutMs",
    "consumerPullTimeoutMillis": "requestTimeoutMs",
    "connectTimeoutMillis": "connectTimeoutMs",
    "consumerGroup": "group",
    "pullBatchSize": "pullBatchSize",
}
"""Names of Java's system properties and consumer settings, with the option each stands for."""

_WITHOUT_USE: Final = {
    "instanceName": "a read joins no group, so it has no client id",
    "clientIP": "a read joins no group, so it has no client id",
    "unitName": "a read joins no group, so it has no client id",
    "vipChannelEnabled": "pulls never go to the broker's fast port",
    "messageModel": "every query reads every message; several share nothing",
    "consumeFromWhere": "say where to begin by 'startingOffsets' or 'startingTimestamp'",
    "consumeThreadMin": "Spark's tasks do the work: see 'minPartitions'",
    "consumeThreadMax": "Spark's tasks do the work: see 'minPartitions'",
    "consumeMessageBatchMaxSize": "see 'maxOffsetsPerTrigger'",
    "pullInterval": "see 'maxOffsetsPerTrigger'",
    "heartbeatBrokerInterval": "a read sends no heartbeats",
    "pollNameServerInterval": "see 'queueRefreshMs'",
}


def spelled_as_options(given: Mapping[str, str], accepted: Sequence[str]) -> dict[str, str]:
    """Return options in which settings of the clients have the names of their options.

    Args:
        given: as a user wrote them; names match in any case.
        accepted: the existing options.

    Raises:
        ConfigurationError: a setting is unknown or has no use here, or is given twice.
    """
    ours = {name.lower(): option for name, option in CLIENT_SETTINGS.items() if option in accepted}
    useless = {name.lower(): why for name, why in _WITHOUT_USE.items()}
    values: dict[str, str] = {}
    origin: dict[str, str] = {}
    for key, value in given.items():
        option = key
        if key.lower().startswith(PREFIX):
            name = key.lower().removeprefix(PREFIX)
            if name not in ours:
                raise _refusal(key, name, list(ours), useless.get(name))
            option = ours[name]
        if option.lower() in origin:
            raise ConfigurationError(
                f"options {origin[option.lower()]!r} and {key!r} are the same; give one of them",
                option=key,
            )
        origin[option.lower()] = key
        values[option] = value
    return values


def _refusal(key: str, name: str, ours: list[str], why: str | None) -> ConfigurationError:
    spelled = {setting.lower(): PREFIX + setting for setting in CLIENT_SETTINGS}
    if why is not None:
        text = f"option {key!r} has no effect here: {why}. Leave it out"
    else:
        close = get_close_matches(name, ours, 1)
        hint = f"; did you mean {spelled[close[0]]!r}?" if close else "."
        text = f"unknown option {key!r}{hint} Accepted: {', '.join(spelled[each] for each in ours)}"
    return ConfigurationError(text, option=key)


_BEGIN_OPTIONS: Final = (
    "group",
    "commitOffsets",
    "groupMember",
    "otherTopics",
    *START_OPTIONS,
    STRATEGY_OPTION,
)
READ_OPTIONS: Final = (
    *TOPIC_OPTIONS,
    *_BEGIN_OPTIONS,
    *END_OPTIONS,
    "tags",
    "sql",
    *LIMIT_OPTIONS,
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "checkBodyCrc",
    "mode",
    "pullBatchSize",
    "pullsInFlight",
    "queueRefreshMs",
    *CONNECT_OPTIONS,
)
"""Every option of a read, spelled as documented."""
STREAM_OPTIONS: Final = (*_BEGIN_OPTIONS, *LIMIT_OPTIONS)
"""The options that say where a stream begins, how it goes on, and for whom."""


@dataclass(frozen=True, slots=True)
class ReadOptions(ConnectOptions):
    """The options of a scan or stream.

    Attributes:
        choice: which topics and queues to read.
        group: the consumer group named to the brokers, None for none.
        commit_offsets: whether a stream's progress is reported as offsets of ``group``.
        group_member: client id of the live member this stream stands for, None for none.
        other_topics: topics that other sources of the same query read.
        start: where queues begin.
        end: where they end (batch only).
        tags: subscription expression, ``*`` for all.
        sql: SQL92 condition on properties, None for none.
        limits: the limits of one micro-batch.
        min_partitions: the least number of Spark partitions, None to leave it to the planner.
        max_records_per_partition: how many offsets one Spark partition has at most, None for any
            number.
        fail_on_data_loss: whether missing offsets are an error.
        check_body_crc: whether bodies that are read must match the CRC stored with them.
        permissive: whether a record that cannot be decoded becomes a row that says why, instead of
            an error.
        pull_batch_size: how many messages one pull asks for at most.
        pulls_in_flight: how many pulls are under way at a time on one connection.
        queue_refresh_ms: how often a stream looks for new queues.
    """

    choice: TopicChoice
    group: str | None
    commit_offsets: bool
    group_member: str | None
    other_topics: frozenset[str]
    start: Position
    end: Position
    tags: str
    sql: str | None
    limits: TriggerLimits
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    check_body_crc: bool
    permissive: bool
    pull_batch_size: int
    pulls_in_flight: int
    queue_refresh_ms: int

    @property
    def topics(self) -> tuple[str, ...]:
        """The named topics, in the order given; none where a pattern selects them."""
        return self.choice.names

    def __repr__(self) -> str:
        return f"ReadOptions(topics={self.choice.text!r}, name_server={self.name_server!r})"


def named_as_documented(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a read under their documented names; other spellings are taken.

    Raises:
        ConfigurationError: an option is unknown, or given twice.
    """
    return known(spelled_as_options(given, READ_OPTIONS), READ_OPTIONS)


def read_options(given: Mapping[str, str], mode: Mode) -> ReadOptions:
    """Parse the options of a read; names match in any case.

    Raises:
        ConfigurationError: an option is unknown, missing or unusable; the error says what to give.
    """
    values = named_as_documented(given)
    connect = connect_settings(values)
    choice = topic_choice(values)
    start, end = bounds(values, choice, mode)
    return ReadOptions(
        **connect,
        choice=choice,
        group=_group(values),
        commit_offsets=_commit_offsets(values, mode),
        group_member=values.get("groupMember") or None,
        other_topics=frozenset(filter(None, values.get("otherTopics", "").split(","))),
        start=start,
        end=end,
        tags=values.get("tags", "").strip() or "*",
        sql=_sql(values),
        limits=trigger_limits(values, mode),
        min_partitions=number(values, "minPartitions", None, 1),
        max_records_per_partition=number(values, "maxRecordsPerPartition", None, 1),
        fail_on_data_loss=flag(values, "failOnDataLoss", True),
        check_body_crc=flag(values, "checkBodyCrc", True),
        permissive=is_permissive(values),
        pull_batch_size=number(values, "pullBatchSize", 1_024, 1, 100_000),
        pulls_in_flight=number(values, "pullsInFlight", 8, 1, 64),
        queue_refresh_ms=number(values, "queueRefreshMs", 10_000, 0),
    )


def is_permissive(given: Mapping[str, str]) -> bool:
    """Return the value of option ``mode``; other options are not checked.

    Raises:
        ConfigurationError: the value is neither ``failFast`` nor ``permissive``.
    """
    text = next((value for name, value in given.items() if name.lower() == "mode"), "failFast")
    lower = text.strip().lower()
    if lower not in {"failfast", "permissive"}:
        drop = " (nothing is dropped without a trace; to drop rows filter 'error IS NULL')"
        raise bad("mode", text, "failFast or permissive" + drop * (lower == "dropmalformed"))
    return lower == "permissive"


def _group(values: Mapping[str, str]) -> str | None:
    group = values.get("group", "").strip()
    if not group:
        return None
    try:
        names.check_consumer_group(group)
    except ConfigurationError as error:
        raise ConfigurationError(f"option 'group' is {group!r}: {error.message}") from None
    return group


def _commit_offsets(values: Mapping[str, str], mode: Mode) -> bool:
    """Return whether progress is reported: if a stream names a group, unless the option says no."""
    wanted = flag(values, "commitOffsets", bool(values.get("group")))
    if wanted and "commitOffsets" in values and mode == "batch":
        raise ConfigurationError(
            "option 'commitOffsets' is for streams: a batch moves no group. Leave it out",
            option="commitOffsets",
        )
    if wanted and not values.get("group"):
        raise ConfigurationError(
            "option 'commitOffsets' is true: say for which group by option 'group'",
            option="commitOffsets",
        )
    wanted = wanted and mode == "stream"
    if values.get("groupMember") and not wanted:
        raise ConfigurationError(
            "option 'groupMember' names the member of 'group' whose offsets a stream reports, but "
            "none are reported. Leave it out",
            option="groupMember",
        )
    return wanted


def _sql(values: Mapping[str, str]) -> str | None:
    text = values.get("sql")
    if text is None:
        return None
    if not text.strip():
        raise bad("sql", text, "a condition such as price > 5 AND region = 'EU'")
    if "tags" in values:
        raise ConfigurationError(
            "options 'tags' and 'sql' both select messages; give one of them (in 'sql' tags are "
            "the property TAGS)",
            option="sql",
        )
    return text
