"""A server in a thread for blocking clients, its answers, and the test-only certificate."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from rocketstream._util.loops import LoopThread
from rocketstream.protocol.command import RemotingCommand
from rocketstream.transport.connection import Connection
from rocketstream.transport.server import RemotingServer

CERT = Path(__file__).parent / "tls" / "cert.pem"
KEY = Path(__file__).parent / "tls" / "key.pem"

Run = Callable[[Coroutine[Any, Any, None]], None]
"""Runs a coroutine to its end."""


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
