"""Fixtures: a running cluster and a peer of each of its servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from rocketstream.server.embedded import EmbeddedCluster
from tests.server.peer import Peer

MakeCluster = Callable[..., EmbeddedCluster]


@pytest.fixture
def cluster(rocketmq_cluster: EmbeddedCluster) -> EmbeddedCluster:
    return rocketmq_cluster


@pytest.fixture
def broker(cluster: EmbeddedCluster) -> Iterator[Peer]:
    with Peer(cluster.broker_addr) as peer:
        yield peer


@pytest.fixture
def namesrv(cluster: EmbeddedCluster) -> Iterator[Peer]:
    with Peer(cluster.namesrv_addr) as peer:
        yield peer
