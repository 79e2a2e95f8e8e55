"""Connections without a socket, on the loop of the test: what happens in which turn can be counted.

Law: a transport that keeps what is written; nothing of what it means.
"""

from __future__ import annotations

import asyncio
from typing import Any

from rocketstream.testing.clock import ManualClock
from rocketstream.transport.connection import Connection


class Pipe(asyncio.Transport):
    """A transport that keeps what is written, and says so when told to."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.kept = bytearray()
        self.reading = True
        self.is_aborted = False
        self.takes = True
        self.connection = connection
        connection.connection_made(self)

    def write(self, data: Any) -> None:
        self.kept += data
        if not self.takes:
            self.connection.pause_writing()

    def get_write_buffer_size(self) -> int:
        return 0 if self.takes else len(self.kept)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        return

    def abort(self) -> None:
        self.is_aborted = True


async def turn() -> None:
    """Let the loop do what was due before this call."""
    loop = asyncio.get_running_loop()
    reached = loop.create_future()
    loop.call_soon(reached.set_result, None)
    await reached


class TickingClock(ManualClock):
    """A clock that every look at its monotonic reading moves on.

    Whoever looks at it between two steps of its work finds that time has passed, as much for each
    step on a slow machine as on a fast one.
    """

    def __init__(self, tick_ms: float) -> None:
        super().__init__()
        self._tick_ms = tick_ms

    def monotonic_ms(self) -> float:
        self.advance(self._tick_ms)
        return super().monotonic_ms()
