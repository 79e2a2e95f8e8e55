"""The command line rests on nothing that Windows lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rocketstream.server.embedded import EmbeddedCluster
from tests.commands import platform_program

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")


def test_commands_change_send_consume_and_list_without_it(
    rocketmq_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """A service of Windows has no USERNAME, and there is no other place to look for the user."""
    environ = {name: value for name, value in os.environ.items() if name not in NAMES}
    done = subprocess.run(
        [sys.executable, platform_program.__file__, rocketmq_cluster.namesrv_addr],
        cwd=ROOT,
        env={**environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    created, sent, consumed, *listed = done.stdout.splitlines()
    assert created.startswith("created Platform")
    assert sent.startswith("SEND_OK Platform")
    assert consumed == "hello"
    assert listed[-1] == "1 group"
    (audit,) = tmp_path.rglob("audit.jsonl")
    assert '"who": "unknown"' in audit.read_text()
