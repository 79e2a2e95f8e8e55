"""A blocking connection, step by step: what it reads and writes, and how long it waits for what."""

from __future__ import annotations

import os
import select
import selectors
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import pytest

from rocketstream import limits
from rocketstream.errors import (
    ClientStateError,
    ConnectError,
    ConnectionLostError,
    FrameTooLargeError,
    MalformedFrameError,
    RemoteProtocolError,
    RequestTimeoutError,
)
from rocketstream.protocol.addresses import CLOSED_AT_ONCE, SILENT
from rocketstream.protocol.command import OPAQUE_MASK, RemotingCommand
from rocketstream.protocol.framing import FrameDecoder
from rocketstream.testing.clock import ManualClock
from rocketstream.transport import blocking_connection as blocking
from rocketstream.transport.blocking_connection import BlockingConnection, wait_for_answers
from tests.kits.threaded_server import request

LONG_MS = 20_000.0
KIB_256 = 256 * 1024


class SSLWantReadError(OSError):
    """Named as TLS's own, which is all that is looked at."""


class SSLWantWriteError(OSError):
    """As above."""


class Sock:
    """A socket whose reads and writes a test wrote down; without more of them it is unready.

    Attributes:
        inputs: bytes to be read, an empty one for the end, or errors.
        takes: how many bytes each write takes, or errors; without more all of them.
        rooms: how much room each read had.
    """

    def __init__(self) -> None:
        self.inputs: list[bytes | BaseException] = []
        self.takes: list[int | BaseException] = []
        self.written = bytearray()
        self.rooms: list[int] = []
        self.is_blocking = True
        self.drops = False
        self.closes = 0

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        assert (level, option, self.closes) == (socket.SOL_SOCKET, socket.SO_LINGER, 0)
        self.drops = value == struct.pack("ii", 1, 0)

    def setblocking(self, flag: bool) -> None:
        self.is_blocking = flag

    def fileno(self) -> int:
        return 7

    def recv_into(self, view: memoryview) -> int:
        self.rooms.append(len(view))
        if not self.inputs:
            raise BlockingIOError
        data = self.inputs.pop(0)
        if isinstance(data, BaseException):
            raise data
        some, rest = data[: len(view)], data[len(view) :]
        if rest:
            self.inputs.insert(0, rest)
        view[: len(some)] = some
        return len(some)

    def send(self, data: bytes | memoryview) -> int:
        count = self.takes.pop(0) if self.takes else len(data)
        if isinstance(count, BaseException):
            raise count
        self.written += data[:count]
        return count

    def close(self) -> None:
        self.closes += 1


class TlsSock(Sock):
    """One that has decrypted bytes ready."""

    ready = 0

    def pending(self) -> int:
        return self.ready


class Bench:
    """A connection on such a socket; each wait moves the clock on.

    Attributes:
        waits: for what it waited ("read", or "write"), and for how many milliseconds at most.
        wait_ms: how long a wait takes.
        is_ready: what a wait comes to.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, sock: Sock, **how: Any) -> None:
        self.sock = sock
        self.clock = ManualClock()
        self.waits: list[tuple[str, float]] = []
        self.wait_ms = 0.0
        self.is_ready = True
        self.looks = 0
        self.connects: list[tuple[Any, ...]] = []

        def connect(*to: Any) -> Sock:
            self.connects.append(to)
            return sock

        monkeypatch.setattr(blocking, "_connect", connect)
        monkeypatch.setattr(blocking, "_poller", lambda _: self)
        monkeypatch.setattr(
            blocking, "_ready", lambda _, w, ms: self._wait("write" if w else "read", ms)
        )
        self.connection = BlockingConnection("a:1", clock=self.clock, connect_timeout_ms=50, **how)

    def poll(self, ms: float) -> bool:
        if ms == 0:
            self.looks += 1
        return self._wait("read", ms)

    def _wait(self, what: str, ms: float) -> bool:
        self.waits.append((what, ms))
        self.clock.advance(self.wait_ms)
        return self.is_ready

    def gives(self, *frames: bytes | BaseException) -> None:
        self.sock.inputs += frames

    def written(self) -> list[RemotingCommand]:
        return FrameDecoder().feed(bytes(self.sock.written))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    bench = Bench(monkeypatch, Sock())
    yield bench
    bench.connection.close()


@pytest.fixture
def tls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    bench = Bench(monkeypatch, TlsSock(), ssl_context=cast(Any, object()))
    yield bench
    bench.connection.close()


def answer(opaque: int, body: bytes = b"") -> bytes:
    command = request()
    command.opaque = opaque
    return command.answer(RemotingCommand.response(0, None, None, body)).frame()


# --- requests -------------------------------------------------------------------------------------


def test_requests_of_every_kind_are_numbered_in_one_row(bench: Bench) -> None:
    connection = bench.connection
    bench.gives(answer(1))
    connection.request(request(), LONG_MS)
    assert connection.submit(request()) == 2
    connection.oneway(request())
    assert connection.submit(request()) == 4
    assert [(each.opaque, each.is_oneway) for each in bench.written()] == [
        (1, False), (2, False), (3, True), (4, False),
    ]  # fmt: skip
    connection._opaque = OPAQUE_MASK - 1
    assert [connection.submit(request()), connection.submit(request())] == [OPAQUE_MASK, 0]
    connection._opaque = OPAQUE_MASK
    bench.gives(answer(0))
    connection._outstanding.clear()
    connection.request(request(), LONG_MS)
    assert connection._opaque == 0
    connection._opaque = OPAQUE_MASK
    connection.oneway(request())
    assert connection._opaque == 0


def test_an_open_connection_never_blocks_by_itself(bench: Bench) -> None:
    connection = bench.connection
    assert bench.connects == [("a:1", 0.05, None)]
    assert not bench.sock.is_blocking
    assert (connection.is_closed, connection.fileno(), connection.timed_out) == (False, 7, False)
    assert (connection.requests_in_flight, connection.is_reusable) == (0, True)
    assert not connection.has_input
    connection.close()
    connection.close()
    assert (connection.is_closed, connection.fileno(), bench.sock.closes) == (True, -1, 1)
    assert (connection.is_reusable, connection.has_input) == (False, True)


def test_what_is_in_flight_keeps_others_from_using_it(bench: Bench) -> None:
    connection = bench.connection
    first, second = connection.submit(request()), connection.submit(request())
    assert (connection.requests_in_flight, connection.is_reusable) == (2, False)
    bench.gives(answer(first, b"first") + answer(77) + answer(3, b"mine"))
    assert connection.request(request(), LONG_MS).body == b"mine"
    assert (connection.requests_in_flight, connection.is_reusable) == (2, False)
    assert connection.has_input, "an answer that was kept"
    connection.forget(second)
    assert (connection.requests_in_flight, connection.is_reusable) == (1, False)
    assert connection.receive(LONG_MS).body == b"first"
    assert (connection.requests_in_flight, connection.is_reusable) == (0, True)
    assert not connection.has_input
    with pytest.raises(ClientStateError, match="nothing is in flight"):
        connection.receive(LONG_MS)


def test_nothing_is_in_flight_on_a_closed_connection(bench: Bench) -> None:
    """Neither what is to come nor what has come and was not taken."""
    connection = bench.connection
    first, _ = connection.submit(request()), connection.submit(request())
    bench.gives(answer(first) + answer(3))
    connection.request(request(), LONG_MS)
    connection.close()
    assert connection.requests_in_flight == 0
    with pytest.raises(ClientStateError, match="nothing is in flight"):
        connection.receive(LONG_MS)


def test_a_forgotten_answer_is_dropped_whether_it_came_or_not(bench: Bench) -> None:
    connection = bench.connection
    first, second = connection.submit(request()), connection.submit(request())
    bench.gives(answer(first) + answer(second) + answer(3))
    connection.request(request(), LONG_MS)
    connection.forget(first)
    assert connection.requests_in_flight == 1
    assert connection.receive(LONG_MS).opaque == second
    bench.gives(answer(4) + answer(5, b"mine"))
    connection.forget(connection.submit(request()))
    connection.submit(request())
    assert connection.receive(LONG_MS).body == b"mine"


def test_answers_read_in_one_go_are_there_without_waiting(bench: Bench) -> None:
    connection = bench.connection
    opaques = [connection.submit(request()) for _ in range(3)]
    bench.gives(b"".join(answer(each) for each in opaques))
    assert connection.receive(LONG_MS).opaque == opaques[0]
    assert len(bench.waits) == 1
    assert connection.has_input
    assert wait_for_answers([connection], LONG_MS) == [connection]
    assert [connection.receive(LONG_MS).opaque for _ in range(2)] == opaques[1:]
    assert len(bench.waits) == 1
    assert connection._start == connection._end == 0


def test_a_request_of_the_peer_is_refused_unless_it_is_oneway(bench: Bench) -> None:
    bench.gives(request(39, oneway=True).frame() + request(40).frame() + answer(1))
    bench.connection.request(request(), LONG_MS)
    own, refusal = bench.written()
    assert (own.is_response, refusal.is_response, refusal.code) == (False, True, 3)


def test_a_refusal_that_cannot_be_written_ends_it(bench: Bench) -> None:
    bench.sock.takes = [len(request(1).frame()), OSError("reset")]
    bench.gives(request(40).frame())
    with pytest.raises(ConnectionLostError, match="ended before the answer came: reset"):
        bench.connection.request(request(1), LONG_MS)
    assert bench.connection.is_closed


# --- time -----------------------------------------------------------------------------------------


def test_a_wait_takes_what_is_left_of_its_time_and_no_more(bench: Bench) -> None:
    whole = answer(1)
    bench.wait_ms = 30
    bench.gives(whole[:3], whole[3:10], whole[10:])
    bench.connection.request(request(), 100)
    assert bench.waits == [("read", 100), ("read", 70), ("read", 40)]
    bench.waits.clear()
    bench.connection.submit(request())
    bench.gives(answer(2))
    bench.connection.receive(100)
    assert bench.waits == [("read", 100)]


def test_a_wait_of_months_is_as_long_as_the_system_can(bench: Bench) -> None:
    bench.gives(answer(1))
    bench.connection.request(request(), 2.0**40)
    assert bench.waits == [("read", 2**31 - 1)]


@pytest.mark.parametrize("submitted", [True, False])
def test_what_comes_piece_by_piece_has_no_more_time(bench: Bench, submitted: bool) -> None:
    bench.wait_ms = 50
    bench.gives(*(bytes([byte]) for byte in answer(1)))
    connection = bench.connection
    if submitted:
        connection.submit(request())
    ask = connection.receive if submitted else partial(connection.request, request())
    with pytest.raises(RequestTimeoutError, match="no answer from a:1 in time; the connection was"):
        ask(100)
    assert len(bench.waits) == 2
    assert bench.connection.timed_out
    assert (bench.connection.is_closed, bench.sock.closes) == (True, 1)


def test_what_is_there_is_read_though_the_time_is_over(bench: Bench) -> None:
    """A caller that came late takes what has come; no time is less than none."""
    bench.gives(answer(1))
    assert bench.connection.request(request(), -5).code == 0
    assert bench.waits == [("read", 0)]


def test_silence_is_a_timeout_that_says_who_may_be_there(bench: Bench) -> None:
    bench.is_ready = False
    with pytest.raises(RequestTimeoutError) as caught:
        bench.connection.request(request(), 100)
    assert str(caught.value) == f"no answer from a:1 in time{SILENT}; the connection was closed"
    assert (bench.sock.drops, bench.sock.closes) == (True, 1)
    with pytest.raises(ConnectError, match=r"is closed \(a request timed out\); nothing was sent"):
        bench.connection.submit(request())
    with pytest.raises(ConnectionLostError, match="a request timed out"):
        bench.connection._fill(4, 0)


def test_a_peer_that_has_spoken_is_no_stranger(bench: Bench) -> None:
    bench.gives(answer(1), b"")
    bench.connection.request(request(), LONG_MS)
    with pytest.raises(ConnectionLostError) as caught:
        bench.connection.request(request(), LONG_MS)
    text = "connection to a:1 ended before the answer came: closed by the peer"
    assert str(caught.value) == text


# --- writing --------------------------------------------------------------------------------------


def test_a_frame_is_written_however_little_is_taken_at_once(bench: Bench) -> None:
    bench.sock.takes = [1, BlockingIOError(), 5, 0]
    bench.wait_ms = 10
    bench.gives(answer(1))
    bench.connection.request(request(body=b"body"), 100)
    (written,) = bench.written()
    assert written.body == b"body"
    assert bench.waits == [("write", 100), ("read", 90)]


def test_a_write_without_a_time_of_its_own_has_the_last_one_used(bench: Bench) -> None:
    """At first that of connecting."""
    for used in (None, 700.0, 900.0):
        if used == 700:
            bench.gives(answer(bench.connection._opaque + 1))
            bench.connection.request(request(), used)
        elif used == 900:
            bench.gives(answer(bench.connection.submit(request())))
            bench.connection.receive(used)
        bench.waits.clear()
        bench.sock.takes = [BlockingIOError(), BlockingIOError()]
        bench.wait_ms = 20
        bench.connection.oneway(request())
        assert bench.waits == [("write", used or 50), ("write", (used or 50) - 20)]
        bench.wait_ms = 0


def test_a_peer_that_takes_no_bytes_is_told_from_one_that_is_gone(bench: Bench) -> None:
    bench.sock.takes = [3, BlockingIOError()]
    bench.is_ready = False
    with pytest.raises(ConnectError) as caught:
        bench.connection.submit(request())
    text = "connection to a:1: the peer takes no more bytes; the request was not sent whole"
    assert str(caught.value) == text
    assert bench.connection.is_closed


def test_a_write_that_fails_says_why(bench: Bench) -> None:
    bench.sock.takes = [OSError("reset")]
    with pytest.raises(ConnectError, match="a:1: cannot send: reset; the request was not sent"):
        bench.connection.submit(request())
    assert (bench.connection.is_closed, bench.connection.requests_in_flight) == (True, 0)


@pytest.mark.parametrize("of", ["sending", "receiving"])
def test_an_interrupt_in_the_middle_closes_it(bench: Bench, of: str) -> None:
    """What was half written, or read, must not meet the next request."""
    if of == "sending":
        bench.sock.takes = [KeyboardInterrupt()]
    else:
        bench.gives(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        bench.connection.request(request(), LONG_MS)
    with pytest.raises(ConnectError, match=f"interrupted while {of}"):
        bench.connection.submit(request())


# --- TLS ------------------------------------------------------------------------------------------


def test_tls_reads_first_and_waits_for_what_it_wants(tls: Bench) -> None:
    """What was decrypted is there already, and poll() does not show it."""
    tls.gives(SSLWantReadError(), SSLWantWriteError(), BlockingIOError(), answer(1))
    tls.connection.request(request(), 100)
    assert [what for what, _ in tls.waits] == ["read", "write", "read"]
    tls.waits.clear()
    tls.sock.takes = [SSLWantReadError(), SSLWantWriteError()]
    tls.connection.oneway(request())
    assert [what for what, _ in tls.waits] == ["read", "write"]


def test_tls_has_input_that_its_descriptor_does_not_show(tls: Bench) -> None:
    assert not tls.connection.has_input
    cast(TlsSock, tls.sock).ready = 1
    assert tls.connection.has_input


def test_a_plain_connection_closed_at_once_may_have_met_tls(bench: Bench, tls: Bench) -> None:
    for each, remark in ((bench, CLOSED_AT_ONCE), (tls, "")):
        each.gives(b"")
        with pytest.raises(ConnectionLostError) as caught:
            each.connection.request(request(), LONG_MS)
        assert str(caught.value).endswith(f"came: closed by the peer{remark}")


def test_a_read_that_fails_says_why(bench: Bench) -> None:
    bench.gives(OSError("reset"))
    with pytest.raises(ConnectionLostError) as caught:
        bench.connection.request(request(), LONG_MS)
    assert f"came: reset{CLOSED_AT_ONCE}" in str(caught.value)


def test_tls_never_looks_for_an_answer(tls: Bench) -> None:
    tls.gives(answer(1))
    tls.connection.request(request(), LONG_MS, alone=True)
    assert tls.looks == 0


# --- frames ---------------------------------------------------------------------------------------


def length(value: int) -> bytes:
    return struct.pack(">i", value)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (-1, FrameTooLargeError),
        (0, MalformedFrameError),
        (3, MalformedFrameError),
        (limits.FRAME_BYTES_MAX - 3, FrameTooLargeError),
    ],
)
def test_a_length_no_frame_has_ends_it(bench: Bench, value: int, kind: type[Exception]) -> None:
    bench.gives(length(value) + b"rest")
    with pytest.raises(kind) as caught:
        bench.connection.request(request(), LONG_MS)
    most = limits.FRAME_BYTES_MAX - 4
    text = f"a:1 sent something other than frames: frame length {value} is not from 4 to {most}"
    assert str(caught.value) == text
    assert bench.connection.is_closed


def test_lengths_at_the_bounds_are_read_on(bench: Bench) -> None:
    bench.gives(length(limits.FRAME_BYTES_MAX - 4), b"")
    with pytest.raises(ConnectionLostError):
        bench.connection.request(request(), LONG_MS)
    assert bench.sock.rooms == [KIB_256, limits.FRAME_BYTES_MAX - 4]


def test_the_shortest_frame_is_one_whose_header_says_no(bench: Bench) -> None:
    bench.gives(length(4) + bytes(4))
    with pytest.raises(RemoteProtocolError) as caught:
        bench.connection.request(request(), LONG_MS)
    assert "frame length" not in str(caught.value)


def test_a_stranger_is_named_by_its_first_nine_bytes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []

    def named(first: bytes) -> str:
        seen.append(first)
        return "somebody"

    monkeypatch.setattr(blocking, "stranger", named)
    bench.gives(b"HTTP/1.1 400 Bad Request")
    with pytest.raises(RemoteProtocolError, match=r"; somebody$"):
        bench.connection.request(request(), LONG_MS)
    assert seen == [b"HTTP/1.1 "]


def test_bytes_that_show_nobody_bring_no_remark(bench: Bench) -> None:
    bench.gives(b"\0\0\1", b"")
    with pytest.raises(ConnectionLostError, match=r"came: closed by the peer$"):
        bench.connection.request(request(), LONG_MS)


def test_a_long_answer_gets_room_once_and_gives_it_back(bench: Bench) -> None:
    body = bytes(range(256)) * 2048
    whole = answer(1, body)
    bench.gives(whole[:100], whole[100:])
    assert bytes(bench.connection.request(request(), LONG_MS).body) == body
    assert bench.sock.rooms == [KIB_256, len(whole) - 100]
    assert len(bench.connection._buffer) == KIB_256
    bench.gives(answer(2, b"next"))
    assert bench.connection.request(request(), LONG_MS).body == b"next"
    assert bench.sock.rooms[2:] == [KIB_256]


def test_a_frame_that_begins_near_the_end_of_the_buffer_is_moved(bench: Bench) -> None:
    """With all that was read of it, and no more room than a frame of its length needs."""
    connection = bench.connection
    first, second = connection.submit(request()), connection.submit(request())
    head = len(answer(first))
    one = answer(first, bytes(KIB_256 - head - 2))
    two = answer(second, b"second" * 100)
    bench.gives(one + two)
    assert connection.receive(LONG_MS).opaque == first
    assert (connection._start, connection._end) == (len(one), KIB_256)
    assert bytes(connection.receive(LONG_MS).body) == b"second" * 100
    assert (len(connection._buffer), connection._start, connection._end) == (KIB_256, 0, 0)


def test_a_frame_that_ends_with_the_buffer_needs_no_other(bench: Bench) -> None:
    connection = bench.connection
    opaques = [connection.submit(request()) for _ in range(2)]
    first = answer(opaques[0])
    second = answer(opaques[1], bytes(KIB_256 - len(first) - len(answer(opaques[1]))))
    assert len(first) + len(second) == KIB_256
    buffer = connection._buffer
    bench.gives(first + second[:50], second[50:])
    for opaque in opaques:
        assert connection.receive(LONG_MS).opaque == opaque
    assert connection._buffer is buffer
    assert bench.sock.rooms == [KIB_256, KIB_256 - len(first) - 50]


def test_a_frame_that_cannot_be_read_closes_it(bench: Bench) -> None:
    bench.gives(struct.pack(">iI", 9, 5) + b"\xff\xfe{{{")
    with pytest.raises(RemoteProtocolError):
        bench.connection.request(request(), LONG_MS)
    assert (bench.connection.is_closed, bench.sock.closes) == (True, 1)


# --- idle connections -----------------------------------------------------------------------------


def test_an_idle_connection_the_peer_closed_is_stale(bench: Bench) -> None:
    bench.is_ready = False
    assert not bench.connection.is_stale()
    assert bench.waits == [("read", 0)]
    bench.is_ready = True
    bench.gives(b"")
    assert bench.connection.is_stale()
    assert bench.connection._close_reason == "closed by the peer"
    assert bench.connection.is_stale(), "closed"


def test_input_of_an_idle_connection_is_kept(bench: Bench) -> None:
    """However much: a request of the peer, or an answer that nobody waits for."""
    whole = answer(77, bytes(KIB_256)) + request(oneway=True).frame() + answer(1, b"mine")
    bench.gives(whole)
    assert not bench.connection.is_stale()
    assert bench.connection.has_input
    waits = len(bench.waits)
    assert bench.connection.request(request(), LONG_MS).body == b"mine"
    assert len(bench.waits) == waits


def test_an_idle_connection_with_a_full_buffer_is_not_taken_for_closed(bench: Bench) -> None:
    """Nothing can be read into no room, which looks like an end."""
    connection = bench.connection
    first = answer(connection.submit(request()))
    second = request(39, bytes(KIB_256), oneway=True).frame()
    bench.gives(first + second)
    connection.receive(LONG_MS)
    assert connection._end == KIB_256
    assert not connection.is_stale()
    assert connection._end - connection._start == len(second)


def test_an_idle_connection_that_was_reset_is_stale(bench: Bench) -> None:
    bench.gives(OSError("reset"))
    assert bench.connection.is_stale()
    assert bench.connection._close_reason == "reset"


def test_without_poll_an_idle_connection_is_looked_at_all_the_same(bench: Bench) -> None:
    bench.connection._poller = None
    bench.is_ready = False
    assert not bench.connection.is_stale()
    assert bench.waits == [("read", 0)]
    bench.is_ready = True
    bench.gives(answer(1))
    bench.connection.request(request(), 100)
    assert bench.waits[1:] == [("read", 100)]


# --- looking before sleeping ----------------------------------------------------------------------


@pytest.fixture
def looking(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """One whose answers come only to who waits; giving way takes no time."""
    monkeypatch.setattr(blocking, "_yield_processor", lambda: None)
    return bench


def looks(bench: Bench, count: int = 1, *, pays: bool = False) -> list[int]:
    """Make lone requests; return how often each one looked."""
    seen = []
    for _ in range(count):
        before = bench.looks
        bench.gives(answer(bench.connection._opaque + 1))
        bench.is_ready = pays
        poll = bench._wait

        def wait(what: str, ms: float, poll: Callable[[str, float], bool] = poll) -> bool:
            return poll(what, ms) or ms > 0

        bench._wait = wait  # type: ignore[method-assign]
        bench.connection.request(request(), LONG_MS, alone=True)
        bench._wait = poll  # type: ignore[method-assign]
        seen.append(bench.looks - before)
    return seen


def test_looking_in_vain_ends_and_begins_again(looking: Bench) -> None:
    """250 looks a request, 16 requests in vain, then 512 that sleep at once."""
    assert looks(looking, 16) == [250] * 16
    assert looks(looking, 512) == [0] * 512
    assert looks(looking, 16) == [250] * 16
    assert looks(looking) == [0]


def test_one_look_that_pays_makes_up_for_all_before(looking: Bench) -> None:
    looks(looking, 15)
    waits = len(looking.waits)
    assert looks(looking, pays=True) == [1]
    assert len(looking.waits) == waits + 1, "what was seen is not waited for"
    assert looks(looking, 16) == [250] * 16
    assert looks(looking) == [0]


def test_where_giving_way_takes_long_nobody_looks_for_a_while(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking, "_yield_processor", lambda: bench.clock.advance(0.2))
    assert looks(bench) == [2]
    assert looks(bench, 64) == [0] * 64
    assert looks(bench) == [2]


def test_who_is_not_alone_does_not_look(looking: Bench) -> None:
    looking.gives(answer(1))
    looking.connection.request(request(), LONG_MS)
    assert looking.looks == 0


@pytest.mark.parametrize("lacks", ["poll", "yield"])
def test_without_the_means_nobody_looks(
    looking: Bench, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    if lacks == "poll":
        looking.connection._poller = None
    else:
        monkeypatch.setattr(blocking, "_yield_processor", None)
    looking.gives(answer(1))
    looking.connection.request(request(), LONG_MS, alone=True)
    assert looking.looks == 0


def test_the_processor_is_given_way_on_linux_alone() -> None:
    has = sys.platform == "linux" and hasattr(os, "sched_yield")
    assert (blocking._yield_processor is not None) == has


# --- several, and the system's own ----------------------------------------------------------------


@pytest.mark.parametrize("has_poll", [True, False])
def test_a_socket_is_ready_for_what_it_is_asked(
    has_poll: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_poll:
        monkeypatch.delattr(select, "poll", raising=False)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        assert not blocking._ready(ours, False, 0)
        assert blocking._ready(ours, True, 0)
        theirs.send(b"x")
        assert blocking._ready(ours, False, 0)
        while True:
            try:
                ours.send(bytes(1 << 20))
            except BlockingIOError:
                break
        assert not blocking._ready(ours, True, 0)
        poller = blocking._poller(ours)
        assert (poller is not None) == (has_poll and hasattr(select, "poll"))
        if poller is not None:
            assert [event for _, event in poller.poll(0)] == [select.POLLIN]


def test_a_wait_without_poll_is_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.delattr(select, "poll", raising=False)

    def wait(reading: Any, writing: Any, failing: Any, timeout_s: float) -> tuple[Any, ...]:
        waits.append(timeout_s)
        return reading, writing, failing

    monkeypatch.setattr(select, "select", wait)
    assert blocking._ready(cast(socket.socket, Sock()), True, 1_500)
    assert waits == [1.5]


class Selector:
    """Notes what it watches, and how long."""

    waits: list[float]
    watched: list[tuple[int, int]]

    def __enter__(self) -> Selector:
        self.keys: list[Any] = []
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def register(self, descriptor: int, events: int, data: Any) -> None:
        self.watched.append((descriptor, events))
        self.keys.append(type("Key", (), {"data": data}))

    def select(self, timeout_s: float) -> list[tuple[Any, int]]:
        self.waits.append(timeout_s)
        return [(key, 1) for key in self.keys]


def test_several_are_waited_for_only_while_none_has_input(
    bench: Bench, tls: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    Selector.waits, Selector.watched = [], []
    monkeypatch.setattr(selectors, "DefaultSelector", Selector)
    both = [bench.connection, tls.connection]
    assert wait_for_answers([], LONG_MS) == []
    cast(TlsSock, tls.sock).ready = 3
    assert wait_for_answers(both, LONG_MS) == [tls.connection]
    assert Selector.waits == []
    cast(TlsSock, tls.sock).ready = 0
    assert wait_for_answers(both, 2_500) == both
    assert (Selector.waits, Selector.watched) == ([2.5], [(7, 1), (7, 1)])
