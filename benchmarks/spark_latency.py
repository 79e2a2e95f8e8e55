"""How long a message takes through a stream: sent, read by Spark, handed to a sink in Python.

Law: as benchmarks.spark_work. A message carries when its send began; the sink is a Python data
source, as ours is, that does nothing but note how old each row is when it has it in its hands.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from benchmarks.spark_work import LOCAL_FILES, session
from rocketstream import Message, Producer

_FILLER = "x" * 1000


class AgeSink(DataSource):  # type: ignore[misc]
    """Appends ``<milliseconds>`` of every row to a file of its task."""

    @classmethod
    def name(cls) -> str:
        """Its format."""
        return "bench-age"

    def streamWriter(self, schema: Any, overwrite: bool) -> AgeWriter:
        """Return the writer."""
        return AgeWriter(self.options["folder"])


class AgeWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """The writing half."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Note the age of every row."""
        ages = []
        for batch in iterator:
            now = time.time_ns()
            for body in batch.column(0).to_pylist():
                ages.append((now - int(body.split(b" ", 1)[0])) / 1e6)
        if ages:
            path = os.path.join(self._folder, f"{time.time_ns()}-{os.getpid()}")
            with open(path, "w", encoding="ascii") as file:
                file.write("".join(f"{age}\n" for age in ages))
        return WriterCommitMessage()

    def commit(self, messages: Any, batchId: int) -> None:
        """Nothing to do."""

    def abort(self, messages: Any, batchId: int) -> None:
        """Nothing to do."""


def send_paced(options: argparse.Namespace) -> dict[str, float]:
    """Send ``--rate`` messages a second for ``--seconds``; each says when its send began."""
    start = time.monotonic()
    late = 0.0
    with Producer("bench-paced", namesrv_addr=options.namesrv) as producer:
        for number in range(int(options.rate * options.seconds)):
            due = start + number / options.rate
            pause = due - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            late = max(late, -pause)
            body = f"{time.time_ns()} {_FILLER}".encode()
            producer.send_async(Message(options.topic, body))
    return {"late_max_s": late}


def stream_latency(options: argparse.Namespace) -> dict[str, float]:
    """Percentiles of the age of rows in the sink, after ``--warm`` seconds."""
    ages = Path(options.folder) / "ages"
    ages.mkdir()
    spark = session(options.folder, more=LOCAL_FILES if options.local_files else None)
    spark.dataSource.register(AgeSink)
    frame = (
        spark.readStream.format("rocketmq")
        .option("nameServer", options.namesrv)
        .option("topic", options.topic)
        .schema("body BINARY")
        .load()
    )
    writer = frame.writeStream.format("bench-age").option("folder", str(ages))
    query = writer.option("checkpointLocation", f"{options.folder}/checkpoint").start()
    command = [sys.executable, "-m", "benchmarks.spark_latency", "send", *sys.argv[2:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sender:
        warm_until = time.time_ns() + int(options.warm * 1e9)
        query.awaitTermination(options.seconds)
        report = json.loads(sender.communicate(timeout=60)[0])
    query.processAllAvailable()
    steps = [step["durationMs"]["triggerExecution"] for step in query.recentProgress[-50:]]
    query.stop()
    spark.stop()
    found = sorted(
        float(line)
        for path in ages.iterdir()
        if int(path.name.split("-")[0]) > warm_until
        for line in path.read_text().splitlines()
    )
    return {
        "rows": len(found),
        "p50_ms": found[len(found) // 2],
        "p99_ms": found[len(found) * 99 // 100],
        "max_ms": found[-1],
        "trigger_ms": statistics.median(steps),
        **report,
    }


def main() -> None:
    """Run one side of the measurement."""
    parser = argparse.ArgumentParser(prog="benchmarks.spark_latency")
    parser.add_argument("job", choices=["send", "stream"])
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--topic", default="Paced")
    parser.add_argument("--rate", type=float, default=1_000)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--warm", type=float, default=90)
    parser.add_argument("--folder", default="")
    parser.add_argument("--local-files", action="store_true", help="Checkpoint without chmod.")
    options = parser.parse_args()
    job = send_paced if options.job == "send" else stream_latency
    sys.stdout.write("\n" + json.dumps(job(options)) + "\n")


if __name__ == "__main__":
    main()
