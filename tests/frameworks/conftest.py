"""Fixtures: one embedded cluster for the tests of all frameworks, names of their own for each.

Law: delays are short, so that what comes again comes soon.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kits.cluster import Cluster, embedded

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a running cluster whose delay levels are all 100 ms."""
    path: Path = tmp_path_factory.mktemp("frameworks")
    with embedded(path) as running:
        yield running


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """Return a topic of two queues nobody else uses."""
    name = f"Tasks{next(_numbers)}"
    cluster.create_topic(name, 2)
    return name
