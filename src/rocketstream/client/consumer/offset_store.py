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


class Offsets(Protocol):
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

    def committable(self, mq: MessageQueue) -> int:
        """Return the offset a pull may carry along, 0 for none."""
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
        self._tables: set[tuple[str, str]] = set()
        """Broker and topic of every commit a broker has acknowledged."""
        self._said: set[MessageQueue] = set()
        """Queues whose first commit was acknowledged."""

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
        # A 4.x broker that gets the first two commits of a topic and group at once may keep one
        # only (commitOffset makes the table of the pair unguarded): so the first ones go singly,
        # and each is said once more in the next round.
        known = set(self._tables)
        for mq, offset in changed:
            if self._table_of(mq) not in known:
                self._note_failure(mq, offset, await self._try_send(mq, offset))
        rest = [pair for pair in changed if self._table_of(pair[0]) in known]
        results = await asyncio.gather(*(self._try_send(mq, offset) for mq, offset in rest))
        for (mq, offset), error in zip(rest, results, strict=True):
            self._note_failure(mq, offset, error)

    def committable(self, mq: MessageQueue) -> int:
        """Return the offset a pull may carry, 0 while the broker has no commit of the topic."""
        return self._offsets.get(mq, 0) if self._table_of(mq) in self._tables else 0

    def remove_offset(self, mq: MessageQueue) -> None:
        """Forget a queue."""
        self._offsets.pop(mq, None)
        self._persisted.pop(mq, None)
        self._said.discard(mq)

    async def _try_send(self, mq: MessageQueue, offset: int) -> RocketMQError | None:
        try:
            address = await self._address(mq)
            await self._instance.api.update_consumer_offset(address, self._group, mq, offset)
        except RocketMQError as error:
            return error
        self._tables.add(self._table_of(mq))
        if mq in self._said:
            self._persisted[mq] = offset
        elif mq in self._offsets:
            self._said.add(mq)
        return None

    def _note_failure(self, mq: MessageQueue, offset: int, error: RocketMQError | None) -> None:
        if error is not None:
            logger.warning(
                "offset %d of %s in group %s could not be stored: %s",
                offset, mq, self._group, error,
            )  # fmt: skip

    @staticmethod
    def _table_of(mq: MessageQueue) -> tuple[str, str]:
        return mq.broker_name, mq.topic

    async def _address(self, mq: MessageQueue) -> str:
        routes = self._instance.routes
        found = routes.find_for_subscribe(mq.broker_name, 0)
        if found is None:
            await self._instance.update_route(mq.topic)
            found = routes.find_for_subscribe(mq.broker_name, 0)
        if found is None:
            raise RouteNotFoundError(f"The broker[{mq.broker_name}] not exist", queue=mq)
        return found.address
