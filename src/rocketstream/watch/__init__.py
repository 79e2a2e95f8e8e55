"""The part that keeps watching a cluster: collection, history, metrics and notices, for every face.

Law: one collection serves all readers; no request of a reader calls a broker.
"""

from __future__ import annotations

from rocketstream.watch.collector import Collector, Cost
from rocketstream.watch.history import History, PastVerdict, default_history, kept_past
from rocketstream.watch.model import BrokerDown, GroupLook, Outage, Update, VerdictChange
from rocketstream.watch.series import Point
from rocketstream.watch.windows import Gap, Past

__all__ = [
    "BrokerDown",
    "Collector",
    "Cost",
    "Gap",
    "GroupLook",
    "History",
    "Outage",
    "Past",
    "PastVerdict",
    "Point",
    "Update",
    "VerdictChange",
    "default_history",
    "kept_past",
]
