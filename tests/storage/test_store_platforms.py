"""A broker and its store work where only Linux's ways are missing: as on macOS, as on Windows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kits import platform_program

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("system", "loop"), [("darwin", "_UnixSelectorEventLoop"), ("win32", "WindowsLoop")]
)
def test_a_store_is_written_locked_and_recovered_without_it(
    tmp_path: Path, system: str, loop: str
) -> None:
    """No fdatasync, fallocate, pread, holes of files, fcntl or uvloop, as far as each lacks them.

    On Windows the loop watches no sockets for its users, so the servers do not accept themselves.

    Each of two brokers on one store stores three messages; the second finds those of the first.
    """
    done = subprocess.run(
        [sys.executable, platform_program.__file__, system, str(tmp_path / "store")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    said = f"3 {loop}\nlocked\n6 {loop}\nlocked\n"
    assert (done.returncode, done.stdout) == (0, said), done.stderr
