"""Measured jobs that consume: drains, end-to-end latency, memory of what is cached.

Law: as benchmarks.work; each job runs in a process of its own.
"""

from __future__ import annotations

import gc
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from benchmarks.harness import resident_mib
from benchmarks.jobs import Options, Round, counted
from rocketstream import (
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    LitePullConsumer,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
)

_STAMP = struct.Struct(">iq")
_PROBES_MAX = 600


class Tally:
    """Counts messages from any thread and notes when the first and the last of them came."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._lock = threading.Lock()
        self._seen = 0
        self._first = self._last = 0.0
        self._done = threading.Event()

    def add(self, amount: int) -> bool:
        """Count messages; tell whether these were the last."""
        with self._lock:
            if amount and not self._first:
                self._first = time.perf_counter()
            self._seen += amount
            if self._seen >= self._wanted:
                self._last = time.perf_counter()
                self._done.set()
            return self._done.is_set()

    def begin_now(self) -> None:
        """Take the time from now on, not from the first message."""
        with self._lock:
            self._first = time.perf_counter()

    def seconds(self, timeout_s: float) -> float:
        """Wait for the last one and return how long they took, from the first one on."""
        if not self._done.wait(timeout_s):
            raise RuntimeError(f"consumed {self._seen} of {self._wanted} in {timeout_s} s")
        return self._last - self._first


@contextmanager
def drain(_: Options) -> Iterator[Round]:
    """Consume a backlog with a listener that does nothing; from first to last message."""
    yield partial(_drain, success=ConsumeConcurrentlyStatus.CONSUME_SUCCESS, orderly=False)


@contextmanager
def drain_orderly(_: Options) -> Iterator[Round]:
    """The same with an orderly listener."""
    yield partial(_drain, success=ConsumeOrderlyStatus.SUCCESS, orderly=True)


def _drain(
    options: Options, *, success: ConsumeConcurrentlyStatus | ConsumeOrderlyStatus, orderly: bool
) -> dict[str, float]:
    """Each round is a consumer of its own, in a group of its own; or many, who begin together."""
    tally = Tally(options.count * max(1, options.groups))
    together = bool(options.groups or options.members)
    begun = threading.Event()
    if not together:
        begun.set()
    with ExitStack() as stack:

        def listener(messages: list[MessageExt]) -> Any:
            tally.add(len(messages))
            return success

        def gated(messages: list[MessageExt]) -> Any:
            begun.wait(options.timeout)
            return listener(messages)

        def started(group: str) -> PushConsumer:
            consumer = PushConsumer(
                group,
                namesrv_addr=options.namesrv,
                consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
                consume_message_batch_max_size=options.batch,
                subscription={options.topic: "*"},
            )
            call = gated if together else listener
            consumer.register_message_listener(call, orderly=orderly)  # type: ignore[call-overload]
            return stack.enter_context(consumer)

        names = [f"{options.group}-{number}" for number in range(max(1, options.groups))]
        consumers = [started(name) for name in names for _ in range(max(1, options.members))]
        if together:
            _await_even_shares(consumers, options)
            tally.begin_now()
            begun.set()
        return counted(options.count * len(names), tally.seconds(options.timeout))


def _await_even_shares(consumers: list[PushConsumer], options: Options) -> None:
    """Wait until the members of each group have divided the queues, so that none moves later."""
    queues = len(consumers[0].fetch_subscribe_message_queues(options.topic))
    end = time.monotonic() + options.timeout
    while time.monotonic() < end:
        shares = [
            sum(each.topic == options.topic for each in consumer.assigned_queues())
            for consumer in consumers
        ]
        if max(shares) - min(shares) <= 1 and sum(shares) == queues * max(1, options.groups):
            return
        time.sleep(0.05)
    raise RuntimeError(f"queues were not divided evenly in {options.timeout} s: {shares}")


@contextmanager
def drain_lite(_: Options) -> Iterator[Round]:
    """Poll a backlog out of a lite pull consumer, ``--polled`` messages a call."""
    yield _drain_lite


@contextmanager
def drain_arrow(_: Options) -> Iterator[Round]:
    """Poll a backlog out of a lite pull consumer as record batches of bodies."""
    yield lambda options: _drain_lite(options, columns=["body"])


def _drain_lite(options: Options, columns: list[str] | None = None) -> dict[str, float]:
    consumer = LitePullConsumer(
        options.group,
        namesrv_addr=options.namesrv,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        pull_batch_size=options.polled,
    )
    consumer.subscribe(options.topic)
    tally = Tally(options.count)
    with consumer:
        seen = 0
        end = time.monotonic() + options.timeout
        while seen < options.count and time.monotonic() < end:
            if columns is None:
                amount = len(consumer.poll(1_000))
            else:
                amount = consumer.poll_arrow(columns=columns, timeout_ms=1_000).num_rows
            if amount:
                seen += amount
                tally.add(amount)
        return counted(options.count, tally.seconds(0))


class LatencyListener:
    """Takes messages that carry a number and the time they were sent; one round after the other."""

    def __init__(self) -> None:
        self.awake = threading.Event()
        self.arm(0, 0)

    def arm(self, warm_up: int, count: int) -> None:
        """Begin a round of ``count`` messages after ``warm_up`` that do not count."""
        self.complete = threading.Event()
        self._lock = threading.Lock()
        self._nanos = [0] * count
        self._warm_up = warm_up
        self._left = count

    def __call__(self, messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        """Note how long each message took."""
        now = time.perf_counter_ns()
        for message in messages:
            number, sent = _STAMP.unpack_from(message.body)
            self.awake.set()
            if number >= self._warm_up:
                with self._lock:
                    self._nanos[number - self._warm_up] = now - sent
                    self._left -= 1
                    if not self._left:
                        self.complete.set()
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    def figures(self) -> dict[str, float]:
        """Microseconds that half, 99 % and all of the messages of the round took at most."""
        ordered = sorted(self._nanos)
        last = len(ordered) - 1
        shares = {"p50_us": 0.5, "p99_us": 0.99, "max_us": 1.0}
        return {
            name: ordered[min(last, int(share * len(ordered)))] / 1000
            for name, share in shares.items()
        }


@contextmanager
def latency(options: Options) -> Iterator[Round]:
    """Send at a steady rate and consume in one process; from before the send to the listener."""
    listener = LatencyListener()
    consumer = PushConsumer(options.group, namesrv_addr=options.namesrv)
    consumer.subscribe(options.topic)
    consumer.register_message_listener(listener)
    producer = Producer(f"{options.group}-sender", namesrv_addr=options.namesrv)
    filler = bytes(max(0, options.size - _STAMP.size))

    def send(number: int) -> None:
        stamp = _STAMP.pack(number, time.perf_counter_ns())
        producer.send(Message(options.topic, stamp + filler))

    def once(now: Options) -> dict[str, float]:
        listener.arm(now.warm_up, now.count)
        start = time.perf_counter()
        _pace(send, now.rate or 500, now.warm_up + now.count)
        if not listener.complete.wait(30):
            raise RuntimeError("not every message came within 30 s")
        return {**counted(now.count, time.perf_counter() - start), **listener.figures()}

    with consumer, producer:
        for _ in range(_PROBES_MAX):
            send(-1)
            if listener.awake.wait(0.1):
                break
        time.sleep(1)  # all queues are taken before the clock counts, and none is behind
        yield once


def _pace(send: Callable[[int], None], rate: int, count: int) -> None:
    """Call ``send`` at a steady rate; what is late is caught up with."""
    due = time.perf_counter()
    for number in range(count):
        due += 1 / rate
        left = due - time.perf_counter()
        if left > 0:
            time.sleep(left)
        send(number)


@contextmanager
def hold(_: Options) -> Iterator[Round]:
    """Cache a backlog in a push consumer whose listener does not return; what that takes."""
    before = resident_mib(os.getpid())
    yield lambda now: {**_hold(now), "before_mib": before}


def _hold(options: Options) -> dict[str, float]:
    never = threading.Event()

    def listener(_: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        never.wait()
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumer = PushConsumer(
        options.group,
        namesrv_addr=options.namesrv,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        pull_threshold_for_queue=min(options.count, 65_535),
        consume_concurrently_max_span=min(options.count, 65_535),
    )
    consumer.subscribe(options.topic)
    consumer.register_message_listener(listener)
    consumer.start()
    start = time.monotonic()
    while (cached := _cached(consumer)) < options.count:
        if time.monotonic() > start + options.timeout:
            raise RuntimeError(f"cached {cached} of {options.count} in {options.timeout} s")
        time.sleep(0.02)
    seconds = time.monotonic() - start
    gc.collect()
    held = resident_mib(os.getpid())
    never.set()
    consumer.shutdown()
    return {**counted(cached, seconds), "resident_mib": held}


def _cached(consumer: PushConsumer) -> int:
    """Messages a consumer has pulled that are not finished."""
    engine, impl = consumer._running()
    info = engine.run(impl.running_info())
    return sum(queue.cached_msg_count for queue in info.mq_table.values())
