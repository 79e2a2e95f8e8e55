"""What a pull or lite pull consumer says of itself when a broker asks (code 307).

Law: values in, the body out (C-540).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from rocketstream.client.core.pull_settings import LitePullConsumerSettings, PullConsumerSettings
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import ConsumerRunningInfo, ProcessQueueInfo, SubscriptionData

START_TIMESTAMP = "PROP_CONSUMER_START_TIMESTAMP"
_NOT_SHOWN = frozenset({"offset_store", "message_queue_listener"})


def running_info(
    settings: PullConsumerSettings | LitePullConsumerSettings,
    subscriptions: list[SubscriptionData],
    started_ms: int,
    queues: Mapping[MessageQueue, ProcessQueueInfo],
) -> ConsumerRunningInfo:
    """Return the body; what belongs to the client instance is added by it."""
    properties = {
        _java_name(each.name): _text(getattr(settings, each.name))
        for each in fields(settings)
        if each.name not in _NOT_SHOWN
    }
    properties[START_TIMESTAMP] = str(started_ms)
    return ConsumerRunningInfo(
        properties=properties, subscription_set=subscriptions, mq_table=dict(queues)
    )


def _java_name(name: str) -> str:
    first, *rest = ("Millis" if part == "ms" else part for part in name.split("_"))
    return first + "".join(part[:1].upper() + part[1:] for part in rest)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list | tuple | set | frozenset):
        return f"[{', '.join(sorted(map(str, value)))}]"
    return type(value).__name__
