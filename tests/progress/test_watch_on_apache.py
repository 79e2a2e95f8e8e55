"""The collection over Apache's brokers: metrics equal what mqadmin says, and Java members show."""

from __future__ import annotations

import pytest

from rocketstream.admin import Admin
from rocketstream.watch import Collector, History
from rocketstream.watch.metrics import scrape
from tests.kits.apache.cluster import ApacheCluster, JavaPrograms, mqadmins
from tests.kits.apache.ours import Collector as Consumed
from tests.kits.apache.ours import push_consumer, send_many
from tests.kits.scraped import Scraped, read
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

COUNT = 200
DEADLINE_S = 60


def values(families: Scraped, name: str, **labels: str) -> dict[str, float]:
    """Return a metric's values by queue, of the samples that have these labels."""
    found = {}
    for having, value in families[name].items() if name in families else ():
        told = dict(having)
        if labels.items() <= told.items():
            found[told.get("queue_id", "")] = value
    return found


def test_metrics_of_a_group_are_what_mqadmin_says(
    apache_cluster: ApacheCluster, java: JavaPrograms, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Consumed, then behind, then consumed by a Java member."""
    address = apache_cluster.namesrv_addr
    topic = apache_cluster.create_topic(apache_cluster.unique("watched"), queues=4)
    group = apache_cluster.unique("watched-group")
    send_many(address, topic, COUNT)
    consumed = Consumed()
    with push_consumer(address, group, topic, consumed):
        consumed.wait(COUNT)
    send_many(address, topic, COUNT, prefix="later")
    path = tmp_path_factory.mktemp("watch") / "h.db"
    with History(path) as history, Collector(lambda: Admin(address), history=history) as collector:

        def looked() -> Scraped:
            assert collector.refresh(DEADLINE_S)
            assert collector.outage() is None
            return read(scrape(collector))

        families = looked()
        theirs = mqadmins(apache_cluster, group, topic)
        of_queues = {"consumer_group": group, "topic": topic, "is_retry": "false"}
        lag = values(families, "rocketmq_consumer_lag_messages", **of_queues)
        assert lag == {str(queue): diff for queue, (_, _, diff) in theirs.items()}
        assert sum(lag.values()) == COUNT
        here = {"group": group, "topic": topic}
        assert values(families, "rocketmq_group_diff", **here) == {"": COUNT}
        ends = sum(end for end, _, _ in theirs.values())
        assert values(families, "rocketmq_producer_offset", topic=topic) == {"": ends}
        assert values(families, "rocketmq_consumer_offset", **here) == {"": ends - COUNT}
        latency = "rocketmq_group_get_latency_by_storetime"
        assert values(families, latency, **here)[""] > 0
        assert values(families, "rocketstream_broker_up") == {"": 1}
        assert families["rocketmq_brokeruntime_commitlog_disk_ratio"]
        with java.start(
            "JavaPushConsumer", namesrv=address, topic=topic, group=group, count=COUNT
        ) as consumer:
            consumer.wait_event("done")
            wait_until(lambda: values(looked(), "rocketmq_group_diff", **here) == {"": 0}, "no lag")
            families = looked()
            members = {
                dict(labels)["language"]: value
                for labels, value in families["rocketmq_consumer_connections"].items()
                if ("consumer_group", group) in labels
            }
            assert members == {"java": 1}
        state = collector.latest()
        assert state is not None
        points = history.series(group, topic, since_ms=0, until_ms=state.taken_ms + 60_000)
        assert points[-1].lag == 0
