"""Settings of producers, checked in upstream's order with upstream's texts.

Law: pure values and their checks.
"""

from __future__ import annotations

from dataclasses import dataclass

from rocketstream import limits
from rocketstream.client.core.fault_latency import LATENCY_MAX_MS, NOT_AVAILABLE_DURATION_MS
from rocketstream.client.core.kinds import check_kinds
from rocketstream.client.core.send import RETRY_RESPONSE_CODES
from rocketstream.errors import ConfigurationError
from rocketstream.protocol.compression import COMPRESSION_TYPES
from rocketstream.protocol.names import (
    AUTO_CREATE_TOPIC,
    DEFAULT_PRODUCER_GROUP,
    check_group,
    check_topic,
)


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """Settings of a producer (C-77 to C-89); names and defaults are upstream's.

    The table of ``latency_max`` and ``not_available_duration`` is 5.x's (C-603), and so is
    ``auto_batch`` with its bounds.
    """

    producer_group: str
    create_topic_key: str = AUTO_CREATE_TOPIC
    default_topic_queue_nums: int = 4
    send_msg_timeout_ms: int = 3_000
    compress_msg_body_over_howmuch: int = 4_096
    compress_type: str = "ZLIB"
    compress_level: int = 5
    retry_times_when_send_failed: int = 2
    retry_times_when_send_async_failed: int = 2
    retry_another_broker_when_not_store_ok: bool = False
    max_message_size: int = limits.MESSAGE_BODY_BYTES_MAX
    retry_response_codes: frozenset[int] = RETRY_RESPONSE_CODES
    send_latency_fault_enable: bool = False
    latency_max: tuple[int, ...] = LATENCY_MAX_MS
    not_available_duration: tuple[int, ...] = NOT_AVAILABLE_DURATION_MS
    start_detector_enable: bool = True
    detect_interval_ms: int = 2_000
    detect_timeout_ms: int = 200
    unit_mode: bool = False
    topics: tuple[str, ...] = ()
    busy_wait: bool = True
    auto_batch: bool = False
    batch_max_delay_ms: int = 10
    batch_max_bytes: int = 32 * 1024
    total_batch_max_bytes: int = limits.ASYNC_SEND_BYTES_IN_FLIGHT_MAX

    def check(self) -> None:
        """Check every value.

        Raises:
            ConfigurationError: a value that cannot be used; the text names it.
        """
        check_group(self.producer_group)
        if self.producer_group == DEFAULT_PRODUCER_GROUP:
            raise ConfigurationError(
                f"producerGroup can not equal {DEFAULT_PRODUCER_GROUP}, please specify another one."
            )
        for name, low in _PRODUCER_MINIMA:
            value = getattr(self, name)
            if type(value) is not int or value < low:
                raise ConfigurationError(f"{name} must be at least {low}, not {value!r}")
        self._check_compression()
        check_kinds(self)
        self._check_auto_batch()
        for topic in self.topics:
            check_topic(topic)
        self._check_codes()
        self._check_latency_table()

    def _check_compression(self) -> None:
        if str(self.compress_type).upper() not in COMPRESSION_TYPES:
            raise ConfigurationError(
                f"compress_type {self.compress_type!r} is unknown; accepted are "
                f"{', '.join(COMPRESSION_TYPES)}"
            )
        if type(self.compress_level) is not int or not 0 <= self.compress_level <= 9:
            raise ConfigurationError(f"compress_level must be 0 to 9, not {self.compress_level!r}")

    def _check_auto_batch(self) -> None:
        for name, high in _BATCH_MAXIMA:
            value = getattr(self, name)
            if value > high:
                raise ConfigurationError(f"{name} must be at most {high}, not {value!r}")
        if self.auto_batch and self.batch_max_delay_ms >= self.send_msg_timeout_ms:
            raise ConfigurationError(
                f"batch_max_delay_ms ({self.batch_max_delay_ms}) must be less than "
                f"send_msg_timeout_ms ({self.send_msg_timeout_ms}), which covers the waiting too"
            )

    def _check_codes(self) -> None:
        if not all(type(code) is int for code in self.retry_response_codes):
            raise ConfigurationError(
                f"retry_response_codes must be numbers, not {self.retry_response_codes!r}"
            )

    def _check_latency_table(self) -> None:
        bounds, durations = self.latency_max, self.not_available_duration
        numbers = [*bounds, *durations]
        if not bounds or len(bounds) != len(durations):
            raise ConfigurationError(
                "latency_max and not_available_duration must have the same number of entries, "
                f"at least one; they have {len(bounds)} and {len(durations)}"
            )
        if any(type(n) is not int or n < 0 for n in numbers) or list(bounds) != sorted(set(bounds)):
            raise ConfigurationError(
                "latency_max must be ascending and both tables milliseconds from 0 on, not "
                f"{bounds!r} and {durations!r}"
            )


_PRODUCER_MINIMA = (
    ("default_topic_queue_nums", 1),
    ("send_msg_timeout_ms", 1),
    ("compress_msg_body_over_howmuch", 0),
    ("retry_times_when_send_failed", 0),
    ("retry_times_when_send_async_failed", 0),
    ("max_message_size", 1),
    ("detect_interval_ms", 1),
    ("detect_timeout_ms", 1),
    ("batch_max_delay_ms", 1),
    ("batch_max_bytes", 1),
    ("total_batch_max_bytes", 1),
)
_BATCH_MAXIMA = (("batch_max_delay_ms", 30_000), ("batch_max_bytes", 2 * 1024 * 1024))
"""As upstream's ProduceAccumulator."""
