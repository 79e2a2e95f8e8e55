"""Metrics: exact names and labels, right format, unknown absent, figures equal to the state's."""

from __future__ import annotations

import dataclasses

import pytest

from rocketstream.admin.rows import MemberRow
from rocketstream.admin.state import (
    BrokerState,
    ClusterState,
    GroupState,
    GroupVerdict,
    QueueKind,
    QueueState,
    TopicState,
    Verdict,
)
from rocketstream.testing.clock import START_MS
from rocketstream.watch import Cost, Outage
from rocketstream.watch.metrics import render
from rocketstream.watch.series import measures_of
from tests.unit.watch.states import group, queue
from tests.unit.watch.strict_exposition import ReadFamily, read

FACTS = {
    "brokerVersionDesc": "V4_9_7",
    "brokerVersion": "405",
    "bootTimestamp": "1700000000000",
    "putTps": "10.5 20.25 30.125",
    "getTransferredTps": "1.0 2.0 3.0",
    "commitLogDiskRatio": "0.42",
    "msgPutTotalTodayNow": "77",
    "remainHowManyDataToFlush": "0 B",
    "runtime": "[ 1 days ]",
}


def state_at(
    at_ms: int, *groups: GroupState, topics: tuple[TopicState, ...] = (), error: str | None = None
) -> ClusterState:
    broker = BrokerState(
        "east",
        "broker-a",
        at_ms,
        {0: "10.0.0.1:10911"},
        "V4_9_7",
        {} if error else FACTS,
        error,
    )
    return ClusterState(
        at_ms,
        12,
        30,
        (broker,),
        {topic.topic: topic for topic in topics},
        {each.group: each for each in groups},
    )


def billing(at_ms: int = START_MS, committed: int = 90) -> GroupState:
    return dataclasses.replace(
        group(
            "billing",
            at_ms,
            queue(queue_id=0, end=100, committed=committed, next_stored_ms=at_ms - 7_000),
            queue(queue_id=1, end=50, committed=50),
            queue("%RETRY%billing", end=9, committed=6, kind=QueueKind.RETRY),
            queue("%DLQ%billing", end=4, committed=None, kind=QueueKind.DEAD_LETTER),
        ),
        members=(
            MemberRow("10.0.0.9@1", "10.0.0.9:5000", "JAVA", 405),
            MemberRow("10.0.0.8@2", "10.0.0.8:5000", "JAVA", 405),
        ),
        message_model="CLUSTERING",
        consume_type="CONSUME_PASSIVELY",
    )


OK = {"billing": GroupVerdict("billing", Verdict.STALLED, "x", since_ms=START_MS, consume_rate=2.5)}
ORDERS = TopicState(
    "orders", "normal", START_MS, "RW", (("broker-a", 0, 0, 100, 1), ("broker-a", 1, 0, 50, 1))
)
TOPIC_LABELS = {"cluster": "east", "broker": "broker-a", "topic": "orders"}


def value(families: dict[str, ReadFamily], name: str, **labels: str) -> float:
    """Return the one sample that has these labels among its own."""
    found = [
        value
        for having, value in families[name].samples.items()
        if labels.items() <= dict(having).items()
    ]
    assert len(found) == 1, (name, labels, families[name].samples)
    return found[0]


def test_the_exporters_names_labels_and_figures() -> None:
    families = read(render(state_at(START_MS, billing(), topics=(ORDERS,)), OK))
    diff = {"group": "billing", "countOfOnlineConsumers": "2", "msgModel": "1"}
    assert families["rocketmq_group_diff"].samples == {
        tuple({"group": "billing", "topic": "orders", **diff}.items()): 10
    }
    assert value(families, "rocketmq_group_retrydiff", topic="%RETRY%billing", **diff) == 3
    assert value(families, "rocketmq_group_dlqdiff", topic="%DLQ%billing", **diff) == 4
    assert families["rocketmq_group_count"].samples == {
        (
            ("caddr", "10.0.0.9:5000,10.0.0.8:5000"),
            ("localaddr", "10.0.0.9@1,10.0.0.8@2"),
            ("group", "billing"),
        ): 2
    }
    assert value(families, "rocketmq_producer_offset", **TOPIC_LABELS) == 150
    assert value(families, "rocketmq_consumer_offset", group="billing", **TOPIC_LABELS) == 140
    latency = "rocketmq_group_get_latency_by_storetime"
    assert value(families, latency, group="billing", **TOPIC_LABELS) == 7_000
    assert value(families, "rocketmq_broker_tps", brokerIP="10.0.0.1:10911") == 20.25
    runtime = "rocketmq_brokeruntime_"
    assert value(families, runtime + "commitlog_disk_ratio", brokerHost="broker-a") == 0.42
    assert value(families, runtime + "put_tps600", des="V4_9_7", broker_version="405") == 30.125
    assert value(families, runtime + "remain_howmanydata_toflush") == 0


def test_the_names_of_5x_are_told_per_queue_and_sum_to_those_per_topic() -> None:
    state = state_at(START_MS, billing())
    by_queue = read(render(state, OK))
    by_topic = read(render(state, OK, queues=False))
    labels = {
        "cluster": "east",
        "node_type": "broker",
        "node_id": "broker-a",
        "consumer_group": "billing",
        "topic": "orders",
        "is_retry": "false",
        "is_system": "false",
    }
    lag = "rocketmq_consumer_lag_messages"
    assert value(by_queue, lag, queue_id="0", **labels) == 10
    assert value(by_queue, lag, queue_id="1", **labels) == 0
    assert value(by_topic, lag, **labels) == 10
    assert value(by_topic, "rocketmq_consumer_lag_latency", **labels) == 7_000
    assert value(by_topic, lag, is_retry="true") == 3
    connections = value(
        by_queue,
        "rocketmq_consumer_connections",
        consumer_group="billing",
        language="java",
        version="v4_9_6",
        consume_mode="push",
    )
    assert connections == 2


def test_metrics_equal_what_every_other_face_shows() -> None:
    state = billing()
    families = read(render(state_at(START_MS, state), OK))
    ours = {
        name.removeprefix("rocketstream_group_"): value(families, name, group="billing")
        for name in families
        if name.startswith("rocketstream_group_")
    }
    assert ours == {
        "verdict": 1,
        "verdict_since_seconds": START_MS / 1000,
        "lag_messages": state.lag,
        "lag_seconds": 7.0,
        "consume_rate": 2.5,
        "members": 2,
        "retrying_messages": state.retrying,
        "dead_letters": state.dead_letters,
        "dead_letters_total": 4,
        "expired_messages": state.expired,
        "unknown_queues": 0,
        "errors": 0,
    }
    assert value(families, "rocketstream_group_verdict", verdict="STALLED") == 1


def test_dead_letters_that_retention_deletes_are_none_less_of_those_given_up() -> None:
    """An alert on those that are kept fires when some are deleted."""
    letters = [QueueState("%DLQ%billing", "broker-a", 0, QueueKind.DEAD_LETTER, low, 9)
               for low in (0, 7)]  # fmt: skip
    told = [read(render(state_at(START_MS, group("billing", START_MS, each)), {}))
            for each in letters]  # fmt: skip
    name = "rocketstream_group_dead_letters"
    assert [value(each, name, group="billing") for each in told] == [9, 2]
    assert [value(each, f"{name}_total", group="billing") for each in told] == [9, 9]


def test_rates_come_from_two_sweeps() -> None:
    before = state_at(START_MS - 10_000, billing(START_MS - 10_000, committed=40), topics=(ORDERS,))
    grown = dataclasses.replace(ORDERS, queues=(("broker-a", 0, 0, 180, 1),))
    now = state_at(START_MS, billing(), topics=(grown,))
    families = read(render(now, OK, before=before))
    assert value(families, "rocketmq_consumer_tps", topic="orders", group="billing") == 5
    assert value(families, "rocketmq_producer_tps", topic="orders") == 3
    assert "rocketmq_consumer_tps" not in read(render(now, OK))


def test_what_is_not_known_is_absent_and_counted() -> None:
    untold = QueueState("orders", "broker-a", 0, error="broker broker-a does not answer")
    state = GroupState("billing", START_MS, queues=(untold,), errors=("members are not known",))
    families = read(render(state_at(START_MS, state, error="no answer"), {}))
    for name in (
        "rocketmq_group_diff",
        "rocketmq_consumer_lag_messages",
        "rocketmq_consumer_offset",
        "rocketmq_group_count",
        "rocketstream_group_lag_messages",
        "rocketstream_group_members",
        "rocketmq_broker_tps",
    ):
        assert name not in families
    assert value(families, "rocketstream_group_unknown_queues", group="billing") == 1
    assert value(families, "rocketstream_group_errors", group="billing") == 1
    assert value(families, "rocketstream_broker_up", broker="broker-a") == 0


def test_an_unknown_queue_leaves_no_sum_and_no_worst_of_the_others() -> None:
    state = group("billing", START_MS, queue(), queue(queue_id=1, end=None, committed=None))
    families = read(render(state_at(START_MS, state), {}, queues=False))
    for name in (
        "rocketmq_consumer_lag_messages",
        "rocketmq_group_diff",
        "rocketmq_group_get_latency_by_storetime",
        "rocketstream_group_lag_messages",
        "rocketstream_group_lag_seconds",
    ):
        assert name not in families
    for measured in measures_of(state, None).values():
        assert (measured.lag, measured.time_lag_ms, measured.queues_unknown) == (None, None, 1)


def test_an_outage_tells_of_itself_alone() -> None:
    outage = Outage(START_MS, "refused", 3)
    cost = Cost(1.5, 20, 2, 30.0, 7, 3)
    families = read(render(state_at(START_MS, billing()), OK, outage=outage, cost=cost))
    assert value(families, "rocketstream_up") == 0
    assert value(families, "rocketstream_outage_since_seconds") == START_MS / 1000
    assert value(families, "rocketstream_sweeps_failed_total") == 3
    assert not [name for name in families if name.startswith(("rocketmq", "rocketstream_group"))]


def test_before_the_first_sweep_nothing_is_told() -> None:
    assert render(None, {}) == ""


def test_a_broadcasting_group_has_no_lag_of_the_exporter() -> None:
    state = dataclasses.replace(billing(), message_model="BROADCASTING")
    families = read(render(state_at(START_MS, state), {}))
    assert "rocketmq_group_diff" not in families
    assert "rocketmq_group_get_latency_by_storetime" not in families


@pytest.mark.parametrize(
    "name", ['a"b', "a\\b", "a\nb", "a\\nb", "é漢", "a}b{", "a,b=c", "\ud800", "\x00\x1b[31m", ""]
)
def test_hostile_names_are_read_back_as_they_are(name: str) -> None:
    state = group(name, START_MS, queue(name))
    families = read(render(state_at(START_MS, state), {}))
    (labels,) = families["rocketmq_group_diff"].samples
    assert dict(labels)["group"] == name.encode("utf-8", "replace").decode()


def test_facts_that_are_no_numbers_are_left_out() -> None:
    odd = {"putTps": "fast", "commitLogDiskRatio": "", "msgPutTotalTodayNow": "-1"}
    broker = BrokerState("c", "b", START_MS, facts=odd)
    families = read(render(ClusterState(START_MS, 1, 1, (broker,)), {}))
    assert [n for n in families if "brokeruntime" in n] == [
        "rocketmq_brokeruntime_msg_put_total_today_now"
    ]
