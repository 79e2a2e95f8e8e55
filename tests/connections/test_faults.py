"""The faulty network, the hand-moved clock and the leak check do what tests rely on."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from rocketstream.errors import (
    ConfigurationError,
    ConnectError,
    ConnectionLostError,
    RequestTimeoutError,
)
from rocketstream.testing import FaultProxy, LeakCheck, ManualClock
from rocketstream.transport.blocking_connection import BlockingConnection
from rocketstream.transport.blocking_pool import BlockingPool
from tests.kits.threaded_server import ThreadedServer, request

LONG_MS = 20_000
LOST = (ConnectionLostError, ConnectError)
"""How a cut shows: when reading, or already when writing."""


@pytest.fixture
def proxy() -> Iterator[FaultProxy]:
    with ThreadedServer() as server, FaultProxy(server.address) as running:
        yield running


def test_forwards_both_ways(proxy: FaultProxy) -> None:
    body = bytes(range(256)) * 20_000
    with BlockingConnection(proxy.address) as connection:
        assert connection.request(request(body=body), LONG_MS).body == body
        assert (proxy.connections_total, proxy.connections_open) == (1, 1)


def test_cut_reaches_a_connection_that_is_just_being_accepted(proxy: FaultProxy) -> None:
    """The loop asks for its handler first and gives it the socket later; close waited for ever."""
    transport = mock.Mock(spec=asyncio.Transport)

    async def cut_between() -> None:
        handler = proxy._accepted()
        proxy._cut()
        handler.connection_made(transport)
        handler.connection_lost(None)

    proxy._thread.run(cut_between())
    transport.abort.assert_called_once_with()
    assert proxy.connections_open == 0


def test_cut_resets_open_connections_and_takes_new_ones(proxy: FaultProxy) -> None:
    with BlockingConnection(proxy.address) as connection:
        connection.request(request(), LONG_MS)
        connection.submit(request())
        proxy.cut()
        with pytest.raises(LOST):
            connection.request(request(), LONG_MS)
    with BlockingConnection(proxy.address) as connection:
        connection.request(request(), LONG_MS)


def test_deaf_network_times_out_and_delivers_later(proxy: FaultProxy) -> None:
    with BlockingConnection(proxy.address) as connection:
        connection.request(request(), LONG_MS)
        proxy.pause()
        connection.submit(request(body=b"late"))
        with BlockingConnection(proxy.address) as other, pytest.raises(RequestTimeoutError):
            other.request(request(), 30)
        proxy.resume()
        assert connection.receive(LONG_MS).body == b"late"


def test_refused_port_comes_back_the_same(proxy: FaultProxy) -> None:
    address = proxy.address
    with BlockingConnection(address) as connection:
        # The system connects before the proxy accepts: refusing in between would lose this one.
        connection.request(request(), LONG_MS)
        proxy.refuse()
        with pytest.raises(ConnectError, match="refused"):
            BlockingConnection(address)
        connection.request(request(), LONG_MS)
        proxy.accept()
        with BlockingConnection(address) as again:
            again.request(request(), LONG_MS)


def test_half_a_frame_arrives_before_the_cut(proxy: FaultProxy) -> None:
    host, port = proxy.address.split(":")
    proxy.cut_after(10)
    with socket.create_connection((host, int(port)), 20) as sock:
        with BlockingConnection(proxy.address) as unlucky, pytest.raises(ConnectionLostError):
            unlucky.request(request(body=bytes(1000)), LONG_MS)
        assert proxy.connections_open >= 1, "only the connection that reached the number is cut"
        sock.close()
    with BlockingConnection(proxy.address) as connection:
        connection.request(request(), LONG_MS)


def test_a_fault_that_cannot_be_is_refused(proxy: FaultProxy) -> None:
    """A misspelt direction would never cut."""
    wrong: Any
    for wrong in ("to_clinet", None):
        with pytest.raises(ConfigurationError, match=f"'to_target' or 'to_client', not {wrong!r}"):
            proxy.cut_after(5, wrong)
    for wrong in (-1, "5"):
        with pytest.raises(ConfigurationError, match=f"bytes_forwarded .* not {wrong!r}"):
            proxy.cut_after(wrong)
        with pytest.raises(ConfigurationError, match=f"ms .* not {wrong!r}"):
            proxy.delay(wrong)


def test_cut_on_the_way_to_the_target_loses_the_request(proxy: FaultProxy) -> None:
    proxy.cut_after(20, "to_target")
    with BlockingConnection(proxy.address) as connection, pytest.raises(LOST):
        connection.request(request(body=bytes(1000)), LONG_MS)


def test_delayed_bytes_keep_their_order(proxy: FaultProxy) -> None:
    proxy.delay(5)
    with BlockingConnection(proxy.address) as connection:
        for number in range(20):
            connection.submit(request(body=b"%d" % number))
            if number == 10:
                proxy.delay(0)
        bodies = [bytes(connection.receive(LONG_MS).body) for _ in range(20)]
        assert bodies == [b"%d" % number for number in range(20)]


def test_target_may_move_and_may_be_away(proxy: FaultProxy) -> None:
    with ThreadedServer() as other, BlockingPool() as pool:
        proxy.set_target(other.address)
        pool.request(proxy.address, request(), LONG_MS)
        assert len(other.server.connections) == 1
        gone = other.address
    proxy.set_target(gone)
    with pytest.raises(LOST), BlockingConnection(proxy.address) as connection:
        connection.request(request(), LONG_MS)


def test_manual_clock_moves_only_by_hand() -> None:
    clock = ManualClock(1000)
    clock.advance(5)
    clock.jump(-500)
    assert (clock.now_ms(), clock.monotonic_ms()) == (505, 5)
    with pytest.raises(ValueError, match="does not go back"):
        clock.advance(-1)


def test_leak_check_names_threads_and_sockets_that_stay() -> None:
    stop = threading.Event()
    threads = [
        threading.Thread(target=stop.wait, name="left-behind"),
        threading.Thread(target=stop.wait, name="rocketstream-left", daemon=True),
        threading.Thread(target=stop.wait, name="somebody-elses", daemon=True),
    ]
    check = LeakCheck()
    with socket.socket():
        for thread in threads:
            thread.start()
        leaks = check.leaks(wait_ms=0)
    assert leaks[:2] == ["thread 'left-behind'", "thread 'rocketstream-left'"]
    assert len(leaks) in (2, 3), "sockets are seen on Linux only"
    stop.set()
    assert not check.leaks()


def test_leak_check_leaves_out_the_sockets_of_what_else_lives_here() -> None:
    """And tells of the others which ports they join."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        mine, others = LeakCheck(), LeakCheck(lambda: [port])
        with socket.create_connection(("127.0.0.1", port)) as client, listening.accept()[0]:
            leaks = mine.leaks(wait_ms=0)
            assert others.leaks(wait_ms=0) == []
            if leaks:  # Linux
                near = client.getsockname()[1]
                ends = {leak.split("] ")[1] for leak in leaks}
                assert ends == {f"port {near} to {port}", f"port {port} to {near}"}
