"""Canal's changes over RocketMQ into a table and its history, by ``create_auto_cdc_flow``.

The tables are those of Spark's own tests: in memory, with what MERGE needs.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rocketstream import Message, Producer
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.apache.referee import RefereeUnavailableError, resolved_jars
from tests.kits.spark.pipelines import ROOT, pipeline_environment, placed
from tests.landing.change_data_program import CATALOG

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.timeout(600)]

TOPIC = "example-customers"
POM = ROOT / "tests/kits/apache/poms/row-level-4.2.xml"
Row = dict[str, str]


def jars() -> Path:
    """The jar with the catalog; skips the test where it cannot be had, or fails it in CI."""
    try:
        return resolved_jars(POM)
    except RefereeUnavailableError as reason:
        if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
            pytest.fail(str(reason), pytrace=False)
        pytest.skip(str(reason))


def row(number: int, name: str, city: str) -> Row:
    return {"id": str(number), "name": name, "city": city}


def change(kind: str, at: int, *rows: Row, old: list[Row] | None = None) -> str:
    """A flat message of Canal: all values are text, one message holds rows of one statement."""
    message: dict[str, Any] = {
        "data": list(rows), "old": old, "type": kind, "es": at, "ts": at + 7, "id": at,
        "database": "shop", "table": "customers", "isDdl": False, "pkNames": ["id"], "sql": "",
    }  # fmt: skip
    return json.dumps(message)


def send(cluster: EmbeddedCluster, *changes: str) -> None:
    with Producer("canal", namesrv_addr=cluster.namesrv_addr) as producer:
        for body in changes:
            producer.send(Message(TOPIC, body))


FIRST = (
    change("INSERT", 10, row(1, "Ann", "Oslo"), row(2, "Ben", "Rome"), row(3, "Cy", "Bonn")),
    change("UPDATE", 30, row(1, "Ann", "Paris"), old=[{"city": "Kiel"}]),
    change("UPDATE", 20, row(1, "Ann", "Kiel"), old=[{"city": "Oslo"}]),
    change("DELETE", 40, row(3, "Cy", "Bonn")),
    json.dumps({"type": "ALTER", "es": 41, "id": 41, "isDdl": True, "data": None}),
)
SECOND = (
    change("UPDATE", 25, row(3, "Cy", "late"), old=[{"city": "Bonn"}]),
    change("UPDATE", 15, row(1, "Ann", "late"), old=[{"city": "Oslo"}]),
    change("UPDATE", 50, row(7, "Ben", "Riga"), old=[{"id": "2", "city": "Rome"}]),
)


def test_changes_in_any_order_become_the_table_and_its_history(tmp_path: Path) -> None:
    """Insert, update, delete, a new key; changes that were overtaken, in one run and over two."""
    for package in ("grpc", "yaml"):
        pytest.importorskip(package, reason="pipelines need pyspark[pipelines]")
    environment = pipeline_environment(tmp_path, SPARK_DIST_CLASSPATH=f"{jars()}/*")
    with EmbeddedCluster() as cluster:
        cluster.create_topic(TOPIC, queues=2)
        spec = placed(ROOT / "examples/spark/change_data", cluster, tmp_path)
        text = spec.read_text(encoding="utf-8")
        assert "org.apache.iceberg.spark.SparkCatalog" in text
        text = text.replace("org.apache.iceberg.spark.SparkCatalog", CATALOG)
        # A body that is none stays so: Spark would run it twice more, with pauses.
        once = 'configuration:\n  spark.sql.pipelines.maxFlowRetryAttempts: "0"\n'
        spec.write_text(text.replace("configuration:\n", once))
        words = [sys.executable, "-m", "tests.landing.change_data_program", str(spec)]
        with (tmp_path / "stderr").open("w") as errors:
            program = subprocess.Popen(
                words, cwd=ROOT, env=environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
            found = [run(program, cluster, changes) for changes in (FIRST, SECOND)]
            assert run(program, cluster, ('{"payload":{}}',)) == {}
            assert program.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                program.stdin.close()
            code = program.wait(60)
            assert program.stdout is not None
            program.stdout.close()
    said = (tmp_path / "stderr").read_text()
    assert all(found), said[-4_000:]
    assert code != 0
    assert 'no change of Canal\'s: {"payload":{}}' in said
    first, second = found
    assert first["customers"] == [[1, "Ann", "Paris"], [2, "Ben", "Rome"]]
    assert second["customers"] == [[1, "Ann", "Paris"], [7, "Ben", "Riga"]]
    history = second["history"]
    assert [change for change in history if change[0] == 1] == [
        [1, "Oslo", False], [1, "late", False], [1, "Kiel", False], [1, "Paris", True],
    ]  # fmt: skip
    assert [change for change in history if change[2]] == [[1, "Paris", True], [7, "Riga", True]]


def run(
    program: subprocess.Popen[str], cluster: EmbeddedCluster, changes: tuple[str, ...]
) -> dict[str, Any]:
    """Send changes, have the pipeline run, and return what its tables hold."""
    send(cluster, *changes)
    assert program.stdin is not None
    assert program.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # what it said then is shown below
        program.stdin.write("\n")
        program.stdin.flush()
    for line in program.stdout:  # the pipeline's own lines come first
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    return {}
