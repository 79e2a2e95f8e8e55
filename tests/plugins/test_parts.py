"""The order of a suite's files in CI, and what becomes of those whose time is over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.plugins.parts import in_order
from tests.tidy.source import ROOT


def test_files_that_waited_longest_come_first_and_then_the_longest() -> None:
    record = {
        "quick": {"ran": 200, "seconds": 1.0},
        "slow": {"ran": 200, "seconds": 90.0},
        "left": {"ran": 100, "seconds": 5.0},
    }
    files = [*record, "new", "quick"]
    assert in_order(files, record, 0, {}) == ["new", "left", "slow", "quick"]


def test_without_a_record_each_day_begins_at_another_file_after_the_long_ones() -> None:
    first = ["".join(in_order("abcLM", {}, day, {"L": 60, "M": 90})) for day in (2, 3, 4)]
    assert first == ["MLabc", "MLbca", "MLcab"]


def run(folder: Path, last_begin: str, *arguments: str) -> str:
    """Run the tests of a folder as a suite of CI, and return what is printed."""
    environment = {name: each for name, each in os.environ.items() if "PYTEST" not in name}
    environment |= {"CI_RECORD": str(folder / "record.json"), "CI_LAST_BEGIN": last_begin}
    command = [sys.executable, "-m", "pytest", "-p", "tests.plugins.parts", f"--rootdir={folder}"]
    plain = ["-p", "no:cacheprovider", "-c", os.devnull, "--import-mode=importlib", *arguments]
    done = subprocess.run(
        [*command, *plain, str(folder)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_a_file_whose_time_is_over_is_left_said_and_first_the_next_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"test_{name}.py").write_text("def test_one(): pass\ndef test_two(): pass\n")
    assert "4 passed" in run(tmp_path, "1e11")
    kept = json.loads((tmp_path / "record.json").read_text())
    assert kept.keys() == {"test_a.py", "test_b.py"}
    kept["test_b.py"]["ran"] = 1
    (tmp_path / "record.json").write_text(json.dumps(kept))

    # The first of b ends all time: what is begun is ended, what is not is left.
    (tmp_path / "test_b.py").write_text(
        "import time\ndef test_one(): time.time = lambda: float(10**12)\ndef test_two(): pass\n"
    )
    said = run(tmp_path, "1e11")
    assert "2 passed, 2 skipped" in said
    assert "left for the next run: test_a.py" in said
    after = json.loads((tmp_path / "record.json").read_text())
    assert after["test_a.py"] == kept["test_a.py"]
    assert after["test_b.py"]["ran"] > 1
    assert in_order(after, after, 0, {}) == ["test_a.py", "test_b.py"]


def test_a_file_that_would_end_much_too_late_is_left(tmp_path: Path) -> None:
    for name in ("short", "long"):
        (tmp_path / f"test_{name}.py").write_text("def test_one(): pass\n")
    record = {f"test_{n}.py": {"ran": 1, "seconds": s} for n, s in (("short", 300), ("long", 900))}
    (tmp_path / "record.json").write_text(json.dumps(record))
    said = run(tmp_path, str(time.time() + 200))
    assert "1 passed, 1 skipped" in said
    assert "left for the next run: test_long.py" in said


def test_workers_leave_files_too_and_the_record_is_written_once(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_one(): pass\n")
    said = run(tmp_path, "1", "-n", "1", "--dist", "loadfile")
    assert "1 skipped" in said
    assert "left for the next run: test_a.py" in said
    assert json.loads((tmp_path / "record.json").read_text()) == {}
