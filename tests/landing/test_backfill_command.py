"""``rocketstream backfill``: a closed range lands; what is wrong is said before Spark starts."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from rocketstream.cli.app import app
from rocketstream.errors import ConfigurationError
from rocketstream.pipelines import backfill as pipeline
from rocketstream.pipelines import local_session
from rocketstream.pipelines.backfill import BackfillPlan, BackfillResult, check_target
from rocketstream.pipelines.targets import Target
from tests.kits.stores import opened, put
from tests.plugins.commands import TIMEOUT_S, Cli, Quick, Starter, table
from tests.plugins.waiting import wait_until

SLOW = "SELECT *, reflect('java.lang.Thread', 'sleep', bigint({})) AS slept FROM messages"


def store(root: Path) -> Path:
    """A closed store with five messages of topic T1."""
    with opened(root) as filled:
        for number in range(5):
            put(filled, b'{"id":%d}' % number, queue_id=number % 2)
    return root


def test_nothing_is_added_to_the_table_of_a_stream(tmp_path: Path) -> None:
    """Its readers see the files of its log, and no others."""
    (tmp_path / "_spark_metadata").mkdir()
    plan = BackfillPlan(("T",), {}, Target("parquet", str(tmp_path)), mode="append")
    with pytest.raises(ConfigurationError, match="is a table of a stream"):
        check_target(plan, ())


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_store_lands_without_a_broker_and_not_twice(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "table"
    root = store(tmp_path / "store")
    command = ("backfill", "T1", "--store", str(root), "--to", f"parquet:{path}")
    done = cli(*command, "--schema", "id INT", "--option", "minPartitions=2").worked()
    assert done.out == f"landed 5 rows of T1 in {path}\n"
    assert done.err == "landing 5 offsets of 2 queues\n"
    assert [row["id"] for row in table(path)] == [0, 2, 4, 1, 3]
    line = cli(*command, "--schema", "id INT", "--mode", "append").failed()
    assert "holds offsets 0 to 2 of topic 'T1', broker 'store', queue 0 already" in line


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.timeout(600)
def test_ctrl_c_ends_it_at_once_and_leaves_nothing_of_spark(
    cli: Cli, start: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Amid a call that would take a minute; the range is landed whole by the next run."""
    path, scratch = tmp_path / "table", tmp_path / "scratch"
    scratch.mkdir()
    root = store(tmp_path / "store")
    command = ("backfill", "T1", "--store", str(root), "--to", f"parquet:{path}")
    monkeypatch.setenv("TMPDIR", str(scratch))
    process = start(*command, "--sql", SLOW.format(60_000), namesrv=cli.namesrv)
    wait_until((path / "_backfill.json").exists, "landing under way", TIMEOUT_S)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=TIMEOUT_S)[1] == b"landing 5 offsets of 2 queues\n"
    assert process.returncode == 130
    assert [each for each in scratch.iterdir() if each.suffix != ".log"] == []
    assert "landed 5 rows" in cli(*command, "--mode", "overwrite").worked().out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--master", "locl"), "master is 'locl'"),
        (("--schema", "id INTT"), "'INTT' stands at character 4"),
        (("--schema", "id INT", "--partition-by", "town"), "cannot partition by town"),
        (("--format", "yaml"), "format 'yaml' is not known"),
        (("--until", "someday"), "--until is 'someday'"),
        (("--until", "{"), "--until is not JSON"),
        (("--conf", "nothing"), "--conf is 'nothing'"),
        (("--package", "delta"), "--package is 'delta'"),
        (("--option", "tag=a"), "did you mean 'tags'"),
        (("--until", '{"T1":{"store":{"0":9}}}'), "offsets 0 to 8 were asked for"),
        (("--until", "2001-01-01"), "there is nothing to land"),
    ],
)
def test_bad_arguments_fail_before_spark_starts(
    quick: Quick, tmp_path: Path, words: tuple[str, ...], text: str
) -> None:
    root = store(tmp_path / "store")
    place = tmp_path / "table"
    with mock.patch.object(local_session, "start_session", _never):
        done = quick("backfill", "T1", "--store", str(root), "--to", f"parquet:{place}", *words)
    assert text in done.failed(2 if words[0] in ("--conf", "--package") else 1)
    assert not place.exists()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--to", "csv:x"), "accepted are"),
        (("--to", "parquet:t", "--mode", "maybe"), "not one of 'new', 'append', 'overwrite'"),
    ],
)
def test_bad_targets_and_modes_are_usage_errors(
    quick: Quick, words: tuple[str, ...], text: str
) -> None:
    assert text in quick("backfill", "T1", *words).failed(2)


def test_options_of_a_store_need_one(quick: Quick) -> None:
    done = quick("backfill", "T1", "--to", "parquet:t", "--skip-damaged")
    assert "are for --store" in done.failed(2)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--master", "spark://127.0.0.1:1"), "no Spark master listens at 127.0.0.1:1"),
        (("--dedup-keys", "id", "--schema", "id INT"), "without a watermark"),
        (("--dead-letters", "csv:x"), "--dead-letters"),
    ],
)
def test_ingest_refuses_bad_arguments_before_spark_starts(
    quick: Quick, tmp_path: Path, words: tuple[str, ...], text: str
) -> None:
    quick("topic", "create", "checked").worked()
    with mock.patch.object(local_session, "start_session", _never):
        done = quick("ingest", "checked", "--to", f"parquet:{tmp_path / 't'}", *words)
    assert done.code in (1, 2)
    assert text in done.err


@pytest.mark.parametrize("command", ["ingest", "backfill"])
def test_commas_between_tags_are_told_although_spark_is_quiet(
    quick: Quick, tmp_path: Path, command: str
) -> None:
    done = quick(command, "T", "--to", f"csv:{tmp_path}", "--tags", "a,b")
    assert done.code == 2
    assert "warning: --tags: the comma in 'a,b'" in done.err
    assert "'a || b'" in done.err


TOLD = ("opts", "secondary_opts", "help", "metavar", "default", "envvar", "multiple", "required")


def test_what_ingest_and_backfill_share_is_declared_once() -> None:
    """Same flag, same help, default and checks; only what a table is begun with differs."""
    one, two = (
        {
            made.name: {of: repr(getattr(made, of)) for of in TOLD}
            for made in app.made()[name].params
        }
        for name in ("ingest", "backfill")
    )
    shared = (one.keys() & two.keys()) - {"to"}
    assert len(shared) >= 18
    assert {name: one[name] for name in shared} == {name: two[name] for name in shared}


@pytest.mark.parametrize(("rows", "kept"), [(5, 0), (3, 1)])
def test_the_log_of_spark_is_kept_where_it_says_something(
    quick: Quick, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, kept: int
) -> None:
    root = store(tmp_path / "store")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    landed = BackfillResult(5, rows, 0, None)
    with (
        mock.patch.object(local_session, "start_session"),
        mock.patch.object(local_session, "stop_session"),
        mock.patch.object(pipeline, "backfill", return_value=landed),
    ):
        target = f"parquet:{tmp_path / 'table'}"
        done = quick("backfill", "T1", "--store", str(root), "--to", target).worked()
    logs = list(scratch.glob("rocketstream-*.log"))
    assert len(logs) == kept
    assert [line for line in done.err.splitlines() if "left out" in line] == [
        f"2 offsets left out; {log} says which, where Spark runs on this machine" for log in logs
    ]


def _never(*given: Any, **named: Any) -> None:
    raise AssertionError("Spark was started")
