"""Metrics: exact names and labels, right format, unknown absent, figures equal to the state's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from rocketstream.admin.rows import MemberRow
from rocketstream.admin.state import (
    BrokerState,
    ClusterState,
    GroupState,
    GroupVerdict,
    QueueKind,
    QueueState,
    TopicQueue,
    TopicState,
    Verdict,
)
from rocketstream.testing.clock import START_MS
from rocketstream.watch import Cost, Outage, Update
from rocketstream.watch.metrics import families, render
from rocketstream.watch.series import points_of
from tests.kits.scraped import Scraped, labels, read
from tests.kits.states import group, queue

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
    "orders",
    "normal",
    START_MS,
    "RW",
    (TopicQueue("orders", "broker-a", 0, 0, 100, 1), TopicQueue("orders", "broker-a", 1, 0, 50, 1)),
)
TOPIC_LABELS = {"cluster": "east", "broker": "broker-a", "topic": "orders"}


def told(
    state: ClusterState | None,
    verdicts: Mapping[str, GroupVerdict],
    cost: Cost | None = None,
    *,
    queues: bool = True,
    **more: Any,
) -> Scraped:
    """Return what a scrape reads."""
    return read(render(Update(state, verdicts, **more), cost, queues=queues))


def value(scraped: Scraped, name: str, **having: str) -> float:
    """Return the one sample that has these labels among its own."""
    found = [
        value for labels, value in scraped[name].items() if having.items() <= dict(labels).items()
    ]
    assert len(found) == 1, (name, having, scraped[name])
    return found[0]


def test_the_exporters_names_labels_and_figures() -> None:
    scraped = told(state_at(START_MS, billing(), topics=(ORDERS,)), OK)
    diff = {"group": "billing", "countOfOnlineConsumers": "2", "msgModel": "1"}
    assert scraped["rocketmq_group_diff"] == {labels(topic="orders", **diff): 10}
    assert value(scraped, "rocketmq_group_retrydiff", topic="%RETRY%billing", **diff) == 3
    assert value(scraped, "rocketmq_group_dlqdiff", topic="%DLQ%billing", **diff) == 4
    assert scraped["rocketmq_group_count"] == {
        labels(
            caddr="10.0.0.9:5000,10.0.0.8:5000",
            localaddr="10.0.0.9@1,10.0.0.8@2",
            group="billing",
        ): 2
    }
    assert value(scraped, "rocketmq_producer_offset", **TOPIC_LABELS) == 150
    assert value(scraped, "rocketmq_consumer_offset", group="billing", **TOPIC_LABELS) == 140
    latency = "rocketmq_group_get_latency_by_storetime"
    assert value(scraped, latency, group="billing", **TOPIC_LABELS) == 7_000
    assert value(scraped, "rocketmq_broker_tps", brokerIP="10.0.0.1:10911") == 20.25
    runtime = "rocketmq_brokeruntime_"
    assert value(scraped, runtime + "commitlog_disk_ratio", brokerHost="broker-a") == 0.42
    assert value(scraped, runtime + "put_tps600", des="V4_9_7", broker_version="405") == 30.125
    assert value(scraped, runtime + "remain_howmanydata_toflush") == 0


def test_the_names_of_5x_are_told_per_queue_and_sum_to_those_per_topic() -> None:
    state = state_at(START_MS, billing())
    by_queue = told(state, OK)
    by_topic = told(state, OK, queues=False)
    place = {
        "cluster": "east",
        "node_type": "broker",
        "node_id": "broker-a",
        "consumer_group": "billing",
        "topic": "orders",
        "is_retry": "false",
        "is_system": "false",
    }
    lag = "rocketmq_consumer_lag_messages"
    assert value(by_queue, lag, queue_id="0", **place) == 10
    assert value(by_queue, lag, queue_id="1", **place) == 0
    assert value(by_topic, lag, **place) == 10
    assert value(by_topic, "rocketmq_consumer_lag_latency", **place) == 7_000
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
    scraped = told(state_at(START_MS, state), OK)
    ours = {
        name.removeprefix("rocketstream_group_"): value(scraped, name, group="billing")
        for name in scraped
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
    assert value(scraped, "rocketstream_group_verdict", verdict="STALLED") == 1


def test_dead_letters_that_retention_deletes_are_none_less_of_those_given_up() -> None:
    """An alert on those that are kept fires when some are deleted."""
    letters = [QueueState("%DLQ%billing", "broker-a", 0, QueueKind.DEAD_LETTER, low, 9)
               for low in (0, 7)]  # fmt: skip
    scraped = [told(state_at(START_MS, group("billing", START_MS, each)), {})
            for each in letters]  # fmt: skip
    name = "rocketstream_group_dead_letters"
    assert [value(each, name, group="billing") for each in scraped] == [9, 2]
    assert [value(each, f"{name}_total", group="billing") for each in scraped] == [9, 9]


def test_rates_come_from_two_sweeps() -> None:
    then_ms = START_MS - 10_000
    then = dataclasses.replace(ORDERS, taken_ms=then_ms)
    before = state_at(then_ms, billing(then_ms, committed=40), topics=(then,))
    grown = dataclasses.replace(ORDERS, queues=(TopicQueue("orders", "broker-a", 0, 0, 180, 1),))
    now = state_at(START_MS, billing(), topics=(grown,))
    scraped = told(now, OK, before=before)
    assert value(scraped, "rocketmq_consumer_tps", topic="orders", group="billing") == 5
    assert value(scraped, "rocketmq_producer_tps", topic="orders") == 3
    assert "rocketmq_consumer_tps" not in told(now, OK)


def test_what_is_not_known_is_absent_and_counted() -> None:
    untold = QueueState("orders", "broker-a", 0, error="broker broker-a does not answer")
    state = GroupState("billing", START_MS, queues=(untold,), errors=("members are not known",))
    scraped = told(state_at(START_MS, state, error="no answer"), {})
    for name in (
        "rocketmq_group_diff",
        "rocketmq_consumer_lag_messages",
        "rocketmq_consumer_offset",
        "rocketmq_group_count",
        "rocketstream_group_lag_messages",
        "rocketstream_group_members",
        "rocketmq_broker_tps",
    ):
        assert name not in scraped
    assert value(scraped, "rocketstream_group_unknown_queues", group="billing") == 1
    assert value(scraped, "rocketstream_group_errors", group="billing") == 1
    assert value(scraped, "rocketstream_broker_up", broker="broker-a") == 0


def test_an_unknown_queue_leaves_no_sum_and_no_worst_of_the_others() -> None:
    state = group("billing", START_MS, queue(), queue(queue_id=1, end=None, committed=None))
    scraped = told(state_at(START_MS, state), {}, queues=False)
    for name in (
        "rocketmq_consumer_lag_messages",
        "rocketmq_group_diff",
        "rocketmq_group_get_latency_by_storetime",
        "rocketstream_group_lag_messages",
        "rocketstream_group_lag_seconds",
    ):
        assert name not in scraped
    for measured in points_of(state, None).values():
        assert (measured.lag, measured.time_lag_ms, measured.queues_unknown) == (None, None, 1)


def test_an_outage_tells_of_itself_alone() -> None:
    outage = Outage(START_MS, "refused", 3)
    cost = Cost(1.5, 20, 2, 30.0, 7, 3)
    scraped = told(state_at(START_MS, billing()), OK, outage=outage, cost=cost)
    assert value(scraped, "rocketstream_up") == 0
    assert value(scraped, "rocketstream_outage_since_seconds") == START_MS / 1000
    assert value(scraped, "rocketstream_sweeps_failed_total") == 3
    assert not [name for name in scraped if name.startswith(("rocketmq", "rocketstream_group"))]


def test_before_the_first_sweep_nothing_is_told() -> None:
    assert render(Update(None, {})) == ""


def test_ours_are_named_as_what_they_are() -> None:
    for name, family in families(queues=True).items():
        if name.startswith("rocketstream"):
            assert (family.kind == "counter") == name.endswith("_total"), name


def test_a_rate_is_over_the_time_between_two_states_of_that_group() -> None:
    """A group that was looked into is of a later moment than the sweep."""
    before = state_at(START_MS - 10_000, billing(START_MS - 10_000, committed=40))
    later = state_at(START_MS, billing(START_MS + 10_000))
    assert value(told(later, OK, before=before), "rocketmq_consumer_tps", topic="orders") == 2.5


def test_a_broadcasting_group_has_no_lag_of_the_exporter() -> None:
    state = dataclasses.replace(billing(), message_model="BROADCASTING")
    scraped = told(state_at(START_MS, state), {})
    assert "rocketmq_group_diff" not in scraped
    assert "rocketmq_group_get_latency_by_storetime" not in scraped


@pytest.mark.parametrize(
    "name", ['a"b', "a\\b", "a\nb", "a\\nb", "é漢", "a}b{", "a,b=c", "\ud800", "\x00\x1b[31m", ""]
)
def test_hostile_names_are_read_back_as_they_are(name: str) -> None:
    state = group(name, START_MS, queue(name))
    scraped = told(state_at(START_MS, state), {})
    (having,) = scraped["rocketmq_group_diff"]
    assert dict(having)["group"] == name.encode("utf-8", "replace").decode()


def test_facts_that_are_no_numbers_are_left_out() -> None:
    odd = {"putTps": "fast", "commitLogDiskRatio": "", "msgPutTotalTodayNow": "-1"}
    broker = BrokerState("c", "b", START_MS, facts=odd)
    scraped = told(ClusterState(START_MS, 1, 1, (broker,)), {})
    assert [n for n in scraped if "brokeruntime" in n] == [
        "rocketmq_brokeruntime_msg_put_total_today_now"
    ]
