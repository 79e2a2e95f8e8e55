"""Asks for the queues of topics at an interval, and calls the listeners of those that changed.

Law: runs on the loop; asks the name server and notifies, no more (C-521).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from rocketstream.client.consumer.queue_listener import QueueChangeNotifier
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import RocketMQError
from rocketstream.model import MessageQueue

logger = logging.getLogger("rocketstream.client")

FIRST_CHECK_MS = 10_000


class TopicChanges:
    """The topics that have a listener for changes of their queues."""

    def __init__(
        self, instance: MQClientInstance, notifier: QueueChangeNotifier, interval_ms: int
    ) -> None:
        self._instance = instance
        self._notifier = notifier
        self._interval_ms = interval_ms
        self._listeners: dict[str, Any] = {}
        self._known: dict[str, tuple[MessageQueue, ...]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to ask."""
        self._task = asyncio.get_running_loop().create_task(self._check_forever())

    async def stop(self) -> None:
        """Ask no more, and wait until the last question has ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def register(self, topic: str, listener: Any) -> None:
        """Have ``listener`` called when the queues of ``topic`` are others than now."""
        self._listeners[topic] = listener
        if topic not in self._known:
            queues = await self._queues(topic)
            if queues is not None:
                self._known[topic] = queues

    async def check(self) -> None:
        """Ask for every topic now, and notify the listeners of those that changed."""
        for topic, listener in list(self._listeners.items()):
            queues = await self._queues(topic)
            if queues is None or queues == self._known.get(topic, ()):
                continue
            self._known[topic] = queues
            config = self._instance.config
            self._notifier.notify(
                listener,
                config.without_namespace(topic),
                [config.queue_without_namespace(mq) for mq in queues],
            )

    async def _queues(self, topic: str) -> tuple[MessageQueue, ...] | None:
        try:
            await self._instance.update_route(topic)
        except RocketMQError as error:
            self._instance.outages.failed(("route of topic", topic), error)
            return None
        return tuple(sorted(self._instance.routes.subscribe_queues(topic) or ()))

    async def _check_forever(self) -> None:
        pause_ms = min(FIRST_CHECK_MS, self._interval_ms)
        while True:
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = self._interval_ms
            try:
                await self.check()
            except Exception:
                logger.exception("the check for changed topics failed")
