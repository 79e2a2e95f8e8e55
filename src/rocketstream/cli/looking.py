"""Views of a cluster for commands that only look.

Law: no more of ``Admin`` is imported than they need: the rest takes a third of such a command's
time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rocketstream import limits

if TYPE_CHECKING:
    from rocketstream.admin.cluster.brokers import BrokerAdmin
    from rocketstream.admin.progress.groups import GroupAdmin

TIMEOUT_MS = 5_000


@contextmanager
def groups_of(namesrv: str) -> Iterator[GroupAdmin]:
    """Yield the operations on groups of the cluster behind a name server."""
    from rocketstream._util.clock import SYSTEM_CLOCK
    from rocketstream.admin.progress.groups import GroupAdmin
    from rocketstream.client.admin.blocking import BlockingAdminClient

    with BlockingAdminClient(namesrv, timeout_ms=TIMEOUT_MS) as client:
        yield GroupAdmin(client, TIMEOUT_MS, SYSTEM_CLOCK)


@contextmanager
def brokers_of(namesrv: str, timeout_ms: int = TIMEOUT_MS) -> Iterator[BrokerAdmin]:
    """Yield the operations on brokers, name servers, producers, and on topics those build on."""
    from rocketstream._util.clock import SYSTEM_CLOCK
    from rocketstream.admin.cluster.brokers import BrokerAdmin
    from rocketstream.client.admin.blocking import BlockingAdminClient

    connect_ms = min(timeout_ms, limits.CONNECT_TIMEOUT_MS)
    with BlockingAdminClient(
        namesrv, timeout_ms=timeout_ms, connect_timeout_ms=connect_ms
    ) as client:
        yield BrokerAdmin(client, timeout_ms, SYSTEM_CLOCK)
