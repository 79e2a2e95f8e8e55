"""What the landing commands refuse before Spark is started, and what they hand on untouched."""

from __future__ import annotations

import dataclasses
import importlib
import io
import json
import re
import socket
from pathlib import Path
from typing import Any

import fastavro
import pytest

from rocketstream.cli.ingest import _source
from rocketstream.errors import ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.pipelines.backfill import BackfillPlan, check_target
from rocketstream.pipelines.bodies import INFER, avro_marked_schema, bodies_of
from rocketstream.pipelines.databases import check_driver
from rocketstream.pipelines.ddl import check_ddl
from rocketstream.pipelines.ingest import IngestPlan, check_plan, query_error
from rocketstream.pipelines.local_session import check_master
from rocketstream.pipelines.progress import LANDED, READ, IngestProgress
from rocketstream.pipelines.targets import (
    Target,
    check_extras,
    misfits,
    parse_target,
    with_extras,
)
from rocketstream.spark.options import read_options
from rocketstream.spark.scan import QueueRange
from tests.landing.installed import make_pyspark


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("id INT", ["id"]),
        ("id INT NOT NULL COMMENT 'the, id', name STRING", ["id", "name"]),
        ("`a b` DECIMAL(10,2), c: ARRAY<MAP<STRING, STRUCT<x: INT, `y z`: DATE>>>", ["a b", "c"]),
        (
            "t TIMESTAMP_NTZ, d interval day to second, v variant, s varchar(9)",
            ["t", "d", "v", "s"],
        ),
        ("struct<a: int, b: string>", ["a", "b"]),
        ("price decimal, n numeric( 5 ), e struct<>", ["price", "n", "e"]),
    ],
)
def test_ddl_that_spark_takes_is_let_through(text: str, names: list[str]) -> None:
    assert [*check_ddl(text)] == names


def test_columns_are_known_by_their_meaning() -> None:
    """However a text spells them: blanks, case, other names of types, Spark's schema JSON."""
    columns = check_ddl("a INT, b ARRAY<STRUCT<x: LONG, y: DECIMAL(5)>>, c decimal, d STRING")
    assert columns == check_ddl(
        "struct<a:integer,b:array<struct<x bigint,y dec(5,0)>>,`c` numeric(10,0),d string NOT NULL>"
    )
    more = {"nullable": True, "metadata": {}}

    def struct(**kinds: Any) -> dict[str, Any]:
        fields = [{"name": name, "type": kind, **more} for name, kind in kinds.items()]
        return {"type": "struct", "fields": fields}

    inner = struct(x="long", y="decimal(5,0)")
    each = {"type": "array", "elementType": inner, "containsNull": True}
    tree = struct(a="integer", b=each, c="decimal(10,0)", d="string")
    assert bodies_of("json", json.dumps(tree)).fields() == columns
    assert check_ddl("A INT") != check_ddl("a INT")


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:postgresql://db/lake?user=etl&password=HUNTER2",
        "jdbc:postgresql://db/lake?user=etl&sslpassword=HUNTER2&x=1",
        "jdbc:mysql://etl:HUNTER2@db:3306/lake",
        "jdbc:mysql://etl:HUN@TER2@db:3306/lake",
        "jdbc:mysql://(host=db,port=3306,user=etl,password=HUNTER2)/lake",
        "jdbc:sqlserver://db:1433;user=etl;Password={HUN;TER2};encrypt=true",
        "jdbc:sqlserver://db:1433;keyStoreSecret=HUNTER2",
        "jdbc:oracle:thin:scott/HUNTER2@//db:1521/lake",
        "jdbc:db2://db:50000/lake:user=etl;PWD=HUNTER2;",
        "jdbc:derby:db;bootPassword = HUNTER2",
    ],
)
def test_a_password_in_a_url_is_never_printed(url: str) -> None:
    target = parse_target(url, table="orders")
    assert target.place == url
    failed = query_error(f"An error occurred while calling o1.save.\n: X: no {url}\n\tat a.B")
    with pytest.raises(ConfigurationError) as refused:
        parse_target(url)
    told = query_error(f"X: rocketstream.errors.BrokerError: no {url}\n\tat a.B")
    shown = [str(each) + repr(vars(each)) for each in (failed, told)]
    for text in (str(target), *shown, str(refused.value)):
        assert "TER2" not in text
        assert "HUN" not in text
    assert "***" in str(target)


@pytest.mark.parametrize(
    "word",
    ["a" * 1_000_000, "passw" * 200_000, "//a:" * 250_000, "pwd={" * 200_000, "\n" * 1_000_000],
    ids=["letters", "names", "urls", "braces", "lines"],
)
def test_a_failure_with_a_long_word_of_a_message_is_told_at_once(word: str) -> None:
    """Databases repeat the row they refused; a search for passwords in it would take hours."""
    told = query_error(f"An error occurred.\n: X: no {word} password=HUNTER2\n\tat a.B")
    assert "HUNTER2" not in str(told) + repr(vars(told))


def test_a_url_without_a_password_is_printed_as_it_is() -> None:
    for url in ("jdbc:oracle:thin:@//db:1521/x", "jdbc:sqlserver://h:1433;user=a@b", "jdbc:h2:m:x"):
        assert str(parse_target(url, table="t")) == f"{url} (t)"


def test_columns_a_database_cannot_hold_are_refused_before_spark() -> None:
    schema = "id INT, who STRUCT<name: STRING>, tags ARRAY<STRING>, m MAP<STRING, INT>"
    for scheme, names in (
        ("derby", "who (STRUCT<NAME:STRING>), tags (ARRAY<STRING>), m (MAP<STRING,INT>);"),
        ("postgresql", "who (STRUCT<NAME:STRING>), m (MAP<STRING,INT>);"),
    ):
        target = parse_target(f"jdbc:{scheme}:x", table="t")
        plan = IngestPlan(("T",), {}, target, bodies_of(None, schema))
        with pytest.raises(ConfigurationError, match=re.escape(f"cannot hold {names}")):
            check_plan(plan)
        with pytest.raises(ConfigurationError, match=re.escape("body (VARIANT)")):
            check_plan(dataclasses.replace(plan, bodies=bodies_of("variant", None)))
        check_plan(dataclasses.replace(plan, sql="SELECT id FROM messages"))
        check_plan(dataclasses.replace(plan, bodies=bodies_of(None, "id INT")))


def test_a_database_without_a_driver_is_refused_before_spark() -> None:
    target = parse_target("jdbc:mariadb://db/lake", table="t")
    with pytest.raises(
        ConfigurationError, match=r"--package org\.mariadb\.jdbc:mariadb-java-client:VERSION"
    ):
        check_driver(target.url, {})
    check_driver(target.url, {"spark.jars.packages": "org.mariadb.jdbc:mariadb-java-client:3.5.1"})
    check_driver(target.url, {"spark.jars": "/opt/all.jar"})
    check_driver(parse_target("jdbc:unheard:x", table="t").url, {})
    check_driver(parse_target("parquet:x").url, {})


PROXY = (
    "An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last)"
)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            f'{PROXY}:\n  File "x.py", line 3, in call\n    raise\n'
            "pyspark.errors.exceptions.captured.IllegalArgumentException: Can't get JDBC type for "
            "struct<a:int>\n",
            "IllegalArgumentException: Can't get JDBC type for struct<a:int>",
        ),
        (
            f'{PROXY}:\n  File "x.py"\npy4j.protocol.Py4JJavaError: An error occurred while '
            "calling o99.save.\n: org.apache.spark.SparkException: Job aborted\n\tat a.B\n"
            "Caused by: org.postgresql.util.PSQLException: FATAL: password authentication failed\n"
            "\tat d.E\n",
            "PSQLException: FATAL: password authentication failed",
        ),
        (
            f'{PROXY}:\n  File "x.py"\npy4j.protocol.Py4JJavaError: An error occurred while '
            "calling o99.save.\n: java.lang.ClassNotFoundException: org.postgresql.Driver\n",
            "ClassNotFoundException: org.postgresql.Driver",
        ),
        ("An error occurred while calling o9.x.\n: no\n", "no"),
        ("", "no reason given"),
    ],
)
def test_the_reason_of_a_failed_query_is_told(text: str, reason: str) -> None:
    assert query_error(text).message.endswith(reason)


@pytest.mark.parametrize(
    "text",
    [
        "Race while writing batch 0 to the file sink metadata log at file:/t: another writer "
        "already committed this batch.",
        "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs "
        "detected for 3.",
    ],
)
def test_a_run_beside_another_is_told_what_to_do(text: str) -> None:
    """As cron begins one before the last has ended; each message lands once all the same."""
    assert query_error(text).message.endswith("let it end, or end it, then run again")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("id", "it ends where a type"),
        ("id INTT", r"'INTT' stands at character 4 where a Spark type"),
        ("id INT,", "it ends where the name of a column"),
        ("id INT name STRING", r"'name' stands at character 8 where a comma"),
        ("id ARRAY<INT", "it ends where '>'"),
        ("id MAP<STRING>", r"'>' stands at character 14 where ','"),
        ("id DECIMAL(,2)", r"',' stands at character 12 where a number"),
        ("id INT NOT", "it ends where NOT NULL"),
        ("id INT, ID STRING", "names ID, id twice"),
        ("id INT; DROP", r"';' stands at character 7"),
    ],
)
def test_ddl_that_spark_refuses_is_refused_with_the_place(text: str, place: str) -> None:
    with pytest.raises(ConfigurationError, match=place):
        check_ddl(text)


def test_a_schema_says_the_format_and_a_format_needs_its_schema(tmp_path: Path) -> None:
    avro = tmp_path / "o.avsc"
    avro.write_text('{"type":"record","name":"o","fields":[]}', "utf-8")
    assert bodies_of(None, None).format == "text"
    assert bodies_of(None, "id INT").format == "json"
    assert bodies_of(None, "variant").format == "variant"
    assert bodies_of("csv", "infer").schema == INFER
    assert bodies_of("avro", str(avro)).schema == avro.read_text("utf-8")


LIST = '{"type":"record","name":"o","namespace":"n","fields":[{"name":"next","type":["null","o"]}]}'


@pytest.mark.parametrize(
    ("body", "whole"),
    [(b"\x02\x00", True), (b"\x00", True), (b"\x02", False), (b"\x00\x00", False), (b"", False)],
)
def test_an_avro_body_is_one_record_where_its_mark_is_read_behind_it(
    body: bytes, whole: bool
) -> None:
    """A record of nulls is one; what follows a record, or is not there of it, is seen."""
    mark = b"0123456789abcdef"
    schema = fastavro.parse_schema(json.loads(avro_marked_schema(LIST)))
    try:
        found: Any = fastavro.schemaless_reader(io.BytesIO(body + mark), schema, None)
    except (EOFError, IndexError):
        assert not whole
    else:
        assert (found["_mark"] == mark) == whole


@pytest.mark.parametrize(
    ("format", "schema", "option"),
    [
        ("json", "id INT", "MODE"),
        ("csv", "id INT", "columnNameOfCorruptRecord"),
        ("avro", LIST, "avroSchema"),
        ("text", None, "lineSep"),
        (None, "variant", "x"),
    ],
)
def test_options_that_would_hide_what_does_not_decode_are_refused(
    format: str | None, schema: str | None, option: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"takes no option {option}, for .*; leave that"):
        bodies_of(format, schema, {option: "x"})
    assert bodies_of("json", "id INT", {"allowComments": "true"}).options


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("yaml", None), "format 'yaml' is not known"),
        (("json", None), "format json needs a schema"),
        (("text", "id INT"), "format text takes no schema"),
        (("avro", "/nowhere.avsc"), "'/nowhere.avsc' is neither"),
        (("avro", '{"type":"string"} '), "is not that of an Avro record"),
        (("avro", "infer"), "cannot be inferred"),
        ((None, '{"type":"struct"}'), "is not Spark's schema JSON"),
        ((None, "{id INT"), "is not JSON"),
        ((None, "_topic STRING"), "names _topic"),
        ((None, "id INTT"), "'INTT'"),
    ],
)
def test_formats_and_schemas_that_cannot_be_are_refused(
    arguments: tuple[Any, ...], text: str
) -> None:
    with pytest.raises(ConfigurationError, match=text):
        bodies_of(*arguments)


def test_schema_json_of_a_type_that_spark_does_not_know_is_refused() -> None:
    """Where pyspark is: its own types are asked, and where it is not, they are asked later."""
    importlib.import_module("pyspark")
    with pytest.raises(ConfigurationError, match="is not understood"):
        bodies_of(None, '{"type":"struct","fields":[{"name":"a","type":"intt"}]}')


def test_paths_of_targets_are_spark_s_own() -> None:
    s3 = parse_target("parquet:s3a://bucket/a//b")
    assert (s3.place, s3.local) == ("s3a://bucket/a//b", None)
    assert s3.checkpoint(None) == "s3a://bucket/a//b/_checkpoint"
    assert parse_target("delta:file:///t/a%20b").local == Path("/t/a b")
    assert parse_target("parquet:a:b").local == Path("a:b")
    jdbc = parse_target("jdbc:derby:memory:x", table="t")
    assert (jdbc.place, jdbc.is_path) == ("jdbc:derby:memory:x", False)
    with pytest.raises(ConfigurationError, match="--checkpoint"):
        jdbc.checkpoint(None)
    assert jdbc.checkpoint("s3a://b/c") == "s3a://b/c"


@pytest.mark.parametrize("text", ["somewhere", "csv:out", "parquet:", "", "jdbc:x"])
def test_targets_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"parquet:PATH|--table"):
        parse_target(text)


def test_a_package_made_for_another_spark_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_pyspark(tmp_path, "4.3.0.dev1", monkeypatch)
    delta = "io.delta:delta-spark_4.2_2.13:4.4.0"
    jars = "/jars/iceberg-spark-runtime-4.1_2.13-1.12.0.jar,/jars/delta-spark_4.3_2.13-9.jar"
    found = misfits({"spark.jars.packages": delta, "spark.jars": jars, "spark.app.name": delta})
    assert [sentence.partition(":")[0] for sentence in found] == [
        "delta-spark_4.2_2.13 is made for Spark 4.2, and this is 4.3.0",
        "iceberg-spark-runtime-4.1_2.13 is made for Spark 4.1, and this is 4.3.0",
    ]
    assert misfits({"spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.5.0"}) == []


def test_settings_of_delta_stand_beside_those_given() -> None:
    name = "spark.sql.extensions"
    delta, own = Target("delta", "/t"), "io.delta.sql.DeltaSparkSessionExtension"
    config = with_extras(delta, {name: "a.B, c.D", "spark.sql.catalog.spark_catalog": "mine"})
    assert config == {name: f"a.B,c.D,{own}", "spark.sql.catalog.spark_catalog": "mine"}
    assert with_extras(delta, config) == config
    assert with_extras(delta, {})[name] == own
    assert with_extras(Target("parquet", "/t"), {"a": "b"}) == {"a": "b"}


@pytest.mark.parametrize(
    ("kind", "package"),
    [
        ("delta", "io.delta:delta-spark_4.1_2.13"),
        ("iceberg", "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13"),
        ("avro", "org.apache.spark:spark-avro_2.13"),
    ],
)
def test_what_needs_a_package_spark_lacks_is_refused_before_it_starts(
    kind: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_pyspark(tmp_path, "4.1.4", monkeypatch)
    with pytest.raises(ConfigurationError, match=re.escape(f"--package {package}:VERSION")):
        check_extras(kind, {})
    check_extras(kind, {"spark.jars.packages": f"{package}:4.0.0"})
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / f"{package.partition(':')[2]}-4.0.0.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    check_extras(kind, {})
    check_extras("parquet", {})


@pytest.mark.parametrize(
    "master",
    ["local", "local[*]", "local[4]", "local[2,3]", "yarn", "k8s://h", "local-cluster[2,1,512]"],
)
def test_masters_spark_knows_are_let_through(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YARN_CONF_DIR", "/etc/hadoop")
    check_master(master)


def test_yarn_without_its_settings_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigurationError, match="HADOOP_CONF_DIR or YARN_CONF_DIR"):
        check_master("yarn")


@pytest.mark.parametrize("master", ["locl[2]", "local[0]", "local[]", "spark://h", "http://h", ""])
def test_masters_spark_does_not_know_are_refused(master: str) -> None:
    with pytest.raises(ConfigurationError, match="accepted are local"):
        check_master(master)


def test_a_standalone_master_where_nobody_listens_is_refused() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        with pytest.raises(ConfigurationError, match="no Spark master listens at"):
            check_master(f"spark://127.0.0.1:{port}")
        server.listen()
        check_master(f"spark://127.0.0.1:{port}")


def plan(**changes: Any) -> IngestPlan:
    return IngestPlan(("T",), {}, Target("parquet", "/t"), bodies_of(None, "id INT"), **changes)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"dedup_keys": ("id",)}, "without a watermark"),
        ({"watermark": ("_storeTimestamp", "soon")}, "watermark delay is 'soon'"),
        ({"watermark": ("at", "10 minutes")}, "cannot put a watermark on at"),
        ({"watermark": ("id", "1 hour"), "dedup_keys": ("key",)}, "cannot remove repeats by key"),
        ({"partition_by": ("town",)}, "cannot partition by town; the table has id"),
    ],
)
def test_plans_spark_would_refuse_are_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        check_plan(plan(**changes))


def test_what_only_spark_can_tell_is_left_to_it() -> None:
    check_plan(plan(partition_by=("town",), sql="SELECT 1 AS town FROM messages"))
    check_plan(plan(watermark=("_storeTimestamp", "1 hour 30 minutes"), dedup_keys=("ID",)))


def test_progress_counts_a_batch_once_and_tells_how_far_behind_it_is() -> None:
    totals = IngestProgress()
    report = {
        "batchId": 3,
        "observedMetrics": {READ: {"rows": 10, "malformed": 2}, LANDED: {"rows": 8}},
        "durationMs": {"triggerExecution": 1_500},
        "processedRowsPerSecond": 6.5,
        "sources": [
            {
                "endOffset": {"q": {"T": {"b": {"0": 5, "1": 5}}}},
                "latestOffset": {"q": {"T": {"b": {"0": 9, "1": 4}}}},
            }
        ],
    }
    dropped = [{"numRowsDroppedByWatermark": 5}, {"numRowsDroppedByWatermark": 2}, {}]
    assert totals.add(report | {"stateOperators": dropped})
    assert not totals.add(report)
    assert not totals.add({"batchId": 4, "observedMetrics": {READ: {"rows": 0}}})
    assert (totals.rows, totals.landed, totals.malformed, totals.batches) == (10, 8, 2, 1)
    assert totals.last is not None
    assert (totals.late, totals.last.late) == (7, 7)
    assert (totals.last.behind, totals.last.seconds, totals.rows_per_second) == (4, 1.5, 6.5)


QUEUE = MessageQueue("T", "b", 0)


@pytest.mark.parametrize("state", ["done", "writing"])
def test_offsets_a_table_has_already_are_not_appended_again(tmp_path: Path, state: str) -> None:
    marker = f'[{{"state":"{state}","ranges":{{"T":{{"b":{{"0":[5,9]}}}}}}}}]'
    (tmp_path / "_backfill.json").write_text(marker, "utf-8")
    adding = BackfillPlan(("T",), {}, Target("parquet", str(tmp_path)), mode="append")
    with pytest.raises(ConfigurationError, match="offsets 8 to 8 of topic 'T', broker 'b'"):
        check_target(adding, [QueueRange(QUEUE, 8, 20)])
    check_target(adding, [QueueRange(QUEUE, 9, 20)])
    with pytest.raises(ConfigurationError, match="not empty"):
        check_target(BackfillPlan(("T",), {}, Target("parquet", str(tmp_path))), [])


@pytest.mark.parametrize("start", ["1990-01-01T00:00:00Z", "2024-05-01T12:00:00.123Z"])
def test_any_time_with_a_date_may_be_where_a_landing_begins(start: str) -> None:
    """A number before 2001 would be refused; a date says what is meant."""
    given = {"namesrv": "h:1", "rows_per_batch": None, "start": start, "group": None, "tags": None}
    begun = read_options(_source(given) | {"topic": "T"}, "stream").start
    wanted = read_options(_source(given) | {"topic": "T", "startingTimestamp": start}, "stream")
    assert begun == wanted.start
