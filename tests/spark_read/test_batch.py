"""Batch reads: columns, ranges, filters, losses, errors a user will meet."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from typing import Any

import pytest

from rocketstream.columns.table import COLUMNS
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.spark.support import BORN_MS, Sent, numbered, send

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

Read = Callable[..., Any]
NewTopic = Callable[..., str]


def numbers(frame: Any) -> list[int]:
    """The numbers in the bodies, sorted; repeats stay."""
    return sorted(int(bytes(row.body)) for row in frame.select("body").collect())


def offsets(topic: str, **per_queue: int) -> str:
    """Offset JSON: ``offsets("T", q0=5, q1=7)``."""
    return json.dumps({topic: {"broker-a": {name[1:]: at for name, at in per_queue.items()}}})


@pytest.mark.core
def test_every_column_has_its_value(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic, read: Read
) -> None:
    """The whole schema, in Spark's types, found without any registration."""
    topic = new_topic(queues=1)
    properties = {"TAGS": "JFK", "KEYS": "AA1 2013", "UNIQ_KEY": "7F00", "dest": "IAH"}
    send(shared_cluster, topic, 0, [Sent(b"first"), Sent(b"\x00\xff", properties)])
    frame = read(topic)
    assert {field.name: field.dataType.simpleString() for field in frame.schema} == COLUMNS
    bare, row = frame.orderBy("queueOffset").collect()
    assert row.properties == {**properties, "WAIT": "true", "CLUSTER": "DefaultCluster"}
    assert (row.topic, row.brokerName, row.queueId, row.queueOffset) == (topic, "broker-a", 0, 1)
    assert (row.msgId, row.tags, row["keys"], bytes(row.body)) == (
        "7F00", "JFK", "AA1 2013", b"\x00\xff",
    )  # fmt: skip
    assert row.bornTimestamp == datetime.datetime.fromtimestamp(BORN_MS / 1000)
    assert row.storeTimestamp > row.bornTimestamp
    assert row.bornHost.startswith("127.0.0.1:")
    assert row.storeHost == shared_cluster.broker_addr
    assert (row.flag, row.sysFlag, row.reconsumeTimes) == (0, 0, 0)
    assert (bare.tags, bare["keys"], len(bare.msgId)) == (None, None, 32)
    assert bare.commitLogOffset < row.commitLogOffset


@pytest.mark.core
def test_the_schema_is_the_choice_of_columns(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic, read: Read
) -> None:
    """Covers S 8: any subset in any order; Spark gets exactly the type it was promised."""
    topic = new_topic(queues=1)
    send(shared_cluster, topic, 0, numbered(0, 300, TAGS="a"))
    frame = read(topic, "tags STRING, queueOffset BIGINT, Body BINARY")
    assert frame.columns == ["tags", "queueOffset", "Body"]
    assert [(r.tags, r.queueOffset) for r in frame.collect()] == [("a", i) for i in range(300)]
    assert read(topic, "properties MAP<STRING,STRING>").first().properties["KEYS"] == "k0"


@pytest.mark.core
def test_a_schema_with_not_null_is_read(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic, read: Read
) -> None:
    """Spark compares schemas exactly, nullability included."""
    topic = new_topic(queues=1)
    send(shared_cluster, topic, 0, numbered(0, 300, TAGS="a"))
    send(shared_cluster, topic, 0, numbered(300, 1))
    frame = read(topic, "body BINARY NOT NULL, queueOffset BIGINT NOT NULL, tags STRING")
    assert [field.nullable for field in frame.schema.fields] == [False, False, True]
    assert numbers(frame) == list(range(301))
    with pytest.raises(Exception, match=r"column 'tags' is NOT NULL.*offset 300 of topic"):
        read(topic, "tags STRING NOT NULL").collect()


@pytest.mark.parametrize("schema", ["value STRING", "body STRING", "queueId BIGINT"])
def test_a_schema_that_cannot_be_read_names_what_can(
    new_topic: NewTopic, read: Read, schema: str
) -> None:
    """One clear error, with the full list."""
    with pytest.raises(Exception, match="Choose any of, in any order: topic string") as caught:
        read(new_topic(), schema).collect()
    assert "schema cannot be read from RocketMQ" in str(caught.value)


@pytest.mark.core
def test_ranges_are_exact(shared_cluster: EmbeddedCluster, new_topic: NewTopic, read: Read) -> None:
    """Begin inclusive, end exclusive, per queue; -2 and -1 as in Spark's Kafka source."""
    topic = new_topic(queues=2)
    send(shared_cluster, topic, 0, numbered(0, 500))
    send(shared_cluster, topic, 1, numbered(1_000, 500))
    some = read(
        topic,
        startingOffsets=offsets(topic, q0=100, q1=-2),
        endingOffsets=offsets(topic, q0=350, q1=7),
    )
    assert numbers(some) == [*range(100, 350), *range(1_000, 1_007)]
    rest = read(topic, startingOffsets=offsets(topic, q0=350, q1=7))
    assert numbers(rest) == [*range(350, 500), *range(1_007, 1_500)]
    nothing = read(topic, startingOffsets=offsets(topic, q0=-1, q1=-1))
    assert nothing.count() == 0
    assert nothing.rdd.getNumPartitions() == 1


@pytest.mark.core
def test_an_empty_topic_is_an_empty_table(new_topic: NewTopic, read: Read) -> None:
    """Covers S 2.3: no partition must not become a None partition."""
    assert read(new_topic()).collect() == []


def test_several_topics_are_one_table(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic, read: Read
) -> None:
    """A comma list."""
    first, second = new_topic(queues=1), new_topic(queues=1)
    send(shared_cluster, first, 0, numbered(0, 3))
    send(shared_cluster, second, 0, numbered(3, 3))
    frame = read(f"{first}, {second}")
    assert numbers(frame) == list(range(6))
    assert {row.topic for row in frame.collect()} == {first, second}


@pytest.mark.core
def test_min_partitions_splits_queues_and_loses_nothing(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic, read: Read
) -> None:
    """Covers S 8.5; by default small ranges share a partition."""
    topic = new_topic(queues=3)
    for queue_id in range(3):
        send(shared_cluster, topic, queue_id, numbered(queue_id * 1_000, 400))
    wanted = sorted(q * 1_000 + i for q in range(3) for i in range(400))
    split = read(topic, minPartitions=5)
    assert split.rdd.getNumPartitions() >= 5
    assert numbers(split) == wanted
    together = read(topic)
    assert together.rdd.getNumPartitions() == 1
    assert numbers(together) == wanted


def test_latest_is_frozen_with_the_dataframe(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic, read: Read
) -> None:
    """Covers S 2.4: one load() is one table, however often it is used."""
    topic = new_topic(queues=1)
    send(shared_cluster, topic, 0, numbered(0, 10))
    frame = read(topic)
    assert frame.count() == 10
    send(shared_cluster, topic, 0, numbered(10, 10))
    assert frame.count() == 10
    assert read(topic).count() == 20


@pytest.mark.core
def test_filters_on_one_dataframe_do_not_leak_into_another(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic, read: Read
) -> None:
    """Covers S 2.4: pushdown stays off, since Spark mixes pushed filters up."""
    topic = new_topic(queues=1)
    send(shared_cluster, topic, 0, numbered(0, 100))
    frame = read(topic)
    assert frame.filter("queueOffset > 90").count() == 9
    assert frame.count() == 100
    both = frame.filter("queueOffset > 50").union(frame.filter("queueOffset > 90"))
    assert both.count() == 58


@pytest.mark.core
def test_tags_select_exactly(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic, read: Read
) -> None:
    """Covers C-382: 'Aa' and 'BB' have one hash, only one of them is wanted."""
    topic = new_topic(queues=1)
    sent = [Sent(b"%d" % i, {"TAGS": ("Aa", "BB", "C")[i % 3]}) for i in range(900)]
    send(shared_cluster, topic, 0, sent)
    assert numbers(read(topic, tags="Aa || C")) == [i for i in range(900) if i % 3 != 1]
    assert numbers(read(topic, "body BINARY", tags="BB")) == list(range(1, 900, 3))
    assert read(topic, tags="none").count() == 0


def test_a_time_selects_from_its_first_message_on(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic, read: Read
) -> None:
    """Covers C-372: the broker's nearest match is made exact."""
    topic = new_topic(queues=1)
    for first in range(0, 200, 50):
        send(shared_cluster, topic, 0, numbered(first, 50))
    rows = read(topic, "storeTimestamp TIMESTAMP, body BINARY").collect()
    stamps = {int(bytes(r.body)): round(r.storeTimestamp.timestamp() * 1000) for r in rows}
    middle = stamps[100]
    wanted = sorted(number for number, at in stamps.items() if at >= middle)
    assert numbers(read(topic, startingTimestamp=middle)) == wanted
    before = read(topic, endingTimestamp=middle)
    assert numbers(before) == sorted(set(stamps) - set(wanted))
    assert read(topic, startingTimestamp="2099-01-01T00:00:00Z").count() == 0
    assert read(topic, startingTimestamp=0).count() == 200


def test_bodies_of_four_mebibytes(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic, read: Read
) -> None:
    """Covers S 6: batches are cut by bytes, so the largest messages fit."""
    topic = new_topic(queues=1)
    bodies = [bytes([i]) * (4 * 1024 * 1024 - 200) for i in range(3)]
    for body in bodies:
        send(shared_cluster, topic, 0, [Sent(body)])
    frame = read(topic, "queueOffset BIGINT, body BINARY").orderBy("queueOffset")
    assert [bytes(row.body) for row in frame.collect()] == bodies


@pytest.mark.core
def test_offsets_beyond_the_queue_are_a_loss_or_left_out(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic, read: Read
) -> None:
    """Covers failOnDataLoss both ways, for offsets the user named."""
    topic = new_topic(queues=1)
    send(shared_cluster, topic, 0, numbered(0, 10))
    beyond = {"endingOffsets": offsets(topic, q0=15)}
    with pytest.raises(Exception, match=r"offsets 0 to 14 were asked for.*holds 0 to 9"):
        read(topic, **beyond).collect()
    assert numbers(read(topic, failOnDataLoss=False, **beyond)) == list(range(10))


def test_an_unknown_topic_says_so(read: Read) -> None:
    """The error names the topic, the name server and what to do."""
    with pytest.raises(Exception, match=r"topic 'no-such-topic' is unknown to name server"):
        read("no-such-topic").collect()


def test_a_name_server_that_is_not_there_says_so(spark: Any) -> None:
    """The error lists what was tried."""
    reader = spark.read.format("rocketmq").options(
        nameServer="127.0.0.1:1", topic="T", retryTimeoutMs=0
    )
    with pytest.raises(
        Exception, match=r"no name server answered for the route of topic .T. \(127\.0\.0\.1:1: "
    ):
        reader.load().collect()


@pytest.mark.core
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"startingOfsets": "earliest"}, "did you mean 'startingOffsets'"),
        ({"minPartitions": "many"}, "option 'minPartitions' is 'many'; give a whole number"),
        ({"tags": "||"}, "'tags'|subscription|expression"),
    ],
)
def test_a_wrong_option_says_what_is_right(
    new_topic: NewTopic, read: Read, options: dict[str, str], text: str
) -> None:
    """Errors of the planner process reach the user as text."""
    with pytest.raises(Exception, match=text):
        read(new_topic(), **options).collect()
