"""The push consumer's machine on its loop: subscriptions, queues, pulls, consuming, shutdown.

Law: runs on the loop; the faces in ``push_consumer`` and ``aio_push_consumer`` only start and stop
it (upstream's DefaultMQPushConsumerImpl and RebalancePushImpl).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rocketstream._util.ending import CUT_SHORT, take_all
from rocketstream.client.consumer.consume.calls import is_being_cancelled
from rocketstream.client.consumer.consume.runs import (
    ConsumeService,
    OffsetUpdater,
    PullRequest,
)
from rocketstream.client.consumer.consume.services import keeper_of, make_service
from rocketstream.client.consumer.listener import Listener
from rocketstream.client.consumer.offsets.store import Offsets, OffsetStore
from rocketstream.client.consumer.offsets.user_store import open_store
from rocketstream.client.consumer.push.broadcast_drop import BroadcastDrop
from rocketstream.client.consumer.push.pull_service import PullService
from rocketstream.client.consumer.push.remote import PushRemote
from rocketstream.client.consumer.push.send_back import SendBack
from rocketstream.client.consumer.queue_places import QueuePlaces
from rocketstream.client.consumer.rebalance_impl import RebalanceImpl, RebalanceSettings
from rocketstream.client.core.settings import PushConsumerSettings
from rocketstream.client.hooks import ConsumeHooks, FilterHooks
from rocketstream.client.instance.engine import Engine
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.client.trace.of_client import Tracing
from rocketstream.errors import ConnectError
from rocketstream.model import MessageModel, MessageQueue
from rocketstream.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    SubscriptionData,
)
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import RETRY_PREFIX, retry_topic
from rocketstream.protocol.subscription import build_subscription

logger = logging.getLogger("rocketstream.client")

EXPIRED_CHECKED_MAX = 16
"""Oldest messages of one queue looked at in one scan for expired ones (C-248)."""


@dataclass(frozen=True, slots=True)
class PushPlan:
    """What a push consumer is started with.

    Attributes:
        settings: all settings; the group as the user knows it.
        subscriptions: by topic, as the servers know it.
        listener: what consumes.
        offset_store: the user's, or None.
        consume_hooks: called around listener calls.
        filter_hooks: called after pulls.
        tracing: message trace, on or off.
    """

    settings: PushConsumerSettings
    subscriptions: Mapping[str, SubscriptionData]
    listener: Listener
    offset_store: OffsetStore | None = None
    consume_hooks: ConsumeHooks = field(default_factory=ConsumeHooks)
    filter_hooks: FilterHooks = field(default_factory=FilterHooks)
    tracing: Tracing = field(default_factory=Tracing)


async def start_push(plan: PushPlan, engine: Engine) -> PushConsumerImpl:
    """Make a consumer and start it (C-111); what fails leaves nothing behind.

    Raises:
        ClientStateError: the instance already has a consumer of the group.
        ConfigurationError: the file of local offsets cannot be read.
        BrokerError: a broker refuses a subscription.
        ConnectError: no name server answered.
    """
    instance = engine.instance
    group = instance.config.with_namespace(plan.settings.consumer_group)
    plan = replace(plan, settings=replace(plan.settings, consumer_group=group))
    model = plan.settings.message_model
    store = await open_store(instance, group, model, plan.offset_store)
    consumer = PushConsumerImpl(instance, plan, store)
    await consumer.start()
    return consumer


class PushConsumerImpl:
    """One push consumer; implements the instance's ``ConsumerInner``; names are the servers'."""

    consume_type = "CONSUME_PASSIVELY"

    def __init__(self, instance: MQClientInstance, plan: PushPlan, store: Offsets) -> None:
        settings = plan.settings
        self.group = settings.consumer_group
        self.message_model = settings.message_model
        self.settings = settings
        self.instance = instance
        self.clock = instance.clock
        self.listener = plan.listener
        self.consume_hooks, self.filter_hooks = plan.consume_hooks, plan.filter_hooks
        self.tracing = plan.tracing
        self.subscriptions = dict(plan.subscriptions)
        broadcasting = self.message_model is MessageModel.BROADCASTING
        if not broadcasting:
            retry = retry_topic(self.group)
            self.subscriptions[retry] = build_subscription(retry, None, self.clock.now_ms())
        self.thresholds = settings.thresholds()
        self.store = store
        self.pulls = PullService(self, instance, store, lambda: self.service)
        self.offset_updater = OffsetUpdater(
            store, lambda: self.thresholds, self.pulls.resume_threadsafe, self.clock
        )
        sender = BroadcastDrop if broadcasting else SendBack
        self.send_back = sender(instance, settings, self.offset_updater, self._consume_again)
        self.service: ConsumeService = make_service(self, plan.listener)
        self._keeper = keeper_of(self.service)
        self.queues = RebalanceImpl(
            instance,
            RebalanceSettings(
                self.group,
                settings.message_model,
                settings.allocate_message_queue_strategy,
            ),
            self,
            places=QueuePlaces(
                instance,
                store,
                settings.consume_from_where,
                settings.consume_timestamp_ms,
                self.pulls.pull,
            ),
            keeper=self._keeper,
        )
        self.remote = PushRemote(self)
        self._expiry: asyncio.Task[None] | None = None
        self._running = False

    # --- life cycle -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Register, learn routes, tell the brokers, take queues (C-111)."""
        try:
            self.instance.register_consumer(self)
        except CUT_SHORT:
            await self.service.shutdown(0)
            raise
        try:
            await self._announce()
        except CUT_SHORT:
            await self.service.shutdown(0)
            await self.instance.unregister_consumer(self.group)
            raise
        self._running = True
        self.tracing.start()
        if self.message_model is MessageModel.CLUSTERING and not self.listener.is_orderly:
            self._expiry = asyncio.get_running_loop().create_task(self._clean_forever())
        self.instance.rebalance_soon()

    async def _announce(self) -> None:
        wanted = [topic for topic in self.subscriptions if not topic.startswith(RETRY_PREFIX)]
        if not wanted:
            self.instance.outages.unsubscribed(self.group)
        await self._learn_routes(wanted)
        await self.instance.check_client_in_broker(self)
        await self.instance.heartbeat()
        if self.message_model is MessageModel.CLUSTERING:
            # The heartbeat has made the brokers create the retry topic (C-338).
            await self._learn_routes([retry_topic(self.group)])

    async def shutdown(self, await_ms: float, caller: int | None = None) -> None:
        """Stop pulling, let listeners finish, commit, say goodbye (C-119, C-121).

        Blocks for ``await_ms`` plus the timeouts of the last requests at most.
        """
        self._running = False
        self.queues.stop()
        self.pulls.stop()
        await take_all(
            self._expire_no_more,
            lambda: self.service.shutdown(0 if is_being_cancelled() else await_ms, caller),
            self.send_back.drain,
            self.queues.close,
            lambda: self.instance.unregister_consumer(self.group),
            self.tracing.stop,
        )

    async def _expire_no_more(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            await asyncio.gather(self._expiry, return_exceptions=True)

    async def _learn_routes(self, topics: list[str]) -> None:
        results = await asyncio.gather(
            *(self.instance.update_route(topic) for topic in topics), return_exceptions=True
        )
        for topic, result in zip(topics, results, strict=True):
            if isinstance(result, ConnectError):
                raise result
            if isinstance(result, Exception):
                self.instance.outages.failed(("route of topic", topic), result)

    # --- subscriptions ----------------------------------------------------------------------------

    async def subscribe(self, subscription: SubscriptionData) -> None:
        """Add or replace a subscription and tell the brokers (C-103).

        Raises:
            BrokerError: a broker refuses it; the one before stays.
        """
        before = self.subscriptions.get(subscription.topic)
        self.subscriptions[subscription.topic] = subscription
        try:
            await self._learn_routes([subscription.topic])
            await self.instance.check_client_in_broker(self)
        except BaseException:
            if before is None:
                del self.subscriptions[subscription.topic]
            else:
                self.subscriptions[subscription.topic] = before
            raise
        self.instance.outages.subscribed(self.group)
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
            consume_type=self.consume_type,
            message_model=self.message_model.value,
            consume_from_where=self.settings.consume_from_where.value,
            subscription_data_set=list(self.subscriptions.values()),
            unit_mode=self.instance.config.unit_mode,
        )

    # --- pause and settings -----------------------------------------------------------------------

    def suspend(self) -> None:
        """Pull nothing until ``resume``; what is cached is still consumed."""
        self.pulls.paused = True

    def resume(self) -> None:
        """Pull again (C-151)."""
        self.pulls.paused = False
        self.instance.rebalance_soon()

    def change(self, settings: PushConsumerSettings) -> None:
        """Go on with other bounds, pauses and batch sizes."""
        self.settings = replace(settings, consumer_group=self.group)
        self._share_thresholds()

    # --- queues: what RebalanceImpl asks of its owner ---------------------------------------------

    async def rebalance(self) -> bool:
        """Divide the queues of every topic anew; return whether all went well (C-156, C-153)."""
        return await self.queues.rebalance(list(self.subscriptions))

    def is_active(self) -> bool:
        """Whether queues may be divided: not while paused (C-151)."""
        return self._running and not self.pulls.paused

    async def give_up(self, requests: Sequence[PullRequest]) -> Collection[MessageQueue]:
        """Have finished messages removed; return the queues nobody works on in order."""
        for request in requests:
            self.pulls.forget(request.process_queue.message_queue)
        return await self.service.release(requests)

    async def queues_changed(
        self, topic: str, all_queues: Sequence[MessageQueue], mine: Sequence[MessageQueue]
    ) -> None:
        """Share per-topic bounds anew and have brokers take our subscription as newer (C-183)."""
        self._share_thresholds()
        subscription = self.subscriptions.get(topic)
        if subscription is not None:
            version = max(self.clock.now_ms(), subscription.sub_version + 1)
            renewed = replace(subscription, sub_version=version)
            await self.instance.heartbeat_with(self._heartbeat_of(renewed))
            # Pulls carry the version only once the brokers know it, else they answer 25.
            if self.subscriptions.get(topic) is subscription:
                self.subscriptions[topic] = renewed

    def _share_thresholds(self) -> None:
        settings = self.settings
        self.thresholds = settings.thresholds().shared(
            settings.pull_threshold_for_topic,
            settings.pull_threshold_size_for_topic,
            len(self.queues.table),
        )
        for request in list(self.queues.table.values()):
            if request.process_queue.flow_controlled:
                self.pulls.pull(request)

    # --- repair, expiry, offsets ------------------------------------------------------------------

    def repair_soon(self, request: PullRequest, offset: int) -> None:
        """Start a queue anew at ``offset``: the broker has less than was consumed (C-228)."""
        with request.lock:
            request.process_queue.drop()
        self.instance.run_soon(self._repair(request, offset))

    async def _repair(self, request: PullRequest, offset: int) -> None:
        queue = request.process_queue
        await self.queues.restart(queue.message_queue, offset, queue.generation)

    def _consume_again(self, request: PullRequest, messages: list[MessageExt]) -> None:
        self.service.submit(request, messages)

    async def persist_offsets(self) -> None:
        """Send changed offsets to their brokers, and those that another member put back."""
        mine = list(self.queues.table)
        await self.store.persist(mine)
        await self.store.check(mine)
        for mq, offset in self.store.overtaken(mine).items():
            self._go_on_at(mq, offset)

    def _go_on_at(self, mq: MessageQueue, offset: int) -> None:
        """Leave out what another member has consumed; locks see to that where there are any."""
        request = self.queues.table.get(mq)
        if request is not None and not self.listener.is_orderly:
            logger.info("group %s: %s was consumed up to %d by others", self.group, mq, offset)
            self.repair_soon(request, offset)

    def connection_lost(self, address: str) -> None:
        """A broker may have lost locks it granted and offsets it had not written yet."""
        self.store.connection_lost(address)
        if self._keeper is not None:
            self._keeper.connection_lost(address)

    def connection_made(self, address: str) -> None:
        """Ask for locks anew."""
        if self._keeper is not None:
            self._keeper.connection_made(address)

    async def _clean_forever(self) -> None:
        while True:
            await asyncio.sleep(self.settings.consume_timeout_minutes * 60)
            try:
                await self.clean_expired()
            except Exception:
                logger.exception("the scan for expired messages failed")

    async def clean_expired(self) -> None:
        """Send back messages whose listener has taken longer than consumeTimeout (C-248)."""
        limit_ms = self.settings.consume_timeout_minutes * 60_000
        for request in list(self.queues.table.values()):
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
        return sorted(self.queues.table)

    def _heartbeat_of(self, renewed: SubscriptionData) -> ConsumerData:
        data = self.heartbeat_data()
        return replace(
            data,
            subscription_data_set=[
                renewed if each.topic == renewed.topic else each
                for each in data.subscription_data_set
            ],
        )

    async def running_info(self) -> ConsumerRunningInfo:
        """What the consumer is and does (307)."""
        return await self.remote.running_info()

    async def consume_directly(
        self, message: MessageExt, broker_name: str
    ) -> ConsumeMessageDirectlyResult:
        """Give one message to the listener now (309)."""
        return await self.remote.consume_directly(message, broker_name)

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on at these offsets in the queues held (220)."""
        await self.remote.reset_offsets(offsets)

    def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """Return the offsets noted for a topic (221)."""
        return self.remote.consumer_status(topic)
