"""``topic`` and ``group`` commands that change something: shown, asked, refused, written down."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from tests.plugins.commands import Quick


@pytest.fixture
def topic(quick: Quick) -> str:
    """A topic with three messages in two queues, one group has consumed."""
    name = f"changed-{uuid.uuid4().hex[:8]}"
    quick("topic", "create", name, "-q", "2").worked()
    quick("send", name, "x", "--count", "3").worked()
    quick("consume", name, "-g", f"g-{name}", "--from", "earliest", "--max", "3").worked()
    return name


def test_topic_is_deleted_when_it_was_said_what_is_lost(quick: Quick, topic: str) -> None:
    command = ("topic", "delete", topic)
    shown = quick(*command, "--dry-run").worked().out
    assert "lost: 3 messages kept on broker-a" in shown
    assert f"lost: the progress of group g-{topic} in " in shown
    assert ", all consumed" in shown
    assert "dry run: nothing was changed" in shown
    refused = quick(*command)
    assert (refused.code, "--yes" in refused.err) == (2, True)
    assert topic in quick("topic", "list").worked().out
    done = quick(*command, "--yes", "--json").worked().json
    assert [(step["step"], step["done"]) for step in done["steps"]] == [
        ("delete topic", True), ("delete route", True),
    ]  # fmt: skip
    assert "no broker has topic" in quick(*command, "--yes").failed()


def test_topic_is_changed(quick: Quick, topic: str) -> None:
    assert "topic update" in quick("topic", "create", topic, "-q", "4").failed()
    assert "there is already" in quick("topic", "create", topic, "-q", "2").worked().out
    update = ("topic", "update", topic)
    assert "read back" not in quick(*update, "--queues", "4", "--dry-run").worked().out
    assert "1 of 1 step read back" in quick(*update, "--queues", "4", "--yes").worked().out
    plan = quick(*update, "--perm", "r", "--dry-run", "--json").worked().json
    assert plan["steps"][0]["after"]["perm"] == 4
    assert "is so already" in quick(*update, "--perm", "rw", "--yes").worked().out
    assert "not one of 'rw', 'r', 'w'" in quick(*update, "--perm", "x").failed(2)
    assert "NAME=VALUE" in quick(*update, "--attribute", "x").failed(2)


def test_group_is_made_changed_paused_and_deleted(quick: Quick, topic: str, tmp_path: Path) -> None:
    group, audit = f"made-{topic}", tmp_path / "audit.jsonl"
    write = ("--audit-file", str(audit))
    quick("group", "create", group, "-s", "retryMaxTimes=5", *write).worked()
    quick("group", "update", group, "-s", "retryQueueNums=2", "--yes", *write).worked()
    settings = quick("group", "settings", group, "--json").worked().json["broker-a"]
    assert (settings["retryMaxTimes"], settings["retryQueueNums"]) == (5, 2)
    assert "retryMaxTimes" in quick("group", "settings", group).worked().out
    quick("group", "pause", group, "--yes", *write).worked()
    assert "is so already" in quick("group", "pause", group, "--yes").worked().out
    quick("group", "resume", group, "--yes", *write).worked()
    quick("group", "delete", group, "--yes", *write).worked()
    assert f"{group!r} is not known" in quick("group", "settings", group).failed()
    ended = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [line["operation"] for line in ended if line["phase"] == "done"] == [
        "group.create", "group.update", "group.pause", "group.resume", "group.delete",
    ]  # fmt: skip


def test_bad_settings_are_refused(quick: Quick, topic: str) -> None:
    group = f"g-{topic}"
    assert "NAME=VALUE" in quick("group", "update", group, "-s", "x").failed(2)
    assert "at least one --set" in quick("group", "update", group).failed(2)
    line = quick("group", "update", group, "-s", "retryMaxTime=5", "--yes").failed()
    assert "did you mean 'retryMaxTimes'" in line


def test_cluster_is_exported_and_imported(quick: Quick, topic: str, tmp_path: Path) -> None:
    file, group = str(tmp_path / "cluster.json"), f"g-{topic}"
    told = quick("export", file, "-t", topic, "-g", group).worked().out
    assert ": 1 topic, 1 group, 2 offsets" in told
    assert quick("export", "-", "-t", topic).worked().json["format"] == "rocketstream-export"
    assert "is so already" in quick("import", file).worked().out
    quick("topic", "update", topic, "--perm", "r", "--yes").worked()
    shown = quick("import", file, "--dry-run").worked().out
    assert "perm" in shown
    assert quick("import", file).code == 2
    assert "1 of 1 step read back" in quick("import", file, "--yes").worked().out
    assert "is so already" in quick("import", file).worked().out
    assert "accepted is FILE=CLUSTER" in quick("import", file, "--broker", "x").failed(2)
    assert "is not an export" in quick("import", __file__, "--yes").failed()
