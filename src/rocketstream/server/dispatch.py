"""Dispatch of requests: each goes to its handler, whose outcome becomes the reply.

Law: a handler is a plain function on the server's loop that must not block, since a task per
request would cost more than the request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import GeneratorType
from typing import NamedTuple, cast

from rocketstream.errors import BrokerError, ProtocolError, RocketMQError
from rocketstream.protocol.codes import ResponseCode
from rocketstream.protocol.command import OversizedCommand, RemotingCommand
from rocketstream.protocol.headers import Header
from rocketstream.transport.connection import Connection
from rocketstream.transport.sharing import AnswerSteps

logger: logging.Logger = logging.getLogger("rocketstream.server")


class AnswerInParts(NamedTuple):
    """An answer whose body is sent part by part: a large body never exists as one piece."""

    response: RemotingCommand
    parts: list[bytes]


Answer = RemotingCommand | AnswerInParts | None
Handler = Callable[[Connection, RemotingCommand], Answer | AnswerSteps]
"""Returns the reply, or None when it was or will be sent by other means (a held pull, a flush).

A handler whose work can take long is a generator: others are served at each of its yields. A
handler that has to wait yields the future it waits for."""
Guard = Callable[[Connection, RemotingCommand, bool], RemotingCommand | None]
"""Returns the refusal of a request; None when it may be handled. Its last argument says whether the
code has a handler at all."""


def ok(header: Header | None = None, body: bytes = b"") -> RemotingCommand:
    """Return a successful reply."""
    return RemotingCommand.response(ResponseCode.SUCCESS, None, header, body)


def ok_in_parts(parts: list[bytes]) -> AnswerInParts:
    """Return a successful reply whose body is these parts, one after another."""
    return AnswerInParts(RemotingCommand.response(ResponseCode.SUCCESS), parts)


def refusal(code: int, remark: str) -> BrokerError:
    """Return the error that a handler raises to answer with a code and a remark."""
    return BrokerError(int(code), remark)


class Dispatcher:
    """A table ``code -> handler``; unknown codes are refused, never ignored."""

    def __init__(
        self,
        name: str,
        handlers: Mapping[int, Handler],
        refuse_oversized: Callable[[OversizedCommand], RemotingCommand] | None = None,
        guard: Guard | None = None,
    ) -> None:
        """Keep the table.

        Args:
            name: name of the server, for its log and its replies.
            handlers: the handler of each code.
            refuse_oversized: makes the reply to a request whose body was too large to be kept.
            guard: called before any work on a request is done; None lets all requests in.
        """
        self._name = name
        self._guard = guard
        self._refuse_oversized = refuse_oversized or refuse_oversized_request
        self._handlers = {int(code): handler for code, handler in handlers.items()}

    @property
    def codes(self) -> list[int]:
        """The request codes that are answered, ascending."""
        return sorted(self._handlers)

    def __call__(self, connection: Connection, request: RemotingCommand) -> AnswerSteps | None:
        """Answer one request of a peer, or return the steps that will answer it."""
        if type(request) is OversizedCommand:
            connection.reply(request, self._refuse_oversized(request))
            return None
        handler = self._handlers.get(request.code)
        if self._guard is not None:
            refused = self._guard(connection, request, handler is not None)
            if refused is not None:
                connection.reply(request, refused)
                return None
        if handler is None:
            remark = f" request type {request.code} not supported"
            response = RemotingCommand.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
            connection.reply(request, response)
            return None
        answer = guarded(self._name, handler, connection, request)
        if type(answer) is GeneratorType:
            return self._in_steps(connection, request, answer)
        if answer is not None:
            connection.reply(request, cast(RemotingCommand, answer))
        return None

    def _in_steps(
        self,
        connection: Connection,
        request: RemotingCommand,
        steps: AnswerSteps,
    ) -> AnswerSteps:
        """Do the steps of a handler and send its reply."""
        try:
            answer = yield from steps
        except Exception as error:
            answer = _failure(self._name, connection, request, error)
        if isinstance(answer, AnswerInParts):
            connection.reply(request, answer.response, answer.parts)
        elif answer is not None:
            connection.reply(request, answer)


def guarded(
    name: str, handler: Handler, connection: Connection, request: RemotingCommand
) -> Answer | AnswerSteps:
    """Run a handler; every way it can fail becomes a reply."""
    try:
        return handler(connection, request)
    except Exception as error:
        return _failure(name, connection, request, error)


def refuse_oversized_request(request: OversizedCommand) -> RemotingCommand:
    """Return the reply to a request whose body was too large to be kept."""
    remark = (
        f"the body of {request.body_bytes} bytes is over what this server reads of a request;"
        " send it in smaller parts"
    )
    return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, remark)


def _failure(
    name: str, connection: Connection, request: RemotingCommand, error: Exception
) -> RemotingCommand:
    """Return the reply that reports a failure."""
    if isinstance(error, BrokerError):
        return RemotingCommand.response(error.code, error.remark)
    if isinstance(error, ProtocolError):
        logger.info(
            "%s: bad request code=%d peer=%s: %s", name, request.code, connection.peer, error
        )
        return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, error.message)
    if isinstance(error, RocketMQError):
        logger.error("%s: code=%d failed: %s", name, request.code, error)
        return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, error.message)
    # The one place that keeps a bug of ours from becoming a caller's timeout.
    logger.error(
        "%s: INTERNAL code=%d peer=%s", name, request.code, connection.peer, exc_info=error
    )
    text = f"internal error of the {name}, see its log: {type(error).__name__}"
    return RemotingCommand.response(ResponseCode.SYSTEM_ERROR, text)
