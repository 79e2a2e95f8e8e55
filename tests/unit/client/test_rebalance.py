"""What changes when the allotment changes (C-156 to C-182)."""

from __future__ import annotations

from rocketstream.client.core.process_queue import PULL_MAX_IDLE_MS, ProcessQueue
from rocketstream.client.core.rebalance import (
    Assign,
    Revoke,
    RevokeReason,
    plan,
    plan_unsubscribed,
    sorted_members,
)
from rocketstream.model import MessageQueue


def mq(queue_id: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


def table(*mqs: MessageQueue) -> dict[MessageQueue, ProcessQueue]:
    return {each: ProcessQueue(each, number, 0) for number, each in enumerate(mqs, 1)}


def test_a_changed_allotment_gives_up_and_takes() -> None:
    """Covers C-175."""
    assert plan(table(mq(0), mq(1)), "T", [mq(1), mq(2)], 0) == [
        Revoke(mq(0), 1, RevokeReason.NOT_ALLOTTED),
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
    queues[mq(0)].dropped = True
    assert plan(queues, "T", [mq(0)], 0) == [
        Revoke(mq(0), 1, RevokeReason.DROPPED),
        Assign(mq(0)),
    ]


def test_a_dead_pull_loop_is_begun_anew() -> None:
    """Covers C-176."""
    assert plan(table(mq(0)), "T", [mq(0)], PULL_MAX_IDLE_MS + 1) == [
        Revoke(mq(0), 1, RevokeReason.PULL_EXPIRED),
        Assign(mq(0)),
    ]


def test_an_empty_allotment_gives_everything_up() -> None:
    """Covers C-162, C-165."""
    effects = plan(table(mq(0), mq(1)), "T", [], 0)
    assert [effect.message_queue for effect in effects] == [mq(0), mq(1)]


def test_unsubscribed_topics_are_given_up() -> None:
    """Covers C-157, C-554."""
    assert plan_unsubscribed(table(mq(0), mq(0, "Gone")), {"T"}) == [
        Revoke(mq(0, "Gone"), 2, RevokeReason.UNSUBSCRIBED)
    ]


def test_members_sort_as_java_sorts_and_count_once() -> None:
    """Covers C-161, C-346: UTF-16 order puts a surrogate pair before U+FF5E."""
    assert sorted_members(["b", "a", "b"]) == ["a", "b"]
    assert sorted_members(["～", "\U0001f600"]) == ["\U0001f600", "～"]


def test_queues_sort_by_number_not_by_text() -> None:
    """Covers C-161."""
    assert [each.queue_id for each in sorted([mq(10), mq(2), mq(1)])] == [1, 2, 10]
