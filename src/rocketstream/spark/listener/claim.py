"""A claim on a consumer group: this process is its one live member as long as a query consumes.

Law: members that are there already are never displaced: the claim is refused. The member owns no
queue, pulls nothing and commits nothing: Spark's checkpoint has the group's offsets, and the source
reports them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, Self

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.settings import PushConsumerSettings
from rocketstream.client.instance.engine import Engine, threaded_engine
from rocketstream.client.instance.groups import ConsumerInner
from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.client.keyword_settings import properties_of
from rocketstream.errors import (
    BrokerError,
    ClientStateError,
    ConfigurationError,
    ConnectError,
    NotSupportedError,
    RocketMQError,
    RouteNotFoundError,
)
from rocketstream.model import MessageModel, MessageQueue, MessageSelector
from rocketstream.protocol.bodies import (
    BrokerData,
    ConsumeMessageDirectlyResult,
    ConsumerData,
    ConsumerRunningInfo,
    GetConsumerListByGroupResponseBody,
    ProcessQueueInfo,
    SubscriptionData,
    TopicRouteData,
)
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import GetConsumerListByGroupRequestHeader
from rocketstream.protocol.message_ext import MessageExt
from rocketstream.protocol.names import check_consumer_group, retry_topic
from rocketstream.protocol.subscription import build_subscription
from rocketstream.spark.connections import admin_client, secrets_of, tls_context
from rocketstream.spark.driver.reporting import CLAIM_MARK
from rocketstream.spark.options import CONNECT_OPTIONS, ConnectOptions, connect_options, known
from rocketstream.spark.patience import Patience

logger: logging.Logger = logging.getLogger("rocketstream.spark")

LEAVING_MS: Final = 3_000
"""How long present members are waited for: a driver killed a moment ago still counts as one."""

Progress = Callable[[], Mapping[MessageQueue, int]]
"""Returns how far each queue was consumed."""
Facts = Callable[[], Mapping[str, str]]
"""Returns further facts for running info, by name."""
Directly = Callable[[MessageExt, str], ConsumeMessageDirectlyResult]
"""Gives one message to the listener; arguments are the message and the name of its broker."""


class GroupClaim:
    """This process as the live member of a group whose messages a query consumes.

    A context manager. Brokers and tools (consumerConnection, consumerProgress, running info) see a
    member of the group, and the retry topic exists. ``SparkPushConsumer`` and ``consume`` make one
    themselves; a claim of your own stays while queries come and go: ``consume(..., claim=this)``.

    Args:
        group: the consumer group.
        subscriptions: expression or ``MessageSelector`` by topic; without any, the member registers
            with all brokers.
        settings: the settings shown in running info; by default those of a push consumer.
        orderly: whether running info says that queues are consumed in order.
        progress: returns how far each queue is, for running info; may block. Its topics that are
            not in ``subscriptions`` are shown as subscribed with ``*``.
        directly: gives one message to the listener, when an operator asks for it (309); may block.
        facts: returns further facts for running info, by name; may block.
        clock: the client's clock.
        **options: ``nameServer`` and the other options of a connection.

    Raises:
        ConfigurationError: the group is not a group name, or an option is unknown or unusable.
    """

    def __init__(
        self,
        group: str,
        subscriptions: Mapping[str, str | MessageSelector],
        *,
        settings: PushConsumerSettings | None = None,
        orderly: bool = False,
        progress: Progress = dict,
        directly: Directly | None = None,
        facts: Facts = dict,
        clock: Clock = SYSTEM_CLOCK,
        **options: str,
    ) -> None:
        check_consumer_group(group)
        self.group = group
        self._options = connect_options(known(options, CONNECT_OPTIONS))
        self._subscriptions = dict(subscriptions)
        told = settings or PushConsumerSettings(group)
        self._new_member: Callable[[MQClientInstance], SparkMember] = lambda instance: SparkMember(
            instance, told, self._subscriptions, orderly, progress, directly, facts
        )
        self._clock = clock
        self._config = _client_config(self._options, clock)
        self._engine: Engine | None = None
        self._member: SparkMember | None = None

    @property
    def client_id(self) -> str:
        """The id this member is known by."""
        return self._config.client_id()

    @property
    def is_live(self) -> bool:
        """Whether this process is the group's member now."""
        return self._engine is not None

    def check_of(self, group: str) -> None:
        """Refuse to stand for another group, or for none.

        Raises:
            ConfigurationError: the claim is of another group, or has not begun.
        """
        if group != self.group:
            raise ConfigurationError(f"the claim is of group {self.group!r}, not of {group!r}")
        if not self.is_live:
            raise ConfigurationError(f"the claim of group {group!r} has not begun: call begin()")

    def begin(self) -> None:
        """Join the group; blocks for a few requests, and for 3 s if it has members.

        Raises:
            ClientStateError: the group has live members, which the error names; or the claim has
                begun already.
            RouteNotFoundError: no broker made the retry topic within ``retryTimeoutMs``.
            ConnectError: no name server answered.
        """
        if self.is_live:
            raise ClientStateError(f"group {self.group!r} is claimed already")
        with admin_client(self._options) as admin:
            self._refuse(self._first_look(admin))
            engine = threaded_engine(self._config, self._clock)
            member = self._new_member(engine.instance)
            self._engine, self._member = engine, member
            try:
                brokers = admin.cluster_info().broker_addr_table if not self._subscriptions else {}
                engine.run(member.join(list(brokers.values())))
                # A member may have joined between the question and the claim.
                self._refuse(engine.run(member.others()))
                self._wait_for_retry_topic(admin)
            except BaseException:
                self.end()
                raise

    def report(self, ends: Mapping[MessageQueue, int]) -> None:
        """Report where the last micro-batch ended, because the source reports one batch late.

        Nothing is put back, and nothing told while others consume with the group: where this
        process stood still for two minutes, another one may have claimed the group, and be further.

        Blocks for a round trip per queue; never raises.
        """
        try:
            with admin_client(self._options) as admin:
                if others := self._others():
                    logger.warning(
                        "the last offsets of group %s were not reported, they are those of %s now",
                        self.group, ", ".join(sorted(others)),
                    )  # fmt: skip
                    return
                admin.update_consumer_offsets(self.group, self._news(admin, ends))
        except RocketMQError as error:
            self._not_reported(error)

    def _others(self) -> frozenset[str]:
        engine, member = self._engine, self._member
        return frozenset() if engine is None or member is None else engine.run(member.others())

    def _news(
        self, admin: BlockingAdminClient, ends: Mapping[MessageQueue, int]
    ) -> dict[MessageQueue, int]:
        """Return the ends that lie behind what is stored; a broker that is gone is asked once."""
        news: dict[MessageQueue, int] = {}
        gone: set[str] = set()
        for queue, end in ends.items():
            if queue.broker_name in gone:
                continue
            try:
                stored = admin.query_consumer_offset(self.group, queue)
            except RocketMQError as error:
                gone.add(queue.broker_name)
                self._not_reported(error)
                continue
            if stored is None or stored < end:
                news[queue] = end
        return news

    def _not_reported(self, error: RocketMQError) -> None:
        logger.warning(
            "the last offsets of group %s were not reported, the checkpoint has them: %s",
            self.group, error,
        )  # fmt: skip

    def end(self) -> None:
        """Leave the group; does nothing if the claim has not begun."""
        engine, member = self._engine, self._member
        self._engine = self._member = None
        if engine is None or member is None:
            return
        try:
            engine.run(member.leave())
        finally:
            engine.leave()

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _refuse(self, members: frozenset[str]) -> None:
        if members:
            here = f"@{os.getpid()}#"
            mine = any(here in name and name.endswith(CLAIM_MARK) for name in members)
            raise ClientStateError(
                f"group {self.group!r} has live members: {', '.join(sorted(members))}. Spark takes "
                "a group as a whole: shut them down first (a member that died without a goodbye is "
                "forgotten after 2 minutes), or use another group"
                + "; a GroupClaim of this process is handed to consume(..., claim=...)"
                * mine,
                group=self.group,
                members=sorted(members),
            )

    def _first_look(self, admin: BlockingAdminClient) -> frozenset[str]:
        try:
            return self._wait_for_leaving(admin)
        except ConnectError as error:
            raise ConnectError(
                f"group {self.group!r} cannot be claimed: this process, which starts the query, "
                f"does not reach the cluster ({error}). With Spark Connect that is the client: let "
                "it reach name server and brokers, run the program beside them, or claim nothing "
                "(consume(..., claim=False)), so that no tool sees a consumer and nobody is refused"
            ) from error

    def _wait_for_leaving(self, admin: BlockingAdminClient) -> frozenset[str]:
        patience = Patience(LEAVING_MS, self._clock)
        while members := live_members(admin, self.group):
            if patience.exhausted():
                break
            patience.pause()
        return members

    def _wait_for_retry_topic(self, admin: BlockingAdminClient) -> None:
        topic = retry_topic(self.group)
        patience = Patience(self._options.retry_timeout_ms, self._clock)
        while True:
            try:
                admin.route(topic, refresh=True)
                return
            except RouteNotFoundError as error:
                if patience.exhausted():
                    raise RouteNotFoundError(
                        f"topic {topic!r} does not exist and no broker made it: where brokers do "
                        f"not create groups by themselves, create group {self.group!r} first",
                        topic=topic,
                    ) from error
                patience.pause()


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
        self.group: str = settings.consumer_group
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


def live_members(admin: BlockingAdminClient, group: str) -> frozenset[str]:
    """Return the client ids of a group's members, as known to the masters of all brokers.

    Raises:
        TransportError: a broker does not answer, so the members are not known.
    """
    header = GetConsumerListByGroupRequestHeader(group)
    found: set[str] = set()
    for name, broker in admin.cluster_info().broker_addr_table.items():
        if 0 not in broker.broker_addrs:
            logger.info("broker %s has no master to ask for members", name)
            continue
        command = RemotingCommand.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        try:
            answer = admin.request(broker.broker_addrs[0], command)
        except BrokerError as error:  # Apache's broker answers this where there is no member
            logger.debug("members of group %s at %s: %s", group, name, error)
            continue
        found.update(GetConsumerListByGroupResponseBody.decode(answer.body).consumer_id_list)
    return frozenset(found)


def _client_config(options: ConnectOptions, clock: Clock) -> ClientConfig:
    access_key, secret_key, security_token = secrets_of(options)
    config = ClientConfig(
        namesrv_addr=options.name_server,
        access_key=access_key,
        secret_key=secret_key,
        security_token=security_token,
        ssl_context=tls_context(options),
        connect_timeout_ms=options.connect_timeout_ms,
    )
    own = config.checked().with_own_instance(clock)
    return replace(own, instance_name=own.instance_name + CLAIM_MARK)
