"""A subscription as a user gives it, and its comparison with those of the group's other members.

Members that subscribe differently overwrite each other's subscriptions at the broker, and messages
go to nobody (C-340, C-552).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.errors import ConfigurationError, RocketMQError, RouteNotFoundError
from rocketstream.model import MessageQueue, MessageSelector
from rocketstream.protocol.bodies import SubscriptionData
from rocketstream.protocol.bodies.admin import ConsumerConnection
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import GetConsumerConnectionListRequestHeader
from rocketstream.protocol.subscription import build_subscription, subscription_hint

logger = logging.getLogger("rocketstream.client")

ASKED_EVERY_MS = 60_000
"""A topic is compared no more often than this."""
CONNECTIONS_TIMEOUT_MS = 3_000

Subscription = Mapping[str, str | MessageSelector | None]
"""Topics, and which messages of each."""


def subscribed(given: Subscription | None) -> Iterable[tuple[str, str | MessageSelector | None]]:
    """Return the topics of a consumer's keyword ``subscription``, with their expressions.

    Raises:
        ConfigurationError: not a mapping, such as the name of a topic alone.
    """
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            "subscription must be a mapping of topics to expressions, such as {'orders': '*'}, "
            f"not {given!r}"
        )
    return given.items()


def subscription_of(
    topic: str, name: str, selector: MessageSelector, now_ms: int, logger: logging.Logger
) -> SubscriptionData:
    """Return a subscription, with a warning where it is probably not meant.

    Args:
        topic: as the user calls it.
        name: as brokers call it, with its namespace.
        selector: which messages.
        now_ms: its version, ms since 1970.
        logger: of the consumer.

    Raises:
        SubscriptionError: an expression that cannot be used.
    """
    made = build_subscription(name, selector.expression, now_ms, selector.expression_type)
    if (hint := subscription_hint(made)) is not None:
        logger.warning("subscription of topic %s: %s", topic, hint)
    return made


async def topic_queues(
    instance: MQClientInstance, topic: str, *, afresh: bool
) -> list[MessageQueue]:
    """Return a topic's readable queues, sorted, whoever has them.

    Args:
        instance: knows the routes.
        topic: as brokers call it.
        afresh: ask the name server though they are known.

    Raises:
        RouteNotFoundError: the topic is unknown.
        ConnectError: no name server answered.
    """
    queues = instance.routes.subscribe_queues(topic)
    if not queues or afresh:
        await instance.route_updates.update(topic)
        queues = instance.routes.subscribe_queues(topic)
    if not queues:
        name = instance.config.without_namespace(topic)
        raise RouteNotFoundError(
            f"The topic[{name}] not exist: Can not find Message Queue for this topic; create it, "
            "or check its name",
            topic=name,
        )
    return sorted(queues)


async def learn_route(instance: MQClientInstance, topic: str) -> bool:
    """Ask the name server for a topic's route; return whether it answered, else log the outage."""
    try:
        await instance.route_updates.update(topic)
    except RocketMQError as error:
        instance.outages.failed(("route of topic", topic), error)
        return False
    return True


class SubscriptionCheck:
    """Compares one consumer's subscriptions with what a broker has of its group."""

    def __init__(self, instance: MQClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._compared_ms: dict[str, float] = {}

    def compare_soon(self, ours: SubscriptionData, address: str) -> None:
        """Compare soon: the broker at ``address`` does not know a subscription of ours."""
        now_ms = self._instance.clock.monotonic_ms()
        last_ms = self._compared_ms.get(ours.topic)
        if last_ms is None or now_ms - last_ms >= ASKED_EVERY_MS:
            self._compared_ms[ours.topic] = now_ms
            self._instance.background.run_soon(self._compare(ours, address))

    async def _compare(self, ours: SubscriptionData, address: str) -> None:
        # After one more heartbeat ours must be there, unless another member has overwritten it.
        await self._instance.heartbeats.send()
        api = self._instance.api
        header = GetConsumerConnectionListRequestHeader(self._group)
        command = RemotingCommand.request(RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        answer = await api.invoke(api.channel(address), command, CONNECTIONS_TIMEOUT_MS)
        members = ConsumerConnection.decode(bytes(answer.body))
        theirs = members.subscription_table.get(ours.topic)
        if theirs is not None and _text(theirs) == _text(ours):
            return
        logger.error(
            "the members of group %s do not subscribe alike: topic %s is %s here and %s at %s; "
            "all %d members must subscribe the same topics with the same expressions, or messages "
            "are lost",
            self._group, ours.topic, _text(ours),
            "not subscribed" if theirs is None else _text(theirs), address,
            len(members.connection_set),
        )  # fmt: skip


def _text(subscription: SubscriptionData) -> str:
    return f"{subscription.expression_type} {subscription.sub_string!r}"
