"""What a user may set on ``format("rocketmq")``, parsed and checked in one place.

Law: pure; text in, a frozen value out; every mistake is a ConfigurationError naming the option.
"""

from __future__ import annotations

import datetime
import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue

T = TypeVar("T")

EARLIEST: Final = -2
"""Kafka's number for the oldest offset, accepted inside offset JSON."""
LATEST: Final = -1
"""Kafka's number for the end of the queue, accepted inside offset JSON."""

Mode = Literal["batch", "stream"]
OffsetTable = Mapping[MessageQueue, int]

READ_OPTIONS: Final = (
    "nameServer",
    "topic",
    "group",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "tags",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "checkBodyCrc",
    "pullBatchSize",
    "pullsInFlight",
    "requestTimeoutMs",
    "connectTimeoutMs",
    "retryTimeoutMs",
    "queueRefreshMs",
    "accessKey",
    "secretKey",
    "securityToken",
    "useTls",
    "tlsCaFile",
    "tlsCertFile",
    "tlsKeyFile",
    "tlsKeyPassword",
    "tlsVerify",
    "tlsCheckHostname",
)
"""Every option of ours, spelled as documented."""

IGNORED_OPTIONS: Final = frozenset({"path", "paths", "mergeschema", "recursivefilelookup"})
"""Options Spark itself may hand to any source."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where to begin or end: one end of every queue, an offset per queue, or a time."""

    kind: Literal["earliest", "latest", "offsets", "timestamp"]
    offsets: OffsetTable | None = None
    timestamp_ms: int = 0


AT_EARLIEST: Final = Position("earliest")
AT_LATEST: Final = Position("latest")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a scan or stream.

    Attributes:
        name_server: addresses, separated by ``;``.
        topics: topics to read, in the order given, without repeats.
        group: consumer group whose progress is reported, None to report nothing.
        start: where queues begin.
        end: where they end (batch only).
        tags: subscription expression, ``*`` for all.
        max_offsets_per_trigger: rows of one micro-batch, None for all there are.
        min_partitions: at least so many Spark partitions, None to leave it to the planner.
        fail_on_data_loss: whether missing offsets are an error.
        check_body_crc: whether bodies that are read must match the CRC stored with them.
        pull_batch_size: most messages asked for in one pull.
        pulls_in_flight: pulls under way at a time on one connection.
        request_timeout_ms: bound of one request.
        connect_timeout_ms: bound of one connect.
        retry_timeout_ms: how long failures that may pass are retried.
        queue_refresh_ms: how often a stream looks for new queues.
        use_tls: whether all connections speak TLS.
        tls_ca_file: PEM file of trusted certificates, None for the system's.
        tls_cert_file: PEM file of this client's certificate, None for none.
        tls_key_file: PEM file of its key, None when it is in ``tls_cert_file``.
        tls_key_password: of the key.
        tls_verify: whether servers must show a trusted certificate.
        tls_check_hostname: whether it must name the address connected to.
    """

    name_server: str
    topics: tuple[str, ...]
    group: str | None
    start: Position
    end: Position
    tags: str
    max_offsets_per_trigger: int | None
    min_partitions: int | None
    fail_on_data_loss: bool
    check_body_crc: bool
    pull_batch_size: int
    pulls_in_flight: int
    request_timeout_ms: int
    connect_timeout_ms: int
    retry_timeout_ms: int
    queue_refresh_ms: int
    access_key: str | None
    secret_key: str | None
    security_token: str | None
    use_tls: bool
    tls_ca_file: str | None
    tls_cert_file: str | None
    tls_key_file: str | None
    tls_key_password: str | None
    tls_verify: bool
    tls_check_hostname: bool

    def __repr__(self) -> str:
        return f"ReadOptions(topics={self.topics}, name_server={self.name_server!r})"


def read_options(given: Mapping[str, str], mode: Mode) -> ReadOptions:
    """Parse the options of a read; names match in any case.

    Raises:
        ConfigurationError: an unknown, missing or unusable option; the text says what to give.
    """
    values = _known(given)
    topics = _topics(values)
    start, end = _bounds(values, topics, mode)
    return ReadOptions(
        name_server=_required(values, "nameServer", "host:port of the name server"),
        topics=topics,
        group=values.get("group") or None,
        start=start,
        end=end,
        tags=values.get("tags", "").strip() or "*",
        max_offsets_per_trigger=_number(values, "maxOffsetsPerTrigger", None, 1),
        min_partitions=_number(values, "minPartitions", None, 1),
        fail_on_data_loss=_flag(values, "failOnDataLoss", True),
        check_body_crc=_flag(values, "checkBodyCrc", True),
        pull_batch_size=_number(values, "pullBatchSize", 1_024, 1, 100_000),
        pulls_in_flight=_number(values, "pullsInFlight", 8, 1, 64),
        request_timeout_ms=_number(values, "requestTimeoutMs", 10_000, 1),
        connect_timeout_ms=_number(values, "connectTimeoutMs", 3_000, 1),
        retry_timeout_ms=_number(values, "retryTimeoutMs", 30_000, 0),
        queue_refresh_ms=_number(values, "queueRefreshMs", 10_000, 0),
        access_key=values.get("accessKey"),
        secret_key=values.get("secretKey"),
        security_token=values.get("securityToken"),
        use_tls=_use_tls(values),
        tls_ca_file=values.get("tlsCaFile"),
        tls_cert_file=values.get("tlsCertFile"),
        tls_key_file=values.get("tlsKeyFile"),
        tls_key_password=values.get("tlsKeyPassword"),
        tls_verify=_flag(values, "tlsVerify", True),
        tls_check_hostname=_flag(values, "tlsCheckHostname", False),
    )


def _known(given: Mapping[str, str]) -> dict[str, str]:
    spelled = {name.lower(): name for name in READ_OPTIONS}
    values: dict[str, str] = {}
    for key, value in given.items():
        lower = key.lower()
        if lower in spelled:
            values[spelled[lower]] = value
        elif lower not in IGNORED_OPTIONS and not lower.startswith("spark."):
            close = difflib.get_close_matches(lower, spelled, 1)
            hint = f"; did you mean {spelled[close[0]]!r}?" if close else "."
            raise ConfigurationError(
                f"unknown option {key!r}{hint} Accepted: {', '.join(READ_OPTIONS)}", option=key
            )
    return values


def _required(values: Mapping[str, str], name: str, what: str) -> str:
    value = values.get(name, "").strip()
    if not value:
        raise ConfigurationError(f"option {name!r} is missing: give {what}", option=name)
    return value


def _topics(values: Mapping[str, str]) -> tuple[str, ...]:
    text = _required(values, "topic", "a topic, or several separated by commas")
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise _bad("topic", text, "a topic, or several separated by commas")
    return topics


def _number(
    values: Mapping[str, str], name: str, default: T, low: int, high: int = 2**63 - 1
) -> int | T:
    text = values.get(name)
    if text is None:
        return default
    try:
        number = int(text)
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        span = f"from {low} to {high}" if high < 2**63 - 1 else f"of at least {low}"
        raise _bad(name, text, f"a whole number {span}")
    return number


def _flag(values: Mapping[str, str], name: str, default: bool) -> bool:
    text = values.get(name)
    if text is None:
        return default
    if text.strip().lower() not in {"true", "false"}:
        raise _bad(name, text, "true or false")
    return text.strip().lower() == "true"


def _use_tls(values: Mapping[str, str]) -> bool:
    used = _flag(values, "useTls", False)
    for name in values:
        if name.startswith("tls") and not used:
            raise ConfigurationError(
                f"option {name!r} needs option 'useTls' to be true", option=name
            )
    for name in ("tlsKeyFile", "tlsKeyPassword"):
        if name in values and "tlsCertFile" not in values:
            raise ConfigurationError(f"option {name!r} needs option 'tlsCertFile'", option=name)
    return used


def _bounds(
    values: Mapping[str, str], topics: tuple[str, ...], mode: Mode
) -> tuple[Position, Position]:
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
        raise _bad("startingOffsets", "latest", "earliest or offsets, since a batch ends there")
    if end.kind == "earliest":
        raise _bad("endingOffsets", "earliest", "latest or offsets, since a batch begins there")
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
        raise _bad(name, text, accepted) from error
    table: dict[MessageQueue, int] = {}
    for topic, brokers in _entries(tree):
        for broker_name, queues in _entries(brokers):
            for queue_id, offset in _entries(queues):
                if not _is_offset(offset) or not (queue_id.isascii() and queue_id.isdigit()):
                    raise _bad(name, text, accepted)
                table[MessageQueue(topic, broker_name, int(queue_id))] = offset
    if not table:
        raise _bad(name, text, accepted)
    strangers = sorted({queue.topic for queue in table} - set(topics))
    if strangers:
        raise _bad(name, text, f"offsets of the topics read ({', '.join(topics)})")
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
        raise _bad(
            name, text, "milliseconds since 1970 UTC or ISO 8601 such as 2024-05-01T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        # Without a zone the text would mean another moment on every machine of a cluster.
        moment = moment.replace(tzinfo=datetime.UTC)
    return int(moment.timestamp() * 1000)


def _bad(name: str, value: str, accepted: str) -> ConfigurationError:
    return ConfigurationError(
        f"option {name!r} is {value!r}; give {accepted}", option=name, value=value
    )
