"""Fixtures: the referee's version, its running cluster, its Java client.

Law: one cluster serves all tests of a version in a process: topics and groups are unique per test.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kits.apache.cluster import ApacheCluster, JavaPrograms
from tests.kits.apache.referee import REFEREES, Referee, RefereeUnavailableError
from tests.plugins.kept import kept

SHARED = {"enablePropertyFilter": "true", "traceTopicEnable": "true"}
"""What no test of a shared broker minds, and some need."""


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


@contextmanager
def _killed_at_the_end(cluster: ApacheCluster) -> Iterator[ApacheCluster]:
    try:
        yield cluster.start()
    finally:
        # Nobody opens this store again, and its orderly end takes ten seconds.
        cluster.stop(kill=True)


def shared_cluster(
    version: str, folders: pytest.TempPathFactory, settings: Mapping[str, str] | None = None
) -> ApacheCluster:
    """The servers of a version that all tests of this process share, with settings added."""
    settings = {**SHARED, **(settings or {})}
    return kept(
        (version, tuple(sorted(settings.items()))),
        lambda: _killed_at_the_end(
            ApacheCluster(
                prepared(version),
                folders.mktemp(f"apache-{version}-"),
                broker_settings=settings,
            )
        ),
    )


@pytest.fixture(scope="session")
def apache_cluster(apache: Referee, tmp_path_factory: pytest.TempPathFactory) -> ApacheCluster:
    """The running cluster of the referee that all tests of its version share."""
    return shared_cluster(apache.version, tmp_path_factory)


@pytest.fixture
def java(apache: Referee, tmp_path: Path) -> JavaPrograms:
    """The Java client of the referee's version."""
    return JavaPrograms(apache, tmp_path / "java")
