"""Connecting, listening, and ending both (W 1.6, 1.7)."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest

from rocketstream.errors import (
    ClientStateError,
    ConfigurationError,
    ConnectError,
    ConnectionLostError,
    PortInUseError,
    ServerError,
)
from rocketstream.protocol.addresses import format_address
from rocketstream.protocol.command import RemotingCommand
from rocketstream.transport.client import RemotingClient
from rocketstream.transport.connection import Connection
from rocketstream.transport.server import RemotingServer
from tests.kits.threaded_server import Run, echo, request

LONG_MS = 20_000


def unused_address() -> str:
    """Return an address nobody listens on: bound a moment ago, closed now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


# --- client -------------------------------------------------------------------------------------


def test_concurrent_first_uses_share_one_connection(run: Run) -> None:
    async def main() -> None:
        opened: list[Connection] = []
        server = RemotingServer(echo, on_open=opened.append)
        await server.start()
        client = RemotingClient()
        requests = [client.request(server.address, request(), LONG_MS) for _ in range(20)]
        await asyncio.gather(*requests)
        assert len(opened) == 1
        assert client.connected(server.address) is await client.connection(server.address)
        assert len(client.connections) == 1
        await client.close()
        await server.close()

    run(main())


def test_lost_connection_is_made_again_on_demand(run: Run) -> None:
    async def main() -> None:
        server = RemotingServer(echo)
        await server.start()
        client = RemotingClient()
        first = await client.connection(server.address)
        await server.close()
        await first.wait_closed()
        assert client.connected(server.address) is None
        again = RemotingServer(echo, port=server.port)
        await again.start()
        answer = await client.request(again.address, request(body=b"back"), LONG_MS)
        assert answer.body == b"back"
        (await client.connection(again.address)).close("moved")
        assert client.connected(again.address) is None
        await client.oneway(again.address, request())
        assert client.connected(again.address) is not None
        await client.close()
        await again.close()

    run(main())


def test_refused_connect_names_address_and_reason(run: Run) -> None:
    async def main() -> None:
        client = RemotingClient()
        address = unused_address()
        with pytest.raises(ConnectError) as caught:
            await client.request(address, request(), LONG_MS)
        assert address in str(caught.value)
        assert "refused" in str(caught.value).lower()
        with pytest.raises(ConfigurationError):
            await client.connection("nonsense")
        await client.close()

    run(main())


def test_connect_to_a_deaf_peer_times_out(run: Run, client_tls: ssl.SSLContext) -> None:
    """The handshake counts: a listener that never speaks TLS must not hold the caller."""

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            client = RemotingClient(ssl_context=client_tls, connect_timeout_ms=50)
            with pytest.raises(ConnectError, match="no answer within 50 ms"):
                await client.connection(format_address(*deaf.getsockname()))
            await client.close()

    run(main())


def test_cancelled_caller_does_not_disturb_others_that_connect(run: Run) -> None:
    async def main() -> None:
        server = RemotingServer(echo)
        await server.start()
        client = RemotingClient()
        hasty = asyncio.create_task(client.connection(server.address))
        patient = asyncio.create_task(client.connection(server.address))
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(started.set_result, None)
        await started
        hasty.cancel()
        assert not (await patient).is_closed
        with pytest.raises(asyncio.CancelledError):
            await hasty
        await client.close()
        await server.close()

    run(main())


def test_closed_client_fails_what_connects_and_refuses_more(
    run: Run, client_tls: ssl.SSLContext
) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            deaf.setblocking(False)
            loop = asyncio.get_running_loop()
            client = RemotingClient(ssl_context=client_tls)
            address = format_address(*deaf.getsockname())
            task = asyncio.create_task(client.connection(address))
            accepted, _ = await loop.sock_accept(deaf)
            await client.close()
            await client.close()
            with pytest.raises(ClientStateError):
                await task
            with pytest.raises(ClientStateError):
                await client.connection(address)
            accepted.close()

    run(main())


# --- server -------------------------------------------------------------------------------------


def test_taken_port_is_named_with_what_to_do(run: Run) -> None:
    async def main() -> None:
        server = RemotingServer(echo)
        await server.start()
        assert server.port > 0
        with pytest.raises(PortInUseError, match="in use; stop the process") as caught:
            await RemotingServer(echo, port=server.port).start()
        assert server.address in str(caught.value)
        await server.close()

    run(main())


def test_address_of_another_host_cannot_be_listened_on(run: Run) -> None:
    async def main() -> None:
        for host in ("203.0.113.1", "no-such-host.invalid"):
            with pytest.raises(ServerError, match="cannot listen on " + host):
                await RemotingServer(echo, host=host).start()

    run(main())


def test_server_starts_once(run: Run) -> None:
    async def main() -> None:
        server = RemotingServer(echo)
        await server.start()
        with pytest.raises(ClientStateError):
            await server.start()
        await server.close()
        await server.close()

    run(main())


def test_close_ends_connections_and_what_waits_on_them(run: Run) -> None:
    async def main() -> None:
        closed: list[Connection] = []
        asked = asyncio.Event()
        server = RemotingServer(lambda *_: asked.set(), on_close=closed.append)
        await server.start()
        client = RemotingClient()
        connection = await client.connection(server.address)
        future = connection.request_future(request(), LONG_MS)
        await asked.wait()
        await server.close()
        assert len(closed) == 1
        assert not server.connections
        with pytest.raises(ConnectionLostError):
            await future
        with pytest.raises(ConnectError):
            await client.request(server.address, request(), LONG_MS)
        await client.close()

    run(main())


def test_connections_over_the_bound_are_closed_at_once(run: Run) -> None:
    async def main() -> None:
        opened: list[Connection] = []
        closed: list[Connection] = []
        server = RemotingServer(
            echo, connections_max=1, on_open=opened.append, on_close=closed.append
        )
        await server.start()
        first, second = RemotingClient(), RemotingClient()
        good = await first.connection(server.address)
        await good.request(request(), LONG_MS)
        refused = await second.connection(server.address)
        await refused.wait_closed()
        assert (await good.request(request(body=b"on"), LONG_MS)).body == b"on"
        assert len(opened) == 1
        assert not closed
        await first.close()
        await second.close()
        await server.close()

    run(main())


def test_peers_that_connect_at_once_are_accepted_few_at_a_time(run: Run) -> None:
    """Accepting all that wait kept those connected waiting for as long as others kept coming."""

    async def main() -> None:
        server = RemotingServer(echo)
        await server.start()
        host, port = server.address.rsplit(":", 1)
        peers = [socket.create_connection((host, int(port))) for _ in range(100)]
        most, loop = 0, asyncio.get_running_loop()
        while len(server.connections) < 100:
            before = len(server.connections)
            reached = loop.create_future()
            loop.call_soon(reached.set_result, None)
            await reached
            most = max(most, len(server.connections) - before)
        assert most <= 24  # eight in a turn of the loop, of which this saw up to three
        for peer in peers:
            peer.close()
        await server.close()

    run(main())


def test_both_ends_know_each_other(run: Run) -> None:
    async def main() -> None:
        def who(connection: Connection, command: RemotingCommand) -> None:
            connection.attributes["asked"] = True
            body = connection.peer.encode()
            connection.reply(command, RemotingCommand.response(0, None, None, body))

        server = RemotingServer(who)
        await server.start()
        client = RemotingClient()
        connection = await client.connection(server.address)
        answer = await connection.request(request(), LONG_MS)
        assert bytes(answer.body).decode() == format_address(*connection.local_host)
        assert connection.peer == server.address
        assert connection.peer_host == (server.host, server.port)
        (peer,) = server.connections
        assert peer.attributes == {"asked": True}
        await client.close()
        await server.close()

    run(main())
