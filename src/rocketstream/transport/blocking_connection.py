"""One plain blocking socket for callers without an event loop, and waiting on several of them.

Law: no threads of its own; frames, opaque ids, deadlines and bounds, nothing of what a command
means.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import socket
import struct
import sys
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self

from rocketstream import limits
from rocketstream._util.clock import SYSTEM_CLOCK, Clock
from rocketstream._util.machine import drop_unsent
from rocketstream.errors import (
    ClientStateError,
    ConnectError,
    ConnectionLostError,
    ForkedClientError,
    FrameTooLargeError,
    MalformedFrameError,
    RequestTimeoutError,
    RocketMQError,
)
from rocketstream.protocol.addresses import (
    CLOSED_AT_ONCE,
    NO_TLS,
    SILENT,
    cannot_connect,
    parse_address,
    stranger,
)
from rocketstream.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE
from rocketstream.protocol.command import OPAQUE_MASK, BeforeRequest, RemotingCommand
from rocketstream.protocol.sends import AnswerReader
from rocketstream.transport.tls import is_no_tls

if TYPE_CHECKING:
    import ssl

_unpack_prefix = struct.Struct(">i").unpack_from
_PREFIX_BYTES = limits.FRAME_PREFIX_BYTES
_FRAME_LENGTH_MIN = 4
_FRAME_LENGTH_MAX = limits.FRAME_BYTES_MAX - _PREFIX_BYTES
_BUFFER_BYTES = 256 * 1024
_WAIT_MS_MAX = 2**31 - 1  # what poll() takes: 24 days
# Sleeping until the answer comes costs two wake-ups of idle processors, tens of microseconds each
# on virtual machines. So a connection may poll for the answer a while before it sleeps; where that
# does not pay, because answers take longer, it soon stops polling.
_LOOKS_MAX = 250
_LOOK_MS_MAX = 0.25
_LOOKS_IN_VAIN_MAX = 16
_REQUESTS_WITHOUT_LOOKING = 512
_REQUESTS_WHILE_SCARCE = 64
_yield_processor = getattr(os, "sched_yield", None) if sys.platform == "linux" else None


class BlockingConnection:
    """One socket used by one thread at a time; requests may be pipelined.

    After a timeout, a protocol error or a lost connection it is closed for good, as in upstream's
    synchronous client. Not thread safe. A context manager.

    Attributes:
        timed_out: a request timed out, which closed it.
        idle_since_ms: when its pool took it back last, by the pool's monotonic clock.
    """

    timed_out: bool = False
    idle_since_ms: float = 0.0

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
            connect_timeout_ms: for TCP and TLS each; also bounds each ``submit`` before the first
                ``receive`` or ``request``.
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
        self._timeout_ms = connect_timeout_ms
        self._sock: socket.socket | None = _connect(address, connect_timeout_ms / 1000, ssl_context)
        # A timeout of the kernel's begins anew with each signal, so the socket never waits: poll()
        # does, for what is left until the deadline.
        self._sock.setblocking(False)
        self._close_reason = ""
        self._has_spoken = False
        self._opaque = 0
        self._poller = _poller(self._sock)
        self._is_plain = ssl_context is None
        self._seen = False  # input that was looked for and not read yet
        self._looked_in_vain = 0
        self._looks_again_in = 0
        self._outstanding: set[int] = set()
        self._answered: deque[RemotingCommand] = deque()
        self._reader = AnswerReader()
        self._buffer = bytearray(_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._sock is None

    @property
    def requests_in_flight(self) -> int:
        """Submitted requests whose answers ``receive`` has not returned yet."""
        return len(self._outstanding) + len(self._answered)

    @property
    def is_reusable(self) -> bool:
        """Whether it is open with nothing in flight, so that another caller may use it."""
        return self._sock is not None and not self._outstanding and not self._answered

    @property
    def has_input(self) -> bool:
        """Whether input was read already, or the connection is closed: no need to wait."""
        sock = self._sock
        return sock is None or _decrypted(sock) or self._end > self._start or bool(self._answered)

    def fileno(self) -> int:
        """Return the socket's descriptor, to wait for input; -1 when it is closed."""
        return -1 if self._sock is None else self._sock.fileno()

    def request(
        self, command: RemotingCommand, timeout_ms: float, *, alone: bool = False
    ) -> RemotingCommand:
        """Send ``command`` and return its answer, whatever its code.

        Answers to submitted requests that come in between are kept for ``receive``.

        Args:
            command: the request; gets its opaque id.
            timeout_ms: for all of it: sending, and waiting until the answer is complete.
            alone: nobody else waits for an answer, so that polling for this one takes no processor
                time from others.

        Raises:
            RequestTimeoutError: no answer within ``timeout_ms``; it may have been executed.
            ConnectionLostError: the connection ended meanwhile; it may have been executed.
            ConnectError: closed before; nothing was sent.
            RemoteProtocolError: the peer sent bytes that are not frames.
            ForkedClientError: the connection was made before a fork.
        """
        self._timeout_ms = timeout_ms
        deadline = self._clock.monotonic_ms() + timeout_ms
        opaque = (self._opaque + 1) & OPAQUE_MASK
        self._opaque = command.opaque = opaque
        self._send(command, deadline)
        if alone:
            if self._looks_again_in:
                self._looks_again_in -= 1
            else:
                self._look_for_answer()
        while True:
            answer = self._next_answer(deadline)
            if answer.opaque == opaque:
                return answer
            if answer.opaque in self._outstanding:
                self._outstanding.discard(answer.opaque)
                self._answered.append(answer)
            self._check_time(deadline)

    def submit(self, command: RemotingCommand) -> int:
        """Send ``command`` without waiting and return its opaque id; ``receive`` gets the answer.

        Blocks while the socket takes no more bytes, up to the last timeout used.

        Raises:
            ConnectError: the connection was closed before, or the command was not written
                completely; it is not executed.
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
            RequestTimeoutError: no answer came within ``timeout_ms``; the connection is closed.
            ConnectionLostError: the connection ended.
            ClientStateError: nothing is in flight, so no answer can come.
            RemoteProtocolError: the peer sent bytes that are not frames.
            ForkedClientError: the connection was made before a fork.
        """
        self._check_process()
        if self._answered:
            return self._answered.popleft()
        if not self._outstanding:
            raise ClientStateError("receive() without a submitted request: nothing is in flight")
        self._timeout_ms = timeout_ms
        deadline = self._clock.monotonic_ms() + timeout_ms
        while True:
            answer = self._next_answer(deadline)
            if answer.opaque in self._outstanding:
                self._outstanding.discard(answer.opaque)
                return answer
            self._check_time(deadline)

    def forget(self, opaque: int) -> None:
        """Give a submitted request up: an answer that still comes is dropped."""
        self._outstanding.discard(opaque)
        self._answered = deque(each for each in self._answered if each.opaque != opaque)

    def oneway(self, command: RemotingCommand) -> None:
        """Send ``command``, marked one-way.

        Raises:
            ConnectError: the connection was closed before, or the command was not written
                completely; it is not executed.
            ForkedClientError: the connection was made before a fork.
        """
        command.flag |= FLAG_ONEWAY
        self._opaque = command.opaque = (self._opaque + 1) & OPAQUE_MASK
        self._send(command)

    def close(self) -> None:
        """Close the socket; requests in flight are given up.

        May be called twice, in any process.
        """
        self._break("closed by its owner")

    def is_stale(self) -> bool:
        """Whether the peer has closed meanwhile; does not block. For idle connections.

        Other input is kept and handled by the next call, up to the size of the largest frame: a
        peer that sends more, though nothing was asked, may have no end.
        """
        sock = self._sock
        if sock is None:
            return True
        poller = self._poller
        try:
            if not (poller.poll(0) if poller is not None else _ready(sock, False, 0)):
                return False
            while True:
                have = self._end - self._start
                if have > limits.FRAME_BYTES_MAX:
                    self._break(f"over {limits.FRAME_BYTES_MAX} bytes came that nobody asked for")
                    return True
                if self._end == len(self._buffer):
                    self._resize(max(2 * have, _BUFFER_BYTES))
                got = sock.recv_into(self._view[self._end :])
                if not got:
                    break
                self._end += got
        except OSError as error:
            if _is_unready(error):
                return False
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

    def _send(self, command: RemotingCommand, deadline_ms: float | None = None) -> None:
        self._check_process()
        sock = self._sock
        if sock is None:
            raise ConnectError(
                f"connection to {self.address} is closed ({self._close_reason}); nothing was sent",
                address=self.address,
            )
        if self._before_request is not None:
            self._before_request(self.address, command)
        frame = command.frame()
        try:
            self._write(sock, frame, deadline_ms)
        except OSError as error:
            # Not all was written, so the peer cannot have the whole frame and will not act on it.
            full = isinstance(error, TimeoutError)
            reason = "the peer takes no more bytes" if full else f"cannot send: {error}"
            self._break(reason)
            raise ConnectError(
                f"connection to {self.address}: {reason}; the request was not sent whole",
                address=self.address,
            ) from error
        except BaseException:
            self._break("interrupted while sending")
            raise

    def _write(
        self, sock: socket.socket, frame: bytes | memoryview, deadline_ms: float | None
    ) -> None:
        """Have the system take a whole frame; None waits up to the last timeout used."""
        while True:
            try:
                sent = sock.send(frame)
            except OSError as error:
                if not _is_unready(error):
                    raise
                if deadline_ms is None:
                    deadline_ms = self._clock.monotonic_ms() + self._timeout_ms
                self._wait(sock, deadline_ms, writes=type(error).__name__ != _WANTS_INPUT)
                continue
            if sent == len(frame):
                return
            frame = memoryview(frame)[sent:]

    def _wait(self, sock: socket.socket, deadline_ms: float, *, writes: bool = False) -> None:
        """Wait until the socket can be read, or written; a signal does not put the deadline off.

        Raises:
            TimeoutError: it could not until then.
        """
        left_ms = max(min(deadline_ms - self._clock.monotonic_ms(), _WAIT_MS_MAX), 0)
        poller = self._poller
        # Both go on after a signal with what is left of their time.
        if poller is None or writes:
            if _ready(sock, writes, left_ms):
                return
        elif poller.poll(left_ms):
            return
        raise TimeoutError

    def _next_answer(self, deadline_ms: float) -> RemotingCommand:
        while True:
            command = self._next_command(deadline_ms)
            if command.flag & FLAG_RESPONSE:
                return command
            if not command.flag & FLAG_ONEWAY:
                self._refuse(command, deadline_ms)
            self._check_time(deadline_ms)

    def _check_time(self, deadline_ms: float) -> None:
        """Go on after a frame nobody waits for: a peer may send them without end.

        Raises:
            RequestTimeoutError: the time is over.
        """
        if self._clock.monotonic_ms() >= deadline_ms:
            raise self._timed_out()

    def _look_for_answer(self) -> None:
        """Poll some times for input, as long as that has paid off lately."""
        poller, give_way = self._poller, _yield_processor
        if poller is None or give_way is None or not self._is_plain:
            return
        poll, now = poller.poll, self._clock.monotonic_ms
        until_ms = now() + _LOOK_MS_MAX
        for _ in range(_LOOKS_MAX):
            if poll(0):
                self._looked_in_vain = 0
                self._seen = True
                return
            give_way()
            if now() > until_ms:
                # Yielding took long: others want the processor, and a thread that sleeps is woken
                # sooner than one that has used up its share.
                self._looks_again_in = _REQUESTS_WHILE_SCARCE
                return
        self._looked_in_vain += 1
        if self._looked_in_vain >= _LOOKS_IN_VAIN_MAX:
            self._looked_in_vain = 0
            self._looks_again_in = _REQUESTS_WITHOUT_LOOKING

    def _refuse(self, request: RemotingCommand, deadline_ms: float) -> None:
        sock = self._sock
        if sock is None:
            return
        try:
            self._write(sock, request.refusal().frame(), deadline_ms)
        except OSError as error:
            raise self._lost(str(error)) from error

    def _next_command(self, deadline_ms: float) -> RemotingCommand:
        length = 0  # bytes of the frame begun; not known yet
        has_read = False
        while True:
            start = self._start
            have = self._end - start
            if have >= _PREFIX_BYTES:
                (length,) = _unpack_prefix(self._buffer, start)
                if not _FRAME_LENGTH_MIN <= length <= _FRAME_LENGTH_MAX:
                    self._refuse_length(length)
                if have >= length + _PREFIX_BYTES:
                    return self._take_frame(length)
            if has_read and self._clock.monotonic_ms() >= deadline_ms:
                raise self._timed_out()  # of a peer that sends byte by byte, too
            self._fill(length + _PREFIX_BYTES, deadline_ms)
            has_read = True

    def _refuse_length(self, length: int) -> NoReturn:
        kind = MalformedFrameError if 0 <= length < _FRAME_LENGTH_MIN else FrameTooLargeError
        reason = f"frame length {length} is not from {_FRAME_LENGTH_MIN} to {_FRAME_LENGTH_MAX}"
        reason += self._remark(closed=False)
        self._break(reason)
        raise kind(f"{self.address} sent something other than frames: {reason}")

    def _take_frame(self, length: int) -> RemotingCommand:
        begin = self._start
        end = begin + _PREFIX_BYTES + length
        try:
            command = self._reader.decode(self._buffer, begin, end)
        except RocketMQError as error:
            self._break(str(error))
            raise
        self._has_spoken = True
        if end == self._end:
            self._start = self._end = 0
            if len(self._buffer) > _BUFFER_BYTES:
                self._resize(_BUFFER_BYTES)
        else:
            self._start = end
        return command

    def _fill(self, frame_bytes: int, deadline_ms: float) -> None:
        """Read once, or wait until that is worth a try, with room for ``frame_bytes``."""
        sock = self._sock
        if sock is None:
            raise self._lost(self._close_reason)
        self._make_room(frame_bytes)
        try:
            if self._seen:
                self._seen = False
            elif self._is_plain:  # TLS may have decrypted input that poll() does not show
                self._wait(sock, deadline_ms)
            try:
                got = sock.recv_into(self._view[self._end :])
            except OSError as error:
                if not _is_unready(error):
                    raise
                self._wait(sock, deadline_ms, writes=type(error).__name__ == _WANTS_ROOM)
                return
        except TimeoutError:
            raise self._timed_out() from None
        except OSError as error:
            raise self._lost(str(error) + self._remark(closed=True)) from error
        except BaseException:
            self._break("interrupted while receiving")
            raise
        if not got:
            raise self._lost("closed by the peer" + self._remark(closed=True))
        self._end += got

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

    def _timed_out(self) -> RequestTimeoutError:
        self.timed_out = True
        remark = self._remark(closed=False)
        if self._sock is not None:
            drop_unsent(self._sock)
        self._break("a request timed out")
        return RequestTimeoutError(
            f"no answer from {self.address} in time{remark}; the connection was closed",
            address=self.address,
        )

    def _remark(self, *, closed: bool) -> str:
        """Return who else than RocketMQ may be there; empty where a frame has come."""
        if self._has_spoken:
            return ""
        if self._end > self._start:
            who = stranger(bytes(self._view[self._start : min(self._end, self._start + 9)]))
            return "" if who is None else f"; {who}"
        if not closed:
            return SILENT
        return CLOSED_AT_ONCE if not hasattr(self._sock, "pending") else ""

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


def wait_for_answers(
    connections: Sequence[BlockingConnection], timeout_ms: float
) -> list[BlockingConnection]:
    """Return the connections whose ``receive`` would not wait, as soon as there are any.

    Connections that ended are returned too: their ``receive`` raises the reason. Blocks for
    ``timeout_ms`` at most; no connection is closed when that time is over.
    """
    here = [each for each in connections if each.has_input]
    if here or not connections:
        return here
    with selectors.DefaultSelector() as selector:
        for each in connections:
            selector.register(each.fileno(), selectors.EVENT_READ, each)
        return [key.data for key, _ in selector.select(timeout_ms / 1000)]


def _connect(address: str, timeout_s: float, ssl_context: ssl.SSLContext | None) -> socket.socket:
    host, port = parse_address(address)
    sock: socket.socket | None = None
    try:
        # A text is put through IDNA, which ASCII does not need and which takes 2 ms to import.
        found: Any = host.encode() if host.isascii() else host
        sock = socket.create_connection((found, port), timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if ssl_context is not None:
            sock = ssl_context.wrap_socket(sock, server_hostname=host)
        return sock
    except OSError as error:
        if sock is not None:
            sock.close()
        timed_out = isinstance(error, TimeoutError)
        reason = f"no answer within {timeout_s * 1000:g} ms" if timed_out else str(error)
        if ssl_context is not None and sock is not None and (timed_out or is_no_tls(error)):
            reason += NO_TLS
        raise cannot_connect(address, reason) from error


def _decrypted(sock: Any) -> bool:
    """Whether TLS has decrypted bytes ready, which the descriptor does not show."""
    pending = getattr(sock, "pending", None)
    return pending is not None and pending() > 0


# Looked up by name: without TLS its module, which takes long to import, is not needed.
_WANTS_INPUT, _WANTS_ROOM = "SSLWantReadError", "SSLWantWriteError"
_UNREADY = frozenset({"BlockingIOError", _WANTS_INPUT, _WANTS_ROOM})


def _is_unready(error: OSError) -> bool:
    """Whether a socket can do nothing yet."""
    return type(error).__name__ in _UNREADY


def _poller(sock: socket.socket) -> select.poll | None:
    """Return a poll() object that tells whether a socket can be read; None without poll()."""
    if not hasattr(select, "poll"):
        return None
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return poller


def _ready(sock: socket.socket, writes: bool, timeout_ms: float) -> bool:
    """Whether a socket can be read, or written, within a time; also where there is no poll()."""
    if not hasattr(select, "poll"):
        reading, writing = ([], [sock]) if writes else ([sock], [])
        return any(select.select(reading, writing, [], timeout_ms / 1000))
    poller = select.poll()
    poller.register(sock, select.POLLOUT if writes else select.POLLIN)
    return bool(poller.poll(timeout_ms))
