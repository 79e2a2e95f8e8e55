"""Where a group is in each queue: in memory here, kept by the brokers.

Law: offsets move forward only, except by an explicit repair; a failed query is an error, never
an offset (C-300, C-314 to C-321, with C-316, C-561, C-568 put right).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol

from rocketstream.client.instance import MQClientInstance
from rocketstream.errors import RocketMQError, RouteNotFoundError
from rocketstream.model import MessageQueue

logger = logging.getLogger("rocketstream.client")


class OffsetStore(Protocol):
    """Offsets by queue; an offset is the next one to consume."""

    def update_offset(self, mq: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        """Note an offset; may be called from any thread, one at a time for each queue."""
        ...

    def read_memory(self, mq: MessageQueue) -> int | None:
        """Return what is noted, None when nothing is."""
        ...

    async def read_store(self, mq: MessageQueue) -> int | None:
        """Ask the store; None when it has none."""
        ...

    async def persist(self, mqs: Iterable[MessageQueue]) -> None:
        """Write what changed of these queues; failures are logged and tried again next time."""
        ...

    def remove_offset(self, mq: MessageQueue) -> None:
        """Forget a queue."""
        ...


class RemoteBrokerOffsetStore:
    """The brokers' store, for clustering (C-313 to C-321)."""

    def __init__(self, instance: MQClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._offsets: dict[MessageQueue, int] = {}
        self._persisted: dict[MessageQueue, int] = {}
        self._sending: dict[str, asyncio.Lock] = {}

    def update_offset(self, mq: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        """Note an offset; a smaller one only when ``increase_only`` is off."""
        known = self._offsets.get(mq)
        if known is None or offset > known or not increase_only:
            self._offsets[mq] = offset

    def read_memory(self, mq: MessageQueue) -> int | None:
        """Return what is noted, None when nothing is."""
        return self._offsets.get(mq)

    async def read_store(self, mq: MessageQueue) -> int | None:
        """Ask the queue's broker and take its answer over (C-314); None when it has none.

        Raises:
            RocketMQError: the question could not be answered.
        """
        address = await self._address(mq)
        offset = await self._instance.api.query_consumer_offset(address, self._group, mq)
        if offset is not None:
            self._offsets[mq] = offset
            self._persisted[mq] = offset
        return offset

    async def persist(self, mqs: Iterable[MessageQueue]) -> None:
        """Send the changed offsets of these queues, and know that they arrived."""
        by_broker: dict[str, list[MessageQueue]] = {}
        for mq in mqs:
            by_broker.setdefault(mq.broker_name, []).append(mq)
        await asyncio.gather(
            *(self._persist(broker, queues) for broker, queues in by_broker.items())
        )

    async def _persist(self, broker_name: str, mqs: list[MessageQueue]) -> None:
        # One round at a time: a broker may handle two commits of a queue in any order, and the
        # one handled last stays (C-324).
        lock = self._sending.setdefault(broker_name, asyncio.Lock())
        async with lock:
            await self._persist_changed(mqs)

    async def _persist_changed(self, mqs: list[MessageQueue]) -> None:
        changed = [
            (mq, offset)
            for mq in mqs
            if (offset := self._offsets.get(mq)) is not None and self._persisted.get(mq) != offset
        ]
        results = await asyncio.gather(
            *(self._send(mq, offset) for mq, offset in changed), return_exceptions=True
        )
        for (mq, offset), result in zip(changed, results, strict=True):
            if isinstance(result, RocketMQError):
                logger.warning(
                    "offset %d of %s in group %s could not be stored: %s",
                    offset, mq, self._group, result,
                )  # fmt: skip
            elif isinstance(result, BaseException):
                raise result

    def remove_offset(self, mq: MessageQueue) -> None:
        """Forget a queue."""
        self._offsets.pop(mq, None)
        self._persisted.pop(mq, None)

    async def _send(self, mq: MessageQueue, offset: int) -> None:
        address = await self._address(mq)
        await self._instance.api.update_consumer_offset(address, self._group, mq, offset)
        if mq in self._offsets:
            self._persisted[mq] = offset

    async def _address(self, mq: MessageQueue) -> str:
        routes = self._instance.routes
        found = routes.find_for_subscribe(mq.broker_name, 0)
        if found is None:
            await self._instance.update_route(mq.topic)
            found = routes.find_for_subscribe(mq.broker_name, 0)
        if found is None:
            raise RouteNotFoundError(f"The broker[{mq.broker_name}] not exist", queue=mq)
        return found.address
