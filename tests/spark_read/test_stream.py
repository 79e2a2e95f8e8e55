"""Streams: micro-batches of exact ranges, limits, restarts, what Spark's calls must not break."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.model import MessageQueue
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark.format import limits
from rocketstream.transport.tls import server_context
from tests.kits.spark.support import numbered, run_to_end, send
from tests.kits.threaded_server import CERT, KEY

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

NewTopic = Callable[..., str]


class Streams:
    """Starts queries into Parquet and reads the tables back."""

    def __init__(self, spark: Any, cluster: EmbeddedCluster, root: Path) -> None:
        self._spark = spark
        self._cluster = cluster
        self.root = root

    def _writer(self, topic: str, options: dict[str, Any], **trigger: Any) -> Any:
        """From ``topic`` into the table, checkpointed; earliest unless said otherwise."""
        options = {"startingOffsets": "earliest", "retryTimeoutMs": 5_000} | options
        frame = (
            self._spark.readStream.format("rocketmq")
            .schema("queueId INT, queueOffset BIGINT, body BINARY")
            .option("nameServer", self._cluster.namesrv_addr)
            .options(topic=topic, **options)
            .load()
        )
        writer = frame.writeStream.format("parquet").option("path", str(self.root / "table"))
        writer = writer.option("checkpointLocation", str(self.root / "checkpoint"))
        return writer.trigger(**trigger)

    def start(self, topic: str, **options: Any) -> Any:
        """A query that follows the topic until it is stopped."""
        return self._writer(topic, options, processingTime="0 seconds").start()

    def run(self, topic: str, **options: Any) -> Any:
        """Run to the end of what is there and return the query."""
        return run_to_end(self._writer(topic, options, availableNow=True))

    def numbers(self) -> list[int]:
        """The numbers in the table, sorted; repeats stay."""
        rows = self._spark.read.parquet(str(self.root / "table")).select("body").collect()
        return sorted(int(bytes(row.body)) for row in rows)

    def batches(self) -> int:
        """How many micro-batches were committed."""
        return len(list((self.root / "checkpoint" / "commits").glob("[0-9]*")))

    def logged(self, batch: int) -> Any:
        """The offset logged for a batch."""
        text = (self.root / "checkpoint" / "offsets" / str(batch)).read_text()
        return json.loads(text.splitlines()[-1])


@pytest.fixture
def streams(spark: Any, shared_cluster: EmbeddedCluster, tmp_path: Path) -> Streams:
    """Queries of one test: one table, one checkpoint."""
    return Streams(spark, shared_cluster, tmp_path)


@pytest.mark.core
def test_available_now_reads_all_once_and_the_next_run_goes_on(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic, streams: Streams
) -> None:
    """Restart on the checkpoint continues exactly; nothing new gives nothing."""
    topic = new_topic(queues=2)
    send(shared_cluster, topic, 0, numbered(0, 300))
    send(shared_cluster, topic, 1, numbered(300, 300))
    streams.run(topic)
    assert streams.numbers() == list(range(600))
    streams.run(topic)
    send(shared_cluster, topic, 1, numbered(600, 50))
    streams.run(topic)
    assert streams.numbers() == list(range(650))
    assert streams.batches() == 2


def test_a_stream_reads_over_tls(spark: Any, tmp_path: Path) -> None:
    """Planner, source runner and executors: none has another way in than TLS."""
    with EmbeddedCluster(ssl_context=server_context(str(CERT), str(KEY))) as secure:
        secure.create_topic("T", queues=2)
        send(secure, "T", 0, numbered(0, 300))
        streams = Streams(spark, secure, tmp_path)
        streams.run("T", useTls="true", tlsCaFile=str(CERT), tlsCheckHostname="true")
        assert streams.numbers() == list(range(300))
        with pytest.raises(Exception, match="certificate"):
            Streams(spark, secure, tmp_path / "distrust").run("T", useTls="true", retryTimeoutMs=0)


@pytest.mark.core
def test_max_offsets_per_trigger_bounds_every_batch(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic, streams: Streams
) -> None:
    """Covers S 8.4: availableNow runs as many batches as it takes, none above the limit.

    Spark before 4.2 asks for everything there is: there the option is refused, not ignored.
    """
    topic = new_topic(queues=2)
    if limits is None:
        with pytest.raises(Exception, match=r"option 'maxOffsetsPerTrigger' needs PySpark 4\.2"):
            streams.run(topic, maxOffsetsPerTrigger=100)
        return
    send(shared_cluster, topic, 0, numbered(0, 250))
    send(shared_cluster, topic, 1, numbered(250, 50))
    query = streams.run(topic, maxOffsetsPerTrigger=100)
    sizes = [progress["numInputRows"] for progress in query.recentProgress]
    assert [size for size in sizes if size] == [100, 100, 100]
    assert streams.numbers() == list(range(300))


@pytest.mark.core
def test_the_first_offset_says_where_the_stream_began(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic, streams: Streams
) -> None:
    """Covers S 8.3: Spark keeps no initial offset, so the end of batch 0 carries it."""
    topic = new_topic(queues=1)
    send(shared_cluster, topic, 0, numbered(0, 30))
    streams.run(topic, startingOffsets=json.dumps({topic: {"broker-a": {"0": 10}}}))
    with BlockingAdminClient(shared_cluster.namesrv_addr) as client:
        last = client.search_offset(MessageQueue(topic, "broker-a", 0), 1 << 60)
    logged = streams.logged(0)
    assert logged.pop("crc")
    stored_ms, place = logged.pop("at")[topic]["broker-a"]["0"]
    assert logged == {
        "v": 3,
        "q": {topic: {"broker-a": {"0": 30}}},
        "base": {topic: {"broker-a": {"0": 10}}},
        "parts": 1,
    }
    assert (last, stored_ms > 0, place > 0) == (29, True, True)
    assert streams.numbers() == list(range(10, 30))


def test_a_replayed_first_batch_is_the_same_although_the_initial_offset_drifted(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic, streams: Streams
) -> None:
    """Covers S 0.4: Spark asks for the initial offset anew when it replays batch 0.

    A crash after the offset log and before the commit is what is left when the commit and the
    table are taken away; "latest" in the second run is far from what "earliest" was in the first.
    """
    topic = new_topic(queues=1)
    send(shared_cluster, topic, 0, numbered(0, 20))
    streams.run(topic)
    for folder in ("checkpoint/commits", "table"):
        for file in (streams.root / folder).rglob("*"):
            if file.is_file():
                file.unlink()
    send(shared_cluster, topic, 0, numbered(20, 10))
    streams.run(topic, startingOffsets="latest")
    assert streams.numbers() == list(range(30))


@pytest.mark.core
def test_latest_begins_with_what_comes_after_the_start(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic, streams: Streams
) -> None:
    """The default of a stream; nothing before, nothing between start and first message lost."""
    topic = new_topic(queues=1)
    send(shared_cluster, topic, 0, numbered(0, 20))
    query = streams.start(topic, startingOffsets="latest")
    try:
        _until(lambda: streams.batches() > 0)
        send(shared_cluster, topic, 0, numbered(20, 20))
        query.processAllAvailable()
    finally:
        query.stop()
    assert streams.numbers() == list(range(20, 40))


def test_a_continuous_query_follows_and_reports_its_group(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic, streams: Streams
) -> None:
    """Covers S 0.6: the group's offset at the broker follows the committed batches."""
    topic = new_topic(queues=1)
    query = streams.start(topic, group="spark-group")
    queue = MessageQueue(topic, "broker-a", 0)
    try:
        for first in range(0, 300, 100):
            send(shared_cluster, topic, 0, numbered(first, 100))
            query.processAllAvailable()
            assert streams.numbers() == list(range(first + 100))
        with BlockingAdminClient(shared_cluster.namesrv_addr) as client:
            _until(lambda: client.query_consumer_offset("spark-group", queue) == 300)
        newest = json.loads(query.lastProgress["sources"][0]["latestOffset"])
        assert newest["q"] == {topic: {"broker-a": {"0": 300}}}
    finally:
        query.stop()


@pytest.mark.core
def test_new_queues_are_read_from_their_first_message(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic, streams: Streams
) -> None:
    """Covers S 8.3: a topic that grows under way loses nothing, in this run and the next."""
    topic = new_topic(queues=1)
    send(shared_cluster, topic, 0, numbered(0, 10))
    query = streams.start(topic, queueRefreshMs=0)
    try:
        query.processAllAvailable()
        shared_cluster.create_topic(topic, queues=3)
        send(shared_cluster, topic, 1, numbered(10, 10))

        def all_read() -> bool:
            # A question asked before the queue was there is answered "nothing new" after it is.
            query.processAllAvailable()
            return streams.numbers() == list(range(20))

        _until(all_read)
    finally:
        query.stop()
    send(shared_cluster, topic, 2, numbered(20, 10))
    streams.run(topic)
    assert streams.numbers() == list(range(30))


def test_stop_while_blocked_in_a_broker_that_is_away(
    spark: Any, rocketmq_cluster_factory: Callable[..., EmbeddedCluster], tmp_path: Path
) -> None:
    """Covers S 2.2: latestOffset may block for long, stop() must not wait for it."""
    away = rocketmq_cluster_factory()
    away.create_topic("T", queues=1)
    send(away, "T", 0, numbered(0, 10))
    streams = Streams(spark, away, tmp_path)
    query = streams.start("T", retryTimeoutMs=600_000)
    query.processAllAvailable()
    away.close()
    stopper = threading.Thread(target=query.stop)
    stopper.start()
    stopper.join(30)
    assert not stopper.is_alive()
    assert streams.numbers() == list(range(10))


def test_a_stream_outlives_its_brokers_restart(
    spark: Any, rocketmq_cluster_factory: Callable[..., EmbeddedCluster], tmp_path: Path
) -> None:
    """An exception ends a query, so failures that pass are waited for inside."""
    first = rocketmq_cluster_factory(store_dir=tmp_path / "store")
    ports = [int(a.rpartition(":")[2]) for a in (first.namesrv_addr, first.broker_addr)]
    first.create_topic("T", queues=1)
    send(first, "T", 0, numbered(0, 10))
    streams = Streams(spark, first, tmp_path)
    query = streams.start("T", retryTimeoutMs=60_000)
    try:
        query.processAllAvailable()
        first.close()
        second = rocketmq_cluster_factory(
            store_dir=tmp_path / "store", namesrv_port=ports[0], broker_port=ports[1]
        )
        send(second, "T", 0, numbered(10, 10))
        query.processAllAvailable()
        assert streams.numbers() == list(range(20))
    finally:
        query.stop()
    second.close()  # before its directory goes


@pytest.mark.core
@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (5, "read up to offset 20, but the queue now ends at 5"),
        (25, "the last row read, offset 19, was stored at"),
    ],
)
def test_a_recreated_topic_is_a_loss_or_read_from_its_beginning(
    spark: Any,
    rocketmq_cluster_factory: Callable[..., EmbeddedCluster],
    tmp_path: Path,
    rows: int,
    text: str,
) -> None:
    """Covers failOnDataLoss in a stream, both ways, the new topic shorter and longer."""
    before = rocketmq_cluster_factory()
    before.create_topic("T", queues=1)
    send(before, "T", 0, numbered(0, 20))
    Streams(spark, before, tmp_path).run("T")
    before.close()
    after = rocketmq_cluster_factory()
    after.create_topic("T", queues=1)
    send(after, "T", 0, numbered(100, rows))
    streams = Streams(spark, after, tmp_path)
    with pytest.raises(Exception, match=text):
        streams.run("T", failOnDataLoss=True, retryTimeoutMs=0)
    streams.run("T", failOnDataLoss=False, retryTimeoutMs=0)
    assert streams.numbers() == [*range(20), *range(100, 100 + rows)]
    send(after, "T", 0, numbered(200, 3))
    streams.run("T", failOnDataLoss=True, retryTimeoutMs=0)
    assert streams.numbers() == [*range(20), *range(100, 100 + rows), *range(200, 203)]


@pytest.mark.core
def test_a_queue_taken_away_with_unread_rows_is_a_loss(
    shared_cluster: EmbeddedCluster, new_topic: NewTopic, streams: Streams
) -> None:
    """AvailableNow must not succeed over them; read to its end a queue may go."""
    topic = new_topic(queues=2)
    send(shared_cluster, topic, 0, numbered(0, 10))
    send(shared_cluster, topic, 1, numbered(10, 10))
    streams.run(topic)
    shared_cluster.create_topic(topic, queues=1)
    send(shared_cluster, topic, 0, numbered(20, 10))
    streams.run(topic, retryTimeoutMs=0)
    assert streams.numbers() == list(range(30))
    shared_cluster.create_topic(topic, queues=2)
    send(shared_cluster, topic, 1, numbered(30, 5))
    shared_cluster.create_topic(topic, queues=1)
    with pytest.raises(Exception, match=r"queue 1: the queue has left the route.*ends at 15"):
        streams.run(topic, retryTimeoutMs=0)
    shared_cluster.create_topic(topic, queues=2)
    streams.run(topic, retryTimeoutMs=0)
    assert streams.numbers() == list(range(35))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"endingOffsets": "latest"}, "'endingOffsets' is for batch reads"),
        ({"startingOffsets": '{"other":{"b":{"0":1}}}'}, "only for queues that are read"),
        ({"startingOffsets": '{"TOPIC":{"broker-a":{"7":1}}}'}, "queues that do not exist"),
    ],
)
def test_a_wrong_option_ends_the_query_with_its_text(
    new_topic: NewTopic, streams: Streams, options: dict[str, str], text: str
) -> None:
    """Errors of the source process reach the user as text."""
    topic = new_topic(queues=1)
    options = {name: value.replace("TOPIC", topic) for name, value in options.items()}
    with pytest.raises(Exception, match=text):
        streams.run(topic, **options)


def _until(holds: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until something holds that nothing announces."""
    pause = threading.Event()
    for _ in range(int(seconds / 0.05)):
        if holds():
            return
        pause.wait(0.05)
    pytest.fail("it never came to hold")


def test_two_streams_of_one_topic_in_one_session_know_nothing_of_each_other(
    spark: Any,
    shared_cluster: EmbeddedCluster,
    new_topic: NewTopic,
    stream: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """Other limits, columns and places; one is stopped and started while the other runs."""
    topic = new_topic(queues=2)
    for queue_id in range(2):
        send(shared_cluster, topic, queue_id, numbered(queue_id * 50, 50))
    frames = {
        "small": stream(topic, "body BINARY", maxOffsetsPerTrigger=7),
        "whole": stream(topic, "queueOffset BIGINT, body BINARY"),
    }
    seen: dict[str, list[int]] = {name: [] for name in frames}

    def start(name: str) -> Any:
        def note(batch: Any, _: int) -> None:
            seen[name] += [int(bytes(row.body)) for row in batch.collect()]

        writer = frames[name].writeStream.foreachBatch(note)
        return writer.option("checkpointLocation", str(tmp_path / name)).start()

    queries = {name: start(name) for name in frames}
    for query in queries.values():
        query.processAllAvailable()
    queries["small"].stop()
    send(shared_cluster, topic, 0, numbered(100, 20))
    queries["whole"].processAllAvailable()
    again = start("small")
    again.processAllAvailable()
    again.stop()
    queries["whole"].stop()
    assert {name: sorted(numbers) for name, numbers in seen.items()} == {
        name: list(range(120)) for name in frames
    }
