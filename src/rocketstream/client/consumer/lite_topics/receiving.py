"""Asking brokers for messages of lite topics: one question per broker under way.

Law: on the loop; what an answer brings is put among the runs, and handed to the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Collection
from typing import Protocol

from rocketstream._util.clock import Clock
from rocketstream.client.consumer.lite_topics.acknowledging import BrokerAcknowledger
from rocketstream.client.consumer.lite_topics.announcing import Announcer
from rocketstream.client.consumer.lite_topics.requests import LiteRequests
from rocketstream.client.consumer.lite_topics.runs import runs_of
from rocketstream.client.consumer.lite_topics.service import (
    GIVEN_BACK_MS,
    AsyncLiteService,
    ThreadedLiteService,
)
from rocketstream.client.core.lite_runs import LiteRun, LiteRuns
from rocketstream.client.core.lite_settings import LitePushConsumerSettings
from rocketstream.client.core.lite_topics import LiteTopics
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import RocketMQError, TransportError

logger = logging.getLogger("rocketstream.client")

AGAIN_MS = 1_000
"""Pause after a question that failed."""
ROOM_MS = 5_000
"""How long room is waited for before the broker is told again, if it is time to."""


class Receiving(Protocol):
    """The consumer messages are received for."""

    group: str
    topic: str
    clock: Clock
    instance: MQClientInstance
    settings: LitePushConsumerSettings
    topics: LiteTopics
    runs: LiteRuns
    requests: LiteRequests
    acknowledger: BrokerAcknowledger
    announcer: Announcer
    service: AsyncLiteService | ThreadedLiteService


class Receiver:
    """One task per broker.

    Attributes:
        stopping: no question is asked any more.
    """

    def __init__(self, consumer: Receiving) -> None:
        self._consumer = consumer
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._attempts = itertools.count(1)
        self._began_ms = consumer.clock.now_ms()
        self._news = asyncio.Event()
        self._back = asyncio.Event()
        self._asked = 0
        self.stopping = False
        consumer.acknowledger.when_confirmed = self._news.set

    def serve(self, brokers: Collection[str]) -> None:
        """Receive from these brokers and no others."""
        for name in [name for name in self._tasks if name not in brokers]:
            self._tasks.pop(name).cancel()
        loop = asyncio.get_running_loop()
        for name in brokers:
            if name not in self._tasks:
                task = loop.create_task(self._receive_forever(name))
                self._tasks[name] = task

    def wake(self) -> None:
        """A broker that was lost may be back."""
        self._news.set()
        self._back.set()

    async def stop(self) -> None:
        """End all questions; their brokers have been told that nothing is wanted."""
        self.stopping = True
        self.wake()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()

    async def _receive_forever(self, broker: str) -> None:
        consumer = self._consumer
        outages = consumer.instance.outages
        attempt = self._next_attempt()
        while not self.stopping:
            try:
                if broker in consumer.topics.due(consumer.clock.monotonic_ms()):
                    await consumer.announcer.announce_all(broker)
                if not self._has_room():
                    await self._wait(self._news, ROOM_MS)
                    continue
                self._asked += 1
                try:
                    await self._receive(broker, attempt)
                finally:
                    self._asked -= 1
            except RocketMQError as error:
                outages.failed(("lite topics of", consumer.topic, "at", broker), error)
                if not isinstance(error, TransportError):
                    attempt = self._next_attempt()
                await self._wait(self._back, AGAIN_MS)
            except Exception:
                logger.exception(
                    "receiving lite topics of %s from %s failed", consumer.topic, broker
                )
                await self._wait(self._back, AGAIN_MS)
            else:
                attempt = self._next_attempt()
                outages.worked("lite topics of", consumer.topic, "at", broker)

    async def _receive(self, broker: str, attempt: str) -> None:
        consumer = self._consumer
        settings = consumer.settings
        answer = await consumer.requests.receive(
            consumer.announcer.address(broker),
            settings.pull_batch_size,
            settings.invisible_ms,
            settings.poll_ms,
            attempt,
        )
        if answer is None:
            return
        header, records = answer
        now_ms = consumer.clock.monotonic_ms()
        wanted: list[LiteRun] = []
        others: list[LiteRun] = []
        for run in runs_of(header, records, consumer.topic, broker, now_ms):
            (wanted if consumer.topics.is_wanted(run.lite_topic) else others).append(run)
        # Before: the listener is on other threads, and may begin within ``submit``.
        namespace = consumer.instance.config.without_namespace
        for run in wanted:
            for message in run.messages:
                message.topic = namespace(message.topic)
        if self.stopping or not consumer.service.submit(wanted):
            others += wanted
        for run in others:
            consumer.acknowledger.given_back(run, run.left, GIVEN_BACK_MS)

    def _has_room(self) -> bool:
        consumer = self._consumer
        with consumer.service.mutex:
            return consumer.runs.has_room(consumer.acknowledger.count, self._asked)

    @staticmethod
    async def _wait(event: asyncio.Event, time_ms: float) -> None:
        event.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(time_ms / 1000):
                await event.wait()

    def _next_attempt(self) -> str:
        client_id = self._consumer.instance.client_id
        return f"{client_id}-{self._began_ms}-{next(self._attempts)}"
