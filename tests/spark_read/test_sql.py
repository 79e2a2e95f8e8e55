"""Topics under settings of Spark's SQL, and in it: what it hands on, and what is read anew."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.spark.support import PAGES, numbered, page_example, send, stored

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
    for view in ("orders", "frozen"):
        spark.sql(f"DROP VIEW IF EXISTS {view}")
    spark.sql("DROP TABLE IF EXISTS rmq")


@pytest.mark.core
def test_the_pages_queries_read_a_topic_as_it_is_now(
    spark: Any, shared_cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    """docs/spark.md, as printed: a table without options, then the options beside its name."""
    text = (PAGES / "spark.md").read_text(encoding="utf-8")
    (printed,) = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
    printed = printed.replace("127.0.0.1:9876", shared_cluster.namesrv_addr).replace(
        "Orders", topic
    )
    keys = tmp_path / "keys"
    keys.write_text("accessKey=orders\nsecretKey=secret-of-orders\n", encoding="utf-8")
    assert printed.count("'/etc/rocketmq/keys'") == 1
    printed = printed.replace("/etc/rocketmq/keys", str(keys))
    table, query, view = (line.strip() for line in printed.strip().split(";\n"))
    send(shared_cluster, topic, 0, numbered(0, 5))
    options = f"(nameServer = '{shared_cluster.namesrv_addr}', topic = '{topic}')"
    frozen = f"TEMPORARY VIEW frozen USING rocketmq OPTIONS {options}"
    for statement in (table, view.rstrip(";"), f"CREATE {frozen}"):
        spark.sql(statement)

    def seen() -> list[int]:
        rows = spark.sql(query).collect()
        return [sum(row[1] for row in rows), counted(spark, "orders"), counted(spark, "frozen")]

    assert seen() == [5, 5, 5]
    send(shared_cluster, topic, 0, numbered(5, 3))
    assert seen()[:2] == [8, 8]
    spark.sql(f"CREATE OR REPLACE {frozen}")
    assert seen() == [8, 8, 8]


def test_a_table_made_with_options_says_that_spark_dropped_them(
    spark: Any, shared_cluster: EmbeddedCluster, topic: str
) -> None:
    """It says that nameServer is missing, which was given."""
    options = f"(nameServer '{shared_cluster.namesrv_addr}', topic '{topic}')"
    spark.sql(f"CREATE TABLE rmq USING rocketmq OPTIONS {options}")
    with pytest.raises(PySparkException, match=r"hands none of a table's OPTIONS .* WITH \("):
        counted(spark, "rmq")


def test_rows_are_inserted_by_sql(spark: Any, shared_cluster: EmbeddedCluster, topic: str) -> None:
    options = f"(nameServer = '{shared_cluster.namesrv_addr}', topic = '{topic}')"
    spark.sql("CREATE TABLE rmq (body STRING, tags STRING) USING rocketmq")
    spark.sql(f"INSERT INTO rmq WITH {options} SELECT 'one', 'a'")
    assert [bytes(row["body"]) for row in stored(shared_cluster, topic)] == [b"one"]


def test_the_page_begins_with_a_stream(
    spark: Any,
    shared_cluster: EmbeddedCluster,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """docs/spark.md, as printed."""
    send(shared_cluster, topic, 0, numbered(0, 3))
    monkeypatch.setattr("rocketstream.spark.prepare", lambda: None)
    text = page_example("start").replace("127.0.0.1:9876", shared_cluster.namesrv_addr)
    text = text.replace('"Orders"', repr(topic)).replace("/checkpoints", str(tmp_path))
    names: dict[str, Any] = {}
    exec(compile(text, "docs/spark.md", "exec"), names)  # noqa: S102
    names["query"].processAllAvailable()
    names["query"].stop()
    assert sum(batch.numInputRows for batch in names["query"].recentProgress) == 3


def test_rows_pass_in_arrows_large_types(
    spark: Any, shared_cluster: EmbeddedCluster, topic: str
) -> None:
    """Spark then hands sinks large_binary and large_string, and takes the usual ones of sources.

    Batches are cut by bytes too: a write whose rows are great gets few of them at a time.
    """
    options = {"nameServer": shared_cluster.namesrv_addr, "topic": topic}
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
