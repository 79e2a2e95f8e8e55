"""Running a declarative pipeline's project by Spark's own command, in a place of the test's.

Law: no pytest here; the project is copied, only addresses and folders are other ones.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from rocketstream.server.embedded import EmbeddedCluster
from rocketstream.spark.setup.preparation import local_python, use_java
from tests.kits.spark.support import CONNECT_ON_ANY_PORT

ROOT = Path(__file__).resolve().parents[3]
_COMMAND = Path(sys.executable).with_name("spark-pipelines")


def placed(project: Path, cluster: EmbeddedCluster, folder: Path) -> Path:
    """Copy a project to a folder; return its specification, with that folder and this cluster."""
    copy = folder / project.name
    shutil.copytree(project, copy)
    spec = copy / "spark-pipeline.yml"
    text = spec.read_text(encoding="utf-8")
    assert "file:///tmp/rocketstream-" in text
    assert "127.0.0.1:9876" in text
    text = text.replace("127.0.0.1:9876", cluster.namesrv_addr)
    spec.write_text(text.replace("file:///tmp/", f"file://{folder}/"), encoding="utf-8")
    return spec


def pipeline_environment(folder: Path, **more: str) -> dict[str, str]:
    """The environment of the command, as ``rocketstream spark-env`` makes it."""
    use_java()
    return os.environ | {
        "PYSPARK_PYTHON": local_python(),
        "PYSPARK_DRIVER_PYTHON": local_python(),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        **CONNECT_ON_ANY_PORT,
        **more,
    }


def run_pipeline(spec: Path, environment: Mapping[str, str]) -> None:
    """Run a pipeline to its end."""
    _run([str(_COMMAND), "run", "--spec", str(spec)], spec.parent, environment)


def _run(words: list[str], folder: Path, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        words,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4_000:]
    return done.stdout
