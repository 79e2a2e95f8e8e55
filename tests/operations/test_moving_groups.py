"""Operators move groups and look into their members, on every cluster with the same outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from rocketstream import ConsumeConcurrentlyStatus, MessageExt
from rocketstream.admin import Admin, ResetDone, ResetTarget
from tests.kits.cluster import Cluster
from tests.kits.faces import PushConsumer
from tests.kits.listeners import Seen, consumer_of, numbered, send_all
from tests.plugins.clusters import Names
from tests.plugins.waiting import wait_until

pytestmark = pytest.mark.usefixtures("face")

COUNT = 20
QUEUES = 2


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(cluster.namesrv_addr) as admin:
        yield admin


@pytest.fixture
def filled(cluster: Cluster, names: Names) -> Names:
    """A topic with messages in both queues."""
    cluster.create_topic(names.topic, QUEUES)
    send_all(cluster.namesrv_addr, numbered(names.topic, range(COUNT), keys="k"))
    return names


def is_consumed(admin: Admin, names: Names, group: str | None = None) -> bool:
    """Whether a group has committed everything in every queue."""
    rows = admin.groups.lag(group or names.group, names.topic)
    return [row.lag for row in rows if row.committed_offset is not None] == [0] * QUEUES


def move(admin: Admin, names: Names, target: ResetTarget) -> ResetDone:
    return admin.changes.reset_apply(admin.changes.reset_plan(names.group, names.topic, target))


def consume_all(cluster: Cluster, admin: Admin, names: Names) -> None:
    """Let a member consume everything and leave."""
    seen = Seen()
    with consumer_of(cluster.namesrv_addr, names.group, names.topic, seen):
        seen.wait_consumed(COUNT)
    wait_until(lambda: is_consumed(admin, names), "the offsets of everything")


@contextmanager
def member_at_the_end(
    cluster: Cluster, admin: Admin, names: Names, seen: Seen
) -> Iterator[PushConsumer]:
    """Run a member that has consumed everything and stored its offsets."""
    with consumer_of(
        cluster.namesrv_addr,
        names.group,
        names.topic,
        seen,
        persist_consumer_offset_interval_ms=50,
    ) as member:
        seen.wait_consumed(COUNT)
        wait_until(lambda: is_consumed(admin, names), "the offsets of everything")
        yield member


@pytest.mark.timeout(120)
def test_connected_members_go_back_and_consume_again(
    cluster: Cluster, admin: Admin, filled: Names
) -> None:
    """Covers C-531, C-532, C-535: told through the broker, they pause and begin anew."""
    seen = Seen()
    with member_at_the_end(cluster, admin, filled, seen):
        plan = admin.changes.reset_plan(filled.group, filled.topic, ResetTarget.earliest())
        assert plan.is_online
        assert plan.repeated == COUNT
        done = admin.changes.reset_apply(plan)
        assert done.differing == ()
        seen.wait_deliveries(2 * COUNT)
        wait_until(lambda: is_consumed(admin, filled), "the offsets of everything again")
    # A commit that is under way when they are told has them told again: a queue may begin twice.
    assert len(times := Counter(seen.bodies)) == COUNT
    assert min(times.values()) >= 2


def test_a_group_at_rest_goes_where_it_is_told(
    cluster: Cluster, admin: Admin, filled: Names
) -> None:
    """Covers C-534, C-536: back to the start, or past everything."""
    consume_all(cluster, admin, filled)
    done = move(admin, filled, ResetTarget.earliest())
    assert done.plan.repeated == COUNT
    assert {each.moved for each in done.rows} == {True}
    consume_all(cluster, admin, filled)
    move(admin, filled, ResetTarget.earliest())
    assert move(admin, filled, ResetTarget.latest()).plan.skipped == COUNT
    assert is_consumed(admin, filled)


def test_a_copy_begins_where_its_source_is(cluster: Cluster, admin: Admin, filled: Names) -> None:
    """Covers C-537: the new group consumes only what came after."""
    consume_all(cluster, admin, filled)
    copy = f"{filled.group}-copy"
    copy_of = ResetTarget.copy_of(filled.group)
    plan = admin.changes.reset_plan(copy, filled.topic, copy_of, new_group=True)
    admin.changes.reset_apply(plan, force=True)
    assert is_consumed(admin, filled, copy)
    seen = Seen()
    with consumer_of(cluster.namesrv_addr, copy, filled.topic, seen):
        send_all(cluster.namesrv_addr, numbered(filled.topic, range(COUNT, COUNT + 4)))
        seen.wait_consumed(4)
    assert sorted(map(int, seen.bodies)) == list(range(COUNT, COUNT + 4))


def test_members_tell_what_they_do(cluster: Cluster, admin: Admin, filled: Names) -> None:
    """Covers C-528, C-530, C-538, C-540: connections, running info with stacks, owners, status."""
    seen = Seen()
    with member_at_the_end(cluster, admin, filled, seen) as consumer:
        connection = admin.groups.connections(filled.group)
        (info,) = admin.groups.running_info(filled.group, stacks=True)
        status = admin.groups.consumer_status(filled.group, filled.topic)
        lag = admin.groups.lag(filled.group, filled.topic)

    me = consumer.client_id
    assert [member.client_id for member in connection.members] == [me]
    assert filled.topic in {each.topic for each in connection.subscriptions}
    queues = [queue for queue in info.queues if queue.topic == filled.topic]
    assert [queue.queue_id for queue in queues] == list(range(QUEUES))
    assert sum(queue.commit_offset for queue in queues) == COUNT
    assert info.properties["PROP_CONSUMEORDERLY"] == "false"
    assert "Thread" in (info.stacks or "")
    assert sum(offset for q, offset in status[me].items() if q.topic == filled.topic) == COUNT
    assert {row.client_id for row in lag} == {me}


def test_one_message_is_consumed_on_request(cluster: Cluster, admin: Admin, filled: Names) -> None:
    """Covers C-538: found by key, followed, consumed once more without moving the group."""

    def verdict(message: MessageExt) -> ConsumeConcurrentlyStatus:
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    seen = Seen(verdict)
    with member_at_the_end(cluster, admin, filled, seen) as consumer:
        found = wait_until(
            lambda: _all(admin.messages.query(filled.topic, "k", 64)), "all messages in the index"
        )
        message = found[0]
        track = {
            row.group: row.status for row in admin.messages.track(filled.topic, message.msg_id)
        }
        assert track[filled.group] == "CONSUMED"
        assert admin.topics.consumers(filled.topic) == [filled.group]
        row = admin.messages.consume(filled.group, consumer.client_id, filled.topic, message.msg_id)
        assert (row.result, row.order) == ("CR_SUCCESS", False)
        assert is_consumed(admin, filled)
    assert Counter(seen.bodies)[message.body.decode()] == 2


def _all(messages: list[MessageExt]) -> list[MessageExt] | None:
    return messages if len(messages) == COUNT else None


def test_time_spans_show_how_late_a_group_is(cluster: Cluster, admin: Admin, filled: Names) -> None:
    """Covers C-538: caught up means no delay; what waits has an age."""
    consume_all(cluster, admin, filled)
    rows = admin.groups.time_span(filled.group, filled.topic)
    assert [row.delay_ms for row in rows] == [0] * QUEUES
    assert all(row.consumed_ms == row.max_store_ms for row in rows)
    move(admin, filled, ResetTarget.earliest())
    rows = admin.groups.time_span(filled.group, filled.topic)
    assert all(row.delay_ms > 0 for row in rows)
