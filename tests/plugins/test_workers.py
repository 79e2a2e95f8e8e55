"""Workers of a run: one that dies, and Ctrl-C in what they start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DIES_ONCE = """
import os

def test_one():
    if not os.path.exists({told!r}):
        open({told!r}, "w").close()
        os._exit(3)
"""
HEARS = """
import signal, subprocess, sys

def test_one():
    program = "import signal; print(signal.getsignal(signal.SIGINT).__name__)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert said.stdout.strip() == "default_int_handler"
"""
PYTEST = [sys.executable, "-m", "pytest", "-p", "tests.plugins.workers", "-p", "no:cacheprovider"]


def test_a_run_whose_worker_died_after_many_files_comes_to_its_end(tmp_path: Path) -> None:
    for number in range(40):
        text = "def test_one(): pass\n"
        if number == 20:
            text = DIES_ONCE.format(told=str(tmp_path / "died"))
        (tmp_path / f"test_{number:02}.py").write_text(text, "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 60\n", "utf-8")
    done = subprocess.run(
        [*PYTEST, "-n", "2", "--dist", "loadfile", str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert "1 failed, 40 passed" in done.stdout


def test_files_of_spark_come_first_and_the_others_as_they_stand(tmp_path: Path) -> None:
    """One worker has them all: begun last, they would be run while the others have ended."""
    for name, mark in (("a", ""), ("b", "spark"), ("c", ""), ("d", "spark")):
        marked = f"import pytest\n\n\n@pytest.mark.{mark}\n" if mark else ""
        (tmp_path / f"test_{name}.py").write_text(f"{marked}def test_one(): pass\n", "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = spark\n", "utf-8")
    done = subprocess.run(
        [*PYTEST, "--collect-only", "-q", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    files = [line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line]
    assert files == ["test_b.py", "test_d.py", "test_a.py", "test_c.py"]


def test_programs_of_tests_hear_ctrl_c_though_the_run_was_begun_in_the_background(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_it.py").write_text(HEARS, "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 60\n", "utf-8")
    words = " ".join(map(repr, [*PYTEST, "-n", "1", str(tmp_path)]))
    done = subprocess.run(
        ["sh", "-c", f"{words} & wait $!"], capture_output=True, text=True, check=False, timeout=100
    )
    assert "1 passed" in done.stdout, done.stdout
