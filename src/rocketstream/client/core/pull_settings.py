"""Settings of the pull and the lite pull consumer, and their checks.

Law: pure values (C-48 to C-76).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field
from typing import Any

from rocketstream.client.core.allocate import (
    AllocateMessageQueueAveragely,
    AllocateMessageQueueStrategy,
)
from rocketstream.client.core.flow_control import MIB
from rocketstream.client.core.kinds import check_own_group
from rocketstream.client.core.settings import HALF_AN_HOUR_AGO, check_strategy, timestamp_ms
from rocketstream.late import dataclass
from rocketstream.model import ConsumeFromWhere, MessageModel
from rocketstream.protocol.names import DEFAULT_CONSUMER_GROUP, check_consumer_group, check_topic
from rocketstream.settings import check_values, refused_value, setting

AUTO_COMMIT_INTERVAL_MS_MIN = 1_000
BROKER_BATCH = 32
"""What brokers answer a pull with at most, unless they are configured otherwise."""


@dataclass(frozen=True, slots=True)
class PullConsumerSettings:
    """Settings of a pull consumer (C-48 to C-58); names and defaults are upstream's.

    Attributes:
        consumer_group: the group; 1 to 248 of percent sign, bar, letters, digits, underscore,
            hyphen.
        broker_suspend_max_time_ms: how long a broker holds a pull that finds nothing.
        consumer_timeout_ms_when_suspend: how long an answer to such a pull is waited for; not less.
        consumer_pull_timeout_ms: how long an answer to any other pull is waited for.
        message_model: CLUSTERING keeps offsets at the brokers and shares queues in a group;
            BROADCASTING keeps them on this machine.
        allocate_message_queue_strategy: how the members divide the queues; any object with
            ``allocate(consumer_group, current_cid, mq_all, cid_all)``.
        register_topics: topics whose queues the members divide, and that heartbeats report.
        message_queue_listener: told of the queues of registered topics when they are divided anew.
        max_reconsume_times: retries before the dead-letter topic of what is sent back.
        unit_mode: the same as of ``ClientConfig``.
        offset_store: where offsets are kept; None keeps them at the brokers when clustering, in
            ``~/.rocketmq_offsets`` when broadcasting.
        check_crc: compare bodies with their CRC; pulling a damaged message is an error.
    """

    consumer_group: str
    broker_suspend_max_time_ms: int = setting(20_000, low=1, java="brokerSuspendMaxTimeMillis")
    consumer_timeout_ms_when_suspend: int = setting(
        30_000, low=1, java="consumerTimeoutMillisWhenSuspend"
    )
    consumer_pull_timeout_ms: int = setting(10_000, low=1, java="consumerPullTimeoutMillis")
    message_model: MessageModel = MessageModel.CLUSTERING
    allocate_message_queue_strategy: AllocateMessageQueueStrategy = field(
        default_factory=AllocateMessageQueueAveragely
    )
    register_topics: Collection[str] = setting((), typed="Names")
    message_queue_listener: Any = setting(None, typed="QueueListener | None")
    max_reconsume_times: int = setting(16, low=0, unit="retries")
    unit_mode: bool = False
    offset_store: Any = setting(None, typed="OffsetStore | None")
    check_crc: bool = setting(True, java="")

    def check(self) -> None:
        """Check every value.

        Raises:
            ConfigurationError: a value that cannot be used; the text names setting and value.
        """
        _check_common(self)
        for topic in self.register_topics:
            check_topic(topic)


@dataclass(frozen=True, slots=True)
class LitePullConsumerSettings:
    """Settings of a lite pull consumer (C-59 to C-76); names and defaults are upstream's.

    Attributes:
        consumer_group: the group; 1 to 248 of percent sign, bar, letters, digits, underscore,
            hyphen.
        broker_suspend_max_time_ms: how long a broker holds a pull that finds nothing.
        consumer_timeout_ms_when_suspend: how long an answer to such a pull is waited for; not less.
        consumer_pull_timeout_ms: how long an answer to any other pull is waited for.
        message_model: CLUSTERING keeps offsets at the brokers and shares queues in a group;
            BROADCASTING keeps them on this machine.
        allocate_message_queue_strategy: how the members divide the queues; any object with
            ``allocate(consumer_group, current_cid, mq_all, cid_all)``.
        auto_commit: store the offsets of what was handed out and came back; without it only
            ``commit`` and ``commit_sync`` do.
        auto_commit_interval_ms: how often that is done.
        pull_thread_nums: without effect: no queue occupies a thread.
        pull_batch_size: most messages of one poll.
        pull_threshold_for_all: messages held of all queues, beyond which none is pulled.
        pull_threshold_for_queue: messages held of a queue, beyond which it is not pulled.
        pull_threshold_size_for_queue: the same in MiB of bodies.
        consume_max_span: offsets between the oldest and newest message held of a queue, beyond
            which it is not pulled.
        poll_timeout_ms: how long ``poll`` waits for messages unless told otherwise.
        topic_metadata_check_interval_ms: how often topics with listeners are checked for changes.
        consume_from_where: where a queue without a stored offset begins.
        consume_timestamp: where TIMESTAMP begins, ``yyyyMMddHHmmss`` local time.
        message_queue_listener: told of the queues of subscribed topics when they are divided anew.
        offset_store: where offsets are kept; None keeps them at the brokers when clustering, in
            ``~/.rocketmq_offsets`` when broadcasting.
        unit_mode: the same as of ``ClientConfig``.
        check_crc: compare bodies with their CRC; a damaged message is pulled again until it is
            whole.
    """

    consumer_group: str
    broker_suspend_max_time_ms: int = setting(20_000, low=1, java="brokerSuspendMaxTimeMillis")
    consumer_timeout_ms_when_suspend: int = setting(
        30_000, low=1, java="consumerTimeoutMillisWhenSuspend"
    )
    consumer_pull_timeout_ms: int = setting(10_000, low=1, java="consumerPullTimeoutMillis")
    message_model: MessageModel = MessageModel.CLUSTERING
    allocate_message_queue_strategy: AllocateMessageQueueStrategy = field(
        default_factory=AllocateMessageQueueAveragely
    )
    auto_commit: bool = True
    auto_commit_interval_ms: int = setting(
        5_000, low=AUTO_COMMIT_INTERVAL_MS_MIN, java="autoCommitIntervalMillis"
    )
    pull_thread_nums: int = setting(20, low=1, unit="threads")
    pull_batch_size: int = setting(10, low=1, unit="messages")
    pull_threshold_for_all: int = setting(10_000, low=1, unit="messages")
    pull_threshold_for_queue: int = setting(1_000, low=1, unit="messages")
    pull_threshold_size_for_queue: int = setting(100, low=1, unit="MiB")
    consume_max_span: int = setting(2_000, low=1, unit="offsets")
    poll_timeout_ms: int = setting(5_000, low=0, java="pollTimeoutMillis")
    topic_metadata_check_interval_ms: int = setting(
        30_000, low=1, java="topicMetadataCheckIntervalMillis"
    )
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    consume_timestamp: str = setting("19700101000000", shown=HALF_AN_HOUR_AGO)
    message_queue_listener: Any = setting(None, typed="QueueListener | None")
    offset_store: Any = setting(None, typed="OffsetStore | None")
    unit_mode: bool = False
    check_crc: bool = setting(True, java="")

    def check(self) -> None:
        """Check every value.

        Raises:
            ConfigurationError: a value that cannot be used; the text names setting and value.
        """
        _check_common(self)
        self.consume_timestamp_ms()

    def consume_timestamp_ms(self) -> int:
        """Return where TIMESTAMP begins, ms since 1970.

        Raises:
            ConfigurationError: not ``yyyyMMddHHmmss``.
        """
        return timestamp_ms(self)

    @property
    def wire_batch_size(self) -> int:
        """Messages asked for in one pull; polls hand them out ``pull_batch_size`` at a time."""
        return max(self.pull_batch_size, BROKER_BATCH)

    @property
    def bytes_for_queue_max(self) -> int:
        """Bytes of one queue beyond which it is not pulled."""
        return (self.pull_threshold_size_for_queue + 1) * MIB - 1


def _check_common(settings: PullConsumerSettings | LitePullConsumerSettings) -> None:
    check_consumer_group(settings.consumer_group)
    check_own_group(settings.consumer_group, DEFAULT_CONSUMER_GROUP, java="consumerGroup")
    check_strategy(settings)
    check_values(settings)
    if settings.consumer_timeout_ms_when_suspend < settings.broker_suspend_max_time_ms:
        raise refused_value(
            settings,
            "consumer_timeout_ms_when_suspend",
            f"at least broker_suspend_max_time_ms ({settings.broker_suspend_max_time_ms})",
        )
