"""The demo as a program: it proves its figures, and Ctrl-C leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
import uuid
from pathlib import Path

import pytest

from demo.__main__ import missing
from tests.plugins.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 500
MARK = "ROCKETSTREAM_DEMO_TEST"

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(TIMEOUT_S + 100),
]


class DemoRun:
    """A run of the demo in a session of its own, as a terminal would start it."""

    def __init__(self, data: Path, flights: int, **environment: str) -> None:
        self.mark = uuid.uuid4().hex
        self.output = data.parent / "output.txt"
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "demo", "--data", str(data), "--flights", str(flights)],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment, MARK: self.mark},
                start_new_session=True,
            )

    def text(self) -> str:
        return self.output.read_text("utf-8")

    def wait(self) -> int:
        return self.process.wait(TIMEOUT_S)

    def press_ctrl_c(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def left_running(self) -> list[str]:
        """Return the command lines of processes that this run started and that still run."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "demo-data"


def test_everything_the_demo_needs_is_named_when_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert missing() is None
    monkeypatch.setattr("demo.__main__.PYTHON_MIN", (4, 0))
    assert "make demo PYTHON=" in (missing() or "")
    monkeypatch.setattr("demo.__main__.PYTHON_MIN", (3, 11))
    monkeypatch.setattr("demo.__main__.NEEDED", ("rocketstream", "no_such_package"))
    assert "no_such_package" in (missing() or "")


def test_small_run_proves_its_figures_and_leaves_nothing_running(data: Path) -> None:
    run = DemoRun(data, 5_000)
    assert run.wait() == 0, run.text()
    text = run.text()
    assert "all figures of all carriers agree" in text
    for source in (
        "CSV",
        "push consumers \\+ dead letters",
        "Spark listener \\+ dead letters",
        "Parquet table",
    ):
        assert re.search(rf"{source} +5,000 +\d+", text), source
    # Flights 7, 1007, 2007, 3007 and 4007 are refused, the first of them for ever.
    assert re.search(r"consumed at the first delivery +4,995 +4,995 ", text)
    assert re.search(r"refused, then consumed +4 +4 ", text)
    assert re.search(r"dead letter +1 +1 ", text)
    assert re.search(r"no gate free at \w+ +1 +1 ", text)
    for group, dead in (("flight-table", 0), ("flight-totals", 1), ("flight-totals-spark", 1)):
        assert re.search(rf" {group} +5,000 +0 +0 +{dead} ", text), group
    (place,) = data.iterdir()
    assert (place / "departure-delay.png").stat().st_size > 10_000
    assert {path.name for path in (place / "flights.parquet").glob("origin=*")} == {
        "origin=EWR",
        "origin=JFK",
        "origin=LGA",
    }
    if Path("/proc/self/environ").exists():
        assert run.left_running() == []


@pytest.mark.long
@pytest.mark.parametrize("moment", ["1. Start", "2. Send", "4. Land"])
def test_ctrl_c_at_any_step_ends_quietly_and_leaves_nothing_running(
    data: Path, moment: str
) -> None:
    run = DemoRun(data, 100_000 if moment == "2. Send" else 2_000)
    wait_until(lambda: moment in run.text(), f"step {moment!r}", TIMEOUT_S)
    run.press_ctrl_c()
    assert run.wait() == 130, run.text()
    assert "stopped; nothing is left running" in run.text()
    assert "Traceback" not in run.text()
    if Path("/proc/self/environ").exists():
        assert run.left_running() == []


@pytest.mark.long
def test_the_dashboard_at_its_end_shows_the_demos_data_until_ctrl_c(data: Path) -> None:
    run = DemoRun(data, 2_000, DASHBOARD="1")

    def address() -> str | None:
        assert run.process.poll() is None, run.text()
        found = re.search(r"(http://127\.0\.0\.1:\d+)/?  \(Ctrl-C ends it\)", run.text())
        return found[1] if found else None

    base = wait_until(address, "address of the dashboard", TIMEOUT_S)
    groups = wait_until(lambda: seen_at(base, "/", "flight-totals-spark"), "groups on the page")
    assert "flight-totals" in groups
    assert "flight-table" in groups
    assert seen_at(base, "/topics", "flights") is not None
    run.press_ctrl_c()
    assert run.wait() == 0, run.text()
    assert "done in" in run.text()
    assert "Traceback" not in run.text()
    (place,) = data.iterdir()
    assert (place / "history.db").stat().st_size > 0
    if Path("/proc/self/environ").exists():
        assert run.left_running() == []


def seen_at(base: str, path: str, words: str) -> str | None:
    """A page, where it has these words."""
    with urllib.request.urlopen(base + path, timeout=30) as answer:
        text: str = answer.read().decode()
    return text if words in text else None


def test_missing_java_is_one_line(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    done = subprocess.run(
        [sys.executable, "-m", "demo", "--data", str(tmp_path / "demo-data")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**environment, "PATH": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "Java 17" in done.stderr
    assert done.stderr.count("\n") == 1


def test_directory_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "demo", "--data", str(tmp_path / "file" / "data")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "--data DIR" in done.stderr
    assert done.stderr.count("\n") == 1
