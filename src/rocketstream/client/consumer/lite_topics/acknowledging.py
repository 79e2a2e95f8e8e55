"""Requests that tell brokers what became of messages: consumed, to come again, still in work.

Law: ``succeeded``, ``given_back`` and ``ended`` may be called from any thread, all else on the
loop. A message whose acknowledgement is lost comes again: at least once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence

from rocketstream.client.consumer.lite_topics.requests import LiteRequests
from rocketstream.client.core.lite_runs import LiteRun
from rocketstream.client.core.lite_topics import LiteTopics
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import RocketMQError, RouteNotFoundError, TransportError

logger = logging.getLogger("rocketstream.client")

AGAIN_MS = 1_000
"""Pause before an acknowledgement that could not be sent is sent again."""


class BrokerAcknowledger:
    """Acknowledges messages of one consumer at its brokers, or changes how long they are hidden.

    Attributes:
        count: messages whose acknowledgement or change a broker has not confirmed.
        when_confirmed: called on the loop when ``count`` has become less, and when a run has ended.
    """

    def __init__(
        self, instance: MQClientInstance, requests: LiteRequests, topics: LiteTopics
    ) -> None:
        self._instance = instance
        self._requests = requests
        self._topics = topics
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[None], int] = {}
        self.count = 0
        self.when_confirmed: Callable[[], None] = lambda: None

    # --- from any thread --------------------------------------------------------------------------

    def succeeded(self, run: LiteRun, offsets: Sequence[int]) -> None:
        """Acknowledge messages that are consumed: the broker gives them to nobody any more."""
        self._on_loop(self._begin, run, offsets, None)

    def given_back(self, run: LiteRun, offsets: Sequence[int], hidden_ms: int) -> None:
        """Have messages come again once they were hidden for ``hidden_ms`` from now."""
        self._on_loop(self._begin, run, offsets, hidden_ms)

    def ended(self) -> None:
        """Report that a run has ended, so that there is room for another."""
        self._on_loop(self._confirmed)

    def _on_loop(self, function: Callable[..., object], *arguments: object) -> None:
        # The loop is gone when a listener outlived the shutdown: its messages come again.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)

    # --- on the loop ------------------------------------------------------------------------------

    def renew(self, run: LiteRun) -> None:
        """Hide what is left of a run anew, for as long as it was hidden at first."""
        if run.left:
            self._start(self._renewed(run, run.left), 0)

    async def drain(self) -> None:
        """Wait until brokers have confirmed every request, or the request has failed."""
        await asyncio.sleep(0)  # requests that threads asked for are begun now
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    def _begin(self, run: LiteRun, offsets: Sequence[int], hidden_ms: int | None) -> None:
        self._start(self._tell_broker(run, offsets, hidden_ms), len(offsets))

    def _start(self, work: Coroutine[None, None, None], messages: int) -> None:
        task = self._loop.create_task(work)
        self._tasks[task] = messages
        self.count += messages
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.count -= self._tasks.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("an acknowledgement failed", exc_info=error)
        self._confirmed()

    def _confirmed(self) -> None:
        self.when_confirmed()

    async def _tell_broker(
        self, run: LiteRun, offsets: Sequence[int], hidden_ms: int | None
    ) -> None:
        if hidden_ms is None:
            await asyncio.gather(*(self._acknowledge(run, offset) for offset in offsets))
            return
        for offset in offsets:
            # In order: the first one that is visible again opens the lite topic.
            await self._hide(run, offset, hidden_ms)

    async def _acknowledge(self, run: LiteRun, offset: int) -> None:
        """Acknowledge one message, and try again while it stays hidden."""
        clock, outages = self._instance.clock, self._instance.outages
        while True:
            try:
                await self._requests.acknowledge(self._address(run), run, offset)
            except (TransportError, RouteNotFoundError) as error:
                outages.failed(("an acknowledgement",), error)
                if clock.monotonic_ms() + AGAIN_MS >= run.hidden_until_ms:
                    return
                await asyncio.sleep(AGAIN_MS / 1000)
            except RocketMQError as error:
                outages.failed(("an acknowledgement", "in lite topic", run.lite_topic), error)
                return
            else:
                self._topics.placed(run.queue.broker_name, [run.lite_topic])
                return

    async def _hide(self, run: LiteRun, offset: int, hidden_ms: int) -> bool:
        try:
            await self._requests.hide(self._address(run), run, offset, hidden_ms)
        except RocketMQError as error:
            # It comes again all the same, when the time is over for which it was hidden before.
            logger.info("lite topic %s: offset %d stays hidden: %s", run.lite_topic, offset, error)
            return False
        return True

    async def _renewed(self, run: LiteRun, offsets: Sequence[int]) -> None:
        began_ms = self._instance.clock.monotonic_ms()
        done = await asyncio.gather(
            *(self._hide(run, offset, run.invisible_ms) for offset in offsets)
        )
        if all(done):
            run.hidden(began_ms)

    def _address(self, run: LiteRun) -> str:
        return self._instance.routes.known_master(run.queue.broker_name)
