"""Which queues a consumer has: the table, and the round that divides them anew.

Law: runs on the loop, shared by all consumers; where a queue begins, pulling, consuming and broker
locks are others' (upstream's RebalanceImpl, C-156 to C-198).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rocketstream.client.consumer.consume.runs import PullRequest, QueueKeeper
from rocketstream.client.consumer.queue_places import QueuePlaces
from rocketstream.client.core.allocate import AllocateMessageQueueStrategy
from rocketstream.client.core.process_queue import ProcessQueue
from rocketstream.client.core.rebalance import (
    Assign,
    Revoke,
    plan,
    plan_unsubscribed,
    sorted_members,
    usable,
)
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import BrokerError, RocketMQError
from rocketstream.model import MessageModel, MessageQueue
from rocketstream.protocol.names import RETRY_PREFIX

logger = logging.getLogger("rocketstream.client")


class QueueOwner(Protocol):
    """The consumer whose queues are divided; every method is called on the loop."""

    def is_active(self) -> bool:
        """Whether queues may be divided now; False while paused or shutting down."""
        ...

    async def give_up(self, requests: Sequence[PullRequest]) -> Collection[MessageQueue]:
        """Remove what is finished; return the queues that may leave now.

        Their ``process_queue.leaving`` is set: nothing new is pulled or handed to a listener. A
        queue whose orderly listener does not return in time is left out and asked again next round.
        """
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
        pull_expires: queues that were not pulled for 120 s are taken anew (push only, C-176).
    """

    group: str
    message_model: MessageModel
    strategy: AllocateMessageQueueStrategy
    pull_expires: bool = True


class RebalanceImpl:
    """The queues of one consumer.

    Args:
        instance: the client instance.
        settings: how queues are shared.
        owner: the consumer.
        places: where it is in its queues; None where the caller says what to pull (C-194).
        keeper: who locks its queues; None where nobody does.
    """

    def __init__(
        self,
        instance: MQClientInstance,
        settings: RebalanceSettings,
        owner: QueueOwner,
        *,
        places: QueuePlaces | None = None,
        keeper: QueueKeeper | None = None,
    ) -> None:
        self._instance = instance
        self._settings = settings
        self._owner = owner
        self._places = places
        self._keeper = keeper
        self._new_queue = ProcessQueue if keeper is None else keeper.new_queue
        self._clock = instance.clock
        self._table: dict[MessageQueue, PullRequest] = {}
        self._routed: set[str] = set()
        self._generations = itertools.count(1)
        self._lock = asyncio.Lock()
        self._closed = False

    @property
    def table(self) -> Mapping[MessageQueue, PullRequest]:
        """Every queue this consumer has now."""
        return self._table

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
            gone = plan_unsubscribed(self._queues(), topics)
            return await self._revoke(gone) and balanced

    async def _rebalance_topic(self, topic: str) -> bool:
        queues = await self._topic_queues(topic)
        if queues is None:
            return False
        allotted, is_whole = await self._allotted(topic, queues)
        if allotted is None:
            return False  # what we have is kept until the members are known (C-159, C-160)
        # Pull expiry is of no concern to a consumer that pulls only when asked to (C-176).
        now_ms = self._clock.monotonic_ms() if self._settings.pull_expires else 0.0
        effects = plan(self._queues(), topic, allotted, now_ms)
        if self._closed:
            return True
        left = await self._revoke([effect for effect in effects if isinstance(effect, Revoke)])
        new = [
            effect.message_queue
            for effect in effects
            if isinstance(effect, Assign) and effect.message_queue not in self._table
        ]
        requests = await self._assign(new)
        if effects:
            await self._owner.queues_changed(topic, queues, sorted(allotted))
        if self._places is not None:
            for request in requests:
                self._places.take(request)
        return is_whole and left and len(requests) == len(new)

    async def _topic_queues(self, topic: str) -> list[MessageQueue] | None:
        routes = self._instance.routes
        queues = routes.subscribe_queues(topic)
        if queues is None and await self._instance.update_route(topic):
            queues = routes.subscribe_queues(topic)
        outages = self._instance.outages
        if queues is not None:
            self._routed.add(topic)
            if outages:
                outages.worked("dividing the queues of", topic)
                outages.worked("topic", topic)
            return sorted(queues)
        if not topic.startswith(RETRY_PREFIX):
            servers = ", ".join(self._instance.api.name_servers)
            outages.began(
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
            share = strategy.allocate(group, self._instance.client_id, list(queues), list(members))
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
            await self._instance.heartbeat()
            members = await self._ask_members(address)
        return members

    async def _ask_members(self, address: str, *, first: bool = False) -> list[str] | None:
        group = self._settings.group
        try:
            members = await self._instance.api.consumer_ids(address, group)
            self._instance.outages.worked("asking for the members of", group)
            return sorted_members(members)
        except RocketMQError as error:
            # A broker that has not heard of the group yet is told, and asked again at once.
            if not (first and isinstance(error, BrokerError)):
                self._instance.outages.failed(("asking for the members of", group), error)
            return None

    def _queues(self) -> dict[MessageQueue, ProcessQueue]:
        return {mq: request.process_queue for mq, request in self._table.items()}

    # --- giving up --------------------------------------------------------------------------------

    async def _revoke(self, effects: Sequence[Revoke]) -> bool:
        """Give queues up; return whether all of them left (C-179)."""
        if not effects:
            return True
        requests = [self._table[effect.message_queue] for effect in effects]
        for request in requests:
            request.process_queue.leave()
        ready = set(await self._owner.give_up(requests))
        gone = [effect for effect in effects if effect.message_queue in ready]
        await self._drop([effect.message_queue for effect in gone])
        for effect in gone:
            mq, reason = effect.message_queue, effect.reason.value
            logger.info("group %s gave up %s: %s", self._settings.group, mq, reason)
        return len(gone) == len(effects)

    async def _drop(self, mqs: Sequence[MessageQueue]) -> None:
        """Take queues out: what is finished counts, what is not is the next owner's."""
        for mq in mqs:
            request = self._table.pop(mq)
            with request.lock:
                request.process_queue.drop()
        if self._places is not None:
            await self._places.persist_for_good(mqs)
            self._places.forget(mqs)
        if self._keeper is not None:
            await self._keeper.released(mqs)

    def stop(self) -> None:
        """Take no queue any more."""
        self._closed = True

    async def close(self) -> None:
        """Give every queue up, ready or not; at shutdown, after the listeners ended (C-119)."""
        self.stop()
        async with self._lock:
            await self._drop(list(self._table))

    # --- taking -----------------------------------------------------------------------------------

    async def _assign(self, mqs: Sequence[MessageQueue]) -> list[PullRequest]:
        """Take queues whose start can be found; the others are tried again soon (C-175)."""
        if not mqs:
            return []
        if self._keeper is not None:
            allowed = set(await self._keeper.may_take(mqs))
            mqs = [mq for mq in mqs if mq in allowed]
        requests: list[PullRequest] = []
        for mq, start in zip(mqs, await self._starts(mqs), strict=True):
            if isinstance(start, RocketMQError):
                self._instance.outages.failed(("asking where to start", mq), start)
            elif isinstance(start, BaseException):
                raise start
            elif not self._closed:
                self._instance.outages.worked("asking where to start", mq)
                requests.append(self._new_request(mq, start))
        if self._keeper is not None:
            # Locked at the broker and then not taken: nobody else could have them for a minute.
            await self._keeper.released([mq for mq in mqs if mq not in self._table])
        return requests

    async def _starts(self, mqs: Sequence[MessageQueue]) -> list[int | BaseException]:
        places = self._places
        if places is None:
            return [0] * len(mqs)
        places.forget(mqs)
        return await asyncio.gather(*(places.start(mq) for mq in mqs), return_exceptions=True)

    def _new_request(self, mq: MessageQueue, offset: int) -> PullRequest:
        queue = self._new_queue(mq, next(self._generations), self._clock.monotonic_ms())
        request = self._table[mq] = PullRequest(queue, offset)
        if self._places is not None:
            self._places.note(mq, offset)
        logger.info("group %s took %s at %d", self._settings.group, mq, offset)
        return request

    # --- repair -----------------------------------------------------------------------------------

    async def restart(self, mq: MessageQueue, offset: int, generation: int | None = None) -> bool:
        """Begin a queue anew at ``offset``, backwards too, at once (C-228, C-565, C-572).

        What its listeners still finish no longer counts, so it cannot undo the new offset.

        Args:
            mq: one of the table's queues.
            offset: the next offset to consume.
            generation: do it only to this assignment of the queue.

        Returns:
            Whether the queue is still ours.
        """
        async with self._lock:
            request, places = self._table.get(mq), self._places
            if request is None or places is None or self._closed:
                return False
            if generation is not None and request.process_queue.generation != generation:
                return False
            with request.lock:
                request.process_queue.drop()
            places.note(mq, offset, increase_only=False)
            await places.persist_for_good([mq])
            places.take(self._new_request(mq, offset))
            return True
