"""The decisions of a redrive: which dead letters are sent again, and as which message.

Pure: messages in, messages out. Properties that a broker or a consumer added on the way to the
dead-letter topic are not sent back.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Final

from rocketstream.admin.core.letter_causes import (
    PROPERTY_DLQ_ORIGIN_TOPIC,
    is_of_cause,
    origin_topic,
)
from rocketstream.errors import ConfigurationError
from rocketstream.model import TIMER_PROPERTIES, Message
from rocketstream.protocol.cause import CAUSE_PROPERTIES
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import REDRIVE_GROUP, RETRY_PREFIX, dlq_topic
from rocketstream.protocol.properties import (
    KEY_SEPARATOR,
    PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS,
    PROPERTY_CONSUME_START_TIME,
    PROPERTY_CORRECTION_FLAG,
    PROPERTY_DELAY,
    PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_MULTI_QUEUE_OFFSET,
    PROPERTY_MAX_OFFSET,
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_MIN_OFFSET,
    PROPERTY_MQ2_FLAG,
    PROPERTY_MSG_REGION,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_PGROUP,
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TRACE_ON,
    PROPERTY_TRAN_MSG,
    PROPERTY_TRAN_PREPARED_QUEUE_OFFSET,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_TRANSFER_FLAG,
    PROPERTY_WAIT,
)

PROPERTY_REDRIVEN_FROM: Final = "REDRIVEN_FROM"
"""Property of a message that was sent again: ``<dead-letter topic>/<broker>/<queue
id>/<offset>``.
"""
PROPERTY_REDRIVEN_TIMES: Final = "REDRIVEN_TIMES"
"""Property of a message that was sent again: how many times it has been sent again."""
PROPERTY_REDRIVEN_BY: Final = "REDRIVEN_BY"
"""Property of a message that was sent again: the named place it was sent under, if any. A redrive
with a place of its own sends what others have sent, but nothing twice itself.
"""
PROPERTY_DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
PROGRESS_GROUP: Final = REDRIVE_GROUP

_LEFT_BEHIND: Final = (
    TIMER_PROPERTIES
    | CAUSE_PROPERTIES
    | {
        PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS,
        PROPERTY_CONSUME_START_TIME,
        PROPERTY_CORRECTION_FLAG,
        PROPERTY_DELAY,
        PROPERTY_DLQ_ORIGIN_MESSAGE_ID,
        PROPERTY_DLQ_ORIGIN_TOPIC,
        PROPERTY_INNER_MULTI_DISPATCH,
        PROPERTY_INNER_MULTI_QUEUE_OFFSET,
        PROPERTY_MAX_OFFSET,
        PROPERTY_MAX_RECONSUME_TIMES,
        PROPERTY_MIN_OFFSET,
        PROPERTY_MQ2_FLAG,
        PROPERTY_MSG_REGION,
        PROPERTY_ORIGIN_MESSAGE_ID,
        PROPERTY_PGROUP,
        PROPERTY_REAL_QID,
        PROPERTY_REAL_TOPIC,
        PROPERTY_RECONSUME_TIME,
        PROPERTY_RETRY_TOPIC,
        PROPERTY_TRACE_ON,
        PROPERTY_TRAN_MSG,
        PROPERTY_TRAN_PREPARED_QUEUE_OFFSET,
        PROPERTY_TRANSACTION_CHECK_TIMES,
        PROPERTY_TRANSFER_FLAG,
        PROPERTY_WAIT,
        # Properties of 5.x brokers: for timers under way, popped messages, inner batches.
        "TIMER_OUT_MS",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_DEL_UNIQKEY",
        "TIMER_DELAY_LEVEL",
        "POP_CK",
        "POP_CK_OFFSET",
        "1ST_POP_TIME",
        "INNER_NUM",
        "INNER_BASE",
        "__transactionId__",
    }
)


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which dead letters are meant; a letter must meet every given condition.

    Attributes:
        since_ms: given up at this time or later, ms since 1970.
        until_ms: given up before this time, ms since 1970.
        tag: it has this tag.
        key: it has this key among its keys.
        origin: it was consumed from this topic.
        cause: it was given up for this cause: the cause's id, its text as ``letters.by_cause``
            returns it, or the class of the exception.
        where: the exception was raised there: file, line and function as ``letters.by_cause``
            returns them, or only the first of them (``shop/pricing.py``, ``shop/pricing.py:31``).
    """

    since_ms: int | None = None
    until_ms: int | None = None
    tag: str | None = None
    key: str | None = None
    origin: str | None = None
    cause: str | None = None
    where: str | None = None

    @property
    def is_all(self) -> bool:
        """Whether nothing is filtered."""
        return self == LetterFilter()

    def wants(self, letter: MessageExt) -> bool:
        """Return whether a dead letter is meant."""
        return (
            (self.since_ms is None or letter.store_timestamp >= self.since_ms)
            and (self.until_ms is None or letter.store_timestamp < self.until_ms)
            and (self.tag is None or letter.tags == self.tag)
            and (self.key is None or self.key in (letter.keys or "").split(KEY_SEPARATOR))
            and (self.origin is None or origin_topic(letter.properties) == self.origin)
            and is_of_cause(letter, self.cause, self.where)
        )


def target_topic(letter: MessageExt, to: str | None) -> str | None:
    """Return the topic a dead letter goes to: ``to``, else its origin; None if that is unknown."""
    return to if to is not None else origin_topic(letter.properties)


def again(group: str, letter: MessageExt, to: str | None, by: str | None = None) -> Message:
    """Return the message to send for a dead letter; ``by`` is the named place, if there is one.

    The message keeps body, flag, tags, keys, the sender's id and user properties, and names the
    letter it comes from. For a retry topic it also names the origin, which consumers of one expect.

    Raises:
        ConfigurationError: the letter's origin is unknown and ``to`` is None.
    """
    topic = target_topic(letter, to)
    if topic is None:
        raise ConfigurationError(
            f"dead letter {place_of(group, letter)} does not tell which topic it was consumed "
            "from: name one to send it to",
            msg_id=letter.msg_id,
        )
    found = letter.properties
    kept = {name: value for name, value in found.items() if name not in _LEFT_BEHIND}
    if topic.startswith(RETRY_PREFIX):
        for name in (PROPERTY_RETRY_TOPIC, PROPERTY_ORIGIN_MESSAGE_ID):
            if name in found:
                kept[name] = found[name]
        origin = origin_topic(found)
        if origin is not None:
            kept[PROPERTY_RETRY_TOPIC] = origin
    kept[PROPERTY_REDRIVEN_FROM] = place_of(group, letter)
    kept[PROPERTY_REDRIVEN_TIMES] = str(_times(found.get(PROPERTY_REDRIVEN_TIMES)) + 1)
    kept.pop(PROPERTY_REDRIVEN_BY, None)
    if by is not None:
        kept[PROPERTY_REDRIVEN_BY] = by
    message = Message(topic, bytes(letter.body), flag=letter.flag)
    message.properties |= kept
    return message


def place_of(group: str, letter: MessageExt) -> str:
    """Return the place of a dead letter in the form of ``REDRIVEN_FROM``."""
    return f"{dlq_topic(group)}/{letter.broker_name}/{letter.queue_id}/{letter.queue_offset}"


def progress_group(wanted: LetterFilter, to: str | None) -> str:
    """Return the group whose offsets keep the place of such a redrive.

    Each selection and target has a group of its own, because letters one redrive leaves out are not
    sent by another.
    """
    if wanted.is_all and to is None:
        return PROGRESS_GROUP
    # Only later additions may be left out here, so that a place kept by an older release is found.
    later = ("cause", "where")
    chosen = {n: v for n, v in asdict(wanted).items() if v is not None or n not in later}
    text = json.dumps([chosen, to], sort_keys=True)
    return f"{PROGRESS_GROUP}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _times(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else 0
