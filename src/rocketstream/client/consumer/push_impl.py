"""The push consumer's machine on its loop: subscriptions, queues, pulls, consuming, shutdown.

Law: runs on the loop; the faces in ``push_consumer`` and ``aio_push_consumer`` only start and stop
it (upstream's DefaultMQPushConsumerImpl and RebalancePushImpl).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Callable, Iterable
from dataclasses import replace

from rocketstream.client.consumer.consume_run import ConsumeBook, ConsumeService, PullRequest
from rocketstream.client.consumer.listener import Listener
from rocketstream.client.consumer.offset_store import RemoteBrokerOffsetStore
from rocketstream.client.consumer.pull_service import PullService
from rocketstream.client.consumer.send_back import SendBack
from rocketstream.client.core.allocate import AllocateMessageQueueStrategy
from rocketstream.client.core.process_queue import ProcessQueue
from rocketstream.client.core.rebalance import (
    Assign,
    Revoke,
    plan,
    plan_unsubscribed,
    sorted_members,
)
from rocketstream.client.core.settings import PushConsumerSettings
from rocketstream.client.instance import MQClientInstance
from rocketstream.errors import ConnectError, RocketMQError, RouteNotFoundError
from rocketstream.model import ConsumeFromWhere, MessageQueue
from rocketstream.protocol.bodies import ConsumerData, SubscriptionData
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import RETRY_PREFIX, retry_topic
from rocketstream.protocol.subscription import build_subscription

logger = logging.getLogger("rocketstream.client")

EXPIRED_CHECKED_MAX = 16
"""Oldest messages of one queue looked at in one scan for expired ones (C-248)."""

ServiceMaker = Callable[["PushConsumerImpl", Listener], ConsumeService]


class PushConsumerImpl:
    """One push consumer; implements the instance's ``ConsumerInner``."""

    def __init__(
        self,
        instance: MQClientInstance,
        settings: PushConsumerSettings,
        subscriptions: dict[str, SubscriptionData],
        listener: Listener,
        make_service: ServiceMaker,
    ) -> None:
        self.group = settings.consumer_group
        self.settings = settings
        self.instance = instance
        self.clock = instance.clock
        self.subscriptions = dict(subscriptions)
        retry = retry_topic(self.group)
        self.subscriptions[retry] = build_subscription(retry, None, self.clock.now_ms())
        self.thresholds = settings.thresholds()
        self.store = RemoteBrokerOffsetStore(instance, self.group)
        self.pulls = PullService(self, instance, settings, self.store, lambda: self.service)
        self.book = ConsumeBook(
            self.store, lambda: self.thresholds, self.pulls.resume_threadsafe, self.clock
        )
        self.send_back = SendBack(instance, settings, self.book, self._consume_again)
        self.service = make_service(self, listener)
        self._table: dict[MessageQueue, PullRequest] = {}
        self._generations = itertools.count(1)
        self._rebalance_lock = asyncio.Lock()
        self._expiry: asyncio.Task[None] | None = None
        self._running = False

    # --- life cycle -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Register, learn routes, tell the brokers, take queues (C-111).

        Raises:
            ClientStateError: the instance already has a consumer of the group.
            ConnectError: no name server answered.
        """
        self.instance.register_consumer(self)
        try:
            wanted = [topic for topic in self.subscriptions if not topic.startswith(RETRY_PREFIX)]
            await self._learn_routes(wanted)
            await self.instance.heartbeat()
            # The heartbeat has made the brokers create the retry topic (C-338).
            await self._learn_routes([retry_topic(self.group)])
        except BaseException:
            await self.instance.unregister_consumer(self.group)
            raise
        self._running = True
        self._expiry = asyncio.get_running_loop().create_task(self._clean_forever())
        self.instance.rebalance_soon()

    async def shutdown(self, await_ms: float, caller: int | None = None) -> None:
        """Stop pulling, let listeners finish, commit, say goodbye (C-119, C-121).

        Blocks for ``await_ms`` plus the timeouts of the last requests at most.
        """
        self._running = False
        self.pulls.stop()
        if self._expiry is not None:
            self._expiry.cancel()
            await asyncio.gather(self._expiry, return_exceptions=True)
        await self.service.shutdown(await_ms, caller)
        await self.send_back.drain()
        async with self._rebalance_lock:
            for request in self._table.values():
                with request.lock:
                    request.process_queue.dropped = True
            await self.store.persist(list(self._table))
            self._table.clear()
        await self.instance.unregister_consumer(self.group)

    async def _learn_routes(self, topics: list[str]) -> None:
        results = await asyncio.gather(
            *(self.instance.update_route(topic) for topic in topics), return_exceptions=True
        )
        for topic, result in zip(topics, results, strict=True):
            if isinstance(result, ConnectError):
                raise result
            if isinstance(result, BaseException):
                logger.warning("route of topic %s: %s", topic, result)

    # --- subscriptions ----------------------------------------------------------------------------

    async def subscribe(self, subscription: SubscriptionData) -> None:
        """Add or replace a subscription and tell the brokers (C-103)."""
        self.subscriptions[subscription.topic] = subscription
        await self._learn_routes([subscription.topic])
        await self.instance.heartbeat()
        self.instance.rebalance_soon()

    async def unsubscribe(self, topic: str) -> None:
        """Drop a subscription; its offsets are stored first (C-104, C-554)."""
        if self.subscriptions.pop(topic, None) is not None:
            self.instance.rebalance_soon()
            await self.instance.heartbeat()

    def subscribed_topics(self) -> Iterable[str]:
        """Topics whose routes are wanted."""
        return list(self.subscriptions)

    def heartbeat_data(self) -> ConsumerData:
        """This consumer's part of a heartbeat (C-143, C-144)."""
        return ConsumerData(
            group_name=self.group,
            consume_type="CONSUME_PASSIVELY",
            message_model=self.settings.message_model.value,
            consume_from_where=self.settings.consume_from_where.value,
            subscription_data_set=list(self.subscriptions.values()),
            unit_mode=False,
        )

    # --- pause ------------------------------------------------------------------------------------

    def suspend(self) -> None:
        """Pull nothing until ``resume``; what is cached is still consumed."""
        self.pulls.paused = True

    def resume(self) -> None:
        """Pull again (C-151)."""
        self.pulls.paused = False
        self.instance.rebalance_soon()

    # --- rebalance --------------------------------------------------------------------------------

    async def rebalance(self) -> bool:
        """Divide the queues of every topic anew; tell whether all went well (C-156, C-153)."""
        if not self._running or self.pulls.paused:
            return True
        async with self._rebalance_lock:
            balanced = True
            for topic in list(self.subscriptions):
                try:
                    balanced = await self._rebalance_topic(topic) and balanced
                except RocketMQError as error:
                    balanced = False
                    logger.warning("rebalance of topic %s failed: %s", topic, error)
            gone = plan_unsubscribed(self._queues(), self.subscriptions)
            await self._revoke(gone)
            return balanced

    async def _rebalance_topic(self, topic: str) -> bool:
        queues = self.instance.routes.subscribe_queues(topic)
        if queues is None and await self.instance.update_route(topic):
            queues = self.instance.routes.subscribe_queues(topic)
        if queues is None:
            return False
        members = await self._members(topic)
        if members is None:
            return False  # what we have is kept until the members are known (C-159, C-160)
        allotted = self._allocate(topic, sorted(queues), members)
        if allotted is None:
            return False
        effects = plan(self._queues(), topic, allotted, self.clock.monotonic_ms())
        if not self._running:
            return True
        await self._revoke([effect for effect in effects if isinstance(effect, Revoke)])
        new = [effect.message_queue for effect in effects if isinstance(effect, Assign)]
        requests = await self._assign(new)
        if effects:
            await self._queues_changed(topic)
        for request in requests:
            self.pulls.pull(request)
        return len(requests) == len(new) and self.instance.client_id in members

    def _allocate(
        self, topic: str, queues: list[MessageQueue], members: list[str]
    ) -> list[MessageQueue] | None:
        strategy: AllocateMessageQueueStrategy = self.settings.allocate_message_queue_strategy
        if not queues:
            return []
        try:
            return list(strategy.allocate(self.group, self.instance.client_id, queues, members))
        except Exception:
            logger.exception(
                "allocate strategy %s failed for topic %s; its queues are kept",
                strategy.name,
                topic,
            )
            return None

    async def _members(self, topic: str) -> list[str] | None:
        addresses = self.instance.routes.group_addresses(topic)
        if not addresses:
            return None
        address = random.choice(addresses)
        members = await self._ask_members(address)
        if members is None or self.instance.client_id not in members:
            # The broker has forgotten us, by a restart say: tell it before the others divide the
            # queues without us.
            await self.instance.heartbeat()
            members = await self._ask_members(address)
        return members

    async def _ask_members(self, address: str) -> list[str] | None:
        try:
            return sorted_members(await self.instance.api.consumer_ids(address, self.group))
        except RocketMQError as error:
            logger.info("members of group %s are unknown at %s: %s", self.group, address, error)
            return None

    def _queues(self) -> dict[MessageQueue, ProcessQueue]:
        return {mq: request.process_queue for mq, request in self._table.items()}

    async def _revoke(self, effects: list[Revoke]) -> None:
        """Give queues up: what is finished counts, what is not is the next owner's (C-179)."""
        for effect in effects:
            mq = effect.message_queue
            request = self._table.pop(mq)
            self.service.flush(request)
            with request.lock:
                request.process_queue.dropped = True
            self.pulls.forget(mq)
            logger.info("group %s gave up %s: %s", self.group, mq, effect.reason.value)
        await self.store.persist([effect.message_queue for effect in effects])
        for effect in effects:
            self.store.remove_offset(effect.message_queue)

    async def _assign(self, mqs: list[MessageQueue]) -> list[PullRequest]:
        """Take queues whose start can be found; the others are tried again soon (C-175)."""
        for mq in mqs:
            self.store.remove_offset(mq)
        starts = await asyncio.gather(
            *(self._start_offset(mq) for mq in mqs), return_exceptions=True
        )
        requests: list[PullRequest] = []
        for mq, start in zip(mqs, starts, strict=True):
            if isinstance(start, RocketMQError):
                logger.warning("where to start %s is unknown, not taken yet: %s", mq, start)
            elif isinstance(start, BaseException):
                raise start
            elif self._running:
                requests.append(self._take(mq, start))
        return requests

    def _take(self, mq: MessageQueue, offset: int) -> PullRequest:
        generation = next(self._generations)
        queue = ProcessQueue(mq, generation, self.clock.monotonic_ms())
        request = self._table[mq] = PullRequest(queue, offset)
        # Stored even before the first message, so that LAST is not asked for again after a crash.
        self.store.update_offset(mq, offset)
        logger.info("group %s took %s at %d", self.group, mq, offset)
        return request

    async def _start_offset(self, mq: MessageQueue) -> int:
        """Return where to begin (C-189); a failed query raises, it is never an offset (C-561)."""
        stored = await self.store.read_store(mq)
        if stored is not None:
            return stored
        where = self.settings.consume_from_where
        is_retry = mq.topic.startswith(RETRY_PREFIX)
        if where is ConsumeFromWhere.FIRST_OFFSET:
            return 0
        if where is ConsumeFromWhere.LAST_OFFSET and is_retry:
            return 0
        address = self.instance.routes.master(mq.broker_name)
        if address is None:
            raise RouteNotFoundError(f"The broker[{mq.broker_name}] not exist", queue=mq)
        if where is ConsumeFromWhere.TIMESTAMP and not is_retry:
            timestamp_ms = self.settings.consume_timestamp_ms()
            return await self.instance.api.search_offset(address, mq, timestamp_ms)
        return await self.instance.api.max_offset(address, mq)

    async def _queues_changed(self, topic: str) -> None:
        """Share per-topic bounds anew and have brokers take our subscription as newer (C-183)."""
        self.thresholds = self.settings.thresholds().shared(
            self.settings.pull_threshold_for_topic,
            self.settings.pull_threshold_size_for_topic,
            len(self._table),
        )
        for request in self._table.values():
            if request.process_queue.flow_controlled:
                self.pulls.pull(request)
        subscription = self.subscriptions.get(topic)
        if subscription is not None:
            version = max(self.clock.now_ms(), subscription.sub_version + 1)
            renewed = replace(subscription, sub_version=version)
            await self.instance.heartbeat_with(self._heartbeat_of(renewed))
            # Pulls carry the version only once the brokers know it, else they answer 25.
            if self.subscriptions.get(topic) is subscription:
                self.subscriptions[topic] = renewed

    # --- repair, expiry, offsets ------------------------------------------------------------------

    def repair_soon(self, request: PullRequest, offset: int) -> None:
        """Start a queue anew at ``offset``: the broker has less than was consumed (C-228)."""
        with request.lock:
            request.process_queue.dropped = True
        self.instance.run_soon(self._repair(request, offset))

    async def _repair(self, request: PullRequest, offset: int) -> None:
        mq = request.process_queue.message_queue
        async with self._rebalance_lock:
            if self._table.get(mq) is not request or not self._running:
                return
            self.store.update_offset(mq, offset, increase_only=False)
            await self.store.persist([mq])
            fresh = self._take(mq, offset)
        self.pulls.pull(fresh)

    def _consume_again(self, request: PullRequest, messages: list[MessageExt]) -> None:
        self.service.submit(request, messages)

    async def persist_offsets(self) -> None:
        """Send changed offsets to their brokers."""
        await self.store.persist(list(self._table))

    async def _clean_forever(self) -> None:
        period_s = self.settings.consume_timeout_minutes * 60
        while True:
            await asyncio.sleep(period_s)
            try:
                await self.clean_expired()
            except Exception:
                logger.exception("the scan for expired messages failed")

    async def clean_expired(self) -> None:
        """Send back messages whose listener has taken longer than consumeTimeout (C-248)."""
        limit_ms = self.settings.consume_timeout_minutes * 60_000
        for request in list(self._table.values()):
            queue = request.process_queue
            for _ in range(EXPIRED_CHECKED_MAX):
                with request.lock:
                    first = queue.first if not queue.dropped else None
                if not isinstance(first, MessageExt) or not first.consume_start_ms:
                    break
                if self.clock.now_ms() - first.consume_start_ms <= limit_ms:
                    break
                if not await self.send_back.expire(request, first):
                    break

    # --- seen from outside ------------------------------------------------------------------------

    def assigned_queues(self) -> list[MessageQueue]:
        """Return the queues this consumer has now."""
        return sorted(self._table)

    def _heartbeat_of(self, renewed: SubscriptionData) -> ConsumerData:
        data = self.heartbeat_data()
        return replace(
            data,
            subscription_data_set=[
                renewed if each.topic == renewed.topic else each
                for each in data.subscription_data_set
            ],
        )
