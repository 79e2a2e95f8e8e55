"""How far a group is, from what the brokers told: pure joins and subtractions.

Law: no requests here. What a broker did not tell stays None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rocketstream.admin.rows import LagRow
from rocketstream.model import MessageQueue

if TYPE_CHECKING:
    from rocketstream.protocol.bodies import ConsumerConnection, QueueTimeSpan


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """One queue's entry of GET_CONSUME_STATS (208), where a missing offset is sent as 0."""

    broker_offset: int
    consumer_offset: int
    last_timestamp: int


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """Everything known besides the 208 answers.

    Attributes:
        stored: committed offsets of the group per queue; None when the brokers would not tell,
            so that an offset of 0 in a 208 answer cannot be told from "none" (C-527).
        owners: client id per queue, from the running members.
        delays_ms: age of the oldest unconsumed message per queue (303).
    """

    stored: Mapping[MessageQueue, int] | None = None
    owners: Mapping[MessageQueue, str] = field(default_factory=dict)
    delays_ms: Mapping[MessageQueue, int] = field(default_factory=dict)


def committed_offset(queue: MessageQueue, progress: QueueProgress, facts: GroupFacts) -> int | None:
    """Return the committed offset, None when there is none or it cannot be told from none."""
    if progress.consumer_offset > 0:
        return progress.consumer_offset
    if facts.stored is None:
        return None
    return facts.stored.get(queue)


def lag_row(group: str, queue: MessageQueue, progress: QueueProgress, facts: GroupFacts) -> LagRow:
    """Return the row of one queue."""
    committed = committed_offset(queue, progress, facts)
    if committed is not None:
        lag: int | None = progress.broker_offset - committed
    else:
        # An empty queue has nothing to be behind of, whatever is committed.
        lag = 0 if progress.broker_offset == 0 else None
    if lag is not None and lag <= 0:
        time_lag: int | None = 0
    else:
        time_lag = facts.delays_ms.get(queue) if committed is not None else None
    return LagRow(
        group=group,
        topic=queue.topic,
        broker_name=queue.broker_name,
        queue_id=queue.queue_id,
        broker_offset=progress.broker_offset,
        consumer_offset=committed,
        lag=lag,
        last_consumed_ms=progress.last_timestamp if progress.last_timestamp > 0 else None,
        time_lag_ms=time_lag,
        client_id=facts.owners.get(queue),
    )


def lag_rows(
    group: str, table: Mapping[MessageQueue, QueueProgress], facts: GroupFacts
) -> list[LagRow]:
    """Return the rows of all queues, sorted by topic, broker and queue."""
    return [lag_row(group, queue, table[queue], facts) for queue in sorted(table)]


def delay_ms(span: QueueTimeSpan) -> int | None:
    """Return how long the oldest message not consumed has been stored; None when nobody knows.

    Where the message at the committed offset is deleted a broker takes -1 for its store time and
    answers decades; the next message is then the oldest one kept.
    """
    if span.delay_time <= span.max_time_stamp:
        return max(span.delay_time, 0)
    broker_now_ms = span.delay_time - 1
    if span.min_time_stamp <= 0:
        return None
    return max(broker_now_ms - span.min_time_stamp, 0)


def only_owner(
    queues: Iterable[MessageQueue], connections: Mapping[str, ConsumerConnection]
) -> dict[MessageQueue, str]:
    """Return the owner where it is certain without asking: the only member of a clustering group.

    Args:
        queues: the queues the group has progress in.
        connections: the connected members by broker.
    """
    members = {m.client_id for found in connections.values() for m in found.connection_set}
    models = {found.message_model for found in connections.values()}
    if len(members) != 1 or models != {"CLUSTERING"}:
        return {}
    member = members.pop()
    topics = {topic for found in connections.values() for topic in found.subscription_table}
    return {queue: member for queue in queues if queue.topic in topics}


def total_lag(rows: Iterable[LagRow]) -> tuple[int | None, int]:
    """Return the sum of the known lags (None when none is known) and how many are unknown."""
    known = 0
    unknown = 0
    any_known = False
    for row in rows:
        if row.lag is None:
            unknown += 1
        else:
            known += row.lag
            any_known = True
    return (known if any_known else None), unknown


def offsets_of_group(
    tables: Mapping[str, Mapping[str, Mapping[int, int]]], group: str
) -> dict[MessageQueue, int]:
    """Return the group's committed offsets from each broker's ``topic@group`` table (code 43)."""
    found: dict[MessageQueue, int] = {}
    for broker_name, table in tables.items():
        for key, offsets in table.items():
            topic, _, owner = key.rpartition("@")
            if owner == group:
                for queue_id, offset in offsets.items():
                    found[MessageQueue(topic, broker_name, queue_id)] = offset
    return found


def groups_of_offsets(tables: Mapping[str, Mapping[str, Mapping[int, int]]]) -> dict[str, set[str]]:
    """Return topics per group, for every group that ever committed an offset."""
    found: dict[str, set[str]] = {}
    for table in tables.values():
        for key in table:
            topic, separator, group = key.rpartition("@")
            if separator:
                found.setdefault(group, set()).add(topic)
    return found
