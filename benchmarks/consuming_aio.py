"""The drains of benchmarks.consuming in asyncio: one loop, listeners that are coroutines.

Law: as benchmarks.work.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.consuming import Tally
from benchmarks.jobs import Options, Round, counted
from rocketstream import ConsumeConcurrentlyStatus, ConsumeFromWhere, MessageExt, aio
from rocketstream._util.loops import new_event_loop


@contextmanager
def drain_aio(_: Options) -> Iterator[Round]:
    """Consume a backlog with a coroutine that does nothing, from first to last message."""
    with _rounds(_drain) as once:
        yield once


@contextmanager
def drain_lite_aio(_: Options) -> Iterator[Round]:
    """Poll a backlog out of a lite pull consumer, ``--polled`` messages a call."""
    with _rounds(_drain_lite) as once:
        yield once


@contextmanager
def _rounds(
    drained: Callable[[Options], Coroutine[Any, Any, dict[str, float]]],
) -> Iterator[Round]:
    """Rounds on one loop."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        yield lambda now: runner.run(drained(now))


async def _drain(options: Options) -> dict[str, float]:
    tally = Tally(options.count)
    complete = asyncio.Event()

    async def listener(messages: list[MessageExt]) -> ConsumeConcurrentlyStatus:
        if tally.add(len(messages)):
            complete.set()
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumer = aio.PushConsumer(
        options.group,
        namesrv_addr=options.namesrv,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        consume_message_batch_max_size=options.batch,
    )
    await consumer.subscribe(options.topic)
    consumer.register_message_listener(listener)
    async with consumer:
        async with asyncio.timeout(options.timeout):
            await complete.wait()
        return counted(options.count, tally.seconds(0))


async def _drain_lite(options: Options) -> dict[str, float]:
    tally = Tally(options.count)
    consumer = aio.LitePullConsumer(
        options.group,
        namesrv_addr=options.namesrv,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        pull_batch_size=options.polled,
    )
    await consumer.subscribe(options.topic)
    async with consumer:
        end = time.monotonic() + options.timeout
        while time.monotonic() < end:
            amount = len(await consumer.poll(1_000))
            if amount and tally.add(amount):
                break
        return counted(options.count, tally.seconds(0))
