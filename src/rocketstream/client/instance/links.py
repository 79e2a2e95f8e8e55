"""What follows when a connection to a broker is made or lost.

Law: on the loop. What a broker granted or confirmed it may keep in memory only, so it holds for as
long as the connection it came over; whoever builds on it is told when that is lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine

from rocketstream.client.core.routes import RouteTable
from rocketstream.client.instance.groups import Groups
from rocketstream.client.instance.heartbeats import Heartbeats
from rocketstream.client.instance.outage_log import OutageLog
from rocketstream.errors import RocketMQError
from rocketstream.transport.aio import Connection, RemotingClient

RECONNECT_MS = (500, 1_000, 2_000, 5_000)
"""Pauses before a broker whose connection was lost is tried again; the last one stays. Each is cut
by up to a half, so that the clients of a broker that comes back do not come all at once."""

RunSoon = Callable[[Coroutine[None, None, None]], None]


class BrokerLinks:
    """The connections of one client instance, seen from its groups."""

    def __init__(
        self,
        groups: Groups,
        routes: RouteTable,
        heartbeats: Heartbeats,
        outages: OutageLog,
        run_soon: RunSoon,
    ) -> None:
        self._groups = groups
        self._routes = routes
        self._heartbeats = heartbeats
        self._outages = outages
        self._run_soon = run_soon
        self._losses: dict[str, int] = {}
        self._retries: dict[str, asyncio.TimerHandle] = {}
        self._closed = False

    def losses(self, address: str) -> int:
        """Return how often a connection to ``address`` has been lost so far.

        An answer counts only if this number is the same as before the question.
        """
        return self._losses.get(address, 0)

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
            self._run_soon(self._heartbeats.introduce(address))
        for consumer in list(self._groups.consumers.values()):
            consumer.connection_made(address)

    def lost(self, connection: Connection, remoting: RemotingClient) -> None:
        """A connection is gone, and with it what was built on it."""
        address = connection.peer
        self._losses[address] = self._losses.get(address, 0) + 1
        for consumer in list(self._groups.consumers.values()):
            consumer.connection_lost(address)
        self._retry_later(address, remoting, 0)

    def _is_wanted(self, address: str) -> bool:
        groups = self._groups
        if self._closed or not (groups.consumers or groups.producers):
            return False
        return address in self._routes.addresses(masters_only=not groups.consumers)

    def _retry_later(self, address: str, remoting: RemotingClient, tries: int) -> None:
        if not self._is_wanted(address) or address in self._retries:
            return
        pause_ms = RECONNECT_MS[min(tries, len(RECONNECT_MS) - 1)] * random.uniform(0.5, 1.0)

        def due() -> None:
            self._retries.pop(address, None)
            if remoting.connected(address) is None and self._is_wanted(address):
                self._run_soon(self._retry(address, remoting, tries + 1))

        loop = asyncio.get_running_loop()
        self._retries[address] = loop.call_later(pause_ms / 1000, due)

    async def _retry(self, address: str, remoting: RemotingClient, tries: int) -> None:
        try:
            await remoting.connection(address)
        except RocketMQError as error:
            self._outages.failed(("a connection",), error)
            self._retry_later(address, remoting, tries)
