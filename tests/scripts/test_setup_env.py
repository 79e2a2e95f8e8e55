"""Set-up says why it failed, in one line, and what was cut short is made anew."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import setup_env

ROOT = Path(__file__).resolve().parents[2]
OUTPUTS = Path(__file__).parent / "pip_outputs"
"""What pip 23.2.1 (comes with Python 3.11 and 3.12) and 26.3 printed; only paths were changed."""

REASONS = {
    "certificate": "certificate verify failed: self-signed certificate",
    "conflict": "The user requested orjson>=3.14; The user requested (constraint) orjson==3.13.0",
    "forbidden": "No matching distribution found for orjson",
    "forbidden-asked-again": "403 Client Error: Forbidden for url: http://127.0.0.1:8931/",
    "full-disk": "No space left on device",
    "no-setuptools": "ModuleNotFoundError: No module named 'setuptools'",
    "no-such-version": "No matching distribution found for orjson==99.0",
    "no-wheel": "error: invalid command 'bdist_wheel'",
    "pinned-to-nothing": "The user requested orjson; The user requested (constraint) orjson==99.0",
    "proxy-26.3": "Connection refused (asked: https://index.invalid/simple)",
    "proxy": "Cannot connect to proxy (asked: https://index.invalid/simple)",
    "refused": "Connection refused (asked: http://127.0.0.1:9/simple)",
    "unknown-host": "Name or service not known (asked: https://no-such-host.invalid/simple)",
    "unwritable": "Permission denied: '/home/user/rocketstream/.venv/lib/python3.",
}
OWN = {"proxy-26.3"}
KINDS = {path: path.stem.rpartition("-")[0] for path in sorted(OUTPUTS.glob("*.txt"))}


def environment(folder: Path) -> setup_env.Environment:
    """Return one whose folder has a Python with pip, as a whole one has."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    return setup_env.Environment(str(folder))


@pytest.mark.parametrize("path", KINDS, ids=lambda path: path.stem)
def test_reason_is_pips_own_in_one_line(path: Path) -> None:
    reason = setup_env.reason(path.read_text(encoding="utf-8"))
    assert reason.startswith(REASONS.get(path.stem) or REASONS[KINDS[path]])
    assert "\n" not in reason
    assert len(reason) < 200


@pytest.mark.parametrize("path", KINDS, ids=lambda path: path.stem)
def test_only_an_index_that_answers_without_a_word_is_asked_again(path: Path) -> None:
    asked = setup_env.unexplained(path.read_text(encoding="utf-8"))
    unclear = {"forbidden", "pinned-to-nothing"}
    assert asked == ("orjson" if KINDS[path] in unclear else "")


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("", "it said nothing"),
        ("Error: [Errno 28] No space left on device: '/x/.venv'\n", "No space left on device"),
        ("/usr/bin/python3: No module named venv\n", "/usr/bin/python3: No module named venv"),
        (
            "The virtual environment was not created successfully because ensurepip is not\n"
            "available.  On Debian/Ubuntu systems, you need to install the python3-venv\n"
            "package using the following command.\n\n    apt install python3.11-venv\n",
            "apt install python3.11-venv",
        ),
        (
            "  error: command 'gcc' failed: No such file or directory\n"
            "  [end of output]\n  ERROR: Failed building wheel for lz4\n"
            "ERROR: Could not build wheels for lz4, which is required to install\n",
            "error: command 'gcc' failed",
        ),
    ],
)
def test_reason_of_what_no_recording_shows(output: str, reason: str) -> None:
    assert setup_env.reason(output).startswith(reason)


@pytest.fixture
def pip_answers(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Every program called answers as pip did on a full disk; returns what was called."""
    called: list[list[str]] = []

    def call(self: setup_env.Environment, words: list[str]) -> tuple[int, str]:
        called.append(words)
        return 0 if "venv" in words else 1, output[0]

    output = [(OUTPUTS / "full-disk-26.3.txt").read_text(encoding="utf-8")]
    monkeypatch.setattr(setup_env.Environment, "_call", call)
    return called


def test_whole_environment_is_kept_and_one_cut_short_made_anew(
    tmp_path: Path, pip_answers: list[list[str]]
) -> None:
    made = environment(tmp_path / "env")
    made.begin()
    assert pip_answers == []
    made.begin()  # the first never ended
    assert pip_answers == [[sys.executable, "-m", "venv", "--clear", str(tmp_path / "env")]]


def test_environment_without_a_working_pip_is_made_anew(
    tmp_path: Path, pip_answers: list[list[str]]
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("/gone/python3")
    setup_env.Environment(str(tmp_path)).begin()
    assert [words[2] for words in pip_answers] == ["venv"]


def test_installation_that_failed_half_way_is_made_anew(
    tmp_path: Path, pip_answers: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    made = environment(tmp_path / "env")
    made.begin()
    with pytest.raises(SystemExit):
        made.install(str(ROOT), ["numpy"])
    assert capsys.readouterr().err.count("\n") == 1
    assert "No space left on device" in Path(made.log).read_text(encoding="utf-8")
    pip_answers.clear()
    made.begin()
    assert [words[2] for words in pip_answers] == ["venv"]


def test_failure_before_anything_was_installed_costs_no_new_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = environment(tmp_path / "env")
    output = (OUTPUTS / "refused-26.3.txt").read_text(encoding="utf-8")
    monkeypatch.setattr(setup_env.Environment, "_call", lambda self, words: (1, output))
    made.begin()
    with pytest.raises(SystemExit):
        made.install(str(ROOT), ["numpy"])
    assert not Path(made.making).exists()


def test_stamp_names_the_place(tmp_path: Path) -> None:
    """So that an environment that was moved, whose scripts name the old place, is made anew."""
    made = environment(tmp_path / "env")
    made.begin()
    made.end()
    assert Path(made.ready).read_text(encoding="utf-8") == f"{tmp_path / 'env'}\n"
    assert not Path(made.making).exists()


@pytest.mark.slow
def test_unreachable_index_is_one_line(tmp_path: Path) -> None:
    """The real thing: nobody listens where the index should be."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/simple"
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
        settings = {"PIP_INDEX_URL": url, "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull}
        done = subprocess.run(
            [sys.executable, str(ROOT / "scripts" / "setup_env.py"), str(tmp_path / "an env")],
            env=kept | settings | {"HOME": str(tmp_path / "home")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"Connection refused (asked: {url})" in done.stderr
    assert (tmp_path / "an env" / "setup.log").exists()


def test_another_set_up_of_the_clone_is_waited_for(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", WHILE_ASKED, str(ROOT), str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "True\n"
    waiter = subprocess.Popen(
        [sys.executable, "-c", WHILE_ASKED, str(ROOT), str(tmp_path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert waiter.stdout is not None
    assert waiter.stdout.readline().startswith("waiting for another set-up")
    holder.communicate()
    assert waiter.communicate()[0] == "False\n"


WHILE_ASKED = """
import sys
sys.path.insert(0, sys.argv[1])
from scripts.setup_env import alone
print(alone(sys.argv[2]), flush=True)
sys.stdin.read()
"""


def test_names_of_recordings_are_all_expected() -> None:
    assert set(KINDS.values()) == {kind for kind in REASONS if kind not in OWN}
