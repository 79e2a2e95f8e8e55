"""The examples of the guide to pull consumers run as printed, one after the other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from rocketstream.server.embedded import EmbeddedCluster

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = re.compile(r"<!-- test: (\w+) -->\n```python\n(.*?)```", re.DOTALL)
DEFAULT_ADDR = "127.0.0.1:9876"
SAID = {
    "poll": "20 orders billed",
    "assign": "20 orders audited",
    "columns": "order 9",
    "window": "10 of 20 orders in the window",
    "schedule": "20 orders counted",
}


def test_every_example_says_what_it_promises(tmp_path: Path) -> None:
    """On one server: the later ones read what the first has sent."""
    text = (ROOT / "docs/pull-consumers.md").read_text(encoding="utf-8")
    examples = dict(EXAMPLE.findall(text))
    assert examples.keys() == SAID.keys()
    with EmbeddedCluster() as cluster:
        for name, program in examples.items():
            script = tmp_path / f"{name}.py"
            script.write_text(program.replace(DEFAULT_ADDR, cluster.namesrv_addr), encoding="utf-8")
            done = subprocess.run(
                [sys.executable, str(script)],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert SAID[name] in done.stdout
