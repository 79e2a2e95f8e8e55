"""Pure: the settings of every kind of consumer, and their checks in upstream's order."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Self

from rocketstream import limits
from rocketstream.checks import check_range
from rocketstream.client.consumer.allocate import (
    AllocateMessageQueueAveragely,
    AllocateMessageQueueStrategy,
)
from rocketstream.client.consumer.process_queue import MIB, Thresholds
from rocketstream.errors import ConfigurationError
from rocketstream.model import ConsumeFromWhere, MessageModel
from rocketstream.protocol.bodies import LiteOffsetData
from rocketstream.protocol.names import (
    DEFAULT_CONSUMER_GROUP,
    check_consumer_group,
    check_own_group,
    check_topic,
)
from rocketstream.settings import check_values, refused_value, setting

TIMESTAMP_FORMAT = "%Y%m%d%H%M%S"
HALF_AN_HOUR_AGO = "half an hour before the consumer is made"
OFF = -1
"""Value of a per-topic threshold that is not used."""


_THREADS_MIN = 20


@dataclass(frozen=True, slots=True)
class PushConsumerSettings:
    """Settings of a push consumer (C-21 to C-43); names are upstream's, with their units.

    Attributes:
        consumer_group: 1 to 248 of percent sign, bar, letters, digits, underscore, hyphen.
        message_model: CLUSTERING shares the messages, BROADCASTING gives every member all.
        consume_from_where: where a queue without a stored offset begins; LAST_OFFSET is its end
            only once its first messages are old, else its beginning: ``Admin.groups.begin``.
        consume_timestamp: where TIMESTAMP begins, ``yyyyMMddHHmmss`` local time.
        allocate_message_queue_strategy: how the members divide the queues; any object with
            ``allocate(consumer_group, current_cid, mq_all, cid_all)``.
        consume_thread_min: if it is changed, it must not be above the maximum; else without effect,
            as threads are started when they help (C-584).
        consume_thread_max: most listener calls at once.
        consume_concurrently_max_span: offsets between the oldest and newest message held of a
            queue, beyond which it is not pulled.
        pull_threshold_for_queue: messages held of a queue, beyond which it is not pulled.
        pull_threshold_for_topic: shared by all queues instead, -1 for off (C-183).
        pull_threshold_size_for_queue: the same in MiB of bodies.
        pull_threshold_size_for_topic: the same in MiB, shared by all queues, -1 for off.
        pull_interval_ms: pause between pulls that found something.
        consume_message_batch_max_size: most messages of one listener call.
        pull_batch_size: most messages of one pull.
        adjust_thread_pool_nums_threshold: without effect, as in the original (C-131).
        post_subscription_when_pull: send the expression with each pull.
        max_reconsume_times: retries before the dead-letter topic; -1 is 16, in order no end.
        suspend_current_queue_time_ms: pause of a queue whose orderly listener asks for one; less
            than 10 counts as 10, more than 30,000 as 30,000.
        consume_timeout_minutes: age at which a message still in its listener is sent back.
        await_termination_ms_when_shutdown: how long ``shutdown`` waits for running listeners.
        local_retry_delay_ms: pause before messages whose send-back failed are consumed again.
        check_crc: compare bodies, and records that have one of their own, with their CRC; a damaged
            message is pulled again until it is whole, the queue stands there, and the log says so.
        send_back_cause: write what a listener raised, and where, into what is sent back, so that
            dead letters can be told apart by cause. Failed messages are then sent anew, bodies and
            all, where otherwise the broker copies them; the exception's text goes with them.
    """

    consumer_group: str
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    consume_timestamp: str = setting("19700101000000", shown=HALF_AN_HOUR_AGO)
    allocate_message_queue_strategy: AllocateMessageQueueStrategy = field(
        default_factory=AllocateMessageQueueAveragely
    )
    consume_thread_min: int = setting(_THREADS_MIN, low=1, high=1000, unit="threads")
    consume_thread_max: int = setting(20, low=1, high=1000, unit="threads")
    consume_concurrently_max_span: int = setting(
        2_000, low=1, high=65_535, unit="offsets", changeable=True
    )
    pull_threshold_for_queue: int = setting(
        1_000, low=1, high=65_535, unit="messages", changeable=True
    )
    pull_threshold_for_topic: int = setting(
        OFF, low=1, high=6_553_500, also=OFF, unit="messages", changeable=True
    )
    pull_threshold_size_for_queue: int = setting(100, low=1, high=1024, unit="MiB", changeable=True)
    pull_threshold_size_for_topic: int = setting(
        OFF, low=1, high=102_400, also=OFF, unit="MiB", changeable=True
    )
    pull_interval_ms: int = setting(0, low=0, high=65_535, changeable=True)
    consume_message_batch_max_size: int = setting(1, low=1, high=1024, unit="messages")
    pull_batch_size: int = setting(32, low=1, high=1024, unit="messages", changeable=True)
    adjust_thread_pool_nums_threshold: int = 100_000
    post_subscription_when_pull: bool = setting(False, changeable=True)
    max_reconsume_times: int = setting(
        -1, low=0, high=limits.RECONSUME_TIMES_MAX, also=-1, unit="retries"
    )
    suspend_current_queue_time_ms: int = setting(1_000, java="suspendCurrentQueueTimeMillis")
    consume_timeout_minutes: float = setting(15, above=0)
    await_termination_ms_when_shutdown: int = setting(
        30_000, low=0, java="awaitTerminationMillisWhenShutdown"
    )
    local_retry_delay_ms: int = setting(5_000, low=0, java="")
    check_crc: bool = setting(True, java="", changeable=True)
    send_back_cause: bool = setting(False, java="")

    def check(self, check_listener: Callable[[], object] = lambda: None) -> None:
        """Check every value; the first wrong one in upstream's order is reported.

        Args:
            check_listener: checks the listener when its turn comes.

        Raises:
            ConfigurationError: a value that cannot be used; the text names the setting, what is
                accepted and what was given.
        """
        check_consumer_group(self.consumer_group)
        check_own_group(self.consumer_group, DEFAULT_CONSUMER_GROUP, java="consumerGroup")
        check_values(self, "message_model", "consume_from_where", "consume_timestamp")
        self.consume_timestamp_ms()
        check_strategy(self)
        check_listener()
        check_values(self, "consume_thread_min", "consume_thread_max")
        self._check_threads()
        check_values(self)

    def _check_threads(self) -> None:
        # The usual minimum is nobody's wish: ``consume_thread_max=8`` alone says all there is.
        wished = self.consume_thread_min != _THREADS_MIN
        if wished and self.consume_thread_min > self.consume_thread_max:
            raise ConfigurationError(
                f"consume_thread_min ({self.consume_thread_min}) is larger than "
                f"consume_thread_max ({self.consume_thread_max})"
            )

    def consume_timestamp_ms(self) -> int:
        """Return where TIMESTAMP begins, ms since 1970 (C-24).

        Raises:
            ConfigurationError: not ``yyyyMMddHHmmss``.
        """
        return timestamp_ms(self)

    def thresholds(self) -> Thresholds:
        """Return the flow-control bounds of one queue."""
        return Thresholds(
            self.pull_threshold_for_queue,
            self.pull_threshold_size_for_queue,
            self.consume_concurrently_max_span,
        )


def timestamp_ms(settings: Any) -> int:
    """Return where TIMESTAMP begins for a consumer, ms since 1970 (C-24, C-73).

    Raises:
        ConfigurationError: not ``yyyyMMddHHmmss``.
    """
    text = settings.consume_timestamp
    try:
        if len(text) != 14:
            raise ValueError("not 14 digits")
        parsed = datetime.strptime(text, TIMESTAMP_FORMAT)
    except (TypeError, ValueError) as error:
        raise refused_value(
            settings, "consume_timestamp", "a local time as yyyyMMddHHmmss"
        ) from error
    return int(parsed.timestamp() * 1000)


def check_strategy(settings: Any) -> None:
    """Check that queues can be divided by a consumer's strategy.

    Raises:
        ConfigurationError: null, or without a method ``allocate``.
    """
    if not callable(getattr(settings.allocate_message_queue_strategy, "allocate", None)):
        raise refused_value(
            settings,
            "allocate_message_queue_strategy",
            "an object with a method allocate(consumer_group, current_cid, mq_all, cid_all)",
        )


AUTO_COMMIT_INTERVAL_MS_MIN = 1_000
BROKER_BATCH = 32
"""Most messages of an answer to a pull, unless brokers are configured otherwise."""
LITE_BATCH = 256
"""Messages a lite pull asks for where brokers may give more: beside it a pull's own cost is little
(half the processor time a message, and 1,024 bring nothing more)."""
COLUMNS_BATCH = 1_024
"""The same while record batches are polled: theirs is even less."""


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
        check_crc: compare bodies, and records that have one of their own, with their CRC; pulling a
            damaged message is an error.
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
    max_reconsume_times: int = setting(16, low=0, high=limits.RECONSUME_TIMES_MAX, unit="retries")
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
        consume_from_where: where a queue without a stored offset begins; LAST_OFFSET is its end
            only once its first messages are old, else its beginning: ``Admin.groups.begin``.
        consume_timestamp: where TIMESTAMP begins, ``yyyyMMddHHmmss`` local time.
        message_queue_listener: told of the queues of subscribed topics when they are divided anew.
        offset_store: where offsets are kept; None keeps them at the brokers when clustering, in
            ``~/.rocketmq_offsets`` when broadcasting.
        unit_mode: the same as of ``ClientConfig``.
        check_crc: compare bodies, and records that have one of their own, with their CRC; a damaged
            message is pulled again until it is whole.
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

    def wire_batch_size(self, *, in_columns: bool = False) -> int:
        """Messages asked for in one pull; polls hand them out ``pull_batch_size`` at a time."""
        most = min(COLUMNS_BATCH if in_columns else LITE_BATCH, self.pull_threshold_for_queue)
        return max(self.pull_batch_size, BROKER_BATCH, most)

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


_POLICY, PLACE, _TAIL = "POLICY", "OFFSET", "TAIL_N"


@dataclass(frozen=True, slots=True)
class OffsetOption:
    """Where a group goes on in a lite topic it subscribes; Java's class of the same name.

    Each moves the group when it is subscribed, whatever it consumed before. Without any it goes on
    where it was, and where it never was it begins at the oldest message.

    Attributes:
        kind: POLICY, OFFSET or TAIL_N.
        value: of a policy 0, 1 or 2; else an offset, or a number of messages.
    """

    LAST_OFFSET: ClassVar[OffsetOption]
    """Where it was; where it never was, the broker chooses when something arrives: at its end."""
    MIN_OFFSET: ClassVar[OffsetOption]
    """The oldest message."""
    MAX_OFFSET: ClassVar[OffsetOption]
    """Behind the newest message."""

    kind: str
    value: int

    @classmethod
    def of_offset(cls, offset: int) -> Self:
        """Go on at an offset of the lite topic.

        Raises:
            ConfigurationError: not a whole number from 0 on.
        """
        check_range("offset", offset, 0)
        return cls(PLACE, offset)

    @classmethod
    def of_tail_n(cls, messages: int) -> Self:
        """Go back so many messages, where the group was before; else as LAST_OFFSET.

        Raises:
            ConfigurationError: not a whole number from 0 on.
        """
        check_range("messages", messages, 0)
        return cls(_TAIL, messages)

    def data(self) -> LiteOffsetData:
        """Return what is sent to a broker."""
        return LiteOffsetData(self.kind, self.value)


OffsetOption.LAST_OFFSET = OffsetOption(_POLICY, 0)
OffsetOption.MIN_OFFSET = OffsetOption(_POLICY, 1)
OffsetOption.MAX_OFFSET = OffsetOption(_POLICY, 2)


@dataclass(frozen=True, slots=True)
class LitePushConsumerSettings:
    """Settings of a consumer of lite topics; where Java's has one of a kind, it is named so.

    Attributes:
        consumer_group: 1 to 248 of percent sign, bar, letters, digits, underscore, hyphen.
        consume_thread_max: most listener calls at once, each for another lite topic.
        consume_message_batch_max_size: most messages of one listener call, all of one lite topic.
        pull_batch_size: most messages of one answer; brokers give 32 at most.
        max_cache_message_count: messages received and not finished, beyond which none is asked for.
        max_cache_message_size: the same in MiB of bodies.
        invisible_ms: how long a received message is hidden from the other members. It is renewed
            while this consumer lives; after it died the message comes again within this time.
        suspend_ms: how long what a listener failed stays hidden, with what follows it in its lite
            topic, before it comes again.
        poll_ms: how long a broker holds a request that finds nothing.
        consume_timeout_minutes: a listener call that takes longer is no longer waited for: its
            messages are hidden no more, and may come to another member.
        await_termination_ms_when_shutdown: how long ``shutdown`` waits for running listeners.
    """

    consumer_group: str
    consume_thread_max: int = setting(
        20, low=1, high=1000, unit="threads", java="consumptionThreadCount"
    )
    consume_message_batch_max_size: int = setting(1, low=1, high=32, unit="messages")
    pull_batch_size: int = setting(
        32, low=1, high=limits.LITE_POP_MESSAGES_MAX, unit="messages", java=""
    )
    max_cache_message_count: int = setting(1_024, low=32, high=65_535, unit="messages")
    max_cache_message_size: int = setting(
        64, low=1, high=1024, unit="MiB", java="maxCacheMessageSizeInBytes"
    )
    invisible_ms: int = setting(60_000, low=10_000, high=43_200_000, java="invisibleDuration")
    suspend_ms: int = setting(1_000, low=10, high=43_200_000, java="")
    poll_ms: int = setting(15_000, low=1_000, high=60_000, java="")
    consume_timeout_minutes: float = setting(15, above=0)
    await_termination_ms_when_shutdown: int = setting(30_000, low=0, java="")

    def check(self) -> None:
        """Check every value.

        Raises:
            ConfigurationError: a value that cannot be used; the text names the setting, what is
                accepted and what was given.
        """
        check_consumer_group(self.consumer_group)
        check_own_group(self.consumer_group, DEFAULT_CONSUMER_GROUP, java="consumerGroup")
        check_values(self)
