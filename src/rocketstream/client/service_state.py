"""The four states of every client (C-106).

Law: a value, no behaviour.
"""

from __future__ import annotations

import enum


class ServiceState(enum.Enum):
    """Where a client is in its life."""

    CREATE_JUST = "CREATE_JUST"
    START_FAILED = "START_FAILED"
    RUNNING = "RUNNING"
    SHUTDOWN_ALREADY = "SHUTDOWN_ALREADY"
