"""Sums of lag, and offset tables by group.

Pure: a figure that a broker did not answer stays None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rocketstream.admin.rows import LagRow
from rocketstream.model import MessageQueue
from rocketstream.protocol.names import offsets_place


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
            place = offsets_place(key)
            if place is not None and place[1] == group:
                for queue_id, offset in offsets.items():
                    found[MessageQueue(place[0], broker_name, queue_id)] = offset
    return found


def groups_of_offsets(tables: Mapping[str, Mapping[str, Mapping[int, int]]]) -> dict[str, set[str]]:
    """Return topics per group, for every group that ever committed an offset."""
    found: dict[str, set[str]] = {}
    for table in tables.values():
        for key in table:
            if (place := offsets_place(key)) is not None:
                found.setdefault(place[1], set()).add(place[0])
    return found
