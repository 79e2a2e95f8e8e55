"""Topics, groups and offsets as a file, and what taking it over would change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketstream.admin import Admin, ResetTarget
from rocketstream.admin.changes.transfer import (
    Export,
    Here,
    add_differences,
    broker_names,
    load_export,
)
from rocketstream.admin.core.steps import Draft, StepKind, topic_settings
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.server.embedded import EmbeddedCluster
from tests.kits.peer import Peer

A = "broker-a"
Q0 = MessageQueue("orders", A, 0)
TOPIC = topic_settings({"readQueueNums": 2, "writeQueueNums": 2, "perm": 6})
GROUP = {"groupName": "billing", "retryMaxTimes": 16, "consumeEnable": True}
FILE = Export(
    taken_ms=1,
    namesrv="127.0.0.1:9876",
    topics={(A, "orders"): TOPIC},
    groups={(A, "billing"): GROUP},
    offsets={("billing", Q0): 5},
)


def here(**given: Any) -> Here:
    like: dict[str, Any] = {
        "taken_ms": 1,
        "namesrv": "127.0.0.1:9876",
        "topics": {(A, "orders"): TOPIC},
        "groups": {(A, "billing"): GROUP},
        "offsets": {("billing", Q0): 5},
        "ends": {Q0: (0, 10)},
    }
    return Here(**{**like, **given})


def differences(export: Export, there: Here) -> Draft:
    found = Draft("import", "file", {})
    add_differences(export, there, found)
    return found


def steps(export: Export, there: Here) -> list[tuple[StepKind, list[tuple[str, Any, Any]]]]:
    return [(step.kind, step.differences()) for step in differences(export, there).steps]


def test_document_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text(json.dumps(FILE.to_json()))
    assert load_export(tmp_path / "file.json") == FILE


def test_cluster_that_is_so_already_is_left_alone() -> None:
    found = differences(FILE, here())
    assert (found.steps, found.warnings, found.problems) == ([], [], [])


def test_only_what_differs_is_changed() -> None:
    there = here(
        topics={(A, "orders"): {**TOPIC, "perm": 4}},
        groups={(A, "billing"): {**GROUP, "retryMaxTimes": 3}},
        offsets={("billing", Q0): 7},
    )
    assert steps(FILE, there) == [
        (StepKind.PUT_TOPIC, [("perm", 4, 6)]),
        (StepKind.PUT_GROUP, [("retryMaxTimes", 3, 16)]),
        (StepKind.STORE_OFFSET, [("offset", 7, 5)]),
    ]
    assert differences(FILE, there).warnings == ["group billing consumes 2 messages again"]


def test_settings_a_broker_does_not_have_are_left_out_and_said() -> None:
    """A file of 5.x into 4.x: the other settings are taken over."""
    newer = {**GROUP, "retryMaxTimes": 9, "consumeTimeoutMinute": 15}
    topic = {**TOPIC, "attributes": {"message.type": "FIFO"}, "order": True}
    file = Export(1, "", {(A, "orders"): topic}, {(A, "billing"): newer})
    raw_4x = {k: v for k, v in TOPIC.items() if k != "attributes"}
    found = differences(file, here(topics={(A, "orders"): raw_4x}))
    assert [step.differences() for step in found.steps] == [[("retryMaxTimes", 16, 9)]]
    assert found.warnings == [
        "broker-a has no attributes of topics: they are left out there",
        "broker-a does not have the settings of groups consumeTimeoutMinute: left out there",
    ]


def test_settings_of_a_newer_broker_survive_an_older_file() -> None:
    newer = {**GROUP, "retryMaxTimes": 3, "consumeTimeoutMinute": 15}
    (step,) = differences(FILE, here(groups={(A, "billing"): newer})).steps
    assert step.after == {**newer, "retryMaxTimes": 16}


def test_offsets_of_messages_that_are_not_here_are_left_out() -> None:
    found = differences(FILE, here(offsets={}, ends={Q0: (0, 4)}))
    assert found.steps == []
    assert found.problems == [
        "1 offset lie beyond the end of their queues and are left out: the messages they count are "
        "not in this cluster"
    ]


def test_moving_groups_says_what_is_skipped_and_who_would_overwrite_it() -> None:
    found = differences(FILE, here(offsets={("billing", Q0): 2}, members=frozenset({"billing"})))
    assert found.problems[0] == "group billing never consumes 3 messages"
    assert "connected members" in found.problems[1]


def test_brokers_are_matched_by_name_by_hand_or_as_the_only_ones() -> None:
    assert broker_names({"a", "b"}, {"a", "b"}, {}) == {"a": "a", "b": "b"}
    assert broker_names({"a"}, {"x"}, {}) == {"a": "x"}
    assert broker_names({"a", "b"}, {"x", "b"}, {"a": "x"}) == {"a": "x", "b": "b"}
    with pytest.raises(ConfigurationError, match="no broker 'a' of the file, it has x, y"):
        broker_names({"a"}, {"x", "y"}, {})
    with pytest.raises(ConfigurationError, match="two brokers of the file would become x"):
        broker_names({"a", "x"}, {"x", "y"}, {"a": "x"})
    with pytest.raises(ConfigurationError, match="q=x: the file has a"):
        broker_names({"a"}, {"x"}, {"q": "x"})


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([], "not an export"),
        ({"format": "rocketstream-undo"}, "not an export"),
        ({"format": "rocketstream-export", "version": 2}, "of version 2; this release reads"),
        ({"format": "rocketstream-export", "version": 1, "topics": [{}]}, "damaged: KeyError"),
    ],
)
def test_what_is_no_document_is_refused(value: Any, why: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(json.dumps(value), "utf-8")
    with pytest.raises(ConfigurationError, match=why):
        load_export(path)


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as cluster, Peer(cluster.broker_addr) as peer:
        cluster.create_topic("orders", 2)
        for number in range(4):
            peer.send("orders", b"%d" % number, queue_id=number % 2)
        peer.commit("billing", "orders", 0, 2)
        peer.commit("billing", "orders", 1, 1)
        yield cluster


def test_what_was_exported_is_put_back(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    with Admin(cluster.namesrv_addr) as admin:
        admin.changes.apply(admin.changes.group_create_plan("audit", {"retryMaxTimes": 5}))
        before = admin.changes.export()
        assert {topic for _, topic in before.topics} == {"orders"}
        file.write_text(json.dumps(before.to_json()))
        assert not admin.changes.import_plan(file).changes
        admin.changes.apply(admin.changes.topic_update_plan("orders", perm=4))
        admin.changes.apply(admin.changes.group_delete_plan("audit"))
        admin.changes.reset_apply(
            admin.changes.reset_plan("billing", "orders", ResetTarget.earliest()),
            undo_directory=tmp_path,
        )
        plan = admin.changes.import_plan(file)
        assert plan.problems == ("group billing never consumes 3 messages",)
        with pytest.raises(ClientStateError, match="never consumes 3"):
            admin.changes.apply(plan)
        assert admin.changes.apply(plan, force=True).differing == ()
        after = admin.changes.export()
        assert (after.topics, after.groups, after.offsets) == (
            before.topics, before.groups, before.offsets,
        )  # fmt: skip
        only = admin.changes.export(["orders"], ["billing"])
        assert {group for group, _ in only.offsets} == {"billing"}
        with pytest.raises(ConfigurationError, match="no topic 'nowhere' to export"):
            admin.changes.export(["nowhere"])


def test_file_that_changed_since_it_was_shown_is_refused(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    file = tmp_path / "cluster.json"
    with Admin(cluster.namesrv_addr) as admin:
        value = admin.changes.export().to_json()
        value["topics"][0]["settings"]["perm"] = 4
        file.write_text(json.dumps(value))
        plan = admin.changes.import_plan(file)
        assert plan.steps[0].kind is StepKind.PUT_TOPIC
        value["topics"][0]["settings"]["perm"] = 2
        file.write_text(json.dumps(value))
        with pytest.raises(ClientStateError, match="no longer"):
            admin.changes.apply(plan)
