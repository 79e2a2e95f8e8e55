"""Plain blocking sockets for callers without an event loop: one connection, and a pool of them.

Law: no threads of its own; frames, opaque ids, deadlines and bounds, nothing of what a command
means.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from rocketstream import limits
from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream.errors import (
    ClientStateError,
    ConnectError,
    ConnectionLostError,
    ForkedClientError,
    FrameTooLargeError,
    MalformedFrameError,
    RequestTimeoutError,
    RocketMQError,
    TooManyRequestsError,
)
from rocketstream.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, ResponseCode
from rocketstream.protocol.command import RemotingCommand
from rocketstream.protocol.framing import decode_frame, encode_frame
from rocketstream.transport.addresses import parse_address
from rocketstream.transport.connection import OPAQUE_MASK, BeforeRequest

_PREFIX = struct.Struct(">i")
_PREFIX_BYTES = limits.FRAME_PREFIX_BYTES
_FRAME_LENGTH_MIN = 4
_FRAME_LENGTH_MAX = limits.FRAME_BYTES_MAX - _PREFIX_BYTES
_BUFFER_BYTES = 256 * 1024


class BlockingConnection:
    """One socket used by one thread at a time; requests may be pipelined.

    After a timeout, a protocol error or a lost connection it is closed and stays so, as upstream's
    synchronous client does. Not thread safe. A context manager.
    """

    def __init__(
        self,
        address: str,
        *,
        connect_timeout_ms: float = limits.CONNECT_TIMEOUT_MS,
        ssl_context: ssl.SSLContext | None = None,
        before_request: BeforeRequest | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Connect; blocks for ``connect_timeout_ms`` at most.

        Args:
            address: ``host:port``.
            connect_timeout_ms: for TCP and TLS each; also bounds a ``submit`` that no ``receive``
                or ``request`` came before.
            ssl_context: speak TLS with it.
            before_request: called with address and command before each request is encoded, which
                is where signing belongs.
            clock: measures deadlines.

        Raises:
            ConnectError: no connection; the text names address and reason.
            ConfigurationError: ``address`` is not ``host:port``.
        """
        self.address = address
        self._pid = os.getpid()
        self._clock = clock
        self._before_request = before_request
        self._timeout_s = connect_timeout_ms / 1000
        self._sock: socket.socket | None = _connect(address, self._timeout_s, ssl_context)
        self._close_reason = ""
        self._opaque = 0
        self._outstanding: set[int] = set()
        self._answered: deque[RemotingCommand] = deque()
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0

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
    def is_closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._sock is None

    @property
    def requests_in_flight(self) -> int:
        """Submitted requests whose answers ``receive`` has not returned yet."""
        return len(self._outstanding) + len(self._answered)

    def request(self, command: RemotingCommand, timeout_ms: float) -> RemotingCommand:
        """Send ``command`` and return its answer, whatever its code.

        Answers to submitted requests that come in between are kept for ``receive``.

        Raises:
            RequestTimeoutError: no answer within ``timeout_ms``; it may have been executed.
            ConnectionLostError: the connection ended meanwhile; it may have been executed.
            ConnectError: closed before; nothing was sent.
            RemoteProtocolError: the peer sent something else than frames.
            ForkedClientError: the connection was made before a fork.
        """
        self._set_timeout(timeout_ms / 1000)
        opaque = self.submit(command)
        deadline = self._clock.monotonic_ms() + timeout_ms
        while True:
            answer = self._next_answer(deadline)
            if answer.opaque == opaque:
                self._outstanding.discard(opaque)
                return answer
            if answer.opaque in self._outstanding:
                self._outstanding.discard(answer.opaque)
                self._answered.append(answer)

    def submit(self, command: RemotingCommand) -> int:
        """Send ``command`` without waiting and return its opaque id; ``receive`` gets the answer.

        Blocks while the socket takes no more bytes, up to the last timeout used.

        Raises:
            ConnectError: closed before, or it could not be written whole: it is not executed.
            ForkedClientError: the connection was made before a fork.
        """
        opaque = (self._opaque + 1) & OPAQUE_MASK
        self._opaque = command.opaque = opaque
        self._send(command)
        self._outstanding.add(opaque)
        return opaque

    def receive(self, timeout_ms: float) -> RemotingCommand:
        """Return the next answer to a submitted request, in the order they arrive.

        Raises:
            RequestTimeoutError: none came within ``timeout_ms``; the connection is closed.
            ConnectionLostError: the connection ended.
            ClientStateError: nothing is in flight, so none can come.
            RemoteProtocolError: the peer sent something else than frames.
            ForkedClientError: the connection was made before a fork.
        """
        self._check_process()
        if self._answered:
            return self._answered.popleft()
        if not self._outstanding:
            raise ClientStateError("receive() without a submitted request: nothing is in flight")
        self._set_timeout(timeout_ms / 1000)
        deadline = self._clock.monotonic_ms() + timeout_ms
        while True:
            answer = self._next_answer(deadline)
            if answer.opaque in self._outstanding:
                self._outstanding.discard(answer.opaque)
                return answer

    def forget(self, opaque: int) -> None:
        """Give a submitted request up: its answer, should it come, is dropped."""
        self._outstanding.discard(opaque)
        self._answered = deque(each for each in self._answered if each.opaque != opaque)

    def oneway(self, command: RemotingCommand) -> None:
        """Send ``command``, marked one-way.

        Raises:
            ConnectError: closed before, or it could not be written whole: it is not executed.
            ForkedClientError: the connection was made before a fork.
        """
        command.flag |= FLAG_ONEWAY
        self._opaque = command.opaque = (self._opaque + 1) & OPAQUE_MASK
        self._send(command)

    def close(self) -> None:
        """Close the socket; what is in flight is given up. May be called twice, in any process."""
        self._break("closed by its owner")

    def is_stale(self) -> bool:
        """Whether the peer has closed meanwhile; does not block. For idle connections.

        Whatever else arrived is kept and handled by the next call.
        """
        sock = self._sock
        if sock is None:
            return True
        try:
            if not _readable(sock):
                return False
            self._make_room(_PREFIX_BYTES)
            self._set_timeout(0.0)
            while got := sock.recv_into(self._view[self._end :]):
                self._end += got
                self._make_room(self._end - self._start + _PREFIX_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError as error:
            self._break(str(error))
            return True
        self._break("closed by the peer")
        return True

    # --- inside -----------------------------------------------------------------------------------

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedClientError(
                f"the connection to {self.address} was made before fork();"
                " create a new one in the child process",
                address=self.address,
            )

    def _send(self, command: RemotingCommand) -> None:
        self._check_process()
        sock = self._sock
        if sock is None:
            raise ConnectError(
                f"connection to {self.address} is closed ({self._close_reason}); nothing was sent",
                address=self.address,
            )
        if self._before_request is not None:
            self._before_request(self.address, command)
        frame = encode_frame(command)
        try:
            sock.sendall(frame)
        except OSError as error:
            # sendall raised, so the peer cannot have the whole frame and will not act on it.
            reason = f"cannot send: {error or type(error).__name__}"
            self._break(reason)
            raise ConnectError(
                f"connection to {self.address}: {reason}; the request was not sent whole",
                address=self.address,
            ) from error
        except BaseException:
            self._break("interrupted while sending")
            raise

    def _next_answer(self, deadline_ms: float) -> RemotingCommand:
        while True:
            command = self._next_command(deadline_ms)
            if command.flag & FLAG_RESPONSE:
                return command
            if not command.flag & FLAG_ONEWAY:
                self._refuse(command)

    def _refuse(self, request: RemotingCommand) -> None:
        remark = f" request type {request.code} not supported"
        refusal = RemotingCommand.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
        sock = self._sock
        if sock is None:
            return
        try:
            sock.sendall(encode_frame(request.answer(refusal)))
        except OSError as error:
            raise self._lost(str(error)) from error

    def _next_command(self, deadline_ms: float) -> RemotingCommand:
        while True:
            have = self._end - self._start
            length = -1
            if have >= _PREFIX_BYTES:
                length = self._frame_length()
                if have >= length + _PREFIX_BYTES:
                    return self._take_frame(length)
            self._fill(length, deadline_ms)

    def _frame_length(self) -> int:
        (length,) = _PREFIX.unpack_from(self._buffer, self._start)
        if _FRAME_LENGTH_MIN <= length <= _FRAME_LENGTH_MAX:
            return int(length)
        kind = MalformedFrameError if 0 <= length < _FRAME_LENGTH_MIN else FrameTooLargeError
        reason = f"frame length {length} is not from {_FRAME_LENGTH_MIN} to {_FRAME_LENGTH_MAX}"
        self._break(reason)
        raise kind(f"{self.address} sent something else than frames: {reason}")

    def _take_frame(self, length: int) -> RemotingCommand:
        begin = self._start + _PREFIX_BYTES
        end = begin + length
        self._start = end
        if end == self._end:
            self._start = self._end = 0
        frame = bytes(self._view[begin:end])
        if self._start == 0 and len(self._buffer) > _BUFFER_BYTES:
            self._resize(_BUFFER_BYTES)
        try:
            return decode_frame(frame)
        except RocketMQError as error:
            self._break(str(error))
            raise

    def _fill(self, length: int, deadline_ms: float) -> None:
        """Read once; ``length`` is that of the frame begun, -1 when not known yet."""
        sock = self._sock
        if sock is None:
            raise self._lost(self._close_reason)
        self._make_room(max(length, 0) + _PREFIX_BYTES)
        try:
            got = sock.recv_into(self._view[self._end :])
        except TimeoutError:
            raise self._timed_out() from None
        except OSError as error:
            raise self._lost(str(error)) from error
        except BaseException:
            self._break("interrupted while receiving")
            raise
        if not got:
            raise self._lost("closed by the peer")
        self._end += got
        remaining_ms = deadline_ms - self._clock.monotonic_ms()
        if remaining_ms <= 0 and self._end - self._start < length + _PREFIX_BYTES:
            raise self._timed_out()
        if length >= 0:
            self._set_timeout(max(remaining_ms, 1) / 1000)

    def _make_room(self, frame_bytes: int) -> None:
        """Have room for a frame of ``frame_bytes`` that begins at ``_start``."""
        if self._start + frame_bytes <= len(self._buffer) and self._end < len(self._buffer):
            return
        self._resize(max(frame_bytes, _BUFFER_BYTES))

    def _resize(self, size: int) -> None:
        have = self._end - self._start
        fresh = bytearray(max(size, have + 1))
        fresh[:have] = self._view[self._start : self._end]
        self._buffer = fresh
        self._view = memoryview(fresh)
        self._start, self._end = 0, have

    def _set_timeout(self, timeout_s: float) -> None:
        if timeout_s != self._timeout_s and self._sock is not None:
            self._sock.settimeout(timeout_s)
            self._timeout_s = timeout_s

    def _timed_out(self) -> RequestTimeoutError:
        self._break("a request timed out")
        return RequestTimeoutError(
            f"no answer from {self.address} in time; the connection was closed",
            address=self.address,
        )

    def _lost(self, reason: str) -> ConnectionLostError:
        self._break(reason)
        return ConnectionLostError(
            f"connection to {self.address} ended before the answer came: {reason}",
            address=self.address,
        )

    def _break(self, reason: str) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            self._close_reason = reason
            self._outstanding.clear()
            self._answered.clear()
            with contextlib.suppress(OSError):
                sock.close()


def _connect(address: str, timeout_s: float, ssl_context: ssl.SSLContext | None) -> socket.socket:
    host, port = parse_address(address)
    sock: socket.socket | None = None
    try:
        sock = socket.create_connection((host, port), timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if ssl_context is not None:
            sock = ssl_context.wrap_socket(sock, server_hostname=host)
        return sock
    except OSError as error:
        if sock is not None:
            sock.close()
        timed_out = isinstance(error, TimeoutError)
        reason = f"no answer within {timeout_s * 1000:g} ms" if timed_out else str(error)
        raise ConnectError(
            f"cannot connect to {address}: {reason}; check the address and that the server runs",
            address=address,
        ) from error


def _readable(sock: socket.socket) -> bool:
    if hasattr(select, "poll"):
        poller = select.poll()
        poller.register(sock, select.POLLIN)
        return bool(poller.poll(0))
    return bool(select.select([sock], [], [], 0)[0])


class BlockingPool:
    """Connections for many threads: borrowed for one use each, the last returned first.

    Thread safe. Connections the peer closed while they were idle are replaced before use, so that
    a broker's restart does not fail the next request.
    """

    def __init__(
        self,
        *,
        connections_max: int = limits.BLOCKING_CONNECTIONS_PER_BROKER_MAX,
        connect_timeout_ms: float = limits.CONNECT_TIMEOUT_MS,
        ssl_context: ssl.SSLContext | None = None,
        before_request: BeforeRequest | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Keep the settings; nothing is connected yet.

        Args:
            connections_max: per address; more users wait for one.
            connect_timeout_ms: for a new connection.
            ssl_context: speak TLS with it.
            before_request: called with address and command before each request is encoded.
            clock: measures deadlines.
        """
        self._connections_max = connections_max
        self._connect_timeout_ms = connect_timeout_ms
        self._ssl = ssl_context
        self._before_request = before_request
        self._clock = clock
        self._pid = os.getpid()
        self._changed = threading.Condition()  # guards what follows; never held while connecting
        self._idle: dict[str, list[BlockingConnection]] = {}
        self._lent: dict[str, int] = {}
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def request(self, address: str, command: RemotingCommand, timeout_ms: float) -> RemotingCommand:
        """Send ``command`` to ``address`` and return the answer.

        Blocks for ``timeout_ms`` at most, waiting for a connection included.

        Raises:
            TooManyRequestsError: every connection stayed in use; nothing was sent.
            ConnectError, RequestTimeoutError, ConnectionLostError: see ``BlockingConnection``.
            ForkedClientError: the pool was made before a fork.
            ClientStateError: the pool is closed.
        """
        deadline = self._clock.monotonic_ms() + timeout_ms
        with self.connection(address, timeout_ms) as connection:
            remaining_ms = deadline - self._clock.monotonic_ms()
            if remaining_ms <= 0:
                raise TooManyRequestsError(
                    f"no connection to {address} within {timeout_ms:g} ms; nothing was sent",
                    address=address,
                )
            # Whole milliseconds spare the system call that a changed socket timeout costs.
            return connection.request(command, max(1.0, float(round(remaining_ms))))

    def oneway(self, address: str, command: RemotingCommand, timeout_ms: float = 3000) -> None:
        """Send ``command`` to ``address`` marked one-way; raises as ``request`` does."""
        with self.connection(address, timeout_ms) as connection:
            connection.oneway(command)

    @contextlib.contextmanager
    def connection(
        self, address: str, timeout_ms: float | None = None
    ) -> Iterator[BlockingConnection]:
        """Lend a connection for the ``with`` block; it returns to the pool unless it broke.

        Args:
            address: ``host:port``.
            timeout_ms: how long to wait while all are in use; the connect timeout by default.

        Raises:
            TooManyRequestsError: every connection stayed in use.
            ConnectError: a new connection could not be made.
            ForkedClientError: the pool was made before a fork.
            ClientStateError: the pool is closed.
        """
        connection = self._borrow(
            address, self._connect_timeout_ms if timeout_ms is None else timeout_ms
        )
        try:
            yield connection
        finally:
            self._give_back(address, connection)

    def close(self) -> None:
        """Close the idle connections; lent ones are closed when they come back."""
        with self._changed:
            self._closed = True
            idle = [each for connections in self._idle.values() for each in connections]
            self._idle.clear()
            self._changed.notify_all()
        for connection in idle:
            connection.close()

    def _borrow(self, address: str, timeout_ms: float) -> BlockingConnection:
        if os.getpid() != self._pid:
            raise ForkedClientError(
                "this connection pool was made before fork(); create a new one in the child"
            )
        while True:
            idle = self._reserve(address, timeout_ms)
            if idle is not None and not idle.is_stale():
                return idle
            if idle is None:
                break
            self._release(address)
        try:
            return BlockingConnection(
                address,
                connect_timeout_ms=min(self._connect_timeout_ms, max(timeout_ms, 1)),
                ssl_context=self._ssl,
                before_request=self._before_request,
                clock=self._clock,
            )
        except BaseException:
            self._release(address)
            raise

    def _reserve(self, address: str, timeout_ms: float) -> BlockingConnection | None:
        """Count one more lent connection: an idle one, or None for one to be made."""
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._closed or self._lent.get(address, 0) < self._connections_max,
                timeout_ms / 1000,
            ):
                raise TooManyRequestsError(
                    f"all {self._connections_max} connections to {address} were in use for"
                    f" {timeout_ms:g} ms; nothing was sent",
                    address=address,
                )
            if self._closed:
                raise ClientStateError(f"cannot connect to {address}: the pool is closed")
            self._lent[address] = self._lent.get(address, 0) + 1
            idle = self._idle.get(address)
            return idle.pop() if idle else None

    def _give_back(self, address: str, connection: BlockingConnection) -> None:
        # Answers still to come would reach the next borrower; such a connection is not reused.
        reusable = not connection.is_closed and not connection.requests_in_flight
        with self._changed:
            self._lent[address] -= 1
            keep = reusable and not self._closed
            if keep:
                self._idle.setdefault(address, []).append(connection)
            self._changed.notify_all()
        if not keep:
            connection.close()

    def _release(self, address: str) -> None:
        with self._changed:
            self._lent[address] -= 1
            self._changed.notify_all()
