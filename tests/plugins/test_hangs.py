"""A test that no time-out ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HANGS = """
import threading
import pytest

@pytest.mark.timeout(0.2)
def test_waits_again_for_what_never_comes():
    never = threading.Event()
    while True:
        try:
            never.wait()
        except BaseException:
            pass
"""
QUICK = "from tests.plugins import hangs\nhangs.GRACE_S = hangs.COARSE_S = 0.2\n"


def test_a_test_that_goes_on_after_its_time_out_ends_its_worker_with_all_stacks(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_it.py").write_text(HANGS, "utf-8")
    (tmp_path / "conftest.py").write_text(QUICK, "utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", "utf-8")
    words = ["-p", "tests.plugins.hangs", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "in test_waits_again_for_what_never_comes" in done.stderr
    assert " passed" not in done.stdout
