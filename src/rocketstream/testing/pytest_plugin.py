"""Pytest fixtures: an embedded RocketMQ cluster per test.

Law: imports nothing heavy until a fixture is used, since every pytest run loads this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from rocketstream.server.embedded import EmbeddedCluster


@pytest.fixture
def rocketmq_cluster_factory(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., EmbeddedCluster]]:
    """Return a function that starts a cluster with the given ``EmbeddedCluster`` arguments.

    Every cluster gets free ports, a fresh directory unless ``store_dir`` is given, and small files
    unless ``store_config`` is given. It is stopped when the test ends (stopping it earlier is
    fine). ``settings`` may give an ``EmbeddedSettings`` as the base.
    """
    from rocketstream.server.embedded import SMALL_STORE, EmbeddedCluster, EmbeddedSettings

    with ExitStack() as stack:

        def start(
            store_dir: Path | str | None = None,
            settings: EmbeddedSettings | None = None,
            **changes: Any,
        ) -> EmbeddedCluster:
            if store_dir is None:
                store_dir = tmp_path_factory.mktemp("rocketmq") / "store"
            if settings is None or settings.store_config is None:
                changes.setdefault("store_config", SMALL_STORE)
            return stack.enter_context(EmbeddedCluster(store_dir, settings, **changes))

        yield start


@pytest.fixture
def rocketmq_cluster(
    rocketmq_cluster_factory: Callable[..., EmbeddedCluster],
) -> EmbeddedCluster:
    """Return a running cluster: ``namesrv_addr``, ``broker_addr``, ``create_topic(...)``."""
    return rocketmq_cluster_factory()
