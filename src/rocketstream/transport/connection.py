"""One asyncio connection that carries requests and answers in both directions.

Law: runs on its loop's thread only. It knows frames, opaque ids, deadlines and bounds, never the
meaning of a command.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from rocketstream import limits
from rocketstream._util.machine import drop_unsent
from rocketstream._util.patience import another_look_s
from rocketstream.errors import (
    ConnectError,
    ConnectionLostError,
    RemoteProtocolError,
    RequestTimeoutError,
    TooManyRequestsError,
)
from rocketstream.protocol.addresses import format_address
from rocketstream.protocol.codes import FLAG_ONEWAY, FLAG_RESPONSE, ResponseCode
from rocketstream.protocol.command import OPAQUE_MASK, AfterResponse, BeforeRequest, RemotingCommand
from rocketstream.protocol.framing import FrameDecoder
from rocketstream.transport.sharing import AnswerSteps

logger: logging.Logger = logging.getLogger("rocketstream.transport")

RequestHandler = Callable[["Connection", RemotingCommand], AnswerSteps | None]
"""Takes a request.

On a server's connection it may return steps: the rest of its work, done before the next request."""
AnswerCallback = Callable[[RemotingCommand | None, Exception | None], None]
_Sink: TypeAlias = asyncio.Future[RemotingCommand] | AnswerCallback

_PAUSE_ABOVE_BYTES = 1024 * 1024
_SWEEP_PAUSE_S = 0.02
_IDLE_CHECKS = 4
_GRACE_S = 3.0


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of one connection.

    Attributes:
        idle_close_ms: close after this long without a byte in either direction; 0 means never.
        silent_close_ms: a client closes when a request timed out and no answer has come for this
            long since it was sent; 0 means never.
        requests_in_flight_max: own requests waiting for an answer.
        write_buffer_bytes_max: bytes queued for a peer that does not read; with more the connection
            is closed.
        frame_bytes_max: longest frame accepted.
        header_bytes_max: longest header accepted.
        body_bytes_max: largest body kept; of a frame with a larger one only the header is read.
    """

    idle_close_ms: float = limits.IDLE_CLOSE_MS
    silent_close_ms: float = limits.SILENT_CLOSE_MS
    requests_in_flight_max: int = limits.REQUESTS_IN_FLIGHT_MAX
    write_buffer_bytes_max: int = limits.WRITE_BUFFER_BYTES_MAX
    frame_bytes_max: int = limits.FRAME_BYTES_MAX
    header_bytes_max: int = limits.FRAME_BYTES_MAX
    body_bytes_max: int = limits.FRAME_BYTES_MAX


DEFAULT_LIMITS = ConnectionLimits()
_NUMBERS: Final = itertools.count(1)


def refuse_request(connection: Connection, request: RemotingCommand) -> None:
    """Handle any request of the peer by refusing it."""
    connection.reply(request, request.refusal())


class Connection(asyncio.BaseProtocol):
    """One TCP or TLS connection; both peers may send requests.

    Each peer matches answers to its own requests only. Everything sent within one pass of the loop
    leaves in one write. After a protocol error, a lost connection or ``close`` it stays closed.

    Attributes:
        number: grows from each connection of this process to the next.
        attributes: free for the owner of the connection.
        peer: ``host:port`` of the other side.
        is_encrypted: whether it speaks TLS.
        close_reason: why it was closed; None while it is open.
    """

    _pause_above_bytes = _PAUSE_ABOVE_BYTES
    _decoder_of: type[FrameDecoder] = FrameDecoder
    """Reads what the peer sends."""
    _heard_at = -math.inf
    """When something came last; noted by clients alone."""
    _answered_at = 0.0
    """When an answer came last, or the peer took what had waited for it; noted by clients alone."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_request: RequestHandler = refuse_request,
        *,
        bounds: ConnectionLimits = DEFAULT_LIMITS,
        before_request: BeforeRequest | None = None,
        after_response: AfterResponse | None = None,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
        address: str = "",
    ) -> None:
        self.number: int = next(_NUMBERS)
        self.attributes: dict[Any, Any] = {}
        self.peer: str = address
        self.peer_host: tuple[str, int] = ("", 0)
        self.local_host: tuple[str, int] = ("", 0)
        self.is_encrypted: bool = False
        self.close_reason: str | None = None
        self._address = address
        self._loop = loop
        self._time = loop.time
        self._on_request = on_request
        self._bounds = bounds
        self._in_flight_max = bounds.requests_in_flight_max
        self._write_max = bounds.write_buffer_bytes_max
        self._before_request = before_request
        self._after_response = after_response
        self._on_open = on_open
        self._on_close = on_close
        self._decoder = self._decoder_of(
            bounds.frame_bytes_max, bounds.header_bytes_max, bounds.body_bytes_max
        )
        self._transport: asyncio.Transport | None = None
        self._closed = True
        self._lost: asyncio.Future[None] = loop.create_future()
        self._opaque = 0
        self._pending: dict[int, tuple[float, _Sink, float]] = {}
        """By opaque id: the deadline, the receiver of the answer, and since when it waits."""
        self._sweep_at = math.inf
        self._looks = 0
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._idle_checks = 0
        self._active = False
        self._abort_timer: asyncio.TimerHandle | None = None
        self._out: deque[bytes | memoryview] = deque()
        self._out_bytes = 0
        self._receiving = False
        self._flush_due = False
        self._paused = False
        self._when_drained: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Connection {self.peer} {self.close_reason or 'open'}>"

    # --- state ------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._closed

    @property
    def requests_in_flight(self) -> int:
        """Own requests that still wait for an answer."""
        return len(self._pending)

    @property
    def bytes_buffered(self) -> int:
        """Bytes accepted for sending that the socket has not taken yet."""
        if self._transport is None:
            return 0
        return self._out_bytes + self._transport.get_write_buffer_size()

    @property
    def is_congested(self) -> bool:
        """Whether the peer does not take the bytes sent; ``when_drained`` tells when it did."""
        return self._paused and not self._closed

    def owe(self, answer: Callable[[], None]) -> None:
        """Call ``answer``, for which the peer waits, in the next pass of the loop."""
        self._loop.call_soon(answer)

    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call back once the peer has taken the waiting bytes; never after the close."""
        self._when_drained.append(callback)

    # --- sending ----------------------------------------------------------------------------------

    async def request(self, command: RemotingCommand, timeout_ms: float) -> RemotingCommand:
        """Send ``command`` and wait for its answer, whatever its code.

        Raises:
            RequestTimeoutError: no answer within ``timeout_ms``; it may have been executed.
            ConnectionLostError: the connection ended meanwhile; it may have been executed.
            ConnectError: the connection was closed before; nothing was sent.
            TooManyRequestsError: the bound of requests in flight is reached; nothing was sent.
        """
        future = self.request_future(command, timeout_ms)
        try:
            return await future
        except asyncio.CancelledError:
            self._pending.pop(command.opaque, None)
            raise

    def request_future(
        self, command: RemotingCommand, timeout_ms: float
    ) -> asyncio.Future[RemotingCommand]:
        """Send ``command``; the future gets its answer or an error as ``request`` describes.

        Raises:
            ConnectError: the connection is closed; nothing was sent.
            TooManyRequestsError: the bound of requests in flight is reached; nothing was sent.
        """
        future: asyncio.Future[RemotingCommand] = self._loop.create_future()
        self._submit(command, timeout_ms, future)
        return future

    def request_callback(
        self, command: RemotingCommand, timeout_ms: float, on_done: AnswerCallback
    ) -> None:
        """Send ``command``; ``on_done(answer, None)`` or ``on_done(None, error)`` is called once.

        The callback runs on the loop, never before this call returned.

        Raises:
            ConnectError: the connection is closed; nothing was sent, ``on_done`` is not called.
            TooManyRequestsError: the bound of requests in flight is reached; nothing was sent,
                ``on_done`` is not called.
        """
        self._submit(command, timeout_ms, on_done)

    def oneway(self, command: RemotingCommand) -> None:
        """Send ``command``, marked one-way, and expect nothing.

        Raises:
            ConnectError: the connection is closed; nothing was sent.
        """
        if self._closed:
            raise self._closed_error()
        if self._before_request is not None:
            self._before_request(self._address, command)
        command.flag |= FLAG_ONEWAY
        self._opaque = command.opaque = (self._opaque + 1) & OPAQUE_MASK
        self._write(command.frame())

    def reply(
        self,
        request: RemotingCommand,
        response: RemotingCommand,
        body_parts: Sequence[bytes | memoryview] | None = None,
    ) -> None:
        """Answer a request of the peer; does nothing for one-way requests or once closed.

        Args:
            request: the request that is answered.
            response: the answer; gets the request's opaque id and serialize type.
            body_parts: the body in pieces, sent without being joined first, in place of
                ``response.body``; the pieces must not change until they are sent.
        """
        if self._closed or request.is_oneway:
            return
        request.answer(response)
        if body_parts is None:
            self._write(response.frame())
            return
        body_bytes = sum(map(len, body_parts))
        self._write(response.frame_head(body_bytes))
        self._out.extend(body_parts)
        self._out_bytes += body_bytes

    def send_frames(self, frames: bytes) -> None:
        """Send encoded frames, such as the answers to several requests; nothing once closed."""
        if not self._closed:
            self._write(frames)

    def _submit(
        self,
        command: RemotingCommand,
        timeout_ms: float,
        sink: _Sink,
    ) -> None:
        """Write a request; ``sink`` gets its answer, or the error that prevented one.

        Raises:
            ConnectError: the connection is closed, or too much waits for a peer that does not
                read; this was not sent.
            TooManyRequestsError: the bound of requests in flight is reached; nothing was sent.
        """
        opaque = self._next_opaque()
        if self._before_request is not None:
            self._before_request(self._address, command)
        command.opaque = opaque
        frame = command.frame()
        if self._after_response is not None:
            sink = self._shown(command, sink)
        self._write(frame)
        if self._closed:  # by these bytes, which were too many for a peer that does not read
            raise self._closed_error()
        now = self._time()
        deadline = now + timeout_ms / 1000
        self._pending[opaque] = (deadline, sink, now)
        if deadline < self._sweep_at:
            self._sweep_later(deadline)

    def _next_opaque(self) -> int:
        """Return the number of the next request, if one more is allowed in flight."""
        if self._closed:
            raise self._closed_error()
        if len(self._pending) >= self._in_flight_max:
            raise TooManyRequestsError(
                f"{self._in_flight_max} requests to {self.peer} wait for an answer; wait for some",
                address=self.peer,
            )
        self._opaque = opaque = (self._opaque + 1) & OPAQUE_MASK
        return opaque

    def _shown(self, command: RemotingCommand, sink: _Sink) -> AnswerCallback:
        """Return a callback that shows each answer before ``sink`` gets it."""
        see = self._after_response
        assert see is not None

        def answered(answer: RemotingCommand | None, error: Exception | None) -> None:
            if answer is not None:
                see(self._address, command, answer)
            if not isinstance(sink, asyncio.Future):
                sink(answer, error)
            elif not sink.done():
                if answer is not None:
                    sink.set_result(answer)
                elif error is not None:
                    sink.set_exception(error)

        return answered

    # --- writing ----------------------------------------------------------------------------------

    def _write(self, data: bytes) -> None:
        self._out.append(data)
        self._out_bytes += len(data)
        if not (self._flush_due or self._receiving or self._paused):
            self._flush_due = True
            self._loop.call_soon(self._flush)
        elif self._paused:
            self._check_write_bound()

    def _flush(self) -> None:
        self._flush_due = False
        transport = self._transport
        if self._paused or not self._out or transport is None:
            self._check_write_bound()
            return
        self._active = True
        self._hand_over(transport)

    def _hand_over(self, transport: asyncio.Transport) -> None:
        """Give all queued bytes to the socket."""
        transport.write(self._take_out())

    def _take_out(self) -> bytes | memoryview:
        """Return all queued bytes.

        Joined here, since asyncio's writelines() of 3.12 and 3.13 never pauses the writer, and so
        that no caller's buffer is held beyond this pass.
        """
        out, self._out = self._out, deque()
        self._out_bytes = 0
        return out.pop() if len(out) == 1 else b"".join(out)

    def _check_write_bound(self) -> None:
        if not self._paused or self._closed or self.bytes_buffered <= self._write_max:
            return
        self._end(
            f"{self.bytes_buffered} bytes wait for a peer that does not read"
            f" (at most {self._write_max})"
        )
        self._abort()

    def pause_writing(self) -> None:
        """Keep further frames here until the socket takes bytes again (called by asyncio)."""
        self._paused = True
        self._check_write_bound()

    def resume_writing(self) -> None:
        """Send the frames kept here (called by asyncio)."""
        self._paused = False
        if self._out and not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)
        waiting, self._when_drained = self._when_drained, []
        for callback in waiting:
            callback()

    # --- reading ----------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Decode and dispatch (called by asyncio)."""
        if self._closed:
            return
        self._active = True
        self._receiving = True
        try:
            self._decoder.put(data)
            while not self._closed and (command := self._decoder.next()) is not None:
                self._take(command)
        except RemoteProtocolError as error:
            self._refuse_frame(error)
        finally:
            self._done_receiving()

    def eof_received(self) -> bool | None:
        """Close, since the peer sends no more (called by asyncio)."""
        return None

    def _take(self, command: RemotingCommand) -> None:
        if not command.flag & FLAG_RESPONSE:
            self._asked(command)
            return
        self._answered_at = self._heard_at
        entry = self._pending.pop(command.opaque, None)
        if entry is None:
            return  # given up before: the answer is too late
        sink = entry[1]
        if isinstance(sink, asyncio.Future):
            if not sink.done():
                sink.set_result(command)
            return
        self._call_back(sink, command, None)

    def _refuse_frame(self, error: RemoteProtocolError) -> None:
        remark = self._remark(closed=False)
        logger.info("closing %s: %s%s", self.peer, error, remark)
        self.close(str(error), remark)

    def _done_receiving(self) -> None:
        self._receiving = False
        if self._out and not self._flush_due:
            self._flush()

    def _asked(self, command: RemotingCommand) -> None:
        try:
            self._answer_in_steps(self._on_request(self, command))
        except Exception as error:
            logger.exception("request code=%s of %s failed", command.code, self.peer)
            remark = f"{type(error).__name__}: {error}"
            self.reply(command, RemotingCommand.response(ResponseCode.SYSTEM_ERROR, remark))

    def _answer_in_steps(self, steps: AnswerSteps | None) -> None:
        if steps is not None:
            raise TypeError("only a server's connection answers in steps")

    def _call_back(
        self, sink: AnswerCallback, answer: RemotingCommand | None, error: Exception | None
    ) -> None:
        try:
            sink(answer, error)
        except Exception:
            logger.exception("the callback for an answer of %s failed", self.peer)

    # --- deadlines and idleness -------------------------------------------------------------------

    def _sweep_later(self, at: float) -> None:
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._sweep_at = at
        self._sweep_timer = self._loop.call_at(at, self._sweep)

    def _sweep(self) -> None:
        """Time out the requests that are due and wake again for the earliest of the rest.

        One timer per connection: a request only touches it when its deadline is the earliest, so
        with equal timeouts there is one sweep per timeout, not one timer per request.
        """
        now = self._time()
        self._sweep_timer = None
        if more := another_look_s(now, self._sweep_at, self._looks):
            # The loop stood still: bytes that came in meanwhile are read before a peer is blamed.
            self._looks += 1
            self._sweep_later(now + more)
            return
        self._looks = 0
        self._sweep_at = math.inf
        due = [opaque for opaque, entry in self._pending.items() if entry[0] <= now]
        entries = [self._pending.pop(opaque) for opaque in due]
        if silent_s := self._silent_s(now, [entry[2] for entry in entries]):
            # Ended before requests fail: a caller that tries again at once gets a new connection.
            self._end(f"no answer has come from it for {silent_s:.1f} s, though it was asked")
            self._cut_off()
        text = f"no answer from {self.peer} in time{self._remark(closed=False) if due else ''}"
        for entry in entries:
            self._tell_failure(entry[1], RequestTimeoutError(text, address=self.peer))
        if self._pending and not self._closed:
            earliest = min(entry[0] for entry in self._pending.values())
            if earliest < self._sweep_at:
                self._sweep_later(max(earliest, now + _SWEEP_PAUSE_S))

    def _silent_s(self, now: float, sent: Sequence[float]) -> float:
        """Return for how long the peer has been silent, 0.0 where it is not taken for gone.

        Args:
            now: the loop's time.
            sent: when the requests were sent whose time is over.
        """
        return 0.0

    def _remark(self, *, closed: bool) -> str:
        """Return the remark on a peer that fails: empty where it speaks the protocol.

        Args:
            closed: whether it has closed the connection.
        """
        return ""

    def _tell_failure(self, sink: _Sink, error: Exception) -> None:
        if not isinstance(sink, asyncio.Future):
            self._call_back(sink, None, error)
        elif not sink.done():
            sink.set_exception(error)

    def _check_idle(self) -> None:
        self._idle_checks = 0 if self._active else self._idle_checks + 1
        self._active = False
        if self._idle_checks >= _IDLE_CHECKS:
            self.close(f"idle for {self._bounds.idle_close_ms:g} ms")
        elif not self._closed:
            self._schedule_idle_check()

    def _schedule_idle_check(self) -> None:
        if self._bounds.idle_close_ms > 0:
            pause_s = self._bounds.idle_close_ms / 1000 / _IDLE_CHECKS
            self._idle_timer = self._loop.call_later(pause_s, self._check_idle)

    # --- life cycle -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over the transport (called by asyncio)."""
        self._transport = stream = cast(asyncio.Transport, transport)
        stream.set_write_buffer_limits(high=self._pause_above_bytes)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer_host = _host(transport.get_extra_info("peername"))
        self.local_host = _host(transport.get_extra_info("sockname"))
        self.is_encrypted = transport.get_extra_info("sslcontext") is not None
        self.peer = self._address or format_address(*self.peer_host)
        self._address = self.peer
        self._closed = False
        self._schedule_idle_check()
        if self._on_open is not None:
            self._on_open(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the requests that still wait (called by asyncio)."""
        reason = f"connection lost: {exc}" if exc is not None else "closed by the peer"
        self._end(reason, "" if self._closed else self._remark(closed=True))
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        self._forget_bytes()
        self._when_drained.clear()
        self._transport = None
        if not self._lost.done():
            self._lost.set_result(None)
        self._finish()

    def _forget_bytes(self) -> None:
        self._out.clear()
        self._out_bytes = 0

    def _finish(self) -> None:
        """Tell the owner that the connection is gone."""
        self._decoder = FrameDecoder()
        if self._on_close is not None:
            try:
                self._on_close(self)
            except Exception:
                logger.exception("the end of the connection to %s was not taken in", self.peer)

    def close(self, reason: str, remark: str = "") -> None:
        """Close: bytes accepted for sending are still sent, waiting requests fail.

        A peer that does not take the rest within some seconds is disconnected. Returns at once.

        Args:
            reason: why.
            remark: a further text for the errors of waiting requests.
        """
        transport = self._transport
        if self._closed or transport is None:
            return
        self._end(reason, remark)
        if self._out:
            transport.write(self._take_out())
        transport.close()
        self._abort_timer = self._loop.call_later(_GRACE_S, self._abort)

    async def wait_closed(self) -> None:
        """Wait until the socket is gone; blocks for some seconds at most after ``close``."""
        await asyncio.shield(self._lost)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _cut_off(self) -> None:
        """End without sending what the peer has not taken."""
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        if sock is not None:
            drop_unsent(sock)
        self._abort()

    def _end(self, reason: str, remark: str = "") -> None:
        if self._closed:
            return
        self._closed = True
        self.close_reason = reason
        for timer in (self._sweep_timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        self._sweep_timer = self._idle_timer = None
        pending, self._pending = self._pending, {}
        text = f"connection to {self.peer} ended before the answer came: {reason}{remark}"
        for _, sink, _ in pending.values():
            self._tell_failure(sink, ConnectionLostError(text, address=self.peer))

    def _closed_error(self) -> ConnectError:
        reason = self.close_reason or "not open yet"
        return ConnectError(
            f"connection to {self.peer} is closed ({reason}); nothing was sent", address=self.peer
        )


def _host(name: Any) -> tuple[str, int]:
    """Return host and port of a socket name; IPv6 names have two more items."""
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else ("", 0)
