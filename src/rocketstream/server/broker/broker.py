"""A broker: its store, its tables, its handlers and its timers, on one listening port.

The broker starts its parts and stops them in the right order; it decides nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

from rocketstream import limits
from rocketstream._util.clock import SYSTEM_CLOCK, Attention, Clock
from rocketstream._util.ending import CUT_SHORT, take_all
from rocketstream._util.workers import ThreadWorkers, Workers
from rocketstream.errors import ConfigurationError
from rocketstream.protocol import names
from rocketstream.protocol.bodies import TopicConfig
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.record import pack_host
from rocketstream.server.broker.acl import AccessGuard, AclFiles
from rocketstream.server.broker.config import BrokerConfig, is_wildcard
from rocketstream.server.broker.controller import BrokerController
from rocketstream.server.broker.core.acl.accounts import Account
from rocketstream.server.broker.core.topics import (
    SCHEDULE_QUEUES,
    SCHEDULE_TOPIC,
    SystemTopicSettings,
    system_topics,
)
from rocketstream.server.broker.flush_gate import FlushedArrivals, FlushGate
from rocketstream.server.broker.handlers.acl import AclHandlers
from rocketstream.server.broker.handlers.clients import ClientHandlers
from rocketstream.server.broker.handlers.groups import GroupHandlers
from rocketstream.server.broker.handlers.info import InfoHandlers
from rocketstream.server.broker.handlers.messages import MessageHandlers
from rocketstream.server.broker.handlers.offsets import OffsetHandlers
from rocketstream.server.broker.handlers.proxied import ProxiedHandlers
from rocketstream.server.broker.handlers.pull import PullHandlers
from rocketstream.server.broker.handlers.reply import ReplyHandlers
from rocketstream.server.broker.handlers.runtime import RuntimeHandlers
from rocketstream.server.broker.handlers.send import SendHandlers, UsualSends
from rocketstream.server.broker.handlers.send_back import SendBackHandlers
from rocketstream.server.broker.handlers.topics import TopicHandlers
from rocketstream.server.broker.handlers.transactions import TransactionHandlers
from rocketstream.server.broker.handlers.upkeep import UpkeepHandlers
from rocketstream.server.broker.messages import MessageWriter
from rocketstream.server.broker.persistence import Persistence
from rocketstream.server.broker.registration import NameServerRegistrar, Signing
from rocketstream.server.broker.schedule_service import ScheduleService
from rocketstream.server.broker.transaction_service import TransactionService
from rocketstream.server.dispatch import Dispatcher, Handler
from rocketstream.server.store import Files, MessageStore, RecoveryReport
from rocketstream.transport.client import RemotingClient
from rocketstream.transport.connection import Connection, refuse_request
from rocketstream.transport.server import RemotingServer
from rocketstream.transport.sharing import AnswerSteps, Sharing
from rocketstream.transport.tls import TlsMode

logger: logging.Logger = logging.getLogger("rocketstream.server")

EXPIRE_INTERVAL_S = 10.0
RETENTION_INTERVAL_S = 10.0
ACL_INTERVAL_S = 1.0
RETENTION_FIRST_S = 60.0
SAMPLE_INTERVAL_S = 1.0
OWN_TOPIC_PREFIXES = (
    names.RETRY_PREFIX,
    names.DLQ_PREFIX,
    names.UNDELIVERED_TOPIC,
    names.TRANS_CHECK_MAX_TIME_TOPIC,
)


class Broker:
    """One master broker.

    Args:
        config: names, addresses and behaviour.
        store_dir: the store directory, RocketMQ's own layout; made when missing.
        clock: the source of all times.
        files: the disk; the machine's by default.
        workers: what runs background work; threads by default.
        own: the account its name server knows it by; None takes an admin of its own accounts.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_dir: Path,
        clock: Clock = SYSTEM_CLOCK,
        *,
        files: Files | None = None,
        workers: Workers | None = None,
        own: Account | None = None,
    ) -> None:
        config.check()
        files = files or Files()
        workers = workers or ThreadWorkers("rocketstream-config")
        self.store: MessageStore = MessageStore(
            store_dir,
            config.store,
            clock,
            files,
            workers,
        )
        self.controller: BrokerController = BrokerController(config, self.store, clock)
        self.recovery: RecoveryReport | None = None
        self._persistence = Persistence(self.controller, store_dir, files, workers)
        if config.acl is not None:
            accounts = AclFiles(Path(config.acl), files, workers)
            self.controller.access = AccessGuard(
                accounts, clock, config.cluster_name, admin_without_tls=config.admin_without_tls
            )
        self._own = own
        self._client: RemotingClient | None = None
        self._server: RemotingServer | None = None
        self._vip_server: RemotingServer | None = None
        self._listening: tuple[ssl.SSLContext | None, TlsMode] = (None, "disabled")
        self._dispatcher: Dispatcher | None = None
        self._pulls: PullHandlers | None = None
        self._gate: FlushGate | None = None
        self._runs: UsualSends | None = None
        self._schedule: ScheduleService | None = None
        self._transactions: TransactionService | None = None
        self._registrar: NameServerRegistrar | None = None
        self._attention = Attention(EXPIRE_INTERVAL_S * 1000)
        self._timers: dict[str, asyncio.TimerHandle] = {}

    @property
    def config(self) -> BrokerConfig:
        """The settings that count now."""
        return self.controller.config

    @property
    def address(self) -> str:
        """The address for clients, ``host:port``."""
        return self.controller.address

    @property
    def codes(self) -> list[int]:
        """The request codes this broker answers, once started; all others get code 3."""
        return self._dispatcher.codes if self._dispatcher else []

    @property
    def held_pulls(self) -> int:
        """How many pulls wait for a message now."""
        return len(self._pulls.polls) if self._pulls else 0

    @property
    def undecided_transactions(self) -> int:
        """How many half messages wait for a commit or a rollback now."""
        return self._transactions.undecided if self._transactions else 0

    async def check_transactions(self) -> None:
        """Ask producers about undecided transactions now, besides the regular rounds (C-418)."""
        if self._transactions:
            await self._transactions.check()

    # --- starting --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store, listen, register. Clients can connect when this returns.

        Raises:
            PortInUseError, StoreLockedError, StoreDamagedError, DiskFullError, ConfigurationError.
        """
        try:
            await self._start()
        except CUT_SHORT:
            await self.close()
            raise

    async def _start(self) -> None:
        controller = self.controller
        if controller.access is not None:
            controller.access.files.load()
        controller.started_ms = controller.now_ms()
        controller.started_monotonic_ms = controller.monotonic_ms()
        controller.sharing = Sharing(controller.clock)
        context, tls_mode = self._listening = self.config.listening_with()
        # The port first: nothing of the store is touched if the port is in use.
        self._server = RemotingServer(
            self._dispatch,
            host=self.config.host,
            port=self.config.broker_port,
            ssl_context=context,
            tls_mode=tls_mode,
            on_close=controller.closed,
            body_bytes_max=self._request_body_bytes_max(),
            sharing=controller.sharing,
            take_frames=self._take_frames,
        )
        await self._server.start()
        controller.port = self._server.port
        if self.config.vip_port:
            await self._start_vip_port()
        controller.host = self._advertised_host()
        controller.store_host_bytes = _packed_address(controller.host, controller.port)
        self.recovery = self.store.open(repair=self.config.repair)
        self._load_tables()
        tls = self.config.tls
        context = tls.own_client_context() if tls else None
        sign = Signing(controller, self._own, is_encrypted=context is not None)
        self._client = RemotingClient(
            ssl_context=context, before_request=sign, on_close=self._name_server_lost
        )
        self._registrar = NameServerRegistrar(controller, self._client)
        controller.registrar = self._registrar
        self._build()
        await self._registrar.register()

    def _name_server_lost(self, connection: Connection) -> None:
        if self._registrar:
            self._registrar.lost(connection)

    async def _start_vip_port(self) -> None:
        """Listen two ports below the main port too, for all requests but pulls."""
        context, tls_mode = self._listening
        self._vip_server = RemotingServer(
            self._dispatch_vip,
            host=self.config.host,
            port=self.controller.port - 2,
            ssl_context=context,
            tls_mode=tls_mode,
            on_close=self.controller.closed,
            body_bytes_max=self._request_body_bytes_max(),
            sharing=self.controller.sharing,
            take_frames=self._take_frames,
        )
        await self._vip_server.start()

    def _request_body_bytes_max(self) -> int:
        return max(limits.REQUEST_JSON_BYTES_MAX, self.config.message_body_bytes_max)

    def _load_tables(self) -> None:
        controller, config = self.controller, self.config
        self._persistence.load()
        controller.saver = self._persistence
        self._find_lost_topics()
        for moved in controller.offsets.clamp(self.store.max_offset):
            logger.warning("condition=OFFSET_BEYOND_QUEUE moved to the end: %s", moved)
        now_ms = controller.now_ms()
        settings = SystemTopicSettings(
            cluster_name=config.cluster_name,
            broker_name=config.broker_name,
            auto_create=config.auto_create_topics,
            default_queue_nums=config.default_topic_queue_nums,
            trace=config.trace_topic,
            trace_topic=config.trace_topic_name,
            schedule_queues=max(SCHEDULE_QUEUES, len(controller.schedule.levels)),
        )
        if controller.topics.ensure_system_topics(system_topics(settings), now_ms):
            self._persistence.save_topics()
        delayed = controller.topics.get(SCHEDULE_TOPIC)
        controller.schedule.keep(0 if delayed is None else delayed.write_queue_nums)
        if controller.groups.ensure_system_groups(now_ms):
            self._persistence.save_groups()

    def _find_lost_topics(self) -> None:
        """Bring back topics of the broker's own that a kill left without an entry.

        Such topics are made while a message is handled and persisted a moment later.
        """
        controller = self.controller
        for topic in self.store.topics():
            if topic.startswith(OWN_TOPIC_PREFIXES) and controller.topics.get(topic) is None:
                queues = min(self.store.queue_ids(topic)[-1] + 1, limits.TOPIC_QUEUES_MAX)
                # Whether there is room or not: messages in it wait to be consumed.
                config = TopicConfig(topic, read_queue_nums=queues, write_queue_nums=queues)
                controller.topics.put(config, controller.now_ms())
                logger.info(
                    "topic %s has queues but was missing in the file of topics; it is taken "
                    "in again",
                    topic,
                )

    def _build(self) -> None:
        controller = self.controller
        if self.config.flush == "sync":
            self._gate = FlushGate(self.store, self.config.flush_timeout_ms)
        writer = MessageWriter(controller)
        offsets = OffsetHandlers(controller)
        pulls = self._pulls = PullHandlers(controller, offsets, writer)
        schedule = self._schedule = ScheduleService(controller, writer)
        transactions = self._transactions = TransactionService(controller, writer)
        sends = SendHandlers(controller, writer, self._gate, transactions)
        table: dict[int, Handler] = {}
        for part in (
            sends,
            ReplyHandlers(controller, writer, sends),
            TransactionHandlers(controller, transactions),
            pulls,
            offsets,
            ClientHandlers(controller),
            SendBackHandlers(controller, writer, self._gate),
            TopicHandlers(controller),
            GroupHandlers(controller),
            MessageHandlers(controller),
            InfoHandlers(controller),
            RuntimeHandlers(controller),
            ProxiedHandlers(controller),
            UpkeepHandlers(controller, transactions),
        ):
            table.update(part.table())
        if controller.access is not None:
            accounts = controller.access.files
            table.update(AclHandlers(controller, accounts).table())
            self._every("acl", ACL_INTERVAL_S, accounts.poll)
        self._dispatcher = Dispatcher("broker", table, sends.refuse_oversized, controller.access)
        if controller.access is None:  # rights are checked for each request singly
            self._runs = sends.runs
        arrived = _arrivals(pulls, schedule)
        gate = self._gate
        self.store.on_arrival = FlushedArrivals(self.store, gate, arrived) if gate else arrived
        schedule.start()
        transactions.start()
        self._persistence.start()
        self._every("expire", EXPIRE_INTERVAL_S, self._expire_members)
        self._every("sample", SAMPLE_INTERVAL_S, controller.sample)
        self._every("retention", RETENTION_INTERVAL_S, self._delete_expired, RETENTION_FIRST_S)

    def _dispatch(self, connection: Connection, request: RemotingCommand) -> AnswerSteps | None:
        dispatcher = self._dispatcher
        if dispatcher is None:
            connection.close("the broker is not ready yet")
            return None
        return dispatcher(connection, request)

    def _take_frames(
        self,
        connection: Connection,
        data: bytes | bytearray,
        position: int,
        until: Callable[[], bool],
    ) -> int:
        runs = self._runs
        return position if runs is None else runs.take(connection, data, position, until)

    def _dispatch_vip(self, connection: Connection, request: RemotingCommand) -> AnswerSteps | None:
        if request.code == RequestCode.PULL_MESSAGE:
            refuse_request(connection, request)
            return None
        return self._dispatch(connection, request)

    def _advertised_host(self) -> str:
        host = self.config.advertise_host or self.config.host
        return _outward_address() if is_wildcard(host) else host

    def _every(
        self, name: str, interval_s: float, work: Callable[[], None], first_s: float | None = None
    ) -> None:
        def tick() -> None:
            self._every(name, interval_s, work)
            work()

        delay_s = interval_s if first_s is None else first_s
        self._timers[name] = asyncio.get_running_loop().call_later(delay_s, tick)

    def _expire_members(self) -> None:
        """Remove silent clients; how long the broker stood still is not their silence."""
        controller = self.controller
        controller.expire_members(self._attention.look(controller.monotonic_ms()))
        controller.tell_fullness()

    def _delete_expired(self) -> None:
        """Remove commit log files past their time (C-439); tried again in the next round."""
        try:
            removed = self.store.delete_expired()
        except OSError as error:
            logger.error("broker: cannot remove expired files of %s: %s", self.store.root, error)
        else:
            if removed:
                logger.info("broker: removed %d expired commit log files", removed)

    # --- stopping --------------------------------------------------------------------------------

    async def close(self) -> None:
        """Unregister, answer the waiting requests, persist everything. May be called twice.

        A caller that is cancelled waits for no peer any longer; the rest is done all the same.
        """
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        servers = [server.close for server in (self._server, self._vip_server) if server]
        await take_all(
            self._unregister,
            self._answer_waiting,
            *servers,
            self._leave_network,
            self.controller.close_tasks,
            self._keep_counts,
            self._keep_tables,
            self._close_store,
        )

    async def _unregister(self) -> None:
        registrar, self._registrar = self._registrar, None
        if registrar:
            await registrar.close()

    async def _answer_waiting(self) -> None:
        for part in (self._schedule, self._transactions, self._pulls, self._gate):
            if part:
                part.close()

    async def _leave_network(self) -> None:
        if self.controller.sharing:
            self.controller.sharing.close()
        if self._client:
            await self._client.close()

    async def _keep_counts(self) -> None:
        self.controller.statistics.keep()

    async def _keep_tables(self) -> None:
        self._persistence.close()

    async def _close_store(self) -> None:
        """Flushing may take a while; nothing else is left to do on this loop."""
        self.store.close()


def _arrivals(
    pulls: PullHandlers, schedule: ScheduleService
) -> Callable[[str, int, int, int], None]:
    """Return the function to be called for each message that becomes readable."""
    is_awaited = pulls.polls.is_awaited

    def arrived(topic: str, queue_id: int, max_offset: int, tags_code: int) -> None:
        if topic == SCHEDULE_TOPIC:
            schedule.arrived(queue_id)
        if is_awaited(topic, queue_id):
            pulls.arrived(topic, queue_id, max_offset, tags_code)

    return arrived


def _packed_address(host: str, port: int) -> bytes:
    """Return the address as records carry it, resolving a name.

    Raises:
        ConfigurationError: the name has no address.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigurationError(
            f"advertise_host {host!r} has no address ({error}); give an address clients can reach",
            advertise_host=host,
        ) from None
    return pack_host(str(found[0][4][0]), port)


def _outward_address() -> str:
    """Return the address this machine uses towards others; loopback without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # No packet is sent: connecting a datagram socket only chooses a route.
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
