"""Sends: where and in what form a sent message is stored, or why it is refused.

Pure: known facts in, a value or a refusal out.

Law: no other module has this policy, whichever way a send was read. Upstream: SendMessageProcessor
(C-425 to C-431).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rocketstream.errors import BrokerError
from rocketstream.limits import PROPERTIES_BYTES_MAX
from rocketstream.model import (
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
    TIMER_PROPERTIES,
)
from rocketstream.protocol import names
from rocketstream.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from rocketstream.protocol.codes import MessageSysFlag, ResponseCode
from rocketstream.protocol.headers import SendMessageRequestHeader
from rocketstream.protocol.properties import (
    PROPERTY_CLUSTER,
    PROPERTY_DELAY,
    PROPERTY_TRAN_MSG,
    PROPERTY_WAIT,
    encode_properties,
)
from rocketstream.server.broker.core.topics import check_name

SPECIAL_PROPERTIES: Final = frozenset({PROPERTY_DELAY, PROPERTY_TRAN_MSG, *TIMER_PROPERTIES})
"""A message with one of these properties is changed before it is stored, or goes elsewhere."""
FAQ: Final = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
_ILLEGAL: Final = (
    "the message is illegal, maybe msg body or properties length not matched. msg body length "
    "limit {body}B, msg properties length limit 32KB."
)


_TIMER_OUT_MS: Final = "TIMER_OUT_MS"
"""Properties a 5.x broker adds to a message that it keeps until its time."""
_NO_TIMER: Final = (
    "accurate timer message is not enabled, timerWheelEnable is false: brokers of 4.x deliver at "
    "once; send the message with a delay level, or to a broker of 5.0 or later"
)


@dataclass(frozen=True, slots=True)
class SendRules:
    """The settings of a broker that concern sends.

    Attributes:
        cluster: name of the cluster, which every stored message carries.
        host: host of the broker, for a remark.
        body_bytes_max: longest body of one message, or of a whole batch.
        refuses_transactions: whether half messages are refused.
    """

    cluster: str
    host: str
    body_bytes_max: int
    refuses_transactions: bool


@dataclass(slots=True)
class Outgoing:
    """A message in the form to be stored: not yet delayed, not yet a half message.

    Attributes:
        wants_flush: whether the answer waits for the disk.
        is_half: whether it waits for the end of its transaction.
        is_special: whether its properties ask for something that may lengthen them.
    """

    topic: str
    queue_id: int
    sys_flag: int
    properties: dict[str, str]
    wants_flush: bool
    is_half: bool
    is_special: bool


# --- usual sends ----------------------------------------------------------------------------------


def is_usual(properties: Iterable[str]) -> bool:
    """Return whether a message with properties of these names is stored unchanged."""
    return SPECIAL_PROPERTIES.isdisjoint(properties)


def is_usual_queue(config: TopicConfig, topic: str, queue_id: int) -> bool:
    """Return whether a message for this queue of a topic needs no further check or change."""
    return (
        0 <= queue_id < config.write_queue_nums
        and config.topic_filter_type != "MULTI_TAG"
        and topic not in names.NOT_ALLOWED_SEND_TOPICS
        and not topic.startswith(names.RETRY_PREFIX)
    )


# --- topic and queue ------------------------------------------------------------------------------


def is_open(topic: str) -> bool:
    """Return whether clients may send to an existing topic."""
    return topic not in names.NOT_ALLOWED_SEND_TOPICS


def check_topic(topic: str) -> None:
    """Check the name of a topic that ``is_open`` rejects (C-96).

    Raises:
        BrokerError: nobody may use the name, or the topic is the broker's own.
    """
    check_name(topic)
    if names.is_not_allowed_send_topic(topic):
        raise _refusal(
            ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden."
        )


def no_topic(topic: str) -> BrokerError:
    """Return the refusal for a topic that does not exist and is not created (C-425)."""
    return _refusal(
        ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!{FAQ}"
    )


def queue_of(config: TopicConfig, queue_id: int, counter: int, peer: str) -> int:
    """Return the queue of a message: the one asked for, or by ``counter`` if that is negative.

    Raises:
        BrokerError: the topic has no such queue.
    """
    if queue_id >= config.write_queue_nums and queue_id >= config.read_queue_nums:
        raise _refusal(
            ResponseCode.SYSTEM_ERROR,
            f"request queueId[{queue_id}] is illegal, {topic_config_text(config)} Producer: {peer}",
        )
    return queue_id if queue_id >= 0 else counter % max(1, config.write_queue_nums)


def topic_config_text(config: TopicConfig) -> str:
    """Return a topic's configuration as upstream prints it in remarks."""
    perm = "".join(
        letter if config.perm & bit else "-" for letter, bit in (("R", 4), ("W", 2), ("X", 1))
    )
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums}, "
        f"writeQueueNums={config.write_queue_nums}, perm={perm}, "
        f"topicFilterType={config.topic_filter_type}, topicSysFlag={config.topic_sys_flag}, "
        f"order={str(config.order).lower()}]"
    )


# --- the message ----------------------------------------------------------------------------------


def outgoing(
    rules: SendRules,
    header: SendMessageRequestHeader,
    config: TopicConfig,
    queue_id: int,
    body_bytes: int,
    properties: dict[str, str],
    now_ms: int,
) -> Outgoing:
    """Return the message a send asks to store, with its properties in stored form.

    Raises:
        BrokerError: it is too large, asks for delivery at a given time, or is a half message and
            those are refused here.
    """
    if body_bytes > rules.body_bytes_max:
        raise illegal(rules)
    if not TIMER_PROPERTIES.isdisjoint(properties) and _is_for_later(properties, now_ms):
        raise _refusal(ResponseCode.SYSTEM_ERROR, _NO_TIMER)
    is_half = properties.get(PROPERTY_TRAN_MSG, "").lower() == "true"
    if is_half and rules.refuses_transactions:
        raise _refusal(
            ResponseCode.NO_PERMISSION,
            f"the broker[{rules.host}] sending transaction message is forbidden",
        )
    properties[PROPERTY_CLUSTER] = rules.cluster
    wants_flush = properties.get(PROPERTY_WAIT) != "false"
    sys_flag = header.sys_flag
    if config.topic_filter_type == "MULTI_TAG":
        sys_flag |= MessageSysFlag.MULTI_TAGS
    return Outgoing(
        header.topic, queue_id, sys_flag, properties, wants_flush, is_half, not is_usual(properties)
    )


def finish(rules: SendRules, message: Outgoing) -> None:
    """Drop the properties no stored message needs, and check the length of the rest (C-430).

    Raises:
        BrokerError: the remaining properties are too long.
    """
    properties = message.properties
    if delay_level_of(properties) <= 0 and not message.is_half:
        properties.pop(PROPERTY_WAIT, None)
    if len(encode_properties(properties).encode()) > PROPERTIES_BYTES_MAX:
        raise illegal(rules)


def retried(
    header: SendMessageRequestHeader, settings: SubscriptionGroupConfig | None, *, is_locked: bool
) -> str:
    """Return the topic of a message sent to a retry topic: the retry or the dead-letter topic.

    The same rule as on the send-back path (C-592): more attempts than allowed means the dead-letter
    topic at once. The header counts the attempts made, so ``>`` here is ``>=`` there. Ordered
    consumers send only messages they have given up, so a group that holds locks uses ``>=``.

    Raises:
        BrokerError: the group is unknown.
    """
    group = header.topic[len(names.RETRY_PREFIX) :]
    if settings is None:
        raise _refusal(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {group}"
        )
    most = header.max_reconsume_times
    if most is None:
        most = settings.retry_max_times
    attempts = (header.reconsume_times or 0) + (1 if is_locked else 0)
    return header.topic if attempts <= most else names.dlq_topic(group)


def delay_level_of(properties: dict[str, str]) -> int:
    """Return the delay level asked for; 0 for text that is not a number."""
    text = properties.get(PROPERTY_DELAY)
    if not text:
        return 0
    try:
        return int(text)
    except ValueError:
        return 0


def _is_for_later(properties: dict[str, str], now_ms: int) -> bool:
    """Return whether a 5.x broker would keep a message until a time still to come.

    A delay level takes precedence there, and a message with TIMER_OUT_MS has been kept already.
    """
    if delay_level_of(properties) > 0 or _TIMER_OUT_MS in properties:
        return False
    try:
        if (seconds := properties.get(PROPERTY_TIMER_DELAY_SEC)) is not None:
            return int(seconds) > 0
        if (millis := properties.get(PROPERTY_TIMER_DELAY_MS)) is not None:
            return int(millis) > 0
        return int(properties[PROPERTY_TIMER_DELIVER_MS]) > now_ms
    except ValueError:
        return True


# --- answers --------------------------------------------------------------------------------------


def illegal(rules: SendRules) -> BrokerError:
    """Return upstream's answer to a message that is too large (C-430)."""
    return _refusal(ResponseCode.MESSAGE_ILLEGAL, _ILLEGAL.format(body=rules.body_bytes_max))


def _refusal(code: int, remark: str) -> BrokerError:
    return BrokerError(int(code), remark)
