"""The measurements of `make bench`: what is measured against what.

Law: servers and jobs run in processes of their own; ours and the peer's rounds alternate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from benchmarks.admin_cli import admin_cli
from benchmarks.broker_suites import embedded, many_clients, recovery, sync_flush
from benchmarks.consuming_suites import drain, latency, lite, memory, orderly
from benchmarks.dashboard import dashboard
from benchmarks.growth import growth
from benchmarks.harness import Figure, embedded_server, run_worker
from benchmarks.hostile import hostile, hostile_codes, hostile_together
from benchmarks.kafka_suites import kafka
from benchmarks.memory_over_time import memory_over_time
from benchmarks.sending_suites import autobatch, send
from benchmarks.setting import Settings, fresh_peer
from benchmarks.spark_suites import spark, spark_kafka, spark_latency
from rocketstream import Message, Producer


def start(settings: Settings) -> Iterator[Figure]:
    """From nothing to the first acknowledged send, and the memory of an idle server: launches."""
    theirs: list[float] = []
    memory: list[float] = []
    for _ in range(settings.runs):
        with fresh_peer(settings) as java:
            if java is None:
                break
            began = time.perf_counter()
            acknowledged(java.cluster.namesrv_addr, "ready")
            theirs.append(java.start_seconds + time.perf_counter() - began)
            memory.append(java.resident_mib())
    acks: list[float] = []
    held: list[float] = []
    for _ in range(settings.runs):
        began = time.perf_counter()
        with embedded_server(settings.place("store")) as server:
            acknowledged(server.namesrv_addr, "ready")
            acks.append(time.perf_counter() - began)
            held.append(server.resident_mib())
    name = "`rocketstream serve`, from its start to the first acknowledged send"
    yield Figure(name, "s", acks, "Apache, both JVMs", theirs)
    yield Figure("memory of the idle server", "MiB", held, "Apache, both JVMs", memory)
    own = settings.place("own")
    words = ["first-ack", "--store"]
    inside = [
        float(run_worker(*words, str(own / str(number)))["first_ack_s"])
        for number in range(settings.runs)
    ]
    yield Figure("`EmbeddedCluster` to the first acknowledged send, its process up", "s", inside)


def acknowledged(namesrv: str, topic: str) -> None:
    """Send one message."""
    with Producer("bench-start", namesrv_addr=namesrv) as producer:
        producer.send(Message(topic, b"x"))


SUITES: dict[str, Callable[[Settings], Iterator[Figure]]] = {
    "start": start,
    "send": send,
    "autobatch": autobatch,
    "drain": drain,
    "lite": lite,
    "orderly": orderly,
    "latency": latency,
    "memory": memory,
    "memory-over-time": memory_over_time,
    "embedded": embedded,
    "many-clients": many_clients,
    "sync-flush": sync_flush,
    "recovery": recovery,
    "kafka": kafka,
    "growth": growth,
    "dashboard": dashboard,
    "spark": spark,
    "spark-kafka": spark_kafka,
    "spark-latency": spark_latency,
    "admin-cli": admin_cli,
    "hostile": hostile,
    "hostile-codes": hostile_codes,
    "hostile-together": hostile_together,
}

SHORT = (
    "start",
    "send",
    "autobatch",
    "drain",
    "orderly",
    "lite",
    "latency",
    "memory",
    "embedded",
    "kafka",
)
"""The suites of `make bench`."""
SHOWN = (
    "`rocketstream serve`, from its start to the first acknowledged send",
    "send 64 in flight, Apache broker",
    "orderly drain batch 1, Apache broker",
)
"""The figures README shows."""
TABLE = (
    "start", "send", "autobatch", "drain", "lite", "orderly", "latency", "memory", "embedded",
    "many-clients", "sync-flush", "recovery", "memory-over-time", "kafka",
)  # fmt: skip
"""The suites of the first table of docs/performance.md."""
