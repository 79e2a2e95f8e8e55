"""The connections of a client, step by step: one an address, made when needed, and closed."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from rocketstream import limits
from rocketstream.errors import ClientStateError, ConfigurationError, ConnectError
from rocketstream.protocol.addresses import NO_TLS, cannot_connect
from rocketstream.protocol.command import RemotingCommand
from rocketstream.transport import client as clients
from rocketstream.transport.client import ClientConnection, RemotingClient, _reason
from rocketstream.transport.connection import Connection, ConnectionLimits
from tests.connections.wires import Wire
from tests.kits.threaded_server import request

A = "10.0.0.1:10911"


class Bench:
    """A client whose connections are made on wires, when a test says so.

    Attributes:
        asked: to whom it connected, and with what TLS.
        gate: what connecting waits for; None for nothing.
        refuses: raised in place of a connection.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **how: Any) -> None:
        loop = asyncio.get_running_loop()
        self.client = RemotingClient(**how)
        self.asked: list[tuple[str, int, Any]] = []
        self.gate: asyncio.Future[None] | None = None
        self.refuses: Exception | None = None
        self.wires: list[Wire] = []
        monkeypatch.setattr(loop, "create_connection", self._create)

    async def _create(
        self, factory: Callable[[], ClientConnection], host: str, port: int, *, ssl: Any
    ) -> tuple[None, ClientConnection]:
        self.asked.append((host, port, ssl))
        if self.gate is not None:
            await self.gate
        if self.refuses is not None:
            raise self.refuses
        self.wires.append(Wire())
        connection = factory()
        connection.connection_made(cast(asyncio.BaseTransport, self.wires[-1]))
        return None, connection


Main = Callable[[Bench], Coroutine[Any, Any, None]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Run a coroutine with a bench."""

    async def whole(main: Main, how: dict[str, Any]) -> None:
        with monkeypatch.context() as patch:
            await main(Bench(patch, **how))

    return lambda main, **how: asyncio.run(asyncio.wait_for(whole(main, how), 30))


def test_a_connection_is_made_once_and_again_when_it_is_gone(play: Callable[..., None]) -> None:
    opened: list[Connection] = []
    gone: list[Connection] = []

    async def main(bench: Bench) -> None:
        client = bench.client
        assert (client.connected(A), client.connections) == (None, [])
        first = await client.connection(A)
        assert await client.connection(A) is first
        assert client.connected(A) is first
        assert (client.connections, opened) == ([first], [first])
        assert first.peer == A
        first.close("enough")
        assert (client.connected(A), client.connections) == (None, [])
        second = await client.connection(A)
        first.connection_lost(None)
        assert client.connected(A) is second, "the end of the one before takes nothing along"
        second.connection_lost(None)
        assert (client._connections, gone) == ({}, [first, second])
        assert bench.asked == [("10.0.0.1", 10911, None)] * 2

    play(main, on_open=opened.append, on_close=gone.append)


def test_a_connection_that_is_lost_at_once_is_not_told_as_open(play: Callable[..., None]) -> None:
    opened: list[Connection] = []

    async def main(bench: Bench) -> None:
        plain = bench.client._new_connection

        def lost(*how: Any) -> ClientConnection:
            connection = plain(*how)
            made = connection.connection_made

            def make(transport: Any) -> None:
                made(transport)
                connection.connection_lost(None)

            connection.connection_made = make  # type: ignore[method-assign]
            return connection

        bench.client._new_connection = lost  # type: ignore[method-assign,assignment]
        await bench.client.connection(A)
        assert opened == []

    play(main, on_open=opened.append)


def test_those_who_come_meanwhile_wait_for_the_same_connection(play: Callable[..., None]) -> None:
    async def main(bench: Bench) -> None:
        bench.gate = asyncio.get_running_loop().create_future()
        waiting = [asyncio.ensure_future(bench.client.connection(A)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        assert waiting[0].cancelled(), "by its own caller alone"
        bench.gate.set_result(None)
        assert await waiting[1] is await waiting[2]
        assert len(bench.asked) == 1
        assert bench.client._connecting == {}

    play(main)


def test_a_connect_that_fails_is_tried_by_who_comes_next(play: Callable[..., None]) -> None:
    async def main(bench: Bench) -> None:
        bench.refuses = OSError(errno.ECONNREFUSED, "asyncio's own words")
        for _ in range(2):
            with pytest.raises(ConnectError) as caught:
                await bench.client.connection(A)
            assert str(caught.value) == str(cannot_connect(A, os.strerror(errno.ECONNREFUSED)))
        assert bench.client._connecting == {}
        bench.refuses = None
        assert await bench.client.connection(A)
        with pytest.raises(ConfigurationError):
            await bench.client.connection("nonsense")

    play(main)


def test_a_connect_has_a_time_of_its_own(play: Callable[..., None]) -> None:
    async def main(bench: Bench) -> None:
        bench.gate = asyncio.get_running_loop().create_future()
        with pytest.raises(ConnectError) as caught:
            await bench.client.connection(A)
        assert str(caught.value) == str(cannot_connect(A, "no answer within 5 ms"))

    play(main, connect_timeout_ms=5)


def test_a_connect_has_all_of_that_time(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds: list[float] = []

    @asynccontextmanager
    async def up_to(seconds: float) -> AsyncIterator[None]:
        bounds.append(seconds)
        yield

    async def main(bench: Bench) -> None:
        await bench.client.connection(A)

    monkeypatch.setattr(clients, "up_to", up_to)
    play(main, connect_timeout_ms=2_500)
    assert bounds == [2.5]


@pytest.mark.parametrize(
    ("context", "error", "hint"),
    [
        (object(), ConnectionResetError("reset"), NO_TLS),
        (object(), OSError("other"), ""),
        (None, ConnectionResetError("reset"), ""),
    ],
)
def test_only_a_tls_client_wonders_about_tls(
    play: Callable[..., None], context: Any, error: OSError, hint: str
) -> None:
    async def main(bench: Bench) -> None:
        bench.refuses = error
        with pytest.raises(ConnectError) as caught:
            await bench.client.connection(A)
        assert str(caught.value) == str(cannot_connect(A, f"{error}{hint}"))
        assert bench.asked == [("10.0.0.1", 10911, context)]

    play(main, ssl_context=context)


def test_the_systems_words_are_told_where_there_are_some() -> None:
    """Numbers of TLS and of name look-ups are their own."""
    assert _reason(OSError(errno.EHOSTUNREACH, "x")) == os.strerror(errno.EHOSTUNREACH)
    assert _reason(socket.gaierror(-2, "no such name")) == "[Errno -2] no such name"
    assert _reason(ssl.SSLError(1, "certificate")) == str(ssl.SSLError(1, "certificate"))
    assert _reason(OSError("text")) == "text"
    assert _reason(ConnectionResetError()) == "ConnectionResetError"


# --- using it -------------------------------------------------------------------------------------


def test_requests_connect_and_are_seen_before_and_after(play: Callable[..., None]) -> None:
    seen: list[tuple[Any, ...]] = []

    async def main(bench: Bench) -> None:
        await bench.client.oneway(A, request(5))
        asking = asyncio.ensure_future(bench.client.request(A, command, 20_000))
        for _ in range(3):
            await asyncio.sleep(0)
        (connection,) = bench.client.connections
        connection.data_received(command.answer(RemotingCommand.response(0)).frame())
        assert (await asking).code == 0
        assert [call[0] for call in seen] == [A] * 3
        assert [len(call) for call in seen] == [2, 2, 3]
        assert len(bench.asked) == 1

    command = request(6)
    see = cast(Any, lambda *call: seen.append(call))
    play(main, before_request=see, after_response=see)


def test_a_client_without_handler_refuses_what_it_is_asked(play: Callable[..., None]) -> None:
    asked: list[int] = []

    async def main(bench: Bench) -> None:
        connection = await bench.client.connection(A)
        connection.data_received(request(40).frame())
        assert len(bench.wires[0].written) == 1
        other = RemotingClient(on_request=lambda _, command: asked.append(command.code))
        (await other.connection(A)).data_received(request(41).frame())
        assert (asked, bench.wires[1].written) == ([41], [])

    play(main)


def test_a_closed_connection_is_made_again(play: Callable[..., None]) -> None:
    async def main(bench: Bench) -> None:
        first = await bench.client.connection(A)
        first.close("moved")
        assert bench.client.connected(A) is None
        assert await bench.client.connection(A) is not first

    play(main)


# --- the end --------------------------------------------------------------------------------------


def test_a_close_has_seen_the_end_of_everything(play: Callable[..., None]) -> None:
    async def main(bench: Bench) -> None:
        client = bench.client
        there = await client.connection(A)
        bench.gate = asyncio.get_running_loop().create_future()
        connecting = asyncio.ensure_future(client.connection("10.0.0.2:1"))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(client.close())
        for _ in range(5):
            await asyncio.sleep(0)
        assert client._connecting == {}
        assert there.close_reason == "the client was closed"
        assert not closing.done(), "the socket is not gone yet"
        there.connection_lost(None)
        await closing
        text = "the client was closed while it connected to 10.0.0.2:1"
        with pytest.raises(ClientStateError, match=text):
            await connecting
        with pytest.raises(ClientStateError, match=f"cannot connect to {A}: the client is closed"):
            await client.connection(A)
        await client.close()

    play(main)


def test_a_close_waits_until_connects_have_ended(play: Callable[..., None]) -> None:
    async def main(bench: Bench) -> None:
        bench.gate = asyncio.get_running_loop().create_future()
        connecting = asyncio.ensure_future(bench.client.connection(A))
        await asyncio.sleep(0)
        await bench.client.close()
        assert bench.client._connecting == {}
        with pytest.raises(ClientStateError):
            await connecting

    play(main)


def test_who_gives_up_on_a_closed_client_is_cancelled_all_the_same(
    play: Callable[..., None],
) -> None:
    """The connect it waited for was not what ended."""

    async def main(bench: Bench) -> None:
        bench.gate = asyncio.get_running_loop().create_future()
        connecting = asyncio.ensure_future(bench.client.connection(A))
        await asyncio.sleep(0)
        bench.client._closed = True
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        await bench.client.close()

    play(main)


def test_bounds_are_given_at_once_or_one_by_one() -> None:
    plain = RemotingClient(idle_close_ms=7)
    assert plain._bounds == ConnectionLimits(
        idle_close_ms=7, silent_close_ms=limits.SILENT_CLOSE_MS
    )
    assert plain._connect_timeout_ms == limits.CONNECT_TIMEOUT_MS
    bounds = ConnectionLimits(idle_close_ms=1)
    assert RemotingClient(idle_close_ms=7, bounds=bounds)._bounds is bounds


def test_the_first_nine_bytes_are_kept_of_whoever_speaks() -> None:
    connection = ClientConnection(asyncio.new_event_loop())
    connection.connection_made(cast(asyncio.BaseTransport, Wire()))
    frame = request(oneway=True).frame()
    connection.data_received(frame)
    connection.data_received(frame[1:])
    assert connection._first == frame[:9]
    connection.connection_lost(None)
    connection._loop.close()
