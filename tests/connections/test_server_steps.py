"""A listening port, step by step: who is accepted, when TLS is spoken, what a close ends."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from rocketstream import limits
from rocketstream.errors import (
    ClientStateError,
    ConfigurationError,
    NotSupportedError,
    PortInUseError,
    ServerError,
)
from rocketstream.testing.clock import ManualClock
from rocketstream.transport import server as servers
from rocketstream.transport.client import RemotingClient
from rocketstream.transport.connection import ConnectionLimits
from rocketstream.transport.server import RemotingServer, _Acceptor
from rocketstream.transport.sharing import Sharing
from tests.connections.peers import Holder
from tests.kits.threaded_server import echo, request
from tests.plugins.loop_by_hand import LoopByHand

CONTEXT: Any = object()
LONG_MS = 20_000


class Sock:
    """An accepted socket, and what a peek at it finds."""

    def __init__(self, first: bytes | OSError = b"") -> None:
        self.first = first
        self.closes = self.shutdowns = 0
        self.is_blocking = True

    def setblocking(self, flag: bool) -> None:
        self.is_blocking = flag

    def recv(self, count: int, flags: int) -> bytes:
        assert (count, flags) == (1, socket.MSG_PEEK)
        if isinstance(self.first, OSError):
            raise self.first
        return self.first[:1]

    def shutdown(self, how: int) -> None:
        assert how == socket.SHUT_RDWR
        self.shutdowns += 1
        raise OSError("not connected")

    def close(self) -> None:
        self.closes += 1


class Listener(Sock):
    """Gives the sockets a test put there; then it would block."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Sock | OSError] = []
        self.descriptor = 5

    def accept(self) -> tuple[Sock, None]:
        if not self.waiting:
            raise BlockingIOError
        each = self.waiting.pop(0)
        if isinstance(each, OSError):
            raise each
        return each, None

    def fileno(self) -> int:
        return self.descriptor

    def close(self) -> None:
        super().close()
        self.descriptor = -1


class AcceptLoop(LoopByHand):
    """Watches sockets when a test says so; makes tasks on the loop that runs.

    Attributes:
        readers: what is called for each watched socket.
        taken: each socket that was made a connection, with its TLS and its time for a handshake.
        refuses: raised in its place.
    """

    def __init__(self) -> None:
        super().__init__()
        self.readers: dict[Any, Callable[[], object]] = {}
        self.taken: list[tuple[Any, Any, float | None]] = []
        self.refuses: BaseException | None = None

    def add_reader(self, sock: Any, call: Callable[..., object], *args: Any) -> None:
        self.readers[sock] = lambda: call(*args)

    def remove_reader(self, sock: Any) -> None:
        del self.readers[sock]

    def call_later(self, pause_s: float, call: Callable[..., object], *args: Any) -> Any:
        return super().call_later(pause_s, lambda: call(*args))

    def create_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work)

    async def connect_accepted_socket(
        self, new: Any, sock: Any, *, ssl: Any, ssl_handshake_timeout: float | None
    ) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.taken.append((sock, ssl, ssl_handshake_timeout))


class Bench:
    """An acceptor on a listener and a loop that are a test's."""

    def __init__(self, context: Any = None, mode: Any = "permissive") -> None:
        self.listener = Listener()
        self.loop = AcceptLoop()
        self.in_progress: list[int] = []
        self.is_full = False
        self.acceptor = _Acceptor(
            cast(socket.socket, self.listener),
            cast(Any, None),
            context,
            mode,
            self._is_full,
        )
        self.acceptor._loop = cast(asyncio.AbstractEventLoop, self.loop)
        self.acceptor.start()

    def _is_full(self, in_progress: int) -> bool:
        self.in_progress.append(in_progress)
        return self.is_full

    async def come(self, *peers: Sock | OSError) -> None:
        """Have so many peers waiting, and the loop look once."""
        self.listener.waiting += peers
        self.loop.readers[self.listener]()
        await settle()


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def play(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 30))


# --- accepting ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("context", "mode", "timeout_s"), [(None, "permissive", None), (CONTEXT, "enforcing", 10.0)]
)
def test_one_kind_of_peer_is_taken_without_a_look(
    context: Any, mode: str, timeout_s: float | None
) -> None:
    async def main() -> None:
        bench = Bench(context, mode)
        peers = [Sock() for _ in range(2)]
        await bench.come(*peers)
        assert bench.loop.taken == [(peer, context, timeout_s) for peer in peers]
        assert [peer.is_blocking for peer in peers] == [False, False]
        assert bench.in_progress == [0, 1]
        assert list(bench.loop.readers) == [bench.listener]
        await bench.come(Sock())
        assert bench.in_progress == [0, 1, 0], "those before are connections now"

    play(main)


@pytest.mark.parametrize(
    ("first", "context", "timeout_s"), [(b"\x16", CONTEXT, 10.0), (b"\x00", None, None)]
)
def test_where_both_are_spoken_the_first_byte_decides(
    first: bytes, context: Any, timeout_s: float | None
) -> None:
    async def main() -> None:
        bench = Bench(CONTEXT)
        peer = Sock(BlockingIOError())
        await bench.come(peer)
        assert (bench.loop.taken, bench.in_progress) == ([], [0])
        (timer,) = bench.loop.waiting()
        assert timer.pause_s == 10.0
        bench.loop.readers[peer]()
        assert not timer.is_cancelled, "nothing has come yet"
        await bench.come(Sock(BlockingIOError()))
        assert bench.in_progress == [0, 1]
        peer.first = first
        bench.loop.readers[peer]()
        await settle()
        assert bench.loop.taken == [(peer, context, timeout_s)]
        assert timer.is_cancelled
        assert peer not in bench.loop.readers

    play(main)


@pytest.mark.parametrize("first", [b"", OSError("reset")])
def test_a_peer_that_left_before_its_first_byte_is_let_go(first: bytes | OSError) -> None:
    async def main() -> None:
        bench = Bench(CONTEXT)
        peer = Sock(first)
        await bench.come(peer)
        bench.loop.readers[peer]()
        await settle()
        assert (peer.closes, bench.loop.taken, bench.loop.waiting()) == (1, [], [])
        assert list(bench.loop.readers) == [bench.listener]

    play(main)


def test_a_peer_that_says_nothing_in_time_is_let_go() -> None:
    async def main() -> None:
        bench = Bench(CONTEXT)
        peer = Sock()
        await bench.come(peer)
        bench.loop.waiting()[0].call()
        assert peer.closes == 1
        assert list(bench.loop.readers) == [bench.listener]

    play(main)


def test_a_look_accepts_eight_and_refuses_those_too_many() -> None:
    async def main() -> None:
        bench = Bench()
        await bench.come(*(Sock() for _ in range(20)))
        assert len(bench.loop.taken) == 8
        bench.is_full = True
        peers = cast("list[Sock]", list(bench.listener.waiting))
        await bench.come()
        assert len(bench.loop.taken) == 8
        assert [peer.closes for peer in peers] == [1] * 8 + [0] * 4

    play(main)


@pytest.mark.parametrize("error", [InterruptedError(), ConnectionAbortedError()])
def test_an_accept_that_comes_to_nothing_is_tried_at_the_next_look(error: OSError) -> None:
    async def main() -> None:
        bench = Bench()
        await bench.come(error, Sock())
        assert bench.loop.taken == []
        await bench.come()
        assert len(bench.loop.taken) == 1

    play(main)


def test_without_descriptors_it_looks_again_after_a_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        bench = Bench()
        await bench.come(OSError(errno.EMFILE, "too many"), Sock())
        assert (bench.loop.taken, bench.loop.readers) == ([], {})
        (timer,) = bench.loop.waiting()
        assert timer.pause_s == 1.0
        timer.call()
        await bench.come()
        assert len(bench.loop.taken) == 1
        await bench.acceptor.close()
        assert not timer.is_cancelled, "it came"

    play(main)
    assert "cannot accept on" in caplog.text


@pytest.mark.parametrize("error", [OSError("handshake"), asyncio.CancelledError()])
def test_a_connection_that_is_not_made_leaves_no_socket(error: BaseException) -> None:
    async def main() -> None:
        bench = Bench()
        bench.loop.refuses = error
        peer = Sock()
        await bench.come(peer)
        assert peer.closes == 1
        assert bench.acceptor._tasks == {}

    play(main)


def test_a_close_lets_go_of_whoever_is_on_the_way_in() -> None:
    async def main() -> None:
        bench = Bench(CONTEXT)
        silent, greeting = Sock(), Sock(b"\x16")
        await bench.come(silent, greeting)
        done = asyncio.get_running_loop().create_future()

        async def handshake(*_: Any, **__: Any) -> None:
            await done

        bench.loop.connect_accepted_socket = handshake  # type: ignore[method-assign]
        bench.loop.readers[greeting]()
        await settle()
        closing = asyncio.ensure_future(bench.acceptor.close())
        await settle()
        assert (bench.listener.closes, bench.loop.readers) == (1, {})
        assert (silent.closes, silent.shutdowns) == (1, 0)
        assert (greeting.closes, greeting.shutdowns) == (0, 1)
        assert not closing.done(), "its handshake ends with its socket"
        done.set_result(None)
        await closing
        await bench.acceptor.close()
        assert bench.listener.closes == 1

    play(main)


def test_a_cancelled_close_leaves_handshakes_to_their_end_and_a_second_waits_for_them() -> None:
    """A connection just made would never learn that it is lost."""

    async def main() -> None:
        bench = Bench(CONTEXT)
        peer, done = Sock(b"\x16"), asyncio.get_running_loop().create_future()

        async def handshake(*_: Any, **__: Any) -> None:
            await done

        bench.loop.connect_accepted_socket = handshake  # type: ignore[method-assign]
        await bench.come(peer)
        bench.loop.readers[peer]()
        await settle()
        closing = asyncio.ensure_future(bench.acceptor.close())
        await settle()
        closing.cancel()
        await settle()
        assert closing.cancelled()
        (task,) = bench.acceptor._tasks
        assert not task.cancelling()
        again = asyncio.ensure_future(bench.acceptor.close())
        await settle()
        assert not again.done()
        done.set_result(None)
        await again
        assert bench.listener.closes == 1

    play(main)


def test_a_close_amid_a_pause_looks_never_again() -> None:
    async def main() -> None:
        bench = Bench()
        bench.loop.remove_reader = lambda sock: bench.loop.readers.pop(sock, None)  # type: ignore[method-assign,assignment]
        await bench.come(OSError(errno.EMFILE, "too many"))
        (timer,) = bench.loop.waiting()
        await bench.acceptor.close()
        assert timer.is_cancelled

    play(main)


# --- the server -----------------------------------------------------------------------------------


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="give one of disabled, permissive, enforcing"):
        RemotingServer(echo, tls_mode=cast(Any, "both"))
    with pytest.raises(ConfigurationError, match="needs an ssl_context"):
        RemotingServer(echo, tls_mode="enforcing")
    assert RemotingServer(echo, tls_mode="disabled", ssl_context=CONTEXT)._ssl is None
    assert RemotingServer(echo, ssl_context=CONTEXT)._ssl is CONTEXT


def test_bounds_are_those_of_the_table_unless_given_at_once() -> None:
    plain = RemotingServer(echo, idle_close_ms=7, body_bytes_max=8)
    assert plain._bounds == ConnectionLimits(
        idle_close_ms=7, header_bytes_max=limits.HEADER_BYTES_MAX, body_bytes_max=8
    )
    bounds = ConnectionLimits(idle_close_ms=1)
    assert RemotingServer(echo, idle_close_ms=7, bounds=bounds)._bounds is bounds
    assert plain.address == "127.0.0.1:0"


def test_a_server_starts_once_and_not_after_its_close() -> None:
    async def main() -> None:
        server = RemotingServer(echo)
        await server.start()
        with pytest.raises(ClientStateError, match="starts once"):
            await server.start()
        await server.close()
        await server.close()
        closed = RemotingServer(echo)
        await closed.close()
        with pytest.raises(ClientStateError, match="starts once"):
            await closed.start()

    play(main)


@pytest.mark.parametrize("watches", [True, False])
def test_a_close_ends_what_its_connections_share_if_that_is_its_own(
    watches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the loop listens by its own means, as on Windows."""
    monkeypatch.setattr(servers, "_watches_sockets", lambda _: watches)

    async def main() -> None:
        shared = Sharing(ManualClock())
        for given in (None, shared):
            server = RemotingServer(echo, sharing=given)
            await server.start()
            assert server.port > 0
            assert (server._server is None) == watches
            client = RemotingClient()
            answer = await client.request(server.address, request(body=b"x"), LONG_MS)
            assert answer.body == b"x"
            sharing = server._sharing
            assert sharing is not None
            sharing.holds(Holder(1), 1)
            timer = sharing._look_timer
            assert timer is not None
            await server.close()
            assert timer.cancelled() == (given is None)
            assert not server.connections
            await client.close()
            if server._server is not None:
                assert not server._server.is_serving()
        shared.close()

    play(main)


def test_a_loop_that_watches_no_sockets_cannot_tell_tls_by_its_first_byte(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(servers, "_watches_sockets", lambda _: False)
    asked: list[dict[str, Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        plain = loop.create_server

        async def create_server(*how: Any, **more: Any) -> Any:
            asked.append(more)
            return await plain(*how, **{**more, "ssl": None, "ssl_handshake_timeout": None})

        monkeypatch.setattr(loop, "create_server", create_server)
        both = RemotingServer(echo, ssl_context=CONTEXT)
        with pytest.raises(NotSupportedError, match="use tls_mode='enforcing' or 'disabled'"):
            await both.start()
        await both.close()
        for server in (
            RemotingServer(echo, ssl_context=CONTEXT, tls_mode="enforcing"), RemotingServer(echo),
        ):  # fmt: skip
            await server.start()
            taken = RemotingServer(echo, port=server.port)
            with pytest.raises(PortInUseError):
                await taken.start()
            await server.close()

    play(main)
    assert [(each["ssl"], each["ssl_handshake_timeout"]) for each in asked] == [
        (CONTEXT, 10.0), (None, None), (None, None), (None, None),
    ]  # fmt: skip
    assert {each["backlog"] for each in asked} == {1024}


class Peer:
    """As much of a connection as its server asks for."""

    peer = "10.0.0.1:4711"

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def close(self, reason: str) -> None:
        self.reasons.append(reason)


def test_connections_too_many_are_refused_and_nobody_hears_of_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    opened: list[Any] = []
    closed: list[Any] = []
    server = RemotingServer(echo, connections_max=2, on_open=opened.append, on_close=closed.append)
    one, two, three = (cast(Any, Peer()) for _ in range(3))
    assert [server._is_full(count) for count in (0, 1, 2, 3)] == [False, False, True, True]
    with caplog.at_level(logging.WARNING):
        for each in (one, two, three):
            server._opened(each)
    assert (opened, list(server.connections)) == ([one, two], [one, two])
    assert (one.reasons, three.reasons) == ([], ["more than 2 connections"])
    assert "refusing 10.0.0.1:4711: 2 connections" in caplog.text
    assert [server._is_full(count) for count in (0, 1)] == [True, True]
    server._lost(three)
    server._lost(one)
    assert (closed, list(server.connections), server._refused) == ([one], [two], {})
    server._closed = True
    server._opened(three)
    assert three.reasons[1:] == ["the server is shutting down"]
    assert list(server._refused) == [three]


def test_without_anybody_to_tell_connections_come_and_go() -> None:
    server = RemotingServer(echo)
    one = cast(Any, Peer())
    server._opened(one)
    assert list(server.connections) == [one]
    server._lost(one)
    server._lost(one)
    assert not server.connections


def test_a_close_waits_for_all_its_connections_and_those_it_refused() -> None:
    async def main() -> None:
        waited: list[str] = []

        class Slow(Peer):
            def __init__(self, name: str) -> None:
                super().__init__()
                self.name = name

            async def wait_closed(self) -> None:
                waited.append(self.name)

        server = RemotingServer(echo, connections_max=1)
        one, two = cast(Any, Slow("one")), cast(Any, Slow("two"))
        server._opened(one)
        server._opened(two)
        await server.close()
        assert waited == ["one", "two"]
        assert one.reasons == ["the server is shutting down"]
        assert len(two.reasons) == 1

    play(main)


def test_a_cancelled_close_closes_every_connection_all_the_same() -> None:
    async def main() -> None:
        class Hanging(Peer):
            async def wait_closed(self) -> None:
                await asyncio.Event().wait()

        class Acceptor:
            async def close(self) -> None:
                await asyncio.Event().wait()

        server: Any = RemotingServer(echo)
        server._acceptor, sharing = Acceptor(), Sharing(ManualClock())
        server._own_sharing = sharing
        sharing.holds(Holder(1), 1)
        peers = [cast(Any, Hanging()) for _ in range(2)]
        for peer in peers:
            server._opened(peer)
        closing = asyncio.ensure_future(server.close())
        await settle()
        for _ in range(2):
            closing.cancel()
            await settle()
        assert closing.cancelled()
        assert [peer.reasons for peer in peers] == [["the server is shutting down"]] * 2
        timer = sharing._look_timer
        assert timer is not None
        assert timer.cancelled()

    play(main)


# --- listening ------------------------------------------------------------------------------------


def test_a_listening_socket_does_not_block_and_may_follow_another() -> None:
    family, address = servers._resolve("127.0.0.1", 0)
    with servers._listen(family, address, "127.0.0.1", 0) as listener:
        assert not listener.getblocking()
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        reuse = listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)
        assert bool(reuse) == (os.name == "posix")
        port = listener.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"127.0.0.1:{port}: the port is in use") as caught:
            servers._listen(family, ("127.0.0.1", port), "127.0.0.1", port)
        assert caught.value.parameters["port"] == port


def test_an_address_that_cannot_be_listened_on_leaves_no_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []

    class Refusing:
        def __init__(self, *_: Any) -> None:
            self.closes = 0
            made.append(self)

        def setsockopt(self, *_: Any) -> None:
            """Nothing."""

        def bind(self, address: Any) -> None:
            raise OSError(errno.EADDRNOTAVAIL, "not here")

        def close(self) -> None:
            self.closes += 1
            raise OSError("gone")

    monkeypatch.setattr(socket, "socket", Refusing)
    with pytest.raises(ServerError, match="not here; give an address of this host") as caught:
        servers._listen(socket.AF_INET, ("10.9.9.9", 1), "10.9.9.9", 1)
    assert not isinstance(caught.value, PortInUseError)
    assert [each.closes for each in made] == [1]


def test_a_host_without_an_address_is_named() -> None:
    with pytest.raises(ServerError, match=r"cannot listen on a\.\.b:1: .*; give an address"):
        servers._resolve("a..b", 1)


def test_a_loop_that_cannot_watch_sockets_is_known() -> None:
    class Blind:
        """As Windows' is."""

        add_reader = asyncio.AbstractEventLoop.add_reader

    loop = asyncio.new_event_loop()
    assert servers._watches_sockets(loop)
    assert not servers._watches_sockets(cast(Any, Blind()))
    loop.close()
