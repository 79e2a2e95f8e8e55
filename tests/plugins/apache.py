"""Fixtures: the referee's version, its running cluster, its Java client.

Law: one cluster serves a whole session and version, so topics and groups are unique per test.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.cluster import ApacheCluster, JavaPrograms
from tests.interop.referee import REFEREES, Referee, RefereeUnavailableError


def prepared(version: str) -> Referee:
    """The referee ready to run; skips the test where it cannot be had, or fails it in CI."""
    referee = REFEREES[version]
    try:
        referee.prepare()
    except RefereeUnavailableError as reason:
        text = f"Apache RocketMQ {version} is not available: {reason}"
        if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
            pytest.fail(text, pytrace=False)
        pytest.skip(text)
    return referee


@pytest.fixture(scope="session", params=sorted(REFEREES))
def apache(request: pytest.FixtureRequest) -> Referee:
    """The referee, once per version; pytest groups the tests so that one version runs at a time."""
    return prepared(request.param)


@pytest.fixture(scope="session")
def apache_cluster(
    apache: Referee, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheCluster]:
    """A running cluster of the referee, started on first use and ended before the next version."""
    root = tmp_path_factory.mktemp(f"apache-{apache.version}-")
    cluster = ApacheCluster(apache, root).start()
    try:
        yield cluster
    finally:
        # Nobody opens this store again, and its orderly end takes ten seconds.
        cluster.stop(kill=True)


@pytest.fixture
def java(apache: Referee, tmp_path: Path) -> JavaPrograms:
    """The Java client of the referee's version."""
    return JavaPrograms(apache, tmp_path / "java")
