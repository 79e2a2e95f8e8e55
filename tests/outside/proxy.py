"""The network between clients and servers: a process that does to connections as it is told.

``python -m tests.outside.proxy LISTEN=TARGET …`` says ``ready`` and reads commands, one a line:

* ``pass``: connections are made, and bytes go through. What was held up before goes on.
* ``cut``: every connection ends at once.
* ``refuse``: as ``cut``, and new ones end at once too, until ``pass``.
* ``hold``: nothing arrives, nothing is lost, until ``pass``.
* ``swallow``: connections that are there swallow for ever what they are given, and stay open.
* ``slow SECONDS``: each piece of data takes that long, until ``pass``.

Where a cheat is named by ``CHEAT=module:function``, it sees each frame and may change or answer it.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

Cheat = Callable[[bytes, bool], tuple[bytes, bytes]]
"""Takes a frame and whether a client sent it; returns what goes on, and what goes back."""

PIECE = 64 * 1024


class Proxy:
    """Every connection, and what is done to them."""

    def __init__(self, cheat: Cheat | None = None) -> None:
        self._cheat = cheat
        self._may_pass = asyncio.Event()
        self._may_pass.set()
        self._is_refusing = False
        self._delay_s = 0.0
        self._connections: set[_Connection] = set()

    async def listen(self, host: str, port: int, target: tuple[str, int]) -> asyncio.Server:
        """Take connections for a target."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self._is_refusing:
                writer.transport.abort()
                return
            await self._may_pass.wait()
            try:
                there = await asyncio.open_connection(*target, limit=PIECE)
            except OSError:
                writer.transport.abort()
                return
            await self._join((reader, writer), there)

        return await asyncio.start_server(connected, host, port, limit=PIECE)

    async def _join(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        connection = _Connection((client[1], server[1]))
        self._connections.add(connection)
        ways = [
            asyncio.create_task(self._carry(connection, client[0], server[1], client[1], True)),
            asyncio.create_task(self._carry(connection, server[0], client[1], server[1], False)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        connection.abort()
        await asyncio.wait(ways)
        self._connections.discard(connection)

    async def _carry(
        self,
        connection: _Connection,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        back: asyncio.StreamWriter,
        is_of_client: bool,
    ) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                data = await self._next(source)
                if not data:
                    return
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                await self._may_pass.wait()
                if connection.swallows:
                    continue
                if self._cheat is not None:
                    data, answer = self._cheat(data, is_of_client)
                    back.write(answer)
                sink.write(data)
                await sink.drain()

    async def _next(self, source: asyncio.StreamReader) -> bytes:
        if self._cheat is None:
            return await source.read(PIECE)
        size = await source.readexactly(4)
        return size + await source.readexactly(int.from_bytes(size, "big"))

    def does(self, command: str) -> None:
        """Do as a line says."""
        word, _, rest = command.strip().partition(" ")
        if word == "hold":
            self._may_pass.clear()
        elif word == "slow":
            self._delay_s = float(rest)
        elif word == "swallow":
            for connection in self._connections:
                connection.swallows = True
        elif word in ("cut", "refuse"):
            self._is_refusing = word == "refuse"
            for connection in list(self._connections):
                connection.abort()
        elif word == "pass":
            self._is_refusing, self._delay_s = False, 0.0
            self._may_pass.set()


class _Connection:
    """The two ends of a way through the proxy."""

    def __init__(self, writers: Sequence[asyncio.StreamWriter]) -> None:
        self._writers = writers
        self.swallows = False

    def abort(self) -> None:
        """End both."""
        for writer in self._writers:
            writer.transport.abort()


async def main(ways: Sequence[str], cheat: Cheat | None) -> None:
    """Listen, and follow commands until their end."""
    proxy = Proxy(cheat)
    servers = []
    for way in ways:
        here, _, there = way.partition("=")
        host, _, port = here.rpartition(":")
        target, _, target_port = there.rpartition(":")
        servers.append(await proxy.listen(host, int(port), (target, int(target_port))))
    print("ready", flush=True)
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(commands), sys.stdin
    )
    while line := await commands.readline():
        proxy.does(line.decode())
        print("done", flush=True)


def _named(name: str) -> Cheat:
    module, _, function = name.partition(":")
    found: Cheat = getattr(importlib.import_module(module), function)
    return found


if __name__ == "__main__":
    cheats = [_named(each[6:]) for each in sys.argv[1:] if each.startswith("CHEAT=")]
    asyncio.run(
        main(
            [each for each in sys.argv[1:] if not each.startswith("CHEAT=")],
            cheats[0] if cheats else None,
        )
    )
