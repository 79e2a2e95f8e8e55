"""What Python's other ways to a log cost: clients of Kafka on Kafka's broker, on the same machine.

Law: as benchmarks.suites.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.comparing import compared
from benchmarks.consuming_suites import Backlog, backlog_on, in_fresh_group
from benchmarks.harness import Figure
from benchmarks.setting import Settings
from benchmarks.sides import Side, Words, Worker

if TYPE_CHECKING:
    from benchmarks.java import JavaPeer
    from benchmarks.kafka import KafkaBroker

WORK = "benchmarks.kafka_work"
PEERS = ("confluent_kafka", "aiokafka")
POLLED = (1, 20)
"""Messages of one poll of the asyncio consumers."""


def kafka(settings: Settings) -> Iterator[Figure]:
    """Lite pull from an Apache RocketMQ broker, and consume from a Kafka broker; same bodies."""
    from benchmarks.kafka import KafkaBroker, RefereeUnavailableError

    java = settings.peer()
    if java is None:
        return
    if missing := [name for name in PEERS if importlib.util.find_spec(name) is None]:
        names = " and ".join(missing)
        sys.stderr.write(f"  without {names}: pip install -r benchmarks/requirements.txt\n")
        return
    try:
        broker = KafkaBroker(settings.place("kafka"))
    except RefereeUnavailableError as reason:
        sys.stderr.write(f"  without the Kafka peer: {reason}\n")
        return
    with broker as other:
        for size in (100, 1024):
            held = backlog_on(java, settings.count(300_000), size)
            topic = other.topic(f"Bench{size}")
            at: Words = {"kafka": other.address, "topic": topic, "count": held.count}
            with Worker("fill", module=WORK, **at, size=size) as filler:
                filler.round()
            away = replace(held, asleep=(other.pid,))
            yield from by_threads(settings, away, size, java, other, at)
            if size == 100:
                yield from by_asyncio(settings, away, java, other, at)


def by_threads(
    settings: Settings, held: Backlog, size: int, java: JavaPeer, other: KafkaBroker, at: Words
) -> Iterator[Figure]:
    """Messages and columns, next to librdkafka's consume of hundreds."""
    with ExitStack() as stack:
        where = f"{size} B, next to librdkafka"
        ours = {
            f"lite-pull drain, {where}": held.ours(stack, "drain-lite"),
            f"lite-pull drain in columns, {where}": held.ours(stack, "drain-arrow"),
        }
        peers = {"confluent-kafka consume, Kafka broker": theirs(stack, "drain", java, other, at)}
        yield from compared("msg/s", ours, settings.rule, peers)


def by_asyncio(
    settings: Settings, held: Backlog, java: JavaPeer, other: KafkaBroker, at: Words
) -> Iterator[Figure]:
    """Our asyncio consumer next to librdkafka's, a thread's turn a call, and aiokafka's."""
    for polled in POLLED:
        name = f"lite-pull drain, asyncio, {polled} a poll, 100 B, next to Kafka's"
        how: Words = {**at, "polled": polled}
        # One message a call takes librdkafka so long that fewer do.
        few = {**how, "count": held.count // 10} if polled == 1 else how
        with ExitStack() as stack:
            ours = {name: held.ours(stack, "drain-lite-aio", polled=polled)}
            peers = {
                "confluent_kafka.aio consume": theirs(stack, "drain-aio", java, other, few),
                "aiokafka": theirs(stack, "drain-aiokafka", java, other, how),
            }
            yield from compared("msg/s", ours, settings.rule, peers)


def theirs(stack: ExitStack, job: str, java: JavaPeer, other: KafkaBroker, words: Words) -> Side:
    """A client of Kafka that drains its topic, in a fresh group each round."""
    worker = stack.enter_context(Worker(job, module=WORK, **words))
    return Side(worker, servers=[other.pid], asleep=java.cluster.pids, words=in_fresh_group)
