"""Settings of the pull and the lite pull consumer, checked with upstream's texts.

Law: pure values (C-48 to C-76).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, TypeVar

from rocketstream.client.core.allocate import (
    AllocateMessageQueueAveragely,
    AllocateMessageQueueStrategy,
)
from rocketstream.client.core.flow_control import MIB
from rocketstream.client.core.kinds import check_kinds
from rocketstream.client.core.settings import TIMESTAMP_FORMAT, check_strategy
from rocketstream.errors import ConfigurationError
from rocketstream.model import ConsumeFromWhere, MessageModel
from rocketstream.protocol.names import DEFAULT_CONSUMER_GROUP, check_consumer_group, check_topic

AUTO_COMMIT_INTERVAL_MS_MIN = 1_000
BROKER_BATCH = 32
"""What brokers answer a pull with at most, unless they are configured otherwise."""

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class PullConsumerSettings:
    """Settings of a pull consumer (C-48 to C-58); names and defaults are upstream's."""

    consumer_group: str
    broker_suspend_max_time_ms: int = 20_000
    consumer_timeout_ms_when_suspend: int = 30_000
    consumer_pull_timeout_ms: int = 10_000
    message_model: MessageModel = MessageModel.CLUSTERING
    allocate_message_queue_strategy: AllocateMessageQueueStrategy = field(
        default_factory=AllocateMessageQueueAveragely
    )
    register_topics: Collection[str] = ()
    message_queue_listener: Any = None
    max_reconsume_times: int = 16
    unit_mode: bool = False
    offset_store: Any = None
    check_crc: bool = True

    def check(self) -> None:
        """Check every value.

        Raises:
            ConfigurationError: a value out of its range; the text begins as upstream's does.
        """
        _check_common(self)
        for topic in self.register_topics:
            check_topic(topic)
        if not isinstance(self.max_reconsume_times, int) or self.max_reconsume_times < 0:
            raise ConfigurationError(
                f"maxReconsumeTimes must be 0 or more, not {self.max_reconsume_times!r}"
            )


@dataclass(frozen=True, slots=True)
class LitePullConsumerSettings:
    """Settings of a lite pull consumer (C-59 to C-76); names and defaults are upstream's."""

    consumer_group: str
    broker_suspend_max_time_ms: int = 20_000
    consumer_timeout_ms_when_suspend: int = 30_000
    consumer_pull_timeout_ms: int = 10_000
    message_model: MessageModel = MessageModel.CLUSTERING
    allocate_message_queue_strategy: AllocateMessageQueueStrategy = field(
        default_factory=AllocateMessageQueueAveragely
    )
    auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    pull_thread_nums: int = 20
    pull_batch_size: int = 10
    pull_threshold_for_all: int = 10_000
    pull_threshold_for_queue: int = 1_000
    pull_threshold_size_for_queue: int = 100
    consume_max_span: int = 2_000
    poll_timeout_ms: int = 5_000
    topic_metadata_check_interval_ms: int = 30_000
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    consume_timestamp: str = "19700101000000"
    message_queue_listener: Any = None
    offset_store: Any = None
    unit_mode: bool = False
    check_crc: bool = True

    def check(self) -> None:
        """Check every value.

        Raises:
            ConfigurationError: a value out of its range; the text begins as upstream's does.
        """
        _check_common(self)
        if not isinstance(self.consume_from_where, ConsumeFromWhere):
            raise ConfigurationError(
                f"Invalid ConsumeFromWhere Value: {self.consume_from_where!r}; accepted are "
                "LAST_OFFSET, FIRST_OFFSET and TIMESTAMP"
            )
        self.consume_timestamp_ms()
        if (
            not isinstance(self.auto_commit_interval_ms, int)
            or self.auto_commit_interval_ms < AUTO_COMMIT_INTERVAL_MS_MIN
        ):
            raise ConfigurationError(
                f"autoCommitIntervalMillis must be at least {AUTO_COMMIT_INTERVAL_MS_MIN}, "
                f"not {self.auto_commit_interval_ms!r}"
            )
        for name, attribute in _POSITIVE:
            _check_positive(name, getattr(self, attribute))
        if not isinstance(self.poll_timeout_ms, int) or self.poll_timeout_ms < 0:
            raise ConfigurationError(
                f"Timeout must not be negative: poll_timeout_ms={self.poll_timeout_ms!r}"
            )

    def consume_timestamp_ms(self) -> int:
        """Return where TIMESTAMP begins, ms since 1970.

        Raises:
            ConfigurationError: not ``yyyyMMddHHmmss``.
        """
        text = self.consume_timestamp
        try:
            if len(text) != 14:
                raise ValueError("not 14 digits")
            return int(datetime.strptime(text, TIMESTAMP_FORMAT).timestamp() * 1000)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                "consumeTimestamp is invalid, the valid format is yyyyMMddHHmmss,"
                f"but received {text}"
            ) from error

    @property
    def wire_batch_size(self) -> int:
        """Messages asked for in one pull; polls hand them out ``pull_batch_size`` at a time."""
        return max(self.pull_batch_size, BROKER_BATCH)

    @property
    def bytes_for_queue_max(self) -> int:
        """Bytes of one queue beyond which it is not pulled."""
        return (self.pull_threshold_size_for_queue + 1) * MIB - 1


_POSITIVE = (
    ("pullThreadNums", "pull_thread_nums"),
    ("pullBatchSize", "pull_batch_size"),
    ("pullThresholdForAll", "pull_threshold_for_all"),
    ("pullThresholdForQueue", "pull_threshold_for_queue"),
    ("pullThresholdSizeForQueue", "pull_threshold_size_for_queue"),
    ("consumeMaxSpan", "consume_max_span"),
    ("topicMetadataCheckIntervalMillis", "topic_metadata_check_interval_ms"),
)


def settings_of(kind: type[S], name: str, group: str, given: dict[str, Any]) -> S:
    """Return the settings of a consumer from its keyword arguments.

    Raises:
        ConfigurationError: a name that is none; the text lists those that are.
    """
    known = {each.name for each in fields(kind)} - {"consumer_group"}  # type: ignore[arg-type]
    wrong = sorted(set(given) - known)
    if wrong:
        raise ConfigurationError(
            f"{name} has no setting {wrong[0]!r}; settings are {', '.join(sorted(known))}"
        )
    return kind(group, **given)  # type: ignore[call-arg]


def _check_common(settings: PullConsumerSettings | LitePullConsumerSettings) -> None:
    check_consumer_group(settings.consumer_group)
    if settings.consumer_group == DEFAULT_CONSUMER_GROUP:
        raise ConfigurationError(
            f"consumerGroup can not equal {DEFAULT_CONSUMER_GROUP}, please specify another one."
        )
    if not isinstance(settings.message_model, MessageModel):
        raise ConfigurationError("messageModel is null")
    check_strategy(settings.allocate_message_queue_strategy)
    _check_positive("brokerSuspendMaxTimeMillis", settings.broker_suspend_max_time_ms)
    _check_positive("consumerPullTimeoutMillis", settings.consumer_pull_timeout_ms)
    check_kinds(settings)
    if settings.consumer_timeout_ms_when_suspend < settings.broker_suspend_max_time_ms:
        raise ConfigurationError(
            "Long polling mode, the consumer consumerTimeoutMillisWhenSuspend must greater than "
            f"brokerSuspendMaxTimeMillis, they are {settings.consumer_timeout_ms_when_suspend!r} "
            f"and {settings.broker_suspend_max_time_ms!r}"
        )


def _check_positive(name: str, value: object) -> None:
    if type(value) is not int or value <= 0:
        raise ConfigurationError(f"{name} must be a positive number, not {value!r}")
