"""Reads, streams and writes on an engine: ``MASTER NAMESRV TOPIC COPY ROOT``.

``MASTER`` is a Spark master, or ``connect`` for Spark Connect. Prints the rows of a batch read of
``TOPIC``, of a stream of it into Parquet, and of ``COPY`` after the rows were written there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.spark.conftest import session_builder

MEMORY_MB = 1024


def session(master: str, root: Path) -> Any:
    """A session on that engine; its executors find this package as the driver does."""
    if master == "connect":
        os.environ["PYSPARK_PYTHON"] = sys.executable
        return SparkSession.builder.remote("local[2]").getOrCreate()
    builder = session_builder(root).master(master)
    builder = builder.config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
    builder = builder.config("spark.executor.memory", f"{MEMORY_MB}m")
    return builder.getOrCreate()


def main(master: str, name_server: str, topic: str, copy: str, root: Path) -> None:
    """Print the three counts."""
    spark = session(master, root)
    options = {"nameServer": name_server, "startingOffsets": "earliest"}
    rows = spark.read.format("rocketmq").options(topic=topic, **options).load()
    print(rows.select("body").distinct().count())

    stream = spark.readStream.format("rocketmq").options(topic=topic, **options).load()
    writer = stream.writeStream.format("parquet").option("path", str(root / "table"))
    writer = writer.option("checkpointLocation", str(root / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    print(spark.read.parquet(str(root / "table")).select("body").distinct().count())

    written = rows.select("body", "keys").write.format("rocketmq").mode("append")
    written.options(nameServer=name_server, topic=copy).save()
    again = spark.read.format("rocketmq").options(topic=copy, **options).load()
    print(again.select("body").distinct().count())
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], Path(sys.argv[5]))
