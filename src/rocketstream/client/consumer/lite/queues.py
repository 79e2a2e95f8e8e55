"""Pure: the topics or queues of a lite pull consumer, and its messages and offsets of each queue.

Topics are subscribed or queues assigned: the first call decides, the other is refused (C-504,
C-505). A queue has messages not handed out yet, and three offsets; the owner serialises the calls.
For each queue ``acked <= position <= pull_offset``: a message counts for a commit only after the
caller, having got it, has come back for more (C-513 to C-519, apache/rocketmq 1470 and 2732).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rocketstream.client.consumer.allocate import OwnQueue
from rocketstream.client.consumer.settings import LitePullConsumerSettings
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import SubscriptionData
from rocketstream.protocol.subscription import build_subscription

if TYPE_CHECKING:
    from rocketstream.protocol.message_ext import MessageExt

EXCLUSIVE = "Subscribe and assign are mutually exclusive."

Topics = dict[str, tuple[SubscriptionData, Any]]
"""Subscriptions by topic, each with the listener that is told of changes of its queues."""


class LitePullPlan:
    """Subscriptions or assignments; the first call decides. Values are replaced, never changed.

    Attributes:
        topics: what is subscribed; empty in assign mode.
        assigned: assigned queues; None unless in assign mode.
        expressions: what is wanted of the topics of assigned queues; ``*`` where nothing is said.
    """

    def __init__(self) -> None:
        self.topics: Topics = {}
        self.assigned: frozenset[MessageQueue] | None = None
        self.expressions: dict[str, SubscriptionData] = {}
        self._subscribes = False

    @property
    def subscriptions(self) -> list[SubscriptionData]:
        """Each subscription."""
        return [subscription for subscription, _ in self.topics.values()]

    def check_subscribe(self) -> None:
        """Check that topics may be subscribed.

        Raises:
            ClientStateError: queues are assigned.
        """
        if self.assigned is not None or self.expressions:
            raise ClientStateError(f"subscribe exception: {EXCLUSIVE}")

    def subscribe(self, subscription: SubscriptionData, listener: Any) -> None:
        """Add or replace a subscription, and the listener of its topic."""
        self.check_subscribe()
        self._subscribes = True
        self.topics = {**self.topics, subscription.topic: (subscription, listener)}

    def unsubscribe(self, topic: str) -> bool:
        """Remove a subscription; return whether there was one."""
        was = topic in self.topics
        self.topics = {name: each for name, each in self.topics.items() if name != topic}
        return was

    def _check_assign(self) -> None:
        if self._subscribes:
            raise ClientStateError(EXCLUSIVE)

    def assign(self, mqs: Collection[MessageQueue]) -> None:
        """Replace the assigned queues.

        Raises:
            ConfigurationError: none given.
            ClientStateError: topics are subscribed.
        """
        if not mqs:
            raise ConfigurationError(
                "message_queues must be one queue at least; "
                "fetch_message_queues(topic) returns those of a topic"
            )
        self._check_assign()
        self.assigned = frozenset(mqs)

    def set_expression(self, subscription: SubscriptionData) -> None:
        """Say what is wanted of an assigned topic.

        Raises:
            ClientStateError: topics are subscribed.
        """
        self._check_assign()
        self.expressions = {**self.expressions, subscription.topic: subscription}

    def subscription(self, topic: str) -> SubscriptionData | None:
        """Return what is wanted of a topic."""
        if self.assigned is None:
            return self.topics[topic][0] if topic in self.topics else None
        found = self.expressions.get(topic)
        if found is None:
            found = build_subscription(topic, None, 0)
            self.expressions = {**self.expressions, topic: found}
        return found


class LiteQueue(OwnQueue):
    """One assigned queue (C-508). A message the caller holds counts once it comes back for more.

    Attributes:
        epoch: grows with each seek and at the end; what an older one still brings is discarded.
        paused: nothing is pulled until resumed; what is cached is still handed out.
        idle: nothing is on its way because the queue is paused.
        pull_offset: where to pull next.
        position: the next offset to hand out; past what was filtered out.
        acked: everything below may be committed.
        noted: what was last given to the offset store.
        cached: messages not handed out; those of a chunk count until its last one is.
        cached_bytes: bytes of the answers these came in.
        last_pull_ms: when the last pull was sent.
    """

    __slots__ = (
        "acked", "cached", "cached_bytes", "chunks", "epoch", "idle", "last_pull_ms", "noted",
        "paused", "position", "pull_offset",
    )  # fmt: skip

    def __init__(self, message_queue: MessageQueue, offset: int) -> None:
        super().__init__(message_queue)
        self.epoch = 0
        self.paused = self.idle = False
        self.pull_offset = self.position = self.acked = self.noted = offset
        self.cached = self.cached_bytes = 0
        self.last_pull_ms = 0.0
        self.chunks: deque[Chunk] = deque()

    def pull_begins(self, now_ms: float) -> None:
        """Remember when a pull was sent or put off."""
        self.last_pull_ms = now_ms

    @property
    def ends(self) -> tuple[int, int]:
        """First and last cached offset, 0 where nothing is."""
        if not self.chunks:
            return 0, 0
        first, last = self.chunks[0], self.chunks[-1]
        return first.messages[first.at].queue_offset, last.messages[-1].queue_offset

    @property
    def span(self) -> int:
        """Last minus first cached offset."""
        first, last = self.ends
        return last - first


@dataclass(slots=True, eq=False)
class Chunk:
    """The messages of one pull, handed out from ``at`` on; ``end`` is where the next pull began."""

    queue: LiteQueue
    messages: list[MessageExt]
    end: int
    body_bytes: int
    at: int = 0


class LiteCache:
    """The queues of one consumer and what is ready to be handed out, first come first served.

    How much is cached before pulling stops is in the settings; messages are counted, not requests
    (C-66 to C-69, C-510).

    Attributes:
        queues: the assigned ones.
        held: those nothing is on its way for because enough is cached.
        cached: messages of all queues that are not handed out.
        pull_ended: set when the last message of a pull is handed out, for whoever hands out to look
            around now and then.
    """

    def __init__(self, settings: LitePullConsumerSettings) -> None:
        self.queues: dict[MessageQueue, LiteQueue] = {}
        self.cached = 0
        self.pull_ended = False
        self.held: dict[LiteQueue, None] = {}
        self._count_all_max = settings.pull_threshold_for_all
        self._count_max = settings.pull_threshold_for_queue
        self._bytes_max = settings.bytes_for_queue_max
        self._span_max = settings.consume_max_span
        self._ready: deque[Chunk] = deque()
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
            queue.leave()
            self._clear(queue)
        return queue

    def seek(self, queue: LiteQueue, offset: int) -> None:
        """Go on at an offset: nothing cached, or on its way, is handed out any more (C-519)."""
        self._clear(queue)
        queue.pull_offset = queue.position = queue.acked = offset

    def _clear(self, queue: LiteQueue) -> None:
        queue.epoch += 1
        queue.idle = False
        self.held.pop(queue, None)
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
        if self.cached <= self._count_all_max and self._has_room(queue, 1):
            return True
        self.held[queue] = None
        return False

    def _has_room(self, queue: LiteQueue, divisor: int) -> bool:
        return (
            queue.cached <= self._count_max // divisor
            and queue.cached_bytes <= self._bytes_max // divisor
            and queue.span <= self._span_max // divisor
        )

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
        if not self.held or self.cached > self._count_all_max // 2:
            return []
        free = [queue for queue in self.held if self._has_room(queue, 2)]
        for queue in free:
            del self.held[queue]
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
