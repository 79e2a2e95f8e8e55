"""Moving groups: what is shown before, what is refused, what is done, and how it is taken back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rocketstream.admin import Admin, AuditLog, ReadOnlyError, ResetPlan, ResetTarget
from rocketstream.admin.changes import resets
from rocketstream.admin.changes.resets import JAVA_PAUSE_MS
from rocketstream.admin.safety import ChangingWire
from rocketstream.errors import ClientStateError, ConfigurationError, RouteNotFoundError
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import ResetOffsetBody
from rocketstream.protocol.codes import RequestCode
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.testing import ManualClock
from tests.kits.peer import Peer

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
def audit(tmp_path: Path) -> AuditLog:
    return AuditLog(tmp_path / "audit.jsonl", who="ops")


@pytest.fixture
def admin(
    cluster: EmbeddedCluster, audit: AuditLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Admin]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with Admin(cluster.namesrv_addr, audit=audit) as admin:
        yield admin


def stored(cluster: EmbeddedCluster, group: str = G, topic: str = T) -> list[int | None]:
    with Peer(cluster.broker_addr) as peer:
        return [
            peer.offset(group, topic, queue_id, set_zero_if_not_found=False) for queue_id in (0, 1)
        ]


def shown(plan: ResetPlan) -> list[tuple[int | None, int, int, int]]:
    return [(row.from_offset, row.to_offset, row.repeated, row.skipped) for row in plan.rows]


def test_plan_tells_what_is_consumed_again_and_what_never(
    cluster: EmbeddedCluster, admin: Admin, clock: ManualClock
) -> None:
    """Covers C-534: every target; nothing is changed."""

    def plan(target: ResetTarget, group: str = G) -> list[tuple[int | None, int, int, int]]:
        return shown(admin.changes.reset_plan(group, T, target))

    assert plan(ResetTarget.earliest()) == [(6, 0, 6, 0), (4, 0, 4, 0)]
    assert plan(ResetTarget.latest()) == [(6, 10, 0, 4), (4, 10, 0, 6)]
    fifth_ms = clock.now_ms() - 5 * SECOND_MS
    assert plan(ResetTarget.time(fifth_ms)) == [(6, 5, 1, 0), (4, 5, 0, 1)]
    assert plan(ResetTarget.time(clock.now_ms() + 1)) == [(6, 10, 0, 4), (4, 10, 0, 6)]
    assert plan(ResetTarget.offset(5)) == [(6, 5, 1, 0), (4, 5, 0, 1)]
    assert plan(ResetTarget.shift(-5)) == [(6, 1, 5, 0), (4, 0, 4, 0)]
    assert plan(ResetTarget.shift(2)) == [(6, 8, 0, 2), (4, 6, 0, 2)]
    assert stored(cluster) == [6, 4]


def test_group_at_rest_is_moved_read_back_and_taken_back(
    cluster: EmbeddedCluster, admin: Admin
) -> None:
    """Covers C-534, C-535: the broker's offsets are replaced; the undo file restores them."""
    done = admin.changes.reset_apply(admin.changes.reset_plan(G, T, ResetTarget.earliest()))
    assert [(each.stored_offset, each.moved) for each in done.rows] == [(0, True), (0, True)]
    assert done.plan.how() == "nobody is connected: the brokers replace the stored offsets"
    assert stored(cluster) == [0, 0]
    assert done.undo_path is not None
    back = admin.changes.undo(done.undo_path)
    assert shown(back) == [(0, 6, 0, 6), (0, 4, 0, 4)]
    assert back.problems == (), "where it was is what was asked for"
    (warning,) = back.warnings
    assert warning.startswith("10 messages are skipped that the group had passed before the reset")
    admin.changes.reset_apply(back)
    assert stored(cluster) == [6, 4]


def test_only_the_queues_named_are_moved(cluster: EmbeddedCluster, admin: Admin) -> None:
    one = MessageQueue(T, "broker-a", 1)
    admin.changes.reset_apply(admin.changes.reset_plan(G, T, ResetTarget.offset(2), [one]))
    assert stored(cluster) == [6, 2]
    with pytest.raises(ConfigurationError, match=r"no queue orders broker-a:7; it has broker-a:0"):
        admin.changes.reset_plan(G, T, ResetTarget.earliest(), [MessageQueue(T, "broker-a", 7)])


def test_all_topics_of_a_group_are_moved_at_once(
    cluster: EmbeddedCluster, admin: Admin, clock: ManualClock
) -> None:
    cluster.create_topic("refunds", 2)
    with Peer(cluster.broker_addr) as peer:
        peer.send("refunds", b"0", queue_id=0, properties={"UNIQ_KEY": "r"})
        peer.commit(G, "refunds", 0, 1)
        peer.commit(G, "%RETRY%" + G, 0, 3)

    def plan(target: ResetTarget) -> dict[str, list[tuple[int | None, int]]]:
        found: dict[str, list[tuple[int | None, int]]] = {}
        for row in admin.changes.reset_plan(G, None, target).rows:
            found.setdefault(row.topic, []).append((row.from_offset, row.to_offset))
        return found

    assert plan(ResetTarget.earliest()) == {T: [(6, 0), (4, 0)], "refunds": [(1, 0), (None, 0)]}
    fifth_ms = clock.now_ms() - 5 * SECOND_MS
    assert plan(ResetTarget.time(fifth_ms))[T] == [(6, 5), (4, 5)]
    admin.changes.reset_apply(admin.changes.reset_plan(G, None, ResetTarget.earliest()))
    assert (stored(cluster), stored(cluster, topic="refunds")) == ([0, 0], [0, 0])
    with pytest.raises(ConfigurationError, match="name the topic"):
        admin.changes.reset_plan(G, None, ResetTarget.offset(3))


def test_messages_nobody_asked_to_skip_need_force(
    cluster: EmbeddedCluster, admin: Admin, clock: ManualClock
) -> None:
    """Covers C-531, C-536: who says the end, or forward, has asked; a time has not."""
    plan = admin.changes.reset_plan(G, T, ResetTarget.offset(5))
    assert plan.problems == ("1 message in 1 queue would never be consumed",)
    with pytest.raises(ClientStateError, match="would never be consumed"):
        admin.changes.reset_apply(plan)
    assert stored(cluster) == [6, 4]
    admin.changes.reset_apply(plan, force=True)
    assert stored(cluster) == [5, 5]
    admin.changes.reset_apply(admin.changes.reset_plan(G, T, ResetTarget.shift(1)))
    assert stored(cluster) == [6, 6]
    admin.changes.reset_apply(admin.changes.reset_plan(G, T, ResetTarget.latest()))
    assert stored(cluster) == [10, 10]


def test_what_a_typo_names_is_refused_with_names_like_it(
    cluster: EmbeddedCluster, admin: Admin
) -> None:
    """A typo made a group before, and a copy of that rewound a real one."""
    with pytest.raises(ConfigurationError, match=r"'biling' is not known .* mean 'billing'"):
        admin.changes.reset_plan("biling", T, ResetTarget.earliest())
    with pytest.raises(ConfigurationError, match="did you mean 'billing'"):
        admin.changes.reset_plan(G, T, ResetTarget.copy_of("Billing"))
    with pytest.raises(RouteNotFoundError, match="did you mean 'orders'"):
        admin.changes.reset_plan(G, "order", ResetTarget.earliest())
    with pytest.raises(ConfigurationError, match="bad group"):
        admin.changes.reset_plan("bad group", T, ResetTarget.earliest())
    assert [row.group for row in admin.groups.all()] == [G]


def test_topic_nobody_may_read_is_refused(cluster: EmbeddedCluster, admin: Admin) -> None:
    admin.topics.create(T, 2, perm=2)
    with pytest.raises(ConfigurationError, match="no queue that may be read"):
        admin.changes.reset_plan(G, T, ResetTarget.earliest())


def test_new_group_on_purpose_begins_where_told(cluster: EmbeddedCluster, admin: Admin) -> None:
    plan = admin.changes.reset_plan("fresh", T, ResetTarget.latest(), new_group=True)
    assert shown(plan) == [(None, 10, 0, 10)] * 2
    assert plan.new_group
    admin.changes.reset_apply(plan)
    assert stored(cluster, "fresh") == [10, 10]
    assert not admin.changes.reset_plan(G, T, ResetTarget.latest(), new_group=True).new_group


def test_group_is_not_moved_in_a_topic_it_has_nothing_to_do_with(
    cluster: EmbeddedCluster, admin: Admin
) -> None:
    cluster.create_topic("other", 1)
    plan = admin.changes.reset_plan(G, "other", ResetTarget.earliest())
    assert plan.problems == (
        "group 'billing' has nothing stored in topic 'other'; it consumes orders",
    )


def test_plan_that_is_no_longer_true_is_refused(cluster: EmbeddedCluster, admin: Admin) -> None:
    """Somebody stored other offsets, or connected, between the preview and the yes."""
    plan = admin.changes.reset_plan(G, T, ResetTarget.offset(3))
    with Peer(cluster.broker_addr) as peer:
        peer.commit(G, T, 0, 9)
        with pytest.raises(ClientStateError, match="broker-a:0 would repeat 6 messages, not 3"):
            admin.changes.reset_apply(plan)
        peer.commit(G, T, 0, 6)
        peer.heartbeat("c1", G, {T: "*"})
        with pytest.raises(ClientStateError, match="members have connected meanwhile"):
            admin.changes.reset_apply(plan)
    assert stored(cluster) == [6, 4]


def test_queue_that_passed_its_target_by_itself_is_left_alone(
    cluster: EmbeddedCluster, admin: Admin
) -> None:
    """A reset forward never takes a group back, however long the yes took."""
    plan = admin.changes.reset_plan(G, T, ResetTarget.offset(5), [MessageQueue(T, "broker-a", 1)])
    with Peer(cluster.broker_addr) as peer:
        peer.commit(G, T, 1, 8)
    done = admin.changes.reset_apply(plan, force=True)
    assert [row.queue_id for row in done.left] == [1]
    assert stored(cluster) == [6, 8]


def test_connected_members_are_told_exactly_where_to_go(
    cluster: EmbeddedCluster, admin: Admin
) -> None:
    """Covers C-531, C-533: any offset, not a time alone; stored first, so that it is told."""
    with Peer(cluster.broker_addr) as one, Peer(cluster.broker_addr) as two:
        one.heartbeat("c1", G, {T: "*"})
        two.heartbeat("c2", G, {T: "*"})
        plan = admin.changes.reset_plan(G, T, ResetTarget.shift(-3))
        assert plan.members == ("c1", "c2")
        assert "told to move themselves" in plan.how()
        admin.changes.reset_apply(plan, wait_ms=0)
        for member in (one, two):
            told = member.next_asked(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
            table = ResetOffsetBody.decode(bytes(told.body)).offset_table
            assert table == {
                MessageQueue(T, "broker-a", 0): 3, MessageQueue(T, "broker-a", 1): 1,
            }  # fmt: skip


@pytest.mark.parametrize("is_javas", [False, True])
def test_member_that_commits_while_it_is_told_is_told_again(
    cluster: EmbeddedCluster, admin: Admin, monkeypatch: pytest.MonkeyPatch, is_javas: bool
) -> None:
    """What a broker tells is what is stored: a commit in between would be told instead.

    Java's members take 10 s for each request, and may lose the next one: it waits for so long.
    """
    waits: list[float] = []
    monkeypatch.setattr(resets, "wait_unless_stopped", waits.append)
    monkeypatch.setattr(resets.Resets, "_has_others", lambda *_: is_javas)
    tell, asked = ChangingWire.tell_stored, []
    with Peer(cluster.broker_addr) as member:
        member.heartbeat("c1", G, {T: "*"})

        def commit_and_tell(wire: ChangingWire, *where: str) -> dict[MessageQueue, int]:
            asked.append(where)
            if len(asked) == 1:
                member.commit(G, T, 0, 7)
            return tell(wire, *where)

        monkeypatch.setattr(ChangingWire, "tell_stored", commit_and_tell)
        admin.changes.reset_apply(admin.changes.reset_plan(G, T, ResetTarget.offset(3)), wait_ms=0)
        told = [member.next_asked(RequestCode.RESET_CONSUMER_CLIENT_OFFSET) for _ in asked]
    tables = [set(ResetOffsetBody.decode(bytes(e.body)).offset_table.values()) for e in told]
    assert tables == [{7, 3}, {3}]
    assert waits == ([JAVA_PAUSE_MS / 1_000] if is_javas else [])


def test_connected_group_with_an_uncommitted_queue_can_be_moved(
    cluster: EmbeddedCluster, admin: Admin
) -> None:
    """Covers C-531: one queue never committed fails the whole reset upstream."""
    with Peer(cluster.broker_addr) as member:
        member.heartbeat("c1", "fresh", {T: "*"})
        plan = admin.changes.reset_plan("fresh", T, ResetTarget.offset(2))
        assert plan.problems == ("4 messages in 2 queues would never be consumed",)
        admin.changes.reset_apply(plan, force=True, wait_ms=0)
        told = member.next_asked(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
        assert set(ResetOffsetBody.decode(bytes(told.body)).offset_table.values()) == {2}
        member.heartbeat("c1", "newer", {T: "*"})
        one = [MessageQueue(T, "broker-a", 0)]
        plan = admin.changes.reset_plan("newer", T, ResetTarget.earliest(), one)
        assert "orders broker-a:1: nothing is stored there yet" in plan.problems[0]


@pytest.mark.parametrize(
    ("consume_type", "model", "why"),
    [
        ("CONSUME_ACTIVELY", "CLUSTERING", "pulls by itself"),
        ("CONSUME_PASSIVELY", "BROADCASTING", "keeps its offsets on its own machine"),
    ],
)
def test_members_that_cannot_be_told_are_named(
    cluster: EmbeddedCluster,
    admin: Admin,
    consume_type: str,
    model: str,
    why: str,
) -> None:
    with Peer(cluster.broker_addr) as member:
        member.heartbeat("c1", G, {T: "*"}, consume_type=consume_type, model=model)
        plan = admin.changes.reset_plan(G, T, ResetTarget.earliest())
        assert ["c1" in each and why in each for each in plan.problems] == [True]
        with pytest.raises(ClientStateError, match=why):
            admin.changes.reset_apply(plan)


def test_offsets_are_copied_topic_by_topic(cluster: EmbeddedCluster, admin: Admin) -> None:
    """Covers C-537: queue for queue; skipping in the target needs force."""
    with Peer(cluster.broker_addr) as peer:
        cluster.create_topic("other", 1)
        peer.send("other")
        peer.commit(G, "other", 0, 1)
        peer.commit("behind", T, 0, 2)
        peer.commit("behind", T, 1, 4)
    copy = ResetTarget.copy_of(G)
    plan = admin.changes.reset_plan("copy", None, copy, new_group=True)
    assert {(row.topic, row.queue_id): row.to_offset for row in plan.rows} == {
        (T, 0): 6, (T, 1): 4, ("other", 0): 1,
    }  # fmt: skip
    admin.changes.reset_apply(plan, force=True)
    assert stored(cluster, "copy") == [6, 4]
    plan = admin.changes.reset_plan("behind", T, copy)
    assert plan.problems == ("4 messages in 1 queue would never be consumed",)
    with pytest.raises(ConfigurationError, match="no offsets in topic 'other'"):
        admin.changes.reset_plan(G, "other", ResetTarget.copy_of("behind"))


def test_what_a_group_is_to_pop_again_is_not_copied(cluster: EmbeddedCluster, admin: Admin) -> None:
    """The retry topics of popping are the group's own, as its plain one is."""
    with Peer(cluster.broker_addr) as peer:
        cluster.create_topic(f"%RETRY%{G}_{T}", 1)
        peer.commit(G, f"%RETRY%{G}_{T}", 0, 0)
    plan = admin.changes.reset_plan("copy", None, ResetTarget.copy_of(G), new_group=True)
    assert {row.topic for row in plan.rows} == {T}


def test_reset_is_written_down_before_and_after(
    cluster: EmbeddedCluster, admin: Admin, audit: AuditLog
) -> None:
    admin.changes.reset_apply(admin.changes.reset_plan(G, T, ResetTarget.earliest()))
    begin, end = (json.loads(line) for line in audit.path.read_text().splitlines())
    assert (begin["phase"], begin["operation"], begin["who"]) == ("begin", "group.reset", "ops")
    assert begin["before"] == {"orders broker-a:0": 6, "orders broker-a:1": 4}
    assert (end["phase"], end["id"]) == ("done", begin["id"])
    assert end["after"]["queues"] == {"orders broker-a:0": 0, "orders broker-a:1": 0}
    assert Path(end["after"]["undo"]).exists()


def test_nothing_moves_when_it_cannot_be_written_down(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with Admin(cluster.namesrv_addr, audit=AuditLog(tmp_path / "file" / "audit.jsonl")) as admin:
        plan = admin.changes.reset_plan(G, T, ResetTarget.earliest())
        with pytest.raises(ClientStateError, match="audit file"):
            admin.changes.reset_apply(plan)
    with Admin(cluster.namesrv_addr) as admin, pytest.raises(ClientStateError, match="undo file"):
        admin.changes.reset_apply(plan, undo_directory=tmp_path / "file" / "undo")
    assert stored(cluster) == [6, 4]


CHANGES: dict[str, Callable[[Admin], object]] = {
    "group.reset": lambda a: a.changes.reset_apply(
        a.changes.reset_plan(G, T, ResetTarget.earliest())
    ),
    "group.begin": lambda a: a.groups.begin("late", T),
    "topic.create": lambda a: a.topics.create("made"),
    "dlq.redrive": lambda a: a.letters.redrive(G),
}


@pytest.mark.parametrize("operation", CHANGES)
def test_read_only_admin_changes_nothing(cluster: EmbeddedCluster, operation: str) -> None:
    with Admin(cluster.namesrv_addr, read_only=True) as admin:
        with pytest.raises(ReadOnlyError, match=operation):
            CHANGES[operation](admin)
        assert "made" not in {row.topic for row in admin.topics.all()}
    assert stored(cluster) == [6, 4]
    assert stored(cluster, "late") == [None, None]
