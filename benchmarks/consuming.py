"""Measured jobs that consume: drains, end-to-end latency, memory of what is cached.

Law: as benchmarks.work; each job runs in a process of its own.
"""

from __future__ import annotations

import argparse
import gc
import os
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks.harness import resident_mib
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

    def add(self, amount: int) -> None:
        """Count messages."""
        with self._lock:
            if not self._seen:
                self._first = time.perf_counter()
            self._seen += amount
            if self._seen >= self._wanted:
                self._last = time.perf_counter()
                self._done.set()

    def per_s(self, timeout_s: float) -> float:
        """Wait for the last one and return how many came a second."""
        if not self._done.wait(timeout_s):
            raise RuntimeError(f"consumed {self._seen} of {self._wanted} in {timeout_s} s")
        return self._wanted / (self._last - self._first)


def drain(options: argparse.Namespace) -> dict[str, float]:
    """Consume a backlog with a listener that does nothing; from first to last message."""
    tally = Tally(options.count)

    def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        tally.add(len(messages))
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    return _drain(options, tally, listener, orderly=False)


def drain_orderly(options: argparse.Namespace) -> dict[str, float]:
    """The same with an orderly listener."""
    tally = Tally(options.count)

    def listener(messages: list[MessageExt]) -> ConsumeOrderlyStatus:
        tally.add(len(messages))
        return ConsumeOrderlyStatus.SUCCESS

    return _drain(options, tally, listener, orderly=True)


def _drain(
    options: argparse.Namespace, tally: Tally, listener: Callable[..., Any], *, orderly: bool
) -> dict[str, float]:
    consumer = PushConsumer(
        options.group,
        namesrv_addr=options.namesrv,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        consume_message_batch_max_size=options.batch,
    )
    consumer.subscribe(options.topic)
    consumer.register_message_listener(listener, orderly=orderly)
    with consumer:
        consumer.start()
        return {"per_s": tally.per_s(options.timeout)}


def drain_lite(options: argparse.Namespace) -> dict[str, float]:
    """Poll a backlog out of a lite pull consumer, 32 a pull."""
    consumer = LitePullConsumer(
        options.group,
        namesrv_addr=options.namesrv,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        pull_batch_size=32,
    )
    consumer.subscribe(options.topic)
    tally = Tally(options.count)
    with consumer:
        consumer.start()
        seen = 0
        end = time.monotonic() + options.timeout
        while seen < options.count and time.monotonic() < end:
            amount = len(consumer.poll(1_000))
            if amount:
                seen += amount
                tally.add(amount)
        return {"per_s": tally.per_s(0)}


class LatencyListener:
    """Takes messages that carry a number and the time they were sent."""

    def __init__(self, warm_up: int, count: int) -> None:
        self.nanos = [0] * count
        self.awake = threading.Event()
        self.complete = threading.Event()
        self._warm_up = warm_up
        self._left = count
        self._lock = threading.Lock()

    def __call__(self, messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        """Note how long each message took."""
        now = time.perf_counter_ns()
        for message in messages:
            number, sent = _STAMP.unpack_from(message.body)
            self.awake.set()
            if number >= self._warm_up:
                self.nanos[number - self._warm_up] = now - sent
                with self._lock:
                    self._left -= 1
                    if not self._left:
                        self.complete.set()
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    def at(self, share: float) -> float:
        """Microseconds that ``share`` of the messages took at most."""
        ordered = sorted(self.nanos)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1000


def latency(options: argparse.Namespace) -> dict[str, float]:
    """Send at a steady rate and consume in one process; from before the send to the listener."""
    listener = LatencyListener(options.warm_up, options.count)
    consumer = PushConsumer(options.group, namesrv_addr=options.namesrv)
    consumer.subscribe(options.topic)
    consumer.register_message_listener(listener)
    producer = Producer(f"{options.group}-sender", namesrv_addr=options.namesrv)
    filler = bytes(max(0, options.size - _STAMP.size))

    def send(number: int) -> None:
        stamp = _STAMP.pack(number, time.perf_counter_ns())
        producer.send(Message(options.topic, stamp + filler))

    with consumer, producer:
        consumer.start()
        for _ in range(_PROBES_MAX):
            send(-1)
            if listener.awake.wait(0.1):
                break
        time.sleep(1)  # all queues are taken before the clock counts, and none is behind
        _pace(send, options.rate, options.warm_up + options.count)
        if not listener.complete.wait(30):
            raise RuntimeError("not every message came within 30 s")
    return {"p50_us": listener.at(0.5), "p99_us": listener.at(0.99), "max_us": listener.at(1.0)}


def _pace(send: Callable[[int], None], rate: int, count: int) -> None:
    """Call ``send`` at a steady rate; what is late is caught up with."""
    due = time.perf_counter()
    for number in range(count):
        due += 1 / rate
        left = due - time.perf_counter()
        if left > 0:
            time.sleep(left)
        send(number)


def hold(options: argparse.Namespace) -> dict[str, float]:
    """Cache a backlog in a push consumer whose listener does not return; what that takes."""
    never = threading.Event()

    def listener(_: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        never.wait()
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    before = resident_mib(os.getpid())
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
    end = time.monotonic() + options.timeout
    while (cached := _cached(consumer)) < options.count:
        if time.monotonic() > end:
            raise RuntimeError(f"cached {cached} of {options.count} in {options.timeout} s")
        time.sleep(0.02)
    gc.collect()
    held = resident_mib(os.getpid())
    never.set()
    consumer.shutdown()
    return {"resident_mib": held, "before_mib": before, "cached": cached}


def _cached(consumer: PushConsumer) -> int:
    """Messages a consumer has pulled that are not finished."""
    engine, impl = consumer._running()
    info = engine.run(impl.running_info())
    return sum(queue.cached_msg_count for queue in info.mq_table.values())
