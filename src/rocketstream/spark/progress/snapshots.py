"""A snapshot: one sweep over a cluster's groups, as rows of one moment.

``rocketstream.admin`` asks the brokers; its connections are opened for one sweep and closed.
"""

from __future__ import annotations

from typing import Any

from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.admin.groups import Groups
from rocketstream.admin.rows import ProgressRow
from rocketstream.admin.service import Reach
from rocketstream.spark.connections import admin_client
from rocketstream.spark.options.formats import ProgressOptions

Row = tuple[Any, ...]


def take(options: ProgressOptions, observed_ms: int) -> list[Row]:
    """Return the rows of ``CLUSTER_COLUMNS`` as they are now.

    Args:
        options: select groups and topics, and say how to reach the cluster.
        observed_ms: the time to write into the rows, ms since 1970.

    Raises:
        ConnectError: no name server answered.
    """
    # Not the whole Admin: its other parts have locks, which cannot travel by value.
    with admin_client(options) as client:
        reach = Reach(client, options.request_timeout_ms, SYSTEM_CLOCK)
        found = Groups(reach).progress(
            options.groups,
            group_pattern=options.group_pattern,
            topics=options.topics,
            owners=options.owners,
        )
    return [_row(row, observed_ms) for row in found]


def failed(error: Exception, observed_ms: int) -> list[Row]:
    """Return the one row that says why a snapshot has no others."""
    return [_row(ProgressRow(None, None, None, error=str(error)), observed_ms)]


def _row(row: ProgressRow, observed_ms: int) -> Row:
    return (
        row.cluster,
        row.broker_name,
        row.group,
        row.topic,
        row.kind,
        row.queue_id,
        row.min_offset,
        row.max_offset,
        row.committed_offset,
        row.lag,
        row.time_lag_ms,
        row.last_consumed_ms,
        row.client_id,
        row.members,
        row.consume_tps,
        observed_ms,
        row.error,
        row.expired,
    )
