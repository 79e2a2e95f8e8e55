"""What changes when the allotment changes (C-156 to C-182)."""

from __future__ import annotations

from typing import Any

import pytest

from rocketstream.client.consumer.allocate import (
    Assign,
    Revoke,
    RevokeReason,
    StartAt,
    plan,
    plan_unsubscribed,
    sorted_members,
    start_at,
    usable,
)
from rocketstream.client.consumer.process_queue import PULL_MAX_IDLE_MS, ProcessQueue, Thresholds
from rocketstream.client.consumer.queue import AssignedQueue
from rocketstream.model import ConsumeFromWhere, MessageQueue


def mq(queue_id: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


def table(*mqs: MessageQueue) -> dict[MessageQueue, AssignedQueue]:
    links: Any = None
    return {each: AssignedQueue(ProcessQueue(each, 0), 0, Thresholds(), links) for each in mqs}


def test_a_changed_allotment_gives_up_and_takes() -> None:
    """Covers C-175."""
    assert plan(table(mq(0), mq(1)), "T", [mq(1), mq(2)], 0) == [
        Revoke(mq(0), RevokeReason.NOT_ALLOTTED),
        Assign(mq(2)),
    ]


def test_the_same_allotment_changes_nothing() -> None:
    """Covers C-175: no effects, hence no heartbeat (C-183)."""
    assert plan(table(mq(0), mq(1)), "T", [mq(1), mq(0)], 0) == []


def test_other_topics_are_left_alone() -> None:
    """Covers C-156: one topic at a time."""
    assert plan(table(mq(0), mq(0, "Other")), "T", [mq(0)], 0) == []


def test_a_dropped_entry_is_treated_as_absent() -> None:
    """Covers C-180, C-557: the queue comes back at once instead of after 120 s."""
    queues = table(mq(0))
    queues[mq(0)].drop()
    assert plan(queues, "T", [mq(0)], 0) == [
        Revoke(mq(0), RevokeReason.DROPPED),
        Assign(mq(0)),
    ]


def test_a_queue_on_its_way_out_is_finished_before_it_comes_back() -> None:
    """Covers C-556, C-557: it leaves first, whoever gets it then."""
    queues = table(mq(0))
    queues[mq(0)].leave()
    assert plan(queues, "T", [mq(0)], 0) == [
        Revoke(mq(0), RevokeReason.DROPPED),
        Assign(mq(0)),
    ]


def test_a_queue_held_by_flow_control_is_not_dead() -> None:
    """Covers C-176: it is pulled again when messages are finished, however late."""
    queues = table(mq(0))
    queues[mq(0)].process_queue.flow_controlled = True
    assert plan(queues, "T", [mq(0)], PULL_MAX_IDLE_MS + 1) == []
    queues[mq(0)].process_queue.flow_controlled = False
    assert plan(queues, "T", [mq(0)], PULL_MAX_IDLE_MS) == [], "the limit itself still counts"


@pytest.mark.parametrize("where", list(ConsumeFromWhere))
def test_where_to_begin_without_an_offset(where: ConsumeFromWhere) -> None:
    """Covers C-189, C-190, C-196: the deprecated values mean LAST; retry topics begin at 0."""
    first, timestamp = ConsumeFromWhere.FIRST_OFFSET, ConsumeFromWhere.TIMESTAMP
    normal = {first: StartAt.ZERO, timestamp: StartAt.TIMESTAMP}.get(where, StartAt.END)
    retry = {timestamp: StartAt.END}.get(where, StartAt.ZERO)
    assert start_at(where, is_retry=False) is normal
    assert start_at(where, is_retry=True) is retry


def test_the_deprecated_places_have_upstreams_names() -> None:
    """Covers C-189: they go into heartbeats as they are."""
    assert {where.value for where in ConsumeFromWhere} == {
        "CONSUME_FROM_LAST_OFFSET",
        "CONSUME_FROM_FIRST_OFFSET",
        "CONSUME_FROM_TIMESTAMP",
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
    }


def test_of_a_strategys_answer_only_the_topics_queues_count() -> None:
    """Covers C-162, C-169: None is nothing, each counts once, strangers are told apart."""
    queues = [mq(0), mq(1), mq(2)]
    assert usable(None, "T", queues) == ([], [])
    assert usable([mq(2), mq(0), mq(2)], "T", queues) == ([mq(2), mq(0)], [])
    assert usable([mq(9), mq(1), mq(0, "Other")], "T", queues) == ([mq(1)], [mq(9)])


def test_a_dead_pull_loop_is_begun_anew() -> None:
    """Covers C-176."""
    assert plan(table(mq(0)), "T", [mq(0)], PULL_MAX_IDLE_MS + 1) == [
        Revoke(mq(0), RevokeReason.PULL_EXPIRED),
        Assign(mq(0)),
    ]


def test_an_empty_allotment_gives_everything_up() -> None:
    """Covers C-162, C-165."""
    effects = plan(table(mq(0), mq(1)), "T", [], 0)
    assert [effect.message_queue for effect in effects] == [mq(0), mq(1)]


def test_unsubscribed_topics_are_given_up() -> None:
    """Covers C-157, C-554."""
    assert plan_unsubscribed(table(mq(0), mq(0, "Gone")), {"T"}) == [
        Revoke(mq(0, "Gone"), RevokeReason.UNSUBSCRIBED)
    ]


def test_members_sort_as_java_sorts_and_count_once() -> None:
    """Covers C-161, C-346: UTF-16 order puts a surrogate pair before U+FF5E."""
    assert sorted_members(["b", "a", "b"]) == ["a", "b"]
    assert sorted_members(["～", "\U0001f600"]) == ["\U0001f600", "～"]


def test_queues_sort_by_number_not_by_text() -> None:
    """Covers C-161."""
    assert [each.queue_id for each in sorted([mq(10), mq(2), mq(1)])] == [1, 2, 10]
