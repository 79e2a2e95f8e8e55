"""The core of the Spark tests on the older Sparks that are supported, each in its last release.

Spark alone is another one: everything else is this environment's. Each release is installed once,
beside the environment, by ``scripts/spark_versions.py``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.spark_versions import VERSIONS, installed

pytestmark = [pytest.mark.spark, pytest.mark.versions, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[2]
CORE_MIN = 20
"""Tests that must have run and passed: an empty core would pass too."""
CORE = [
    str(path)
    for path in (ROOT / "tests").rglob("test_*.py")
    if "mark.core" in path.read_text("utf-8")
]
"""Files with tests of the core; others need not be importable on an older Spark."""


def environment(version: str) -> dict[str, str]:
    """This process's environment with another Spark before its own."""
    folders = [str(installed(version)), str(ROOT / "src"), str(ROOT)]
    without = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    return without | {"PYTHONPATH": os.pathsep.join(folders)}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_core_holds_on_an_older_spark(version: str, tmp_path: Path) -> None:
    """In a process of its own; warnings of an old Spark about itself are not ours to mend."""
    surroundings = environment(version)
    asked = [sys.executable, "-c", "import pyspark; print(pyspark.__version__)"]
    found = subprocess.run(asked, env=surroundings, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == version
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "core"]
    words += [
        "-o",
        "filterwarnings=",
        "-o",
        "timeout=300",
        "--basetemp",
        str(tmp_path / "tests"),
        *CORE,
    ]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=surroundings,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None, done.stdout
    assert int(passed[1]) >= CORE_MIN, done.stdout
