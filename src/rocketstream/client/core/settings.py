"""Settings of the push consumer, checked in upstream's order with upstream's texts.

Law: pure values.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from rocketstream.client.core.allocate import (
    AllocateMessageQueueAveragely,
    AllocateMessageQueueStrategy,
)
from rocketstream.client.core.flow_control import Thresholds
from rocketstream.client.core.kinds import check_kinds
from rocketstream.errors import ConfigurationError
from rocketstream.model import ConsumeFromWhere, MessageModel
from rocketstream.protocol.names import (
    DEFAULT_CONSUMER_GROUP,
    check_consumer_group,
)

TIMESTAMP_FORMAT = "%Y%m%d%H%M%S"
OFF = -1
"""Value of a per-topic threshold that is not used."""


@dataclass(frozen=True, slots=True)
class PushConsumerSettings:
    """Settings of a push consumer (C-21 to C-43); names are upstream's, with their units.

    Attributes:
        consumer_group: 1 to 248 of percent sign, bar, letters, digits, underscore, hyphen.
        message_model: CLUSTERING shares the messages, BROADCASTING gives every member all.
        consume_from_where: where a queue without a stored offset begins.
        consume_timestamp: where TIMESTAMP begins, ``yyyyMMddHHmmss`` local time.
        allocate_message_queue_strategy: how the members divide the queues.
        consume_thread_min: only checked; threads are started when they help (C-584).
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
        suspend_current_queue_time_ms: pause of a queue whose orderly listener asks for one.
        consume_timeout_minutes: age at which a message still in its listener is sent back.
        await_termination_ms_when_shutdown: how long ``shutdown`` waits for running listeners.
        local_retry_delay_ms: pause before messages whose send-back failed are consumed again.
        check_crc: compare bodies with their CRC; a damaged message is pulled again until it is
            whole, the queue stands there, and the log says so.
        send_back_cause: write what a listener raised, and where, into what is sent back, so that
            dead letters can be told apart by cause. Failed messages are then sent anew, bodies and
            all, where otherwise the broker copies them; the exception's text goes with them.
    """

    consumer_group: str
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    consume_timestamp: str = "19700101000000"
    allocate_message_queue_strategy: AllocateMessageQueueStrategy = field(
        default_factory=AllocateMessageQueueAveragely
    )
    consume_thread_min: int = 20
    consume_thread_max: int = 20
    consume_concurrently_max_span: int = 2_000
    pull_threshold_for_queue: int = 1_000
    pull_threshold_for_topic: int = OFF
    pull_threshold_size_for_queue: int = 100
    pull_threshold_size_for_topic: int = OFF
    pull_interval_ms: int = 0
    consume_message_batch_max_size: int = 1
    pull_batch_size: int = 32
    adjust_thread_pool_nums_threshold: int = 100_000
    post_subscription_when_pull: bool = False
    max_reconsume_times: int = -1
    suspend_current_queue_time_ms: int = 1_000
    consume_timeout_minutes: float = 15
    await_termination_ms_when_shutdown: int = 30_000
    local_retry_delay_ms: int = 5_000
    check_crc: bool = True
    send_back_cause: bool = False

    def check(self, check_listener: Callable[[], object] = lambda: None) -> None:
        """Check every value; the first wrong one in upstream's order is reported.

        Args:
            check_listener: checks the listener when its turn comes.

        Raises:
            ConfigurationError: a value out of its range; the text begins as upstream's does.
        """
        check_consumer_group(self.consumer_group)
        if self.consumer_group == DEFAULT_CONSUMER_GROUP:
            raise ConfigurationError(
                f"consumerGroup can not equal {DEFAULT_CONSUMER_GROUP}, please specify another one."
            )
        _is_a("messageModel", self.message_model, MessageModel)
        _is_a("consumeFromWhere", self.consume_from_where, ConsumeFromWhere)
        self.consume_timestamp_ms()
        check_strategy(self.allocate_message_queue_strategy)
        check_listener()
        for name, attribute, low, high in _RANGES:
            value = getattr(self, attribute)
            if not (value == OFF and attribute.endswith("_for_topic")):
                _in_range(name, value, low, high)
            if attribute == "consume_thread_max":
                self._check_threads()
        check_kinds(self)
        if self.max_reconsume_times < OFF:
            raise ConfigurationError(
                "maxReconsumeTimes must be 0 or more, or -1 for the default, "
                f"not {self.max_reconsume_times!r}"
            )
        if self.consume_timeout_minutes <= 0:
            raise ConfigurationError(
                f"consumeTimeout must be more than 0 minutes, not {self.consume_timeout_minutes!r}"
            )
        for name in ("await_termination_ms_when_shutdown", "local_retry_delay_ms"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name} must be 0 or more, not {getattr(self, name)!r}")

    def _check_threads(self) -> None:
        if self.consume_thread_min > self.consume_thread_max:
            raise ConfigurationError(
                f"consumeThreadMin ({self.consume_thread_min}) is larger than "
                f"consumeThreadMax ({self.consume_thread_max})"
            )

    def consume_timestamp_ms(self) -> int:
        """Return where TIMESTAMP begins, ms since 1970 (C-24).

        Raises:
            ConfigurationError: not ``yyyyMMddHHmmss``.
        """
        text = self.consume_timestamp
        try:
            if len(text) != 14:
                raise ValueError("not 14 digits")
            parsed = datetime.strptime(text, TIMESTAMP_FORMAT)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                "consumeTimestamp is invalid, the valid format is yyyyMMddHHmmss,"
                f"but received {text}"
            ) from error
        return int(parsed.timestamp() * 1000)

    def thresholds(self) -> Thresholds:
        """Return the flow-control bounds of one queue."""
        return Thresholds(
            self.pull_threshold_for_queue,
            self.pull_threshold_size_for_queue,
            self.consume_concurrently_max_span,
        )


_RANGES = (
    ("consumeThreadMin", "consume_thread_min", 1, 1000),
    ("consumeThreadMax", "consume_thread_max", 1, 1000),
    ("consumeConcurrentlyMaxSpan", "consume_concurrently_max_span", 1, 65_535),
    ("pullThresholdForQueue", "pull_threshold_for_queue", 1, 65_535),
    ("pullThresholdForTopic", "pull_threshold_for_topic", 1, 6_553_500),
    ("pullThresholdSizeForQueue", "pull_threshold_size_for_queue", 1, 1024),
    ("pullThresholdSizeForTopic", "pull_threshold_size_for_topic", 1, 102_400),
    ("pullInterval", "pull_interval_ms", 0, 65_535),
    ("consumeMessageBatchMaxSize", "consume_message_batch_max_size", 1, 1024),
    ("pullBatchSize", "pull_batch_size", 1, 1024),
)


def _is_a(name: str, value: object, kind: type[enum.Enum]) -> None:
    if value is None:
        raise ConfigurationError(f"{name} is null")
    if not isinstance(value, kind):
        accepted = ", ".join(each.name for each in kind)
        raise ConfigurationError(f"{name} must be a {kind.__name__} ({accepted}), not {value!r}")


def check_strategy(strategy: object) -> None:
    """Check that queues can be divided by it.

    Raises:
        ConfigurationError: null, or without a method ``allocate``.
    """
    if strategy is None:
        raise ConfigurationError("allocateMessageQueueStrategy is null")
    if not callable(getattr(strategy, "allocate", None)):
        raise ConfigurationError(
            "allocateMessageQueueStrategy must have a method "
            f"allocate(consumer_group, current_cid, mq_all, cid_all); {strategy!r} has none"
        )


def _in_range(name: str, value: int, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise ConfigurationError(
            f"{name} Out of range [{low}, {high}], it is {value!r}", value=value
        )
