"""An ``OffsetStore`` as the consumers use it: waiting calls on a thread, failures in one form.

Law: adapts; keeps nothing itself.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable
from typing import Any

from rocketstream.client.consumer.offsets.local_store import LocalFileOffsetStore
from rocketstream.client.consumer.offsets.store import (
    NO_OFFSET,
    Offsets,
    OffsetStore,
    ReadOffsetType,
    RemoteBrokerOffsetStore,
)
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import ClientStateError, ConfigurationError, RocketMQError
from rocketstream.model import MessageModel, MessageQueue

logger = logging.getLogger("rocketstream.client")


def checked_store(store: object) -> OffsetStore | None:
    """Return the store a consumer was given.

    Raises:
        ConfigurationError: it lacks methods of a store.
    """
    if store is None or isinstance(store, OffsetStore):
        return store
    raise ConfigurationError(
        f"offset_store must be an instance of a subclass of rocketstream.OffsetStore, not {store!r}"
    )


class UserOffsets:
    """Offsets kept by a store of the user's own, or by the local file (C-44)."""

    def __init__(self, store: OffsetStore) -> None:
        self.store = store
        self._writing = asyncio.Lock()

    async def load(self) -> None:
        """Have the store read what it keeps; what it raises fails the start."""
        await _waiting(self.store.load)

    def update_offset(self, mq: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        """Note an offset; what the store raises is logged, it must not end a listener's thread."""
        try:
            self.store.update_offset(mq, offset, increase_only)
        except Exception:
            logger.exception("the offset store failed to take offset %d of %s", offset, mq)

    def read_memory(self, mq: MessageQueue) -> int | None:
        """Return what is noted, None when nothing is."""
        try:
            offset = self.store.read_offset(mq, ReadOffsetType.READ_FROM_MEMORY)
        except Exception:
            logger.exception("the offset store failed to tell the offset it has of %s", mq)
            return None
        return offset if isinstance(offset, int) and offset >= 0 else None

    async def read_store(self, mq: MessageQueue) -> int | None:
        """Ask the store; None when it says -1.

        Raises:
            RocketMQError: it says another negative number, or raises (C-302, C-561).
        """
        try:
            offset = await _waiting(self.store.read_offset, mq, ReadOffsetType.READ_FROM_STORE)
        except RocketMQError:
            raise
        except Exception as error:
            raise ClientStateError(f"the offset store failed for {mq}: {error!r}") from error
        if offset == NO_OFFSET:
            return None
        if not isinstance(offset, int) or offset < 0:
            raise ClientStateError(
                f"read_offset() of the offset store returned {offset!r} for {mq}; it must "
                "return an offset from 0 on, or -1 for none"
            )
        return offset

    async def persist(self, mqs: Iterable[MessageQueue]) -> None:
        """Have offsets kept; what the store raises is logged, and tried again next time."""
        queues = list(mqs)
        if not queues:
            return
        async with self._writing:
            try:
                await _waiting(self.store.persist_all, queues)
            except Exception:
                logger.exception("the offset store failed to persist the offsets of %s", queues)

    async def persist_for_good(self, mqs: Iterable[MessageQueue]) -> None:
        """Have offsets kept."""
        await self.persist(mqs)

    async def check(self, mqs: Iterable[MessageQueue]) -> None:
        """Nothing to ask: what the store keeps is its own business."""

    def overtaken(self, mqs: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Nothing: what the store keeps is its own business."""
        return {}

    def committable(self, mq: MessageQueue) -> int:
        """Return 0: the broker is not the store, pulls carry nothing (C-211)."""
        return 0

    def carried(self, mq: MessageQueue) -> None:
        """Pulls carry nothing."""

    def remove_offset(self, mq: MessageQueue) -> None:
        """Forget a queue."""
        try:
            self.store.remove_offset(mq)
        except Exception:
            logger.exception("the offset store failed to remove the offset of %s", mq)

    def connection_lost(self, address: str) -> None:
        """No broker keeps these."""

    async def update_consume_offset_to_broker(
        self, mq: MessageQueue, offset: int, is_oneway: bool = False
    ) -> None:
        """Let the store do it; the local file has no broker to tell (C-309)."""
        await _waiting(self.store.update_consume_offset_to_broker, mq, offset, is_oneway)

    def clone_offset_table(self, topic: str | None = None) -> dict[MessageQueue, int]:
        """Return what is noted of a topic."""
        return dict(self.store.clone_offset_table(topic))


async def open_store(
    instance: MQClientInstance,
    group: str,
    message_model: MessageModel,
    user_store: OffsetStore | None = None,
) -> Offsets:
    """Return a consumer's offsets, loaded: the user's store, or the one its model has (C-111).

    Raises:
        RocketMQError: what is kept cannot be read.
    """
    store: Offsets
    if user_store is not None:
        store = UserOffsets(user_store)
    elif message_model is MessageModel.BROADCASTING:
        store = UserOffsets(LocalFileOffsetStore(instance.client_id, group))
    else:
        store = RemoteBrokerOffsetStore(instance, group)
    await store.load()
    return store


async def _waiting(function: Callable[..., Any], *args: Any) -> Any:
    """Call what may wait on a thread; if it is a coroutine function, await it here."""
    if inspect.iscoroutinefunction(function):
        return await function(*args)
    result = await asyncio.to_thread(function, *args)
    return await result if inspect.isawaitable(result) else result
