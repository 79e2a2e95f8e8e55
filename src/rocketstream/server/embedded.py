"""Name server and broker together in this process: for tests, laptops and single-node use.

Law: starts, stops and says where things are; the work is the name server's and the broker's.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream._util.loops import LoopThread, new_event_loop
from rocketstream._util.workers import Workers
from rocketstream.errors import ClientStateError, ConfigurationError
from rocketstream.protocol.bodies import TopicConfig
from rocketstream.protocol.names import check_topic
from rocketstream.server.broker import Broker, BrokerConfig
from rocketstream.server.broker.config import is_loopback, is_wildcard
from rocketstream.server.broker.core.schedule import DEFAULT_DELAY_LEVELS
from rocketstream.server.collector import Collector
from rocketstream.server.nameserver import NameServer
from rocketstream.server.store import Files, StoreConfig
from rocketstream.transport.addresses import format_address

__all__ = ["SMALL_STORE", "EmbeddedCluster", "ReadyInfo", "serve"]

SMALL_STORE = StoreConfig(
    commit_log_file_bytes=64 * 1024 * 1024,
    consume_queue_file_bytes=30_000 * 20,
    index_slots=100_000,
    index_entries=400_000,
)
"""File sizes for stores that are thrown away: disk space is reserved in small steps."""


@dataclass(frozen=True, slots=True)
class ReadyInfo:
    """Where a running cluster is."""

    namesrv_addr: str
    broker_addr: str
    store_dir: Path


def _with_file_bytes(config: StoreConfig, commit_log_file_bytes: int | None) -> StoreConfig:
    if commit_log_file_bytes is None:
        return config
    return dataclasses.replace(config, commit_log_file_bytes=commit_log_file_bytes)


class EmbeddedCluster:
    """A name server and one broker, ready for clients when started.

    A context manager, sync (the servers run on a thread of their own) or async (they run on the
    caller's loop). Times are milliseconds.

    Args:
        store_dir: the store directory, in RocketMQ's own layout; None makes a temporary one that
            is deleted at the end.
        host: address to listen on; anything but loopback needs ``insecure=True``.
        namesrv_port: 0 takes a free one.
        broker_port: 0 takes a free one.
        flush: ``sync`` acknowledges a message only when it is on the disk.
        delay_levels: delays of level 1, 2, …, such as ``1s 5s 10m``; None takes upstream's.
        auto_create_topics: whether a send creates its topic.
        auto_create_groups: whether a consumer creates its group.
        advertise_host: address clients are told; None takes ``host``.
        commit_log_file_bytes: size of a commit log file; None takes what ``store_config`` says.
        store_config: sizes of the store's files; None takes upstream's, and small ones for a
            temporary directory.
        insecure: allow an address that others can reach although there is no access control.
        store_reply_message: whether replies to requests are stored besides being pushed.
        reject_transaction_message: refuse transactional sends.
        transaction_timeout_ms: how old a half message is before its producer is asked.
        transaction_check_interval_ms: how often producers are asked about half messages.
        transaction_check_max: so many questions later a half message is given up.
        trace_topic: make the topic of message trace at the start; a send makes it too.
        enable_property_filter: take SQL92 subscriptions.
        filter_support_retry: filter retried messages by the condition on their first topic too.
        vip_port: whether the broker listens two ports below its own as well.
        repair: open a damaged store, setting what is damaged aside.
        ssl_context: both servers speak TLS as well as plain text with it, on the same ports.
        clock: where all times come from.
        files: the disk of both servers; the machine's by default.
        workers: who works in the background; threads by default.

    Raises:
        ConfigurationError: a value that is not accepted.
    """

    def __init__(
        self,
        store_dir: Path | str | None = None,
        *,
        host: str = "127.0.0.1",
        namesrv_port: int = 0,
        broker_port: int = 0,
        flush: Literal["async", "sync"] = "async",
        delay_levels: str | None = None,
        auto_create_topics: bool = True,
        auto_create_groups: bool = True,
        broker_name: str = "broker-a",
        cluster_name: str = "DefaultCluster",
        advertise_host: str | None = None,
        commit_log_file_bytes: int | None = None,
        store_config: StoreConfig | None = None,
        insecure: bool = False,
        store_reply_message: bool = True,
        reject_transaction_message: bool = False,
        transaction_timeout_ms: int = 6_000,
        transaction_check_interval_ms: int = 60_000,
        transaction_check_max: int = 15,
        trace_topic: bool = False,
        enable_property_filter: bool = True,
        filter_support_retry: bool = False,
        vip_port: bool = False,
        repair: bool = False,
        ssl_context: ssl.SSLContext | None = None,
        clock: Clock = SYSTEM_CLOCK,
        files: Files | None = None,
        workers: Workers | None = None,
    ) -> None:
        check_exposure(host, insecure)
        if store_config is None:
            store_config = SMALL_STORE if store_dir is None else StoreConfig()
        self._config = BrokerConfig(
            broker_name=broker_name,
            cluster_name=cluster_name,
            host=host,
            port=broker_port,
            advertise_host=advertise_host,
            flush=flush,
            delay_levels=delay_levels or DEFAULT_DELAY_LEVELS,
            auto_create_topics=auto_create_topics,
            auto_create_groups=auto_create_groups,
            store=_with_file_bytes(store_config, commit_log_file_bytes),
            store_reply_message=store_reply_message,
            reject_transaction_message=reject_transaction_message,
            transaction_timeout_ms=transaction_timeout_ms,
            transaction_check_interval_ms=transaction_check_interval_ms,
            transaction_check_max=transaction_check_max,
            trace_topic=trace_topic,
            enable_property_filter=enable_property_filter,
            filter_support_retry=filter_support_retry,
            vip_port=vip_port,
            repair_store=repair,
            ssl_context=ssl_context,
        )
        self._config.check()
        self._store_dir = Path(store_dir) if store_dir is not None else None
        self._temporary: Path | None = None
        self._namesrv_port = namesrv_port
        self._clock = clock
        self._files = files or Files()
        self._workers = workers
        self._thread: LoopThread | None = None
        self._nameserver: NameServer | None = None
        self._broker: Broker | None = None

    # --- where things are ------------------------------------------------------------------------

    @property
    def nameserver(self) -> NameServer:
        """The running name server; only its own loop may touch it."""
        if self._nameserver is None:
            raise ClientStateError("the cluster is not running; start() it first")
        return self._nameserver

    @property
    def broker(self) -> Broker:
        """The running broker; only its own loop may touch it."""
        if self._broker is None:
            raise ClientStateError("the cluster is not running; start() it first")
        return self._broker

    @property
    def namesrv_addr(self) -> str:
        """``host:port`` that clients are given."""
        return format_address(self.broker.controller.host, self.nameserver.port)

    @property
    def broker_addr(self) -> str:
        """``host:port`` of the broker."""
        return self.broker.address

    @property
    def store_dir(self) -> Path:
        """The store directory."""
        found = self._store_dir or self._temporary
        if found is None:
            raise ClientStateError("the cluster is not running; start() it first")
        return found

    @property
    def ready_info(self) -> ReadyInfo:
        """All addresses at once."""
        return ReadyInfo(self.namesrv_addr, self.broker_addr, self.store_dir)

    # --- sync ------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start both servers on a thread of their own; ready for clients when this returns.

        Raises:
            PortInUseError: a port is taken.
            StoreLockedError: another process uses the store directory.
            StoreDamagedError: the store cannot be recovered; nothing was deleted.
            ClientStateError: already started.
        """
        if self._thread is not None or self._broker is not None:
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
        """Stop both servers, writing everything down; blocks. May be called twice."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            thread.run(self.close_async())
        finally:
            thread.close()

    def create_topic(self, name: str, queues: int = 4, perm: int = 6) -> None:
        """Create or change a topic; its route answers when this returns.

        Raises:
            ConfigurationError: a name that is not accepted.
        """
        if self._thread is None:
            raise ClientStateError("the cluster is not running; start() it first")
        self._thread.run(self.create_topic_async(name, queues, perm))

    def check_transactions(self) -> None:
        """Ask producers about undecided transactions now, as the regular check does.

        Messages younger than ``transaction_timeout_ms`` are left alone.
        """
        if self._thread is None:
            raise ClientStateError("the cluster is not running; start() it first")
        self._thread.run(self.broker.check_transactions())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- async -----------------------------------------------------------------------------------

    async def start_async(self) -> Self:
        """Start both servers on the running loop; raises as ``start`` does."""
        if self._broker is not None:
            raise ClientStateError("the cluster is running already")
        try:
            await self._start_servers()
        except BaseException:
            await self.close_async()
            raise
        return self

    async def _start_servers(self) -> None:
        if self._store_dir is None:
            self._temporary = self._files.make_temporary_directory("rocketstream-")
        config = self._config
        nameserver = NameServer(
            host=config.host,
            port=self._namesrv_port,
            clock=self._clock,
            ssl_context=config.ssl_context,
            settings_path=self.store_dir / "namesrv" / "kvConfig.json",
            files=self._files,
            workers=self._workers,
        )
        await nameserver.start()
        self._nameserver = nameserver
        near = "127.0.0.1" if is_wildcard(config.host) else config.host
        address = format_address(near, nameserver.port)
        config = dataclasses.replace(config, namesrv_addrs=(address,))
        broker = Broker(
            config, self.store_dir, self._clock, files=self._files, workers=self._workers
        )
        await broker.start()
        self._broker = broker

    async def close_async(self) -> None:
        """Stop both servers. May be called twice."""
        broker, self._broker = self._broker, None
        nameserver, self._nameserver = self._nameserver, None
        try:
            if broker is not None:
                await broker.close()
        finally:
            if nameserver is not None:
                await nameserver.close()
            temporary, self._temporary = self._temporary, None
            if temporary is not None:
                self._files.remove_tree(temporary)

    async def create_topic_async(self, name: str, queues: int = 4, perm: int = 6) -> None:
        """As ``create_topic``, on the cluster's own loop."""
        check_topic(name)
        controller = self.broker.controller
        config = TopicConfig(name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
        await controller.put_topic(config)

    async def __aenter__(self) -> Self:
        return await self.start_async()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close_async()


def check_exposure(host: str, insecure: bool) -> None:
    """Refuse to be reachable by others without having been told so.

    Raises:
        ConfigurationError: ``host`` is not loopback and ``insecure`` is false.
    """
    if not insecure and not is_loopback(host):
        raise ConfigurationError(
            f"host {host!r} can be reached from other machines and there is no access control: "
            "use 127.0.0.1, or allow it with --insecure (insecure=True)",
            host=host,
        )


def serve(cluster: EmbeddedCluster, on_ready: Callable[[ReadyInfo], None]) -> None:
    """Run a cluster until SIGINT or SIGTERM; blocks. Call it from the main thread.

    Args:
        cluster: not started yet.
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
        collector = Collector(asyncio.get_running_loop())
        collector.start()
        try:
            on_ready(cluster.ready_info)
            await stop.wait()
        finally:
            collector.close()
            await cluster.close_async()


@contextlib.contextmanager
def _stopping_signals(stop: asyncio.Event) -> Iterator[None]:
    """Set ``stop`` on SIGINT and SIGTERM while the context lasts."""
    loop = asyncio.get_running_loop()
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.getsignal(kind) for kind in kinds}
    for kind in kinds:
        # Plain handlers work on every system and every loop; the call wakes the loop.
        signal.signal(kind, lambda *_: loop.call_soon_threadsafe(stop.set))
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
