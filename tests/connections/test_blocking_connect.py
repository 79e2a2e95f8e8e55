"""Connecting a blocking socket: in time, without delay, and what is said where it fails."""

from __future__ import annotations

import socket
from typing import Any, cast

import pytest

from rocketstream.errors import ConnectError
from rocketstream.protocol.addresses import NO_TLS, cannot_connect
from rocketstream.transport import blocking_connection as blocking


class Tls:
    """A context whose handshake fails, or does not."""

    def __init__(self, error: OSError | None = None) -> None:
        self.error = error
        self.names: list[str] = []

    def wrap_socket(self, sock: Any, server_hostname: str) -> Any:
        self.names.append(server_hostname)
        if self.error is not None:
            raise self.error
        return sock


class Plain:
    """A connected socket.

    Attributes:
        asked: for what address, and how long, a connection was made.
    """

    def __init__(self) -> None:
        self.options: list[tuple[int, ...]] = []
        self.asked: list[tuple[Any, float]] = []
        self.closes = 0

    def setsockopt(self, *option: int) -> None:
        self.options.append(option)

    def close(self) -> None:
        self.closes += 1


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Plain:
    sock = Plain()

    def create(address: Any, timeout_s: float) -> Plain:
        sock.asked.append((address, timeout_s))
        return sock

    monkeypatch.setattr(socket, "create_connection", create)
    return sock


def test_a_connection_is_made_in_time_and_sends_without_delay(plain: Plain) -> None:
    tls = Tls()
    assert cast(Any, blocking._connect("host:9", 1.5, cast(Any, tls))) is plain
    assert plain.asked == [((b"host", 9), 1.5)]
    assert plain.options == [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
    assert tls.names == ["host"]
    assert cast(Any, blocking._connect("hööst:9", 1.5, None)) is plain
    assert plain.asked[1:] == [(("hööst", 9), 1.5)]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TimeoutError(), f"no answer within 1500 ms{NO_TLS}"),
        (ConnectionResetError("reset"), f"reset{NO_TLS}"),
        (OSError("certificate"), "certificate"),
    ],
)
def test_a_handshake_that_fails_closes_the_socket_and_says_why(
    plain: Plain, error: OSError, text: str
) -> None:
    with pytest.raises(ConnectError) as caught:
        blocking._connect("host:9", 1.5, cast(Any, Tls(error)))
    assert str(caught.value) == str(cannot_connect("host:9", text))
    assert plain.closes == 1


@pytest.mark.parametrize(
    ("error", "text"),
    [(TimeoutError(), "no answer within 1500 ms"), (ConnectionResetError("reset"), "reset")],
)
def test_a_connection_that_is_not_made_says_nothing_of_tls(
    monkeypatch: pytest.MonkeyPatch, error: OSError, text: str
) -> None:
    def create(*_: Any) -> None:
        raise error

    monkeypatch.setattr(socket, "create_connection", create)
    with pytest.raises(ConnectError) as caught:
        blocking._connect("host:9", 1.5, cast(Any, Tls()))
    assert str(caught.value) == str(cannot_connect("host:9", text))


def test_a_plain_connection_that_fails_says_nothing_of_tls(
    plain: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    def setsockopt(*_: int) -> None:
        raise ConnectionResetError("reset")

    monkeypatch.setattr(plain, "setsockopt", setsockopt)
    with pytest.raises(ConnectError) as caught:
        blocking._connect("host:9", 1.5, None)
    assert str(caught.value) == str(cannot_connect("host:9", "reset"))
    assert plain.closes == 1
