"""Lite pull consumers of a test's topic, and what they are seen to do.

Law: no assertions.
"""

from __future__ import annotations

from typing import Any

from rocketstream import ConsumeFromWhere, MessageExt
from tests.kits.cluster import Cluster
from tests.kits.faces import LitePullConsumer
from tests.kits.listeners import WAIT_S
from tests.plugins.clusters import Names

FIRST = ConsumeFromWhere.FIRST_OFFSET
WAIT_MS = WAIT_S * 1000


def lite(cluster: Cluster, names: Names, **settings: Any) -> LitePullConsumer:
    settings.setdefault("consume_from_where", FIRST)
    return LitePullConsumer(names.group, namesrv_addr=cluster.namesrv_addr, **settings)


def subscribed(
    cluster: Cluster, names: Names, expression: str = "*", **settings: Any
) -> LitePullConsumer:
    made = lite(cluster, names, **settings)
    made.subscribe(names.topic, expression)
    made.start()
    return made


def is_waiting(consumer: Any) -> bool:
    """Whether a poll or an iteration waits for messages, on either face."""
    return bool(consumer._waiting)


def bodies(messages: list[MessageExt]) -> list[int]:
    return sorted(int(message.body) for message in messages)
