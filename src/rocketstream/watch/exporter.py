"""The metrics of a collector, served over HTTP.

Law: a scrape asks no broker: it gets the result of the last sweep, which is rendered once.
"""

from __future__ import annotations

import errno
import gzip
import selectors
import socket
import socketserver
import threading
from contextlib import suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

from rocketstream._util.machine import is_loopback
from rocketstream.errors import ConfigurationError, PortInUseError
from rocketstream.watch.collector import Collector
from rocketstream.watch.metrics import CONTENT_TYPE, scrape

DEFAULT_PORT: Final = 5557
"""The port of rocketmq-exporter."""
REQUESTS_AT_ONCE_MAX: Final = 16
"""Most connections at once; a further one takes the place of the oldest without a whole request."""
SILENT_S: Final = 10.0
"""A scraper that sends nothing, or reads nothing, for this long is disconnected."""

_PAGE: Final = b"rocketstream: the metrics are at /metrics\n"


class Exporter:
    """An HTTP server with ``/metrics``, on a thread of its own; to be closed.

    Args:
        collector: the collector whose figures are served.
        host: the address to listen on; an address other than loopback needs ``insecure``.
        port: 0 takes a free one.
        insecure: allow an address others can reach: there is no login, and metrics name groups,
            topics and the addresses of members.
        queues: report lag per queue; False sums it per topic and broker.

    Raises:
        ConfigurationError: others can reach the address and ``insecure`` is not set, or it is not
            an address.
        PortInUseError: the port is taken.
    """

    def __init__(
        self,
        collector: Collector,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        *,
        insecure: bool = False,
        queues: bool = True,
    ) -> None:
        if not insecure and not is_loopback(host):
            raise ConfigurationError(
                f"metrics on {host}: others could reach it, and there is no login; listen on "
                "127.0.0.1, or allow it with --insecure (insecure=True)",
                host=host,
            )
        self._collector = collector
        self._queues = queues
        self._lock = threading.Lock()
        self._of: object = None
        self._text = b""
        self._zipped: bytes | None = None
        try:
            self._server = _Server((host, port), partial(_Handler, exporter=self))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUseError(
                    f"metrics: port {port} of {host} is taken; give another one, 0 for a free one",
                    host=host,
                    port=port,
                ) from None
            raise ConfigurationError(
                f"metrics cannot listen on {host}:{port}: {error.strerror or error}",
                host=host,
                port=port,
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="rocketstream-metrics", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> tuple[str, int]:
        """The host and port it listens on."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def close(self) -> None:
        """Stop listening and wait for the answers under way."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def body(self, *, zipped: bool) -> bytes:
        """Return the metrics of the last sweep, rendered once for all scrapers."""
        with self._lock:
            update = self._collector.update()
            if self._of is not update:
                self._text = scrape(self._collector, queues=self._queues).encode()
                self._zipped = None
                self._of = update
            if not zipped:
                return self._text
            if self._zipped is None:
                self._zipped = gzip.compress(self._text, 1)
            return self._zipped


class _Server(ThreadingHTTPServer):
    """Sleeps until there is a connection, or the end, which a closed socket tells."""

    daemon_threads = False
    block_on_close = True
    timeout = 0  # of handle_request, which is called once there is a connection
    request_queue_size = 8 * REQUESTS_AT_ONCE_MAX  # beyond it one tries again after a second

    def __init__(self, address: tuple[str, int], handler: Any) -> None:
        self._goes_on, self._end = socket.socketpair()
        self._lock = threading.Lock()
        self._open: dict[socket.socket, bool] = {}
        """The connections, oldest first, and whether their request has come."""
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # HTTPServer looks the host's name up here, which may take seconds and which nothing needs.
        socketserver.TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), int(port)

    def serve_forever(self, poll_interval: float = 0) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self, selectors.EVENT_READ)
            selector.register(self._end, selectors.EVENT_READ)
            while self._end not in [key.fileobj for key, _ in selector.select()]:
                self.handle_request()

    def shutdown(self) -> None:
        self._goes_on.close()

    def server_close(self) -> None:
        super().server_close()
        self._goes_on.close()
        self._end.close()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= REQUESTS_AT_ONCE_MAX:
                # One that has sent no whole request by now must not shut out the others.
                silent = next((each for each, has_come in self._open.items() if not has_come), None)
                if silent is None:
                    self.shutdown_request(request)
                    return
                del self._open[silent]
                with suppress(OSError):
                    silent.shutdown(socket.SHUT_RDWR)  # its thread ends, and closes it
            self._open[request] = False
        super().process_request(request, client_address)

    def request_came(self, request: socket.socket) -> None:
        """Note that a connection has sent its request."""
        with self._lock:
            if request in self._open:
                self._open[request] = True

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        return  # a scraper that went away


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = SILENT_S
    server_version = "rocketstream"
    sys_version = ""

    def __init__(self, *args: Any, exporter: Exporter) -> None:
        self._exporter = exporter
        super().__init__(*args)

    def do_GET(self) -> None:
        self.server.request_came(self.connection)
        path = self.path.partition("?")[0]
        if path == "/metrics":
            zipped = "gzip" in self.headers.get("Accept-Encoding", "")
            self._answer(200, CONTENT_TYPE, self._exporter.body(zipped=zipped), zipped)
        elif path == "/":
            self._answer(200, "text/plain; charset=utf-8", _PAGE)
        else:
            self._answer(404, "text/plain; charset=utf-8", _PAGE)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer(self, status: int, kind: str, body: bytes, zipped: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        if zipped:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        return
