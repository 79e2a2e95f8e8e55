"""The package as it is installed: a wheel of this source, unpacked where no source is.

What it depends on comes from the environment of the tests; ``tests/wheel`` installs it with pip.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def unpack(folder: Path) -> Path:
    """Build a wheel and unpack it below a folder; return the directory to put on the path."""
    folder.mkdir(parents=True, exist_ok=True)
    site = folder / "site"
    if site.exists():
        return site
    subprocess.run(
        [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--outdir",
            str(folder),
            str(ROOT),
        ],
        check=True,
        capture_output=True,
        timeout=300,
    )
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def environment(site: Path, home: Path) -> dict[str, str]:
    """The variables of a process that finds the unpacked package, and this one beside it."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ROCKETMQ", "ROCKETSTREAM", "PYTEST", "COV"))
        and name != "NAMESRV_ADDR"
    }
    path = os.pathsep.join((str(site), str(ROOT)))
    return {**kept, "PYTHONPATH": path, "HOME": str(home), "PYTHONUNBUFFERED": "1"}
