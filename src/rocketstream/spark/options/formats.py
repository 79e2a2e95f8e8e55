"""The options of everything but a read through brokers: writes, listeners, progress, store files.

Pure: text in, a frozen value out; every mistake is a ConfigurationError naming the option.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from rocketstream import limits
from rocketstream.errors import ConfigurationError
from rocketstream.protocol.names import check_consumer_group
from rocketstream.spark.options.connecting import (
    CONNECT_OPTIONS,
    LENGTH_ACCEPTED,
    ConnectOptions,
    bad,
    connect_settings,
    flag,
    known,
    length_ms,
    number,
    of_a_sink,
    required,
)
from rocketstream.spark.options.reading import READ_OPTIONS, Mode, Position, TopicChoice, bounds

WRITE_OPTIONS: Final = (
    "topic",
    "producerGroup",
    "writeId",
    "reservedProperties",
    "maxMessageSize",
    "sendBatchSize",
    "sendBatchBytes",
    "sendsInFlight",
    "defaultTopicQueueNums",
    *CONNECT_OPTIONS,
)
"""Every option of a write, spelled as documented."""

DEFAULT_GROUP: Final = "rocketstream-spark"
_BODY_CEILING: Final = limits.FRAME_BYTES_MAX - limits.HEADER_BYTES_MAX


@dataclass(frozen=True, slots=True)
class WriteOptions(ConnectOptions):
    """The options of a write.

    Attributes:
        topic: the topic all rows go to, None where a column names it.
        producer_group: the producer group named to brokers.
        write_id: the id of a batch write in its messages, None for a random one.
        drop_reserved: whether properties with reserved names are left out instead of refused.
        max_message_size: the largest body in bytes, which is what the brokers accept.
        send_batch_size: how many messages one request holds at most.
        send_batch_bytes: how many bytes one request holds at most, unless one message alone is
            larger.
        sends_in_flight: how many requests are under way at a time in each task.
        default_topic_queue_nums: how many queues a topic gets that a broker creates on a send.
    """

    topic: str | None
    producer_group: str
    write_id: str | None
    drop_reserved: bool
    max_message_size: int
    send_batch_size: int
    send_batch_bytes: int
    sends_in_flight: int
    default_topic_queue_nums: int

    def __repr__(self) -> str:
        return f"WriteOptions(topic={self.topic!r}, name_server={self.name_server!r})"


def write_options(given: Mapping[str, str], mode: Mode) -> WriteOptions:
    """Parse the options of a write; names match in any case.

    Raises:
        ConfigurationError: an option is unknown, missing or unusable; the error says what to give.
    """
    values = known(of_a_sink(given), WRITE_OPTIONS)
    connect = connect_settings(values)
    return WriteOptions(
        **connect,
        topic=values.get("topic", "").strip() or None,
        producer_group=values.get("producerGroup", "").strip() or DEFAULT_GROUP,
        write_id=_write_id(values, mode),
        drop_reserved=_drop_reserved(values),
        max_message_size=number(
            values, "maxMessageSize", limits.MESSAGE_BODY_BYTES_MAX, 1, _BODY_CEILING
        ),
        send_batch_size=number(values, "sendBatchSize", 500, 1, limits.SENDS_MESSAGES_MAX),
        send_batch_bytes=number(
            values, "sendBatchBytes", 256 * 1024, 1, limits.MESSAGE_BODY_BYTES_MAX
        ),
        sends_in_flight=number(values, "sendsInFlight", 8, 1, 64),
        default_topic_queue_nums=number(values, "defaultTopicQueueNums", 4, 1, 1_024),
    )


def _write_id(values: Mapping[str, str], mode: Mode) -> str | None:
    write_id = values.get("writeId", "").strip()
    if write_id and mode == "stream":
        raise ConfigurationError(
            "option 'writeId' is for batch writes: a stream's messages carry the query's id, which "
            "its checkpoint keeps; leave it out",
            option="writeId",
        )
    if any(ord(letter) < 32 for letter in write_id):
        raise bad("writeId", write_id, "text without control characters")
    return write_id or None


def _drop_reserved(values: Mapping[str, str]) -> bool:
    text = values.get("reservedProperties", "fail").strip().lower()
    if text not in {"fail", "drop"}:
        raise bad("reservedProperties", text, "fail, or drop to leave them out")
    return text == "drop"


MAX_RECONSUME_TIMES: Final = 16
"""The meaning of -1, in order too: a task must end, so a queue cannot be suspended for ever."""
_MS_PER_MINUTE: Final = 60_000
MICRO_BATCH_TIMEOUT_MS: Final = 60_000
"""How long a micro-batch waits for a call: all queues of the group wait with it."""

CONSUME_OPTIONS: Final = (
    "listener",
    "group",
    "orderly",
    "consumeMessageBatchMaxSize",
    "consumeThreadMax",
    "maxReconsumeTimes",
    "suspendCurrentQueueTimeMillis",
    "consumeTimeout",
    "microBatchTimeoutMs",
    "sendBackCause",
    *CONNECT_OPTIONS,
)
"""Every option of the sink, spelled as documented; the names are RocketMQ's."""


@dataclass(frozen=True, slots=True)
class ConsumeOptions(ConnectOptions):
    """The options of consuming.

    Attributes:
        listener: the listener as ``rocketstream.spark.consume`` packed it.
        group: the consumer group whose retry topic takes messages that fail.
        orderly: whether each queue is consumed in order.
        batch_size: how many messages one listener call gets at most.
        threads_max: how many listener calls run at once in one task at most.
        max_reconsume_times: how many tries follow the first before the dead-letter topic.
        suspend_ms: pause of a queue whose orderly listener asks for one.
        timeout_ms: how long a listener call may take before it is left behind and its messages are
            sent back.
        micro_batch_timeout_ms: how long a micro-batch waits for a listener call before it is left
            behind likewise; None in order, unless it is given: a message that is sent back comes
            behind those it should come before.
        send_back_cause: whether messages sent back say what the listener raised, and where.
    """

    listener: str
    group: str
    orderly: bool
    batch_size: int
    threads_max: int
    max_reconsume_times: int
    suspend_ms: int
    timeout_ms: float
    micro_batch_timeout_ms: int | None
    send_back_cause: bool

    @property
    def call_timeout_ms(self) -> float:
        """How long a task waits for a listener call: the smaller of both bounds."""
        bound = self.micro_batch_timeout_ms
        return self.timeout_ms if bound is None else min(self.timeout_ms, bound)

    def __repr__(self) -> str:
        return f"ConsumeOptions(group={self.group!r}, name_server={self.name_server!r})"


def consume_options(given: Mapping[str, str]) -> ConsumeOptions:
    """Parse the options of consuming; names match in any case.

    Raises:
        ConfigurationError: an option is unknown, missing or unusable; the error says what to give.
    """
    values = known(of_a_sink(given), CONSUME_OPTIONS)
    connect = connect_settings(values)
    group = required(values, "group", "the consumer group")
    check_consumer_group(group)
    orderly = flag(values, "orderly", False)
    waits_ms = None if orderly else MICRO_BATCH_TIMEOUT_MS
    tries = number(values, "maxReconsumeTimes", -1, -1, 2**31 - 1)
    return ConsumeOptions(
        **connect,
        listener=required(
            values, "listener", "what rocketstream.spark.consume(df, listener, ...) makes of one"
        ),
        group=group,
        orderly=orderly,
        batch_size=number(values, "consumeMessageBatchMaxSize", 1, 1, 1024),
        threads_max=number(values, "consumeThreadMax", 20, 1, 1000),
        max_reconsume_times=MAX_RECONSUME_TIMES if tries == -1 else tries,
        suspend_ms=number(values, "suspendCurrentQueueTimeMillis", 1_000, 10, 30_000),
        timeout_ms=_timeout_ms(values),
        micro_batch_timeout_ms=number(values, "microBatchTimeoutMs", waits_ms, 1, 2**31 - 1),
        send_back_cause=flag(values, "sendBackCause", False),
    )


def _timeout_ms(values: Mapping[str, str]) -> float:
    text = values.get("consumeTimeout", "15")
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes < float("inf"):
        raise bad("consumeTimeout", text, "a number of minutes, more than 0")
    return minutes * _MS_PER_MINUTE


CLUSTER_ONLY: Final = ("group", "groups", "groupPattern", "topic", "interval", "owners")
PROGRESS_OPTIONS: Final = (*CLUSTER_ONLY, *CONNECT_OPTIONS)
"""Options of reading a cluster, spelled as documented."""
FILE_OPTIONS: Final = ("path", "backup")
"""Options of reading offset files."""

INTERVAL_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class ProgressOptions(ConnectOptions):
    """The options of reading a cluster's progress.

    Attributes:
        groups: only these groups; None for those of ``group_pattern``, or all.
        group_pattern: groups whose whole name matches this regular expression; None for none.
        topics: only these topics; None for all.
        interval_ms: the least time between two snapshots of a stream.
        owners: whether members are asked which queues they hold.
    """

    groups: tuple[str, ...] | None
    group_pattern: str | None
    topics: tuple[str, ...] | None
    interval_ms: int
    owners: bool

    def __repr__(self) -> str:
        return f"ProgressOptions(groups={self.groups}, name_server={self.name_server!r})"


@dataclass(frozen=True, slots=True)
class FileOptions:
    """The options of reading offset files.

    Attributes:
        paths: files, directories of a store, or patterns of them.
        backup: whether ``.bak`` is read where a file is missing or broken.
    """

    paths: tuple[str, ...]
    backup: bool


def is_of_files(given: Mapping[str, str]) -> bool:
    """Return whether the options name files rather than a cluster."""
    return any(name.lower() in {"path", "paths"} for name in given)


def progress_options(given: Mapping[str, str]) -> ProgressOptions:
    """Parse the options of reading a cluster; names match in any case.

    Raises:
        ConfigurationError: an option is unknown, missing or unusable; the error says what to give.
    """
    if any(name.lower() == "backup" for name in given):
        raise ConfigurationError(
            "option 'backup' is for offset files: give their path too, or leave it out",
            option="backup",
        )
    values = known(given, PROGRESS_OPTIONS)
    if "group" in values and "groups" in values:
        raise ConfigurationError("options 'group' and 'groups' mean the same: give one of them")
    named = "groups" if "groups" in values else "group"
    pattern = values.get("groupPattern")
    if pattern is not None:
        _check_pattern(pattern)
    connect = connect_settings(values)
    return ProgressOptions(
        **connect,
        groups=_names(values, named, "a consumer group"),
        group_pattern=pattern,
        topics=_names(values, "topic", "a topic"),
        interval_ms=_interval(values.get("interval")),
        owners=flag(values, "owners", True),
    )


def file_options(given: Mapping[str, str]) -> FileOptions:
    """Parse the options of reading offset files; names match in any case.

    Raises:
        ConfigurationError: an option does not apply to files, or there is no path.
    """
    lower = {name.lower(): value for name, value in given.items()}
    for name in PROGRESS_OPTIONS:
        if name.lower() in lower:
            raise ConfigurationError(
                f"option {name!r} is for a cluster, but a path names offset files: give one or the "
                f"other. Options of files: {', '.join(FILE_OPTIONS)}",
                option=name,
            )
    # ``load`` with several paths makes a list of them.
    values = known({k: v for k, v in given.items() if k.lower() != "paths"}, FILE_OPTIONS)
    paths = [lower["path"]] if lower.get("path", "").strip() else []
    if "paths" in lower:
        paths += _listed(lower["paths"])
    if not paths:
        raise bad("path", lower.get("path", ""), "the path of consumerOffset.json or offsets.json")
    return FileOptions(tuple(dict.fromkeys(paths)), flag(values, "backup", False))


def _listed(text: str) -> list[str]:
    """Return the paths Spark passes when ``load`` is given several."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise bad("paths", text, "the paths to load(), as a list")
    return [str(path) for path in found]


def _names(values: Mapping[str, str], option: str, what: str) -> tuple[str, ...] | None:
    text = values.get(option)
    if text is None:
        return None
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise bad(option, text, f"{what}, or several separated by commas")
    return found


def _check_pattern(text: str) -> None:
    try:
        re.compile(text)
    except (re.error, OverflowError) as error:
        raise bad(
            "groupPattern", text, f"a regular expression of whole group names ({error})"
        ) from None


def _interval(text: str | None) -> int:
    if text is None:
        return INTERVAL_MS
    length = length_ms(text)
    if not length:
        raise bad("interval", text, LENGTH_ACCEPTED)
    return length


STORE_OPTIONS: Final = (
    "storePath",
    "commitLogPath",
    "brokerName",
    "topic",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "tags",
    "minPartitions",
    "failOnDataLoss",
    "checkBodyCrc",
    "skipDamaged",
)
"""Every option of a read of a store directory, spelled as documented."""
DEFAULT_BROKER_NAME: Final = "store"


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """The options of a read of a store directory.

    Attributes:
        store_path: the directory a broker calls ``storePathRootDir``.
        commit_log_paths: directories of the commit log's files, usually one.
        broker_name: the ``brokerName`` of rows; a store does not name its broker.
        topics: topics to read, in the order given, without repeats.
        start: where queues begin.
        end: where they end.
        tags: subscription expression, ``*`` for all.
        min_partitions: the least number of Spark partitions, None to leave it to the planner.
        fail_on_data_loss: whether missing offsets are an error.
        check_body_crc: whether bodies that are read must match the CRC stored with them.
        skip_damaged: whether damaged records are named in a warning and left out.
    """

    store_path: str
    commit_log_paths: tuple[str, ...]
    broker_name: str
    topics: tuple[str, ...]
    start: Position
    end: Position
    tags: str
    min_partitions: int | None
    fail_on_data_loss: bool
    check_body_crc: bool
    skip_damaged: bool


def is_store_read(given: Mapping[str, str]) -> bool:
    """Return whether options ask for a store directory; names match in any case."""
    return any(name.lower() == "storepath" for name in given)


def store_options(given: Mapping[str, str]) -> StoreOptions:
    """Parse the options of a read of a store directory; names match in any case.

    Raises:
        ConfigurationError: an option is unknown, missing or unusable; the error says what to give.
    """
    _refuse_those_of_brokers(given)
    values = known(given, STORE_OPTIONS)
    text = required(values, "topic", "a topic, or several separated by commas")
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise bad("topic", text, "a topic, or several separated by commas")
    start, end = bounds(values, TopicChoice(topics), "batch")
    root = _local("storePath", required(values, "storePath", "the broker's storePathRootDir"))
    logs = values.get("commitLogPath", f"{root.rstrip('/')}/commitlog").split(",")
    return StoreOptions(
        store_path=root,
        commit_log_paths=tuple(_local("commitLogPath", log.strip()) for log in logs),
        broker_name=values.get("brokerName", "").strip() or DEFAULT_BROKER_NAME,
        topics=topics,
        start=start,
        end=end,
        tags=values.get("tags", "").strip() or "*",
        min_partitions=number(values, "minPartitions", None, 1),
        fail_on_data_loss=flag(values, "failOnDataLoss", True),
        check_body_crc=flag(values, "checkBodyCrc", True),
        skip_damaged=flag(values, "skipDamaged", False),
    )


def _refuse_those_of_brokers(given: Mapping[str, str]) -> None:
    """Refuse an option that exists for other reads, and say why it has no use here."""
    ours = {name.lower() for name in STORE_OPTIONS}
    theirs = {name.lower(): name for name in (*READ_OPTIONS, *CONNECT_OPTIONS)}
    for name in given:
        if name.lower() in theirs.keys() - ours:
            raise ConfigurationError(
                f"option {theirs[name.lower()]!r} is for reading through brokers; with option "
                "'storePath' files are read and no broker is asked: leave one of the two out",
                option=name,
            )


def _local(name: str, path: str) -> str:
    """Return the path of a directory given as a path or as a ``file:`` URI."""
    parts = urlsplit(path)
    if parts.scheme == "file":
        path = unquote(parts.path)
    elif "://" in path:
        path = ""
    if not path:
        raise bad(name, parts.geturl(), "the path of a directory that every executor can open")
    return path
