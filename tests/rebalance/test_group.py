"""Members of one group: they share, take over, and repeat nothing that was committed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from rocketstream import MessageQueue
from tests.kits.cluster import Cluster
from tests.kits.faces import Producer, PushConsumer
from tests.kits.listeners import Gate, Seen, consumer_of, numbered, own, send_all
from tests.plugins.clusters import Names
from tests.plugins.waiting import wait_until

pytestmark = pytest.mark.usefixtures("face")


def owned(*expected: tuple[PushConsumer, list[int]], topic: str) -> Callable[[], bool]:
    """Return a check that each member has exactly its queues."""
    return lambda: all(own(consumer, topic) == queues for consumer, queues in expected)


def in_order(one: PushConsumer, two: PushConsumer) -> tuple[PushConsumer, PushConsumer]:
    """Return two members as the group sorts them."""
    return (one, two) if one.client_id < two.client_id else (two, one)


def test_two_members_divide_the_queues_and_every_message(cluster: Cluster, names: Names) -> None:
    """Covers C-149 to C-155, C-166: contiguous halves; together everything, each message once."""
    cluster.create_topic(names.topic, 4)
    ones, twos = Seen(), Seen()
    with (
        consumer_of(cluster.namesrv_addr, names.group, names.topic, ones) as one,
        consumer_of(cluster.namesrv_addr, names.group, names.topic, twos) as two,
    ):
        low, high = in_order(one, two)
        wait_until(owned((low, [0, 1]), (high, [2, 3]), topic=names.topic), "an even division")
        send_all(cluster.namesrv_addr, numbered(names.topic, range(400)))
        wait_until(lambda: len(ones.bodies) + len(twos.bodies) >= 400, "everything consumed")
    assert sorted(map(int, ones.bodies + twos.bodies)) == list(range(400))
    assert ones.bodies
    assert twos.bodies


def test_a_member_that_leaves_is_replaced_and_repeats_nothing(
    cluster: Cluster, names: Names
) -> None:
    """Covers C-119, C-154, C-344: its offsets are stored before it says goodbye."""
    cluster.create_topic(names.topic, 4)
    ones, twos = Seen(), Seen()
    one = consumer_of(cluster.namesrv_addr, names.group, names.topic, ones)
    with (
        one,
        consumer_of(cluster.namesrv_addr, names.group, names.topic, twos) as two,
    ):
        wait_until(
            lambda: len(own(one, names.topic)) == len(own(two, names.topic)) == 2, "a division"
        )
        send_all(cluster.namesrv_addr, numbered(names.topic, range(200)))
        wait_until(lambda: len(ones.bodies) + len(twos.bodies) >= 200, "everything consumed")
        one.shutdown()
        wait_until(owned((two, [0, 1, 2, 3]), topic=names.topic), "the other takes over")
        send_all(cluster.namesrv_addr, numbered(names.topic, range(200, 300)))
        wait_until(lambda: len(ones.bodies) + len(twos.bodies) >= 300, "everything consumed")
    assert sorted(map(int, ones.bodies + twos.bodies)) == list(range(300))
    assert cluster.committed(names.group, names.topic, 4) == cluster.ends(names.topic, 4)


def test_a_result_that_comes_after_the_queue_was_given_up_does_not_count(
    cluster: Cluster, names: Names
) -> None:
    """Covers C-261, C-549: the next owner consumes the message again; the commit never passed it.

    The first member is inside its listener with a message when the second takes the queue.
    """
    cluster.create_topic(names.topic, 2)
    gate = Gate(lambda message: True)
    other = Seen()
    with contextlib.ExitStack() as members:
        members.enter_context(consumer_of(cluster.namesrv_addr, names.group, names.topic, gate))
        send_all(cluster.namesrv_addr, numbered(names.topic, range(2)))
        gate.arrived.wait_consumed(2)
        two = members.enter_context(
            consumer_of(cluster.namesrv_addr, names.group, names.topic, other)
        )
        wait_until(lambda: len(own(two, names.topic)) == 1, "a division")
        (taken,) = own(two, names.topic)
        other.wait_consumed(1)
        gate.opened.set()
        gate.seen.wait_consumed(2)
        (again,) = other.consumed
        assert again.queue_id == taken
    assert cluster.committed(names.group, names.topic, 2) == [1, 1]


def test_groups_do_not_disturb_each_other(cluster: Cluster, names: Names) -> None:
    """Each group gets every message."""
    cluster.create_topic(names.topic, 2)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(50)))
    ones, twos = Seen(), Seen()
    with (
        consumer_of(cluster.namesrv_addr, f"{names.group}a", names.topic, ones),
        consumer_of(cluster.namesrv_addr, f"{names.group}b", names.topic, twos),
    ):
        ones.wait_consumed(50)
        twos.wait_consumed(50)
    assert sorted(ones.bodies) == sorted(twos.bodies)


def test_the_retry_queue_has_one_owner(cluster: Cluster, names: Names) -> None:
    """Covers C-113: the retry topic is divided like any other."""
    cluster.create_topic(names.topic, 2)
    with (
        consumer_of(cluster.namesrv_addr, names.group, names.topic, Seen()) as one,
        consumer_of(cluster.namesrv_addr, names.group, names.topic, Seen()) as two,
    ):
        retry = f"%RETRY%{names.group}"
        low, high = in_order(one, two)
        wait_until(owned((low, [0]), (high, []), topic=retry), "one owner of the retry queue")
        wait_until(owned((low, [0]), (high, [1]), topic=names.topic), "one owner of each queue")
        mqs: list[MessageQueue] = [*low.assigned_queues(), *high.assigned_queues()]
        assert len(mqs) == len(set(mqs))


def test_members_may_come_and_go_while_messages_flow(cluster: Cluster, names: Names) -> None:
    """Covers C-548 to C-550: at least once through any number of hand-overs; commits complete.

    Six generations of members overlap by one; each leaves in order while its queues are full.
    """
    cluster.create_topic(names.topic, 4)
    seen = Seen()
    total = 3000
    with ExitStack() as stack:
        producer = stack.enter_context(Producer("pg", namesrv_addr=cluster.namesrv_addr))
        members: list[PushConsumer] = []
        for generation in range(6):
            member = consumer_of(cluster.namesrv_addr, names.group, names.topic, seen)
            stack.enter_context(member)
            members.append(member)
            futures = [
                producer.send_async(message)
                for message in numbered(
                    names.topic, range(generation * total // 6, (generation + 1) * total // 6)
                )
            ]
            wait_until(lambda: members[-1].assigned_queues(), "queues of the newcomer")
            if generation:
                members[generation - 1].shutdown()
            for future in futures:
                future.result(30)
        seen.wait_consumed(total)
    assert {int(body) for body in seen.bodies} == set(range(total))
    assert cluster.committed(names.group, names.topic, 4) == cluster.ends(names.topic, 4)
