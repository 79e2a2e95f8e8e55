"""A snapshot: one sweep over a cluster's groups, as rows of one moment.

Law: asks, through ``rocketstream.admin``; opens its connections for one sweep and closes them.
"""

from __future__ import annotations

from typing import Any

from rocketstream._util.clock import SYSTEM_CLOCK
from rocketstream.admin.progress.overview import ProgressAdmin
from rocketstream.admin.rows import ProgressRow
from rocketstream.spark.connections import admin_client
from rocketstream.spark.options.progress import ProgressOptions

Row = tuple[Any, ...]


def take(options: ProgressOptions, observed_ms: int) -> list[Row]:
    """Return the rows of ``CLUSTER_COLUMNS`` as they are now.

    Args:
        options: which groups and topics, and how to reach the cluster.
        observed_ms: the time to write into them, ms since 1970.

    Raises:
        ConnectError: no name server answered.
    """
    # Not the whole Admin: what else it can do has locks, which do not travel by value.
    with admin_client(options) as client:
        found = ProgressAdmin(client, options.request_timeout_ms, SYSTEM_CLOCK).progress(
            options.groups,
            group_pattern=options.group_pattern,
            topics=options.topics,
            owners=options.owners,
        )
    return [_row(row, observed_ms) for row in found]


def failed(error: Exception, observed_ms: int) -> list[Row]:
    """Return the one row that tells why a snapshot has no other."""
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
