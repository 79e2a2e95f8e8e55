"""Connections to brokers: who lives here is told over each, and what follows when one is lost.

Law: a broker may keep its grants and confirmations in memory only, so they hold for as long as the
connection they came over; every consumer that builds on them is told when it is lost. A heartbeat
that fails is logged, and the next beat tries again (C-118, C-142 to C-145).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat

from rocketstream.client.instance.api import MQClientAPI
from rocketstream.client.instance.background import Background
from rocketstream.client.instance.groups import ConsumerInner, Groups
from rocketstream.client.instance.outage_log import OutageLog
from rocketstream.client.instance.route_updates import RouteUpdates
from rocketstream.client.instance.routes import RouteTable
from rocketstream.errors import RocketMQError, TransportError
from rocketstream.limits import LOST_BROKER_TRIES_MS
from rocketstream.protocol.bodies import ConsumerData, HeartbeatData, SubscriptionData
from rocketstream.protocol.bodies.client import SHARED_ID_FIELD
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.subscription import EXPRESSION_TAG
from rocketstream.transport.client import RemotingClient
from rocketstream.transport.connection import Connection

logger: logging.Logger = logging.getLogger("rocketstream.client")

RECONNECT_MS = (500, 1_000, 2_000)
"""Pauses before a broker whose connection was lost is tried again; the last one stays. Each is cut
by up to a half, so that the clients of a broker that comes back do not come all at once. All of
them are to be back within two seconds: until then members of a group divide different queues."""
ROUTE_LOOKS_MS = (400, 800, 1_000, 2_000)
"""Pauses before the routes of a broker that went or came are asked for: a name server may learn of
it a moment later. The last one stays while the broker is waited for; each is cut as above."""
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

    def is_refused(self, address: str) -> bool:
        """Return whether a broker has refused the last heartbeat, of which it took a part at most.

        A broker has so much room for subscriptions.
        """
        return self._outages.is_failing("heartbeat to", address)

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


# --- made and lost --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Loss:
    """Topics and names of a broker that was lost, and until when it is tried again (loop time)."""

    topics: Sequence[str]
    names: Sequence[str]
    until: float


class BrokerLinks:
    """The connections of one client instance, seen from its groups."""

    def __init__(
        self,
        remoting: RemotingClient,
        groups: Groups,
        routes: RouteTable,
        updates: RouteUpdates,
        heartbeats: Heartbeats,
        outages: OutageLog,
        background: Background,
    ) -> None:
        self._remoting = remoting
        self._groups = groups
        self._routes = routes
        self._updates = updates
        self._heartbeats = heartbeats
        self._outages = outages
        self._background = background
        self._losses: dict[str, int] = {}
        self._lost: dict[str, _Loss] = {}
        """The brokers whose connection was lost lately, and whom no route names again yet."""
        self._looking: dict[str, object] = {}
        """By address, the looks at its routes that count; earlier ones end."""
        self._retries: dict[str, asyncio.TimerHandle] = {}
        self._closed = False

    def losses(self, address: str) -> int:
        """Return how often a connection to ``address`` has been lost so far.

        An answer counts only if this number is the same as before the question.
        """
        return self._losses.get(address, 0)

    def is_away(self, broker_name: str) -> bool:
        """Whether a broker was lost lately, and no route has named it since it came back."""
        now = asyncio.get_running_loop().time()
        return any(broker_name in each.names and each.until > now for each in self._lost.values())

    def close(self) -> None:
        """Try no connection again."""
        self._closed = True
        for timer in self._retries.values():
            timer.cancel()
        self._retries.clear()

    def made(self, connection: Connection) -> None:
        """A connection is open: a broker is told at once who is here, not in 30 s."""
        address = connection.peer
        timer = self._retries.pop(address, None)
        if timer is not None:
            timer.cancel()
        if self._is_wanted(address):
            self._background.run_soon(self._heartbeats.introduce(address))
        loss = self._lost.get(address)
        if loss is not None:
            self._look_soon(address, loss, gone=True)
        for consumer in list(self._groups.consumers.values()):
            consumer.connection_made(address)

    def lost(self, connection: Connection) -> None:
        """A connection is gone, and with it what was built on it."""
        address = connection.peer
        self._losses[address] = self._losses.get(address, 0) + 1
        now = asyncio.get_running_loop().time()
        self._lost = {each: loss for each, loss in self._lost.items() if loss.until > now}
        if self._is_wanted(address):
            # Every member has lost it in the same moment: all are to divide the same queues again
            # soon, and senders to know who is left, not at the next look by the clock.
            until = now + LOST_BROKER_TRIES_MS / 1000
            before = self._lost.get(address)
            if before is not None and not self._routes.topics_of(address):
                loss = replace(before, until=until)
            else:
                topics, names = self._routes.topics_of(address), self._routes.names_of(address)
                loss = _Loss(topics, names, until)
            self._lost[address] = loss
            self._look_soon(address, loss, gone=False)
        for consumer in list(self._groups.consumers.values()):
            consumer.connection_lost(address)
        self._retry_later(address, 0)

    def _is_wanted(self, address: str) -> bool:
        groups = self._groups
        if self._closed or not (groups.consumers or groups.producers):
            return False
        if address in self._routes.addresses(masters_only=not groups.consumers):
            return True
        loss = self._lost.get(address)
        return loss is not None and loss.until > asyncio.get_running_loop().time()

    def _look_soon(self, address: str, loss: _Loss, *, gone: bool) -> None:
        """Ask for routes until they name a broker that was gone again, as long as it is waited for.

        It may come back at another address, so its name counts; and a name server names it for a
        while that has not noticed yet, so it must have been gone.
        """
        self._looking[address] = mark = object()
        self._background.run_soon(self._look(address, loss, gone, mark))

    async def _look(self, address: str, loss: _Loss, gone: bool, mark: object) -> None:
        loop = asyncio.get_running_loop()
        for pause_ms in chain(ROUTE_LOOKS_MS, repeat(ROUTE_LOOKS_MS[-1])):
            await asyncio.sleep(pause_ms * random.uniform(0.5, 1.0) / 1000)
            if self._looking.get(address) is not mark:
                return  # it went or came once more
            await self._updates.refresh(loss.topics)
            is_named = any(map(self._routes.is_named, loss.names))
            if is_named and gone:
                self._lost.pop(address, None)
            if (is_named and gone) or loop.time() >= loss.until:
                break
            gone = gone or not is_named
        if self._looking.get(address) is mark:
            del self._looking[address]

    def _retry_later(self, address: str, tries: int) -> None:
        if not self._is_wanted(address) or address in self._retries:
            return
        pause_ms = RECONNECT_MS[min(tries, len(RECONNECT_MS) - 1)] * random.uniform(0.5, 1.0)

        def due() -> None:
            self._retries.pop(address, None)
            if self._remoting.connected(address) is None and self._is_wanted(address):
                self._background.run_soon(self._retry(address, tries + 1))

        loop = asyncio.get_running_loop()
        self._retries[address] = loop.call_later(pause_ms / 1000, due)

    async def _retry(self, address: str, tries: int) -> None:
        try:
            await self._remoting.connection(address)
        except RocketMQError as error:
            self._outages.failed(("a connection",), error)
            self._retry_later(address, tries)
