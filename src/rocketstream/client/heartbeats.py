"""Heartbeats: telling every known broker which groups live here, and what brokers answer.

Law: on the loop; failures are logged, the next beat tries again (C-118, C-142 to C-145).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from rocketstream.client.api import MQClientAPI
from rocketstream.client.core.routes import RouteTable
from rocketstream.client.groups import ConsumerInner, Groups
from rocketstream.client.outage_log import OutageLog
from rocketstream.errors import TransportError
from rocketstream.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from rocketstream.protocol.subscription import EXPRESSION_TAG

_TOLD = "told who lives here"


class Heartbeats:
    """The heartbeats of one client instance."""

    def __init__(
        self,
        client_id: str,
        groups: Groups,
        api: MQClientAPI,
        routes: RouteTable,
        outages: OutageLog,
    ) -> None:
        self._client_id = client_id
        self._groups = groups
        self._api = api
        self._routes = routes
        self._outages = outages
        self._versions: dict[str, int] = {}
        self._one_at_a_time = asyncio.Lock()
        self._is_due = False

    def broker_version(self, address: str) -> int:
        """Return what a broker said of itself in its last answer, 0 if never."""
        return self._versions.get(address, 0)

    async def send(self, renewed: ConsumerData | None = None) -> None:
        """Tell every known broker, one beat after the other (C-143).

        Args:
            renewed: stands for what its group says of itself.
        """
        async with self._one_at_a_time:
            data = self._groups.heartbeat_data(self._client_id)
            if data is None:
                return
            if renewed is not None:
                data.consumer_data_set = [
                    renewed if each.group_name == renewed.group_name else each
                    for each in data.consumer_data_set
                ]
            await self._tell(self._routes.addresses(masters_only=not data.consumer_data_set), data)

    async def introduce(self, address: str) -> None:
        """Tell one broker unless it was told over the connection that is open now."""
        async with self._one_at_a_time:
            connection = self._api.remoting.connected(address)
            data = self._groups.heartbeat_data(self._client_id)
            if connection is None or data is None or _TOLD in connection.attributes:
                return
            await self._tell([address], data)

    async def _tell(self, addresses: Sequence[str], data: HeartbeatData) -> None:
        results = await asyncio.gather(
            *(self._api.heartbeat(address, data) for address in addresses), return_exceptions=True
        )
        for address, result in zip(addresses, results, strict=True):
            if isinstance(result, int):
                self._versions[address] = result
                self._outages.worked("heartbeat to", address)
                connection = self._api.remoting.connected(address)
                if connection is not None:
                    connection.attributes[_TOLD] = True
            elif isinstance(result, Exception):
                self._outages.failed(("heartbeat to", address), result)

    def claim(self) -> bool:
        """Whether the caller is the one to run ``send_due``: the first to want a beat (C-580)."""
        claimed, self._is_due = not self._is_due, True
        return claimed

    async def send_due(self) -> None:
        """Send the beat that any number of callers wanted meanwhile."""
        async with self._one_at_a_time:
            self._is_due = False
        await self.send()

    async def check_client_in_broker(self, consumer: ConsumerInner) -> None:
        """Have a broker of each topic check the consumer's subscriptions that are no tags (C-118).

        Raises:
            BrokerError: a broker refuses a subscription, with code 23 when it cannot read it.
            TransportError: a broker could not be asked.
        """
        for subscription in consumer.heartbeat_data().subscription_data_set:
            if subscription.expression_type != EXPRESSION_TAG:
                await self.check_subscription(consumer.group, subscription)

    async def check_subscription(self, group: str, subscription: SubscriptionData) -> None:
        """Have one broker of its topic check a subscription; raises as the above."""
        addresses = self._routes.group_addresses(subscription.topic)
        if not addresses:
            return
        address = random.choice(addresses)
        try:
            await self._api.check_client(address, self._client_id, group, subscription)
        except TransportError as error:
            raise type(error)(
                "Check client in broker error, maybe because you use "
                f"{subscription.expression_type} to filter message, but server has not been "
                f"upgraded to support it: {error.message}",
                **error.parameters,
            ) from error
