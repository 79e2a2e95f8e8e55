"""Room for great frames, answers in pieces, thousands that leave: memory has one bound."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rocketstream import limits
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.framing import FrameDecoder
from rocketstream.testing.clock import ManualClock
from rocketstream.transport.connection import Connection, ConnectionLimits, RequestHandler
from rocketstream.transport.served import ServedConnection
from rocketstream.transport.sharing import Sharing
from tests.connections.peers import Holder
from tests.kits.threaded_server import Run, echo, request
from tests.plugins.pipes import Pipe, turn


def join(
    sharing: Sharing, handler: RequestHandler = echo, **settings: Any
) -> tuple[ServedConnection, Pipe]:
    """A connection of a server that shares, on a transport that is none."""
    bounds = ConnectionLimits()
    loop = asyncio.get_running_loop()
    connection = ServedConnection(loop, handler, sharing, bounds=bounds, **settings)
    return connection, Pipe(connection)


def frames(count: int) -> bytes:
    return b"".join(request().frame() for _ in range(count))


MIB = 1024 * 1024


def great_frame(size: int) -> bytes:
    """A request of about ``size`` bytes."""
    command = request()
    command.body = bytes(size)
    return command.frame()


def test_great_frames_wait_unread_until_there_is_room(run: Run) -> None:
    """More than memory has room for at once is held back by TCP, not closed: all arrive."""

    async def main() -> None:
        sharing = Sharing(ManualClock())
        served: list[Connection] = []

        def handler(connection: Connection, command: RemotingCommand) -> None:
            assert len(command.body) == 4 * MIB
            served.append(connection)

        peers = [join(sharing, handler) for _ in range(20)]
        frame = great_frame(4 * MIB)
        for peer, _ in peers:
            peer.data_received(frame[:65_536])
        reading = [pipe.reading for _, pipe in peers]
        assert reading.count(True) == 2  # of 9 MiB
        while len(served) < 20:
            peer = next(one for one, pipe in peers if pipe.reading and one not in served)
            peer.data_received(frame[65_536:])
            await turn()
        assert not any(pipe.is_aborted for _, pipe in peers)
        assert all(pipe.reading for _, pipe in peers)
        for peer, _ in peers:
            peer.connection_lost(None)
        await turn()

    run(main())


def test_smallest_frame_that_waits_gets_room_first(run: Run) -> None:
    """Those who announce the greatest frames do not keep the others waiting longest."""

    async def main() -> None:
        sharing = Sharing(ManualClock())
        first, great, small = Holder(1), Holder(1), Holder(1)
        assert sharing.ask_room(first, 9 * MIB)
        assert not sharing.ask_room(great, 5 * MIB)
        assert not sharing.ask_room(small, 4 * MIB)
        assert not sharing.ask_room(Holder(1), 8 * MIB)
        sharing.leave_room(first)
        await turn()
        assert (small.rooms, great.rooms) == (1, 1)
        sharing.leave_room(small)
        sharing.leave_room(great)

    run(main())


def test_frame_greater_than_all_the_room_is_read_alone(run: Run) -> None:
    async def main() -> None:
        sharing = Sharing(ManualClock())
        small, huge = Holder(1), Holder(1)
        assert sharing.ask_room(small, MIB)
        assert not sharing.ask_room(huge, 11 * MIB)
        sharing.leave_room(small)
        await turn()
        assert huge.rooms == 1
        assert not sharing.ask_room(small, MIB)
        sharing.leave_room(small)  # gone while it waited
        sharing.leave_room(huge)
        assert sharing.ask_room(small, 9 * MIB)

    run(main())


@pytest.mark.parametrize("is_wanted", [False, True])
def test_slow_frame_loses_its_room_only_to_who_waits(run: Run, is_wanted: bool) -> None:
    """A stalled peer does not keep room that others need; nobody is closed for nobody."""

    async def main() -> None:
        sharing = Sharing(ManualClock())
        stalled, other = Holder(1), Holder(1)
        assert sharing.ask_room(stalled, 8 * MIB)
        if is_wanted:
            assert not sharing.ask_room(other, 4 * MIB)
        loop = asyncio.get_running_loop()
        patience_s = (limits.ROOM_GRACE_MS + 8 * MIB / limits.ROOM_BYTES_PER_MS_MIN) / 1000
        sharing._clear_rooms(loop.time() + patience_s - 0.5)
        assert stalled.reasons == []
        sharing._clear_rooms(loop.time() + patience_s + 0.5)
        assert len(stalled.reasons) == is_wanted

    run(main())


def test_little_is_read_of_others_while_frames_wait_for_room(run: Run) -> None:
    """A thousand that wait with 64 KiB each would need memory no bound allows."""

    async def main() -> None:
        sharing = Sharing(ManualClock())
        first, second, third = (join(sharing)[0] for _ in range(3))
        assert len(first.get_buffer(-1)) == limits.SERVER_READ_BYTES
        first.data_received(great_frame(8 * MIB)[:65_536])
        second.data_received(great_frame(8 * MIB)[:65_536])
        assert len(first.get_buffer(-1)) == limits.SERVER_READ_BYTES
        frame = request(body=b"b").frame()
        buffer = third.get_buffer(-1)
        assert len(buffer) == limits.SERVER_READ_BYTES_CROWDED
        buffer[: len(frame)] = frame
        third.buffer_updated(len(frame))
        second.connection_lost(None)
        assert len(third.get_buffer(-1)) == limits.SERVER_READ_BYTES
        first.connection_lost(None)
        third.connection_lost(None)
        await turn()

    run(main())


def test_closed_connection_frees_its_memory_and_room_at_once(run: Run) -> None:
    """What is dropped to free memory frees it, even while its end waits in line."""

    async def main() -> None:
        sharing = Sharing(ManualClock())
        peer, _ = join(sharing)
        peer.data_received(great_frame(8 * MIB)[: 7 * MIB])
        waiting, waiting_pipe = join(sharing)
        waiting.data_received(great_frame(8 * MIB)[:65_536])
        assert not waiting_pipe.reading
        peer.drop("test")
        assert peer.bytes_held == 0
        await turn()
        assert waiting_pipe.reading
        peer.connection_lost(None)
        waiting.connection_lost(None)
        await turn()

    run(main())


def test_thousands_that_leave_at_once_leave_one_after_another(run: Run) -> None:
    """What follows from a lost connection is done in turns too, and all of it."""

    async def main() -> None:
        clock = ManualClock()
        sharing = Sharing(clock)
        gone: list[Connection] = []

        def left(connection: Connection) -> None:
            clock.advance(0.25)
            gone.append(connection)

        peers = [join(sharing, on_close=left)[0] for _ in range(100)]
        for peer in peers:
            peer.connection_lost(None)
        assert gone == []
        turns = 0
        while len(gone) < 100:
            before = len(gone)
            await turn()
            turns += 1
            assert len(gone) - before <= 3 * limits.WORK_PASS_MS / 0.25  # ``turn`` may take three
        assert gone == peers
        assert turns > 10

    run(main())


def test_great_answer_is_handed_over_in_pieces(run: Run) -> None:
    """A piece is freed when it is sent; one great block lived until its last byte was taken."""

    async def main() -> None:
        def handler(connection: Connection, command: RemotingCommand) -> None:
            answer = RemotingCommand.response(0, None)
            answer.body = bytes(range(256)) * 4_000
            connection.reply(command, answer)

        sharing = Sharing(ManualClock())
        peer, pipe = join(sharing, handler)
        pieces: list[int] = []
        taken = pipe.write
        pipe.write = lambda data: (pieces.append(len(data)), taken(data))[0]  # type: ignore
        peer.data_received(frames(1))
        assert max(pieces) == 64 * 1024
        assert len(pieces) > 10
        (answer,) = FrameDecoder().feed(bytes(pipe.kept))
        assert answer.body == bytes(range(256)) * 4_000
        peer.connection_lost(None)
        await turn()

    run(main())


def test_answer_in_parts_is_handed_over_as_the_peer_takes_it(run: Run) -> None:
    """10 MB joined, cut and handed to the socket in one go held everybody up for 30 ms."""

    async def main() -> None:
        parts = [bytes([number]) * 100_000 for number in range(100)]

        def handler(connection: Connection, command: RemotingCommand) -> None:
            connection.reply(command, RemotingCommand.response(0, None), parts)

        sharing = Sharing(ManualClock())
        peer, pipe = join(sharing, handler)
        taken = pipe.write

        def write(data: bytes) -> None:
            assert not is_full, "handed over although the socket is full"
            taken(data)
            if len(pipe.kept) > 300_000 and not was_full:
                was_full.append(True)
                is_full.append(True)
                peer.pause_writing()

        is_full: list[bool] = []
        was_full: list[bool] = []
        pipe.write = write  # type: ignore[method-assign]
        peer.data_received(frames(1))
        assert len(pipe.kept) <= 300_000 + 64 * 1024
        is_full.clear()
        peer.resume_writing()
        turns = 0
        while len(pipe.kept) < 10_000_000:
            before = len(pipe.kept)
            await asyncio.sleep(0)
            assert len(pipe.kept) - before <= 1024 * 1024 + 64 * 1024
            turns += 1
        assert turns >= 9
        (answer,) = FrameDecoder().feed(bytes(pipe.kept))
        assert answer.body == b"".join(parts)
        assert not peer.bytes_buffered
        peer.connection_lost(None)
        await turn()

    run(main())
