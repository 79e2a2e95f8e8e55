"""Messages of one pull on their way through listeners, and what follows when they are finished.

Finished messages are removed from their process queue, and the offset store learns the offset to
commit.

Law: shared by worker threads and the loop; every step here is short and under the queue's lock.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from rocketstream._util.clock import Clock
from rocketstream.client.consumer.listener import ConsumeConcurrentlyContext
from rocketstream.client.consumer.offsets.store import Offsets
from rocketstream.client.core.consume_result import ACK_ALL, acknowledged
from rocketstream.client.core.flow_control import Thresholds, flow_control
from rocketstream.client.core.process_queue import ProcessQueue
from rocketstream.model import ConsumeConcurrentlyStatus, MessageQueue
from rocketstream.protocol.bodies import ConsumeMessageDirectlyResult
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.properties import PROPERTY_CONSUME_START_TIME

FLUSH_INTERVAL_MS = 5
"""Finished messages of a run that takes longer are taken out of the process queue this often."""


class PullRequest:
    """One assigned queue: its process queue, where to pull next, and the lock of both (C-199).

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

    @property
    def is_done(self) -> bool:
        """Whether every chunk has been taken and everything finished has been removed."""
        return self.claimed >= self.chunks and not self.finished


class ConsumeService(Protocol):
    """Calls the listener."""

    async def release(self, requests: Sequence[PullRequest]) -> Collection[MessageQueue]:
        """Remove what is finished; return the queues that no listener works on in order."""
        ...

    def submit(self, request: PullRequest, messages: list[MessageExt]) -> None:
        """Have messages consumed; called on the loop."""
        ...

    async def shutdown(self, await_ms: float, caller: int | None = None) -> None:
        """Hand out nothing more and wait for running listeners, but not for thread ``caller``."""
        ...

    @property
    def core_pool_size(self) -> int:
        """Most listener calls at once."""
        ...

    def update_core_pool_size(self, size: int) -> bool:
        """Allow at most ``size`` listener calls at once; return whether it can be so (C-255)."""
        ...

    async def consume_directly(
        self, message: MessageExt, broker_name: str | None
    ) -> ConsumeMessageDirectlyResult:
        """Call the listener with a message an operator chose; nothing is committed (C-269)."""
        ...


class QueueKeeper(Protocol):
    """Makes process queues of its kind, and keeps the broker locks of queues read in order."""

    def new_queue(self, mq: MessageQueue, generation: int, now_ms: float) -> ProcessQueue:
        """Return an empty process queue for a queue that is being taken."""
        ...

    async def may_take(self, mqs: Sequence[MessageQueue]) -> Collection[MessageQueue]:
        """Return the queues that may be taken: those whose broker lock was obtained."""
        ...

    async def released(self, mqs: Sequence[MessageQueue]) -> None:
        """Unlock queues that have left or were not taken, once offsets are stored (C-556)."""
        ...

    def connection_lost(self, address: str) -> None:
        """Doubt what the broker at ``address`` has granted: it may have forgotten it."""
        ...

    def connection_made(self, address: str) -> None:
        """Ask the broker at ``address`` again for what is needed of it."""
        ...


class OffsetUpdater:
    """Removes finished messages from process queues and updates the offsets to commit."""

    def __init__(
        self,
        store: Offsets,
        thresholds: Callable[[], Thresholds],
        resume: Callable[[PullRequest], None],
        clock: Clock,
    ) -> None:
        self._store = store
        self._thresholds = thresholds
        self.resume = resume
        self._now = clock.monotonic_ms

    async def is_overtaken(self, mq: MessageQueue) -> bool:
        """Whether the store has a larger offset than this consumer: another member was here.

        Raises:
            RocketMQError: the store cannot be asked.
        """
        ours = self._store.read_memory(mq)
        stored = await self._store.read_store(mq)
        return ours is not None and stored is not None and stored > ours

    def flush(self, run: ConsumeRun) -> None:
        """Remove the finished messages of a run from its queue; any thread (C-265)."""
        if run.finished:
            self.finish(run.request, run.finished)

    def finish(self, request: PullRequest, finished: deque[MessageExt]) -> None:
        """Remove finished messages from their queue, and empty ``finished``; any thread."""
        queue = request.process_queue
        resume = False
        with request.lock:
            done: list[MessageExt] = []
            while finished:
                done.append(finished.popleft())
            if queue.dropped or not done:
                return
            resume = self.update_offset(queue, queue.remove(done, self._now()))
        if resume:
            self.resume(request)

    def update_offset(self, queue: ProcessQueue, offset: int) -> bool:
        """Hand an offset to commit to the store; -1 for none. With the queue's lock held.

        Returns:
            Whether flow control lets the queue go on: then call ``resume``, without the lock.
        """
        if offset >= 0:
            self._store.update_offset(queue.message_queue, offset)
        if queue.flow_controlled and flow_control(queue, self._thresholds()) is None:
            queue.release_pull()
            return True
        return False


def mark_started(batch: Sequence[MessageExt], now_ms: int) -> None:
    """Mark messages with the time they went to a listener: CONSUME_START_TIME (C-233)."""
    for message in batch:
        message.consume_start_ms = now_ms
        if message._properties is not None:
            set_start_property(message)


def set_start_property(message: MessageExt) -> None:
    """Add the start to properties that were read already, by a filter or an earlier try."""
    message.properties[PROPERTY_CONSUME_START_TIME] = str(message.consume_start_ms)


SubmitBack = Callable[[PullRequest, Sequence[MessageExt], int], None]


class Settler:
    """Sorts a batch into finished and failed messages; the failed ones go to ``send_back``."""

    __slots__ = ("_send_back",)

    def __init__(self, send_back: SubmitBack) -> None:
        self._send_back = send_back

    def settle(
        self,
        run: ConsumeRun,
        batch: list[MessageExt],
        status: ConsumeConcurrentlyStatus,
        context: ConsumeConcurrentlyContext | None,
    ) -> int:
        """Settle a batch; return how many of it failed (C-262 to C-264)."""
        ack_index = ACK_ALL if context is None else context.ack_index
        good = acknowledged(status, ack_index, len(batch))
        run.finished.extend(batch[:good])
        failed = batch[good:]
        if failed:
            level = 0 if context is None else context.delay_level_when_next_consume
            self._send_back(run.request, failed, level)
        return len(failed)
