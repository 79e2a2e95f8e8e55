"""Typed operations on topics, groups and consumption progress; the command line renders them.

Law: no printing, no formatting: what is unknown is None here, never zero.
"""

from __future__ import annotations

from rocketstream.admin.admin import Admin
from rocketstream.admin.again import LetterFilter
from rocketstream.admin.lag import total_lag
from rocketstream.admin.redrive import RedrivePlan, RedriveResult
from rocketstream.admin.rows import (
    BrokerRow,
    ConnectionRow,
    ConsumedRow,
    GroupRow,
    LagRow,
    MemberRow,
    ProgressRow,
    ResetRow,
    RouteRow,
    RunningInfoRow,
    RunningQueueRow,
    SubscriptionRow,
    TimeSpanRow,
    TopicRow,
    TopicStatusRow,
    TrackRow,
)

__all__ = [
    "Admin",
    "BrokerRow",
    "ConnectionRow",
    "ConsumedRow",
    "GroupRow",
    "LagRow",
    "LetterFilter",
    "MemberRow",
    "ProgressRow",
    "RedrivePlan",
    "RedriveResult",
    "ResetRow",
    "RouteRow",
    "RunningInfoRow",
    "RunningQueueRow",
    "SubscriptionRow",
    "TimeSpanRow",
    "TopicRow",
    "TopicStatusRow",
    "TrackRow",
    "total_lag",
]
