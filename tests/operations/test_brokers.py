"""Brokers, name servers and producers, each asked on its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketstream import Message, Producer
from rocketstream.admin import Admin
from rocketstream.admin.state import BrokerFigures, ThreadPool, figures
from rocketstream.errors import ConfigurationError, RouteNotFoundError
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import PutKVConfigRequestHeader
from rocketstream.server.embedded import EmbeddedCluster
from tests.plugins.waiting import wait_until


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as servers:
        servers.create_topic("orders", queues=2)
        yield servers


@pytest.fixture
def admin(cluster: EmbeddedCluster) -> Iterator[Admin]:
    with Admin(cluster.namesrv_addr) as asking:
        yield asking


def test_figures_are_read_from_what_brokers_of_4_9_and_5_x_tell() -> None:
    told = {
        "brokerVersionDesc": "V5_5_0",
        "brokerActive": "false",
        "bootTimestamp": "1700000000000",
        "putTps": "12.5 10.0 8.0",
        "getTransferredTps": "30.25 1 1",
        "getTransferedTps": "99 1 1",
        "msgPutTotalTodayNow": "77",
        "msgGetTotalTodayNow": "78",
        "commitLogDiskRatio_/data1": "0.25",
        "commitLogDiskRatio_/data2": "0.75",
        "commitLogMinOffset": "1000",
        "commitLogMaxOffset": "5096",
        "earliestMessageTimeStamp": "1690000000000",
        "sendThreadPoolQueueSize": "3",
        "sendThreadPoolQueueHeadWaitTimeMills": "250",
        "queryThreadPoolQueueSize": "0",
        "pageCacheLockTimeMills": "4",
    }
    assert figures(told) == BrokerFigures(
        version="V5_5_0",
        booted_ms=1_700_000_000_000,
        put_tps=12.5,
        get_tps=30.25,
        put_total=77,
        get_total=78,
        disk_used=0.75,
        log_bytes=4096,
        earliest_ms=1_690_000_000_000,
        active=False,
        pools={"send": ThreadPool(3, 250), "query": ThreadPool(0, None)},
        page_cache_lock_ms=4,
    )


def test_a_figure_that_is_missing_or_senseless_is_unknown_and_not_zero() -> None:
    told = {
        "putTps": "",
        "getTransferedTps": "NaN",
        "bootTimestamp": "soon",
        "commitLogDiskRatio": "-1.0",
        "commitLogMinOffset": "9",
        "commitLogMaxOffset": "3",
        "earliestMessageTimeStamp": "-1",
        "xThreadPoolQueueSize": "many",
    }
    assert figures(told) == figures({}) == BrokerFigures()


def test_every_broker_process_tells_its_figures(cluster: EmbeddedCluster, admin: Admin) -> None:
    (row,) = admin.brokers.status()
    assert (row.cluster, row.broker_name, row.is_master) == ("DefaultCluster", "broker-a", True)
    assert row.address == cluster.broker_addr
    assert row.figures is not None
    assert row.figures.version == "V4_9_8"
    assert row.figures.put_tps is not None
    assert row.facts["brokerVersion"] == "409"
    assert admin.brokers.status("broker-a") == admin.brokers.status(cluster.broker_addr)


def test_a_broker_that_is_away_is_a_row_with_the_reason(cluster: EmbeddedCluster) -> None:
    from rocketstream.admin.rows import BrokerRow

    with Admin(cluster.namesrv_addr) as admin:
        (there,) = admin.brokers.all()
        gone = BrokerRow("DefaultCluster", "broker-b", 1, "127.0.0.1:1")
        admin.brokers.all = lambda: [there, gone]
        first, second = admin.brokers.status()
    assert first.error is None
    assert second.figures is None
    assert second.error is not None
    assert "127.0.0.1:1" in second.error


def test_an_unknown_broker_is_refused_with_those_there_are(admin: Admin) -> None:
    for ask in (admin.brokers.status, admin.brokers.config):
        with pytest.raises(ConfigurationError, match=r"'nope'; there are: broker-a \(127"):
            ask("nope")


def test_the_settings_of_a_broker_are_those_it_runs_with(
    cluster: EmbeddedCluster, admin: Admin
) -> None:
    settings = admin.brokers.config("broker-a")
    assert settings["namesrvAddr"] == cluster.namesrv_addr
    assert settings["messageDelayLevel"].startswith("1s 5s")


def test_the_queues_of_ordered_topics_are_told_by_name_servers() -> None:
    with EmbeddedCluster() as cluster, Admin(cluster.namesrv_addr) as admin:
        (row,) = admin.cluster.name_servers()
        assert row.order_topics == {}
        header = PutKVConfigRequestHeader(
            namespace="ORDER_TOPIC_CONFIG", key="orders", value="broker-a:2"
        )
        admin._client.request_namesrv(RemotingCommand.request(RequestCode.PUT_KV_CONFIG, header))
        (row,) = admin.cluster.name_servers()
        assert row.order_topics == {"orders": "broker-a:2"}


def test_each_name_server_tells_what_it_knows_and_a_silent_one_why(
    cluster: EmbeddedCluster, admin: Admin
) -> None:
    (row,) = admin.cluster.name_servers()
    assert row.brokers == (cluster.broker_addr,)
    assert row.config is not None
    with Admin(f"{cluster.namesrv_addr};127.0.0.1:1") as both:
        first, second = both.cluster.name_servers()
    assert first.brokers == (cluster.broker_addr,)
    assert second.brokers is None
    assert second.error is not None


def test_connected_producers_are_told_by_group_and_all(
    cluster: EmbeddedCluster, admin: Admin
) -> None:
    assert admin.producers.connections("checkout", "orders") == []
    assert admin.producers.all() == []
    with Producer("checkout", namesrv_addr=cluster.namesrv_addr) as producer:
        producer.send(Message("orders", b"x"))
        wait_until(lambda: bool(admin.producers.connections("checkout", "orders")), "a heartbeat")
        rows = admin.producers.connections("checkout", "orders")
        assert [(r.group, r.language, r.version, r.brokers) for r in rows] == [
            ("checkout", "PYTHON", 409, ("broker-a",))
        ]
        (listed,) = [row for row in admin.producers.all() if row.group == "checkout"]
        assert (listed.client_id, listed.brokers) == (rows[0].client_id, ("broker-a",))
        assert listed.address == rows[0].address
        assert listed.last_heartbeat_ms is not None
    with pytest.raises(RouteNotFoundError):
        admin.producers.connections("checkout", "nowhere")


def test_delay_levels_are_those_of_the_broker_with_the_fewest(admin: Admin) -> None:
    assert len(admin.brokers.delay_levels("orders")) == 18
    assert len(admin.brokers.delay_levels("not-there-yet")) == 18
    with EmbeddedCluster(delay_levels="1s 2s 3s") as short, Admin(short.namesrv_addr) as asking:
        assert asking.brokers.delay_levels("not-there-yet") == ("1s", "2s", "3s")
