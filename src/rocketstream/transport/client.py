"""Connections of a client on an event loop: one per address, made when first needed.

Routes, retries and meaning are the caller's.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import ssl
from collections.abc import Callable, Sequence

from rocketstream import limits
from rocketstream._util.ending import shared, take_all
from rocketstream._util.patience import up_to
from rocketstream.errors import ClientStateError
from rocketstream.protocol.addresses import (
    CLOSED_AT_ONCE,
    NO_TLS,
    SILENT,
    cannot_connect,
    parse_address,
    stranger,
)
from rocketstream.protocol.command import AfterResponse, BeforeRequest, RemotingCommand
from rocketstream.protocol.sends import AnswerDecoder
from rocketstream.transport.connection import (
    Connection,
    ConnectionLimits,
    RequestHandler,
    refuse_request,
)
from rocketstream.transport.tls import is_no_tls


class ClientConnection(Connection):
    """The connection of a client to a server, which it notices to be gone or a stranger."""

    _decoder_of = AnswerDecoder
    _first = b""
    """The first bytes that came."""
    _unanswered_since = -math.inf
    """When the first request was sent that timed out and after which no answer has come."""

    def data_received(self, data: bytes) -> None:
        """Decode and dispatch (called by asyncio)."""
        self._heard_at = self._time()
        if not self._first:
            self._first = data[:9]
        super().data_received(data)

    def resume_writing(self) -> None:
        """Send the frames kept here: the peer takes bytes (called by asyncio)."""
        self._heard_at = self._answered_at = self._time()
        super().resume_writing()

    def _silent_s(self, now: float, sent: Sequence[float]) -> float:
        """Return for how long the peer has been silent, 0.0 where it is not taken for gone.

        Something in between may have forgotten the connection without telling, or the peer stopped
        in the middle of a frame: nothing will ever come, and every request would time out. Requests
        of the peer do not count: the client's own, and its ends of transactions, may be lost while
        they come. A pull that a broker holds counts from its own end only.
        """
        since = self._heard_at
        if not self._decoder.bytes_pending:
            answered = self._answered_at
            unanswered = [at for at in sent if at >= answered]
            if self._unanswered_since >= answered:
                unanswered.append(self._unanswered_since)
            if not unanswered:
                return 0.0
            since = self._unanswered_since = min(unanswered)
        silent_s, bound_ms = now - since, self._bounds.silent_close_ms
        return silent_s if sent and 0 < bound_ms <= silent_s * 1000 else 0.0

    def _remark(self, *, closed: bool) -> str:
        """Return who else than RocketMQ may be there."""
        if self._first:
            who = stranger(self._first)
            return "" if who is None else f"; {who}"
        if not closed:
            return SILENT
        is_plain = self._transport is None or not self._transport.get_extra_info("sslcontext")
        return CLOSED_AT_ONCE if self._pending and is_plain else ""


class RemotingClient:
    """One connection per address, made on demand and again after it was lost.

    Belongs to the loop it is used on.
    """

    def __init__(
        self,
        *,
        on_request: RequestHandler | None = None,
        ssl_context: ssl.SSLContext | None = None,
        connect_timeout_ms: float = limits.CONNECT_TIMEOUT_MS,
        idle_close_ms: float = limits.IDLE_CLOSE_MS,
        before_request: BeforeRequest | None = None,
        after_response: AfterResponse | None = None,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
        bounds: ConnectionLimits | None = None,
    ) -> None:
        """Keep the settings; nothing is connected yet.

        Args:
            on_request: called for each request of a peer; without it they are refused (code 3).
            ssl_context: speak TLS with it.
            connect_timeout_ms: for TCP and TLS together.
            idle_close_ms: close a connection after this long without traffic; 0 means never.
            before_request: called with address and command before each request is encoded, which
                is where signing belongs.
            after_response: called with address, command and answer when one arrives.
            on_open: called when a connection is made and may be used.
            on_close: called when a connection is gone.
            bounds: all bounds of the connections at once; ``idle_close_ms`` is then ignored.
        """
        self._on_request = on_request or refuse_request
        self._ssl = ssl_context
        self._connect_timeout_ms = connect_timeout_ms
        self._bounds = bounds or ConnectionLimits(
            idle_close_ms=idle_close_ms, silent_close_ms=limits.SILENT_CLOSE_MS
        )
        self._before_request = before_request
        self._after_response = after_response
        self._on_open = on_open
        self._on_close = on_close
        self._connections: dict[str, ClientConnection] = {}
        self._connecting: dict[str, asyncio.Task[ClientConnection]] = {}
        self._closed = False

    async def connection(self, address: str) -> ClientConnection:
        """Return the open connection to ``address``, connecting if there is none.

        Raises:
            ConnectError: it cannot be made; the text names address and reason.
            ConfigurationError: ``address`` is not ``host:port``.
            ClientStateError: this client is closed.
        """
        connection = self.connected(address)
        if connection is not None:
            return connection
        if self._closed:
            raise ClientStateError(f"cannot connect to {address}: the client is closed")
        task = self._connecting.get(address)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._connect(address))
            self._connecting[address] = task
            task.add_done_callback(lambda done: self._connect_done(address, done))
        return await shared(task, f"connected to {address}")

    def connected(self, address: str) -> ClientConnection | None:
        """Return the connection to ``address`` if it is open now."""
        connection = self._connections.get(address)
        return None if connection is None or connection.is_closed else connection

    @property
    def connections(self) -> list[ClientConnection]:
        """The connections open now."""
        return [each for each in self._connections.values() if not each.is_closed]

    async def request(
        self, address: str, command: RemotingCommand, timeout_ms: float
    ) -> RemotingCommand:
        """Send ``command`` to ``address`` and wait for the answer; connects if needed.

        Raises as ``connection`` and ``Connection.request`` do.
        """
        return await (await self.connection(address)).request(command, timeout_ms)

    async def oneway(self, address: str, command: RemotingCommand) -> None:
        """Send ``command`` to ``address`` and expect no answer; connects if needed.

        Raises as ``connection`` does.
        """
        (await self.connection(address)).oneway(command)

    async def close(self) -> None:
        """Close every connection and wait until the sockets are gone. May be called twice.

        A caller that is cancelled waits no longer, and every connection is closed all the same.
        """
        self._closed = True
        await take_all(self._connect_no_more, self._close_all)

    async def _connect_no_more(self) -> None:
        tasks = list(self._connecting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _close_all(self) -> None:
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            connection.close("the client was closed")
        for connection in connections:
            await connection.wait_closed()

    async def _connect(self, address: str) -> ClientConnection:
        host, port = parse_address(address)
        loop = asyncio.get_running_loop()
        try:
            async with up_to(self._connect_timeout_ms / 1000):
                _, connection = await loop.create_connection(
                    lambda: self._new_connection(loop, address), host, port, ssl=self._ssl
                )
        except TimeoutError as error:
            raise cannot_connect(
                address, f"no answer within {self._connect_timeout_ms:g} ms"
            ) from error
        except OSError as error:  # includes ssl.SSLError and failed name look-ups
            hint = NO_TLS if self._ssl is not None and is_no_tls(error) else ""
            raise cannot_connect(address, _reason(error) + hint) from error
        self._connections[address] = connection
        if self._on_open is not None and not connection.is_closed:
            self._on_open(connection)
        return connection

    def _new_connection(self, loop: asyncio.AbstractEventLoop, address: str) -> ClientConnection:
        return ClientConnection(
            loop,
            self._on_request,
            bounds=self._bounds,
            before_request=self._before_request,
            after_response=self._after_response,
            on_close=self._closed_by_peer,
            address=address,
        )

    def _closed_by_peer(self, connection: Connection) -> None:
        if self._connections.get(connection.peer) is connection:
            del self._connections[connection.peer]
        if self._on_close is not None:
            self._on_close(connection)

    def _connect_done(self, address: str, task: asyncio.Task[ClientConnection]) -> None:
        self._connecting.pop(address, None)
        if not task.cancelled():
            task.exception()  # retrieved here: the caller may have been cancelled meanwhile


def _reason(error: OSError) -> str:
    """Return the system's words for an error; asyncio's own say only that the call failed."""
    foreign = isinstance(error, ssl.SSLError | socket.gaierror)  # these have numbers of their own
    if error.errno is not None and not foreign:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__
