"""Event loops of both kinds, a server in a thread, and the test-only certificate."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketstream._util.loops import LoopThread, new_event_loop
from rocketstream.protocol.command import RemotingCommand
from rocketstream.transport.connection import Connection
from rocketstream.transport.server import RemotingServer
from rocketstream.transport.tls import client_context, server_context

CERT = Path(__file__).parent / "tls" / "cert.pem"
KEY = Path(__file__).parent / "tls" / "key.pem"
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": new_event_loop}

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=list(LOOPS))
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Run a coroutine on a fresh loop of each kind; 30 s at most."""
    with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
        yield lambda coro: runner.run(asyncio.wait_for(coro, 30))


@pytest.fixture(scope="session")
def server_tls() -> ssl.SSLContext:
    return server_context(str(CERT), str(KEY))


@pytest.fixture(scope="session")
def client_tls() -> ssl.SSLContext:
    return client_context(ca_file=str(CERT), check_hostname=True)


def request(code: int = 1, body: bytes = b"", *, oneway: bool = False) -> RemotingCommand:
    """Return a request with an ext map, as real ones have."""
    return RemotingCommand.request(code, None, body, oneway=oneway)


def echo(connection: Connection, command: RemotingCommand) -> None:
    """Answer code 0 with the body received."""
    connection.reply(command, RemotingCommand.response(0, None, None, command.body))


class ThreadedServer:
    """A server on a loop of its own, for blocking clients."""

    def __init__(self, **settings: Any) -> None:
        handler = settings.pop("on_request", echo)
        self.loop = LoopThread("rocketstream-test-server")
        self.server = RemotingServer(handler, **settings)
        try:
            self.loop.run(self.server.start())
        except BaseException:
            self.loop.close()
            raise
        self.address = self.server.address

    def __enter__(self) -> ThreadedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if not self.loop.is_closed:
            self.loop.run(self.server.close())
        self.loop.close()
