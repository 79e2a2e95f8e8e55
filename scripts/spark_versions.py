"""Install the older Sparks that are supported, for the tests that run on them.

Each goes into a folder of its own that is put before the environment's packages, so that Spark
alone is another one. Made once and kept: run `python -m scripts.spark_versions` to have them ahead
of the tests. PySpark exists as source only; its wheel is built with what the environment pins.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".spark-versions"
VERSIONS = ("4.0.5", "4.1.4", "4.2.1")
"""The last release of each line before the one in constraints.txt."""


def installed(version: str) -> Path:
    """Return the folder of a version, installing it first where it is not there whole.

    Blocks for half a minute or more then, and while another process does the same.

    Raises:
        RuntimeError: pip failed; the text is what it printed.
    """
    folder = HOME / version
    with _alone(version):
        if not (folder / ".whole").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _install(version, folder)
            (folder / ".whole").touch()
    return folder


@contextmanager
def _alone(version: str) -> Iterator[None]:
    """Hold the lock of a version; it ends with the process at the latest."""
    HOME.mkdir(exist_ok=True)
    handle = os.open(HOME / f"{version}.lock", os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _install(version: str, folder: Path) -> None:
    # Py4J, all it needs, is the environment's: one release serves Spark 4.0 to 4.3.
    words = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    words += ["--progress-bar", "off", "--no-build-isolation", "--no-deps", "--no-cache-dir"]
    words += ["--target", str(folder), f"pyspark=={version}"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"cannot install PySpark {version}:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    for each in VERSIONS:
        print(installed(each))
