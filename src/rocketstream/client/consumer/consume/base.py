"""What consume services have in common, whoever calls their listener.

Law: no threads, no tasks and no order; those are the services' own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from rocketstream.client.consumer.consume.calls import CallObserver, consume_directly
from rocketstream.client.consumer.consume.runs import OffsetUpdater, PullRequest, Settler
from rocketstream.client.consumer.listener import Listener
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import ConsumeMessageDirectlyResult
from rocketstream.protocol.message_ext import MessageExt


class CallPool(Protocol):
    """The threads or tasks that call a listener."""

    @property
    def core_pool_size(self) -> int:
        """Most of them at once."""
        ...

    def update_core_pool_size(self, size: int) -> bool:
        """Have at most ``size`` of them; return whether that many are allowed."""
        ...


class ListenerService:
    """A consume service as operators see it: a listener, and a pool that calls it."""

    _pool: CallPool

    def __init__(self, listener: Listener, observer: CallObserver) -> None:
        self.listener = listener
        self.observer = observer

    @property
    def core_pool_size(self) -> int:
        """Most listener calls at once."""
        return self._pool.core_pool_size

    def update_core_pool_size(self, size: int) -> bool:
        """Have at most ``size`` calls; return whether that is between 1 and the setting (C-255)."""
        return self._pool.update_core_pool_size(size)

    async def consume_directly(
        self, message: MessageExt, broker_name: str | None
    ) -> ConsumeMessageDirectlyResult:
        """Call the listener with a message an operator chose; nothing is committed.

        Covers C-269, and C-295 for one in order.
        """
        return await consume_directly(self.listener, message, broker_name, self.observer)


@dataclass(frozen=True, slots=True)
class ConcurrentParts:
    """What a concurrent consume service works with.

    Attributes:
        listener: what is called.
        offset_updater: removes finished messages and updates the offsets to commit.
        settler: sorts a batch into finished and failed messages.
        observer: calls hooks and counts around listener calls.
        batch_size: how many messages a call has at most.
        calls_max: most calls at once.
    """

    listener: Listener
    offset_updater: OffsetUpdater
    settler: Settler
    observer: CallObserver
    batch_size: int
    calls_max: int


class ConcurrentService(ListenerService, ABC):
    """A service that consumes in any order: it has nothing to lock and never waits."""

    def __init__(self, parts: ConcurrentParts) -> None:
        super().__init__(parts.listener, parts.observer)
        self._offset_updater = parts.offset_updater
        self._settler = parts.settler
        self._clock = parts.observer.clock
        self._batch_size = parts.batch_size

    async def release(self, requests: Sequence[PullRequest]) -> Collection[MessageQueue]:
        """Remove what is finished of each queue; what is not is consumed again elsewhere."""
        for request in requests:
            self.flush(request)
        return [request.process_queue.message_queue for request in requests]

    @abstractmethod
    def flush(self, request: PullRequest) -> None:
        """Remove what is finished from its process queue now."""
