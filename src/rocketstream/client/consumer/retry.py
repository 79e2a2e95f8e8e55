"""Pure: what happens to a message a listener failed: how often it is tried, after what delay.

One rule for the send-back and for its fallback (C-592): a message that was retried
``max_reconsume_times`` times is dead, at once and without delay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rocketstream import limits
from rocketstream.protocol.names import retry_topic
from rocketstream.protocol.properties import (
    PROPERTY_CONSUME_START_TIME,
    PROPERTY_DELAY,
    PROPERTY_MAX_OFFSET,
    PROPERTY_MAX_RECONSUME_TIMES,
    PROPERTY_MIN_OFFSET,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RECONSUME_TIME,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TRAN_MSG,
)

MAX_RECONSUME_TIMES_CONCURRENTLY = 16
RECONSUME_FOREVER = limits.RECONSUME_TIMES_MAX
"""Tries of an orderly listener with max_reconsume_times = -1 (C-287)."""
FIRST_RETRY_DELAY_LEVEL = 3
EXPIRED_DELAY_LEVEL = 3
"""Level for messages whose listener takes longer than consumeTimeout (C-248)."""

# Added on this side of the wire, or left over from an earlier hop: never sent on.
_NOT_SENT_ON = (
    PROPERTY_TRAN_MSG,
    PROPERTY_MIN_OFFSET,
    PROPERTY_MAX_OFFSET,
    PROPERTY_CONSUME_START_TIME,
    PROPERTY_REAL_TOPIC,
    PROPERTY_REAL_QID,
    PROPERTY_DELAY,
)


@dataclass(frozen=True, slots=True)
class RetryMessage:
    """A message to send to the retry topic, and the counts its header carries (C-401)."""

    topic: str
    properties: dict[str, str]
    reconsume_times: int
    max_reconsume_times: int


def max_reconsume_times(configured: int) -> int:
    """Return the number of retries that -1 stands for (C-40)."""
    return MAX_RECONSUME_TIMES_CONCURRENTLY if configured == -1 else configured


def orderly_max_reconsume_times(configured: int) -> int:
    """Return the number of tries after the first that -1 stands for (C-40, C-287)."""
    return RECONSUME_FOREVER if configured == -1 else configured


def fallback_message(
    group: str,
    topic: str,
    properties: Mapping[str, str],
    *,
    origin_message_id: str,
    reconsume_times: int,
    delay_level: int,
    max_times: int,
) -> RetryMessage:
    """Return topic and properties of the message to send when the send-back failed (C-271).

    Unlike upstream (C-272, C-586) the requested level is honoured, ORIGIN_MESSAGE_ID kept, the
    original's properties left alone, and the limit is the send-back's: the last retry is not
    lost, and a dead message goes to the dead-letter topic at once.
    """
    kept = _sent_on(topic, properties, origin_message_id)
    times = reconsume_times + 1
    kept[PROPERTY_RECONSUME_TIME] = str(times)
    if reconsume_times >= max_times or delay_level < 0:
        # Over its own limit the broker moves it to %DLQ% itself, creating that topic; without
        # DELAY it does so at once (C-401, C-587).
        limit = reconsume_times
    else:
        # The broker compares the new count (>=) on this path but the old one on a send-back
        # (C-402); one more keeps the number of deliveries the same on both.
        limit = min(max_times + 1, limits.RECONSUME_TIMES_MAX)
        level = delay_level if delay_level > 0 else FIRST_RETRY_DELAY_LEVEL + reconsume_times
        kept[PROPERTY_DELAY] = str(level)
    kept[PROPERTY_MAX_RECONSUME_TIMES] = str(limit)
    return RetryMessage(retry_topic(group), kept, times, limit)


def dead_letter_message(
    group: str,
    topic: str,
    properties: Mapping[str, str],
    *,
    origin_message_id: str,
    reconsume_times: int,
    max_times: int,
) -> RetryMessage:
    """Return what to send when an orderly listener has failed a message too often (C-289).

    The broker moves it to the dead-letter topic at once: nothing delays it (C-290, C-587).
    """
    kept = _sent_on(topic, properties, origin_message_id)
    kept[PROPERTY_RECONSUME_TIME] = str(reconsume_times)
    kept[PROPERTY_MAX_RECONSUME_TIMES] = str(max_times)
    # Older brokers compare with >=, newer ones with > (C-592): one less is over the limit of both.
    return RetryMessage(retry_topic(group), kept, reconsume_times, reconsume_times - 1)


def _sent_on(topic: str, properties: Mapping[str, str], origin_message_id: str) -> dict[str, str]:
    kept = {name: value for name, value in properties.items() if name not in _NOT_SENT_ON}
    kept.setdefault(PROPERTY_ORIGIN_MESSAGE_ID, origin_message_id)
    kept.setdefault(PROPERTY_RETRY_TOPIC, topic)
    return kept
