"""One assigned queue: what is cached of it, where to pull next, and the offset to commit.

Law: shared by worker threads and the loop; every step is short and under the queue's own lock. No
code of a user's runs under it: a user's store of offsets is told soon after, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from rocketstream._util.clock import Clock
from rocketstream.client.consumer.allocate import OwnQueue
from rocketstream.client.consumer.consume.orderly_queue import OrderlyProcessQueue
from rocketstream.client.consumer.offsets.store import Offsets
from rocketstream.client.consumer.process_queue import (
    MIB,
    FlowControl,
    ProcessQueue,
    Thresholds,
)
from rocketstream.protocol.bodies import ProcessQueueInfo
from rocketstream.protocol.message_ext import MessageExt


@dataclass(frozen=True, slots=True)
class QueueLinks:
    """The parts the queues of one consumer are connected with.

    Attributes:
        store: where the offsets to commit go.
        pull_soon: pulls a queue again that was held; from any thread.
        submit: gives messages of a queue to the workers, which call a listener; on the loop.
        clock: the time.
    """

    store: Offsets
    pull_soon: Callable[[AssignedQueue], None]
    submit: Callable[[AssignedQueue, list[MessageExt]], None]
    clock: Clock


class AssignedQueue(OwnQueue):
    """One assigned queue: its process queue, where to pull next, and the lock of both (C-199).

    The same object lives as long as the assignment; a late reply of an earlier one is of an older
    epoch, and discarded.

    Attributes:
        process_queue: what is cached of it.
        pull_offset: where to pull next.
        epoch: 0, and 1 once it leaves: answers to its pulls count no more.
        thresholds: how much is cached before pulls wait.
        finished: messages to take out of the process queue at the next ``flush``.
        lock: guards all of it.
    """

    __slots__ = (
        "_began_ms",
        "_links",
        "_on_free",
        "_under_way",
        "epoch",
        "finished",
        "lock",
        "process_queue",
        "pull_offset",
        "thresholds",
    )

    leaving: bool

    def __init__(
        self, process_queue: ProcessQueue, offset: int, thresholds: Thresholds, links: QueueLinks
    ) -> None:
        super().__init__(process_queue.message_queue)
        self.process_queue: ProcessQueue = process_queue
        self.pull_offset: int = offset
        self.epoch: int = 0
        self.thresholds: Thresholds = thresholds
        self.finished: deque[MessageExt] = deque()
        self.lock: threading.Lock = threading.Lock()
        self._links = links
        self._began_ms: float | None = None
        self._under_way = 0
        self._on_free: list[Callable[[], object]] = []

    # --- its standing; any thread -----------------------------------------------------------------

    @property
    def dropped(self) -> bool:
        """Whether it is no longer ours: no result counts any more."""
        return self.process_queue.dropped

    def is_pull_expired(self, now_ms: float) -> bool:
        """Whether its pulls have died: silent for too long without a reason (C-176)."""
        return self.process_queue.is_pull_expired(now_ms)

    def leave(self) -> None:
        """Be given up once its listeners have returned."""
        with self.lock:
            self.process_queue.leave()
            self.leaving, self.epoch = True, 1

    def drop(self) -> None:
        """Let no result count any more: an offset is updated before this returns, or never."""
        with self.lock:
            self.process_queue.drop()
            self.leaving, self.epoch = True, 1

    def info(self, commit_offset: int) -> ProcessQueueInfo:
        """Return what operators are told of it (307; C-540)."""
        held = self.process_queue
        with self.lock:
            info = ProcessQueueInfo(
                commit_offset=commit_offset,
                cached_msg_count=held.message_count,
                cached_msg_size_in_mib=held.body_bytes // MIB,
                droped=held.dropped,
                last_pull_timestamp=self._wall_ms(held.last_pull_ms),
                last_consume_timestamp=self._wall_ms(held.last_consume_ms),
            )
            if held.message_count:
                info.cached_msg_min_offset = held.min_offset
                info.cached_msg_max_offset = held.min_offset + held.max_span
        return info

    def _wall_ms(self, monotonic_ms: float) -> int:
        """Return a time of the monotonic clock as ms since 1970.

        The clocks are compared once: else one event would have another time at each question.
        """
        if self._began_ms is None:
            clock = self._links.clock
            self._began_ms = clock.now_ms() - clock.monotonic_ms()
        return int(self._began_ms + monotonic_ms)

    # --- messages come ----------------------------------------------------------------------------

    def pull_begins(self, now_ms: float) -> None:
        """Note when a pull was sent or put off."""
        self.process_queue.last_pull_ms = now_ms

    def held(self) -> FlowControl | None:
        """Return what holds the next pull back; it is then pulled again when that is over."""
        queue = self.process_queue
        if not queue.message_count:
            return None
        with self.lock:
            held = queue.held_by(self.thresholds)
            queue.flow_controlled = held is not None
        return held

    def pull_if_held(self) -> None:
        """Try again a pull that was held, once: its thresholds are others."""
        with self.lock:
            was_held, self.process_queue.flow_controlled = self.process_queue.flow_controlled, False
        if was_held:
            self._links.pull_soon(self)

    def put(self, messages: list[MessageExt], next_offset: int) -> list[MessageExt]:
        """Take in what a pull brought; return the messages that were not cached already.

        With nothing cached the offset to commit is where the pull got to: filtered messages at its
        end need no answer of their own to count (C-225 to C-227, C-569).
        """
        queue = self.process_queue
        with self.lock:
            if queue.leaving:
                return []
            self.pull_offset = queue.passed_to = next_offset
            added = queue.put(messages)
            if not queue.message_count:
                self._links.store.update_offset(self.message_queue, next_offset)
        return added

    def consume(self, messages: list[MessageExt]) -> None:
        """Have messages that are cached given to the listener; on the loop."""
        self._links.submit(self, messages)

    # --- messages are finished; any thread --------------------------------------------------------

    def finish(self, message: MessageExt) -> None:
        """Remove a finished message, and update the offset to commit."""
        self.finished.append(message)
        self.flush()

    def flush(self) -> None:
        """Remove the messages that are ``finished``, and update the offset to commit (C-265)."""
        finished = self.finished
        if not finished:
            return
        with self.lock:
            done: list[MessageExt] = []
            while finished:
                done.append(finished.popleft())
            if self.process_queue.dropped or not done:
                return
            self.note(self.process_queue.remove(done, self._links.clock.monotonic_ms()))

    def note(self, offset: int) -> None:
        """Note with the store an offset to commit; -1 for none. With the lock held.

        The queue is pulled again soon where flow control held it and lets it go on now.
        """
        queue = self.process_queue
        if offset >= 0:
            self._links.store.update_offset(self.message_queue, offset)
        if queue.flow_controlled and queue.held_by(self.thresholds) is None:
            queue.flow_controlled = False
            self._links.pull_soon(self)

    async def is_overtaken(self) -> bool:
        """Whether the store has a larger offset than this consumer: another member was here.

        Raises:
            RocketMQError: the store cannot be asked.
        """
        ours = self._links.store.read_memory(self.message_queue)
        stored = await self._links.store.read_store(self.message_queue)
        return ours is not None and stored is not None and stored > ours

    # --- what is under way with its messages; any thread ------------------------------------------

    @property
    def is_free(self) -> bool:
        """Whether nobody calls a listener with its messages, or sends one of them back."""
        return self._under_way == 0

    def begin(self, count: int = 1) -> None:
        """Begin to work on its messages; ``end`` follows."""
        with self.lock:
            self._under_way += count

    def end(self, count: int = 1) -> None:
        """End what ``begin`` began: the result is noted."""
        with self.lock:
            self._under_way -= count
        self.tell_if_free()

    def when_free(self, then: Callable[[], object]) -> None:
        """Call something once, when nothing is under way any more; from any thread, or at once."""
        with self.lock:
            self._on_free.append(then)
        self.tell_if_free()

    def tell_if_free(self) -> None:
        """Call whoever waits for this queue to be free, if it is."""
        if self._on_free and self.is_free:
            with self.lock:
                calls, self._on_free = self._on_free, []
            for call in calls:
                call()

    async def until_free(self) -> None:
        """Wait until nothing is under way; on the loop."""
        loop, free = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(free.set)

        if not self.is_free:
            self.when_free(wake)
            await free.wait()


class OrderlyQueue(AssignedQueue):
    """One assigned queue that is consumed in order.

    Attributes:
        process_queue: what is cached of it, its lease, and where its turn stands.
        former: an earlier assignment of the queue whose listener may still run: there is no turn
            before that has returned.
        spared: whether its listener waits for the end of its consumer, which waits for it no more.
    """

    __slots__ = ("former", "spared")

    process_queue: OrderlyProcessQueue

    def __init__(
        self,
        process_queue: OrderlyProcessQueue,
        offset: int,
        thresholds: Thresholds,
        links: QueueLinks,
        former: OrderlyQueue | None,
    ) -> None:
        super().__init__(process_queue, offset, thresholds, links)
        self.former = former
        self.spared: bool = False

    @property
    def is_free(self) -> bool:
        """Whether no listener has a batch of the queue, or it is spared."""
        former = self.former
        if former is not None and former.is_free:
            self.former = former = None
        return self.spared or (former is None and not self.process_queue.in_hand)

    def when_free(self, then: Callable[[], object]) -> None:
        """Call something once, when no listener has a batch of the queue; on the loop."""
        super().when_free(then)
        if self.former is not None:
            self.former.when_free(self.tell_if_free)

    def is_in_doubt(self, now_ms: float) -> bool:
        """Whether its lease is over, or its lock may be lost."""
        lease = self.process_queue.lease
        return lease is not None and not lease.is_valid(now_ms)

    def info(self, commit_offset: int) -> ProcessQueueInfo:
        """Return what operators are told of it, and of its lock."""
        info, held = super().info(commit_offset), self.process_queue
        with self.lock:
            taken = held.taken_offsets
            if held.message_count:
                info.cached_msg_max_offset = held.queue_offset_max
        info.transaction_msg_count = len(taken)
        if taken:
            info.transaction_msg_min_offset, info.transaction_msg_max_offset = taken[0], taken[-1]
        if held.lease is not None:
            info.locked = held.lease.locked
            if math.isfinite(held.lease.locked_ms):  # else it is in doubt, since nobody knows when
                info.last_lock_timestamp = self._wall_ms(held.lease.locked_ms)
        return info
