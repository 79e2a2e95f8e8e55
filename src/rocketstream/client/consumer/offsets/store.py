"""Where a group is in each queue: what keeps offsets, and the store the brokers are.

Law: offsets move forward only, except by an explicit repair; a failed query is an error, never
an offset (C-299 to C-321, with C-316, C-561, C-568, C-571, C-573 put right).
"""

from __future__ import annotations

import asyncio
import enum
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.client.instance.routes import unknown_broker
from rocketstream.errors import RocketMQError, TransportError
from rocketstream.limits import (
    HAND_BACK_WAIT_MS,
    OFFSET_CHECK_INTERVAL_MS,
    OFFSET_CHECKS_MAX,
    OFFSETS_UNTOLD_MS,
    QUEUES_AT_ONCE,
)
from rocketstream.model import MessageQueue

logger: logging.Logger = logging.getLogger("rocketstream.client")

T = TypeVar("T")

NO_OFFSET = -1
"""``OffsetStore.read_offset``: there is no offset (C-302)."""
UNREADABLE = -2
"""``OffsetStore.read_offset``: whether there is one could not be found out (C-302)."""


class ReadOffsetType(enum.Enum):
    """Where ``OffsetStore.read_offset`` looks (C-301)."""

    READ_FROM_MEMORY = "READ_FROM_MEMORY"
    READ_FROM_STORE = "READ_FROM_STORE"
    MEMORY_FIRST_THEN_STORE = "MEMORY_FIRST_THEN_STORE"


class OffsetStore(ABC):
    """A store of consumed offsets; subclass it to keep them elsewhere (C-44, C-299).

    An offset is the next one to consume. Memory reads must not wait: they are called on any thread.
    The others are called on a thread where they may; ``update_offset`` and ``remove_offset`` soon
    after what they tell of, in order. Any of those that read or keep may be a coroutine function.
    """

    def load(self) -> None:  # noqa: B027 - a store may have nothing to load
        """Read what is kept; called once, at start, which fails if it raises."""

    @abstractmethod
    def update_offset(
        self, message_queue: MessageQueue, offset: int, increase_only: bool = True
    ) -> None:
        """Note an offset; with ``increase_only`` not one below the one noted."""

    @abstractmethod
    def read_offset(self, message_queue: MessageQueue, read_type: ReadOffsetType) -> int:
        """Return an offset, -1 when there is none, -2 when it cannot be found out."""

    @abstractmethod
    def persist_all(self, message_queues: Collection[MessageQueue]) -> None:
        """Keep what is noted of these queues; those of others stay as they are."""

    def persist(self, message_queue: MessageQueue) -> None:
        """Keep what is noted of one queue."""
        return self.persist_all([message_queue])

    @abstractmethod
    def remove_offset(self, message_queue: MessageQueue) -> None:
        """Forget what is noted of a queue; what is kept stays."""

    @abstractmethod
    def clone_offset_table(self, topic: str | None = None) -> Mapping[MessageQueue, int]:
        """Return what is noted of a topic's queues; of all when it is None or blank."""

    def update_consume_offset_to_broker(  # noqa: B027 - most stores are not the brokers
        self, message_queue: MessageQueue, offset: int, is_oneway: bool = False
    ) -> None:
        """Tell the broker an offset, where the broker is the store."""


class Offsets(ABC):
    """Offsets by queue as the consumers use them, on the loop; an offset is the next to consume.

    Where a method is not abstract, what it does here is right for a store that is not the brokers'.
    """

    @abstractmethod
    async def load(self) -> None:
        """Read what is kept, before anything else.

        Raises:
            RocketMQError: it cannot be read.
        """

    @abstractmethod
    def update_offset(self, mq: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        """Note an offset; may be called from any thread, one at a time for each queue."""

    @abstractmethod
    def read_memory(self, mq: MessageQueue) -> int | None:
        """Return the noted offset, None without one."""

    @abstractmethod
    async def read_store(self, mq: MessageQueue) -> int | None:
        """Ask the store; None when it has none.

        Raises:
            RocketMQError: the question could not be answered.
        """

    @abstractmethod
    async def persist(self, mqs: Iterable[MessageQueue]) -> None:
        """Write what changed of these queues; failures are logged and tried again next time."""

    @abstractmethod
    def remove_offset(self, mq: MessageQueue) -> None:
        """Forget a queue."""

    @abstractmethod
    async def update_consume_offset_to_broker(
        self, mq: MessageQueue, offset: int, is_oneway: bool = False
    ) -> None:
        """Store an offset now (C-319).

        Raises:
            RocketMQError: the store did not take it.
        """

    @abstractmethod
    def clone_offset_table(self, topic: str | None = None) -> dict[MessageQueue, int]:
        """Return the noted offsets of a topic, of all when it is None or blank (C-320)."""

    async def persist_for_good(self, mqs: Iterable[MessageQueue]) -> None:
        """Write for good: the queues are about to be another's."""
        await self.persist(mqs)

    async def persist_now(self, mqs: Collection[MessageQueue]) -> None:
        """Write what is noted of these queues, for a caller that waits until it is there.

        Raises:
            RocketMQError: the store did not take all of it.
        """
        await self.persist(mqs)

    def is_settled(self, mq: MessageQueue) -> bool:
        """Return whether nothing is noted of a queue that is still to be written."""
        return True

    def doubt(self, mqs: Iterable[MessageQueue]) -> None:  # noqa: B027 - nobody else writes there
        """Another member may be further in these queues: nothing lower is written before asking."""

    async def check(self, mqs: Iterable[MessageQueue]) -> None:  # noqa: B027 - nothing to ask
        """Find out, now and then, whether the store still has what it confirmed; if not, the next
        ``persist`` says it again."""

    def overtaken(self, mqs: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return, of these queues, what the store has of those where another member is further."""
        return {}

    def piggyback_offset(self, mq: MessageQueue) -> int:
        """Return the offset a pull may carry along, 0 for none (C-211)."""
        return 0

    def piggybacked(self, mq: MessageQueue) -> None:  # noqa: B027 - pulls carry nothing
        """A pull has taken the piggyback_offset offset along."""

    def connection_lost(self, address: str) -> None:  # noqa: B027 - no broker keeps these
        """The broker at ``address`` may have lost what it confirmed: send it again."""


# --- the brokers ----------------------------------------------------------------------------------


class QueueOffset:
    """Where one queue is, what its broker is known to have of that, and what is to be said next.

    The first commit is said until it was acknowledged twice, and so is one that may have been
    overtaken: a broker may keep one of two first commits only, and notes what a pull carries along
    when it likes. Any thread may ``note``, one at a time; everything else is the loop's.

    Attributes:
        noted: where the consumer is; -1 before the first offset.
        stored: what the broker has, as it last confirmed or told; None where that is not known.
        acked: what it acknowledged last; None where something else was noted since.
        ahead: what the broker has where another member of the group is further; -1 where none is.
        is_doubted: another member may have had the queue since its broker was asked, or may still
            have it and say where it is when it gives it back.
        is_repeated: a commit was acknowledged, and nothing since can undo it: the next one counts.
    """

    __slots__ = ("_doubted_until_ms", "_lowered_from", "_stored_ms", "acked", "ahead", "is_doubted",
                 "is_repeated", "noted", "stored")  # fmt: skip

    is_doubted: bool
    is_repeated: bool

    def __init__(self) -> None:
        self.noted: int = -1
        self.stored: int | None = None
        self.acked: int | None = None
        self.ahead: int = -1
        self.is_doubted = self.is_repeated = False
        self._stored_ms = 0.0
        self._doubted_until_ms: float | None = 0.0
        self._lowered_from = -1

    def note(self, offset: int, *, increase_only: bool) -> None:
        """Take an offset; a smaller one, put back on purpose, only without ``increase_only``."""
        if offset > self.noted:
            self.noted = offset
            self.acked = None
        elif not increase_only and offset < self.noted:
            self._lowered_from = max(self.noted, self._lowered_from)
            self.ahead = -1
            self.noted = offset
            self.acked = None

    def is_behind(self) -> bool:
        """Return whether another member is further: nothing lower is to be said."""
        if self.ahead >= 0 and self.noted >= self.ahead:
            self.ahead = -1
        return self.ahead >= 0

    def is_changed(self) -> bool:
        """Return whether the offset is to be said."""
        return 0 <= self.noted != self.stored and not self.is_behind()

    def is_old(self, before_ms: float) -> bool:
        """Return whether an unchanged offset was confirmed before a time."""
        return self.stored == self.noted and self._stored_ms <= before_ms

    def sent(self) -> int:
        """Return the offset to say; from here on nobody knows what the broker has.

        A reset to what it had must be sent too.
        """
        self.stored = None
        return self.noted

    def acknowledged(self, offset: int, now_ms: float) -> None:
        """The broker took an offset; the first time it is said once more."""
        if self.is_repeated:
            self.confirmed(offset, now_ms)
        self.is_repeated = True

    def confirmed(self, offset: int, now_ms: float) -> None:
        """The broker has an offset."""
        self.stored, self._stored_ms = offset, now_ms

    def piggybacked(self) -> None:
        """A pull has taken the offset along: the next commit is said twice."""
        self.is_repeated = False
        if self.stored != self.noted:
            self.stored = None

    def was_told(self, stored: int | None, now_ms: float) -> None:
        """Take in what the broker says it has; None for nothing."""
        if self._doubted_until_ms is None:
            self._doubted_until_ms = now_ms + HAND_BACK_WAIT_MS
        self.is_doubted = now_ms < self._doubted_until_ms
        if stored is None or (self.stored is not None and stored < self.stored):
            # A former owner said less after this one, or the broker has forgotten it.
            self.stored = None
        elif stored > self.noted and not self._is_put_back():
            self.ahead = stored

    def suspect(self) -> None:
        """Have the broker asked before each commit, until who may have the queue gave it back."""
        self._doubted_until_ms, self.is_doubted = None, True

    def unconfirmed(self) -> None:
        """Forget what the broker confirmed: it may have lost that, and given the queue away."""
        self.suspect()
        self.stored = self.acked = None
        self.is_repeated = False

    def _is_put_back(self) -> bool:
        """Whether the queue was put back on purpose, and is not again where it was."""
        if self.noted >= self._lowered_from:
            self._lowered_from = -1
        return self._lowered_from >= 0


class RemoteBrokerOffsetStore(Offsets):
    """The brokers' store, for clustering (C-313 to C-321).

    A broker takes any offset, lower ones too. So whoever may have lost a queue for a while asks
    before it says its offset, and says nothing that is lower, unless it was put back on purpose.
    """

    def __init__(self, instance: MQClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._queues: dict[MessageQueue, QueueOffset] = {}
        self._sending: dict[str, asyncio.Lock] = {}
        self._tables: set[tuple[str, str]] = set()
        """Broker and topic of every commit a broker has acknowledged."""
        self._addresses: dict[str, str] = {}
        """The address asked last, by broker name: a broker's master, or a slave in its place."""
        interval_ms = instance.config.persist_consumer_offset_interval_ms
        self._standstill_ms = max(2 * interval_ms, OFFSETS_UNTOLD_MS)
        self._persisted_ms = self._now_ms()

    async def load(self) -> None:
        """Nothing to load (C-313)."""

    def update_offset(self, mq: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        """Note an offset; a smaller one only when ``increase_only`` is off."""
        queue = self._queues.get(mq)
        if queue is None:
            queue = self._queues.setdefault(mq, QueueOffset())  # another thread may note it, too
        queue.note(offset, increase_only=increase_only)

    def read_memory(self, mq: MessageQueue) -> int | None:
        """Return the noted offset, None without one."""
        queue = self._queues.get(mq)
        return None if queue is None or queue.noted < 0 else queue.noted

    def remove_offset(self, mq: MessageQueue) -> None:
        """Forget a queue."""
        self._queues.pop(mq, None)

    def clone_offset_table(self, topic: str | None = None) -> dict[MessageQueue, int]:
        """Return the noted offsets of a topic, of all when it is None or blank (C-320)."""
        # A copy: threads of the user's note offsets meanwhile.
        table = {mq: queue.noted for mq, queue in list(self._queues.items()) if queue.noted >= 0}
        return of_topic(table, topic)

    # --- asking -----------------------------------------------------------------------------------

    async def read_store(self, mq: MessageQueue) -> int | None:
        """Ask the queue's broker (C-314); None when it has none.

        The answer is noted where nothing is: it may be more than was consumed, once somebody has
        gone back (C-571).

        Raises:
            RocketMQError: the question could not be answered.
        """
        address = await self._address(mq)
        self._asks(mq.broker_name, self._instance.api.channel(address))
        offset = await self._instance.api.query_consumer_offset(address, self._group, mq)
        if offset is not None:
            if self.read_memory(mq) is None:
                self.update_offset(mq, offset)
            # A broker says 0 of a queue nobody has committed to. Not sent, that 0 would be stored
            # nowhere, and a group that hangs on its first message would be known to no tool.
            if offset:
                self._queues[mq].confirmed(offset, self._now_ms())
        return offset

    async def check(self, mqs: Iterable[MessageQueue]) -> None:
        """Ask about offsets that were confirmed long ago and have not changed since.

        A former owner of a queue may commit last, and lower. Upstream says every offset again in
        each round (C-568); asking first undoes nothing that is further.
        """
        before_ms = self._now_ms() - OFFSET_CHECK_INTERVAL_MS
        due = [
            mq
            for mq in mqs
            if (queue := self._queues.get(mq)) is not None and queue.is_old(before_ms)
        ]
        await asyncio.gather(*map(self._check, due[:OFFSET_CHECKS_MAX]))

    async def _check(self, mq: MessageQueue) -> None:
        queue = self._queues[mq]
        said = queue.stored
        if await self._ask(mq, queue) and said is not None and queue.stored == said:
            queue.confirmed(said, self._now_ms())

    async def _ask(self, mq: MessageQueue, queue: QueueOffset) -> bool:
        """Ask what a broker has of a queue and take it in; return whether it answered."""
        try:
            address = await self._address(mq)
            channel = self._instance.api.channel(address)
            losses = self._instance.links.losses(channel)
            stored = await self._instance.api.query_consumer_offset(address, self._group, mq)
        except RocketMQError as error:
            self._instance.outages.failed(("asking for offsets of", self._group, "in", mq), error)
            return False
        self._instance.outages.worked("asking for offsets of", self._group, "in", mq)
        if self._instance.links.losses(channel) != losses:
            return False
        queue.was_told(stored, self._now_ms())
        return True

    def overtaken(self, mqs: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return, of these queues, what brokers have of those where another member is further."""
        known = ((mq, self._queues.get(mq)) for mq in mqs)
        return {mq: queue.ahead for mq, queue in known if queue is not None and queue.is_behind()}

    # --- committing -------------------------------------------------------------------------------

    async def persist(self, mqs: Iterable[MessageQueue]) -> None:
        """Send the changed offsets of these queues, and know that they arrived."""
        if self._stood_still():
            self._suspect(self._queues)
        self._persisted_ms = self._now_ms()
        if len(self._tables) > len(self._queues):  # some are of queues we do not have any more
            # A copy: threads of the user's note offsets meanwhile.
            self._tables &= set(map(_table_of, list(self._queues)))
        by_broker: dict[str, list[MessageQueue]] = {}
        for mq in mqs:
            by_broker.setdefault(mq.broker_name, []).append(mq)
        await asyncio.gather(
            *(self._persist(broker, queues) for broker, queues in by_broker.items())
        )

    async def persist_for_good(self, mqs: Iterable[MessageQueue]) -> None:
        """Send the changed offsets, then once more those that a pull may have overtaken.

        The next owner may have begun, and be further, before this one noticed.
        """
        mqs = list(mqs)
        self.doubt(mqs)
        await self.persist(mqs)
        await self.persist(mqs)

    def is_settled(self, mq: MessageQueue) -> bool:
        """Return whether the broker has what is noted of a queue, or more of another member."""
        queue = self._queues.get(mq)
        return queue is None or not queue.is_changed()

    def doubt(self, mqs: Iterable[MessageQueue]) -> None:
        """Have the broker asked before the next commit of these queues."""
        for mq in mqs:
            if (queue := self._queues.get(mq)) is not None:
                queue.is_doubted = True

    async def _persist(self, broker_name: str, mqs: list[MessageQueue]) -> None:
        # One round at a time: a broker may handle two commits of a queue in any order, and the
        # one handled last stays (C-324).
        lock = self._sending.setdefault(broker_name, asyncio.Lock())
        async with lock:
            found = self._instance.routes.find_for_subscribe(broker_name, 0)
            if found is not None:
                self._asks(broker_name, self._instance.api.channel(found.address))
            await self._persist_changed(mqs)

    def _changed(self, mqs: list[MessageQueue]) -> list[tuple[MessageQueue, QueueOffset]]:
        known = ((mq, self._queues.get(mq)) for mq in mqs)
        return [(mq, queue) for mq, queue in known if queue is not None and queue.is_changed()]

    async def _persist_changed(self, mqs: list[MessageQueue]) -> None:
        changed = self._changed(mqs)
        doubted = [(mq, queue) for mq, queue in changed if queue.is_doubted]
        if doubted:
            unknown: set[MessageQueue] = set()
            for part in _parts(doubted):
                told = await asyncio.gather(*(self._ask(mq, queue) for mq, queue in part))
                unknown.update(
                    mq for (mq, _), is_told in zip(part, told, strict=True) if not is_told
                )
            changed = [pair for pair in self._changed(mqs) if pair[0] not in unknown]
        # A 4.x broker that gets the first two commits of a topic and group at once may keep one
        # only (commitOffset makes the table of the pair unguarded): so one goes alone until it is
        # acknowledged, and each is said once more in the next round.
        rest: list[tuple[MessageQueue, QueueOffset]] = []
        unreachable: set[tuple[str, str]] = set()
        for mq, queue in changed:
            table = _table_of(mq)
            if table in self._tables:
                rest.append((mq, queue))
            elif table not in unreachable:
                error = await self._commit(mq, queue)
                self._log_result(mq, error)
                if isinstance(error, TransportError):
                    unreachable.add(table)  # the others would wait as long, one after the other
        for some in _parts(rest):
            results = await asyncio.gather(*(self._commit(mq, queue) for mq, queue in some))
            for (mq, _), error in zip(some, results, strict=True):
                self._log_result(mq, error)

    async def _commit(self, mq: MessageQueue, queue: QueueOffset) -> RocketMQError | None:
        offset = queue.sent()
        try:
            address = await self._address(mq)
            if not await self._send(address, mq, offset):
                return None  # answered, and the connection is gone since: said again
        except RocketMQError as error:
            queue.is_repeated = False  # it may still arrive, after a later one even
            return error
        self._tables.add(_table_of(mq))
        queue.acknowledged(offset, self._now_ms())
        return None

    def _log_result(self, mq: MessageQueue, error: RocketMQError | None) -> None:
        if error is not None:
            self._instance.outages.failed(("storing offsets of", self._group, "in", mq), error)
        else:
            self._instance.outages.worked("storing offsets of", self._group, "in", mq)

    def piggyback_offset(self, mq: MessageQueue) -> int:
        """Return the offset a pull may carry, 0 while the broker has no commit of the topic."""
        queue = self._queues.get(mq)
        if queue is None or queue.is_doubted or _table_of(mq) not in self._tables:
            return 0
        return 0 if queue.is_behind() or self._stood_still() else max(queue.noted, 0)

    def piggybacked(self, mq: MessageQueue) -> None:
        """A pull has taken the offset along, so the next commit is said twice.

        A broker answers the pull before it notes the offset that came with it, and that may take
        until after the commit of what the answer brought (PullMessageProcessor.processRequest
        commits last, after it has suspended the pull).
        """
        if (queue := self._queues.get(mq)) is not None:
            queue.piggybacked()

    async def update_consume_offset_to_broker(
        self, mq: MessageQueue, offset: int, is_oneway: bool = False
    ) -> None:
        """Send an offset now and, unless it is one-way, know that it arrived (C-319).

        Raises:
            RocketMQError: the broker is unknown or did not take it.
        """
        await self._confirm(mq, offset)

    async def persist_now(self, mqs: Collection[MessageQueue]) -> None:
        """Send what is noted of these queues, but for what was sent so before.

        Raises:
            RocketMQError: a broker is unknown or did not take it.
        """
        if self._stood_still():
            self._suspect(mqs)
        results = await asyncio.gather(*map(self._persist_now, mqs), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _persist_now(self, mq: MessageQueue) -> None:
        queue = self._queues.get(mq)
        if queue is None or queue.noted < 0 or queue.acked == queue.noted:
            return
        if queue.is_doubted and await self._ask(mq, queue) and queue.is_behind():
            return  # another member is further, and its offset covers this one
        offset = queue.noted
        if await self._confirm(mq, offset) and queue.noted == offset:
            queue.acked = offset

    async def _confirm(self, mq: MessageQueue, offset: int) -> bool:
        """Send an offset now; return whether the connection lasted, so that it is sure to be there.

        Raises:
            RocketMQError: the broker is unknown or did not take it.
        """
        address = await self._address(mq)
        async with self._sending.setdefault(mq.broker_name, asyncio.Lock()):
            return await self._send(address, mq, offset)

    async def _send(self, address: str, mq: MessageQueue, offset: int) -> bool:
        channel = self._instance.api.channel(address)
        losses = self._instance.links.losses(channel)
        self._asks(mq.broker_name, channel)
        await self._instance.api.update_consumer_offset(address, self._group, mq, offset)
        return self._instance.links.losses(channel) == losses

    # --- who was told -----------------------------------------------------------------------------

    def connection_lost(self, address: str) -> None:
        """Forget what this broker confirmed: it writes offsets every few seconds only (C-344).

        One that died in between has lost them; one that did not may have given the queues to
        another member meanwhile. So may other brokers have their own: a member asks any broker who
        the others are, and this one knows of us no more.
        """
        self._suspect(self._queues)
        self._forget_confirmed(
            {name for name, confirmed in self._addresses.items() if confirmed == address}
        )

    def _stood_still(self) -> bool:
        """Return whether offsets were not told for so long that the process, or its loop, stood
        still: a broker may have given its queues to another member meanwhile.
        """
        return self._now_ms() - self._persisted_ms > self._standstill_ms

    def _suspect(self, mqs: Iterable[MessageQueue]) -> None:
        # A copy: threads of the user's note offsets meanwhile.
        for mq in list(mqs):
            if (queue := self._queues.get(mq)) is not None:
                queue.suspect()

    def _asks(self, broker_name: str, channel: str) -> None:
        """Note who is asked now; what another server of the broker confirmed counts no more.

        A slave takes offsets while its master is away, and the master knows nothing of them.
        """
        if self._addresses.get(broker_name, channel) != channel:
            self._forget_confirmed({broker_name})
        self._addresses[broker_name] = channel

    def _forget_confirmed(self, names: Collection[str]) -> None:
        # A copy: threads of the user's note offsets meanwhile.
        for mq, queue in list(self._queues.items()):
            if mq.broker_name in names:
                queue.unconfirmed()
        self._tables = {table for table in self._tables if table[0] not in names}

    def _now_ms(self) -> float:
        return self._instance.clock.monotonic_ms()

    async def _address(self, mq: MessageQueue) -> str:
        routes = self._instance.routes
        found = routes.find_for_subscribe(mq.broker_name, 0)
        if found is None:
            await self._instance.route_updates.update(mq.topic)
            found = routes.find_for_subscribe(mq.broker_name, 0)
        if found is None:
            raise unknown_broker(mq.broker_name, mq)
        return found.address


def _table_of(mq: MessageQueue) -> tuple[str, str]:
    return mq.broker_name, mq.topic


def _parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Return so many at a time that whatever else is on the loop gets its turn in between."""
    return (items[at : at + QUEUES_AT_ONCE] for at in range(0, len(items), QUEUES_AT_ONCE))


def of_topic(offsets: Mapping[MessageQueue, int], topic: str | None) -> dict[MessageQueue, int]:
    """Return the entries of one topic, all when ``topic`` is None or blank."""
    if topic is None or not topic.strip():
        return dict(offsets)
    return {mq: offset for mq, offset in offsets.items() if mq.topic == topic}
