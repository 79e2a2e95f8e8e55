"""What a shell is offered behind what is typed."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest

from rocketstream.cli import app as command_line
from rocketstream.cli.completing import SCRIPTS, complete

NAMES = {
    "topics": ["orders", "payments", "%RETRY%billing"],
    "groups": ["billing", "audit"],
    "brokers": ["broker-a"],
}


@pytest.fixture(scope="module")
def tree() -> Any:
    return command_line.app


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("gro", ["group"]),
        ("topic stat", ["status"]),
        ("group lag ", ["audit", "billing"]),
        ("group lag b", ["billing"]),
        ("group lag billing --to", ["--topic"]),
        ("group lag billing --topic ", ["orders", "payments"]),
        ("group lag billing --topic=o", ["--topic=orders"]),
        ("group lag --watch b", ["billing"]),
        ("group lag --json --topic orders a", ["audit"]),
        ("topic status %R", ["%RETRY%billing"]),
        ("topic create new --perm ", ["r", "rw", "w"]),
        ("ingest orders p", ["payments"]),
        ("producer connections checkout o", ["orders"]),
        ("broker config ", ["broker-a"]),
        ("completion ", ["bash", "fish", "zsh"]),
        ("-n somewhere:9876 group lag a", ["audit"]),
        ("no such ", []),
    ],
)
def test_words_that_may_come_next_are_offered(tree: Any, typed: str, offered: list[str]) -> None:
    *words, current = typed.split(" ")
    found = complete(tree, [*words, current], lambda kind: NAMES[kind])
    assert found == offered


def test_every_command_is_offered_and_hidden_ones_are_not(tree: Any) -> None:
    found = complete(tree, [""], lambda kind: [])
    assert set(found) == set(command_line.COMMANDS)


@pytest.mark.parametrize("shell", SCRIPTS)
def test_scripts_are_valid_where_the_shell_is_there(shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        assert "complete-words" in SCRIPTS[shell]
        return
    flag = "--no-execute" if shell == "fish" else "-n"
    done = subprocess.run(
        [program, flag], input=SCRIPTS[shell], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_bash_completes_what_the_command_answers(tmp_path: Any) -> None:
    program = shutil.which("bash")
    assert program is not None
    fake = tmp_path / "rocketstream"
    fake.write_text('#!/bin/sh\nshift\necho "topic" "$@" | tr " " "-"\necho other\n')
    fake.chmod(0o755)
    script = SCRIPTS["bash"] + (
        f"\nCOMP_WORDS=({fake} group lag b); COMP_CWORD=3; _rocketstream\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run([program], input=script, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["topic-group-lag-b", "other"]
