"""Runs docs/spark-writing.md's declarative pipeline on Spark Connect: ``NAMESRV ROOT``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.pipelines.cli import run
from pyspark.sql import SparkSession

from rocketstream.spark.setup.preparation import local_python, use_java
from tests.kits.spark.support import CONNECT_ON_ANY_PORT, page_example

SPEC = """name: orders
storage: file://{root}/storage
libraries:
  - glob:
      include: transformations/**
"""


def main(name_server: str, root: Path) -> None:
    """Run the pipeline once, to its end."""
    use_java()
    os.environ["PYSPARK_PYTHON"] = local_python()
    os.environ["SPARK_LOCAL_DIRS"] = str(root / "local")
    os.environ.update(CONNECT_ON_ANY_PORT)
    definitions = root / "transformations"
    definitions.mkdir()
    text = page_example("declarative").replace("127.0.0.1:9876", name_server)
    (definitions / "orders.py").write_text(text, encoding="utf-8")
    (root / "pipeline.yml").write_text(SPEC.format(root=root), encoding="utf-8")
    os.chdir(root)
    SparkSession.builder.remote("local[2]").getOrCreate()
    run(root / "pipeline.yml", [], False, [], False)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
