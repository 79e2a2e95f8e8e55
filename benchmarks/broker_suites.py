"""What the embedded broker is worth to others: warm Java clients on it and on Apache's, in rounds.

Law: as benchmarks.suites; "ours" is the embedded broker, the client on both is the same.
"""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.comparing import compared, told_beside
from benchmarks.consuming_suites import Backlog, backlog_on
from benchmarks.crowd import QUEUES
from benchmarks.harness import Figure, embedded_server
from benchmarks.rounds import Rule, in_turn
from benchmarks.setting import Settings, fill, fresh_peer
from benchmarks.sides import Side, Words, Worker
from tests.kits.apache.cluster import create_topic

PEER = "the same on Apache's broker"
CROWD_BYTES = 1_024
CROWD_RATE = 2_000
GIB_MESSAGES = 860_000
"""Messages of 1 KiB, key, tag and three properties that fill 1 GiB of a log."""


def embedded(settings: Settings) -> Iterator[Figure]:
    """Java's producer and consumers, on the embedded broker and on Apache's in turn."""
    java = settings.peer()
    if java is None:
        return
    with embedded_server(settings.place("store")) as own:
        count = settings.count(60_000)
        how: Words = {"count": count, "mode": "async"}
        with ExitStack() as stack:
            sides = [
                Side(
                    stack.enter_context(
                        java.told("JavaProducer", namesrv=namesrv, topic=topic, **how)
                    ),
                    servers=[pid],
                    asleep=asleep,
                )
                for namesrv, topic, pid, asleep in (
                    (own.namesrv_addr, "BenchJava", own.pid, java.cluster.pids),
                    (java.cluster.namesrv_addr, java.topic(), java.broker_pid, [own.pid]),
                )
            ]
            name = "Java client 64 in flight, embedded broker"
            yield from compared("msg/s", {name: sides[0]}, settings.rule, {PEER: sides[1]})
        count = settings.count(300_000)
        mine = Backlog(own.namesrv_addr, "Bench", count, own.pid, tuple(java.cluster.pids))
        fill(mine.namesrv, mine.topic, count)
        other = replace(backlog_on(java, count), asleep=(own.pid,))
        consumers: list[tuple[str, str, Words]] = [
            ("Java push consumer batch 32", "JavaPushConsumer", {"batch": 32}),
            ("Java lite pull consumer", "JavaLitePullConsumer", {}),
        ]
        for name, program, more in consumers:
            with ExitStack() as stack:
                ours = {f"{name}, embedded broker": mine.theirs(stack, java, program, **more)}
                peer = other.theirs(stack, java, program, **more)
                yield from compared("msg/s", ours, settings.rule, {PEER: peer})


def many_clients(settings: Settings) -> Iterator[Figure]:
    """50 producers, 50 consumers, 1,000 held pulls: the same load on both brokers."""
    with embedded_server(settings.place("store")) as own, ExitStack() as stack:
        create_topic(own.namesrv_addr, own.broker_addr, "Crowd", QUEUES)
        how: Words = {"topic": "Crowd", "size": CROWD_BYTES}
        ours = stack.enter_context(Worker("crowd", broker=own.broker_addr, **how))
        java = settings.peer()
        theirs = None
        if java is not None:
            how["topic"] = java.topic(QUEUES)
            theirs = stack.enter_context(Worker("crowd", broker=java.cluster.broker_addr, **how))
        for name, words, key in (
            ("as fast as they go", {"count": settings.count(20_000), "rate": 0}, "rate"),
            (
                f"at {CROWD_RATE} msg/s",
                {"count": settings.count(3 * CROWD_RATE), "rate": CROWD_RATE},
                "p99_us",
            ),
        ):
            told = partial(Words, words)
            rest = [] if java is None else java.cluster.pids
            sides = {"ours": Side(ours, key, servers=[own.pid], asleep=rest, words=told)}
            if java is not None and theirs is not None:
                sides["peer"] = Side(
                    theirs, key, servers=[java.broker_pid], asleep=[own.pid], words=told
                )
            yield from _crowd_figures(f"50 producers, 50 consumers, {name}", sides, settings.rule)


def _crowd_figures(name: str, sides: dict[str, Side], rule: Rule) -> Iterator[Figure]:
    """Throughput where it is not given, and how long messages took, of the same rounds."""
    done = in_turn(sides, rule)
    notes: dict[str, Any] = {}
    for word, side in sides.items():
        notes |= told_beside(word, side, done[word])
    quantities = [("rate", "msg/s", 1.0), ("p50_us", "ms", 0.001), ("p99_us", "ms", 0.001)]
    for key, unit, factor in quantities if "fast" in name else quantities[1:]:
        mine = sides["ours"].of(key, done["ours"]).times(factor)
        title = f"{name}, {'throughput' if key == 'rate' else key[:3]}, embedded broker"
        if "peer" in sides:
            other = sides["peer"].of(key, done["peer"]).times(factor)
            yield Figure(title, unit, mine, PEER, other, notes)
        else:
            yield Figure(title, unit, mine, notes=notes)


def sync_flush(settings: Settings) -> Iterator[Figure]:
    """64 Java producers, each waiting for its message to be on disk."""
    how: Words = {"count": settings.count(20_000), "mode": "sync", "threads": 64, "producers": 64}
    with (
        fresh_peer(settings, flush="SYNC_FLUSH") as java,
        embedded_server(settings.place("store"), "--flush", "sync") as own,
        ExitStack() as stack,
    ):
        if java is None:
            return
        create_topic(own.namesrv_addr, own.broker_addr, "Flushed", 8)
        sides = [
            Side(
                stack.enter_context(java.told("JavaProducer", namesrv=namesrv, topic=topic, **how)),
                servers=[pid],
                asleep=asleep,
            )
            for namesrv, topic, pid, asleep in (
                (own.namesrv_addr, "Flushed", own.pid, java.cluster.pids),
                (java.cluster.namesrv_addr, java.topic(), java.broker_pid, [own.pid]),
            )
        ]
        name = "64 Java producers, sync flush, embedded broker"
        yield from compared("msg/s", {name: sides[0]}, settings.rule, {PEER: sides[1]})


def recovery(settings: Settings) -> Iterator[Figure]:
    """From the start of a broker killed with 1 GiB in its log until clients can connect: launches.

    Each launch has the store as the kill left it: a broker that has recovered writes down how far.
    """
    # Half of everything is still the whole GiB: that is what the row says.
    count = min(GIB_MESSAGES, settings.count(2 * GIB_MESSAGES))
    saved, mine, other = settings.place("saved"), [], []
    with embedded_server(saved / "ours") as own:
        fill(own.namesrv_addr, "Bench", count)
        os.kill(own.pid, signal.SIGKILL)
    with fresh_peer(settings) as java:
        if java is not None:
            fill(java.cluster.namesrv_addr, java.topic(), count)
            java.cluster.kill_broker()
            copied(java.cluster.store_dir, saved / "theirs")
        for _ in range(settings.runs):
            store = settings.place("copy") / "store"
            copied(saved / "ours", store)
            mine.append(_until_ready(store))
            shutil.rmtree(store)
            if java is not None:
                shutil.rmtree(java.cluster.store_dir)
                copied(saved / "theirs", java.cluster.store_dir)
                began = time.perf_counter()
                java.cluster.restart_broker()
                other.append(time.perf_counter() - began)
                java.cluster.kill_broker()
    log = sum(map(written, (saved / "ours" / "commitlog").iterdir()))
    title = f"recovery after kill -9, {log / 2**30:.2f} GiB in the log"
    yield Figure(title, "s", mine, "Apache broker", other)


def written(file: Path) -> int:
    """Bytes of records in a file of a log, which is as long as it may become."""
    with file.open("rb") as log, mmap.mmap(log.fileno(), 0, access=mmap.ACCESS_READ) as data:
        at = 0
        while at + 4 <= len(data) and (size := int.from_bytes(data[at : at + 4], "big")):
            at += size
    return at


def copied(store: Path, to: Path) -> None:
    """Copy a store; what its files are made longer for in advance takes no room."""
    subprocess.run(["cp", "-r", "--sparse=always", str(store), str(to)], check=True)


def _until_ready(store: Path) -> float:
    began = time.perf_counter()
    with embedded_server(store) as own:
        seconds = time.perf_counter() - began
        os.kill(own.pid, signal.SIGKILL)
    return seconds
