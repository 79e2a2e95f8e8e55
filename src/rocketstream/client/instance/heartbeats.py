"""Heartbeats: telling every known broker which groups live here, and what brokers answer.

A failure is logged, and the next beat tries again (C-118, C-142 to C-145).
"""

from __future__ import annotations

import asyncio
import logging
import random

from rocketstream.client.instance.api import MQClientAPI
from rocketstream.client.instance.background import Background
from rocketstream.client.instance.groups import ConsumerInner, Groups
from rocketstream.client.instance.outage_log import OutageLog
from rocketstream.client.instance.routes import RouteTable
from rocketstream.errors import TransportError
from rocketstream.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from rocketstream.protocol.bodies.client import SHARED_ID_FIELD
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.subscription import EXPRESSION_TAG
from rocketstream.transport.connection import Connection

logger = logging.getLogger("rocketstream.client")

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
        background: Background,
    ) -> None:
        self._client_id = client_id
        self._groups = groups
        self._api = api
        self._routes = routes
        self._outages = outages
        self._background = background
        self._versions: dict[str, int] = {}
        self._one_at_a_time = asyncio.Lock()
        self._is_due = False
        self._unanswered: dict[str, set[asyncio.Future[RemotingCommand]]] = {}

    def broker_version(self, address: str) -> int:
        """Return what a broker said of itself in its last answer, 0 if never."""
        return self._versions.get(address, 0)

    async def send(self, renewed: ConsumerData | None = None) -> None:
        """Tell every known broker, one beat after the other (C-143).

        Args:
            renewed: what a group is to say of itself in this beat, instead of its own data.
        """
        async with self._one_at_a_time:
            data = self._data(renewed)
            if data is not None:
                addresses = self._routes.addresses(masters_only=not data.consumer_data_set)
                await asyncio.gather(*(self._tell(address, renewed) for address in addresses))

    async def introduce(self, address: str) -> None:
        """Tell one broker unless it was told over the connection that is open now."""
        async with self._one_at_a_time:
            connection = self._api.remoting.connected(address)
            if connection is not None and _TOLD not in connection.attributes:
                await self._tell(address)

    async def answered(self, address: str) -> None:
        """Return when a broker has answered every heartbeat it was sent, or has run out of time.

        Brokers work on requests in several threads: one that is told that a group is leaving before
        it is done with a heartbeat that names it keeps a member that is gone.
        """
        unanswered = self._unanswered.get(address)
        if unanswered:
            await asyncio.wait(unanswered)

    def _data(self, renewed: ConsumerData | None) -> HeartbeatData | None:
        data = self._groups.heartbeat_data(self._client_id)
        if data is not None and renewed is not None:
            data.consumer_data_set = [
                renewed if each.group_name == renewed.group_name else each
                for each in data.consumer_data_set
            ]
        return data

    async def _tell(self, address: str, renewed: ConsumerData | None = None) -> None:
        try:
            connection = await self._api.remoting.connection(address)
            data = self._data(renewed)  # now: a group may have left while it connected
            if data is None:
                return
            beat = self._send(connection, data)
            # Not cancelled with the task that waits here: the broker works on what it was sent.
            await asyncio.wait([beat])
            self._versions[address] = self._api.successful(address, beat.result()).version
        except Exception as error:
            self._outages.failed(("heartbeat to", address), error)
        else:
            self._outages.worked("heartbeat to", address)
            connection.attributes[_TOLD] = True
            other = (beat.result().ext_fields or {}).get(SHARED_ID_FIELD, "")
            self._outages.id_is_shared(address, is_shared=bool(other), where=f" at {other}")

    def _send(self, connection: Connection, data: HeartbeatData) -> asyncio.Future[RemotingCommand]:
        address = connection.peer
        beat = self._api.heartbeat(connection, data)
        beats = self._unanswered.setdefault(address, set())
        beats.add(beat)

        def done(_: asyncio.Future[RemotingCommand]) -> None:
            beat.exception()  # looked at, whether anybody still waits or not
            beats.discard(beat)
            if not beats:
                self._unanswered.pop(address, None)

        beat.add_done_callback(done)
        return beat

    def send_soon(self) -> None:
        """Send a heartbeat in the background, as when a broker does not know us (C-580).

        Any number of calls before it is sent make one.
        """
        if not self._is_due:
            self._is_due = True
            self._background.run_soon(self._send_due())

    async def _send_due(self) -> None:
        async with self._one_at_a_time:
            self._is_due = False
        await self.send()

    async def say_goodbye(
        self, *, producer: str | None = None, consumer: str | None = None
    ) -> None:
        """Tell every known broker that a group has left; failures are logged."""
        addresses = self._routes.addresses(masters_only=False)
        await asyncio.gather(*(self._leave(each, producer, consumer) for each in addresses))

    async def _leave(self, address: str, producer: str | None, consumer: str | None) -> None:
        await self.answered(address)
        # Only brokers that know us: a connection made just to say goodbye helps nobody.
        if self._api.remoting.connected(address) is None:
            return
        try:
            await self._api.unregister(
                address, self._client_id, producer=producer, consumer=consumer
            )
        except Exception as error:
            logger.info("unregister at %s failed: %s", address, error)

    async def check_client_in_broker(self, consumer: ConsumerInner) -> None:
        """Have a broker of each topic check the consumer's subscriptions but those by tags (C-118).

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
