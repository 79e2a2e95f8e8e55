"""What Python's other way to a log costs: librdkafka on Kafka's broker, on the same machine.

Law: as benchmarks.suites.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

from benchmarks.comparing import compared
from benchmarks.consuming_suites import backlog_on, in_fresh_group
from benchmarks.harness import Figure
from benchmarks.setting import Settings
from benchmarks.sides import Side, Words, Worker

WORK = "benchmarks.kafka_work"


def kafka(settings: Settings) -> Iterator[Figure]:
    """Lite pull from an Apache RocketMQ broker, and consume from a Kafka broker; same bodies."""
    from benchmarks.kafka import KafkaBroker, RefereeUnavailableError

    java = settings.peer()
    if java is None:
        return
    if importlib.util.find_spec("confluent_kafka") is None:
        sys.stderr.write("  without confluent-kafka: pip install -r benchmarks/requirements.txt\n")
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
            with ExitStack() as stack:
                where, away = f"{size} B, next to librdkafka", replace(held, asleep=(other.pid,))
                ours = {
                    f"lite-pull drain, {where}": away.ours(stack, "drain-lite"),
                    f"lite-pull drain in columns, {where}": away.ours(stack, "drain-arrow"),
                }
                consume = stack.enter_context(Worker("drain", module=WORK, **at))
                rest = java.cluster.pids
                peer = Side(consume, servers=[other.pid], asleep=rest, words=in_fresh_group)
                what = "confluent-kafka consume, Kafka broker"
                yield from compared("msg/s", ours, settings.rule, what, peer)
