"""A listening port: accepts connections, plain or TLS by their first byte, and drains on close.

Requests go to the given handler.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any

from rocketstream import limits
from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream._util.ending import take_all
from rocketstream.errors import (
    ClientStateError,
    ConfigurationError,
    NotSupportedError,
    PortInUseError,
    ServerError,
)
from rocketstream.protocol.addresses import format_address
from rocketstream.transport.connection import Connection, ConnectionLimits, RequestHandler
from rocketstream.transport.served import FramesTaker, ServedConnection
from rocketstream.transport.sharing import Sharing
from rocketstream.transport.tls import TLS_MODES, TlsMode

logger: logging.Logger = logging.getLogger("rocketstream.transport")

TLS_FIRST_BYTE = b"\x16"
_BACKLOG = 1024
_ACCEPTS_PER_PASS = 8
"""Peers that connect faster than they can be served must not keep connected peers waiting."""
_HANDSHAKE_TIMEOUT_S = 10.0
_ACCEPT_PAUSE_S = 1.0


class RemotingServer:
    """Listens on one port and runs a ``Connection`` for each peer.

    Attributes:
        connections: the connections open now.
        host: address listened on.
        port: port listened on; the real one once started.
    """

    def __init__(
        self,
        on_request: RequestHandler,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        ssl_context: ssl.SSLContext | None = None,
        tls_mode: TlsMode = "permissive",
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
        idle_close_ms: float = limits.IDLE_CLOSE_MS,
        connections_max: int = limits.CONNECTIONS_MAX,
        body_bytes_max: int = limits.REQUEST_BODY_BYTES_MAX,
        bounds: ConnectionLimits | None = None,
        sharing: Sharing | None = None,
        clock: Clock = SYSTEM_CLOCK,
        take_frames: FramesTaker | None = None,
    ) -> None:
        """Keep the settings; nothing listens before ``start``.

        Args:
            on_request: called on the loop for each request of a peer; must not block.
            host: address to listen on.
            port: port to listen on; 0 takes a free one.
            ssl_context: certificate to speak TLS with.
            tls_mode: ``disabled``, ``permissive`` (TLS and plain on the same port) or
                ``enforcing``, as upstream's tls.server.mode.
            on_open: called when a connection is ready.
            on_close: called when a connection is gone.
            idle_close_ms: close a connection after this long without traffic; 0 means never.
            connections_max: further connections are closed at once.
            body_bytes_max: largest body kept of a request; of one with a larger body only the
                header is read (``OversizedCommand``).
            bounds: all bounds of a connection at once; the single ones above are then ignored.
            sharing: the object its connections share with those of other ports; None for an own
                one.
            clock: clock that measures work.
            take_frames: called with received bytes before they are decoded in the general way.

        Raises:
            ConfigurationError: unknown ``tls_mode``, or ``enforcing`` without ``ssl_context``.
        """
        if tls_mode not in TLS_MODES:
            raise ConfigurationError(f"tls_mode={tls_mode!r}: give one of {', '.join(TLS_MODES)}")
        if tls_mode == "enforcing" and ssl_context is None:
            raise ConfigurationError("tls_mode='enforcing' needs an ssl_context with a certificate")
        self.host = host
        self.port: int = port
        self.connections: dict[Connection, None] = {}  # in order of arrival, also for closing
        self._refused: dict[Connection, None] = {}
        self._on_request = on_request
        self._on_open = on_open
        self._on_close = on_close
        self._ssl = None if tls_mode == "disabled" else ssl_context
        self._tls_mode = tls_mode
        self._connections_max = connections_max
        self._bounds = bounds or ConnectionLimits(
            idle_close_ms=idle_close_ms,
            header_bytes_max=limits.HEADER_BYTES_MAX,
            body_bytes_max=body_bytes_max,
        )
        self._sharing = sharing
        self._own_sharing: Sharing | None = None
        self._clock = clock
        self._take_frames = take_frames
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Server | None = None
        self._acceptor: _Acceptor | None = None
        self._closed = False

    @property
    def address(self) -> str:
        """``host:port`` listened on."""
        return format_address(self.host, self.port)

    async def start(self) -> None:
        """Listen.

        Raises:
            PortInUseError: another process has the port.
            ServerError: the address cannot be listened on.
            ClientStateError: started before, or closed.
        """
        if self._loop is not None or self._closed:
            raise ClientStateError("a server starts once; make a new one")
        self._loop = asyncio.get_running_loop()
        if self._sharing is None:
            self._sharing = self._own_sharing = Sharing(self._clock)
        family, address = _resolve(self.host, self.port)
        if not _watches_sockets(self._loop):
            await self._serve(address[0])
            return
        listener = _listen(family, address, self.host, self.port)
        self.port = listener.getsockname()[1]
        self._acceptor = _Acceptor(
            listener, self._new_connection, self._ssl, self._tls_mode, self._is_full
        )
        self._acceptor.start()

    async def _serve(self, host: str) -> None:
        """Listen by the loop's own means, since its network may not be the system's.

        Raises:
            NotSupportedError: TLS and plain on one port.
        """
        assert self._loop is not None
        if self._ssl is not None and self._tls_mode == "permissive":
            raise NotSupportedError(
                "this event loop cannot serve TLS and plain on one port;"
                " use tls_mode='enforcing' or 'disabled'"
            )
        try:
            self._server = await self._loop.create_server(
                self._new_connection,
                host,
                self.port,
                ssl=self._ssl,
                backlog=_BACKLOG,
                ssl_handshake_timeout=None if self._ssl is None else _HANDSHAKE_TIMEOUT_S,
            )
        except OSError as error:
            raise _cannot_listen(self.host, self.port, error) from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Stop accepting, close every connection and wait for them. May be called twice.

        A cancellation cuts the wait of one step short; every connection is closed all the same.
        """
        self._closed = True
        if self._server is not None:
            self._server.close()
        steps = [] if self._acceptor is None else [self._acceptor.close]
        await take_all(*steps, self._close_connections, self._close_rest)

    async def _close_connections(self) -> None:
        connections = list(self.connections)
        for connection in connections:
            connection.close("the server is shutting down")
        for connection in [*connections, *self._refused]:
            await connection.wait_closed()

    async def _close_rest(self) -> None:
        if self._own_sharing is not None:
            self._own_sharing.close()
        if self._server is not None:
            await self._server.wait_closed()

    def _new_connection(self) -> Connection:
        assert self._loop is not None
        assert self._sharing is not None
        return ServedConnection(
            self._loop,
            self._on_request,
            self._sharing,
            bounds=self._bounds,
            on_open=self._opened,
            on_close=self._lost,
            take_frames=self._take_frames,
        )

    def _is_full(self, in_progress: int) -> bool:
        return len(self.connections) + in_progress >= self._connections_max

    def _opened(self, connection: Connection) -> None:
        if self._closed:
            self._refuse(connection, "the server is shutting down")
        elif len(self.connections) >= self._connections_max:
            logger.warning("refusing %s: %d connections", connection.peer, self._connections_max)
            self._refuse(connection, f"more than {self._connections_max} connections")
        else:
            self.connections[connection] = None
            if self._on_open is not None:
                self._on_open(connection)

    def _refuse(self, connection: Connection, reason: str) -> None:
        self._refused[connection] = None
        connection.close(reason)

    def _lost(self, connection: Connection) -> None:
        if connection in self._refused:
            del self._refused[connection]
            return
        self.connections.pop(connection, None)
        if self._on_close is not None:
            self._on_close(connection)


class _Acceptor:
    """Accepts connections on a socket, a few at a time, and chooses TLS or plain.

    asyncio and uvloop accept all waiting connections in one go, so that peers who keep connecting
    hold up everybody else. Where both TLS and plain are allowed, the first byte decides; it is only
    peeked, so that the protocol that takes the socket still reads it. ``is_full`` is told how many
    accepted sockets have not become connections yet.
    """

    def __init__(
        self,
        listener: socket.socket,
        new_connection: Callable[[], Connection],
        ssl_context: ssl.SSLContext | None,
        tls_mode: TlsMode,
        is_full: Callable[[int], bool],
    ) -> None:
        self._listener = listener
        self._is_full = is_full
        self._new_connection = new_connection
        self._ssl = ssl_context
        self._peeks = ssl_context is not None and tls_mode == "permissive"
        self._waiting: dict[socket.socket, asyncio.TimerHandle] = {}
        self._tasks: dict[asyncio.Task[None], socket.socket] = {}
        self._resume: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        self._resume = None
        self._loop.add_reader(self._listener, self._accept)

    async def close(self) -> None:
        if self._listener.fileno() >= 0:
            if self._resume is not None:
                self._resume.cancel()
            self._loop.remove_reader(self._listener)
            self._listener.close()
        for sock in list(self._waiting):
            self._drop(sock)
        # Not cancelled, nor by who waits here: a connection just made would never learn that it is
        # lost (uvloop). Handshakes end with their sockets.
        for sock in self._tasks.values():
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_PASS):
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors: others may be freed meanwhile
                logger.error("cannot accept on %s: %s", self._listener, error)
                self._loop.remove_reader(self._listener)
                self._resume = self._loop.call_later(_ACCEPT_PAUSE_S, self.start)
                return
            if self._is_full(len(self._waiting) + len(self._tasks)):
                sock.close()
                continue
            sock.setblocking(False)
            if self._peeks:
                timer = self._loop.call_later(_HANDSHAKE_TIMEOUT_S, self._drop, sock)
                self._waiting[sock] = timer
                self._loop.add_reader(sock, self._peek, sock)
            else:
                self._set_up(sock, self._ssl)

    def _peek(self, sock: socket.socket) -> None:
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if not first:
            self._drop(sock)
            return
        self._release(sock)
        self._set_up(sock, self._ssl if first == TLS_FIRST_BYTE else None)

    def _set_up(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        task = self._loop.create_task(self._take(sock, context))
        self._tasks[task] = sock
        task.add_done_callback(self._tasks.pop)

    async def _take(self, sock: socket.socket, context: ssl.SSLContext | None) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._new_connection,
                sock,
                ssl=context,
                ssl_handshake_timeout=None if context is None else _HANDSHAKE_TIMEOUT_S,
            )
        except OSError as error:  # includes a failed handshake
            logger.info("a connection could not be set up: %s", error)
            sock.close()
        except BaseException:
            sock.close()
            raise

    def _release(self, sock: socket.socket) -> None:
        self._loop.remove_reader(sock)
        self._waiting.pop(sock).cancel()

    def _drop(self, sock: socket.socket) -> None:
        self._release(sock)
        sock.close()


def _watches_sockets(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether a loop can watch sockets; Windows' cannot, nor can a simulated one."""
    return type(loop).add_reader is not asyncio.AbstractEventLoop.add_reader


def _resolve(host: str, port: int) -> tuple[int, Any]:
    """Return family and address to listen on.

    Raises:
        ServerError: the host has no address.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ServerError(
            f"cannot listen on {format_address(host, port)}: {error}; give an address of this host"
        ) from error
    return found[0][0], found[0][4]


def _listen(family: int, address: Any, host: str, port: int) -> socket.socket:
    """Return a listening, non-blocking socket."""
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # elsewhere the option lets two processes share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        with contextlib.suppress(OSError):
            listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


def _cannot_listen(host: str, port: int, error: OSError) -> ServerError:
    where = format_address(host, port)
    if error.errno == errno.EADDRINUSE:
        return PortInUseError(
            f"cannot listen on {where}: the port is in use; stop the process that has it,"
            " or give another port (0 takes a free one)",
            host=host,
            port=port,
        )
    return ServerError(
        f"cannot listen on {where}: {error}; give an address of this host and a free port",
        host=host,
        port=port,
    )
