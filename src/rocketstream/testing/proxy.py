"""A TCP proxy that breaks the network between a client and a server on demand.

Law: the proxy never looks into bytes; every fault is requested by the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self, cast, get_args

from rocketstream._util.loops import LoopThread
from rocketstream.checks import check_range
from rocketstream.errors import ConfigurationError
from rocketstream.protocol.addresses import format_address, parse_address

Direction = Literal["to_target", "to_client"]
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_TIMER_SLACK_S = 0.001


class FaultProxy:
    """Listens on a free port and forwards to ``target`` until a fault is requested.

    Runs a thread of its own; thread safe. When the call that requests a fault returns, the fault is
    in effect.
    """

    def __init__(self, target: str, *, host: str = "127.0.0.1") -> None:
        """Listen and forward.

        Args:
            target: ``host:port`` to forward to.
            host: address to listen on.
        """
        self._target = parse_address(target)
        self._host = host
        self._port = 0
        self._server: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()
        self._paused = False
        self._delay_s = 0.0
        self._cut_after: dict[Direction, int] = {}
        self._connections_total = 0
        self._thread = LoopThread("rocketstream-fault-proxy")
        try:
            self._thread.run(self._listen())
        except BaseException:
            self._thread.close()
            raise

    def __repr__(self) -> str:
        return f"FaultProxy({self.address}, target={format_address(*self._target)!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        """``host:port`` clients should use in place of the target's."""
        return format_address(self._host, self._port)

    @property
    def port(self) -> int:
        """Port listened on; stays the same while connections are refused."""
        return self._port

    @property
    def connections_total(self) -> int:
        """Connections accepted so far."""
        return self._connections_total

    @property
    def connections_open(self) -> int:
        """Connections forwarded now."""
        return len(self._pairs)

    def set_target(self, target: str) -> None:
        """Forward new connections to another address, for example of a restarted server."""
        self._target = parse_address(target)

    def cut(self) -> None:
        """Reset every open connection; new ones are accepted."""
        self._do(self._cut)

    def cut_after(self, bytes_forwarded: int, direction: Direction = "to_client") -> None:
        """Forward ``bytes_forwarded`` more bytes in ``direction``, then reset one connection.

        Bytes of all connections count. The connection whose byte reaches the number is reset.

        Raises:
            ConfigurationError: a number or direction that is not accepted.
        """
        check_range("bytes_forwarded", bytes_forwarded, 0)
        if direction not in get_args(Direction):
            raise ConfigurationError(
                f"direction must be {' or '.join(map(repr, get_args(Direction)))}, not "
                f"{direction!r}"
            )
        self._do(lambda: self._cut_after.__setitem__(direction, bytes_forwarded))

    def pause(self) -> None:
        """Go deaf: connections stay open and new ones are accepted, but no byte is forwarded."""
        self._do(lambda: self._set_paused(True))

    def resume(self) -> None:
        """Forward again, beginning with the bytes held back."""
        self._do(lambda: self._set_paused(False))

    def delay(self, ms: float) -> None:
        """Forward every byte read from now on ``ms`` later; 0 ends the delay.

        Raises:
            ConfigurationError: a number that is not accepted.
        """
        check_range("ms", ms, 0, hint=float)
        self._delay_s = ms / 1000

    def refuse(self) -> None:
        """Stop listening, so that new connections are refused; open ones continue."""
        self._thread.run(self._unlisten())

    def accept(self) -> None:
        """Listen again on the same port after ``refuse``."""
        self._thread.run(self._listen())

    def close(self) -> None:
        """Reset the open connections and end the thread. May be called twice."""
        if not self._thread.is_closed:
            self._thread.run(self._shut_down())
        self._thread.close()

    # --- on the proxy's thread -----------------------------------------------------------------

    def _do(self, action: Callable[[], None]) -> None:
        async def act() -> None:
            action()

        self._thread.run(act())

    async def _listen(self) -> None:
        if self._server is not None:
            return
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accepted, self._host, self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _unlisten(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    async def _shut_down(self) -> None:
        await self._unlisten()
        self._cut()
        while self._pairs:
            await next(iter(self._pairs)).ended

    def _accepted(self) -> _Side:
        self._connections_total += 1
        pair = _Pair(self)
        self._pairs.add(pair)
        return pair.client

    def _cut(self) -> None:
        for pair in list(self._pairs):
            pair.reset()

    def _set_paused(self, paused: bool) -> None:
        self._paused = paused
        for pair in self._pairs:
            pair.client.adjust()
            pair.target.adjust()


class _Pair:
    """The two sockets of one forwarded connection."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self.loop.create_future()
        self.client = _Side(self, "to_target")
        self.target = _Side(self, "to_client")
        self.client.other, self.target.other = self.target, self.client
        self.is_cut = False
        self._connect: asyncio.Task[None] | None = None

    def connect(self) -> None:
        self._connect = self.loop.create_task(self._connect_target())

    async def _connect_target(self) -> None:
        try:
            await self.loop.create_connection(lambda: self.target, *self.proxy._target)
        except OSError:
            self.reset()
            self.target.lost = True
            self.check_ended()

    def reset(self) -> None:
        self.is_cut = True
        self.client.reset()
        self.target.reset()

    def check_ended(self) -> None:
        if self.client.lost and (self.target.lost or self.target.transport is None):
            if self._connect is not None:
                self._connect.cancel()
            self.proxy._pairs.discard(self)
            if not self.ended.done():
                self.ended.set_result(None)


class _Side(asyncio.Protocol):
    """One socket; the bytes it reads go to the other side, in order, perhaps delayed."""

    other: _Side

    def __init__(self, pair: _Pair, direction: Direction) -> None:
        self.pair = pair
        self.direction: Direction = direction
        self.transport: asyncio.Transport | None = None
        self.lost = False
        self._reading = True
        self._held: deque[tuple[float, bytes]] = deque()
        self._other_full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self.pair.is_cut:  # before the loop had made this side's transport
            self.reset()
            return
        if self is self.pair.client:
            self.pair.connect()
        self.adjust()
        self.other.adjust()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._drain(everything=True)
        if self.other.transport is not None and not self.other.lost:
            self.other.transport.close()
        self.pair.check_ended()

    def pause_writing(self) -> None:
        self.other._other_full = True
        self.other.adjust()

    def resume_writing(self) -> None:
        self.other._other_full = False
        self.other.adjust()

    def data_received(self, data: bytes) -> None:
        delay_s = self.pair.proxy._delay_s
        due = self.pair.loop.time() + delay_s if delay_s else 0.0
        self._held.append((due, data))
        if due:
            self.pair.loop.call_at(due, self._drain)
        self._drain()

    def adjust(self) -> None:
        """Read only while bytes can be forwarded: the sender notices a deaf peer as with TCP.

        A loop may still deliver bytes once more after reading was paused; they are held back.
        """
        if self.transport is None or self.transport.is_closing():
            return
        wanted = self._open_way()
        if wanted != self._reading:
            self._reading = wanted
            if wanted:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()
        self._drain()

    def _open_way(self) -> bool:
        blocked = self.pair.proxy._paused or self._other_full
        return not blocked and self.other.transport is not None

    def _drain(self, everything: bool = False) -> None:
        """Forward the held bytes that are due; ``everything`` ignores due times."""
        horizon = self.pair.loop.time() + _TIMER_SLACK_S
        while self._held and self._open_way() and (everything or self._held[0][0] <= horizon):
            self._forward(self._held.popleft()[1])

    def _forward(self, data: bytes) -> None:
        other = self.other.transport
        if other is None or self.other.lost:
            return
        left = self.pair.proxy._cut_after.get(self.direction)
        if left is None:
            other.write(data)
            return
        other.write(data[:left])
        if len(data) < left:
            self.pair.proxy._cut_after[self.direction] = left - len(data)
            return
        del self.pair.proxy._cut_after[self.direction]
        other.close()  # bytes already written still arrive, then the stream ends
        self.reset()

    def reset(self) -> None:
        if self.transport is None or self.lost:
            return
        sock = self.transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.transport.abort()
