"""The dashboard as a server: listens, serves on a thread of its own, and ends on request."""

from __future__ import annotations

import concurrent.futures
import socket
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import uvicorn
from starlette.types import ASGIApp

from rocketstream._util.loops import LoopThread
from rocketstream.errors import ConfigurationError, PortInUseError

CONNECTIONS_MAX: Final = 256
ENDING_S: Final = 3
HEAD_BYTES_MAX: Final = 32 * 1024


@dataclass(frozen=True, slots=True)
class Listening:
    """Where the dashboard listens.

    Attributes:
        port: 0 takes a free one.
        certificate, key: PEM files; either both or none.
    """

    host: str = "127.0.0.1"
    port: int = 0
    certificate: Path | None = None
    key: Path | None = None

    @property
    def is_tls(self) -> bool:
        """Whether browsers reach the dashboard by https."""
        return self.certificate is not None


class DashboardServer:
    """Serves an application until closed; a context manager.

    Args:
        app: what ``create_app`` made.
        listening: where it listens.

    Attributes:
        url: the address to open.

    Raises:
        PortInUseError: the port is taken.
        ConfigurationError: there is no such address, or certificate and key cannot be used.
    """

    def __init__(self, app: ASGIApp, listening: Listening) -> None:
        self._listening = listening
        if (listening.certificate is None) != (listening.key is None):
            raise ConfigurationError("TLS takes a certificate and its key: give both, or neither")
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            # The address in a header may be made up, so failures are not counted by it.
            proxy_headers=False,
            limit_concurrency=CONNECTIONS_MAX,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            timeout_graceful_shutdown=ENDING_S,
            ssl_certfile=listening.certificate,
            ssl_keyfile=listening.key,
        )
        try:
            config.load()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise ConfigurationError(
                f"certificate {listening.certificate} and key {listening.key} cannot be used: "
                f"{error}"
            ) from error
        self._socket = _listening_socket(listening)
        host, port = self._socket.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if listening.is_tls else 'http'}://{shown}:{port}/"
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

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _listening_socket(listening: Listening) -> socket.socket:
    host, port = listening.host, listening.port
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
