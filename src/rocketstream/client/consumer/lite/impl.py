"""The lite pull consumer's machine on its loop: subscribed or assigned queues, commits, seeks.

Law: runs on the loop, except that the cache is also used by the caller's threads under ``lock``;
every name in here is the servers' (upstream's DefaultLitePullConsumerImpl, C-125, C-504 to C-524).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rocketstream._util.ending import CUT_SHORT, take_all
from rocketstream.client.admin.requests import MQAdmin
from rocketstream.client.consumer.assignment import Assignment, RebalanceSettings
from rocketstream.client.consumer.lite.queues import (
    LiteCache,
    LitePullPlan,
    LiteQueue,
    Subscribed,
)
from rocketstream.client.consumer.offsets.store import Offsets
from rocketstream.client.consumer.process_queue import MIB
from rocketstream.client.consumer.pull_answer import RecordsResult
from rocketstream.client.consumer.pull_requests import PullTerms, active_version, filtered
from rocketstream.client.consumer.puller import Puller
from rocketstream.client.consumer.settings import LitePullConsumerSettings
from rocketstream.client.consumer.subscription import QueueChangeNotifier, TopicChanges
from rocketstream.client.hooks import FilterHooks
from rocketstream.client.instance.groups import ConsumerInner
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.client.keyword_settings import START_TIMESTAMP, properties_of
from rocketstream.errors import ConfigurationError, RocketMQError
from rocketstream.model import MessageModel, MessageQueue
from rocketstream.protocol.bodies import (
    ConsumerData,
    ConsumerRunningInfo,
    ProcessQueueInfo,
    SubscriptionData,
)
from rocketstream.protocol.bodies.client import CONSUME_ACTIVELY
from rocketstream.protocol.codes import PullSysFlag
from rocketstream.protocol.message_ext import MessageExt

logger: logging.Logger = logging.getLogger("rocketstream.client")

_SYS_FLAG = PullSysFlag.SUSPEND | PullSysFlag.SUBSCRIPTION | PullSysFlag.LITE_PULL


class LitePullConsumerImpl(ConsumerInner):
    """One lite pull consumer."""

    in_columns: bool
    undecoded: bool

    consume_type = CONSUME_ACTIVELY

    def __init__(
        self,
        instance: MQClientInstance,
        group: str,
        settings: LitePullConsumerSettings,
        plan: LitePullPlan,
        store: Offsets,
        filter_hooks: FilterHooks,
        *,
        threaded: bool,
    ) -> None:
        self.group = group
        self.message_model: MessageModel = settings.message_model
        self.instance = instance
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.store = store
        self.admin: MQAdmin = MQAdmin(instance, instance.config)
        self.lock: Any = threading.RLock()
        self.cache: LiteCache = LiteCache(settings)
        self.has_arrived: Callable[[], None] = lambda: None
        self.awaited: int = 1
        """How many messages whoever waits wants to be there."""
        self.running: bool = False
        self.in_columns = self.undecoded = False
        """Whether record batches are polled, and whether answers may be kept undecoded for them."""
        self._dividing = False
        self._settings = settings
        self._plan = plan
        self._unit_mode = settings.unit_mode or instance.config.unit_mode
        self._namespace = instance.config.effective_namespace()
        self._filter_hooks = filter_hooks
        self.pulls: Puller[LiteQueue] = Puller(instance, group, self)
        self._notifier = QueueChangeNotifier(instance, threaded=threaded)
        self.topic_changes: TopicChanges = TopicChanges(
            instance, self._notifier, settings.topic_metadata_check_interval_ms
        )
        self._started_ms = instance.clock.now_ms()
        self._commit_due_ms = instance.clock.monotonic_ms() + settings.auto_commit_interval_ms
        sharing = RebalanceSettings(
            group,
            settings.message_model,
            settings.allocate_message_queue_strategy,
            where=settings.consume_from_where,
            timestamp_ms=settings.consume_timestamp_ms,
        )
        self.queues: Assignment[LiteQueue] = Assignment(instance, sharing, self, store=store)

    # --- life cycle -------------------------------------------------------------------------------

    async def start(self, topic_listeners: Mapping[str, Any] | None = None) -> None:
        """Register, learn routes, take queues (C-125).

        Args:
            topic_listeners: called when the queues of a topic change, by topic.

        Raises:
            ClientStateError: the instance already has a consumer of the group.
            ConnectError: no name server answered.
            BrokerError: a broker refuses a subscription.
        """
        self.instance.groups.add_consumer(self)
        try:
            for topic in self.subscribed_topics():
                await self.instance.route_updates.update(topic)
            await self.instance.heartbeats.send()
            await self.instance.heartbeats.check_client_in_broker(self)
            self.running = True
            self.topic_changes.start()
            if self._plan.assigned is not None:
                await self.apply_assignment()
            for topic, listener in (topic_listeners or {}).items():
                await self.topic_changes.register(topic, listener)
        except CUT_SHORT:
            await self.shutdown(commit=False)
            raise

    def begin(self) -> None:
        """Take part in dividing queues, now that listeners may use the consumer."""
        self._dividing = True
        self.instance.groups.rebalance_soon()

    async def shutdown(self, *, commit: bool) -> None:
        """Stop pulling, commit what the caller is done with, say goodbye (C-126, C-517).

        Args:
            commit: with auto-commit, what was handed out last counts as done too.
        """
        self.running = False
        self.queues.stop()
        self.pulls.stop()
        with self.lock:
            if commit:
                self.cache.settle()
            if self._settings.auto_commit:
                self._note(self.cache.commits())
            for mq in list(self.cache.queues):
                self.cache.drop(mq)
        self.has_arrived()
        await take_all(
            self.topic_changes.stop,
            self.queues.close,
            lambda: self.instance.unregister_consumer(self.group),
        )

    # --- what the instance asks -------------------------------------------------------------------

    def subscribed_topics(self) -> Iterable[str]:
        """Topics whose routes are wanted."""
        return {*self._plan.topics, *(mq.topic for mq in self._plan.assigned or ())}

    def heartbeat_data(self) -> ConsumerData:
        """Return what brokers are told; no subscriptions in assign mode (C-523)."""
        return ConsumerData(
            group_name=self.group,
            consume_type=CONSUME_ACTIVELY,
            message_model=self.message_model.value,
            consume_from_where=self._settings.consume_from_where.value,
            subscription_data_set=self._plan.subscriptions,
            unit_mode=self._unit_mode,
        )

    async def rebalance(self) -> bool:
        """Divide the queues of the subscribed topics anew, or have those that are assigned."""
        if self._plan.assigned is not None:
            return not self.running or await self.queues.assign(self._plan.assigned)
        return await self.queues.rebalance(list(self._plan.topics))

    async def persist_offsets(self) -> None:
        """Commit automatically if it is time, and store what changed or was put back."""
        if not self._plan.topics and self._plan.assigned is None:
            self.instance.outages.unsubscribed(self.group)
        else:
            self.instance.outages.subscribed(self.group)
        with self.lock:
            self.commit_if_due()
            mine = [mq for mq in self.cache.queues if not self.pulls.is_gone(mq)]
        await self.store.persist(mine)
        await self.store.check(mine)
        if self._plan.assigned is None:  # what is assigned may well be consumed by several
            await self._go_on_at(self.store.overtaken(mine))

    def connection_lost(self, address: str) -> None:
        """A broker may have lost offsets it had not written yet: they are sent again."""
        self.store.connection_lost(address)

    async def running_info(self) -> ConsumerRunningInfo:
        """Return what this consumer is and has (307)."""
        with self.lock:
            queues = {mq: self._info(queue) for mq, queue in self.cache.queues.items()}
        return ConsumerRunningInfo(
            properties_of(self._settings) | {START_TIMESTAMP: str(self._started_ms)},
            self._plan.subscriptions,
            queues,
        )

    def _info(self, queue: LiteQueue) -> ProcessQueueInfo:
        first, last = queue.ends
        age_ms = self.instance.clock.monotonic_ms() - queue.last_pull_ms
        return ProcessQueueInfo(
            commit_offset=self.store.read_memory(queue.message_queue) or 0,
            cached_msg_min_offset=first,
            cached_msg_max_offset=last,
            cached_msg_count=queue.cached,
            cached_msg_size_in_mib=queue.cached_bytes // MIB,
            droped=queue.leaving,
            last_pull_timestamp=int(self.instance.clock.now_ms() - age_ms),
        )

    async def _go_on_at(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Leave out what another member has consumed, unless the caller is further already."""
        for mq, offset in offsets.items():
            queue = self.cache.queues.get(mq)
            if queue is not None and queue.position < offset:
                logger.info("group %s: %s was consumed up to %d by others", self.group, mq, offset)
                await self.reset_offsets(mq.topic, {mq: offset})

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on at other offsets at once, as after a seek, and store them (C-572)."""
        again: list[tuple[LiteQueue, int]] = []
        for mq, offset in offsets.items():
            with self.lock:
                queue = self.cache.queues.get(mq)
                if queue is None:
                    continue
                self.cache.seek(queue, offset)
                self.cache.note(mq, offset)
                self._note({mq: offset})
                again.append((queue, queue.epoch))
        await self.store.persist([queue.message_queue for queue, _ in again])
        for queue, epoch in again:  # unless the caller has gone on elsewhere meanwhile
            self.pulls.pull(queue, epoch)
        self._pull_freed()

    def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """Return the offsets noted for a topic."""
        noted = {mq: self.store.read_memory(mq) for mq in self.cache.queues if mq.topic == topic}
        return {mq: offset for mq, offset in noted.items() if offset is not None}

    # --- pulls: what the puller asks of its sink --------------------------------------------------

    def may_pull(self, queue: LiteQueue) -> bool:
        """Whether a queue may be pulled: not while it is paused, or enough is cached."""
        with self.lock:
            may = not queue.leaving and self.cache.may_pull(queue)
        if not may:
            self._tell_arrival()  # of no more
        return may

    def terms(
        self, queue: LiteQueue, subscription: SubscriptionData, *, to_slave: bool
    ) -> PullTerms:
        """Return how to pull a queue."""
        settings, take = self._settings, None
        # Hooks see messages, and names without their namespace are given to messages.
        plain = self.undecoded and not self._filter_hooks and not self._namespace
        if plain and queue.pull_offset >= queue.look_to:
            take = self._take_records
        return PullTerms(
            settings.wire_batch_size(in_columns=self.in_columns),
            _SYS_FLAG,
            active_version(subscription),
            settings.broker_suspend_max_time_ms,
            settings.consumer_timeout_ms_when_suspend,
            settings.check_crc,
            take_records=take,
        )

    def accept(
        self,
        queue: LiteQueue,
        messages: list[MessageExt],
        next_offset: int,
        body_bytes: int,
    ) -> int:
        """Cache what a pull brought; return how many messages are wanted."""
        epoch = queue.epoch
        messages = filtered(
            self._filter_hooks, self.group, queue.message_queue, messages, unit_mode=self._unit_mode
        )
        if self._namespace:
            for message in messages:
                message._topic = self.instance.config.without_namespace(message.topic)
        with self.lock:
            if not self.cache.arrived(queue, epoch, messages, next_offset, body_bytes):
                return 0
            queue.behind = 0
        if messages:
            self._tell_arrival()
        return len(messages)

    def _take_records(self, queue: LiteQueue, found: RecordsResult, body_bytes: int) -> int:
        """Cache what a pull brought undecoded; return how many messages are wanted."""
        records, end = found.records, found.next_begin_offset
        with self.lock:
            if not self.undecoded:
                return 0  # asked for again, as messages
            self.cache.arrived(queue, queue.epoch, [], end, body_bytes, records)
            queue.behind = max(0, found.max_offset - end)
        self._tell_arrival()
        return len(records)

    def _tell_arrival(self) -> None:
        if self.cache.has(self.awaited):
            self.has_arrived()

    def take(self, count: int) -> list[MessageExt]:
        """Hand out at most ``count`` messages; the lock is held.

        Somebody else may have polled for record batches since the caller began to wait.
        """
        if self.in_columns:
            self.leave_columns()
        return self.cache.take(count)

    def leave_columns(self) -> None:
        """Hand out messages again: what is kept undecoded is pulled anew; the lock is held."""
        self.in_columns = self.undecoded = False
        self.cache.settle()
        for queue in self.cache.decoded_only():
            self.pulls.pull_soon(queue, queue.epoch)

    def hand_back(self) -> None:
        """Have pulled again what was handed out last and its caller did not get; any thread."""
        with self.lock:
            for queue in self.cache.hand_back():
                self.pulls.pull_soon(queue, queue.epoch)

    def pull_freed_soon(self) -> None:
        """Have the loop pull what was held and need not be any more; any thread.

        The loop takes the queues out itself: those that another thread took out would be nobody's
        if that were interrupted, and be pulled twice if the caller went elsewhere meanwhile.
        """
        if self.cache.may_release():
            with contextlib.suppress(RuntimeError):  # the loop is closed: shut down meanwhile
                self.loop.call_soon_threadsafe(self._pull_freed)

    def _pull_freed(self) -> None:
        with self.lock:
            freed = self.cache.released()
        self.pulls.pull_all(freed)

    def moved(self, queue: LiteQueue, offset: int) -> None:
        """Go on at a smaller offset: the broker has less than was handed out (C-512).

        What is cached was pulled of what the broker had before: its offsets mean other messages.
        """
        with self.lock:
            self.cache.seek(queue, offset)
            freed = self.cache.released()
        self.pulls.pull_all([queue, *freed])

    def ends_before(self, queue: LiteQueue, end: int) -> None:
        """Go on in a queue that ends before what was handed out (C-512, C-564).

        A broker that lost messages has put the group back to where the queue ended then: what came
        since is not to be passed.
        """
        with self.lock:
            self.cache.seek(queue, end)
            epoch, freed = queue.epoch, self.cache.released()
        self.pulls.pull_all(freed)
        self.instance.background.run_soon(self._begin_where_told(queue, epoch, end))

    async def _begin_where_told(self, queue: LiteQueue, epoch: int, end: int) -> None:
        mq, told = queue.message_queue, None
        with contextlib.suppress(RocketMQError):
            told = await self.store.read_store(mq)
        if queue.epoch != epoch:
            return  # the caller went on elsewhere, or the queue was given up
        # Of a queue nobody has committed to, whoever keeps its offsets himself, a broker says 0.
        if told and told < end:
            await self.reset_offsets(mq.topic, {mq: told})
        else:
            self.pulls.pull(queue, epoch)

    # --- what the assignment asks of its owner ----------------------------------------------------

    def is_active(self) -> bool:
        """Whether queues may be divided now."""
        return self.running and self._dividing

    def new_queue(self, mq: MessageQueue, offset: int) -> LiteQueue:
        """Return a queue that begins at an offset."""
        with self.lock:
            return self.cache.add(mq, offset)

    def start_queue(self, queue: LiteQueue) -> None:
        """Pull a queue that was taken."""
        self.pulls.pull(queue)

    async def give_up(self, queues: Sequence[LiteQueue]) -> None:
        """Drop queues; what the caller is done with is committed, what it holds is not (2732)."""
        self._drop([queue.message_queue for queue in queues])

    async def queues_changed(
        self, topic: str, all_queues: Sequence[MessageQueue], mine: Sequence[MessageQueue]
    ) -> None:
        """Notify the topic's listener, once the new queues are taken (C-507)."""
        _, listener = self._plan.topics.get(topic, (None, None))
        listener = listener or self._settings.message_queue_listener
        if listener is not None:
            self._notifier.notify(listener, topic, all_queues, mine)

    # --- queues -----------------------------------------------------------------------------------

    def _drop(self, mqs: Iterable[MessageQueue]) -> None:
        with self.lock:
            for mq in mqs:
                if self._settings.auto_commit:
                    self._note(self.cache.commits([mq]))
                if self.pulls.is_gone(mq):
                    self.store.remove_offset(mq)
                self.cache.drop(mq)
                self.pulls.forget(mq)
        # The messages cached of these may have held back others: nobody else comes to see.
        self._pull_freed()

    def subscription(self, topic: str) -> SubscriptionData | None:
        """Return what is wanted of a topic."""
        return self._plan.subscription(topic)

    async def subscription_changed(self, topic: str, before: Subscribed | None) -> None:
        """A topic was subscribed: learn its route, tell the brokers, take queues (C-103, C-118).

        Raises:
            BrokerError: a broker refuses the subscription; that of ``before`` stays.
        """
        mine = self._plan.topics.get(topic)
        try:
            await self.instance.route_updates.update(topic)
            await self.instance.heartbeats.check_client_in_broker(self)
        except BaseException:
            self._plan.put_back(topic, mine, before)
            raise
        await self.instance.heartbeats.send()
        self.instance.groups.rebalance_soon()

    async def unsubscribed(self, topic: str) -> None:
        """A topic was unsubscribed: hand out nothing more of it; its offsets are stored."""
        self._drop([mq for mq in self.cache.queues if mq.topic == topic])
        # At once: a subscription that comes back must find the topic's queues given up.
        await self.queues.rebalance_now(list(self._plan.topics))
        await self.instance.heartbeats.send()

    async def apply_assignment(self) -> None:
        """Give up what is no longer assigned and begin what is new, of what can be begun now."""
        if not await self.rebalance():
            self.instance.groups.rebalance_soon()

    # --- positions and commits --------------------------------------------------------------------

    def commit_if_due(self) -> None:
        """Note what may be committed, every interval; the caller holds the lock."""
        if not self._settings.auto_commit:
            return
        now_ms = self.instance.clock.monotonic_ms()
        if now_ms >= self._commit_due_ms:
            self._commit_due_ms = now_ms + self._settings.auto_commit_interval_ms
            self._note(self.cache.commits())

    def _note(self, offsets: Mapping[MessageQueue, int]) -> None:
        for mq, offset in offsets.items():
            self.store.update_offset(mq, offset, increase_only=False)

    def commit_positions(self, mqs: Iterable[MessageQueue] | None) -> list[MessageQueue]:
        """Note where the caller is in these queues, or in all; any thread."""
        with self.lock:
            offsets = self.cache.positions(mqs)
            self._note(offsets)
        return list(offsets)

    def commit_offsets(self, offsets: Mapping[MessageQueue, int]) -> list[MessageQueue]:
        """Note the caller's own offsets for queues that are ours; any thread."""
        taken: list[MessageQueue] = []
        with self.lock:
            for mq, offset in offsets.items():
                if self.cache.note(mq, offset):
                    self._note({mq: offset})
                    taken.append(mq)
                else:
                    logger.warning(
                        "offset %d of %s was not committed: the queue is not assigned to "
                        "this consumer", offset, mq,
                    )  # fmt: skip
        return taken

    async def committed(self, mq: MessageQueue) -> int:
        """Return the committed offset, -1 if there is none (C-518).

        Raises:
            RocketMQError: the store cannot be asked.
        """
        noted = self.store.read_memory(mq)
        if noted is not None:
            return noted
        stored = await self.store.read_store(mq)
        if mq not in self.cache.queues:
            self.store.remove_offset(mq)  # asked for, not consumed here
        return -1 if stored is None else stored

    async def seek(self, mq: MessageQueue, offset: int | None, *, to_end: bool = False) -> None:
        """Go on at an offset, or at one end of the queue (C-519).

        Raises:
            ConfigurationError: the queue is not ours, or the offset is not in it.
            RocketMQError: the broker could not be asked for its ends.
        """
        self._queue(mq)
        least = await self.admin.min_offset(mq)
        most = await self.admin.max_offset(mq)
        if offset is None:
            offset = most if to_end else least
        if not isinstance(offset, int) or not least <= offset <= most:
            raise ConfigurationError(
                f"Seek offset illegal, seek offset = {offset!r}, min offset = {least}, "
                f"max offset = {most}",
                queue=mq,
            )
        with self.lock:
            queue = self._queue(mq)
            self.cache.seek(queue, offset)
            freed = self.cache.released()
        self.pulls.pull_all([queue, *freed])

    def _queue(self, mq: MessageQueue) -> LiteQueue:
        queue = self.cache.queues.get(mq)
        if queue is None:
            why = "" if self._plan.assigned is not None else ", may be rebalancing"
            raise ConfigurationError(
                f"The message queue is not in assigned list{why}, message queue: {mq}"
            )
        return queue

    def pause(self, mqs: Iterable[MessageQueue]) -> None:
        """Pull these queues no more; what is cached is still handed out (C-520)."""
        with self.lock:
            for mq in mqs:
                queue = self.cache.queues.get(mq)
                if queue is not None:
                    queue.paused = True

    def resume(self, mqs: Iterable[MessageQueue]) -> None:
        """Pull these queues again."""
        again: list[LiteQueue] = []
        with self.lock:
            for mq in mqs:
                queue = self.cache.queues.get(mq)
                if queue is not None and queue.paused:
                    queue.paused = False
                    if queue.idle:
                        queue.idle = False
                        again.append(queue)
        self.pulls.pull_all(again)

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that are ours; any thread."""
        with self.lock:
            return sorted(self.cache.queues)
