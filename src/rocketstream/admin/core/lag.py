"""Sums of lag, and offset tables by group.

Pure: a figure that a broker did not answer stays None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from rocketstream.admin.core.joining import by_group
from rocketstream.admin.rows import LagRow
from rocketstream.model import MessageQueue

Tables = Mapping[str, Mapping[str, Mapping[int, int]]]
"""Each broker's offsets by ``topic@group`` and queue (code 43)."""


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


def offsets_of(
    tables: Tables, is_meant: Callable[[str], bool]
) -> dict[tuple[str, MessageQueue], int]:
    """Return the committed offsets of the groups that are meant, by group and queue."""
    return {
        (group, MessageQueue(topic, broker_name, queue_id)): offset
        for broker_name, table in tables.items()
        for group, topics in by_group(table).items()
        if is_meant(group)
        for topic, offsets in topics.items()
        for queue_id, offset in offsets.items()
    }


def offsets_of_group(tables: Tables, group: str) -> dict[MessageQueue, int]:
    """Return the group's committed offsets by queue."""
    return {queue: offset for (_, queue), offset in offsets_of(tables, group.__eq__).items()}


def groups_of_offsets(tables: Tables) -> dict[str, set[str]]:
    """Return topics per group, for every group that ever committed an offset."""
    found: dict[str, set[str]] = {}
    for table in tables.values():
        for group, topics in by_group(table).items():
            found.setdefault(group, set()).update(topics)
    return found
