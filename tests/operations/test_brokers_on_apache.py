"""Brokers, name servers and producers of Apache's clusters, at the command line."""

from __future__ import annotations

import pytest

from rocketstream import Message, Producer
from rocketstream.admin import Admin
from tests.kits.apache.cluster import ApacheCluster
from tests.plugins.commands import Quick
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]


def test_brokers_and_producers_of_apache_are_shown(apache_cluster: ApacheCluster) -> None:
    namesrv = apache_cluster.namesrv_addr
    quick = Quick(namesrv)

    def told() -> bool:
        return quick("broker", "list", "--json").worked().json[0]["figures"] is not None

    # In its first seconds a 4.9 broker answers 28 with an exception: its statistics are empty.
    wait_until(told, "the broker's figures", 60)
    (row,) = quick("broker", "list", "--json").worked().json
    version = "V" + apache_cluster.referee.version.replace(".", "_")
    assert row["figures"]["version"] == version
    assert row["figures"]["logBytes"] is not None
    assert row["address"] == apache_cluster.broker_addr
    settings = quick("broker", "config", "broker-a", "--json").worked().json
    assert settings["namesrvAddr"] == namesrv
    assert f"{namesrv} knows 1 broker" in quick("namesrv", "list").worked().out
    assert "listenPort" in quick("namesrv", "config", "--match", "listenport").worked().out
    topic = apache_cluster.create_topic(apache_cluster.unique("tills"))
    with Producer("tills", namesrv_addr=namesrv) as producer, Admin(namesrv) as admin:
        producer.send(Message(topic, b"x"))
        wait_until(lambda: bool(admin.producers.connections("tills", topic)), "a heartbeat")
        (connected,) = quick("producer", "connections", "tills", topic, "--json").worked().json
        listed = quick("producer", "list", "--json").worked().json
        assert connected["clientId"] in {row["clientId"] for row in listed}
    assert quick("producer", "connections", "nobody", topic, "--json").worked().json == []


def test_apache_s_broker_given_as_name_server_is_recognised(apache_cluster: ApacheCluster) -> None:
    line = Quick(apache_cluster.broker_addr)("topic", "list").failed()
    assert "is broker 'broker-a', not a name server" in line
    assert apache_cluster.namesrv_addr in line


def test_a_delay_level_apache_s_broker_lacks_is_refused(apache_cluster: ApacheCluster) -> None:
    quick = Quick(apache_cluster.namesrv_addr)
    topic = apache_cluster.create_topic(apache_cluster.unique("later"))
    assert "the broker has 1 to 18" in quick("send", topic, "x", "--delay-level", "19").failed(2)
    quick("send", topic, "x", "--delay-level", "1").worked()
