"""The machine of a consumer of lite topics on its loop: subscriptions, answers, outcomes, the end.

Law: runs on the loop but for ``Outcomes``, which listeners' threads call; what is to be told to
whom is decided in ``core.lite_topics``, what may be consumed in ``core.lite_runs``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from rocketstream._util.ending import CUT_SHORT, take_all
from rocketstream.client.consumer.consume.calls import CallObserver, is_being_cancelled
from rocketstream.client.consumer.listener import Listener
from rocketstream.client.consumer.lite_topics.acknowledging import BrokerAcknowledger
from rocketstream.client.consumer.lite_topics.announcing import Announcer
from rocketstream.client.consumer.lite_topics.receiving import Receiver
from rocketstream.client.consumer.lite_topics.requests import LiteRequests
from rocketstream.client.consumer.lite_topics.service import (
    GIVEN_BACK_MS,
    AsyncLiteService,
    LiteParts,
    ThreadedLiteService,
)
from rocketstream.client.consumer.push.remote import properties_of
from rocketstream.client.core.lite_runs import RENEWALS, LiteBounds, LiteRuns
from rocketstream.client.core.lite_settings import LitePushConsumerSettings, OffsetOption
from rocketstream.client.core.lite_topics import LiteTopics
from rocketstream.client.hooks import ConsumeHooks
from rocketstream.client.instance.engine import Engine
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.client.trace.of_client import Tracing
from rocketstream.errors import RouteNotFoundError
from rocketstream.model import MessageModel, MessageQueue
from rocketstream.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
)
from rocketstream.protocol.bodies.client import CONSUME_POP
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.subscription import build_subscription

logger = logging.getLogger("rocketstream.client")

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LitePlan:
    """What a consumer of lite topics is started with.

    Attributes:
        settings: all settings; the group as the user knows it.
        topic: the parent topic, as the user knows it.
        lite_topics: subscribed from the start.
        listener: what consumes.
        consume_hooks: called around listener calls.
        tracing: message trace, on or off.
    """

    settings: LitePushConsumerSettings
    topic: str
    lite_topics: Collection[str]
    listener: Listener
    consume_hooks: ConsumeHooks = field(default_factory=ConsumeHooks)
    tracing: Tracing = field(default_factory=Tracing)


async def start_lite(plan: LitePlan, engine: Engine) -> LitePushConsumerImpl:
    """Make a consumer and start it; what fails leaves nothing behind.

    Raises:
        ClientStateError: the instance already has a consumer of the group.
        RouteNotFoundError: the parent topic does not exist.
        NotSupportedError: a broker of it has no lite topics.
        LiteTopicSetupError: topic or group are not made for them.
        ConnectError: no name server answered, or none of the brokers.
    """
    config = engine.instance.config
    group = config.with_namespace(plan.settings.consumer_group)
    settings = replace(plan.settings, consumer_group=group)
    plan = replace(plan, settings=settings, topic=config.with_namespace(plan.topic))
    consumer = LitePushConsumerImpl(engine.instance, plan)
    await consumer.start()
    return consumer


class LitePushConsumerImpl:
    """One consumer of lite topics; implements the instance's ``ConsumerInner``."""

    consume_type = CONSUME_POP
    message_model = MessageModel.CLUSTERING

    def __init__(self, instance: MQClientInstance, plan: LitePlan) -> None:
        settings = plan.settings
        self.group, self.topic = settings.consumer_group, plan.topic
        self.settings = settings
        self.instance = instance
        self.clock = instance.clock
        self.listener = plan.listener
        self.tracing = plan.tracing
        self._subscription = build_subscription(self.topic, None, self.clock.now_ms())
        self.topics = LiteTopics()
        self.topics.add(plan.lite_topics, None)
        observer = CallObserver(
            self.group,
            plan.consume_hooks,
            instance.stats,
            self.clock,
            settings.consume_timeout_minutes,
            instance.config.effective_namespace(),
            instance.config.access_channel,
        )
        bounds = LiteBounds(
            settings.max_cache_message_count,
            settings.max_cache_message_size * _MIB,
            settings.pull_batch_size,
        )
        self.runs = LiteRuns(bounds)
        requests = LiteRequests(instance, self.group, self.topic)
        self.requests = requests
        self.acknowledger = BrokerAcknowledger(instance, requests, self.topics)
        service = AsyncLiteService if plan.listener.is_async else ThreadedLiteService
        self.service: AsyncLiteService | ThreadedLiteService = service(
            LiteParts(plan.listener, self.runs, self.acknowledger, observer, settings)
        )
        self.announcer = Announcer(instance, requests, self.topics)
        self.receiver = Receiver(self)
        self._renewing: asyncio.Task[None] | None = None

    # --- life cycle -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Ask every broker of the parent topic, subscribe, and begin to receive."""
        try:
            self.instance.register_consumer(self)
        except CUT_SHORT:
            await self.service.shutdown(0)
            raise
        try:
            if not await self.instance.update_route(self.topic):
                raise RouteNotFoundError(
                    f"topic {self.topic!r} does not exist; lite topics need a parent topic that "
                    "was created with the attribute +message.type=LITE",
                    topic=self.topic,
                )
            self.topics.serve(self._brokers())
            await self.announcer.introduce()
            await self.instance.heartbeat()
        except CUT_SHORT:
            await take_all(
                lambda: self.announcer.withdraw(
                    list(filter(self.topics.is_told, self.topics.brokers))
                ),
                lambda: self.service.shutdown(0),
                lambda: self.instance.unregister_consumer(self.group),
            )
            raise
        self.tracing.start()
        self.receiver.serve(self.topics.brokers)
        self._renewing = asyncio.get_running_loop().create_task(self._renew_forever())

    async def shutdown(self, await_ms: float, caller: int | None = None) -> None:
        """Receive nothing more, let listeners finish, give back the rest, say goodbye.

        Blocks for ``await_ms`` plus the timeouts of the last requests at most.
        """
        self.receiver.stopping = True
        self.service.begin_no_more()  # at once: the brokers may be slow to answer
        await take_all(
            lambda: self.announcer.withdraw(self.topics.brokers),
            self.receiver.stop,
            lambda: self.service.shutdown(0 if is_being_cancelled() else await_ms, caller),
            self._give_back_all,
            self._renew_no_more,
            lambda: self.instance.unregister_consumer(self.group),
            self.tracing.stop,
        )

    async def _give_back_all(self) -> None:
        self._give_back_waiting(None)
        await self.acknowledger.drain()

    def _give_back_waiting(self, names: Collection[str] | None) -> None:
        """Give back what no listener has begun of some lite topics, None for all."""
        with self.service.mutex:
            left = self.runs.abandon_waiting(names)
        for run in left:
            self.acknowledger.given_back(run, run.left, GIVEN_BACK_MS)

    async def _renew_no_more(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)

    def _brokers(self) -> list[str]:
        queues = self.instance.routes.subscribe_queues(self.topic) or ()
        return list(dict.fromkeys(queue.broker_name for queue in queues))

    async def _renew_forever(self) -> None:
        pause_s = self.settings.invisible_ms / RENEWALS / 2_000
        longest_ms = self.settings.consume_timeout_minutes * 60_000
        while True:
            await asyncio.sleep(pause_s)
            with self.service.mutex:
                due = self.runs.to_renew(self.clock.monotonic_ms(), longest_ms)
            for run in due:
                self.acknowledger.renew(run)

    # --- subscriptions ----------------------------------------------------------------------------

    async def subscribe(self, names: Iterable[str], option: OffsetOption | None) -> None:
        """Subscribe lite topics at every broker; raises as ``LitePushConsumer.subscribe_lite``."""
        await self.announcer.add(names, option)

    async def unsubscribe(self, names: Iterable[str]) -> None:
        """Unsubscribe lite topics; raises as ``LitePushConsumer.unsubscribe_lite``."""
        gone = set(names)
        try:
            await self.announcer.remove(gone)
        finally:
            self._give_back_waiting(gone)

    def lite_topic_taken(self, name: str) -> None:
        """Another member of an exclusive group has a lite topic now (200073)."""
        logger.info("group %s: another member has lite topic %s of %s now",
                    self.group, name, self.topic)  # fmt: skip
        self.topics.remove([name])
        self._give_back_waiting([name])

    # --- what the instance asks -------------------------------------------------------------------

    def subscribed_topics(self) -> Iterable[str]:
        """Topics whose routes are wanted."""
        return [self.topic]

    def heartbeat_data(self) -> ConsumerData:
        """This consumer's part of a heartbeat; lite topics are told apart from it."""
        return ConsumerData(
            group_name=self.group,
            consume_type=self.consume_type,
            message_model=self.message_model.value,
            subscription_data_set=[self._subscription],
            unit_mode=self.instance.config.unit_mode,
        )

    async def rebalance(self) -> bool:
        """Receive from the brokers that carry the parent topic now."""
        brokers = self._brokers()
        if brokers and not self.receiver.stopping:
            self.topics.serve(brokers)
            self.receiver.serve(self.topics.brokers)
        return True

    async def persist_offsets(self) -> None:
        """Nothing: brokers keep them, by what is acknowledged."""

    def connection_lost(self, address: str) -> None:
        """A broker may have been restarted, and know nothing of us."""
        for name in self.topics.brokers:
            if self.instance.routes.master(name) == address:
                self.topics.forgot(name)

    def connection_made(self, address: str) -> None:
        """Go on at once."""
        self.receiver.wake()

    async def running_info(self) -> ConsumerRunningInfo:
        """Return settings and figures; lite topics have no queues to list."""
        properties = properties_of(self.instance.config) | properties_of(self.settings)
        properties.update(
            language="PYTHON",
            PROP_CONSUMEORDERLY="true",
            liteTopics=str(len(self.topics.wanted)),
            cachedMessages=str(self.runs.message_count),
        )
        status = self.instance.stats.consume_status(self.group, self.topic)
        return ConsumerRunningInfo(
            properties=properties,
            subscription_set=[self._subscription],
            status_table={self.topic: status},
        )

    async def consume_directly(
        self, message: MessageExt, broker_name: str
    ) -> ConsumeMessageDirectlyResult | None:
        """Give the listener one message an operator chose; nothing is acknowledged."""
        if self.listener.takes_context:
            return None
        return await self.service.consume_directly(message, broker_name)

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Nothing: the offsets of the parent topic's queues are not those of lite topics."""
        logger.warning(
            "offsets of group %s in %s are not reset: it consumes lite topics, whose offsets "
            "subscribe_lite(..., OffsetOption) sets", self.group, topic,
        )  # fmt: skip

    def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        """Return no offsets: brokers have them."""
        return {}
