"""Nothing in the client rests on what only Linux has."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from rocketstream.server.embedded import EmbeddedCluster
from tests.lifecycle import platform_program

ROOT = Path(__file__).resolve().parents[2]
CLIENT = ("client", "transport", "protocol", "_util", "admin", "cli")
UNIX_ONLY = {"fcntl", "resource", "pwd", "grp", "termios", "pty", "posix", "uvloop"}


def test_no_module_of_the_client_imports_what_windows_lacks() -> None:
    """uvloop, resource and locks of files are asked for where they may be, nothing else is."""
    found: list[str] = []
    for part in CLIENT:
        for path in (ROOT / "src/rocketstream" / part).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = (
                    [alias.name for alias in node.names]
                    if isinstance(node, ast.Import)
                    else [node.module or ""]
                    if isinstance(node, ast.ImportFrom)
                    else []
                )
                found += [f"{path.name}: {name}" for name in names if name in UNIX_ONLY]
    assert sorted(found) == [
        "loops.py: uvloop", "machine.py: resource", "safety.py: fcntl", "screen.py: termios",
    ]  # fmt: skip


def test_sending_and_consuming_work_without_it(rocketmq_cluster: EmbeddedCluster) -> None:
    """A process without fork, poll, uvloop, MSG_DONTWAIT and the like sends and consumes."""
    done = subprocess.run(
        [sys.executable, platform_program.__file__, rocketmq_cluster.namesrv_addr],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "consumed\n"), done.stderr
