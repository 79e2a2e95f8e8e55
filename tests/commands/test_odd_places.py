"""Commands where something usual is missing: streams, letters, a terminal, a home, a directory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from rocketstream.cli import app as command_line
from tests.commands.command_lines import ARGUMENTS, ELSEWHERE, call, paths
from tests.plugins.commands import TIMEOUT_S, Quick, command, environment

ELSE: dict[str, list[str]] = {
    "completion": ["bash"],
    "spark-env": [],
    "dashboard token": ["alice", "--role", "look", "--tokens", "FILE"],
    "group undo": ["FILE", "--yes"],
    "alerts": ["--config", "FILE", "--dry-run"],
    "store check": ["FILE"],
    "top": [],
    "ingest": ["odd-there", "--to", "parquet:FILE/t", "--conf", "x"],
    "backfill": ["odd-there", "--to", "parquet:FILE/t", "--conf", "x"],
    "compact": ["parquet:FILE/t"],
}
"""How the commands are called that ask no cluster; ``x`` keeps Spark from being started."""
GOING_ON = {"serve", "mcp", "dashboard", "consume", "message tail"}
"""These go on until they are told to end; what they print has tests of its own."""
LIMITED = {"consume": ["--idle", "0.1"], "message tail": ["--idle", "0.2", "--last", "5"]}

C: Mapping[str, str] = {
    "LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0",
    "PYTHONIOENCODING": "ascii",
}  # fmt: skip
ODD: Mapping[str, str] = {**C, "COLUMNS": "1", "TERM": "dumb", "HOME": "/nonexistent"}


def ended(
    words: Sequence[str | bytes],
    shell: str = '"$@"',
    env: Mapping[str, str] | None = None,
    namesrv: str | None = None,
    stdin: bytes = b"",
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end, which must be a proper one; ``shell`` may close its streams."""
    done = subprocess.run(
        ["sh", "-c", shell, "sh", *command([]), *words],
        input=stdin,
        capture_output=True,
        env=environment(namesrv) | dict(env or {}),
        timeout=TIMEOUT_S,
        cwd=cwd,
    )
    said = done.stderr.decode("utf-8", "replace")
    for word in ("Traceback", "mistake of rocketstream", "Exception ignored"):
        assert word not in said, (words, shell, said)
    assert done.returncode in (0, 1, 2, 3, 141), (words, done.returncode, said)
    return done


def every(tmp_path: Path) -> list[list[str]]:
    """Every command that ends by itself, called in a way that does something."""
    found = []
    for path in paths(command_line.app):
        if path in ELSE:
            words = [*path.split(), *(w.replace("FILE", str(tmp_path / "f")) for w in ELSE[path])]
        elif path in ELSEWHERE:
            assert path in GOING_ON, path
            continue
        else:
            words = [*call(path, tmp_path), *LIMITED.get(path, [])]
        found.append(words)
    return found


@pytest.fixture(scope="module")
def there(namesrv: str) -> str:
    """A topic with letters and bytes of every kind, and a group that has read of it."""
    quick = Quick(namesrv)
    quick("topic", "create", "odd-there", "-q", "1").worked()
    quick("send", "odd-there", "订单 ─ é \x1b[2J", "--keys", "订单", "--tags", "é").worked()
    quick("send", "odd-there", "--stdin", "--whole", stdin=b"\xff\xfe\x00").worked()
    quick("consume", "odd-there", "-g", "odd-group", "--from", "earliest", "--max", "1").worked()
    return "odd-there"


# --- streams --------------------------------------------------------------------------------------


def test_a_closed_output_is_told(namesrv: str) -> None:
    done = ended(["topic", "list"], '"$@" >&-', namesrv=namesrv)
    assert (done.returncode, done.stderr) == (
        1, b"error: the output is closed: there is no stdout\n",
    )  # fmt: skip


def test_a_full_disk_is_told_once(namesrv: str) -> None:
    done = ended(["topic", "list"], '"$@" >/dev/full', namesrv=namesrv)
    assert (done.returncode, done.stderr) == (1, b"error: No space left on device\n")


def test_what_cannot_be_printed_is_not_consumed(namesrv: str, quick: Quick) -> None:
    quick("topic", "create", "odd-unread", "-q", "1").worked()
    quick("send", "odd-unread", "still here").worked()
    words = ["consume", "odd-unread", "-g", "odd-reader", "--from", "earliest", "--max", "1"]
    assert ended(words, '"$@" >&-', namesrv=namesrv).returncode == 1
    assert ended(words, namesrv=namesrv).stdout == b"still here\n"


def test_a_closed_input_is_an_empty_one(namesrv: str) -> None:
    done = ended(["send", "odd-closed", "--stdin"], '"$@" <&-', namesrv=namesrv)
    assert done.returncode in (0, 1)


def test_a_closed_stderr_changes_no_exit_code(namesrv: str) -> None:
    assert ended(["topic", "status", "odd-none"], '"$@" 2>&-', namesrv=namesrv).returncode == 1
    assert ended(["topic", "list"], '"$@" 2>&-', namesrv=namesrv).returncode == 0


@pytest.mark.long
def test_all_streams_closed_put_nothing_into_files(tmp_path: Path) -> None:
    """The next files that are opened would be standard output and error."""
    store = tmp_path / "store"
    words = ["serve", "--store", str(store), "--namesrv-port", "0", "--broker-port", "0"]
    assert ended(words, '"$@" <&- >&- 2>&-').returncode == 1
    left = [f for f in store.rglob("*") if f.is_file()]
    assert not [f for f in left if b"ready" in f.read_bytes()[:4096]]


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["topic", "status", b"\xff"],
        ["group", "lag", b"g\xff"],
        ["consume", "t", "--group", b"\xff"],
        ["send", "t", "--file", b"/tmp/\xff"],
        [b"\xff"],
        ["--key-file", b"\xff", "topic", "list"],
        ["-n", b"\xff:1", "topic", "list"],
    ],
    ids=["topic", "group", "option", "file", "command", "key file", "name server"],
)
def test_arguments_that_are_no_text_are_refused(words: list[str | bytes], namesrv: str) -> None:
    done = ended(words, env=C, namesrv=namesrv)
    assert done.returncode == 2
    assert b"is not UTF-8" in done.stderr


def test_a_body_of_any_letters_goes_through_any_locale(there: str, namesrv: str) -> None:
    tail = ["message", "tail", there, "--last", "2", "--max", "2"]
    for words in (tail, [*tail, "--json"]):
        done = ended(words, env=C, namesrv=namesrv)
        assert done.returncode == 0
        assert done.stdout.isascii()
        assert b"\\xe9" in done.stdout or b"\\u00e9" in done.stdout


# --- places ---------------------------------------------------------------------------------------


def test_a_directory_that_is_gone_is_no_mistake(tmp_path: Path, namesrv: str) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    away = f'rmdir "{gone}"; "$@"'
    assert ended(["topic", "list"], away, namesrv=namesrv, cwd=gone).returncode == 0
    gone.mkdir()
    done = ended(["serve", "--store", "here"], away, cwd=gone)
    assert done.returncode == 1
    assert b"No such file or directory" in done.stderr


def test_a_user_without_a_home_is_told_what_to_do() -> None:
    code = (
        "import os, pwd, sys; os.environ.pop('HOME', None); pwd.getpwuid = {}.__getitem__; "
        "from rocketstream.cli.main import main; sys.exit(main())"
    )
    words = ["dashboard", "-n", "127.0.0.1:1", "--port", "0"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True, env=environment(), timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: this user has no home directory")
    assert b"set HOME" in done.stderr
    assert done.stderr.count(b"\n") == 1


# --- every command --------------------------------------------------------------------------------


def test_every_command_is_called_here() -> None:
    assert set(paths(command_line.app)) <= {*ARGUMENTS, *ELSE, *GOING_ON}


@pytest.mark.long
@pytest.mark.timeout(600)  # some fifty commands, one after the other, each with a bound of its own
def test_every_command_ends_properly_in_an_odd_environment(
    there: str, namesrv: str, tmp_path: Path
) -> None:
    """Without UTF-8, a terminal, a home, and on one column."""
    for words in every(tmp_path):
        ended(words, env=ODD, namesrv=namesrv)


@pytest.mark.long
@pytest.mark.timeout(600)  # some fifty commands, one after the other, each with a bound of its own
@pytest.mark.parametrize("shell", ['"$@" >&-', '"$@" >/dev/full', '"$@" <&- >&- 2>&-'])
def test_every_command_ends_properly_without_its_streams(
    shell: str, there: str, namesrv: str, tmp_path: Path
) -> None:
    for words in every(tmp_path):
        ended(words, shell, namesrv=namesrv)


def test_every_command_refuses_arguments_that_are_no_text(quick: Quick, tmp_path: Path) -> None:
    for words in every(tmp_path):
        done = quick(*words, os.fsdecode(b"\xff"))
        assert done.code == 2, words
        assert "is not UTF-8" in done.err, words
