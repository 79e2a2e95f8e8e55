"""Failed messages on their way back: they count once a copy is stored, whoever still waits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

from rocketstream import MessageExt
from rocketstream.client.consumer.process_queue import ProcessQueue, Thresholds
from rocketstream.client.consumer.queue import AssignedQueue, QueueLinks
from rocketstream.client.consumer.send_back import FailedMessages
from rocketstream.testing import received_message


class SlowBroker:
    """A send-back whose broker answers when the test says so."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.stored = asyncio.Event()
        self.tasks: list[asyncio.Task[Any]] = []

    def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        self.tasks.append(asyncio.get_running_loop().create_task(work))
        return self.tasks[-1]

    async def give_back(self, message: MessageExt, level: int) -> None:
        self.asked.set()
        await self.stored.wait()

    async def drain(self) -> None:
        await asyncio.gather(*self.tasks)


class Offsets:
    """Takes the offset to commit."""

    def __init__(self) -> None:
        self.noted: list[int] = []

    def update_offset(self, mq: object, offset: int) -> None:
        self.noted.append(offset)


def queue_with(message: MessageExt, offsets: Offsets) -> AssignedQueue:
    clock = SimpleNamespace(monotonic_ms=lambda: 0.0)
    links = QueueLinks(cast(Any, offsets), cast(Any, None), cast(Any, None), cast(Any, clock))
    queue = AssignedQueue(ProcessQueue(message.message_queue, 0.0), 0, Thresholds(), links)
    queue.put([message], message.queue_offset + 1)
    return queue


def test_a_queue_is_not_free_while_an_expired_message_of_it_is_sent_back() -> None:
    """Covers C-248, C-556: its next owner would consume the message, and its copy."""

    async def run() -> None:
        message, broker, offsets = received_message("T", b"x"), SlowBroker(), Offsets()
        failed = FailedMessages(cast(Any, broker), 0, tells_cause=False)
        queue = queue_with(message, offsets)
        scan = asyncio.get_running_loop().create_task(failed.expire(queue, message))
        await broker.asked.wait()
        assert not queue.is_free
        assert offsets.noted == []
        broker.stored.set()
        assert await scan
        assert queue.is_free
        assert offsets.noted == [message.queue_offset + 1]

    asyncio.run(run())


def test_a_send_back_goes_on_when_the_scan_that_began_it_is_cancelled() -> None:
    """Covers C-119, C-248: the shutdown cancels the scan and waits for what it has begun."""

    async def run() -> None:
        message, broker, offsets = received_message("T", b"x"), SlowBroker(), Offsets()
        failed = FailedMessages(cast(Any, broker), 0, tells_cause=False)
        queue = queue_with(message, offsets)
        scan = asyncio.get_running_loop().create_task(failed.expire(queue, message))
        await broker.asked.wait()
        scan.cancel()
        await asyncio.gather(scan, return_exceptions=True)
        broker.stored.set()
        await failed.drain()
        assert offsets.noted == [message.queue_offset + 1]

    asyncio.run(run())
