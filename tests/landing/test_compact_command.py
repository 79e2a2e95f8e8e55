"""``rocketstream compact``: fewer files, as the page says; plans and refusals without Spark."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.plugins.commands import Cli, Quick, table

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
ENTRY = {"size": 1 << 20, "modificationTime": 1, "action": "add"}


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_pages_commands_compact_a_landing_which_then_goes_on(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is landed again, and with the replaced files gone the directory has each row once."""
    monkeypatch.chdir(tmp_path)
    cli("topic", "create", "flights", "-q", "1").worked()
    cli("send", "flights", "--stdin", stdin="\n".join(map(str, range(11)))).worked()
    landing = ("ingest", "flights", "--to", "parquet:./flights", "--rows-per-batch", "1")
    assert "landed 11 rows" in cli(*landing).worked().out
    page = PAGE.read_text("utf-8").split("### Fewer files")[1]
    (block,) = re.findall(r"```sh\n(.*?)```", page.split("\n### ")[0], re.DOTALL)
    tried, done = (cli(*line.split()[1:]).worked().out for line in block.splitlines())
    assert re.match(r"would compact 10 files \([\d.]+ KiB\) of \./flights into 1\n", tried)
    assert done.splitlines() == [
        tried.splitlines()[0].replace("would compact", "compacted"),
        "10 replaced files stay for 1 h; a later run removes them",
    ]
    assert "removed 10 files" in cli("compact", "parquet:flights", "--keep", "0s").worked().out
    cli("send", "flights", "one more").worked()
    assert "landed 1 row " in cli(*landing).worked().out
    assert [row["body"] for row in table(Path("flights"))] == [*map(str, range(11)), "one more"]


def test_a_plan_needs_no_spark(quick: Quick, tmp_path: Path) -> None:
    log = tmp_path / "_spark_metadata"
    log.mkdir()
    entries = [json.dumps(ENTRY | {"path": f"file:///t/part-{n}"}) for n in range(10)]
    (log / "9.compact").write_text("\n".join(["v1", *entries]), "utf-8")
    words = ("compact", f"orc:{tmp_path}", "--dry-run")
    done = quick(*words, "--file-size", "6", "--json").worked()
    assert done.json == {
        "table": str(tmp_path), "files": 6, "bytes": 6 << 20, "into": 1, "removed": 0,
        "waiting": 0,
    }  # fmt: skip
    assert "would compact 10 files (10.0 MiB)" in quick(*words).worked().out
    assert "nothing to compact" in quick(*words, "--file-size", "1").worked().out
    assert sorted(tmp_path.iterdir()) == [log]


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("parquet:nowhere", "nowhere has no _spark_metadata, so it was not written by ingest"),
        ("delta:t", "delta is not compacted here; in Spark SQL: OPTIMIZE delta.`PATH`"),
        ("iceberg:lake.db.t", "CALL CATALOG.system.rewrite_data_files"),
        ("parquet:abfs://x/t", "abfs:// is not known to replace a file at once"),
    ],
)
def test_other_tables_are_refused_in_a_line(quick: Quick, target: str, text: str) -> None:
    assert text in quick("compact", target).failed()
