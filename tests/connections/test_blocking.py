"""Blocking connections and their pool: pipelining, deadlines, hostile bytes, reuse, forks."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from rocketstream.errors import (
    ClientStateError,
    ConfigurationError,
    ConnectError,
    ConnectionLostError,
    ForkedClientError,
    RemoteProtocolError,
    RequestTimeoutError,
    TooManyRequestsError,
)
from rocketstream.protocol.addresses import format_address
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.framing import FrameDecoder
from rocketstream.testing import ManualClock
from rocketstream.transport import blocking_connection
from rocketstream.transport.blocking_connection import BlockingConnection
from rocketstream.transport.blocking_pool import BlockingPool
from rocketstream.transport.connection import Connection
from tests.connections.peers import HOSTILE
from tests.kits.threaded_server import ThreadedServer, echo, request
from tests.plugins.waiting import wait_until

LONG_MS = 20_000


@pytest.fixture(autouse=True, params=["poll", "select"])
def _waiting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run everything with poll(), where there is one, and without, as on Windows."""
    if request.param == "select":
        monkeypatch.delattr(select, "poll", raising=False)
    elif not hasattr(select, "poll"):
        pytest.skip("no poll() here")


@pytest.fixture
def server() -> Iterator[ThreadedServer]:
    with ThreadedServer() as running:
        yield running


class Script:
    """A peer on a plain socket: accepts one connection and plays what the test wrote."""

    def __init__(self, play: Callable[[socket.socket], None]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = format_address(*self._listener.getsockname())
        self._play = play
        self._thread = threading.Thread(target=self._main, name="script")
        self._thread.start()
        self.error: BaseException | None = None

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(20)
        self._listener.close()
        assert self.error is None, self.error

    def _main(self) -> None:
        sock, _ = self._listener.accept()
        with sock:
            sock.settimeout(20)
            try:
                self._play(sock)
            except BaseException as error:
                self.error = error


def read_commands(sock: socket.socket, count: int) -> list[RemotingCommand]:
    decoder = FrameDecoder()
    commands: list[RemotingCommand] = []
    while len(commands) < count:
        commands += decoder.feed(sock.recv(65536))
    return commands


def answer_to(command: RemotingCommand, body: bytes = b"") -> bytes:
    return command.answer(RemotingCommand.response(0, None, None, body)).frame()


# --- one connection -----------------------------------------------------------------------------


def test_request_gets_its_answer(server: ThreadedServer) -> None:
    with BlockingConnection(server.address) as connection:
        for size in (0, 1, 100, 300_000, 8_000_000, 5):
            body = os.urandom(size)
            assert bytes(connection.request(request(body=body), LONG_MS).body) == body
    assert connection.is_closed


def test_pipelined_requests_are_received_as_they_arrive() -> None:
    def reversed_answers(sock: socket.socket) -> None:
        for command in reversed(read_commands(sock, 3)):
            sock.sendall(answer_to(command, b"%d" % command.opaque))

    with Script(reversed_answers) as peer, BlockingConnection(peer.address) as connection:
        opaques = [connection.submit(request()) for _ in range(3)]
        assert connection.requests_in_flight == 3
        answers = [connection.receive(LONG_MS) for _ in range(3)]
        assert [each.opaque for each in answers] == opaques[::-1]
        with pytest.raises(ClientStateError, match="nothing is in flight"):
            connection.receive(LONG_MS)


def test_request_between_submitted_ones_keeps_their_answers(server: ThreadedServer) -> None:
    with BlockingConnection(server.address) as connection:
        first = connection.submit(request(body=b"first"))
        assert connection.request(request(body=b"second"), LONG_MS).body == b"second"
        kept = connection.receive(LONG_MS)
        assert (kept.opaque, kept.body) == (first, b"first")


def test_forgotten_request_and_unknown_answers_are_dropped() -> None:
    def play(sock: socket.socket) -> None:
        first, second = read_commands(sock, 2)
        stranger = request()
        stranger.opaque = 4711
        sock.sendall(answer_to(first) + answer_to(stranger) + answer_to(second, b"mine"))

    with Script(play) as peer, BlockingConnection(peer.address) as connection:
        connection.forget(connection.submit(request()))
        connection.submit(request())
        assert connection.receive(LONG_MS).body == b"mine"


def test_requests_of_the_peer_are_refused_and_skipped() -> None:
    refusals: list[RemotingCommand] = []

    def play(sock: socket.socket) -> None:
        (command,) = read_commands(sock, 1)
        sock.sendall(request(39, oneway=True).frame() + request(40).frame())
        refusals.extend(read_commands(sock, 1))
        sock.sendall(answer_to(command, b"now"))

    with Script(play) as peer, BlockingConnection(peer.address) as connection:
        assert connection.request(request(), LONG_MS).body == b"now"
    assert [(each.code, each.is_response) for each in refusals] == [(3, True)]


@pytest.mark.parametrize("asks", ["request", "receive"])
@pytest.mark.parametrize("sends", ["answers", "requests", "one-way requests"])
def test_what_nobody_waits_for_does_not_put_a_timeout_off(asks: str, sends: str) -> None:
    """A peer that sends such frames without end would hold its caller for ever."""

    class Passing(ManualClock):
        """Time that passes with each look at it."""

        def monotonic_ms(self) -> float:
            self.advance(LONG_MS / 4)
            return super().monotonic_ms()

    def play(sock: socket.socket) -> None:
        (command,) = read_commands(sock, 1)
        stranger = request(39, oneway=sends == "one-way requests")
        stranger.opaque = 4711
        unasked = answer_to(stranger) if sends == "answers" else stranger.frame()
        sock.sendall(unasked * 4 + answer_to(command))
        with contextlib.suppress(OSError):  # refusals are taken until it is closed
            while sock.recv(65536):
                pass

    with Script(play) as peer, BlockingConnection(peer.address, clock=Passing()) as connection:
        ask = partial(connection.request, request(), LONG_MS)
        if asks == "receive":
            connection.submit(request())
            ask = partial(connection.receive, LONG_MS)
        with pytest.raises(RequestTimeoutError):
            ask()
        assert connection.is_closed


def test_an_idle_connection_over_which_too_much_comes_unasked_is_stale() -> None:
    """To read it all would take memory without bound, and might never end."""

    def play(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock.sendall(request(39, oneway=True).frame() * 100)

    with Script(play) as peer, BlockingConnection(peer.address) as connection:
        wait_until(connection.is_stale, "end of the connection")
        assert connection.is_closed


def test_a_timeout_of_months_is_no_error() -> None:
    """The system takes less than 25 days at a time."""

    def play(sock: socket.socket) -> None:
        (command,) = read_commands(sock, 1)
        sock.sendall(answer_to(command))

    with Script(play) as peer, BlockingConnection(peer.address) as connection:
        assert connection.request(request(body=b"x"), 2.0**32).code == 0


def test_timeout_closes_the_connection() -> None:
    """Upstream closes too (W 1.1): the late answer must not meet the next request.

    It is reset: what the peer has not taken must not come behind what is said over the next one.
    """

    def play(sock: socket.socket) -> None:
        (command,) = read_commands(sock, 1)
        sock.sendall(answer_to(command)[:-1])
        with pytest.raises(ConnectionResetError):
            sock.recv(1)

    with Script(play) as peer, BlockingConnection(peer.address) as connection:
        with pytest.raises(RequestTimeoutError, match=peer.address):
            connection.request(request(body=b"x"), 30)
        assert connection.is_closed
        with pytest.raises(ConnectError, match="nothing was sent"):
            connection.request(request(), LONG_MS)


def test_peer_that_takes_no_bytes_times_the_write_out() -> None:
    done = threading.Event()

    def play(sock: socket.socket) -> None:
        assert done.wait(20)

    with Script(play) as peer:
        with (
            BlockingConnection(peer.address, connect_timeout_ms=50) as connection,
            pytest.raises(ConnectError, match="takes no more bytes"),
        ):
            connection.submit(request(body=bytes(16_000_000)))
        done.set()


@pytest.fixture
def signals() -> Iterator[list[int]]:
    """A signal every 5 ms whose handler fails the test when they are too many to wait for."""
    came: list[int] = []

    def note(number: int, _: object) -> None:
        came.append(number)
        if len(came) == 600:
            signal.setitimer(signal.ITIMER_REAL, 0)
            pytest.fail("still waiting after 600 signals")

    before = signal.signal(signal.SIGALRM, note)
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
    yield came
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a periodic signal")
@pytest.mark.parametrize("pieces", [0, 1], ids=["silent", "begun"])
def test_periodic_signals_do_not_put_a_timeout_off(pieces: int, signals: list[int]) -> None:
    """A profiler's timer, a watchdog's: each signal began the kernel's timeout anew."""

    def play(sock: socket.socket) -> None:
        (command,) = read_commands(sock, 1)
        sock.sendall(answer_to(command)[: 4 * pieces])
        with pytest.raises(ConnectionResetError):
            sock.recv(1)

    with Script(play) as peer, BlockingConnection(peer.address) as connection:
        with pytest.raises(RequestTimeoutError):
            connection.request(request(body=b"x"), 40)
        assert connection.is_closed
    assert signals


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a periodic signal")
def test_periodic_signals_do_not_put_the_end_of_a_write_off(signals: list[int]) -> None:
    done = threading.Event()

    def play(_: socket.socket) -> None:
        assert done.wait(20)

    with Script(play) as peer:
        with (
            BlockingConnection(peer.address, connect_timeout_ms=40) as connection,
            pytest.raises(ConnectError, match="takes no more bytes"),
        ):
            connection.submit(request(body=bytes(16_000_000)))
        done.set()
    assert signals


def test_lost_connection_is_told_with_an_unknown_outcome() -> None:
    def play(sock: socket.socket) -> None:
        read_commands(sock, 1)

    with Script(play) as peer, BlockingConnection(peer.address) as connection:
        with pytest.raises(ConnectionLostError, match="closed by the peer"):
            connection.request(request(), LONG_MS)
        assert connection.is_closed


def test_unfinished_write_is_not_an_unknown_outcome() -> None:
    """The peer cannot act on a frame it did not get whole: sending again is safe."""
    closed = threading.Event()

    def play(sock: socket.socket) -> None:
        sock.recv(1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        closed.set()

    with Script(play) as peer, BlockingConnection(peer.address) as connection:
        connection.oneway(request())
        assert closed.wait(20)
        with pytest.raises(ConnectError, match="not sent whole"):
            connection.submit(request(body=bytes(8_000_000)))


@pytest.mark.parametrize("data", list(HOSTILE.values()), ids=list(HOSTILE))
def test_hostile_answers_break_the_connection(data: bytes) -> None:
    def play(sock: socket.socket) -> None:
        read_commands(sock, 1)
        sock.sendall(data + bytes(16))
        sock.recv(1)

    with Script(play) as peer, BlockingConnection(peer.address) as connection:
        with pytest.raises(RemoteProtocolError):
            connection.request(request(), LONG_MS)
        assert connection.is_closed


def test_answers_arrive_whole_from_single_bytes_and_from_one_segment() -> None:
    def play(sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        first, second, third = read_commands(sock, 3)
        for byte in answer_to(first, b"one"):
            sock.sendall(bytes([byte]))
        sock.sendall(answer_to(second, b"two") + answer_to(third, b"three"))

    with Script(play) as peer, BlockingConnection(peer.address) as connection:
        for _ in range(3):
            connection.submit(request())
        bodies = [bytes(connection.receive(LONG_MS).body) for _ in range(3)]
        assert bodies == [b"one", b"two", b"three"]


def test_many_large_answers_in_flight_keep_their_bytes(server: ThreadedServer) -> None:
    """Frames straddle the read buffer at every position."""
    bodies = [os.urandom(100_000 + 7919 * number) for number in range(20)]
    with BlockingConnection(server.address) as connection:
        for body in bodies:
            connection.submit(request(body=body))
        assert [bytes(connection.receive(LONG_MS).body) for _ in bodies] == bodies


def test_before_request_is_called_on_every_path(server: ThreadedServer) -> None:
    seen: list[tuple[str, int]] = []

    def sign(address: str, command: RemotingCommand) -> None:
        seen.append((address, command.code))

    with BlockingConnection(server.address, before_request=sign) as connection:
        connection.request(request(1), LONG_MS)
        connection.oneway(request(2))
        connection.submit(request(3))
    assert seen == [(server.address, code) for code in (1, 2, 3)]


def test_connect_error_names_address_and_reason() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        address = format_address(*sock.getsockname())
    with pytest.raises(ConnectError, match=f"cannot connect to {address}.*refused"):
        BlockingConnection(address)
    with pytest.raises(ConfigurationError):
        BlockingConnection("nonsense")


# --- the pool -----------------------------------------------------------------------------------


def test_pool_reuses_the_last_returned_connection(server: ThreadedServer) -> None:
    with BlockingPool() as pool:
        with pool.connection(server.address) as first, pool.connection(server.address) as second:
            assert first is not second
        with pool.connection(server.address) as again:
            assert again is first
        assert pool.request(server.address, request(body=b"x"), LONG_MS).body == b"x"
        pool.oneway(server.address, request())


def test_restarted_peer_does_not_fail_the_next_request(server: ThreadedServer) -> None:
    """Sockets the peer closed while idle are found before use: no unknown outcome."""
    with BlockingPool() as pool:
        with pool.connection(server.address) as one, pool.connection(server.address) as other:
            one.request(request(), LONG_MS)
            other.request(request(), LONG_MS)
        port = server.server.port
        server.close()
        with ThreadedServer(port=port) as again:
            assert pool.request(again.address, request(body=b"back"), LONG_MS).body == b"back"
        assert one.is_closed


def test_a_request_that_times_out_takes_the_idle_connections_with_it() -> None:
    """What forgot one connection has forgotten all: they would time out one after the other."""
    forgotten: set[Connection] = set()

    def silent(connection: Connection, command: RemotingCommand) -> None:
        if connection not in forgotten:
            echo(connection, command)

    with ThreadedServer(on_request=silent) as server, BlockingPool() as pool:
        with pool.connection(server.address) as one, pool.connection(server.address) as other:
            one.request(request(), LONG_MS)
            other.request(request(), LONG_MS)
        forgotten.update(server.server.connections)
        with pytest.raises(RequestTimeoutError):
            pool.request(server.address, request(), 20)
        assert one.is_closed
        assert other.is_closed
        assert pool.request(server.address, request(body=b"new"), LONG_MS).body == b"new"


def test_pool_does_not_reuse_what_broke_or_has_answers_to_come(server: ThreadedServer) -> None:
    with BlockingPool() as pool:
        with pool.connection(server.address) as busy:
            busy.submit(request())
        assert busy.is_closed
        with pool.connection(server.address) as broken:
            broken.close()
        with pool.connection(server.address) as fresh:
            assert fresh not in (busy, broken)


def test_pool_is_bounded_and_hands_over_to_who_waits(server: ThreadedServer) -> None:
    with BlockingPool(connections_max=1) as pool:
        lent = threading.Event()
        done: list[bytes] = []

        def waiter() -> None:
            lent.set()
            done.append(bytes(pool.request(server.address, request(body=b"w"), LONG_MS).body))

        thread = threading.Thread(target=waiter)
        with pool.connection(server.address):
            with pytest.raises(TooManyRequestsError, match="nothing was sent"):
                pool.request(server.address, request(), 20)
            thread.start()
            assert lent.wait(5)
        thread.join(20)
        assert done == [b"w"]


def test_failed_connects_do_not_use_the_pool_up(server: ThreadedServer) -> None:
    address = server.address
    port = server.server.port
    server.close()
    with BlockingPool(connections_max=2) as pool:
        for _ in range(5):
            with pytest.raises(ConnectError):
                pool.request(address, request(), LONG_MS)
        with ThreadedServer(port=port):
            assert pool.request(address, request(body=b"x"), LONG_MS).body == b"x"


def test_closed_pool_refuses_and_closes_what_returns(server: ThreadedServer) -> None:
    pool = BlockingPool()
    with pool.connection(server.address) as lent:
        pool.close()
        assert lent.request(request(body=b"x"), LONG_MS).body == b"x"
    assert lent.is_closed
    with pytest.raises(ClientStateError):
        pool.request(server.address, request(), LONG_MS)


def test_many_threads_share_a_pool(server: ThreadedServer) -> None:
    errors: list[BaseException] = []
    with BlockingPool(connections_max=4) as pool:

        def work(number: int) -> None:
            try:
                for turn in range(50):
                    body = b"%d-%d" % (number, turn)
                    assert pool.request(server.address, request(body=body), LONG_MS).body == body
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not errors
        assert len(server.server.connections) <= 4


# --- forks --------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_forked_child_is_refused_and_the_parent_goes_on(server: ThreadedServer) -> None:
    """Two processes on one socket would read each other's answers."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    with BlockingPool() as pool, BlockingConnection(server.address) as connection:
        pool.request(server.address, request(), LONG_MS)
        connection.submit(request(body=b"mine"))

        def child() -> None:
            refused = 0
            calls: list[Callable[[], object]] = [
                lambda: connection.request(request(), LONG_MS),
                lambda: connection.receive(LONG_MS),
                lambda: pool.request(server.address, request(), LONG_MS),
            ]
            for call in calls:
                try:
                    call()
                except ForkedClientError:
                    refused += 1
            connection.close()
            pool.close()
            theirs.send(refused)

        process = context.Process(target=child)
        process.start()
        process.join(30)
        assert process.exitcode == 0
        assert ours.poll(5)
        assert ours.recv() == 3
        assert connection.receive(LONG_MS).body == b"mine"
        assert pool.request(server.address, request(body=b"x"), LONG_MS).body == b"x"
    ours.close()
    theirs.close()


def test_answer_of_a_handler_that_asks_back_is_not_mixed_up() -> None:
    """The server may ask the blocking client; both number their requests alike."""

    def ask_back(connection: Connection, command: RemotingCommand) -> None:
        def done(answer: RemotingCommand | None, error: Exception | None) -> None:
            code = answer.code if answer is not None else -1
            connection.reply(command, RemotingCommand.response(0, None, None, b"%d" % code))

        connection.request_callback(request(40), LONG_MS, done)

    with (
        ThreadedServer(on_request=ask_back) as server,
        BlockingConnection(server.address) as connection,
    ):
        assert connection.request(request(), LONG_MS).body == b"3"


# --- looking before sleeping ----------------------------------------------------------------------


def test_a_lone_request_gets_its_answer_by_looking(server: ThreadedServer) -> None:
    """With looking or after it in vain, the answer is the same; timeouts hold."""
    with BlockingConnection(server.address) as connection:
        for number in range(40):
            body = b"%d" % number
            assert connection.request(request(1, body), LONG_MS, alone=True).body == body


def test_looking_in_vain_ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that takes its time is waited for asleep, and after a while without looking first."""
    monkeypatch.setattr(blocking_connection, "_LOOKS_MAX", 1)
    looks = 0

    def note_look() -> None:
        nonlocal looks
        looks += 1
        gate.release()  # the peer answers only once somebody has looked in vain

    gate = threading.Semaphore(0)
    monkeypatch.setattr(blocking_connection, "_yield_processor", note_look)
    count = blocking_connection._LOOKS_IN_VAIN_MAX + 3

    def play(sock: socket.socket) -> None:
        decoder = FrameDecoder()
        for number in range(count):
            commands: list[RemotingCommand] = []
            while not commands:
                commands = decoder.feed(sock.recv(4096))
            if number < blocking_connection._LOOKS_IN_VAIN_MAX and looking:
                gate.acquire(timeout=20)
            sock.sendall(commands[0].answer(RemotingCommand.response(0)).frame())

    looking = hasattr(select, "poll")
    clock = ManualClock()  # on a busy machine giving way takes long, and looking pauses
    with Script(play) as peer, BlockingConnection(peer.address, clock=clock) as connection:
        for _ in range(count):
            connection.request(request(), LONG_MS, alone=True)
    assert looks == (blocking_connection._LOOKS_IN_VAIN_MAX if looking else 0)


def test_looking_stops_where_processors_are_scarce(
    server: ThreadedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Giving way that takes long means that others want the processor."""
    clock = ManualClock()
    looks = 0

    def give_way() -> None:
        nonlocal looks
        looks += 1
        clock.advance(1)

    monkeypatch.setattr(blocking_connection, "_yield_processor", give_way)
    monkeypatch.setattr(blocking_connection, "_LOOKS_MAX", 1_000_000)
    with BlockingConnection(server.address, clock=clock) as connection:
        for _ in range(blocking_connection._REQUESTS_WHILE_SCARCE):
            connection.request(request(), LONG_MS, alone=True)
    assert looks <= 1


def test_a_pool_looks_only_for_a_lone_user(
    server: ThreadedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another connection to the address is in use, and unless asked for, nobody looks."""
    seen: list[bool] = []
    plain = BlockingConnection.request

    def noted(
        self: BlockingConnection,
        command: RemotingCommand,
        timeout_ms: float,
        *,
        alone: bool = False,
    ) -> RemotingCommand:
        seen.append(alone)
        return plain(self, command, timeout_ms, alone=alone)

    monkeypatch.setattr(BlockingConnection, "request", noted)
    for busy_wait in (True, False):
        with BlockingPool(busy_wait=busy_wait) as pool:
            with pool.connection(server.address), pool.connection(server.address):
                pass
            pool.request(server.address, request(), LONG_MS)
            with pool.connection(server.address):
                pool.request(server.address, request(), LONG_MS)
    assert seen == [True, False, False, False]
