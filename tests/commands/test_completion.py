"""What a shell is offered behind what is typed."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from click.shell_completion import ShellComplete

from rocketstream.cli import app as command_line
from rocketstream.cli import commands
from rocketstream.errors import ConnectError

SHELLS = ("bash", "zsh", "fish")
NAMES = {
    "topics": ["orders", "payments", "%RETRY%billing"],
    "groups": ["billing", "audit"],
    "brokers": ["broker-a"],
}


def offered(typed: str) -> list[str]:
    *words, current = typed.split(" ")
    asked = ShellComplete(command_line.app, {}, "rocketstream", command_line.COMPLETE_VARIABLE)
    return [each.value for each in asked.get_completions(words, current)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The name servers that were asked for names."""
    found: list[str] = []

    def known(kind: str, namesrv: str) -> list[str]:
        found.append(namesrv)
        return NAMES[kind]

    monkeypatch.setattr(commands, "_known", known)
    return found


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("gro", ["group"]),
        ("topic stat", ["status"]),
        ("group lag ", ["audit", "billing"]),
        ("group lag b", ["billing"]),
        ("group lag billing --to", ["--topic"]),
        ("group lag billing --topic ", ["orders", "payments"]),
        ("group lag billing --topic=o", ["orders"]),
        ("group lag --watch b", ["billing"]),
        ("group lag --json --topic orders a", ["audit"]),
        ("topic status %R", ["%RETRY%billing"]),
        ("topic create new --perm ", ["rw", "r", "w"]),
        ("ingest orders p", ["payments"]),
        ("producer connections checkout o", ["orders"]),
        ("broker config ", ["broker-a"]),
        ("consume orders --from ", ["earliest", "latest"]),
        ("completion ", ["bash", "zsh", "fish"]),
    ],
)
def test_words_that_may_come_next_are_offered(
    typed: str, wanted: list[str], asked: list[str]
) -> None:
    assert offered(typed) == wanted


@pytest.mark.parametrize(
    "typed", ["-n somewhere:9876 group lag a", "group lag -n somewhere:9876 a"]
)
def test_the_name_server_that_is_typed_is_asked(typed: str, asked: list[str]) -> None:
    assert offered(typed) == ["audit"]
    assert asked == ["somewhere:9876"]


def test_a_cluster_that_does_not_answer_offers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def known(kind: str, namesrv: str) -> list[str]:
        raise ConnectError("nobody is there")

    monkeypatch.setattr(commands, "_known", known)
    assert offered("group lag ") == []


def test_every_command_is_offered() -> None:
    assert set(offered("")) == set(command_line.COMMANDS)


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_are_valid_where_the_shell_is_there(shell: str) -> None:
    program, script = shutil.which(shell), command_line.script(shell)
    assert command_line.COMPLETE_VARIABLE in script
    if program is None:
        return
    flag = "--no-execute" if shell == "fish" else "-n"
    done = subprocess.run([program, flag], input=script, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
