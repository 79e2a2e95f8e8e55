"""Ctrl-C at any moment: no traceback, the end soon, and at once where it is pressed again.

What is waited for are lines and connections. That an end is soon, a few tests say with bounds that
hold on a busy machine; the others would wait for ever where nothing ends.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rocketstream.cli import app as command_line
from tests.commands.command_lines import ARGUMENTS, ELSEWHERE, call, paths
from tests.plugins.commands import TIMEOUT_S, Cli, Quick, command, environment

ASKING_FOR_EVER = {
    "metrics": ["metrics", "--listen", "127.0.0.1:0"],
    "group lag --watch": ["group", "lag", "g", "--watch"],
}
"""Besides what ``ARGUMENTS`` has: ways of a command that go on."""
ENDED = {130, -signal.SIGINT}
"""A shell shows both as 130: ended in order, and ended by the signal itself."""

Started = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def started() -> Iterator[Started]:
    """Start a process that may be interrupted; what still runs at the end is killed."""
    with ExitStack() as cleanup:

        def start(
            words: list[str], namesrv: str = "127.0.0.1:1", **more: str
        ) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment(namesrv) | more,
            )
            cleanup.callback(process.communicate)
            cleanup.callback(process.kill)
            return process

        yield start


@pytest.fixture(scope="module")
def silence() -> Iterator[socket.socket]:
    """A name server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(TIMEOUT_S)
        yield listening


def line_of(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().rstrip()


def interrupt(process: subprocess.Popen[bytes]) -> int:
    """Press Ctrl-C and return the exit code; it must be quiet."""
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    err = process.stderr.read().decode()
    code = process.wait(TIMEOUT_S)
    for word in ("Traceback", "Exception", "mistake of rocketstream", "KeyboardInterrupt"):
        assert word not in err, err
    return code


# --- the process around a command -----------------------------------------------------------------

STOPPING_AT = """
import sys, time
class Stop:
    def find_spec(self, name, *rest):
        if name == {module!r}:
            print("there", flush=True)
            time.sleep(600)
sys.meta_path.insert(0, Stop())
from rocketstream.cli.main import main
sys.exit(main())
"""
"""The command line, waiting where it is about to import a module."""

DOING = """
import atexit, sys, time
from rocketstream.cli import app, main, signals
from rocketstream.cli.failure import guard
signals._State.patience_s = {patience_s}

class Dying:
    def __del__(self):
        there("dying")

def there(word):
    print(word, flush=True)
    time.sleep(600)

def work():
    {work}

app.run = lambda argv: guard(work)
sys.exit(main.main())
"""
"""The command line around some work that says where it is, and waits there."""


def doing(work: str, patience_s: float | None = None) -> list[str]:
    return [sys.executable, "-c", DOING.format(work=work, patience_s=patience_s)]


def stopping_at(module: str, *words: str) -> list[str]:
    return [sys.executable, "-c", STOPPING_AT.format(module=module), *words]


@pytest.mark.parametrize("module", ["click", "rocketstream.cli.app", "rocketstream.cli.topic"])
def test_a_command_that_is_still_importing_ends_without_a_word(
    started: Started, module: str
) -> None:
    process = started(stopping_at(module, "topic", "list"))
    assert line_of(process) == "there"
    assert interrupt(process) in ENDED


def test_a_second_ctrl_c_ends_at_once_what_is_ending(started: Started) -> None:
    process = started(
        doing("""try: there("working")
    finally: there("ending")""")
    )
    assert line_of(process) == "working"
    process.send_signal(signal.SIGINT)
    assert line_of(process) == "ending"
    assert interrupt(process) == -signal.SIGINT


def test_sigterm_told_twice_does_not_break_off_the_end_in_order(started: Started) -> None:
    """``timeout`` sends it to the process and to its group, at once one after the other."""
    process = started(
        doing("""import signal
    def ended():
        print("ending", flush=True)
        signal.raise_signal(signal.SIGTERM)
        print("ended", flush=True)
    try: there("working")
    finally: ended()""")
    )
    assert line_of(process) == "working"
    process.send_signal(signal.SIGTERM)
    assert [line_of(process), line_of(process)] == ["ending", "ended"]
    assert process.wait(TIMEOUT_S) == 128 + signal.SIGTERM


def test_what_does_not_end_by_itself_is_ended(started: Started) -> None:
    process = started(
        doing(
            """try: there("working")
    finally: there("ending")""",
            patience_s=0.01,
        )
    )
    assert line_of(process) == "working"
    assert interrupt(process) == 130
    assert line_of(process) == "ending"


def test_ctrl_c_inside_a_finalizer_is_not_lost(started: Started) -> None:
    """Python drops what is raised there, and prints it."""
    process = started(
        doing("""Dying()
    there("went on")""")
    )
    assert line_of(process) == "dying"
    assert interrupt(process) == 130


def test_ctrl_c_while_python_ends_is_quiet(started: Started) -> None:
    process = started(
        doing("""atexit.register(there, "leaving")
    return 0""")
    )
    assert line_of(process) == "leaving"
    assert interrupt(process) == -signal.SIGINT


def test_a_background_job_s_ignored_ctrl_c_stays_ignored(started: Started) -> None:
    """A shell has the jobs of a script ignore it."""
    words = doing("""import os, signal
    os.kill(os.getpid(), signal.SIGINT)
    return 7""")
    ignoring = "import os, signal, sys; signal.signal(2, signal.SIG_IGN); "
    process = started(
        [sys.executable, "-c", ignoring + "os.execv(sys.argv[1], sys.argv[1:])", *words]
    )
    assert process.wait(TIMEOUT_S) == 7


def test_serving_ends_at_once_at_a_second_ctrl_c(started: Started, tmp_path: Path) -> None:
    work = f"""
    from rocketstream.server.embedded import EmbeddedCluster, EmbeddedSettings, serve
    import asyncio
    async def close(self):
        print("closing", flush=True)
        await asyncio.sleep(600)
    EmbeddedCluster.close_async = close
    serve(EmbeddedCluster({str(tmp_path)!r}, EmbeddedSettings(namesrv_port=0, broker_port=0)),
          lambda ready: print("ready", flush=True))"""
    process = started(doing(work))
    assert line_of(process) == "ready"
    process.send_signal(signal.SIGINT)
    assert line_of(process) == "closing"
    assert interrupt(process) == -signal.SIGINT


# --- every command --------------------------------------------------------------------------------


def asking(path: str, tmp_path: Path) -> list[str]:
    return ASKING_FOR_EVER[path] if path in ASKING_FOR_EVER else call(path, tmp_path)


@pytest.mark.parametrize("path", ["group lag", "consume"])
def test_a_name_server_that_does_not_answer_holds_up_no_ctrl_c(
    path: str, started: Started, silence: socket.socket, tmp_path: Path
) -> None:
    ended_while_asking(path, started, silence, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("path", sorted({*paths(command_line.app), *ASKING_FOR_EVER} - ELSEWHERE))
def test_every_command_ends_at_ctrl_c_while_it_asks(
    path: str, started: Started, silence: socket.socket, tmp_path: Path
) -> None:
    if path == "import":
        pytest.skip("asks nothing where its file is empty")
    ended_while_asking(path, started, silence, tmp_path)


def ended_while_asking(path: str, started: Started, silence: socket.socket, tmp_path: Path) -> None:
    host, port = silence.getsockname()
    process = started(command(asking(path, tmp_path)), f"{host}:{port}")
    connection, _ = silence.accept()
    with connection:
        assert connection.recv(1)
        assert interrupt(process) == 130


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(command_line.COMMANDS))
def test_every_command_ends_at_ctrl_c_while_it_is_imported(name: str, started: Started) -> None:
    module = f"rocketstream.cli.{command_line.COMMANDS[name].partition(':')[0]}"
    process = started(stopping_at(module, name, "--help"))
    assert line_of(process) == "there"
    assert interrupt(process) in ENDED


# --- what goes on ---------------------------------------------------------------------------------


def test_agents_tools_end_at_ctrl_c_though_their_input_stays_open(
    started: Started, namesrv: str
) -> None:
    process = started(command(["mcp"]), namesrv)
    hello = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18", "capabilities": {},
            "clientInfo": {"name": "t", "version": "1"},
        },
    }  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps(hello).encode() + b"\n")
    process.stdin.flush()
    assert json.loads(line_of(process))["id"] == 1
    assert interrupt(process) in ENDED


def test_following_a_topic_ends_at_ctrl_c(started: Started, cli: Cli, quick: Quick) -> None:
    quick("topic", "create", "interrupt-tail", "-q", "1").worked()
    quick("send", "interrupt-tail", "hello").worked()
    process = started(
        command(["message", "tail", "interrupt-tail", "--last", "1"]), cli.namesrv or ""
    )
    assert line_of(process).endswith("hello")
    assert interrupt(process) == 130


@pytest.mark.long
def test_a_dashboard_ends_in_order_at_ctrl_c(
    started: Started, namesrv: str, tmp_path: Path
) -> None:
    words = ["dashboard", "--port", "0", "--history", str(tmp_path / "history.db")]
    process = started(command(words), namesrv)
    assert line_of(process).startswith("dashboard http")
    assert interrupt(process) == 0


@pytest.mark.long
def test_served_metrics_end_at_ctrl_c(started: Started, namesrv: str) -> None:
    process = started(command(ASKING_FOR_EVER["metrics"]), namesrv)
    assert line_of(process).startswith("ready http")
    assert interrupt(process) == 130


def test_every_command_has_arguments_here() -> None:
    assert set(paths(command_line.app)) - ELSEWHERE <= set(ARGUMENTS)
