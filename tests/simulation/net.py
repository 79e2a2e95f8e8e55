"""Two machines in a simulated network, and a protocol that notes what it is told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

from rocketstream.testing.sim.loop import Scheduler, SimLoop
from rocketstream.testing.sim.network import Network, NetworkSettings

HERE, THERE = "10.0.0.1", "10.0.0.2"
PORT = 9


class Recorder(asyncio.Protocol):
    """Notes what a protocol is told."""

    def __init__(self, *, echo: bool = False) -> None:
        self.data = b""
        self.pieces = 0
        self.lost: list[Exception | None] = []
        self.paused = 0
        self.resumed = 0
        self.transport: Any = None
        self._echo = echo

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.pieces += 1
        if self._echo:
            self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)

    def pause_writing(self) -> None:
        self.paused += 1

    def resume_writing(self) -> None:
        self.resumed += 1


class Net:
    """Two machines with a process each; one listens."""

    def __init__(self, **settings: Any) -> None:
        self.scheduler = Scheduler()
        settings.setdefault("slow_share", 0.0)
        settings.setdefault("split_share", 0.0)
        self.network = Network(self.scheduler, random.Random(1), NetworkSettings(**settings))
        self.here, self.there = self._process(HERE), self._process(THERE)
        self.servers: list[Recorder] = []
        self.client = Recorder()

    def _process(self, address: str) -> SimLoop:
        self.network.add_host(address)
        loop = SimLoop(self.scheduler, address, address)
        loop.network = self.network
        return loop

    def run(self, seconds: float) -> None:
        self.scheduler.run(self.scheduler.now + seconds)

    def do(self, coro: Coroutine[Any, Any, Any], seconds: float = 1.0) -> asyncio.Task[Any]:
        task = self.here.create_task(coro)
        self.run(seconds)
        return task

    def listen(self, *, echo: bool = False) -> None:
        def factory() -> Recorder:
            self.servers.append(Recorder(echo=echo))
            return self.servers[-1]

        self.there.create_task(self.there.create_server(factory, THERE, PORT))
        self.run(0.1)

    def connect(self) -> None:
        task = self.do(self.here.create_connection(lambda: self.client, THERE, PORT))
        task.result()

    def connected(self, *, echo: bool = False) -> tuple[Recorder, Recorder]:
        self.listen(echo=echo)
        self.connect()
        return self.client, self.servers[0]
