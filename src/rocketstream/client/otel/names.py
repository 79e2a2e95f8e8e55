"""Pure: OpenTelemetry's names for the work of RocketMQ clients, and the attributes of spans.

Attributes are read off messages, results and addresses. The conventions are those of
``messaging.rocketmq`` in semantic-conventions 1.30 and later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rocketstream.model import (
    PROPERTY_DELAY,
    PROPERTY_KEYS,
    PROPERTY_LITE_TOPIC,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELIVER_MS,
    Message,
    MessageQueue,
)
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.properties import split_keys

AttributeValue = str | bool | int | float | Sequence[str]
Attributes = dict[str, AttributeValue]

SYSTEM: Final = "messaging.system"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
GROUP: Final = "messaging.consumer.group.name"
CLIENT_ID: Final = "messaging.client.id"
MESSAGE_ID: Final = "messaging.message.id"
BATCH_COUNT: Final = "messaging.batch.message_count"
NAMESPACE: Final = "messaging.rocketmq.namespace"
MODEL: Final = "messaging.rocketmq.consumption_model"
MESSAGE_TYPE: Final = "messaging.rocketmq.message.type"
MESSAGE_GROUP: Final = "messaging.rocketmq.message.group"
MESSAGE_TAG: Final = "messaging.rocketmq.message.tag"
MESSAGE_KEYS: Final = "messaging.rocketmq.message.keys"
DELAY_LEVEL: Final = "messaging.rocketmq.message.delay_time_level"
DELIVERY_TIMESTAMP: Final = "messaging.rocketmq.message.delivery_timestamp"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"
# The conventions have no names for these.
LITE_TOPIC: Final = "rocketstream.lite_topic"
RECONSUME_TIMES: Final = "rocketstream.reconsume_times"
SEND_STATUS: Final = "rocketstream.send_status"

CREATE: Final = "create"
SEND: Final = "send"
REQUEST: Final = "request"
RECEIVE: Final = "receive"
PROCESS: Final = "process"
TYPES: Final[Mapping[str, str]] = {REQUEST: SEND}
"""The conventions' operation type, where it is not named like the operation."""

SENT_MESSAGES: Final = "messaging.client.sent.messages"
CONSUMED_MESSAGES: Final = "messaging.client.consumed.messages"
OPERATION_DURATION: Final = "messaging.client.operation.duration"
PROCESS_DURATION: Final = "messaging.process.duration"

METRIC_ATTRIBUTES: Final = frozenset(
    {
        SYSTEM, OPERATION_NAME, OPERATION_TYPE, DESTINATION, GROUP, SERVER_ADDRESS, SERVER_PORT,
        ERROR_TYPE,
    }
)  # fmt: skip
"""Attributes of a span that its metrics have too: each has few values."""


def operation(name: str, topic: str | None) -> Attributes:
    """Return the attributes every span of an operation has."""
    found: Attributes = {
        SYSTEM: "rocketmq",
        OPERATION_NAME: name,
        OPERATION_TYPE: TYPES.get(name, name),
    }
    if topic is not None:
        found[DESTINATION] = topic
    return found


def span_name(name: str, topic: str | None) -> str:
    """Return ``send orders`` and the like; the operation alone for several topics."""
    return name if topic is None else f"{name} {topic}"


def one_topic(messages: Iterable[Message | MessageExt]) -> str | None:
    """Return the topic of messages that have one in common."""
    topics = {message.topic for message in messages}
    return topics.pop() if len(topics) == 1 else None


def of_message(properties: Mapping[str, str]) -> Attributes:
    """Return what the properties of a single message tell."""
    found: Attributes = {}
    if tag := properties.get(PROPERTY_TAGS):
        found[MESSAGE_TAG] = tag
    if keys := properties.get(PROPERTY_KEYS):
        found[MESSAGE_KEYS] = tuple(split_keys(keys))
    if lite_topic := properties.get(PROPERTY_LITE_TOPIC):
        found[LITE_TOPIC] = lite_topic
    return found


def of_sent(message: Message, sharding_key: str | None, *, transaction: bool) -> Attributes:
    """Return what a message about to be sent tells."""
    found = of_message(message.properties)
    level = message.properties.get(PROPERTY_DELAY, "0")
    if transaction:
        found[MESSAGE_TYPE] = "transaction"
    elif message.is_timed or level != "0":
        found[MESSAGE_TYPE] = "delay"
        if level.isdecimal() and level != "0":
            found[DELAY_LEVEL] = int(level)
        due = message.properties.get(PROPERTY_TIMER_DELIVER_MS, "")
        if due.isdecimal():
            found[DELIVERY_TIMESTAMP] = int(due)
    elif sharding_key is not None:
        found[MESSAGE_TYPE] = "fifo"
        found[MESSAGE_GROUP] = sharding_key
    else:
        found[MESSAGE_TYPE] = "normal"
    return found


def of_queue(queue: MessageQueue) -> Attributes:
    """Return the attributes of a queue; every broker numbers its own from 0."""
    return {PARTITION: f"{queue.broker_name}:{queue.queue_id}"}


def of_server(address: str | None) -> Attributes:
    """Return the attributes of a broker's ``host:port``; none where it is not known."""
    host, separator, port = (address or "").rpartition(":")
    if not separator or not port.isdecimal():
        return {}
    return {SERVER_ADDRESS: host.strip("[]"), SERVER_PORT: int(port)}


def for_metrics(attributes: Mapping[str, AttributeValue]) -> Attributes:
    """Return the attributes a measurement has, of those of its span."""
    return {name: value for name, value in attributes.items() if name in METRIC_ATTRIBUTES}
