"""The ingest pipeline's own decisions, without Spark."""

from __future__ import annotations

import dataclasses
import errno
import json
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from rocketstream.errors import ConfigurationError, SparkQueryError
from rocketstream.pipelines import ingest as ingesting
from rocketstream.pipelines.bodies import bodies_of
from rocketstream.pipelines.ingest import IngestPlan, Reports, ingest, prepare_target, resumes
from rocketstream.pipelines.places import alone
from rocketstream.pipelines.progress import LANDED, READ, IngestProgress
from rocketstream.pipelines.targets import Target
from rocketstream.spark.listener.queries import STARTS_MAX
from rocketstream.spark.options import AT_EARLIEST, read_options


def plan(path: Path, topic: str = "T", **changes: Any) -> IngestPlan:
    source = {"nameServer": "127.0.0.1:9876"}
    target = changes.pop("target", Target("parquet", str(path)))
    return IngestPlan((topic,), source, target, **changes)


@pytest.mark.parametrize("batch", [0, 150])
def test_a_table_is_known_again_however_many_batches_it_has(tmp_path: Path, batch: int) -> None:
    """Spark throws old offsets away, the first one too, after a hundred batches."""
    table = plan(tmp_path / "table")
    prepare_target(table)
    assert not resumes(table)
    offsets = Path(table.checkpoint, "offsets")
    offsets.mkdir(parents=True)
    (offsets / f".{batch}.crc").touch()
    assert not resumes(table)
    (offsets / str(batch)).touch()
    assert resumes(table)
    prepare_target(table)
    with pytest.raises(
        ConfigurationError, match=r"was landed with topics=\['T'\], now it is \['other'\]"
    ):
        prepare_target(plan(tmp_path / "table", "other"))


def begun(path: Path, **changes: Any) -> IngestPlan:
    """A table that a first micro-batch was landed in."""
    made = plan(path, **changes)
    prepare_target(made)
    offsets = Path(made.checkpoint, "offsets")
    offsets.mkdir(parents=True)
    (offsets / "0").touch()
    return made


@pytest.mark.parametrize(
    ("log", "name"),
    [
        ("_spark_metadata", "3"),
        ("_spark_metadata", "9.compact"),
        ("_delta_log", "00000000000000000003.json"),
    ],
)
def test_a_table_without_its_checkpoint_is_not_landed_from_the_beginning(
    tmp_path: Path, log: str, name: str
) -> None:
    """Spark leaves out micro-batches whose numbers its log has, Delta none of another query."""
    table = plan(tmp_path / "table")
    prepare_target(table)
    prepare_target(table)  # a first run that failed before its first micro-batch
    folder = tmp_path / "table" / log
    folder.mkdir()
    (folder / f".{name}.crc").touch()
    prepare_target(table)
    (folder / name).touch()
    with pytest.raises(ConfigurationError, match="give the checkpoint that the table was landed"):
        prepare_target(table)


@pytest.mark.parametrize(
    ("target", "letters", "problem"),
    [
        ("parquet:{}/t", "parquet:{}/t/", "cannot both be in"),
        ("parquet:{}/t", "orc:{}/t", "cannot both be in"),
        ("parquet:{}/t", "rocketmq:T", "would be read again, for ever"),
        ("rocketmq:T", "parquet:{}/t", "would be read again, for ever"),
    ],
)
def test_places_that_two_queries_would_share_are_refused(
    tmp_path: Path, target: str, letters: str, problem: str
) -> None:
    parts = [each.format(tmp_path).split(":") for each in (target, letters)]
    given = [Target(kind, place) for kind, place in parts]
    with pytest.raises(ConfigurationError, match=problem):
        prepare_target(plan(tmp_path, target=given[0], dead_letters=given[1], checkpoint_at="c"))


def test_a_run_beside_another_is_refused_before_it_does_anything(tmp_path: Path) -> None:
    """A database would get what the other one is just writing once more."""
    kept = tmp_path / "t/_checkpoint"
    table = plan(tmp_path, target=Target("parquet", kept.parent.as_uri()))
    kept.mkdir(parents=True)
    (kept.parent / "_ingest.json").touch()
    session: Any = Session()
    with (
        alone(kept, "taken"),
        pytest.raises(ConfigurationError, match=r"another run lands into .*; let it end, or"),
    ):
        ingesting.ingest(session, table)
    assert session.asked == {}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other locks")
def test_where_a_file_system_has_no_locks_a_landing_runs_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with alone(tmp_path, "taken"):
        (tmp_path / "landed").touch()
    assert (tmp_path / "landed").exists()


def test_a_directory_has_the_dead_letters_of_one_landing(tmp_path: Path) -> None:
    """What another landing has read of its topics is behind the checkpoint that is there."""
    letters = Target("parquet", str(tmp_path / "bad"))
    first = plan(tmp_path / "t", dead_letters=letters)
    prepare_target(first)
    prepare_target(first)  # a first run that failed before its first micro-batch
    (tmp_path / "bad" / "_checkpoint").mkdir()
    first = begun(tmp_path / "t", dead_letters=letters)
    prepare_target(dataclasses.replace(first, topics=("T", "U")))
    other = plan(tmp_path / "u", dead_letters=letters, bodies=bodies_of(None, "id INT"))
    for refused in (other, begun(tmp_path / "v")):
        refused = dataclasses.replace(refused, dead_letters=letters)
        with pytest.raises(ConfigurationError, match="has the dead letters of another landing"):
            prepare_target(refused)
    assert not (tmp_path / "u" / "_ingest.json").exists()


def forget(table: Path, name: str) -> None:
    """Leave a table's marker as an earlier version wrote it, without one setting."""
    marker = table / "_ingest.json"
    told = json.loads(marker.read_text())
    del told[name]
    marker.write_text(json.dumps(told))


def test_a_table_and_its_dead_letters_of_an_earlier_version_are_taken(tmp_path: Path) -> None:
    """Their markers have no name in common yet; a table is no place for dead letters."""
    table = begun(tmp_path / "t")
    forget(tmp_path / "t", "landing")
    (tmp_path / "bad" / "_checkpoint").mkdir(parents=True)
    table = dataclasses.replace(table, dead_letters=Target("parquet", str(tmp_path / "bad")))
    prepare_target(table)
    prepare_target(table)
    names = [json.loads(file.read_text())["landing"] for file in tmp_path.glob("*/_*.json")]
    assert len(names) == 2 == len(set(names)) + 1
    with pytest.raises(ConfigurationError, match="holds no dead letters of ingest"):
        prepare_target(plan(tmp_path / "u", dead_letters=Target("parquet", str(tmp_path / "t"))))


def test_a_table_is_known_by_the_meaning_of_its_settings(tmp_path: Path) -> None:
    """Blanks and case of a schema and a query, order of topics and tags change no row."""
    first = begun(
        tmp_path / "t", bodies=bodies_of(None, "id INT, v STRING"), sql="SELECT  'a  b'\n FROM m"
    )
    first = dataclasses.replace(first, topics=("T", "U"), source={"tags": "A || B"})
    prepare_target(dataclasses.replace(first, topics=("T",), source={}), None)
    (tmp_path / "t" / "_ingest.json").write_text(json.dumps(first.identity()))
    same = dataclasses.replace(
        first,
        topics=("U", "T"),
        source={"tags": "B||A"},
        bodies=bodies_of(None, "id int,v: string"),
        sql="SELECT 'a  b' FROM m",
    )
    prepare_target(same)
    for other in (
        dataclasses.replace(same, sql="SELECT 'a b' FROM m"),
        dataclasses.replace(same, source={"tags": "A"}),
        dataclasses.replace(same, topics=("T",)),
        dataclasses.replace(same, bodies=bodies_of(None, "id STRING, v STRING")),
        dataclasses.replace(same, bodies=bodies_of(None, "id INT")),
        dataclasses.replace(same, bodies=bodies_of("csv", "id INT, v STRING")),
    ):
        with pytest.raises(ConfigurationError, match=r"was landed with .*is taken\)"):
            prepare_target(other)


def test_a_table_is_known_by_the_option_that_selects_its_messages(tmp_path: Path) -> None:
    """In any case of its name; a marker of an earlier version does not tell a condition."""
    first = begun(tmp_path / "t")
    forget(tmp_path / "t", "condition")
    first = dataclasses.replace(first, source={"sql": "a > 1"})
    prepare_target(first)
    prepare_target(dataclasses.replace(first, source={"SQL": "a  > 1"}))
    for source, was in (
        ({"sql": "a > 2"}, "condition='a  > 1', now it is 'a > 2'"),
        ({}, "condition='a  > 1', now it is None"),
        ({"TAGS": "x"}, "tags=None, now it is 'x'"),
    ):
        with pytest.raises(ConfigurationError, match=f"was landed with {was}"):
            prepare_target(dataclasses.replace(first, source=source))


@pytest.mark.parametrize("kind", ["parquet", "delta", "iceberg"])
def test_a_table_takes_a_column_and_a_topic_more(kind: str, tmp_path: Path) -> None:
    """Where readers of it find a null in the rows from before."""
    place = "lake.shop.orders" if kind == "iceberg" else str(tmp_path / "t")
    kept = str(tmp_path / "c") if kind == "iceberg" else None
    there = {"target": Target(kind, place), "checkpoint_at": kept}
    first = begun(tmp_path / "t", bodies=bodies_of(None, "id INT"), **there)
    wider = dataclasses.replace(
        first, topics=("T", "U"), bodies=bodies_of(None, "v STRING, id INT")
    )
    prepare_target(wider)
    with pytest.raises(ConfigurationError, match="was landed with topics="):
        prepare_target(first)


def test_a_table_of_orc_takes_none(tmp_path: Path) -> None:
    first = begun(tmp_path / "t", target=Target("orc", str(tmp_path / "t")))
    with pytest.raises(ConfigurationError, match=r"use the same again or another directory"):
        prepare_target(dataclasses.replace(first, topics=("T", "U")))


class Session:
    """A session that can read nothing; it keeps the options it was to read with."""

    def __init__(self) -> None:
        self.asked: dict[str, str] = {}

    @property
    def read(self) -> Session:
        return self

    @property
    def readStream(self) -> Session:
        return self

    def format(self, _: str) -> Session:
        return self

    def schema(self, _: object) -> Session:
        return self

    def options(self, **given: str) -> Session:
        self.asked = given
        raise LookupError


@pytest.mark.parametrize(
    "given",
    [
        {"maxBytesPerTrigger": "64m"},
        {"minOffsetsPerTrigger": "10", "MAXTRIGGERDELAY": "1m"},
        {"maxoffsetspertrigger": "10"},
        {"startingTimestamp": "-1d", "startingOffsetsByTimestampStrategy": "error"},
        {"startingOffsetsByTimestamp": '{"T":"-1d"}'},
        {"group": "g", "groupMember": "spark"},
        {"group": "g", "commitOffsets": "true"},
        {"rocketmq.consumerGroup": "g", "startingOffsets": "group"},
    ],
)
def test_options_of_the_stream_serve_its_sample_and_its_dead_letters(given: dict[str, str]) -> None:
    """The sample is a batch, from the oldest message; one of two streams reports the group."""
    source = {"nameServer": "h:1", **given}
    read_options(source | {"topic": "T"}, "stream")
    landing = plan(Path("/t"), bodies=bodies_of(None, "infer"))
    landing = dataclasses.replace(
        landing, source=source, dead_letters=Target("parquet", "/bad"), checkpoint_at="/c"
    )
    session: Any = Session()
    with pytest.raises(LookupError):
        ingesting.resolve_bodies(session, landing)
    assert read_options(session.asked | {"topic": "T"}, "batch").start == AT_EARLIEST
    with pytest.raises(LookupError):
        ingesting.start_dead_letters(session, landing)
    dead = read_options(session.asked, "stream")
    assert not dead.commit_offsets
    assert dead.start == read_options(source | {"topic": "T"}, "stream").start


class Report:
    def __init__(self, batch: int, rows: int, second: int, late: int = 0) -> None:
        self.batchId, self.timestamp = batch, f"2026-01-01T00:00:{second:02}Z"
        observed = {READ: {"rows": rows}, LANDED: {"rows": rows}} if rows else {}
        states = [{"numRowsDroppedByWatermark": late}]
        self.json = json.dumps(
            {"batchId": batch, "observedMetrics": observed, "stateOperators": states}
        )


class Reporting:
    """A query that reports; ``asked`` counts how often all kept reports were wanted."""

    def __init__(self) -> None:
        self.kept: list[Report] = []
        self.asked = 0

    @property
    def lastProgress(self) -> Report | None:
        return self.kept[-1] if self.kept else None

    @property
    def recentProgress(self) -> list[Report]:
        self.asked += 1
        return self.kept


def test_all_kept_reports_are_asked_for_only_where_some_may_be_missed() -> None:
    query, totals, told = Reporting(), IngestProgress(), []
    reports = Reports(cast("Any", query), totals, lambda found: told.append(found.rows))
    reports.collect()
    for second, (batch, rows, asked) in enumerate(
        [(0, 5, 1), (1, 5, 1), (2, 0, 1), (2, 0, 1), (2, 5, 1), (3, 0, 1)]
    ):
        query.kept.append(Report(batch, rows, second))
        reports.collect()
        reports.collect()
        assert query.asked == asked
    assert totals.rows == 15
    query.kept += [Report(3, 5, 10), Report(4, 5, 11), Report(5, 0, 12)]
    reports.collect()
    assert (totals.rows, told, query.asked) == (25, [5, 10, 15, 20, 25], 2)


def test_rows_that_a_watermark_leaves_out_are_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They are in no table, and no error says so."""
    query, totals = Reporting(), IngestProgress()
    reports = Reports(cast("Any", query), totals, None)
    with caplog.at_level("WARNING", "rocketstream.spark"):
        for second, late in enumerate((0, 3, 4)):
            query.kept.append(Report(second, 5, second, late))
            reports.collect()
    assert totals.late == 7
    (record,) = caplog.records
    assert record.getMessage().startswith("3 rows were older than the watermark and are not in")


class Query:
    """A query that has ended."""

    name = "ingest T"

    @property
    def isActive(self) -> bool:
        return False

    @property
    def lastProgress(self) -> None:
        return None

    def __init__(self, failure: str | None = None) -> None:
        self._failure = failure

    def exception(self) -> str | None:
        return self._failure


LATE = "[STREAM_FAILED] Query terminated: Python worker failed to connect back."


@pytest.mark.parametrize("late", range(STARTS_MAX + 1))
def test_a_query_whose_python_started_late_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    queries = iter([Query(LATE)] * late + [Query()])
    monkeypatch.setattr(ingesting, "start_query", lambda *_: next(queries))
    made: Any = plan(tmp_path / "table")
    if late < STARTS_MAX:
        assert ingest(cast("Any", None), made).rows == 0
        assert next(queries, None) is None
    else:
        with pytest.raises(SparkQueryError, match="failed to connect back"):
            ingest(cast("Any", None), made)


def test_a_query_that_failed_otherwise_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = iter([Query("the table is gone"), Query()])
    monkeypatch.setattr(ingesting, "start_query", lambda *_: next(queries))
    with pytest.raises(SparkQueryError, match="the table is gone"):
        ingest(cast("Any", None), plan(tmp_path / "table"))
    assert next(queries, None) is not None
