"""Fixtures: one Spark session and one cluster for all tests of Spark, a topic of its own for each.

Law: Spark is imported by those who ask for it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketstream.server.embedded import EmbeddedCluster
from tests.plugins.environment import SHORT_LIVED_JVM

CONFIGURATION = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.extraJavaOptions": SHORT_LIVED_JVM,
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
}
_topic_numbers = itertools.count()


def session_builder(root: Path) -> Any:
    """A builder for a session that keeps to a directory and to loopback."""
    from pyspark.sql import SparkSession

    from rocketstream.spark.setup.preparation import local_python, use_java

    os.environ.setdefault("PYSPARK_PYTHON", local_python())
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", local_python())
    use_java()
    builder = SparkSession.builder.master("local[2]").appName("rocketstream-tests")
    for name, value in CONFIGURATION.items():
        builder = builder.config(name, value)
    return (
        builder.config("spark.local.dir", str(root / "local"))
        .config("spark.sql.warehouse.dir", str(root / "warehouse"))
        .config("spark.driver.extraJavaOptions", f"-Dderby.system.home={root}")
    )


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session on two cores."""
    session = session_builder(tmp_path_factory.mktemp("spark")).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[EmbeddedCluster]:
    """A running cluster."""
    with EmbeddedCluster() as running:
        yield running


@pytest.fixture
def new_topic(shared_cluster: EmbeddedCluster) -> Callable[..., str]:
    """A function that creates a topic and returns its name."""

    def create(queues: int = 2) -> str:
        name = f"topic-{next(_topic_numbers)}"
        shared_cluster.create_topic(name, queues=queues)
        return name

    return create


@pytest.fixture
def read(spark: Any, shared_cluster: EmbeddedCluster) -> Callable[..., Any]:
    """A function that returns the DataFrame of a topic: ``read(topic, schema=None, **options)``."""

    def load(topic: str, schema: str | None = None, **options: Any) -> Any:
        reader = spark.read.format("rocketmq").option("nameServer", shared_cluster.namesrv_addr)
        if schema is not None:
            reader = reader.schema(schema)
        return reader.options(topic=topic, **options).load()

    return load


@pytest.fixture
def stream(spark: Any, shared_cluster: EmbeddedCluster) -> Callable[..., Any]:
    """A function that returns the streaming DataFrame of a topic, from its beginning if not said
    otherwise: ``stream(topic, schema=None, **options)``.
    """

    def load(topic: str, schema: str | None = None, **options: Any) -> Any:
        reader = spark.readStream.format("rocketmq").option(
            "nameServer", shared_cluster.namesrv_addr
        )
        if schema is not None:
            reader = reader.schema(schema)
        return reader.options(**{"topic": topic, "startingOffsets": "earliest"} | options).load()

    return load
