"""One connection, step by step: what is written when, what times out when, what is told to whom."""

from __future__ import annotations

import asyncio
import math
import socket
from typing import Any, cast

import pytest

from rocketstream._util.patience import another_look_s
from rocketstream.errors import (
    ConnectError,
    ConnectionLostError,
    RequestTimeoutError,
    TooManyRequestsError,
)
from rocketstream.protocol.codes import FLAG_ONEWAY
from rocketstream.protocol.command import OPAQUE_MASK, RemotingCommand
from rocketstream.protocol.framing import FrameDecoder
from rocketstream.transport.client import ClientConnection
from rocketstream.transport.connection import Connection, ConnectionLimits
from tests.connections.wires import Wire
from tests.kits.threaded_server import echo, request
from tests.plugins.loop_by_hand import LoopByHand

LONG_MS = 20_000


class Bench:
    """A connection on a wire and a loop that are a test's."""

    def __init__(
        self, kind: type[Connection] = Connection, wire: Wire | None = None, **how: Any
    ) -> None:
        self.loop = LoopByHand()
        self.wire = wire or Wire()
        bounds = how.pop("bounds", None) or ConnectionLimits(idle_close_ms=0)
        loop = cast(asyncio.AbstractEventLoop, self.loop)
        self.connection = kind(loop, how.pop("on_request", echo), bounds=bounds, **how)
        self.ends: list[tuple[RemotingCommand | None, Exception | None]] = []

    def open(self) -> Bench:
        self.connection.connection_made(cast(asyncio.BaseTransport, self.wire))
        return self

    def note(self, answer: RemotingCommand | None, error: Exception | None) -> None:
        self.ends.append((answer, error))

    def ask(self, timeout_ms: float = LONG_MS, body: bytes = b"") -> RemotingCommand:
        command = request(body=body)
        self.connection.request_callback(command, timeout_ms, self.note)
        return command

    def answered(self, command: RemotingCommand, body: bytes = b"") -> None:
        answer = command.answer(RemotingCommand.response(0, None, None, body))
        self.connection.data_received(answer.frame())

    def errors(self) -> list[type[Exception]]:
        return [type(error) for _, error in self.ends if error is not None]

    def sent(self) -> list[RemotingCommand]:
        """Return the frames written since the last call."""
        written, self.wire.written = self.wire.written, []
        return FrameDecoder().feed(b"".join(written))

    def timer(self) -> Any:
        """Return the one timer that waits."""
        (timer,) = self.loop.waiting()
        return timer

    def time_comes(self, at_s: float) -> None:
        """Have the timer come that is due then."""
        timer = self.timer()
        assert timer.at_s == pytest.approx(at_s)
        self.loop.now_s = at_s
        self.loop.timers.remove(timer)
        timer.call()


@pytest.fixture
def bench() -> Bench:
    return Bench().open()


# --- the beginning --------------------------------------------------------------------------------


def test_before_it_is_made_a_connection_is_closed_and_says_so() -> None:
    bench = Bench(address="a:1")
    connection = bench.connection
    assert (connection.is_closed, connection.is_congested, connection.bytes_buffered) == (
        True, False, 0,
    )  # fmt: skip
    assert (connection.peer_host, connection.local_host) == (("", 0), ("", 0))
    assert not connection.is_encrypted
    for call in (lambda: bench.ask(), lambda: connection.oneway(request())):
        with pytest.raises(ConnectError, match=r"a:1 is closed \(not open yet\); nothing was sent"):
            call()
    connection.close("never opened")
    connection._abort()
    assert connection.close_reason is None
    bench.open()
    assert repr(connection) == "<Connection a:1 open>"


def test_a_made_connection_knows_both_ends_and_sends_without_delay() -> None:
    opened: list[Connection] = []
    bench = Bench(on_open=opened.append).open()
    connection = bench.connection
    assert (connection.peer, connection.peer_host) == ("10.0.0.1:10911", ("10.0.0.1", 10911))
    assert connection.local_host == ("10.0.0.2", 40000)
    assert not connection.is_encrypted
    assert bench.wire.socket.options == [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
    assert bench.wire.high == 1024 * 1024
    assert opened == [connection]
    assert (connection.is_closed, connection._looks) == (False, 0)


def test_a_wire_without_socket_or_addresses_will_do() -> None:
    wire = Wire(socket=None, peername="pipe", sockname=None, sslcontext=object())
    connection = Bench(wire=wire, address="b:2").open().connection
    assert (connection.peer, connection.peer_host, connection.local_host) == (
        "b:2", ("", 0), ("", 0),
    )  # fmt: skip
    assert connection.is_encrypted


# --- numbers --------------------------------------------------------------------------------------


def test_requests_of_every_kind_are_numbered_in_one_row(bench: Bench) -> None:
    """From 1 on, within what upstream's int can hold."""
    bench.ask()
    bench.connection.oneway(request())
    bench.ask()
    bench.loop.turn()
    assert [command.opaque for command in bench.sent()] == [1, 2, 3]
    bench.connection._opaque = OPAQUE_MASK - 1
    bench.connection.oneway(request())
    bench.connection.oneway(request())
    bench.ask()
    bench.loop.turn()
    assert [command.opaque for command in bench.sent()] == [OPAQUE_MASK, 0, 1]
    assert bench.connection.requests_in_flight == 2


def test_a_oneway_is_marked_and_seen_before_it_goes() -> None:
    seen: list[tuple[str, RemotingCommand]] = []
    bench = Bench(before_request=lambda *call: seen.append(call)).open()
    command = request()
    bench.connection.oneway(command)
    assert seen == [("10.0.0.1:10911", command)]
    assert command.flag & FLAG_ONEWAY
    bench.loop.turn()
    assert [each.is_oneway for each in bench.sent()] == [True]
    bench.ask()
    assert len(seen) == 2


def test_as_many_as_may_be_in_flight_are_and_no_more() -> None:
    bench = Bench(bounds=ConnectionLimits(requests_in_flight_max=2)).open()
    first = bench.ask()
    bench.ask()
    with pytest.raises(TooManyRequestsError, match=r"2 requests to 10\.0\.0\.1:10911 wait"):
        bench.ask()
    bench.answered(first)
    bench.ask()
    assert bench.connection.requests_in_flight == 2


# --- who sees answers -----------------------------------------------------------------------------


class Seen:
    """Notes answers as ``after_response`` does."""

    def __init__(self) -> None:
        self.told: list[tuple[str, RemotingCommand, RemotingCommand]] = []

    def __call__(self, *call: Any) -> None:
        self.told.append(cast(Any, call))


def test_an_answer_is_shown_before_it_is_handed_on() -> None:
    seen = Seen()
    bench = Bench(after_response=seen).open()
    command = bench.ask()
    future = bench.connection.request_future(request(), LONG_MS)
    bench.answered(command, b"one")
    (told,) = seen.told
    assert told[:2] == ("10.0.0.1:10911", command)
    ((answer, error),) = bench.ends
    assert (answer, error) == (told[2], None)
    other = request()
    other.opaque = 2
    bench.answered(other, b"two")
    assert future.result().body == b"two"
    assert [bytes(each[2].body) for each in seen.told] == [b"one", b"two"]


def test_an_error_is_handed_on_and_shown_nobody() -> None:
    seen = Seen()
    bench = Bench(after_response=seen).open()
    bench.ask()
    future = bench.connection.request_future(request(), LONG_MS)
    given_up = bench.connection.request_future(request(), LONG_MS)
    given_up.cancel()
    bench.connection.connection_lost(None)
    assert bench.errors() == [ConnectionLostError]
    assert isinstance(future.exception(), ConnectionLostError)
    assert seen.told == []


@pytest.mark.parametrize("shown", [True, False])
def test_an_answer_for_who_has_given_up_is_dropped(shown: bool) -> None:
    bench = Bench(after_response=Seen() if shown else None).open()
    command = request()
    bench.connection.request_future(command, LONG_MS).cancel()
    bench.answered(command)
    assert bench.connection.requests_in_flight == 0
    bench.answered(command)
    assert not bench.connection.is_closed


# --- writing --------------------------------------------------------------------------------------


def test_what_is_sent_within_one_turn_leaves_in_one_write(bench: Bench) -> None:
    for _ in range(3):
        bench.connection.oneway(request())
    assert len(bench.loop.due) == 1
    assert bench.connection.bytes_buffered == 3 * len(request(oneway=True).frame())
    bench.loop.turn()
    assert len(bench.wire.written) == 1
    assert len(bench.sent()) == 3
    bench.wire.left = 7
    assert bench.connection.bytes_buffered == 7


def test_answers_given_while_reading_leave_when_it_is_done(bench: Bench) -> None:
    asked = [request(body=b"%d" % n) for n in range(2)]
    bench.connection.data_received(b"".join(each.frame() for each in asked))
    assert len(bench.wire.written) == 1
    assert bench.loop.due == []
    assert [bytes(each.body) for each in bench.sent()] == [b"0", b"1"]
    bench.connection.oneway(request())
    bench.connection.data_received(asked[0].frame())
    assert bench.wire.written == [], "the turn that is due takes it along"
    bench.loop.turn()
    assert len(bench.sent()) == 2


def test_a_single_piece_is_handed_on_as_it_is(bench: Bench) -> None:
    """No copy is made of it."""
    handed: list[Any] = []
    bench.wire.write = handed.append  # type: ignore[method-assign,assignment]
    frames = request().frame()
    bench.connection.send_frames(frames)
    bench.loop.turn()
    assert handed[0] is frames


def test_a_peer_that_does_not_read_is_written_no_more_until_it_does(bench: Bench) -> None:
    connection = bench.connection
    drained: list[int] = []
    connection.pause_writing()
    assert connection.is_congested
    connection.when_drained(lambda: drained.append(1))
    connection.oneway(request())
    assert bench.loop.due == []
    connection.resume_writing()
    assert (drained, connection.is_congested, len(bench.loop.due)) == ([1], False, 1)
    connection.pause_writing()
    bench.loop.turn()
    assert bench.wire.written == []
    connection.resume_writing()
    assert drained == [1], "told once"
    bench.loop.turn()
    assert len(bench.sent()) == 1
    connection.resume_writing()
    assert bench.loop.due == [], "nothing is left to be sent"
    connection.oneway(request())
    connection.resume_writing()
    assert len(bench.loop.due) == 1, "the turn that is due is enough"


@pytest.mark.parametrize("spare", [0, -1])
def test_bytes_for_a_peer_that_does_not_read_have_a_bound(spare: int) -> None:
    size = len(request(body=bytes(100)).frame())
    bounds = ConnectionLimits(write_buffer_bytes_max=2 * size + 10 + spare)
    bench = Bench(bounds=bounds).open()
    bench.ask(body=bytes(100))
    bench.loop.turn()
    bench.wire.left = size + 10
    bench.connection.pause_writing()
    assert not bench.connection.is_closed
    bench.connection.send_frames(bytes(size))
    assert bench.connection.is_closed == (spare < 0)
    assert bench.wire.aborts == (1 if spare < 0 else 0)
    if spare < 0:
        text = f"{2 * size + 10} bytes wait for a peer that does not read (at most {2 * size + 9})"
        assert bench.connection.close_reason == text
        assert bench.errors() == [ConnectionLostError]
        assert not bench.connection.is_congested


def test_a_peer_that_reads_has_no_bound() -> None:
    """As much as is sent in one turn goes over; then the system says whether it took it."""
    bench = Bench(bounds=ConnectionLimits(write_buffer_bytes_max=10)).open()
    for _ in range(3):
        bench.connection.send_frames(bytes(100))
    assert not bench.connection.is_closed
    bench.loop.turn()
    assert bench.wire.written == [bytes(300)]
    bench.wire.left = 11
    bench.connection.pause_writing()
    assert bench.connection.is_closed


def test_the_bound_is_looked_at_when_a_turn_may_not_write() -> None:
    bench = Bench(bounds=ConnectionLimits(write_buffer_bytes_max=10)).open()
    bench.connection.send_frames(bytes(11))
    bench.connection._paused = True
    bench.loop.turn()
    assert bench.connection.is_closed


def test_an_answer_in_pieces_counts_as_long_as_all_of_them(bench: Bench) -> None:
    asked = request()
    before = len(asked.answer(RemotingCommand.response(0)).frame())
    bench.connection.reply(asked, RemotingCommand.response(0), [b"one", b"", b"three"])
    assert bench.connection.bytes_buffered == before + 8
    bench.loop.turn()
    assert [bytes(each.body) for each in bench.sent()] == [b"onethree"]
    assert bench.connection.bytes_buffered == 0


def test_nobody_answers_a_oneway_or_a_closed_connection(bench: Bench) -> None:
    bench.connection.reply(request(oneway=True), RemotingCommand.response(0))
    assert bench.loop.due == []
    bench.connection.close("enough")
    bench.connection.reply(request(), RemotingCommand.response(0))
    bench.connection.send_frames(b"x")
    assert (bench.connection.bytes_buffered, bench.loop.due) == (0, [])


def test_an_answer_owed_is_given_in_the_next_turn(bench: Bench) -> None:
    given: list[int] = []
    bench.connection.owe(lambda: given.append(1))
    assert given == []
    bench.loop.turn()
    assert given == [1]


# --- reading --------------------------------------------------------------------------------------


def test_a_handler_that_fails_is_answered_for(bench: Bench) -> None:
    def fails(connection: Connection, command: RemotingCommand) -> None:
        raise KeyError("x")

    bench.connection._on_request = fails
    bench.connection.data_received(request().frame())
    ((answer),) = bench.sent()
    assert (answer.code, answer.remark) == (1, "KeyError: 'x'")
    bench.connection._on_request = lambda *_: iter(())  # type: ignore[assignment]
    bench.connection.data_received(request().frame())
    assert "only a server's connection answers in steps" in str(bench.sent()[0].remark)


def test_bytes_that_are_no_frames_close_it_with_what_was_given_before(bench: Bench) -> None:
    bench.ask()
    bench.connection.data_received(request(body=b"good").frame() + b"\xff\xff\xff\xff")
    assert [bytes(each.body) for each in bench.sent() if each.is_response] == [b"good"]
    assert bench.connection.is_closed
    assert bench.wire.closes == 1
    assert bench.errors() == [ConnectionLostError]
    bench.connection.data_received(request().frame())
    assert bench.wire.written == []


def test_a_malformed_header_of_a_frame_too_large_to_be_kept_closes_it() -> None:
    """It is read before the frame is whole, with bytes that have just come."""
    bench = Bench(bounds=ConnectionLimits(idle_close_ms=0, body_bytes_max=10)).open()
    bench.ask()
    bench.connection.data_received(b"\x00\x00\x40\x00\x00\x00\x00\x04no")
    bench.connection.data_received(b" JSON")
    assert bench.errors() == [ConnectionLostError]
    assert bench.wire.closes == 1


def test_eof_ends_it(bench: Bench) -> None:
    """asyncio closes a transport whose protocol returns nothing."""
    assert not bench.connection.eof_received()


# --- time -----------------------------------------------------------------------------------------


def test_requests_of_one_timeout_share_a_timer(bench: Bench) -> None:
    for at_s in (0.0, 1.0, 2.0):
        bench.loop.now_s = at_s
        bench.ask(5_000)
    assert bench.timer().at_s == 5.0
    bench.time_comes(5.0)
    assert bench.errors() == [RequestTimeoutError]
    assert "no answer from 10.0.0.1:10911 in time" in str(bench.ends[0][1])
    assert bench.connection.requests_in_flight == 2
    bench.time_comes(6.0)
    bench.time_comes(7.0)
    assert bench.errors() == [RequestTimeoutError] * 3
    assert bench.loop.waiting() == []
    bench.ask(5_000)
    assert bench.timer().at_s == 12.0


def test_a_shorter_timeout_moves_the_timer_forward(bench: Bench) -> None:
    bench.ask(5_000)
    late = bench.timer()
    bench.ask(2_000)
    assert late.is_cancelled
    assert bench.timer().at_s == 2.0
    bench.ask(2_000)
    assert len(bench.loop.timers) == 2, "the same time needs no other timer"
    bench.time_comes(2.0)
    assert bench.errors() == [RequestTimeoutError] * 2
    bench.time_comes(5.0)


def test_deadlines_close_to_each_other_are_looked_at_together(bench: Bench) -> None:
    bench.ask(1_000)
    bench.ask(1_001)
    bench.ask(1_019)
    bench.time_comes(1.0)
    assert len(bench.ends) == 1
    bench.time_comes(1.02)
    assert len(bench.ends) == 3


def test_a_sweep_that_finds_nothing_due_blames_nobody(bench: Bench) -> None:
    command = bench.ask(1_000)
    bench.ask(3_000)
    bench.answered(command)
    bench.time_comes(1.0)
    assert bench.errors() == []
    bench.time_comes(3.0)
    assert bench.errors() == [RequestTimeoutError]


def test_a_loop_that_stood_still_reads_before_it_blames(bench: Bench) -> None:
    """Bytes may wait that came in time: it looks once more, and again while it stands still."""
    command = bench.ask(1_000)
    timer = bench.timer()
    bench.loop.timers.clear()
    bench.loop.now_s = 3.0
    timer.call()
    assert bench.errors() == []
    again = bench.timer()
    assert again.at_s == 3.0 + another_look_s(3.0, 1.0, 0)
    bench.answered(command)
    bench.time_comes(again.at_s)
    assert bench.errors() == []
    assert bench.connection._looks == 0
    assert bench.loop.waiting() == []
    bench.ask(1_000)
    bench.time_comes(again.at_s + 1)
    assert bench.errors() == [RequestTimeoutError]


def test_a_loop_that_is_always_late_looks_three_times_more(bench: Bench) -> None:
    bench.ask(1_000)
    for looks in range(4):
        assert bench.errors() == []
        timer = bench.timer()
        bench.loop.timers.clear()
        bench.loop.now_s = timer.at_s + 1
        timer.call()
        assert bench.connection._looks == (looks + 1) % 4
    assert bench.errors() == [RequestTimeoutError]


def test_a_request_made_while_others_time_out_has_its_own_time(bench: Bench) -> None:
    """The sweep that follows sets no later timer over it."""
    again: list[RemotingCommand] = []

    def once_more(answer: RemotingCommand | None, error: Exception | None) -> None:
        if not again:
            again.append(bench.ask(10))

    bench.connection.request_callback(request(), 1_000, once_more)
    bench.ask(5_000)
    bench.time_comes(1.0)
    assert bench.timer().at_s == pytest.approx(1.01)


def test_nobody_is_asked_again_after_the_close(bench: Bench) -> None:
    def closes(answer: RemotingCommand | None, error: Exception | None) -> None:
        bench.connection.close("enough")

    bench.connection.request_callback(request(), 1_000, closes)
    bench.ask(5_000)
    bench.time_comes(1.0)
    assert bench.errors() == [ConnectionLostError]
    assert [timer.pause_s for timer in bench.loop.waiting()] == [3.0], "for the abort alone"


def test_a_callback_that_fails_keeps_no_other_from_its_error(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.connection.request_callback(request(), 1_000, lambda *_: 1 / 0)  # type: ignore[arg-type]
    bench.ask(1_000)
    future = bench.connection.request_future(request(), 1_000)
    bench.time_comes(1.0)
    assert bench.errors() == [RequestTimeoutError]
    assert isinstance(future.exception(), RequestTimeoutError)
    assert "the callback for an answer of 10.0.0.1:10911 failed" in caplog.text


# --- idleness -------------------------------------------------------------------------------------


def test_four_looks_without_traffic_close_it() -> None:
    bench = Bench(bounds=ConnectionLimits(idle_close_ms=8_000)).open()
    for at_s in (2.0, 4.0, 6.0):
        bench.time_comes(at_s)
    bench.connection.data_received(request().frame()[:4])
    bench.time_comes(8.0)
    for at_s in (10.0, 12.0, 14.0):
        bench.time_comes(at_s)
        assert not bench.connection.is_closed
    bench.time_comes(16.0)
    assert bench.connection.close_reason == "idle for 8000 ms"
    assert [timer.pause_s for timer in bench.loop.waiting()] == [3.0], "for the abort alone"


def test_one_without_any_traffic_is_closed_when_its_time_is_over() -> None:
    bench = Bench(bounds=ConnectionLimits(idle_close_ms=8_000)).open()
    for at_s in (2.0, 4.0, 6.0, 8.0):
        assert not bench.connection.is_closed
        bench.time_comes(at_s)
    assert bench.connection.is_closed


def test_without_a_bound_nobody_looks() -> None:
    assert Bench(bounds=ConnectionLimits(idle_close_ms=0)).open().loop.timers == []
    assert len(Bench(bounds=ConnectionLimits(idle_close_ms=1)).open().loop.timers) == 1


def test_a_closed_connection_is_not_looked_at_any_more() -> None:
    bench = Bench(bounds=ConnectionLimits(idle_close_ms=8_000)).open()
    look = bench.timer()
    bench.connection.close("enough")
    assert look.is_cancelled
    count = len(bench.loop.timers)
    bench.connection._check_idle()
    assert len(bench.loop.timers) == count


# --- the end --------------------------------------------------------------------------------------


def test_a_close_sends_what_was_accepted_and_gives_the_peer_some_seconds(bench: Bench) -> None:
    bench.ask()
    bench.connection.close("enough", "; a remark")
    assert (len(bench.sent()), bench.wire.closes, bench.wire.aborts) == (1, 1, 0)
    ((_, error),) = bench.ends
    text = "connection to 10.0.0.1:10911 ended before the answer came: enough; a remark"
    assert str(error) == text
    timers = bench.loop.waiting()
    assert [timer.pause_s for timer in timers] == [3.0]
    bench.connection.close("again")
    assert (bench.wire.closes, bench.connection.close_reason) == (1, "enough")
    timers[0].call()
    assert bench.wire.aborts == 1
    bench.connection.connection_lost(None)
    assert bench.loop.waiting() == []
    bench.connection._abort()
    assert bench.wire.aborts == 1, "it is gone"


def test_a_close_with_nothing_to_send_writes_nothing(bench: Bench) -> None:
    bench.connection.close("enough")
    assert (bench.wire.written, bench.wire.closes) == ([], 1)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(None, "closed by the peer"), (OSError("reset"), "connection lost: reset")],
)
def test_a_lost_connection_says_why_and_holds_nothing(
    error: Exception | None, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    closed: list[Connection] = []

    def on_close(connection: Connection) -> None:
        closed.append(connection)
        raise ValueError("in on_close")

    bench = Bench(on_close=on_close).open()
    bench.ask()
    bench.connection.when_drained(lambda: pytest.fail("drained"))
    bench.connection.data_received(request().frame()[:9])
    decoder = bench.connection._decoder
    bench.connection.connection_lost(error)
    assert bench.connection.close_reason == reason
    assert bench.errors() == [ConnectionLostError]
    assert closed == [bench.connection]
    assert "was not taken in" in caplog.text
    assert (bench.connection.bytes_buffered, bench.connection._when_drained) == (0, [])
    assert not bench.connection._out
    assert bench.connection._decoder is not decoder
    assert bench.connection._lost.done()
    bench.loop.turn()
    assert bench.wire.written == []
    bench.connection.connection_lost(error)
    assert len(closed) == 2


def test_an_end_takes_back_both_timers() -> None:
    bench = Bench(bounds=ConnectionLimits(idle_close_ms=8_000)).open()
    bench.ask()
    assert len(bench.loop.waiting()) == 2
    bench.connection.connection_lost(None)
    assert bench.loop.waiting() == []
    assert math.isfinite(bench.loop.now_s)


# --- a client's connection ------------------------------------------------------------------------


def client(**bounds: Any) -> Bench:
    return Bench(
        ClientConnection, bounds=ConnectionLimits(**{"idle_close_ms": 0, **bounds}), address="a:1"
    ).open()


@pytest.mark.parametrize(("bound_ms", "closes"), [(1_000, True), (1_001, False), (0, False)])
def test_a_peer_silent_for_as_long_as_the_bound_is_gone(bound_ms: int, closes: bool) -> None:
    bench = client(silent_close_ms=bound_ms)
    bench.ask(1_000)
    bench.time_comes(1.0)
    assert (bench.connection.is_closed, bench.wire.aborts) == (closes, int(closes))
    assert bench.errors() == [RequestTimeoutError]
    if closes:
        text = "no answer has come from it for 1.0 s, though it was asked"
        assert bench.connection.close_reason == text


def test_silence_counts_from_the_first_request_without_an_answer() -> None:
    bench = client(silent_close_ms=2_000)
    for at_s in (0.0, 0.8, 1.6):
        assert not bench.connection.is_closed
        bench.loop.now_s = at_s
        bench.ask(400)
        bench.time_comes(at_s + 0.4)
    assert bench.connection.is_closed
    assert "for 2.0 s" in str(bench.connection.close_reason)


def test_an_answer_ends_the_silence_and_a_request_of_the_peer_does_not() -> None:
    bench = client(silent_close_ms=1_500)
    bench.ask(1_000)
    bench.time_comes(1.0)
    bench.loop.now_s = 1.2
    bench.connection.data_received(request(oneway=True).frame())
    bench.ask(300)
    bench.time_comes(1.5)
    assert bench.connection.is_closed
    bench = client(silent_close_ms=1_500)
    bench.ask(1_000)
    bench.time_comes(1.0)
    bench.loop.now_s = 1.2
    bench.answered(bench.ask())
    bench.loop.now_s = 1.3
    bench.ask(300)
    bench.time_comes(1.6)
    assert not bench.connection.is_closed


def test_half_a_frame_counts_from_its_last_byte() -> None:
    """Whatever was asked: nothing after it can be read."""
    bench = client(silent_close_ms=1_000)
    bench.ask(1_500)
    bench.loop.now_s = 0.6
    bench.connection.data_received(request().frame()[:7])
    bench.time_comes(1.5)
    assert not bench.connection.is_closed
    bench.ask(100)
    bench.time_comes(1.6)
    assert bench.connection.is_closed


def test_a_peer_that_takes_what_waited_is_heard() -> None:
    bench = client(silent_close_ms=1_000)
    bench.ask(1_000)
    bench.loop.now_s = 0.5
    bench.connection.resume_writing()
    bench.time_comes(1.0)
    assert not bench.connection.is_closed


@pytest.mark.parametrize(
    ("first", "text"),
    [(b"", "nothing"), (b"HTTP/1.1 400 Bad Request\r\n", "HTTP"), (b"\x00\x00\x01", "")],
)
def test_who_fails_may_be_somebody_else(first: bytes, text: str) -> None:
    """A peer that never spoke the protocol is named by its first bytes."""
    bench = client()
    bench.ask(1_000)
    if first:
        cast(ClientConnection, bench.connection)._first = first[:9]
    bench.time_comes(1.0)
    error = str(bench.ends[0][1])
    assert (error == "no answer from a:1 in time") == (not text)
    assert text.lower() in error.lower() or text == "nothing"


def ended(bench: Bench) -> str:
    bench.connection.connection_lost(None)
    return str(bench.ends[0][1])


def test_a_plain_connection_closed_at_once_may_have_met_tls() -> None:
    """Only where it was asked, is plain, and has said nothing."""
    asked = client()
    asked.ask()
    plain = "connection to a:1 ended before the answer came: closed by the peer"
    remark = ended(asked).removeprefix(plain)
    assert remark
    answered = client()
    answered.answered(answered.ask())
    answered.ask()
    answered.ends.clear()
    assert ended(answered) == plain
    encrypted = Bench(ClientConnection, wire=Wire(sslcontext=object()), address="a:1").open()
    encrypted.ask()
    assert ended(encrypted) == plain
    closed = client()
    closed.ask()
    closed.connection.close("enough")
    assert remark not in str(closed.ends[0][1])
    assert client().connection._remark(closed=True) == "", "nobody has asked"
