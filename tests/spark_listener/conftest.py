"""What tests of claims on a group share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.server.embedded import EmbeddedCluster


@pytest.fixture
def admin(cluster: EmbeddedCluster) -> Iterator[BlockingAdminClient]:
    """A client of the module's cluster."""
    with BlockingAdminClient(cluster.namesrv_addr) as client:
        yield client
