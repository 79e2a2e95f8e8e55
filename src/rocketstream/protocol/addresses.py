"""Addresses as RocketMQ writes them, ``host:port``, and the other servers one may meet at one.

Pure: text and first bytes; nothing is resolved or connected here.
"""

from __future__ import annotations

from rocketstream.errors import ConfigurationError, ConnectError

PORT_MAX = 65_535


def parse_address(text: str) -> tuple[str, int]:
    """Split one ``host:port`` into its parts; an IPv6 host may stand in brackets.

    Raises:
        ConfigurationError: the host is missing, or the port is not a number from 0 to 65535.
    """
    host, colon, port = text.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not colon or not host or any(char.isspace() or char in ";,/" for char in host):
        raise _bad(text)
    if not (port.isascii() and port.isdigit() and int(port) <= PORT_MAX):
        raise _bad(text)
    return host, int(port)


def format_address(host: str, port: int) -> str:
    """Join host and port; an IPv6 host is put in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_addresses(text: str) -> list[str]:
    """Split ``a:1;b:2`` into ``["a:1", "b:2"]``, in order, without repeats or empty parts.

    Raises:
        ConfigurationError: no address is left, or a part is not ``host:port``.
    """
    parts = [part for part in (piece.strip() for piece in text.split(";")) if part]
    if not parts:
        raise ConfigurationError(
            f"no address in {text!r}: give host:port, several separated by ';'", address=text
        )
    return list(dict.fromkeys(format_address(*parse_address(part)) for part in parts))


def cannot_connect(address: str, reason: str) -> ConnectError:
    """Return the error for a connection that could not be made."""
    return ConnectError(
        f"cannot connect to {address}: {reason}; check the address and that the server runs",
        address=address,
    )


SILENT = (
    "; nothing has ever come over this connection: is it a remoting port? That of a Proxy is "
    "usually 8080 (8081 is gRPC), a name server's 9876, a broker's 10911 (10912 copies to slaves)"
)
"""The remark on a peer that takes a request and never answers anything."""
CLOSED_AT_ONCE = (
    "; nothing had come over this connection: servers that take only TLS close plain ones, and "
    "need use_tls=True (ROCKETMQ_TLS_ENABLE=true)"
)
"""The remark on a peer that closes a plain connection without a word."""
NO_TLS = (
    "; no TLS seems to be spoken there: leave use_tls and ROCKETMQ_TLS_ENABLE out for plain servers"
)
"""The remark on a peer that ends a TLS handshake otherwise than by TLS's own rules."""

_HTTP2_SETTINGS, _TLS_ALERT = b"\x04", b"\x15\x03"


def stranger(first: bytes) -> str | None:
    """Return who sends bytes other than frames, and what to do; None if they do not show it.

    Args:
        first: the first bytes that came from there, nine if there are so many.
    """
    if first.startswith(b"HTTP/"):
        return "an HTTP server answers there; give the remoting port of a name server or broker"
    # Where a stream's number is 0, a frame of ours has the length of its header, never 0.
    if first[:2] == bytes(2) and first[3:4] == _HTTP2_SETTINGS and first[5:9] == bytes(4):
        return (
            "an HTTP/2 server answers there, such as a Proxy's gRPC port (usually 8081); its "
            "remoting port is usually 8080"
        )
    if first[:2] == _TLS_ALERT:
        return "TLS is spoken there; give use_tls=True (ROCKETMQ_TLS_ENABLE=true)"
    return None


def _bad(text: str) -> ConfigurationError:
    several = "; several are separated by ';'" if "," in text else ""
    return ConfigurationError(
        f"not an address: {text!r}; give host:port, for example 127.0.0.1:9876{several}",
        address=text,
    )
