"""The options of a write.

Pure: text in, a frozen value out; every mistake is a ConfigurationError naming the option.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rocketstream import limits
from rocketstream.errors import ConfigurationError
from rocketstream.spark.options.connecting import CONNECT_OPTIONS, ConnectOptions, connect_settings
from rocketstream.spark.options.parsing import bad, known, number, of_a_sink
from rocketstream.spark.options.positions import Mode

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
