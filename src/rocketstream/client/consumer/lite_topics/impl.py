"""The machine of a consumer of lite topics on its loop: subscriptions, answers, outcomes, the end.

``topics`` decides which broker is to be told of which lite topics, ``runs`` which messages may be
consumed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Collection, Iterable, Mapping

from rocketstream._util.clock import Clock
from rocketstream._util.ending import CUT_SHORT, Cancellation, take_all
from rocketstream.client.consumer.consume.listener_calls import CallObserver
from rocketstream.client.consumer.listener import Listener
from rocketstream.client.consumer.lite_topics.brokers import Acknowledger, LiteBrokers
from rocketstream.client.consumer.lite_topics.service import (
    GIVEN_BACK_MS,
    AsyncLiteService,
    ThreadedLiteService,
)
from rocketstream.client.consumer.lite_topics.topics import RENEWALS, LiteRun, LiteRuns, LiteTopics
from rocketstream.client.consumer.process_queue import MIB
from rocketstream.client.consumer.settings import LitePushConsumerSettings
from rocketstream.client.hooks import ConsumeHooks
from rocketstream.client.instance.groups import ConsumerInner
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.client.keyword_settings import properties_of
from rocketstream.client.trace import Tracing
from rocketstream.errors import RocketMQError, RouteNotFoundError, TransportError
from rocketstream.model import MessageModel, MessageQueue
from rocketstream.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
)
from rocketstream.protocol.bodies.client import CONSUME_POP
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.subscription import build_subscription

logger: logging.Logger = logging.getLogger("rocketstream.client")

AGAIN_MS = 1_000
"""Pause after a question that failed."""
ROOM_MS = 5_000
"""How long room is waited for before the broker is told again, if it is time to."""


class LitePushConsumerImpl(ConsumerInner):
    """One consumer of lite topics.

    Args:
        instance: the client instance.
        settings: all settings; the group with its namespace.
        topic: the parent topic, with its namespace.
        listener: what consumes.
        consume_hooks: called around listener calls.
        tracing: message trace, on or off.
    """

    group: str
    topic: str

    consume_type = CONSUME_POP
    message_model = MessageModel.CLUSTERING
    _renewing: asyncio.Task[None]

    def __init__(
        self,
        instance: MQClientInstance,
        settings: LitePushConsumerSettings,
        topic: str,
        listener: Listener,
        consume_hooks: ConsumeHooks,
        tracing: Tracing,
    ) -> None:
        self.group, self.topic = settings.consumer_group, topic
        self.settings = settings
        self.instance = instance
        self.clock: Clock = instance.clock
        self.listener = listener
        self.tracing = tracing
        self._subscription = build_subscription(topic, None, self.clock.now_ms())
        self.topics: LiteTopics = LiteTopics()
        self.brokers: LiteBrokers = LiteBrokers(instance, self.group, topic, self.topics)
        self.runs: LiteRuns = LiteRuns(
            settings.max_cache_message_count,
            settings.max_cache_message_size * MIB,
            settings.pull_batch_size,
        )
        self.acknowledger: Acknowledger = Acknowledger(instance, self.group, self.topics)
        observer = CallObserver(
            self.group,
            consume_hooks,
            instance.stats,
            self.clock,
            settings.consume_timeout_minutes,
            instance.config.effective_namespace(),
            instance.config.access_channel,
        )
        service = AsyncLiteService if listener.is_async else ThreadedLiteService
        self.service: AsyncLiteService | ThreadedLiteService = service(
            listener, self.runs, self.acknowledger, observer, settings
        )
        self._stopping = False
        """No question is asked any more."""
        self._receiving: dict[str, asyncio.Task[None]] = {}
        self._asked = 0
        """Messages that answers on their way may have."""
        self._attempts = itertools.count(1)
        self._began_ms = self.clock.now_ms()
        self._back = asyncio.Event()

    # --- life cycle -------------------------------------------------------------------------------

    async def start(self, lite_topics: Collection[str]) -> None:
        """Subscribe at every broker of the parent topic, and begin to receive.

        Raises:
            ClientStateError: the instance already has a consumer of the group.
            RouteNotFoundError: the parent topic does not exist.
            NotSupportedError: a broker of it has no lite topics.
            LiteTopicSetupError: topic or group are not made for them.
            ConnectError: no name server answered, or none of the brokers.
        """
        self.topics.add(lite_topics, None)
        try:
            self.instance.groups.add_consumer(self)
        except CUT_SHORT:
            await self.service.shutdown(0)
            raise
        try:
            if not await self.instance.route_updates.update(self.topic):
                raise RouteNotFoundError(
                    f"topic {self.topic!r} does not exist; lite topics need a parent topic that "
                    "was created with the attribute +message.type=LITE",
                    topic=self.topic,
                )
            self.topics.serve(self._routed())
            await self.brokers.introduce()
            await self.instance.heartbeats.send()
        except CUT_SHORT:
            await take_all(
                lambda: self.brokers.withdraw(
                    list(filter(self.topics.is_told, self.topics.brokers))
                ),
                lambda: self.service.shutdown(0),
                lambda: self.instance.unregister_consumer(self.group),
            )
            raise
        self.tracing.start()
        self._receive_from(self.topics.brokers)
        self._renewing = asyncio.get_running_loop().create_task(self._renew_forever())

    async def shutdown(self, await_ms: float | None, caller: int | None = None) -> None:
        """Receive nothing more, let listeners finish, give back the rest, say goodbye.

        Blocks for ``await_ms`` plus the timeouts of the last requests at most.
        """
        cancellation = Cancellation()  # one of before was caught, and is no reason to hurry
        if await_ms is None:
            await_ms = self.settings.await_termination_ms_when_shutdown
        self._stopping = True
        self.service.begin_no_more()  # at once: the brokers may be slow to answer
        await take_all(
            lambda: self.brokers.withdraw(self.topics.brokers),
            # Their brokers have been told that nothing is wanted.
            lambda: _cancelled(*self._receiving.values()),
            lambda: self.service.shutdown(0 if cancellation.has_come else await_ms, caller),
            self._give_back_all,
            lambda: _cancelled(self._renewing),
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
        self._give_back(left)

    def _give_back(self, runs: Iterable[LiteRun]) -> None:
        for run in runs:
            self.acknowledger.given_back(run, run.left, GIVEN_BACK_MS)

    async def _renew_forever(self) -> None:
        pause_s = self.settings.invisible_ms / RENEWALS / 2_000
        longest_ms = self.settings.consume_timeout_minutes * 60_000
        while True:
            await asyncio.sleep(pause_s)
            with self.service.mutex:
                due = self.runs.to_renew(self.clock.monotonic_ms(), longest_ms)
            for run in due:
                self.acknowledger.renew(run)

    def _routed(self) -> list[str]:
        queues = self.instance.routes.subscribe_queues(self.topic) or ()
        return list(dict.fromkeys(queue.broker_name for queue in queues))

    # --- receiving: one question per broker under way ---------------------------------------------

    def _receive_from(self, brokers: Collection[str]) -> None:
        """Receive from these brokers and no others."""
        for name in [name for name in self._receiving if name not in brokers]:
            self._receiving.pop(name).cancel()
        loop = asyncio.get_running_loop()
        for name in brokers:
            if name not in self._receiving:
                self._receiving[name] = loop.create_task(self._receive_forever(name))

    async def _receive_forever(self, broker: str) -> None:
        outages = self.instance.outages
        attempt = self._next_attempt()
        while not self._stopping:
            try:
                if self.topics.is_due(broker, self.clock.monotonic_ms()):
                    await self.brokers.tell_all(broker)
                size = self.runs.answer_size(len(self._receiving))
                if not self._has_room(size):
                    await self._wait(self.acknowledger.news, ROOM_MS)
                    continue
                self._asked += size
                try:
                    await self._receive(broker, size, attempt)
                finally:
                    self._asked -= size
            except RocketMQError as error:
                outages.failed(("lite topics of", self.topic, "at", broker), error)
                if not isinstance(error, TransportError):
                    attempt = self._next_attempt()
                await self._wait(self._back, AGAIN_MS)
            except Exception:
                logger.exception("receiving lite topics of %s from %s failed", self.topic, broker)
                await self._wait(self._back, AGAIN_MS)
            else:
                attempt = self._next_attempt()
                outages.worked("lite topics of", self.topic, "at", broker)

    async def _receive(self, broker: str, size: int, attempt: str) -> None:
        settings = self.settings
        runs = await self.brokers.receive(
            broker, size, settings.invisible_ms, settings.poll_ms, attempt
        )
        wanted = [run for run in runs if self.topics.is_wanted(run.lite_topic)]
        # Before: the listener is on other threads, and may begin within ``submit``.
        namespace = self.instance.config.without_namespace
        for run in wanted:
            for message in run.messages:
                message._topic = namespace(message.topic)
        if wanted and not self._stopping and self.service.submit(wanted):
            runs = [run for run in runs if run not in wanted]
        self._give_back(runs)

    def _has_room(self, size: int) -> bool:
        with self.service.mutex:
            return self.runs.has_room(size, self.acknowledger.count, self._asked)

    @staticmethod
    async def _wait(event: asyncio.Event, time_ms: float) -> None:
        event.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(time_ms / 1000):
                await event.wait()

    def _next_attempt(self) -> str:
        return f"{self.instance.client_id}-{self._began_ms}-{next(self._attempts)}"

    # --- subscriptions ----------------------------------------------------------------------------

    async def unsubscribe(self, names: Iterable[str]) -> None:
        """Unsubscribe lite topics; raises as ``LitePushConsumer.unsubscribe_lite``."""
        gone = set(names)
        try:
            await self.brokers.remove(gone)
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
        brokers = self._routed()
        if brokers and not self._stopping:
            self.topics.serve(brokers)
            self._receive_from(brokers)
        return True

    async def persist_offsets(self) -> None:
        """Nothing: brokers keep them, by what is acknowledged."""

    def connection_lost(self, address: str) -> None:
        """A broker may have been restarted, and know nothing of us."""
        for name in self.topics.brokers:
            if self.instance.routes.masters.get(name) == address:
                self.topics.forgot(name)

    def connection_made(self, address: str) -> None:
        """A broker that was lost may be back: go on at once."""
        self.acknowledger.news.set()
        self._back.set()

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


async def _cancelled(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
