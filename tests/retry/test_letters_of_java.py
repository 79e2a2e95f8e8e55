"""What Java's clients leave behind, as our operations tell it: letters, tracks, traces, copies."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from rocketstream import ConsumeConcurrentlyStatus, MessageExt
from rocketstream.admin import Admin, LetterFilter, MessageFilter, ShownMessage, TraceTimeline
from rocketstream.errors import RouteNotFoundError
from tests.kits.apache.cluster import ApacheCluster, JavaPrograms, create_retry_topic
from tests.kits.apache.ours import push_consumer
from tests.plugins.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

COUNT = 20
FAILED = tuple(map(str, range(0, COUNT, 2)))


def dead(admin: Admin, group: str, count: int) -> Any:
    def look() -> Any:
        try:
            found = admin.letters.by_cause(group)
        except RouteNotFoundError:
            return None
        return found if found.letters >= count else None

    return wait_until(look, f"{count} letters of {group}")


def test_messages_of_java_are_found_tracked_and_traced(
    java: JavaPrograms, apache_cluster: ApacheCluster
) -> None:
    """Covers C-538, C-545: sent, consumed and given up by Java's clients, with their trace."""
    cluster, address = apache_cluster, apache_cluster.namesrv_addr
    topic = cluster.create_topic(cluster.unique("orders"), queues=2)
    trace = cluster.create_topic(cluster.unique("trace"), queues=1)
    group = cluster.unique("java-letters")
    create_retry_topic(address, cluster.broker_addr, group)
    with ExitStack() as running:
        admin = running.enter_context(Admin(address))
        consumer = running.enter_context(java.start(
            "JavaPushConsumer", namesrv=address, topic=topic, group=group, trace=True,
            tracetopic=trace, failmodulo=2, failtimes=99, maxreconsume=1, count=COUNT // 2,
        ))  # fmt: skip
        consumer.wait_event("ready")

        def dead_ones() -> list[ShownMessage]:
            every = admin.messages.search(topic, newest_first=False, wanted=MessageFilter(tag="eu"))
            return [each for each in every.messages if each.properties["index"] in FAILED]

        running.enter_context(java.producing(
            namesrv=address, topic=topic, group="till", count=COUNT, mode="sync", size=64,
            tags="eu", trace=True, tracetopic=trace,
        ))  # fmt: skip
        causes = dead(admin, group, len(FAILED))
        page = admin.messages.search(topic, newest_first=False, wanted=MessageFilter(tag="eu"))
        by_index = {m.properties["index"]: m for m in page.messages}
        assert len(by_index) == COUNT
        for index, message in by_index.items():
            expected = ("DEAD_LETTERED", 2) if index in FAILED else ("CONSUMED", None)
            wait_until(
                lambda m=message, e=expected: status(admin, topic, m) == e,  # type: ignore[misc]
                f"what became of {index}: {expected}",
            )
        message, told = wait_until(
            lambda: traced(admin, topic, dead_ones(), trace), "a dead letter traced whole", 90
        )
        consumer.end_input()
        consumer.wait_event("closed")
    (cause,) = causes
    assert (cause.is_told, cause.count, cause.tag, cause.tries) == (False, len(FAILED), "eu", 2)
    assert cause.topics == {topic: len(FAILED)}
    assert [(t.group, t.outcome, t.retry_times) for t in told.tries] == [
        (group, "FAILED", 0), (group, "FAILED", 1),
    ]  # fmt: skip
    (send,) = told.sends
    assert (send.group, send.is_stored, send.kind) == ("till", True, "normal")
    assert told.store_ms == message.store_ms
    assert send.offset_msg_id == message.offset_msg_id


def traced(
    admin: Admin, topic: str, messages: list[ShownMessage], trace: str
) -> tuple[ShownMessage, TraceTimeline] | None:
    """Return the first message with a timeline whose send and two tries are whole.

    Java sends a trace once and drops it when that fails, so not every message has one.
    """
    for message in messages:
        told = admin.messages.trace(topic, message.msg_id, trace_topic=trace)
        whole = [each for each in told.tries if each.cost_ms is not None]
        if told.sends and len(whole) == 2:
            return message, told
    return None


def status(admin: Admin, topic: str, message: ShownMessage) -> tuple[str, int | None]:
    (row,) = admin.messages.track(topic, message.msg_id)
    return row.status, row.tries


def test_a_cause_outlives_a_try_at_a_member_of_java(
    java: JavaPrograms, apache_cluster: ApacheCluster
) -> None:
    """Its send-back copies what is stored, so the cause stays and is told as an earlier try's."""
    cluster, address = apache_cluster, apache_cluster.namesrv_addr
    topic = cluster.create_topic(cluster.unique("orders"), queues=1)
    group = cluster.unique("mixed-letters")
    create_retry_topic(address, cluster.broker_addr, group)
    java.produce(
        namesrv=address, topic=topic, group="till", count=1, mode="sync", size=64, tags="eu"
    )

    def fail(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        raise ValueError("no price")

    with Admin(address) as admin:
        with push_consumer(
            address, group, topic, fail, send_back_cause=True, max_reconsume_times=5
        ):  # fmt: skip
            (message,) = admin.messages.search(topic).messages
            wait_until(lambda: status(admin, topic, message)[1], "a try of ours")
        with java.start(
            "JavaPushConsumer", namesrv=address, topic=topic, group=group, failmodulo=1,
            failtimes=99, maxreconsume=4,
        ) as consumer:  # fmt: skip
            consumer.wait_event("ready")
            (cause,) = dead(admin, group, 1)
        assert (cause.is_told, cause.cause, cause.stale) == (True, "ValueError: no price", 1)
        assert admin.letters.redrive(group, LetterFilter(cause="ValueError")).sent == 1
