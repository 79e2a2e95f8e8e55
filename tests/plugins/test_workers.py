"""Workers of a run: one that dies, and Ctrl-C in what they start."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

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
TELLS_WORKER = """
import os, pytest

{mark}def test_one():
    with open({ran!r}, "a") as told:
        told.write("{kind} %d\\n" % os.getpid())
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


@pytest.mark.parametrize("spark_workers", [1, 2])
def test_the_first_workers_alone_run_the_files_of_spark_before_any_other(
    tmp_path: Path, spark_workers: int
) -> None:
    """Begun last, they would be run while the others have ended."""
    ran = tmp_path / "ran"
    for number in range(16):
        kind = "spark" if number >= 8 else "other"
        mark = "@pytest.mark.spark\n" if kind == "spark" else ""
        text = TELLS_WORKER.format(mark=mark, ran=str(ran), kind=kind)
        (tmp_path / f"test_{number:02}.py").write_text(text, "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\ntimeout = 60\nmarkers = spark\n", "utf-8")
    workers = ["-n", "3", "--dist", "loadfile", "--spark-workers", str(spark_workers)]
    done = subprocess.run(
        [*PYTEST, *workers, str(tmp_path)], capture_output=True, text=True, timeout=100
    )
    assert "16 passed" in done.stdout, done.stdout
    of_worker = defaultdict[str, list[str]](list)
    for kind, worker in map(str.split, ran.read_text("utf-8").splitlines()):
        of_worker[worker].append(kind)
    have_spark = [kinds for kinds in of_worker.values() if "spark" in kinds]
    assert 1 <= len(have_spark) <= spark_workers
    assert all(kinds == sorted(kinds, reverse=True) for kinds in have_spark)


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
