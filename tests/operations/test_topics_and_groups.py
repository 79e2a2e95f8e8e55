"""``topic`` and ``group`` commands: tables, JSON shapes, and errors on one line."""

from __future__ import annotations

import socket

from tests.plugins.commands import Cli, Quick


def test_created_topic_shows_in_list_and_status(cli: Cli) -> None:
    done = cli("topic", "create", "orders", "--queues", "3").worked()
    assert done.out == "created orders: 3 queues on broker-a\n"
    assert "orders" in cli("topic", "list").worked().out
    status = cli("topic", "status", "orders").worked().out
    assert "orders: 0 messages in 3 queues" in status


def test_topic_json_has_rocketmq_names(quick: Quick) -> None:
    (created,) = quick("topic", "create", "shapes", "-q", "2", "--json").worked().json
    assert created["brokerName"] == "broker-a"
    assert (created["readQueues"], created["writeQueues"]) == (2, 2)
    listed = {row["topic"]: row for row in quick("topic", "list", "--json").worked().json}
    assert listed["shapes"] == {
        "topic": "shapes",
        "kind": "normal",
        "brokers": ["broker-a"],
        "readQueues": 2,
        "writeQueues": 2,
        "permission": "RW",
    }
    quick("send", "shapes", "x", "--queue", "1").worked()
    rows = quick("topic", "status", "shapes", "--json").worked().json
    assert [(row["queueId"], row["minOffset"], row["maxOffset"]) for row in rows] == [
        (0, 0, 0),
        (1, 0, 1),
    ]
    assert rows[0]["lastUpdateMs"] is None
    assert rows[1]["lastUpdateMs"] > 0


def test_system_topics_are_hidden_until_asked_for(quick: Quick) -> None:
    assert "SCHEDULE_TOPIC_XXXX" not in quick("topic", "list").worked().out
    assert "SCHEDULE_TOPIC_XXXX" in quick("topic", "list", "--all").worked().out


def test_lag_falls_to_zero_as_the_group_consumes(quick: Quick) -> None:
    quick("topic", "create", "lagging", "-q", "1").worked()
    quick("send", "lagging", "x", "--count", "5").worked()
    read = ("consume", "lagging", "-g", "reader", "--from", "earliest")
    quick(*read, "--max", "2").worked()
    (row,) = quick("group", "lag", "reader", "--topic", "lagging", "--json").worked().json
    assert (row["brokerOffset"], row["consumerOffset"], row["lag"]) == (5, 2, 3)
    assert row["lastConsumedMs"] > 0
    assert row["clientId"] is None
    quick(*read, "--max", "3").worked()
    text = quick("group", "lag", "reader", "--topic", "lagging").worked().out
    assert "total lag 0 in 1 queue" in text
    groups = {row["group"]: row for row in quick("group", "list", "--json").worked().json}
    assert "lagging" in groups["reader"]["topics"]
    assert groups["reader"]["members"] == 0
    assert "reader" in quick("group", "list").worked().out
    assert "reader" in quick("group", "lag").worked().out


def test_unknown_topic_and_group_are_named(quick: Quick) -> None:
    assert "'nowhere'" in quick("topic", "status", "nowhere").failed()
    assert "'nobody'" in quick("group", "lag", "nobody").failed()


def test_bad_names_are_refused(quick: Quick) -> None:
    """Covers C-94, C-95."""
    assert "bad name!" in quick("topic", "create", "bad name!").failed()
    assert "bad group!" in quick("group", "lag", "bad group!").failed()


def test_wrong_options_are_usage_errors_on_one_line(quick: Quick) -> None:
    assert "--frob" in quick("topic", "list", "--frob").failed(2)
    assert "frob" in quick("topic", "frob").failed(2)
    assert "--queues" in quick("topic", "create", "t", "--queues", "none").failed(2)
    assert "TOPIC" in quick("topic", "status").failed(2)
    assert "'rw', 'r', 'w'" in quick("topic", "create", "t", "--perm", "x").failed(2)


def test_unreachable_name_server_is_named() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    line = Quick(address)("topic", "list").failed()
    assert address in line
    assert "rocketstream serve" in line


def test_option_wins_over_the_environment(cli: Cli) -> None:
    assert cli.namesrv is not None
    assert Quick("127.0.0.1:1")("topic", "list", "-n", cli.namesrv).code == 0


def test_malformed_address_is_refused(quick: Quick) -> None:
    assert "host:port" in quick("topic", "list", "--namesrv", "nonsense").failed()


def test_route_and_consumers_of_a_topic_are_shown(quick: Quick) -> None:
    quick("topic", "create", "routed", "-q", "2").worked()
    assert "broker-a" in quick("topic", "route", "routed").worked().out
    assert quick("topic", "route", "routed", "--json").worked().json[0]["readQueues"] == 2
    assert quick("topic", "consumers", "routed").worked().out == "0 groups\n"
    assert quick("topic", "consumers", "routed", "--json").worked().json == []
    assert "'nowhere'" in quick("topic", "route", "nowhere").failed()


def test_why_says_how_a_group_does_and_refuses_one_nobody_knows(quick: Quick) -> None:
    quick("topic", "create", "whys", "-q", "1").worked()
    quick("send", "whys", "x", "--count", "5").worked()
    quick("consume", "whys", "-g", "asker", "--from", "earliest", "--max", "5").worked()
    done = quick("group", "why", "asker").worked()
    assert done.out.splitlines()[0].startswith("OK: Caught up: no message waits.")
    told = quick("group", "why", "asker", "--watch-for", "300ms", "--json").worked().json
    assert (told["group"], told["verdict"]["verdict"], told["causes"]) == ("asker", "OK", [])
    assert "did you mean 'asker'?" in quick("group", "why", "askr").failed()
    assert "is not a span of time" in quick("group", "why", "asker", "--watch-for", "soon").err
