"""Peers: what they hold, and the bytes of hostile ones."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

from rocketstream.protocol.command import RemotingCommand
from rocketstream.transport.connection import Connection


class Held:
    """A handler that keeps requests for the test to answer."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[tuple[Connection, RemotingCommand]] = asyncio.Queue()

    def __call__(self, connection: Connection, command: RemotingCommand) -> None:
        self.queue.put_nowait((connection, command))

    async def take(self) -> tuple[Connection, RemotingCommand]:
        return await self.queue.get()


HOSTILE = {
    "longer than the maximum": struct.pack(">i", 16_777_213),
    "negative length": struct.pack(">i", -1),
    "length without a header": struct.pack(">i", 3) + b"abc",
    "header longer than the frame": struct.pack(">iI", 10, 7) + b"abcdef",
    "unknown serialize type": struct.pack(">iI", 6, 0x02000002) + b"{}",
    "header that is not JSON": struct.pack(">iI", 9, 5) + b"\xff\xfe{{{",
    "a web browser": b"GET / HTTP/1.1\r\n\r\n",
    "TLS where none is offered": b"\x16\x03\x01\x02\x00\x01",
}


class Holder:
    """Something that holds memory."""

    is_waiting = False
    frame_due_s = float("inf")

    def __init__(self, size: int) -> None:
        self.bytes_held = size
        self.holds_since_s = float("inf")
        self.reasons: list[str] = []
        self.rooms = 0

    def room_given(self) -> None:
        self.rooms += 1

    def work(self, until: Callable[[], bool]) -> bool:
        return False

    def drop(self, reason: str) -> None:
        self.reasons.append(reason)
