"""Keep Spark's classes ready for the short-lived JVMs of the tests: they start in half the time.

A session of Spark loads and checks fifteen thousand classes before it computes anything. Java
writes them, once, into an archive that later JVMs map (class data sharing), and passes over one
that does not fit. ``tests/plugins/environment.py`` names it to every JVM of Spark's in a test.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from rocketstream.spark.setup.preparation import local_python, use_java

ARCHIVE = Path(sys.prefix, "share", "rocketstream", f"spark-{pyspark.__version__}.jsa")
# What most sessions do: a query with a shuffle, Python rows in and out, a stream into files.
PROGRAM = """
import sys, tempfile
from pyspark import SparkContext
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
numbers = spark.range(100).selectExpr("id", "id % 3 AS part", "string(id) AS text")
numbers.groupBy("part").count().collect()
numbers.mapInArrow(lambda batches: batches, numbers.schema).collect()
folder = tempfile.mkdtemp(dir=sys.argv[1])
numbers.write.parquet(folder + "/rows")
stream = spark.readStream.schema(numbers.schema).parquet(folder + "/rows").writeStream
stream = stream.format("parquet").option("checkpointLocation", folder + "/checkpoint")
stream.trigger(availableNow=True).start(folder + "/copy").awaitTermination()
spark.read.parquet(folder + "/copy").orderBy("id").collect()
java = SparkContext._gateway.proc
spark.stop()
java.stdin.close()
java.wait()  # it writes the archive when it ends
"""


def main() -> None:
    """Write the archive unless this Java has written it before."""
    java = use_java()
    told = ARCHIVE.with_suffix(".java")
    version = f"{java} {java.program.resolve()}"
    if ARCHIVE.exists() and told.exists() and told.read_text() == version:
        return
    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        draft = ARCHIVE.with_suffix(f".{os.getpid()}")
        options = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ArchiveClassesAtExit={draft}"
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM, folder],
            env=os.environ
            | {
                "SPARK_SUBMIT_OPTS": f"{options} -Xlog:disable -Djava.io.tmpdir={folder}",
                "PYSPARK_PYTHON": local_python(),
                "PYSPARK_DRIVER_PYTHON": local_python(),
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        if ended.returncode == 0 and draft.exists():
            draft.replace(ARCHIVE)
            told.write_text(version)
            print(f"kept Spark's classes in {ARCHIVE}")
        else:
            print("Spark's classes could not be kept; its sessions start slowly", file=sys.stderr)


if __name__ == "__main__":
    main()
