"""What of `make bench` runs on Spark: next to Parquet, the rate source and the Kafka connector.

Law: as benchmarks.suites.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from benchmarks.comparing import compared
from benchmarks.harness import ROOT, Figure, embedded_server, last_json
from benchmarks.rounds import Rounds, Rule
from benchmarks.setting import Settings, fill
from benchmarks.sides import Side, Words, Worker

_QUEUES = 8


def spark_job(*words: str, program: str, packages: str = "") -> dict[str, Any]:
    """Run a Spark job in a JVM of its own; ``packages`` come before the environment's."""
    command = [sys.executable, "-m", f"benchmarks.{program}", *words]
    path = os.pathsep.join(filter(None, [packages, os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    return last_json(command, done)


def spark(settings: Settings) -> Iterator[Figure]:
    """Batch reads next to Parquet, a micro-batch next to the rate source, and batch writes."""
    count = settings.count(1_000_000)
    folder = str(settings.place("spark"))
    with embedded_server(settings.place("store")) as embedded:
        words: Words = {"namesrv": embedded.namesrv_addr, "topic": "Bench", "folder": folder}
        words["count"] = count
        fill(embedded.namesrv_addr, "Bench", count)
        for columns in ("all", "without-properties", "kafka", "body"):
            yield from spark_figure(settings, columns, words)
        yield from micro_batch_figures(settings, words)
    with embedded_server(settings.place("written")) as embedded:
        yield from write_figure(settings, embedded.namesrv_addr, folder)


def spark_figure(settings: Settings, columns: str, words: Words) -> Iterator[Figure]:
    """Our source and Parquet of the same rows, in a session each."""
    name = f"Spark batch read, {columns.replace('-', ' ')}"
    more = {**words, "columns": columns}
    yield from sessions(settings, name, "rows/s", "read-topic", more, "Parquet", "read-parquet")


def write_figure(settings: Settings, namesrv_addr: str, folder: str) -> Iterator[Figure]:
    """Rows of 1 KiB written to a topic, and merely handed to Python."""
    words: Words = {"count": settings.count(200_000), "folder": folder}
    words |= {"namesrv": namesrv_addr, "topic": "Written"}
    name, peer = "Spark batch write, 1 KiB", "handed to Python only"
    yield from sessions(settings, name, "rows/s", "write-topic", words, peer, "write-through")


def micro_batch_figures(settings: Settings, words: Words) -> Iterator[Figure]:
    """Milliseconds of a trigger with 20 rows: ours, and a source in Python or Scala that only
    counts."""
    for kind, peer in (("rate", "rate source"), ("python", "a Python source that only counts")):
        job, name = f"micro-batch-{kind}", f"Spark micro-batch, next to {kind}"
        yield from sessions(settings, name, "ms", "micro-batch-rocketmq", words, peer, job)


def sessions(
    settings: Settings, name: str, unit: str, job: str, words: Words, peer_name: str, peer_job: str
) -> Iterator[Figure]:
    """Two jobs of spark_work in turn, each in a session that stays."""
    key = "ms" if unit == "ms" else "rate"
    with ExitStack() as stack:
        ours, peer = (
            Side(stack.enter_context(Worker(each, module="benchmarks.spark_work", **words)), key)
            for each in (job, peer_job)
        )
        yield from compared(unit, {name: ours}, settings.rule, {peer_name: peer})


def spark_kafka(settings: Settings) -> Iterator[Figure]:
    """Both connectors in turn in one session, brokers beside it."""
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

        def launched(name: str, count: int, *more: str, namesrv: str = "") -> dict[str, Any]:
            where = ["--namesrv", namesrv or embedded.namesrv_addr, "--count", str(count)]
            where += ["--rounds-max", str(settings.rule.most)]
            line = [name, *words, *where, *more]
            return spark_job(*line, program="spark_paired", packages=packages)

        kafka.topic("Written", _QUEUES)
        for count in (usual, great):
            topic = ["--topic", f"Bench{count}"]
            kafka.topic(topic[1], _QUEUES)
            launched("fill", count, *topic)
            for columns in ("kafka", "all", "body") if count == usual else ("kafka", "all"):
                found = launched("read", count, *topic, "--columns", columns)
                yield from paired(
                    settings.rule, f"Spark batch read, {count:,} rows, {columns}", found
                )
        found = launched("stream", usual, "--topic", f"Bench{usual}", "--columns", "kafka")
        yield from paired(settings.rule, "Spark stream, 100,000 rows a batch", found)
        found = launched("write", usual // 5)
        yield from paired(settings.rule, "Spark batch write, embedded broker", found)
        java = settings.peer()
        if java is not None:
            more = ["--our-topic", java.topic(_QUEUES)]
            found = launched("write", usual, *more, namesrv=java.cluster.namesrv_addr)
            yield from paired(settings.rule, "Spark batch write, Apache broker", found)


def paired(rule: Rule, name: str, found: dict[str, Any]) -> Iterator[Figure]:
    """Our rounds next to those of each peer."""
    mine = Rounds(tuple(found["ours"]), rule)
    peers = {"kafka": "Spark's Kafka connector", "quick": "the same, fetch.max.wait.ms=20"}
    for side, peer in peers.items():
        if side in found:
            yield Figure(name, "rows/s", mine, peer, Rounds(tuple(found[side]), rule))


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
