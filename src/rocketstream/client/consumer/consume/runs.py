"""Messages of one pull on their way through listeners, and the book of what is finished.

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

    @property
    def is_done(self) -> bool:
        """Whether every chunk has been taken and nothing finished waits to be entered."""
        return self.claimed >= self.chunks and not self.finished


class ConsumeService(Protocol):
    """Calls the listener."""

    async def release(self, requests: Sequence[PullRequest]) -> Collection[MessageQueue]:
        """Enter what is finished; return the queues that no listener works on in order."""
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
        """Have at most ``size`` listener calls at once; tell whether it may have that (C-255)."""
        ...

    async def consume_directly(
        self, message: MessageExt, broker_name: str | None
    ) -> ConsumeMessageDirectlyResult:
        """Call the listener with a message an operator chose; nothing is committed (C-269)."""
        ...


class QueueKeeper(Protocol):
    """Keeps ledgers of its own kind, and the broker locks of queues consumed in order."""

    def new_queue(self, mq: MessageQueue, generation: int, now_ms: float) -> ProcessQueue:
        """Return an empty ledger for a queue that is being taken."""
        ...

    async def may_take(self, mqs: Sequence[MessageQueue]) -> Collection[MessageQueue]:
        """Return the queues that may be taken: those whose broker lock was obtained."""
        ...

    async def released(self, mqs: Sequence[MessageQueue]) -> None:
        """Queues have left, or were not taken; their offsets are stored: unlock them (C-556)."""
        ...

    def connection_lost(self, address: str) -> None:
        """What the broker at ``address`` has granted may be forgotten there."""
        ...

    def connection_made(self, address: str) -> None:
        """The broker at ``address`` can be asked again."""
        ...


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
        self.resume = resume
        self._now = clock.monotonic_ms

    async def is_overtaken(self, mq: MessageQueue) -> bool:
        """Whether the store is further than this consumer: somebody else was here.

        Raises:
            RocketMQError: the store cannot be asked.
        """
        noted = self._store.read_memory(mq)
        stored = await self._store.read_store(mq)
        return noted is not None and stored is not None and stored > noted

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
            resume = self.note(queue, queue.remove(done, self._now()))
        if resume:
            self.resume(request)

    def enter(self, request: PullRequest, change: Callable[[float], int]) -> bool:
        """Change a ledger and note the offset that follows; any thread.

        Args:
            request: whose ledger.
            change: called with the monotonic time; returns the offset to commit, -1 for none.

        Returns:
            Whether the queue is still ours; if it is not, nothing was changed (C-549).
        """
        queue = request.process_queue
        with request.lock:
            if queue.dropped:
                return False
            resume = self.note(queue, change(self._now()))
        if resume:
            self.resume(request)
        return True

    def note(self, queue: ProcessQueue, offset: int) -> bool:
        """Note an offset to commit, with the queue's lock held.

        Returns:
            Whether flow control lets the queue go on: then ``resume``, without the lock.
        """
        if offset >= 0:
            self._store.update_offset(queue.message_queue, offset)
        if queue.flow_controlled and flow_control(queue, self._thresholds()) is None:
            queue.release_pull()
            return True
        return False


def mark_started(batch: Sequence[MessageExt], now_ms: int) -> None:
    """Note when messages went to a listener: CONSUME_START_TIME (C-233)."""
    for message in batch:
        message.consume_start_ms = now_ms
        if message._properties is not None:
            note_start(message)


def note_start(message: MessageExt) -> None:
    """Add the start to properties that were read before, by a filter or an earlier try."""
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
