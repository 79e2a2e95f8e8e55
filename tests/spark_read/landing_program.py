"""Lands a topic in Parquet, to be killed: ``MASTER NAMESRV TOPIC ROOT WHEN``.

``WHEN`` is ``end``, to end at what is there now, or ``killed``, to go on until then. Each attempt
at a task that has read its rows says in ``ROOT/notes/BATCH-PARTITION-…`` which ones those were (as
many as there were, when its JVM was killed: that looks like the end of its rows), and then stands
still as long as ``ROOT/hold`` is there.
"""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from tests.kits.spark.engine_program import session

BATCH_ROWS = 100
SCHEMA = "queueId INT, queueOffset BIGINT, body BINARY"


def noting(root: str) -> Any:
    """Return a function for ``mapInArrow`` that notes the rows that pass, in their order."""

    def note(batches: Iterator[Any]) -> Iterator[Any]:
        rows: list[str] = []
        for batch in batches:
            for row in batch.to_pylist():
                rows.append(f"{row['queueId']} {row['queueOffset']} {int(row['body'])}\n")
            yield batch
        task: Any = TaskContext.get()
        name = f"{task.getLocalProperty('streaming.sql.batchId')}-{task.partitionId()}"
        written = Path(root) / uuid.uuid4().hex
        written.write_text("".join(rows))
        hold, pause = Path(root) / "hold", threading.Event()
        held = hold.exists()  # asked before the note is there: who sees it knows what comes
        written.rename(Path(root) / "notes" / f"{name}-{written.name}")
        while held and hold.exists():
            pause.wait(0.02)

    return note


def main(master: str, name_server: str, topic: str, root: Path, when: str) -> None:
    """Run to the end of what is there, or until killed."""
    spark = session(master, root)
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", 100_000)
    stream = spark.readStream.format("rocketmq").option("nameServer", name_server)
    stream = stream.options(
        topic=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger=BATCH_ROWS,
        minPartitions=2,
        retryTimeoutMs=120_000,
        group="landing",
    )
    frame = stream.schema(SCHEMA).load().mapInArrow(noting(str(root)), SCHEMA)
    writer = frame.writeStream.format("parquet").option("path", str(root / "table"))
    writer = writer.option("checkpointLocation", str(root / "checkpoint"))
    trigger = {"availableNow": True} if when == "end" else {"processingTime": "0 seconds"}
    writer.trigger(**trigger).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]), sys.argv[5])
