"""Pure: settings of producers, and their checks."""

from __future__ import annotations

from dataclasses import dataclass

from rocketstream import limits
from rocketstream.errors import ConfigurationError
from rocketstream.protocol.codes import ResponseCode
from rocketstream.protocol.compression import COMPRESSION_TYPES, require_codec
from rocketstream.protocol.names import (
    AUTO_CREATE_TOPIC,
    DEFAULT_PRODUCER_GROUP,
    check_group,
    check_own_group,
    check_topic,
)
from rocketstream.protocol.sends import SendRequests
from rocketstream.settings import check_values, refused_value, setting

LATENCY_MAX_MS = (50, 100, 550, 1_800, 3_000, 5_000, 15_000)
NOT_AVAILABLE_DURATION_MS = (0, 0, 2_000, 5_000, 6_000, 10_000, 30_000)

RETRY_RESPONSE_CODES = frozenset(
    {
        int(ResponseCode.TOPIC_NOT_EXIST),
        int(ResponseCode.SERVICE_NOT_AVAILABLE),
        int(ResponseCode.SYSTEM_ERROR),
        int(ResponseCode.NO_PERMISSION),
        int(ResponseCode.NO_BUYER_ID),
        int(ResponseCode.NOT_IN_CURRENT_UNIT),
        int(ResponseCode.SYSTEM_BUSY),
        int(ResponseCode.GO_AWAY),
    }
)
"""Broker codes a send is tried again on (C-87; 2 and 1500 as 5.x does, C-601)."""


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """Settings of a producer (C-77 to C-89); names and defaults are upstream's.

    The table of ``latency_max`` and ``not_available_duration`` is 5.x's (C-603), and so is
    ``auto_batch`` with its bounds.

    Attributes:
        producer_group: the group; 1 to 255 of percent sign, bar, letters, digits, underscore,
            hyphen.
        create_topic_key: the topic whose settings one takes that a send creates.
        default_topic_queue_nums: queues of a topic that a send creates.
        send_msg_timeout_ms: how long a send may take, all its tries together.
        compress_msg_body_over_howmuch: bodies of at least so many bytes are compressed.
        compress_type: ZLIB, LZ4 or ZSTD; the latter two need ``rocketstream[compression]``, here
            and at those who read.
        compress_level: 0 is fastest, 9 smallest.
        retry_times_when_send_failed: further tries of a send that fails: of ``send`` and of
            ``send_many`` by key. A send to a queue, by selector or key has none.
        retry_times_when_send_async_failed: the same of ``send_async``, ``request``, ``auto_batch``,
            and all that ``rocketstream.aio`` sends.
        retry_another_broker_when_not_store_ok: try again too when a message is stored but not yet
            flushed or copied.
        max_message_size: most bytes of a body.
        retry_response_codes: answers of brokers after which a send is tried again.
        send_latency_fault_enable: avoid brokers that are slow or fail.
        latency_max: sends that take so long make a broker be avoided, ascending.
        not_available_duration: for how long, one entry for each of ``latency_max``.
        start_detector_enable: look whether avoided brokers can be reached again.
        detect_interval_ms: how often.
        detect_timeout_ms: how long an answer is waited for.
        unit_mode: the same as of ``ClientConfig``.
        topics: topics whose brokers are to know this producer from the start.
        busy_wait: ``send`` looks for its answer for some tens of microseconds before it sleeps,
            while answers come that soon and nobody else sends.
        auto_batch: gather single messages into batches.
        batch_max_delay_ms: how long a gathered message waits for others.
        batch_max_bytes: bodies of one batch.
        total_batch_max_bytes: bodies gathered or on their way; more callers wait.
    """

    producer_group: str
    create_topic_key: str = AUTO_CREATE_TOPIC
    default_topic_queue_nums: int = setting(4, low=1, unit="queues")
    send_msg_timeout_ms: int = setting(3_000, low=1)
    compress_msg_body_over_howmuch: int = setting(4_096, low=0, unit="bytes")
    compress_type: str = "ZLIB"
    compress_level: int = setting(5, low=0, high=9)
    retry_times_when_send_failed: int = setting(2, low=0, unit="tries")
    retry_times_when_send_async_failed: int = setting(2, low=0, unit="tries")
    retry_another_broker_when_not_store_ok: bool = setting(
        False, java="retryAnotherBrokerWhenNotStoreOK"
    )
    max_message_size: int = setting(
        limits.MESSAGE_BODY_BYTES_MAX,
        low=1,
        high=limits.DECOMPRESSED_BODY_BYTES_MAX,  # consumers read no greater one
        unit="bytes",
    )
    retry_response_codes: frozenset[int] = setting(RETRY_RESPONSE_CODES, typed="Numbers")
    send_latency_fault_enable: bool = False
    latency_max: tuple[int, ...] = setting(LATENCY_MAX_MS, unit="ms", typed="Sequence[int]")
    not_available_duration: tuple[int, ...] = setting(
        NOT_AVAILABLE_DURATION_MS, unit="ms", typed="Sequence[int]"
    )
    start_detector_enable: bool = True
    detect_interval_ms: int = setting(2_000, low=1)
    detect_timeout_ms: int = setting(200, low=1)
    unit_mode: bool = False
    topics: tuple[str, ...] = setting((), typed="Names")
    busy_wait: bool = setting(True, java="")
    auto_batch: bool = False
    batch_max_delay_ms: int = setting(10, low=1, high=30_000, java="batchMaxDelayMs")
    batch_max_bytes: int = setting(32 * 1024, low=1, high=2 * 1024 * 1024)
    total_batch_max_bytes: int = setting(limits.ASYNC_SEND_BYTES_IN_FLIGHT_MAX, low=1)

    def requests(self) -> SendRequests:
        """Return what makes the requests of a producer with these settings."""
        return SendRequests(
            self.producer_group,
            self.create_topic_key,
            self.default_topic_queue_nums,
            unit_mode=self.unit_mode,
        )

    def check(self) -> None:
        """Check every value.

        Raises:
            ConfigurationError: a value that cannot be used; the text names it.
            NotSupportedError: the codec of ``compress_type`` is not installed.
        """
        check_group(self.producer_group)
        check_own_group(self.producer_group, DEFAULT_PRODUCER_GROUP, java="producerGroup")
        check_values(self)
        if self.compress_type.upper() not in COMPRESSION_TYPES:
            raise refused_value(self, "compress_type", f"one of {', '.join(COMPRESSION_TYPES)}")
        require_codec(self.compress_type)
        self._check_auto_batch()
        for topic in self.topics:
            check_topic(topic)
        self._check_latency_table()

    def _check_auto_batch(self) -> None:
        if self.auto_batch and self.batch_max_delay_ms >= self.send_msg_timeout_ms:
            raise ConfigurationError(
                f"batch_max_delay_ms ({self.batch_max_delay_ms}) must be less than "
                f"send_msg_timeout_ms ({self.send_msg_timeout_ms}), which covers the waiting too"
            )

    def _check_latency_table(self) -> None:
        bounds, durations = self.latency_max, self.not_available_duration
        numbers = [*bounds, *durations]
        if not bounds or len(bounds) != len(durations):
            raise ConfigurationError(
                "latency_max and not_available_duration must have the same number of entries, "
                f"at least one; they have {len(bounds)} and {len(durations)}"
            )
        if any(n < 0 for n in numbers) or list(bounds) != sorted(set(bounds)):
            raise ConfigurationError(
                "latency_max must be ascending and both tables milliseconds from 0 on, not "
                f"{bounds!r} and {durations!r}"
            )


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Settings of a transaction producer besides those of a producer (C-91, C-92).

    Attributes:
        check_thread_pool_min_size: only checked; threads are started when they are needed.
        check_thread_pool_max_size: most threads that answer brokers' questions.
        check_request_hold_max: questions that may wait; more are dropped and asked again.
    """

    check_thread_pool_min_size: int = setting(1, low=1, unit="threads")
    check_thread_pool_max_size: int = setting(1, low=1, unit="threads")
    check_request_hold_max: int = setting(2_000, low=1, unit="questions")

    def check(self) -> None:
        """Check every value.

        Raises:
            ConfigurationError: a value that cannot be used; the text names it.
        """
        check_values(self)
        if self.check_thread_pool_min_size > self.check_thread_pool_max_size:
            raise ConfigurationError(
                f"check_thread_pool_min_size ({self.check_thread_pool_min_size}) must not be more "
                f"than check_thread_pool_max_size ({self.check_thread_pool_max_size})"
            )
