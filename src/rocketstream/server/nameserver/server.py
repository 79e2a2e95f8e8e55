"""The name server: a listening socket, the tables, and the expiry scan; ``core.routes`` decides."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from rocketstream._util.clock import SYSTEM_CLOCK, Attention, Clock
from rocketstream._util.ending import take_all
from rocketstream._util.workers import ThreadWorkers, Workers
from rocketstream.errors import StoreError
from rocketstream.protocol.bodies import KVConfigSerializeWrapper
from rocketstream.server.dispatch import Dispatcher, Guard
from rocketstream.server.nameserver.core.routes import KeyValueTable, RouteTable
from rocketstream.server.nameserver.handlers import NameServerHandlers
from rocketstream.server.state_file import StateFile
from rocketstream.server.store import ConfigFile, Files
from rocketstream.transport.connection import Connection
from rocketstream.transport.server import RemotingServer
from rocketstream.transport.tls import TlsMode

logger: logging.Logger = logging.getLogger("rocketstream.server")

SCAN_INTERVAL_S = 10.0
SETTINGS_INTERVAL_MS = 5_000


class NameServer:
    """A name server on one port.

    Args:
        host: address to listen on.
        port: 0 takes a free one; see ``address`` after ``start``.
        clock: gives the time of registrations.
        ssl_context: serves TLS with it when given.
        tls_mode: whether plain text is served on the same port.
        settings_path: the file that keeps the settings of codes 100 and 102 (upstream's
            kvConfigPath); None keeps them in memory only.
        files: the disk; the machine's by default.
        workers: runs the writing of that file; a thread by default.
        guard: asked before each request, where there are accounts.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 9876,
        clock: Clock = SYSTEM_CLOCK,
        ssl_context: ssl.SSLContext | None = None,
        tls_mode: TlsMode = "permissive",
        settings_path: Path | None = None,
        files: Files | None = None,
        workers: Workers | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.routes: RouteTable = RouteTable()
        self.settings: KeyValueTable = KeyValueTable()
        self._clock = clock
        self._workers = workers or ThreadWorkers("rocketstream-namesrv")
        self._file: StateFile[KVConfigSerializeWrapper] | None = None
        if settings_path is not None:
            self._file = StateFile(
                ConfigFile(settings_path, KVConfigSerializeWrapper.decode_file, files),
                lambda: self.settings.generation,
                self.settings.snapshot,
                self._workers,
                SETTINGS_INTERVAL_MS,
            )
        written = self._file.written if self._file else None
        self.dispatcher: Dispatcher = Dispatcher(
            "name server",
            NameServerHandlers(self.routes, self.settings, clock, written).table(),
            guard=guard,
        )
        self._server = RemotingServer(
            self.dispatcher,
            host=host,
            port=port,
            ssl_context=ssl_context,
            tls_mode=tls_mode,
            on_close=self._closed,
            clock=clock,
        )
        self._scan: asyncio.TimerHandle | None = None
        self._attention = Attention(SCAN_INTERVAL_S * 1000)

    @property
    def address(self) -> str:
        """``host:port`` listened on, once started."""
        return self._server.address

    @property
    def port(self) -> int:
        """The port listened on, once started."""
        return self._server.port

    async def start(self) -> None:
        """Read the settings, and listen.

        Raises:
            PortInUseError: the port is taken.
            StoreDamagedError: the file of the settings and its backup cannot be read.
        """
        settings = self._file.load() if self._file else None
        if self._file and settings is not None:
            self.settings.load(settings)
            self._file.loaded()
        await self._server.start()
        self._scan_later()

    async def close(self) -> None:
        """Stop listening, close every connection and write the settings.

        A caller that is cancelled waits no longer; the rest is done all the same.
        """
        if self._scan:
            self._scan.cancel()
            self._scan = None
        await take_all(self._server.close, self._keep)

    async def _keep(self) -> None:
        if self._file:
            self._file.stop()
            self._workers.close()
            try:
                self._file.close()
            except StoreError as error:
                logger.error("%s", error)

    def _scan_later(self) -> None:
        self._scan = asyncio.get_running_loop().call_later(SCAN_INTERVAL_S, self._scan_now)

    def _scan_now(self) -> None:
        self._attention.look(self._clock.monotonic_ms())
        self.expire()
        if self._file:
            self._file.tick(asyncio.get_running_loop().time())
        self._scan_later()

    def expire(self) -> None:
        """Remove brokers silent for 120 s and close their connections.

        Silence before this server stood still, and meanwhile, does not count.
        """
        since_ms = self._attention.since_ms
        for channel in self.routes.expire(self._clock.monotonic_ms(), since_ms):
            if isinstance(channel, Connection):
                channel.close("the broker was silent for 120 s")

    def _closed(self, connection: Connection) -> None:
        for identity in self.routes.channel_closed(connection):
            logger.info("broker %s %s left", identity.name, identity.address)
