"""A streaming job in a process of its own, to be killed: topic to Parquet, 100 rows a batch.

Run as ``python driver_program.py NAMESRV TOPIC ROOT``. At message 250 it makes the file
``ROOT/reached`` and stands still, if that file is not there yet.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import functions

from tests.plugins.spark import session_builder

STANDS_STILL_AT = 250


def main(name_server: str, topic: str, root: Path) -> None:
    """Run the job to the end of what is there."""
    reached = str(root / "reached")

    def number(body: Any) -> int:
        found = int(bytes(body))
        if found == STANDS_STILL_AT and not Path(reached).exists():
            Path(reached).touch()
            threading.Event().wait()
        return found

    spark = session_builder(root).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 100, "group": "killed"}
    numbers = functions.udf(number, "int")
    frame = spark.readStream.format("rocketmq").option("nameServer", name_server)
    frame = frame.option("topic", topic).options(**options).schema("body BINARY").load()
    query = (
        frame.select(numbers("body").alias("number"))
        .writeStream.format("parquet")
        .option("path", str(root / "table"))
        .option("checkpointLocation", str(root / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
