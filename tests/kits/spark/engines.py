"""Engines of their own: Spark as a program, not in the process of the tests."""

from __future__ import annotations

import os
from pathlib import Path

import pyspark

from rocketstream.spark.setup.preparation import local_python, use_java

ROOT = Path(__file__).resolve().parents[3]
SPARK_HOME = Path(pyspark.__file__).parent


def environment() -> dict[str, str]:
    """What a Spark of its own is started with."""
    use_java()
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    return os.environ | {
        "PYTHONPATH": paths,
        "PYSPARK_PYTHON": local_python(),
        "PYSPARK_DRIVER_PYTHON": local_python(),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
