"""A loop that stood still when a time was over looks at its sockets before it blames the peer."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rocketstream._util.patience import another_look_s, up_to
from rocketstream.errors import ConnectError, RequestTimeoutError
from rocketstream.protocol.command import RemotingCommand
from rocketstream.transport.client import RemotingClient
from rocketstream.transport.connection import Connection
from tests.connections.peers import Held
from tests.kits.threaded_server import Run, ThreadedServer, request

TIMEOUT_MS = 60.0
LONG_MS = 20_000
LARGE = bytes(8 << 20)


def large(connection: Connection, command: RemotingCommand) -> None:
    """Answer with more than a socket holds."""
    connection.reply(command, RemotingCommand.response(0, None, None, LARGE))


def stand_still(seconds: float = 2.5 * TIMEOUT_MS / 1000) -> None:
    """Hold up the loop this is called on, as a long collection of garbage does."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


async def step(times: int = 3) -> None:
    """Let the tasks that are ready go on."""
    for _ in range(times):
        await asyncio.sleep(0)


@asynccontextmanager
async def stalled_request(
    address: str,
) -> AsyncIterator[tuple[Connection, asyncio.Future[RemotingCommand]]]:
    """Send a request, and let the loop stand still until its time is over."""
    client = RemotingClient()
    connection = await client.connection(address)
    answer = connection.request_future(request(), TIMEOUT_MS)
    await step()
    stand_still()
    yield connection, answer
    await client.close()


def test_connection_made_while_the_loop_stood_still_is_no_timeout(run: Run) -> None:
    async def main(address: str) -> None:
        client = RemotingClient(connect_timeout_ms=TIMEOUT_MS)
        connecting = asyncio.ensure_future(client.connection(address))
        await step(2)
        stand_still()
        assert not (await connecting).is_closed
        await client.close()

    with ThreadedServer() as server:
        run(main(server.address))


def test_answer_that_came_while_the_loop_stood_still_is_no_timeout(run: Run) -> None:
    """More of it than one round of the loop reads."""

    async def main(address: str) -> None:
        async with stalled_request(address) as (_, answer):
            assert len((await answer).body) == len(LARGE)

    with ThreadedServer(on_request=large) as server:
        run(main(server.address))


def test_peer_that_stays_silent_after_a_stall_times_out(run: Run) -> None:
    async def main(address: str) -> None:
        async with stalled_request(address) as (_, answer):
            with pytest.raises(RequestTimeoutError):
                await answer

    with ThreadedServer(on_request=Held()) as server:
        run(main(server.address))


def test_a_later_request_keeps_its_own_deadline_across_a_stall(run: Run) -> None:
    """The stalled sweep is put off: a request sent meanwhile is not timed out with it."""

    async def main(address: str) -> None:
        async with stalled_request(address) as (connection, early):
            late = connection.request_future(request(), LONG_MS)
            with pytest.raises(RequestTimeoutError):
                await early
            assert not late.done()
        await asyncio.gather(late, return_exceptions=True)

    with ThreadedServer(on_request=Held()) as server:
        run(main(server.address))


def test_what_is_done_in_time_is_not_cut_off_however_long_the_loop_stands_still(run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        async with up_to(TIMEOUT_MS / 1000):
            loop.call_later(1.5 * TIMEOUT_MS / 1000, answer.set_result, None)
            await step(1)
            stand_still()
            await answer

    run(main())


def test_loop_that_is_always_late_still_ends_a_wait(run: Run) -> None:
    async def main() -> None:
        async def busy() -> None:
            async with up_to(TIMEOUT_MS / 1000):
                while True:
                    stand_still(0.05)
                    await asyncio.sleep(0)

        with pytest.raises(TimeoutError):
            await busy()

    run(main())


def test_time_is_over_on_time_where_the_loop_runs(run: Run) -> None:
    async def main() -> None:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            async with up_to(TIMEOUT_MS / 1000):
                await asyncio.Event().wait()
        assert time.monotonic() - began >= TIMEOUT_MS / 1000 - 0.002

    run(main())


def test_connect_that_is_never_answered_is_told_with_its_time(run: Run) -> None:
    """A full queue of the listener: the system drops what knocks, as a dead host does."""

    async def main() -> None:
        with socket.socket() as listener, socket.socket() as first:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            first.connect(listener.getsockname())
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            client = RemotingClient(connect_timeout_ms=TIMEOUT_MS)

            async def knock() -> None:
                # One connection more is still taken where a queue of none holds one.
                while True:
                    (await client.connection(address)).close("it was taken")

            with pytest.raises(ConnectError, match=r"no answer within 60 ms"):
                await knock()
            await client.close()

    run(main())


@pytest.mark.parametrize(
    ("now", "looks", "more"),
    [(10.0, 0, 0.0), (10.001, 0, 0.0), (10.005, 0, 0.02), (10.5, 2, 0.5), (10.5, 3, 0.0)],
)
def test_another_look_is_as_long_as_the_loop_stood_still(
    now: float, looks: int, more: float
) -> None:
    assert another_look_s(now, 10.0, looks) == pytest.approx(more)
