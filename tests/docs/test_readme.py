"""Every example of the README runs as printed, against a server of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rocketstream.server.embedded import EmbeddedCluster

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = re.compile(r"<!-- test: (\w+) -->\n```python\n(.*?)```", re.DOTALL)
DEFAULT_ADDR = "127.0.0.1:9876"


def examples() -> dict[str, str]:
    """Return the marked examples by name."""
    return dict(EXAMPLE.findall((ROOT / "README.md").read_text(encoding="utf-8")))


def path_not_activated(folder: Path) -> str:
    """Return a PATH on which ``python3`` is a Python without this package."""
    foreign = folder / "foreign"
    if not foreign.exists():
        foreign.mkdir()
        (foreign / "python3").symlink_to(Path(sys.executable).resolve())
    own = Path(sys.executable).parent
    others = [name for name in os.environ["PATH"].split(os.pathsep) if Path(name) != own]
    return os.pathsep.join([str(foreign), *others])


def run_example(name: str, namesrv_addr: str, folder: Path) -> str:
    """Run one example by path, no environment activated, at the address of a running server.

    Returns what it printed.
    """
    text = examples()[name]
    assert DEFAULT_ADDR in text, "an example that does not say where the server is"
    script = folder / f"{name}.py"
    script.write_text(text.replace(DEFAULT_ADDR, namesrv_addr), encoding="utf-8")
    hidden = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment["PATH"] = path_not_activated(folder)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=110,
        cwd=folder,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.spark
def test_the_examples_tell_one_story(tmp_path: Path) -> None:
    """What the first sends, the second consumes and the last averages."""
    with EmbeddedCluster(tmp_path / "store") as cluster:
        produced = run_example("produce", cluster.namesrv_addr, tmp_path)
        assert "SEND_OK" in produced
        consumed = run_example("consume", cluster.namesrv_addr, tmp_path)
        assert "50 flights from JFK" in consumed
        table = run_example("spark", cluster.namesrv_addr, tmp_path)
    rows = dict(re.findall(r"\|\s*(JFK|LGA)\s*\|\s*([\d.]+)", table))
    delays = {"JFK": [n % 7 for n in range(100) if n % 2], "LGA": [n % 7 for n in range(0, 100, 2)]}
    assert {tag: float(text) for tag, text in rows.items()} == pytest.approx(
        {tag: sum(values) / len(values) for tag, values in delays.items()}
    )


def test_examples_are_short() -> None:
    """An example that does not fit in a glance is not one (about 15 lines of code each)."""
    for name, text in examples().items():
        code = [line for line in text.splitlines() if line.strip()]
        assert len(code) <= 22, f"{name} has {len(code)} lines"
