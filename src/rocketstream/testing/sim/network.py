"""A network in memory: TCP connections between simulated hosts, and all their faults.

Law: bytes arrive in order, late, or never; nothing here looks into them. TLS is in ``tls``.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rocketstream.errors import NotSupportedError
from rocketstream.testing.sim import tls
from rocketstream.testing.sim.loop import Scheduler, SimLoop
from rocketstream.testing.sim.transport import SimTransport

WINDOW_BYTES = 64 * 1024
"""Bytes of one direction that may be sent and not yet read."""
_EPHEMERAL_FIRST = 32_768
_SYN_RETRIES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_LOOPBACK_S = 0.000_02
_LOOPBACK = ("127.0.0.1", "localhost")


@dataclass
class NetworkSettings:
    """How the network behaves when nothing is wrong; seconds.

    Attributes:
        latency_s: shortest and longest time one way.
        slow_share: share of segments that take up to ``slow_s`` longer.
        split_share: share of writes that arrive in two pieces.
        retransmit_s: shortest and longest time until bytes that were held up are sent again.
        give_up_s: a sender resets a connection whose bytes were not taken for this long.
    """

    latency_s: tuple[float, float] = (0.000_1, 0.001)
    slow_share: float = 0.01
    slow_s: float = 0.05
    split_share: float = 0.02
    retransmit_s: tuple[float, float] = (0.2, 1.0)
    give_up_s: float = 60.0


class Host:
    """One machine's network: its address, its ports, its open connections."""

    def __init__(self, network: Network, address: str) -> None:
        self.network = network
        self.address = address
        self.is_up: bool = True
        self.listeners: dict[int, SimServer] = {}
        self.endpoints: dict[int, Endpoint] = {}
        self._next_port = _EPHEMERAL_FIRST

    def free_port(self) -> int:
        """Return a port nobody uses."""
        while True:
            port = self._next_port
            self._next_port = port + 1 if port < 60_999 else _EPHEMERAL_FIRST
            if port not in self.listeners:
                return port

    def kill_process(self) -> None:
        """Close connections and ports, as the kernel does when a process ends."""
        self.listeners.clear()
        for endpoint in list(self.endpoints.values()):
            endpoint.kill()

    def lose_power(self) -> None:
        """Stop the machine: nothing is sent any more, not even the end of its connections."""
        self.listeners.clear()
        self.is_up = False
        for endpoint in list(self.endpoints.values()):
            endpoint.vanish()

    def boot(self) -> None:
        """Start the machine again: it refuses segments for its old connections."""
        self.is_up = True
        self.network.retry_to(self.address)


class Network:
    """All hosts, links and connections.

    Args:
        scheduler: time.
        chance: where latencies come from.
        settings: how it behaves when nothing is wrong.
        on_event: called with (kind, text) for everything that happens, for the trace.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        chance: random.Random,
        settings: NetworkSettings | None = None,
        on_event: Callable[[str], None] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.chance = chance
        self.settings: NetworkSettings = settings or NetworkSettings()
        self.hosts: dict[str, Host] = {}
        self.strike: Callable[[Endpoint], object] | None = None
        """Called with the connecting side of the next connection, before its first byte."""
        self._report = on_event
        self._blocked: set[tuple[str, str]] = set()
        self._slow: dict[tuple[str, str], float] = {}
        self._streams: dict[int, Stream] = {}
        self._numbers = 0

    def add_host(self, address: str) -> Host:
        """Return a new machine."""
        host = self.hosts[address] = Host(self, address)
        return host

    def report(self, text: str) -> None:
        """Report an event for the trace."""
        if self._report is not None:
            self._report(text)

    # --- faults -----------------------------------------------------------------------------------

    def block(self, source: str, target: str) -> None:
        """Block one direction; blocking both directions makes a partition."""
        self._blocked.add((source, target))

    def unblock(self, source: str, target: str) -> None:
        """Let bytes through again; those held up are sent again a moment later."""
        self._blocked.discard((source, target))
        # The other direction too: segments that got no answer there are sent again.
        self._retry(lambda stream: stream.way in ((source, target), (target, source)))

    def slow_down(self, source: str, target: str, extra_s: float) -> None:
        """Add up to ``extra_s`` of latency in one direction; 0 ends it."""
        if extra_s:
            self._slow[source, target] = extra_s
        else:
            self._slow.pop((source, target), None)

    def heal(self) -> None:
        """End every block and delay; no connection is cut any more that was to be."""
        self._blocked.clear()
        self._slow.clear()
        for stream in self._streams.values():
            stream.cut_after(None)
        self._retry(lambda stream: True)

    def connections(self) -> list[Stream]:
        """Return the streams that carry bytes now, in the order they were made; for faults."""
        return [s for s in self._streams.values() if not s.is_over and not s.target.is_gone]

    def is_blocked(self, way: tuple[str, str]) -> bool:
        """Whether nothing gets through, because the link is cut or the target is off."""
        return way in self._blocked or not self.hosts[way[1]].is_up

    def retry_to(self, address: str) -> None:
        """Send bytes again that were held up on the way to a host."""
        self._retry(lambda stream: stream.way[1] == address)

    def _retry(self, concerns: Callable[[Stream], bool]) -> None:
        low, high = self.settings.retransmit_s
        for stream in list(self._streams.values()):
            if stream.held and concerns(stream):
                self.scheduler.call_later(self.chance.uniform(low, high), stream.release)

    # --- ways -------------------------------------------------------------------------------------

    def latency_s(self, way: tuple[str, str]) -> float:
        """Return how long a segment takes now."""
        if way[0] == way[1]:
            return _LOOPBACK_S
        settings, chance = self.settings, self.chance
        low, high = settings.latency_s
        value = low + (high - low) * chance.random()
        if settings.slow_share and chance.random() < settings.slow_share:
            value += settings.slow_s * chance.random()
        extra = self._slow.get(way)
        return value if extra is None else value + extra * chance.random()

    def new_stream(self, source: Endpoint, target: Endpoint) -> Stream:
        """Return one direction of a connection."""
        self._numbers += 1
        stream = Stream(self, self._numbers, source, target)
        self._streams[self._numbers] = stream
        return stream

    def forget(self, stream: Stream) -> None:
        """Remove a stream that has ended."""
        self._streams.pop(stream.number, None)

    # --- calls of loops ---------------------------------------------------------------------------

    async def create_connection(
        self,
        loop: SimLoop,
        protocol_factory: Callable[[], asyncio.Protocol],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: Any = None,
        ssl_handshake_timeout: float | None = None,
        **_: Any,
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Connect from a process; see ``asyncio.loop.create_connection``."""
        if host is None or port is None:
            raise NotSupportedError("a simulated connection is made by host and port")
        here = self.hosts[loop.address]
        target = here.address if host in _LOOPBACK else host
        waiter: asyncio.Future[Endpoint] = loop.create_future()
        attempt = _Attempt(self, loop, here, target, port)
        attempt.begin(waiter)
        try:
            endpoint = await waiter
        except BaseException:
            attempt.cancel()
            raise
        protocol = protocol_factory()
        if ssl is not None:
            secret = await tls.shake_hands(
                loop, endpoint, protocol, ssl, host, ssl_handshake_timeout
            )
            return secret, protocol
        opened: asyncio.Future[None] = loop.create_future()
        transport = endpoint.open(protocol)
        loop.call_soon(_set_unless_done, opened)
        try:
            await opened
        except BaseException:
            transport.close()
            raise
        return transport, protocol

    async def create_server(
        self,
        loop: SimLoop,
        protocol_factory: Callable[[], asyncio.Protocol],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: Any = None,
        ssl_handshake_timeout: float | None = None,
        sock: Any = None,
        **_: Any,
    ) -> SimServer:
        """Listen in a process; see ``asyncio.loop.create_server``."""
        if sock is not None:
            raise NotSupportedError("a simulated server listens by host and port, not on a socket")
        here = self.hosts[loop.address]
        number = port or here.free_port()
        if number in here.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        server = SimServer(here, loop, protocol_factory, here.address, number)
        if ssl is not None:
            server.speak_tls(ssl, ssl_handshake_timeout)
        return server


def _set_unless_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class SimServer(asyncio.AbstractServer):
    """A listening port of a simulated process."""

    def __init__(
        self,
        host: Host,
        loop: SimLoop,
        factory: Callable[[], asyncio.Protocol],
        address: str,
        port: int,
    ) -> None:
        self._host = host
        self._loop = loop
        self._factory = factory
        self._name = address, port
        self.sockets: tuple[_Name, ...] = (_Name(self._name),)
        self._tls: tuple[Any, float | None] | None = None
        host.listeners[port] = self

    def speak_tls(self, context: Any, timeout_s: float | None) -> None:
        """Speak TLS with whoever connects; a handshake may take ``timeout_s``."""
        self._tls = tls.without_tickets(context), timeout_s

    def accept(self, endpoint: Endpoint) -> None:
        """Hand a connection the kernel has made to the process."""
        self._loop.call_soon(self._accepted, endpoint)

    def _accepted(self, endpoint: Endpoint) -> None:
        if not self.is_serving():
            endpoint.reset_peer()
        elif self._tls is None:
            endpoint.open(self._factory())
        else:
            tls.accept(self._loop, endpoint, self._factory(), *self._tls)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop it belongs to."""
        return self._loop

    def is_serving(self) -> bool:
        """Whether connections are accepted."""
        return self._host.listeners.get(self._name[1]) is self

    async def start_serving(self) -> None:
        """Nothing to do: it serves from the beginning."""

    def close(self) -> None:
        """Accept nothing more."""
        if self.is_serving():
            del self._host.listeners[self._name[1]]
        self.sockets = ()

    async def serve_forever(self) -> None:
        """Wait until it is cancelled."""
        await self._loop.create_future()

    async def wait_closed(self) -> None:
        """Do nothing: closing takes no time."""


class _Name:
    """Stands for a listening socket."""

    def __init__(self, name: tuple[str, int]) -> None:
        self._name = name

    def getsockname(self) -> tuple[str, int]:
        return self._name


class _Attempt:
    """One connection attempt: the handshake's three segments, each repeated until it arrives."""

    def __init__(self, network: Network, loop: SimLoop, here: Host, host: str, port: int) -> None:
        self._network = network
        self._loop = loop
        self._here = here
        self._target = host
        self._port = port
        self._waiter: asyncio.Future[Endpoint] | None = None
        self._mine: Endpoint | None = None

    def begin(self, waiter: asyncio.Future[Endpoint]) -> None:
        self._waiter = waiter
        if self._target not in self._network.hosts:
            self._later(self._fail, errno.EHOSTUNREACH)
            return
        self._send((self._here.address, self._target), self._arrive, 0)

    def cancel(self) -> None:
        self._waiter = None
        if self._mine is not None:
            self._mine.reset_peer()

    def _later(self, callback: Callable[..., None], *args: Any) -> None:
        way = self._here.address, self._target
        self._network.scheduler.call_later(self._network.latency_s(way), callback, *args)

    def _send(self, way: tuple[str, str], arrive: Callable[[], None], attempt: int) -> None:
        network = self._network
        if self._waiter is None:
            return
        if not network.is_blocked(way):
            network.scheduler.call_later(network.latency_s(way), arrive)
        elif attempt < len(_SYN_RETRIES_S):
            pause_s = _SYN_RETRIES_S[attempt]
            network.scheduler.call_later(pause_s, self._send, way, arrive, attempt + 1)
        else:
            self._fail(errno.ETIMEDOUT)

    def _arrive(self) -> None:
        """Handle the arrival of the first segment at the target."""
        if self._waiter is None:
            return
        there = self._network.hosts[self._target]
        back = self._target, self._here.address
        server = there.listeners.get(self._port)
        if server is None or not there.is_up:
            self._send(back, lambda: self._fail(errno.ECONNREFUSED), 0)
            return
        mine = Endpoint(self._here, self._loop, (self._here.address, self._here.free_port()))
        other = Endpoint(there, server._loop, (there.address, self._port))
        mine.join(other)
        self._mine = mine
        self._network.report(f"connect {mine.local} > {other.local}")
        strike, self._network.strike = self._network.strike, None
        if strike is not None:
            strike(mine)
        server.accept(other)
        self._send(back, self._done, 0)

    def _done(self) -> None:
        waiter, mine = self._waiter, self._mine
        if waiter is None or waiter.done() or mine is None:
            return
        if mine.is_gone:
            self._fail(errno.ECONNRESET)
            return
        waiter.set_result(mine)

    def _fail(self, number: int) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_exception(OSError(number, os.strerror(number)))


class Endpoint:
    """One side of a connection, as the kernel of its host knows it."""

    __slots__ = (
        "_loop", "_waking", "eof_in", "host", "incoming", "is_gone", "is_reading", "is_secret",
        "local", "out", "peer", "remote", "transport", "unread", "unread_bytes",
    )  # fmt: skip

    def __init__(self, host: Host, loop: SimLoop, local: tuple[str, int]) -> None:
        self.host: Host = host
        self._loop = loop
        self.local: tuple[str, int] = local
        self.remote: tuple[str, int] = ("", 0)
        self.peer: Endpoint | None = None
        self.transport: SimTransport | None = None
        self.unread: deque[bytes] = deque()
        self.unread_bytes: int = 0
        self.eof_in: bool = False
        self.is_gone: bool = False
        self.is_reading: bool = False
        self.is_secret: bool = False
        self._waking = False
        self.out: Stream | None = None
        self.incoming: Stream | None = None

    def join(self, other: Endpoint) -> None:
        """Connect this side with the other one."""
        network = self.host.network
        self.peer, other.peer = other, self
        self.remote, other.remote = other.local, self.local
        self.out = other.incoming = network.new_stream(self, other)
        self.incoming = other.out = network.new_stream(other, self)
        self.host.endpoints[self.out.number] = self
        other.host.endpoints[other.out.number] = other

    def open(self, protocol: asyncio.Protocol) -> SimTransport:
        """Hand the connection to the process."""
        self.transport = transport = SimTransport(self._loop, self, protocol)
        self._loop.call_soon(protocol.connection_made, transport)
        self._loop.call_soon(self.set_reading, True)
        return transport

    # --- reading ----------------------------------------------------------------------------------

    def set_reading(self, wanted: bool) -> None:
        """Set whether the process takes bytes that arrive."""
        self.is_reading = wanted
        if wanted:
            self.wake()

    def arrived(self, data: bytes) -> None:
        """Take bytes that arrived."""
        self.unread.append(data)
        self.unread_bytes += len(data)
        self.wake()

    def ended(self) -> None:
        """Note that the peer has sent everything."""
        self.eof_in = True
        self.wake()

    def wake(self) -> None:
        """Let the process read, if it wants to and there is something to read."""
        if self.is_reading and not self._waking and (self.unread or self.eof_in):
            self._waking = True
            self._loop.call_soon(self._read)

    def _read(self) -> None:
        self._waking = False
        transport = self.transport
        if transport is None or self.is_gone or not self.is_reading or transport.is_closing():
            return
        if self.unread:
            data = self.unread[0] if len(self.unread) == 1 else b"".join(self.unread)
            self.unread.clear()
            self.unread_bytes = 0
            if self.incoming is not None:
                self.incoming.taken(len(data))
            transport.protocol.data_received(data)
            self.wake()
        elif self.eof_in:
            self.is_reading = False
            if not transport.protocol.eof_received():
                transport.close()

    # --- ends -------------------------------------------------------------------------------------

    def broken(self, error: OSError) -> None:
        """End the connection: it was reset, or given up."""
        if self.is_gone:
            return
        self._leave()
        self.unread.clear()
        if self.transport is not None:
            self.transport.broken(error)

    def reset_peer(self) -> None:
        """End the connection at once and tell the other side."""
        if self.is_gone:
            return
        self._leave()
        if self.out is not None:
            self.out.send_reset()

    def finish(self) -> None:
        """Close the connection for the process: bytes already sent still arrive, then the end."""
        if self.is_gone:
            return
        if self.unread:
            self.reset_peer()
            return
        self._leave()
        if self.out is not None:
            self.out.send_end()

    def drop(self) -> None:
        """End the connection so that bytes the peer has not got are sent no more."""
        if self.is_gone:
            return
        self._leave()
        if self.out is not None:
            self.out.drop()

    def kill(self) -> None:
        """End the connection of a killed process whose machine goes on."""
        if self.out is not None:
            self.out.buffer.clear()
            self.out.buffered = 0
        self.finish()

    def vanish(self) -> None:
        """End the connection of a machine that lost power: the peer gets no sign of it."""
        self._leave()
        if self.out is not None:
            self.out.lose()

    def _leave(self) -> None:
        self.is_gone = True
        if self.out is not None:
            self.host.endpoints.pop(self.out.number, None)


class Stream:
    """One direction of a connection: bytes written, bytes on their way, bytes held up."""

    __slots__ = (
        "_cut_after", "_ended", "_is_lost", "_is_silent", "_last_at", "_network", "buffer",
        "buffered", "held", "in_flight", "is_over", "number", "source", "target", "way",
    )  # fmt: skip

    def __init__(self, network: Network, number: int, source: Endpoint, target: Endpoint) -> None:
        self._network = network
        self.number: int = number
        self.source: Endpoint = source
        self.target: Endpoint = target
        self.way: tuple[str, str] = source.host.address, target.host.address
        self.buffer: deque[bytes] = deque()
        self.buffered: int = 0
        self.in_flight: int = 0
        self.held: deque[tuple[str, bytes]] = deque()
        self.is_over: bool = False
        self._last_at = 0.0
        self._ended = False
        self._is_lost = False
        self._cut_after: int | None = None
        self._is_silent = False

    def write(self, data: bytes) -> None:
        """Queue bytes and send as many as the window allows."""
        self.buffer.append(data)
        self.buffered += len(data)
        self._pump()

    def _pump(self) -> None:
        while self.buffer and self.in_flight < WINDOW_BYTES:
            data = self.buffer.popleft()
            room = WINDOW_BYTES - self.in_flight
            if len(data) > room:
                self.buffer.appendleft(data[room:])
                data = data[:room]
            self.buffered -= len(data)
            self.in_flight += len(data)
            self._send(data)
        if self._ended and not self.buffer:
            self._ended = False
            self._schedule("end", b"")

    def _send(self, data: bytes) -> None:
        network = self._network
        share = network.settings.split_share
        if share and len(data) > 1 and network.chance.random() < share:
            cut = network.chance.randrange(1, len(data))
            self._schedule("data", data[:cut])
            data = data[cut:]
        self._schedule("data", data)

    def _schedule(self, kind: str, data: bytes) -> None:
        scheduler = self._network.scheduler
        at = max(self._last_at, scheduler.now + self._network.latency_s(self.way))
        self._last_at = at
        # The absolute time: a difference from now is rounded, and could fall just before the last
        # one.
        scheduler.call_at(at, self._arrive, kind, data)

    def _arrive(self, kind: str, data: bytes) -> None:
        if self.is_over:
            return
        if self._is_silent:
            if kind == "data":
                self.taken(len(data))
            else:
                self._finish()
            return
        if self.held or self._gets_stuck():
            if kind == "reset":
                return  # the first copy
            if self._is_lost:
                self._finish()  # nobody is left to send it again: later segments wait for ever
                return
            if not self.held:
                give_up_s = self._network.settings.give_up_s
                self._network.scheduler.call_later(give_up_s, self._give_up, data)
            self.held.append((kind, data))
            return
        self._deliver(kind, data)

    def release(self) -> None:
        """Deliver bytes that were held up, unless the way is still blocked."""
        while self.held and not self.is_over and not self._gets_stuck():
            self._deliver(*self.held.popleft())

    def _gets_stuck(self) -> bool:
        """Return whether a segment is lost on its way, or the refusal that answers it is lost."""
        network = self._network
        if network.is_blocked(self.way):
            return True
        return self.target.is_gone and network.is_blocked((self.way[1], self.way[0]))

    def stall(self, seconds: float) -> None:
        """Lose the next segment: it and all later ones arrive when it is sent again."""
        self.held.append(("data", b""))
        self._network.scheduler.call_later(seconds, self.release)

    def silence(self) -> None:
        """Deliver nothing any more, without an error, as a middlebox does that forgot a connection.

        Sent bytes are accepted, so that the sender's kernel does not find out either.
        """
        self._is_silent = True
        while self.held:
            self._arrive(*self.held.popleft())

    def cut_after(self, size: int | None) -> None:
        """Let ``size`` more bytes through, then reset the connection, even in mid-frame.

        None lets all through.
        """
        self._cut_after = size

    def _deliver(self, kind: str, data: bytes) -> None:
        target, network = self.target, self._network
        if kind == "reset":
            self._finish()
            network.report(f"reset {self.source.local} > {target.local}")
            target.broken(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
            return
        if target.is_gone:
            if data:
                self._refuse()
            return
        if kind == "end":
            self._finish()
            network.report(f"end {self.source.local} > {target.local}")
            target.ended()
            return
        if self._cut_after is not None:
            data = self._cut(data)
        if data:
            # Of TLS the bytes are others each time, not their number.
            is_secret = target.is_secret or self.source.is_secret
            what = "secret" if is_secret else f"{zlib.crc32(data):08x}"
            network.report(f"data {self.source.local} > {target.local} {len(data)} {what}")
            target.arrived(data)

    def _cut(self, data: bytes) -> bytes:
        assert self._cut_after is not None
        if len(data) < self._cut_after:
            self._cut_after -= len(data)
            return data
        data, self._cut_after = data[: self._cut_after], None
        # At once: bytes held up behind it, or on their way, must not close the gap.
        self._finish()
        self._network.scheduler.call_later(_LOOPBACK_S, self.break_both)
        return data

    def break_both(self) -> None:
        """Reset the connection on both sides, as a middlebox does."""
        self._network.report(f"cut {self.source.local} > {self.target.local}")
        error = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        self._finish()
        for side in (self.target, self.source):
            if side.out is not None:
                side.out._finish()
            side.broken(error)

    def _refuse(self) -> None:
        """Answer bytes for a connection the target does not have with a reset."""
        self._finish()
        if not self.source.is_gone:
            network, back = self._network, (self.way[1], self.way[0])
            network.report(f"refused {self.source.local} > {self.target.local}")
            error = ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
            network.scheduler.call_later(network.latency_s(back), self.source.broken, error)

    def _give_up(self, first: bytes) -> None:
        if self.held and self.held[0][1] is first and not self.is_over:
            self._network.report(f"given up {self.source.local} > {self.target.local}")
            self.is_over = True
            self._network.forget(self)
            self.source.broken(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))

    def taken(self, size: int) -> None:
        """Move the window: the receiving process has read ``size`` bytes."""
        self.in_flight -= size
        if not self.buffer or self.is_over:
            return
        back = self.way[1], self.way[0]
        if self._network.is_blocked(back):
            pause_s = self._network.settings.retransmit_s[1]
            self._network.scheduler.call_later(pause_s, self.taken, 0)
            return
        self._network.scheduler.call_later(self._network.latency_s(back), self._moved)

    def _moved(self) -> None:
        if self.is_over:
            return
        self._pump()
        transport = self.source.transport
        if transport is not None:
            transport.drained()

    def send_end(self) -> None:
        """Send the end of the stream after the buffered bytes."""
        self._ended = True
        self._pump()

    def send_reset(self) -> None:
        """Send a reset instead of the buffered bytes."""
        self.buffer.clear()
        self.buffered = 0
        self._schedule("reset", b"")

    def drop(self) -> None:
        """Send a reset; nothing that was lost on its way is sent again, the reset neither."""
        if self.held:
            self._finish()
        else:
            self.send_reset()

    def lose(self) -> None:
        """Lose the bytes not yet sent, as their machine is gone; those on their way arrive."""
        self.buffer.clear()
        self.buffered = 0
        self._is_lost = True
        if self.held:
            self._finish()  # bytes behind a lost segment, which nobody sends again

    def _finish(self) -> None:
        self.is_over = True
        self.held.clear()
        self._network.forget(self)
