"""A snapshot: one sweep over a cluster's groups, as rows of one moment.

Law: asks, through ``rocketstream.admin``; opens its connections for one sweep and closes them.
"""

from __future__ import annotations

from typing import Any

from rocketstream.admin import Admin, ProgressRow
from rocketstream.spark.options.progress import ProgressOptions
from rocketstream.spark.tls import tls_context

Row = tuple[Any, ...]


def take(options: ProgressOptions, observed_ms: int) -> list[Row]:
    """Return the rows of ``CLUSTER_COLUMNS`` as they are now.

    Args:
        options: which groups and topics, and how to reach the cluster.
        observed_ms: the time to write into them, ms since 1970.

    Raises:
        ConnectError: no name server answered.
    """
    with _admin(options) as admin:
        found = admin.progress(
            options.groups,
            group_pattern=options.group_pattern,
            topics=options.topics,
            owners=options.owners,
        )
    return [_row(row, observed_ms) for row in found]


def failed(error: Exception, observed_ms: int) -> list[Row]:
    """Return the one row that tells why a snapshot has no other."""
    return [_row(ProgressRow(None, None, None, error=str(error)), observed_ms)]


def _admin(options: ProgressOptions) -> Admin:
    return Admin(
        options.name_server,
        timeout_ms=options.request_timeout_ms,
        connect_timeout_ms=options.connect_timeout_ms,
        access_key=options.access_key,
        secret_key=options.secret_key,
        security_token=options.security_token,
        ssl_context=tls_context(options),
    )


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
    )
