"""What the landing pipelines keep beside a table, in directories that only Hadoop reaches."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketstream.errors import ConfigurationError
from rocketstream.pipelines.backfill import BackfillPlan, backfill, check_target, resolve_ranges
from rocketstream.pipelines.bodies import bodies_of
from rocketstream.pipelines.ingest import IngestPlan, ingest, prepare_target, resumes
from rocketstream.pipelines.places import HadoopPlace, local_path
from rocketstream.pipelines.targets import Target
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.spark.support import Sent, send

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

NewTopic = Callable[..., str]
_numbers = itertools.count()


@pytest.mark.parametrize(
    ("path", "local"),
    [
        ("hdfs://n/t", None), ("hdfs:/t", None), ("dbfs:/t", None), ("s3a://b/t", None),
        ("C:/t", Path("C:/t")), ("./t:u/v", Path("t:u/v")),
        ("file:/t%20u", Path("/t u")), ("file:///t", Path("/t")), ("/a/b:c", Path("/a/b:c")),
    ],
)  # fmt: skip
def test_a_path_is_of_this_machine_where_hadoop_takes_it_for_one(
    path: str, local: Path | None
) -> None:
    assert local_path(path) == local


def test_a_path_without_a_scheme_that_spark_looks_for_elsewhere_is_refused(
    spark: Any, tmp_path: Path
) -> None:
    """Of a table in one place and a marker in the other neither would be known again."""
    spark.conf.set("fs.defaultFS", "hdfs://lake:8020")
    try:
        plan = IngestPlan(("T",), {}, Target("parquet", str(tmp_path / "t")))
        with pytest.raises(ConfigurationError, match=r"hdfs://lake:8020/… for .*, or file:///.*/t"):
            prepare_target(plan, spark)
        there = dataclasses.replace(plan, target=Target("parquet", f"file://{tmp_path}/t"))
        assert prepare_target(there, spark) == there
    finally:
        spark.conf.unset("fs.defaultFS")


@pytest.fixture
def mounted(spark: Any, tmp_path: Path) -> Iterator[str]:
    """A URL that is a directory to Hadoop alone, by its file system of views."""
    table = f"lake{next(_numbers)}"  # Hadoop keeps what it has mounted for the JVM's life
    name = f"fs.viewfs.mounttable.{table}.link./tables"
    spark.conf.set(name, tmp_path.as_uri())
    yield f"viewfs://{table}/tables"
    spark.conf.unset(name)


def test_small_files_are_kept_where_hadoop_reaches(
    spark: Any, mounted: str, tmp_path: Path
) -> None:
    place = HadoopPlace(spark, f"{mounted}/a table")
    assert (place.names(), place.read("x.json")) == ([], None)
    place.write("x.json", "für")
    place.write("x.json", "für alle")
    place.under("offsets").write("7", "")
    assert (tmp_path / "a table" / "x.json").read_text("utf-8") == "für alle"
    assert place.read("x.json") == "für alle"
    assert sorted(name for name in place.names() if not name.startswith(".")) == [
        "offsets", "x.json",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("nowhere://x/y", "has no file system for nowhere://"),
        ("s3a://bucket/y", r"add --package org.apache.hadoop:hadoop-aws:\d+\.\d+\.\d+, and"),
    ],
)
def test_a_place_hadoop_does_not_reach_is_refused_with_what_to_do(
    spark: Any, path: str, text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        HadoopPlace(spark, path).names()


@pytest.mark.long
def test_tables_elsewhere_are_known_again(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, mounted: str, tmp_path: Path
) -> None:
    """As on this machine: gone on with, not mixed, and nothing is landed twice."""
    topic = new_topic(queues=1)
    send(shared_cluster, topic, 0, [Sent(b'{"id": %d}' % n) for n in range(3)])
    source = {"nameServer": shared_cluster.namesrv_addr, "startingOffsets": "earliest"}
    table = Target("parquet", f"{mounted}/table")
    plan = IngestPlan((topic,), source, table, bodies_of(None, "infer"))
    assert prepare_target(plan) == plan
    assert not resumes(plan, spark)
    assert ingest(spark, plan).rows == 3
    assert json.loads((tmp_path / "table/_ingest.json").read_text())["topics"] == [topic]
    assert (resumes(plan, spark), resumes(plan)) == (True, False)
    assert prepare_target(plan, spark).bodies.schema == "id BIGINT"
    assert ingest(spark, plan).rows == 0
    with pytest.raises(ConfigurationError, match="was landed with topics="):
        ingest(spark, dataclasses.replace(plan, topics=("other",)))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(ConfigurationError, match=f"{mounted}/taken is not empty"):
        ingest(spark, dataclasses.replace(plan, target=Target("parquet", f"{mounted}/taken")))
    closed = BackfillPlan(
        (topic,),
        {"nameServer": shared_cluster.namesrv_addr},
        Target("parquet", f"{mounted}/closed"),
    )
    ranges = resolve_ranges(closed)
    check_target(closed, ranges)
    assert backfill(spark, closed, ranges).rows == 3
    with pytest.raises(ConfigurationError, match="closed is not empty"):
        backfill(spark, closed, ranges)
    with pytest.raises(ConfigurationError, match="holds offsets 0 to 2 of topic"):
        backfill(spark, dataclasses.replace(closed, mode="append"), ranges)
    assert spark.read.parquet(f"{mounted}/closed").count() == 3
