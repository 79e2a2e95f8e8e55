"""Making, changing, pausing and deleting topics and groups: shown, refused, done, written down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rocketstream.admin import Admin, AuditLog, ReadOnlyError
from rocketstream.admin.core.steps import popped_again
from rocketstream.admin.safety import ChangingWire
from rocketstream.errors import (
    ClientStateError,
    ConfigurationError,
    RouteNotFoundError,
    TransportError,
)
from rocketstream.protocol.codes import RequestCode
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.peer import Peer

T, G = "orders", "billing"


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    """Topic ``orders`` with two queues of three messages each, of which one is consumed."""
    with EmbeddedCluster() as cluster, Peer(cluster.broker_addr) as peer:
        cluster.create_topic(T, 2)
        for number in range(6):
            peer.send(T, b"%d" % number, queue_id=number % 2)
        peer.commit(G, T, 0, 1)
        peer.commit(G, T, 1, 1)
        yield cluster


@pytest.fixture
def admin(cluster: EmbeddedCluster, tmp_path: Path) -> Iterator[Admin]:
    with Admin(cluster.namesrv_addr, audit=AuditLog(tmp_path / "audit.jsonl")) as admin:
        yield admin


def test_topic_is_deleted_with_all_that_was_said_to_be_lost(
    cluster: EmbeddedCluster, admin: Admin, tmp_path: Path
) -> None:
    plan = admin.changes.topic_delete_plan(T)
    assert plan.losses == (
        "6 messages kept on broker-a",
        "the progress of group billing in 2 queues, 4 messages of it not consumed",
    )
    assert admin.changes.apply(plan).differing == ()
    with pytest.raises(RouteNotFoundError):
        admin.topics.route(T)
    assert T not in {row.topic for row in admin.topics.all()}
    assert [row.group for row in admin.groups.all()] == []
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [(line["phase"], line["operation"]) for line in lines] == [
        ("begin", "topic.delete"), ("done", "topic.delete"),
    ]  # fmt: skip
    assert lines[0]["before"][0]["state"]["readQueueNums"] == 2
    # One of the same name is empty, and nobody's old offset skips its first messages.
    cluster.create_topic(T, 2)
    assert {row.max_offset for row in admin.topics.status(T)} == {0}
    with Peer(cluster.broker_addr) as peer:
        assert peer.offset(G, T, 0, set_zero_if_not_found=False) is None


def test_topic_that_members_subscribe_is_not_deleted(
    cluster: EmbeddedCluster, admin: Admin
) -> None:
    with Peer(cluster.broker_addr) as member:
        member.heartbeat("c1", G, {T: "*"})
        plan = admin.changes.topic_delete_plan(T)
        assert plan.problems == ("1 member of group billing subscribe it: c1",)
        with pytest.raises(ClientStateError, match="subscribe it: c1"):
            admin.changes.apply(plan)
        assert T in {row.topic for row in admin.topics.all()}
        assert admin.changes.apply(plan, force=True).differing == ()


@pytest.mark.parametrize("name", ["TBW102", "SCHEDULE_TOPIC_XXXX", "broker-a", "DefaultCluster"])
def test_topics_of_the_system_are_refused(admin: Admin, name: str) -> None:
    with pytest.raises(ConfigurationError, match="belongs to the brokers themselves"):
        admin.changes.topic_delete_plan(name)
    with pytest.raises(ConfigurationError, match="belongs to the brokers themselves"):
        admin.changes.topic_update_plan(name, perm=4)


def test_unknown_names_are_refused_with_those_like_them(admin: Admin) -> None:
    with pytest.raises(RouteNotFoundError, match="did you mean 'orders'"):
        admin.changes.topic_delete_plan("order")
    with pytest.raises(RouteNotFoundError, match="did you mean 'orders'"):
        admin.changes.topic_update_plan("oders", perm=4)
    with pytest.raises(ConfigurationError, match="did you mean 'billing'"):
        admin.changes.group_pause_plan("biling")
    with pytest.raises(ConfigurationError, match="did you mean 'billing'"):
        admin.changes.group_delete_plan("billings")
    assert {row.group for row in admin.groups.all()} == {G}


def test_topic_that_is_there_is_not_made_again(admin: Admin) -> None:
    assert not admin.changes.topic_create_plan(T, 2).changes
    plan = admin.changes.topic_create_plan(T, 8)
    assert "broker-a has topic orders already (readQueueNums 2, not 8" in plan.problems[0]
    with pytest.raises(ClientStateError, match="topic update"):
        admin.changes.apply(plan)
    admin.changes.apply(admin.changes.topic_create_plan("other", 3))
    assert len(admin.topics.status("other")) == 3


def test_fewer_queues_are_warned_of_and_full_ones_kept(admin: Admin) -> None:
    plan = admin.changes.topic_update_plan(T, read_queues=1, write_queues=1)
    assert "their order begins anew" in plan.warnings[0]
    assert "3 messages in queues 1 to 1 are read by nobody" in plan.problems[0]
    with pytest.raises(ClientStateError, match="read by nobody"):
        admin.changes.apply(plan)
    plan = admin.changes.topic_update_plan(T, write_queues=1)
    assert plan.problems == ()
    admin.changes.apply(plan)
    (route,) = admin.topics.route(T)
    assert (route.read_queues, route.write_queues) == (2, 1)
    assert (
        "never read"
        in admin.changes.topic_update_plan(T, read_queues=1, write_queues=2).problems[0]
    )


def test_permission_alone_is_changed(admin: Admin) -> None:
    (step,) = admin.changes.topic_update_plan(T, perm=4).steps
    assert step.differences() == [("perm", 6, 4)]
    admin.changes.apply(admin.changes.topic_update_plan(T, perm=4))
    (route,) = admin.topics.route(T)
    assert (route.permission, route.read_queues) == ("R", 2)
    with pytest.raises(ConfigurationError, match="perm is 1"):
        admin.changes.topic_update_plan(T, perm=1)


def test_plan_that_is_no_longer_true_is_refused(admin: Admin) -> None:
    plan = admin.changes.topic_update_plan(T, perm=4)
    admin.topics.create(T, 3)
    with pytest.raises(ClientStateError, match="no longer"):
        admin.changes.apply(plan)
    assert len(admin.topics.status(T)) == 3


def test_group_settings_are_changed_and_nothing_else(admin: Admin) -> None:
    admin.changes.apply(admin.changes.group_create_plan("made", {"retryMaxTimes": 5}))
    (before,) = admin.groups.settings("made").values()
    assert (before["retryMaxTimes"], before["consumeEnable"]) == (5, True)
    (step,) = admin.changes.group_update_plan("made", {"retryQueueNums": 2}).steps
    assert step.differences() == [("retryQueueNums", 1, 2)]
    admin.changes.apply(admin.changes.group_update_plan("made", {"retryQueueNums": 2}))
    (after,) = admin.groups.settings("made").values()
    assert after == {**before, "retryQueueNums": 2}
    assert "has group made already" in admin.changes.group_create_plan("made").problems[0]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"retryMaxTime": 5}, "did you mean 'retryMaxTimes'"),
        ({"retryMaxTimes": True}, "it takes a whole number"),
        ({"consumeEnable": 1}, "it takes true or false"),
        ({"retryQueueNums": -1}, "it takes 0 or more"),
        ({"groupName": "x"}, "no setting 'groupName'"),
    ],
)
def test_settings_that_cannot_be_are_refused(
    admin: Admin, settings: dict[str, object], why: str
) -> None:
    with pytest.raises(ConfigurationError, match=why):
        admin.changes.group_update_plan(G, settings)


def test_group_without_retries_would_lose_what_fails(admin: Admin) -> None:
    plan = admin.changes.group_update_plan(G, {"retryQueueNums": 0})
    assert "brokers drop what the group fails to consume" in plan.problems[0]


def test_group_is_paused_and_resumed(cluster: EmbeddedCluster, admin: Admin) -> None:
    """The brokers refuse its pulls; its progress stays, and another group is served."""
    assert admin.changes.apply(admin.changes.group_pause_plan(G)).differing == ()
    with Peer(cluster.broker_addr) as peer:
        refused = peer.pull(T, 0, group=G)
        assert (refused.code, "no permission" in (refused.remark or "")) == (16, True)
        assert peer.pull(T, 0, group="other").code == 0
        assert peer.offset(G, T, 0) == 1
        assert not admin.changes.group_pause_plan(G).changes
        admin.changes.apply(admin.changes.group_resume_plan(G))
        assert peer.pull(T, 0, group=G).code == 0


def test_group_is_deleted_with_its_progress(cluster: EmbeddedCluster, admin: Admin) -> None:
    with Peer(cluster.broker_addr) as member:
        member.heartbeat("c1", G, {T: "*"})
        plan = admin.changes.group_delete_plan(G)
        assert plan.losses == ("its progress in topic orders, 2 queues",)
        assert "1 member connected, and would make it again: c1" in plan.problems[0]
        with pytest.raises(ClientStateError, match="c1"):
            admin.changes.apply(plan)
    with Peer(cluster.broker_addr) as peer:
        peer.call(RequestCode.UNREGISTER_CLIENT, ext={"clientID": "c1", "consumerGroup": G})
        plan = admin.changes.group_delete_plan(G)
        assert plan.problems == ()
        assert admin.changes.apply(plan).differing == ()
        assert G not in {row.group for row in admin.groups.all()}
        assert "%RETRY%billing" not in {row.topic for row in admin.topics.all()}
        assert peer.offset(G, T, 0, set_zero_if_not_found=False) is None


def test_group_deletion_that_ended_half_way_is_run_again(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its retries would be consumed by the next group of that name."""

    def broken(*_: object) -> None:
        raise TransportError("cut off")

    admin.topics.create("%RETRY%billing", 1)
    with monkeypatch.context() as patch:
        patch.setattr(ChangingWire, "delete_topic", broken)
        with pytest.raises(TransportError):
            admin.changes.apply(admin.changes.group_delete_plan(G))
    assert admin.changes.apply(admin.changes.group_delete_plan(G)).differing == ()
    assert "%RETRY%billing" not in {row.topic for row in admin.topics.all()}


def test_dead_letters_stay_unless_asked_for(cluster: EmbeddedCluster, admin: Admin) -> None:
    admin.topics.create("%DLQ%billing", 1)
    with Peer(cluster.broker_addr) as peer:
        peer.send("%DLQ%billing", b"given up")
    assert admin.changes.group_delete_plan(G).warnings == (
        "its 1 dead letter stay, in %DLQ%billing",
    )
    plan = admin.changes.group_delete_plan(G, dead_letters=True)
    assert "1 message given up, its dead letters, in %DLQ%billing" in plan.losses
    admin.changes.apply(plan)
    assert "%DLQ%billing" not in {row.topic for row in admin.topics.all()}


def test_what_a_group_was_to_pop_again_goes_with_it(cluster: EmbeddedCluster, admin: Admin) -> None:
    """5.x keeps it in a topic of its own for each topic the group pops."""
    popped = f"%RETRY%{G}_{T}"
    cluster.create_topic(popped, 1)
    plan = admin.changes.group_delete_plan(G)
    assert ("delete topic", popped) in {(step.kind, step.name) for step in plan.steps}
    assert admin.changes.apply(plan).differing == ()
    assert popped not in {row.topic for row in admin.topics.all()}


def test_what_may_be_another_groups_to_retry_stays(cluster: EmbeddedCluster, admin: Admin) -> None:
    popped = f"%RETRY%{G}_{T}"
    cluster.create_topic(popped, 1)
    with Peer(cluster.broker_addr) as peer:
        peer.commit(f"{G}_{T}", T, 0, 1)
        assert popped not in {step.name for step in admin.changes.group_delete_plan(G).steps}
        peer.commit(G, popped, 0, 0)
        plan = admin.changes.group_delete_plan(G)
    assert popped not in {step.name for step in plan.steps}
    assert plan.warnings == (f"{popped} stays: it may be another group's",)


RETRIES = ("%RETRY%a_b", "%RETRY%a+b", "%RETRY%a_b_c", "%RETRY%a_gone", "%RETRY%ab", "%RETRY%a")


@pytest.mark.parametrize(
    ("groups", "own", "doubtful"),
    [
        ({"a": {"b"}}, ["%RETRY%a+b", "%RETRY%a_b"], []),
        ({"a": {"b", "%RETRY%a_gone"}}, ["%RETRY%a+b", "%RETRY%a_b", "%RETRY%a_gone"], []),
        ({"a": {"b"}, "a_b": ()}, ["%RETRY%a+b"], []),
        ({"a": {"%RETRY%a_b"}, "a_b": ()}, ["%RETRY%a+b"], ["%RETRY%a_b"]),
        ({"a": {"%RETRY%a_b_c"}, "a_b": ()}, ["%RETRY%a+b", "%RETRY%a_b_c"], []),
        ({"a": {"%RETRY%a_b_c"}, "a_b": {"%RETRY%a_b_c"}}, ["%RETRY%a+b"], ["%RETRY%a_b_c"]),
    ],
)
def test_only_a_groups_own_topics_of_popping_are_its_own(
    groups: dict[str, set[str]], own: list[str], doubtful: list[str]
) -> None:
    assert popped_again("a", {"b", *RETRIES}, groups) == (own, doubtful)


def test_read_only_admin_plans_and_changes_nothing(cluster: EmbeddedCluster) -> None:
    with Admin(cluster.namesrv_addr, read_only=True) as admin:
        for plan in (
            admin.changes.topic_delete_plan(T),
            admin.changes.topic_create_plan("made"),
            admin.changes.group_pause_plan(G),
            admin.changes.group_delete_plan(G),
        ):
            with pytest.raises(ReadOnlyError, match=plan.operation):
                admin.changes.apply(plan, force=True)
        assert admin.changes.group_pause_plan(G).changes
