"""The measurements of `make bench`: what is measured against what.

Law: servers and jobs run in processes of their own; ours and the peer's runs alternate.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import (
    ROOT,
    EmbeddedServer,
    Figure,
    embedded_server,
    in_turn,
    last_json,
    run_worker,
)

if TYPE_CHECKING:
    from benchmarks.java import JavaPeer

_serial = itertools.count()


@dataclass(frozen=True)
class Settings:
    """How much to measure and where to put files."""

    folder: Path
    runs: int
    scale: float
    with_peer: bool

    def count(self, messages: int) -> int:
        """A message count scaled as asked."""
        return max(1_000, int(messages * self.scale))

    def place(self, word: str) -> Path:
        """A fresh folder."""
        path = self.folder / f"{word}-{next(_serial)}"
        path.mkdir(parents=True)
        return path


@contextmanager
def peer(settings: Settings) -> Iterator[JavaPeer | None]:
    """Apache's broker and Java client, or None with a line saying why not."""
    if not settings.with_peer:
        yield None
        return
    from benchmarks.java import JavaPeer, RefereeUnavailableError

    with ExitStack() as stack:
        try:
            java = stack.enter_context(JavaPeer(settings.place("apache")))
        except RefereeUnavailableError as reason:
            sys.stderr.write(f"  without the Java peer: {reason}\n")
            yield None
        else:
            yield java


def send(settings: Settings) -> Iterator[Figure]:
    """Sync and pipelined sends, to Apache's broker (both clients) and to ours (both clients)."""
    sync, flight = settings.count(20_000), settings.count(100_000)
    with (
        peer(settings) as java,
        embedded_server(settings.place("store")) as embedded,
    ):
        if java is not None:
            namesrv, topic = java.cluster.namesrv_addr, java.topic()
            yield send_figure(
                settings, "send sync, Apache broker", "send-sync", namesrv, topic, sync, java
            )
            yield send_figure(
                settings,
                "send 64 in flight, Apache broker",
                "send-in-flight",
                namesrv,
                topic,
                flight,
                java,
            )
        ours = embedded.namesrv_addr
        yield send_figure(
            settings, "send sync, embedded broker", "send-sync", ours, "Bench", sync, None
        )
        yield send_figure(
            settings,
            "send 64 in flight, embedded broker",
            "send-in-flight",
            ours,
            "Bench",
            flight,
            None,
        )
        if java is not None:
            yield embedded_against_apache(settings, java, embedded, flight)


def send_figure(
    settings: Settings,
    name: str,
    job: str,
    namesrv: str,
    topic: str,
    count: int,
    java: JavaPeer | None,
) -> Figure:
    """Our producer, and the Java producer on the same broker in turn."""

    def ours() -> float:
        words = ["--namesrv", namesrv, "--topic", topic, "--count", str(count)]
        return float(run_worker(job, *words)["per_s"])

    def theirs() -> float:
        assert java is not None
        if job == "send-sync":
            return java.send_sync(topic, count, namesrv=namesrv)
        return java.send_in_flight(topic, count, namesrv=namesrv)

    mine, other = in_turn(settings.runs, ours, theirs if java else None)
    return Figure(name, "msg/s", mine, "Java client", other)


def embedded_against_apache(
    settings: Settings, java: JavaPeer, embedded: EmbeddedServer, count: int
) -> Figure:
    """One Java producer with 64 in flight, to the embedded broker and to Apache's in turn."""
    topic = java.topic()

    def ours() -> float:
        return java.send_in_flight("BenchJava", count, namesrv=embedded.namesrv_addr)

    mine, other = in_turn(settings.runs, ours, lambda: java.send_in_flight(topic, count))
    return Figure(
        "embedded broker, Java client 64 in flight", "msg/s", mine, "Apache broker", other
    )


def drain(settings: Settings) -> Iterator[Figure]:
    """A push consumer on a backlog, listener doing nothing, batch 1 and 32."""
    count = settings.count(200_000)
    with peer(settings) as java:
        if java is not None:
            namesrv, topic = java.cluster.namesrv_addr, java.topic()
            fill(namesrv, topic, count)
            for batch in (1, 32):
                name = f"push drain batch {batch}, Apache broker"
                yield drain_figure(settings, name, namesrv, topic, count, batch, java)
    with embedded_server(settings.place("store")) as embedded:
        fill(embedded.namesrv_addr, "Bench", count)
        for batch in (1, 32):
            name = f"push drain batch {batch}, embedded broker"
            yield drain_figure(settings, name, embedded.namesrv_addr, "Bench", count, batch, None)


def fill(namesrv: str, topic: str, count: int) -> None:
    """Put a backlog of 1 KiB messages into a topic."""
    run_worker("fill", "--namesrv", namesrv, "--topic", topic, "--count", str(count))


def drain_figure(
    settings: Settings,
    name: str,
    namesrv: str,
    topic: str,
    count: int,
    batch: int,
    java: JavaPeer | None,
) -> Figure:
    """Our push consumer, each run a new group, and the Java push consumer in turn."""

    def ours() -> float:
        words = ["--namesrv", namesrv, "--topic", topic, "--count", str(count)]
        words += ["--batch", str(batch), "--group", f"bench-drain-{next(_serial)}"]
        return float(run_worker("drain", *words)["per_s"])

    def theirs() -> float:
        assert java is not None
        return java.drain(topic, count, batch=batch, namesrv=namesrv)

    mine, other = in_turn(settings.runs, ours, theirs if java else None)
    return Figure(name, "msg/s", mine, "Java push consumer", other)


def spark_job(*words: str) -> dict[str, Any]:
    """Run a Spark job in a JVM of its own."""
    command = [sys.executable, "-m", "benchmarks.spark_work", *words]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    return last_json(command, done)


def spark(settings: Settings) -> Iterator[Figure]:
    """Batch reads next to Parquet of the same rows, and a micro-batch next to the rate source."""
    count = settings.count(1_000_000)
    folder = str(settings.place("spark"))
    with embedded_server(settings.place("store")) as embedded:
        where = ["--namesrv", embedded.namesrv_addr, "--topic", "Bench", "--folder", folder]
        fill(embedded.namesrv_addr, "Bench", count)
        for columns in ("all", "without-properties"):
            words = [*where, "--count", str(count), "--columns", columns]
            yield spark_figure(settings, columns, words)
        yield micro_batch_figure(settings, where, folder)


def spark_figure(settings: Settings, columns: str, words: list[str]) -> Figure:
    """Our source and Parquet of the same rows, each run a JVM."""
    mine, other = in_turn(
        settings.runs,
        lambda: float(spark_job("read-topic", *words)["per_s"]),
        lambda: float(spark_job("read-parquet", *words)["per_s"]),
    )
    name = f"Spark batch read, {columns.replace('-', ' ')}"
    return Figure(name, "rows/s", mine, "Parquet", other)


def micro_batch_figure(settings: Settings, where: list[str], folder: str) -> Figure:
    """Milliseconds of a trigger with 20 rows: ours and Spark's rate source."""
    mine, other = in_turn(
        settings.runs,
        lambda: float(spark_job("micro-batch-rocketmq", *where)["ms"]),
        lambda: float(spark_job("micro-batch-rate", "--folder", folder)["ms"]),
    )
    return Figure("Spark micro-batch overhead", "ms", mine, "rate source", other)


def start(settings: Settings) -> Iterator[Figure]:
    """From nothing to the first acknowledged send, and the memory of an idle server."""
    own = settings.place("own")

    def ours() -> dict[str, Any]:
        return run_worker("first-ack", "--store", str(own / str(next(_serial))))

    acks = [float(ours()["first_ack_s"]) for _ in range(settings.runs)]
    theirs: list[float] = []
    memory: list[float] = []
    for _ in range(settings.runs):
        with peer(settings) as java:
            if java is None:
                break
            theirs.append(java.start_seconds)
            memory.append(java.resident_mib())
    yield Figure("embedded start to first ack", "s", acks, "Apache, both JVMs", theirs)
    held = []
    for _ in range(settings.runs):
        with embedded_server(settings.place("store")) as embedded:
            held.append(embedded.resident_mib())
    yield Figure("memory of the idle server", "MiB", held, "Apache, both JVMs", memory)


SUITES: dict[str, Callable[[Settings], Iterator[Figure]]] = {
    "start": start,
    "send": send,
    "drain": drain,
    "spark": spark,
}
