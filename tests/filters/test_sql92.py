"""Subscriptions by a condition on properties: push, pull and lite pull consumers, both faces."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from rocketstream import (
    ConsumeFromWhere,
    Message,
    MessageExt,
    MessageQueue,
    MessageSelector,
    PullStatus,
)
from rocketstream.client.consumer.push import impl
from rocketstream.errors import SubscriptionError
from rocketstream.protocol.sql92 import compile_expression
from tests.filters.conditions import TABLE, Conditions, messages
from tests.kits.cluster import Cluster
from tests.kits.faces import LitePullConsumer, Producer, PullConsumer, PushConsumer
from tests.kits.listeners import LATER, SUCCESS, Seen, send_all
from tests.plugins.clusters import Names
from tests.plugins.waiting import wait_until

pytestmark = pytest.mark.usefixtures("face")

FIRST = ConsumeFromWhere.FIRST_OFFSET
FIVE_UP = MessageSelector.by_sql("n >= 5 AND kind IS NOT NULL")


def numbered(topic: str, count: int) -> list[Message]:
    """Messages with their number as body and as property ``n``."""
    return [
        Message(topic, str(n), properties={"n": str(n), "kind": "x"}, tags=["even", "odd"][n % 2])
        for n in range(count)
    ]


def consumer_with(
    cluster: Cluster, names: Names, seen: Callable[..., object], selector: MessageSelector
) -> PushConsumer:
    consumer = PushConsumer(
        names.group,
        namesrv_addr=cluster.namesrv_addr,
        listener=seen,  # type: ignore[arg-type]
        consume_from_where=FIRST,
        local_retry_delay_ms=50,
        persist_consumer_offset_interval_ms=50,
    )
    consumer.subscribe(names.topic, selector)
    return consumer


@pytest.mark.timeout(120)
def test_push_consumer_gets_what_its_condition_selects(cluster: Cluster, names: Names) -> None:
    """Covers C-101, C-383: those there are and those that come; C-376 wakes a waiting pull."""
    cluster.create_topic(names.topic, 2)
    send_all(cluster.namesrv_addr, numbered(names.topic, 10))
    seen = Seen()
    with consumer_with(cluster, names, seen, FIVE_UP):
        seen.wait_consumed(5)
        send_all(cluster.namesrv_addr, numbered(names.topic, 8))
        seen.wait_consumed(8)
    assert sorted(seen.bodies) == ["5", "5", "6", "6", "7", "7", "8", "9"]


def test_tag_is_a_property_like_others(cluster: Cluster, names: Names) -> None:
    """Covers C-383: system properties are visible to conditions."""
    cluster.create_topic(names.topic, 1)
    send_all(cluster.namesrv_addr, numbered(names.topic, 6))
    seen = Seen()
    selector = MessageSelector.by_sql("TAGS = 'odd' AND n <> 3")
    with consumer_with(cluster, names, seen, selector):
        seen.wait_consumed(2)
    assert sorted(seen.bodies) == ["1", "5"]


def test_retried_messages_are_not_filtered_again(cluster: Cluster, names: Names) -> None:
    """Covers C-396: a failed message comes back through the retry topic, which has no condition."""
    cluster.create_topic(names.topic, 1)
    send_all(cluster.namesrv_addr, numbered(names.topic, 7))
    seen = Seen(lambda message: LATER if message.reconsume_times == 0 else SUCCESS)
    with consumer_with(cluster, names, seen, FIVE_UP):
        seen.wait_consumed(2)
    assert sorted(seen.bodies) == ["5", "6"]
    assert {message.reconsume_times for message in seen.consumed} == {1}


def test_new_condition_replaces_the_old_one(
    cluster: Cluster, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Covers C-103, C-393, C-397: from a condition to tags and to another condition."""
    # A broker holds the pull that was there before, by the old condition.
    monkeypatch.setattr(impl, "BROKER_SUSPEND_MS", 100)
    cluster.create_topic(names.topic, 1)
    seen = Seen()
    with consumer_with(cluster, names, seen, FIVE_UP) as consumer:
        send_all(cluster.namesrv_addr, numbered(names.topic, 7))
        seen.wait_consumed(2)
        # What was not selected is behind: only what comes is chosen by the new subscription.
        wait_until(lambda: cluster.committed(names.group, names.topic, 1) == [7], "offset 7")
        consumer.subscribe(names.topic, MessageSelector.by_tag("odd"))
        send_all(cluster.namesrv_addr, numbered(names.topic, 2))
        seen.wait_consumed(3)
        consumer.subscribe(names.topic, "n = 0", expression_type="SQL92")
        send_all(cluster.namesrv_addr, numbered(names.topic, 2))
        seen.wait_consumed(4)
    assert sorted(seen.bodies) == ["0", "1", "5", "6"]


@pytest.mark.parametrize("condition", ["n >", "n > 'a'", "n = NULL", "n = 5 extra", "", "n.m = 1"])
def test_mistakes_are_told_when_subscribing(cluster: Cluster, names: Names, condition: str) -> None:
    """Covers C-101, C-386, C-389: before anything is asked of a broker."""
    for consumer in (
        PushConsumer(names.group, namesrv_addr=cluster.namesrv_addr),
        LitePullConsumer(names.group, namesrv_addr=cluster.namesrv_addr),
    ):
        with pytest.raises(SubscriptionError):
            consumer.subscribe(names.topic, MessageSelector.by_sql(condition))


def test_lite_pull_consumer_gets_what_its_condition_selects(cluster: Cluster, names: Names) -> None:
    """Covers C-101: subscribe with a selector, poll."""
    cluster.create_topic(names.topic, 2)
    send_all(cluster.namesrv_addr, numbered(names.topic, 10))
    consumer = LitePullConsumer(
        names.group, namesrv_addr=cluster.namesrv_addr, consume_from_where=FIRST
    )
    consumer.subscribe(names.topic, FIVE_UP)
    consumer.start()
    try:
        found: list[MessageExt] = []
        for _ in range(20):
            found += consumer.poll(1_000)
            if len(found) >= 5:
                break
    finally:
        consumer.shutdown()
    assert sorted(bytes(message.body) for message in found) == [b"5", b"6", b"7", b"8", b"9"]


# --- every condition of a table on a broker -----------------------------------------------------


@pytest.fixture
def puller(cluster: Cluster, names: Names) -> Iterator[PullConsumer]:
    with PullConsumer(names.group, namesrv_addr=cluster.namesrv_addr) as consumer:
        yield consumer


def pulled(consumer: PullConsumer, mq: MessageQueue, selector: MessageSelector | None) -> list[int]:
    """Offsets of all messages of a queue that a selector lets through."""
    end = consumer.max_offset(mq)
    offset, found = 0, []
    while offset < end:
        result = consumer.pull(mq, selector, offset, 32)
        assert result.pull_status in (PullStatus.FOUND, PullStatus.NO_MATCHED_MSG)
        found += [message.queue_offset for message in result.msg_found_list]
        offset = result.next_begin_offset
    return found


def stored_properties(consumer: PullConsumer, mq: MessageQueue) -> list[dict[str, str]]:
    """What the broker knows of each message: without what the client adds on arrival."""
    found: list[dict[str, str]] = []
    while len(found) < consumer.max_offset(mq):
        for message in consumer.pull(mq, None, len(found), 32).msg_found_list:
            added = ("MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME")
            properties = {k: v for k, v in message.properties.items() if k not in added}
            found.append(properties)
    return found


@pytest.mark.timeout(180)
def test_broker_and_compiler_select_the_same(
    cluster: Cluster, names: Names, puller: PullConsumer
) -> None:
    """Covers C-383 to C-385, C-390 to C-392, C-395: the SUBSCRIPTION flag, as pull consumers do."""
    cluster.create_topic(names.topic, 1)
    with Producer("senders", namesrv_addr=cluster.namesrv_addr) as producer:
        for properties in messages():
            message = Message(names.topic, b"x")
            message.properties.update({k: v for k, v in properties.items() if v})
            producer.send(message)
    (mq,) = puller.fetch_subscribe_message_queues(names.topic)
    known = stored_properties(puller, mq)
    made = Conditions(seed=384)
    conditions = [c for c in TABLE if c.isascii()] + generated(made, 40)
    differences = {}
    for condition in conditions:
        expression = compile_expression(condition)
        wanted = [at for at, properties in enumerate(known) if expression.matches(properties)]
        found = pulled(puller, mq, MessageSelector.by_sql(condition))
        if found != wanted:
            differences[condition] = (found, wanted)
    assert differences == {}


def generated(made: Conditions, count: int) -> list[str]:
    """Conditions that compile."""
    found: list[str] = []
    while len(found) < count:
        condition = made.one()
        try:
            compile_expression(condition)
        except SubscriptionError:
            continue
        found.append(condition)
    return found


def test_pull_with_a_mistake_is_refused(
    cluster: Cluster, names: Names, puller: PullConsumer
) -> None:
    """Covers C-101, C-389."""
    cluster.create_topic(names.topic, 1)
    (mq,) = puller.fetch_subscribe_message_queues(names.topic)
    with pytest.raises(SubscriptionError):
        puller.pull(mq, MessageSelector.by_sql("n ="), 0, 32)
