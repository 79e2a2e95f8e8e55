"""One connection: matching, deadlines, bounds, hostile bytes and a clean end (W 1.1, 1.4)."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from rocketstream.errors import (
    ConnectError,
    ConnectionLostError,
    RequestTimeoutError,
    TooManyRequestsError,
)
from rocketstream.protocol.codes import FLAG_ONEWAY
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.framing import FrameDecoder
from rocketstream.transport.client import RemotingClient
from rocketstream.transport.connection import Connection, ConnectionLimits, RequestHandler
from rocketstream.transport.server import RemotingServer
from tests.connections.peers import HOSTILE, Held
from tests.kits.threaded_server import Run, echo, request

LONG_MS = 20_000


@asynccontextmanager
async def pair(
    handler: RequestHandler = echo, **client_settings: Any
) -> AsyncIterator[tuple[RemotingServer, Connection]]:
    """A server with ``handler`` and a client's connection to it."""
    server = RemotingServer(handler)
    await server.start()
    client = RemotingClient(**client_settings)
    try:
        yield server, await client.connection(server.address)
    finally:
        await client.close()
        await server.close()


def test_answers_find_their_requests_in_any_order(run: Run) -> None:
    async def main() -> None:
        held = Held()
        async with pair(held) as (_, connection):
            futures = [
                connection.request_future(request(body=b"%d" % number), LONG_MS)
                for number in range(64)
            ]
            asked = [await held.take() for _ in futures]
            for peer, command in reversed(asked):
                echo(peer, command)
            answers = await asyncio.gather(*futures)
            assert [bytes(each.body) for each in answers] == [b"%d" % n for n in range(64)]
            assert connection.requests_in_flight == 0

    run(main())


def test_equal_opaques_of_both_directions_do_not_mix(run: Run) -> None:
    """Each side numbers its own requests: both use 1 at the same time (W 1.2 opaque)."""

    async def main() -> None:
        held = Held()
        async with pair(held, on_request=echo) as (_, connection):
            ours = connection.request_future(request(10, b"from client"), LONG_MS)
            peer, command = await held.take()
            theirs = await peer.request(request(20, b"from server"), LONG_MS)
            assert theirs.opaque == command.opaque
            assert theirs.body == b"from server"
            assert not ours.done()
            echo(peer, command)
            assert (await ours).body == b"from client"

    run(main())


def test_missed_deadline_fails_one_request_and_its_late_answer_is_ignored(run: Run) -> None:
    async def main() -> None:
        held = Held()
        async with pair(held) as (_, connection):
            with pytest.raises(RequestTimeoutError, match=connection.peer):
                await connection.request(request(), 20)
            peer, command = await held.take()
            echo(peer, command)
            later = connection.request_future(request(body=b"next"), LONG_MS)
            echo(*await held.take())
            assert (await later).body == b"next"
            assert not connection.is_closed

    run(main())


def test_short_deadline_is_not_held_up_by_a_long_one_before_it(run: Run) -> None:
    async def main() -> None:
        held = Held()
        async with pair(held) as (_, connection):
            long = connection.request_future(request(), LONG_MS)
            for timeout_ms in (30, 10, 50):
                with pytest.raises(RequestTimeoutError):
                    await connection.request(request(), timeout_ms)
            assert not long.done()
            assert connection.requests_in_flight == 1
            long.cancel()

    run(main())


def test_lost_connection_fails_everything_in_flight(run: Run) -> None:
    async def main() -> None:
        held = Held()
        async with pair(held) as (server, connection):
            called: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
            connection.request_callback(
                request(), LONG_MS, lambda answer, error: called.set_result(error)
            )
            future = connection.request_future(request(), LONG_MS)
            await held.take()
            peer, _ = await held.take()
            peer.close("test ends it")
            with pytest.raises(ConnectionLostError, match="closed by the peer"):
                await future
            assert isinstance(await called, ConnectionLostError)
            await connection.wait_closed()
            await peer.wait_closed()
            assert connection.close_reason == "closed by the peer"
            assert peer.close_reason == "test ends it"
            assert not server.connections

    run(main())


def test_closed_connection_sends_nothing_and_says_so(run: Run) -> None:
    async def main() -> None:
        async with pair() as (_, connection):
            connection.close("enough")
            with pytest.raises(ConnectError, match=r"closed \(enough\); nothing was sent"):
                await connection.request(request(), LONG_MS)
            with pytest.raises(ConnectError):
                connection.oneway(request())
            with pytest.raises(ConnectError):
                connection.request_callback(request(), LONG_MS, lambda *_: None)
            connection.reply(request(), RemotingCommand.response(0))
            connection.close("again")
            assert connection.close_reason == "enough"

    run(main())


def test_requests_in_flight_are_bounded(run: Run) -> None:
    async def main() -> None:
        bounds = ConnectionLimits(requests_in_flight_max=2)
        held = Held()
        async with pair(held, bounds=bounds) as (_, connection):
            first = connection.request_future(request(), LONG_MS)
            second = connection.request_future(request(), LONG_MS)
            with pytest.raises(TooManyRequestsError):
                await connection.request(request(), LONG_MS)
            echo(*await held.take())
            await first
            third = connection.request_future(request(), LONG_MS)
            echo(*await held.take())
            echo(*await held.take())
            await asyncio.gather(second, third)

    run(main())


def test_cancelled_request_frees_its_place(run: Run) -> None:
    async def main() -> None:
        held = Held()
        async with pair(held) as (_, connection):
            task = asyncio.create_task(connection.request(request(), LONG_MS))
            peer, command = await held.take()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert connection.requests_in_flight == 0
            echo(peer, command)
            later = connection.request_future(request(body=b"x"), LONG_MS)
            echo(*await held.take())
            assert (await later).body == b"x"

    run(main())


def test_failing_handler_answers_code_1_and_the_connection_lives(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """W 1.4: exception in a processor."""

    def handler(connection: Connection, command: RemotingCommand) -> None:
        if command.code == 7:
            raise KeyError("topicX")
        echo(connection, command)

    async def main() -> None:
        async with pair(handler) as (_, connection):
            answer = await connection.request(request(7), LONG_MS)
            assert answer.code == 1
            assert answer.remark == "KeyError: 'topicX'"
            connection.oneway(request(7))
            assert (await connection.request(request(8, b"ok"), LONG_MS)).body == b"ok"

    run(main())
    assert "code=7" in caplog.text


def test_failing_callback_does_not_harm_the_connection(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with pair() as (_, connection):

            def fail(answer: RemotingCommand | None, error: Exception | None) -> None:
                raise ValueError("in the callback")

            connection.request_callback(request(), LONG_MS, fail)
            assert (await connection.request(request(body=b"ok"), LONG_MS)).body == b"ok"

    run(main())
    assert "in the callback" in caplog.text


def test_side_without_handler_refuses_requests(run: Run) -> None:
    """W 1.4: no processor is code 3 with a leading space in the remark; never for one-way."""

    async def main() -> None:
        held = Held()
        async with pair(held) as (_, connection):
            connection.oneway(request())
            peer, _ = await held.take()
            peer.oneway(request(39))
            answer = await peer.request(request(40), LONG_MS)
            assert (answer.code, answer.remark) == (3, " request type 40 not supported")

    run(main())


def test_oneway_is_marked_and_never_answered(run: Run) -> None:
    async def main() -> None:
        held = Held()
        async with pair(held) as (_, connection):
            connection.oneway(request(5, b"data"))
            peer, command = await held.take()
            assert command.flag == FLAG_ONEWAY
            assert command.body == b"data"
            echo(peer, command)
            assert peer.bytes_buffered == 0

    run(main())


def test_before_request_sees_every_request_before_it_is_encoded(run: Run) -> None:
    async def main() -> None:
        seen: list[str] = []

        def sign(address: str, command: RemotingCommand) -> None:
            seen.append(address)
            command.ext_fields = {"Signature": str(len(seen))}

        held = Held()
        async with pair(held, before_request=sign) as (server, connection):
            connection.oneway(request())
            connection.request_callback(request(), LONG_MS, lambda *_: None)
            future = connection.request_future(request(), LONG_MS)
            for number in (1, 2, 3):
                peer, command = await held.take()
                assert command.ext_fields == {"Signature": str(number)}
                echo(peer, command)
            await future
            assert seen == [server.address] * 3

    run(main())


def test_reply_body_in_parts_arrives_joined(run: Run) -> None:
    def handler(connection: Connection, command: RemotingCommand) -> None:
        parts: list[bytes | memoryview] = [b"one", memoryview(b"-two-")[1:4], b"", b"three"]
        connection.reply(command, RemotingCommand.response(0), parts)

    async def main() -> None:
        async with pair(handler) as (_, connection):
            answer = await connection.request(request(), LONG_MS)
            assert answer.body == b"onetwothree"

    run(main())


def test_close_still_sends_what_was_accepted(run: Run) -> None:
    def handler(connection: Connection, command: RemotingCommand) -> None:
        echo(connection, command)
        connection.close("bye")

    async def main() -> None:
        async with pair(handler) as (_, connection):
            body = bytes(3_000_000)
            assert len((await connection.request(request(body=body), LONG_MS)).body) == len(body)
            await connection.wait_closed()

    run(main())


def test_connection_closed_by_a_handler_takes_no_more_requests(run: Run) -> None:
    handled: list[int] = []

    def handler(connection: Connection, command: RemotingCommand) -> None:
        handled.append(command.code)
        connection.close("bye")

    async def main() -> None:
        async with pair(handler) as (_, connection):
            connection.oneway(request(1))
            connection.oneway(request(2))
            await connection.wait_closed()

    run(main())
    assert handled == [1]


# --- bytes --------------------------------------------------------------------------------------

JSON_HEAD = b'{"code":1,"flag":0,"opaque":1}'


@pytest.mark.parametrize("data", list(HOSTILE.values()), ids=list(HOSTILE))
def test_hostile_bytes_close_their_connection_alone(run: Run, data: bytes) -> None:
    """W 1.1: closed without a reply; other connections go on."""

    async def main() -> None:
        closed: asyncio.Queue[Connection] = asyncio.Queue()
        server = RemotingServer(echo, on_close=closed.put_nowait)
        await server.start()
        client = RemotingClient()
        try:
            good = await client.connection(server.address)
            reader, writer = await asyncio.open_connection(server.host, server.port)
            writer.write(data)
            assert await reader.read() == b""
            writer.close()
            bad = await closed.get()
            assert bad.close_reason
            bad.data_received(request().frame())  # broken stays broken
            assert (await good.request(request(body=b"alive"), LONG_MS)).body == b"alive"
        finally:
            await client.close()
            await server.close()

    run(main())


def test_frames_arrive_whole_from_single_bytes_and_from_one_segment(run: Run) -> None:
    async def main() -> None:
        server = RemotingServer(echo)
        await server.start()
        reader, writer = await asyncio.open_connection(server.host, server.port)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        frames = []
        for number in range(3):
            command = request(body=b"body %d" % number)
            command.opaque = number
            frames.append(command.frame())
        for byte in frames[0]:
            writer.write(bytes([byte]))
            await writer.drain()
        writer.write(frames[1] + frames[2])
        decoder = FrameDecoder()
        answers: list[RemotingCommand] = []
        while len(answers) < 3:
            answers += decoder.feed(await reader.read(10))
        assert [bytes(each.body) for each in answers] == [b"body 0", b"body 1", b"body 2"]
        assert [each.opaque for each in answers] == [0, 1, 2]
        writer.close()
        await writer.wait_closed()
        await server.close()

    run(main())


def test_peer_that_does_not_read_what_it_is_told_is_cut_off(run: Run) -> None:
    """Bytes for a slow reader are bounded; the bound closes the connection."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        lost: asyncio.Future[Connection] = loop.create_future()

        def handler(connection: Connection, command: RemotingCommand) -> None:
            for _ in range(10):
                if not connection.is_closed:
                    connection.oneway(request(body=bytes(1_000_000)))

        bounds = ConnectionLimits(write_buffer_bytes_max=4_000_000)
        server = RemotingServer(handler, on_close=lost.set_result, bounds=bounds)
        await server.start()
        with socket.create_connection((server.host, server.port)) as sock:
            sock.setblocking(False)
            await loop.sock_sendall(sock, request().frame() * 2)
            connection = await lost
        assert "does not read" in (connection.close_reason or "")
        assert connection.bytes_buffered == 0
        await server.close()

    run(main())


def test_slow_reader_within_the_bound_gets_everything_in_order(run: Run) -> None:
    async def main() -> None:
        def handler(connection: Connection, command: RemotingCommand) -> None:
            body = bytes([command.opaque]) * 1_000_000
            connection.reply(command, RemotingCommand.response(0, None, None, body))

        async with pair(handler) as (_, connection):
            futures = [connection.request_future(request(), LONG_MS) for _ in range(30)]
            for answer in await asyncio.gather(*futures):
                assert bytes(answer.body) == bytes([answer.opaque]) * 1_000_000

    run(main())


async def turn() -> None:
    """Let the loop run what was due before this call."""
    loop = asyncio.get_running_loop()
    reached = loop.create_future()
    loop.call_soon(reached.set_result, None)
    await reached


class CountingTransport(asyncio.Transport):
    """Takes writes and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def close(self) -> None:
        return

    def abort(self) -> None:
        return


def test_everything_of_one_turn_leaves_in_one_write(run: Run) -> None:
    """64 requests in flight must not cost 64 system calls."""

    async def main() -> None:
        connection = Connection(asyncio.get_running_loop(), echo)
        transport = CountingTransport()
        connection.connection_made(transport)
        for _ in range(64):
            connection.oneway(request())
        await turn()
        assert len(transport.writes) == 1
        sent = transport.writes.pop()
        assert len(FrameDecoder().feed(sent)) == 64
        asked = b"".join(request().frame() for _ in range(64))
        connection.data_received(asked)
        assert len(transport.writes) == 1, "answers given while reading leave at once"
        connection.pause_writing()
        connection.oneway(request())
        await turn()
        assert len(transport.writes) == 1
        connection.resume_writing()
        await turn()
        assert len(transport.writes) == 2
        connection.connection_lost(None)

    run(main())


# --- idleness -----------------------------------------------------------------------------------


def test_idle_connection_is_closed_by_either_side(run: Run) -> None:
    """Upstream: 120 s without a byte in either direction (W 1.1)."""

    async def main() -> None:
        lost: asyncio.Queue[Connection] = asyncio.Queue()
        server = RemotingServer(echo, idle_close_ms=40, on_close=lost.put_nowait)
        await server.start()
        patient = RemotingClient(idle_close_ms=0)
        connection = await patient.connection(server.address)
        await connection.wait_closed()
        assert "idle" in ((await lost.get()).close_reason or "")
        hasty = RemotingClient(idle_close_ms=10)
        connection = await hasty.connection(server.address)
        await connection.wait_closed()
        assert connection.close_reason == "idle for 10 ms"
        await hasty.close()
        await patient.close()
        await server.close()

    run(main())


def test_traffic_in_either_direction_keeps_a_connection_open(run: Run) -> None:
    """Only looks in a row without traffic between them close it."""

    async def main() -> None:
        bounds = ConnectionLimits(idle_close_ms=LONG_MS)
        connection = Connection(asyncio.get_running_loop(), lambda *_: None, bounds=bounds)
        transport = CountingTransport()
        connection.connection_made(transport)

        async def send() -> None:
            connection.oneway(request())
            await turn()

        async def receive() -> None:
            connection.data_received(request().frame())

        for traffic in (send, receive, send):
            await traffic()
            for _ in range(4):
                connection._check_idle()
            assert not connection.is_closed
        connection._check_idle()
        assert connection.close_reason == "idle for 20000 ms"
        connection.connection_lost(None)

    run(main())


# --- silence --------------------------------------------------------------------------------------

SILENT = ConnectionLimits(silent_close_ms=40)


def test_a_connection_that_goes_silent_is_closed_and_used_no_more(run: Run) -> None:
    """A firewall that forgot it: what waits ends at once, the next request has a new connection."""

    async def main() -> None:
        held = Held()
        async with pair(held, bounds=SILENT) as (_, connection):
            waiting = connection.request_future(request(body=b"held"), LONG_MS)
            with pytest.raises(RequestTimeoutError, match="no answer from"):
                await connection.request(request(), 50)
            assert connection.is_closed
            with pytest.raises(ConnectionLostError, match="no answer has come from it for 0"):
                await waiting
            await connection.wait_closed()
            assert "though it was asked" in str(connection.close_reason)

    run(main())


def test_what_a_silent_peer_has_not_taken_is_not_sent_to_it_later(run: Run) -> None:
    """A commit would come behind a later one over the next connection.

    The system goes on sending for minutes what a closed socket has left, unless told to drop it.
    """

    async def main() -> None:
        async with pair(Held(), bounds=SILENT) as (_, connection):
            transport: Any = connection._transport
            lingers = partial(transport.get_extra_info("socket").getsockopt, socket.SOL_SOCKET)
            before = lingers(socket.SO_LINGER, 8)
            aborted: list[bytes] = []
            connection._abort = lambda: aborted.append(lingers(socket.SO_LINGER, 8))  # type: ignore[method-assign]
            with pytest.raises(RequestTimeoutError):
                await connection.request(request(), 50)
            assert (before, aborted) == (struct.pack("ii", 0, 0), [struct.pack("ii", 1, 0)])
            transport.abort()
            await connection.wait_closed()

    run(main())


def test_who_is_told_of_the_timeout_already_finds_the_connection_closed(run: Run) -> None:
    """A send that is tried again at once would else be lost with the connection it timed out on."""

    async def main() -> None:
        async with pair(Held(), bounds=SILENT) as (_, connection):
            told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            connection.request_callback(
                request(), 50, lambda answer, error: told.set_result(connection.is_closed)
            )
            assert await told

    run(main())


def test_what_a_peer_holds_is_no_silence_while_it_answers_others(run: Run) -> None:
    """A pull held by its broker times out alone; so does one sent before anything else came."""

    async def main() -> None:
        held = Held()
        async with pair(held, bounds=SILENT) as (_, connection):
            long = connection.request_future(request(), LONG_MS)
            pull = connection.request_future(request(body=b"pull"), 60)
            await held.take()
            await held.take()
            while not pull.done():
                echo_me = asyncio.ensure_future(connection.request(request(), LONG_MS))
                echo(*await held.take())
                await echo_me
            assert isinstance(pull.exception(), RequestTimeoutError)
            assert not connection.is_closed
            long.cancel()

    run(main())


def test_requests_too_short_to_tell_add_up(run: Run) -> None:
    async def main() -> None:
        async with pair(Held(), bounds=ConnectionLimits(silent_close_ms=500)) as (_, connection):
            with pytest.raises(RequestTimeoutError):
                await connection.request(request(), 10)
            assert not connection.is_closed
            while not connection.is_closed:
                with pytest.raises(RequestTimeoutError):
                    await connection.request(request(), 10)

    run(main())


def test_a_peer_that_asks_and_never_answers_is_silent(run: Run) -> None:
    """Its requests come, ours are lost: a firewall may forget one direction."""

    async def main() -> None:
        def asks(connection: Connection, command: RemotingCommand) -> None:
            connection.oneway(request())

        async with pair(asks, bounds=SILENT) as (_, connection):
            with pytest.raises(RequestTimeoutError):
                await connection.request(request(), 80)
            assert connection.is_closed

    run(main())


def test_half_a_frame_and_then_nothing_is_silence(run: Run) -> None:
    async def main() -> None:
        def half(connection: Connection, command: RemotingCommand) -> None:
            answer = RemotingCommand.response(0, None, None, b"body")
            command.answer(answer)
            connection.send_frames(answer.frame()[:-2])

        async with pair(half, bounds=SILENT) as (_, connection):
            with pytest.raises(RequestTimeoutError):
                await connection.request(request(), 80)
            assert connection.is_closed

    run(main())


def test_a_peer_that_takes_bytes_is_not_silent(run: Run) -> None:
    """A slow way up: nothing can have been answered while the request is not yet there."""

    async def main() -> None:
        async with pair(Held(), bounds=SILENT) as (_, connection):
            late = connection.request_future(request(), 60)
            while not late.done():
                connection.pause_writing()
                connection.resume_writing()
                await asyncio.sleep(0)
            assert isinstance(late.exception(), RequestTimeoutError)
            assert not connection.is_closed

    run(main())


def test_a_server_keeps_a_client_that_does_not_answer(run: Run) -> None:
    """A program that computes for seconds still has its connection, and with it its queues."""

    async def main() -> None:
        held = Held()
        server = RemotingServer(held, bounds=SILENT)
        await server.start()
        client = RemotingClient(on_request=lambda *_: None)
        (await client.connection(server.address)).oneway(request())
        peer, _ = await held.take()
        with pytest.raises(RequestTimeoutError):
            await peer.request(request(), 60)
        assert not peer.is_closed
        await client.close()
        await server.close()

    run(main())
