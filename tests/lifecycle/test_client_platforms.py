"""Nothing in the client rests on what only Linux has (its imports: `tests/tidy`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rocketstream.server.embedded import EmbeddedCluster
from tests.lifecycle import platform_program

ROOT = Path(__file__).resolve().parents[2]


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
