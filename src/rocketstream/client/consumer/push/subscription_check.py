"""Compares the subscriptions of a group's members when a broker does not know one of ours.

Law: asks and logs; changes nothing. Members that subscribe differently overwrite each other's
subscriptions at the broker, and messages go to nobody (C-340, C-552).
"""

from __future__ import annotations

import logging

from rocketstream.client.instance.mq_client import MQClientInstance
from rocketstream.protocol.bodies import SubscriptionData
from rocketstream.protocol.bodies.admin import ConsumerConnection
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.headers import GetConsumerConnectionListRequestHeader

logger = logging.getLogger("rocketstream.client")

ASKED_EVERY_MS = 60_000
"""A topic is compared no more often than this."""
CONNECTIONS_TIMEOUT_MS = 3_000


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
            self._instance.run_soon(self._compare(ours, address))

    async def _compare(self, ours: SubscriptionData, address: str) -> None:
        # After one more heartbeat ours must be there, unless another member has overwritten it.
        await self._instance.heartbeat()
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
