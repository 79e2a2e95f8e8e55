"""Histories made by hand: a queue, a group, and the events of one message sent and consumed."""

from __future__ import annotations

from rocketstream.model import MessageQueue
from rocketstream.testing.history import AnomalyKind, Rules, check
from rocketstream.testing.history.events import (
    Event,
    GroupDeclared,
    ListenerReturned,
    MessageDelivered,
    MessageStored,
    SendAcknowledged,
    SendInvoked,
)
from tests.testing.clean_history import TOPIC

History = list[Event]
QUEUE = MessageQueue(TOPIC, "b", 0)
GROUP = GroupDeclared(0.0, "g", frozenset({TOPIC}))


def kinds(history: History, rules: Rules | None = None) -> set[AnomalyKind]:
    return {anomaly.kind for anomaly in check(history, rules or Rules())}


def sent(key: str, at: float, offset: int) -> History:
    return [
        SendInvoked(at, key, TOPIC),
        SendAcknowledged(at + 1, key, QUEUE, offset),
        MessageStored(at + 0.5, key, QUEUE, offset),
    ]


def consumed(
    key: str, at: float, offset: int, *, member: str = "m", success: bool = True
) -> History:
    delivery = MessageDelivered(at, key, "g", member, QUEUE, offset, call=int(at))
    return [delivery, ListenerReturned(at + 1, delivery, success)]
