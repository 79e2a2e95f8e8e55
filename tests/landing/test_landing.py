"""Landing topics as tables: backfills of closed ranges, and streams of several formats."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rocketstream.errors import ConfigurationError, SparkQueryError
from rocketstream.pipelines.backfill import BackfillPlan, backfill, check_target, resolve_ranges
from rocketstream.pipelines.bodies import METADATA, SOURCE_SCHEMA, bodies_of, shape
from rocketstream.pipelines.ingest import (
    IngestPlan,
    begin_letters,
    ingest,
    prepare_target,
    resolve_bodies,
    resumes,
)
from rocketstream.pipelines.targets import Target
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.spark.support import Sent, send
from tests.landing.descriptors import (
    KNOWN,
    descriptor_set,
    field,
    file_of,
    message_class,
    nested,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

NewTopic = Callable[..., str]


def orders(first: int, count: int) -> list[Sent]:
    return [
        Sent(json.dumps({"id": n, "city": f"c{n % 3}"}).encode(), {"KEYS": f"k{n}"})
        for n in range(first, first + count)
    ]


def parquet(path: Path) -> Target:
    return Target("parquet", str(path))


def test_a_range_lands_the_same_from_the_broker_and_from_its_store(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Resolved before reading: what is sent later is not in it; nothing is appended twice."""
    topic = new_topic(queues=3)
    for queue_id in range(2):
        send(shared_cluster, topic, queue_id, orders(queue_id * 100, 20))
    send(shared_cluster, topic, 0, [Sent(b"no json")])
    name = {"nameServer": shared_cluster.namesrv_addr}
    store = {"storePath": str(shared_cluster.store_dir), "brokerName": "broker-a"}
    bodies = bodies_of(None, "infer")
    found = []
    for source, directory in ((name, "broker"), (store, "store")):
        table = tmp_path / directory
        plan = BackfillPlan((topic,), source, parquet(table), bodies, partition_by=("city",))
        ranges = resolve_ranges(plan)
        send(shared_cluster, topic, 1, orders(900, 1))
        result = backfill(spark, plan, ranges)
        assert (result.rows, result.malformed, result.offsets) == (
            sum(span.count for span in ranges), 1, result.rows,
        )  # fmt: skip
        assert result.schema == "city STRING,id BIGINT"
        rows = spark.read.parquet(str(table)).orderBy("_queueId", "_queueOffset").collect()
        found.append([row.asDict() for row in rows])
        adding = dataclasses.replace(plan, mode="append")
        with pytest.raises(ConfigurationError, match=r"holds offsets 0 to \d+ of topic"):
            check_target(adding, ranges)
    broker, stored = found
    assert stored[:-1] == broker
    assert len(broker) == 41
    assert (tmp_path / "broker" / "city=c1").is_dir()


def test_an_overwrite_that_is_killed_is_not_appended_to_with_the_same_range(
    spark: Any,
    shared_cluster: EmbeddedCluster,
    new_topic: NewTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All rows may be there by then; replacing once more is how to go on."""
    topic = new_topic(queues=1)
    send(shared_cluster, topic, 0, orders(0, 3))
    source = {"nameServer": shared_cluster.namesrv_addr}
    plan = BackfillPlan((topic,), source, parquet(tmp_path / "t"), bodies_of(None, "id INT"))
    first = resolve_ranges(plan)
    backfill(spark, plan, first)
    send(shared_cluster, topic, 0, orders(3, 3))
    again = dataclasses.replace(plan, mode="overwrite")
    ranges = resolve_ranges(again)
    write = Target.batch

    def killed(*arguments: Any) -> None:
        write(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Target, "batch", killed)
        with pytest.raises(KeyboardInterrupt):
            backfill(spark, again, ranges)
    for landed in (first, ranges):
        with pytest.raises(ConfigurationError, match="offsets 0 to"):
            check_target(dataclasses.replace(plan, mode="append"), landed)
    backfill(spark, again, ranges)
    rows = spark.read.parquet(str(tmp_path / "t")).collect()
    assert sorted(row.id for row in rows) == list(range(6))
    with pytest.raises(ConfigurationError, match=r"holds offsets 0 to 5"):
        check_target(dataclasses.replace(plan, mode="append"), ranges)


def test_a_stream_lands_with_dead_letters_query_and_without_repeats(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Two topics, one schema from a sample; each message is in one of the two tables."""
    topics = (new_topic(queues=1), new_topic(queues=1))
    send(shared_cluster, topics[0], 0, [*orders(0, 10), Sent(b"\xff\xfe", {"KEYS": "bad"})])
    send(shared_cluster, topics[1], 0, orders(5, 10))
    plan = IngestPlan(
        topics,
        {"nameServer": shared_cluster.namesrv_addr, "startingOffsets": "earliest"},
        parquet(tmp_path / "table"),
        bodies_of(None, "infer"),
        sql="SELECT id, upper(city) AS town, _topic FROM messages WHERE id < 14",
        watermark=("_storeTimestamp", "10 minutes"),
        dedup_keys=("id",),
        dead_letters=parquet(tmp_path / "dead"),
    )
    found = resolve_bodies(spark, plan)
    assert found.bodies.schema == "city STRING,id BIGINT"
    totals = ingest(spark, found)
    rows = spark.read.parquet(str(tmp_path / "table")).orderBy("id").collect()
    assert [(row.id, row.town) for row in rows] == [(n, f"C{n % 3}") for n in range(14)]
    assert (totals.rows, totals.landed, totals.malformed) == (21, 14, 1)
    (dead,) = spark.read.parquet(str(tmp_path / "dead")).collect()
    assert (bytes(dead.body), dead._keys, dead._topic) == (b"\xff\xfe", "bad", topics[0])
    send(shared_cluster, topics[1], 0, [*orders(3, 1), Sent(b"{")])
    again = ingest(spark, plan)
    assert (again.rows, again.landed, again.malformed) == (2, 0, 1)
    assert spark.read.parquet(str(tmp_path / "dead")).count() == 2


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_dead_letters_that_are_wanted_later_begin_where_the_table_goes_on(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path, start: str
) -> None:
    """The table leaves out from there what does not decode: it would be nowhere, or twice."""
    topic = new_topic(queues=2)
    source = {"nameServer": shared_cluster.namesrv_addr, "startingOffsets": start}
    plan = IngestPlan((topic,), source, parquet(tmp_path / "table"), bodies_of(None, "id INT"))
    ingest(spark, plan)
    send(shared_cluster, topic, 0, [Sent(b"in the table")])
    assert ingest(spark, plan).malformed == 1
    for queue_id in range(2):
        send(shared_cluster, topic, queue_id, [*orders(0, 1), Sent(b"dead")])
    plan = dataclasses.replace(plan, dead_letters=parquet(tmp_path / "dead"))
    assert ingest(spark, plan).landed == 2
    send(shared_cluster, topic, 0, [Sent(b"dead, too")])
    ingest(spark, plan)
    dead = [bytes(row.body) for row in spark.read.parquet(str(tmp_path / "dead")).collect()]
    assert sorted(dead) == [b"dead", b"dead", b"dead, too"]


def test_dead_letters_begin_no_later_than_their_table(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Each query would look for itself where latest is, the one for dead letters as the second."""
    topic = new_topic(queues=1)
    source = {"nameServer": shared_cluster.namesrv_addr, "startingOffsets": "latest"}
    plan = IngestPlan(
        (topic,), source, parquet(tmp_path / "table"), bodies_of(None, "id INT"),
        dead_letters=parquet(tmp_path / "dead"),
    )  # fmt: skip
    found = begin_letters(prepare_target(plan), None)
    send(shared_cluster, topic, 0, [Sent(b"dead")])
    again = begin_letters(prepare_target(plan), None)
    assert again == found
    assert ingest(spark, again).landed == 0
    assert spark.read.parquet(str(tmp_path / "dead")).count() == 1


ONE_OBJECT = [b'\n{"id":1}', b'\t{"id":1}', b'\r\n{"id":1}\r\n', b' {"id":1} ', b"{}",
              b'{"name":"}],"}', b'{"id":1,"o":[{"a":1}],"z":[1]}',
              b'{"o":[{"a":1},{"a":2}],"name":"n"}']  # fmt: skip
NOT_ONE = [b"null", b"", b" ", b"[]", b'[{"id":1}]', b'"a"', b"1", b'{"id":1', b'{"id":1} x',
           b'{"id":1}{"id":2}', b'{"id":1},{"id":2}', b'{"id":1}}', b'{"id":1}]', b'{"id":1}],',
           b'{"id":1}],"x":[{"id":1}', b'{"id":1}],"end":1}', b'{"id":1},"x":{"id":1}',
           b'{"id":1}],"it":[{"id":2}', b'{"id":1}\x0b', b'{"id":"no"}', b"\xff"]  # fmt: skip


def test_one_json_object_and_rfc_8259s_white_space_around_it_is_a_row(spark: Any) -> None:
    """Whatever else ``from_json`` takes for a record is kept as it came."""
    bodies = bodies_of("json", "id INT, name STRING, o ARRAY<STRUCT<a:INT>>")
    sent = [*ONE_OBJECT, *NOT_ONE]
    rows = [("t", "b", 0, n, "m", None, None, body, None) for n, body in enumerate(sent)]
    shaped = shape(spark.createDataFrame(rows, SOURCE_SCHEMA), bodies)
    good = [row._queueOffset for row in shaped.where("_malformed IS NULL").collect()]
    assert sorted(good) == [*range(len(ONE_OBJECT))]


ONE_VALUE = [b'{"a":[1,2]}', b"null", b'\r\n "x"\t', b'"],[1"', b"[[1],2]", b"{}"]
NO_VALUE = [b"", b" ", b"{", b'{"a":1} x', b'{"a":1}{"b":2}', b"1 2", b"1,2", b'{"a":1}]', b"1],[2",
            b'1],"b":[2', b"1,", b"1]", b'{"a":1,"a":2}', b"NaN", b"\xff"]  # fmt: skip
ONE_LINE = [b"1,x", b"1,x\n", b"1,x\r\n", b'1,"x"\n']
NO_LINE = [b"", b"\n", b"2", b"y,x", b"1,x,z", b"1,x\n2,x", b"1,\xff"]


@pytest.mark.parametrize(
    ("arguments", "good", "bad"),
    [
        ((None, "variant"), ONE_VALUE, NO_VALUE),
        (("csv", "a INT, b STRING"), ONE_LINE, NO_LINE),
    ],
)
def test_one_value_or_one_line_is_a_row(
    spark: Any, arguments: tuple[Any, ...], good: list[bytes], bad: list[bytes]
) -> None:
    """Where a body has more, what follows the first would be in no table."""
    sent = [*good, *bad]
    rows = [("t", "b", 0, n, "m", None, None, body, None) for n, body in enumerate(sent)]
    shaped = shape(spark.createDataFrame(rows, SOURCE_SCHEMA), bodies_of(*arguments))
    found = shaped.where("_malformed IS NULL").orderBy("_queueOffset").collect()
    assert [sent[row._queueOffset] for row in found] == good
    if arguments[0] == "csv":
        assert {(row.a, row.b) for row in found} == {(1, "x")}
    else:
        texts = [row.body.toJson() for row in found]
        assert list(map(json.loads, texts)) == list(map(json.loads, good))


def test_a_table_grows_by_a_column_and_a_topic(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """The checkpoint goes on: nothing is landed twice, and earlier rows have a null there."""
    topics = (new_topic(queues=1), new_topic(queues=1))
    for n, topic in enumerate(topics):
        send(shared_cluster, topic, 0, orders(n * 10, 2))
    source = {"nameServer": shared_cluster.namesrv_addr, "startingOffsets": "earliest"}
    plan = IngestPlan(topics[:1], source, parquet(tmp_path / "t"), bodies_of(None, "id INT"))
    assert ingest(spark, plan).landed == 2
    send(shared_cluster, topics[0], 0, orders(2, 1))
    wider = dataclasses.replace(plan, topics=topics, bodies=bodies_of(None, "id INT, city STRING"))
    assert ingest(spark, wider).landed == 3
    rows = spark.read.option("mergeSchema", True).parquet(str(tmp_path / "t")).collect()
    assert sorted((row.id, row.city) for row in rows if row.id < 2) == [(0, None), (1, None)]
    assert sorted((row.id, row.city) for row in rows if row.id >= 2) == [
        (2, "c2"), (10, "c1"), (11, "c2"),
    ]  # fmt: skip
    with pytest.raises(ConfigurationError, match="was landed with topics="):
        ingest(spark, plan)


def test_rows_without_a_key_are_no_repeats_of_each_other(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Neither what does not decode nor what lacks the field; a key in part is still a key."""
    topic = new_topic(queues=2)
    bodies = [b"{", b"[", b'{"city": "a"}', b'{"id": 1}', b'{"id": 1}', b'{"city": "b"}']
    for queue_id in range(2):
        send(shared_cluster, topic, queue_id, [Sent(body) for body in bodies])
    plan = IngestPlan(
        (topic,),
        {"nameServer": shared_cluster.namesrv_addr, "startingOffsets": "earliest"},
        parquet(tmp_path / "table"),
        bodies_of("json", "id INT, city STRING, at TIMESTAMP"),
        watermark=("_storeTimestamp", "10 minutes"),
        dedup_keys=("id", "AT"),
    )
    totals = ingest(spark, plan)
    table = spark.read.parquet(str(tmp_path / "table"))
    assert sorted(row._queueOffset for row in table.where("id IS NULL").collect()) == [
        offset for offset in (0, 1, 2, 5) for _ in range(2)
    ]
    assert table.where("id = 1").count() == 1
    assert (totals.rows, totals.landed) == (12, 9)
    assert table.columns == ["id", "city", "at", "_malformed", *METADATA]


@pytest.mark.parametrize(
    ("arguments", "bodies", "good"),
    [
        ((None, "variant"), [b'{"a":[1,2]}', b"null", b"{"], ['{"a":[1,2]}', "null"]),
        (("csv", "a INT, b STRING"), [b"1,x", b"2", b"y,z"], [(1, "x")]),
        (("text", None), [b"one", b"two", b"\xff"], ["one", "two"]),
    ],
)
def test_other_formats_decode_or_are_kept(
    spark: Any,
    shared_cluster: EmbeddedCluster,
    new_topic: NewTopic,
    tmp_path: Path,
    arguments: tuple[Any, ...],
    bodies: list[bytes],
    good: list[Any],
) -> None:
    topic = new_topic(queues=1)
    send(shared_cluster, topic, 0, [Sent(body) for body in bodies])
    plan = BackfillPlan(
        (topic,),
        {"storePath": str(shared_cluster.store_dir)},
        parquet(tmp_path / "table"),
        bodies_of(*arguments),
    )
    backfill(spark, plan, resolve_ranges(plan))
    rows = spark.read.parquet(str(tmp_path / "table")).orderBy("_queueOffset").collect()
    read = [row for row in rows if row._malformed is None]
    if arguments[0] == "csv":
        assert [(row.a, row.b) for row in read] == good
    else:
        assert [getattr(row.body, "toJson", lambda row=row: row.body)() for row in read] == good
    assert len(rows) == len(bodies)
    assert len(read) == len(good)


def test_protobuf_bodies_land_in_batch_and_as_a_stream(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """By the message's own columns; what is no such message is kept as it came."""
    line = nested("Line", field("sku", "STRING", 1), field("count", "UINT32", 2))
    order = nested(
        "Order",
        field("id", "INT64", 1),
        field("at", "MESSAGE", 2, of=".google.protobuf.Timestamp"),
        field("lines", "MESSAGE", 3, of=".shop.Line", repeated=True),
        field("took", "MESSAGE", 4, of=".google.protobuf.Duration"),
        field("big", "UINT64", 5),
    )
    content = descriptor_set(*KNOWN, file_of("order.proto", [line, order], "proto3"))
    place = tmp_path / "order.desc"
    place.write_bytes(content)
    made = message_class(content, "shop.Order")(id=7, big=2**64 - 1)
    made.at.FromJsonString("2026-03-01T09:00:00.000001Z")
    made.lines.add(sku="a", count=2**32 - 1)
    made.took.seconds = 90
    topic = new_topic(queues=1)
    send(shared_cluster, topic, 0, [Sent(made.SerializeToString()), Sent(b"\xff\xff")])
    shaped = bodies_of(None, None, None, str(place), "shop.Order")
    name = {"nameServer": shared_cluster.namesrv_addr}
    closed = BackfillPlan((topic,), name, parquet(tmp_path / "closed"), shaped)
    assert backfill(spark, closed, resolve_ranges(closed)).malformed == 1
    source = {**name, "startingOffsets": "earliest"}
    plan = IngestPlan((topic,), source, parquet(tmp_path / "table"), shaped)
    assert ingest(spark, plan).malformed == 1
    for table in ("closed", "table"):
        rows = spark.read.parquet(str(tmp_path / table)).orderBy("_queueOffset")
        good, bad = rows.withColumn("at", rows["at"].cast("string")).collect()
        assert (good.id, good["at"], good.big) == (7, "2026-03-01 09:00:00.000001", 2**64 - 1)
        assert [tuple(each) for each in good.lines] == [("a", 2**32 - 1)]
        assert (good.took, good._malformed) == (timedelta(seconds=90), None)
        assert (bad.id, bad.lines, bad._malformed) == (None, None, "base64://8=")


@pytest.mark.long
def test_a_database_table_is_appended_to(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """By Spark's JDBC writer, batch by batch; the checkpoint is where it was said to be."""
    topic = new_topic(queues=1)
    send(shared_cluster, topic, 0, orders(0, 5))
    url = f"jdbc:derby:{tmp_path}/db;create=true"
    plan = IngestPlan(
        (topic,),
        {"nameServer": shared_cluster.namesrv_addr, "startingOffsets": "earliest"},
        Target("jdbc", url, "orders", {"driver": "org.apache.derby.jdbc.EmbeddedDriver"}),
        bodies_of(None, "id BIGINT, city STRING"),
        sql="SELECT id, city FROM messages",
        checkpoint_at=str(tmp_path / "checkpoint"),
    )
    assert ingest(spark, plan).landed == 5
    assert resumes(plan)
    send(shared_cluster, topic, 0, orders(5, 2))
    assert ingest(spark, plan).rows == 2
    options = {"url": url, "dbtable": "orders", **plan.target.options}
    rows = spark.read.format("jdbc").options(**options).load().collect()
    assert sorted(row[0] for row in rows) == list(range(7))


@pytest.mark.long
def test_a_batch_a_database_has_in_part_is_not_written_twice(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Killed after it wrote and before it was committed, as its checkpoint then says."""
    topic = new_topic(queues=1)
    send(shared_cluster, topic, 0, orders(0, 5))
    url, driver = f"jdbc:derby:{tmp_path}/db;create=true", "org.apache.derby.jdbc.EmbeddedDriver"
    plan = IngestPlan(
        (topic,),
        {"nameServer": shared_cluster.namesrv_addr, "startingOffsets": "earliest"},
        Target("jdbc", url, "orders", {"driver": driver}),
        bodies_of(None, "id BIGINT, city STRING"),
        checkpoint_at=str(tmp_path / "checkpoint"),
    )
    assert ingest(spark, plan).landed == 5
    send(shared_cluster, topic, 0, orders(5, 5))
    assert ingest(spark, plan).landed == 5
    reader = spark.read.format("jdbc").options(url=url, driver=driver)

    def landed() -> list[int]:
        return sorted(row.id for row in reader.option("dbtable", "orders").load().collect())

    newest = max(int(each.name) for each in Path(plan.checkpoint, "commits").glob("[0-9]*"))
    for name in (f"{newest}", f".{newest}.crc"):
        Path(plan.checkpoint, "commits", name).unlink()
    with _derby(spark, url) as run:
        run('DELETE FROM orders WHERE "_queueOffset" = 7')  # the part that was not written
    assert landed() == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    ingest(spark, plan)
    assert landed() == list(range(10))
    with pytest.raises(Exception, match=r"(?i)orders_landing"):
        reader.option("dbtable", "orders_landing").load()


@contextmanager
def _derby(spark: Any, url: str) -> Iterator[Callable[[str], None]]:
    connection = spark._jvm.java.sql.DriverManager.getConnection(url)
    try:
        yield lambda statement: connection.createStatement().executeUpdate(statement)
    finally:
        connection.close()


def test_rows_and_dead_letters_may_go_to_topics(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, read: Callable[..., Any],
    tmp_path: Path,
) -> None:  # fmt: skip
    """Each row as one JSON; a dead letter as it came, with where it came from.

    One without any body, which a broker would refuse for ever, is a blank and says so.
    """
    topic, good, bad = new_topic(queues=1), new_topic(queues=1), new_topic(queues=1)
    send(shared_cluster, topic, 0, [*orders(0, 2), Sent(b"\xff{", {"KEYS": "k"}), Sent(b"")])
    name = {"nameServer": shared_cluster.namesrv_addr}
    plan = IngestPlan(
        (topic,),
        {**name, "startingOffsets": "earliest"},
        Target("rocketmq", good, options=name),
        bodies_of(None, "id BIGINT, city STRING"),
        sql="SELECT id, city FROM messages",
        checkpoint_at=str(tmp_path / "checkpoint"),
        dead_letters=Target("rocketmq", bad, options=name),
    )
    assert ingest(spark, plan).landed == 2
    rows = read(good, "body BINARY").collect()
    # A topic gets each row at least once: a query that is started again repeats its batch.
    assert {bytes(row.body) for row in rows} == {
        b'{"id":0,"city":"c0"}', b'{"id":1,"city":"c1"}',
    }  # fmt: skip
    letters = {bytes(row.body): row for row in read(bad).collect()}
    assert letters.keys() == {b"\xff{", b" "}
    letter, empty = letters[b"\xff{"], letters[b" "]
    assert letter["keys"] == "k"
    assert (letter.properties["_topic"], letter.properties["_queueOffset"]) == (topic, "2")
    assert "_emptyBody" not in letter.properties
    assert (empty.properties["_queueOffset"], empty.properties["_emptyBody"]) == ("3", "true")


BINARY = [b"\xff\xfe\x00", "é".encode(), b"plain"]


def test_a_topic_is_copied_into_another_byte_for_byte(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, read: Callable[..., Any],
    tmp_path: Path,
) -> None:  # fmt: skip
    """Bodies that are no UTF-8 too: nobody asked for text. By a stream, and as a closed range.

    One without any body, which a broker would refuse for ever, is a blank and says so.
    """
    topic, streamed, closed = new_topic(queues=1), new_topic(queues=1), new_topic(queues=1)
    send(shared_cluster, topic, 0, [*map(Sent, BINARY), Sent(b"")])
    name = {"nameServer": shared_cluster.namesrv_addr}
    source = {**name, "startingOffsets": "earliest"}
    target, kept_in = Target("rocketmq", streamed, options=name), str(tmp_path / "checkpoint")
    totals = ingest(spark, IngestPlan((topic,), source, target, checkpoint_at=kept_in))
    assert (totals.landed, totals.malformed) == (4, 0)
    closed_plan = BackfillPlan((topic,), source, Target("rocketmq", closed, options=name))
    assert backfill(spark, closed_plan, resolve_ranges(closed_plan)).malformed == 0
    for copy in (streamed, closed):
        rows = read(copy, "body BINARY, properties MAP<STRING, STRING>").collect()
        assert [bytes(row.body) for row in rows] == [*BINARY, b" "]
        assert [row.properties.get("_emptyBody") for row in rows] == [None, None, None, "true"]


def test_a_field_named_body_is_the_message_and_what_does_not_decode_stays_whole(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, read: Callable[..., Any],
    tmp_path: Path,
) -> None:  # fmt: skip
    """Its field is null then, which no topic takes: the query would have ended at it every time."""
    topic, copy = new_topic(queues=1), new_topic(queues=1)
    send(shared_cluster, topic, 0, [Sent(b'{"body": "hello"}'), Sent(b'{"bod')])
    name = {"nameServer": shared_cluster.namesrv_addr}
    plan = IngestPlan(
        (topic,),
        {**name, "startingOffsets": "earliest"},
        Target("rocketmq", copy, options=name),
        bodies_of(None, "body STRING"),
        checkpoint_at=str(tmp_path / "checkpoint"),
    )
    assert ingest(spark, plan).malformed == 1
    assert [bytes(row.body) for row in read(copy, "body BINARY").collect()] == [b"hello", b'{"bod']


def test_what_is_no_text_still_goes_where_dead_letters_are_to_go(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, read: Callable[..., Any],
    tmp_path: Path,
) -> None:  # fmt: skip
    topic, good, bad = new_topic(queues=1), new_topic(queues=1), new_topic(queues=1)
    send(shared_cluster, topic, 0, map(Sent, BINARY))
    name = {"nameServer": shared_cluster.namesrv_addr}
    plan = IngestPlan(
        (topic,),
        {**name, "startingOffsets": "earliest"},
        Target("rocketmq", good, options=name),
        checkpoint_at=str(tmp_path / "checkpoint"),
        dead_letters=Target("rocketmq", bad, options=name),
    )
    assert ingest(spark, plan).malformed == 1
    assert [bytes(row.body) for row in read(good, "body BINARY").collect()] == BINARY[1:]
    assert [bytes(row.body) for row in read(bad, "body BINARY").collect()] == BINARY[:1]


def test_a_table_of_an_older_version_is_landed_on(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Its marker named one topic and a schema, its offsets had no marks: nothing twice or left."""
    topic = new_topic(queues=2)
    for queue_id in range(2):
        send(shared_cluster, topic, queue_id, orders(queue_id * 10, 5))
    source = {"nameServer": shared_cluster.namesrv_addr, "startingOffsets": "earliest"}
    schema = "id BIGINT, city STRING"
    plan = IngestPlan((topic,), source, parquet(tmp_path / "t"), bodies_of(None, schema))
    assert ingest(spark, plan).landed == 10
    older: dict[str, Any] = {"topic": topic, "schema": schema, "partitionBy": [], "tags": None}
    (tmp_path / "t" / "_ingest.json").write_text(json.dumps(older), "utf-8")
    for log in Path(plan.checkpoint, "offsets").glob("[0-9]*"):
        *head, offset = log.read_text("utf-8").splitlines()
        found = json.loads(offset)
        assert found.pop("at")
        assert found.pop("crc")
        log.write_text("\n".join([*head, json.dumps(found | {"v": 1})]), "utf-8")
        (log.parent / f".{log.name}.crc").unlink(missing_ok=True)
    send(shared_cluster, topic, 1, orders(15, 5))
    assert ingest(spark, plan).landed == 5
    rows = spark.read.parquet(str(tmp_path / "t")).collect()
    assert sorted(row.id for row in rows) == [*range(5), *range(10, 20)]
    other = dataclasses.replace(plan, bodies=bodies_of(None, "id BIGINT"))
    with pytest.raises(ConfigurationError, match="was landed with bodies="):
        ingest(spark, other)


def test_a_target_spark_does_not_know_is_told_as_its_error(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, tmp_path: Path
) -> None:
    """A catalog nobody has set up; found out before there is a query that could end with it."""
    topic = new_topic(queues=1)
    table = Target("iceberg", "nowhere.db.orders")
    plan = IngestPlan(
        (topic,),
        {"nameServer": shared_cluster.namesrv_addr},
        table,
        checkpoint_at=str(tmp_path / "c"),
    )
    with pytest.raises(SparkQueryError, match=r"the Spark query failed: \S.*nowhere"):
        ingest(spark, plan)
    spark.sql("CREATE DATABASE IF NOT EXISTS lakes")
    plan = dataclasses.replace(plan, target=Target("iceberg", "lakes.orders"))
    with pytest.raises(SparkQueryError, match="iceberg"):
        ingest(spark, plan)
