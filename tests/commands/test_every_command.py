"""What every command does when something is wrong: one line that says what, and its exit code."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from rocketstream.admin import Admin
from rocketstream.cli import app as command_line
from tests.commands.command_lines import ARGUMENTS, ELSEWHERE, GROUP, ID, TOPIC, call, paths
from tests.plugins.commands import TIMEOUT_S, Done, Quick, command, environment

MAKES = {"topic create", "group create", "send"}
"""What is not there yet is made by these."""
NAMES_NOTHING = {"metrics", "export", "import"}
THERE = [path for path in paths(command_line.app) if path not in ELSEWHERE]


@pytest.fixture(scope="module")
def closed_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.fixture(scope="module")
def broker_address(namesrv: str) -> str:
    with Admin(namesrv) as admin:
        return admin.brokers.all()[0].address


def complaint(done: Done) -> str:
    """The one error line; other lines may only warn."""
    assert done.code == 1, (done.code, done.out, done.err)
    assert "Traceback" not in done.err + done.out
    assert "mistake of rocketstream" not in done.err, done.err
    errors = [line for line in done.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.err
    return errors[0]


def test_every_command_is_in_this_test() -> None:
    assert set(THERE) <= set(ARGUMENTS)


@pytest.mark.parametrize("path", THERE)
def test_a_name_server_that_is_down_is_named(
    path: str, closed_address: str, tmp_path: Path
) -> None:
    if path == "import":
        pytest.skip("reads its file first; its own tests have it")
    line = complaint(Quick(closed_address)(*call(path, tmp_path)))
    assert closed_address in line


@pytest.mark.parametrize("path", THERE)
def test_a_broker_s_address_given_as_name_server_is_recognised(
    path: str, namesrv: str, broker_address: str, tmp_path: Path
) -> None:
    if path == "import":
        pytest.skip("reads its file first; its own tests have it")
    done = Quick(broker_address)(*call(path, tmp_path))
    line = complaint(done)
    assert "is broker 'broker-a', not a name server" in line
    assert namesrv in line


@pytest.mark.parametrize(
    "path", [p for p in THERE if ARGUMENTS[p] and p not in MAKES | NAMES_NOTHING]
)
def test_what_is_not_there_is_named(path: str, quick: Quick, tmp_path: Path) -> None:
    line = complaint(quick(*call(path, tmp_path)))
    assert any(name in line for name in (TOPIC, GROUP, "other", "broker-x", ID)), line


def test_a_reader_that_has_gone_ends_a_command_quietly(namesrv: str) -> None:
    process = subprocess.Popen(
        command(["topic", "list", "--all"]),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(namesrv),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read().decode()
    process.stderr.close()
    assert (process.wait(TIMEOUT_S), err) == (141, "")


def test_a_terminal_without_unicode_gets_ascii(namesrv: str) -> None:
    env = environment(namesrv) | {
        "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii",
    }  # fmt: skip
    sent = ("send", "every-ascii", "--keys", "订单", "订")
    for words in (("topic", "create", "every-ascii"), sent, ("topic", "list")):
        done = subprocess.run(
            command(words), capture_output=True, env=env, timeout=TIMEOUT_S, check=False
        )
        assert (done.returncode, done.stderr) == (0, b""), words
    assert b"Topic" in done.stdout
    assert b"-----" in done.stdout
    assert done.stdout.isascii()
    bad: list[str | bytes] = [*command(["send", "every-ascii"]), b"\xff\xfe"]
    refused = subprocess.run(bad, capture_output=True, timeout=TIMEOUT_S, env=environment(namesrv))
    assert refused.returncode == 2
    assert b"is not UTF-8" in refused.stderr
