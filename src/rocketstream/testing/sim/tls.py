"""TLS over the simulated network: asyncio's own protocol over simulated transports.

Law: no byte of it decides anything, as they are others in each run. How many they are decides, and
that is the same: the certificate's key is RSA, whose signatures have one length, and servers give
no tickets, whose length depends on numbers drawn for them.

OpenSSL looks at the machine's clock where it asks whether a certificate is valid, not at virtual
time: a certificate of the simulation's is to be valid now, and the simulation's clocks, which jump,
do not end that.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
from asyncio import protocols, sslproto
from pathlib import Path
from typing import Any

from rocketstream.server.tls import ServerTls
from rocketstream.testing.sim.loop import SimLoop
from rocketstream.testing.sim.transport import SimTransport
from rocketstream.transport.tls import client_context

_BUFFER_BYTES = 64 * 1024
_SHAKES_FOR_S = 15.0
_CLOSES_FOR_S = 45.0
"""A handshake, and the end of a connection, take no longer than these: servers and clients bound
them by 10 and 30 s."""


class _AppTransport(sslproto._SSLProtocolTransport):
    """The transport a protocol writes plain bytes to; a dead process is not told to close any."""

    def __del__(self, _warnings: Any = None) -> None:
        """Do nothing."""


_SSLProtocol: Any = sslproto.SSLProtocol  # type checkers know little of it


class _SimTls(_SSLProtocol):  # type: ignore[misc]
    """TLS between a simulated transport and a protocol of a process.

    Attributes:
        changed_s: when its state changed last.
    """

    max_size = _BUFFER_BYTES
    changed_s: float = 0.0

    _app_transport: Any
    _app_transport_created: bool

    def _get_app_transport(self) -> Any:
        if self._app_transport is None and not self._app_transport_created:
            self._app_transport = _AppTransport(self._loop, self)
            self._app_transport_created = True
        return super()._get_app_transport()

    def _set_state(self, new_state: Any) -> None:
        super()._set_state(new_state)
        self.changed_s = self._loop.time()

    def data_received(self, data: bytes) -> None:
        """Take bytes of the network."""
        protocols._feed_data_to_buffered_proto(self, data)  # type: ignore[attr-defined]

    def lasts_too_long(self, now_s: float) -> bool:
        """Whether it shakes hands, or ends, for longer than anybody may let it."""
        states = sslproto.SSLProtocolState
        if self._state in (states.WRAPPED, states.UNWRAPPED):
            return False
        most_s = _SHAKES_FOR_S if self._state is states.DO_HANDSHAKE else _CLOSES_FOR_S
        return now_s - self.changed_s > most_s


async def shake_hands(
    loop: SimLoop,
    endpoint: Any,
    protocol: asyncio.BaseProtocol,
    context: ssl.SSLContext,
    host: str | None,
    timeout_s: float | None,
) -> asyncio.Transport:
    """Speak TLS on a new connection; return the transport of ``protocol`` once that may write.

    Args:
        loop: of the process.
        endpoint: the side of the connection.
        protocol: what the process reads by.
        context: the process's.
        host: the server's name; None for the server's own side.
        timeout_s: of the handshake.

    Raises:
        OSError: the handshake failed.
    """
    waiter: asyncio.Future[None] = loop.create_future()
    # In the order asyncio's own loops give: their names differ between Pythons.
    spoken = _SimTls(
        loop, protocol, context, waiter, host is None, host, ssl_handshake_timeout=timeout_s
    )
    endpoint.is_secret = True
    transport: asyncio.Transport = spoken._get_app_transport()
    endpoint.open(spoken)
    try:
        await waiter
    except BaseException:
        transport.close()
        raise
    return transport


def accept(
    loop: SimLoop,
    endpoint: Any,
    protocol: asyncio.BaseProtocol,
    context: ssl.SSLContext,
    timeout_s: float | None,
) -> None:
    """Speak TLS on a connection that was accepted; a handshake that fails ends it."""

    async def shake() -> None:
        with contextlib.suppress(OSError):
            await shake_hands(loop, endpoint, protocol, context, None, timeout_s)

    task = loop.create_task(shake(), name="handshake")
    task.add_done_callback(lambda done: done.cancelled() or done.exception())


def without_tickets(context: ssl.SSLContext) -> ssl.SSLContext:
    """Have a server's context give no tickets."""
    context.num_tickets = 0
    return context


def stuck(transport: SimTransport | None, now_s: float) -> bool:
    """Whether a connection is neither usable nor ended for longer than anybody may let it be."""
    protocol: Any = None if transport is None else transport.protocol
    return isinstance(protocol, _SimTls) and protocol.lasts_too_long(now_s)


def server_tls(directory: str) -> ServerTls:
    """Return the settings of servers that speak TLS alone, with the certificate of a directory."""
    place = Path(directory)
    return ServerTls(cert_file=place / "cert.pem", key_file=place / "key.pem", mode="enforcing")


@functools.cache
def trusting(directory: str) -> ssl.SSLContext:
    """Return the context of clients that trust the certificate of a directory."""
    return client_context(ca_file=str(Path(directory) / "cert.pem"))
