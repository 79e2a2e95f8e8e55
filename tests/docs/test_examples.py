"""The examples run as they stand, without a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(words: list[str], folder: Path) -> str:
    """Run a program in an empty folder; return what it printed."""
    environment = {name: value for name, value in os.environ.items() if name != "NAMESRV_ADDR"}
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", *words],
        capture_output=True,
        text=True,
        timeout=90,
        cwd=folder,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("orders.py", "200 of 200 orders billed, 4 after a retry"),
        (
            "in_order.py",
            "199 of 200 bookings, 20 of 20 accounts in order; the wrong one was given up",
        ),
        ("aio_echo.py", "500 of 500 messages came back"),
        ("lite_agents.py", "this needs a cluster of Apache's 5.5 or later"),
        ("pull.py", "pulled 100 messages of 4 queues"),
        ("simulate_listener.py", "careful: 20 seeds, nothing found"),
        pytest.param(
            "traced.py",
            "  send orders\n    process orders  ! LookupError\n      look up",
            marks=pytest.mark.long,
        ),
        pytest.param("celery_tasks.py", "200 of 200 orders billed", marks=pytest.mark.long),
        pytest.param("taskiq_tasks.py", "200 of 200 orders billed", marks=pytest.mark.long),
        pytest.param("faststream_orders.py", "200 of 200 orders billed", marks=pytest.mark.long),
        ("transaction.py", "30 tickets for 50 customers: 27 committed at once, 3 when the broker"),
    ],
)
def test_an_example_says_what_it_promises(name: str, said: str, tmp_path: Path) -> None:
    assert said in run([str(EXAMPLES / name)], tmp_path)


def test_the_pytest_example_passes(tmp_path: Path) -> None:
    """It uses the fixture the installed package brings along."""
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    assert "1 passed" in run([*words, str(EXAMPLES / "test_your_service.py")], tmp_path)
