"""The part that keeps watching a cluster: collection, history, metrics and notices, for every face.

Law: one collection serves all readers; no request of a reader calls a broker.
"""

from __future__ import annotations

from rocketstream.watch.collector import Collector, Cost
from rocketstream.watch.core.series import Point
from rocketstream.watch.core.takeover import Gap
from rocketstream.watch.history import History, PastVerdict
from rocketstream.watch.model import BrokerDown, GroupLook, Outage, Update, VerdictChange

__all__ = [
    "BrokerDown",
    "Collector",
    "Cost",
    "Gap",
    "GroupLook",
    "History",
    "Outage",
    "PastVerdict",
    "Point",
    "Update",
    "VerdictChange",
]
