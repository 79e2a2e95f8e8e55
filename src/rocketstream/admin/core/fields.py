"""The meaning of single fields of an answer: a time, a permission, the kind of a topic.

Pure, and light to import, because listing topics does not need the joins.
"""

from __future__ import annotations

from collections.abc import Collection

from rocketstream.protocol import names
from rocketstream.protocol.codes import Perm


def topic_kind(topic: str, system: Collection[str]) -> str:
    """Return ``retry``, ``dead letter``, ``system`` or ``normal``.

    Args:
        system: the names the name server lists as system topics, which include clusters and
            brokers.
    """
    if topic.startswith(names.RETRY_PREFIX):
        return "retry"
    if topic.startswith(names.DLQ_PREFIX):
        return "dead letter"
    owner = topic.removesuffix(names.REPLY_TOPIC_SUFFIX)  # every cluster has its own reply topic
    if topic in system or names.is_system_topic(topic) or (owner != topic and owner in system):
        return "system"
    return "normal"


def permission(perm: int) -> str:
    """Return ``RW``, ``R``, ``W`` or nothing."""
    return ("R" if perm & Perm.READ else "") + ("W" if perm & Perm.WRITE else "")


def known_ms(timestamp: int) -> int | None:
    """Return a store time; None where there is none."""
    return timestamp if timestamp > 0 else None
