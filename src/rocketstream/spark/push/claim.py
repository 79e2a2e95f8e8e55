"""A claim on a consumer group: this process is its one live member as long as a query consumes.

Law: members that are there already are never displaced: the claim is refused.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Self

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.client.admin.blocking import BlockingAdminClient
from rocketstream.client.config import ClientConfig
from rocketstream.client.consumer.settings import PushConsumerSettings
from rocketstream.client.instance.engine import Engine, threaded_engine
from rocketstream.errors import (
    BrokerError,
    ClientStateError,
    ConfigurationError,
    ConnectError,
    RouteNotFoundError,
)
from rocketstream.model import MessageSelector
from rocketstream.protocol.bodies import GetConsumerListByGroupResponseBody
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import GetConsumerListByGroupRequestHeader
from rocketstream.protocol.names import check_consumer_group, retry_topic
from rocketstream.spark.connections import admin_client, secrets_of, tls_context
from rocketstream.spark.driver.reporting import CLAIM_MARK
from rocketstream.spark.options import CONNECT_OPTIONS, ConnectOptions, connect_options, known
from rocketstream.spark.patience import Patience
from rocketstream.spark.push.member import Directly, Facts, Progress, SparkMember

logger = logging.getLogger("rocketstream.spark")

LEAVING_MS: Final = 3_000
"""How long present members are waited for: a driver killed a moment ago still counts as one."""


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
        self._settings = settings or PushConsumerSettings(group)
        self._orderly = orderly
        self._progress = progress
        self._directly = directly
        self._facts = facts
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
            instance = engine.instance
            member = SparkMember(
                instance,
                self._settings,
                self._subscriptions,
                self._orderly,
                self._progress,
                self._directly,
                self._facts,
            )
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
