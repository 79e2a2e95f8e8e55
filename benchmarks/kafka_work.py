"""Measured jobs of Kafka's clients, `confluent-kafka` and `aiokafka`, on Kafka's broker.

Law: as benchmarks.work; knows nothing of RocketMQ but what the bodies are.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, Message, Producer
from confluent_kafka.aio import AIOConsumer

from benchmarks.consuming import Tally
from benchmarks.jobs import Job, Options, Round, body_of, counted, run_job
from rocketstream._util.loops import new_event_loop

POLLED = 500
"""Messages at most that a call for more returns; more at once makes it no faster."""


@contextmanager
def fill(options: Options) -> Iterator[Round]:
    """Put ``--count`` messages with key and three headers into the topic, as `work.fill` does."""
    producer = Producer({"bootstrap.servers": options.kafka, "linger.ms": 5})

    def once(now: Options) -> dict[str, float]:
        start = time.perf_counter()
        body = body_of(now.size)
        for number in range(now.count):
            headers = [("source", b"bench"), ("number", b"%d" % number), ("kind", b"a")]
            while True:
                try:
                    producer.produce(now.topic, body, key=b"key-%d" % number, headers=headers)
                    break
                except BufferError:
                    producer.poll(0.1)
        if producer.flush(60):
            raise RuntimeError("not everything was acknowledged within 60 s")
        return counted(now.count, time.perf_counter() - start)

    yield once


@contextmanager
def drain(_: Options) -> Iterator[Round]:
    """Consume a backlog, from first to last message; each round a consumer and group of its own."""

    def once(now: Options) -> dict[str, float]:
        consumer = Consumer(settings_of(now))
        consumer.subscribe([now.topic])
        tally, end = Tally(now.count), time.monotonic() + now.timeout
        while time.monotonic() < end:
            if tally.add(whole(consumer.consume(POLLED, 1.0))):
                break
        seconds = tally.seconds(0)
        consumer.close()
        return counted(now.count, seconds)

    yield once


@contextmanager
def drain_aio(_: Options) -> Iterator[Round]:
    """The same with librdkafka's asyncio face, ``--polled`` messages a call."""

    async def once(now: Options, tally: Tally) -> None:
        consumer = AIOConsumer(settings_of(now))
        await consumer.subscribe([now.topic])
        while not tally.add(whole(await consumer.consume(now.polled, 1.0))):
            pass
        await consumer.close()

    with _on_a_loop(once) as rounds:
        yield rounds


@contextmanager
def drain_aiokafka(_: Options) -> Iterator[Round]:
    """The same with aiokafka: ``getone``, or ``getmany`` of ``--polled`` messages."""
    from aiokafka import AIOKafkaConsumer

    async def once(now: Options, tally: Tally) -> None:
        consumer = AIOKafkaConsumer(
            now.topic,
            bootstrap_servers=now.kafka,
            group_id=now.group,
            auto_offset_reset="earliest",
        )
        async with consumer:
            if now.polled == 1:
                while not tally.add(len([await consumer.getone()])):
                    pass
                return
            amount = 0
            while not tally.add(amount):
                found = await consumer.getmany(timeout_ms=1_000, max_records=now.polled)
                amount = sum(map(len, found.values()))

    with _on_a_loop(once) as rounds:
        yield rounds


@contextmanager
def _on_a_loop(
    drained: Callable[[Options, Tally], Coroutine[Any, Any, None]],
) -> Iterator[Round]:
    """Rounds on one loop, the kind our own clients take."""

    async def once(now: Options) -> dict[str, float]:
        tally = Tally(now.count)
        async with asyncio.timeout(now.timeout):
            await drained(now, tally)
        return counted(now.count, tally.seconds(0))

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        yield lambda now: runner.run(once(now))


def settings_of(now: Options) -> dict[str, str]:
    """Settings of librdkafka's consumer."""
    where = {"bootstrap.servers": now.kafka, "group.id": now.group}
    return {**where, "auto.offset.reset": "earliest"}


def whole(messages: list[Message]) -> int:
    """How many they are; raises RuntimeError where one is an error."""
    for message in messages:
        if message.error() is not None:
            raise RuntimeError(f"consume: {message.error()}")
    return len(messages)


JOBS: dict[str, Job] = {
    "fill": fill,
    "drain": drain,
    "drain-aio": drain_aio,
    "drain-aiokafka": drain_aiokafka,
}


def main() -> None:
    """Run the job named on the command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.kafka_work")
    parser.add_argument("--kafka", required=True, help="address of the broker")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="bench-group")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--polled", type=int, default=1, help="most messages of an asyncio poll")
    parser.add_argument("--timeout", type=float, default=120)
    run_job(parser, JOBS)


if __name__ == "__main__":
    main()
