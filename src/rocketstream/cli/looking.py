"""Views of a cluster for commands that only look.

Law: no command writes an audit file unless it changes something.
"""

from __future__ import annotations

from rocketstream import limits
from rocketstream.admin.admin import Admin

TIMEOUT_MS = 5_000


def brokers_of(namesrv: str, timeout_ms: int = TIMEOUT_MS) -> Admin:
    """Return the operations on the cluster behind a name server."""
    connect_ms = min(timeout_ms, limits.CONNECT_TIMEOUT_MS)
    return Admin(namesrv, timeout_ms=timeout_ms, connect_timeout_ms=connect_ms, read_only=True)


groups_of = brokers_of
