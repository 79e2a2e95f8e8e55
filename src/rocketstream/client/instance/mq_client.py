"""One client instance: connections, routes, heartbeats and timers shared by its groups.

Law: everything runs on one loop and is used from it; only ``routes`` may be read elsewhere.
Upstream's MQClientInstance (C-127 to C-145).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.client.around_requests import after_response_of, before_request_of
from rocketstream.client.config import ClientConfig
from rocketstream.client.core.routes import RouteTable
from rocketstream.client.instance import remote_control
from rocketstream.client.instance.address_server import fetch_name_servers
from rocketstream.client.instance.api import MQClientAPI
from rocketstream.client.instance.callbacks import CallbackExecutor
from rocketstream.client.instance.groups import ConsumerInner, Groups, ProducerInner
from rocketstream.client.instance.heartbeats import Heartbeats
from rocketstream.client.instance.links import BrokerLinks
from rocketstream.client.instance.outage_log import OutageLog
from rocketstream.client.instance.replies import AwaitedReplies
from rocketstream.client.instance.route_updates import RouteUpdates
from rocketstream.client.instance.service_state import ServiceState
from rocketstream.client.stats import SAMPLE_INTERVAL_MS, ConsumerStats
from rocketstream.errors import ClientStateError, RocketMQError
from rocketstream.protocol.bodies import ConsumerData
from rocketstream.protocol.codes import VERSION, version_text
from rocketstream.protocol.command import RemotingCommand
from rocketstream.transport.aio import Connection, RemotingClient
from rocketstream.transport.connection import refuse_request

logger = logging.getLogger("rocketstream.client")

UNBALANCED_RETRY_MS = 1_000
"""Pause before a rebalance that could not take all its queues is repeated (C-153)."""
_UNBALANCED_DOUBLINGS = 4


class MQClientInstance:
    """Connections, routes and timers of one client id."""

    def __init__(self, config: ClientConfig, client_id: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self.config = config
        self.client_id = client_id
        self.clock = clock
        self.routes = RouteTable()
        self.remoting = RemotingClient(
            on_request=self._on_request,
            ssl_context=config.tls_context(),
            connect_timeout_ms=config.connect_timeout_ms,
            before_request=before_request_of(config),
            after_response=after_response_of(config),
            on_open=lambda connection: self._links.made(connection),
            on_close=lambda connection: self._links.lost(connection, self.remoting),
        )
        self.outages = OutageLog(clock)
        self.api = MQClientAPI(self.remoting, config, self.outages)
        self.stats = ConsumerStats(clock, config.effective_namespace())
        self.callbacks = CallbackExecutor(config.callback_threads())
        self.replies = AwaitedReplies()
        self._groups = Groups()
        self._heartbeats = Heartbeats(client_id, self._groups, self.api, self.routes, self.outages)
        self._links = BrokerLinks(
            self._groups, self.routes, self._heartbeats, self.outages, self.run_soon
        )
        self._updates = RouteUpdates(
            self._groups, self.api, self.routes, self.outages, self.rebalance_soon
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._rebalance_wanted = asyncio.Event()
        self._background: dict[asyncio.Task[None], None] = {}
        self._starting: asyncio.Task[None] | None = None
        self._state = ServiceState.CREATE_JUST
        self._closed = False

    # --- life cycle -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Find the name servers and start the timers (C-128, C-129); once, however often called.

        Blocks for one question to the address server where name servers are looked up there.

        Raises:
            ClientStateError: an earlier start failed, or the instance is closed.
        """
        if self._state is ServiceState.RUNNING:
            return
        if self._state in (ServiceState.START_FAILED, ServiceState.SHUTDOWN_ALREADY):
            raise ClientStateError(
                f"client instance {self.client_id} was shut down or did not start; "
                "create a new client"
            )
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start())
        await asyncio.shield(self._starting)

    async def _start(self) -> None:
        try:
            await self.fetch_name_servers()
            self._start_timers()
        except BaseException:
            self._state = ServiceState.START_FAILED
            raise
        self._state = ServiceState.RUNNING

    def _start_timers(self) -> None:
        config = self.config
        beat, poll = config.heartbeat_broker_interval_ms, config.poll_name_server_interval_ms
        persist = config.persist_consumer_offset_interval_ms
        timers: list[tuple[str, int, int, Callable[[], Awaitable[None]]]] = [
            ("routes", poll, poll, self.refresh_routes),
            ("heartbeat", min(1_000, beat), beat, self._beat),
            ("offsets", min(10_000, persist), persist, self._persist_all),
            ("stats", SAMPLE_INTERVAL_MS, SAMPLE_INTERVAL_MS, self._sample_stats),
        ]
        if config.address_server_url() is not None:
            timers.append(("address-server", 10_000, 120_000, self.fetch_name_servers))
        loop = asyncio.get_running_loop()
        for name, first_ms, period_ms, work in timers:
            timer = self._every(name, first_ms, period_ms, work)
            self._tasks.append(loop.create_task(timer, name=f"rocketstream-{name}"))
        self._tasks.append(
            loop.create_task(self._rebalance_forever(), name="rocketstream-rebalance")
        )

    async def fetch_name_servers(self) -> None:
        """Ask the address server, if one is configured, for the name servers (C-130)."""
        url = self.config.address_server_url()
        if url is None:
            return
        addresses = await self.callbacks.run(fetch_name_servers, url)
        if addresses and self.api.set_name_servers(addresses):
            logger.info("name servers are %s now, says %s", ";".join(addresses), url)

    async def close(self) -> None:
        """Stop the timers and close the connections. May be called twice."""
        self._closed = True
        self._state = ServiceState.SHUTDOWN_ALREADY
        self._links.close()
        starting = [] if self._starting is None else [self._starting]
        pending = [*starting, *self._tasks, *self._background]
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        self._tasks.clear()
        await self._updates.close()
        try:
            await self.remoting.close()  # what still waits fails now, and its callbacks are called
        finally:
            self.callbacks.close()

    # --- groups -----------------------------------------------------------------------------------

    def register_consumer(self, consumer: ConsumerInner) -> None:
        """Take a consumer in.

        Raises:
            ClientStateError: this instance already has one of the group (C-116).
        """
        self._groups.add_consumer(consumer)

    def register_producer(
        self, group: str, topics: Iterable[str] = (), inner: ProducerInner | None = None
    ) -> None:
        """Take a producer group in and keep the routes of its topics fresh.

        Args:
            group: the group, as the servers know it.
            topics: topics whose routes are wanted from the start.
            inner: asked for its topics, and for transaction states.

        Raises:
            ClientStateError: this instance already has one of the group (C-446).
        """
        self._groups.add_producer(group, inner)
        self._groups.producer_topics.update(topics)

    def consumer(self, group: str) -> ConsumerInner | None:
        """Return the consumer of a group, if it lives here."""
        return self._groups.consumers.get(group)

    def producer(self, group: str) -> ProducerInner | None:
        """Return the producer of a group, if it lives here and can be asked."""
        return self._groups.producers.get(group)

    async def unregister_consumer(self, group: str) -> None:
        """Forget a consumer and tell every known broker (C-119)."""
        if self._groups.consumers.pop(group, None) is not None:
            self.stats.forget(group)
            await self._unregister(None, group)

    async def unregister_producer(self, group: str) -> None:
        """Forget a producer group and tell every known broker (C-448)."""
        if group in self._groups.producers:
            del self._groups.producers[group]
            await self._unregister(group, None)

    async def _unregister(self, producer: str | None, consumer: str | None) -> None:
        addresses = self.routes.addresses(masters_only=False)
        await asyncio.gather(*(self._say_goodbye(each, producer, consumer) for each in addresses))

    async def _say_goodbye(self, address: str, producer: str | None, consumer: str | None) -> None:
        await self._heartbeats.answered(address)
        # Only brokers that know us: connecting anew just to say goodbye helps nobody.
        if self.remoting.connected(address) is None:
            return
        try:
            await self.api.unregister(address, self.client_id, producer=producer, consumer=consumer)
        except Exception as error:
            logger.info("unregister at %s failed: %s", address, error)

    # --- routes -----------------------------------------------------------------------------------

    async def update_route(self, topic: str, default_topic: tuple[str, int] | None = None) -> bool:
        """Ask the name server for a topic's route and take it in.

        Args:
            topic: whose route.
            default_topic: template topic and queue number to use when the topic is unknown
                (C-138).

        Returns:
            Whether the topic now has a route.

        Raises:
            ConnectError: no name server answered; every address tried is named.
        """
        return await self._updates.update(topic, default_topic)

    async def publish_route(self, topic: str, create_topic_key: str, queue_nums: int) -> None:
        """Have a route for sending to ``topic``, the template's where it has none (C-457).

        Raises:
            RouteNotFoundError: neither has one, or no queue can be written.
            ConnectError: no name server answered.
        """
        await self._updates.publish(topic, create_topic_key, queue_nums)

    async def refresh_routes(self) -> None:
        """Refresh the route of every topic somebody uses."""
        await self._updates.refresh()

    # --- heartbeats -------------------------------------------------------------------------------

    async def _beat(self) -> None:
        for address in self.routes.forget_offline_brokers():
            self.remoting.close_address(address, "the broker left every route")
        await self.heartbeat()

    async def heartbeat(self) -> None:
        """Tell every known broker which groups live here (C-143); failures are logged."""
        await self._heartbeats.send()

    async def heartbeat_with(self, renewed: ConsumerData) -> None:
        """Send a heartbeat in which ``renewed`` stands for what its group says of itself."""
        await self._heartbeats.send(renewed)

    def heartbeat_soon(self) -> None:
        """Send a heartbeat in the background, as when a broker does not know us (C-580).

        Any number of calls before it is sent make one.
        """
        if self._heartbeats.claim():
            self.run_soon(self._heartbeats.send_due())

    async def check_client_in_broker(self, consumer: ConsumerInner) -> None:
        """Have a broker of each topic check the consumer's subscriptions but those by tags (C-118).

        Raises:
            BrokerError: a broker refuses a subscription, with code 23 when it cannot read it.
            TransportError: a broker could not be asked.
        """
        await self._heartbeats.check_client_in_broker(consumer)

    def broker_version(self, address: str) -> int:
        """Return what a broker said of itself in its last heartbeat answer, 0 if never."""
        return self._heartbeats.broker_version(address)

    def losses(self, address: str) -> int:
        """Return how often a connection to ``address`` has been lost.

        What a broker answers may be forgotten by its restart: it counts only if the number is the
        same as before the question.
        """
        return self._links.losses(address)

    # --- rebalance and offsets --------------------------------------------------------------------

    def rebalance_soon(self) -> None:
        """Rebalance now instead of at the next round (C-150)."""
        self._rebalance_wanted.set()

    async def _rebalance_forever(self) -> None:
        failures = 0
        while not self._closed:
            wait_ms = self.config.rebalance_interval_ms
            if failures:
                backoff = UNBALANCED_RETRY_MS << min(failures - 1, _UNBALANCED_DOUBLINGS)
                wait_ms = min(wait_ms, backoff)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_ms / 1000):
                    await self._rebalance_wanted.wait()
                    failures = 0
            self._rebalance_wanted.clear()
            failures = 0 if await self._rebalance_all() else failures + 1

    async def _rebalance_all(self) -> bool:
        # At once: a group that waits for its listeners does not hold up the others.
        results = await asyncio.gather(*map(self._rebalance, list(self._groups.consumers.values())))
        return all(results)

    async def _rebalance(self, consumer: ConsumerInner) -> bool:
        try:
            return await consumer.rebalance()
        except Exception:
            logger.exception("rebalance of group %s failed", consumer.group)
            return False

    async def _persist_all(self) -> None:
        await asyncio.gather(*map(self._persist, list(self._groups.consumers.values())))

    async def _persist(self, consumer: ConsumerInner) -> None:
        try:
            await consumer.persist_offsets()
        except Exception:
            logger.exception("offsets of group %s could not be stored", consumer.group)

    # --- what runs in the background --------------------------------------------------------------

    def run_soon(
        self, work: Coroutine[None, None, None], on_dropped: Callable[[], None] | None = None
    ) -> None:
        """Run ``work`` on the loop, owned by this instance; its failure is logged.

        Args:
            work: what to run.
            on_dropped: called instead when the instance is closed before it is done.
        """
        if self._closed:
            work.close()
            if on_dropped is not None:
                on_dropped()
            return
        task = asyncio.get_running_loop().create_task(self._logged(work))
        self._background[task] = None

        def done(finished: asyncio.Task[None]) -> None:
            self._background.pop(finished, None)
            work.close()  # a task that is cancelled before its first step leaves it untouched
            if finished.cancelled() and on_dropped is not None:
                on_dropped()

        task.add_done_callback(done)

    async def _logged(self, work: Awaitable[None]) -> None:
        try:
            await work
        except RocketMQError as error:
            self.outages.failed(("work in the background",), error)
        except Exception:
            logger.exception("background work failed")

    async def _every(
        self, name: str, first_ms: int, period_ms: int, work: Callable[[], Awaitable[None]]
    ) -> None:
        pause_ms = first_ms
        while True:
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = period_ms
            try:
                await work()
            except Exception:
                logger.exception("timer %s failed", name)

    async def _sample_stats(self) -> None:
        self.stats.sample()

    @staticmethod
    def version_text() -> str:
        """Return what this client is, in upstream's words for a version."""
        return version_text(VERSION)

    def _on_request(self, connection: Connection, command: RemotingCommand) -> None:
        if not remote_control.serve(self, connection, command):
            refuse_request(connection, command)
