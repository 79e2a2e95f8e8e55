"""Requests that tell brokers what became of messages: consumed, to come again, still in work.

Law: ``succeeded``, ``given_back`` and ``ended`` may be called from any thread, all else on the
loop. A message whose acknowledgement is lost comes again: at least once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from rocketstream.client.consumer.lite_topics.topics import LiteRun, LiteTopics
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import RocketMQError, RouteNotFoundError, TransportError
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
)
from rocketstream.protocol.lite import LITE_QUEUE_ID

logger = logging.getLogger("rocketstream.client")

TIMEOUT_MS = 5_000
AGAIN_MS = 1_000
"""Pause before an acknowledgement that could not be sent is sent again."""


class Acknowledger:
    """Acknowledges messages of one consumer at its brokers, or changes how long they are hidden.

    Args:
        instance: the client instance.
        group: consumer group, with its namespace.
        topics: learns in which lite topics the group has an offset.

    Attributes:
        count: messages whose acknowledgement or change a broker has not confirmed.
        news: set when ``count`` has become less, and when a run has ended.
    """

    def __init__(self, instance: MQClientInstance, group: str, topics: LiteTopics) -> None:
        self._instance = instance
        self._group = group
        self._topics = topics
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[None], int] = {}
        self.count = 0
        self.news = asyncio.Event()

    # --- from any thread --------------------------------------------------------------------------

    def succeeded(self, run: LiteRun, offsets: Sequence[int]) -> None:
        """Acknowledge messages that are consumed: the broker gives them to nobody any more."""
        self._on_loop(self._start, len(offsets), self._acknowledge, run, offsets)

    def given_back(self, run: LiteRun, offsets: Sequence[int], hidden_ms: int) -> None:
        """Have messages come again once they were hidden for ``hidden_ms`` from now."""
        self._on_loop(self._start, len(offsets), self._give_back, run, offsets, hidden_ms)

    def ended(self) -> None:
        """Report that a run has ended, so that there is room for another."""
        self._on_loop(self.news.set)

    def _on_loop(self, function: Callable[..., object], *arguments: object) -> None:
        # The loop is gone when a listener outlived the shutdown: its messages come again.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    # --- on the loop ------------------------------------------------------------------------------

    def renew(self, run: LiteRun) -> None:
        """Hide what is left of a run anew, for as long as it was hidden at first."""
        if run.left:
            self._start(0, self._renew, run, run.left)

    async def drain(self) -> None:
        """Wait until brokers have confirmed every request, or the request has failed."""
        await asyncio.sleep(0)  # requests that threads asked for are begun now
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    def _start(
        self, messages: int, work: Callable[..., Coroutine[Any, Any, None]], *arguments: object
    ) -> None:
        task = self._loop.create_task(work(*arguments))
        self._tasks[task] = messages
        self.count += messages
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.count -= self._tasks.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("an acknowledgement failed", exc_info=error)
        self.news.set()

    async def _acknowledge(self, run: LiteRun, offsets: Sequence[int]) -> None:
        await asyncio.gather(*(self._acknowledge_one(run, offset) for offset in offsets))

    async def _give_back(self, run: LiteRun, offsets: Sequence[int], hidden_ms: int) -> None:
        for offset in offsets:
            # In order: the first one that is visible again opens the lite topic.
            await self._hide(run, offset, hidden_ms)

    async def _renew(self, run: LiteRun, offsets: Sequence[int]) -> None:
        began_ms = self._instance.clock.monotonic_ms()
        done = await asyncio.gather(
            *(self._hide(run, offset, run.invisible_ms) for offset in offsets)
        )
        if all(done):
            run.hidden(began_ms)

    async def _acknowledge_one(self, run: LiteRun, offset: int) -> None:
        """Acknowledge one message, and try again while it stays hidden."""
        clock, outages = self._instance.clock, self._instance.outages
        broker = run.queue.broker_name
        header = AckMessageRequestHeader(
            self._group, run.queue.topic, LITE_QUEUE_ID, run.receipt(offset), offset,
            run.lite_topic, broker,
        )  # fmt: skip
        while True:
            try:
                # Brokers take them one by one only.
                await self._invoke(broker, RequestCode.ACK_MESSAGE, header)
            except (TransportError, RouteNotFoundError) as error:
                outages.failed(("an acknowledgement",), error)
                if clock.monotonic_ms() + AGAIN_MS >= run.hidden_until_ms:
                    return
                await asyncio.sleep(AGAIN_MS / 1000)
            except RocketMQError as error:
                outages.failed(("an acknowledgement", "in lite topic", run.lite_topic), error)
                return
            else:
                self._topics.placed(broker, [run.lite_topic])
                return

    async def _hide(self, run: LiteRun, offset: int, hidden_ms: int) -> bool:
        broker = run.queue.broker_name
        header = ChangeInvisibleTimeRequestHeader(
            self._group, run.queue.topic, LITE_QUEUE_ID, run.receipt(offset), offset, hidden_ms,
            run.lite_topic, broker,
        )  # fmt: skip
        try:
            await self._invoke(broker, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        except RocketMQError as error:
            # It comes again all the same, when the time is over for which it was hidden before.
            logger.info("lite topic %s: offset %d stays hidden: %s", run.lite_topic, offset, error)
            return False
        return True

    async def _invoke(
        self,
        broker: str,
        code: RequestCode,
        header: AckMessageRequestHeader | ChangeInvisibleTimeRequestHeader,
    ) -> None:
        api = self._instance.api
        channel = api.channel(self._instance.routes.known_master(broker))
        await api.invoke(channel, RemotingCommand.request(code, header), TIMEOUT_MS)
