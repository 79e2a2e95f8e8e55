"""A connection of a server: the requests of one peer must not keep other peers waiting.

Law: runs on its loop's thread only. Frames, answers and bounds are those of any connection; turns,
memory and steps are added here.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from typing import Any

from rocketstream import limits
from rocketstream.errors import RemoteProtocolError
from rocketstream.protocol.framing import FrameDecoder
from rocketstream.transport.connection import Connection, ConnectionLimits, RequestHandler
from rocketstream.transport.sharing import AnswerSteps, Sharing

logger: logging.Logger = logging.getLogger("rocketstream.transport")

FramesTaker = Callable[[Connection, bytes | bytearray, int, Callable[[], bool]], int]
"""Takes requests straight from the received bytes.

Arguments: the connection, the bytes, where the next frame begins, and a function to ask now and
then whether others must get their turn. Returns where the first frame begins that it leaves to the
general way; it must have done, or refused, every earlier one."""
_FLUSH_ABOVE_BYTES = 1024 * 1024
_PIECE_BYTES = 64 * 1024
"""Bytes handed to the socket at a time: a piece is freed when it is sent, and the next answer's
pieces fit into its memory."""


class _Debts:
    """The calls for which a peer waits, as a worker of their own."""

    def __init__(self, connection: ServedConnection) -> None:
        self._connection = connection
        self.is_waiting = False
        self.calls: deque[Callable[[], None]] = deque()

    def work(self, until: Callable[[], bool]) -> bool:
        return self._connection.give(until)


class ServedConnection(Connection, asyncio.BufferedProtocol):
    """A connection that works in its turn, and reads a large frame when there is room for it.

    Requests a peer sent before it left are still done; then the owner hears that it left.
    """

    _pause_above_bytes = limits.SERVER_WRITE_PAUSE_BYTES

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_request: RequestHandler,
        sharing: Sharing,
        *,
        bounds: ConnectionLimits,
        on_open: Callable[[Connection], None] | None = None,
        on_close: Callable[[Connection], None] | None = None,
        take_frames: FramesTaker | None = None,
    ) -> None:
        super().__init__(loop, on_request, bounds=bounds, on_open=on_open, on_close=on_close)
        self._take_frames = take_frames
        self._sharing = sharing
        self._steps: AnswerSteps | None = None
        self._awaited: asyncio.Future[Any] | None = None
        self._debts = _Debts(self)
        self._in_line = False
        self._is_gone = False
        self._is_reading_paused = False
        self._has_room = False
        self._wants_room = False
        self._frame_began_s = math.inf
        self._read_to = memoryview(b"")
        # State shown to the object it shares the server with (see ``Sharer``).
        self.is_waiting = False
        self.holds_since_s: float = math.inf

    # --- reading ----------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes (called by asyncio)."""
        self._read_to = self._sharing.read_buffer(self)
        return self._read_to

    def buffer_updated(self, nbytes: int) -> None:
        """Take the bytes that were read (called by asyncio)."""
        self.data_received(bytes(self._read_to[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Decode and dispatch, now or in this connection's turn."""
        if self._closed:
            return
        self._active = True
        try:
            self._decoder.put(data)
        except RemoteProtocolError as error:  # the header of a frame too large to be kept
            self._refuse_frame(error)
            return
        if self._in_line or self._sharing.go(self):
            self._in_line = True
            if self._paused or self._decoder.bytes_pending > limits.SERVER_LINE_BYTES:
                self._pause_reading()
        if self._decoder.bytes_pending:
            if self._frame_began_s == math.inf:
                self._frame_began_s = self._loop.time()
            self._sharing.holds(self, len(data))
            self._ask_room()

    def _ask_room(self) -> None:
        """Stop reading a large frame until there is room for it."""
        size = self._decoder.frame_bytes
        if size <= limits.FRAME_FREE_BYTES or self._has_room or self._wants_room or self._closed:
            return
        if self._sharing.ask_room(self, size):
            self._has_room = True
        else:
            self._wants_room = True
            self._pause_reading()

    def room_given(self) -> None:
        """Read on in the frame that waited for room (called by the sharing object)."""
        self._wants_room, self._has_room = False, True
        self._read_on()

    def _leave_room(self) -> None:
        if self._has_room or self._wants_room:
            self._has_room = self._wants_room = False
            self._sharing.leave_room(self)

    def _pause_reading(self) -> None:
        if self._transport is not None and not self._closed and not self._is_reading_paused:
            self._is_reading_paused = True
            self._transport.pause_reading()

    def _read_on(self) -> None:
        if self._transport is None or self._closed or self._in_line or self._wants_room:
            return
        # A peer that was not read from could not continue a frame it had begun.
        not_read = self._is_reading_paused or self._frame_began_s == math.inf
        if self._decoder.bytes_pending and not_read:
            self._frame_began_s = self._loop.time()
        if self._is_reading_paused:
            self._is_reading_paused = False
            self._transport.resume_reading()

    # --- calls of the sharing object --------------------------------------------------------------

    @property
    def bytes_held(self) -> int:
        """Bytes received and not yet processed, plus bytes of answers the peer has not taken."""
        return self._decoder.bytes_pending + self.bytes_buffered

    @property
    def frame_due_s(self) -> float:
        """Loop time by which the frame begun must be complete; infinite between frames."""
        size = self._decoder.frame_bytes
        if not size or self._in_line or self._wants_room:
            return math.inf
        patience_ms = limits.FRAME_GRACE_MS + size / limits.FRAME_BYTES_PER_MS_MIN
        return self._frame_began_s + patience_ms / 1000

    def drop(self, reason: str) -> None:
        """Close at once: unsent bytes are lost, received requests are not done."""
        if not self._closed:
            logger.warning("closing %s: %s", self.peer, reason)
        self._end(reason)
        self._forget_bytes()
        self._decoder = FrameDecoder()
        self._leave_room()
        self._abort()

    # --- working ----------------------------------------------------------------------------------

    def owe(self, answer: Callable[[], None]) -> None:
        """Call ``answer``, for which the peer waits, soon: in a line of its own kind.

        A peer that waits needs no turn for requests until it has been answered; behind requests of
        all connections a message would reach it a round later than its sender is answered.
        """
        self._debts.calls.append(answer)
        self._sharing.owe(self._debts)

    def give(self, until: Callable[[], bool]) -> bool:
        """Make the calls owed by now until ``until`` returns true; return whether any is left.

        Called by the sharing object.
        """
        calls = self._debts.calls
        self._receiving = True  # what they write goes together
        for _ in range(len(calls)):
            try:
                calls.popleft()()
            except Exception:
                logger.exception("INTERNAL what %s waited for failed", self.peer)
            if until():
                break
        self._done_receiving()
        return bool(calls)

    def work(self, until: Callable[[], bool]) -> bool:
        """Take requests and answers until ``until`` returns true; return whether work is left.

        Called by the sharing object in this connection's turn.
        """
        self._receiving = True
        try:
            more = self._work(until)
        except RemoteProtocolError as error:
            self._refuse_frame(error)
            more = False
        finally:
            self._done_receiving()
        if not self._in_line:
            return more
        if not more:
            self._leave_line()
        # A connection that waits for its peer to read needs no turn: ``resume_writing`` puts it in
        # line again. So does the end of the future its steps wait for.
        waits_for_peer = self._paused and not self._closed and self._steps is None
        return more and not waits_for_peer and self._awaited is None

    def _work(self, until: Callable[[], bool]) -> bool:
        decoder = self._decoder
        while True:
            if self._awaited is not None:
                return True
            if self._steps is not None:
                if self._take_step():
                    if until():
                        return True
                    continue
            elif self._closed and not self._is_gone:
                return False  # closed by us: the remaining requests are dropped
            if self._paused and not self._closed:
                return True
            if self._take_frames is None or not self._take_run(self._take_frames, until):
                command = decoder.next()
                if command is None:
                    return False
                self._frame_began_s = math.inf
                self._leave_room()
                self._take(command)
            elif not decoder.bytes_pending:
                return False  # a producer's send usually comes alone
            if self._out_bytes > _FLUSH_ABOVE_BYTES:
                self._flush()
            if until():
                return self._steps is not None or bool(decoder.bytes_pending)

    def _take_run(self, take_frames: FramesTaker, until: Callable[[], bool]) -> bool:
        """Take the next requests together; return whether any were taken."""
        data, position = self._decoder.held
        try:
            end = take_frames(self, data, position, until)
        except Exception:
            # Some of these requests may be done: neither repeating nor skipping them would be
            # right.
            logger.exception("INTERNAL requests of %s failed", self.peer)
            self.close("an internal error of the server")
            return True
        if end == position:
            return False
        self._decoder.skip_to(end)
        self._frame_began_s = math.inf
        self._leave_room()
        return True

    def _answer_in_steps(self, steps: AnswerSteps | None) -> None:
        self._steps = steps

    def _take_step(self) -> bool:
        """Continue a request that is answered in steps; return whether it is unfinished."""
        assert self._steps is not None
        try:
            awaited = next(self._steps)
        except StopIteration:
            self._steps = None
            return False
        except Exception:
            self._steps = None
            logger.exception("a request of %s failed", self.peer)
            return False
        if awaited is not None and not awaited.done():
            self._awaited = awaited
            awaited.add_done_callback(self._go_on)
        return True

    def _go_on(self, _: asyncio.Future[Any]) -> None:
        """Go on: the future the steps waited for is done."""
        self._awaited = None
        self._sharing.again(self)

    def _leave_line(self) -> None:
        self._in_line = False
        if self._transport is None:
            super()._finish()
        else:
            self._ask_room()
            self._read_on()

    # --- writing ----------------------------------------------------------------------------------

    def _hand_over(self, transport: asyncio.Transport) -> None:
        self._sharing.holds(self, self._out_bytes)
        if self._out_bytes <= _PIECE_BYTES:
            transport.write(self._take_out())
            return
        rest_bytes = self._out_bytes - _FLUSH_ABOVE_BYTES
        while self._out and not self._paused and self._out_bytes > rest_bytes:
            transport.write(self._take_piece())
        if self._out and not self._paused and not self._flush_due:
            self._flush_due = True  # the rest is sent in the next pass of the loop
            self._loop.call_soon(self._flush)
        self._check_write_bound()

    def _take_piece(self) -> bytes:
        """Return the next bytes to be sent, and release them here."""
        out, taken, size = self._out, [], 0
        while out and size < _PIECE_BYTES:
            part = out.popleft()
            left = _PIECE_BYTES - size
            if len(part) > left:
                whole = memoryview(part)
                out.appendleft(whole[left:])
                part = whole[:left]
            taken.append(part)
            size += len(part)
        self._out_bytes -= size
        return b"".join(taken)

    def resume_writing(self) -> None:
        """Send the bytes kept here (called by asyncio)."""
        self.holds_since_s = math.inf
        super().resume_writing()
        if self._in_line:
            self._sharing.again(self)

    # --- the end ----------------------------------------------------------------------------------

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the requests that still wait (called by asyncio)."""
        # Requests the peer sent before it left, such as a commit, are still done in its turn.
        self._is_gone = not self._closed
        super().connection_lost(exc)

    def _finish(self) -> None:
        """End in line: when thousands are lost at once, they are handled one after another."""
        self._leave_room()
        self._in_line = True
        self._sharing.again(self)
