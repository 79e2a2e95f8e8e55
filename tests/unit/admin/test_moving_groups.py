"""Resets, skipping and copying of group offsets, with and without connected members."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rocketstream.admin import Admin, ResetRow
from rocketstream.errors import BrokerError, ConfigurationError, RouteNotFoundError
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import ResetOffsetBody
from rocketstream.protocol.codes import RequestCode
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.testing import ManualClock
from tests.server.peer import Peer

T, G, SECOND_MS = "orders", "billing", 1_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cluster(clock: ManualClock) -> Iterator[EmbeddedCluster]:
    """Topic ``orders`` with ten messages in each of two queues, one a second; 6 and 4 consumed."""
    with EmbeddedCluster(clock=clock) as cluster, Peer(cluster.broker_addr) as peer:
        cluster.create_topic(T, 2)
        for number in range(10):
            for queue_id in range(2):
                peer.send(
                    T, b"%d" % number, queue_id=queue_id, properties={"UNIQ_KEY": str(number)}
                )
            clock.advance(SECOND_MS)
        for queue_id, offset in enumerate((6, 4)):
            peer.commit(G, T, queue_id, offset)
        yield cluster


@pytest.fixture
def admin(cluster: EmbeddedCluster) -> Iterator[Admin]:
    with Admin(cluster.namesrv_addr) as admin:
        yield admin


def stored(cluster: EmbeddedCluster, group: str = G, topic: str = T) -> list[int | None]:
    with Peer(cluster.broker_addr) as peer:
        return [
            peer.offset(group, topic, queue_id, set_zero_if_not_found=False) for queue_id in (0, 1)
        ]


def targets(rows: list[ResetRow]) -> list[tuple[int, int, int, str | None]]:
    return [(row.target_offset, row.again, row.skipped, row.by) for row in rows]


def test_plan_tells_what_is_consumed_again_and_what_never(
    cluster: EmbeddedCluster, admin: Admin, clock: ManualClock
) -> None:
    """Covers C-534: by time, to the start, to the end; nothing is changed."""
    earliest = admin.group_reset_plan(G, T, 0)
    latest = admin.group_reset_plan(G, T, -1)
    fifth = admin.group_reset_plan(G, T, clock.now_ms() - 5 * SECOND_MS)
    assert targets(earliest) == [(0, 6, 0, None), (0, 4, 0, None)]
    assert targets(latest) == [(10, 0, 4, None), (10, 0, 6, None)]
    assert targets(fifth) == [(5, 1, 0, None), (5, 0, 1, None)]
    assert targets(admin.group_reset_plan("new", T, -1)) == [(10, 0, 10, None)] * 2
    assert stored(cluster) == [6, 4]


def test_offline_group_is_moved_at_the_broker(cluster: EmbeddedCluster, admin: Admin) -> None:
    """Covers C-534, C-535: the new way is refused with 206, so the offsets are replaced."""
    assert targets(admin.group_reset(G, T, 0)) == [(0, 6, 0, "broker"), (0, 4, 0, "broker")]
    assert stored(cluster) == [0, 0]


def test_queues_that_would_skip_stay_unless_forced(
    cluster: EmbeddedCluster, admin: Admin, clock: ManualClock
) -> None:
    """Covers C-531, C-534: without force nobody is moved forward."""
    fifth_ms = clock.now_ms() - 5 * SECOND_MS
    rows = admin.group_reset(G, T, fifth_ms)
    assert targets(rows) == [(5, 1, 0, "broker"), (4, 0, 0, "broker")]
    assert stored(cluster) == [5, 4]
    admin.group_reset(G, T, fifth_ms, force=True)
    assert stored(cluster) == [5, 5]


def test_accumulated_messages_are_skipped(cluster: EmbeddedCluster, admin: Admin) -> None:
    """Covers C-536: to the end, past what waits."""
    rows = admin.skip_accumulated(G, T)
    assert [row.skipped for row in rows] == [4, 6]
    assert stored(cluster) == [10, 10]


def test_group_without_offsets_begins_where_told(cluster: EmbeddedCluster, admin: Admin) -> None:
    """Covers C-534: a group that never consumed has no offsets for the new way to compare."""
    admin.group_reset("new", T, -1, force=True)
    assert stored(cluster, "new") == [10, 10]


def test_connected_members_move_themselves(cluster: EmbeddedCluster, admin: Admin) -> None:
    """Covers C-531, C-533, C-535: 220 to every member, the broker's offsets stay."""
    with Peer(cluster.broker_addr) as one, Peer(cluster.broker_addr) as two:
        one.heartbeat("c1", G, {T: "*"})
        two.heartbeat("c2", G, {T: "*"})
        rows = admin.group_reset(G, T, 0)
        assert targets(rows) == [(0, 6, 0, "members"), (0, 4, 0, "members")]
        for member in (one, two):
            told = member.next_asked(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
            table = ResetOffsetBody.decode(bytes(told.body)).offset_table
            assert table == {MessageQueue(T, "broker-a", q): 0 for q in (0, 1)}
        assert stored(cluster) == [6, 4]


def test_connected_group_with_an_uncommitted_queue_is_an_error(
    cluster: EmbeddedCluster, admin: Admin
) -> None:
    """Covers C-531: one queue never committed fails all; we do not move it behind its back."""
    with Peer(cluster.broker_addr) as member:
        member.heartbeat("c1", "fresh", {T: "*"})
        with pytest.raises(BrokerError, match="THe consumer group <fresh> not exist"):
            admin.group_reset("fresh", T, 0)


def test_what_cannot_be_reset_says_so(admin: Admin) -> None:
    with pytest.raises(RouteNotFoundError, match="nowhere"):
        admin.group_reset(G, "nowhere", 0)
    with pytest.raises(ConfigurationError, match="timestamp_ms is -2"):
        admin.group_reset(G, T, -2)
    with pytest.raises(ConfigurationError, match="bad group"):
        admin.group_reset("bad group", T, 0)


def test_offsets_are_copied_to_another_group(cluster: EmbeddedCluster, admin: Admin) -> None:
    """Covers C-537: every topic, one request each, since a blank topic copies nothing there."""
    with Peer(cluster.broker_addr) as peer:
        cluster.create_topic("other", 1)
        peer.send("other")
        peer.commit(G, "other", 0, 1)
    copied = admin.group_clone(G, "copy")
    assert copied == {
        MessageQueue(T, "broker-a", 0): 6,
        MessageQueue(T, "broker-a", 1): 4,
        MessageQueue("other", "broker-a", 0): 1,
    }
    assert stored(cluster, "copy") == [6, 4]
    assert set(admin.group_clone(G, "part", T)) == {MessageQueue(T, "broker-a", q) for q in (0, 1)}


def test_copy_that_harms_the_target_needs_force(cluster: EmbeddedCluster, admin: Admin) -> None:
    """Covers C-537: a connected target overwrites the copy; one behind would skip messages."""
    with Peer(cluster.broker_addr) as member:
        member.commit("behind", T, 0, 2)
        with pytest.raises(ConfigurationError, match="past 4 messages"):
            admin.group_clone(G, "behind", T)
        member.heartbeat("c1", "online", {T: "*"})
        with pytest.raises(ConfigurationError, match="connected members"):
            admin.group_clone(G, "online", T)
    admin.group_clone(G, "behind", T, force=True)
    assert stored(cluster, "behind") == [6, 4]
    with pytest.raises(ConfigurationError, match="'nobody' has no offsets"):
        admin.group_clone("nobody", "copy")
