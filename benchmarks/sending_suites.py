"""What sending costs: our client and Java's on the same broker, in rounds.

Law: as benchmarks.suites.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from benchmarks.comparing import compared
from benchmarks.harness import Figure, embedded_server
from benchmarks.setting import Settings
from benchmarks.sides import Side, Words, Worker

if TYPE_CHECKING:
    from benchmarks.java import JavaPeer

GATHERED_IN_FLIGHT = 1_024
"""Under way while sends are gathered: with 64 a batch waits for its delay, not for messages."""
NEWEST_JAVA = "5.5.0"
"""The Java client whose producer has ``autoBatch``."""


def send(settings: Settings) -> Iterator[Figure]:
    """Sync and pipelined sends, to Apache's broker (both clients) and to ours (our client)."""
    java = settings.peer()
    if java is not None:
        address, pid = java.cluster.namesrv_addr, java.broker_pid
        yield from sends(settings, "Apache broker", address, java.topic(), pid, java)
    with embedded_server(settings.place("store")) as embedded:
        address = embedded.namesrv_addr
        yield from sends(settings, "embedded broker", address, "Bench", embedded.pid, None)


def sends(
    settings: Settings, where: str, namesrv: str, topic: str, server: int, java: JavaPeer | None
) -> Iterator[Figure]:
    """One broker: one thread waiting for each answer, and many on their way in two forms."""
    at: Words = {"namesrv": namesrv, "topic": topic}
    rounds: list[tuple[dict[str, str], str, int]] = [
        ({"send sync": "send-sync"}, "sync", settings.count(20_000)),
        (
            {"send 64 in flight": "send-in-flight", "send 64 in flight, asyncio": "send-aio"},
            "async",
            settings.count(60_000),
        ),
    ]
    for jobs, mode, count in rounds:
        with ExitStack() as stack:
            ours = {
                f"{name}, {where}": Side(
                    stack.enter_context(Worker(job, **at, count=count)), servers=[server]
                )
                for name, job in jobs.items()
            }
            peers = {}
            if java is not None:
                program = java.told("JavaProducer", **at, count=count, mode=mode)
                peers["Java client"] = Side(stack.enter_context(program), servers=[server])
            yield from compared("msg/s", ours, settings.rule, peers)


def autobatch(settings: Settings) -> Iterator[Figure]:
    """Plain sends gathered into batches on request, next to the 5.x client's autoBatch."""
    java = settings.peer()
    if java is None:
        sys.stderr.write("  no Java peer: left out\n")
        return
    at: Words = {"namesrv": java.cluster.namesrv_addr}
    server = [java.broker_pid]
    count = settings.count(120_000)
    for size in (100, 1024):
        topic = java.topic()
        how: Words = {**at, "topic": topic, "count": count, "size": size}
        with ExitStack() as stack:
            open_ = stack.enter_context
            under_way = f"send {GATHERED_IN_FLIGHT} in flight, "
            jobs = {
                "send_many": "send-many",
                under_way + "gathered into batches": "send-autobatch",
                under_way + "gathered into batches, asyncio": "send-autobatch-aio",
                under_way + "one by one": "send-in-flight",
            }
            ours = {
                f"{name}, {size} B, Apache broker": Side(
                    open_(Worker(job, **how, in_flight=GATHERED_IN_FLIGHT)), servers=server
                )
                for name, job in jobs.items()
            }
            words = {"mode": "async", "inflight": GATHERED_IN_FLIGHT, "autobatch": True}
            program = java.told("JavaProducer", version=NEWEST_JAVA, **how, **words)
            peer = Side(open_(program), servers=server)
            peers = {f"Java client {NEWEST_JAVA}, autoBatch": peer}
            yield from compared("msg/s", ours, settings.rule, peers)
