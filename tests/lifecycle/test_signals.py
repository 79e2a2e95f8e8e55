"""A signal handler may use the client whose call it interrupts: it works or is refused at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rocketstream.server.embedded import EmbeddedCluster
from tests.lifecycle import signal_program

ROOT = Path(__file__).resolve().parents[2]
CASES = {
    "producer": ["send,send", "async,result", "result,result", "flush,async", "async,shutdown,9"],
    "gathering": ["async,result", "result,async", "flush,flush,2", "result,shutdown,23"],
    "poller": ["poll,poll", "poll,commit", "commit,poll,2", "poll,shutdown,11"],
    "pushed": ["told,told", "told,shutdown,17"],
}
"""What is interrupted, by what, and at each how many steps; a shutdown takes a new client each."""


@pytest.mark.skipif(sys.platform == "win32", reason="handlers run between any two steps elsewhere")
@pytest.mark.parametrize("kind", CASES)
def test_a_handler_never_waits_for_the_call_it_interrupts(
    kind: str, rocketmq_cluster: EmbeddedCluster
) -> None:
    """At no step of a call: what waits for itself is ended, and the program says where it stood."""
    cases = [f"{kind},{each}" for each in CASES[kind]]
    done = subprocess.run(
        [sys.executable, "-m", signal_program.__name__, rocketmq_cluster.namesrv_addr, *cases],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{each} steps" for each in cases]
