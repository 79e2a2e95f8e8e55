"""Pure: the topics or queues of a lite pull consumer, and its messages and offsets of each queue.

Topics are subscribed or queues assigned: the first call decides, the other is refused (C-504,
C-505). A queue has messages not handed out yet, and three offsets; the owner serialises the calls.
For each queue ``acked <= position <= pull_offset``: a message counts for a commit only after the
caller, having got it, has come back for more (C-513 to C-519, apache/rocketmq 1470 and 2732).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rocketstream.client.consumer.allocate import OwnQueue
from rocketstream.client.consumer.pull_answer import Records
from rocketstream.client.consumer.settings import LitePullConsumerSettings
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.model import MessageQueue
from rocketstream.protocol.bodies import SubscriptionData
from rocketstream.protocol.subscription import build_subscription

if TYPE_CHECKING:
    from rocketstream.protocol.message_ext import MessageExt

EXCLUSIVE = "Subscribe and assign are mutually exclusive."

Subscribed = tuple[SubscriptionData, Any]
"""A subscription, and the listener that is told of changes of its topic's queues."""


class LitePullPlan:
    """Subscriptions or assignments; the first call decides. Values are replaced, never changed.

    Attributes:
        topics: what is subscribed; empty in assign mode.
        assigned: assigned queues; None unless in assign mode.
        expressions: what is wanted of the topics of assigned queues; ``*`` where nothing is said.
    """

    def __init__(self) -> None:
        self.topics: dict[str, Subscribed] = {}
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

    def put_back(self, topic: str, mine: Subscribed | None, before: Subscribed | None) -> None:
        """Undo a subscription of a topic; one that has followed it stays, as do other topics'."""
        if self.topics.get(topic) is not mine:
            return
        self.unsubscribe(topic)
        if before is not None:
            self.topics = {**self.topics, topic: before}

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
        behind: messages the broker had behind those it gave last, to be kept undecoded.
        cached: messages not handed out; those of a chunk count until its last one is.
        cached_bytes: bytes of the answers these came in.
        lent: the last part that is being made into columns, and not handed out yet.
        look_to: answers for offsets below are looked into: they were not all there, undecoded.
        last_pull_ms: when the last pull was sent.
    """

    __slots__ = (
        "acked", "behind", "cached", "cached_bytes", "chunks", "epoch", "idle", "last_pull_ms",
        "lent", "look_to", "noted", "paused", "position", "pull_offset",
    )  # fmt: skip

    paused: bool
    idle: bool
    pull_offset: int
    position: int
    acked: int
    noted: int
    cached: int
    cached_bytes: int

    def __init__(self, message_queue: MessageQueue, offset: int) -> None:
        super().__init__(message_queue)
        self.epoch: int = 0
        self.paused = self.idle = False
        self.pull_offset = self.position = self.acked = self.noted = offset
        self.cached = self.cached_bytes = 0
        self.last_pull_ms: float = 0.0
        self.chunks: deque[Chunk] = deque()
        self.lent: Lent | None = None
        self.look_to: int = 0
        self.behind: int = 0

    def pull_begins(self, now_ms: float) -> None:
        """Remember when a pull was sent or put off."""
        self.last_pull_ms = now_ms

    @property
    def ends(self) -> tuple[int, int]:
        """First and last cached offset, 0 where nothing is."""
        if not self.chunks:
            return 0, 0
        return self.chunks[0].first, self.chunks[-1].last

    @property
    def span(self) -> int:
        """Last minus first cached offset."""
        first, last = self.ends
        return last - first


@dataclass(slots=True, eq=False)
class Chunk:
    """The result of one pull, handed out from ``at`` on; ``end`` is where the next pull began.

    Attributes:
        queue: whose it is.
        messages: the messages; none where the records are kept undecoded.
        end: where the next pull began.
        body_bytes: bytes of the answer.
        at: how many messages were handed out.
        records: the records that were not handed out, undecoded.
        count: how many messages or records it brought.
    """

    queue: LiteQueue
    messages: list[MessageExt]
    end: int
    body_bytes: int
    at: int = 0
    records: Records | None = None
    count: int = 0

    @property
    def first(self) -> int:
        """The first offset that was not handed out."""
        if self.records is not None:
            return self.records.first
        return self.messages[self.at].queue_offset

    @property
    def kind(self) -> object:
        """Equal for what can be decoded together."""
        return self.records and (self.records.complete, self.records.tags)

    @property
    def last(self) -> int:
        """The last offset."""
        return self.messages[-1].queue_offset if self.records is None else self.records.last


@dataclass(slots=True, eq=False)
class Lent:
    """Messages or records of a queue that are being made into columns.

    Attributes:
        queue: whose they are.
        epoch: the queue's when they were taken.
        found: messages, or records.
        end: where the queue goes on behind them.
    """

    queue: LiteQueue
    epoch: int
    found: list[MessageExt] | Records
    end: int

    @property
    def counts(self) -> bool:
        """Whether the queue is still ours, and nobody has gone elsewhere in it."""
        return self.queue.epoch == self.epoch


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
        self.cached: int = 0
        self.pull_ended: bool = False
        self.held: dict[LiteQueue, None] = {}
        self._count_all_max = settings.pull_threshold_for_all
        self._count_max = settings.pull_threshold_for_queue
        self._bytes_max = settings.bytes_for_queue_max
        self._span_max = settings.consume_max_span
        self._ready: deque[Chunk] = deque()
        self._handed: tuple[LiteQueue, ...] = ()
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
        queue.behind = 0
        self.held.pop(queue, None)
        queue.lent = None
        if queue in self._handed:
            self._handed = tuple(each for each in self._handed if each is not queue)
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
        records: Records | None = None,
    ) -> bool:
        """Take in what a pull of ``epoch`` brought; return whether it still counts."""
        if queue.epoch != epoch:
            return False
        queue.pull_offset = next_offset
        count = len(messages) if records is None else len(records)
        if count:
            chunk = Chunk(queue, messages, next_offset, body_bytes, 0, records, count)
            queue.chunks.append(chunk)
            self._ready.append(chunk)
            queue.cached += count
            queue.cached_bytes += body_bytes
            self.cached += count
        elif queue.chunks:
            # Filtered out behind what is cached: handed out together with it.
            queue.chunks[-1].end = next_offset
        elif queue.lent is not None:
            queue.lent.end = next_offset
        else:
            # A filtered tail needs nobody to consume it (C-513, C-569).
            queue.position = next_offset
            if queue not in self._handed:
                queue.acked = next_offset
        return True

    # --- handing out ------------------------------------------------------------------------------

    def has(self, count: int) -> bool:
        """Return whether so many messages can be handed out, or some and no more are pulled now."""
        return self.cached >= count or (self.cached > 0 and bool(self.held))

    def is_behind(self) -> bool:
        """Return whether brokers have more than they gave of a queue that is being pulled."""
        return any(
            queue.behind and not queue.paused and queue not in self.held
            for queue in self.queues.values()
        )

    def settle(self) -> None:
        """The caller came back: what it got last may be committed now."""
        for queue in self._handed:
            queue.acked = queue.position
        self._handed = ()

    def take(self, count: int) -> list[MessageExt]:
        """Hand out at most ``count`` messages of one queue; call ``settle`` first."""
        if not self._ready:
            return []
        chunk = self._ready[0]
        at, messages = chunk.at, chunk.messages
        if len(messages) - at > count:
            chunk.at = at + count
            part = [messages[at]] if count == 1 else messages[at : at + count]
            queue = chunk.queue
            self._handed = (queue,)
            queue.position = part[-1].queue_offset + 1
            return part
        self._finish(chunk)
        return messages[at:] if at else messages

    # --- handing out in columns -------------------------------------------------------------------

    def lend(self, count: int, bytes_max: int) -> list[Lent]:
        """Take at most ``count`` messages to make columns of; call ``settle`` first.

        They are all messages, or all records of which the same is to be expected, and count as
        handed out with ``hand_out``. Of pulls only a first one that is too large is divided, unless
        it is damaged.

        Args:
            count: the most messages.
            bytes_max: no further pull is taken once so many bytes are.
        """
        lent: list[Lent] = []
        kind = None
        while self._ready and count > 0 and bytes_max > 0:
            chunk = self._ready[0]
            have = chunk.count - chunk.at
            if lent and (have > count or chunk.kind != kind):
                break
            kind = chunk.kind
            part = self._divide(chunk, count) if have > count else self._remove(chunk)
            part.queue.lent = part
            lent.append(part)
            count -= have
            bytes_max -= chunk.body_bytes
        return lent

    def _divide(self, chunk: Chunk, count: int) -> Lent:
        queue, at = chunk.queue, chunk.at
        found: list[MessageExt] | Records
        if chunk.records is None:
            found = chunk.messages[at : at + count]
            end = found[-1].queue_offset + 1
        else:
            found, rest = chunk.records.split(count)
            if not rest.count:
                return self._remove(chunk)
            chunk.records, end = rest, found.last + 1
        chunk.at = at + len(found)
        return Lent(queue, queue.epoch, found, end)

    def _remove(self, chunk: Chunk) -> Lent:
        queue = chunk.queue
        self._forget(chunk)
        found = chunk.messages[chunk.at :] if chunk.records is None else chunk.records
        return Lent(queue, queue.epoch, found, chunk.end)

    def hand_out(self, lent: Iterable[Lent]) -> None:
        """The caller has what was lent; what is not ours any more is the next owner's."""
        for part in lent:
            if part.counts:
                queue = part.queue
                queue.position = part.end
                queue.lent = None
                if queue not in self._handed:
                    self._handed = (*self._handed, queue)

    def take_back(self, lent: Iterable[Lent]) -> list[LiteQueue]:
        """The caller does not get what was lent; return the queues that must be pulled again."""
        queues = dict.fromkeys(part.queue for part in lent if part.counts)
        for queue in queues:
            self.seek(queue, queue.position)
        return list(queues)

    def hand_back(self) -> list[LiteQueue]:
        """The caller never got what was handed out last; return the queues to be pulled again."""
        queues = list(self._handed)
        for queue in queues:
            self.seek(queue, queue.acked)
        return queues

    def look_into(self, mq: MessageQueue, lent: Iterable[Lent]) -> None:
        """Have the answers with what was lent of a queue looked into: some of it was missing."""
        for part in lent:
            if part.queue.message_queue == mq:
                part.queue.look_to = max(part.queue.look_to, part.end)

    def decoded_only(self) -> list[LiteQueue]:
        """Drop what is lent or kept undecoded; return the queues that must be pulled again."""
        undecoded = {each.queue for each in self._ready if each.records is not None}
        found = [q for q in self.queues.values() if q in undecoded or q.lent is not None]
        for queue in found:
            self.seek(queue, queue.position)
        return found

    # --- handing out one by one -------------------------------------------------------------------

    def next_one(self) -> MessageExt | None:
        """Settle, and hand out the next message; the last one of a pull sets ``pull_ended``."""
        for handed in self._handed:
            handed.acked = handed.position
        if not self._ready:
            self._handed = ()
            return None
        chunk = self._ready[0]
        at = chunk.at
        message = chunk.messages[at]
        if at + 1 < len(chunk.messages):
            chunk.at = at + 1
            queue = chunk.queue
            self._handed = (queue,)
            queue.position = message.queue_offset + 1
        else:
            self._finish(chunk)
        return message

    def _finish(self, chunk: Chunk) -> None:
        queue = chunk.queue
        self._forget(chunk)
        queue.position = chunk.end
        self._handed = (queue,)

    def _forget(self, chunk: Chunk) -> None:
        queue = chunk.queue
        self._ready.popleft()
        queue.chunks.popleft()
        self.cached -= chunk.count
        queue.cached -= chunk.count
        queue.cached_bytes -= chunk.body_bytes
        self.pull_ended = True

    # --- going on ---------------------------------------------------------------------------------

    def released(self) -> list[LiteQueue]:
        """Return the held queues that may be pulled again, once enough room for many pulls is."""
        free = list(self._releasable())
        for queue in free:
            del self.held[queue]
        return free

    def may_release(self) -> bool:
        """Return whether ``released`` would return any queue."""
        return any(True for _ in self._releasable())

    def _releasable(self) -> Iterator[LiteQueue]:
        if self.held and self.cached <= self._count_all_max // 2:
            yield from (queue for queue in self.held if self._has_room(queue, 2))

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
