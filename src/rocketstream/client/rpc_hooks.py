"""RPC hooks of users, which see every request of a client and its answer, and what joins them.

Before a request come the mark of a stream, the hooks and the signature; the transport calls them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from rocketstream.errors import SendError, SendOutcome
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import AfterResponse, BeforeRequest, RemotingCommand

logger = logging.getLogger("rocketstream.client")

REQUEST_TYPE_FIELD = "ReqT"
_STREAM_CODE = "0"

_SENDS = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)


class RPCHook(Protocol):
    """Sees every request before it is written, and every answer before it is handed on.

    Called on whatever thread sends or receives; it must not block. ``before_request`` may add to
    ``command.ext_fields`` and may raise to keep the request from being sent, which makes of a send
    a ``SendError`` with outcome NOT_SENT; what ``after_response`` raises is logged.
    """

    def before_request(self, address: str, command: RemotingCommand) -> None:
        """See ``command`` before it goes to ``address``."""
        ...

    def after_response(
        self, address: str, command: RemotingCommand, response: RemotingCommand
    ) -> None:
        """See the answer of ``address`` to ``command``."""
        ...


def before_request_of(
    hooks: Sequence[RPCHook], sign: BeforeRequest | None, *, reads_stream: bool
) -> BeforeRequest | None:
    """Return the call before each request of a client, None where none is needed.

    Args:
        hooks: the user's.
        sign: signs; it comes last, so that the signature covers what the others add.
        reads_stream: mark each request as a stream reader's (C-17).
    """
    steps: list[BeforeRequest] = []
    if reads_stream:
        steps.append(_mark_stream)
    steps += [_before_of(hook) for hook in hooks]
    if sign is not None:
        steps.append(sign)
    if len(steps) <= 1:
        return steps[0] if steps else None

    def all_steps(address: str, command: RemotingCommand) -> None:
        for step in steps:
            step(address, command)

    return all_steps


def _before_of(hook: RPCHook) -> BeforeRequest:
    """Return what asks a hook before a request; of what it raises for a send, all is known."""

    def ask(address: str, command: RemotingCommand) -> None:
        try:
            hook.before_request(address, command)
        except SendError:
            raise
        except Exception as error:
            if command.code not in _SENDS:
                raise
            text = f"an RPC hook kept the message from being sent: {error}"
            raise SendError(text, SendOutcome.NOT_SENT) from error

    return ask


def after_response_of(hooks: Sequence[RPCHook]) -> AfterResponse | None:
    """Return the call for each answer, None without hooks."""
    if not hooks:
        return None

    def tell(address: str, command: RemotingCommand, response: RemotingCommand) -> None:
        for hook in hooks:
            try:
                hook.after_response(address, command, response)
            except Exception:
                logger.exception("RPC hook %r failed on the answer of %s", hook, address)

    return tell


def _mark_stream(_address: str, command: RemotingCommand) -> None:
    """Say that this client reads a stream (C-17, StreamTypeRPCHook)."""
    command.ext_fields = {**(command.ext_fields or {}), REQUEST_TYPE_FIELD: _STREAM_CODE}
