"""The answers of brokers and members, read as evidence.

Pure: peers' names and encodings end here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rocketstream.admin.core.evidence import (
    Evidence,
    FilterSeen,
    HeldQueue,
    Look,
    MessageFacts,
    TopicRates,
)
from rocketstream.admin.core.stacks import threads_of
from rocketstream.admin.rows import SubscriptionRow
from rocketstream.admin.state import GroupState, QueueKind, QueueState
from rocketstream.errors import SubscriptionError
from rocketstream.model import RESERVED_PROPERTIES
from rocketstream.protocol import names
from rocketstream.protocol.sql92 import property_names

if TYPE_CHECKING:
    from rocketstream.protocol.bodies import ConsumerRunningInfo, ConsumeStatus, ProcessQueueInfo
    from rocketstream.protocol.message_ext import MessageExt

RATES_MIN_MS = 400
"""Two states closer together than this give no rate."""


def look_of(info: ConsumerRunningInfo, taken_ms: int) -> Look:
    """Return the content of a member's running info (307)."""
    return Look(
        taken_ms,
        dict(info.properties),
        tuple(
            SubscriptionRow(data.topic, data.sub_string, data.expression_type or "TAG")
            for data in info.subscription_set
        ),
        {queue: _held(each) for queue, each in info.mq_table.items()},
        {topic: _rates(status) for topic, status in info.status_table.items()},
        threads_of(info.jstack),
    )


def message_of(message: MessageExt, queue: QueueState) -> MessageFacts:
    """Return the facts about a stored message; a retried one is under its first id."""
    properties = message.properties
    return MessageFacts(
        queue.topic,
        queue.broker_name,
        queue.queue_id,
        message.queue_offset,
        message.msg_id or message.offset_msg_id,
        message.keys or None,
        message.tags or None,
        message.store_timestamp,
        message.reconsume_times,
        properties.get("RETRY_TOPIC"),
    )


def tags_seen(row: SubscriptionRow, tags: Sequence[str | None]) -> FilterSeen:
    """Return how many of a topic's newest tags a group's subscription matches."""
    wanted = {tag.strip() for tag in row.expression.split("||")}
    matching = sum(tag in wanted for tag in tags)
    return FilterSeen(row.topic, row.expression, len(tags), matching, tuple(dict.fromkeys(tags)))


def condition_seen(row: SubscriptionRow, found: Sequence[Mapping[str, str]]) -> FilterSeen:
    """Return the properties a condition names and messages have; nothing is evaluated yet."""
    try:
        wanted = property_names(row.expression)
    except SubscriptionError:
        wanted = ()  # the condition uses a grammar we do not read
    has = tuple(sorted({name for properties in found for name in properties}))
    users = tuple(name for name in has if name in wanted or name not in RESERVED_PROPERTIES)
    return FilterSeen(
        row.topic,
        row.expression,
        0,
        0,
        expression_type=row.expression_type,
        names=wanted,
        properties=users,
    )


def arrival_tps(first: GroupState, second: GroupState) -> dict[str, float]:
    """Return messages a second that came into each topic between two states."""
    took_ms = second.taken_ms - first.taken_ms
    if took_ms < RATES_MIN_MS:
        return {}
    ends = {queue.key: queue.max_offset for queue in first.queues}
    found: dict[str, float] = {}
    for queue in second.of_kind(QueueKind.TOPIC):
        before = ends.get(queue.key)
        if before is not None and queue.max_offset is not None:
            came = max(queue.max_offset - before, 0)
            found[queue.topic] = found.get(queue.topic, 0.0) + came * 1_000 / took_ms
    return found


def not_told(evidence: Evidence) -> Iterable[str]:
    """Yield the facts about this group that no answer has."""
    state = evidence.state
    if state.message_model == "BROADCASTING":
        yield "a broadcasting group's progress is at its members, each has its own"
    if state.members == () and not state.of_kind(QueueKind.RETRY) and (state.lag or 0) > 0:
        yield (
            "no member of the group ever connected: whether the Spark query or pull program that "
            "commits for it runs is not visible"
        )
    if state.queues_unknown:
        untold = next((q.error for q in state.queues if q.lag is None and q.error), None)
        yield (
            f"the lag of {state.queues_unknown} of its queues"
            f"{f': {untold}' if untold else ': nothing was committed there yet'}"
        )


def _held(info: ProcessQueueInfo) -> HeldQueue:
    # Messages an orderly member's listener is working on are counted, but not in these offsets.
    first, last = info.cached_msg_min_offset, info.cached_msg_max_offset
    count = info.cached_msg_count
    has_range = count > 0 and last >= first
    return HeldQueue(
        info.commit_offset,
        count,
        first if has_range else None,
        last if has_range else None,
        info.cached_msg_size_in_mib,
        info.locked,
        info.droped,
        _known(info.last_pull_timestamp),
        _known(info.last_consume_timestamp),
        _known(info.last_lock_timestamp),
    )


def _rates(status: ConsumeStatus) -> TopicRates:
    return TopicRates(
        status.pull_tps,
        status.consume_rt,
        status.consume_ok_tps,
        status.consume_failed_tps,
        status.consume_failed_msgs,
    )


def _known(timestamp: int) -> int | None:
    return timestamp if timestamp > 0 else None


def is_retry(topic: str) -> bool:
    """Return whether a topic holds a group's messages for another try."""
    return topic.startswith(names.RETRY_PREFIX)
