"""The push consumer's machine on its loop: subscriptions, queues, pulls, consuming, shutdown.

The faces in ``consumer`` start and stop it (upstream's DefaultMQPushConsumerImpl and
RebalancePushImpl).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from rocketstream import limits
from rocketstream._util.clock import Clock
from rocketstream._util.ending import CUT_SHORT, Cancellation, take_all
from rocketstream.client.consumer.assignment import Assignment, RebalanceSettings
from rocketstream.client.consumer.consume.concurrent import (
    AsyncConsumeService,
    ConsumeMessageConcurrentlyService,
)
from rocketstream.client.consumer.consume.failure_cause import FailureCause
from rocketstream.client.consumer.consume.listener_calls import CallObserver
from rocketstream.client.consumer.consume.orderly import (
    AsyncOrderlyService,
    ConsumeMessageOrderlyService,
    OrderlyService,
    orderly_times,
)
from rocketstream.client.consumer.consume.queue_locks import QueueLocker
from rocketstream.client.consumer.listener import Listener
from rocketstream.client.consumer.offsets.store import NO_OFFSET, Offsets
from rocketstream.client.consumer.process_queue import FlowControl, ProcessQueue, Thresholds
from rocketstream.client.consumer.pull_requests import PullTerms, filtered
from rocketstream.client.consumer.puller import Puller
from rocketstream.client.consumer.queue import AssignedQueue, QueueLinks
from rocketstream.client.consumer.retry import max_reconsume_times
from rocketstream.client.consumer.send_back import DroppedMessages, FailedMessages, SendBack
from rocketstream.client.consumer.settings import PushConsumerSettings
from rocketstream.client.consumer.subscription import SubscriptionCheck
from rocketstream.client.hooks import ConsumeHooks, FilterHooks
from rocketstream.client.instance.groups import ConsumerInner
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.client.keyword_settings import START_TIMESTAMP, properties_of
from rocketstream.client.trace import Tracing
from rocketstream.errors import ConfigurationError, ConnectError, RocketMQError
from rocketstream.model import MessageModel, MessageQueue
from rocketstream.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    SubscriptionData,
)
from rocketstream.protocol.codes import PullSysFlag
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import RETRY_PREFIX, retry_topic
from rocketstream.protocol.namespace import without_namespace
from rocketstream.protocol.properties import PROPERTY_RETRY_TOPIC
from rocketstream.protocol.subscription import build_subscription

logger: logging.Logger = logging.getLogger("rocketstream.client")

BROKER_SUSPEND_MS = 15_000
PULL_TIMEOUT_MS = 30_000
EXPIRED_CHECKED_MAX = 16
"""Oldest messages of one queue looked at in one scan for expired ones (C-248)."""

_FLOW_LOG_EVERY = 1_000

ConsumeService = ConsumeMessageConcurrentlyService | AsyncConsumeService | OrderlyService


class PushConsumerImpl(ConsumerInner):
    """One push consumer; names are the servers'.

    Args:
        instance: the client instance.
        settings: all settings; the group with its namespace.
        subscriptions: by topic.
        listener: what consumes.
        store: where offsets are kept.
        consume_hooks: called around listener calls.
        filter_hooks: called after pulls.
        tracing: message trace, on or off.
    """

    consume_type = "CONSUME_PASSIVELY"

    def __init__(
        self,
        instance: MQClientInstance,
        settings: PushConsumerSettings,
        subscriptions: Mapping[str, SubscriptionData],
        listener: Listener,
        store: Offsets,
        consume_hooks: ConsumeHooks,
        filter_hooks: FilterHooks,
        tracing: Tracing,
    ) -> None:
        self.group: str = settings.consumer_group
        self.message_model: MessageModel = settings.message_model
        self.settings: PushConsumerSettings = settings
        self.instance = instance
        self.clock: Clock = instance.clock
        self.listener = listener
        self.filter_hooks = filter_hooks
        self._retry_topic = retry_topic(self.group)
        self._namespace = instance.config.effective_namespace()
        # Count and size share one counter, as upstream has it (C-205).
        self._flow_hits = Counter[bool]()
        self.tracing = tracing
        self.subscriptions: dict[str, SubscriptionData] = dict(subscriptions)
        broadcasting = self.message_model is MessageModel.BROADCASTING
        if not broadcasting:
            retry = self._retry_topic
            self.subscriptions[retry] = build_subscription(retry, None, self.clock.now_ms())
        self.thresholds: Thresholds = settings.thresholds()
        self.store = store
        tells_cause = settings.send_back_cause
        self.send_back: SendBack = SendBack(
            instance,
            self.group,
            max_reconsume_times(settings.max_reconsume_times),
            unit_mode=instance.config.unit_mode,
            tells_cause=tells_cause,
        )
        self.failed: FailedMessages | DroppedMessages = DroppedMessages()
        if not broadcasting:
            delay_ms = settings.local_retry_delay_ms
            self.failed = FailedMessages(self.send_back, delay_ms, tells_cause=tells_cause)
        self.service: ConsumeService = _service_of(
            instance, settings, listener, consume_hooks, self.send_back, self.failed
        )
        self._orderly = self.service if isinstance(self.service, OrderlyService) else None
        self.pulls: Puller[AssignedQueue] = Puller(
            instance, self.group, self, check=SubscriptionCheck(instance, self.group)
        )
        self._links = QueueLinks(store, self.pulls.pull_soon, self.service.submit, instance.clock)
        sharing = RebalanceSettings(
            self.group,
            settings.message_model,
            settings.allocate_message_queue_strategy,
            where=settings.consume_from_where,
            timestamp_ms=settings.consume_timestamp_ms,
        )
        if self._orderly is not None:
            wait_ms = self._orderly.times.release_wait_ms
            sharing = replace(sharing, in_order=True, release_wait_ms=wait_ms)
        self._locker = None if self._orderly is None else self._orderly.locker
        self.queues: Assignment[AssignedQueue] = Assignment(
            instance, sharing, self, store=store, locking=self._locker
        )
        self._started_ms = self.clock.now_ms()
        self._expiry: asyncio.Task[None] | None = None
        self._running = False

    # --- life cycle -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Register, learn routes, tell the brokers, take queues (C-111); or leave nothing behind.

        Raises:
            ClientStateError: the instance already has a consumer of the group.
            BrokerError: a broker refuses a subscription.
            ConnectError: no name server answered.
        """
        try:
            self.instance.groups.add_consumer(self)
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
        self.instance.groups.rebalance_soon()

    async def _announce(self) -> None:
        wanted = [topic for topic in self.subscriptions if not topic.startswith(RETRY_PREFIX)]
        if not wanted:
            self.instance.outages.unsubscribed(self.group)
        await self._learn_routes(wanted)
        await self.instance.heartbeats.check_client_in_broker(self)
        await self.instance.heartbeats.send()
        if self.message_model is MessageModel.CLUSTERING:
            # The heartbeat has made the brokers create the retry topic (C-338).
            await self._learn_routes([retry_topic(self.group)])

    async def shutdown(self, await_ms: float | None, caller: int | None = None) -> None:
        """Stop pulling, let listeners finish, commit, say goodbye (C-119, C-121).

        Blocks for ``await_ms`` plus the timeouts of the last requests at most.
        """
        cancellation = Cancellation()  # one of before was caught, and is no reason to hurry
        if await_ms is None:
            await_ms = self.settings.await_termination_ms_when_shutdown
        self._running = False
        self.queues.stop()
        self.pulls.stop()
        await take_all(
            self._expire_no_more,
            lambda: self.service.shutdown(0 if cancellation.has_come else await_ms, caller),
            self._flush,
            self.failed.drain,
            self.send_back.drain,
            self.queues.close,
            lambda: self.instance.unregister_consumer(self.group),
            self.tracing.stop,
        )

    async def _flush(self) -> None:
        """Count what listeners have finished, also of calls that were cut off."""
        for queue in list(self.queues.table.values()):
            if queue.finished:
                queue.flush()

    async def _expire_no_more(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            await asyncio.gather(self._expiry, return_exceptions=True)

    async def _learn_routes(self, topics: list[str]) -> None:
        results = await asyncio.gather(
            *(self.instance.route_updates.update(topic) for topic in topics), return_exceptions=True
        )
        for topic, result in zip(topics, results, strict=True):
            if isinstance(result, ConnectError | ConfigurationError):
                raise result
            if isinstance(result, Exception):
                self.instance.outages.failed(("route of topic", topic), result)

    # --- subscriptions ----------------------------------------------------------------------------

    async def subscribe(self, subscription: SubscriptionData) -> None:
        """Add or replace a subscription and tell the brokers (C-103).

        Raises:
            BrokerError: a broker refuses it; the one before stays.
        """
        topic = subscription.topic
        before = self.subscriptions.get(topic)
        self.subscriptions[topic] = subscription
        try:
            await self._learn_routes([topic])
            await self.instance.heartbeats.check_client_in_broker(self)
        except BaseException:
            if self.subscriptions.get(topic) is subscription:  # or one that followed it stays
                del self.subscriptions[topic]
                if before is not None:
                    self.subscriptions[topic] = before
            raise
        self.instance.outages.subscribed(self.group)
        await self.instance.heartbeats.send()
        self.instance.groups.rebalance_soon()

    async def unsubscribe(self, topic: str) -> None:
        """Drop a subscription; its offsets are stored first (C-104, C-554)."""
        if self.subscriptions.pop(topic, None) is not None:
            self.instance.groups.rebalance_soon()
            await self.instance.heartbeats.send()

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
        self.instance.groups.rebalance_soon()

    def change(self, settings: PushConsumerSettings) -> None:
        """Go on with other bounds, pauses and batch sizes."""
        self.settings = replace(settings, consumer_group=self.group)
        self._share_thresholds()

    # --- pulls: what the puller asks of its sink --------------------------------------------------

    def subscription(self, topic: str) -> SubscriptionData | None:
        """Return what is wanted of a topic."""
        return self.subscriptions.get(topic)

    def may_pull(self, queue: AssignedQueue) -> bool:
        """Whether there is room for what a pull brings; else it goes on when there is."""
        if queue.leaving:
            return False
        held = queue.held()
        if held is None:
            return True
        is_span = held is FlowControl.SPAN
        self._flow_hits[is_span] += 1
        hits = self._flow_hits[is_span]
        if hits % _FLOW_LOG_EVERY == 1:
            mq = queue.message_queue
            logger.info("pull of %s pauses until its %s falls (pause %d)", mq, held.value, hits)
        return False

    def terms(
        self, queue: AssignedQueue, subscription: SubscriptionData, *, to_slave: bool
    ) -> PullTerms:
        """Return how to pull a queue; the offset to commit goes along where it may."""
        settings, sys_flag = self.settings, PullSysFlag.SUSPEND
        # A slave never takes offsets (C-215); 0 is never piggybacked (C-211). A broker may handle
        # a pull after a later commit sent on its own, and overwrites whatever it has: so only the
        # offset of this very pull goes along. Nothing beyond it can be committed before the answer.
        # Of a topic that was gone it would be one in the topic that was there before.
        mq, commit = queue.message_queue, 0
        may_carry = not (to_slave or self.pulls.is_gone(mq))
        if may_carry and self.store.piggyback_offset(mq) == queue.pull_offset:
            commit = queue.pull_offset
        if commit:
            sys_flag |= PullSysFlag.COMMIT_OFFSET
            self.store.piggybacked(mq)
        if settings.post_subscription_when_pull:
            sys_flag |= PullSysFlag.SUBSCRIPTION
        return PullTerms(
            settings.pull_batch_size,
            sys_flag,
            subscription.sub_version,
            BROKER_SUSPEND_MS,
            PULL_TIMEOUT_MS,
            settings.check_crc,
            commit,
            settings.pull_interval_ms,
        )

    def accept(
        self,
        queue: AssignedQueue,
        messages: list[MessageExt],
        next_offset: int,
        body_bytes: int,
    ) -> int:
        """Cache what a pull brought and have it consumed; return how many messages are wanted."""
        mq = queue.message_queue
        if mq.topic == self._retry_topic:
            for message in messages:
                # Listeners see the topic a retried message was first sent to (C-256).
                message._topic = message.properties.get(PROPERTY_RETRY_TOPIC, message.topic)
        if self._namespace:
            for message in messages:
                message._topic = without_namespace(message.topic, self._namespace)
        if messages and self.filter_hooks:
            unit_mode = self.instance.config.unit_mode
            messages = filtered(self.filter_hooks, self.group, mq, messages, unit_mode=unit_mode)
        added = queue.put(messages, next_offset)
        if added:
            try:
                queue.consume(added)
            except Exception:
                # Cached and handed to nobody they would hold the offset back for ever (C-231).
                logger.exception(
                    "the messages from %s on could not be handed to listeners; they are pulled "
                    "again",
                    added[0],
                )
                self.moved(queue, queue.process_queue.min_offset)
        return len(messages)

    def moved(self, queue: AssignedQueue, offset: int) -> None:
        """Start a queue anew at ``offset``."""
        queue.drop()
        # At once: a rebalance that comes first commits what is noted, and begins there.
        self.store.update_offset(queue.message_queue, offset, increase_only=False)
        self.instance.background.run_soon(self._restart(queue, offset))

    async def _restart(self, queue: AssignedQueue, offset: int) -> None:
        await self.queues.restart(queue.message_queue, offset, queue)

    def ends_before(self, queue: AssignedQueue, end: int) -> None:
        """Start a queue anew that ends before what was consumed (C-228, C-564).

        A broker that lost messages has put the group back to where the queue ended then: what came
        since is not to be passed.
        """
        queue.drop()
        # At once: a rebalance that comes first would commit what is noted.
        self.store.remove_offset(queue.message_queue)
        self.instance.background.run_soon(self._begin_where_told(queue, end))

    async def _begin_where_told(self, queue: AssignedQueue, end: int) -> None:
        mq = queue.message_queue
        try:
            told = await self.store.read_store(mq)
        except RocketMQError as error:
            logger.warning("%s begins anew once its broker says where: %s", mq, error)
            self.instance.groups.rebalance_soon()
            return
        await self._restart(queue, end if told is None else min(told, end))

    # --- queues: what the assignment asks of its owner --------------------------------------------

    async def rebalance(self) -> bool:
        """Divide the queues of every topic anew; return whether all went well (C-156, C-153)."""
        return await self.queues.rebalance(list(self.subscriptions))

    def is_active(self) -> bool:
        """Whether queues may be divided: not while paused (C-151)."""
        return self._running and not self.pulls.paused

    def new_queue(self, mq: MessageQueue, offset: int) -> AssignedQueue:
        """Return a queue that begins at an offset."""
        if self._orderly is not None:
            former = self.queues.table.get(mq)
            return self._orderly.new_queue(mq, offset, self.thresholds, self._links, former)
        held = ProcessQueue(mq, self.clock.monotonic_ms())
        return AssignedQueue(held, offset, self.thresholds, self._links)

    def start_queue(self, queue: AssignedQueue) -> None:
        """Pull a queue that was taken."""
        self.pulls.pull(queue)

    async def give_up(self, queues: Sequence[AssignedQueue]) -> None:
        """Have finished messages removed; those of a topic that is gone count no more."""
        for queue in queues:
            mq = queue.message_queue
            queue.flush()
            if self.pulls.is_gone(mq):
                self.store.remove_offset(mq)
            self.pulls.forget(mq)

    async def queues_changed(
        self, topic: str, all_queues: Sequence[MessageQueue], mine: Sequence[MessageQueue]
    ) -> None:
        """Share per-topic bounds anew and have brokers take our subscription as newer (C-183)."""
        self._share_thresholds()
        subscription = self.subscriptions.get(topic)
        if subscription is not None:
            version = max(self.clock.now_ms(), subscription.sub_version + 1)
            renewed = replace(subscription, sub_version=version)
            await self.instance.heartbeats.send(self._heartbeat_of(renewed))
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
        for queue in list(self.queues.table.values()):
            queue.thresholds = self.thresholds
            queue.pull_if_held()

    # --- expiry, offsets --------------------------------------------------------------------------

    async def persist_offsets(self) -> None:
        """Send changed offsets to their brokers, and those that another member put back."""
        await self._flush()
        mine = [mq for mq in self.queues.table if not self.pulls.is_gone(mq)]
        await self.store.persist(mine)
        await self.store.check(mine)
        for mq, offset in self.store.overtaken(mine).items():
            self._go_on_at(mq, offset)

    def _go_on_at(self, mq: MessageQueue, offset: int) -> None:
        """Leave out what another member has consumed; locks see to that where there are any."""
        queue = self.queues.table.get(mq)
        if queue is not None and not self.listener.is_orderly:
            logger.info("group %s: %s was consumed up to %d by others", self.group, mq, offset)
            self.moved(queue, offset)

    def connection_lost(self, address: str) -> None:
        """A broker may have lost locks it granted and offsets it had not written yet."""
        self.store.connection_lost(address)
        if self._locker is not None:
            self._locker.connection_lost(address)

    def connection_made(self, address: str) -> None:
        """Ask for locks anew."""
        if self._orderly is not None:
            self._orderly.connection_made()

    async def _clean_forever(self) -> None:
        while True:
            began_ms = self.clock.monotonic_ms()
            limit_ms = self.settings.consume_timeout_minutes * 60_000
            await asyncio.sleep(limit_ms / 1_000)
            if self.clock.monotonic_ms() - began_ms > limit_ms + limits.STANDSTILL_MS:
                continue  # no listener took its time meanwhile
            try:
                await self.clean_expired()
            except Exception:
                logger.exception("the scan for expired messages failed")

    async def clean_expired(self) -> None:
        """Send back messages whose listener has taken longer than consumeTimeout (C-248)."""
        limit_ms = self.settings.consume_timeout_minutes * 60_000
        for queue in list(self.queues.table.values()):
            for _ in range(EXPIRED_CHECKED_MAX):
                with queue.lock:
                    first = queue.process_queue.first if not queue.dropped else None
                if first is None or not first.consume_start_ms:
                    break
                if self.clock.now_ms() - first.consume_start_ms <= limit_ms:
                    break
                if not await self.failed.expire(queue, first):
                    break

    # --- seen from outside ------------------------------------------------------------------------

    async def send_message_back(
        self, message: MessageExt, level: int, broker_name: str | None
    ) -> None:
        """Have a message consumed again later; what its listener returns counts besides (C-273).

        Raises:
            SendError: no copy could be stored.
        """
        work = self.send_back.give_back(message, level, broker_name=broker_name)
        await asyncio.shield(self.send_back.begin(work))

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
        """Return settings, subscriptions, queues and rates (307)."""
        config, subscriptions = self.instance.config, list(self.subscriptions.values())
        wanted = ", ".join(f"{each.topic}={each.sub_string}" for each in subscriptions)
        call, stats = self.listener.call, self.instance.stats
        properties = properties_of(config) | properties_of(self.settings)
        properties |= {
            "clientIP": self.instance.client_id.partition("@")[0],
            "clientCallbackExecutorThreads": str(config.callback_threads()),
            "language": "PYTHON",
            "messageListener": getattr(call, "__qualname__", type(call).__name__),
            "offsetStore": type(self.store).__name__,
            "subscription": f"{{{wanted}}}",
            "PROP_CONSUMEORDERLY": "true" if self.listener.is_orderly else "false",
            "PROP_THREADPOOL_CORE_SIZE": str(self.service.core_pool_size),
            START_TIMESTAMP: str(self._started_ms),
        }
        return ConsumerRunningInfo(
            properties=properties,
            subscription_set=subscriptions,
            mq_table={
                mq: queue.info(await self._offset(mq))
                for mq, queue in list(self.queues.table.items())
            },
            status_table={
                each.topic: stats.consume_status(self.group, each.topic) for each in subscriptions
            },
        )

    async def _offset(self, mq: MessageQueue) -> int:
        noted = self.store.read_memory(mq)
        if noted is None:
            try:
                noted = await self.store.read_store(mq)
            except RocketMQError as error:
                logger.info("the stored offset of %s is unknown: %s", mq, error)
        return NO_OFFSET if noted is None else noted

    async def consume_directly(
        self, message: MessageExt, broker_name: str
    ) -> ConsumeMessageDirectlyResult:
        """Give one message to the listener now, past queue and offsets (309; C-269, C-295)."""
        return await self.service.consume_directly(message, broker_name)

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on at these offsets in the queues this consumer has (220; C-532, C-533).

        Each queue begins anew at once: what its listeners still finish no longer counts, the new
        offset is stored at the broker first, and nothing else pauses (C-572).
        """
        for mq, offset in offsets.items():
            try:
                done = await self.queues.restart(mq, max(offset, 0))
            except RocketMQError as error:
                logger.warning("offset of %s could not be reset to %d: %s", mq, offset, error)
                continue
            if done:
                logger.info("group %s is reset to offset %d in %s", self.group, offset, mq)
        self.instance.groups.rebalance_soon()

    def consumer_status(self, topic: str) -> dict[MessageQueue, int]:
        """Return the offsets noted of a topic's queues (221)."""
        mine = [mq for mq in list(self.queues.table) if mq.topic == topic]
        noted = {mq: self.store.read_memory(mq) for mq in mine}
        return {mq: offset for mq, offset in noted.items() if offset is not None}


def _service_of(
    instance: MQClientInstance,
    settings: PushConsumerSettings,
    listener: Listener,
    hooks: ConsumeHooks,
    send_back: SendBack,
    failed: FailedMessages | DroppedMessages,
) -> ConsumeService:
    """Return the service for a listener: in order or not, tasks for coroutines, else threads."""
    config = instance.config
    observer = CallObserver(
        settings.consumer_group,
        hooks,
        instance.stats,
        instance.clock,
        settings.consume_timeout_minutes,
        config.effective_namespace(),
        config.access_channel,
        FailureCause(listener.call) if settings.send_back_cause else None,
    )
    if not listener.is_orderly:
        concurrent = AsyncConsumeService if listener.is_async else ConsumeMessageConcurrentlyService
        return concurrent(listener, observer, failed, settings)
    clustered = settings.message_model is MessageModel.CLUSTERING
    orderly = AsyncOrderlyService if listener.is_async else ConsumeMessageOrderlyService
    times = orderly_times()
    locker = QueueLocker(instance, settings.consumer_group, times) if clustered else None
    return orderly(listener, observer, settings, send_back, locker, times)
