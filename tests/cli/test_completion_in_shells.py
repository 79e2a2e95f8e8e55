"""The scripts of ``rocketstream completion`` as zsh and fish run them, over a cluster's names.

Law: bash is in ``test_front``; a shell that is not installed skips its test with that reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rocketstream.admin import Admin
from rocketstream.cli.app import script as script_of
from tests.cli.conftest import environment

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

# zsh completes in an editor only: its own functions are called where they hand words on.
_ZSH = """
autoload -Uz compinit && compinit -u -d {place}/dump
compadd() {{ shift; print -rl -- "$@" }}
_files() {{ print -r -- FILES }}
{script}
words=({words}) CURRENT=$#words
_rocketstream
"""
_FISH = "{script}\ncomplete -C '{line}'\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where ``rocketstream`` is, and a file that some shell might offer."""
    program = tmp_path / "bin" / "rocketstream"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m rocketstream "$@"\n')
    program.chmod(0o755)
    (tmp_path / "lag.csv").touch()
    return tmp_path


def offered(shell: str, line: str, place: Path, namesrv: str) -> list[str]:
    """What a shell offers at the end of a line."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed; Debian's package is {shell}")
    script = script_of(shell)
    if shell == "zsh":
        words = " ".join(f"'{word}'" for word in line.split(" "))
        text = _ZSH.format(place=place, script=script, words=words)
        command = [shell, "-f", "-c", text]
    else:
        command = [shell, "--no-config", "-c", _FISH.format(script=script, line=line)]
    env = environment(namesrv) | {
        "PATH": f"{place / 'bin'}:{os.environ['PATH']}", "HOME": str(place),
    }  # fmt: skip
    done = subprocess.run(
        command, cwd=place, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout.split("\n")[:-1]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_shells_offer_commands_options_and_names_and_no_files_beside_them(
    shell: str, place: Path, namesrv: str
) -> None:
    with Admin(namesrv) as admin:
        admin.topics.create("completed-in-shells", 1)
    for line, wanted in (
        ("rocketstream gro", ["group"]),
        ("rocketstream group la", ["lag"]),
        ("rocketstream group lag --max", ["--max", "--max-age"]),
        ("rocketstream topic status completed-in", ["completed-in-shells"]),
    ):
        assert offered(shell, line, place, namesrv) == wanted, line


@pytest.mark.parametrize(("shell", "files"), [("zsh", "FILES"), ("fish", "lag.csv")])
def test_shells_offer_files_where_nothing_is_known(
    shell: str, files: str, place: Path, namesrv: str
) -> None:
    assert files in offered(shell, "rocketstream send some-topic --file la", place, namesrv)
