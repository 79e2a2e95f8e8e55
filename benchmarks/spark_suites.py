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
    great, usual = settings.count(4_000_000), settings.count(1_000_000)

    with broker as kafka, embedded_server(settings.place("store")) as embedded:
        words = ["--kafka", kafka.address, "--jars", jars, "--folder", str(settings.place("spark"))]

        def launches(name: str, count: int, *more: str, namesrv: str = "") -> list[dict[str, Any]]:
            where = ["--namesrv", namesrv or embedded.namesrv_addr, "--count", str(count)]
            line = [name, *words, *where, *more]
            runs = 1 if name == "fill" else settings.runs
            return [
                spark_job(*line, program="spark_paired", packages=packages) for _ in range(runs)
            ]

        kafka.topic("Written", _QUEUES)
        for count, rounds in ((usual, ()), (great, ("--warm", "2", "--rounds", "4"))):
            topic = ["--topic", f"Bench{count}"]
            kafka.topic(topic[1], _QUEUES)
            launches("fill", count, *topic)
            for columns in ("kafka", "all", "body") if count == usual else ("kafka", "all"):
                found = launches("read", count, *topic, *rounds, "--columns", columns)
                yield from paired(f"Spark batch read, {count:,} rows, {columns}", found)
        found = launches("stream", usual, "--topic", f"Bench{usual}", "--columns", "kafka")
        yield from paired("Spark stream, 100,000 rows a batch", found)
        found = launches("write", usual // 5)
        yield from paired("Spark batch write, embedded broker", found)
        java = settings.peer()
        if java is not None:
            more = ["--our-topic", java.topic(_QUEUES)]
            found = launches("write", usual, *more, namesrv=java.cluster.namesrv_addr)
            yield from paired("Spark batch write, Apache broker", found)


def paired(name: str, launches: list[dict[str, Any]]) -> Iterator[Figure]:
    """Warm rounds of all launches next to each peer; the first of each side are told apart."""
    mine = [rate for launch in launches for rate in launch["ours"]]
    peers = {"kafka": "Spark's Kafka connector", "quick": "the same, fetch.max.wait.ms=20"}
    for side, peer in peers.items():
        if side in launches[0]:
            other = [rate for launch in launches for rate in launch[side]]
            cold = {
                f"{each}_cold": [round(launch[f"{each}_cold"][0]) for launch in launches]
                for each in ("ours", side)
            }
            yield Figure(name, "rows/s", mine, peer, other, notes=cold)


def spark_latency(settings: Settings) -> Iterator[Figure]:
    """From before a send to the sink in Python, 1,000 messages of 1 KB a second."""
    for name, more in (("", ()), (", checkpoint without chmod", ("--local-files",))):
        found = [latency_of(settings, *more) for _ in range(settings.runs)]
        for share in ("p50", "p99"):
            values = [float(each[f"{share}_ms"]) for each in found]
            title = f"Spark stream to a Python sink{name}, {share}"
            yield Figure(title, "ms", values, notes={"launches": found})


def latency_of(settings: Settings, *more: str) -> dict[str, Any]:
    """What one launch of the stream measured, with a store and a checkpoint of its own."""
    with embedded_server(settings.place("store")) as embedded:
        words = ["--namesrv", embedded.namesrv_addr, "--folder", str(settings.place("spark"))]
        return spark_job("stream", *words, *more, program="spark_latency")
