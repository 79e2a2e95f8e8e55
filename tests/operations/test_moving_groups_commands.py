"""``group reset|clone|members|running-info`` and ``message`` commands: safe, shown, parseable."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rocketstream.admin import Admin
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    ConsumeStatus,
    ProcessQueueInfo,
)
from rocketstream.protocol.codes import RequestCode
from tests.kits.peer import Peer
from tests.plugins.commands import Quick


@dataclass(frozen=True)
class Names:
    topic: str
    group: str


@pytest.fixture
def names(quick: Quick) -> Names:
    """A topic with six messages in one queue, of which the group has consumed four."""
    topic = f"moved-{uuid.uuid4().hex[:8]}"
    group = f"g-{topic}"
    quick("topic", "create", topic, "-q", "1").worked()
    quick("send", topic, "x", "--count", "6", "--keys", "k").worked()
    quick("consume", topic, "-g", group, "--from", "earliest", "--max", "4").worked()
    return Names(topic, group)


@pytest.fixture
def member(namesrv: str, names: Names) -> Iterator[Peer]:
    """A connected member of the group that the test plays."""
    with Admin(namesrv) as admin:
        (broker,) = admin.brokers.all()
    with Peer(broker.address) as peer:
        peer.heartbeat("client-1", names.group, {names.topic: "*"})
        yield peer


def committed(quick: Quick, names: Names, group: str | None = None) -> int | None:
    found = quick("group", "lag", group or names.group, "-t", names.topic, "--json").worked().json
    offset: int | None = found[0]["consumerOffset"]
    return offset


def test_reset_shows_the_plan_before_it_is_done(quick: Quick, names: Names) -> None:
    """Covers C-534, C-535: --dry-run shows it; without a terminal only --yes goes on."""
    command = ("group", "reset", names.group, names.topic, "--to-earliest")
    text = quick(*command, "--dry-run").worked().out
    assert "in 1 queue: 4 messages again, 0 messages skipped" in text
    assert "dry run: nothing was changed" in text
    refused = quick(*command)
    assert (refused.code, committed(quick, names)) == (2, 4)
    assert "nothing was changed: there is no terminal to ask on; give --yes" in refused.err
    done = quick(*command, "--yes").worked()
    assert "4 messages again" in done.err
    assert "1 of 1 queue read back there" in done.out
    assert committed(quick, names) == 0
    assert "is there already: nothing was changed" in quick(*command).worked().out


def test_reset_is_taken_back_by_its_undo_file(quick: Quick, names: Names) -> None:
    command = ("group", "reset", names.group, names.topic, "--to-earliest", "--yes", "--json")
    undo = quick(*command).worked().json["undo"]
    assert committed(quick, names) == 0
    shown = quick("group", "undo", undo, "--dry-run").worked().out
    assert "problem" not in shown
    assert "had passed before the reset" in " ".join(shown.split())
    quick("group", "undo", undo, "--yes").worked()
    assert committed(quick, names) == 4
    assert "is not an undo file" in quick("group", "undo", __file__, "--yes").failed()


def test_the_undo_file_of_another_cluster_needs_force(quick: Quick, names: Names) -> None:
    """Clusters have groups of one name."""
    command = ("group", "reset", names.group, names.topic, "--to-earliest", "--yes", "--json")
    path = Path(quick(*command).worked().json["undo"])
    made = json.loads(path.read_text())
    path.write_text(json.dumps(made | {"cluster": "elsewhere"}))
    line = quick("group", "undo", str(path), "--yes").failed()
    assert "the file is of cluster elsewhere, this is" in line
    assert committed(quick, names) == 0
    quick("group", "undo", str(path), "--yes", "--force").worked()
    assert committed(quick, names) == 4


@pytest.mark.parametrize("text", ["--5", "5-", "²"])
def test_a_setting_that_is_no_number_is_refused(quick: Quick, names: Names, text: str) -> None:
    words = ("group", "update", names.group, "-s", f"retryMaxTimes={text}", "--yes")
    assert "mistake of rocketstream" not in quick(*words).failed(quick(*words).code)


def test_changes_are_written_down(quick: Quick, names: Names, tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    command = ("group", "reset", names.group, names.topic, "--shift", "-1", "--yes")
    quick(*command, "--audit-file", str(audit)).worked()
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(line["phase"], line["face"]) for line in lines] == [
        ("begin", "command line"), ("done", "command line"),
    ]  # fmt: skip
    refused = quick(*command, "--audit-file", str(audit / "below"))
    assert "no change is made that cannot be recorded" in refused.err
    assert refused.code == 1
    assert committed(quick, names) == 3


def test_reset_past_unconsumed_messages_needs_force(quick: Quick, names: Names) -> None:
    """Covers C-536: only --to-latest and --shift say plainly that messages are skipped."""
    command = ("group", "reset", names.group, names.topic)
    line = quick(*command, "--to-offset", "5", "--yes").failed()
    assert "1 message in 1 queue would never be consumed" in line
    assert committed(quick, names) == 4
    result = quick(*command, "--to-latest", "--yes", "--json").worked().json
    (row,) = result["queues"]
    assert (row["fromOffset"], row["toOffset"], row["skipped"], row["by"]) == (4, 6, 2, "broker")
    assert row["moved"] is True
    assert committed(quick, names) == 6


@pytest.mark.parametrize("moment", ["1000000000000", "2001-09-09T01:46:40Z", "20010909014640"])
def test_reset_to_a_time_reads_every_form(quick: Quick, names: Names, moment: str) -> None:
    """Covers C-539: a number is a time too, not silently nothing."""
    command = ("group", "reset", names.group, names.topic, "--to-time", moment, "--yes")
    quick(*command).worked()
    assert committed(quick, names) == 0


def test_reset_wants_one_target(quick: Quick, names: Names) -> None:
    command = ("group", "reset", names.group, names.topic)
    assert "one of --to-time" in quick(*command).failed(2)
    assert "one of --to-time" in quick(*command, "--to-earliest", "--to-latest").failed(2)
    assert "it takes a time" in quick(*command, "--to-time", "latest").failed(2)
    assert "--from" not in quick(*command, "--to-time", "yesterday").failed()
    assert "it takes a queue id" in quick(*command, "--to-earliest", "-q", "x:0").failed(2)


def test_typos_are_refused_with_what_is_like_them(quick: Quick, names: Names) -> None:
    """A typo made a group, and a clone of that rewound a real one."""
    target = ("--to-earliest", "--yes")
    line = quick("group", "reset", f"{names.group}x", names.topic, *target).failed()
    assert f"did you mean {names.group!r}" in line
    line = quick("group", "reset", names.group, f"{names.topic}x", *target).failed()
    assert f"did you mean {names.topic!r}" in line
    assert "is not known" in quick("group", "clone", "nobody", names.group, "--yes").failed()
    assert committed(quick, names) == 4


def test_connected_members_move_themselves(quick: Quick, names: Names, member: Peer) -> None:
    """Covers C-531."""
    command = ("group", "reset", names.group, names.topic, "--to-earliest", "--yes", "--no-wait")
    assert "1 member connected: told to move themselves" in quick(*command).worked().err
    member.next_asked(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)


def test_clone_gives_another_group_the_offsets(quick: Quick, names: Names) -> None:
    """Covers C-537."""
    other = f"{names.group}-2"
    command = ("group", "clone", names.group, other, "--topic", names.topic)
    assert "is not known to any broker" in quick(*command, "--yes").failed()
    made = (*command, "--new-group")
    assert "nothing was changed" in quick(*made, "--dry-run").worked().out
    quick(*made, "--yes", "--force").worked()
    assert committed(quick, names, other) == 4
    quick("group", "reset", other, names.topic, "--to-earliest", "--yes").worked()
    assert "4 messages in 1 queue would never" in quick(*command, "--yes").failed()
    quick(*command, "--yes", "--force").worked()
    assert committed(quick, names, other) == 4


def test_members_are_shown_with_their_subscriptions(
    quick: Quick, names: Names, member: Peer
) -> None:
    """Covers C-530."""
    text = quick("group", "members", names.group).worked().out
    assert "client-1" in text
    assert f"subscribes {names.topic} TAG *" in text
    assert "1 member, CLUSTERING, CONSUME_PASSIVELY" in text
    shown = quick("group", "members", names.group, "--json").worked().json
    assert shown["members"][0]["clientId"] == "client-1"
    assert shown["subscriptions"][0]["topic"] == names.topic
    assert "no member of consumer group" in quick("group", "members", "nobody").failed()


def test_running_info_is_shown(quick: Quick, names: Names, member: Peer, namesrv: str) -> None:
    """Covers C-538, C-540."""
    with Admin(namesrv) as admin:
        (queue,) = admin.topics.status(names.topic)
    info = ConsumerRunningInfo(
        properties={"PROP_CONSUMEORDERLY": "false"},
        mq_table={
            MessageQueue(names.topic, queue.broker_name, 0): ProcessQueueInfo(commit_offset=4)
        },
        status_table={names.topic: ConsumeStatus(pull_rt=2.5)},
        jstack="Thread main",
    )

    def play(times: int) -> threading.Thread:
        def answer() -> None:
            for _ in range(times):
                asked = member.next_asked(RequestCode.GET_CONSUMER_RUNNING_INFO)
                member.reply(asked, body=info.encode())

        thread = threading.Thread(target=answer)
        thread.start()
        return thread

    thread = play(2)
    text = quick("group", "running-info", names.group, "--stack").worked().out
    (row,) = quick("group", "running-info", names.group, "client-1", "--json").worked().json
    thread.join(10)
    assert "client-1 of group" in text
    assert "in 2.5 ms each" in text
    assert "1 setting: --settings shows them" in text
    assert "Thread main" in text
    assert row["queues"][0]["commitOffset"] == 4


def test_messages_are_found_tracked_and_consumed(quick: Quick, names: Names, member: Peer) -> None:
    """Covers C-538."""
    found = quick("message", "query", names.topic, "k", "--json").worked().json
    assert len(found) == 6
    assert "6 messages" in quick("message", "query", names.topic, "k").worked().out
    first, last = found[0]["msgId"], found[-1]["msgId"]
    shown = quick("message", "view", names.topic, first, "--json").worked().json
    assert (shown["msgId"], shown["body"]) == (first, "x")
    by_offset = quick("message", "view", names.topic, shown["offsetMsgId"], "--json").worked().json
    assert by_offset["msgId"] == first
    words = quick("message", "view", names.topic, first).worked().out.split()
    assert words[words.index("msgId") + 1] == first
    track = quick("message", "track", names.topic, first, "--json").worked().json
    assert [(row["group"], row["status"]) for row in track] == [(names.group, "CONSUMED")]
    assert "NOT_CONSUME_YET" in quick("message", "track", names.topic, last).worked().out
    assert "no message" in quick("message", "view", names.topic, "U9").failed()

    def answer() -> None:
        asked = member.next_asked(RequestCode.CONSUME_MESSAGE_DIRECTLY)
        result = ConsumeMessageDirectlyResult(consume_result="CR_LATER", remark="busy")
        member.reply(asked, body=result.encode())

    thread = threading.Thread(target=answer)
    thread.start()
    text = (
        quick("message", "consume", names.topic, last, "-g", names.group, "-c", "client-1", "--yes")
        .worked()
        .out
    )
    refused = quick("message", "consume", names.topic, last, "-g", names.group, "-c", "client-2")
    assert "connected: client-1" in refused.failed()
    thread.join(10)
    assert text == "client-1 CR_LATER after 0 s: busy\n"
