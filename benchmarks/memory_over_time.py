"""Resident size of a process that sends and reads in columns, over ten million messages.

Law: as benchmarks.suites; our client on the embedded broker.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait

from benchmarks.harness import Figure, embedded_server, resident_mib
from benchmarks.plots import Panel, Point, drawn
from benchmarks.setting import Settings, fresh_group
from benchmarks.sides import Words, Worker
from tests.kits.apache.cluster import create_topic

MESSAGES = 10_000_000
BYTES = 100
TIMEOUT_S = 3_600
EVERY_S = 0.5
JOBS = {"`send_many`": "send-many", "`poll_arrow`": "drain-arrow"}
PANEL = Panel("memory", "seconds", "MiB resident", over_time=True)


def memory_over_time(settings: Settings) -> Iterator[Figure]:
    """The last quarter of all messages next to the first; what was seen is drawn."""
    count = settings.count(MESSAGES)
    points: list[Point] = []
    with embedded_server(settings.place("store")) as own:
        create_topic(own.namesrv_addr, own.broker_addr, "Long", 8)
        for name, job in JOBS.items():
            how: Words = {"namesrv": own.namesrv_addr, "topic": "Long", "size": BYTES}
            with Worker(job, round_timeout_s=TIMEOUT_S, timeout=TIMEOUT_S, **how) as worker:
                worker.round(count=count // 100, group=fresh_group("cold"))
                held = sampled(worker, count)
            points += [Point(PANEL.name, name.strip("`"), at, mib) for at, mib in held]
            drawn(points, [PANEL], settings.pictures / "memory-over-time.svg",
                  f"Client process, {count:,} messages of {BYTES} B")  # fmt: skip
            sizes = [mib for _, mib in held]
            quarter = max(1, len(sizes) // 4)
            title = f"memory of {name} over {count:,} messages of {BYTES} B, last quarter"
            yield Figure(title, "MiB", sizes[-quarter:], "the first quarter", sizes[:quarter])


def sampled(worker: Worker, count: int) -> list[tuple[float, float]]:
    """Seconds and MiB while the worker does one round of so many messages."""
    began, held = time.perf_counter(), []
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(worker.round, count=count, group=fresh_group("long"))
        while not wait([done], EVERY_S).done:
            held.append((time.perf_counter() - began, resident_mib(worker.pid)))
        done.result()
    return held
