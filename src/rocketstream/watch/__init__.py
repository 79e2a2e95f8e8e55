"""The part that keeps watching a cluster: collection, history, metrics and notices, for every face.

Law: one collection serves all readers; no request of a reader calls a broker.
"""

from __future__ import annotations

from rocketstream.watch.collector import Collector, Cost, Update
from rocketstream.watch.core.outage import BrokerDown, Outage
from rocketstream.watch.core.series import Point
from rocketstream.watch.core.takeover import Gap
from rocketstream.watch.core.verdict_log import VerdictChange
from rocketstream.watch.history import History, PastVerdict

__all__ = [
    "BrokerDown",
    "Collector",
    "Cost",
    "Gap",
    "History",
    "Outage",
    "PastVerdict",
    "Point",
    "Update",
    "VerdictChange",
]
