"""Spark's Kafka connector and ours, in turn in one session; each job prints one JSON line.

Law: as benchmarks.spark_work. Runs on the Spark the Kafka connector belongs to. Both sources stand
in one JVM, so that launch, heap and compiler are the same for both.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.rounds import USUAL, in_turn
from benchmarks.spark_work import COLUMNS, noop, session
from rocketstream import Message, Producer

QUICK = {"kafka.fetch.max.wait.ms": "20"}
"""Settings of the side ``quick``. By default each task of Kafka's source waits half a second at the
end of its partition, where the consumer has asked for more than there is."""
KAFKA_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")
"""What the choice ``kafka`` of our columns is compared with."""


def frame_of(spark: Any, count: int) -> Any:
    """Rows as applications send them: a key, 1 KiB that differs by row, three short properties."""
    text = """concat('{"order": ', id, ', "text": "')"""
    return spark.range(0, count, 1, 8).selectExpr(
        "concat('key-', id) AS keys",
        f"binary(rpad({text}, 1024, sha1(string(id)))) AS body",
        "map('source', 'bench', 'number', string(id), 'kind', 'a') AS properties",
    )


def send_all(options: argparse.Namespace) -> float:
    """Send the rows of ``frame_of`` with a producer, 200 of a queue at a time; return seconds."""
    start = time.perf_counter()
    with Producer("bench-fill", namesrv_addr=options.namesrv) as producer:
        queues = producer.fetch_publish_message_queues(options.topic)
        for number, first in enumerate(range(0, options.count, 200)):
            some = range(first, min(first + 200, options.count))
            rows = [example(options.topic, row) for row in some]
            producer.send(rows, message_queue=queues[number % len(queues)])
    return time.perf_counter() - start


def example(topic: str, row: int) -> Message:
    """One row of ``frame_of`` as a message."""
    text = f'{{"order": {row}, "text": "'
    filler = hashlib.sha1(str(row).encode(), usedforsecurity=False).hexdigest() * 26
    body = (text + filler)[:1024].encode()
    properties = {"source": "bench", "number": str(row), "kind": "a"}
    return Message(topic, body, keys=f"key-{row}", properties=properties)


def as_kafka(frame: Any) -> Any:
    """The same rows by Kafka's column names."""
    pairs = (
        "transform(map_entries(properties), e -> struct(e.key AS key, binary(e.value) AS value))"
    )
    return frame.selectExpr("keys AS key", "body AS value", f"{pairs} AS headers")


def write_rocketmq(frame: Any, options: argparse.Namespace, topic: str) -> float:
    """Seconds to write a DataFrame to a RocketMQ topic, every message acknowledged."""
    writer = frame.write.format("rocketmq").option("nameServer", options.namesrv)
    start = time.perf_counter()
    writer.option("topic", topic).mode("append").save()
    return time.perf_counter() - start


def write_kafka(frame: Any, options: argparse.Namespace, topic: str) -> float:
    """Seconds to write a DataFrame to a Kafka topic, every message acknowledged."""
    writer = as_kafka(frame).write.format("kafka")
    start = time.perf_counter()
    writer.option("kafka.bootstrap.servers", options.kafka).option("topic", topic).save()
    return time.perf_counter() - start


def fill(spark: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Put the same rows into both topics."""
    frame = frame_of(spark, options.count)
    return {
        "ours_s": send_all(options),
        "kafka_s": write_kafka(frame, options, options.topic),
    }


def our_rows(spark: Any, options: argparse.Namespace) -> Any:
    """Our topic as a DataFrame, batch or stream as asked."""
    reader = (spark.readStream if options.job == "stream" else spark.read).format("rocketmq")
    reader = reader.option("nameServer", options.namesrv).option("topic", options.topic)
    if options.job == "stream":
        reader = reader.option("startingOffsets", "earliest")
        reader = reader.option("maxOffsetsPerTrigger", str(options.batch))
    if options.columns != "all":
        reader = reader.schema(COLUMNS[options.columns])
    return reader.load()


def kafka_rows(
    spark: Any, options: argparse.Namespace, settings: dict[str, str] | None = None
) -> Any:
    """The Kafka topic as a DataFrame; all columns means with headers."""
    reader = (spark.readStream if options.job == "stream" else spark.read).format("kafka")
    reader = reader.options(**(settings or {}))
    reader = reader.option("kafka.bootstrap.servers", options.kafka)
    reader = reader.option("subscribe", options.topic).option("startingOffsets", "earliest")
    if options.job == "stream":
        reader = reader.option("maxOffsetsPerTrigger", str(options.batch))
    if options.columns == "all":
        reader = reader.option("includeHeaders", "true")
    found = reader.load()
    if options.columns == "all":
        return found
    return found.select("value") if options.columns == "body" else found.select(*KAFKA_COLUMNS)


def alternate(options: argparse.Namespace, sides: dict[str, Callable[[], float]]) -> dict[str, Any]:
    """Rows a second of rounds taken in turn until all sides are steady."""

    def per_s(seconds: Callable[[], float]) -> float:
        return float(options.count / seconds())

    rates = {side: partial(per_s, seconds) for side, seconds in sides.items()}
    done = in_turn(rates, replace(USUAL, most=options.rounds_max))
    return {side: list(rounds.all) for side, rounds in done.items()}


def read(spark: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Batch reads into noop."""
    return alternate(
        options,
        {
            "kafka": lambda: noop(kafka_rows(spark, options)),
            "quick": lambda: noop(kafka_rows(spark, options, QUICK)),
            "ours": lambda: noop(our_rows(spark, options)),
        },
    )


def stream_seconds(frame: Any, options: argparse.Namespace, word: str) -> float:
    """Seconds the triggers of a query take that reads all there is; the first, which starts the
    workers, is replaced by the mean of the others."""
    folder = os.path.join(options.folder, f"{word}-{time.monotonic_ns()}")
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", folder)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = [step for step in query.recentProgress if step["numInputRows"]]
    assert sum(step["numInputRows"] for step in batches) == options.count
    spent: list[float] = [step["durationMs"]["triggerExecution"] / 1e3 for step in batches]
    return sum(spent[1:]) * len(spent) / (len(spent) - 1)


def stream(spark: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Everything there is as micro-batches into noop."""
    return alternate(
        options,
        {
            "kafka": lambda: stream_seconds(kafka_rows(spark, options), options, "kafka"),
            "quick": lambda: stream_seconds(kafka_rows(spark, options, QUICK), options, "quick"),
            "ours": lambda: stream_seconds(our_rows(spark, options), options, "ours"),
        },
    )


def write(spark: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Batch writes of rows kept in memory."""
    frame = frame_of(spark, options.count).coalesce(2)
    frame.cache().count()
    return alternate(
        options,
        {
            "kafka": lambda: write_kafka(frame, options, options.written),
            "ours": lambda: write_rocketmq(frame, options, options.our_topic),
        },
    )


JOBS: dict[str, Callable[[Any, argparse.Namespace], dict[str, Any]]] = {
    "fill": fill,
    "read": read,
    "stream": stream,
    "write": write,
}


def main() -> None:
    """Run the job named on the command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.spark_paired")
    parser.add_argument("job", choices=sorted(JOBS))
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--kafka", required=True)
    parser.add_argument("--jars", required=True, help="Jars of the Kafka connector.")
    parser.add_argument("--topic", default="Bench")
    parser.add_argument("--written", default="Written", help="Kafka topic to write to.")
    parser.add_argument("--our-topic", default="Written", help="RocketMQ topic to write to.")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=100_000)
    parser.add_argument("--columns", choices=["all", *COLUMNS], default="all")
    parser.add_argument("--rounds-max", type=int, default=USUAL.most)
    parser.add_argument("--folder", required=True)
    options = parser.parse_args()
    spark = session(options.folder, jars=options.jars)
    found = JOBS[options.job](spark, options)
    spark.stop()
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
