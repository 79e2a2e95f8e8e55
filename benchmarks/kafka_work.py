"""Measured jobs of librdkafka, by `confluent-kafka`, on Kafka's broker: as benchmarks.work.

Law: as benchmarks.work; knows nothing of RocketMQ but what the bodies are.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, Producer

from benchmarks.jobs import Job, Options, Round, body_of, counted, run_job

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
        consumer = Consumer(
            {
                "bootstrap.servers": now.kafka,
                "group.id": now.group,
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([now.topic])
        seen, start, end = 0, 0.0, time.monotonic() + now.timeout
        while seen < now.count:
            messages = consumer.consume(POLLED, 1.0)
            start = start or (time.perf_counter() if messages else 0.0)
            for message in messages:
                if message.error() is not None:
                    raise RuntimeError(f"consume: {message.error()}")
            seen += len(messages)
            if time.monotonic() > end:
                raise RuntimeError(f"consumed {seen} of {now.count} in {now.timeout} s")
        seconds = time.perf_counter() - start
        consumer.close()
        return counted(now.count, seconds)

    yield once


JOBS: dict[str, Job] = {"fill": fill, "drain": drain}


def main() -> None:
    """Run the job named on the command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.kafka_work")
    parser.add_argument("--kafka", required=True, help="address of the broker")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="bench-group")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--timeout", type=float, default=120)
    run_job(parser, JOBS)


if __name__ == "__main__":
    main()
