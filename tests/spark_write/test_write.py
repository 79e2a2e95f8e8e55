"""Writing a DataFrame: what arrives, what is refused, and what survives failures."""

from __future__ import annotations

import datetime
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rocketstream.errors import ConfigurationError, MessageInvalidError, RouteNotFoundError
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark import worker
from rocketstream.spark.options import write_options
from rocketstream.spark.sink.columns import IDENTITY_PROPERTIES, Identity
from rocketstream.spark.sink.writer import Sink, write_rows
from rocketstream.transport.tls import server_context
from tests.kits.spark.support import numbers, page_example, stored
from tests.kits.threaded_server import CERT, KEY

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

NewTopic = Callable[..., str]
Read = Callable[..., Any]
Write = Callable[..., None]
DELAYED = "SCHEDULE_TOPIC_XXXX"
SENT_AT = datetime.datetime(2033, 5, 18, 3, 33, 20, tzinfo=datetime.UTC)


@pytest.fixture(autouse=True)
def _connections_end_with_the_test() -> Iterator[None]:
    yield
    worker.close_pools()


@pytest.fixture
def write(shared_cluster: EmbeddedCluster) -> Write:
    """A function that appends a DataFrame: ``write(frame, topic="T")``."""

    def save(frame: Any, **options: Any) -> None:
        writer = frame.write.format("rocketmq").option("nameServer", shared_cluster.namesrv_addr)
        writer.options(**options).mode("append").save()

    return save


def task(cluster: EmbeddedCluster | str, *batches: pa.RecordBatch, **options: str) -> int:
    """Run a task of a write without Spark; return how many messages it acknowledged."""
    address = cluster if isinstance(cluster, str) else cluster.namesrv_addr
    chosen = write_options({"nameServer": address} | options, "batch")
    places = {name: place for place, name in enumerate(batches[0].schema.names)}
    return write_rows(Sink(chosen, places, "job"), batches, Identity("job", 0, 0))


def bodies(*values: bytes) -> pa.RecordBatch:
    return pa.record_batch({"body": pa.array(values, pa.binary())})


@pytest.mark.core
def test_what_is_written_is_read_back(
    spark: Any, new_topic: NewTopic, write: Write, read: Read
) -> None:
    """Every column, binary bodies, unicode, over all partitions of a DataFrame."""
    topic = new_topic(queues=2)
    rows = [
        (b"\x00\xff", "红", ["a", "ü"], {"p": "1 = 1", "q": "🚀"}, 0, "broker-a", -7, 0),
        (b"x" * 300_000, None, [], {}, 1, None, None, None),
        (b"plain", "t", None, None, 1, None, 2**31 - 1, None),
    ]
    schema = (
        "body BINARY, tags STRING, keys ARRAY<STRING>, properties MAP<STRING,STRING>, queueId INT,"
        " brokerName STRING, FLAG INT, delayLevel BIGINT"
    )
    write(spark.createDataFrame(rows, schema), topic=topic)
    found = {bytes(row.body)[:5]: row for row in read(topic).collect()}
    again = [found[body[:5]] for body, *_ in rows]
    assert [bytes(row.body) for row in again] == [body for body, *_ in rows]
    assert [(row.tags, row["keys"], row.flag, row.queueId) for row in again] == [
        ("红", "a ü", -7, 0),
        (None, None, 0, 1),
        ("t", None, 2**31 - 1, 1),
    ]
    first = found[b"\x00\xff"].properties
    assert {"p": "1 = 1", "q": "🚀"}.items() <= first.items()
    assert len({row.msgId for row in found.values()}) == 3
    identities = {
        tuple(row.properties[name] for name in IDENTITY_PROPERTIES) for row in found.values()
    }
    assert len(identities) == 3
    assert len({query for query, _, _, _ in identities}) == 1


def test_the_pages_example_writes_its_orders(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic
) -> None:
    """docs/spark-writing.md, as printed."""
    topic = new_topic(queues=2)
    text = page_example("write").replace("127.0.0.1:9876", shared_cluster.namesrv_addr)
    code = compile(text.replace('"Orders"', repr(topic)), "docs/spark-writing.md", "exec")
    exec(code, {"spark": spark})  # noqa: S102
    rows = stored(shared_cluster, topic)
    assert {(row["keys"], row["tags"], bytes(row["body"]).decode()) for row in rows} == {
        ("1", "Oslo", '{"id":1,"city":"Oslo","price":20}'),
        ("2", "Rome", '{"id":2,"city":"Rome","price":30}'),
    }


def test_a_topic_is_copied_with_its_properties(
    spark: Any, new_topic: NewTopic, write: Write, read: Read
) -> None:
    """Reserved names are refused unless they are to be left out; tags and keys have columns."""
    one, two = new_topic(queues=1), new_topic(queues=3)
    frame = spark.createDataFrame(
        [("a", "t", "k", {"p": "1"})],
        "body STRING, tags STRING, keys STRING, properties MAP<STRING,STRING>",
    )
    write(frame, topic=one, writeId="first")
    copied = read(one, "body BINARY, tags STRING, keys STRING, properties MAP<STRING,STRING>")
    with pytest.raises(Exception, match=r"has the reserved name .*reservedProperties=drop"):
        write(copied, topic=two)
    write(copied, topic=two, reservedProperties="drop", writeId="second")
    (row,) = read(two).collect()
    assert (bytes(row.body), row.tags, row["keys"], row.properties["p"]) == (b"a", "t", "k", "1")
    assert row.properties["SPARK_QUERY_ID"] == "second"


@pytest.mark.core
def test_mistakes_are_refused_before_anything_is_sent(
    spark: Any, shared_cluster: EmbeddedCluster, new_topic: NewTopic, write: Write
) -> None:
    """By the driver: schema, options, mode, an unknown topic."""
    topic = new_topic(queues=1)
    frame = spark.range(3).selectExpr("string(id) AS body")
    with pytest.raises(Exception, match=r"no column 'value'.*Select, rename and cast to: body bin"):
        write(frame.withColumnRenamed("body", "value"), topic=topic)
    with pytest.raises(Exception, match="did you mean 'sendsInFlight'"):
        write(frame, topic=topic, sendInFlight=1)
    writer = frame.write.format("rocketmq").option("nameServer", "127.0.0.1:1")
    with pytest.raises(Exception, match=r"only appended to.*mode\('append'\)"):
        writer.option("topic", topic).mode("overwrite").save()
    assert stored(shared_cluster, topic) == []


def test_thousands_of_small_rows_go_in_batches_of_both_bounds(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic
) -> None:
    """4,000 rows; each once, spread over the queues, order kept inside a request."""
    topic = new_topic(queues=4)
    rows = [bodies(*(b"%d" % n for n in range(first, first + 2_000))) for first in (0, 2_000)]
    assert task(shared_cluster, *rows, topic=topic, sendBatchSize="100") == 4_000
    found = stored(shared_cluster, topic)
    assert sorted(numbers(found)) == list(range(4_000))
    assert Counter(row["queueId"] for row in found) == dict.fromkeys(range(4), 1_000)
    requests = [numbers(found[at : at + 100]) for at in range(0, 4_000, 100)]
    assert all(each == list(range(each[0], each[0] + 100)) for each in requests)


def test_equal_sharding_keys_keep_their_order(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic
) -> None:
    """In one queue each, where the client's own sharding key goes."""
    topic = new_topic(queues=3)
    batch = pa.record_batch(
        {
            "body": pa.array([b"%d" % n for n in range(3_000)]),
            "shardingKey": pa.array([f"key-{n % 7}" for n in range(3_000)]),
        }
    )
    assert task(shared_cluster, batch, topic=topic, sendBatchSize="50") == 3_000
    queues: dict[int, set[int]] = {}
    seen: dict[int, list[int]] = {}
    for row in stored(shared_cluster, topic):
        number = int(row["body"])
        queues.setdefault(number % 7, set()).add(row["queueId"])
        seen.setdefault(number % 7, []).append(number)
    assert all(len(each) == 1 for each in queues.values())
    assert seen == {key: list(range(key, 3_000, 7)) for key in range(7)}


def test_rows_name_their_topics(shared_cluster: EmbeddedCluster, new_topic: NewTopic) -> None:
    """A column says where each goes; a topic nobody made is made by a broker that may."""
    one, two = new_topic(queues=2), f"{new_topic(queues=1)}-to-come"
    batch = pa.record_batch(
        {"body": pa.array([b"1", b"2", b"3"]), "topic": pa.array([one, two, one])}
    )
    assert task(shared_cluster, batch) == 3
    assert sorted(numbers(stored(shared_cluster, one))) == [1, 3]
    assert numbers(stored(shared_cluster, two)) == [2]


def test_delayed_rows_wait_at_the_broker(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic
) -> None:
    """Sent one by one, since a batch cannot be held back; the others go on."""
    topic = new_topic(queues=1)
    batch = pa.record_batch(
        {"body": pa.array([b"1", b"2", b"3"]), "delayLevel": pa.array([18, None, 18], pa.int32())}
    )
    assert task(shared_cluster, batch, topic=topic) == 3
    assert numbers(stored(shared_cluster, topic)) == [2]
    held = [(dict(row["properties"]), row["body"]) for row in stored(shared_cluster, DELAYED)]
    assert sorted(body for each, body in held if each["REAL_TOPIC"] == topic) == [b"1", b"3"]


def test_a_time_of_delivery_needs_brokers_that_know_it(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic
) -> None:
    """An older one would deliver at once."""
    topic = new_topic(queues=1)
    times = pa.array([SENT_AT], pa.timestamp("us", "UTC"))
    batch = pa.record_batch({"body": pa.array([b"1"]), "deliverTime": times})
    with pytest.raises(MessageInvalidError, match=r"broker broker-a of topic .* older than 5\.0"):
        task(shared_cluster, batch, topic=topic)
    assert stored(shared_cluster, topic) == []


def test_a_great_row_goes_alone_and_a_greater_one_stops_all_that_came_with_it(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic
) -> None:
    """4 MiB is the brokers' bound of a body; nothing of that record batch is sent."""
    topic = new_topic(queues=1)
    greatest = b"x" * (4 << 20)
    assert task(shared_cluster, bodies(b"1", greatest, b"2"), topic=topic) == 3
    with pytest.raises(MessageInvalidError, match=r"row 2 of partition 0 .*4194304 bytes"):
        task(shared_cluster, bodies(b"3", b"4", greatest + b"x"), topic=topic)
    assert [len(row["body"]) for row in stored(shared_cluster, topic)] == [1, len(greatest), 1]


def test_a_topic_that_is_not_there_is_told(
    rocketmq_cluster_factory: Callable[..., EmbeddedCluster],
) -> None:
    """Where no broker makes topics by itself."""
    strict = rocketmq_cluster_factory(auto_create_topics=False)
    with pytest.raises(RouteNotFoundError, match=r"topic 'T' is unknown to.*topic create\)"):
        task(strict, bodies(b"1"), topic="T")
    with pytest.raises(ConfigurationError, match="'SCHEDULE_TOPIC_XXXX' is the brokers' own"):
        task(strict, bodies(b"1"), topic="SCHEDULE_TOPIC_XXXX")


def test_a_write_speaks_tls() -> None:
    """As reading does, to name server and broker."""
    with EmbeddedCluster(ssl_context=server_context(str(CERT), str(KEY))) as secure:
        secure.create_topic("T", queues=1)
        trusted = {"topic": "T", "useTls": "true", "tlsCaFile": str(CERT)}
        assert task(secure, bodies(b"1", b"2"), **trusted) == 2
        with pytest.raises(Exception, match="certificate"):
            task(secure, bodies(b"1"), topic="T", useTls="true", retryTimeoutMs="0")


def test_nothing_is_lost_when_the_broker_restarts_in_the_middle(
    rocketmq_cluster_factory: Callable[..., EmbeddedCluster], tmp_path: Path
) -> None:
    """Retried within retryTimeoutMs; what is there twice has the same identity twice."""
    first = rocketmq_cluster_factory(store_dir=tmp_path / "store")
    ports = [int(a.rpartition(":")[2]) for a in (first.namesrv_addr, first.broker_addr)]
    first.create_topic("T", queues=2)
    address = first.namesrv_addr
    closed = threading.Event()
    running: list[EmbeddedCluster] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(20):
            if number == 10:
                first.close()
                closed.set()
            yield bodies(*(b"%d" % n for n in range(100 * number, 100 * number + 100)))

    def come_back() -> None:
        closed.wait(60)
        running.append(
            rocketmq_cluster_factory(
                store_dir=tmp_path / "store", namesrv_port=ports[0], broker_port=ports[1]
            )
        )

    helper = threading.Thread(target=come_back)
    helper.start()
    options = write_options({"nameServer": address, "topic": "T"}, "batch")
    sent = write_rows(Sink(options, {"body": 0}, "job"), batches(), Identity("job", 0, 0))
    helper.join(60)
    assert sent == 2_000
    found = stored(address, "T")
    rows = {(dict(row["properties"])["SPARK_SEQUENCE"], int(row["body"])) for row in found}
    assert rows == {(str(number), number) for number in range(2_000)}
    running[0].close()  # before its directory goes
