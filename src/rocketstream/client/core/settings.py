"""Settings of the push consumer, checked in upstream's order.

Law: pure values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from datetime import datetime
from typing import Any

from rocketstream.client.core.allocate import (
    AllocateMessageQueueAveragely,
    AllocateMessageQueueStrategy,
)
from rocketstream.client.core.flow_control import Thresholds
from rocketstream.client.core.kinds import check_own_group
from rocketstream.errors import ConfigurationError
from rocketstream.late import dataclass
from rocketstream.model import ConsumeFromWhere, MessageModel
from rocketstream.protocol.names import (
    DEFAULT_CONSUMER_GROUP,
    check_consumer_group,
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
        consume_from_where: where a queue without a stored offset begins.
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
    consume_timestamp: str = setting("19700101000000", shown=HALF_AN_HOUR_AGO)
    allocate_message_queue_strategy: AllocateMessageQueueStrategy = field(
        default_factory=AllocateMessageQueueAveragely
    )
    consume_thread_min: int = setting(_THREADS_MIN, low=1, high=1000, unit="threads")
    consume_thread_max: int = setting(20, low=1, high=1000, unit="threads")
    consume_concurrently_max_span: int = setting(2_000, low=1, high=65_535, unit="offsets")
    pull_threshold_for_queue: int = setting(1_000, low=1, high=65_535, unit="messages")
    pull_threshold_for_topic: int = setting(OFF, low=1, high=6_553_500, also=OFF, unit="messages")
    pull_threshold_size_for_queue: int = setting(100, low=1, high=1024, unit="MiB")
    pull_threshold_size_for_topic: int = setting(OFF, low=1, high=102_400, also=OFF, unit="MiB")
    pull_interval_ms: int = setting(0, low=0, high=65_535)
    consume_message_batch_max_size: int = setting(1, low=1, high=1024, unit="messages")
    pull_batch_size: int = setting(32, low=1, high=1024, unit="messages")
    adjust_thread_pool_nums_threshold: int = 100_000
    post_subscription_when_pull: bool = False
    max_reconsume_times: int = setting(-1, low=0, also=-1, unit="retries")
    suspend_current_queue_time_ms: int = setting(1_000, java="suspendCurrentQueueTimeMillis")
    consume_timeout_minutes: float = setting(15, above=0)
    await_termination_ms_when_shutdown: int = setting(
        30_000, low=0, java="awaitTerminationMillisWhenShutdown"
    )
    local_retry_delay_ms: int = setting(5_000, low=0, java="")
    check_crc: bool = setting(True, java="")
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
