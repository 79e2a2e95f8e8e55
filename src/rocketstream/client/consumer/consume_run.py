"""Messages of one pull on their way through listeners, and the book of what is finished.

Law: shared by worker threads and the loop; every step here is short and under the queue's lock.
"""

from __future__ import annotations

import itertools
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from rocketstream._util.clock import Clock
from rocketstream.client.consumer.listener import ConsumeConcurrentlyContext
from rocketstream.client.consumer.offset_store import Offsets
from rocketstream.client.core.consume_result import ACK_ALL, acknowledged
from rocketstream.client.core.flow_control import Thresholds, flow_control
from rocketstream.client.core.process_queue import ProcessQueue
from rocketstream.model import ConsumeConcurrentlyStatus, MessageQueue
from rocketstream.protocol.message_ext import MessageExt

logger = logging.getLogger("rocketstream.client")

FLUSH_INTERVAL_MS = 5
"""Finished messages of a run that takes longer are taken out of the process queue this often."""


class PullRequest:
    """One assigned queue: its ledger, where to pull next, and the lock of both (C-199).

    The same object lives as long as the assignment; a late reply of an earlier one finds its
    ``process_queue`` dropped and is discarded.
    """

    __slots__ = ("lock", "next_offset", "process_queue")

    def __init__(self, process_queue: ProcessQueue, next_offset: int) -> None:
        self.process_queue = process_queue
        self.next_offset = next_offset
        self.lock = threading.Lock()


class ConsumeRun:
    """The messages of one pull, taken in chunks by any number of workers.

    Attributes:
        claims: counts the chunks taken; one step is atomic.
        claimed: the same number, readable but possibly a little behind.
        finished: messages to take out of the process queue.
    """

    __slots__ = ("chunks", "claimed", "claims", "finished", "messages", "request")

    def __init__(self, request: PullRequest, messages: list[MessageExt], batch_size: int) -> None:
        self.request = request
        self.messages = messages
        self.chunks = -(-len(messages) // batch_size)
        self.claims = itertools.count()
        self.claimed = 0
        self.finished: deque[MessageExt] = deque()

    def chunk(self, number: int, size: int) -> list[MessageExt]:
        """Return a chunk; empty past the last one."""
        return self.messages[number * size : number * size + size]

    @property
    def is_claimed(self) -> bool:
        """Whether every chunk has been taken."""
        return self.claimed >= self.chunks


class ConsumeService(Protocol):
    """Calls the listener; an orderly one also keeps the broker locks of its queues."""

    def new_queue(self, mq: MessageQueue, generation: int, now_ms: float) -> ProcessQueue:
        """Return an empty ledger of the kind this service works with."""
        ...

    async def may_take(self, mqs: Sequence[MessageQueue]) -> Collection[MessageQueue]:
        """Return the queues that may be consumed now: those locked at their broker, or all."""
        ...

    async def release(self, requests: Sequence[PullRequest]) -> Collection[MessageQueue]:
        """Enter what is finished; return the queues that no listener works on in order."""
        ...

    async def released(self, mqs: Sequence[MessageQueue]) -> None:
        """The offsets of released queues are stored: unlock them at their brokers."""
        ...

    def submit(self, request: PullRequest, messages: list[MessageExt]) -> None:
        """Have messages consumed; called on the loop."""
        ...

    def flush(self, request: PullRequest) -> None:
        """Enter what is finished of a queue into its ledger now."""
        ...

    async def shutdown(self, await_ms: float, caller: int | None = None) -> None:
        """Hand out nothing more and wait for running listeners, but not for thread ``caller``."""
        ...


class UnlockedService(ABC):
    """The part of a concurrent service that has nothing to lock and never waits."""

    def new_queue(self, mq: MessageQueue, generation: int, now_ms: float) -> ProcessQueue:
        """Return an empty ledger."""
        return ProcessQueue(mq, generation, now_ms)

    async def may_take(self, mqs: Sequence[MessageQueue]) -> Collection[MessageQueue]:
        """Return all of them."""
        return mqs

    async def release(self, requests: Sequence[PullRequest]) -> Collection[MessageQueue]:
        """Enter what is finished of each queue; what is not is consumed again elsewhere."""
        for request in requests:
            self.flush(request)
        return [request.process_queue.message_queue for request in requests]

    async def released(self, mqs: Sequence[MessageQueue]) -> None:  # noqa: B027 - not abstract
        """Nothing to unlock."""

    @abstractmethod
    def flush(self, request: PullRequest) -> None:
        """Enter what is finished of a queue into its ledger now."""


class ConsumeBook:
    """Takes finished messages out of process queues and notes the offsets to commit."""

    def __init__(
        self,
        store: Offsets,
        thresholds: Callable[[], Thresholds],
        resume: Callable[[PullRequest], None],
        clock: Clock,
    ) -> None:
        self._store = store
        self._thresholds = thresholds
        self._resume = resume
        self._now = clock.monotonic_ms

    def flush(self, run: ConsumeRun) -> None:
        """Enter the finished messages of a run; any thread (C-265)."""
        if run.finished:
            self.finish(run.request, run.finished)

    def finish(self, request: PullRequest, finished: deque[MessageExt]) -> None:
        """Enter finished messages, emptying ``finished``; any thread."""
        queue = request.process_queue
        resume = False
        with request.lock:
            done: list[MessageExt] = []
            while finished:
                done.append(finished.popleft())
            if queue.dropped or not done:
                return
            offset = queue.remove(done, self._now())
            if offset >= 0:
                self._store.update_offset(queue.message_queue, offset)
            if queue.flow_controlled and flow_control(queue, self._thresholds()) is None:
                queue.flow_controlled = False
                resume = True
        if resume:
            self._resume(request)


def settle(
    run: ConsumeRun,
    batch: list[MessageExt],
    status: ConsumeConcurrentlyStatus,
    context: ConsumeConcurrentlyContext | None,
) -> list[MessageExt]:
    """Note what of a batch is finished and return what failed (C-262)."""
    ack_index = ACK_ALL if context is None else context.ack_index
    good = acknowledged(status, ack_index, len(batch))
    run.finished.extend(batch[:good])
    return batch[good:]


def checked_status(
    status: object, error: BaseException | None, batch: Sequence[MessageExt]
) -> ConsumeConcurrentlyStatus:
    """Return the status a listener's answer counts as, logging what is no answer (C-261)."""
    if isinstance(status, ConsumeConcurrentlyStatus):
        return status
    first = batch[0]
    where = (
        f"topic={first.topic} broker={first.broker_name} queue={first.queue_id} "
        f"offset={first.queue_offset} msgId={first.msg_id} messages={len(batch)}"
    )
    if error is not None:
        logger.warning("listener raised; consumed again later: %s", where, exc_info=error)
    else:
        logger.warning(
            "listener returned %r instead of a ConsumeConcurrentlyStatus; consumed again later: %s",
            status,
            where,
        )
    return ConsumeConcurrentlyStatus.RECONSUME_LATER
