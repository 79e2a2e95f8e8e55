"""Where a consumer that pulls by itself is in its queues: where each begins, what stays of it.

Law: runs on the loop; knows neither who has a queue nor how it is pulled (C-189 to C-196).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rocketstream.client.consumer.consume.runs import PullRequest
from rocketstream.client.consumer.offsets.store import Offsets
from rocketstream.client.core.rebalance import StartAt, start_at
from rocketstream.client.core.routes import unknown_broker
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.model import ConsumeFromWhere, MessageQueue
from rocketstream.protocol.names import RETRY_PREFIX


class QueuePlaces:
    """The places of one consumer in its queues.

    Args:
        instance: the client instance; its brokers are asked.
        store: where offsets are kept.
        where: where a queue without a stored offset begins.
        timestamp_ms: where TIMESTAMP begins, ms since 1970.
        take: begins to pull a queue that has just become ours.
    """

    def __init__(
        self,
        instance: MQClientInstance,
        store: Offsets,
        where: ConsumeFromWhere,
        timestamp_ms: Callable[[], int],
        take: Callable[[PullRequest], None],
    ) -> None:
        self._instance = instance
        self._store = store
        self._where = where
        self._timestamp_ms = timestamp_ms
        self.take = take

    async def start(self, mq: MessageQueue) -> int:
        """Return where to begin a queue (C-189).

        Raises:
            RocketMQError: it could not be found out; that is never an offset (C-561, C-562).
        """
        stored = await self._store.read_store(mq)
        if stored is not None:
            return stored
        where = start_at(self._where, is_retry=mq.topic.startswith(RETRY_PREFIX))
        if where is StartAt.ZERO:
            return 0
        address = self._instance.routes.master(mq.broker_name)
        if address is None:
            raise unknown_broker(mq.broker_name, mq)
        if where is StartAt.TIMESTAMP:
            return await self._instance.api.search_offset(address, mq, self._timestamp_ms())
        return await self._instance.api.max_offset(address, mq)

    def note(self, mq: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        """Note where a queue begins.

        Stored even before the first message, so that LAST is not asked for again after a crash.
        """
        self._store.update_offset(mq, offset, increase_only=increase_only)

    async def persist_for_good(self, mqs: Sequence[MessageQueue]) -> None:
        """Store for good where queues are."""
        await self._store.persist_for_good(mqs)

    def forget(self, mqs: Sequence[MessageQueue]) -> None:
        """Forget what is noted of queues that are not ours, or not yet."""
        for mq in mqs:
            self._store.remove_offset(mq)
