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

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from tests.cli.conftest import TIMEOUT_S, Quick, environment

HELLO: list[dict[str, Any]] = [
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "test", "version": "0"},
    }},
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
]  # fmt: skip


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


def test_what_is_missing_is_named(quick: Quick, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "mcp" else find(name)
    )
    assert "pip install 'rocketstream[mcp]'" in quick("mcp").failed()
