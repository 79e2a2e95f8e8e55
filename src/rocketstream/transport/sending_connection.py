"""A client's connection that sends encoded frames and reads the usual answer to a send directly.

Law: that of ``connection``; knows only the form of answers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rocketstream.errors import RemoteProtocolError
from rocketstream.protocol.answer_form import StoredForm, StoredValues, learn
from rocketstream.protocol.command import RemotingCommand
from rocketstream.transport.connection import Connection

logger = logging.getLogger("rocketstream.transport")

_FORMS_MAX = 32
"""Learnt of one server: one that changes its form all the time is read the general way."""


class StoredSink:
    """Waits for the answer to a send; gets the usual answer as separate values.

    Not an abstract base class: isinstance checks against one take five times as long.
    """

    __slots__ = ()

    def stored(self, form: StoredForm, values: StoredValues) -> None:
        """Take the usual answer, as ``StoredForm.read`` reads it."""
        raise NotImplementedError

    def __call__(self, answer: RemotingCommand | None, error: Exception | None) -> None:
        """Take any other answer, or the error that prevented one."""
        raise NotImplementedError


class SendingConnection(Connection):
    """The connection of a client to a server."""

    _form: StoredForm | None = None
    _forms_learnt = 0

    @property
    def takes_ready(self) -> bool:
        """Whether encoded frames may be sent, because no hook wants to see requests and answers."""
        return self._before_request is None and self._after_response is None

    def request_ready(
        self, frame_of: Callable[[int], bytes], timeout_ms: float, sink: StoredSink
    ) -> None:
        """Send the frame made for an opaque id; ``sink`` gets the answer, as a callback would.

        Raises:
            ConnectError: the connection is closed; nothing was sent, ``sink`` is not called.
            TooManyRequestsError: the bound of requests in flight is reached; nothing was sent,
                ``sink`` is not called.
            LocalProtocolError: the frame cannot be made; nothing was sent, ``sink`` is not called.
        """
        opaque = self._next_opaque()
        self._send(frame_of(opaque), opaque, timeout_ms, sink)

    def data_received(self, data: bytes) -> None:
        """Decode and dispatch (called by asyncio)."""
        if self._closed:
            return
        self._active = True
        decoder = self._decoder
        self._receiving = True
        try:
            decoder.put(data)
            while not self._closed:
                if self._form is not None:
                    self._take_usual(self._form)
                    if self._closed:
                        break
                held, at = decoder.held
                command = decoder.next()
                if command is None:
                    break
                entry = self._pending.get(command.opaque)
                if entry is not None and isinstance(entry[1], StoredSink):
                    self._learn(bytes(held[at : decoder.held[1]]), command)
                self._take(command)
        except RemoteProtocolError as error:
            self._refuse_frame(error)
        finally:
            self._done_receiving()

    def _take_usual(self, form: StoredForm) -> None:
        """Take the next answers as long as they have the known form."""
        decoder, pending, read = self._decoder, self._pending, form.read
        held, at = decoder.held
        while (found := read(held, at)) is not None:
            end, opaque, values = found
            entry = pending.get(opaque)
            if entry is None or not isinstance(sink := entry[1], StoredSink):
                return
            del pending[opaque]
            at = end
            decoder.skip_to(at)
            try:
                sink.stored(form, values)
            except Exception:
                logger.exception("the callback for an answer of %s failed", self.peer)
            if self._closed:
                return

    def _learn(self, frame: bytes, answer: RemotingCommand) -> None:
        if self._forms_learnt < _FORMS_MAX:
            form = learn(frame, answer)
            if form is not None:
                self._form = form
                self._forms_learnt += 1
