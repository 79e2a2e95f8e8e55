"""What the connections of one server share: nobody holds the others up, memory has one bound."""

from __future__ import annotations

import asyncio
import itertools
import math
import struct
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from rocketstream import limits
from rocketstream.protocol.command import RemotingCommand
from rocketstream.testing.clock import ManualClock
from rocketstream.transport.connection import Connection, ConnectionLimits, RequestHandler
from rocketstream.transport.served import ServedConnection
from rocketstream.transport.sharing import AnswerSteps, Sharing, Steps
from tests.connections.peers import Holder
from tests.kits.threaded_server import Run, request
from tests.plugins.pipes import Pipe, turn

BYTES_MAX = 10_000_000


class Server:
    """Connections that share, on pipes; a request costs so much and is noted, unless handled."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.sharing = Sharing(self.clock, bytes_max=BYTES_MAX)
        self.cost_ms = 0.0
        self.done: list[Connection] = []
        """Whose requests were done, one after another."""
        self._joined: list[Connection] = []

    def join(
        self, handler: RequestHandler | None = None, **settings: Any
    ) -> tuple[ServedConnection, Pipe]:
        """Return a new connection and its transport."""
        loop = asyncio.get_running_loop()
        settings.setdefault("bounds", ConnectionLimits())
        connection = ServedConnection(loop, handler or self._toil, self.sharing, **settings)
        self._joined.append(connection)
        return connection, Pipe(connection)

    def _toil(self, connection: Connection, command: RemotingCommand) -> None:
        self.clock.advance(self.cost_ms)
        self.done.append(connection)

    def close(self) -> None:
        """Lose the connections that are left."""
        for connection in self._joined:
            if not connection._lost.done():
                connection.connection_lost(None)
        self.sharing.close()


Play = Callable[[Callable[[Server], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def play(run: Run) -> Play:
    """Run a coroutine with a server, which is closed at the end."""

    async def whole(main: Callable[[Server], Coroutine[Any, Any, None]]) -> None:
        server = Server()
        try:
            await main(server)
        finally:
            server.close()

    return lambda main: run(whole(main))


def frames(count: int) -> bytes:
    return b"".join(request().frame() for _ in range(count))


def test_one_peer_works_no_longer_than_its_slice(play: Play) -> None:
    """1,000 requests that came at once are not done at once: the loop is free in between."""

    async def main(server: Server) -> None:
        server.cost_ms = 0.25
        peer, pipe = server.join()
        peer.data_received(frames(1_000))
        assert len(server.done) == limits.WORK_SLICE_MS / 0.25
        assert not pipe.reading, "what is not done is not read on"
        turns = 0
        while len(server.done) < 1_000:
            before = len(server.done)
            await turn()
            turns += 1
            used_ms = (len(server.done) - before) * 0.25
            assert used_ms <= limits.WORK_PASS_MS + limits.WORK_SLICE_MS
        assert turns > 50
        await turn()
        assert pipe.reading

    play(main)


def test_neighbour_is_served_at_once_while_a_peer_has_work_for_seconds(play: Play) -> None:
    async def main(server: Server) -> None:
        server.cost_ms = 0.5
        peer, _ = server.join()
        neighbour, _ = server.join()
        peer.data_received(frames(2_000))
        for _ in range(5):
            await turn()
        done = len(server.done)
        assert done < 100
        neighbour.data_received(frames(1))
        assert server.done[done:] == [neighbour]
        server.sharing.close()
        assert len(server.done) == 2_001

    play(main)


def test_many_peers_at_once_leave_the_loop_free_too(play: Play) -> None:
    """200 peers with a dear request each are done over many turns, who came first, first."""

    async def main(server: Server) -> None:
        server.cost_ms = 5
        peers = [server.join()[0] for _ in range(200)]
        for peer in peers:
            peer.data_received(frames(1))
        assert len(server.done) == 1
        await turn()
        assert len(server.done) <= 3
        server.sharing.close()
        assert server.done == peers

    play(main)


def test_nobody_passes_those_who_wait_for_their_first_turn(play: Play) -> None:
    """A producer that was just answered and sends again was served before others at full load."""

    async def main(server: Server) -> None:
        server.cost_ms = limits.WORK_PASS_MS
        peers = [server.join()[0] for _ in range(10)]
        for peer in peers:
            peer.data_received(frames(1))
        await turn()
        served = len(server.done)
        assert served < 10
        peers[0].data_received(frames(1))
        assert len(server.done) == served, "others wait, so it waits"
        server.sharing.close()
        assert server.done == [*peers, peers[0]]

    play(main)


def test_one_that_waits_reads_its_next_small_requests_and_no_more(play: Play) -> None:
    """Stopping and starting its reading would cost more than most requests."""

    async def main(server: Server) -> None:
        server.cost_ms = limits.WORK_PASS_MS
        first, _ = server.join()
        peer, pipe = server.join()
        first.data_received(frames(1))
        peer.data_received(frames(1))
        assert (server.done, pipe.reading) == ([first], True)
        while pipe.reading:
            peer.data_received(frames(10))
        assert limits.SERVER_LINE_BYTES < peer.bytes_held < limits.SERVER_LINE_BYTES + 2_000
        server.sharing.close()
        await turn()
        assert pipe.reading

    play(main)


def test_a_frame_that_trickles_in_gets_no_more_time_by_waiting_in_line(play: Play) -> None:
    """Each piece of it may wait for a turn; its time runs from its first byte."""

    async def main(server: Server) -> None:
        server.cost_ms = limits.WORK_PASS_MS
        busy, _ = server.join()
        slow, pipe = server.join()
        frame = request().frame()
        due = []
        for number in range(3):
            busy.data_received(frames(1))
            slow.data_received(frame[number : number + 1] if number else frame[:8])
            while slow.is_waiting:
                await turn()
            assert pipe.reading
            due.append(slow.frame_due_s)
            await asyncio.sleep(0.01)
        assert due == [due[0]] * 3
        assert due[0] < math.inf

    play(main)


def test_under_a_clock_that_stands_still_nobody_waits(play: Play) -> None:
    """A simulated world is the same in every run, however fast the machine is."""

    async def main(server: Server) -> None:
        peer, pipe = server.join()
        peer.data_received(frames(1_000))
        assert len(server.done) == 1_000
        assert pipe.reading

    play(main)


def test_request_in_steps_leaves_others_their_turn(play: Play) -> None:
    """Long work that is legitimate yields, and the next request of its peer waits for it."""

    async def main(server: Server) -> None:
        done: list[str] = []

        def steps() -> Steps:
            for _ in range(100):
                server.clock.advance(0.5)
                yield
            done.append("long")

        def handler(connection: Connection, command: RemotingCommand) -> Steps | None:
            if command.code == 2:
                return steps()
            done.append("short" if connection is peer else "neighbour")
            return None

        peer, _ = server.join(handler)
        neighbour, _ = server.join(handler)
        peer.data_received(request(2).frame() + request(1).frame())
        await turn()
        neighbour.data_received(request(1).frame())
        assert done == ["neighbour"]
        server.sharing.close()
        assert done == ["neighbour", "long", "short"]

    play(main)


@pytest.mark.parametrize("is_lost", [False, True])
def test_request_that_waits_holds_up_its_own_connection_only(play: Play, is_lost: bool) -> None:
    """What was asked before the peer left is still done, in order."""

    async def main(server: Server) -> None:
        written = asyncio.get_running_loop().create_future()
        done: list[str] = []
        steps_taken = 0

        def steps() -> AnswerSteps:
            nonlocal steps_taken
            steps_taken += 1
            yield written
            done.append("waited")

        def handler(connection: Connection, command: RemotingCommand) -> AnswerSteps | None:
            if command.code == 2:
                return steps()
            done.append("after" if connection is peer else "neighbour")
            return None

        peer, _ = server.join(handler)
        neighbour, _ = server.join(handler)
        peer.data_received(request(2).frame() + request(1).frame())
        for _ in range(5):
            await turn()
        neighbour.data_received(request(1).frame())
        assert (done, steps_taken) == (["neighbour"], 1)
        assert not peer.is_waiting, "it would be asked in every turn of the loop"
        if is_lost:
            peer.connection_lost(None)
            for _ in range(5):
                await turn()
            assert done == ["neighbour"]
        written.set_result(None)
        for _ in range(5):
            await turn()
        assert done == ["neighbour", "waited", "after"]

    play(main)


def test_work_of_the_server_itself_is_done_in_slices(play: Play) -> None:
    async def main(server: Server) -> None:
        done: list[int] = []

        def steps() -> Steps:
            for number in range(100):
                server.clock.advance(limits.WORK_SLICE_MS / 2)
                done.append(number)
                yield

        server.sharing.start(steps())
        assert len(done) == 2
        while len(done) < 100:
            before = len(done)
            await turn()
            assert len(done) - before <= 6

    play(main)


def test_answers_owed_keep_up_with_the_requests_they_are_owed_for(play: Play) -> None:
    """Fifty who send held up all who waited for messages: those came faster than they went."""

    async def main(server: Server) -> None:
        owed, owed_most = 0, 0
        free: list[ServedConnection] = []

        def give() -> None:
            nonlocal owed
            server.clock.advance(limits.WORK_SLICE_MS / 5)
            owed -= 1

        def take(connection: Connection, _: RemotingCommand) -> None:
            nonlocal owed, owed_most
            server.clock.advance(limits.WORK_SLICE_MS / 5)
            assert isinstance(connection, ServedConnection)
            free.append(connection)
            owed += 1
            owed_most = max(owed, owed_most)
            next(waiting).owe(give)

        waiting = itertools.cycle([server.join()[0] for _ in range(50)])
        free = [server.join(take)[0] for _ in range(50)]
        for _ in range(500):
            asking, free[:] = list(free), []
            for connection in asking:
                connection.data_received(frames(1))
            await turn()
        assert 0 < owed_most <= 100, "one for each who sends, one for each who waits"

    play(main)


def test_who_asks_much_goes_on_among_very_many_who_ask_little(play: Play) -> None:
    """A reader of much among a crowd of producers got no turn at all while they kept sending."""

    async def main(server: Server) -> None:
        server.cost_ms = limits.WORK_SLICE_MS
        reader, _ = server.join()
        reader.data_received(frames(1_000))
        crowd = [server.join()[0] for _ in range(1_000)]
        for number in range(200):
            for connection in crowd[number % 10 :: 10]:
                if not connection.is_waiting:  # else the answer to its last request is to come
                    connection.data_received(frames(1))
            await turn()
        assert server.done.count(reader) >= 50
        assert len(server.done) - server.done.count(reader) >= 100

    play(main)


def test_answers_owed_to_one_peer_take_its_slice_each_turn(play: Play) -> None:
    """A thousand pulls of one connection that a message wakes hold up nobody."""

    async def main(server: Server) -> None:
        given: list[int] = []

        def give(number: int) -> None:
            server.clock.advance(limits.WORK_SLICE_MS / 2)
            given.append(number)

        peer, _ = server.join()
        for number in range(100):
            peer.owe(partial(give, number))
        assert given == [], "not before the turn that brought the message is over"
        while len(given) < 100:
            before = len(given)
            await turn()
            assert 0 < len(given) - before <= 6
        assert given == [*range(100)]

    play(main)


def test_what_was_sent_before_leaving_is_still_done(play: Play) -> None:
    """A consumer commits one-way and closes: its commit counts, though it came in a crowd."""

    async def main(server: Server) -> None:
        server.cost_ms = 2
        gone: list[int] = []
        peer, _ = server.join(on_close=lambda _: gone.append(len(server.done)))
        peer.data_received(frames(20))
        peer.connection_lost(None)
        assert len(server.done) < 20
        assert gone == []
        while not gone:
            await turn()
        assert gone == [20], "its owner hears of the end when all is done, and once"

    play(main)


def test_connection_we_close_leaves_the_rest_undone(play: Play) -> None:
    async def main(server: Server) -> None:
        server.cost_ms = 2
        gone: list[int] = []
        peer, _ = server.join(on_close=lambda _: gone.append(len(server.done)))
        peer.data_received(frames(20))
        peer.close("enough")
        peer.connection_lost(None)
        await turn()
        await turn()
        assert gone == [1]

    play(main)


# --- peers that do not read -----------------------------------------------------------------------


def test_peer_that_does_not_read_is_served_no_further(play: Play) -> None:
    """Ten readers that did not read cost 470 MB: each asked on and was answered."""

    async def main(server: Server) -> None:
        served = 0

        def handler(connection: Connection, command: RemotingCommand) -> None:
            nonlocal served
            served += 1
            body = bytes(1_100_000)
            connection.reply(command, RemotingCommand.response(0, None, None, body))

        peer, pipe = server.join(handler)
        pipe.takes = False
        peer.data_received(frames(50))
        assert served == 1
        assert not pipe.reading
        for _ in range(5):
            await turn()
        assert served == 1, "it waits without being asked again and again"
        pipe.takes = True
        peer.resume_writing()
        await turn()
        assert served == 50
        assert pipe.reading

    play(main)


def test_drained_peer_is_told_of_and_a_lost_one_is_not(play: Play) -> None:
    async def main(server: Server) -> None:
        told: list[str] = []
        slow, _ = server.join()
        lost, _ = server.join()
        for connection, name in ((slow, "slow"), (lost, "lost")):
            connection.pause_writing()
            assert connection.is_congested
            connection.when_drained(lambda name=name: told.append(name))  # type: ignore[misc]
        lost.connection_lost(None)
        slow.resume_writing()
        assert told == ["slow"]
        assert not slow.is_congested

    play(main)


# --- memory ---------------------------------------------------------------------------------------


def test_who_holds_most_goes_first(play: Play) -> None:
    """One bound for all connections together; the rest are left alone."""

    async def main(server: Server) -> None:
        small, great = [Holder(1_000_000) for _ in range(6)], Holder(9_000_000)
        for holder in (great, *small):
            server.sharing.holds(holder, holder.bytes_held)
        assert [bool(one.reasons) for one in (great, *small)] == [True] + [False] * 6
        assert "all connections hold more than the maximum of 10000000" in great.reasons[0]
        assert server.sharing.bytes_held <= BYTES_MAX

    play(main)


def test_who_holds_for_long_goes_before_who_has_just_come(play: Play) -> None:
    """A great message that arrives is not what stalled peers are excused with."""

    async def main(server: Server) -> None:
        stalled = [Holder(1_000_000) for _ in range(9)]
        for holder in stalled:
            server.sharing.holds(holder, holder.bytes_held)
            holder.holds_since_s -= 60
        honest = Holder(4_000_000)
        server.sharing.holds(honest, honest.bytes_held)
        assert honest.reasons == []
        assert sum(bool(one.reasons) for one in stalled) == 3

    play(main)


def test_unread_requests_and_untaken_answers_count_alike(play: Play) -> None:
    async def main(server: Server) -> None:
        peer, pipe = server.join()
        peer.data_received(struct.pack(">iI", 1_000_000, 10) + bytes(50_000))
        assert peer.bytes_held == 50_008
        pipe.takes = False
        peer.oneway(request(body=bytes(10_000)))
        await turn()
        assert peer.bytes_held == 50_008 + len(pipe.kept)

    play(main)


# --- frames that do not end -----------------------------------------------------------------------


def test_frame_must_be_complete_in_time(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a frame of 16 MiB could be kept for minutes by a byte now and then."""

    async def main(server: Server) -> None:
        peer, pipe = server.join()
        half = struct.pack(">iI", 16_000_000, 10) + bytes(50_000)
        began_s = asyncio.get_running_loop().time()
        peer.data_received(half)
        size_ms = 16_000_004 / limits.FRAME_BYTES_PER_MS_MIN
        assert peer.frame_due_s == pytest.approx(
            began_s + (limits.FRAME_GRACE_MS + size_ms) / 1000, abs=1
        )
        due_s = peer.frame_due_s
        peer.data_received(b"x")
        assert peer.frame_due_s == due_s, "a byte now and then does not put it off"
        monkeypatch.setattr(limits, "FRAME_GRACE_MS", -1e9)
        server.sharing._look()
        assert pipe.is_aborted
        assert peer.close_reason == "its frame was not complete in time"

    play(main)


def test_every_frame_has_its_own_time(play: Play) -> None:
    """A stream whose reads end inside frames is not one frame that never ends."""

    async def main(server: Server) -> None:
        peer, _ = server.join()
        frame = request(body=bytes(1_000)).frame()
        peer.data_received(frame + frame[:500])
        peer._frame_began_s -= 1_000
        peer.data_received(frame[500:] + frame[:500])
        assert peer.frame_due_s > asyncio.get_running_loop().time()
        peer.data_received(frame[500:])
        assert peer.frame_due_s == float("inf")

    play(main)
