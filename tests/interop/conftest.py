"""Fixtures of the suites against the real Apache RocketMQ."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from rocketstream.spark.setup.preparation import local_python
from tests.plugins.apache import apache, apache_cluster, java

__all__ = ["apache", "apache_cluster", "java", "spark"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session on two cores, ended with the suite."""
    from tests.spark.conftest import session_builder

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = local_python()
    session = session_builder(tmp_path_factory.mktemp("spark")).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
