"""The scripts of ``rocketstream completion``: bash runs its own, others are answered in their form.

The scripts are click's; zsh and fish are asked for by the variables that theirs set.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rocketstream.admin import Admin
from rocketstream.cli.app import COMPLETE_VARIABLE, script
from tests.plugins.commands import command, environment

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

LINES = (
    ("rocketstream gro", ["group"]),
    ("rocketstream group la", ["lag"]),
    ("rocketstream group lag --max", ["--max", "--max-age"]),
    ("rocketstream topic status completed-in", ["completed-in-shells"]),
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where ``rocketstream`` is."""
    program = tmp_path / "bin" / "rocketstream"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m rocketstream "$@"\n')
    program.chmod(0o755)
    return tmp_path


@pytest.fixture
def topic(namesrv: str) -> None:
    with Admin(namesrv) as admin:
        admin.topics.create("completed-in-shells", 1)


def test_bash_offers_commands_options_and_names(place: Path, namesrv: str, topic: None) -> None:
    env = environment(namesrv) | {"PATH": f"{place / 'bin'}:{os.environ['PATH']}"}
    for line, wanted in LINES:
        words = line.split(" ")
        text = (
            f"{script('bash')}\nCOMP_WORDS=({line}); COMP_CWORD={len(words) - 1}\n"
            '_rocketstream_completion rocketstream\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
        )
        done = subprocess.run(
            ["bash"], input=text, env=env, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.stdout.split(), done.stderr) == (wanted, ""), line


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_answered_in_their_form(shell: str, namesrv: str, topic: None) -> None:
    for line, wanted in (*LINES, ("rocketstream send some-topic --file la", [])):
        *_, begun = line.split(" ")
        asked = {
            COMPLETE_VARIABLE: f"{shell}_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": begun if shell == "fish" else str(line.count(" ")),
        }
        done = subprocess.run(
            command([]), env=environment(namesrv) | asked, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        told = [each.partition("\t")[0] for each in re.split("[,\n]", done.stdout)]
        assert (done.returncode, done.stderr) == (0, ""), line
        assert [each for each in told if each in wanted] == wanted, (line, told)
        assert ("file" in told) == ("--file" in line), told
