"""Names with a meaning: retry and dead-letter topics, system topics and groups, and name checks.

Pure: text in, text or an error out; the error texts are upstream's ``Validators`` (C-94, C-95).
"""

from __future__ import annotations

import re
from typing import Final

from rocketstream import limits
from rocketstream.errors import ConfigurationError

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"
LISTENER_THREAD_PREFIX: Final = "ConsumeMessageThread_"
"""The beginning of the names of threads (and of our tasks) that call listeners, in Java and here;
stacks a member reports (307) are read by it. The group follows, cut to ``THREAD_GROUP_CHARS_MAX``.
"""
THREAD_GROUP_CHARS_MAX: Final = 100

AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
OFFSET_MOVED_EVENT: Final = "OFFSET_MOVED_EVENT"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
TRANS_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
ROCKSDB_TRANS_TOPICS: Final = frozenset(
    {"RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"}
)
"""Created by brokers from 5.4 on, which do not list them as system topics."""
TRANS_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
UNDELIVERED_TOPIC: Final = "DELAYED_MESSAGE_UNDELIVERED_TOPIC"
"""Topic where our broker puts delayed messages that cannot be delivered; upstream has none."""

DEFAULT_PRODUCER_GROUP: Final = "DEFAULT_PRODUCER"
DEFAULT_CONSUMER_GROUP: Final = "DEFAULT_CONSUMER"
CLIENT_INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
TOOLS_CONSUMER_GROUP: Final = "TOOLS_CONSUMER"
REDRIVE_GROUP: Final = "rocketstream-redrive"
"""Keeps how far redrives of dead letters are; ``rocketstream-redrive-...`` those of selections."""
SPARK_PULL_GROUP: Final = "rocketstream-spark"
"""Group named in pulls of Spark reads whose user names none; no consumer uses it."""
FILTERSRV_CONSUMER_GROUP: Final = "FILTERSRV_CONSUMER"
SELF_TEST_CONSUMER_GROUP: Final = "SELF_TEST_C_GROUP"

ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
"""Namespace of the name server's settings that holds the fixed queues of ordered topics."""
DEFAULT_REGION: Final = "DefaultRegion"
DEFAULT_CLUSTER: Final = "DefaultCluster"

NOT_ALLOWED_SEND_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
    }
)
"""Topics no client may send to (C-96)."""

SYSTEM_TOPICS: Final = (
    NOT_ALLOWED_SEND_TOPICS
    | ROCKSDB_TRANS_TOPICS
    | {AUTO_CREATE_TOPIC, BENCHMARK_TOPIC, TRACE_TOPIC}
)
"""Topics that admin calls neither create nor delete (C-97), besides those a broker adds."""

SYSTEM_GROUPS: Final = frozenset(
    {
        TOOLS_CONSUMER_GROUP,
        FILTERSRV_CONSUMER_GROUP,
        SELF_TEST_CONSUMER_GROUP,
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
    }
)
"""Groups every broker has from the start."""

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")
_STORABLE = re.compile(r"[%|a-zA-Z0-9_.~-]+")
_ACCEPTED = "a-z, A-Z, 0-9, %, |, _ and -"


def retry_topic(group: str) -> str:
    """Return the topic that holds a group's messages to be consumed again."""
    return RETRY_PREFIX + group


def pop_retry_topics(group: str, topic: str) -> tuple[str, str]:
    """Return the topics where 5.x brokers put a topic's messages that a popping group gets again.

    First the older name, which may also be another group's retry topic, then the newer one.
    """
    return f"{RETRY_PREFIX}{group}_{topic}", f"{RETRY_PREFIX}{group}+{topic}"


def dlq_topic(group: str) -> str:
    """Return the topic that holds the messages a group has given up."""
    return DLQ_PREFIX + group


def check_topic(topic: str, argument: str = "topic") -> None:
    """Check a topic name.

    Args:
        topic: the name.
        argument: the name of the argument, for the error.

    Raises:
        ConfigurationError: the name is blank, too long, or has characters outside the alphabet
            (C-95).
    """
    _check_text(argument, topic)
    if not topic or topic.isspace():
        raise ConfigurationError("topic must not be blank", topic=topic)
    if len(topic) > limits.TOPIC_CHARS_MAX:
        raise ConfigurationError(
            f"a topic has {limits.TOPIC_CHARS_MAX} characters at most; this one has {len(topic)}",
            topic=topic,
        )
    if not _LEGAL.fullmatch(topic):
        raise ConfigurationError(
            f"topic {topic!r} has illegal characters; accepted are {_ACCEPTED}",
            topic=topic,
        )


def check_group(group: str) -> None:
    """Check a group name.

    Raises:
        ConfigurationError: the name is blank, too long, or has characters outside the alphabet
            (C-94).
    """
    _check_text("group", group)
    if not group or group.isspace():
        raise ConfigurationError("group must not be blank", group=group)
    if len(group) > limits.GROUP_CHARS_MAX:
        raise ConfigurationError(
            f"a group has {limits.GROUP_CHARS_MAX} characters at most; this one has {len(group)}",
            group=group,
        )
    if not _LEGAL.fullmatch(group):
        raise ConfigurationError(
            f"group {group!r} has illegal characters; accepted are {_ACCEPTED}",
            group=group,
        )


def check_consumer_group(group: str) -> None:
    """Check the name of a group that consumes: its retry topic must be a name for a directory.

    Raises:
        ConfigurationError: as in :func:`check_group`, or the name has more than 248 characters.
    """
    check_group(group)
    most = limits.FILE_NAME_BYTES_MAX - len(RETRY_PREFIX)
    if len(group) > most:
        raise ConfigurationError(
            f"the consumer group {group!r} has {len(group)} characters where {most} are the most: "
            f"{RETRY_PREFIX} and the group is the name of a directory; give a shorter name",
            group=group,
        )


def check_own_group(group: str, default: str, *, java: str) -> None:
    """Check that a group is not the one that every program has by default.

    Args:
        group: its name.
        default: the name that is not accepted.
        java: Java's name of the setting.

    Raises:
        ConfigurationError: it is that one.
    """
    if group == default:
        raise ConfigurationError(
            f"group must be a name of your own, not {default!r} (Java: {java})"
        )


def storage_problem(topic: str) -> str | None:
    """Return why a topic cannot be the name of a directory of the store, None when it can."""
    size = len(topic.encode("utf-8", "surrogatepass"))
    if size > limits.FILE_NAME_BYTES_MAX:
        return f"topic {topic!r} has {size} bytes, a directory's name at most 255"
    if not _STORABLE.fullmatch(topic) or topic in (".", ".."):
        return f"topic {topic!r} cannot be the name of a directory"
    return None


def _check_text(kind: str, name: object) -> None:
    if name is not None and not isinstance(name, str):
        raise ConfigurationError(f"the specified {kind} must be a str, not {name!r}")


def is_system_topic(topic: str) -> bool:
    """Return whether a topic is a system topic (C-97); those a broker adds are not known here."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(group: str) -> bool:
    """Return whether a group belongs to the system or to our tools; no user consumes as it."""
    return (
        group in SYSTEM_GROUPS
        or group.startswith((SYSTEM_GROUP_PREFIX, f"{REDRIVE_GROUP}-"))
        or group in (REDRIVE_GROUP, SPARK_PULL_GROUP)
    )


def is_not_allowed_send_topic(topic: str) -> bool:
    """Return whether clients must not send to a topic (C-96)."""
    return topic in NOT_ALLOWED_SEND_TOPICS


def offsets_place(key: str) -> tuple[str, str] | None:
    """Return topic and group of a key in a broker's table of offsets; None for any other key.

    Brokers of 5.x keep ``topic@group@broadcast`` beside ``topic@group``: progress of one member of
    a broadcasting group, which no group has.
    """
    topic, separator, group = key.rpartition("@")
    is_broadcast = group == "broadcast" and "@" in topic
    return (topic, group) if separator and not is_broadcast else None
