"""A consuming query as a member of its group: what brokers and tools learn of it.

Law: owns no queue, pulls nothing and commits nothing: Spark's checkpoint has the group's offsets,
and the source reports them. Runs on the loop of a client instance.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from rocketstream.client.consumer.settings import PushConsumerSettings
from rocketstream.client.instance.groups import ConsumerInner
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.client.keyword_settings import properties_of
from rocketstream.errors import NotSupportedError, RocketMQError
from rocketstream.model import MessageModel, MessageQueue, MessageSelector
from rocketstream.protocol.bodies import (
    BrokerData,
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    ProcessQueueInfo,
    SubscriptionData,
    TopicRouteData,
)
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import retry_topic
from rocketstream.protocol.subscription import build_subscription

logger = logging.getLogger("rocketstream.spark")

Progress = Callable[[], Mapping[MessageQueue, int]]
"""Returns how far each queue was consumed."""
Facts = Callable[[], Mapping[str, str]]
"""Returns further facts for running info, by name."""
Directly = Callable[[MessageExt, str], ConsumeMessageDirectlyResult]
"""Gives one message to the listener; arguments are the message and the name of its broker."""


class SparkMember(ConsumerInner):
    """The consumer that a query is to its group and its client instance.

    Args:
        instance: the client instance it belongs to.
        settings: the settings shown in running info, including the group.
        subscriptions: expression by topic; further topics of ``progress`` are added.
        orderly: whether queues are consumed in order.
        progress: called on a thread when somebody asks; may block.
        directly: consumes one message, on a thread; may block. None refuses such requests.
        facts: returns further facts for running info, called on a thread; may block.
    """

    consume_type = "CONSUME_PASSIVELY"
    message_model = MessageModel.CLUSTERING

    def __init__(
        self,
        instance: MQClientInstance,
        settings: PushConsumerSettings,
        subscriptions: Mapping[str, str | MessageSelector],
        orderly: bool,
        progress: Progress,
        directly: Directly | None = None,
        facts: Facts = dict,
    ) -> None:
        self._facts = facts
        self._instance = instance
        self._settings = settings
        self.group = settings.consumer_group
        self._orderly = orderly
        self._progress = progress
        self._directly = directly
        self._began_ms = instance.clock.now_ms()
        topics = {**subscriptions, retry_topic(settings.consumer_group): "*"}
        self._subscriptions: list[SubscriptionData] = []
        for topic, expression in topics.items():
            chosen = MessageSelector.of(expression)
            self._subscriptions.append(
                build_subscription(topic, chosen.expression, self._began_ms, chosen.expression_type)
            )
        self._others: frozenset[str] = frozenset()
        self._warned = False

    async def join(self, brokers: Iterable[BrokerData] = ()) -> None:
        """Register, learn routes, and tell the brokers, which make the retry topic (C-111, C-338).

        Args:
            brokers: brokers to tell although no known topic leads to them.

        Raises:
            ClientStateError: the instance already has a member of the group.
            ConnectError: no name server answered.
        """
        self._instance.groups.add_consumer(self)
        for topic in self.subscribed_topics():
            if topic != retry_topic(self.group):
                await self._instance.route_updates.update(topic)
        retry = retry_topic(self.group)
        if brokers:
            # Wait until the name server knows the retry topic and its brokers.
            self._instance.routes.apply(retry, TopicRouteData(broker_datas=list(brokers)))
        await self._instance.heartbeats.send()
        await self._instance.route_updates.update(retry)

    async def leave(self) -> None:
        """Tell the brokers that this member is gone (C-119)."""
        await self._instance.unregister_consumer(self.group)

    async def others(self) -> frozenset[str]:
        """Return the other members of the group, as known to every reachable broker."""
        found: set[str] = set()
        for address in self._instance.routes.addresses(masters_only=True):
            try:
                found.update(await self._instance.api.consumer_ids(address, self.group))
            except RocketMQError as error:  # Apache's broker answers this where there is no member
                logger.debug("members of group %s at %s: %s", self.group, address, error)
        return frozenset(found - {self._instance.client_id})

    # --- calls of the client instance -------------------------------------------------------------

    def subscribed_topics(self) -> Iterable[str]:
        """Topics whose routes are needed."""
        return [each.topic for each in self._subscriptions]

    def heartbeat_data(self) -> ConsumerData:
        """This member's part of a heartbeat (C-143)."""
        return ConsumerData(
            group_name=self.group,
            consume_type=self.consume_type,
            message_model=self.message_model.value,
            consume_from_where=self._settings.consume_from_where.value,
            subscription_data_set=list(self._subscriptions),
            unit_mode=False,
        )

    async def rebalance(self) -> bool:
        """Warn of members that joined later: they consume the same messages again."""
        others = await self.others()
        if others - self._others:
            logger.warning(
                "group %s is consumed by Spark and by %s at the same time: messages are consumed "
                "twice and offsets overwritten; stop one of them",
                self.group, ", ".join(sorted(others)),
            )  # fmt: skip
        self._others = others
        return True

    async def persist_offsets(self) -> None:
        """Find out which topics the query reads; its source reports the checkpoint's offsets."""
        read = {queue.topic for queue in await self._ends()}
        retry = retry_topic(self.group)
        if read and retry not in read and not self._warned:
            self._warned = True
            logger.warning(
                "the query of group %s does not read topic %s: messages the listener fails are "
                "stored there, and nobody consumes them again. Let the stream read that topic "
                "besides its own",
                self.group, retry,
            )  # fmt: skip
        news = read - set(self.subscribed_topics())
        if not news:
            return
        for topic in sorted(news):
            self._subscriptions.append(build_subscription(topic, "*", self._began_ms))
            await self._instance.route_updates.update(topic)
        await self._instance.heartbeats.send()

    def connection_lost(self, address: str) -> None:
        """Do nothing: the connection granted nothing."""

    async def running_info(self) -> ConsumerRunningInfo:
        """Return settings, subscriptions, and how far each queue is (C-540)."""
        ends = await self._ends()
        settings = self._settings
        properties = properties_of(settings) | properties_of(self._instance.config)
        properties |= await self._told()
        properties.update(
            clientIP=self._instance.client_id.partition("@")[0],
            language="PYTHON",
            messageListener="Spark",
            offsetStore="SparkCheckpoint",
            PROP_CONSUMEORDERLY="true" if self._orderly else "false",
            PROP_THREADPOOL_CORE_SIZE=str(settings.consume_thread_max),
            PROP_CONSUMER_START_TIMESTAMP=str(self._began_ms),
        )
        now_ms = self._instance.clock.now_ms()
        return ConsumerRunningInfo(
            properties=properties,
            subscription_set=list(self._subscriptions),
            mq_table={
                queue: ProcessQueueInfo(
                    commit_offset=end,
                    locked=self._orderly,
                    last_pull_timestamp=now_ms,
                    last_consume_timestamp=now_ms,
                )
                for queue, end in ends.items()
            },
            status_table={
                topic: self._instance.stats.consume_status(self.group, topic)
                for topic in self.subscribed_topics()
            },
        )

    async def consume_directly(
        self, message: MessageExt, broker_name: str
    ) -> ConsumeMessageDirectlyResult | None:
        """Let the listener consume one message in a Spark task (C-269); refuse without a
        listener."""
        if self._directly is None:
            raise NotSupportedError(
                "this member of the group is a GroupClaim: the listener is in Spark's tasks, and "
                "nobody told the claim which one it is"
            )
        result = await self._instance.callbacks.run(self._directly, message, broker_name)
        result.order = self._orderly
        return result

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Answer that the checkpoint decides."""
        logger.warning(
            "a reset of group %s, topic %s is asked for, but a query goes on where its "
            "checkpoint is. Shut it down, reset the group, and start it on a new checkpoint "
            "directory",
            self.group, topic,
        )  # fmt: skip

    async def _ends(self) -> Mapping[MessageQueue, int]:
        try:
            return await self._instance.callbacks.run(self._progress)
        except Exception as error:  # whatever Spark raises for a query that is ending
            logger.info("progress of group %s is unknown: %s", self.group, error)
            return {}

    async def _told(self) -> dict[str, str]:
        try:
            return dict(await self._instance.callbacks.run(self._facts))
        except Exception as error:  # whatever Spark raises for a query that is ending
            logger.info("what the query of group %s does is unknown: %s", self.group, error)
            return {}
