"""The options of a read of ``format("rocketmq")``.

Pure: text in, a frozen value out; every mistake is a ConfigurationError naming the option.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rocketstream.errors import ConfigurationError
from rocketstream.protocol import names
from rocketstream.spark.options.aliases import spelled_as_options
from rocketstream.spark.options.connecting import CONNECT_OPTIONS, ConnectOptions, connect_settings
from rocketstream.spark.options.parsing import bad, flag, known, number
from rocketstream.spark.options.positions import (
    END_OPTIONS,
    START_OPTIONS,
    STRATEGY_OPTION,
    Mode,
    Position,
    bounds,
)
from rocketstream.spark.options.topics import TOPIC_OPTIONS, TopicChoice, topic_choice
from rocketstream.spark.options.trigger_limits import LIMIT_OPTIONS, TriggerLimits, trigger_limits

READ_OPTIONS: Final = (
    *TOPIC_OPTIONS,
    "group",
    "commitOffsets",
    "groupMember",
    *START_OPTIONS,
    STRATEGY_OPTION,
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


@dataclass(frozen=True, slots=True)
class ReadOptions(ConnectOptions):
    """The options of a scan or stream.

    Attributes:
        choice: which topics and queues to read.
        group: the consumer group named to the brokers, None for none.
        commit_offsets: whether a stream's progress is reported as offsets of ``group``.
        group_member: client id of the live member this stream stands for, None for none.
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


def read_options(given: Mapping[str, str], mode: Mode) -> ReadOptions:
    """Parse the options of a read; names match in any case.

    Raises:
        ConfigurationError: an option is unknown, missing or unusable; the error says what to give.
    """
    values = known(spelled_as_options(given, READ_OPTIONS), READ_OPTIONS)
    connect = connect_settings(values)
    choice = topic_choice(values)
    start, end = bounds(values, choice, mode)
    return ReadOptions(
        **connect,
        choice=choice,
        group=_group(values),
        commit_offsets=_commit_offsets(values, mode),
        group_member=values.get("groupMember") or None,
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
