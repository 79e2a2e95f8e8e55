"""Uses a topic in every way from workers that lack the package: ``NAMESRV TOPIC STORE ROOT``.

Workers run with a Python whose ``sitecustomize`` hides the package, as a cluster's would lack it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"rocketstream", "pyspark_rocketmq", "pyspark_rocketmq_progress"}:
            raise ModuleNotFoundError(f"hidden: {name}", name=name)

sys.meta_path.insert(0, Hidden())
"""


def main(name_server: str, topic: str, store: str, root: Path) -> None:
    """Count rows: batch, stream, progress in both, the batch written back, the same from the
    broker's files; calls of a listener."""
    hide = root / "hide"
    hide.mkdir()
    (hide / "sitecustomize.py").write_text(HIDE)
    python = root / "python-without-the-package"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={hide}:$PYTHONPATH exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    os.environ["PYSPARK_PYTHON"] = str(python)
    from rocketstream.model import ConsumeConcurrentlyStatus
    from rocketstream.spark import consume, register
    from tests.plugins.spark import session_builder

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
    files = spark.read.format("rocketmq").options(storePath=store, topic=topic)
    print(files.schema("body BINARY").load().count())
    calls = root / "calls"

    def listener(messages: list[Any]) -> ConsumeConcurrentlyStatus:
        with calls.open("ab") as notes:
            notes.write(b"1")
        # Statuses are told apart by identity, also where their class came in two pickles.
        if int(messages[0].body) == 3:
            return ConsumeConcurrentlyStatus.RECONSUME_LATER
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    rows = spark.read.format("rocketmq").options(**options).load()
    consume(rows, listener, group="by-value", nameServer=name_server).save()
    print(len(calls.read_bytes()))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
