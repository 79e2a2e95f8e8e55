"""One measured job in a process of its own: `python -m benchmarks.work JOB …`, a JSON line a round.

Law: a job measures itself and prints; it starts no servers and compares nothing. It sets itself up
once and then does rounds: one, as many as `--rounds` says, or with `--told` one for each line of
standard input, whose `name=value` words go over the options.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import queue
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import consuming, consuming_aio
from benchmarks.crowd import crowd
from benchmarks.harness import resident_mib
from benchmarks.jobs import Job, Options, Round, body_of, counted, run_job
from rocketstream import Message, Producer, SendResult, aio
from rocketstream._util.loops import new_event_loop

COLUMNS_A_CALL = 50_000
AS_IS: dict[str, Any] = {
    "compress_msg_body_over_howmuch": 4 * 1024 * 1024,
    "send_msg_timeout_ms": 60_000,
}
"""Great bodies are sent as they are: how fast zlib is, is another question. And patiently: a disk
that is behind writes for seconds at a time."""


@contextmanager
def send_sync(options: Options) -> Iterator[Round]:
    """One thread, one message at a time, waiting for each acknowledgement."""
    with Producer("bench-sync", namesrv_addr=options.namesrv) as producer:

        def once(now: Options) -> dict[str, float]:
            body = body_of(now.size)
            start = time.perf_counter()
            for number in range(now.count):
                producer.send(Message(now.topic, body, keys=f"k{number}"))
            return counted(now.count, time.perf_counter() - start)

        yield once


@contextmanager
def send_in_flight(options: Options, **settings: Any) -> Iterator[Round]:
    """Keep ``--in-flight`` sends under way on one producer."""
    given = {**AS_IS, **settings}
    with Producer("bench-async", namesrv_addr=options.namesrv, **given) as producer:

        def once(now: Options) -> dict[str, float]:
            body = body_of(now.size)
            start = time.perf_counter()
            pump(producer, now, body)
            return counted(now.count, time.perf_counter() - start)

        yield once


def pump(producer: Producer, options: Options, body: bytes) -> None:
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

    for number in range(options.count):
        room.get()
        message = Message(topic_of(options, number), body, keys=f"k{number}")
        producer.send_async(message).add_done_callback(done)
    for _ in range(options.in_flight):
        room.get()
    if failures:
        raise failures[0]


def topic_of(options: Options, number: int) -> str:
    """The topic of a message: with ``--topics N`` they take turns, named Bench-0 to Bench-N-1."""
    if options.topics == 1:
        return str(options.topic)
    return f"{options.topic}-{number % options.topics}"


def send_autobatch(options: Options) -> AbstractContextManager[Round]:
    """The same with the sends gathered into batches."""
    return send_in_flight(options, auto_batch=True)


@contextmanager
def send_aio(options: Options, **settings: Any) -> Iterator[Round]:
    """Keep ``--in-flight`` sends under way on one asyncio producer."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        producer = aio.Producer("bench-aio", namesrv_addr=options.namesrv, **settings)
        runner.run(producer.start())

        def once(now: Options) -> dict[str, float]:
            start = time.perf_counter()
            runner.run(share(producer, now, body_of(now.size)))
            return counted(now.count, time.perf_counter() - start)

        try:
            yield once
        finally:
            runner.run(producer.shutdown())


def send_autobatch_aio(options: Options) -> AbstractContextManager[Round]:
    """The same with the sends gathered into batches."""
    return send_aio(options, auto_batch=True)


@contextmanager
def send_many(options: Options) -> Iterator[Round]:
    """Send messages given as columns, 50,000 a call."""
    with Producer("bench-many", namesrv_addr=options.namesrv, **AS_IS) as producer:

        def once(now: Options) -> dict[str, float]:
            body = body_of(now.size)
            start = time.perf_counter()
            for first in range(0, now.count, COLUMNS_A_CALL):
                numbers = range(first, min(first + COLUMNS_A_CALL, now.count))
                keys = [f"k{number}" for number in numbers]
                producer.send_many(now.topic, [body] * len(numbers), keys=keys)
            return counted(now.count, time.perf_counter() - start)

        yield once


async def share(producer: aio.Producer, options: Options, body: bytes) -> None:
    """Send ``count`` messages from ``--in-flight`` tasks, each awaiting one at a time."""
    numbers = iter(range(options.count))

    async def one_by_one() -> None:
        for number in numbers:
            await producer.send(Message(options.topic, body, keys=f"k{number}"))

    async with asyncio.TaskGroup() as group:
        for _ in range(options.in_flight):
            group.create_task(one_by_one())


@contextmanager
def fill(options: Options) -> Iterator[Round]:
    """Put ``--count`` messages into the topic by batches, spread over its queues."""
    with Producer("bench-fill", namesrv_addr=options.namesrv, **AS_IS) as producer:

        def once(now: Options) -> dict[str, float]:
            start = time.perf_counter()
            body = body_of(now.size)
            most = max(1, min(200, 512 * 1024 // (now.size + 300)))
            queues = producer.fetch_publish_message_queues(now.topic)
            for index, sent in enumerate(range(0, now.count, most)):
                amount = min(most, now.count - sent)
                batch = [example(now.topic, body, sent + n) for n in range(amount)]
                producer.send(batch, message_queue=queues[index % len(queues)])
            return counted(now.count, time.perf_counter() - start)

        yield once


def example(topic: str, body: bytes, number: int) -> Message:
    """A message as applications send them: key, tag, three properties."""
    properties = {"source": "bench", "number": str(number), "kind": "a"}
    return Message(topic, body, keys=f"key-{number}", tags="TagA", properties=properties)


@contextmanager
def first_ack(options: Options) -> Iterator[Round]:
    """Start an embedded cluster in this process and send one message."""
    from rocketstream.server.embedded import EmbeddedCluster

    def once(now: Options) -> dict[str, float]:
        start = time.perf_counter()
        with EmbeddedCluster(Path(now.store)) as cluster:
            ready = time.perf_counter() - start
            with Producer("bench-start", namesrv_addr=cluster.namesrv_addr) as producer:
                producer.send(Message("TopicStart", b"x"))
                acknowledged = time.perf_counter() - start
        return {
            "ready_s": ready,
            "first_ack_s": acknowledged,
            "resident_mib": resident_mib(os.getpid()),
        }

    yield once


JOBS: dict[str, Job] = {
    "send-sync": send_sync,
    "send-in-flight": send_in_flight,
    "send-aio": send_aio,
    "send-autobatch": send_autobatch,
    "send-many": send_many,
    "send-autobatch-aio": send_autobatch_aio,
    "fill": fill,
    "drain": consuming.drain,
    "drain-orderly": consuming.drain_orderly,
    "drain-arrow": consuming.drain_arrow,
    "drain-lite": consuming.drain_lite,
    "drain-aio": consuming_aio.drain_aio,
    "drain-lite-aio": consuming_aio.drain_lite_aio,
    "latency": consuming.latency,
    "hold": consuming.hold,
    "crowd": crowd,
    "first-ack": first_ack,
}


def arguments() -> argparse.ArgumentParser:
    """What a job may be told, on the command line once and on standard input for each round."""
    parser = argparse.ArgumentParser(prog="benchmarks.work")
    parser.add_argument("--namesrv", default="")
    parser.add_argument("--broker", default="", help="address, for a job without client library")
    parser.add_argument("--topic", default="Bench")
    parser.add_argument("--topics", type=int, default=1)
    parser.add_argument("--group", default="bench-group")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--polled", type=int, default=32, help="most messages of a lite poll")
    parser.add_argument("--groups", type=int, default=0, help="that drain at once")
    parser.add_argument("--members", type=int, default=0, help="of each group, at once")
    parser.add_argument("--rate", type=int, default=0, help="messages a second; 0: all it can")
    parser.add_argument("--warm-up", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--store", default="")
    return parser


if __name__ == "__main__":
    run_job(arguments(), JOBS)
