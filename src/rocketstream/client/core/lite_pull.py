"""What a lite pull consumer holds of its queues: messages not handed out yet, and three offsets.

Law: pure; the owner serialises the calls. For each queue ``acked <= position <= pull_offset``: a
message counts for a commit only after the caller, having got it, has come back for more (C-513 to
C-519, apache/rocketmq 1470 and 2732).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rocketstream.late import dataclass
from rocketstream.model import MessageQueue

if TYPE_CHECKING:
    from rocketstream.protocol.message_ext import MessageExt


@dataclass(frozen=True, slots=True)
class LiteBounds:
    """How much is cached before pulling stops; strict comparisons (C-66 to C-69).

    Attributes:
        messages_all: of the whole consumer; messages are counted, not requests (C-510).
        messages: of one queue.
        body_bytes: of one queue.
        span: first to last cached offset of one queue.
    """

    messages_all: int = 10_000
    messages: int = 1_000
    body_bytes: int = 100 * 1024 * 1024
    span: int = 2_000


class LiteQueue:
    """One assigned queue (C-508).

    Attributes:
        message_queue: the queue.
        epoch: grows with each seek and at the end; what an older one still brings is discarded.
        dropped: no longer ours.
        paused: nothing is pulled until resumed; what is cached is still handed out.
        idle: nothing is on its way because the queue is paused.
        held: nothing is on its way because enough is cached.
        pull_offset: where to pull next.
        position: the next offset to hand out; past what was filtered out.
        acked: everything below may be committed.
        noted: what was last given to the offset store.
        cached: messages not handed out; those of a chunk count until its last one is.
        cached_bytes: bytes of the answers these came in.
        last_pull_ms: when the last pull was sent.
    """

    __slots__ = (
        "acked",
        "cached",
        "cached_bytes",
        "chunks",
        "dropped",
        "epoch",
        "held",
        "idle",
        "last_pull_ms",
        "message_queue",
        "noted",
        "paused",
        "position",
        "pull_offset",
    )

    def __init__(self, message_queue: MessageQueue, offset: int) -> None:
        self.message_queue = message_queue
        self.epoch = 0
        self.dropped = self.paused = self.idle = self.held = False
        self.pull_offset = self.position = self.acked = self.noted = offset
        self.cached = self.cached_bytes = 0
        self.last_pull_ms = 0.0
        self.chunks: deque[Chunk] = deque()

    @property
    def span(self) -> int:
        """Last minus first cached offset."""
        if not self.chunks:
            return 0
        first, last = self.chunks[0], self.chunks[-1]
        return last.messages[-1].queue_offset - first.messages[first.at].queue_offset


class Chunk:
    """The messages of one pull, handed out from ``at`` on; ``end`` is where the next pull began."""

    __slots__ = ("at", "body_bytes", "end", "messages", "queue")

    def __init__(
        self, queue: LiteQueue, messages: list[MessageExt], end: int, body_bytes: int
    ) -> None:
        self.queue = queue
        self.messages = messages
        self.end = end
        self.at = 0
        self.body_bytes = body_bytes


class LiteCache:
    """The queues of one consumer and what is ready to be handed out, first come first served.

    Attributes:
        queues: the assigned ones.
        cached: messages of all queues that are not handed out.
        pull_ended: set when the last message of a pull is handed out, for whoever hands out to look
            around now and then.
    """

    def __init__(self, bounds: LiteBounds) -> None:
        self.queues: dict[MessageQueue, LiteQueue] = {}
        self.cached = 0
        self.pull_ended = False
        self._bounds = bounds
        self._ready: deque[Chunk] = deque()
        self._held: dict[LiteQueue, None] = {}
        self._handed: LiteQueue | None = None
        """Whose messages were handed out last and are not settled."""

    # --- queues -----------------------------------------------------------------------------------

    def add(self, mq: MessageQueue, offset: int) -> LiteQueue:
        """Begin a queue at an offset; what was held of it before is forgotten."""
        self.drop(mq)
        queue = self.queues[mq] = LiteQueue(mq, offset)
        return queue

    def drop(self, mq: MessageQueue) -> LiteQueue | None:
        """Give a queue up: what is cached of it is the next owner's."""
        queue = self.queues.pop(mq, None)
        if queue is not None:
            queue.dropped = True
            self._clear(queue)
        return queue

    def seek(self, queue: LiteQueue, offset: int) -> None:
        """Go on at an offset: nothing cached, or on its way, is handed out any more (C-519)."""
        self._clear(queue)
        queue.pull_offset = queue.position = queue.acked = offset

    def _clear(self, queue: LiteQueue) -> None:
        queue.epoch += 1
        queue.held = queue.idle = False
        self._held.pop(queue, None)
        if self._handed is queue:
            self._handed = None
        if queue.chunks:
            self._ready = deque(chunk for chunk in self._ready if chunk.queue is not queue)
            queue.chunks.clear()
        self.cached -= queue.cached
        queue.cached = queue.cached_bytes = 0

    # --- what pulls bring -------------------------------------------------------------------------

    def may_pull(self, queue: LiteQueue) -> bool:
        """Return whether a pull may be sent now; if not, it is remembered that none is."""
        if queue.paused:
            queue.idle = True
            return False
        bounds = self._bounds
        if (
            queue.cached > bounds.messages
            or self.cached > bounds.messages_all
            or queue.cached_bytes > bounds.body_bytes
            or queue.span > bounds.span
        ):
            queue.held = True
            self._held[queue] = None
            return False
        return True

    def arrived(
        self,
        queue: LiteQueue,
        epoch: int,
        messages: list[MessageExt],
        next_offset: int,
        body_bytes: int = 0,
    ) -> bool:
        """Take in what a pull of ``epoch`` brought; return whether it still counts."""
        if queue.epoch != epoch:
            return False
        queue.pull_offset = next_offset
        if messages:
            chunk = Chunk(queue, messages, next_offset, body_bytes)
            queue.chunks.append(chunk)
            self._ready.append(chunk)
            queue.cached += len(messages)
            queue.cached_bytes += body_bytes
            self.cached += len(messages)
        elif queue.chunks:
            # Filtered out behind what is cached: handed out together with it.
            queue.chunks[-1].end = next_offset
        else:
            # A filtered tail needs nobody to consume it (C-513, C-569).
            queue.position = next_offset
            if self._handed is not queue:
                queue.acked = next_offset
        return True

    # --- handing out ------------------------------------------------------------------------------

    @property
    def has_messages(self) -> bool:
        """Whether something can be handed out."""
        return bool(self._ready)

    def settle(self) -> None:
        """The caller came back: what it got last may be committed now."""
        queue = self._handed
        if queue is not None:
            queue.acked = queue.position
            self._handed = None

    def take(self, count: int) -> list[MessageExt]:
        """Hand out at most ``count`` messages of one queue; call ``settle`` first."""
        if not self._ready:
            return []
        chunk = self._ready[0]
        at, messages = chunk.at, chunk.messages
        if len(messages) - at > count:
            chunk.at = at + count
            part = [messages[at]] if count == 1 else messages[at : at + count]
            self._handed = queue = chunk.queue
            queue.position = part[-1].queue_offset + 1
            return part
        self._finish(chunk)
        return messages[at:] if at else messages

    def next_one(self) -> MessageExt | None:
        """Settle, and hand out the next message; the last one of a pull sets ``pull_ended``."""
        handed = self._handed
        if handed is not None:
            handed.acked = handed.position
        if not self._ready:
            self._handed = None
            return None
        chunk = self._ready[0]
        at = chunk.at
        message = chunk.messages[at]
        if at + 1 < len(chunk.messages):
            chunk.at = at + 1
            self._handed = queue = chunk.queue
            queue.position = message.queue_offset + 1
        else:
            self._finish(chunk)
        return message

    def _finish(self, chunk: Chunk) -> None:
        queue = chunk.queue
        self._ready.popleft()
        queue.chunks.popleft()
        self.cached -= len(chunk.messages)
        queue.cached -= len(chunk.messages)
        queue.cached_bytes -= chunk.body_bytes
        queue.position = chunk.end
        self._handed = queue
        self.pull_ended = True

    # --- going on ---------------------------------------------------------------------------------

    def released(self) -> list[LiteQueue]:
        """Return the held queues that may be pulled again, once enough room for many pulls is."""
        if not self._held:
            return []
        bounds = self._bounds
        if self.cached > bounds.messages_all // 2:
            return []
        free = [
            queue
            for queue in self._held
            if queue.cached <= bounds.messages // 2
            and queue.cached_bytes <= bounds.body_bytes // 2
            and queue.span <= bounds.span // 2
        ]
        for queue in free:
            queue.held = False
            del self._held[queue]
        return free

    def commits(self, mqs: Iterable[MessageQueue] | None = None) -> dict[MessageQueue, int]:
        """Return what may be committed and was not noted yet, and note it."""
        found: dict[MessageQueue, int] = {}
        for queue in self._selected(mqs):
            if queue.acked != queue.noted:
                queue.noted = found[queue.message_queue] = queue.acked
        return found

    def positions(self, mqs: Iterable[MessageQueue] | None = None) -> dict[MessageQueue, int]:
        """Return where the caller is, what it got last included: it says that it is done."""
        found: dict[MessageQueue, int] = {}
        for queue in self._selected(mqs):
            queue.acked = queue.noted = found[queue.message_queue] = queue.position
        return found

    def note(self, mq: MessageQueue, offset: int) -> bool:
        """Take over an offset the caller commits itself; return whether the queue is ours."""
        queue = self.queues.get(mq)
        if queue is None:
            return False
        queue.noted = offset
        queue.acked = min(max(queue.acked, offset), queue.position)
        return True

    def _selected(self, mqs: Iterable[MessageQueue] | None) -> list[LiteQueue]:
        if mqs is None:
            return list(self.queues.values())
        return [self.queues[mq] for mq in mqs if mq in self.queues]
