"""``rocketstream mcp`` as a process: the protocol on stdout and nothing else, until stdin ends."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pexpect  # type: ignore[import-untyped]
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.types import ElicitResult

from tests.plugins.commands import TIMEOUT_S, Quick, environment

HELLO: list[dict[str, Any]] = [
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "test", "version": "0"},
    }},
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
]  # fmt: skip

YES = ElicitResult(action="accept", content={"carry_out": True})


def parameters(namesrv: str, *words: str) -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "rocketstream", "mcp", *words],
        env=environment(namesrv),
    )


def started(namesrv: str) -> subprocess.Popen[str]:
    """Start it with its three streams in our hands; a context manager."""
    return subprocess.Popen(
        [sys.executable, "-m", "rocketstream", "mcp"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(namesrv),
    )


@pytest.mark.long
def test_it_speaks_on_stdout_alone_and_ends_with_stdin(namesrv: str) -> None:
    """A line that is no message of the protocol would end any client's patience."""
    lines = [
        *HELLO,
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call",
         "params": {"name": "list_brokers", "arguments": {}}},
    ]  # fmt: skip
    with started(namesrv) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in lines:
            process.stdin.write(json.dumps(line) + "\n")
        process.stdin.flush()
        answers: dict[int, Any] = {}
        while 2 not in answers:
            answer = json.loads(process.stdout.readline())
            answers[answer.get("id")] = answer
        process.stdin.close()
        assert process.stdout.read() == ""
        assert process.wait(TIMEOUT_S) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    assert answers[1]["result"]["serverInfo"]["name"] == "rocketstream"
    told = answers[2]["result"]["structuredContent"]
    assert [broker["error"] for broker in told["brokers"]] == [None]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_at_once_while_its_client_may_still_ask(
    namesrv: str, number: signal.Signals
) -> None:
    """An exception amid the event loop's work would come out of each of its tasks."""
    with started(namesrv) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(HELLO[0]) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 1
        process.send_signal(number)
        assert process.wait(TIMEOUT_S) == -number
        assert process.stderr is not None
        assert process.stderr.read() == ""


@pytest.mark.long
def test_changes_need_write_and_are_written_down(namesrv: str, tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"

    async def names(*words: str) -> set[str]:
        async with Client(stdio_client(parameters(namesrv, *words))) as client:
            return {tool.name for tool in (await client.list_tools()).tools}

    async def story() -> tuple[set[str], set[str]]:
        return await names(), await names("--write", "--audit-file", str(audit))

    looking, changing = asyncio.run(asyncio.wait_for(story(), TIMEOUT_S))
    assert looking < changing
    assert {name.split("_")[0] for name in changing - looking} == {"preview", "apply"}


@pytest.mark.long
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_person_at_the_client_approves_a_change(
    namesrv: str, quick: Quick, tmp_path: Path, mode: str
) -> None:
    audit, topic = tmp_path / "audit.jsonl", f"mcp-approved-{mode}"
    answers = [ElicitResult(action="decline"), YES]

    async def person(context: object, params: Any) -> ElicitResult:
        assert f"topic.create {topic}" in params.message
        return answers.pop(0)

    async def story() -> list[bool]:
        server = stdio_client(parameters(namesrv, "--write", "--audit-file", str(audit)))
        async with Client(server, mode=mode, elicitation_callback=person) as client:
            told = []
            for _ in range(2):
                shown = await client.call_tool("preview_topic_create", {"topic": topic})
                token = (shown.structured_content or {})["token"]
                told.append(await client.call_tool("apply_change", {"token": token}))
            return [bool(each.is_error) for each in told]

    assert asyncio.run(asyncio.wait_for(story(), TIMEOUT_S)) == [True, False]
    assert topic in {row["topic"] for row in quick("topic", "list", "--json").worked().json}
    begin, done = [json.loads(line) for line in audit.read_text().splitlines()]
    assert (begin["phase"], done["phase"]) == ("begin", "done")
    assert begin["face"] == "agents"
    assert begin["approved"].startswith("by a person at the client (mcp ")


IN_A_TERMINAL = """\
import json, subprocess, sys
server = subprocess.Popen(
    [sys.executable, "-m", "rocketstream", "mcp", "--write", "--audit-file", sys.argv[1]],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
)
def ask(line):
    server.stdin.write(json.dumps(line) + "\\n")
    server.stdin.flush()
    while "id" in line and (told := json.loads(server.stdout.readline())).get("id") != line["id"]:
        pass
    return told["result"] if "id" in line else None
def call(number, tool, **arguments):
    params = {"name": tool, "arguments": arguments}
    return ask({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params})
for line in json.loads(sys.argv[3]):
    ask(line)
shown = call(2, "preview_topic_create", topic=sys.argv[2])
made = call(3, "apply_change", token=shown["structuredContent"]["token"])
print("is_done", made["structuredContent"]["is_done"])
"""
"""A client without elicitation, in the terminal its person sits at."""


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_person_at_the_terminal_of_the_server_approves_a_change(
    namesrv: str, tmp_path: Path
) -> None:
    audit, topic = tmp_path / "audit.jsonl", "mcp-approved-in-a-terminal"
    words = ["-c", IN_A_TERMINAL, str(audit), topic, json.dumps(HELLO)]
    process = pexpect.spawn(
        sys.executable, words, env=environment(namesrv), encoding="utf-8", timeout=TIMEOUT_S
    )
    try:
        process.expect(f"topic.create {topic}")
        process.expect(r"Type (\d{4}) to make it")
        process.sendline(process.match[1])
        process.expect("is_done True")
    finally:
        process.close(force=True)
    line = json.loads(audit.read_text().splitlines()[0])
    assert line["approved"] == "by a person at the terminal of the server"


def test_trust_is_about_changes(quick: Quick) -> None:
    assert "give it with --write" in quick("mcp", "--trust-agent").failed()


def test_what_is_missing_is_named(quick: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "mcp" else find(name)
    )
    assert "pip install 'rocketstream[mcp]'" in quick("mcp").failed()
