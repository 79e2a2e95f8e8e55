"""Avro bodies, decoded by Spark's own reader of them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import fastavro
import pyarrow.parquet as pq
import pytest

from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark.setup.preparation import use_java
from tests.kits.apache.referee import RefereeUnavailableError, resolved_jars
from tests.kits.spark.support import Sent, send

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.timeout(600)]

ROOT: Final = Path(__file__).resolve().parents[2]
SCHEMA: Final[dict[str, Any]] = {
    "type": "record",
    "name": "o",
    "fields": [
        {"name": "id", "type": ["null", "long"]},
        {"name": "name", "type": ["null", "string"]},
        {"name": "lines", "type": {"type": "array", "items": "long"}},
    ],
}


def encoded(record: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, SCHEMA, record)
    return stream.getvalue()


@pytest.fixture
def jars() -> str:
    """The reader; skips the test where it cannot be had, or fails it in CI."""
    try:
        found = resolved_jars(ROOT / "tests/kits/apache/poms/spark-avro-4.2.xml")
    except RefereeUnavailableError as reason:
        if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
            pytest.fail(str(reason), pytrace=False)
        pytest.skip(str(reason))
    return ",".join(map(str, sorted(found.glob("*.jar"))))


def test_what_is_not_one_record_is_kept_and_holds_nobody_up(jars: str, tmp_path: Path) -> None:
    """Nor does a length that no body can have, of which Avro would reserve the memory at once."""
    good = encoded({"id": 7, "name": "é", "lines": [1, 2]})
    nulls = encoded({"id": None, "name": None, "lines": []})
    bad = [
        good[:-1],
        good + b"x",
        good + good,
        b"\x00\x00\x00\x00\x01" + good,  # as registries of schemas frame it
        b'{"id":7}',
        b"\x00\x02\x80\xcc\xfd\x93\x0e",
        b"\x00\x00\x80\xd0\xac\xf3\x0e",
        b"\x00\x00\xff\xcf\xac\xf3\x0e\x02",
    ]
    schema, table = tmp_path / "o.avsc", tmp_path / "t"
    schema.write_text(json.dumps(SCHEMA), "utf-8")
    use_java()
    with EmbeddedCluster() as cluster:
        cluster.create_topic("orders", queues=1)
        send(cluster, "orders", 0, [Sent(body) for body in (good, nulls, *bad, good)])
        words = ["--namesrv", cluster.namesrv_addr, "ingest", "orders", "--to", f"parquet:{table}"]
        words += ["--format", "avro", "--schema", str(schema), "--json"]
        words += ["--master", "local[1]", "--conf", f"spark.jars={jars}"]
        done = subprocess.run(
            [sys.executable, "-m", "rocketstream", *words],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3_000:]
    told = json.loads(done.stdout)
    assert (told["rows"], told["malformed"]) == (len(bad) + 3, len(bad))
    rows = pq.read_table(table).sort_by("_queueOffset").to_pylist()
    first = {"id": 7, "name": "é", "lines": [1, 2], "_malformed": None}
    found = [{name: row[name] for name in first} for row in rows]
    assert found[:2] == [first, {"id": None, "name": None, "lines": [], "_malformed": None}]
    assert found[-1] == first
    assert all(row["id"] is None for row in found[2:-1])
    assert all((row["_malformed"] or "").startswith("base64:") for row in found[2:-1])
