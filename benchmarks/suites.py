"""The measurements of `make bench`: what is measured against what.

Law: servers and jobs run in processes of their own; ours and the peer's runs alternate.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from benchmarks.consuming_suites import drain, latency, lite, memory, orderly
from benchmarks.harness import (
    EmbeddedServer,
    Figure,
    embedded_server,
    in_turn,
    run_worker,
)
from benchmarks.hostile import hostile, hostile_codes, hostile_together
from benchmarks.setting import Settings, fresh_peer
from benchmarks.spark_suites import spark, spark_kafka, spark_latency

if TYPE_CHECKING:
    from benchmarks.java import JavaPeer

_serial = itertools.count()


def send(settings: Settings) -> Iterator[Figure]:
    """Sync and pipelined sends, to Apache's broker (both clients) and to ours (both clients)."""
    java = settings.peer()
    if java is not None:
        yield from sends(settings, "Apache broker", java.cluster.namesrv_addr, java.topic(), java)
    with embedded_server(settings.place("store")) as embedded:
        yield from sends(settings, "embedded broker", embedded.namesrv_addr, "Bench", None)
        if java is not None:
            yield embedded_against_apache(settings, java, embedded, settings.count(60_000))


def sends(
    settings: Settings, where: str, namesrv: str, topic: str, java: JavaPeer | None
) -> Iterator[Figure]:
    """One broker: one thread waiting for each answer, and many on their way in two forms."""
    sync, flight = settings.count(20_000), settings.count(60_000)
    for name, job, count in (
        ("send sync", "send-sync", sync),
        ("send 64 in flight", "send-in-flight", flight),
        ("send 64 in flight, asyncio", "send-aio", flight),
    ):
        yield send_figure(settings, f"{name}, {where}", job, namesrv, topic, count, java)


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


def start(settings: Settings) -> Iterator[Figure]:
    """From nothing to the first acknowledged send, and the memory of an idle server."""
    own = settings.place("own")

    def ours() -> dict[str, Any]:
        return run_worker("first-ack", "--store", str(own / str(next(_serial))))

    acks = [float(ours()["first_ack_s"]) for _ in range(settings.runs)]
    theirs: list[float] = []
    memory: list[float] = []
    for _ in range(settings.runs):
        with fresh_peer(settings) as java:
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
    "lite": lite,
    "orderly": orderly,
    "latency": latency,
    "memory": memory,
    "spark": spark,
    "spark-kafka": spark_kafka,
    "spark-latency": spark_latency,
    "hostile": hostile,
    "hostile-codes": hostile_codes,
    "hostile-together": hostile_together,
}
