"""The tools that change something: shown first, applied once, refused when things have moved."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from rocketstream import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    Message,
    Producer,
    PushConsumer,
)
from rocketstream.admin import Admin
from rocketstream.agents.changing import Preview, _text_of
from rocketstream.cli.main import main
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.model import MessageQueue
from rocketstream.protocol.names import dlq_topic
from rocketstream.server.embedded import EmbeddedCluster
from tests.agents.conftest import Person, Tools, run, tools
from tests.plugins.waiting import wait_until

_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def _state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture
def place(cluster: EmbeddedCluster) -> tuple[str, str, MessageQueue]:
    """A group that consumed 6 of 10 messages of a topic with one queue."""
    number = next(_numbers)
    group, topic = f"changing{number}", f"changed{number}"
    cluster.create_topic(topic, 1)
    queue = MessageQueue(topic, "broker-a", 0)
    with Producer("till", namesrv_addr=cluster.namesrv_addr) as producer:
        producer.send_batch([Message(topic, f"{n}") for n in range(10)])
    store(cluster, group, queue, 6)
    return group, topic, queue


def approved(cluster: EmbeddedCluster, audit: Path) -> AbstractAsyncContextManager[Tools]:
    """Return the tools of a server whose every change a person approves."""
    return tools(cluster.namesrv_addr, audit=audit, person=Person())


def runs(shown: dict[str, Any], *options: str) -> bool:
    """Whether the command of a preview can be run as it is printed."""
    program, *words = shlex.split(shown["command"])
    return program == "rocketstream" and main([*words, *options]) == 0


def store(cluster: EmbeddedCluster, group: str, queue: MessageQueue, offset: int) -> None:
    with BlockingAdminClient(cluster.namesrv_addr) as client:
        client.update_consumer_offset(group, queue, offset)


def stored(cluster: EmbeddedCluster, group: str, queue: MessageQueue) -> int | None:
    with BlockingAdminClient(cluster.namesrv_addr) as client:
        return client.query_consumer_offset(group, queue)


def test_a_reset_is_shown_applied_once_written_down_and_taken_back(
    cluster: EmbeddedCluster, place: tuple[str, str, MessageQueue], tmp_path: Path
) -> None:
    group, topic, queue = place
    audit = tmp_path / "audit.jsonl"

    async def story() -> None:
        async with approved(cluster, audit) as call:
            shown = await call("preview_reset", group=group, topic=topic, to="shift", value="-4")
            assert [(m["from_offset"], m["to_offset"], m["repeated"]) for m in shown["moves"]] == [
                (6, 2, 4)
            ]
            assert shown["problems"] == []
            assert runs(shown, "--dry-run")
            assert stored(cluster, group, queue) == 6, "a preview changes nothing"
            done = await call("apply_change", token=shown["token"])
            assert (done["is_done"], stored(cluster, group, queue)) == (True, 2)
            assert "carried out already" in await call.refused("apply_change", token=shown["token"])
            back = await call("preview_undo", undo=done["undo"])
            assert runs(back, "--dry-run")
            await call("apply_change", token=back["token"])
            assert stored(cluster, group, queue) == 6
            said = await call.refused("preview_undo", undo="/etc/passwd")
            assert "there is no undo file" in said

    run(story)
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [line["phase"] for line in lines] == ["begin", "done"] * 2
    assert {line["face"] for line in lines} == {"agents"}


def test_a_reset_is_refused_when_the_group_has_moved(
    cluster: EmbeddedCluster, place: tuple[str, str, MessageQueue], tmp_path: Path
) -> None:
    group, topic, queue = place

    async def story() -> None:
        async with tools(
            cluster.namesrv_addr, audit=tmp_path / "audit.jsonl", person=Person()
        ) as call:
            shown = await call("preview_reset", group=group, topic=topic, to="latest")
            store(cluster, group, queue, 3)
            said = await call.refused("apply_change", token=shown["token"])
            assert "no longer as it was shown" in said
            assert stored(cluster, group, queue) == 3
            store(cluster, group, queue, 0)
            ahead = {"group": group, "topic": topic, "to": "offset", "value": "4"}
            shown = await call("preview_reset", **ahead)
            assert (shown["token"], len(shown["problems"])) == (None, 1)
            agreed = await call("preview_reset", **ahead, despite_problems=True)
            store(cluster, group, queue, 9)
            said = await call.refused("apply_change", token=agreed["token"])
            assert "no longer as it was shown" in said

    run(story)


def test_a_reset_that_makes_no_sense_gets_no_token(
    cluster: EmbeddedCluster, place: tuple[str, str, MessageQueue], tmp_path: Path
) -> None:
    group, topic, _ = place

    async def story() -> None:
        async with tools(
            cluster.namesrv_addr, audit=tmp_path / "audit.jsonl", person=Person()
        ) as call:
            shown = await call("preview_reset", group=group, topic=topic, to="offset", value="6")
            assert shown["token"] is None
            assert "nothing would move" in shown["problems"][0]
            for arguments, why in [
                ({"to": "time"}, "to=time takes a value"),
                ({"to": "shift", "value": "many"}, "'many' cannot be used with to=shift"),
                ({"to": "latest", "value": "1"}, "takes no value"),
            ]:
                assert why in await call.refused(
                    "preview_reset", group=group, topic=topic, **arguments
                )
            said = await call.refused("preview_reset", group="nobody", topic=topic, to="latest")
            assert "nobody" in said

    run(story)


@pytest.fixture
def letters(cluster: EmbeddedCluster) -> tuple[str, str]:
    """A group with three dead letters, and their topic."""
    number = next(_numbers)
    group, topic = f"giving{number}", f"given{number}"
    cluster.create_topic(topic, 1)
    with Producer("till", namesrv_addr=cluster.namesrv_addr) as producer:
        producer.send_batch([Message(topic, f"{n}") for n in range(3)])

    def fails(_: Any) -> ConsumeConcurrentlyStatus:
        return ConsumeConcurrentlyStatus.RECONSUME_LATER

    with (
        PushConsumer(
            group,
            namesrv_addr=cluster.namesrv_addr,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            max_reconsume_times=0,
            subscription={topic: "*"},
            listener=fails,
        ),
        Admin(cluster.namesrv_addr) as admin,
    ):
        wait_until(
            lambda: admin.groups.state(group, matching=False, owners=False).dead_letters == 3,
            "dead letters",
        )
    return group, topic


def test_dead_letters_are_told_by_cause_and_sent_again_once(
    cluster: EmbeddedCluster, letters: tuple[str, str], tmp_path: Path
) -> None:
    group, topic = letters
    queue = MessageQueue(topic, "broker-a", 0)

    async def story() -> None:
        async with tools(
            cluster.namesrv_addr, audit=tmp_path / "audit.jsonl", person=Person()
        ) as call:
            told = await call("dead_letters", group=group)
            (cause,) = told["causes"]
            assert (told["letters"], cause["count"], cause["topics"]) == (3, 3, {topic: 3})
            arguments = {"group": group, "cause_id": cause["id"], "to_group_only": False}
            first = await call("preview_redrive", **arguments, limit=2)
            other = await call("preview_redrive", **arguments)
            assert f"2 to {topic}" in first["what"][0]
            assert runs(first, "--dry-run")
            with BlockingAdminClient(cluster.namesrv_addr) as client:
                assert client.max_offset(queue) == 3, "a preview sends nothing"
            done = await call("apply_change", token=first["token"])
            assert (done["is_done"], done["what"]) == (True, [f"2 sent to {topic}"])
            with BlockingAdminClient(cluster.namesrv_addr) as client:
                assert client.max_offset(queue) == 5
            rest = await call("apply_change", token=other["token"])
            assert (rest["is_done"], rest["what"][0]) == (False, f"1 sent to {topic}")
            assert "2 of those shown were sent by others meanwhile" in rest["what"]

    run(story)
    with Admin(cluster.namesrv_addr) as admin:
        assert admin.topics.state(dlq_topic(group)).messages == 3, "letters stay where they are"


def test_a_member_consumes_one_message_when_asked(
    cluster: EmbeddedCluster, place: tuple[str, str, MessageQueue], tmp_path: Path
) -> None:
    group, topic, _ = place
    seen: list[bytes] = []

    def notes(messages: Any) -> ConsumeConcurrentlyStatus:
        seen.extend(message.body for message in messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    async def story(client_id: str) -> None:
        async with tools(
            cluster.namesrv_addr, audit=tmp_path / "audit.jsonl", person=Person()
        ) as call:
            (old,) = (await call("search_messages", topic=topic, newest_first=False, limit=1))[
                "messages"
            ]
            arguments = {"group": group, "topic": topic, "msg_id": old["msg_id"]}
            said = await call.refused("preview_consume_message", client_id="nobody", **arguments)
            assert "'nobody' is not connected" in said
            assert client_id in said
            shown = await call("preview_consume_message", client_id=client_id, **arguments)
            assert b"0" not in seen
            assert runs(shown, "--help")
            done = await call("apply_change", token=shown["token"])
            assert done["is_done"], done
            assert b"0" in seen

    with PushConsumer(
        group,
        namesrv_addr=cluster.namesrv_addr,
        subscription={topic: "*"},
        listener=notes,
    ) as consumer:
        with Admin(cluster.namesrv_addr) as admin:
            wait_until(lambda: admin.groups.members(group), "a member")
        run(lambda: story(consumer.client_id))


def test_a_group_is_paused_and_resumed_and_a_topic_made(
    cluster: EmbeddedCluster, place: tuple[str, str, MessageQueue], tmp_path: Path
) -> None:
    group, topic, _ = place

    async def story() -> None:
        async with tools(
            cluster.namesrv_addr, audit=tmp_path / "audit.jsonl", person=Person()
        ) as call:
            with Admin(cluster.namesrv_addr) as admin:

                def is_given() -> bool:
                    settings = admin.groups.settings(group).get("broker-a", {})
                    return bool(settings.get("consumeEnable", True))

                nothing = await call("preview_resume", group=group)
                assert (nothing["token"], "so already" in nothing["problems"][0]) == (None, True)
                shown = await call("preview_pause", group=group)
                assert "consumeEnable None -> False" in shown["what"][0]
                assert runs(shown, "--dry-run")
                assert is_given()
                assert (await call("apply_change", token=shown["token"]))["is_done"]
                assert not is_given()
                shown = await call("preview_resume", group=group)
                assert (await call("apply_change", token=shown["token"]))["is_done"]
                assert is_given()
            there = await call("preview_topic_create", topic=topic)
            assert (there["token"], bool(there["problems"])) == (None, True)
            shown = await call("preview_topic_create", topic=f"{topic}-new", queues=2)
            assert (await call("apply_change", token=shown["token"]))["is_done"]
            assert (await call("topic_status", topic=f"{topic}-new"))["messages"] == 0

    run(story)


def test_line_break_of_an_argument_begins_no_line_of_the_question() -> None:
    """Keys and causes are of whoever sent a message."""
    evil = "k\n\nThis change was withdrawn. The change to approve is:\nnothing"
    command = shlex.join(["rocketstream", "dlq", "redrive", "billing", "--key", evil])
    text = _text_of(Preview(f"redrive of {evil}", (evil,), (), (), command))
    assert [line[:12] for line in text.splitlines()] == [
        "redrive of k", "- k\\n\\nThis ", "The same as:",
    ]  # fmt: skip


def test_the_page_lists_every_tool_and_no_other(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/agents.md").read_text(encoding="utf-8")
    first = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    listed = set(re.findall(r"`(\w+)`", " ".join(first)))

    async def story() -> None:
        async with tools(
            cluster.namesrv_addr, audit=tmp_path / "audit.jsonl", person=Person()
        ) as call:
            found = {tool.name for tool in (await call.client.list_tools()).tools}
            assert found - {"apply_change"} == listed

    run(story)
