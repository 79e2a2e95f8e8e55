"""Topics under settings of Spark's SQL, and in it: what it hands on, and what is read anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException

from rocketstream.server.embedded import EmbeddedCluster
from tests.spark.support import numbered, send

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

NewTopic = Callable[..., str]


def counted(spark: Any, relation: str) -> int:
    """How many rows there are now."""
    return int(spark.sql(f"SELECT count(*) FROM {relation}").collect()[0][0])


@pytest.fixture
def topic(spark: Any, new_topic: NewTopic) -> Any:
    """Names for a table and views that are dropped again."""
    topic = new_topic(queues=1)
    yield topic
    for view in ("fresh", "frozen"):
        spark.sql(f"DROP VIEW IF EXISTS {view}")
    spark.sql("DROP TABLE IF EXISTS rmq")


@pytest.mark.core
def test_options_in_the_query_read_a_topic_as_it_is_now(
    spark: Any, cluster: EmbeddedCluster, topic: str
) -> None:
    """As docs/spark.md has it: a table without options, then the options beside its name."""
    send(cluster, topic, 0, numbered(0, 5))
    options = f"(nameServer = '{cluster.namesrv_addr}', topic = '{topic}')"
    spark.sql("CREATE TABLE rmq USING rocketmq")
    spark.sql(f"CREATE VIEW fresh AS SELECT * FROM rmq WITH {options}")
    spark.sql(f"CREATE TEMPORARY VIEW frozen USING rocketmq OPTIONS {options}")
    views = (f"rmq WITH {options}", "fresh", "frozen")
    assert [counted(spark, view) for view in views] == [5, 5, 5]
    send(cluster, topic, 0, numbered(5, 3))
    assert [counted(spark, view) for view in views] == [8, 8, 5]
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW frozen USING rocketmq OPTIONS {options}")
    assert counted(spark, "frozen") == 8


def test_a_table_made_with_options_says_that_spark_dropped_them(
    spark: Any, cluster: EmbeddedCluster, topic: str
) -> None:
    """It says that nameServer is missing, which was given."""
    options = f"(nameServer '{cluster.namesrv_addr}', topic '{topic}')"
    spark.sql(f"CREATE TABLE rmq USING rocketmq OPTIONS {options}")
    with pytest.raises(PySparkException, match=r"hands none of a table's OPTIONS .* WITH \("):
        counted(spark, "rmq")


def test_rows_pass_in_arrows_large_types(spark: Any, cluster: EmbeddedCluster, topic: str) -> None:
    """Spark then hands sinks large_binary and large_string, and takes the usual ones of sources.

    Batches are cut by bytes too: a write whose rows are great gets few of them at a time.
    """
    options = {"nameServer": cluster.namesrv_addr, "topic": topic}
    arrow = "spark.sql.execution.arrow."
    settings = {f"{arrow}useLargeVarTypes": "true", f"{arrow}maxBytesPerBatch": "1000"}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        rows = spark.range(100).selectExpr(
            "cast(repeat(cast(id AS STRING), 50) AS BINARY) AS body",
            "cast(id AS STRING) AS keys",
            "map('n', cast(id AS STRING)) AS properties",
        )
        rows.coalesce(1).write.format("rocketmq").options(**options).mode("append").save()
        read = spark.read.format("rocketmq").options(**options).load()
        found = read.select("keys", "body", "properties").collect()
        assert read.mapInArrow(lambda parts: parts, read.schema).count() == 100
    finally:
        for name in settings:
            spark.conf.unset(name)
    assert sorted(
        (row["keys"], bytes(row.body).decode(), row.properties["n"]) for row in found
    ) == (sorted((str(n), str(n) * 50, str(n)) for n in range(100)))
