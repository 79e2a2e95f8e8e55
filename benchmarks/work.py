"""One measured job in a process of its own: `python -m benchmarks.work JOB …` prints one JSON line.

Law: a job measures itself and prints; it starts no servers and compares nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import queue
import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from benchmarks import consuming
from benchmarks.harness import resident_mib
from rocketstream import Message, Producer, SendResult, aio
from rocketstream._util.loops import new_event_loop

WARM_UP = 500


def body_of(size: int) -> bytes:
    """A body of ``size`` bytes that does not compress to nothing."""
    pattern = b"".join(b"%d," % (number * 7919 % 10_007) for number in range(size // 4 + 1))
    return pattern[:size]


def send_sync(options: argparse.Namespace) -> dict[str, float]:
    """One thread, one message at a time, waiting for each acknowledgement."""
    body = body_of(options.size)
    with Producer("bench-sync", namesrv_addr=options.namesrv) as producer:
        for _ in range(WARM_UP):
            producer.send(Message(options.topic, body))
        start = time.perf_counter()
        for number in range(options.count):
            producer.send(Message(options.topic, body, keys=f"k{number}"))
        seconds = time.perf_counter() - start
    return {"per_s": options.count / seconds}


def send_in_flight(options: argparse.Namespace) -> dict[str, float]:
    """Keep ``--in-flight`` sends under way on one producer."""
    body = body_of(options.size)
    with Producer("bench-async", namesrv_addr=options.namesrv) as producer:
        pump(producer, options, body, WARM_UP * 4)
        start = time.perf_counter()
        pump(producer, options, body, options.count)
        seconds = time.perf_counter() - start
    return {"per_s": options.count / seconds}


def pump(producer: Producer, options: argparse.Namespace, body: bytes, count: int) -> None:
    """Send ``count`` messages, a bounded number of them unacknowledged at any time."""
    room: queue.SimpleQueue[None] = queue.SimpleQueue()
    for _ in range(options.in_flight):
        room.put(None)
    failures: deque[BaseException] = deque()

    def done(future: Future[SendResult]) -> None:
        error = future.exception()
        if error is not None:
            failures.append(error)
        room.put(None)

    for number in range(count):
        room.get()
        message = Message(options.topic, body, keys=f"k{number}")
        producer.send_async(message).add_done_callback(done)
    for _ in range(options.in_flight):
        room.get()
    if failures:
        raise failures[0]


def send_aio(options: argparse.Namespace) -> dict[str, float]:
    """Keep ``--in-flight`` sends under way on one asyncio producer."""
    body = body_of(options.size)

    async def main() -> float:
        async with aio.Producer("bench-aio", namesrv_addr=options.namesrv) as producer:
            await share(producer, options, body, WARM_UP * 4)
            start = time.perf_counter()
            await share(producer, options, body, options.count)
            return time.perf_counter() - start

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return {"per_s": options.count / runner.run(main())}


async def share(
    producer: aio.Producer, options: argparse.Namespace, body: bytes, count: int
) -> None:
    """Send ``count`` messages from ``--in-flight`` tasks, each awaiting one at a time."""
    numbers = iter(range(count))

    async def one_by_one() -> None:
        for number in numbers:
            await producer.send(Message(options.topic, body, keys=f"k{number}"))

    async with asyncio.TaskGroup() as group:
        for _ in range(options.in_flight):
            group.create_task(one_by_one())


def fill(options: argparse.Namespace) -> dict[str, float]:
    """Put ``--count`` messages into the topic by batches, spread over its queues."""
    body = body_of(options.size)
    with Producer("bench-fill", namesrv_addr=options.namesrv) as producer:
        queues = producer.fetch_publish_message_queues(options.topic)
        sent = 0
        for index in range((options.count + 199) // 200):
            amount = min(200, options.count - sent)
            batch = [example(options.topic, body, sent + n) for n in range(amount)]
            producer.send(batch, queue=queues[index % len(queues)])
            sent += amount
    return {"count": sent}


def example(topic: str, body: bytes, number: int) -> Message:
    """A message as applications send them: key, tag, three properties."""
    properties = {"source": "bench", "number": str(number), "kind": "a"}
    return Message(topic, body, keys=f"key-{number}", tags="TagA", properties=properties)


def first_ack(options: argparse.Namespace) -> dict[str, float]:
    """Start an embedded cluster in this process and send one message."""
    from rocketstream.server.embedded import EmbeddedCluster

    start = time.perf_counter()
    with EmbeddedCluster(Path(options.store)) as cluster:
        ready = time.perf_counter() - start
        with Producer("bench-start", namesrv_addr=cluster.namesrv_addr) as producer:
            producer.send(Message("TopicStart", b"x"))
            acknowledged = time.perf_counter() - start
    return {
        "ready_s": ready,
        "first_ack_s": acknowledged,
        "resident_mib": resident_mib(os.getpid()),
    }


JOBS: dict[str, Callable[[argparse.Namespace], dict[str, float]]] = {
    "send-sync": send_sync,
    "send-in-flight": send_in_flight,
    "send-aio": send_aio,
    "fill": fill,
    "drain": consuming.drain,
    "drain-orderly": consuming.drain_orderly,
    "drain-lite": consuming.drain_lite,
    "latency": consuming.latency,
    "hold": consuming.hold,
    "first-ack": first_ack,
}


def main() -> None:
    """Run the job named on the command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.work")
    parser.add_argument("job", choices=sorted(JOBS))
    parser.add_argument("--namesrv", default="")
    parser.add_argument("--topic", default="Bench")
    parser.add_argument("--group", default="bench-group")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rate", type=int, default=500)
    parser.add_argument("--warm-up", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--store", default="")
    options = parser.parse_args()
    sys.stdout.write(json.dumps(JOBS[options.job](options)) + "\n")


if __name__ == "__main__":
    main()
