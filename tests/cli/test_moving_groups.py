"""``group reset|clone|members|running-info`` and ``message`` commands: safe, shown, parseable."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

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
from tests.cli.conftest import Quick
from tests.server.peer import Peer


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
        (broker,) = admin.cluster_info()
    with Peer(broker.address) as peer:
        peer.heartbeat("client-1", names.group, {names.topic: "*"})
        yield peer


def committed(quick: Quick, names: Names, group: str | None = None) -> int | None:
    found = quick("group", "lag", group or names.group, "-t", names.topic, "--json").worked().json
    offset: int | None = found[0]["consumerOffset"]
    return offset


def test_reset_shows_the_plan_before_it_is_done(quick: Quick, names: Names) -> None:
    """Covers C-534, C-535."""
    command = ("group", "reset", names.group, names.topic, "--to-earliest")
    text = quick(*command, "--dry-run").worked().out
    assert "would consume 4 messages again, 0 messages skipped; nothing was changed" in text
    assert committed(quick, names) == 4
    assert "4 messages again, 0 messages skipped" in quick(*command).worked().out
    assert committed(quick, names) == 0


def test_reset_past_unconsumed_messages_needs_force(quick: Quick, names: Names) -> None:
    """Covers C-536: to the end only when told so."""
    command = ("group", "reset", names.group, names.topic, "--to-latest")
    line = quick(*command).failed()
    assert "would never consume 2 messages in 1 queue" in line
    assert "--force" in line
    assert committed(quick, names) == 4
    (row,) = quick(*command, "--force", "--json").worked().json
    assert (row["consumerOffset"], row["targetOffset"], row["skipped"], row["by"]) == (
        4, 6, 2, "broker",
    )  # fmt: skip
    assert committed(quick, names) == 6


@pytest.mark.parametrize("moment", ["1000000000000", "2001-09-09T01:46:40Z", "20010909014640"])
def test_reset_to_a_time_reads_every_form(quick: Quick, names: Names, moment: str) -> None:
    """Covers C-539: a number is a time too, not silently nothing."""
    command = ("group", "reset", names.group, names.topic, "--to-time", moment)
    quick(*command).worked()
    assert committed(quick, names) == 0


def test_reset_wants_one_target(quick: Quick, names: Names) -> None:
    command = ("group", "reset", names.group, names.topic)
    assert "one of --to-time" in quick(*command).failed(2)
    assert "one of --to-time" in quick(*command, "--to-earliest", "--to-latest").failed(2)
    assert "it takes a time" in quick(*command, "--to-time", "latest").failed(2)
    assert "--from" not in quick(*command, "--to-time", "yesterday").failed()


def test_connected_members_move_themselves(quick: Quick, names: Names, member: Peer) -> None:
    """Covers C-531."""
    text = quick("group", "reset", names.group, names.topic, "--to-earliest").worked().out
    assert "its members move within some ten seconds" in text
    member.next_asked(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
    assert committed(quick, names) == 4


def test_clone_gives_another_group_the_offsets(quick: Quick, names: Names) -> None:
    """Covers C-537."""
    other = f"{names.group}-2"
    command = ("group", "clone", names.group, other, "--topic", names.topic)
    assert "nothing was changed" in quick(*command, "--dry-run").worked().out
    assert "nobody" in quick("group", "clone", "nobody", other).failed()
    quick(*command).worked()
    assert committed(quick, names, other) == 4
    quick("group", "reset", other, names.topic, "--to-earliest").worked()
    assert "past 4 messages" in quick(*command).failed()
    quick(*command, "--force").worked()
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
    assert "nobody is connected" in quick("group", "members", "nobody").failed()


def test_running_info_is_shown(quick: Quick, names: Names, member: Peer, namesrv: str) -> None:
    """Covers C-538, C-540."""
    with Admin(namesrv) as admin:
        (queue,) = admin.topic_status(names.topic)
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
    assert "pullRT 2.5" in text
    assert "PROP_CONSUMEORDERLY = false" in text
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
    assert f"msgId: {first}" in quick("message", "view", names.topic, first).worked().out
    track = quick("message", "track", names.topic, first, "--json").worked().json
    assert track == [{"group": names.group, "status": "CONSUMED", "description": None}]
    assert "NOT_CONSUME_YET" in quick("message", "track", names.topic, last).worked().out
    assert "no message" in quick("message", "view", names.topic, "U9").failed()

    def answer() -> None:
        asked = member.next_asked(RequestCode.CONSUME_MESSAGE_DIRECTLY)
        result = ConsumeMessageDirectlyResult(consume_result="CR_LATER", remark="busy")
        member.reply(asked, body=result.encode())

    thread = threading.Thread(target=answer)
    thread.start()
    text = (
        quick("message", "consume", names.topic, last, "-g", names.group, "-c", "client-1")
        .worked()
        .out
    )
    thread.join(10)
    assert text == "client-1 CR_LATER after 0: busy\n"
