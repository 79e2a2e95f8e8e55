"""Name server and broker together in this process: for tests, laptops and single-node use."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self, Unpack

from rocketstream._util.ending import CUT_SHORT
from rocketstream._util.loops import LoopThread, new_event_loop
from rocketstream._util.workers import ThreadWorkers
from rocketstream.checks import check_range
from rocketstream.errors import (
    ClientStateError,
    ConfigurationError,
    ForkedClientError,
    StoreError,
)
from rocketstream.limits import TOPIC_QUEUES_MAX
from rocketstream.protocol.addresses import format_address
from rocketstream.protocol.bodies import TopicConfig
from rocketstream.protocol.codes import Perm
from rocketstream.protocol.names import check_topic
from rocketstream.server.broker import Broker
from rocketstream.server.broker.acl import AclFiles, NameServerGuard, random_account
from rocketstream.server.broker.config import is_wildcard
from rocketstream.server.broker.core.acl.accounts import Account
from rocketstream.server.gc_scheduler import GcScheduler
from rocketstream.server.keywords import EmbeddedKeywords
from rocketstream.server.nameserver import NameServer
from rocketstream.server.settings import SMALL_STORE, EmbeddedSettings
from rocketstream.server.store import Files

__all__ = ["SMALL_STORE", "EmbeddedCluster", "EmbeddedSettings", "ReadyInfo", "serve"]


NOT_RUNNING = "the cluster is not running; start() it first"


@dataclass(frozen=True, slots=True)
class ReadyInfo:
    """The addresses of a running cluster.

    Attributes:
        namesrv_addr: the name server, or the ones that were joined, separated by ``;``.
        broker_addr: the first broker; empty without a broker.
        store_dir: the store directory.
        broker_addrs: all brokers.
    """

    namesrv_addr: str
    broker_addr: str
    store_dir: Path
    broker_addrs: tuple[str, ...] = ()


class EmbeddedCluster:
    """A name server and a broker, or several, ready for clients when started.

    A context manager, sync (the servers run on a thread of their own) or async (they run on the
    caller's loop). Times are milliseconds.

    Args:
        store_dir: the store directory, in RocketMQ's own layout; None makes a temporary directory
            that is deleted at the end.
        settings: everything else; None takes the defaults.
        changes: settings by name that differ from ``settings``, so that
            ``EmbeddedCluster(flush="sync")`` does.

    Raises:
        ConfigurationError: a value is not accepted, or a name is not that of a setting.
    """

    def __init__(
        self,
        store_dir: Path | str | None = None,
        settings: EmbeddedSettings | None = None,
        **changes: Unpack[EmbeddedKeywords],
    ) -> None:
        settings = (settings or EmbeddedSettings()).changed(**changes)
        settings.check()
        if settings.store_config is None and store_dir is None:
            settings = settings.changed(store_config=SMALL_STORE)
        self.settings = settings
        is_path = isinstance(store_dir, str) or hasattr(store_dir, "__fspath__")
        if store_dir is not None and not (is_path and str(store_dir)):
            raise ConfigurationError(
                f"store_dir must be a path, or None for a temporary directory; given is "
                f"{store_dir!r}"
            )
        self._store_dir = Path(store_dir) if store_dir is not None else None
        self._temporary: Path | None = None
        self._files = settings.files or Files()
        self._thread: LoopThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._nameserver: NameServer | None = None
        self._brokers: list[Broker] = []
        self._is_running = False

    # --- where things are ------------------------------------------------------------------------

    def __repr__(self) -> str:
        if not self._is_running:
            return "EmbeddedCluster(not running)"
        brokers = [broker.config.broker_name for broker in self._brokers]
        return f"EmbeddedCluster(namesrv_addr={self.namesrv_addr!r}, brokers={brokers})"

    @property
    def nameserver(self) -> NameServer:
        """The running name server; only its own loop may use it."""
        if self._nameserver is None:
            raise ClientStateError(
                f"there is no name server here: {self.namesrv_addr} was joined"
                if self._is_running
                else NOT_RUNNING
            )
        return self._nameserver

    @property
    def broker(self) -> Broker:
        """The running broker, the first of several; only its own loop may use it."""
        if not self._brokers:
            raise ClientStateError(
                "there is no broker: the name server was started alone (brokers=0)"
                if self._is_running
                else NOT_RUNNING
            )
        return self._brokers[0]

    @property
    def brokers(self) -> tuple[Broker, ...]:
        """The running brokers; only their own loop may use them."""
        return tuple(self._brokers)

    @property
    def namesrv_addr(self) -> str:
        """Address of the name server for clients, ``host:port``; several separated by ``;``."""
        if not self._is_running:
            raise ClientStateError(NOT_RUNNING)
        if self.settings.namesrv_addrs:
            return ";".join(self.settings.namesrv_addrs)
        host = self._brokers[0].controller.host if self._brokers else self._near_host
        return format_address(host, self.nameserver.port)

    @property
    def _near_host(self) -> str:
        settings = self.settings
        host = settings.advertise_host or settings.host
        return "127.0.0.1" if is_wildcard(host) else host

    @property
    def broker_addr(self) -> str:
        """``host:port`` of the broker, the first of several."""
        return self.broker.address

    @property
    def broker_addrs(self) -> tuple[str, ...]:
        """``host:port`` of every broker."""
        return tuple(broker.address for broker in self._brokers)

    @property
    def store_dir(self) -> Path:
        """The store directory."""
        found = self._store_dir or self._temporary
        if found is None:
            raise ClientStateError(NOT_RUNNING)
        return found

    @property
    def ready_info(self) -> ReadyInfo:
        """All addresses at once."""
        addresses = self.broker_addrs
        first = addresses[0] if addresses else ""
        return ReadyInfo(self.namesrv_addr, first, self.store_dir, addresses)

    # --- sync ------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start both servers on a thread of their own; ready for clients when this returns.

        Raises:
            PortInUseError: a port is taken.
            StoreLockedError: another process uses the store directory.
            StoreDamagedError: the store is damaged and cannot be recovered; nothing was deleted.
            ClientStateError: already started.
        """
        if self._thread is not None or self._is_running:
            raise ClientStateError("the cluster is running already")
        self._thread = LoopThread("rocketstream-server")
        try:
            self._thread.run(self.start_async())
        except BaseException:
            thread, self._thread = self._thread, None
            thread.close()
            raise
        return self

    def close(self) -> None:
        """Stop both servers and persist everything; blocks. May be called twice.

        Raises:
            ClientStateError: the cluster runs on an event loop.
        """
        if self._thread is None and not self._is_running:
            return
        thread, self._thread = self._own_thread("close"), None
        try:
            thread.run(self.close_async())
        finally:
            thread.close()

    def create_topic(self, name: str, queues: int = 4, perm: int = 6) -> None:
        """Create or change a topic on every broker; when this returns, name servers know its route.

        Args:
            name: its name.
            queues: number of queues on each broker.
            perm: 6 to read and write, 4 to read, 2 to write.

        Raises:
            ConfigurationError: a name or number that is not accepted.
        """
        self._own_thread("create_topic").run(self.create_topic_async(name, queues, perm))

    def check_transactions(self) -> None:
        """Ask producers about undecided transactions now, as the regular check does.

        Messages younger than ``transaction_timeout_ms`` are not checked.
        """
        self._own_thread("check_transactions").run(self.check_transactions_async())

    def _own_thread(self, call: str) -> LoopThread:
        if self._thread is None:
            raise ClientStateError(
                f"the cluster runs on an event loop: await {call}_async() there"
                if self._is_running
                else NOT_RUNNING
            )
        return self._thread

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(ForkedClientError):  # in a forked child it stays the parent's
            self.close()

    # --- async -----------------------------------------------------------------------------------

    async def start_async(self) -> Self:
        """Start both servers on the running loop; raises as ``start`` does."""
        if self._is_running:
            raise ClientStateError("the cluster is running already")
        self._loop = asyncio.get_running_loop()
        try:
            await self._start_servers()
        except CUT_SHORT:
            await self.close_async()
            raise
        return self

    async def _start_servers(self) -> None:
        if self._store_dir is None:
            self._temporary = self._files.make_temporary_directory("rocketstream-")
        self._check_directory(self.store_dir)
        settings = self.settings
        self._is_running = True
        context, tls_mode = settings.listening_with()
        addresses = settings.namesrv_addrs
        own = random_account() if settings.acl is not None and not addresses else None
        if not addresses:
            nameserver = NameServer(
                host=settings.host,
                port=settings.namesrv_port,
                clock=settings.clock,
                ssl_context=context,
                tls_mode=tls_mode,
                settings_path=self.store_dir / "namesrv" / "kvConfig.json",
                files=self._files,
                workers=settings.workers,
                guard=self._name_server_guard(own),
            )
            await nameserver.start()
            self._nameserver = nameserver
            near = "127.0.0.1" if is_wildcard(settings.host) else settings.host
            addresses = (format_address(near, nameserver.port),)
        for number in range(settings.brokers):
            config = settings.of_broker(number, addresses)
            root = self.store_dir / config.broker_name if settings.brokers > 1 else self.store_dir
            broker = Broker(
                config, root, settings.clock, files=self._files, workers=settings.workers, own=own
            )
            await broker.start()
            self._brokers.append(broker)

    def _check_directory(self, wanted: Path) -> None:
        there = next((each for each in (wanted, *wanted.parents) if self._files.exists(each)), None)
        if there is not None and not self._files.is_dir(there):
            raise StoreError(
                f"the store directory {wanted} cannot be: {there} is a file; give another one"
            )

    def _on_own_loop(self, call: str) -> None:
        if self._is_running and asyncio.get_running_loop() is not self._loop:
            raise ClientStateError(
                f"the cluster was started on another event loop: await {call}_async() there"
                if self._thread is None
                else f"the cluster runs on a thread of its own: {call}(), not {call}_async()"
            )

    def _name_server_guard(self, own: Account | None) -> NameServerGuard | None:
        """Return the guard of the name server; None where there are no accounts."""
        settings = self.settings
        if settings.acl is None or own is None:
            return None
        workers = settings.workers or ThreadWorkers("rocketstream-namesrv")
        accounts = AclFiles(Path(settings.acl), self._files, workers)
        accounts.load()
        return NameServerGuard(
            accounts, settings.clock, own, admin_without_tls=settings.admin_without_tls
        )

    async def close_async(self) -> None:
        """Stop all servers. May be called twice.

        Raises:
            ClientStateError: the cluster runs on a thread of its own, or on another loop.
        """
        self._on_own_loop("close")
        brokers, self._brokers = self._brokers, []
        nameserver, self._nameserver = self._nameserver, None
        self._is_running = False
        temporary, self._temporary = self._temporary, None
        async with contextlib.AsyncExitStack() as closing:
            if temporary is not None:
                closing.callback(self._files.remove_tree, temporary)
            if nameserver is not None:
                closing.push_async_callback(nameserver.close)
            for broker in brokers:
                closing.push_async_callback(broker.close)

    async def create_topic_async(self, name: str, queues: int = 4, perm: int = 6) -> None:
        """Create or change a topic on the cluster's own loop, as ``create_topic`` does."""
        self._on_own_loop("create_topic")
        check_topic(name)
        check_range("queues", queues, 1, TOPIC_QUEUES_MAX)
        check_range("perm", perm, 0, Perm.READ | Perm.WRITE | Perm.INHERIT)  # as code 17 takes it
        config = TopicConfig(name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
        if not self._brokers:
            _ = self.broker  # raises an error that names the missing server
        for broker in self._brokers:
            await broker.controller.put_topic(config)

    async def check_transactions_async(self) -> None:
        """Ask producers on the cluster's own loop, as ``check_transactions`` does."""
        self._on_own_loop("check_transactions")
        for broker in self._brokers:
            await broker.check_transactions()

    async def __aenter__(self) -> Self:
        return await self.start_async()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close_async()


def serve(cluster: EmbeddedCluster, on_ready: Callable[[ReadyInfo], None]) -> None:
    """Run a cluster until SIGINT or SIGTERM; blocks. Call it from the main thread.

    Args:
        cluster: a cluster that was not started yet.
        on_ready: called once clients can connect.

    Raises:
        As ``EmbeddedCluster.start``.
    """
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(cluster, on_ready))


async def _serve(cluster: EmbeddedCluster, on_ready: Callable[[ReadyInfo], None]) -> None:
    stop = asyncio.Event()
    with _stopping_signals(stop):
        await cluster.start_async()
        scheduler = GcScheduler(asyncio.get_running_loop())
        scheduler.start()
        try:
            on_ready(cluster.ready_info)
            await stop.wait()
        finally:
            scheduler.close()
            await cluster.close_async()


@contextlib.contextmanager
def _stopping_signals(stop: asyncio.Event) -> Iterator[None]:
    """Set ``stop`` on SIGINT and SIGTERM while the context lasts; a second SIGINT ends at once.

    A second SIGINT leaves the store as a kill does; the next start recovers it.
    """
    loop = asyncio.get_running_loop()
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.getsignal(kind) for kind in kinds}

    def end(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
        loop.call_soon_threadsafe(stop.set)

    for kind in kinds:
        # Plain handlers work on every system and with every loop; the call wakes the loop.
        signal.signal(kind, end)
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
