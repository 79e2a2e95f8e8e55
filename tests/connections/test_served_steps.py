"""A server's connection, step by step: when it works, reads, asks for room and leaves its line."""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, cast

import pytest

from rocketstream import limits
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.framing import FrameDecoder
from rocketstream.transport.connection import Connection, ConnectionLimits
from rocketstream.transport.served import ServedConnection
from rocketstream.transport.sharing import Sharing
from tests.connections.wires import Wire
from tests.kits.threaded_server import echo, request
from tests.plugins.loop_by_hand import LoopByHand

MIB = 1024 * 1024
PIECE = 64 * 1024


class Share:
    """What a server's connections share, by hand.

    Attributes:
        is_free: whether a connection may work at once.
        has_room: whether there is room for a large frame.
        line: how often somebody was put in line.
        owing: who was put in line to be given what it waits for.
        held: the bytes that were counted.
        rooms: for how long frames room was asked.
        left: how often room was left.
    """

    def __init__(self) -> None:
        self.is_free = self.has_room = True
        self.line = 0
        self.owing: list[Any] = []
        self.held: list[int] = []
        self.rooms: list[int] = []
        self.left = 0
        self.buffer = memoryview(bytearray(100))

    def read_buffer(self, sharer: Any) -> memoryview:
        return self.buffer

    def go(self, worker: ServedConnection) -> bool:
        return worker.work(lambda: False) if self.is_free else True

    def again(self, worker: Any) -> None:
        self.line += 1

    def owe(self, worker: Any) -> None:
        self.owing.append(worker)

    def holds(self, sharer: Any, size: int) -> None:
        self.held.append(size)

    def ask_room(self, sharer: Any, size: int) -> bool:
        self.rooms.append(size)
        return self.has_room

    def leave_room(self, sharer: Any) -> None:
        self.left += 1


class Bench:
    """A server's connection on a wire, a loop and a share that are a test's."""

    def __init__(self, handler: Any = None, **how: Any) -> None:
        self.loop = LoopByHand()
        self.wire = Wire()
        self.share = Share()
        self.done: list[int] = []
        self.gone: list[Connection] = []
        bounds = how.pop("bounds", None) or ConnectionLimits(idle_close_ms=0)
        self.connection = ServedConnection(
            cast(asyncio.AbstractEventLoop, self.loop),
            handler or self._note,
            cast(Sharing, self.share),
            bounds=bounds,
            on_close=self.gone.append,
            **how,
        )
        self.connection.connection_made(cast(asyncio.BaseTransport, self.wire))

    def _note(self, connection: Connection, command: RemotingCommand) -> None:
        self.done.append(command.code)

    def comes(self, *codes: int) -> None:
        self.connection.data_received(b"".join(request(code).frame() for code in codes))

    def work(self, steps: int = 1_000_000) -> bool:
        """Give it a turn of so many looks at the time; return whether it wants another."""
        return bool(self.connection.work(looking(steps)))

    def give(self, steps: int = 1_000_000) -> bool:
        """Give it so many looks at the time for what is owed; return whether any of it is left."""
        return bool(self.share.owing[0].work(looking(steps)))

    def sent(self) -> list[RemotingCommand]:
        written, self.wire.written = self.wire.written, []
        return FrameDecoder().feed(b"".join(written))


def looking(times: int) -> Callable[[], bool]:
    """What says from the last of so many looks on that the time is over."""
    left = times

    def until() -> bool:
        nonlocal left
        left -= 1
        return left <= 0

    return until


@pytest.fixture
def bench() -> Bench:
    return Bench()


def head(frame_bytes: int) -> bytes:
    """The begin of a frame of so many bytes behind its length."""
    return struct.pack(">iI", frame_bytes, 10)


# --- turns ----------------------------------------------------------------------------------------


def test_what_may_be_done_at_once_leaves_no_line(bench: Bench) -> None:
    bench.comes(1, 2)
    assert (bench.done, bench.wire.is_reading, bench.share.line) == ([1, 2], True, 0)
    assert not bench.work(), "it has nothing to do"
    assert bench.connection.bytes_held == 0
    assert bench.wire.high == limits.SERVER_WRITE_PAUSE_BYTES


def test_what_must_wait_is_done_in_its_turn(bench: Bench) -> None:
    bench.share.is_free = False
    bench.comes(1, 2, 3)
    assert (bench.done, bench.wire.is_reading) == ([], True)
    assert bench.work(steps=2)
    assert bench.done == [1, 2]
    assert not bench.work(steps=1), "the last one, and nothing behind it"
    assert bench.done == [1, 2, 3]
    bench.share.is_free = True
    bench.comes(4)
    assert bench.done == [1, 2, 3, 4], "it is in line no more"


@pytest.mark.parametrize("is_free", [True, False])
def test_answers_of_one_turn_leave_with_its_end(is_free: bool) -> None:
    bench = Bench(echo)
    bench.share.is_free = is_free
    bench.comes(1, 2)
    if not is_free:
        bench.work()
    assert (len(bench.wire.written), bench.loop.due) == (1, [])
    assert len(bench.sent()) == 2


def test_one_in_line_does_not_pass_itself(bench: Bench) -> None:
    bench.share.is_free = False
    bench.comes(1)
    bench.share.is_free = True
    bench.comes(2)
    assert bench.done == []
    bench.work()
    assert bench.done == [1, 2]


@pytest.mark.parametrize("spare", [0, 1])
def test_one_in_line_reads_a_bounded_number_of_bytes(bench: Bench, spare: int) -> None:
    bench.share.is_free = False
    begin = request(1).frame()
    rest = head(1 << 20)
    filled = limits.SERVER_LINE_BYTES - len(begin) + spare
    bench.connection.data_received(begin + rest + bytes(filled - len(rest)))
    assert bench.wire.is_reading == (not spare)
    bench.work()
    assert bench.wire.is_reading


def test_one_whose_peer_does_not_read_reads_nothing_in_line(bench: Bench) -> None:
    bench.share.is_free = False
    bench.connection.pause_writing()
    bench.comes(1)
    assert not bench.wire.is_reading
    assert not bench.work(), "it waits for its peer, not for a turn"
    assert bench.done == []
    bench.connection.resume_writing()
    assert bench.share.line == 1
    assert not bench.work()
    assert (bench.done, bench.wire.is_reading) == ([1], True)
    bench.connection.pause_writing()
    bench.connection.resume_writing()
    assert bench.share.line == 1, "nothing waits for a turn"


def test_bytes_of_a_closed_connection_are_not_looked_at(bench: Bench) -> None:
    bench.connection.close("enough")
    bench.comes(1)
    assert (bench.done, bench.share.held) == ([], [])
    assert bench.connection.bytes_held == 0


def test_traffic_keeps_a_connection_open() -> None:
    bench = Bench(bounds=ConnectionLimits(idle_close_ms=8_000))
    for _ in range(3):
        bench.connection._check_idle()
    bench.comes(1)
    bench.connection._check_idle()
    assert not bench.connection.is_closed


def test_bytes_read_into_the_shared_buffer_are_taken_out(bench: Bench) -> None:
    bench.share.buffer = memoryview(bytearray(1_000))
    frame = request(5).frame()
    buffer = bench.connection.get_buffer(-1)
    assert buffer is bench.share.buffer
    buffer[: len(frame)] = frame
    bench.connection.buffer_updated(len(frame))
    assert bench.done == [5]


# --- what is owed ---------------------------------------------------------------------------------


def test_what_is_owed_waits_in_a_line_of_its_own(bench: Bench) -> None:
    """A request that comes meanwhile is not held up, nor does it hold up what is owed."""
    given: list[int] = []
    bench.connection.owe(lambda: given.append(1))
    bench.connection.owe(lambda: given.append(2))
    assert (given, bench.share.line, len(set(bench.share.owing))) == ([], 0, 1)
    bench.comes(7)
    assert (given, bench.done) == ([], [7])
    assert bench.give(steps=1)
    assert given == [1]
    assert not bench.give()
    assert given == [1, 2]


def test_what_is_owed_together_is_sent_together(bench: Bench) -> None:
    for number in range(3):
        answer = RemotingCommand.response(0)
        bench.connection.owe(partial(bench.connection.reply, request(number), answer))
    assert not bench.give()
    assert len(bench.wire.written) == 1
    assert len(bench.sent()) == 3


def test_what_is_owed_meanwhile_waits_for_the_next_turn(bench: Bench) -> None:
    given: list[int] = []

    def again() -> None:
        given.append(1)
        if len(given) < 3:
            bench.connection.owe(again)

    bench.connection.owe(again)
    assert bench.give()
    assert given == [1]
    assert bench.give()
    assert not bench.give()
    assert given == [1, 1, 1]


def test_what_is_owed_and_fails_keeps_the_rest_from_nothing(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    given: list[int] = []
    bench.connection.owe(lambda: 1 / 0)  # type: ignore[arg-type]
    bench.connection.owe(lambda: given.append(1))
    assert not bench.give()
    assert given == [1]
    assert "INTERNAL" in caplog.text


def test_what_is_owed_to_a_peer_that_does_not_read_is_given_all_the_same(bench: Bench) -> None:
    """Its bytes wait behind the others; the caller is free."""
    given: list[int] = []
    bench.connection.pause_writing()
    bench.comes(1)
    bench.connection.owe(lambda: given.append(1))
    assert not bench.give()
    assert not bench.work()
    assert (given, bench.done) == ([1], [])


# --- answers in steps -----------------------------------------------------------------------------


def stepping(steps: Callable[[], Generator[Any, None, None]]) -> Bench:
    """Return a connection whose requests of code 2 are answered in steps."""
    done: list[int] = []

    def handler(connection: Connection, command: RemotingCommand) -> Any:
        done.append(command.code)
        return steps() if command.code == 2 else None

    made = Bench(handler)
    made.done = done
    made.share.is_free = False
    return made


def test_a_request_in_steps_is_done_step_by_step() -> None:
    taken: list[int] = []

    def steps() -> Generator[Any, None, None]:
        for step in range(3):
            taken.append(step)
            yield None

    bench = stepping(steps)
    bench.comes(2, 1)
    assert bench.work(steps=1)
    assert (bench.done, taken) == ([2], [])
    assert bench.work(steps=1)
    assert bench.work(steps=1)
    assert taken == [0, 1]
    assert not bench.work()
    assert (bench.done, taken) == ([2, 1], [0, 1, 2])


def test_a_request_in_steps_is_unfinished_work_though_nothing_is_behind_it() -> None:
    def steps() -> Generator[Any, None, None]:
        yield None

    bench = stepping(steps)
    bench.comes(2)
    assert bench.work(steps=1)
    assert not bench.work()


def test_steps_that_wait_need_no_turn_until_it_is_over() -> None:
    loop = LoopByHand()
    awaited = loop.create_future()
    given: list[int] = []

    def steps() -> Generator[Any, None, None]:
        yield awaited
        given.append(1)

    bench = stepping(steps)
    bench.comes(2, 1)
    assert not bench.work()
    assert not bench.work()
    assert (bench.done, given, bench.share.line) == ([2], [], 0)
    bench.connection.owe(lambda: given.append(2))
    assert not bench.give()
    assert given == [2], "what is owed does not wait for it"
    awaited.set_result(None)
    loop.turn()
    assert bench.share.line == 1
    assert not bench.work()
    assert (bench.done, given) == ([2, 1], [2, 1])


def test_steps_do_not_wait_for_what_is_done() -> None:
    done = LoopByHand().create_future()
    done.set_result(None)

    def steps() -> Generator[Any, None, None]:
        yield done

    bench = stepping(steps)
    bench.comes(2, 1)
    assert not bench.work()
    assert bench.done == [2, 1]


def test_steps_go_on_though_the_peer_does_not_read() -> None:
    """They hold what others need; their answer waits behind the others."""
    taken: list[int] = []

    def steps() -> Generator[Any, None, None]:
        for step in range(3):
            taken.append(step)
            yield None

    bench = stepping(steps)
    bench.comes(2, 1)
    bench.work(steps=1)
    bench.connection.pause_writing()
    assert bench.work(steps=1)
    assert not bench.work()
    assert (bench.done, taken) == ([2], [0, 1, 2])


def test_steps_that_fail_are_over(caplog: pytest.LogCaptureFixture) -> None:
    def steps() -> Generator[Any, None, None]:
        yield None
        raise ValueError("spoilt")

    bench = stepping(steps)
    bench.comes(2, 1)
    assert not bench.work()
    assert bench.done == [2, 1]
    assert "a request of 10.0.0.1:10911 failed" in caplog.text


# --- requests taken together ----------------------------------------------------------------------


def test_requests_may_be_taken_straight_from_the_bytes() -> None:
    """From where the next frame begins; what is left goes the general way."""
    one = len(request(1).frame())
    taken: list[tuple[int, int]] = []
    ends: list[int] = []

    def take(connection: Connection, data: Any, at: int, until: Callable[[], bool]) -> int:
        taken.append((len(data), at))
        return ends.pop(0) if ends else at

    bench = Bench(take_frames=take)
    bench.share.is_free = False
    ends = [2 * one]
    bench.comes(1, 2, 3)
    assert not bench.work()
    assert bench.done == [3]
    assert taken[0] == (3 * one, 0)
    ends = [one]
    bench.comes(4)
    assert not bench.work()
    assert bench.done == [3]
    assert len(taken) == 3 + 1, "a send that comes alone is not looked at again"


def test_requests_taken_together_end_the_frame_and_the_turn() -> None:
    one = len(request(1).frame())

    def take(connection: Connection, data: Any, at: int, until: Callable[[], bool]) -> int:
        return at + one if len(data) - at >= one else at

    bench = Bench(take_frames=take)
    bench.share.is_free = False
    bench.comes(1, 1)
    assert bench.work(steps=1)
    bench.connection._has_room = True
    assert not bench.work(steps=1)
    assert bench.share.left == 1
    assert bench.connection._frame_began_s == math.inf
    assert bench.done == []


def test_requests_that_fail_together_close_the_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Some may be done: neither repeating nor skipping them would be right."""

    def take(connection: Connection, data: Any, at: int, until: Callable[[], bool]) -> int:
        raise ValueError("spoilt")

    bench = Bench(take_frames=take)
    bench.comes(1, 2)
    assert bench.connection.close_reason == "an internal error of the server"
    assert (bench.done, bench.wire.closes) == ([], 1)
    assert "INTERNAL requests of 10.0.0.1:10911 failed" in caplog.text


def test_bytes_that_are_no_frames_end_it_in_its_turn(bench: Bench) -> None:
    bench.share.is_free = False
    bench.connection.data_received(request(1).frame() + b"\xff\xff\xff\xff")
    assert not bench.work()
    assert bench.done == [1]
    assert bench.connection.is_closed
    assert bench.wire.closes == 1


# --- large frames ---------------------------------------------------------------------------------

FREE = limits.FRAME_FREE_BYTES


def test_a_malformed_header_of_a_frame_too_large_to_be_kept_ends_it() -> None:
    """It is read before the frame is whole, with bytes that have just come."""
    bench = Bench(bounds=ConnectionLimits(idle_close_ms=0, body_bytes_max=10))
    bench.comes(7)
    bench.connection.data_received(struct.pack(">iI", 5_000, 4) + b"no")
    bench.connection.data_received(b" JSON")
    assert (bench.done, bench.wire.closes) == ([7], 1)
    assert "command header is not JSON" in str(bench.connection.close_reason)


def test_a_small_frame_needs_no_room(bench: Bench) -> None:
    bench.connection.data_received(head(FREE - 4))
    assert (bench.share.rooms, bench.share.held) == ([], [8])
    assert bench.connection.bytes_held == 8
    bench = Bench()
    bench.connection.data_received(head(FREE - 3))
    assert bench.share.rooms == [FREE + 1]


def test_room_is_asked_for_once_and_left_with_the_frame(bench: Bench) -> None:
    frame = request(1, bytes(FREE)).frame()
    bench.connection.data_received(frame[:20])
    bench.connection.data_received(frame[20:40])
    assert (bench.share.rooms, bench.share.left) == ([len(frame)], 0)
    assert bench.wire.is_reading
    bench.connection.data_received(frame[40:])
    assert (bench.done, bench.share.left) == ([1], 1)
    bench.comes(2)
    assert bench.share.left == 1


def test_room_is_asked_for_once_the_frames_before_are_done(bench: Bench) -> None:
    bench.share.is_free = False
    bench.connection.data_received(request(1).frame() + head(FREE))
    assert bench.share.rooms == []
    bench.share.has_room = False
    bench.work()
    assert bench.share.rooms == [FREE + 4]
    assert not bench.wire.is_reading


def test_a_frame_without_room_is_not_read_on(bench: Bench) -> None:
    bench.share.has_room = False
    frame = request(1, bytes(FREE)).frame()
    bench.connection.data_received(frame[:20])
    assert not bench.wire.is_reading
    assert bench.connection.frame_due_s == math.inf, "a frame that may not come is not late"
    bench.connection.data_received(frame[20:30])
    assert bench.share.rooms == [len(frame)]
    bench.connection._read_on()
    assert not bench.wire.is_reading
    bench.loop.now_s = 5.0
    bench.connection.room_given()
    assert bench.wire.is_reading
    assert bench.connection._frame_began_s == 5.0, "its time begins with the room"
    bench.connection.data_received(frame[30:])
    assert (bench.done, bench.share.left) == ([1], 1)


@pytest.mark.parametrize("has_room", [True, False])
@pytest.mark.parametrize("dropped", [True, False])
def test_who_leaves_or_is_dropped_needs_no_room(
    bench: Bench, has_room: bool, dropped: bool
) -> None:
    bench.share.has_room = has_room
    bench.connection.data_received(head(FREE))
    if dropped:
        bench.connection.drop("enough")
    else:
        bench.connection.connection_lost(None)
    assert bench.share.left == 1
    bench.connection.room_given()
    assert bench.connection.bytes_held == (0 if dropped else 8)


def test_a_frame_has_a_time_that_grows_with_its_length(bench: Bench) -> None:
    bench.loop.now_s = 2.0
    assert bench.connection.frame_due_s == math.inf
    bench.connection.data_received(head(99_996))
    patience_s = (limits.FRAME_GRACE_MS + 100_000 / limits.FRAME_BYTES_PER_MS_MIN) / 1000
    assert bench.connection.frame_due_s == 2.0 + patience_s
    bench.loop.now_s = 3.0
    bench.connection.data_received(b"x")
    assert bench.connection.frame_due_s == 2.0 + patience_s
    bench.connection._in_line = True
    assert bench.connection.frame_due_s == math.inf


def test_a_frame_begins_anew_behind_another(bench: Bench) -> None:
    frame = request(1).frame()
    bench.connection.data_received(frame[:20])
    bench.loop.now_s = 4.0
    bench.connection.data_received(frame[20:] + frame[:20])
    assert bench.connection._frame_began_s == 4.0


def test_a_frame_that_came_in_line_begins_when_the_line_is_left(bench: Bench) -> None:
    """Its peer was read from, so its time runs from its first byte; unless it was not."""
    bench.share.is_free = False
    bench.loop.now_s = 1.0
    bench.connection.data_received(request(1).frame() + request(1).frame()[:20])
    bench.loop.now_s = 2.0
    bench.work()
    assert bench.connection._frame_began_s == 2.0, "a new frame, begun where the other ended"
    bench.connection.data_received(b"x")
    bench.loop.now_s = 3.0
    bench.work()
    assert bench.connection._frame_began_s == 2.0
    bench.connection.data_received(b"x")
    bench.connection._pause_reading()
    bench.work()
    assert bench.connection._frame_began_s == 3.0
    assert bench.wire.is_reading


# --- writing --------------------------------------------------------------------------------------


def test_a_small_answer_is_written_whole(bench: Bench) -> None:
    for size in (10, PIECE):
        bench.connection.send_frames(bytes(size))
        bench.connection.send_frames(b"")
        bench.loop.turn()
    assert [len(each) for each in bench.wire.written] == [10, PIECE]
    assert bench.share.held == [10, PIECE]


def test_a_great_answer_is_written_in_pieces_over_several_turns(bench: Bench) -> None:
    data = bytes(range(256)) * 4096 * 2 + b"end"
    bench.connection.send_frames(data[:100])
    bench.connection.send_frames(data[100:])
    assert bench.loop.turn() == 1
    assert [len(each) for each in bench.wire.written] == [PIECE] * 16
    assert bench.connection.bytes_buffered == MIB + 3
    assert bench.loop.turn() == 1
    assert len(bench.wire.written) == 32
    assert bench.loop.turn() == 1
    assert b"".join(bench.wire.written) == data
    assert (bench.connection.bytes_buffered, bench.loop.due) == (0, [])


def test_answers_as_long_as_a_piece_are_not_cut(bench: Bench) -> None:
    bench.connection.send_frames(bytes(PIECE))
    bench.connection.send_frames(bytes(PIECE))
    bench.loop.turn()
    assert [len(each) for each in bench.wire.written] == [PIECE, PIECE]
    assert not bench.connection._out


def test_pieces_stop_where_the_peer_does_not_take_them(bench: Bench) -> None:
    plain = bench.wire.write

    def write(data: bytes | memoryview) -> None:
        plain(data)
        if len(bench.wire.written) == 3:
            bench.connection.pause_writing()

    bench.wire.write = write  # type: ignore[method-assign]
    bench.connection.send_frames(bytes(MIB))
    bench.loop.turn()
    assert (len(bench.wire.written), bench.loop.due) == (3, [])
    bench.connection.holds_since_s = 5.0
    bench.connection.resume_writing()
    assert bench.connection.holds_since_s == math.inf
    bench.loop.turn()
    assert b"".join(bench.wire.written) == bytes(MIB)


def test_the_rest_of_an_answer_has_the_bound_of_all_bytes() -> None:
    bench = Bench(bounds=ConnectionLimits(idle_close_ms=0, write_buffer_bytes_max=2 * PIECE))
    bench.wire.write = lambda data: bench.connection.pause_writing()  # type: ignore[method-assign]
    bench.connection.send_frames(bytes(3 * PIECE + 1))
    bench.loop.turn()
    assert bench.connection.is_closed
    assert bench.wire.aborts > 0


def test_many_answers_leave_before_all_requests_are_done() -> None:
    """Their memory is freed meanwhile."""
    bench: Bench

    def handler(connection: Connection, command: RemotingCommand) -> None:
        bench.done.append(len(bench.wire.written))
        echo(connection, command)

    bench = Bench(handler)
    bench.share.is_free = False
    body = bytes(MIB // 2 - len(request(1).answer(RemotingCommand.response(0)).frame()))
    bench.connection.data_received(b"".join(request(1, body).frame() for _ in range(4)))
    bench.work()
    assert bench.done == [0, 0, 0, 16]


# --- the end --------------------------------------------------------------------------------------


def test_what_was_asked_before_the_peer_left_is_done_and_then_told(bench: Bench) -> None:
    bench.share.is_free = False
    bench.comes(1, 2)
    bench.connection.connection_lost(None)
    assert (bench.gone, bench.share.line) == ([], 1)
    assert bench.work(steps=1)
    assert (bench.done, bench.gone) == ([1], [])
    assert not bench.work()
    assert (bench.done, bench.gone) == ([1, 2], [bench.connection])


def test_what_we_closed_does_nothing_more(bench: Bench) -> None:
    bench.share.is_free = False
    bench.comes(1, 2)
    bench.connection.close("enough")
    bench.connection.connection_lost(None)
    assert not bench.work()
    assert (bench.done, bench.gone) == ([], [bench.connection])


def test_a_dropped_connection_holds_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.connection.pause_writing()
    bench.connection.send_frames(b"x" * 10)
    bench.connection.data_received(head(100))
    assert bench.connection.bytes_held == 18
    bench.connection.drop("it holds too much")
    assert (bench.connection.bytes_held, bench.wire.aborts) == (0, 1)
    assert bench.connection.close_reason == "it holds too much"
    assert caplog.text.count("closing 10.0.0.1:10911: it holds too much") == 1
    bench.connection.drop("again")
    assert caplog.text.count("closing") == 1


def test_a_connection_that_is_gone_reads_no_more(bench: Bench) -> None:
    bench.connection._pause_reading()
    bench.connection.connection_lost(None)
    bench.connection._read_on()
    bench.connection._pause_reading()
    assert not bench.wire.is_reading
    bench = Bench()
    bench.connection.close("enough")
    bench.connection._pause_reading()
    assert bench.wire.is_reading
