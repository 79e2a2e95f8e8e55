"""Settings of producers, checked in upstream's order with upstream's texts.

Law: pure values; what is not built yet is refused with NotSupportedError, never ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

from rocketstream import limits
from rocketstream.errors import ConfigurationError
from rocketstream.protocol.compression import COMPRESSION_TYPES
from rocketstream.protocol.names import AUTO_CREATE_TOPIC, DEFAULT_PRODUCER_GROUP, check_group


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """Settings of a producer (C-77 to C-87); names and defaults are upstream's."""

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
            if not isinstance(value, int) or value < low:
                raise ConfigurationError(f"{name} must be at least {low}, not {value!r}")
        if self.compress_type.upper() not in COMPRESSION_TYPES:
            raise ConfigurationError(
                f"compress_type {self.compress_type!r} is unknown; accepted are "
                f"{', '.join(COMPRESSION_TYPES)}"
            )


_PRODUCER_MINIMA = (
    ("default_topic_queue_nums", 1),
    ("send_msg_timeout_ms", 1),
    ("compress_msg_body_over_howmuch", 0),
    ("retry_times_when_send_failed", 0),
    ("retry_times_when_send_async_failed", 0),
    ("max_message_size", 1),
)
