"""Addresses as RocketMQ writes them: ``host:port``, lists separated by ``;`` (W 1.7).

Law: text only; nothing is resolved or connected here.
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


def _bad(text: str) -> ConfigurationError:
    several = "; several are separated by ';'" if "," in text else ""
    return ConfigurationError(
        f"not an address: {text!r}; give host:port, for example 127.0.0.1:9876{several}",
        address=text,
    )
