"""What the driver's side of our Spark source asks of Apache's servers, without a Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from rocketstream import ConsumeConcurrentlyStatus, PushConsumer
from rocketstream.columns.table import ALL_COLUMNS
from rocketstream.errors import BrokerError
from rocketstream.spark import worker
from rocketstream.spark.driver.cluster import Cluster
from rocketstream.spark.driver.held_pulls import HeldPulls
from rocketstream.spark.driver.positions import batch_ranges
from rocketstream.spark.driver.streaming import StreamSource
from rocketstream.spark.executor.fetch import read_rows
from rocketstream.spark.options import Mode, read_options
from rocketstream.spark.scan import PartitionPlan, new_scan
from tests.kits.apache.cluster import ApacheCluster, ask
from tests.kits.apache.ours import send_many
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

LONG_MS = 60_000
FILTERS = "enablePropertyFilter"
Drive = Callable[..., Cluster]


@pytest.fixture
def drive(apache_cluster: ApacheCluster) -> Iterator[Drive]:
    """A function that returns the driver's side of a read: ``drive(topic="T", ...)``."""
    opened: list[Cluster] = []

    def new(mode: Mode = "stream", **options: str) -> Cluster:
        given = {"nameServer": apache_cluster.namesrv_addr} | options
        opened.append(Cluster(read_options(given, mode)))
        return opened[-1]

    yield new
    for each in opened:
        each.close()
    worker.close_pools()


def test_a_broker_holds_pulls_and_answers_when_a_message_comes(
    apache_cluster: ApacheCluster, drive: Drive
) -> None:
    """An idle stream listens instead of asking; silence is silence."""
    topic = apache_cluster.create_topic(apache_cluster.unique("held"), queues=2)
    cluster = drive(topic=topic, startingOffsets="earliest")
    options = cluster._options
    held_pulls = HeldPulls(options, cluster)
    ends = cluster.max_offsets(cluster.queues())
    assert not held_pulls.news(ends, 1_500)
    assert len(held_pulls._held) == 2, "answered instead of held"
    source = StreamSource(options, cluster, held_pulls=held_pulls)
    start = source.initial()
    assert source.latest(start, False) is start
    send_many(apache_cluster.namesrv_addr, topic, 1)
    assert held_pulls.news(ends, LONG_MS)
    wait_until(lambda: source.latest(start, False) is not start, "the message in an offset")
    source.stop()


def test_brokers_show_the_index_that_marks_and_sizes_are_read_from(
    apache_cluster: ApacheCluster, drive: Drive
) -> None:
    """4.9 and 5.x: what the index tells of a row is what the message itself tells."""
    topic = apache_cluster.create_topic(apache_cluster.unique("indexed"), queues=3)
    send_many(apache_cluster.namesrv_addr, topic, 30)
    cluster = drive(topic=topic)
    ends = cluster.max_offsets(cluster.queues())
    rows = {queue: end - 1 for queue, end in ends.items() if end}
    marks, sizes = cluster.marks(rows), cluster.row_bytes(rows)
    assert marks.keys() == sizes.keys() == rows.keys()
    assert len(rows) > 1
    assert not cluster._without_index
    assert cluster.marks_again(rows, marks, rows) == marks
    pulled = {queue: cluster.marks({queue: at})[queue] for queue, at in rows.items()}
    assert all(marks[queue].is_of(mark) for queue, mark in pulled.items())
    cluster._without_index.update(queue.broker_name for queue in rows)
    assert cluster.row_bytes(rows) == sizes


def test_brokers_say_which_queues_they_have(apache_cluster: ApacheCluster, drive: Drive) -> None:
    """4.9 and 5.x: a planned range is left out for a topic or a queue that is not there alone."""
    topic = apache_cluster.create_topic(apache_cluster.unique("served"), queues=1)
    cluster = drive(topic=topic)
    (there,) = cluster.queues()
    asked = [there, there._replace(queue_id=5), there._replace(topic=f"{topic}-gone")]
    assert cluster.served(there.broker_name, dict.fromkeys(asked, 7)) == {there}


def test_a_pattern_is_about_what_somebody_sent(apache_cluster: ApacheCluster, drive: Drive) -> None:
    """Of all that Apache's name server lists, nothing of the system and no dead letters."""
    topic = apache_cluster.create_topic(apache_cluster.unique("pattern"), queues=1)
    dead = apache_cluster.create_topic(f"%DLQ%{topic}", queues=1)
    found = {queue.topic for queue in drive(topicPattern=".*").queues()}
    assert topic in found
    assert dead not in found
    system = ("rmq_sys", "%", "TBW102", "SCHEDULE_TOPIC", "broker", "DefaultCluster", "SELF_TEST")
    assert not [name for name in found if name.lower().startswith(tuple(map(str.lower, system)))]
    assert [q.topic for q in drive(topicPattern=f"%DLQ%{topic}").queues()] == [dead]


def test_a_group_tells_its_members(apache_cluster: ApacheCluster, drive: Drive) -> None:
    """Whose offsets are not ours to move; nobody is an empty answer."""
    topic = apache_cluster.create_topic(apache_cluster.unique("members"), queues=1)
    group = apache_cluster.unique("members-group")
    cluster = drive(topic=topic, group=group)
    queues = cluster.queues()
    assert cluster.members(group, queues) == {}
    consumer = PushConsumer(group, namesrv_addr=apache_cluster.namesrv_addr)
    consumer.subscribe(topic, "*")
    consumer.register_message_listener(lambda _: ConsumeConcurrentlyStatus.CONSUME_SUCCESS)
    consumer.start()
    try:
        wait_until(lambda: len(cluster.members(group, queues)) == 1, "the member at the broker")
    finally:
        consumer.shutdown()


def test_a_broker_that_takes_no_conditions_is_quoted(
    apache_cluster: ApacheCluster, drive: Drive, request: pytest.FixtureRequest
) -> None:
    """Apache's default, which the shared servers leave; the text says which setting to make."""
    conditions = ("updateBrokerConfig", "-b", apache_cluster.broker_addr, "-k", FILTERS, "-v")
    apache_cluster.mqadmin(*conditions, "false")
    request.addfinalizer(lambda: apache_cluster.mqadmin(*conditions, "true"))
    topic = apache_cluster.create_topic(apache_cluster.unique("sql"), queues=1)
    send_many(apache_cluster.namesrv_addr, topic, 3)
    cluster = drive("batch", topic=topic, sql="price > 5")
    scan = new_scan(cluster._options, ALL_COLUMNS)
    ranges = batch_ranges(scan.options, cluster)
    plan = PartitionPlan(tuple(ranges), cluster.addresses(span.queue for span in ranges))
    with pytest.raises(BrokerError, match=f"{FILTERS}=true"):
        list(read_rows(scan, plan))


def test_the_first_report_of_a_group_is_kept_for_every_queue(
    apache_cluster: ApacheCluster, drive: Drive
) -> None:
    """A broker that gets the first two commits of a topic and group at once may keep one only."""
    topic = apache_cluster.create_topic(apache_cluster.unique("first"), queues=8)
    send_many(apache_cluster.namesrv_addr, topic, 64)
    cluster = drive(topic=topic)
    ends = cluster.max_offsets(cluster.queues())
    groups = [apache_cluster.unique("first-of") for _ in range(200)]
    for group in groups:
        made, _ = ask(
            apache_cluster.broker_addr, 200, {}, json.dumps({"groupName": group}).encode()
        )
        assert made == 0
        cluster.report(group, ends)
    kept = [cluster.committed(group, ends) for group in groups]
    assert kept == [ends] * len(groups)
