"""The broker's figures as tools read them: codes 28 and 315."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from rocketstream.protocol.codes import RequestCode
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.testing import ManualClock
from tests.kits.peer import Peer

FACTORY = Callable[..., EmbeddedCluster]
APACHES_KEYS = [
    "EndTransactionQueueSize",
    "EndTransactionThreadPoolQueueCapacity",
    "bootTimestamp",
    "brokerVersion",
    "brokerVersionDesc",
    "commitLogDirCapacity",
    "commitLogDiskRatio",
    "commitLogMaxOffset",
    "commitLogMinOffset",
    "consumeQueueDiskRatio",
    "dispatchBehindBytes",
    "dispatchMaxBuffer",
    "earliestMessageTimeStamp",
    "getFoundTps",
    "getMessageEntireTimeMax",
    "getMissTps",
    "getTotalTps",
    "getTransferedTps",
    "msgGetTotalTodayMorning",
    "msgGetTotalTodayNow",
    "msgGetTotalYesterdayMorning",
    "msgPutTotalTodayMorning",
    "msgPutTotalTodayNow",
    "msgPutTotalYesterdayMorning",
    "pageCacheLockTimeMills",
    "pullThreadPoolQueueCapacity",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueSize",
    "putLatency99",
    "putLatency999",
    "putMessageAverageSize",
    "putMessageDistributeTime",
    "putMessageEntireTimeMax",
    "putMessageFailedTimes",
    "putMessageSizeTotal",
    "putMessageTimesTotal",
    "putTps",
    "queryThreadPoolQueueCapacity",
    "queryThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueSize",
    "remainHowManyDataToFlush",
    "remainTransientStoreBufferNumbs",
    "runtime",
    "sendThreadPoolQueueCapacity",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "sendThreadPoolQueueSize",
    "startAcceptSendRequestTimeStamp",
]
"""What Apache's 4.9.7 answers to 28, a directory's ratio and delay levels aside."""


def runtime(broker: Peer) -> dict[str, str]:
    table = json.loads(bytes(broker.call(RequestCode.GET_BROKER_RUNTIME_INFO).body))["table"]
    assert all(isinstance(value, str) for value in table.values())
    return dict(table)


def sample(cluster: EmbeddedCluster) -> None:
    """Take the samples that are due, on the cluster's own loop."""

    async def take() -> None:
        cluster.broker.controller.sample()

    assert cluster._thread is not None
    cluster._thread.run(take())


def window(broker: Peer, name: str, key: str) -> dict[str, dict[str, float]]:
    fields = {"statsName": name, "statsKey": key}
    answer = broker.call(RequestCode.VIEW_BROKER_STATS_DATA, ext=fields)
    assert answer.code == 0, answer.remark
    return dict(json.loads(bytes(answer.body)))


def test_every_figure_of_apache_s_is_there(rocketmq_cluster_factory: FACTORY) -> None:
    cluster = rocketmq_cluster_factory()
    with Peer(cluster.broker_addr) as broker:
        empty = runtime(broker)
        assert set(APACHES_KEYS) <= set(empty)
        assert empty["earliestMessageTimeStamp"] == "-1"
        assert empty["putMessageAverageSize"] == "0.0"
        assert broker.send("T1", b"x" * 100).code == 0
        assert broker.send("T1", b"x" * 100).code == 0
        broker.messages("T1")
        told = runtime(broker)
    size = int(told["commitLogMaxOffset"])
    assert int(told["putMessageSizeTotal"]) == size
    assert float(told["putMessageAverageSize"]) == size / 2
    assert told["putMessageTimesTotal"] == told["msgPutTotalTodayNow"] == "2"
    assert told["msgGetTotalTodayNow"] == "2"
    assert int(told["earliestMessageTimeStamp"]) >= int(told["bootTimestamp"])
    words = told["commitLogDirCapacity"].split(" ")  # by place, as the exporter's reader takes it
    assert words[3].endswith("iB,")
    assert words[7].endswith("iB.")
    assert 0 < float(told["commitLogDiskRatio"]) <= 1
    ratio = f"commitLogDiskRatio_{cluster.store_dir / 'commitlog'}"
    assert told[ratio] == told["consumeQueueDiskRatio"] == told["commitLogDiskRatio"]


def test_counts_of_days_survive_a_restart(
    tmp_path: Path, rocketmq_cluster_factory: FACTORY
) -> None:
    """Three days: yesterday's messages are told today, by a broker that began today."""
    noon = datetime(2026, 3, 1, 12)
    clock = ManualClock(round(noon.timestamp() * 1000))
    cluster = rocketmq_cluster_factory(store_dir=tmp_path / "s", clock=clock)
    with Peer(cluster.broker_addr) as broker:
        broker.send("T1")
        told = runtime(broker)
        mornings = ("msgPutTotalYesterdayMorning", "msgPutTotalTodayMorning", "msgPutTotalTodayNow")
        assert [told[name] for name in mornings] == ["0", "0", "1"]
        assert int(told["msgTotalSinceTimestamp"]) == clock.now_ms()
        clock.advance(timedelta(days=1) / timedelta(milliseconds=1))
        sample(cluster)
        broker.send("T1")
        broker.send("T1")
        broker.messages("T1")
    cluster.close()
    clock.advance(timedelta(days=1) / timedelta(milliseconds=1))
    again = rocketmq_cluster_factory(store_dir=tmp_path / "s", clock=clock)
    with Peer(again.broker_addr) as broker:
        broker.send("T1")
        told = runtime(broker)
        assert [told[name] for name in mornings] == ["1", "3", "4"]
        gets = [name.replace("Put", "Get") for name in mornings]
        assert [told[name] for name in gets] == ["0", "3", "3"]
    again.close()
    (tmp_path / "s" / "config" / "brokerStats.json").write_text("{broken")
    (tmp_path / "s" / "config" / "brokerStats.json.bak").write_text("{broken")
    anew = rocketmq_cluster_factory(store_dir=tmp_path / "s", clock=clock)
    with Peer(anew.broker_addr) as broker:
        told = runtime(broker)
        assert [told[name] for name in mornings] == ["0", "0", "0"]
        assert int(told["msgTotalSinceTimestamp"]) == clock.now_ms()


def test_statistics_are_counted_by_topic_group_and_queue(
    rocketmq_cluster_factory: FACTORY,
) -> None:
    clock = ManualClock()
    cluster = rocketmq_cluster_factory(clock=clock)
    cluster.create_topic("T1", queues=2)
    with Peer(cluster.broker_addr) as broker:
        for number in range(3):
            broker.send("T1", b"x" * 100, queue_id=number % 2)
        size = cluster.broker.store.physical_max_offset
        assert window(broker, "TOPIC_PUT_NUMS", "T1")["statsMinute"]["sum"] == 0
        broker.heartbeat("c1", "cg", {"T1": "*"})
        broker.pull("T1", 0, group="cg")
        clock.advance(10_000)
        sample(cluster)
        told = window(broker, "TOPIC_PUT_NUMS", "T1")
        assert told["statsMinute"] == {"sum": 3, "tps": 0.3, "avgpt": 1.0}
        assert told["statsHour"] == told["statsDay"] == {"sum": 0, "tps": 0.0, "avgpt": 0.0}
        assert window(broker, "TOPIC_PUT_SIZE", "T1")["statsMinute"] == {
            "sum": size, "tps": size / 10, "avgpt": size / 3
        }  # fmt: skip
        for name, key, total in (
            ("BROKER_PUT_NUMS", "DefaultCluster", 3),
            ("BROKER_GET_NUMS", "DefaultCluster", 2),
            ("GROUP_GET_NUMS", "T1@cg", 2),
            ("QUEUE_PUT_NUMS", "T1@1", 1),
            ("QUEUE_GET_NUMS", "T1@0@cg", 2),
            ("GROUP_GET_LATENCY", "0@T1@cg", 0),
        ):
            assert window(broker, name, key)["statsMinute"]["sum"] == total, name
        pulled = window(broker, "GROUP_GET_SIZE", "T1@cg")["statsMinute"]["sum"]
        assert pulled == window(broker, "QUEUE_PUT_SIZE", "T1@0")["statsMinute"]["sum"]
        clock.advance(600_000)
        sample(cluster)
        assert window(broker, "TOPIC_PUT_NUMS", "T1")["statsHour"]["sum"] == 3


def test_what_was_sent_back_is_counted_of_its_first_topic(
    rocketmq_cluster_factory: FACTORY,
) -> None:
    clock = ManualClock()
    cluster = rocketmq_cluster_factory(clock=clock)
    with Peer(cluster.broker_addr) as broker:
        broker.send("T1")
        broker.heartbeat("c1", "cg", {"T1": "*"})
        broker.send_back("cg", broker.messages("T1")[0])
        clock.advance(10_000)
        sample(cluster)
        assert window(broker, "SNDBCK_PUT_NUMS", "T1@cg")["statsMinute"]["sum"] == 1


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("TOPIC_PUT_NUMS", "T2"),
        ("TOPIC_PUT_NUMS", "nowhere"),
        ("GROUP_GET_NUMS", "T1@nobody"),
        ("GROUP_GET_NUMS", "T1"),
        ("BROKER_PUT_NUMS", "OtherCluster"),
        ("QUEUE_PUT_NUMS", "T1@99"),
        ("QUEUE_PUT_NUMS", "T1@x"),
        ("NO_SUCH_NUMS", "T1"),
    ],
)
def test_what_was_not_counted_is_said_not_to_exist(
    rocketmq_cluster: EmbeddedCluster, name: str, key: str
) -> None:
    rocketmq_cluster.create_topic("T2")
    with Peer(rocketmq_cluster.broker_addr) as broker:
        broker.send("T1")
        fields = {"statsName": name, "statsKey": key}
        answer = broker.call(RequestCode.VIEW_BROKER_STATS_DATA, ext=fields)
    assert (answer.code, answer.remark) == (1, f"The stats <{name}> <{key}> not exist")


def test_statistics_of_what_is_deleted_are_gone(rocketmq_cluster_factory: FACTORY) -> None:
    clock = ManualClock()
    cluster = rocketmq_cluster_factory(clock=clock)
    cluster.create_topic("T1", queues=1)
    with Peer(cluster.broker_addr) as broker:
        broker.send("T1")
        clock.advance(10_000)
        sample(cluster)
        broker.call(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "T1"})
        cluster.create_topic("T1", queues=1)
        fields = {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T1"}
        assert broker.call(RequestCode.VIEW_BROKER_STATS_DATA, ext=fields).code == 1


WHOLE = """
msgPutTotalTodayNow msgGetTotalTodayNow msgPutTotalTodayMorning msgGetTotalTodayMorning
msgPutTotalYesterdayMorning msgGetTotalYesterdayMorning sendThreadPoolQueueHeadWaitTimeMills
queryThreadPoolQueueHeadWaitTimeMills pullThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize
pullThreadPoolQueueSize sendThreadPoolQueueSize sendThreadPoolQueueCapacity
pullThreadPoolQueueCapacity queryThreadPoolQueueCapacity commitLogMinOffset commitLogMaxOffset
bootTimestamp brokerVersion dispatchMaxBuffer pageCacheLockTimeMills getMessageEntireTimeMax
putMessageTimesTotal startAcceptSendRequestTimeStamp putMessageEntireTimeMax
earliestMessageTimeStamp remainTransientStoreBufferNumbs putMessageSizeTotal dispatchBehindBytes
"""  # fmt: skip
FRACTIONS = (
    "consumeQueueDiskRatio commitLogDiskRatio putMessageAverageSize putLatency99 putLatency999"
)
RATES = "putTps getMissTps getTransferredTps getTransferedTps getTotalTps getFoundTps"
STATISTICS = {
    "TOPIC_PUT_NUMS": "T1",
    "TOPIC_PUT_SIZE": "T1",
    "GROUP_GET_NUMS": "T1@cg",
    "GROUP_GET_SIZE": "T1@cg",
    "SNDBCK_PUT_NUMS": "T1@cg",
    "BROKER_PUT_NUMS": "DefaultCluster",
    "BROKER_GET_NUMS": "DefaultCluster",
}


def read_as_the_exporter_does(table: dict[str, str]) -> None:
    """Read the figures as strictly as rocketmq-exporter, which drops a broker at a first error."""
    for name in WHOLE.split():
        assert int(table[name]) >= -1, name
    for name in FRACTIONS.split():
        assert float(table[name]) >= 0, name
    for name in RATES.split():
        assert [float(rate) >= 0 for rate in table[name].split(" ")] == [True] * 3
    spans = table["putMessageDistributeTime"]
    for span in [] if spans == "null" else spans.split():
        assert int(span.split(":")[1]) >= 0
    for name, value in table.items():
        if name.startswith("scheduleMessageOffset"):
            assert [int(part) >= 0 for part in value.split(",")] == [True, True]
    assert float(table["remainHowManyDataToFlush"].split(" ")[0]) >= 0
    assert float(table["commitLogDirCapacity"].split(" ")[2]) > 0
    assert table["runtime"]


def test_exporter_and_dashboard_get_all_they_ask_for(rocketmq_cluster_factory: FACTORY) -> None:
    """Their requests, in the order of their rounds, replayed."""
    clock = ManualClock()
    cluster = rocketmq_cluster_factory(clock=clock)
    cluster.create_topic("T1", queues=2)
    with Peer(cluster.broker_addr) as broker, Peer(cluster.namesrv_addr) as namesrv:
        read_as_the_exporter_does(runtime(broker))
        broker.send("T1", properties={"KEYS": "k"})
        broker.send("T1", properties={"DELAY": "18"})
        broker.heartbeat("c1", "cg", {"T1": "*"}, producer="pg")
        broker.commit("cg", "T1", 0, 1)
        broker.send_back("cg", broker.messages("T1")[0])
        for _ in range(7):
            clock.advance(10_000)
            sample(cluster)
        topic, group = {"topic": "T1"}, {"consumerGroup": "cg"}
        for code in (RequestCode.GET_BROKER_CLUSTER_INFO, 206, 319):
            assert namesrv.call(code).code == 0
        assert namesrv.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=topic).code == 0
        asked: list[tuple[int, dict[str, str]]] = [
            (RequestCode.GET_TOPIC_STATS_INFO, topic),
            (RequestCode.GET_ALL_PRODUCER_INFO, {}),
            (RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic),
            (RequestCode.GET_CONSUMER_CONNECTION_LIST, group),
            (RequestCode.GET_CONSUME_STATS, group | topic),
            (RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "pg"}),
            (RequestCode.GET_ALL_TOPIC_CONFIG, {}),
            (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}),
            (RequestCode.GET_BROKER_CONFIG, {}),
        ]
        for code, fields in asked:
            assert broker.call(code, ext=fields).code == 0, code
        for name, key in STATISTICS.items():
            assert set(window(broker, name, key)["statsMinute"]) == {"sum", "tps", "avgpt"}
        told = runtime(broker)
        assert ":" in told["putMessageDistributeTime"]
        read_as_the_exporter_does(told)
