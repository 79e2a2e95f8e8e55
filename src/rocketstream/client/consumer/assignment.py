"""Which queues a consumer has: the table, where each begins, the round that divides them anew.

Every kind of consumer has one, on its loop (upstream's RebalanceImpl, C-156 to C-198).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from rocketstream._util.ending import shared
from rocketstream._util.user_code import called
from rocketstream.client.consumer.allocate import (
    AllocateMessageQueueStrategy,
    Assign,
    OwnQueue,
    Revoke,
    StartAt,
    plan,
    plan_unsubscribed,
    sorted_members,
    start_at,
    usable,
)
from rocketstream.client.consumer.consume.queue_locks import QueueLocker
from rocketstream.client.consumer.offsets.store import Offsets
from rocketstream.client.consumer.subscription import learn_route
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.client.instance.routes import unknown_broker
from rocketstream.errors import BrokerError, RocketMQError
from rocketstream.limits import QUEUE_RELEASE_WAIT_MS, QUEUES_AT_ONCE
from rocketstream.model import ConsumeFromWhere, MessageModel, MessageQueue
from rocketstream.protocol.names import RETRY_PREFIX

logger: logging.Logger = logging.getLogger("rocketstream.client")

_DIVIDED = "divided its queues"
TWICE_EXPECTED = 6
"""So many rounds in a row a broker may name this member twice: two minutes, by default."""


Q = TypeVar("Q", bound=OwnQueue)
T = TypeVar("T")


class QueueOwner(Protocol[Q]):
    """The consumer whose queues are divided; every method is called on the loop."""

    def is_active(self) -> bool:
        """Whether queues may be divided now; False while paused or shutting down."""
        ...

    def new_queue(self, mq: MessageQueue, offset: int) -> Q:
        """Return a queue that becomes ours, and begins at an offset."""
        ...

    def start_queue(self, queue: Q) -> None:
        """Begin to consume a queue that was taken."""
        ...

    async def give_up(self, queues: Sequence[Q]) -> None:
        """Remove what is finished of queues that leave: it counts."""
        ...

    async def queues_changed(
        self, topic: str, all_queues: Sequence[MessageQueue], mine: Sequence[MessageQueue]
    ) -> None:
        """The queues of a topic, or our share of them, are others than before (C-163)."""
        ...


@dataclass(frozen=True, slots=True)
class RebalanceSettings:
    """How a consumer shares queues.

    Attributes:
        group: consumer group, with its namespace.
        message_model: broadcasting takes all queues and asks nobody.
        strategy: how the members divide the queues.
        in_order: a queue leaves only when its listener has returned, however long that takes.
        release_wait_ms: how long a round waits for listeners of queues that leave.
        where: where a queue without a stored offset begins.
        timestamp_ms: where TIMESTAMP begins, ms since 1970.
    """

    group: str
    message_model: MessageModel
    strategy: AllocateMessageQueueStrategy
    in_order: bool = False
    release_wait_ms: float = QUEUE_RELEASE_WAIT_MS
    where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    timestamp_ms: Callable[[], int] = lambda: 0


class Assignment(Generic[Q]):
    """The queues of one consumer.

    Args:
        instance: the client instance.
        settings: how queues are shared, and where they begin.
        owner: the consumer.
        store: where its offsets are kept; None where the caller says what to pull (C-194).
        locking: locks its queues at their brokers; None where nobody does.

    Attributes:
        table: every queue this consumer has now; to be read.
    """

    def __init__(
        self,
        instance: MQClientInstance,
        settings: RebalanceSettings,
        owner: QueueOwner[Q],
        *,
        store: Offsets | None = None,
        locking: QueueLocker | None = None,
    ) -> None:
        self._instance = instance
        self._settings = settings
        self._owner = owner
        self._store = store
        self._locking = locking
        self._clock = instance.clock
        self.table: dict[MessageQueue, Q] = {}
        self._routed: set[str] = set()
        self._lock = asyncio.Lock()
        self._kept: dict[MessageQueue, bool] = {}
        """Queues that leave when their listener returns, and whether they are ours again then."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    # --- the round --------------------------------------------------------------------------------

    async def rebalance(self, topics: Collection[str]) -> bool:
        """Divide the queues of every topic anew; return whether all went well (C-156, C-153)."""
        async with self._lock:
            if self._closed or not self._owner.is_active():
                return True
            balanced = True
            for topic in list(topics):
                try:
                    balanced = await self._rebalance_topic(topic) and balanced
                except RocketMQError as error:
                    balanced = False
                    self._instance.outages.failed(("dividing the queues of", topic), error)
            unwanted = [
                each
                for each in plan_unsubscribed(self.table, topics)
                if each.message_queue not in self._kept
            ]
            self._kept.update((mq, False) for mq in self._kept if mq.topic not in topics)
            busy = await self._revoke(unwanted, wait=False)
            self._keep(await self._revoke(busy, wait=True), ())
            return balanced

    async def rebalance_now(self, topics: Collection[str]) -> bool:
        """Divide the queues as ``rebalance`` does; in full though the caller be cancelled."""
        return await shared(self._begin_task(self.rebalance(topics)), _DIVIDED)

    async def assign(self, wanted: Collection[MessageQueue]) -> bool:
        """Have these queues and no others, whoever else has them (C-506).

        Done in full though the caller be cancelled.

        Returns:
            Whether all were taken; the others are taken by another call.
        """
        return await shared(self._begin_task(self._assign_exactly(wanted)), _DIVIDED)

    async def _assign_exactly(self, wanted: Collection[MessageQueue]) -> bool:
        async with self._lock:
            if self._closed:
                return True
            gone = [queue for mq, queue in self.table.items() if mq not in wanted]
            await self._owner.give_up(gone)
            await self._drop([queue.message_queue for queue in gone])
            new = [mq for mq in wanted if mq not in self.table]
            for topic in {mq.topic for mq in new}:
                await learn_route(self._instance, topic)
            return await self._assign_and_begin(new) == len(new)

    async def _rebalance_topic(self, topic: str) -> bool:
        queues = await self._topic_queues(topic)
        if queues is None:
            return False
        routed = self._instance.routes.subscribe_queues(topic)
        allotted, is_whole = await self._allotted(topic, queues)
        if allotted is None:
            return False  # what we have is kept until the members are known (C-159, C-160)
        now_ms = self._clock.monotonic_ms()
        share = [*allotted, *self._waiting(topic, queues)]
        for mq in self._kept:
            if mq.topic == topic:
                self._kept[mq] = mq in share
        effects = [
            each
            for each in plan(self.table, topic, share, now_ms)
            if each.message_queue not in self._kept
        ]
        if self._closed:
            return True
        revoked = [effect for effect in effects if isinstance(effect, Revoke)]
        wanted = [effect.message_queue for effect in effects if isinstance(effect, Assign)]
        busy = await self._revoke(revoked, wait=False)
        new = [mq for mq in wanted if mq not in self.table]
        taken: list[Q] = []
        try:
            for at in range(0, len(new), QUEUES_AT_ONCE):
                if self._instance.routes.subscribe_queues(topic) != routed:
                    break  # a wrong route has been put right meanwhile: divided anew at once
                await self._assign(new[at : at + QUEUES_AT_ONCE], taken)
            if effects:
                # With those that wait for their broker: what is held and not told would be let go.
                await self._owner.queues_changed(topic, sorted({*queues, *share}), sorted(share))
        finally:
            self._begin(taken)
        # Last: a listener that takes long keeps no other queue from changing hands.
        busy = await self._revoke(busy, wait=True)
        anew = [mq for mq in wanted if mq not in new and mq not in self.table]
        again = await self._assign_and_begin(anew)
        self._keep(busy, wanted)
        return is_whole and (len(taken), again) == (len(new), len(anew))

    async def _assign_and_begin(self, mqs: Sequence[MessageQueue]) -> int:
        """Take queues and begin those that were taken; return how many."""
        taken: list[Q] = []
        try:
            await self._assign(mqs, taken)
        finally:
            self._begin(taken)
        return len(taken)

    def _begin(self, queues: Sequence[Q]) -> None:
        for queue in queues:
            self._owner.start_queue(queue)

    def _waiting(self, topic: str, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        """Return what we have of queues that left the route with their broker, a moment ago.

        Nobody else can be allotted them. Kept until the broker is back, what is finished of them is
        not consumed again: the broker is then asked and told, as after any lost connection.
        """
        routed = set(queues)
        return [
            mq
            for mq, queue in self.table.items()
            if mq.topic == topic
            and mq not in routed
            and not queue.leaving
            and self._instance.links.is_away(mq.broker_name)
        ]

    async def _topic_queues(self, topic: str) -> list[MessageQueue] | None:
        routes = self._instance.routes
        queues = routes.subscribe_queues(topic)
        if queues is None and await self._instance.route_updates.update(topic):
            queues = routes.subscribe_queues(topic)
        outages = self._instance.outages
        if queues is not None:
            self._routed.add(topic)
            outages.worked("dividing the queues of", topic)
            outages.worked("topic", topic)
            return sorted(queues)
        if not topic.startswith(RETRY_PREFIX):
            servers = ", ".join(self._instance.api.name_servers.addresses)
            outages.report(
                ("topic", topic),
                f"topic {topic} is unknown to name server {servers}: group "
                f"{self._settings.group} gets nothing of it; check its name, or create it "
                "(rocketstream topic create)",
            )
        if topic in self._routed and not topic.startswith(RETRY_PREFIX):
            self._routed.discard(topic)
            await self._owner.queues_changed(topic, [], [])  # C-164
        return None

    async def _allotted(
        self, topic: str, queues: list[MessageQueue]
    ) -> tuple[list[MessageQueue] | None, bool]:
        """Return our share, None when it is unknown, and whether the share can be trusted."""
        if self._settings.message_model is MessageModel.BROADCASTING:
            return queues, True
        members = await self._members(topic)
        if members is None:
            return None, False
        return self._allocate(topic, queues, members), self._instance.client_id in members

    def _allocate(
        self, topic: str, queues: list[MessageQueue], members: list[str]
    ) -> list[MessageQueue] | None:
        strategy, group = self._settings.strategy, self._settings.group
        if not queues:
            return []
        try:
            # Copies: a strategy of the user's own may do with its arguments what it likes.
            share = called(
                strategy.allocate, group, self._instance.client_id, list(queues), list(members)
            )
            mine, foreign = usable(share, topic, queues)
        except Exception:
            logger.exception(
                "allocate strategy %s failed for topic %s; its queues are kept",
                getattr(strategy, "name", strategy),
                topic,
            )
            return None
        if foreign:
            logger.warning(
                "allocate strategy %s of group %s returned queues that topic %s does not have: %s",
                strategy.name, group, topic, foreign,
            )  # fmt: skip
        return mine

    async def _members(self, topic: str) -> list[str] | None:
        addresses = self._instance.routes.group_addresses(topic)
        if not addresses:
            return None
        address = random.choice(addresses)
        members = await self._ask_members(address, first=True)
        if members is None or self._instance.client_id not in members:
            # The broker has forgotten us, by a restart say: tell it before the others divide the
            # queues without us.
            await self._instance.heartbeats.send()
            members = await self._ask_members(address, first=False)
        return members

    async def _ask_members(self, address: str, *, first: bool) -> list[str] | None:
        group = self._settings.group
        try:
            members = await self._instance.api.consumer_ids(address, group)
            self._instance.outages.worked("asking for the members of", group)
            client_id = self._instance.client_id
            # Apache's brokers name a member once a connection. An earlier one of ours may be
            # unknown to be gone for two minutes.
            self._instance.outages.id_is_shared(
                f"group {group} of {address}",
                is_shared=members.count(client_id) > 1,
                expected=TWICE_EXPECTED,
            )
            return sorted_members(members)
        except RocketMQError as error:
            # A broker that has not heard of the group yet is told, and asked again at once.
            if not (first and isinstance(error, BrokerError)):
                self._instance.outages.failed(("asking for the members of", group), error)
            return None

    # --- giving up --------------------------------------------------------------------------------

    async def _revoke(self, effects: Sequence[Revoke], *, wait: bool) -> list[Revoke]:
        """Give queues up; return those that have not left (C-179).

        Without ``wait`` those leave that nobody works on. With it listeners that run have a bounded
        time, in which what they finish counts; then all leave, but those consumed in order.
        """
        if not effects:
            return []
        queues = [self.table[effect.message_queue] for effect in effects]
        for queue in queues:
            queue.leave()
        if wait:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.release_wait_ms / 1000):
                    for queue in queues:
                        await queue.until_free()
        leaves = wait and not self._settings.in_order
        ready = {queue.message_queue: queue for queue in queues if leaves or queue.is_free}
        await self._owner.give_up(list(ready.values()))
        await self._drop(list(ready))
        for effect in effects:
            mq, reason = effect.message_queue, effect.reason.value
            if mq in ready:
                logger.info("group %s gave up %s: %s", self._settings.group, mq, reason)
        return [effect for effect in effects if effect.message_queue not in ready]

    def _keep(self, busy: Sequence[Revoke], wanted: Collection[MessageQueue]) -> None:
        """Have queues leave as soon as their listeners return."""
        for effect in busy:
            mq = effect.message_queue
            self._kept[mq] = mq in wanted
            logger.info("%s is given up when its listener returns", mq)
            self._begin_task(self._leave_later(self.table[mq]))

    def _begin_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin what ends with the assignment, whoever waits for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _leave_later(self, queue: Q) -> None:
        mq = queue.message_queue
        await queue.until_free()
        async with self._lock:
            if self._closed or self.table.get(mq) is not queue:
                return
            is_wanted = self._kept.pop(mq)
            try:
                await self._owner.give_up([queue])
                await self._drop([mq])
                logger.info("group %s gave up %s: its listener is back", self._settings.group, mq)
                await self._assign_and_begin([mq] if is_wanted else [])
                queues = self._instance.routes.subscribe_queues(mq.topic) or ()
                mine = [each for each in self.table if each.topic == mq.topic]
                every = sorted({*queues, *mine})
                await self._owner.queues_changed(mq.topic, every, sorted(mine))
            except Exception:
                logger.exception("giving up %s failed", mq)
        if is_wanted and mq not in self.table:
            self._instance.groups.rebalance_soon()

    async def _drop(self, mqs: Sequence[MessageQueue]) -> None:
        """Take queues out: what is finished counts, what is not is the next owner's."""
        for mq in mqs:
            self.table.pop(mq).drop()
        if self._store is not None:
            await self._store.persist_for_good(mqs)
            for mq in mqs:
                self._store.remove_offset(mq)
        if self._locking is not None:
            await self._locking.released(mqs)

    def stop(self) -> None:
        """Take no queue any more."""
        self._closed = True

    async def close(self) -> None:
        """Give every queue up, ready or not; at shutdown, after the listeners ended (C-119)."""
        self.stop()
        async with self._lock:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await self._drop(list(self.table))
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- taking -----------------------------------------------------------------------------------

    async def _assign(self, mqs: Sequence[MessageQueue], taken: list[Q]) -> None:
        """Add queues to ``taken`` whose start can be found; others are tried again soon (C-175).

        Whatever ends this, the caller is to begin what is there: no other round would.
        """
        if not mqs:
            return
        if self._locking is not None:
            allowed = set(await self._locking.may_take(mqs))
            mqs = [mq for mq in mqs if mq in allowed]
        for mq, start in zip(mqs, await self._offsets(mqs), strict=True):
            if isinstance(start, RocketMQError):
                self._instance.outages.failed(("asking where to start", mq), start)
            elif isinstance(start, BaseException):
                raise start
            elif not self._closed:
                self._instance.outages.worked("asking where to start", mq)
                taken.append(self._take(mq, start))
        if self._locking is not None:
            # Locked at the broker and then not taken: nobody else could have them for a minute.
            await self._locking.released([mq for mq in mqs if mq not in self.table])

    async def _offsets(self, mqs: Sequence[MessageQueue]) -> list[int | BaseException]:
        store = self._store
        if store is None:
            return [0] * len(mqs)
        for mq in mqs:
            store.remove_offset(mq)  # of before, or asked for out of curiosity
        starts = (self.start_of(mq, store) for mq in mqs)
        return await asyncio.gather(*starts, return_exceptions=True)

    async def start_of(self, mq: MessageQueue, store: Offsets) -> int:
        """Return where to begin a queue (C-189 to C-196).

        Raises:
            RocketMQError: it could not be found out; that is never an offset (C-561, C-562).
        """
        stored = await store.read_store(mq)
        if stored is not None:
            return stored
        where = start_at(self._settings.where, is_retry=mq.topic.startswith(RETRY_PREFIX))
        if where is StartAt.ZERO:
            return 0
        address = self._instance.routes.masters.get(mq.broker_name)
        if address is None:
            raise unknown_broker(mq.broker_name, mq)
        api = self._instance.api
        if where is StartAt.TIMESTAMP:
            return await api.search_offset(address, mq, self._settings.timestamp_ms())
        return await api.max_offset(address, mq)

    def _take(self, mq: MessageQueue, offset: int) -> Q:
        queue = self.table[mq] = self._owner.new_queue(mq, offset)
        if self._store is not None:
            # Stored even before the first message: LAST is not asked for again after a crash.
            self._store.update_offset(mq, offset)
        logger.info("group %s took %s at %d", self._settings.group, mq, offset)
        return queue

    # --- repair -----------------------------------------------------------------------------------

    async def restart(self, mq: MessageQueue, offset: int, queue: Q | None = None) -> bool:
        """Begin a queue anew at ``offset``, backwards too, at once (C-228, C-565, C-572).

        What its listeners still finish no longer counts, so it cannot undo the new offset.

        Args:
            mq: one of the table's queues.
            offset: the next offset to consume.
            queue: do it only to this assignment of it.

        Returns:
            Whether the queue is still ours.
        """
        async with self._lock:
            now, store = self.table.get(mq), self._store
            if now is None or store is None or self._closed or queue not in (None, now):
                return False
            self._kept.pop(mq, None)
            now.drop()
            store.update_offset(mq, offset, increase_only=False)
            await store.persist_for_good([mq])
            self._owner.start_queue(self._take(mq, offset))
            return True
