"""The pull consumer's machine on its loop: single pulls, offsets, the queues of registered topics.

Law: runs on the loop; every name in here is the servers', namespace included (upstream's
DefaultMQPullConsumerImpl and RebalancePullImpl, C-123, C-124, C-490 to C-499).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from rocketstream._util.ending import CUT_SHORT, take_all
from rocketstream.checks import check_range
from rocketstream.client.admin.requests import MQAdmin
from rocketstream.client.consumer.allocate import OwnQueue
from rocketstream.client.consumer.assignment import Assignment, RebalanceSettings
from rocketstream.client.consumer.offsets.store import Offsets, RemoteBrokerOffsetStore
from rocketstream.client.consumer.pull_answer import PullResult, Stall
from rocketstream.client.consumer.pull_requests import (
    Pull,
    PullRequests,
    PullTerms,
    active_version,
    filtered,
)
from rocketstream.client.consumer.send_back import SendBack
from rocketstream.client.consumer.settings import PullConsumerSettings
from rocketstream.client.consumer.subscription import (
    QueueChangeNotifier,
    QueueListener,
    learn_route,
)
from rocketstream.client.hooks import (
    ConsumeHooks,
    ConsumeMessageContext,
    FilterHooks,
)
from rocketstream.client.instance.groups import ConsumerInner
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.client.keyword_settings import START_TIMESTAMP, properties_of
from rocketstream.errors import (
    MessageInvalidError,
    RocketMQError,
    TransportError,
)
from rocketstream.model import ConsumeFromWhere, MessageModel, MessageQueue
from rocketstream.protocol.bodies import (
    ConsumerData,
    ConsumerRunningInfo,
    ProcessQueueInfo,
    SubscriptionData,
)
from rocketstream.protocol.bodies.client import CONSUME_ACTIVELY
from rocketstream.protocol.codes import PullSysFlag
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.subscription import build_subscription


class PullConsumerImpl(ConsumerInner):
    """One pull consumer."""

    consume_type = CONSUME_ACTIVELY

    def __init__(
        self,
        instance: MQClientInstance,
        group: str,
        settings: PullConsumerSettings,
        store: Offsets,
        listeners: dict[str, QueueListener | None],
        consume_hooks: ConsumeHooks,
        filter_hooks: FilterHooks,
        *,
        threaded: bool,
    ) -> None:
        self.group = group
        self.message_model: MessageModel = settings.message_model
        self.instance = instance
        self.store = store
        self.admin: MQAdmin = MQAdmin(instance, instance.config)
        self._settings = settings
        self._listeners = listeners
        self._pulled: set[str] = set()
        self._introduced: set[str] = set()
        self._noted: dict[MessageQueue, None] = {}
        """Threads of users write to it: it is copied before it is gone through; so is the table."""
        self._consume_hooks = consume_hooks
        self._unit_mode = settings.unit_mode or instance.config.unit_mode
        self._filter_hooks = filter_hooks
        self._requests = PullRequests(instance, group)
        self._notifier = QueueChangeNotifier(instance, threaded=threaded)
        self._send_back = SendBack(
            instance, group, settings.max_reconsume_times, unit_mode=self._unit_mode
        )
        self._running = False
        self._dividing = False
        self._started_ms = instance.clock.now_ms()
        strategy = settings.allocate_message_queue_strategy
        self.queues: Assignment[OwnQueue] = Assignment(
            instance, RebalanceSettings(group, settings.message_model, strategy), self
        )

    # --- life cycle -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Register; with registered topics, join the group at once (C-123).

        Raises:
            ClientStateError: the instance already has a consumer of the group.
        """
        self.instance.groups.add_consumer(self)
        self._running = True
        if self._listeners:
            try:
                await self.register_topics(list(self._listeners))
            except CUT_SHORT:
                await self.shutdown()
                raise

    def begin(self) -> None:
        """Take part in dividing queues, now that listeners may use the consumer."""
        self._dividing = True
        self.instance.groups.rebalance_soon()

    async def register_topics(self, topics: Iterable[str]) -> None:
        """Learn the routes of topics, tell the brokers, divide their queues."""
        for topic in topics:
            self._listeners.setdefault(topic, None)
            await learn_route(self.instance, topic)
            # Its queues may be ours by pulls before: nothing would change for the listener.
            mine = self.message_queues_in_balance(topic)
            if mine:
                every = sorted(self.instance.routes.subscribe_queues(topic) or ())
                await self.queues_changed(topic, every, mine)
        await self.instance.heartbeats.send()
        self.instance.groups.rebalance_soon()

    async def shutdown(self) -> None:
        """Store what was noted and say goodbye (C-124)."""
        self._running = False
        self._requests.stop()
        await take_all(
            self.persist_offsets,
            lambda: self.store.persist_for_good(list(self.queues.table)),
            self.queues.close,
            lambda: self.instance.unregister_consumer(self.group),
        )

    # --- what the instance asks -------------------------------------------------------------------

    def subscribed_topics(self) -> Iterable[str]:
        """Topics whose routes are wanted."""
        return {*self._listeners, *self._pulled}

    def release(self, topics: Collection[str]) -> None:
        """Forget what was pulled only; an offset that is not stored yet stays noted."""
        gone = set(topics).difference(self._listeners)
        self._pulled -= gone
        self._introduced -= gone
        self._requests.drop_topics(gone)
        self._forget([mq for mq in list(self._noted) if mq.topic in gone])

    def heartbeat_data(self) -> ConsumerData:
        """Return what brokers are told: registered topics only, version 0 (C-494)."""
        return ConsumerData(
            group_name=self.group,
            consume_type=CONSUME_ACTIVELY,
            message_model=self.message_model.value,
            consume_from_where=ConsumeFromWhere.LAST_OFFSET.value,
            subscription_data_set=[build_subscription(t, None, 0) for t in list(self._listeners)],
            unit_mode=self._unit_mode,
        )

    async def rebalance(self) -> bool:
        """Divide the queues of registered topics, and of those pulled before (C-494)."""
        return await self.queues.rebalance(list(self.subscribed_topics()))

    async def persist_offsets(self) -> None:
        """Store every noted offset that changed, whatever queue it is of (C-497, C-573).

        Of a registered topic's queues the group gave some to others: one that a task noted as it
        ended, behind the other member, is not stored and not kept.
        """
        if not self._noted:
            return
        try:
            await self._introduce([mq.topic for mq in list(self._noted)])
        except RocketMQError as error:
            self.instance.outages.failed(("telling brokers of", self.group), error)
        else:
            self.instance.outages.worked("telling brokers of", self.group)
        noted, table = list(self._noted), self.queues.table
        others = [mq for mq in noted if self._is_divided(mq) and mq not in table]
        await self.store.persist([mq for mq in noted if mq not in others])
        if others:
            await self.store.persist_for_good(others)
            self._forget(others)

    def _is_divided(self, mq: MessageQueue) -> bool:
        return self._dividing and mq.topic in self._listeners

    def _forget(self, mqs: Sequence[MessageQueue]) -> None:
        """Forget what was noted of queues that are not ours any more, once that is stored."""
        for mq in mqs:
            if self.store.is_settled(mq):
                self._noted.pop(mq, None)
                self.store.remove_offset(mq)

    def connection_lost(self, address: str) -> None:
        """A broker may have lost offsets it had not written yet: they are sent again."""
        self.store.connection_lost(address)

    async def running_info(self) -> ConsumerRunningInfo:
        """Return what this consumer is and has (307)."""
        queues = {
            mq: ProcessQueueInfo(commit_offset=self.store.read_memory(mq) or 0)
            for mq in self.queues.table
        }
        return ConsumerRunningInfo(
            properties_of(self._settings) | {START_TIMESTAMP: str(self._started_ms)},
            self.heartbeat_data().subscription_data_set,
            queues,
        )

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Note and store the offsets; where to pull is the caller's business."""
        for mq, offset in offsets.items():
            self.update_consume_offset(mq, offset)
        await self.store.persist(list(offsets))

    def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """Return the offsets noted for a topic."""
        noted = {mq: self.store.read_memory(mq) for mq in list(self._noted) if mq.topic == topic}
        return {mq: offset for mq, offset in noted.items() if offset is not None}

    # --- what the assignment asks of its owner ----------------------------------------------------

    def is_active(self) -> bool:
        """Whether queues may be divided now."""
        return self._running and self._dividing

    def new_queue(self, mq: MessageQueue, offset: int) -> OwnQueue:
        """Return a queue that is ours now; what was noted of it before may be behind."""
        self.store.doubt([mq])
        return OwnQueue(mq)

    def start_queue(self, queue: OwnQueue) -> None:
        """Leave it to the caller to pull."""

    async def give_up(self, queues: Sequence[OwnQueue]) -> None:
        """Let every queue go, once what the caller noted of it is stored.

        It stays noted of topics that are only pulled: those queues are the caller's, too.
        """
        mqs = [queue.message_queue for queue in queues]
        await self.store.persist_for_good(mqs)
        self._forget([mq for mq in mqs if self._is_divided(mq)])
        for mq in mqs:
            self._requests.drop(mq)

    async def queues_changed(
        self, topic: str, all_queues: Sequence[MessageQueue], mine: Sequence[MessageQueue]
    ) -> None:
        """Tell the topic's listener, else the consumer's (C-55)."""
        listener = self._listeners.get(topic) or self._settings.message_queue_listener
        if listener is not None:
            self._notifier.notify(listener, topic, all_queues, mine)

    async def _introduce(self, topics: Iterable[str]) -> None:
        """Have the brokers of topics know the group before its offsets are stored there.

        A 5.x broker takes no offsets of groups it does not know; 4.x ones know them by the first
        pull. Nothing was sent at the start, since no broker was known yet (C-123).
        """
        new = set(topics) - self._introduced
        for topic in new:
            await self.instance.route_updates.update(topic)
        if new:
            await self.instance.heartbeats.send()
            self._introduced |= new  # not before: one that is cancelled has told nobody

    # --- queues -----------------------------------------------------------------------------------

    def message_queues_in_balance(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that are ours now."""
        return sorted(mq for mq in list(self.queues.table) if mq.topic == topic)

    # --- pulling ----------------------------------------------------------------------------------

    async def pull(
        self,
        mq: MessageQueue,
        subscription: SubscriptionData,
        offset: int,
        max_nums: int,
        *,
        block: bool,
        timeout_ms: float,
    ) -> PullResult:
        """Pull once (C-491).

        Raises:
            BrokerError: the broker refuses.
            TransportError: no connection, or no answer in time.
        """
        self._pulled.add(mq.topic)
        self.instance.routes.used.add(mq.topic)
        began_ms = self.instance.clock.now_ms() if self._consume_hooks else None
        stall = Stall()
        until_ms = self.instance.clock.monotonic_ms() + timeout_ms
        while True:
            result = await self._pull_once(
                mq,
                subscription,
                offset,
                max_nums,
                stall.answers,
                block=block,
                timeout_ms=timeout_ms,
            )
            if not self._requests.is_doubtful(mq, offset):
                break
            pause_ms = stall.stood(offset)
            timeout_ms = until_ms - self.instance.clock.monotonic_ms() - pause_ms
            if timeout_ms <= 0:
                break  # nothing is passed over: who pulls goes on at the same offset
            await asyncio.sleep(pause_ms / 1000)
        self._hand_out(mq, result.msg_found_list, began_ms)
        return result

    async def _pull_once(
        self,
        mq: MessageQueue,
        subscription: SubscriptionData,
        offset: int,
        max_nums: int,
        looks: int,
        *,
        block: bool,
        timeout_ms: float,
    ) -> PullResult:
        address = await self._requests.known_broker(mq, subscription)
        terms = PullTerms(
            max_nums,
            PullSysFlag.SUBSCRIPTION | (PullSysFlag.SUSPEND if block else 0),
            active_version(subscription),
            self._settings.broker_suspend_max_time_ms,
            timeout_ms,
            self._settings.check_crc,
        )
        command = self._requests.command(mq, subscription, offset, terms)
        try:
            answer = await self.instance.remoting.request(address, command, timeout_ms)
        except TransportError:
            self._requests.forget(mq)  # a slave that is gone: the master may be there
            raise
        pull = Pull(mq, subscription, offset, address, terms.check_crc)
        result = self._requests.result(pull, answer, looks)
        messages = filtered(
            self._filter_hooks, self.group, mq, result.msg_found_list, unit_mode=self._unit_mode
        )
        return replace(result, msg_found_list=messages)

    def _hand_out(self, mq: MessageQueue, messages: list[MessageExt], began_ms: int | None) -> None:
        config = self.instance.config
        namespace = config.effective_namespace()
        if namespace:
            for message in messages:
                message._topic = config.without_namespace(message.topic)
        if self._consume_hooks:
            context = ConsumeMessageContext(
                self.group,
                messages,
                mq,
                namespace=namespace,
                access_channel=config.access_channel,
                began_ms=began_ms,
            )
            self._consume_hooks.handed_out(context)

    # --- offsets ----------------------------------------------------------------------------------

    def update_consume_offset(self, mq: MessageQueue, offset: int) -> None:
        """Note an offset, backwards too; the timer stores it, or the shutdown (C-497).

        Raises:
            ConfigurationError: not a whole number from 0 on; nothing is noted.
        """
        check_range("offset", offset, 0)
        # On a user's thread: the loop forgets a queue that is noted and has nothing to be stored.
        self.instance.routes.used.add(mq.topic)
        self.store.update_offset(mq, offset, increase_only=False)
        self._noted[mq] = None

    async def fetch_consume_offset(self, mq: MessageQueue, *, from_store: bool) -> int:
        """Return the noted offset, else the stored one, -1 if there is none.

        Asking the store does not change what is noted here and not stored yet (C-571).

        Raises:
            RocketMQError: the store cannot be asked.
        """
        noted = self.store.read_memory(mq)
        if noted is not None and not from_store:
            return noted
        await self._introduce([mq.topic])
        stored = await self.store.read_store(mq)
        return -1 if stored is None else stored

    async def update_consume_offset_to_broker(self, mq: MessageQueue, offset: int) -> None:
        """Note an offset and have the broker store it now.

        Raises:
            RocketMQError: the broker did not.
        """
        self.update_consume_offset(mq, offset)
        await self._introduce([mq.topic])
        if isinstance(self.store, RemoteBrokerOffsetStore):
            await self.store.update_consume_offset_to_broker(mq, offset)
        else:
            await self.store.persist([mq])

    # --- send-back --------------------------------------------------------------------------------

    async def send_message_back(
        self, message: MessageExt, delay_level: int, broker_name: str | None, group: str | None
    ) -> None:
        """Have a message delivered to a group's retry topic later (C-498)."""
        if not isinstance(message, MessageExt):
            raise MessageInvalidError(
                f"only a message that was pulled can be sent back, not {message!r}"
            )
        await self._send_back.give_back(message, delay_level, broker_name=broker_name, group=group)
