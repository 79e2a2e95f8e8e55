"""A running consumer's offsets as its user may look at them and change them.

Law: forwards; names are the user's on this side and the servers' on the other (C-111, C-299).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.offsets.store import (
    NO_OFFSET,
    UNREADABLE,
    Offsets,
    OffsetStore,
    ReadOffsetType,
)
from rocketstream.client.instance.engine import Engine
from rocketstream.errors import RocketMQError
from rocketstream.model import MessageQueue


class AsyncOffsetStoreView:
    """What ``OffsetStore`` offers, with coroutines for what asks a broker or writes a file."""

    def __init__(self, offsets: Offsets, config: ClientConfig) -> None:
        self._offsets = offsets
        self._config = config

    def update_offset(
        self, message_queue: MessageQueue, offset: int, increase_only: bool = True
    ) -> None:
        """Note an offset; with ``increase_only`` not one below the one noted (C-300)."""
        self._offsets.update_offset(self._queue(message_queue), offset, increase_only=increase_only)

    async def read_offset(self, message_queue: MessageQueue, read_type: ReadOffsetType) -> int:
        """Return an offset, -1 when there is none, -2 when it cannot be found out (C-302)."""
        queue = self._queue(message_queue)
        if read_type is not ReadOffsetType.READ_FROM_STORE:
            noted = self._offsets.read_memory(queue)
            if noted is not None or read_type is ReadOffsetType.READ_FROM_MEMORY:
                return NO_OFFSET if noted is None else noted
        try:
            stored = await self._offsets.read_store(queue)
        except RocketMQError:
            return UNREADABLE
        return NO_OFFSET if stored is None else stored

    async def persist_all(self, message_queues: Collection[MessageQueue]) -> None:
        """Store what is noted of these queues; failures are logged."""
        await self._offsets.persist([self._queue(mq) for mq in message_queues])

    async def persist(self, message_queue: MessageQueue) -> None:
        """Store what is noted of one queue."""
        await self.persist_all([message_queue])

    def remove_offset(self, message_queue: MessageQueue) -> None:
        """Forget what is noted of a queue; what is stored stays."""
        self._offsets.remove_offset(self._queue(message_queue))

    def clone_offset_table(self, topic: str | None = None) -> dict[MessageQueue, int]:
        """Return what is noted of a topic's queues; of all when it is None or blank (C-320)."""
        name = self._config.with_namespace(topic) if topic and topic.strip() else None
        table = self._offsets.clone_offset_table(name)
        return {self._config.queue_without_namespace(mq): offset for mq, offset in table.items()}

    async def update_consume_offset_to_broker(
        self, message_queue: MessageQueue, offset: int, is_oneway: bool = False
    ) -> None:
        """Store an offset now (C-319).

        Raises:
            RocketMQError: the broker is unknown or did not take it.
        """
        queue = self._queue(message_queue)
        await self._offsets.update_consume_offset_to_broker(queue, offset, is_oneway)

    def _queue(self, message_queue: MessageQueue) -> MessageQueue:
        return self._config.queue_with_namespace(message_queue)


class OffsetStoreView(OffsetStore):
    """The same for threads: each waiting call blocks for a request."""

    def __init__(self, offsets: Offsets, engine: Engine) -> None:
        self._view = AsyncOffsetStoreView(offsets, engine.instance.config)
        self._engine = engine

    def update_offset(
        self, message_queue: MessageQueue, offset: int, increase_only: bool = True
    ) -> None:
        """Note an offset; with ``increase_only`` not one below the one noted."""
        self._engine.check_process()
        self._view.update_offset(message_queue, offset, increase_only)

    def read_offset(self, message_queue: MessageQueue, read_type: ReadOffsetType) -> int:
        """Return an offset, -1 when there is none, -2 when it cannot be found out."""
        return self._engine.run(self._view.read_offset(message_queue, read_type))

    def persist_all(self, message_queues: Collection[MessageQueue]) -> None:
        """Store what is noted of these queues; failures are logged."""
        self._engine.run(self._view.persist_all(message_queues))

    def remove_offset(self, message_queue: MessageQueue) -> None:
        """Forget what is noted of a queue; what is stored stays."""
        self._engine.check_process()
        self._view.remove_offset(message_queue)

    def clone_offset_table(self, topic: str | None = None) -> Mapping[MessageQueue, int]:
        """Return what is noted of a topic's queues; of all when it is None or blank."""
        return self._view.clone_offset_table(topic)

    def update_consume_offset_to_broker(
        self, message_queue: MessageQueue, offset: int, is_oneway: bool = False
    ) -> None:
        """Store an offset now.

        Raises:
            RocketMQError: the broker is unknown or did not take it.
        """
        self._engine.run(
            self._view.update_consume_offset_to_broker(message_queue, offset, is_oneway)
        )
