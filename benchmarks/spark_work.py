"""Spark jobs that measure themselves, round after round in one session.

Law: as benchmarks.work; a session, and with it a JVM, stays up for all rounds of a job.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from benchmarks.jobs import Job, Options, Round, run_job

COLUMNS = {
    "without-properties": "topic STRING, brokerName STRING, queueId INT, queueOffset LONG,"
    " msgId STRING, tags STRING, keys STRING, body BINARY, bornTimestamp TIMESTAMP,"
    " storeTimestamp TIMESTAMP",
    "kafka": "keys STRING, body BINARY, topic STRING, queueId INT, queueOffset LONG,"
    " bornTimestamp TIMESTAMP",
    "body": "body BINARY",
}
"""Choices of columns by name; ``kafka`` are those of Spark's Kafka source."""


LOCAL_FILES = {
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
"""Spark 4.1 and later write a checkpoint on a local disk without starting chmod for each file."""


def session(folder: str, jars: str = "", more: dict[str, str] | None = None) -> Any:
    """A local[2] session as the reference figures were taken with.

    Args:
        folder: where Spark may put files.
        jars: paths of jars to add, separated by commas.
        more: further settings.
    """
    from pyspark.sql import SparkSession

    from rocketstream.spark.setup.preparation import local_python, use_java

    use_java()
    os.environ["PYSPARK_PYTHON"] = local_python()
    builder = SparkSession.builder.master("local[2]").appName("bench")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "4g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": folder,
        "spark.sql.warehouse.dir": folder,
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
    }
    if jars:
        settings["spark.jars"] = jars
    for name, value in (settings | (more or {})).items():
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    return found


def source(spark: Any, options: Options) -> Any:
    """The topic as a DataFrame, all columns or a choice."""
    reader = spark.read.format("rocketmq")
    reader = reader.option("nameServer", options.namesrv).option("topic", options.topic)
    if options.columns in COLUMNS:
        reader = reader.schema(COLUMNS[options.columns])
    return reader.load()


def noop(frame: Any) -> float:
    """Seconds to read a DataFrame and throw the rows away."""
    start = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start


def rows_in(options: Options, seconds: float) -> dict[str, float]:
    """What a round says that handled ``count`` rows."""
    return {"rows": options.count, "seconds": seconds, "rate": options.count / seconds}


@contextmanager
def read_topic(options: Options) -> Iterator[Round]:
    """Rows a second of a batch read."""
    spark = session(options.folder)
    yield lambda now: rows_in(now, noop(source(spark, now)))
    spark.stop()


@contextmanager
def read_parquet(options: Options) -> Iterator[Round]:
    """The same rows from Parquet files, written from the topic first when missing."""
    spark = session(options.folder)
    path = os.path.join(options.folder, f"rows-{options.columns}.parquet")
    if not os.path.exists(path):
        source(spark, options).write.parquet(path)
    assert spark.read.parquet(path).count() == options.count
    yield lambda now: rows_in(now, noop(spark.read.parquet(path)))
    spark.stop()


def micro_batches(frame: Any, folder: str, amount: int) -> float:
    """Median milliseconds of a trigger with little data, the first ones left out."""
    writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
    query = writer.trigger(processingTime="0 seconds").start()
    durations: dict[int, float] = {}
    deadline = time.monotonic() + 120
    while len(durations) < amount and time.monotonic() < deadline:
        query.awaitTermination(0.2)
        for progress in query.recentProgress:
            if progress["numInputRows"]:
                durations[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
    query.stop()
    warm = [durations[batch] for batch in sorted(durations)][5:]
    return statistics.median(warm)


def triggers(frame: Any, options: Options, word: str) -> Round:
    """Rounds of a query each, with a checkpoint of its own."""

    def once(now: Options) -> dict[str, float]:
        folder = os.path.join(options.folder, f"{word}-{os.getpid()}-{time.monotonic_ns()}")
        return {"ms": micro_batches(frame, folder, now.batches)}

    return once


@contextmanager
def micro_batch_rocketmq(options: Options) -> Iterator[Round]:
    """Trigger time of our source over a topic cut into small batches."""
    spark = session(options.folder)
    frame = (
        spark.readStream.format("rocketmq")
        .option("nameServer", options.namesrv)
        .option("topic", options.topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "20")
        .option("minPartitions", "1")
        .load()
    )
    yield triggers(frame, options, "checkpoint")
    spark.stop()


@contextmanager
def micro_batch_rate(options: Options) -> Iterator[Round]:
    """Trigger time of Spark's own rate source in micro-batch form."""
    spark = session(options.folder)
    frame = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", "20")
        .option("numPartitions", "1")
        .load()
    )
    yield triggers(frame, options, "rate")
    spark.stop()


class CountingSource(DataSource):  # type: ignore[misc]
    """Twenty numbers a micro-batch, and nothing else: what Spark takes for any source in Python."""

    @classmethod
    def name(cls) -> str:
        """Its format."""
        return "bench-counting"

    def schema(self) -> str:
        """One number."""
        return "id LONG"

    def streamReader(self, schema: Any) -> CountingReader:
        """Return the reader."""
        return CountingReader()


class CountingReader(DataSourceStreamReader):  # type: ignore[misc]
    """The reading half."""

    def __init__(self) -> None:
        self._at = 0

    def initialOffset(self) -> dict[str, int]:
        """From nought."""
        return {"at": 0}

    def latestOffset(self, *_: Any) -> dict[str, int]:
        """Twenty more."""
        self._at += 20
        return {"at": self._at}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """One partition."""
        return [InputPartition((start["at"], end["at"]))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """One record batch."""
        import pyarrow as pa

        yield pa.record_batch({"id": pa.array(range(*partition.value), pa.int64())})


@contextmanager
def micro_batch_python(options: Options) -> Iterator[Round]:
    """Trigger time of a source in Python that does nothing."""
    spark = session(options.folder)
    spark.dataSource.register(CountingSource)
    yield triggers(spark.readStream.format("bench-counting").load(), options, "python")
    spark.stop()


def rows_to_write(spark: Any, options: Options) -> Any:
    """Rows of 1 KiB with keys, in memory, so that making them costs neither side anything."""
    frame = spark.range(0, options.count, 1, 2).selectExpr(
        "binary(repeat('x', 1024)) AS body", "string(id) AS keys"
    )
    frame.cache().count()
    return frame


@contextmanager
def write_topic(options: Options) -> Iterator[Round]:
    """Rows a second of a batch write, every message acknowledged."""
    spark = session(options.folder)
    frame = rows_to_write(spark, options)
    writer = frame.write.format("rocketmq").option("nameServer", options.namesrv)
    writer = writer.option("topic", options.topic).mode("append")

    def once(now: Options) -> dict[str, float]:
        start = time.perf_counter()
        writer.save()
        return rows_in(now, time.perf_counter() - start)

    yield once
    spark.stop()


@contextmanager
def write_through(options: Options) -> Iterator[Round]:
    """What Spark hands over to Python at most: the same rows to a function that counts them."""
    spark = session(options.folder)
    frame = rows_to_write(spark, options)

    def once(now: Options) -> dict[str, float]:
        start = time.perf_counter()
        assert frame.mapInArrow(counted, "rows LONG").groupBy().sum().first()[0] == now.count
        return rows_in(now, time.perf_counter() - start)

    yield once
    spark.stop()


def counted(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield how many rows each record batch has."""
    import pyarrow as pa

    for batch in batches:
        yield pa.record_batch({"rows": pa.array([len(batch)])})


JOBS: dict[str, Job] = {
    "read-topic": read_topic,
    "read-parquet": read_parquet,
    "write-topic": write_topic,
    "write-through": write_through,
    "micro-batch-rocketmq": micro_batch_rocketmq,
    "micro-batch-python": micro_batch_python,
    "micro-batch-rate": micro_batch_rate,
}


def main() -> None:
    """Run the job named on the command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.spark_work")
    parser.add_argument("--namesrv", default="")
    parser.add_argument("--topic", default="Bench")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--columns", choices=["all", *COLUMNS], default="all")
    parser.add_argument("--batches", type=int, default=25)
    parser.add_argument("--folder", required=True)
    run_job(parser, JOBS)


if __name__ == "__main__":
    main()
