"""Our Spark source on Apache's broker: exact rows in batch and stream, progress for its tools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rocketstream.columns.table import Column
from rocketstream.errors import DataLossError
from rocketstream.protocol.codes import PullSysFlag, RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import PullMessageRequestHeader, SendMessageRequestHeader
from rocketstream.protocol.message_ext import decode_messages
from rocketstream.protocol.record import encode_batch
from rocketstream.spark import worker
from rocketstream.spark.driver.cluster import Cluster
from rocketstream.spark.driver.positions import batch_ranges
from rocketstream.spark.executor.fetch import read_rows
from rocketstream.spark.options import read_options
from rocketstream.spark.scan import PartitionPlan, QueueRange, new_scan
from rocketstream.transport.blocking_connection import BlockingConnection
from tests.kits.apache.cluster import ApacheCluster, JavaPrograms, ask
from tests.kits.apache.messages import Sent, digest, per_queue, read_sent
from tests.kits.apache.ours import send_many
from tests.kits.apache.referee import Referee
from tests.kits.spark.support import run_to_end
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.timeout(600)]

SOME = 20_000
LARGE = 40
QUEUES = 4


@dataclass(frozen=True)
class Filled:
    """A topic and everything in it."""

    topic: str
    stored: list[Sent]


@pytest.fixture(scope="module")
def filled(
    apache: Referee, apache_cluster: ApacheCluster, tmp_path_factory: pytest.TempPathFactory
) -> Filled:
    """Messages of both languages: singles and batches, some deflated."""
    topic = apache_cluster.create_topic(apache_cluster.unique("spark"), queues=QUEUES)
    folder = tmp_path_factory.mktemp("filled")
    java = JavaPrograms(apache, folder)
    sent = send_many(apache_cluster.namesrv_addr, topic, LARGE, prefix="p", size=30_000)
    for mode in ("async", "batch"):
        java.produce(
            namesrv=apache_cluster.namesrv_addr,
            topic=topic,
            group="till",
            mode=mode,
            prefix=mode,
            count=SOME // 2,
            size=200,
            tags="A,红,C",
            out=folder / "sent",
        )
        sent += read_sent(folder / "sent")
    return Filled(topic, sent)


def rows_of(frame: Any) -> Counter[Sent]:
    """The rows of a frame in the form of what was sent."""
    columns = ("queueId", "queueOffset", "msgId", "keys", "tags", "body")
    return Counter(
        Sent(row[0], row[1], row[2], row[3] or "", row[4] or "", digest(bytes(row[5])))
        for row in frame.select(*columns).collect()
    )


def reader(spark: Any, cluster: ApacheCluster, topic: str, **options: Any) -> Any:
    found = spark.read.format("rocketmq").option("nameServer", cluster.namesrv_addr)
    return found.options(topic=topic, **options).load()


def test_batch_reads_every_row(spark: Any, apache_cluster: ApacheCluster, filled: Filled) -> None:
    """Every message once, deflated bodies inflated, properties as sent."""
    frame = reader(spark, apache_cluster, filled.topic)

    assert rows_of(frame) == Counter(filled.stored)
    properties = frame.where("keys = 'async-5'").select("properties").collect()
    assert [row.properties["index"] for row in properties] == ["5"]


def test_the_brokers_store_directory_gives_every_row(
    spark: Any, apache_cluster: ApacheCluster, filled: Filled
) -> None:
    """While the broker runs, in several tasks, without asking it."""
    found = spark.read.format("rocketmq").option("storePath", str(apache_cluster.store_dir))
    frame = found.options(topic=filled.topic, minPartitions="3").load()

    assert rows_of(frame) == Counter(filled.stored)


def test_tags_are_selected_by_the_broker_and_by_us(
    spark: Any, apache_cluster: ApacheCluster, filled: Filled
) -> None:
    """The same expression a consumer would subscribe with."""
    frame = reader(spark, apache_cluster, filled.topic, tags="红 || C")

    assert rows_of(frame) == Counter(each for each in filled.stored if each.tags in ("红", "C"))


def test_stream_reads_each_row_once_over_restarts(
    spark: Any, apache_cluster: ApacheCluster, tmp_path: Path
) -> None:
    """availableNow in bounded batches, then new messages only; progress in their offset file."""
    address = apache_cluster.namesrv_addr
    topic = apache_cluster.create_topic(apache_cluster.unique("spark"), queues=QUEUES)
    group = apache_cluster.unique("spark-group")
    stored = send_many(address, topic, 5_000, size=200)
    run_available_now(spark, apache_cluster, topic, group, tmp_path)
    first = rows_of(spark.read.parquet(str(tmp_path / "table")))
    more = send_many(address, topic, 500, prefix="more", size=200)
    run_available_now(spark, apache_cluster, topic, group, tmp_path)
    both = rows_of(spark.read.parquet(str(tmp_path / "table")))

    assert first == Counter(stored)
    assert both == Counter(stored + more)
    wait_until(
        lambda: apache_cluster.committed(topic, group) == per_queue(stored + more),
        "the group's offsets in consumerOffset.json",
    )


def run_available_now(
    spark: Any, cluster: ApacheCluster, topic: str, group: str, folder: Path
) -> None:
    """Append what is there now to a Parquet table, 2,000 rows a batch."""
    stream = spark.readStream.format("rocketmq").option("nameServer", cluster.namesrv_addr)
    stream = stream.options(
        topic=topic, group=group, startingOffsets="earliest", maxOffsetsPerTrigger="2000"
    )
    run_to_end(
        stream.load()
        .writeStream.format("parquet")
        .option("path", str(folder / "table"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
    )


@dataclass(frozen=True)
class Holed:
    """A topic of one queue whose broker lost a log file in the middle of it."""

    name_server: str
    topic: str
    sent: int

    def rows(self, **options: str) -> list[int]:
        """The offsets a task reads."""
        given = {"nameServer": self.name_server, "topic": self.topic}
        scan = new_scan(read_options(given | options, "batch"), (Column("queueOffset", "at"),))
        driver = Cluster(scan.options)
        try:
            ranges = batch_ranges(scan.options, driver)
            addresses = driver.addresses(span.queue for span in ranges)
        finally:
            driver.close()
        plan = PartitionPlan(tuple(ranges), addresses)
        return [at for batch in read_rows(scan, plan) for at in batch["at"].to_pylist()]


@pytest.fixture
def holed(apache: Referee, tmp_path: Path) -> Iterator[Holed]:
    """The file is taken away while the broker is stopped; it starts again without a word."""
    settings = {"mappedFileSizeCommitLog": str(256 * 1024)}
    cluster = ApacheCluster(apache, tmp_path, broker_settings=settings)
    with cluster:
        cluster.create_topic("T", queues=1)
        sent = send_many(cluster.namesrv_addr, "T", 600, size=3_000)
    files = sorted((cluster.store_dir / "commitlog").iterdir())
    files[2].unlink()
    try:
        yield Holed(cluster.start().namesrv_addr, "T", len(sent))
    finally:
        cluster.stop(kill=True)
        worker.close_pools()


def test_a_vanished_log_file_is_a_loss_or_left_out(holed: Holed) -> None:
    """Apache skips to the next file, and says FOUND; the rows between were lost without a word."""
    with pytest.raises(DataLossError, match=r"queue 0: offsets \d+ to \d+ are (missing|gone)"):
        holed.rows()
    found = holed.rows(failOnDataLoss="false")
    assert len(found) < holed.sent
    before, after = next((a, b) for a, b in pairwise(found) if b != a + 1)
    assert found == [*range(before + 1), *range(after, holed.sent)]


BATCHES = (1, 40, 3, 200, 1, 17) * 3


def send_batches(cluster: ApacheCluster, topic: str) -> list[tuple[str, str, bytes]]:
    """Send batches of some sizes to queue 0, as Java's producer does: with an id of their own."""
    sent: list[tuple[str, str, bytes]] = []
    with BlockingConnection(cluster.broker_addr) as connection:
        for number, size in enumerate(BATCHES):
            items = []
            for at in range(size):
                sent.append((f"ID{number}-{at}", f"tag{at % 3}", b"%d|%d" % (number, at)))
                properties = f"UNIQ_KEY\x01{sent[-1][0]}\x02TAGS\x01{sent[-1][1]}"
                items.append((at, sent[-1][2], properties.encode()))
            header = SendMessageRequestHeader(
                producer_group="pg", topic=topic, default_topic="TBW102",
                default_topic_queue_nums=4, queue_id=0, sys_flag=0, flag=0,
                born_timestamp=1_700_000_000_000,
                properties=f"UNIQ_KEY\x01BATCH{number}\x02WAIT\x01true", reconsume_times=0,
                unit_mode=False, batch=True,
            )  # fmt: skip
            command = RemotingCommand(RequestCode.SEND_BATCH_MESSAGE)
            command.ext_fields = header.to_ext_v2()
            command.body = encode_batch(items)
            answer = connection.request(command, 30_000)
            assert answer.code == 0, answer
    return sent


def test_batches_stored_as_one_record_are_rows(
    apache: Referee, apache_cluster: ApacheCluster
) -> None:
    """Covers W 7.2: a BatchCQ topic of 5.x; any range of it, also from within a batch."""
    if not apache.version.startswith("5"):
        pytest.skip("brokers before 5 store every message of a batch by itself")
    topic = apache_cluster.unique("batchcq")
    apache_cluster.create_topic(topic, queues=1, attributes="+queue.type=BatchCQ")
    sent = send_batches(apache_cluster, topic)
    names = ("queueOffset", "msgId", "tags", "body", "sysFlag")
    columns = tuple(Column(name, name) for name in names)
    options = {"nameServer": apache_cluster.namesrv_addr, "topic": topic}
    scan = new_scan(read_options(options, "batch"), columns)
    driver = Cluster(scan.options)
    try:
        (whole,) = batch_ranges(scan.options, driver)
        addresses = driver.addresses([whole.queue])
        # A last row within a batch is known by its batch.
        marks = [driver.marks({whole.queue: at})[whole.queue] for at in (0, 1, 7, 40, 41)]
        assert marks[1] == marks[2] == marks[3]
        assert len(set(marks)) == 3
        sizes = driver.row_bytes({whole.queue: 7})
        assert 0 < sizes[whole.queue] < 10_000
    finally:
        driver.close()

    def rows(begin: int, end: int) -> list[tuple[Any, ...]]:
        plan = PartitionPlan((QueueRange(whole.queue, begin, end),), addresses)
        found = [row for batch in read_rows(scan, plan) for row in batch.to_pylist()]
        return [tuple(row.values()) for row in found]

    assert (whole.begin, whole.end) == (0, len(sent))
    expected = [(at, *message, 0) for at, message in enumerate(sent)]
    assert rows(0, whole.end) == expected
    for begin, end in ((0, 1), (1, 2), (7, 43), (45, 46), (100, 700)):
        assert rows(begin, end) == expected[begin:end]
    code, answer = ask(
        apache_cluster.broker_addr,
        RequestCode.PULL_MESSAGE,
        PullMessageRequestHeader(
            consumer_group="g", topic=topic, queue_id=0, queue_offset=7, max_msg_nums=32,
            sys_flag=PullSysFlag.SUBSCRIPTION, commit_offset=0, suspend_timeout_millis=0,
            sub_version=0, subscription="*", expression_type="TAG", bname="broker-a",
        ).to_ext(),
    )  # fmt: skip
    first = decode_messages(answer)[0]
    assert (code, first.queue_offset, first.sys_flag, first.properties["INNER_NUM"]) == (
        0, 1, 0xC0, "40",
    )  # fmt: skip
    worker.close_pools()
