"""The dashboard: a cluster's groups, topics, messages and dead letters in a browser.

Law: a renderer of ``admin`` and ``watch``; it decides nothing about a cluster.
"""

from __future__ import annotations

from rocketstream.dashboard.app import Cluster, create_app
from rocketstream.dashboard.guard import Settings
from rocketstream.dashboard.users import Role, TokenFile

__all__ = ["Cluster", "Role", "Settings", "TokenFile", "create_app"]
