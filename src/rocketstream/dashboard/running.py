"""The dashboard as a server: listens, serves on a thread of its own, and ends on request."""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
from pathlib import Path
from typing import Final, Self

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from rocketstream._util.loops import LoopThread
from rocketstream.errors import ConfigurationError, PortInUseError

CONNECTIONS_MAX: Final = 256
HALVES_MAX: Final = CONNECTIONS_MAX // 2
"""Most connections that wait for the rest of a request; one that is closed counts until its page
has noticed."""
REQUEST_S: Final = 10.0
"""The time a client has to send a request, head and body."""
ENDING_S: Final = 3
HEAD_BYTES_MAX: Final = 32 * 1024


class _Connection(H11Protocol):
    """A connection that is closed where the rest of a request stays away.

    Half a request must not keep others out: of connections that wait for the rest of one, the
    oldest is closed as soon as there are too many.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection (called by asyncio)."""
        self._rest: asyncio.TimerHandle | None = None
        self._make_room()
        super().connection_made(transport)
        self._wait_for_rest()

    def data_received(self, data: bytes) -> None:
        """Take bytes (called by asyncio)."""
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_waiting()
        elif self._rest is None:
            self._wait_for_rest()

    def connection_lost(self, exc: Exception | None) -> None:
        """Take the end of a connection (called by asyncio)."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _make_room(self) -> None:
        others = [each for each in self.connections if isinstance(each, _Connection)]
        halves = [(each._rest.when(), each) for each in others if each._rest is not None]
        full = len(self.connections) >= CONNECTIONS_MAX - 1
        if halves and (full or len(halves) >= HALVES_MAX):
            _, oldest = min(halves, key=lambda each: each[0])
            oldest._stop_waiting()
            oldest.transport.abort()
            self.connections.discard(oldest)  # else it counts until its end is told

    def _wait_for_rest(self) -> None:
        self._rest = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None


class DashboardServer:
    """Serves an application until closed; a context manager.

    Args:
        port: 0 takes a free one.
        certificate, key: PEM files; either both or none.

    Attributes:
        url: the address to open.

    Raises:
        PortInUseError: the port is taken.
        ConfigurationError: there is no such address, or certificate and key cannot be used.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str = "127.0.0.1",
        port: int = 0,
        certificate: Path | None = None,
        key: Path | None = None,
    ) -> None:
        if (certificate is None) != (key is None):
            raise ConfigurationError("TLS takes a certificate and its key: give both, or neither")
        config = uvicorn.Config(
            app,
            http=_Connection,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS_MAX,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            timeout_graceful_shutdown=ENDING_S,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
        try:
            config.load()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise ConfigurationError(
                f"certificate {certificate} and key {key} cannot be used: {error}"
            ) from error
        self._socket = _listening_socket(host, port)
        host, port = self._socket.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        self.url: str = f"{'http' if certificate is None else 'https'}://{shown}:{port}/"
        self._server = uvicorn.Server(config)
        self._thread: LoopThread | None = None
        self._served: concurrent.futures.Future[None] | None = None

    def start(self) -> Self:
        """Begin to serve; the socket already accepts connections."""
        self._thread = LoopThread("rocketstream-dashboard")
        self._served = self._thread.submit(self._server.serve([self._socket]))
        return self

    def close(self) -> None:
        """End; waits some seconds for requests under way. May be called twice."""
        thread, self._thread = self._thread, None
        try:
            if thread is not None and self._served is not None:
                self._server.should_exit = True
                self._served.result()
        finally:
            if thread is not None:
                thread.close()
            self._socket.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def _listening_socket(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except socket.gaierror as error:
        raise ConfigurationError(
            f"host {host!r} is not an address of this machine: {error}"
        ) from error
    except OSError as error:
        raise PortInUseError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; another program may use "
            "the port: give another with --port, 0 takes a free one"
        ) from error
