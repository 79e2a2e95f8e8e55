"""Reads and writes a topic in workers that do not have the package: ``NAMESRV TOPIC ROOT``.

Workers run with a Python whose ``sitecustomize`` hides the package, as a cluster's would lack it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"rocketstream", "pyspark_rocketmq", "pyspark_rocketmq_progress"}:
            raise ModuleNotFoundError(f"hidden: {name}", name=name)

sys.meta_path.insert(0, Hidden())
"""


def main(name_server: str, topic: str, root: Path) -> None:
    """Count rows: of a batch, a stream, a group's progress in both, and the batch written back."""
    hide = root / "hide"
    hide.mkdir()
    (hide / "sitecustomize.py").write_text(HIDE)
    python = root / "python-without-the-package"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={hide}:$PYTHONPATH exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    os.environ["PYSPARK_PYTHON"] = str(python)
    from rocketstream.spark import register
    from tests.spark.conftest import session_builder

    spark = session_builder(root).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark, by_value=True)
    options = {"nameServer": name_server, "topic": topic, "startingOffsets": "earliest"}
    batch = spark.read.format("rocketmq").options(**options).schema("body BINARY").load()
    stream = spark.readStream.format("rocketmq").options(**options).schema("body BINARY").load()
    writer = stream.writeStream.format("parquet").option("path", str(root / "table"))
    writer = writer.option("checkpointLocation", str(root / "checkpoint"))
    print(batch.count())
    writer.trigger(availableNow=True).start().awaitTermination()
    print(spark.read.parquet(str(root / "table")).count())
    asked = {"nameServer": name_server, "groups": "nobody"}
    print(spark.read.format("rocketmq-progress").options(**asked).load().count())
    history = spark.readStream.format("rocketmq-progress").options(**asked).load()
    writer = history.writeStream.format("parquet").option("path", str(root / "history"))
    writer = writer.option("checkpointLocation", str(root / "history-checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    print(spark.read.parquet(str(root / "history")).count())
    sink = batch.write.format("rocketmq").option("nameServer", name_server)
    sink.option("topic", topic).mode("append").save()
    again = spark.read.format("rocketmq").options(**options).schema("body BINARY").load()
    print(again.count())
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
