"""The values the driver hands to a task: the scan, and the ranges planned for one partition.

Pure: plain values that pickle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rocketstream.columns.table import ERROR, Column
from rocketstream.errors import ConfigurationError, SubscriptionError
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import SubscriptionData
from rocketstream.protocol.names import SPARK_PULL_GROUP
from rocketstream.protocol.subscription import EXPRESSION_SQL92, EXPRESSION_TAG, build_subscription
from rocketstream.protocol.subscription import tags_hint as tags_hint
from rocketstream.spark.options import ReadOptions

SUBSCRIBE_ALL = "*"
DEFAULT_GROUP = SPARK_PULL_GROUP
"""The group in pulls when the user names none; its offsets are neither read nor written."""


@dataclass(frozen=True, slots=True)
class Scan:
    """A read as it travels to the executors.

    Attributes:
        options: the user's options.
        columns: columns to decode, in order.
        tags: exact tags wanted, None for all messages.
    """

    options: ReadOptions
    columns: tuple[Column, ...]
    tags: frozenset[str] | None

    @property
    def filtered(self) -> bool:
        """Whether the broker filters messages, so that gaps between offsets are normal."""
        return self.tags is not None or self.options.sql is not None

    @property
    def group(self) -> str:
        """The group named in pulls."""
        return self.options.group or DEFAULT_GROUP


@dataclass(frozen=True, slots=True, order=True)
class QueueRange:
    """Offsets ``begin`` to ``end`` (exclusive) of one queue."""

    queue: MessageQueue
    begin: int
    end: int

    @property
    def count(self) -> int:
        """How many offsets the range spans."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The part of a read that goes into one Spark partition.

    Attributes:
        spans: queue ranges, possibly of several brokers.
        addresses: ``host:port`` of each broker named in ``spans``.
    """

    spans: tuple[QueueRange, ...]
    addresses: Mapping[str, str]


def new_scan(options: ReadOptions, columns: tuple[Column, ...]) -> Scan:
    """Return the scan of some options.

    Raises:
        ConfigurationError: ``tags`` or ``sql`` is not an expression (C-99 to C-101), or
            ``mode=permissive`` without the column ``error``.
    """
    if options.permissive and not any(column.name == ERROR for column in columns):
        raise ConfigurationError(
            f"option 'mode' is permissive, but the schema has no column {ERROR!r}: rows of records "
            f"that cannot be decoded could not be told from others. Add '{ERROR} STRING'"
        )
    tags = None
    if options.sql is not None:
        _subscription("sql", options.sql, EXPRESSION_SQL92)
    if options.tags != SUBSCRIBE_ALL:
        subscription = _subscription("tags", options.tags, EXPRESSION_TAG)
        tags = frozenset(subscription.tags_set) or None
    return Scan(options, columns, tags)


def _subscription(option: str, text: str, kind: str) -> SubscriptionData:
    try:
        return build_subscription("", text, 0, kind)
    except SubscriptionError as error:
        why = error.message.removeprefix("subscription exception: ")
        raise SubscriptionError(f"option {option!r} is {text!r}: {why}", option=option) from None
