"""Watches whether the queues of topics change, for listeners that want to know.

Law: runs on the loop; asks the name server and tells, no more (C-521).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from rocketstream.client.consumer.queue_listener import Teller
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import RocketMQError
from rocketstream.model import MessageQueue

logger = logging.getLogger("rocketstream.client")

FIRST_CHECK_MS = 10_000


class TopicWatch:
    """The topics somebody watches."""

    def __init__(self, instance: MQClientInstance, teller: Teller, interval_ms: int) -> None:
        self._instance = instance
        self._teller = teller
        self._interval_ms = interval_ms
        self._listeners: dict[str, Any] = {}
        self._known: dict[str, tuple[MessageQueue, ...]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        """Watch no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def register(self, topic: str, listener: Any) -> None:
        """Tell ``listener`` when the queues of ``topic`` are others than now."""
        self._listeners[topic] = listener
        if topic not in self._known:
            queues = await self._queues(topic)
            if queues is not None:
                self._known[topic] = queues

    async def check(self) -> None:
        """Ask for every watched topic now, and tell of changes."""
        for topic, listener in list(self._listeners.items()):
            queues = await self._queues(topic)
            if queues is None or queues == self._known.get(topic, ()):
                continue
            self._known[topic] = queues
            config = self._instance.config
            self._teller.tell(
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

    async def _watch(self) -> None:
        pause_ms = min(FIRST_CHECK_MS, self._interval_ms)
        while True:
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = self._interval_ms
            try:
                await self.check()
            except Exception:
                logger.exception("the check for changed topics failed")
