"""An asyncio transport over an endpoint of the simulated network.

Law: keeps asyncio's promises to protocols, no more; the network decides what happens to bytes.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from typing import Any, Protocol

from rocketstream.testing.sim.loop import SimLoop

_HIGH_WATER_BYTES = 64 * 1024


class Outgoing(Protocol):
    """The direction of a connection a transport writes to.

    Attributes:
        buffer: bytes that wait here, because the window is full.
        buffered: how many bytes those are.
    """

    buffer: deque[bytes]
    buffered: int

    def write(self, data: bytes) -> None:
        """Send bytes, or keep them until the window opens."""
        ...


class NetworkSide(Protocol):
    """The side of a connection a transport stands on; the network's ``Endpoint`` is one."""

    local: tuple[str, int]
    remote: tuple[str, int]
    is_gone: bool
    is_reading: bool

    @property
    def out(self) -> Outgoing | None:
        """Where bytes are written; None before the connection stands."""
        ...

    def set_reading(self, wanted: bool) -> None:
        """Set whether the process takes bytes that arrive."""
        ...

    def finish(self) -> None:
        """Close the connection for the process."""
        ...

    def drop(self) -> None:
        """Reset the connection; bytes the peer has not got are sent no more."""
        ...


class _Socket:
    """The options of a connection's socket."""

    def __init__(self) -> None:
        self.drops = False
        """Whether the end of the connection drops what the peer has not got."""

    def setsockopt(self, level: int, option: int, value: object) -> None:
        """Set an option."""
        if (level, option) == (socket.SOL_SOCKET, socket.SO_LINGER):
            self.drops = True


class SimTransport(asyncio.Transport):
    """The transport a protocol of a simulated process writes to."""

    def __init__(self, loop: SimLoop, endpoint: NetworkSide, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._loop = loop
        self._endpoint = endpoint
        self.protocol: asyncio.Protocol = protocol
        self._closing = False
        self._lost = False
        self._paused = False
        self._high = _HIGH_WATER_BYTES
        self._low = _HIGH_WATER_BYTES // 4
        self._socket = _Socket()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return ``peername``, ``sockname``, or a ``socket`` that takes options."""
        if name == "socket":
            return self._socket
        if name == "peername":
            return self._endpoint.remote
        if name == "sockname":
            return self._endpoint.local
        return default

    # --- reading ----------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        """Leave arriving bytes in the kernel; the peer notices once the window is full."""
        self._endpoint.set_reading(False)

    def resume_reading(self) -> None:
        """Read again."""
        if not self._closing:
            self._endpoint.set_reading(True)

    def is_reading(self) -> bool:
        """Whether the protocol takes bytes now."""
        return self._endpoint.is_reading and not self._closing

    # --- writing ----------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes; those beyond the window wait here."""
        out = self._endpoint.out
        if not data or self._closing or self._endpoint.is_gone or out is None:
            return
        out.write(bytes(data))
        if out.buffered > self._high and not self._paused:
            self._paused = True
            self.protocol.pause_writing()

    def drained(self) -> None:
        """Note that the network took some of the waiting bytes."""
        buffered = self.get_write_buffer_size()
        if self._paused and buffered <= self._low:
            self._paused = False
            self._loop.call_soon(self.protocol.resume_writing)
        if self._closing and not buffered:
            self._finish_close()

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait here."""
        out = self._endpoint.out
        return 0 if out is None else out.buffered

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return low and high water."""
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set when ``pause_writing`` and ``resume_writing`` are called."""
        if high is None:
            high = _HIGH_WATER_BYTES if low is None else 4 * low
        self._high = high
        self._low = high // 4 if low is None else low

    def can_write_eof(self) -> bool:
        """Return False: half-closed connections are not simulated."""
        return False

    # --- ends -------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        """Whether it is closed or being closed."""
        return self._closing

    def close(self) -> None:
        """Send the waiting bytes, then end."""
        if self._closing:
            return
        self._closing = True
        self._endpoint.set_reading(False)
        if not self.get_write_buffer_size():
            self._finish_close()

    def _finish_close(self) -> None:
        self._endpoint.finish()
        self._tell_lost(None)

    def _force_close(self, error: Exception | None) -> None:
        """End at once because of an error (called by asyncio's TLS)."""
        if not self._lost:
            self._lost = True
            self._loop.call_soon(self.protocol.connection_lost, error)
        self.abort()

    def abort(self) -> None:
        """End at once; waiting bytes are lost."""
        self._closing = True
        self._endpoint.set_reading(False)
        out = self._endpoint.out
        if out is not None:
            out.buffer.clear()
            out.buffered = 0
        if self._socket.drops:
            self._endpoint.drop()
            self._tell_lost(None)
        else:
            self._finish_close()

    def broken(self, error: OSError) -> None:
        """End because the network ended the connection."""
        self._closing = True
        self._tell_lost(error)

    def _tell_lost(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._loop.call_soon(self.protocol.connection_lost, error)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Change the protocol that is called."""
        assert isinstance(protocol, asyncio.Protocol)
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol that is called."""
        return self.protocol
