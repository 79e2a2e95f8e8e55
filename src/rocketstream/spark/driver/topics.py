"""The topics of a name server's list that match a pattern.

Pure: names in, names out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from rocketstream.protocol.names import (
    DLQ_PREFIX,
    REPLY_TOPIC_SUFFIX,
    RETRY_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    SYSTEM_TOPICS,
    UNDELIVERED_TOPIC,
)

_FAMILIES: Final = (RETRY_PREFIX, DLQ_PREFIX, SYSTEM_TOPIC_PREFIX)


def matching(pattern: str, listed: Iterable[str], reserved: Collection[str]) -> list[str]:
    """Return the topics that match a pattern, sorted.

    Retry and dead-letter topics of groups, and topics of the system, are left out unless the
    pattern spells their prefix: ``.*`` matches topics somebody sends to, ``%DLQ%.*`` matches dead
    letters.

    Args:
        pattern: matches whole names.
        listed: all topics.
        reserved: further topics of the system: each broker and cluster has one of its own name.
    """
    match = re.compile(pattern).fullmatch
    found = {topic for topic in listed if match(topic)}
    return sorted(topic for topic in found if _is_meant(topic, pattern, reserved))


def _is_meant(topic: str, pattern: str, reserved: Collection[str]) -> bool:
    lower = topic.lower()
    for family in _FAMILIES:
        if lower.startswith(family.lower()):
            return family.lower() in pattern.lower()
    owner = topic.removesuffix(REPLY_TOPIC_SUFFIX)
    of_the_system = topic in SYSTEM_TOPICS or topic == UNDELIVERED_TOPIC or owner in reserved
    return not of_the_system or topic in pattern
