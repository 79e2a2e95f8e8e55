"""Fixtures: a peer of each server of a running cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.peer import Peer

MakeCluster = Callable[..., EmbeddedCluster]


@pytest.fixture
def broker_peer(rocketmq_cluster: EmbeddedCluster) -> Iterator[Peer]:
    """Return a peer of the cluster's broker."""
    with Peer(rocketmq_cluster.broker_addr) as peer:
        yield peer


@pytest.fixture
def namesrv_peer(rocketmq_cluster: EmbeddedCluster) -> Iterator[Peer]:
    """Return a peer of the cluster's name server."""
    with Peer(rocketmq_cluster.namesrv_addr) as peer:
        yield peer
