"""One client instance: connections, routes, heartbeats and timers shared by its groups.

Law: all of it is used on its loop; only ``routes`` may be read from other threads. It is upstream's
MQClientInstance (C-127 to C-145).
"""

from __future__ import annotations

import asyncio
import logging

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream._util.ending import shared, take_all
from rocketstream._util.executors import CallbackExecutor
from rocketstream.client.config import ClientConfig
from rocketstream.client.instance.api import MQClientAPI, fetch_name_servers
from rocketstream.client.instance.background import Background
from rocketstream.client.instance.groups import Groups
from rocketstream.client.instance.links import BrokerLinks, Heartbeats
from rocketstream.client.instance.outage_log import OutageLog
from rocketstream.client.instance.remote_control import AwaitedReplies, RemoteControl
from rocketstream.client.instance.route_updates import RouteUpdates
from rocketstream.client.instance.routes import RouteTable
from rocketstream.client.stats import SAMPLE_INTERVAL_MS, ConsumerStats
from rocketstream.errors import ClientStateError
from rocketstream.protocol.command import RemotingCommand
from rocketstream.transport.client import RemotingClient
from rocketstream.transport.connection import Connection

logger: logging.Logger = logging.getLogger("rocketstream.client")


class MQClientInstance:
    """Connections, routes and timers of one client id; its users hold the parts they need.

    Attributes:
        config: settings of the client that came first.
        client_id: the id brokers know it by.
        clock: where time comes from.
        routes: the routes known now.
        groups: the consumers and producers that live here.
        outages: the failures that last, for the log.
        background: the tasks nobody waits for.
        callbacks: the threads that run what users hand in.
        replies: the requests that wait for a reply.
        stats: how fast the consumers pull and consume.
        remoting: the connections.
        api: typed requests over them.
        route_updates: asks the name servers for routes.
        heartbeats: tells brokers who lives here.
        links: what follows when a connection is made or lost.
        remote_control: answers what brokers ask.
    """

    def __init__(self, config: ClientConfig, client_id: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self.config = config
        self.client_id = client_id
        self.clock = clock
        self.routes: RouteTable = RouteTable()
        self.groups: Groups = Groups()
        self.outages: OutageLog = OutageLog(clock, client_id, self.groups)
        self.background: Background = Background(client_id, self.outages)
        self.callbacks: CallbackExecutor = CallbackExecutor(config.callback_threads())
        self.replies: AwaitedReplies = AwaitedReplies()
        self.stats: ConsumerStats = ConsumerStats(clock, config.effective_namespace())
        self.remoting: RemotingClient = RemotingClient(
            on_request=self._asked,
            ssl_context=config.tls_context(),
            connect_timeout_ms=config.connect_timeout_ms,
            before_request=config.before_request(),
            after_response=config.after_response(),
            on_open=self._connected,
            on_close=self._disconnected,
        )
        self.api: MQClientAPI = MQClientAPI(self.remoting, config, self.outages)
        self.route_updates: RouteUpdates = RouteUpdates(
            self.groups, self.api, self.routes, self.outages
        )
        self.heartbeats: Heartbeats = Heartbeats(
            client_id, self.groups, self.api, self.routes, self.outages, self.background
        )
        self.links: BrokerLinks = BrokerLinks(
            self.remoting,
            self.groups,
            self.routes,
            self.route_updates,
            self.heartbeats,
            self.outages,
            self.background,
        )
        self.remote_control: RemoteControl = RemoteControl(
            config, clock, self.groups, self.api, self.replies, self.background
        )
        self._starting: asyncio.Task[None] | None = None
        self._is_started = self._has_failed = self._closed = False

    # The connections come before the parts that answer to them, since those ask over them too.

    def _asked(self, connection: Connection, command: RemotingCommand) -> None:
        self.remote_control.serve(connection, command)

    def _connected(self, connection: Connection) -> None:
        self.links.made(connection)

    def _disconnected(self, connection: Connection) -> None:
        self.links.lost(connection)

    # --- life cycle -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find the name servers and start the timers (C-128, C-129); once, however often called.

        Blocks for one question to the address server where name servers are looked up there.

        Raises:
            ClientStateError: an earlier start failed, or the instance is closed.
        """
        if self._has_failed or self._closed:
            raise ClientStateError(
                f"client instance {self.client_id} was shut down or did not start; "
                "create a new client"
            )
        if self._is_started:
            return
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start())
        await shared(self._starting, "started")

    async def _start(self) -> None:
        try:
            await self.fetch_name_servers()
            self._start_timers()
        except BaseException:
            self._has_failed = True
            raise
        self._is_started = True

    def _start_timers(self) -> None:
        config, every = self.config, self.background.every
        poll = config.poll_name_server_interval_ms
        beat = config.heartbeat_broker_interval_ms
        persist = config.persist_consumer_offset_interval_ms
        every("routes", poll, poll, self.route_updates.refresh)
        every("heartbeat", min(1_000, beat), beat, self._beat)
        every("offsets", min(10_000, persist), persist, self.groups.persist_offsets)
        every("stats", SAMPLE_INTERVAL_MS, SAMPLE_INTERVAL_MS, self._sample_stats)
        if config.address_server_url() is not None:
            every("address-server", 10_000, 120_000, self.fetch_name_servers)
        self.background.keep(
            "rebalance", self.groups.rebalance_forever(config.rebalance_interval_ms)
        )

    async def _beat(self) -> None:
        # Connections to them are closed once they have been idle: requests may be under way, and a
        # name server that has just begun does not know all brokers yet.
        self.routes.forget_offline_brokers()
        await self.heartbeats.send()

    async def _sample_stats(self) -> None:
        self.stats.sample()

    async def fetch_name_servers(self) -> None:
        """Ask the address server, if one is configured, for the name servers (C-130)."""
        url = self.config.address_server_url()
        if url is None:
            return
        addresses = await self.callbacks.run(fetch_name_servers, url)
        if addresses and self.api.set_name_servers(addresses):
            logger.info("name servers are %s now, says %s", ";".join(addresses), url)

    async def close(self) -> None:
        """Stop the timers and close the connections. May be called twice.

        A caller that is cancelled waits no longer, and everything is stopped all the same.
        """
        self._closed = True
        self.links.close()
        try:
            await take_all(
                self._start_no_more,
                self.background.close,
                self.route_updates.close,
                self.remoting.close,  # what still waits fails now, and its callbacks are called
            )
        finally:
            self.callbacks.close()

    async def _start_no_more(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)

    # --- groups that leave ------------------------------------------------------------------------

    async def unregister_consumer(self, group: str) -> None:
        """Forget a consumer and tell every known broker (C-119)."""
        if self.groups.consumers.pop(group, None) is not None:
            self.stats.forget(group)
            await self.heartbeats.say_goodbye(consumer=group)

    async def unregister_producer(self, group: str) -> None:
        """Forget a producer group and tell every known broker (C-448)."""
        if group in self.groups.producers:
            del self.groups.producers[group]
            await self.heartbeats.say_goodbye(producer=group)
