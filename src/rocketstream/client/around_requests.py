"""What happens around every request of a client: stream mark, the user's RPC hooks, signing.

Law: functions of a configuration; the transport calls them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from rocketstream.client.config import ClientConfig
from rocketstream.client.credentials import signer
from rocketstream.client.rpc_hook import RPCHook
from rocketstream.errors import SendError, SendOutcome
from rocketstream.protocol.codes import RequestCode
from rocketstream.protocol.command import RemotingCommand

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

BeforeRequest = Callable[[str, RemotingCommand], None]
AfterResponse = Callable[[str, RemotingCommand, RemotingCommand], None]


def before_request_of(config: ClientConfig) -> BeforeRequest | None:
    """Return what is done to each request of a client, None when nothing is.

    The signature comes last, so that it covers what the others add.

    Raises:
        ConfigurationError: only one of the two keys is given.
    """
    steps: list[BeforeRequest] = []
    if config.enable_stream_request_type:
        steps.append(_mark_stream)
    steps += [_before_of(hook) for hook in config.rpc_hooks()]
    sign = signer(config.access_key, config.secret_key, config.security_token)
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


def after_response_of(config: ClientConfig) -> AfterResponse | None:
    """Return what is told of each answer, None when nobody asked."""
    hooks = tuple(config.rpc_hooks())
    if not hooks:
        return None

    def tell(address: str, command: RemotingCommand, response: RemotingCommand) -> None:
        _tell_all(hooks, address, command, response)

    return tell


def _tell_all(
    hooks: Iterable[RPCHook], address: str, command: RemotingCommand, response: RemotingCommand
) -> None:
    for hook in hooks:
        try:
            hook.after_response(address, command, response)
        except Exception:
            logger.exception("RPC hook %r failed on the answer of %s", hook, address)


def _mark_stream(_address: str, command: RemotingCommand) -> None:
    """Say that this client reads a stream (C-17, StreamTypeRPCHook)."""
    command.ext_fields = {**(command.ext_fields or {}), REQUEST_TYPE_FIELD: _STREAM_CODE}
