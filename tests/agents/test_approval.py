"""A person approves each change: at the client, at the terminal, or nothing is done."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from mcp.types import ElicitResult

from rocketstream.admin import Admin
from rocketstream.admin.safety import GOOD_FOR_MS
from rocketstream.agents.approval import open_terminal
from rocketstream.cli.main import main
from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.testing import ManualClock
from tests.agents.conftest import YES, Person, Tools, run, tools

NO = ElicitResult(action="accept", content={"carry_out": False})
DECLINED = ElicitResult(action="decline")
CLOSED = ElicitResult(action="cancel")
EMPTY = ElicitResult(action="accept", content={})

in_both_protocols = pytest.mark.parametrize("mode", ["auto", "legacy"])


class Place:
    """A topic that is to be made, and whether it was."""

    def __init__(self, cluster: EmbeddedCluster, tmp_path: Path) -> None:
        self.namesrv = cluster.namesrv_addr
        self.topic = f"approved-{tmp_path.name}"
        self.audit = tmp_path / "audit.jsonl"

    def tools(self, **settings: Any) -> Any:
        return tools(self.namesrv, audit=self.audit, **settings)

    async def token(self, call: Tools) -> str:
        shown = await call("preview_topic_create", topic=self.topic, queues=2)
        return str(shown["token"])

    def is_made(self) -> bool:
        with Admin(self.namesrv) as admin:
            return self.topic in admin.topics.names()

    def approvals(self) -> list[str]:
        lines = [json.loads(line) for line in self.audit.read_text().splitlines()]
        return [line["approved"] for line in lines if line["phase"] == "done"]


@pytest.fixture
def place(cluster: EmbeddedCluster, tmp_path: Path) -> Place:
    return Place(cluster, tmp_path)


@in_both_protocols
def test_a_person_at_the_client_sees_the_change_and_it_is_made_once(
    place: Place, mode: str
) -> None:
    person = Person()

    async def story() -> None:
        async with place.tools(person=person, mode=mode) as call:
            token = await place.token(call)
            assert (await call("apply_change", token=token))["is_done"]
            assert "carried out already" in await call.refused("apply_change", token=token)

    run(story)
    (asked,) = person.asked
    assert f"topic.create {place.topic}" in asked
    assert "readQueueNums None -> 2" in asked
    assert f"rocketstream topic create {place.topic} --queues=2" in asked
    (approved,) = place.approvals()
    assert approved.startswith("by a person at the client (mcp ")
    assert place.is_made()


@in_both_protocols
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (NO, "the person declined"),
        (DECLINED, "the person declined"),
        (EMPTY, "the person declined"),
        (CLOSED, "closed the question"),
    ],
)
def test_a_change_a_person_does_not_approve_is_not_made(
    place: Place, mode: str, answer: ElicitResult, said: str
) -> None:
    async def story() -> None:
        async with place.tools(person=Person(answer, YES), mode=mode) as call:
            token = await place.token(call)
            assert said in await call.refused("apply_change", token=token)
            again = await call.refused("apply_change", token=token)
            assert "Look at the change again" in again, "an agent asks until somebody says yes"

    run(story)
    assert not place.is_made()
    assert not place.audit.exists()


@in_both_protocols
def test_one_change_approved_twice_at_a_time_is_made_once(place: Place, mode: str) -> None:
    both = asyncio.Event()
    asked: list[str] = []

    async def person(_: object, question: Any) -> ElicitResult:
        asked.append(question.message)
        if len(asked) == 2:
            both.set()
        await both.wait()
        return YES

    async def story() -> None:
        async with place.tools(person=person, mode=mode) as call:
            token = await place.token(call)
            told = await asyncio.gather(
                *[call.client.call_tool("apply_change", {"token": token}) for _ in range(2)]
            )
            assert sorted(bool(each.is_error) for each in told) == [False, True]

    run(story)
    assert len(place.approvals()) == 1


def test_an_answer_that_does_not_come_in_time_counts_for_nothing(place: Place) -> None:
    clock = ManualClock()

    async def never(*_: object) -> ElicitResult:
        await asyncio.Event().wait()
        raise AssertionError

    async def late(*_: object) -> ElicitResult:
        clock.advance(GOOD_FOR_MS)
        return YES

    async def story() -> None:
        async with place.tools(person=never, mode="legacy", clock=clock) as call:
            token = await place.token(call)
            clock.advance(GOOD_FOR_MS - 1)
            said = await call.refused("apply_change", token=token)
            assert "nobody answered while the preview was good" in said
        async with place.tools(person=late, clock=clock) as call:
            token = await place.token(call)
            clock.advance(1)
            assert "older than 10 minutes" in await call.refused("apply_change", token=token)

    run(story)
    assert not place.is_made()


@in_both_protocols
def test_where_nobody_can_be_asked_it_is_refused_with_the_command(place: Place, mode: str) -> None:
    async def story() -> None:
        async with place.tools(mode=mode) as call:
            said = await call.refused("apply_change", token=await place.token(call))
        assert "this client has no elicitation" in said
        assert "--write --trust-agent" in said
        found = re.search(r"run `([^`]*)`", said)
        assert found is not None
        program, *words = shlex.split(found[1])
        assert (program, place.is_made()) == ("rocketstream", False)
        assert await asyncio.to_thread(main, words) == 0

    run(story)
    assert place.is_made()


def test_an_agent_that_is_trusted_needs_nobody(place: Place) -> None:
    async def story() -> None:
        async with place.tools(trust_agent=True) as call:
            assert "only when they agree" in (call.client.instructions or "")
            assert (await call("apply_change", token=await place.token(call)))["is_done"]

    run(story)
    assert place.approvals() == ["by the agent alone (--trust-agent)"]


class Terminal:
    """The terminal of a server, and the keyboard before it."""

    def __init__(self) -> None:
        self.master, self._slave = os.openpty()

    def open(self) -> int:
        return os.dup(self._slave)

    def read(self, until: str) -> str:
        told = ""
        while until not in told:
            told += os.read(self.master, 4_096).decode()
        return told

    async def answer(self, typed: str = "") -> str:
        """Type something, or the code that is asked for; return the question."""
        told = await asyncio.to_thread(self.read, "leave it: ")
        found = re.search(r"Type (\d{4}) to make it", told)
        assert found is not None
        os.write(self.master, f"{typed or found[1]}\n".encode())
        return told


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    made = Terminal()
    yield made
    os.close(made.master)


def test_a_person_at_the_terminal_types_the_code(place: Place, terminal: Terminal) -> None:
    async def story() -> None:
        async with place.tools(terminal=terminal.open) as call:
            token = await place.token(call)
            os.write(terminal.master, b"0000\n")  # typed before there was a question
            refused, told = await asyncio.gather(
                call.refused("apply_change", token=token), terminal.answer("yes")
            )
            assert f"topic.create {place.topic}" in told
            assert "the person declined" in refused
            assert not place.is_made()
            token = await place.token(call)
            done, _ = await asyncio.gather(call("apply_change", token=token), terminal.answer())
            assert done["is_done"]

    run(story)
    assert place.is_made()
    assert place.approvals() == ["by a person at the terminal of the server"]


def test_a_question_at_the_terminal_ends_with_its_preview_or_its_caller(
    place: Place, terminal: Terminal
) -> None:
    clock = ManualClock()

    async def story() -> None:
        async with AsyncExitStack() as stack:
            call = await stack.enter_async_context(place.tools(terminal=terminal.open, clock=clock))
            asking = asyncio.create_task(
                call.refused("apply_change", token=await place.token(call))
            )
            await asyncio.to_thread(terminal.read, "leave it: ")
            clock.advance(GOOD_FOR_MS)
            assert "nobody answered" in await asking
            await asyncio.to_thread(terminal.read, "Too late")
            asking = asyncio.create_task(
                call.refused("apply_change", token=await place.token(call))
            )
            await asyncio.to_thread(terminal.read, "leave it: ")
            asking.cancel()
            await asyncio.to_thread(terminal.read, "Too late")

    run(story)
    assert not place.is_made()


def test_a_process_without_a_terminal_has_nobody_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(*_: object) -> int:
        raise OSError(6, "No such device or address")

    monkeypatch.setattr(os, "open", absent)
    assert open_terminal() is None
