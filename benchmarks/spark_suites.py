"""What of `make bench` runs on Spark: next to Parquet, the rate source and the Kafka connector.

Law: as benchmarks.suites.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.harness import ROOT, Figure, embedded_server, in_turn, last_json
from benchmarks.setting import Settings, fill

_QUEUES = 8


def spark_job(*words: str, program: str = "spark_work", packages: str = "") -> dict[str, Any]:
    """Run a Spark job in a JVM of its own; ``packages`` come before the environment's."""
    command = [sys.executable, "-m", f"benchmarks.{program}", *words]
    path = os.pathsep.join(filter(None, [packages, os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    return last_json(command, done)


def spark(settings: Settings) -> Iterator[Figure]:
    """Batch reads next to Parquet, a micro-batch next to the rate source, and batch writes."""
    count = settings.count(1_000_000)
    folder = str(settings.place("spark"))
    with embedded_server(settings.place("store")) as embedded:
        where = ["--namesrv", embedded.namesrv_addr, "--topic", "Bench", "--folder", folder]
        fill(embedded.namesrv_addr, "Bench", count)
        for columns in ("all", "without-properties", "kafka", "body"):
            words = [*where, "--count", str(count), "--columns", columns]
            yield spark_figure(settings, columns, words)
        yield from micro_batch_figures(settings, where, folder)
    with embedded_server(settings.place("written")) as embedded:
        yield write_figure(settings, embedded.namesrv_addr, folder)


def spark_figure(settings: Settings, columns: str, words: list[str]) -> Figure:
    """Our source and Parquet of the same rows, each run a JVM."""
    mine, other = in_turn(
        settings.runs,
        lambda: float(spark_job("read-topic", *words)["per_s"]),
        lambda: float(spark_job("read-parquet", *words)["per_s"]),
    )
    name = f"Spark batch read, {columns.replace('-', ' ')}"
    return Figure(name, "rows/s", mine, "Parquet", other)


def write_figure(settings: Settings, namesrv_addr: str, folder: str) -> Figure:
    """Rows of 1 KiB written to a topic, and merely handed to Python."""
    words = ["--count", str(settings.count(200_000)), "--folder", folder]
    where = ["--namesrv", namesrv_addr, "--topic", "Written"]
    mine, other = in_turn(
        settings.runs,
        lambda: float(spark_job("write-topic", *where, *words)["per_s"]),
        lambda: float(spark_job("write-through", *words)["per_s"]),
    )
    return Figure("Spark batch write, 1 KiB", "rows/s", mine, "handed to Python only", other)


def micro_batch_figures(settings: Settings, where: list[str], folder: str) -> Iterator[Figure]:
    """Milliseconds of a trigger with 20 rows: ours, and a source in Python or Scala that only
    counts."""
    for peer, name in (("rate", "rate source"), ("python", "a Python source that only counts")):
        mine, other = in_turn(
            settings.runs,
            lambda: float(spark_job("micro-batch-rocketmq", *where)["ms"]),
            partial(micro_batch_ms, peer, folder),
        )
        yield Figure("Spark micro-batch", "ms", mine, name, other)


def micro_batch_ms(peer: str, folder: str) -> float:
    """Milliseconds of a trigger of one of Spark's sources."""
    return float(spark_job(f"micro-batch-{peer}", "--folder", folder)["ms"])


def spark_kafka(settings: Settings) -> Iterator[Figure]:
    """Both connectors in turn in one session, in ``--runs`` launches of it, brokers beside it."""
    from benchmarks.kafka import (
        CONNECTOR_SPARK,
        KafkaBroker,
        RefereeUnavailableError,
        connector_jars,
    )
    from scripts.spark_versions import installed

    if not settings.with_peer:
        return
    try:
        jars = ",".join(map(str, connector_jars()))
        broker = KafkaBroker(settings.place("kafka"))
    except RefereeUnavailableError as reason:
        sys.stderr.write(f"  without the Kafka peer: {reason}\n")
        return
    packages = str(installed(CONNECTOR_SPARK))
    count = settings.count(1_000_000)

    with broker as kafka, embedded_server(settings.place("store")) as embedded:
        for topic in ("Bench", "Written"):
            kafka.topic(topic, _QUEUES)
        words = ["--kafka", kafka.address, "--jars", jars, "--folder", str(settings.place("spark"))]

        def job(name: str, namesrv: str, *more: str) -> dict[str, Any]:
            where = [*words, "--namesrv", namesrv, "--count", str(count)]
            return spark_job(name, *where, *more, program="spark_paired", packages=packages)

        ours = embedded.namesrv_addr
        job("fill", ours)
        for columns in ("kafka", "all", "body"):
            launches = [job("read", ours, "--columns", columns) for _ in range(settings.runs)]
            yield paired(f"Spark batch read next to Kafka, {columns}", launches)
        launches = [job("stream", ours, "--columns", "kafka") for _ in range(settings.runs)]
        yield paired("Spark stream, 100,000 rows a batch, next to Kafka", launches)
        some = ["--count", str(count // 5)]
        launches = [job("write", ours, *some) for _ in range(settings.runs)]
        yield paired("Spark batch write next to Kafka, embedded broker", launches)
        java = settings.peer()
        if java is not None:
            topic = java.topic(_QUEUES)
            apache = java.cluster.namesrv_addr
            more = [*some, "--our-topic", topic]
            launches = [job("write", apache, *more) for _ in range(settings.runs)]
            yield paired("Spark batch write next to Kafka, Apache broker", launches)


def paired(name: str, launches: list[dict[str, Any]]) -> Figure:
    """Warm rounds of all launches; the first round of each is told apart."""
    mine = [rate for launch in launches for rate in launch["ours"]]
    other = [rate for launch in launches for rate in launch["kafka"]]
    cold = {
        f"{side}_cold": [round(launch[f"{side}_cold"][0]) for launch in launches]
        for side in ("ours", "kafka")
    }
    return Figure(name, "rows/s", mine, "Spark's Kafka connector", other, notes=cold)


def spark_latency(settings: Settings) -> Iterator[Figure]:
    """From before a send to the sink in Python, 1,000 messages of 1 KB a second."""
    medians, tails = [], []
    notes: list[dict[str, Any]] = []
    for _ in range(settings.runs):
        with embedded_server(settings.place("store")) as embedded:
            words = ["--namesrv", embedded.namesrv_addr, "--folder", str(settings.place("spark"))]
            found = spark_job("stream", *words, program="spark_latency")
        medians.append(float(found["p50_ms"]))
        tails.append(float(found["p99_ms"]))
        notes.append(found)
    yield Figure("Spark stream to a Python sink, p50", "ms", medians, notes={"launches": notes})
    yield Figure("Spark stream to a Python sink, p99", "ms", tails)
