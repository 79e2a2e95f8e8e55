"""``cluster``, ``broker``, ``namesrv`` and ``producer``: what there is and who is connected."""

from __future__ import annotations

from rocketstream import Message, Producer
from rocketstream.admin import Admin
from tests.plugins.commands import Quick
from tests.plugins.waiting import wait_until


def test_clusters_and_brokers_show_rates_disk_and_version(quick: Quick) -> None:
    text = quick("cluster", "list").worked().out
    assert "DefaultCluster" in text
    assert "1 cluster" in text
    status = quick("cluster", "status").worked().out
    assert "broker-a" in status
    assert f"name server {quick.namesrv} knows 1 broker process" in status
    assert "V4_9_8" in quick("broker", "list").worked().out
    (row,) = quick("broker", "list", "--json").worked().json
    assert row["figures"]["version"] == "V4_9_8"
    assert row["facts"]["brokerVersion"] == "409"
    assert quick("cluster", "list", "--json").worked().json[0]["notAnswering"] == 0


def test_a_broker_tells_its_figures_and_on_demand_all_of_them(quick: Quick) -> None:
    text = quick("broker", "status", "broker-a").worked().out
    assert "Requests waiting  none" in text
    assert "commitLogDiskRatio" not in text
    assert "commitLogDiskRatio" in quick("broker", "status", "broker-a", "--all").worked().out
    assert "broker-a" in quick("broker", "status", "nope").failed()


def test_settings_are_found_by_a_part_of_their_name(quick: Quick) -> None:
    text = quick("broker", "config", "broker-a", "--match", "FLUSHDISK").worked().out
    assert text.splitlines() == ["flushDiskType  ASYNC_FLUSH"]
    assert "'zzz'" in quick("broker", "config", "broker-a", "--match", "zzz").failed()
    assert quick("broker", "config", "broker-a", "--json").worked().json["brokerName"] == "broker-a"


def test_name_servers_tell_what_they_know_and_their_settings(quick: Quick) -> None:
    assert "knows 1 broker" in quick("namesrv", "list").worked().out
    assert "listenPort" in quick("namesrv", "config").worked().out
    assert "no ordered topic" in quick("namesrv", "config", "--order").worked().out
    both = quick("namesrv", "list", "-n", f"{quick.namesrv};127.0.0.1:1").worked().out
    assert "name server 127.0.0.1:1: " in both
    assert "127.0.0.1:1" in quick("namesrv", "list", "-n", "127.0.0.1:1").failed()


def test_connected_producers_are_listed_with_their_versions_by_name(quick: Quick) -> None:
    assert quick.namesrv is not None
    quick("topic", "create", "checkouts", "-q", "1").worked()
    assert "no producer of group 'tills'" in quick(
        "producer", "connections", "tills", "checkouts"
    ).worked().out  # fmt: skip
    with Producer("tills", namesrv_addr=quick.namesrv) as producer, Admin(quick.namesrv) as admin:
        producer.send(Message("checkouts", b"x"))
        wait_until(lambda: bool(admin.producers.connections("tills", "checkouts")), "a heartbeat")
        text = quick("producer", "connections", "tills", "checkouts").worked().out
        assert "V4_9_8" in text
        assert "1 producer" in text
        listed = quick("producer", "list", "--json").worked().json
        assert ("tills", "V4_9_8") in {(row["group"], row["versionName"]) for row in listed}
    assert "'nowhere'" in quick("producer", "connections", "tills", "nowhere").failed()
