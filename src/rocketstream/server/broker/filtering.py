"""The tests of a subscription: one of the index entry, one of the message (C-381, C-395)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rocketstream.errors import RemoteProtocolError
from rocketstream.limits import FILTER_STEPS_PER_PULL
from rocketstream.protocol.bodies import SubscriptionData
from rocketstream.protocol.names import RETRY_PREFIX
from rocketstream.protocol.properties import PROPERTY_RETRY_TOPIC, decode_properties
from rocketstream.protocol.record import read_head
from rocketstream.protocol.sql92 import Expression
from rocketstream.server.broker.core.consumer_filters import ConsumerFilters, is_tag_type
from rocketstream.server.broker.core.long_poll import TagMatch

logger: logging.Logger = logging.getLogger("rocketstream.server")

Accept = Callable[[bytes], bool]
_LOOK_STEPS = 10
"""Cost of examining the smallest message."""


class Budget:
    """The remaining cost that examining messages may have, in comparisons of two numbers."""

    __slots__ = ("left",)

    def __init__(self, steps: int) -> None:
        self.left: int = steps

    def is_spent(self) -> bool:
        """Whether the budget is used up; a test already begun is finished."""
        return self.left <= 0


@dataclass(frozen=True, slots=True)
class PullFilter:
    """The tests of one pull; None lets everything through.

    ``is_enough`` tells when so many messages were examined that the pull must be answered.
    """

    match: TagMatch | None = None
    accept: Accept | None = None
    budget: Budget | None = None

    @property
    def is_enough(self) -> Callable[[], bool] | None:
        """The function that tells the store to stop scanning."""
        return None if self.budget is None else self.budget.is_spent


def tag_filter(subscription: SubscriptionData) -> PullFilter:
    """Return the tests of a subscription by tags (C-381)."""
    if subscription.sub_string == "*" or subscription.class_filter_mode:
        return PullFilter()
    return PullFilter(subscription.code_set.__contains__)


def condition_filter(expression: Expression) -> PullFilter:
    """Return the tests of a subscription by a condition (C-383, C-390)."""

    budget = Budget(FILTER_STEPS_PER_PULL)

    def accept(record: bytes) -> bool:
        properties = _properties(record, budget)
        budget.left -= expression.parts
        return properties is not None and expression.matches(properties)

    return PullFilter(accept=accept, budget=budget)


def retry_filter(filters: ConsumerFilters, group: str) -> PullFilter:
    """Return the tests of a retry topic: the condition on each message's first topic (C-396)."""

    budget = Budget(FILTER_STEPS_PER_PULL)

    def accept(record: bytes) -> bool:
        properties = _properties(record, budget)
        if properties is None:
            return True
        known = filters.get(properties.get(PROPERTY_RETRY_TOPIC, ""), group)
        if known is None:
            return True
        budget.left -= known.compiled.parts
        return known.compiled.matches(properties)

    return PullFilter(accept=accept, budget=budget)


def readable_filter(
    wanted: PullFilter, may_read: Callable[[Mapping[str, str]], bool]
) -> PullFilter:
    """Return the tests of a pull that passes over messages the puller has no right to."""
    budget = wanted.budget or Budget(FILTER_STEPS_PER_PULL)

    def accept(record: bytes) -> bool:
        if wanted.accept is not None and not wanted.accept(record):
            return False
        properties = _properties(record, budget)
        return properties is not None and may_read(properties)

    return PullFilter(wanted.match, accept, budget)


def retried_group(topic: str) -> str | None:
    """Return the group whose retry topic a topic is; None for another topic."""
    return topic.removeprefix(RETRY_PREFIX) if topic.startswith(RETRY_PREFIX) else None


def unsupported(expression_type: str) -> str:
    """Return the refusal of a broker where conditions are switched off (C-357 number 14)."""
    return f"The broker does not support consumer to filter message by {expression_type}"


def is_by_tags(subscription: SubscriptionData) -> bool:
    """Whether a subscription can be tested without reading the message."""
    return subscription.class_filter_mode or is_tag_type(subscription.expression_type)


def _properties(record: bytes, budget: Budget) -> dict[str, str] | None:
    try:
        head = read_head(record)
    except RemoteProtocolError as error:
        logger.warning("a stored record cannot be read, no condition selects it: %s", error)
        return None
    # Bodies are only copied; properties are parsed, which costs much more per byte.
    budget.left -= len(record) // 1_024 + head.properties_size // 8 + _LOOK_STEPS
    start = head.properties_start
    return decode_properties(record[start : start + head.properties_size])
