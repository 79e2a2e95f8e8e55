"""Where a group is in each queue: what keeps offsets, and the store the brokers are.

Law: offsets move forward only, except by an explicit repair; a failed query is an error, never
an offset (C-299 to C-321, with C-316, C-561, C-568, C-571, C-573 put right).
"""

from __future__ import annotations

import asyncio
import enum
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from rocketstream.client.core.routes import unknown_broker
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import RocketMQError
from rocketstream.limits import OFFSET_CHECK_INTERVAL_MS, OFFSET_CHECKS_MAX
from rocketstream.model import MessageQueue

logger = logging.getLogger("rocketstream.client")

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

    An offset is the next one to consume. ``update_offset`` and memory reads are called often, from
    any thread, and must not wait; the others are called on a thread where they may. Any of the
    waiting ones may also be a coroutine function.
    """

    def load(self) -> None:  # noqa: B027 - a store may have nothing to load
        """Read what is kept; called once, at start. What it raises fails the start."""

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


class Offsets(Protocol):
    """Offsets by queue as the consumers use them, on the loop; an offset is the next to consume."""

    async def load(self) -> None:
        """Read what is kept, before anything else.

        Raises:
            RocketMQError: it cannot be read.
        """
        ...

    def update_offset(self, mq: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        """Note an offset; may be called from any thread, one at a time for each queue."""
        ...

    def read_memory(self, mq: MessageQueue) -> int | None:
        """Return what is noted, None when nothing is."""
        ...

    async def read_store(self, mq: MessageQueue) -> int | None:
        """Ask the store; None when it has none.

        Raises:
            RocketMQError: the question could not be answered.
        """
        ...

    async def persist(self, mqs: Iterable[MessageQueue]) -> None:
        """Write what changed of these queues; failures are logged and tried again next time."""
        ...

    async def persist_for_good(self, mqs: Iterable[MessageQueue]) -> None:
        """Write for good: the queues are about to be another's."""
        ...

    async def check(self, mqs: Iterable[MessageQueue]) -> None:
        """Find out, now and then, whether what was written is still there; else ``persist`` says it
        again."""
        ...

    def overtaken(self, mqs: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return, of these queues, what the store has of those where another member is further."""
        ...

    def committable(self, mq: MessageQueue) -> int:
        """Return the offset a pull may carry along, 0 for none."""
        ...

    def carried(self, mq: MessageQueue) -> None:
        """A pull has taken the committable offset along."""
        ...

    def remove_offset(self, mq: MessageQueue) -> None:
        """Forget a queue."""
        ...

    def connection_lost(self, address: str) -> None:
        """What the broker at ``address`` confirmed may be lost there: send it again."""
        ...

    async def update_consume_offset_to_broker(
        self, mq: MessageQueue, offset: int, is_oneway: bool = False
    ) -> None:
        """Store an offset now (C-319).

        Raises:
            RocketMQError: the store did not take it.
        """
        ...

    def clone_offset_table(self, topic: str | None = None) -> dict[MessageQueue, int]:
        """Return what is noted of a topic, of all when it is None or blank (C-320)."""
        ...


class RemoteBrokerOffsetStore:
    """The brokers' store, for clustering (C-313 to C-321).

    A broker takes any offset, lower ones too. So whoever may have lost a queue for a while asks
    before it says its offset, and says nothing that is lower, unless it was put back on purpose.
    """

    def __init__(self, instance: MQClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._offsets: dict[MessageQueue, int] = {}
        self._persisted: dict[MessageQueue, int] = {}
        self._known_ms: dict[MessageQueue, float] = {}
        """When a broker last said or confirmed the offset of a queue."""
        self._doubted: set[MessageQueue] = set()
        """Somebody else may have had these queues since their brokers were asked."""
        self._ahead: dict[MessageQueue, int] = {}
        """What brokers have of queues where another member is further."""
        self._lowered: dict[MessageQueue, int] = {}
        """Where queues were before they were put back on purpose."""
        self._sending: dict[str, asyncio.Lock] = {}
        self._tables: set[tuple[str, str]] = set()
        """Broker and topic of every commit a broker has acknowledged."""
        self._said: set[MessageQueue] = set()
        """Queues whose first commit was acknowledged."""
        self._addresses: dict[str, str] = {}
        """Who confirmed last, by broker name."""

    async def load(self) -> None:
        """Nothing to load (C-313)."""

    def update_offset(self, mq: MessageQueue, offset: int, *, increase_only: bool = True) -> None:
        """Note an offset; a smaller one only when ``increase_only`` is off."""
        known = self._offsets.get(mq)
        if known is None or offset > known:
            self._offsets[mq] = offset
        elif not increase_only and offset < known:
            self._lowered[mq] = max(known, self._lowered.get(mq, known))
            self._ahead.pop(mq, None)
            self._offsets[mq] = offset

    def read_memory(self, mq: MessageQueue) -> int | None:
        """Return what is noted, None when nothing is."""
        return self._offsets.get(mq)

    async def read_store(self, mq: MessageQueue) -> int | None:
        """Ask the queue's broker (C-314); None when it has none.

        The answer is noted unless more has been noted meanwhile (C-571).

        Raises:
            RocketMQError: the question could not be answered.
        """
        address = await self._address(mq)
        self._addresses[mq.broker_name] = self._instance.api.channel(address)
        offset = await self._instance.api.query_consumer_offset(address, self._group, mq)
        if offset is not None:
            self.update_offset(mq, offset)
            # A broker says 0 of a queue nobody has committed to. Not sent, that 0 would be stored
            # nowhere, and a group that hangs on its first message would be known to no tool.
            if offset:
                self._confirmed(mq, offset)
        return offset

    async def persist(self, mqs: Iterable[MessageQueue]) -> None:
        """Send the changed offsets of these queues, and know that they arrived."""
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
        self._doubted.update(mq for mq in mqs if mq in self._offsets)
        await self.persist(mqs)
        await self.persist(mqs)

    async def check(self, mqs: Iterable[MessageQueue]) -> None:
        """Ask about offsets that were confirmed long ago and have not changed since.

        A former owner of a queue may commit last, and lower. Upstream says every offset again in
        each round (C-568); asking first undoes nothing that is further.
        """
        before_ms = self._instance.clock.monotonic_ms() - OFFSET_CHECK_INTERVAL_MS
        due = [
            mq
            for mq in mqs
            if (offset := self._persisted.get(mq)) is not None
            and offset == self._offsets.get(mq)
            and self._known_ms[mq] <= before_ms
        ]
        await asyncio.gather(*map(self._check, due[:OFFSET_CHECKS_MAX]))

    async def _check(self, mq: MessageQueue) -> None:
        said = self._persisted[mq]
        if not await self._ask(mq) or self._persisted.get(mq) != said:
            return
        self._known_ms[mq] = self._instance.clock.monotonic_ms()

    async def _ask(self, mq: MessageQueue) -> bool:
        """Ask what a broker has of a queue and take it in; return whether it answered."""
        try:
            address = await self._address(mq)
            channel = self._instance.api.channel(address)
            losses = self._instance.losses(channel)
            stored = await self._instance.api.query_consumer_offset(address, self._group, mq)
        except RocketMQError as error:
            self._instance.outages.failed(("asking for offsets of", self._group, "in", mq), error)
            return False
        self._instance.outages.worked("asking for offsets of", self._group, "in", mq)
        if self._instance.losses(channel) != losses:
            return False
        self._doubted.discard(mq)
        offset = self._offsets.get(mq)
        if offset is None:
            return True
        said = self._persisted.get(mq)
        if stored is None or (said is not None and stored < said):
            # A former owner said less after this one, or the broker has forgotten it.
            self._persisted.pop(mq, None)
        elif stored > offset and not self._is_put_back(mq, offset):
            self._ahead[mq] = stored
        return True

    def _is_put_back(self, mq: MessageQueue, offset: int) -> bool:
        """Whether a queue was put back on purpose, and is not again where it was."""
        before = self._lowered.get(mq)
        if before is not None and offset >= before:
            self._lowered.pop(mq, None)
            return False
        return before is not None

    def overtaken(self, mqs: Iterable[MessageQueue]) -> dict[MessageQueue, int]:
        """Return, of these queues, what brokers have of those where another member is further."""
        return {mq: self._ahead[mq] for mq in mqs if self._is_behind(mq)}

    def _is_behind(self, mq: MessageQueue) -> bool:
        ahead = self._ahead.get(mq)
        if ahead is not None and self._offsets[mq] >= ahead:
            self._ahead.pop(mq, None)
            return False
        return ahead is not None

    def _confirmed(self, mq: MessageQueue, offset: int) -> None:
        self._persisted[mq] = offset
        self._known_ms[mq] = self._instance.clock.monotonic_ms()

    async def _persist(self, broker_name: str, mqs: list[MessageQueue]) -> None:
        # One round at a time: a broker may handle two commits of a queue in any order, and the
        # one handled last stays (C-324).
        lock = self._sending.setdefault(broker_name, asyncio.Lock())
        async with lock:
            await self._persist_changed(mqs)

    def _changed(self, mqs: list[MessageQueue]) -> list[tuple[MessageQueue, int]]:
        return [
            (mq, offset)
            for mq in mqs
            if (offset := self._offsets.get(mq)) is not None
            and self._persisted.get(mq) != offset
            and not self._is_behind(mq)
        ]

    async def _persist_changed(self, mqs: list[MessageQueue]) -> None:
        changed = self._changed(mqs)
        doubted = [mq for mq, _ in changed if mq in self._doubted]
        if doubted:
            await asyncio.gather(*map(self._ask, doubted))
            changed = [pair for pair in self._changed(mqs) if pair[0] not in self._doubted]
        # A 4.x broker that gets the first two commits of a topic and group at once may keep one
        # only (commitOffset makes the table of the pair unguarded): so the first ones go singly,
        # and each is said once more in the next round.
        known = set(self._tables)
        for mq, offset in changed:
            if self._table_of(mq) not in known:
                self._log_result(mq, await self._try_send(mq, offset))
        rest = [pair for pair in changed if self._table_of(pair[0]) in known]
        results = await asyncio.gather(*(self._try_send(mq, offset) for mq, offset in rest))
        for (mq, _), error in zip(rest, results, strict=True):
            self._log_result(mq, error)

    def committable(self, mq: MessageQueue) -> int:
        """Return the offset a pull may carry, 0 while the broker has no commit of the topic."""
        if self._table_of(mq) not in self._tables or mq in self._doubted or self._is_behind(mq):
            return 0
        return self._offsets.get(mq, 0)

    def carried(self, mq: MessageQueue) -> None:
        """A pull has taken the offset along, so the next commit is said twice.

        A broker answers the pull before it notes the offset that came with it, and that may take
        until after the commit of what the answer brought (PullMessageProcessor.processRequest
        commits last, after it has suspended the pull).
        """
        self._said.discard(mq)
        if self._persisted.get(mq) != self._offsets.get(mq):
            self._persisted.pop(mq, None)

    def remove_offset(self, mq: MessageQueue) -> None:
        """Forget a queue."""
        self._offsets.pop(mq, None)
        self._persisted.pop(mq, None)
        self._known_ms.pop(mq, None)
        self._ahead.pop(mq, None)
        self._lowered.pop(mq, None)
        self._said.discard(mq)
        self._doubted.discard(mq)

    async def update_consume_offset_to_broker(
        self, mq: MessageQueue, offset: int, is_oneway: bool = False
    ) -> None:
        """Send an offset now and, unless it is one-way, know that it arrived (C-319).

        Raises:
            RocketMQError: the broker is unknown or did not take it.
        """
        address = await self._address(mq)
        lock = self._sending.setdefault(mq.broker_name, asyncio.Lock())
        async with lock:
            await self._send(address, mq, offset)

    async def confirm(self, mq: MessageQueue, offset: int) -> bool:
        """Send an offset now; return whether the connection lasted, so that it is sure to be there.

        Raises:
            RocketMQError: the broker is unknown or did not take it.
        """
        address = await self._address(mq)
        async with self._sending.setdefault(mq.broker_name, asyncio.Lock()):
            return await self._send(address, mq, offset)

    def connection_lost(self, address: str) -> None:
        """Forget what this broker confirmed: it writes offsets every few seconds only (C-344).

        One that died in between has lost them; one that did not may have given the queues to
        another member meanwhile.
        """
        names = {name for name, confirmed in self._addresses.items() if confirmed == address}
        for mq in [mq for mq in self._persisted if mq.broker_name in names]:
            del self._persisted[mq]
        self._doubted.update(mq for mq in self._offsets if mq.broker_name in names)
        self._said = {mq for mq in self._said if mq.broker_name not in names}
        self._tables = {table for table in self._tables if table[0] not in names}

    async def _send(self, address: str, mq: MessageQueue, offset: int) -> bool:
        channel = self._instance.api.channel(address)
        losses = self._instance.losses(channel)
        self._addresses[mq.broker_name] = channel
        await self._instance.api.update_consumer_offset(address, self._group, mq, offset)
        return self._instance.losses(channel) == losses

    def clone_offset_table(self, topic: str | None = None) -> dict[MessageQueue, int]:
        """Return what is noted of a topic, of all when it is None or blank (C-320)."""
        return of_topic(dict(self._offsets), topic)

    async def _try_send(self, mq: MessageQueue, offset: int) -> RocketMQError | None:
        # From here on nobody knows what the broker has; a reset to what it had must be sent too.
        self._persisted.pop(mq, None)
        try:
            address = await self._address(mq)
            if not await self._send(address, mq, offset):
                return None  # answered, and the connection is gone since: said again
        except RocketMQError as error:
            # It may still arrive, after a later one even: that one is said twice.
            self._said.discard(mq)
            return error
        self._tables.add(self._table_of(mq))
        if mq in self._said:
            self._confirmed(mq, offset)
        elif mq in self._offsets:
            self._said.add(mq)
        return None

    def _log_result(self, mq: MessageQueue, error: RocketMQError | None) -> None:
        if error is not None:
            self._instance.outages.failed(("storing offsets of", self._group, "in", mq), error)
        else:
            self._instance.outages.worked("storing offsets of", self._group, "in", mq)

    @staticmethod
    def _table_of(mq: MessageQueue) -> tuple[str, str]:
        return mq.broker_name, mq.topic

    async def _address(self, mq: MessageQueue) -> str:
        routes = self._instance.routes
        found = routes.find_for_subscribe(mq.broker_name, 0)
        if found is None:
            await self._instance.update_route(mq.topic)
            found = routes.find_for_subscribe(mq.broker_name, 0)
        if found is None:
            raise unknown_broker(mq.broker_name, mq)
        return found.address


def of_topic(offsets: Mapping[MessageQueue, int], topic: str | None) -> dict[MessageQueue, int]:
    """Return the entries of one topic, all when ``topic`` is None or blank."""
    if topic is None or not topic.strip():
        return dict(offsets)
    return {mq: offset for mq, offset in offsets.items() if mq.topic == topic}
